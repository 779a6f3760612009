//! The format of snapshot files.
//!
//! A snapshot file is an Arrow IPC *file*, so any Arrow library reads it. Columns: `__namespace` (Int64), `__slot` (UInt16), `__deleted` (Boolean),
//! `key0`..., `state0_0`... Rows are sorted by slot, those of one slot oldest first; each record batch covers a range of slots. The footer's
//! custom metadata holds one entry, [`HEADER_KEY`], with a [`FileHeader`] as JSON: a reader fetches the end of the file,
//! and then only the batches whose slots it wants.

use super::error::{Doing, StateError};
use super::schema::StoredSchema;
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use arrow::ipc::{Block, CompressionType, MetadataVersion, root_as_footer};
use bytes::Bytes;
use semel_checkpoint::{StateFile, Store, StoreError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The version of the format that is written, and the only one that is read so far.
pub const FILE_FORMAT: u32 = 1;
/// The key of the footer's metadata.
pub const HEADER_KEY: &str = "semel.snapshot";
/// Smaller files are fetched whole; of larger ones first this much of the end.
const TAIL: u64 = 64 << 10;
/// After the footer: its length and the magic.
const FOOTER_END: usize = 10;

/// How the buffers of a snapshot file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4 frames: fastest.
    Lz4,
    /// Zstandard at level 1: smallest.
    #[default]
    Zstd,
}

/// What a file says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHeader {
    /// [`FILE_FORMAT`].
    pub format: u32,
    /// The operator.
    pub uid: String,
    /// Whether nothing before this file is needed for the slots of its writer.
    pub base: bool,
    /// The schema of the state.
    pub schema: StoredSchema,
    /// The highest namespace in it.
    pub max_namespace: i64,
    /// One per record batch.
    pub batches: Vec<BatchHeader>,
}

/// One record batch of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchHeader {
    /// First slot in it.
    pub first_slot: u16,
    /// Last slot in it.
    pub last_slot: u16,
    /// Number of rows.
    pub rows: u64,
    /// XXH3 (64 bits, seed 0) of the batch's bytes in the file, so that damage is noticed.
    pub checksum: u64,
}

impl FileHeader {
    /// First and last slot in the file.
    pub fn slots(&self) -> (u16, u16) {
        let first = self.batches.first().map_or(0, |batch| batch.first_slot);
        (first, self.batches.last().map_or(0, |batch| batch.last_slot))
    }
}

/// Writes one file in memory.
pub struct SnapshotWriter {
    inner: FileWriter<Vec<u8>>,
    header: FileHeader,
}

impl SnapshotWriter {
    /// An empty file with these columns. `header.batches` is filled in as batches come.
    pub fn new(schema: &SchemaRef, mut header: FileHeader, compression: Compression) -> Result<SnapshotWriter, StateError> {
        let (codec, level) = match compression {
            Compression::None => (None, None),
            Compression::Lz4 => (Some(CompressionType::LZ4_FRAME), None),
            Compression::Zstd => (Some(CompressionType::ZSTD), Some(1)),
        };
        let options = IpcWriteOptions::default()
            .try_with_compression(codec)
            .and_then(|options| options.try_with_compression_level(level))
            .doing("choosing the compression of a snapshot")?;
        let inner = FileWriter::try_new_with_options(Vec::new(), schema, options).doing("starting a snapshot file")?;
        header.batches.clear();
        header.max_namespace = i64::MIN;
        Ok(SnapshotWriter { inner, header })
    }

    /// Appends rows that are sorted by slot and follow those before.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<(), StateError> {
        let columns = super::keyed_state::file_columns(batch)?;
        let (Some(first), Some(last)) = (columns.slots.first(), columns.slots.last()) else { return Ok(()) };
        let highest = columns.namespaces.iter().max().copied().unwrap_or(i64::MIN);
        let before = self.inner.get_ref().len();
        self.inner.write(batch).doing("writing a snapshot file")?;
        let checksum = checksum(&self.inner.get_ref()[before..]);
        self.header.max_namespace = self.header.max_namespace.max(highest);
        self.header.batches.push(BatchHeader { first_slot: *first, last_slot: *last, rows: batch.num_rows() as u64, checksum });
        Ok(())
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.inner.get_ref().len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.header.batches.is_empty()
    }

    /// The whole file.
    pub fn finish(mut self) -> Result<(Bytes, FileHeader), StateError> {
        let header = serde_json::to_string(&self.header)
            .map_err(|error| arrow::error::ArrowError::JsonError(error.to_string()))
            .doing("writing a snapshot's header")?;
        self.inner.write_metadata(HEADER_KEY, header);
        let bytes = self.inner.into_inner().doing("finishing a snapshot file")?;
        Ok((Bytes::from(bytes), self.header))
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    super::slots::hash_bytes(bytes)
}

