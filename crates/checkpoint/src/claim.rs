//! Starting a job: claiming the next generation.

use crate::appender::{Appender, AppenderState, Put, Start, now_ms, put_entry, retry_transient};
use crate::decide::{ClaimDecision, NotRetained, claim_holds, decide_claim};
use crate::ids::{CheckpointId, JobIdentity, JobUuid};
use crate::journal::{JournalError, JournalView, read_entry, read_journal};
use crate::paths;
use crate::permit::CommitPermit;
use crate::store::{Store, StoreError};
use crate::types::{CheckpointEntry, Committable, Entry, GenerationEntry};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// How long a claim may take in all, waiting for a store that does not answer or racing with an old incarnation.
const CLAIM_DEADLINE: Duration = Duration::from_secs(180);

/// Who starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The job's name; must be that of the journal.
    pub job_name: String,
    /// Hash of the plan.
    pub plan_hash: String,
    /// Subtasks of each keyed operator.
    pub parallelism: u32,
    /// Worker processes.
    pub processes: u32,
    /// This host.
    pub host: String,
    /// This process.
    pub pid: u32,
    /// See [`GenerationEntry::supervisor`].
    pub supervisor: Uuid,
    /// `--from`: an older retained checkpoint to restore instead of the newest.
    pub from: Option<CheckpointId>,
}

/// Why a job cannot start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another supervisor started at the same time and won. Terminal.
    #[error(
        "another supervisor of this job won the start: generation {} on {} (process {}); this one stops",
        winner.generation, winner.host, winner.pid
    )]
    Fenced {
        /// The winner.
        winner: Box<GenerationEntry>,
    },
    /// The folder belongs to another job.
    #[error("this folder holds the journal of job {found:?}, not of {wanted:?}: give each job a checkpoint folder of its own")]
    OtherJob {
        /// The journal's job.
        found: String,
        /// The requested one.
        wanted: String,
    },
    /// `--from` cannot be restored.
    #[error(transparent)]
    NotRetained(#[from] NotRetained),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// It took too long.
    #[error("the start could not be recorded within {CLAIM_DEADLINE:?}: check the store, and that no other incarnation runs")]
    Deadline,
}

impl From<StoreError> for ClaimError {
    fn from(error: StoreError) -> ClaimError {
        ClaimError::Journal(error.into())
    }
}

/// A started generation: all that is needed to recover and run.
#[derive(Debug)]
pub struct Claim {
    /// What every external name is made of.
    pub identity: JobIdentity,
    /// Appends this generation's checkpoints.
    pub appender: Appender,
    /// Its entry in the journal.
    pub entry: GenerationEntry,
    /// The checkpoint to start from; `None` at the very first start (or when none was ever completed).
    pub restored: Option<CheckpointEntry>,
    /// To be committed before anything else, oldest first: all entries after the journal's highest `committed`.
    pub pending: Vec<(CommitPermit, Committable)>,
    /// Entries that `--from` gives up. Some of their rows may be visible already.
    pub abandoned: Vec<CheckpointEntry>,
    /// The first checkpoint of this generation, above every id in the journal.
    pub next_checkpoint: CheckpointId,
    /// What the first entry may write as `committed`, once all of `pending` is committed.
    pub committed: CheckpointId,
    /// What [`crate::retained_after`] takes as `previous` for the first checkpoint.
    pub retained: Vec<CheckpointId>,
}

/// Claims the next generation: appends entry 0 if the journal is empty, then `Generation g + 1`.
///
/// From the moment it returns no older incarnation can append. An old one that still runs may win numbers
/// meanwhile; the claim then reads what it wrote and tries the next number.
pub async fn claim(store: Arc<dyn Store>, request: ClaimRequest) -> Result<Claim, ClaimError> {
    match tokio::time::timeout(CLAIM_DEADLINE, claim_at_last(store, request)).await {
        Ok(result) => result,
        Err(_) => Err(ClaimError::Deadline),
    }
}

async fn claim_at_last(store: Arc<dyn Store>, request: ClaimRequest) -> Result<Claim, ClaimError> {
    loop {
        let view = retry_transient(|| read_journal(store.clone())).await?;
        let Some(uuid) = job_of(&view, &request)? else {
            put_job(store.as_ref(), &request).await?;
            continue;
        };
        let decision = decide_claim(&view.entries, request.from)?;
        if let Some(entry) = try_claim(&store, uuid, &decision, &request).await? {
            return Ok(started(store, uuid, &request, decision, entry));
        }
    }
}

