//! What is run, in which generation, and where it goes on from.
use crate::config::EngineConfig;
use crate::status::Status;
use semel_checkpoint::{AppenderState, CheckpointEntry, CheckpointId, JobIdentity, OperatorSnapshot, OperatorUid, SplitState, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::runtime::Handle;

/// What the supervisor hands to every worker process of a generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Assignment {
    /// Job and generation.
    pub identity: JobIdentity,
    /// The first checkpoint of this generation: above every one in the journal.
    pub first_checkpoint: CheckpointId,
    /// Every checkpoint up to it is committed.
    pub committed: CheckpointId,
    /// The checkpoint to go on from. `None`: a fresh start.
    pub restored: Option<CheckpointEntry>,
    /// The checkpoints kept, newest last.
    pub retained: Vec<CheckpointId>,
    /// The right to append to the journal; process 0 uses it.
    pub appender: AppenderState,
    /// Settings.
    pub config: EngineConfig,
    /// This process, from 0.
    pub process: usize,
    /// Worker processes.
    pub processes: usize,
    /// Subtasks of each operator in each process.
    pub threads: usize,
}

impl Assignment {
    /// Subtasks of each operator.
    pub fn parallelism(&self) -> u32 {
        (self.processes * self.threads) as u32
    }
}

/// An [`Assignment`] with what this process adds to it. Shared by all its operators.
#[derive(Debug)]
pub struct JobContext {
    /// From the supervisor.
    pub assignment: Assignment,
    /// The checkpoint store.
    pub store: Arc<dyn Store>,
    /// Where asynchronous work runs.
    pub runtime: Handle,
    /// What this process tells about itself.
    pub status: Arc<Status>,
}

impl JobContext {
    /// Settings.
    pub fn config(&self) -> &EngineConfig {
        &self.assignment.config
    }
    /// Job and generation.
    pub fn identity(&self) -> &JobIdentity {
        &self.assignment.identity
    }
    /// Subtasks of each operator.
    pub fn parallelism(&self) -> u32 {
        self.assignment.parallelism()
    }
    /// The first checkpoint of this generation.
    pub fn first_checkpoint(&self) -> CheckpointId {
        self.assignment.first_checkpoint
    }
    /// The state of an operator, if there is any.
    pub fn restored_state(&self, uid: &OperatorUid) -> Option<&OperatorSnapshot> {
        self.assignment.restored.as_ref()?.operators.get(uid)
    }
    /// The splits of a source. `None`: it starts afresh.
    pub fn restored_splits(&self, uid: &OperatorUid) -> Option<&Vec<SplitState>> {
        self.assignment.restored.as_ref()?.sources.get(uid)
    }
}
