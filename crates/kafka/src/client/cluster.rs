//! [`Cluster`]: metadata, leaders, coordinators and connections.
use super::config::ClientConfig;
use super::connection::Connection;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::*;
use super::tls;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{EndTxnRequest, FindCoordinatorRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::{Request, StrBytes};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_rustls::TlsConnector;

/// What a shared connection is for: the broker answers one connection's requests in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Metadata, offsets, administration.
    Control,
    /// Ends and descriptions of transactions.
    Transactions,
}

/// What a coordinator coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoordinatorKind {
    /// A consumer group.
    Group,
    /// A transactional id.
    Transaction,
}

/// A cluster, as all parts of the client share it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
}

/// A connection that is shared, and opened by one caller at a time.
type Slot = Arc<tokio::sync::Mutex<Option<Connection>>>;

struct Shared {
    config: ClientConfig,
    tls: Option<TlsConnector>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("bootstrap", &self.config.bootstrap).finish_non_exhaustive()
    }
}

/// Longest wait for one of several brokers before another is asked: one that hangs keeps its connections open, and without this
/// each question would wait for it until `request.timeout.ms`.
const ATTEMPT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    brokers: BTreeMap<i32, BrokerNode>,
    /// When a broker did not answer, unless it has answered since: it is asked last.
    silent: HashMap<i32, Instant>,
    /// With the time at which each was read.
    topics: HashMap<Arc<str>, (TopicMetadata, Instant)>,
    coordinators: HashMap<(CoordinatorKind, String), i32>,
    slots: HashMap<(i32, Purpose), Slot>,
    transaction_version: i16,
    end_txn_version: i16,
}

/// Pause between attempts of a call, for as long as its deadline allows.
pub(crate) async fn pause(backoff: &mut Backoff, deadline: Deadline, error: ClientError) -> Result<()> {
    let retried = error.is_retriable() && !deadline.passed() && deadline.sleep(backoff.pause()).await;
    if retried { Ok(()) } else { Err(error) }
}

