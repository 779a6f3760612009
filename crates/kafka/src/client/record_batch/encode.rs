//! [`BatchBuilder`]: writes one batch from columns.
use super::header::{CHECKED, HEADER, PREFIX, TRANSACTIONAL};
use super::varint;
use crate::client::compression::Compression;
use crate::client::error::{ClientError, Result};
use bytes::Bytes;

/// Byte strings in one buffer: row `i` ends at `ends[i]` and begins where row `i - 1` ends.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// All rows' bytes, one after the other.
    pub data: &'a [u8],
    /// End of each row in `data`, never decreasing.
    pub ends: &'a [usize],
    /// Which rows are not null; `None` when none is.
    pub valid: Option<&'a [bool]>,
}

impl<'a> Column<'a> {
    /// The bytes of `row` (`Some(None)` for null); `None` when the column has no such row.
    #[inline]
    pub fn get(&self, row: usize) -> Option<Option<&'a [u8]>> {
        let end = *self.ends.get(row)?;
        if let Some(valid) = self.valid
            && !*valid.get(row)?
        {
            return Some(None);
        }
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        self.data.get(start..end).map(Some)
    }
}

/// Timestamps of rows, in ms since 1970.
#[derive(Clone, Copy, Debug)]
pub enum Timestamps<'a> {
    /// The same for all.
    All(i64),
    /// One per row.
    Each(&'a [i64]),
}

/// A header of a record to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Name.
    pub key: &'a str,
    /// Value, `None` for null.
    pub value: Option<&'a [u8]>,
}

/// Rows to write, in columns.
#[derive(Clone, Copy, Debug)]
pub struct RowColumns<'a> {
    /// Timestamps.
    pub timestamps: Timestamps<'a>,
    /// Keys; `None` when no row has one.
    pub keys: Option<Column<'a>>,
    /// Values.
    pub values: Column<'a>,
    /// Headers of every row (the same for all).
    pub headers: &'a [Header<'a>],
}

/// Who writes a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIdentity {
    /// Producer id, -1 for none.
    pub producer_id: i64,
    /// Producer epoch, -1 for none.
    pub epoch: i16,
    /// First sequence number, -1 for none.
    pub sequence: i32,
    /// Part of a transaction.
    pub transactional: bool,
}

impl BatchIdentity {
    /// A batch of nobody.
    pub const ANONYMOUS: BatchIdentity = BatchIdentity { producer_id: -1, epoch: -1, sequence: -1, transactional: false };
}

/// A batch being written. Records lie behind a place for the header, so that sealing does not copy them.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    buffer: Vec<u8>,
    count: i32,
    first_timestamp: i64,
    max_timestamp: i64,
    /// Size of the last batch, as a guess for the next.
    guess: usize,
}

