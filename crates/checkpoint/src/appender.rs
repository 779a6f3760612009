//! Appending checkpoints to the journal.

use crate::decide::{AppendStep, PutAnswer, after_put, after_read_back, after_read_next, start_is_there};
use crate::ids::{CheckpointId, Generation, JobUuid};
use crate::journal::{JournalError, encode_entry, read_entry, read_journal};
use crate::paths;
use crate::permit::CommitPermit;
use crate::store::{Store, StoreError};
use crate::types::{CheckpointEntry, CommittedEntry, Entry, GenerationEntry};
use backon::{BackoffBuilder, ExponentialBuilder};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Why an entry was not appended, or why it is not known whether it was. After any of these except
/// [`AppendError::Invalid`] the process must exit: the checkpoint may be durable and can no longer be declined.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// A newer incarnation runs. Terminal.
    #[error(
        "generation {} of this job was started on {} (process {}); this incarnation stops",
        winner.generation, winner.host, winner.pid
    )]
    Fenced {
        /// The newer incarnation.
        winner: Box<GenerationEntry>,
    },
    /// The number is taken, yet by no newer generation: two processes append for one generation.
    #[error("journal entry {number} was written by another process of the same generation: only one may append")]
    Conflict {
        /// The entry's number.
        number: u64,
    },
    /// The folder was emptied or replaced under the running job.
    #[error(
        "the journal no longer holds the start of this generation (entries 0 and {number}): the folder was emptied or replaced while the job \
         ran; nothing of this checkpoint is committed. Make sure that no process of the job runs, then restore the folder or start anew"
    )]
    Replaced {
        /// The number of the generation's own entry.
        number: u64,
    },
    /// The store failed for good.
    #[error("the checkpoint's entry cannot be written; it may already be durable, so the process must exit: {0}")]
    Store(#[from] StoreError),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(JournalError),
    /// An earlier append ended undecided.
    #[error("an earlier append ended undecided: exit; the next start reads the journal and decides")]
    InDoubt,
    /// The entry contradicts the journal. Nothing was written.
    #[error("checkpoint {id}: the entry cannot be appended: {reason}")]
    Invalid {
        /// The checkpoint that it is about.
        id: CheckpointId,
        /// What is wrong.
        reason: String,
    },
}

impl From<JournalError> for AppendError {
    fn from(error: JournalError) -> AppendError {
        match error {
            JournalError::Store(error) => AppendError::Store(error),
            other => AppendError::Journal(other),
        }
    }
}

/// Where the next entry belongs, and whose it is. Travels from the supervisor that claims to the worker that appends;
/// exactly one process may attach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppenderState {
    pub(crate) job: JobUuid,
    pub(crate) generation: Generation,
    pub(crate) number: u64,
    pub(crate) newest: CheckpointId,
    pub(crate) start: Start,
    pub(crate) in_doubt: bool,
}

/// The generation's own entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) number: u64,
    pub(crate) nonce: Uuid,
}

impl AppenderState {
    /// Attaches the store.
    pub fn attach(self, store: Arc<dyn Store>) -> Appender {
        Appender { state: self, store }
    }

    /// The generation that appends.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

/// Appends the checkpoints of one generation.
#[derive(Debug)]
pub struct Appender {
    state: AppenderState,
    store: Arc<dyn Store>,
}

/// Proof that a checkpoint's entry is in the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct DurableCheckpoint {
    /// The entry as it was written.
    pub entry: CheckpointEntry,
    job: JobUuid,
}

impl DurableCheckpoint {
    /// The right to commit what the entry holds.
    pub fn permit(&self) -> CommitPermit {
        CommitPermit::new(self.job, self.entry.id, self.entry.generation)
    }

    /// Transactions of checkpoints up to here need never be decided again: names that they used may be used again.
    /// That a commit was answered is not enough: after a crash the old entry would commit once more under
    /// a name that belongs to a later transaction.
    pub fn released(&self) -> CheckpointId {
        self.entry.committed
    }
}

impl Appender {
    /// What another process needs to append instead of this one.
    pub fn into_state(self) -> AppenderState {
        self.state
    }

    /// The generation that appends.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    /// Appends the entry of a completed checkpoint.
    ///
    /// Returns only when it is decided: lost answers are resolved by reading back, transient errors are retried with
    /// backoff without end. The caller bounds it by ending the *process*, never by dropping the call and going on:
    /// a dropped call leaves the appender in doubt and every later append fails.
    pub async fn append(&mut self, mut entry: CheckpointEntry) -> Result<DurableCheckpoint, AppendError> {
        if self.state.in_doubt {
            return Err(AppendError::InDoubt);
        }
        if entry.nonce.is_nil() {
            entry.nonce = Uuid::new_v4();
        }
        self.check(&entry)?;
        let id = entry.id;
        let entry = Entry::Checkpoint(entry);
        self.put(&entry).await?;
        self.state.newest = id;
        match entry {
            Entry::Checkpoint(entry) => Ok(DurableCheckpoint { entry, job: self.state.job }),
            _ => Err(AppendError::InDoubt),
        }
    }

