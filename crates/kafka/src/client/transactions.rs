//! [`Transactions`]: raw calls to transaction coordinators.
use super::cluster::{Cluster, CoordinatorKind, Purpose, pause};
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::TopicPartition;
use super::producers::Producers;
use kafka_protocol::messages::{
    DescribeTransactionsRequest, EndTxnRequest, InitProducerIdRequest, ListTransactionsRequest, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::{Request, StrBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    cluster: Cluster,
}

const TRANSACTION: CoordinatorKind = CoordinatorKind::Transaction;

/// Codes after which the same request is sent again.
fn is_later(code: ErrorCode) -> bool {
    code.is_coordinator_moved() || matches!(code, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::CONCURRENT_TRANSACTIONS)
}

fn id_of(text: &str) -> TransactionalId {
    TransactionalId(StrBytes::from_string(text.to_string()))
}

impl TransactionState {
    /// By the name that Kafka sends.
    fn parse(name: &str) -> Self {
        match name {
            "Empty" => TransactionState::Empty,
            "Ongoing" => TransactionState::Ongoing,
            "PrepareCommit" => TransactionState::PrepareCommit,
            "PrepareAbort" => TransactionState::PrepareAbort,
            "CompleteCommit" => TransactionState::CompleteCommit,
            "CompleteAbort" => TransactionState::CompleteAbort,
            "Dead" => TransactionState::Dead,
            "PrepareEpochFence" => TransactionState::PrepareEpochFence,
            other => TransactionState::Other(other.to_string()),
        }
    }

    /// The name that Kafka knows.
    fn name(&self) -> String {
        match self {
            TransactionState::Other(name) => name.clone(),
            known => format!("{known:?}"),
        }
    }
}

impl Transactions {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Transactions { cluster }
    }

    /// The same brokers, asked as leaders of partitions.
    pub fn producers(&self) -> Producers {
        Producers::new(self.cluster.clone())
    }

    /// All partitions of a topic.
    pub async fn partitions(&self, topic: &str, deadline: Deadline) -> Result<BTreeSet<TopicPartition>> {
        let found = self.cluster.topic(topic, deadline).await?;
        Ok(found.partitions.iter().map(|p| TopicPartition::new(topic, p.partition)).collect())
    }

    /// Version of EndTxn that will be used (5 where offered), 0 before the first contact.
    pub fn end_txn_version(&self) -> i16 {
        self.cluster.end_txn_version()
    }

    /// Calls the coordinator of an id until it gives a code that is not "later", or the deadline passes; then the last code
    /// or error is returned.
    async fn call<R: Request>(
        &self,
        id: &str,
        request: &R,
        versions: (i16, i16),
        code: impl Fn(&R::Response) -> i16,
        deadline: Deadline,
    ) -> Result<(R::Response, i16)> {
        let mut backoff = Cluster::backoff();
        loop {
            match self.cluster.call_coordinator(TRANSACTION, id, request, versions, deadline).await {
                Ok((answer, version)) => {
                    let got = ErrorCode(code(&answer));
                    if got.is_coordinator_moved() {
                        self.cluster.forget_coordinator(TRANSACTION, id);
                    }
                    if !is_later(got) || !deadline.sleep(backoff.pause()).await {
                        return Ok((answer, version));
                    }
                }
                Err(error) => pause(&mut backoff, deadline, error).await?,
            }
        }
    }

    /// Initialises a transactional id (aborts what is open on it!) or, with `None`, gets a producer id.
    pub async fn init_producer_id(&self, transactional_id: Option<&str>, timeout_ms: i32, deadline: Deadline) -> Result<ProducerIdentity> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(transactional_id.map(id_of))
            .with_transaction_timeout_ms(timeout_ms)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        // Version 4 is the last that every broker since 2.7 means alike.
        const VERSIONS: (i16, i16) = (0, 4);
        let mut backoff = Backoff::default();
        loop {
            let answer = match transactional_id {
                Some(id) => self.call(id, &request, VERSIONS, |a| a.error_code, deadline).await?.0,
                None => self.cluster.call_any(&request, VERSIONS.0, VERSIONS.1, deadline).await?.0,
            };
            if answer.error_code == 0 {
                return Ok(ProducerIdentity {
                    transactional_id: transactional_id.map(str::to_string),
                    producer_id: answer.producer_id.0,
                    epoch: answer.producer_epoch,
                });
            }
            let what =
                transactional_id.map_or_else(|| "getting a producer id".to_string(), |id| format!("initialising transactional id {id}"));
            pause(&mut backoff, deadline, ClientError::broker(what, answer.error_code, None)).await?;
        }
    }

    /// Ends a transaction, also one that another process opened. Codes 14, 15, 16, 51 are retried until the deadline.
    pub async fn end_txn(&self, transactional_id: &str, producer_id: i64, epoch: i16, commit: bool, deadline: Deadline) -> Result<EndTxn> {
        let request = EndTxnRequest::default()
            .with_transactional_id(id_of(transactional_id))
            .with_producer_id(ProducerId(producer_id))
            .with_producer_epoch(epoch)
            .with_committed(commit);
        let (answer, version) = self.call(transactional_id, &request, (0, 5), |a| a.error_code, deadline).await?;
        let told = answer.error_code == 0 && version >= 5 && answer.producer_id.0 >= 0 && answer.producer_epoch >= 0;
        Ok(EndTxn {
            code: ErrorCode(answer.error_code),
            producer_id: told.then_some(answer.producer_id.0),
            epoch: told.then_some(answer.producer_epoch),
            version,
        })
    }

    /// Describes transactional ids, in the order asked.
    pub async fn describe(&self, transactional_ids: &[&str], deadline: Deadline) -> Result<Vec<TransactionDescription>> {
        let mut described: Vec<Option<TransactionDescription>> = vec![None; transactional_ids.len()];
        let mut backoff = Cluster::backoff();
        let mut left: Vec<usize> = (0..transactional_ids.len()).collect();
        while !left.is_empty() {
            let mut by_node: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
            for at in &left {
                let node = self.cluster.coordinator(TRANSACTION, transactional_ids[*at], deadline).await?;
                by_node.entry(node).or_default().push(*at);
            }
            let mut later = Vec::new();
            let mut last = None;
            for (node, asked) in by_node {
                let ids: Vec<_> = asked.iter().map(|at| id_of(transactional_ids[*at])).collect();
                let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
                let attempt = async {
                    let deadline = self.cluster.attempt(deadline);
                    let connection = self.cluster.connection(node, Purpose::Transactions, deadline).await?;
                    let version = connection.version::<DescribeTransactionsRequest>(0, 0)?;
                    connection.call(&request, version, deadline).await
                };
                match attempt.await {
                    Ok(answer) => {
                        for at in asked {
                            let id = transactional_ids[at];
                            let found = answer.transaction_states.iter().find(|s| s.transactional_id.0.as_str() == id);
                            let found = found.map(|s| description(id, s));
                            match found {
                                Some(found) if !is_later(found.code) => described[at] = Some(found),
                                found => {
                                    self.cluster.forget_coordinator(TRANSACTION, id);
                                    last = found.map(|f| ClientError::Broker {
                                        what: format!("describing transactional id {id}"),
                                        code: f.code,
                                        message: None,
                                    });
                                    later.push(at);
                                }
                            }
                        }
                    }
                    Err(error) if error.is_retriable() => {
                        asked.iter().for_each(|at| self.cluster.forget_coordinator(TRANSACTION, transactional_ids[*at]));
                        later.extend(asked);
                        last = Some(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            left = later;
            if !left.is_empty() && !deadline.sleep(backoff.pause()).await {
                return Err(last.unwrap_or_else(|| deadline.exceeded("describing transactions")));
            }
        }
        Ok(described.into_iter().flatten().collect())
    }

    /// Lists the transactions of all brokers in one of `states` (empty: all) whose id begins with `prefix`.
    /// Fails when a broker cannot be asked: an incomplete list is no proof.
    pub async fn list(&self, states: &[TransactionState], prefix: &str, deadline: Deadline) -> Result<Vec<ListedTransaction>> {
        let filters: Vec<StrBytes> = states.iter().map(|s| StrBytes::from_string(s.name())).collect();
        let mut backoff = Backoff::default();
        'again: loop {
            let metadata = self.cluster.metadata(Some(&[]), deadline).await?;
            let mut listed = BTreeMap::new();
            for node in metadata.brokers.keys() {
                let attempt = async {
                    let deadline = self.cluster.attempt(deadline);
                    let connection = self.cluster.connection(*node, Purpose::Transactions, deadline).await?;
                    let version = connection.version::<ListTransactionsRequest>(0, 2)?;
                    let mut request = ListTransactionsRequest::default().with_state_filters(filters.clone()).with_duration_filter(-1);
                    if version >= 2 {
                        // Kafka matches the whole id. Filtered again below: older versions do not filter at all.
                        request.transactional_id_pattern = Some(StrBytes::from_string(format!("{}.*", regex::escape(prefix))));
                    }
                    let answer = connection.call(&request, version, deadline).await?;
                    match answer.error_code {
                        0 => Ok(answer),
                        code => Err(ClientError::broker(format!("listing the transactions of broker {node}"), code, None)),
                    }
                };
                match attempt.await {
                    Ok(answer) => {
                        for t in answer.transaction_states.iter().filter(|t| t.transactional_id.0.starts_with(prefix)) {
                            let transactional_id = t.transactional_id.0.to_string();
                            let one = ListedTransaction {
                                transactional_id: transactional_id.clone(),
                                producer_id: t.producer_id.0,
                                state: TransactionState::parse(&t.transaction_state),
                            };
                            if states.is_empty() || states.contains(&one.state) {
                                listed.insert(transactional_id, one);
                            }
                        }
                    }
                    Err(error) => {
                        pause(&mut backoff, deadline, error).await?;
                        continue 'again;
                    }
                }
            }
            return Ok(listed.into_values().collect());
        }
    }
}

fn description(id: &str, s: &kafka_protocol::messages::describe_transactions_response::TransactionState) -> TransactionDescription {
    let partitions = s.topics.iter().flat_map(|t| {
        let topic: Arc<str> = t.topic.0.as_str().into();
        t.partitions.iter().map(move |p| TopicPartition { topic: topic.clone(), partition: *p })
    });
    TransactionDescription {
        transactional_id: id.to_string(),
        code: ErrorCode(s.error_code),
        state: TransactionState::parse(&s.transaction_state),
        producer_id: s.producer_id.0,
        epoch: s.producer_epoch,
        timeout_ms: s.transaction_timeout_ms,
        start_ms: s.transaction_start_time_ms,
        partitions: partitions.collect(),
    }
}