/// An open file: its header is read, its batches are fetched one by one.
pub struct SnapshotReader {
    place: Place,
    file: StateFile,
    header: FileHeader,
    decoder: FileDecoder,
    blocks: Vec<Block>,
}

/// Where the bytes of a file are.
enum Place {
    Store(Arc<dyn Store>),
    Memory(Bytes),
}

impl std::fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReader").field("file", &self.file).field("header", &self.header).finish_non_exhaustive()
    }
}

impl SnapshotReader {
    /// Reads the end of a file in a store; a small file is fetched whole. Only slots within `file.slots` will be read.
    pub async fn open(store: Arc<dyn Store>, file: StateFile) -> Result<SnapshotReader, StateError> {
        let mut tail = fetch(store.as_ref(), &file, file.bytes.saturating_sub(TAIL)..file.bytes).await?;
        let length = footer_length(&file, &tail)?;
        if length > tail.len() as u64 {
            tail = fetch(store.as_ref(), &file, file.bytes - length..file.bytes).await?;
        }
        let place = match tail.len() as u64 == file.bytes {
            true => Place::Memory(tail.clone()),
            false => Place::Store(store),
        };
        SnapshotReader::parse(place, file, &tail, length)
    }

    /// Opens a file whose bytes are at hand.
    pub fn in_memory(file: StateFile, bytes: Bytes) -> Result<SnapshotReader, StateError> {
        let length = footer_length(&file, &bytes)?;
        SnapshotReader::parse(Place::Memory(bytes.clone()), file, &bytes, length)
    }

    /// `tail`: at least the last `length` bytes of the file, which are its footer.
    fn parse(place: Place, file: StateFile, tail: &[u8], length: u64) -> Result<SnapshotReader, StateError> {
        let corrupt = |reason: String| StateError::Corrupt { path: file.path.clone(), reason };
        let start = tail.len().checked_sub(length as usize).ok_or_else(|| corrupt("its footer is cut off".into()))?;
        let footer = root_as_footer(&tail[start..tail.len() - FOOTER_END]);
        let footer = footer.map_err(|error| corrupt(format!("its footer cannot be read: {error}")))?;
        let text = footer.custom_metadata().into_iter().flatten().find(|pair| pair.key() == Some(HEADER_KEY));
        let text = text.and_then(|pair| pair.value()).ok_or_else(|| corrupt("it has no header".into()))?;
        let found = serde_json::from_str::<Format>(text).map_err(|error| corrupt(format!("its header is not JSON: {error}")))?.format;
        if found != FILE_FORMAT {
            return Err(StateError::Format { path: file.path.clone(), found, known: FILE_FORMAT });
        }
        let header: FileHeader = serde_json::from_str(text).map_err(|error| corrupt(format!("its header: {error}")))?;
        let schema = footer.schema().map(fb_to_schema).ok_or_else(|| corrupt("it has no schema".into()))?;
        let blocks: Vec<Block> = footer.recordBatches().map_or_else(Vec::new, |blocks| blocks.iter().copied().collect());
        if blocks.len() != header.batches.len() {
            return Err(corrupt(format!("it has {} batches, its header says {}", blocks.len(), header.batches.len())));
        }
        let decoder = FileDecoder::new(Arc::new(schema), MetadataVersion::V5);
        Ok(SnapshotReader { place, file, header, decoder, blocks })
    }

    /// The file's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The file that this reads.
    pub fn file(&self) -> &StateFile {
        &self.file
    }