impl Cluster {
    /// Connects to the first bootstrap broker that answers, logs in and reads the brokers and features.
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        let tls = config.security.tls.as_ref().map(tls::connector).transpose()?;
        let cluster = Cluster { shared: Arc::new(Shared { config, tls, state: Mutex::default() }) };
        let deadline = cluster.deadline();
        let mut first = None;
        for address in &cluster.shared.config.bootstrap {
            match cluster.look(address, deadline).await {
                Ok(()) => return Ok(cluster),
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        Err(first.unwrap_or_else(|| ClientError::config("bootstrap.servers", "is empty")))
    }

    async fn look(&self, address: &str, deadline: Deadline) -> Result<()> {
        let connection = Connection::open(address, self.config(), self.shared.tls.as_ref(), deadline).await?;
        {
            let mut state = self.lock();
            state.transaction_version = connection.feature("transaction.version");
            state.end_txn_version = connection.offered::<EndTxnRequest>().clamp(0, 5);
        }
        self.ask_metadata(&connection, Some(&[]), deadline).await.map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// A deadline of `default.api.timeout.ms` from now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.shared.config.api_timeout)
    }

    /// The finalized level of the feature `transaction.version`: 2 = partitions join a transaction by Produce itself.
    pub fn transaction_version(&self) -> i16 {
        self.lock().transaction_version
    }

    /// Highest version of EndTxn offered that we speak.
    pub(crate) fn end_txn_version(&self) -> i16 {
        self.lock().end_txn_version
    }

    /// The brokers as last heard of; those that did not answer lately come last.
    fn brokers(&self) -> Vec<BrokerNode> {
        let state = self.lock();
        let mut brokers: Vec<BrokerNode> = state.brokers.values().cloned().collect();
        brokers.sort_by_key(|broker| state.silent.get(&broker.id).copied());
        brokers
    }

    /// Notes whether a broker has answered.
    fn heard<T>(&self, node: i32, answer: &Result<T>) {
        let mut state = self.lock();
        match answer {
            Err(ClientError::Connect { .. } | ClientError::Deadline { .. } | ClientError::Closed { .. }) => {
                state.silent.insert(node, Instant::now());
            }
            _ => _ = state.silent.remove(&node),
        }
    }

    /// The deadline of one question to one broker, where it can be asked again.
    pub(crate) fn attempt(&self, deadline: Deadline) -> Deadline {
        if self.lock().brokers.len() > 1 { deadline.at_most(ATTEMPT) } else { deadline }
    }

    /// Opens a connection of the caller's own to a broker.
    pub(crate) async fn open(&self, node: i32, deadline: Deadline) -> Result<Connection> {
        let address = self.lock().brokers.get(&node).map(BrokerNode::address);
        let address = address.ok_or_else(|| ClientError::Connect {
            address: format!("broker {node}"),
            reason: "the cluster does not list it (now)".into(),
        })?;
        Connection::open(&address, self.config(), self.shared.tls.as_ref(), deadline).await
    }

    /// The shared connection to a broker for a purpose.
    pub(crate) async fn connection(&self, node: i32, purpose: Purpose, deadline: Deadline) -> Result<Connection> {
        let slot = self.lock().slots.entry((node, purpose)).or_default().clone();
        let what = || format!("connecting to Kafka broker {node}");
        deadline
            .run(what, async {
                let mut slot = slot.lock().await;
                if let Some(connection) = slot.as_ref().filter(|c| c.is_usable()) {
                    return Ok(connection.clone());
                }
                let connection = self.open(node, deadline).await?;
                Ok(slot.insert(connection).clone())
            })
            .await
    }

    /// A connection to whichever broker answers first: those known, then the bootstrap servers. With the broker's number, if known.
    async fn any(&self, deadline: Deadline) -> Result<(Option<i32>, Connection)> {
        let mut first = None;
        for node in self.brokers() {
            let connected = self.connection(node.id, Purpose::Control, self.attempt(deadline)).await;
            match connected {
                // It may be an old connection to a broker that hangs: only an answer shows.
                Ok(connection) => return Ok((Some(node.id), connection)),
                Err(error) if !error.is_retriable() => return Err(error),
                Err(error) => {
                    self.heard::<()>(node.id, &Err(error.clone()));
                    first.get_or_insert(error);
                }
            }
        }
        for address in &self.shared.config.bootstrap {
            match Connection::open(address, self.config(), self.shared.tls.as_ref(), deadline).await {
                Ok(connection) => return Ok((None, connection)),
                Err(error) if !error.is_retriable() => return Err(error),
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        Err(first.unwrap_or_else(|| ClientError::config("bootstrap.servers", "is empty")))
    }

    /// Calls whichever broker answers, once.
    async fn ask_any<R: Request>(&self, request: &R, min: i16, max: i16, deadline: Deadline) -> Result<(R::Response, i16)> {
        let (node, connection) = self.any(deadline).await?;
        let version = connection.version::<R>(min, max)?;
        let answer = connection.call(request, version, deadline).await;
        if let Some(node) = node {
            self.heard(node, &answer);
        }
        Ok((answer?, version))
    }

    /// Calls whichever broker answers, again and again until the deadline.
    pub(crate) async fn call_any<R: Request>(&self, request: &R, min: i16, max: i16, deadline: Deadline) -> Result<(R::Response, i16)> {
        let mut backoff = Backoff::default();
        loop {
            match self.ask_any(request, min, max, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(error) => pause(&mut backoff, deadline, error).await?,
            }
        }
    }

    /// Asks for fresh metadata; `None` for all topics. An unknown topic is in the answer with its error.
    pub async fn metadata(&self, topics: Option<&[&str]>, deadline: Deadline) -> Result<Arc<ClusterMetadata>> {
        let mut backoff = Backoff::default();
        loop {
            let attempt = self.attempt(deadline);
            let (node, connection) = match self.any(attempt).await {
                Ok(reached) => reached,
                Err(error) => {
                    pause(&mut backoff, deadline, error).await?;
                    continue;
                }
            };
            let answer = self.ask_metadata(&connection, topics, attempt).await;
            if let Some(node) = node {
                self.heard(node, &answer);
            }
            match answer {
                Ok(metadata) => return Ok(Arc::new(metadata)),
                Err(error) => pause(&mut backoff, deadline, error).await?,
            }
        }
    }

    async fn ask_metadata(&self, connection: &Connection, topics: Option<&[&str]>, deadline: Deadline) -> Result<ClusterMetadata> {
        let version = connection.version::<MetadataRequest>(4, 12)?;
        let named = |name: &&str| MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.to_string()))));
        let request =
            MetadataRequest::default().with_allow_auto_topic_creation(false).with_topics(topics.map(|t| t.iter().map(named).collect()));
        let answer = connection.call(&request, version, deadline).await?;
        let metadata = ClusterMetadata::from_response(&answer);
        let now = Instant::now();
        let mut state = self.lock();
        if !metadata.brokers.is_empty() {
            state.brokers.clone_from(&metadata.brokers);
        }
        for (name, topic) in &metadata.topics {
            match topic.error {
                ErrorCode::NONE | ErrorCode::LEADER_NOT_AVAILABLE => _ = state.topics.insert(name.clone(), (topic.clone(), now)),
                _ => _ = state.topics.remove(name),
            }
        }
        Ok(metadata)
    }

    /// The topic from the cache, or asked for. An unknown topic is an error.
    pub async fn topic(&self, topic: &str, deadline: Deadline) -> Result<TopicMetadata> {
        let cached = self
            .lock()
            .topics
            .get(topic)
            .filter(|(t, at)| !t.partitions.is_empty() && at.elapsed() < self.shared.config.metadata_max_age)
            .cloned();
        if let Some((cached, _)) = cached {
            return Ok(cached);
        }
        let mut backoff = Backoff::default();
        loop {
            let metadata = self.metadata(Some(&[topic]), deadline).await?;
            let found = metadata.topics.get(topic);
            let code = found.map_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, |t| t.error);
            match (found, code) {
                (Some(found), ErrorCode::NONE) => return Ok(found.clone()),
                (_, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {
                    return Err(ClientError::Broker { what: topic.to_string(), code, message: None });
                }
                _ => pause(&mut backoff, deadline, ClientError::Broker { what: topic.to_string(), code, message: None }).await?,
            }
        }
    }

    /// The leader as the cache has it.
    pub(crate) fn cached_leader(&self, partition: &TopicPartition) -> Option<Leader> {
        let state = self.lock();
        let (topic, _) = state.topics.get(&partition.topic)?;
        let leader = topic.partition(partition.partition)?.leader?;
        state.brokers.contains_key(&leader.node).then_some(leader)
    }

    /// The topic's id as the cache has it.
    pub(crate) fn cached_topic_id(&self, topic: &str) -> Option<uuid::Uuid> {
        self.lock().topics.get(topic).map(|(t, _)| t.id).filter(|id| !id.is_nil())
    }

    /// The broker that coordinates `key`, from the cache or asked for.
    pub(crate) async fn coordinator(&self, kind: CoordinatorKind, key: &str, deadline: Deadline) -> Result<i32> {
        if let Some(node) = self.lock().coordinators.get(&(kind, key.to_string())) {
            return Ok(*node);
        }
        let key_type = match kind {
            CoordinatorKind::Group => 0,
            CoordinatorKind::Transaction => 1,
        };
        let mut backoff = Backoff::default();
        loop {
            let text = StrBytes::from_string(key.to_string());
            // Versions from 4 on read the list, those before the single key.
            let attempt = async {
                let deadline = self.attempt(deadline);
                let (asked, connection) = self.any(deadline).await?;
                let version = connection.version::<FindCoordinatorRequest>(1, 4)?;
                let request = FindCoordinatorRequest::default().with_key_type(key_type);
                let request = if version >= 4 { request.with_coordinator_keys(vec![text]) } else { request.with_key(text) };
                let answer = connection.call(&request, version, deadline).await;
                if let Some(asked) = asked {
                    self.heard(asked, &answer);
                }
                let answer = answer?;
                Ok(match answer.coordinators.first() {
                    Some(c) => (c.error_code, c.error_message.clone(), c.node_id.0, c.host.to_string(), c.port),
                    None => (answer.error_code, answer.error_message, answer.node_id.0, answer.host.to_string(), answer.port),
                })
            };
            let error = match attempt.await {
                Ok((0, _, node, host, port)) => {
                    let mut state = self.lock();
                    let port = u16::try_from(port).unwrap_or(0);
                    state.brokers.entry(node).or_insert(BrokerNode { id: node, host, port, rack: None });
                    state.coordinators.insert((kind, key.to_string()), node);
                    return Ok(node);
                }
                Ok((code, message, ..)) => ClientError::broker(format!("finding the coordinator of {key}"), code, message.as_deref()),
                Err(error) => error,
            };
            pause(&mut backoff, deadline, error).await?;
        }
    }

    /// The coordinator has moved: ask again next time.
    pub(crate) fn forget_coordinator(&self, kind: CoordinatorKind, key: &str) {
        self.lock().coordinators.remove(&(kind, key.to_string()));
    }

    /// One attempt to call the coordinator of `key`. A failed connection makes it be looked up again.
    pub(crate) async fn call_coordinator<R: Request>(
        &self,
        kind: CoordinatorKind,
        key: &str,
        request: &R,
        versions: (i16, i16),
        deadline: Deadline,
    ) -> Result<(R::Response, i16)> {
        let node = self.coordinator(kind, key, deadline).await?;
        let purpose = match kind {
            CoordinatorKind::Group => Purpose::Control,
            CoordinatorKind::Transaction => Purpose::Transactions,
        };
        let attempt = async {
            let deadline = self.attempt(deadline);
            let connection = self.connection(node, purpose, deadline).await?;
            let version = connection.version::<R>(versions.0, versions.1)?;
            Ok((connection.call(request, version, deadline).await?, version))
        };
        let answer = attempt.await;
        self.heard(node, &answer);
        if answer.is_err() {
            self.forget_coordinator(kind, key);
        }
        answer
    }

    /// First pause after an answer that says "not now".
    pub(crate) fn backoff() -> Backoff {
        Backoff::new(Duration::from_millis(5), Duration::from_millis(500))
    }
}
