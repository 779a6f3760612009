//! [`Decoder`]: from the batches of one partition's answer to columns.
use super::header::{BatchHeader, CHECKED, HEADER, LOG_APPEND_TIME};
use super::{FetchedRecords, Span, varint};
use crate::client::compression::Compression;
use bytes::Bytes;
use std::collections::HashSet;

/// How batches are decoded.
#[derive(Clone, Copy, Debug)]
pub struct DecodeOptions {
    /// Whether each batch's checksum is checked (`check.crcs`).
    pub check_crc: bool,
    /// Bytes (decompressed) after which a chunk ends; a chunk is larger only when one batch is.
    pub chunk_bytes: usize,
    /// Most bytes that one batch may have after decompression.
    pub max_batch_bytes: usize,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { check_crc: true, chunk_bytes: 16 << 20, max_batch_bytes: 1 << 30 }
    }
}

/// A batch that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the batch at offset {offset} is damaged: {reason}")]
pub struct DecodeError {
    /// First offset of the batch as its header says, or the wanted offset when the header is damaged.
    pub offset: i64,
    /// What is wrong.
    pub reason: String,
}

/// Decodes the batches of one partition's answer, in chunks.
#[derive(Debug)]
pub struct Decoder {
    records: Bytes,
    at: usize,
    /// First offset that is still wanted.
    next_offset: i64,
    leader_epoch: i32,
    /// Aborted transactions not yet reached, the next one last: (first offset, producer id).
    aborted: Vec<(i64, i64)>,
    /// Producers whose records are now those of an aborted transaction.
    dropping: HashSet<i64>,
    options: DecodeOptions,
    failed: Option<DecodeError>,
}

impl Decoder {
    /// A decoder for `records` as a Fetch answer holds them. Records before `from` are skipped. `aborted` is the answer's list of
    /// aborted transactions as (producer id, first offset); it must be empty for read_uncommitted.
    pub fn new(records: Bytes, from: i64, aborted: impl IntoIterator<Item = (i64, i64)>, options: DecodeOptions) -> Self {
        let mut aborted: Vec<_> = aborted.into_iter().map(|(producer, first)| (first, producer)).collect();
        aborted.sort_unstable_by(|a, b| b.cmp(a));
        Decoder { records, at: 0, next_offset: from, leader_epoch: -1, aborted, dropping: HashSet::new(), options, failed: None }
    }

    /// Where the next fetch begins, after what was decoded so far.
    pub fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// Whether every byte was looked at (a cut batch at the end is not).
    pub(crate) fn at_end(&self) -> bool {
        self.at == self.records.len()
    }

