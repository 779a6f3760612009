//! The task behind a [`Producer`](super::Producer): sends sealed batches to the partitions' leaders, several requests at a
//! time, and again where that helps.
//!
//! A request holds at most one batch of a partition, and a connection at most `max_in_flight` requests, so a broker never has
//! more batches of a partition in flight than it remembers for finding repeats. A batch that must be sent again waits until
//! nothing of its partition is in flight: the order stays as it was.
use super::cluster::{Cluster, CoordinatorKind};
use super::connection::Connection;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::{ClusterMetadata, TopicPartition};
use super::produce_frame::Produce;
use super::producer::{Acks, Identity, Shared, State};
use super::stale::{Ask, StaleTopics};
use super::transactions::ProducerIdentity;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, future};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{AddPartitionsToTxnRequest, ProduceRequest, ProduceResponse, ProducerId, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait when nothing is known to happen earlier.
const IDLE: Duration = Duration::from_secs(5);
/// Limit of one question about metadata, and of one attempt to join a transaction.
const ASK: Duration = Duration::from_secs(10);

struct Node {
    connection: Option<Connection>,
    connecting: bool,
    in_flight: usize,
    not_before: Option<Instant>,
    backoff: Backoff,
}

type Sent = Vec<(TopicPartition, u64)>;

enum Event {
    Connected(i32, Result<Connection>),
    Answered(i32, Sent, Result<ProduceResponse>),
    Metadata(Result<Arc<ClusterMetadata>>),
    Added(Vec<TopicPartition>, Result<()>),
}

pub(super) struct Sender {
    shared: Arc<Shared>,
    nodes: HashMap<i32, Node>,
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Topics whose leaders must be asked for.
    stale: StaleTopics,
    adding: bool,
}

impl Sender {
    pub fn new(shared: Arc<Shared>) -> Self {
        Sender { shared, nodes: HashMap::new(), events: FuturesUnordered::new(), stale: StaleTopics::default(), adding: false }
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            let wake = self.dispatch();
            tokio::select! {
                Some(event) = self.events.next(), if !self.events.is_empty() => self.take(event),
                () = shared.work.notified() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            while let Some(Some(event)) = self.events.next().now_or_never() {
                self.take(event);
            }
        }
    }

    /// Sends what can be sent and starts what must happen first. Returns when to look again at the latest.
    fn dispatch(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + IDLE;
        let shared = self.shared.clone();
        let mut to_add = Vec::new();
        let mut ready: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        let (identity, joins) = {
            let mut state = shared.lock();
            if state.failed.is_some() {
                return wake;
            }
            self.seal_lingering(&mut state, now, &mut wake);
            let joins = state.identity.transactional_id().is_some() && shared.cluster.transaction_version() < 2;
            let mut expired = None;
            for (partition, p) in &state.partitions {
                let Some(first) = p.queue.iter().find(|b| !b.in_flight) else { continue };
                let expires = first.opened + shared.config.delivery_timeout;
                if expires <= now {
                    let why = p.last.as_ref().map_or_else(|| "no leader could be reached".to_string(), ToString::to_string);
                    expired = Some(ClientError::Deadline {
                        what: format!("writing to {partition} (last: {why})"),
                        after: shared.config.delivery_timeout,
                    });
                    break;
                }
                wake = wake.min(expires);
                if let Some(at) = p.not_before.filter(|at| *at > now) {
                    wake = wake.min(at);
                    continue;
                }
                if p.retrying && p.in_flight > 0 {
                    continue;
                }
                if joins && !p.added {
                    to_add.push(partition.clone());
                    continue;
                }
                match shared.cluster.cached_leader(partition) {
                    Some(leader) => ready.entry(leader.node).or_default().push(partition.clone()),
                    None => self.stale.insert(partition.topic.clone()),
                }
            }
            if let Some(error) = expired {
                state.fail(error);
                shared.changed.notify_waiters();
                return wake;
            }
            (state.identity.clone(), joins)
        };
        if joins && !to_add.is_empty() && !self.adding {
            self.add_to_transaction(&identity, to_add);
        }
        for (node, partitions) in ready {
            if let Some(at) = self.send_to(node, &partitions, now) {
                wake = wake.min(at);
            }
        }
        match self.stale.ask(&shared.cluster, now) {
            Ask::Nothing => {}
            Ask::At(at) => wake = wake.min(at),
            Ask::Now(answer) => self.events.push(answer.map(Event::Metadata).boxed()),
        }
        wake
    }

    fn seal_lingering(&self, state: &mut State, now: Instant, wake: &mut Instant) {
        let linger = self.shared.config.linger;
        let Some(first) = state.partitions.values().filter_map(|p| p.lingers_until(linger)).min() else { return };
        if first > now {
            *wake = (*wake).min(first);
            return;
        }
        // When one has waited long enough all go, so that they share requests.
        let open: Vec<_> = state.partitions.iter().filter(|(_, p)| p.lingers_until(linger).is_some()).map(|(tp, _)| tp.clone()).collect();
        for partition in open {
            if let Err(error) = state.seal(&partition, self.shared.config.compression) {
                state.fail(error);
                self.shared.changed.notify_waiters();
            }
        }
    }

    /// Sends to one leader while it has room. Returns when to try again, if that is known.
    fn send_to(&mut self, id: i32, partitions: &[TopicPartition], now: Instant) -> Option<Instant> {
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            connection: None,
            connecting: false,
            in_flight: 0,
            not_before: None,
            backoff: Backoff::default(),
        });
        if node.connection.as_ref().is_some_and(|c| !c.is_usable()) && node.in_flight == 0 {
            node.connection = None;
        }
        let Some(connection) = node.connection.clone().filter(Connection::is_usable) else {
            if node.connecting || node.in_flight > 0 {
                return None;
            }
            if let Some(at) = node.not_before.filter(|at| *at > now) {
                return Some(at);
            }
            node.connecting = true;
            let cluster = self.shared.cluster.clone();
            self.events.push(async move { Event::Connected(id, cluster.open(id, cluster.deadline()).await) }.boxed());
            return None;
        };
        loop {
            let node = self.nodes.get_mut(&id)?;
            if node.in_flight >= self.shared.config.max_in_flight {
                return None;
            }
            let (sent, batches) = collect(&mut self.shared.lock(), partitions, self.shared.config.max_request_size);
            if batches.is_empty() {
                return None;
            }
            let answer = self.send_request(&connection, &batches);
            let node = self.nodes.get_mut(&id)?;
            node.in_flight += 1;
            let event = match answer {
                Ok(Some(answer)) => {
                    let connection = connection.clone();
                    async move {
                        let (version, answer) = answer;
                        let frame = answer.frame().await;
                        Event::Answered(id, sent, frame.and_then(|frame| connection.decode::<ProduceRequest>(frame, version)))
                    }
                    .boxed()
                }
                // acks=0: nobody will ever know more.
                Ok(None) => future::ready(Event::Answered(id, sent, Ok(ProduceResponse::default()))).boxed(),
                Err(error) => future::ready(Event::Answered(id, sent, Err(error))).boxed(),
            };
            self.events.push(event);
        }
    }

    fn send_request(
        &self,
        connection: &Connection,
        batches: &[(TopicPartition, Bytes)],
    ) -> Result<Option<(i16, super::connection::Answer)>> {
        let identity = self.shared.lock().identity.clone();
        let config = &self.shared.config;
        let acks = match config.acks {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        };
        let transactional_id = identity.transactional_id();
        // From version 12 on a produce request itself makes the partition part of the transaction (KIP-890): only with
        // transaction.version 2.
        let newest = if transactional_id.is_some() && self.shared.cluster.transaction_version() < 2 { 11 } else { 12 };
        let version = connection.version::<ProduceRequest>(3, newest)?;
        let timeout_ms = i32::try_from(self.shared.cluster.config().request_timeout.as_millis()).unwrap_or(i32::MAX);
        let produce = Produce { transactional_id, acks, timeout_ms, batches };
        if config.acks == Acks::None {
            return connection.send_unanswered(&produce.request(), version).map(|()| None);
        }
        produce.send(connection, version).map(|answer| Some((version, answer)))
    }

    fn add_to_transaction(&mut self, identity: &Identity, partitions: Vec<TopicPartition>) {
        let Identity::Producer(identity) = identity.clone() else { return };
        self.adding = true;
        let cluster = self.shared.cluster.clone();
        let deadline = Deadline::after(self.shared.config.delivery_timeout);
        self.events.push(
            async move {
                let added = add_partitions(&cluster, &identity, &partitions, deadline).await;
                Event::Added(partitions, added)
            }
            .boxed(),
        );
    }

    fn take(&mut self, event: Event) {
        let now = Instant::now();
        let shared = self.shared.clone();
        let mut state = shared.lock();
        match event {
            Event::Connected(id, connected) => {
                let Some(node) = self.nodes.get_mut(&id) else { return };
                node.connecting = false;
                match connected {
                    Ok(connection) => {
                        node.connection = Some(connection);
                        (node.not_before, node.backoff) = (None, Backoff::default());
                    }
                    Err(error) if error.is_retriable() => {
                        node.not_before = Some(now + node.backoff.pause());
                        // The broker may be gone for good: its partitions may have other leaders by now.
                        for (partition, p) in &mut state.partitions {
                            if !p.queue.is_empty() && shared.cluster.cached_leader(partition).is_some_and(|l| l.node == id) {
                                self.stale.insert(partition.topic.clone());
                                p.last = Some(error.clone());
                            }
                        }
                    }
                    Err(error) => state.fail(error),
                }
            }
            Event::Metadata(Ok(metadata)) => {
                self.stale.answered();
                for (topic, code) in metadata.topics.values().map(|topic| (topic.name.clone(), topic.error)) {
                    match code {
                        ErrorCode::NONE => {}
                        ErrorCode::TOPIC_AUTHORIZATION_FAILED | ErrorCode::INVALID_TOPIC_EXCEPTION => {
                            state.fail(ClientError::Broker { what: topic.to_string(), code, message: None })
                        }
                        code => {
                            let error = ClientError::Broker { what: topic.to_string(), code, message: None };
                            state.partitions.iter_mut().filter(|(tp, _)| tp.topic == topic).for_each(|(_, p)| p.last = Some(error.clone()));
                        }
                    }
                }
            }
            Event::Metadata(Err(error)) => {
                self.stale.answered();
                if !error.is_retriable() {
                    state.fail(error);
                }
            }
            Event::Added(partitions, added) => {
                self.adding = false;
                match added {
                    Ok(()) => partitions.iter().for_each(|tp| {
                        if let Some(p) = state.partitions.get_mut(tp) {
                            p.added = true;
                        }
                    }),
                    Err(error) => state.fail(error),
                }
            }
            Event::Answered(id, sent, answer) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.in_flight -= 1;
                }
                for (partition, batch) in sent {
                    if let Some(topic) = answered(&mut state, &partition, batch, &answer, shared.config.acks, now) {
                        self.stale.insert(topic);
                    }
                }
                self.stale.calm();
            }
        }
        drop(state);
        shared.changed.notify_waiters();
    }
}

