//! Which records became rows.
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::record::{BadRecord, Decoded};

/// The account that a decoder keeps while it goes through its records in order.
#[derive(Default)]
pub(crate) struct Rows {
    len: usize,
    bad: Vec<BadRecord>,
    kept: Option<Vec<u32>>,
}

impl Rows {
    pub(crate) const OUTSIDE: &str = "the record reaches beyond the buffer that it should lie in";

    /// Number of rows so far.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Record `index` became the next row.
    #[inline(always)]
    pub(crate) fn keep(&mut self, index: usize) {
        if let Some(kept) = &mut self.kept {
            kept.push(index as u32);
        }
        self.len += 1;
    }

    /// Record `index` becomes no row.
    pub(crate) fn skip(&mut self, index: usize) {
        // Up to the first that is left out, all were kept.
        self.kept.get_or_insert_with(|| (0..index as u32).collect());
    }

    /// The record becomes no row because it is bad.
    pub(crate) fn bad(&mut self, record: BadRecord) {
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
