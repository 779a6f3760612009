//! Merging snapshot files slot by slot, in bounded memory.

use super::encode::{Encoded, FileForm};
use super::error::{Doing, StateError};
use super::group_index::GroupIndex;
use super::keyed_state::file_columns;
use super::slots::hash_columns;
use super::snapshot_file::{SnapshotReader, SnapshotWriter};
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::DataType;
use std::sync::Arc;

/// What falls out of a merge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePlan {
    /// Nothing before the merged files is needed: deleted rows fall out.
    pub full: bool,
    /// Namespaces below are dead and fall out.
    pub min_live_namespace: Option<i64>,
}

/// One file being read, slot by slot.
struct Cursor {
    reader: SnapshotReader,
    wanted: std::iter::Peekable<std::vec::IntoIter<usize>>,
    batch: Option<RecordBatch>,
    at: usize,
}

impl Cursor {
    /// The slot of the next row, or something below it as long as its batch is not fetched. `None`: there is no row any more.
    fn at_least(&mut self) -> Result<Option<u16>, StateError> {
        if let Some(batch) = &self.batch {
            if let Some(slot) = file_columns(batch)?.slots.get(self.at) {
                return Ok(Some(*slot));
            }
            self.batch = None;
        }
        Ok(self.wanted.peek().map(|next| self.reader.first_slot(*next)))
    }

    /// Takes the rows of `slot` that the current batch has; fetches that first if need be.
    async fn take(&mut self, slot: u16) -> Result<RecordBatch, StateError> {
        let batch = match (&self.batch, self.wanted.next_if(|_| self.batch.is_none())) {
            (None, Some(next)) => {
                self.at = 0;
                self.batch.insert(self.reader.read(next).await?)
            }
            (Some(batch), _) => batch,
            (None, None) => return Err(StateError::Corrupt { path: self.reader.file().path.clone(), reason: "it ends early".into() }),
        };
        let rest = file_columns(batch)?.slots.get(self.at..).unwrap_or(&[]);
        let rows = rest.partition_point(|other| *other <= slot);
        let taken = batch.slice(self.at, rows);
        self.at += rows;
        Ok(taken)
    }
}

/// Merges files of one chain, given oldest first: of each group the last row holds.
///
/// Memory: one batch of each file that holds the slot at hand, the rows of that slot and one unfinished output file.
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
            let wanted = reader.batches().into_iter().peekable();
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

    /// The surviving rows of the next slot; may be none.
    async fn next_slot(&mut self) -> Result<Option<RecordBatch>, StateError> {
        let mut lowest = None;
        for cursor in &mut self.cursors {
            lowest = [lowest, cursor.at_least()?].into_iter().flatten().min();
        }
        let Some(slot) = lowest else { return Ok(None) };
        let mut pieces = Vec::new();
        for cursor in &mut self.cursors {
            while cursor.at_least()? == Some(slot) {
                pieces.push(cursor.take(slot).await?);
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
