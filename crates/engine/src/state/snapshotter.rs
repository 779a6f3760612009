//! Makes the snapshots of one subtask durable: everything that need not happen on the stream's path.

use super::chain::{Chain, ChainFile};
use super::encode::{DeltaEncoder, Encoded, FileForm};
use super::error::StateError;
use super::keyed_state::Frozen;
use super::merge::{Merge, MergePlan};
use super::schema::StateSchema;
use super::snapshot_file::{Compression, SnapshotReader};
use arrow::array::RecordBatch;
use futures::stream::{StreamExt, TryStreamExt, iter};
use semel_checkpoint::{CheckpointId, Generation, JobUuid, OperatorUid, SnapshotPath, StateFile, Store};
use std::sync::Arc;

/// A file is ended beyond this: it is built in memory and written with one put.
const FILE_BYTES: usize = 64 << 20;
/// Files of a chain that are opened ahead.
const OPEN_AHEAD: usize = 8;
/// After a failed compaction the next one waits until the chain is so much longer.
const PATIENCE: usize = 4;

/// Who writes, and so how files are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOwner {
    /// The job.
    pub job: JobUuid,
    /// Its incarnation.
    pub generation: Generation,
    /// The operator.
    pub uid: OperatorUid,
    /// The subtask, 0-based.
    pub subtask: u32,
}

/// What became of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// It is durable.
    Uploaded {
        /// The whole chain, oldest first.
        files: Vec<StateFile>,
        /// Bytes that were written for it.
        new_bytes: u64,
    },
    /// It is not. The data is kept and goes into the next snapshot.
    Declined {
        /// What failed.
        reason: String,
    },
}

/// Holds the chain of durable files and the frozen data that is not durable yet. Used by one sequential task per stateful subtask.
#[derive(Debug)]
pub struct Snapshotter {
    store: Arc<dyn Store>,
    owner: SnapshotOwner,
    form: Arc<FileForm>,
    chain: Chain,
    /// Not durable yet, oldest first.
    pending: Vec<RecordBatch>,
    min_live_namespace: Option<i64>,
    /// Counts the files that were tried: a name is never used twice, since a put that failed may still arrive.
    serial: u32,
    /// No compaction while the chain is shorter.
    compact_from: usize,
}

impl Snapshotter {
    /// `chain`: from [`restore`](super::restore()), empty for a fresh start.
    pub fn new(
        store: Arc<dyn Store>,
        owner: SnapshotOwner,
        schema: Arc<StateSchema>,
        chain: Chain,
        compression: Compression,
    ) -> Result<Snapshotter, StateError> {
        let form = Arc::new(FileForm::new(owner.uid.as_str(), schema, compression, FILE_BYTES)?);
        Ok(Snapshotter { store, owner, form, chain, pending: Vec::new(), min_live_namespace: None, serial: 0, compact_from: 0 })
    }

    /// Makes durable what was frozen, with all that was declined before. Returns when it is durable or has failed: the deadlines are the store's.
    /// To be called with the checkpoints in order.
    pub async fn save(&mut self, checkpoint: CheckpointId, frozen: Frozen) -> Saved {
        self.pending.extend(frozen.batches.into_iter().filter(|batch| batch.num_rows() > 0));
        self.min_live_namespace = self.min_live_namespace.max(frozen.min_live_namespace);
        self.chain.drop_dead(self.min_live_namespace);
        match self.write(checkpoint).await {
            Ok(new_bytes) => {
                self.pending.clear();
                Saved::Uploaded { files: self.chain.files(), new_bytes }
            }
            Err(error) => Saved::Declined { reason: error.to_string() },
        }
    }

