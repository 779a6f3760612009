//! The header of a batch, and a look over the headers of all batches of an answer.
use crate::client::compression::Compression;

/// Bytes of a batch's header.
pub(crate) const HEADER: usize = 61;
/// Bytes before the counted part of a batch: base offset and length.
pub(crate) const PREFIX: usize = 12;
/// First byte that the checksum covers.
pub(crate) const CHECKED: usize = 21;
/// Attribute: all records have the time at which the broker appended them.
pub(crate) const LOG_APPEND_TIME: i16 = 0x08;
/// Attribute: part of a transaction.
pub(crate) const TRANSACTIONAL: i16 = 0x10;
/// Attribute: the batch holds a marker, no records of users.
pub(crate) const CONTROL: i16 = 0x20;

/// The header's fields that reading needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchHeader {
    pub base_offset: i64,
    /// Bytes of the whole batch.
    pub size: usize,
    pub leader_epoch: i32,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset: i64,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub count: i32,
}

impl BatchHeader {
    /// Reads the header at the start of `b`. `Ok(None)` when the batch is cut off at the end of the answer.
    pub(crate) fn read(b: &[u8]) -> Result<Option<Self>, String> {
        let Some(h) = b.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let i64_at = |i: usize| i64::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3], h[i + 4], h[i + 5], h[i + 6], h[i + 7]]);
        let i32_at = |i: usize| i32::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]);
        let base_offset = i64_at(0);
        let length = i32_at(8);
        if h[16] != 2 {
            return Err(format!("message format {} is not supported, only 2 (written by Kafka 0.11 or newer)", h[16]));
        }
        let size = usize::try_from(length).ok().map(|l| l + PREFIX).filter(|s| *s >= HEADER);
        let size = size.ok_or_else(|| format!("batch length {length}"))?;
        if b.len() < size {
            return Ok(None);
        }
        let delta = i32_at(23);
        let last_offset = base_offset.checked_add(i64::from(delta));
        let last_offset = last_offset.filter(|_| base_offset >= 0 && delta >= 0);
        let last_offset = last_offset.filter(|l| *l < i64::MAX).ok_or_else(|| format!("offsets {base_offset} + {delta}"))?;
        Ok(Some(BatchHeader {
            base_offset,
            size,
            leader_epoch: i32_at(12),
            crc: i32_at(17) as u32,
            attributes: i16::from_be_bytes([h[21], h[22]]),
            last_offset,
            base_timestamp: i64_at(27),
            max_timestamp: i64_at(35),
            producer_id: i64_at(43),
            count: i32_at(57),
        }))
    }

    pub(crate) fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    pub(crate) fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    pub(crate) fn compression(&self) -> Result<Compression, String> {
        Compression::from_bits(self.attributes).ok_or_else(|| format!("unknown codec {}", self.attributes & 7))
    }
}

/// What the headers of an answer tell without decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Where the next fetch begins.
    pub next_offset: i64,
    /// Leader epoch of the last whole batch, -1 without one.
    pub leader_epoch: i32,
    /// Whole batches.
    pub batches: usize,
}

/// Looks over the batches' headers; stops at the first that is cut or damaged (decoding then says what it is).
pub(crate) fn scan(records: &[u8], from: i64) -> Scan {
    let mut scan = Scan { next_offset: from, leader_epoch: -1, batches: 0 };
    let mut at = 0;
    while let Ok(Some(h)) = BatchHeader::read(records.get(at..).unwrap_or_default()) {
        at += h.size;
        scan.next_offset = scan.next_offset.max(h.last_offset + 1);
        scan.leader_epoch = h.leader_epoch;
        scan.batches += 1;
    }
    scan
}
