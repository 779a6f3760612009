//! Which records became rows.
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::record::{BadRecord, Decoded, Records, Value};

/// The account that a decoder keeps while it goes through its records in order.
#[derive(Default)]
pub(crate) struct Rows {
    len: usize,
    bad: Vec<BadRecord>,
    kept: Option<Vec<u32>>,
}

const OUTSIDE: &str = "the record reaches beyond the buffer that it should lie in";

impl Rows {
    /// Goes through the records. `parse` appends one, given its bytes and the same bytes with what follows them in the buffer, or says
    /// why it cannot; `undo` cuts the columns back to so many rows after that.
    #[inline(always)]
    pub(crate) fn of<C>(
        records: Records<'_>,
        columns: &mut C,
        mut parse: impl FnMut(&mut C, &[u8], &[u8]) -> Result<(), String>,
        undo: impl Fn(&mut C, usize),
    ) -> Self {
        let mut rows = Self::default();
        for (index, span) in records.spans.iter().enumerate() {
            match records.value(*span) {
                Value::Bytes { record, tail } => match parse(columns, record, tail) {
                    Ok(()) => rows.keep(index),
                    Err(reason) => {
                        undo(columns, rows.len);
                        rows.bad(BadRecord { index, reason });
                    }
                },
                Value::Tombstone => rows.skip(index),
                Value::Outside => rows.bad(BadRecord { index, reason: OUTSIDE.to_owned() }),
            }
        }
        rows
    }

    /// Number of rows so far.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Record `index` became the next row.
    #[inline(always)]
    fn keep(&mut self, index: usize) {
        if let Some(kept) = &mut self.kept {
            kept.push(index as u32);
        }
        self.len += 1;
    }

    /// Record `index` becomes no row.
    fn skip(&mut self, index: usize) {
        // Up to the first that is left out, all were kept.
        self.kept.get_or_insert_with(|| (0..index as u32).collect());
    }

    /// The record becomes no row because it is bad.
    fn bad(&mut self, record: BadRecord) {
        self.skip(record.index);
        self.bad.push(record);
    }

    /// Puts the result together. If Arrow refuses the columns (a fault of the builders), all rows are reported as
    /// bad records instead of lost without a word.
    pub(crate) fn decoded(mut self, schema: &SchemaRef, batch: Result<RecordBatch, ArrowError>) -> Decoded {
        match batch {
            Ok(rows) => Decoded { rows, bad: self.bad, kept: self.kept },
            Err(error) => {
                let rows = self.kept.unwrap_or_else(|| (0..self.len as u32).collect());
                let reason = format!("the decoded columns are not valid: {error}");
                self.bad.extend(rows.iter().map(|i| BadRecord { index: *i as usize, reason: reason.clone() }));
                self.bad.sort_by_key(|bad| bad.index);
                Decoded { rows: RecordBatch::new_empty(Arc::clone(schema)), bad: self.bad, kept: Some(Vec::new()) }
            }
        }
    }
}