    /// Appends that every checkpoint up to `committed` is committed in all sinks, where no checkpoint will say so soon: at the end
    /// of a job (`ended`), and after a start has committed what was pending. Only what has been committed may be said.
    ///
    /// Decided as [`Appender::append`] is.
    pub async fn append_committed(&mut self, committed: CheckpointId, ended: bool) -> Result<(), AppendError> {
        if self.state.in_doubt {
            return Err(AppendError::InDoubt);
        }
        let AppenderState { generation, newest, .. } = self.state;
        if committed > newest {
            let reason = format!("checkpoint {newest} is the newest in the journal, and a later one cannot be committed");
            return Err(AppendError::Invalid { id: committed, reason });
        }
        let entry = CommittedEntry { generation, nonce: Uuid::new_v4(), committed, ended, written_at_ms: now_ms() };
        self.put(&Entry::Committed(entry)).await
    }

    /// Puts an entry at the next number and goes on until it is decided.
    async fn put(&mut self, entry: &Entry) -> Result<(), AppendError> {
        let (job, generation, number) = (self.state.job, self.state.generation, self.state.number);
        self.state.in_doubt = true;
        match put_entry(self.store.as_ref(), job, number, entry).await? {
            Put::Durable => {}
            Put::Fenced => return Err(self.who_fenced(number, generation).await?),
        }
        let Start { number, nonce } = self.state.start;
        let store = self.store.as_ref();
        let (start, first) = futures::try_join!(retry_transient(|| read_entry(store, number)), retry_transient(|| read_entry(store, 0)))?;
        if !start_is_there(start.map(|(job, entry)| (job, entry.nonce())), first.map(|(job, _)| job), job, nonce) {
            return Err(AppendError::Replaced { number });
        }
        self.state.number += 1;
        self.state.in_doubt = false;
        Ok(())
    }

    fn check(&self, entry: &CheckpointEntry) -> Result<(), AppendError> {
        let AppenderState { generation, newest, .. } = self.state;
        let reason = if entry.generation != generation {
            format!("it is of generation {}, this appender of {generation}", entry.generation)
        } else if entry.id <= newest {
            format!("checkpoint {newest} is already in the journal and ids must grow")
        } else if entry.committed >= entry.id {
            format!("it claims that {} is committed, which cannot be before its own entry is durable", entry.committed)
        } else if entry.retained.last() != Some(&entry.id) {
            "its retained set does not end with itself".to_owned()
        } else if let Some(late) = entry.committables.iter().find(|c| c.checkpoint > entry.id) {
            format!("it holds a committable of the later checkpoint {}", late.checkpoint)
        } else {
            return Ok(());
        };
        Err(AppendError::Invalid { id: entry.id, reason })
    }

    async fn who_fenced(&self, number: u64, generation: Generation) -> Result<AppendError, AppendError> {
        let view = retry_transient(|| async { read_journal(self.store.clone()).await }).await?;
        let newest = view.newest_generation().filter(|start| start.generation > generation);
        Ok(match newest {
            Some(winner) => AppendError::Fenced { winner: Box::new(winner.clone()) },
            None => AppendError::Conflict { number },
        })
    }
}

/// The decided outcome of putting an entry.
pub(crate) enum Put {
    Durable,
    Fenced,
}

/// Puts an entry at a number and goes on until it is decided.
pub(crate) async fn put_entry(store: &dyn Store, job: JobUuid, number: u64, entry: &Entry) -> Result<Put, JournalError> {
    let path = paths::journal_entry(number);
    let bytes = encode_entry(job, entry)?;
    let mut pauses = pauses();
    let mut repeated = false;
    let mut step = AppendStep::Put;
    loop {
        step = match step {
            AppendStep::Put => {
                let answer = match store.put_if_absent(&path, bytes.clone()).await {
                    Ok(outcome) => PutAnswer::Known(outcome),
                    Err(error) if error.is_transient() => {
                        tracing::warn!(%error, number, "journal: the answer to a put is lost; reading it back");
                        tokio::time::sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
                        PutAnswer::Unknown
                    }
                    Err(error) => return Err(error.into()),
                };
                let next = after_put(answer, repeated);
                repeated = true;
                next
            }
            AppendStep::ReadBack => {
                let found = retry_transient(|| read_entry(store, number)).await?;
                if found.is_none() {
                    tokio::time::sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
                }
                let step = after_read_back(found.as_ref().map(|(job, entry)| (*job, entry.nonce())), job, entry.nonce());
                if let (AppendStep::Foreign, Some((found, _))) = (&step, found) {
                    return Err(JournalError::Foreign { path, found, expected: job });
                }
                step
            }
            AppendStep::ReadNext => {
                let next = retry_transient(|| read_entry(store, number.saturating_add(1))).await?;
                after_read_next(next.is_some())
            }
            AppendStep::Durable => return Ok(Put::Durable),
            AppendStep::Fenced | AppendStep::Foreign => return Ok(Put::Fenced),
        };
    }
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

const MAX_PAUSE: Duration = Duration::from_secs(5);

fn pauses() -> impl Iterator<Item = Duration> {
    let backoff = ExponentialBuilder::default().with_min_delay(Duration::from_millis(20)).with_max_delay(MAX_PAUSE);
    backoff.with_jitter().without_max_times().build()
}

/// Repeats a read while the store's error is transient, without end.
pub(crate) async fn retry_transient<T, F>(call: impl Fn() -> F) -> Result<T, JournalError>
where
    F: Future<Output = Result<T, JournalError>>,
{
    let mut pauses = pauses();
    loop {
        match call().await {
            Err(JournalError::Store(error)) if error.is_transient() => {
                tracing::warn!(%error, "journal: will be read again");
                tokio::time::sleep(pauses.next().unwrap_or(MAX_PAUSE)).await;
            }
            other => return other,
        }
    }
}
