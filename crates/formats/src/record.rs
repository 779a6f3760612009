//! What goes in and comes out: record bytes, decoded rows, encoded rows.
use std::fmt;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

/// Where one record's value lies inside a buffer, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// The value of a record that has none: a tombstone in Kafka's terms. Differs from an empty value.
    pub const NULL: Self = Self { start: u32::MAX, len: u32::MAX };

    /// The span of `len` bytes from `start`.
    #[must_use]
    pub const fn new(start: u32, len: u32) -> Self {
        Self { start, len }
    }

    /// Whether this is [`Span::NULL`].
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.start == u32::MAX && self.len == u32::MAX
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() { f.write_str("NULL") } else { write!(f, "{}+{}", self.start, self.len) }
    }
}

/// Values of records inside one buffer. The spans need not be in order, may overlap and may leave bytes out.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    /// The bytes that the spans point into.
    pub data: &'a [u8],
    /// One per record.
    pub spans: &'a [Span],
}

/// One record seen by a decoder.
pub(crate) enum Value<'a> {
    /// The record's bytes, and the same bytes with whatever follows them in the buffer (for wide loads).
    Bytes {
        record: &'a [u8],
        tail: &'a [u8],
    },
    Tombstone,
    /// The span reaches beyond the buffer.
    Outside,
}

impl<'a> Records<'a> {
    #[inline]
    pub(crate) fn value(&self, span: Span) -> Value<'a> {
        if span.is_null() {
            return Value::Tombstone;
        }
        let Some(tail) = self.data.get(span.start as usize..) else {
            return Value::Outside;
        };
        match tail.get(..span.len as usize) {
            Some(record) => Value::Bytes { record, tail },
            None => Value::Outside,
        }
    }
}

/// A record that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Index into [`Records::spans`].
    pub index: usize,
    /// Why: the column, what was found, and the byte position in the record.
    pub reason: String,
}

/// What a decoder made of [`Records`].
#[derive(Clone, Debug)]
pub struct Decoded {
    /// One row per good record, in the records' order.
    pub rows: RecordBatch,
    /// The bad records, in order.
    pub bad: Vec<BadRecord>,
    /// `None` if every record became a row; else, for each row, the index of its record.
    pub kept: Option<Vec<u32>>,
}

/// Turns records into rows of one schema.
pub trait DeserializationSchema: Send + Sync {
    /// The schema of the rows.
    fn schema(&self) -> &SchemaRef;

    /// Decodes all records. It never fails as a whole and never panics: a record that cannot be decoded is in
    /// [`Decoded::bad`] and leaves no trace in the rows. A tombstone is skipped and is not bad.
    fn decode(&mut self, records: Records<'_>) -> Decoded;
}

/// Turns rows into records.
pub trait SerializationSchema: Send + Sync {
    /// Writes each row as one record at the end of `out`.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); what has been written by then does not matter.
    fn append(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError>;

    /// Writes each row as one record into `out`, whose former contents are dropped and whose memory is used again.
    ///
    /// # Errors
    /// If the batch's columns are not those of the schema, or a value cannot be written in the format. The error
    /// names column and row; `out` is then empty.
    fn encode(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError> {
        out.clear();
        let result = self.append(rows, out);
        if result.is_err() {
            out.clear();
        }
        result
    }
}

/// Encoded rows, one after the other without separators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRows {
    /// The bytes of all rows.
    pub data: Vec<u8>,
    /// Where each row ends: row i is `data[ends[i-1]..ends[i]]`.
    pub ends: Vec<usize>,
}

impl EncodedRows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Drops the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.ends.clear();
    }

    /// The bytes of row `i`, or `None` beyond the last row.
    #[must_use]
    pub fn row(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? };
        self.data.get(start..end)
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|i| self.row(i))
    }
}

/// Why rows could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The batch has other columns than the encoder was made for.
    #[error("the rows do not fit the encoder's schema: {what}")]
    Schema {
        /// What differs.
        what: String,
    },
    /// A value that the format has no text for.
    #[error("row {row}, column '{column}': {what}")]
    Value {
        /// Index of the row in the batch.
        row: usize,
        /// The column; a field inside a struct as `column.field`.
        column: String,
        /// What the value is and what to do.
        what: String,
    },
}