    /// The indexes of the batches that hold any of the slots in `file().slots`, in order.
    pub fn batches(&self) -> Vec<usize> {
        let (first, last) = self.file.slots;
        let overlaps = |batch: &BatchHeader| batch.first_slot <= last && batch.last_slot >= first;
        (0..self.blocks.len()).filter(|i| overlaps(&self.header.batches[*i])).collect()
    }

    /// The first slot that batch `i` can hold.
    pub fn first_slot(&self, i: usize) -> u16 {
        let first = self.header.batches.get(i).map_or(0, |batch| batch.first_slot);
        first.max(self.file.slots.0)
    }

    /// Bytes of these batches in the file.
    pub fn bytes_of(&self, batches: &[usize]) -> u64 {
        batches.iter().filter_map(|i| block_range(self.blocks.get(*i)?)).map(|range| range.end - range.start).sum()
    }

    /// Fetches batch `i` and cuts it down to the rows of `file().slots`.
    ///
    /// # Errors
    /// [`StateError::Store`] if it cannot be fetched, [`StateError::Corrupt`] if it is not what was written.
    pub async fn read(&self, i: usize) -> Result<RecordBatch, StateError> {
        let corrupt = |reason: String| StateError::Corrupt { path: self.file.path.clone(), reason };
        let at = self.blocks.get(i).zip(self.header.batches.get(i));
        let (block, header) = at.ok_or_else(|| corrupt(format!("it has no batch {i}")))?;
        let range = block_range(block).filter(|range| range.end <= self.file.bytes);
        let range = range.ok_or_else(|| corrupt(format!("batch {i} lies outside of the file")))?;
        let bytes = match &self.place {
            Place::Memory(whole) => whole.slice(range.start as usize..range.end as usize),
            Place::Store(store) => fetch(store.as_ref(), &self.file, range).await?,
        };
        if checksum(&bytes) != header.checksum {
            return Err(corrupt(format!("the checksum of batch {i} is wrong")));
        }
        let batch = self.decoder.read_record_batch(block, &Buffer::from(bytes));
        let batch = batch.map_err(|error| corrupt(error.to_string()))?.ok_or_else(|| corrupt(format!("batch {i} is empty")))?;
        let slots = super::keyed_state::file_columns(&batch).map_err(|error| corrupt(error.to_string()))?.slots;
        let start = slots.partition_point(|slot| *slot < self.file.slots.0);
        let end = slots.partition_point(|slot| *slot <= self.file.slots.1);
        Ok(batch.slice(start, end.saturating_sub(start)))
    }
}

/// Length of the footer with the 10 bytes after it.
fn footer_length(file: &StateFile, tail: &[u8]) -> Result<u64, StateError> {
    let corrupt = |reason: String| StateError::Corrupt { path: file.path.clone(), reason };
    let end = tail.last_chunk::<FOOTER_END>().ok_or_else(|| corrupt(format!("it is only {} bytes long", tail.len())))?;
    let length = read_footer_length(*end).map_err(|error| corrupt(error.to_string()))? as u64 + FOOTER_END as u64;
    match length <= file.bytes {
        true => Ok(length),
        false => Err(corrupt(format!("its footer of {length} bytes is longer than the file"))),
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn block_range(block: &Block) -> Option<std::ops::Range<u64>> {
    let start = u64::try_from(block.offset()).ok()?;
    let length = u64::try_from(block.metaDataLength()).ok()?.checked_add(u64::try_from(block.bodyLength()).ok()?)?;
    Some(start..start.checked_add(length)?)
}

async fn fetch(store: &dyn Store, file: &StateFile, range: std::ops::Range<u64>) -> Result<Bytes, StateError> {
    let wanted = range.end.saturating_sub(range.start);
    let bytes = store.get_range(&file.path, range).await.map_err(|error| match error {
        StoreError::NotFound { .. } => StateError::Corrupt { path: file.path.clone(), reason: "it is missing".into() },
        error => StateError::Store { path: file.path.clone(), reason: error.to_string() },
    })?;
    match bytes.len() as u64 == wanted {
        true => Ok(bytes),
        false => Err(StateError::Corrupt { path: file.path.clone(), reason: format!("{} bytes came instead of {wanted}", bytes.len()) }),
    }
}