/// Takes one batch of each partition, up to about `max_bytes`, and marks them as in flight.
fn collect(state: &mut State, partitions: &[TopicPartition], max_bytes: usize) -> (Sent, Vec<(TopicPartition, Bytes)>) {
    let (mut sent, mut batches, mut bytes) = (Vec::new(), Vec::new(), 0);
    for partition in partitions {
        let Some(p) = state.partitions.get_mut(partition) else { continue };
        if p.retrying && p.in_flight > 0 {
            continue;
        }
        let Some(batch) = p.queue.iter_mut().find(|b| !b.in_flight) else { continue };
        if bytes > 0 && bytes + batch.bytes.len() > max_bytes {
            continue;
        }
        bytes += batch.bytes.len();
        batch.in_flight = true;
        p.in_flight += 1;
        p.retrying = false;
        sent.push((partition.clone(), batch.id));
        batches.push((partition.clone(), batch.bytes.clone()));
    }
    (sent, batches)
}

/// What a refused batch needs.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Acknowledged,
    /// Send it again; with `true` after asking who leads the partition.
    Retry(bool),
    Fail,
}

/// What an answer means. `first`: no older batch of the partition is unacknowledged.
fn judge(code: ErrorCode, idempotent: bool, first: bool) -> Verdict {
    match code {
        ErrorCode::NONE => Verdict::Acknowledged,
        // The broker has it already, further back than the offsets that it remembers.
        ErrorCode::DUPLICATE_SEQUENCE_NUMBER if idempotent => Verdict::Acknowledged,
        // The batch before it was refused, and will be sent again first.
        ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER if !first => Verdict::Retry(false),
        code if code.is_leader_moved() => Verdict::Retry(true),
        code if code.is_retriable() => Verdict::Retry(false),
        _ => Verdict::Fail,
    }
}

