//! Record batches (version 2, KIP-98), from columns and to columns, without one object per record.
//!
//! A batch is a header of 61 bytes and records of variable length. [`BatchBuilder`] writes records straight behind a
//! place kept for the header, so an uncompressed batch is never copied. [`Decoder`] walks over the batches of one
//! partition's answer and makes [`FetchedRecords`]: spans into the answer itself, or into one decompressed buffer.

mod decode;
mod encode;
mod header;
mod varint;

pub use decode::{DecodeError, DecodeOptions, Decoder};
pub use encode::{BatchBuilder, BatchIdentity, Column, Header, RowColumns, Timestamps};
pub(crate) use header::scan;

use bytes::Bytes;

/// A piece of a buffer, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// Number of bytes; `u32::MAX` for null.
    pub len: u32,
}

impl Span {
    /// No value.
    pub const NULL: Span = Span { start: 0, len: u32::MAX };

    /// Whether there is no value.
    pub fn is_null(self) -> bool {
        self.len == u32::MAX
    }

    /// First byte and the byte after the last; `None` for null.
    pub fn range(self) -> Option<std::ops::Range<usize>> {
        (!self.is_null()).then(|| self.start as usize..self.start as usize + self.len as usize)
    }
}

/// Records of one partition in columns. All vectors but `headers` have one entry per record.
#[derive(Clone, Debug, Default)]
pub struct FetchedRecords {
    /// What the spans point into (decompressed).
    pub data: Bytes,
    /// Values.
    pub values: Vec<Span>,
    /// Keys.
    pub keys: Vec<Span>,
    /// Offsets, ascending.
    pub offsets: Vec<i64>,
    /// Timestamps in ms since 1970.
    pub timestamps: Vec<i64>,
    /// Headers, not parsed (see [`headers`](FetchedRecords::headers)); empty when no record has any.
    pub headers: Vec<Span>,
    /// Where to fetch next: after the last record, control record or aborted record seen.
    pub next_offset: i64,
    /// Leader epoch of the last batch seen, -1 if unknown.
    pub leader_epoch: i32,
}

impl FetchedRecords {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there is no record (`next_offset` may have moved all the same).
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The bytes of a span, `None` for null.
    pub fn bytes(&self, span: Span) -> Option<&[u8]> {
        span.range().and_then(|r| self.data.get(r))
    }

    /// The value of record `row`, `None` for null.
    pub fn value(&self, row: usize) -> Option<&[u8]> {
        self.values.get(row).and_then(|s| self.bytes(*s))
    }

    /// The key of record `row`, `None` for null.
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        self.keys.get(row).and_then(|s| self.bytes(*s))
    }

    /// The headers of record `row`.
    pub fn headers(&self, row: usize) -> HeaderIter<'_> {
        let data = self.headers.get(row).and_then(|s| self.bytes(*s)).unwrap_or_default();
        HeaderIter { data, at: 0, started: false, left: 0 }
    }
}

/// Iterates over a record's headers: name, and value or `None` for null. Damaged headers end the iteration
/// (the batch's checksum was right, so a producer wrote them so). A name that is not UTF-8 is skipped.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    data: &'a [u8],
    at: usize,
    started: bool,
    left: u64,
}

impl<'a> HeaderIter<'a> {
    fn take(&mut self, length: i64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let bytes = self.data.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn one(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let length = varint::read(self.data, &mut self.at)?;
        let name = self.take(length)?;
        let length = varint::read(self.data, &mut self.at)?;
        let value = if length < 0 { None } else { Some(self.take(length)?) };
        Some((name, value))
    }
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if !self.started {
            self.started = true;
            self.left = varint::read(self.data, &mut self.at).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        }
        while self.left > 0 {
            self.left -= 1;
            match self.one() {
                None => self.left = 0,
                Some((name, value)) => {
                    if let Ok(name) = std::str::from_utf8(name) {
                        return Some((name, value));
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
