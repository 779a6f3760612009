//! The right to commit, which only a durable journal entry gives.

use crate::ids::{CheckpointId, Generation, JobUuid};
use crate::types::Committable;
use serde::{Deserialize, Serialize};

/// The right to commit the committables of one completed checkpoint.
///
/// Made only by a durable entry ([`crate::DurableCheckpoint::permit`]) or by a claim that found one
/// ([`crate::Claim`]). It travels to other processes, hence serde.
///
/// A holder may be a zombie: a permit proves that the checkpoint is complete, not that its holder is still the
/// newest generation. Commits are therefore idempotent, and sinks whose commit does not test fence by
/// [`CommitPermit::generation`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CommitPermit {
    job: JobUuid,
    checkpoint: CheckpointId,
    generation: Generation,
}

impl CommitPermit {
    pub(crate) fn new(job: JobUuid, checkpoint: CheckpointId, generation: Generation) -> CommitPermit {
        CommitPermit { job, checkpoint, generation }
    }

    /// For tests of sinks only: it is proof of nothing.
    pub fn for_tests(job: JobUuid, checkpoint: CheckpointId, generation: Generation) -> CommitPermit {
        CommitPermit::new(job, checkpoint, generation)
    }

    /// The job.
    pub fn job(&self) -> JobUuid {
        self.job
    }

    /// The checkpoint whose entry is durable.
    pub fn checkpoint(&self) -> CheckpointId {
        self.checkpoint
    }

    /// The generation that *commits*. The one that wrote the transaction is in the [`Committable`].
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether a committable may be committed under it. (An entry also holds those of declined checkpoints before it.)
    pub fn covers(&self, committable: &Committable) -> bool {
        committable.checkpoint <= self.checkpoint
    }
}
