//! [`Transactions`]: raw calls to transaction coordinators.
use super::cluster::Cluster;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::TopicPartition;

/// What a producer writes as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// Transactional id; `None` for an idempotent producer without transactions.
    pub transactional_id: Option<String>,
    /// Producer id.
    pub producer_id: i64,
    /// Producer epoch.
    pub epoch: i16,
}

/// Answer to EndTxn, as it came. What it means is decided elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTxn {
    /// The code; `NONE` proves the end that was asked for.
    pub code: ErrorCode,
    /// Producer id for the next transaction; `None` when the broker did not say (an error, or a version below 5).
    pub producer_id: Option<i64>,
    /// Epoch for the next transaction; `None` as above.
    pub epoch: Option<i16>,
    /// Version of EndTxn used: below 5 the epoch is not bumped, and a zombie can still write.
    pub version: i16,
}

/// State of a transaction at its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// Nothing begun.
    Empty,
    /// Open.
    Ongoing,
    /// Commit decided, markers being written.
    PrepareCommit,
    /// Abort decided, markers being written.
    PrepareAbort,
    /// Committed.
    CompleteCommit,
    /// Aborted.
    CompleteAbort,
    /// About to be forgotten.
    Dead,
    /// An epoch bump is under way.
    PrepareEpochFence,
    /// A state this client does not know.
    Other(String),
}

/// DescribeTransactions' answer for one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The id.
    pub transactional_id: String,
    /// `NONE`, or e.g. TRANSACTIONAL_ID_NOT_FOUND; the other fields hold only with `NONE`.
    pub code: ErrorCode,
    /// State.
    pub state: TransactionState,
    /// Current producer id.
    pub producer_id: i64,
    /// Current epoch.
    pub epoch: i16,
    /// `transaction.timeout.ms` of the open transaction.
    pub timeout_ms: i32,
    /// Start in ms since 1970, -1 when none is open.
    pub start_ms: i64,
    /// Partitions written in the open transaction.
    pub partitions: Vec<TopicPartition>,
}

/// ListTransactions' answer for one id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTransaction {
    /// The id.
    pub transactional_id: String,
    /// Current producer id.
    pub producer_id: i64,
    /// State.
    pub state: TransactionState,
}

/// Raw calls to transaction coordinators. Moved coordinators, closed connections and CONCURRENT_TRANSACTIONS are handled
/// by sending the same request again until the deadline; other codes are the caller's to judge.
#[derive(Clone, Debug)]
pub struct Transactions {
    _cluster: Cluster,
}

impl Transactions {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Transactions { _cluster: cluster }
    }
    /// Version of EndTxn that will be used (5 where offered), 0 before the first contact.
    pub fn end_txn_version(&self) -> i16 {
        0
    }
    /// Initialises a transactional id (aborts what is open on it!) or, with `None`, gets a producer id.
    pub async fn init_producer_id(&self, _transactional_id: Option<&str>, _timeout_ms: i32, _deadline: Deadline) -> Result<ProducerIdentity> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Ends a transaction, also one that another process opened. Codes 14, 15, 16, 51 are retried until the deadline.
    pub async fn end_txn(&self, _transactional_id: &str, _producer_id: i64, _epoch: i16, _commit: bool, _deadline: Deadline) -> Result<EndTxn> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Describes transactional ids, in the order asked.
    pub async fn describe(&self, _transactional_ids: &[&str], _deadline: Deadline) -> Result<Vec<TransactionDescription>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Lists the transactions of all brokers in one of `states` (empty: all) whose id begins with `prefix`.
    /// Fails when a broker cannot be asked: an incomplete list is no proof.
    pub async fn list(&self, _states: &[TransactionState], _prefix: &str, _deadline: Deadline) -> Result<Vec<ListedTransaction>> {
        Err(ClientError::Usage("not built yet".into()))
    }
}
