//! From frozen rows to snapshot files: everything that the synchronous part of a snapshot leaves for later.

use super::error::{Doing, StateError};
use super::keyed_state::file_columns;
use super::schema::{StateSchema, StoredSchema, file_schema};
use super::slots::{hash_columns, slot_of};
use super::snapshot_file::{Compression, FILE_FORMAT, FileHeader, SnapshotWriter};
use arrow::array::{ArrayRef, RecordBatch, UInt16Array};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use std::sync::Arc;

/// Most rows of a record batch; fewer if they are wide.
pub(crate) const BATCH_ROWS: usize = 1 << 16;
/// About the most bytes of a record batch before compression.
const BATCH_BYTES: usize = 4 << 20;

/// What all files of an operator have in common.
#[derive(Debug, Clone)]
pub(crate) struct FileForm {
    pub uid: String,
    pub schema: Arc<StateSchema>,
    pub stored: StoredSchema,
    pub columns: SchemaRef,
    pub compression: Compression,
    /// A file is ended when it has grown beyond this.
    pub max_file_bytes: usize,
}

/// A finished file.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub bytes: Bytes,
    pub header: FileHeader,
}

impl FileForm {
    pub fn new(uid: &str, schema: Arc<StateSchema>, compression: Compression, max_file_bytes: usize) -> Result<FileForm, StateError> {
        let (stored, columns) = (schema.stored()?, file_schema(&*schema.frozen_schema()?));
        Ok(FileForm { uid: uid.to_owned(), schema, stored, columns, compression, max_file_bytes })
    }

    pub fn writer(&self, base: bool) -> Result<SnapshotWriter, StateError> {
        let (uid, schema) = (self.uid.clone(), self.stored.clone());
        let header = FileHeader { format: FILE_FORMAT, uid, base, schema, max_namespace: i64::MIN, batches: Vec::new() };
        SnapshotWriter::new(&self.columns, header, self.compression)
    }

    /// Rows for a record batch of about the wanted size.
    pub fn batch_rows(&self, bytes: usize, rows: usize) -> usize {
        (BATCH_BYTES / (bytes / rows.max(1)).max(1)).clamp(256, BATCH_ROWS)
    }

    /// Adds the slot column to frozen rows.
    fn with_slots(&self, frozen: &RecordBatch, hashes: &mut Vec<u64>) -> Result<RecordBatch, StateError> {
        let mut columns = frozen.columns().to_vec();
        hash_columns(columns.get(2..2 + self.schema.keys.len()).unwrap_or(&[]), hashes)?;
        let slots: ArrayRef = Arc::new(UInt16Array::from_iter_values(hashes.iter().map(|hash| slot_of(*hash, self.schema.slots))));
        columns.insert(1, slots);
        RecordBatch::try_new(self.columns.clone(), columns).doing("computing the slots of a snapshot")
    }
}

/// Frozen rows in the order of their slots, encoded file by file.
pub(crate) struct DeltaEncoder {
    form: Arc<FileForm>,
    batches: Vec<RecordBatch>,
    order: Vec<(u32, u32)>,
    at: usize,
    base: bool,
}

impl DeltaEncoder {
    /// `frozen`: oldest first. Rows of one slot keep their order. `base`: whether nothing came before.
    pub fn new(form: Arc<FileForm>, frozen: &[RecordBatch], base: bool) -> Result<DeltaEncoder, StateError> {
        let mut hashes = Vec::new();
        let batches = frozen.iter().map(|batch| form.with_slots(batch, &mut hashes)).collect::<Result<Vec<_>, _>>()?;
        // A counting sort.
        let mut ends = vec![0usize; form.schema.slots as usize + 1];
        let slots = batches.iter().map(|batch| Ok(file_columns(batch)?.slots)).collect::<Result<Vec<_>, StateError>>()?;
        slots.iter().copied().flatten().for_each(|slot| ends[usize::from(*slot) + 1] += 1);
        for i in 1..ends.len() {
            ends[i] += ends[i - 1];
        }
        let mut order = vec![(0, 0); ends.last().copied().unwrap_or(0)];
        for (b, slots) in slots.iter().enumerate() {
            for (row, slot) in slots.iter().enumerate() {
                let at = &mut ends[usize::from(*slot)];
                order[*at] = (b as u32, row as u32);
                *at += 1;
            }
        }
        Ok(DeltaEncoder { form, batches, order, at: 0, base })
    }

    /// The next file, if there are rows left.
    pub fn next_file(&mut self) -> Result<Option<Encoded>, StateError> {
        let bytes = self.batches.iter().map(RecordBatch::get_array_memory_size).sum();
        let step = self.form.batch_rows(bytes, self.order.len());
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        let mut writer = self.form.writer(self.base)?;
        while self.at < self.order.len() && writer.len() < self.form.max_file_bytes {
            let end = self.order.len().min(self.at + step);
            let rows: Vec<(usize, usize)> = self.order[self.at..end].iter().map(|(b, row)| (*b as usize, *row as usize)).collect();
            writer.push(&interleave_record_batch(&batches, &rows).doing("sorting a snapshot by slot")?)?;
            self.at = end;
        }
        if writer.is_empty() {
            return Ok(None);
        }
        let (bytes, header) = writer.finish()?;
        Ok(Some(Encoded { bytes, header }))
    }
}