/// Takes the answer for one batch; returns the topic when its leaders must be asked for.
fn answered(
    state: &mut State,
    partition: &TopicPartition,
    id: u64,
    answer: &Result<ProduceResponse>,
    acks: Acks,
    now: Instant,
) -> Option<Arc<str>> {
    let identity = state.identity.clone();
    let idempotent = matches!(identity, Identity::Producer(_));
    let p = state.partitions.get_mut(partition)?;
    p.in_flight = p.in_flight.saturating_sub(1);
    let at = p.queue.iter().position(|b| b.id == id)?;
    p.queue[at].in_flight = false;
    let sequence = p.queue[at].sequence;
    let (verdict, error) = match answer {
        Ok(_) if acks == Acks::None => (Verdict::Acknowledged, None),
        Ok(answer) => {
            let found = answer
                .responses
                .iter()
                .filter(|t| t.name.0.as_str() == &*partition.topic)
                .flat_map(|t| &t.partition_responses)
                .find(|r| r.index == partition.partition);
            match found {
                None => (
                    Verdict::Fail,
                    Some(ClientError::Protocol {
                        address: "the leader".into(),
                        reason: format!("the answer to Produce leaves out {partition}"),
                    }),
                ),
                Some(found) => {
                    let code = ErrorCode(found.error_code);
                    let verdict = judge(code, idempotent, at == 0);
                    (verdict, (!code.is_none()).then(|| refusal(partition, found, &identity, sequence, p.queue[at].bytes.len())))
                }
            }
        }
        Err(error) if error.is_retriable() => (Verdict::Retry(true), Some(error.clone())),
        Err(error) => (Verdict::Fail, Some(error.clone())),
    };
    match (verdict, error) {
        (Verdict::Acknowledged, _) => {
            (p.backoff, p.not_before, p.last) = (Cluster::backoff(), None, None);
            state.done(partition, id);
            None
        }
        (Verdict::Retry(moved), error) => {
            tracing::debug!(%partition, ?error, "a batch is sent again");
            p.retrying = true;
            p.not_before = Some(now + p.backoff.pause());
            p.last = error;
            moved.then(|| partition.topic.clone())
        }
        (Verdict::Fail, error) => {
            state.fail(error.unwrap_or_else(|| ClientError::Usage(format!("{partition}: a batch was refused"))));
            None
        }
    }
}

