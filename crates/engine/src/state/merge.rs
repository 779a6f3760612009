//! Merging snapshot files slot by slot, in bounded memory.

use super::encode::{Encoded, FileForm};
use super::error::{Doing, StateError};
use super::group_index::GroupIndex;
use super::keyed_state::file_columns;
use super::slots::hash_columns;
use super::snapshot_file::{SnapshotReader, SnapshotWriter};
use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::DataType;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What to merge, and what falls out.
#[derive(Debug, Clone)]
pub(crate) struct MergePlan {
    /// Only these slots.
    pub slots: RangeInclusive<u16>,
    /// Nothing before the merged files is needed: deleted rows fall out.
    pub full: bool,
    /// Namespaces below are dead and fall out.
    pub min_live_namespace: Option<i64>,
}

/// One file being read, slot by slot.
struct Cursor {
    reader: SnapshotReader,
    wanted: std::vec::IntoIter<usize>,
    batch: Option<RecordBatch>,
    at: usize,
}

impl Cursor {
    /// The slot of the next row; fetches the next batch if need be.
    async fn slot(&mut self, slots: &RangeInclusive<u16>) -> Result<Option<u16>, StateError> {
        loop {
            if let Some(batch) = &self.batch
                && let Some(slot) = file_columns(batch)?.slots.get(self.at)
            {
                return Ok(Some(*slot));
            }
            let Some(next) = self.wanted.next() else {
                self.batch = None;
                return Ok(None);
            };
            self.batch = Some(self.reader.read(next, slots).await?);
            self.at = 0;
        }
    }

    /// Takes the rows of `slot` that the current batch has.
    fn take(&mut self, slot: u16) -> Result<Option<RecordBatch>, StateError> {
        let Some(batch) = &self.batch else { return Ok(None) };
        let rest = file_columns(batch)?.slots.get(self.at..).unwrap_or(&[]);
        let rows = rest.partition_point(|other| *other <= slot);
        let taken = batch.slice(self.at, rows);
        self.at += rows;
        Ok(Some(taken).filter(|taken| taken.num_rows() > 0))
    }
}

/// Merges files of one chain, given oldest first: of each group the last row holds.
///
/// Memory: one batch per file, the rows of one slot and one unfinished output file.
pub(crate) struct Merge {
    form: Arc<FileForm>,
    plan: MergePlan,
    cursors: Vec<Cursor>,
    writer: Option<SnapshotWriter>,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: usize,
}

impl Merge {
    pub fn new(form: Arc<FileForm>, plan: MergePlan, files: Vec<SnapshotReader>) -> Merge {
        let cursors = files.into_iter().map(|reader| {
            let wanted = reader.batches_with(&plan.slots).into_iter();
            Cursor { reader, wanted, batch: None, at: 0 }
        });
        let cursors = cursors.collect();
        Merge { form, plan, cursors, writer: None, pending: Vec::new(), pending_rows: 0, pending_bytes: 0 }
    }

    /// The next output file; `None` when all is merged.
    pub async fn next_file(&mut self) -> Result<Option<Encoded>, StateError> {
        loop {
            let Some(rows) = self.next_slot().await? else {
                self.flush()?;
                return self.finish_file();
            };
            if rows.num_rows() > 0 {
                self.pending_rows += rows.num_rows();
                self.pending_bytes += rows.get_array_memory_size();
                self.pending.push(rows);
            }
            if self.pending_rows >= self.form.batch_rows(self.pending_bytes, self.pending_rows) {
                self.flush()?;
            }
            if self.writer.as_ref().is_some_and(|writer| writer.len() >= self.form.max_file_bytes) {
                return self.finish_file();
            }
            tokio::task::yield_now().await;
        }
    }

    /// The surviving rows of the next slot.
    async fn next_slot(&mut self) -> Result<Option<RecordBatch>, StateError> {
        let mut slot = None;
        for cursor in &mut self.cursors {
            let next = cursor.slot(&self.plan.slots).await?;
            slot = [slot, next].into_iter().flatten().min();
        }
        let Some(slot) = slot else { return Ok(None) };
        let mut pieces = Vec::new();
        for cursor in &mut self.cursors {
            while cursor.slot(&self.plan.slots).await? == Some(slot) {
                pieces.extend(cursor.take(slot)?);
            }
        }
        self.survivors(&pieces).map(Some)
    }

    fn survivors(&self, pieces: &[RecordBatch]) -> Result<RecordBatch, StateError> {
        let key_columns = self.form.schema.keys.len();
        let mut types = vec![DataType::Int64];
        types.extend(self.form.schema.key_types());
        let mut index = GroupIndex::new(&types)?;
        let mut last: Vec<(usize, usize)> = Vec::new();
        let (mut hashes, mut groups) = (Vec::new(), Vec::new());
        let mut deleted = Vec::with_capacity(pieces.len());
        let mut namespaces = Vec::with_capacity(pieces.len());
        for (piece, batch) in pieces.iter().enumerate() {
            let columns = file_columns(batch)?;
            let mut keys: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(columns.namespaces.to_vec()))];
            keys.extend_from_slice(columns.data.get(..key_columns).unwrap_or(columns.data));
            hash_columns(&keys, &mut hashes)?;
            index.find_or_insert(&keys, &hashes, &mut groups)?;
            last.resize(index.bound(), (0, 0));
            groups.iter().enumerate().for_each(|(row, group)| last[*group as usize] = (piece, row));
            deleted.push(columns.deleted);
            namespaces.push(columns.namespaces);
        }
        let live = |namespace: i64| self.plan.min_live_namespace.is_none_or(|lowest| namespace >= lowest);
        last.retain(|(piece, row)| live(namespaces[*piece][*row]) && !(self.plan.full && deleted[*piece].value(*row)));
        let pieces: Vec<&RecordBatch> = pieces.iter().collect();
        match last.is_empty() {
            true => Ok(RecordBatch::new_empty(self.form.columns.clone())),
            false => interleave_record_batch(&pieces, &last).doing("merging snapshot files"),
        }
    }

    fn flush(&mut self) -> Result<(), StateError> {
        let pending = std::mem::take(&mut self.pending);
        let step = self.form.batch_rows(self.pending_bytes, self.pending_rows);
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let Some(first) = pending.first() else { return Ok(()) };
        let rows = concat_batches(first.schema_ref(), &pending).doing("merging snapshot files")?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.form.writer(self.plan.full)?),
        };
        for start in (0..rows.num_rows()).step_by(step) {
            writer.push(&rows.slice(start, step.min(rows.num_rows() - start)))?;
        }
        Ok(())
    }

    fn finish_file(&mut self) -> Result<Option<Encoded>, StateError> {
        let Some(writer) = self.writer.take() else { return Ok(None) };
        let (bytes, header) = writer.finish()?;
        Ok(Some(Encoded { bytes, header }))
    }
}