    /// The durable files.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    async fn write(&mut self, checkpoint: CheckpointId) -> Result<u64, StateError> {
        if self.pending.is_empty() {
            return Ok(0);
        }
        let compaction = self.chain.compaction().filter(|_| self.chain.0.len() >= self.compact_from);
        let mut delta = self.encoder().await?;
        let mut fresh = Vec::new();
        let Some(first) = compaction else {
            while let Some(encoded) = next_file(&mut delta).await? {
                fresh.push(self.put(checkpoint, encoded).await?);
            }
            return Ok(self.extend(self.chain.0.len(), fresh));
        };
        let mut changes = Vec::new();
        while let Some(encoded) = next_file(&mut delta).await? {
            changes.push(encoded);
        }
        drop(delta);
        match self.compact(checkpoint, first, &changes).await {
            Ok(merged) => {
                self.compact_from = 0;
                return Ok(self.extend(first, merged));
            }
            // A checkpoint is worth more than a short chain.
            Err(error) => {
                tracing::warn!(operator = %self.owner.uid, subtask = self.owner.subtask, %error, "compaction of state failed; it will be tried again");
                self.compact_from = self.chain.0.len() + PATIENCE;
            }
        }
        for encoded in changes {
            fresh.push(self.put(checkpoint, encoded).await?);
        }
        Ok(self.extend(self.chain.0.len(), fresh))
    }

    /// Replaces the chain from `first` on; gives the bytes that came. Only now, with all files durable, does the chain know them.
    fn extend(&mut self, first: usize, files: Vec<ChainFile>) -> u64 {
        self.chain.0.truncate(first);
        let bytes = files.iter().map(|entry| entry.file.bytes).sum();
        self.chain.0.extend(files);
        bytes
    }

    /// Sorts what is pending.
    async fn encoder(&self) -> Result<Option<DeltaEncoder>, StateError> {
        let (form, pending, base) = (self.form.clone(), self.pending.clone(), self.chain.0.is_empty());
        blocking(move || DeltaEncoder::new(form, &pending, base)).await?.map(Some)
    }

    /// Merges the chain from `first` on with `changes`, which are not in the store.
    async fn compact(&mut self, checkpoint: CheckpointId, first: usize, changes: &[Encoded]) -> Result<Vec<ChainFile>, StateError> {
        let opening: Vec<_> =
            self.chain.0[first..].iter().map(|entry| SnapshotReader::open(self.store.clone(), entry.file.clone())).collect();
        let mut readers: Vec<SnapshotReader> = iter(opening).buffered(OPEN_AHEAD).try_collect().await?;
        for (i, encoded) in changes.iter().enumerate() {
            let file = StateFile {
                path: format!("unwritten part {i} of checkpoint {checkpoint}"),
                bytes: encoded.bytes.len() as u64,
                slots: encoded.header.slots(),
            };
            readers.push(SnapshotReader::in_memory(file, encoded.bytes.clone())?);
        }
        let plan = MergePlan { full: first == 0, min_live_namespace: self.min_live_namespace };
        let mut merge = Merge::new(self.form.clone(), plan, readers);
        let mut merged = Vec::new();
        while let Some(encoded) = merge.next_file().await? {
            merged.push(self.put(checkpoint, encoded).await?);
        }
        Ok(merged)
    }

    async fn put(&mut self, checkpoint: CheckpointId, encoded: Encoded) -> Result<ChainFile, StateError> {
        let SnapshotOwner { job, generation, uid, subtask } = self.owner.clone();
        self.serial += 1;
        let path = SnapshotPath { checkpoint, uid, subtask, generation, serial: self.serial, job }.to_string();
        let bytes = encoded.bytes.len() as u64;
        let put = self.store.put(&path, encoded.bytes).await;
        put.map_err(|error| StateError::Store { path: path.clone(), reason: error.to_string() })?;
        Ok(ChainFile::new(StateFile { path, bytes, slots: encoded.header.slots() }, &encoded.header, bytes))
    }
}

/// Encodes the next file where it disturbs nobody.
async fn next_file(encoder: &mut Option<DeltaEncoder>) -> Result<Option<Encoded>, StateError> {
    let Some(mut taken) = encoder.take() else { return Ok(None) };
    let (taken, encoded) = blocking(move || {
        let encoded = taken.next_file();
        (taken, encoded)
    })
    .await?;
    *encoder = Some(taken);
    encoded
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StateError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| StateError::Store { path: "(being encoded)".into(), reason: error.to_string() })
}