    /// The next chunk; `None` at the end. A batch that the answer's end cuts off is left out. What lies before a damaged batch
    /// is returned before the error.
    pub fn next_chunk(&mut self) -> Result<Option<FetchedRecords>, DecodeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut chunk = Chunk::default();
        let started = self.next_offset;
        loop {
            match self.step(&mut chunk) {
                Ok(true) => {}
                Ok(false) => break,
                Err((offset, reason)) => {
                    let error = DecodeError { offset, reason };
                    self.failed = Some(error.clone());
                    if chunk.out.is_empty() && self.next_offset == started {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        if chunk.out.is_empty() && self.next_offset == started {
            return Ok(None);
        }
        let mut out = chunk.out;
        out.next_offset = self.next_offset;
        out.leader_epoch = self.leader_epoch;
        out.data = match chunk.plain {
            Some(plain) => Bytes::from(plain),
            None if out.is_empty() => Bytes::new(),
            None => self.records.clone(),
        };
        Ok(Some(out))
    }

    /// Decodes one batch into `chunk`. False when there is none or it must wait for the next chunk.
    fn step(&mut self, chunk: &mut Chunk) -> Result<bool, (i64, String)> {
        if chunk.bytes >= self.options.chunk_bytes {
            return Ok(false);
        }
        let rest = &self.records[self.at..];
        let header = BatchHeader::read(rest).map_err(|reason| (self.next_offset, reason))?;
        let Some(h) = header else { return Ok(false) };
        let fail = |reason: String| (h.base_offset, reason);
        let batch = &rest[..h.size];
        if h.last_offset < self.next_offset {
            self.at += h.size;
            // A batch before the wanted offset may still end an aborted transaction.
            if h.is_control() && is_abort(&batch[HEADER..]) {
                self.dropping.remove(&h.producer_id);
            }
            return Ok(true);
        }
        let codec = h.compression().map_err(fail)?;
        let compressed = codec != Compression::None;
        if !chunk.out.is_empty() && compressed != chunk.plain.is_some() {
            return Ok(false);
        }
        if self.options.check_crc {
            let crc = crc32c::crc32c(&batch[CHECKED..]);
            if crc != h.crc {
                return Err(fail(format!("checksum {crc:08x}, but the header says {:08x}", h.crc)));
            }
        }
        while let Some(&(first, producer)) = self.aborted.last()
            && first <= h.last_offset
        {
            self.dropping.insert(producer);
            self.aborted.pop();
        }
        let wanted = if h.is_control() {
            if is_abort(&batch[HEADER..]) {
                self.dropping.remove(&h.producer_id);
            }
            false
        } else {
            !(h.is_transactional() && self.dropping.contains(&h.producer_id))
        };
        if wanted && h.count != 0 {
            let rows = chunk.out.len();
            let added = if compressed {
                let plain = chunk.plain.get_or_insert_default();
                let start = plain.len();
                let room = self.options.max_batch_bytes.min(u32::MAX as usize - start);
                let unpacked = codec.decompress(&batch[HEADER..], plain, room);
                unpacked
                    .map_err(|e| format!("{codec:?}: {e}"))
                    .and_then(|()| read_records(&mut chunk.out, plain, start, &h, self.next_offset))
            } else {
                let body = &self.records[..self.at + h.size];
                read_records(&mut chunk.out, body, self.at + HEADER, &h, self.next_offset)
            };
            match added {
                Ok(bytes) => chunk.bytes += bytes,
                Err(reason) => {
                    chunk.truncate(rows);
                    return Err(fail(reason));
                }
            }
        }
        self.at += h.size;
        self.next_offset = h.last_offset + 1;
        self.leader_epoch = h.leader_epoch;
        Ok(true)
    }
}

/// A chunk on its way.
#[derive(Default)]
struct Chunk {
    out: FetchedRecords,
    /// Decompressed batches; `None` while the spans point into the answer itself.
    plain: Option<Vec<u8>>,
    bytes: usize,
}

impl Chunk {
    /// Forgets the rows from `rows` on (of a batch that turned out to be damaged).
    fn truncate(&mut self, rows: usize) {
        let out = &mut self.out;
        out.values.truncate(rows);
        out.keys.truncate(rows);
        out.offsets.truncate(rows);
        out.timestamps.truncate(rows);
        out.headers.truncate(rows);
    }
}

/// Fewest bytes of a record: its length, attributes, two deltas, two lengths, number of headers.
const MIN_RECORD: usize = 7;

/// Reads the records of one batch from `data[start..]`; the spans are positions in `data`. Returns the bytes read.
fn read_records(out: &mut FetchedRecords, data: &[u8], start: usize, h: &BatchHeader, from: i64) -> Result<usize, String> {
    let count = usize::try_from(h.count).map_err(|_| format!("{} records", h.count))?;
    if count > (data.len() - start) / MIN_RECORD {
        return Err(format!("{count} records in {} bytes", data.len() - start));
    }
    if data.len() > u32::MAX as usize {
        return Err("more than 4 GiB of records".into());
    }
    out.values.reserve(count);
    out.keys.reserve(count);
    out.offsets.reserve(count);
    out.timestamps.reserve(count);
    let append_time = h.attributes & LOG_APPEND_TIME != 0;
    let mut at = start;
    let mut previous = h.base_offset - 1;
    for i in 0..count {
        let damaged = || format!("record {i} of {count}");
        let length = varint::read(data, &mut at).ok_or_else(damaged)?;
        let end = usize::try_from(length).ok().and_then(|l| at.checked_add(l)).ok_or_else(damaged)?;
        // One slice for the record, so that no read below can leave it.
        let record = data.get(..end).ok_or_else(damaged)?;
        at += 1;
        let time_delta = varint::read(record, &mut at).ok_or_else(damaged)?;
        let offset_delta = varint::read(record, &mut at).ok_or_else(damaged)?;
        let key = read_span(record, &mut at).ok_or_else(damaged)?;
        let value = read_span(record, &mut at).ok_or_else(damaged)?;
        // The number of headers must be there; most often it is 0 and the last byte.
        let headers = record.get(at..).filter(|h| !h.is_empty()).ok_or_else(damaged)?;
        let offset = h.base_offset.wrapping_add(offset_delta);
        if offset <= previous || offset > h.last_offset {
            return Err(format!("record {i} of {count} has offset {offset}, in a batch up to {}", h.last_offset));
        }
        previous = offset;
        if offset >= from {
            if headers != [0] {
                // The first record with headers: the ones before have none.
                out.headers.resize(out.offsets.len(), Span::NULL);
                out.headers.push(Span { start: at as u32, len: headers.len() as u32 });
            } else if !out.headers.is_empty() {
                out.headers.push(Span::NULL);
            }
            out.keys.push(key);
            out.values.push(value);
            out.offsets.push(offset);
            out.timestamps.push(if append_time { h.max_timestamp } else { h.base_timestamp.wrapping_add(time_delta) });
        }
        at = end;
    }
    Ok(at - start)
}

/// A length and so many bytes, within `record`.
#[inline]
fn read_span(record: &[u8], at: &mut usize) -> Option<Span> {
    let length = varint::read(record, at)?;
    if length < 0 {
        return Some(Span::NULL);
    }
    let start = *at;
    let end = start.checked_add(length as usize)?;
    if end > record.len() {
        return None;
    }
    *at = end;
    Some(Span { start: start as u32, len: length as u32 })
}

/// Whether a control batch's record is an abort marker: its key is version (i16) and type (i16), 0 = abort, 1 = commit.
fn is_abort(body: &[u8]) -> bool {
    let mut at = 0;
    let key = || -> Option<&[u8]> {
        varint::read(body, &mut at)?;
        at += 1;
        varint::read(body, &mut at)?;
        varint::read(body, &mut at)?;
        let span = read_span(body, &mut at)?;
        body.get(span.range()?)
    }();
    key.is_some_and(|k| k.get(2..4) == Some(&[0, 0]))
}
