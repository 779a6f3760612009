//! The two-phase-commit sink: what a connector, or a user, writes to get rows out exactly once.
//!
//! The protocol is that of Flink's `TwoPhaseCommitSinkFunction`. Rows of checkpoint *n* are written into a transaction that
//! nobody can see; at the barrier it is *pre-committed*: from then on a commit must be possible, also from another process.
//! Its handle is stored in the checkpoint. Once the checkpoint's journal entry is durable, and never before, it is committed.
//!
//! | call | by whom | when |
//! |---|---|---|
//! | [`preflight`](TwoPhaseCommitSink::preflight) | supervisor, `check` | before anything starts |
//! | [`recover`](TwoPhaseCommitSink::recover) | supervisor | once per generation, before its first row: commits all that is pending, then ends what no entry holds |
//! | [`sweep`](TwoPhaseCommitSink::sweep) | process 0 | every 10 s: a process of a lower generation may wake and open a transaction later |
//! | [`open`](TwoPhaseCommitSink::open) | each subtask | gives the writer and the committer |
//!
//! Every external name must hold job uuid, sink uid, subtask, checkpoint and generation where the external system allows:
//! a frozen process and its successor work on the same checkpoint ids.
pub use crate::transaction_admin::{ExternalTransaction, TransactionAdmin};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{CheckpointId, CommitPermit, JobIdentity, OperatorUid};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Why a sink or source call failed. Any of them ends the generation; the kind decides what happens then.
#[derive(Debug, thiserror::Error)]
pub enum ConnectorError {
    /// May go away: the job restarts from its newest checkpoint, under its restart strategy.
    #[error("{0}")]
    Retryable(String),
    /// Will not go away without somebody's help (configuration, permission, a row the target refuses): the job fails for good.
    #[error("{0}")]
    Fatal(String),
    /// A pre-committed transaction is gone: its rows will not appear. The job fails for good and says what was lost.
    #[error("transaction lost: {0}")]
    Lost(String),
    /// Another generation of this job has taken over.
    #[error("fenced: {0}")]
    Fenced(String),
}

/// The result of a connector call.
pub type ConnectorResult<T> = Result<T, ConnectorError>;

/// How a commit ended. "Unknown" does not exist: a committer asks the external system until it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Committed {
    /// It was this call that committed, or this call and an earlier one cannot be told apart.
    Now,
    /// It had been committed before.
    Already,
}

/// What a preflight check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was checked, e.g. `transaction.timeout.ms against the broker's transaction.max.timeout.ms`.
    pub check: String,
    /// The value found.
    pub found: String,
    /// The value needed.
    pub needed: String,
    /// What to do, where possible the very command.
    pub remedy: String,
}

impl Finding {
    /// All of its texts.
    pub fn new(severity: Severity, check: &str, found: impl Into<String>, needed: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { severity, check: check.to_owned(), found: found.into(), needed: needed.into(), remedy: remedy.into() }
    }

    /// Nothing is to be done.
    pub fn ok(check: &str, found: impl Into<String>, needed: impl Into<String>) -> Self {
        Finding::new(Severity::Ok, check, found, needed, "")
    }
}

/// Of a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, serde::Deserialize)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// The job may run, but something can go wrong later.
    Warning,
    /// The job must not start.
    Error,
    /// The job must not start now: nobody has answered, which may go away.
    Unanswered,
}

/// What a preflight check must know of the job.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub struct JobNeeds {
    /// The job's name.
    pub job_name: String,
    /// Of the job's store, once it exists: transactions of another uuid are somebody else's.
    pub job_uuid: Option<semel_checkpoint::JobUuid>,
    /// Number of subtasks.
    pub parallelism: u32,
    /// `execution.checkpointing.interval`.
    pub checkpoint_interval: Duration,
    /// `execution.checkpointing.timeout`.
    pub checkpoint_timeout: Duration,
    /// `execution.checkpointing.max-concurrent-checkpoints`.
    pub max_concurrent_checkpoints: u32,
    /// `semel.sink.commit-timeout`.
    pub commit_timeout: Duration,
    /// The longest pause that the restart strategy makes between two attempts.
    pub longest_restart: Duration,
}

/// A pre-committed transaction of the journal, with the proof that it may be committed.
#[derive(Debug, Clone)]
pub struct Pending<T> {
    /// The transaction's handle.
    pub transaction: T,
    /// The proof.
    pub permit: CommitPermit,
    /// The subtask that wrote it.
    pub subtask: u32,
    /// The checkpoint that it belongs to.
    pub checkpoint: CheckpointId,
}

/// What a sweep has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Names of the aborted transactions.
    pub aborted: Vec<String>,
}