/// A refusal as an error.
fn refusal(partition: &TopicPartition, found: &PartitionProduceResponse, identity: &Identity, sequence: i32, size: usize) -> ClientError {
    let code = ErrorCode(found.error_code);
    match (code, identity) {
        (ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE, _) => {
            ClientError::TooLarge { subject: partition.to_string(), size, limit: "the topic's max.message.bytes".into() }
        }
        (
            ErrorCode::INVALID_PRODUCER_EPOCH
            | ErrorCode::PRODUCER_FENCED
            | ErrorCode::INVALID_PRODUCER_ID_MAPPING
            | ErrorCode::INVALID_TXN_STATE,
            Identity::Producer(p),
        ) => fenced(partition.to_string(), p, code),
        (ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER | ErrorCode::UNKNOWN_PRODUCER_ID, _) => {
            ClientError::OutOfOrder { subject: partition.to_string(), sequence, code }
        }
        // The subject alone: it stands in the command that grants what is missing.
        (ErrorCode::TOPIC_AUTHORIZATION_FAILED, _) => ClientError::broker(partition.topic.to_string(), code.0, None),
        _ => ClientError::broker(format!("writing to {partition}"), code.0, found.error_message.as_deref()),
    }
}

fn fenced(subject: String, identity: &ProducerIdentity, code: ErrorCode) -> ClientError {
    ClientError::Fenced { subject, producer_id: identity.producer_id, epoch: identity.epoch, code }
}