fn job_of(view: &JournalView, request: &ClaimRequest) -> Result<Option<JobUuid>, ClaimError> {
    match view.job() {
        Some((_, name)) if name != request.job_name => {
            Err(ClaimError::OtherJob { found: name.to_owned(), wanted: request.job_name.clone() })
        }
        found => Ok(found.map(|(uuid, _)| uuid)),
    }
}

/// Appends entry 0. Whoever loses this race reads the winner's.
async fn put_job(store: &dyn Store, request: &ClaimRequest) -> Result<(), ClaimError> {
    let uuid = JobUuid::random();
    let name = request.job_name.clone();
    let entry = Entry::Job { uuid, name, nonce: Uuid::new_v4(), created_at_ms: now_ms() };
    match put_entry(store, uuid, 0, &entry).await {
        // `Foreign` is a lost race here: the other one's uuid is the job's.
        Ok(_) | Err(JournalError::Foreign { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// `None` when the journal went on meanwhile and must be read again.
async fn try_claim(
    store: &Arc<dyn Store>,
    uuid: JobUuid,
    decision: &ClaimDecision,
    request: &ClaimRequest,
) -> Result<Option<GenerationEntry>, ClaimError> {
    let start = GenerationEntry {
        generation: decision.generation,
        nonce: Uuid::new_v4(),
        plan_hash: request.plan_hash.clone(),
        parallelism: request.parallelism,
        processes: request.processes,
        host: request.host.clone(),
        pid: request.pid,
        supervisor: request.supervisor,
        started_at_ms: now_ms(),
        restored: decision.restored.as_ref().map(|checkpoint| checkpoint.id),
    };
    let outcome = put_entry(store.as_ref(), uuid, decision.number, &Entry::Generation(start.clone())).await?;
    if let Put::Durable = outcome {
        let listed = store.list(paths::JOURNAL).await?;
        if claim_holds(decision.number, listed.iter().filter_map(|object| paths::journal_number(&object.path))) {
            // Emptied since it was read: the claim stands in nothing, or in the journal of another job.
            return match retry_transient(|| read_entry(store.as_ref(), 0)).await? {
                Some((found, _)) if found == uuid => Ok(Some(start)),
                Some((found, _)) => Err(JournalError::Foreign { path: paths::journal_entry(0), found, expected: uuid }.into()),
                None => Err(JournalError::NoJob.into()),
            };
        }
        // Somebody went on beyond this number. A start there has won; else an old incarnation still runs.
        let view = read_journal(store.clone()).await?;
        let after = view.entries.iter().filter(|(number, _)| *number > decision.number);
        return match after.filter_map(|(_, entry)| entry.generation()).next_back() {
            Some(winner) if winner.supervisor != start.supervisor => Err(ClaimError::Fenced { winner: Box::new(winner.clone()) }),
            _ => Ok(None),
        };
    }
    // Ours or not, somebody holds this number or the next. A start there has won; a checkpoint there is of an old
    // incarnation that still runs.
    for number in [decision.number, decision.number.saturating_add(1)] {
        match read_entry(store.as_ref(), number).await? {
            // A late put of a claim that this supervisor gave up has won against nobody: claim above it.
            Some((_, Entry::Generation(winner))) if winner.supervisor != start.supervisor => {
                return Err(ClaimError::Fenced { winner: Box::new(winner) });
            }
            _ => {}
        }
    }
    Ok(None)
}

fn started(store: Arc<dyn Store>, uuid: JobUuid, request: &ClaimRequest, decision: ClaimDecision, entry: GenerationEntry) -> Claim {
    let generation = decision.generation;
    let start = Start { number: decision.number, nonce: entry.nonce };
    let state = AppenderState { job: uuid, generation, number: decision.number + 1, newest: decision.committed, start, in_doubt: false };
    let permitted = |(checkpoint, committable)| (CommitPermit::new(uuid, checkpoint, generation), committable);
    Claim {
        identity: JobIdentity { name: request.job_name.clone(), uuid, generation },
        appender: state.attach(store),
        entry,
        restored: decision.restored,
        pending: decision.pending.into_iter().map(permitted).collect(),
        abandoned: decision.abandoned,
        next_checkpoint: decision.next_checkpoint,
        committed: decision.committed,
        retained: decision.retained,
    }
}
