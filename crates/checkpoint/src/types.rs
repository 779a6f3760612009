//! What the journal records. All times are unix milliseconds, all sizes bytes.

use crate::ids::{CheckpointId, Generation, JobUuid, OperatorUid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Where a source stands in one of its splits (a Kafka partition, a file).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitState {
    /// The split's name, for example `orders-3`.
    pub split: String,
    /// The next position to read, for example the next offset.
    pub position: i64,
    /// The split's own watermark (milliseconds since the epoch), if it has one.
    pub watermark: Option<i64>,
    /// Whatever else the source needs.
    #[serde(default)]
    pub detail: serde_json::Value,
}

/// One immutable file of operator state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// Its path under the store's root; see [`crate::SnapshotPath`].
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// The first and the last key slot in it, both inclusive.
    pub slots: (u16, u16),
}

/// The state of one subtask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The subtask that wrote it.
    pub subtask: u32,
    /// A base and the changes since, oldest first: later rows override earlier ones.
    pub files: Vec<StateFile>,
}

/// The state of one operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperatorSnapshot {
    /// One per subtask that has state.
    pub parts: Vec<Part>,
    /// The operator's watermark (milliseconds since the epoch).
    pub watermark: Option<i64>,
    /// Namespaces of the state below this were dropped and never live again, whatever the watermark says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_from: Option<i64>,
    /// The schema of the state, to find incompatible changes.
    #[serde(default)]
    pub schema: Option<serde_json::Value>,
}

/// A transaction that is pre-committed in an external system, or rows that are staged for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Committable {
    /// The sink.
    pub sink: OperatorUid,
    /// The subtask that wrote it.
    pub subtask: u32,
    /// The checkpoint whose rows it holds. Below the entry's id when that checkpoint was declined.
    pub checkpoint: CheckpointId,
    /// The generation that wrote it (it may be committed by a later one).
    pub generation: Generation,
    /// All that is needed to commit or abort it from another process.
    pub handle: serde_json::Value,
    /// Rows in it.
    pub rows: u64,
    /// Bytes in it, as the sink counts them.
    pub bytes: u64,
}

/// A completed checkpoint: everything that a restart needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointEntry {
    /// Its number.
    pub id: CheckpointId,
    /// The generation that wrote the entry.
    pub generation: Generation,
    /// Random; tells a lost answer from a lost race. [`crate::Appender::append`] draws it when it is nil.
    pub nonce: Uuid,
    /// Subtasks of each keyed operator.
    pub parallelism: u32,
    /// Key slots (`pipeline.max-parallelism`).
    pub slots: u32,
    /// Every checkpoint up to here had been committed in all sinks when this entry was written.
    pub committed: CheckpointId,
    /// The operators' state.
    pub operators: BTreeMap<OperatorUid, OperatorSnapshot>,
    /// The sources' positions.
    pub sources: BTreeMap<OperatorUid, Vec<SplitState>>,
    /// What is to be committed now that this entry exists; with those of declined checkpoints before it.
    pub committables: Vec<Committable>,
    /// The checkpoints that are kept, itself included, newest last; see [`crate::retained_after`].
    pub retained: Vec<CheckpointId>,
    /// The final checkpoint of a bounded job.
    pub finished: bool,
    /// When the barrier was injected.
    pub triggered_at_ms: i64,
    /// When all parts were durable.
    pub completed_at_ms: i64,
    /// Size of all files listed.
    pub state_bytes: u64,
    /// Size of the files that this checkpoint added.
    pub new_bytes: u64,
    /// In words: the ranges of the sources that were read since the entry before it. Told if a transaction is lost.
    #[serde(default)]
    pub ranges: String,
}

impl CheckpointEntry {
    /// The paths of all state files that it refers to.
    pub fn state_paths(&self) -> impl Iterator<Item = &str> {
        let parts = self.operators.values().flat_map(|operator| &operator.parts);
        parts.flat_map(|part| part.files.iter().map(|file| file.path.as_str()))
    }
}

/// A start of the job: from this number on no older generation can append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationEntry {
    /// Its number, from 1.
    pub generation: Generation,
    /// Random; tells a lost answer from a lost race.
    pub nonce: Uuid,
    /// Hash of the plan, equal on all processes.
    pub plan_hash: String,
    /// Subtasks of each keyed operator.
    pub parallelism: u32,
    /// Worker processes.
    pub processes: u32,
    /// The supervisor's host.
    pub host: String,
    /// The supervisor's process id.
    pub pid: u32,
    /// Random, drawn once by each supervisor: a start that it gave up half-way, or whose answer was lost, is known as its own.
    #[serde(default)]
    pub supervisor: Uuid,
    /// When it claimed.
    pub started_at_ms: i64,
    /// The checkpoint from which it started.
    pub restored: Option<CheckpointId>,
}

/// Between two checkpoints: what the last entry held has been committed. It is written when a job ends well and after a start has
/// committed what was pending, so that nothing is pending any more although no further checkpoint says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedEntry {
    /// The generation that wrote it.
    pub generation: Generation,
    /// Random; tells a lost answer from a lost race.
    pub nonce: Uuid,
    /// Every checkpoint up to here had been committed in all sinks (or given up by `--from`) when it was written.
    pub committed: CheckpointId,
    /// The generation has ended with it: the job was stopped, or has finished.
    pub ended: bool,
    /// When it was written.
    pub written_at_ms: i64,
}

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// Entry 0: who the job is.
    Job {
        /// In every external name of the job.
        uuid: JobUuid,
        /// The name that the user gave.
        name: String,
        /// Random; tells a lost answer from a lost race.
        nonce: Uuid,
        /// When the job was first started.
        created_at_ms: i64,
    },
    /// A start.
    Generation(GenerationEntry),
    /// A completed checkpoint.
    Checkpoint(CheckpointEntry),
    /// Its transactions are committed.
    Committed(CommittedEntry),
}

impl Entry {
    /// The random number drawn by its writer.
    pub fn nonce(&self) -> Uuid {
        match self {
            Entry::Job { nonce, .. } => *nonce,
            Entry::Generation(generation) => generation.nonce,
            Entry::Checkpoint(checkpoint) => checkpoint.nonce,
            Entry::Committed(committed) => committed.nonce,
        }
    }

    /// The checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&CheckpointEntry> {
        match self {
            Entry::Checkpoint(checkpoint) => Some(checkpoint),
            _ => None,
        }
    }

    /// The generation entry, if it is one.
    pub fn generation(&self) -> Option<&GenerationEntry> {
        match self {
            Entry::Generation(generation) => Some(generation),
            _ => None,
        }
    }
}