/// Makes partitions part of the open transaction (transaction.version below 2).
async fn add_partitions(cluster: &Cluster, identity: &ProducerIdentity, partitions: &[TopicPartition], deadline: Deadline) -> Result<()> {
    let id = identity.transactional_id.clone().unwrap_or_default();
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(&partition.topic).or_default().push(partition.partition);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        AddPartitionsToTxnTopic::default().with_name(TopicName(StrBytes::from_string(topic.to_string()))).with_partitions(partitions)
    });
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(TransactionalId(StrBytes::from_string(id.clone())))
        .with_v3_and_below_producer_id(ProducerId(identity.producer_id))
        .with_v3_and_below_producer_epoch(identity.epoch)
        .with_v3_and_below_topics(topics.collect());
    let mut backoff = Cluster::backoff();
    loop {
        let error = match cluster.call_coordinator(CoordinatorKind::Transaction, &id, &request, (0, 3), deadline.at_most(ASK)).await {
            Err(error) => error,
            Ok((answer, _)) => {
                let codes = answer
                    .results_by_topic_v3_and_below
                    .iter()
                    .flat_map(|t| t.results_by_partition.iter().map(|p| ErrorCode(p.partition_error_code)));
                // OPERATION_NOT_ATTEMPTED (55) stands beside the code that is the reason.
                let Some(code) = codes.filter(|c| !c.is_none()).min_by_key(|c| c.0 == 55) else { return Ok(()) };
                if code.is_coordinator_moved() {
                    cluster.forget_coordinator(CoordinatorKind::Transaction, &id);
                }
                match code {
                    ErrorCode::INVALID_PRODUCER_EPOCH
                    | ErrorCode::PRODUCER_FENCED
                    | ErrorCode::INVALID_PRODUCER_ID_MAPPING
                    | ErrorCode::INVALID_TXN_STATE => {
                        return Err(fenced(id, identity, code));
                    }
                    code => ClientError::broker(format!("adding partitions to the transaction of {id}"), code.0, None),
                }
            }
        };
        if !error.is_retriable() || !deadline.sleep(backoff.pause()).await {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged_by_what_they_say_of_the_batch() {
        assert_eq!(judge(ErrorCode::NONE, true, true), Verdict::Acknowledged);
        assert_eq!(judge(ErrorCode::DUPLICATE_SEQUENCE_NUMBER, true, true), Verdict::Acknowledged);
        assert_eq!(judge(ErrorCode::DUPLICATE_SEQUENCE_NUMBER, false, true), Verdict::Fail);
        assert_eq!(judge(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, true, false), Verdict::Retry(false));
        assert_eq!(judge(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, true, true), Verdict::Fail);
        assert_eq!(judge(ErrorCode::NOT_LEADER_OR_FOLLOWER, true, true), Verdict::Retry(true));
        assert_eq!(judge(ErrorCode::CONCURRENT_TRANSACTIONS, true, true), Verdict::Retry(false));
        assert_eq!(judge(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND, true, true), Verdict::Retry(false));
        for code in
            [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_TXN_STATE, ErrorCode::TRANSACTION_ABORTABLE, ErrorCode::MESSAGE_TOO_LARGE]
        {
            assert_eq!(judge(code, true, false), Verdict::Fail, "{code}");
        }
    }
}