impl BatchBuilder {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of records.
    pub fn count(&self) -> i32 {
        self.count
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch before compression, header included; 0 when empty.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// Appends a record.
    pub fn push(&mut self, timestamp: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) {
        let packed = pack_headers(headers);
        self.put(timestamp, key, value, &packed);
    }

    /// Appends the rows `indices[from..]` (rows `from..` when `None`), until one does not fit into `max_bytes` any more;
    /// the first row of a batch always fits. Returns the position after the last row taken.
    pub fn append_rows(&mut self, rows: &RowColumns<'_>, indices: Option<&[u32]>, from: usize, max_bytes: usize) -> Result<usize> {
        let packed = pack_headers(rows.headers);
        let end = indices.map_or(rows.values.ends.len(), <[u32]>::len);
        for at in from..end {
            let row = indices.map_or(at, |i| i[at] as usize);
            let missing = || ClientError::Usage(format!("row {row} is not in the columns given to the producer"));
            let value = rows.values.get(row).ok_or_else(missing)?;
            let key = match &rows.keys {
                None => None,
                Some(keys) => keys.get(row).ok_or_else(missing)?,
            };
            let timestamp = match rows.timestamps {
                Timestamps::All(t) => t,
                Timestamps::Each(t) => *t.get(row).ok_or_else(missing)?,
            };
            // 35 bytes: the longest prefix of a record that the lengths below do not count.
            let most = value.map_or(0, <[u8]>::len) + key.map_or(0, <[u8]>::len) + packed.len() + 35;
            if self.count > 0 && self.buffer.len() + most > max_bytes {
                return Ok(at);
            }
            self.put(timestamp, key, value, &packed);
        }
        Ok(end.max(from))
    }

    #[inline]
    fn put(&mut self, timestamp: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[u8]) {
        if self.count == 0 {
            self.buffer.reserve(self.guess.max(HEADER));
            self.buffer.resize(HEADER, 0);
            self.first_timestamp = timestamp;
            self.max_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let time_delta = timestamp.wrapping_sub(self.first_timestamp);
        let offset_delta = i64::from(self.count);
        let key_len = key.map_or(-1, |k| k.len() as i64);
        let value_len = value.map_or(-1, |v| v.len() as i64);
        let length = 1
            + varint::len(time_delta)
            + varint::len(offset_delta)
            + varint::len(key_len)
            + key.map_or(0, <[u8]>::len)
            + varint::len(value_len)
            + value.map_or(0, <[u8]>::len)
            + headers.len();
        // All that comes before the key, in one piece.
        let mut p = [0u8; 5 * varint::MAX + 1];
        let mut n = varint::put(&mut p, 0, length as i64);
        p[n] = 0;
        n = varint::put(&mut p, n + 1, time_delta);
        n = varint::put(&mut p, n, offset_delta);
        n = varint::put(&mut p, n, key_len);
        if let Some(key) = key {
            self.buffer.extend_from_slice(&p[..n]);
            self.buffer.extend_from_slice(key);
            n = 0;
        }
        n = varint::put(&mut p, n, value_len);
        self.buffer.extend_from_slice(&p[..n]);
        self.buffer.extend_from_slice(value.unwrap_or_default());
        self.buffer.extend_from_slice(headers);
        self.count += 1;
    }

    /// Ends the batch: compresses, writes the header and its checksum. The builder is empty afterwards.
    pub fn seal(&mut self, identity: BatchIdentity, compression: Compression) -> Result<Bytes> {
        let mut batch = std::mem::take(&mut self.buffer);
        let count = std::mem::take(&mut self.count);
        self.guess = batch.len() + batch.len() / 16;
        if count == 0 {
            return Err(ClientError::Usage("an empty batch cannot be sent".into()));
        }
        if compression != Compression::None {
            let mut packed = Vec::with_capacity(batch.len() / 2 + HEADER);
            packed.resize(HEADER, 0);
            compression
                .compress(&batch[HEADER..], &mut packed)
                .map_err(|e| ClientError::Usage(format!("a batch cannot be compressed with {compression:?}: {e}")))?;
            batch = packed;
        }
        let length =
            i32::try_from(batch.len() - PREFIX).map_err(|_| ClientError::Usage("a batch of more than 2 GiB cannot be sent".into()))?;
        let attributes = compression.bits() | if identity.transactional { TRANSACTIONAL } else { 0 };
        // Base offset 0 and, at 12, partition leader epoch -1: the broker sets both.
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[12..16].copy_from_slice(&(-1i32).to_be_bytes());
        batch[16] = 2;
        batch[21..23].copy_from_slice(&attributes.to_be_bytes());
        batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        batch[27..35].copy_from_slice(&self.first_timestamp.to_be_bytes());
        batch[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        batch[43..51].copy_from_slice(&identity.producer_id.to_be_bytes());
        batch[51..53].copy_from_slice(&identity.epoch.to_be_bytes());
        batch[53..57].copy_from_slice(&identity.sequence.to_be_bytes());
        batch[57..61].copy_from_slice(&count.to_be_bytes());
        let crc = crc32c::crc32c(&batch[CHECKED..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        Ok(Bytes::from(batch))
    }
}

/// The headers as they stand at the end of a record: their number, then each.
fn pack_headers(headers: &[Header<'_>]) -> Vec<u8> {
    fn number(out: &mut Vec<u8>, v: i64) {
        let mut p = [0; varint::MAX];
        let n = varint::put(&mut p, 0, v);
        out.extend_from_slice(&p[..n]);
    }
    let mut out = Vec::with_capacity(1);
    number(&mut out, headers.len() as i64);
    for h in headers {
        number(&mut out, h.key.len() as i64);
        out.extend_from_slice(h.key.as_bytes());
        number(&mut out, h.value.map_or(-1, |v| v.len() as i64));
        out.extend_from_slice(h.value.unwrap_or_default());
    }
    out
}
