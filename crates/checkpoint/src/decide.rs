//! The pure decisions: observed facts in, decision out.

use crate::ids::{CheckpointId, Generation, JobUuid};
use crate::store::PutOutcome;
use crate::types::{CheckpointEntry, Committable, Entry};
use uuid::Uuid;

/// The answer to a put-if-absent, as far as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutAnswer {
    /// The store answered.
    Known(PutOutcome),
    /// The answer was lost: the object may have been written, or may still be.
    Unknown,
}

/// What to do next to append an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum AppendStep {
    /// Send the same bytes again.
    Put,
    /// Read the entry's own number.
    ReadBack,
    /// Read the number after it.
    ReadNext,
    /// The entry is in the journal and nobody has claimed after it.
    Durable,
    /// Another writer has this number or the next: stop for good.
    Fenced,
    /// The number holds an entry of another job: the folder was emptied or is shared.
    Foreign,
}

/// After a put was answered, or not.
///
/// Only the clean answer to a first put proves by itself that the entry is in its place. Once a put was repeated, the first one
/// may have succeeded, a successor may have claimed the number after it and collected the entry, and the repeated
/// put may have filled the hole: only the number after it tells, since a `Generation` entry is never collected.
pub fn after_put(answer: PutAnswer, repeated: bool) -> AppendStep {
    match answer {
        PutAnswer::Known(PutOutcome::Written) if !repeated => AppendStep::Durable,
        PutAnswer::Known(PutOutcome::Written) => AppendStep::ReadNext,
        PutAnswer::Known(PutOutcome::Exists) | PutAnswer::Unknown => AppendStep::ReadBack,
    }
}

/// After the entry's own number was read. `job` and `nonce` are those of the entry to be appended.
pub fn after_read_back(found: Option<(JobUuid, Uuid)>, job: JobUuid, nonce: Uuid) -> AppendStep {
    match found {
        None => AppendStep::Put,
        Some((writer, _)) if writer != job => AppendStep::Foreign,
        Some((_, drawn)) if drawn == nonce => AppendStep::ReadNext,
        Some(_) => AppendStep::Fenced,
    }
}

/// After the number behind the entry was read.
pub fn after_read_next(next_is_taken: bool) -> AppendStep {
    if next_is_taken { AppendStep::Fenced } else { AppendStep::Durable }
}

/// Whether the journal is still the one in which this generation claimed. Both are read *after* an entry was put: `start` is
/// what stands at the number of its own `Generation` entry, `first` who wrote entry 0. Neither is ever collected, so if one is
/// gone, the folder was emptied or replaced under the running job, with every later claim that would have fenced the put.
/// Nothing may be committed then. (The own start alone is not enough: a late put of it may bring it back.)
pub fn start_is_there(start: Option<(JobUuid, Uuid)>, first: Option<JobUuid>, job: JobUuid, nonce: Uuid) -> bool {
    start == Some((job, nonce)) && first == Some(job)
}

/// Whether an entry that was put at `number` is really the journal's last one. `listed` holds the numbers found by a
/// listing that began *after* the put. A claimer that froze after reading the journal may have put its entry
/// into a hole that collection left since; then it has claimed nothing.
pub fn claim_holds(number: u64, listed: impl IntoIterator<Item = u64>) -> bool {
    listed.into_iter().all(|other| other <= number)
}

/// What a start finds in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimDecision {
    /// Where the `Generation` entry belongs.
    pub number: u64,
    /// The generation to claim.
    pub generation: Generation,
    /// The checkpoint to start from.
    pub restored: Option<CheckpointEntry>,
    /// What may not be committed yet, oldest first, each with the checkpoint whose entry holds it.
    pub pending: Vec<(CheckpointId, Committable)>,
    /// Entries after `restored` that are given up by `--from`: committed or not, nothing will commit them again.
    pub abandoned: Vec<CheckpointEntry>,
    /// The first checkpoint of the generation: above every id in the journal.
    pub next_checkpoint: CheckpointId,
    /// Once `pending` is committed, every checkpoint up to here is committed or abandoned.
    pub committed: CheckpointId,
    /// What [`retained_after`] takes as `previous` for the first checkpoint.
    pub retained: Vec<CheckpointId>,
}