/// Everything that one subtask of a sink must know.
#[derive(Debug, Clone)]
pub struct SinkContext {
    /// Whose transactions these are; part of every external name.
    pub job: JobIdentity,
    /// Of the sink.
    pub uid: OperatorUid,
    /// 0-based.
    pub subtask: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// The rows' schema.
    pub schema: SchemaRef,
}

/// A sink: one value per sink of the job, shared by all its subtasks. See the module for who calls what when.
///
/// The `Transaction` is the handle: it alone must be enough to commit or abort from another process, and it is stored as
/// JSON in the checkpoint, so it must not hold secrets.
pub trait TwoPhaseCommitSink: Send + Sync + 'static {
    /// The handle.
    type Transaction: Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static;
    /// Writes rows, one per subtask.
    type Writer: SinkWriter<Transaction = Self::Transaction>;
    /// Commits, one per subtask, in a task of its own: a blocked writer never blocks a commit.
    type Committer: SinkCommitter<Transaction = Self::Transaction>;

    /// Looks at the external system and changes nothing. Errors of the connection are findings too.
    fn preflight(&self, needs: &JobNeeds, uid: &OperatorUid, schema: &SchemaRef) -> impl Future<Output = Vec<Finding>> + Send;

    /// Commits every pending transaction (in order of checkpoints), then does what [`sweep`](Self::sweep) does.
    fn recover(
        &self,
        job: &JobIdentity,
        uid: &OperatorUid,
        pending: Vec<Pending<Self::Transaction>>,
    ) -> impl Future<Output = ConnectorResult<Swept>> + Send;

    /// Ends transactions of this job uuid and sink whose generation is strictly lower than `job.generation`. It is only
    /// called after `recover` has committed everything that any journal entry holds.
    fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> impl Future<Output = ConnectorResult<Swept>> + Send;

    /// In words, where a transaction of an earlier run went and where this sink writes now, if these are not the same place: told as
    /// a warning before a start, since the change may be a mistake. `None`: they are, or that is not known.
    fn elsewhere(&self, transaction: &Self::Transaction) -> Option<String> {
        _ = transaction;
        None
    }

    /// How the command `transactions` looks into the external system. `None`: it cannot.
    fn transactions(&self) -> Option<Arc<dyn TransactionAdmin>> {
        None
    }

    /// Opens the two halves of a subtask.
    fn open(&self, context: SinkContext) -> impl Future<Output = ConnectorResult<(Self::Writer, Self::Committer)>> + Send;
}

/// Phase one. The calls of one checkpoint come in the order `begin_transaction`, `invoke`*, `pre_commit`; a checkpoint without
/// rows has none of them. Dropping a writer must never commit.
pub trait SinkWriter: Send + 'static {
    /// The handle.
    type Transaction;
    /// Opens a transaction, at the first row of a checkpoint.
    fn begin_transaction(&mut self, checkpoint: CheckpointId) -> impl Future<Output = ConnectorResult<Self::Transaction>> + Send;
    /// Writes rows into it; nobody may see them yet. Rows may be buffered; waiting here is back-pressure.
    fn invoke(&mut self, transaction: &mut Self::Transaction, rows: RecordBatch) -> impl Future<Output = ConnectorResult<()>> + Send;
    /// Makes everything durable at the target. After `Ok` a commit must be possible, from any process.
    fn pre_commit(&mut self, transaction: &mut Self::Transaction) -> impl Future<Output = ConnectorResult<()>> + Send;
    /// Called now and then while there is nothing to write, at least every 100 ms: a place to send what lingers.
    fn idle(&mut self) -> impl Future<Output = ConnectorResult<()>> + Send {
        async { Ok(()) }
    }
}

/// Phase two.
pub trait SinkCommitter: Send + 'static {
    /// The handle.
    type Transaction;
    /// Makes the transaction's rows visible. Must be idempotent: it is called again after a crash, perhaps by another process.
    fn commit(&mut self, transaction: &Self::Transaction, permit: &CommitPermit)
    -> impl Future<Output = ConnectorResult<Committed>> + Send;
    /// Undoes a transaction. Idempotent.
    fn abort(&mut self, transaction: &Self::Transaction) -> impl Future<Output = ConnectorResult<()>> + Send;
    /// A durable journal entry says that every transaction up to `committed` is committed, so none of them will be asked
    /// for again: names may be used again, ledgers trimmed. (The answer of a commit alone is not enough: after a crash it is
    /// repeated until an entry says so.)
    fn released(&mut self, committed: CheckpointId) -> impl Future<Output = ConnectorResult<()>> + Send {
        _ = committed;
        async { Ok(()) }
    }
    /// The job has ended well and nothing more is committed: the last call, for what is still to be looked after. It may take 10 s; an
    /// error is logged, and the next start of the job finds what is left.
    fn finish(&mut self) -> impl Future<Output = ConnectorResult<()>> + Send {
        async { Ok(()) }
    }
}