/// `--from` names a checkpoint that cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint {wanted} is not retained: choose one of {}, or leave --from out to restore the newest", ids(retained))]
pub struct NotRetained {
    /// The checkpoint that was named.
    pub wanted: CheckpointId,
    /// Those that can be restored.
    pub retained: Vec<CheckpointId>,
}

fn ids(checkpoints: &[CheckpointId]) -> String {
    checkpoints.iter().map(CheckpointId::to_string).collect::<Vec<_>>().join(", ")
}

/// Decides a start over all entries of the journal, ascending by number.
///
/// The job's history is a *line* of checkpoints: a `Generation` entry that restored an older one (`--from`) cuts the
/// line there, for good, since that generation has ended the later transactions. Pending is every entry of the line
/// after the highest `committed` in the journal, never only the newest one.
pub fn decide_claim(entries: &[(u64, Entry)], from: Option<CheckpointId>) -> Result<ClaimDecision, NotRetained> {
    let mut line: Vec<&CheckpointEntry> = Vec::new();
    let (mut generation, mut highest, mut committed) = (Generation(0), CheckpointId(0), CheckpointId(0));
    let mut newest: Option<&CheckpointEntry> = None;
    for (_, entry) in entries {
        match entry {
            Entry::Job { .. } => {}
            Entry::Generation(start) => {
                generation = generation.max(start.generation);
                if let Some(restored) = start.restored {
                    highest = highest.max(restored);
                    line.retain(|checkpoint| checkpoint.id <= restored);
                }
            }
            Entry::Checkpoint(checkpoint) => {
                highest = highest.max(checkpoint.id);
                committed = committed.max(checkpoint.committed);
                newest = Some(checkpoint);
                line.push(checkpoint);
            }
            Entry::Committed(known) => {
                highest = highest.max(known.committed);
                committed = committed.max(known.committed);
            }
        }
    }
    let kept = newest.map(|newest| newest.retained.as_slice()).unwrap_or_default();
    let retained = |limit: CheckpointId| {
        let of_line = line.iter().map(|checkpoint| checkpoint.id).filter(|id| *id <= limit && kept.contains(id));
        of_line.collect::<Vec<_>>()
    };
    let restored = match from {
        None => line.last().copied(),
        Some(wanted) => {
            let found = line.iter().find(|checkpoint| checkpoint.id == wanted && kept.contains(&wanted));
            Some(*found.ok_or_else(|| NotRetained { wanted, retained: retained(highest) })?)
        }
    };
    let limit = restored.map_or(CheckpointId(0), |checkpoint| checkpoint.id);
    let pending = line.iter().filter(|checkpoint| checkpoint.id > committed && checkpoint.id <= limit);
    let pending = pending.flat_map(|checkpoint| checkpoint.committables.iter().map(|c| (checkpoint.id, c.clone())));
    let abandoned = entries.iter().filter_map(|(_, entry)| entry.checkpoint()).filter(|checkpoint| checkpoint.id > limit);
    Ok(ClaimDecision {
        number: entries.last().map_or(0, |(number, _)| number + 1),
        generation: generation.next(),
        restored: restored.cloned(),
        pending: pending.collect(),
        abandoned: abandoned.cloned().collect(),
        next_checkpoint: highest.next(),
        committed: highest,
        retained: retained(limit),
    })
}

/// The retained set of a new checkpoint: the newest `num_retained` (at least 1) of the previous set and the new one.
///
/// It only ever loses old members. Collection relies on that: what an old plan removes stays removable.
pub fn retained_after(previous: &[CheckpointId], new: CheckpointId, num_retained: usize) -> Vec<CheckpointId> {
    let mut retained: Vec<CheckpointId> = previous.iter().copied().filter(|id| *id < new).collect();
    retained.push(new);
    retained.sort_unstable();
    retained.dedup();
    let surplus = retained.len().saturating_sub(num_retained.max(1));
    retained.drain(..surplus);
    retained
}
