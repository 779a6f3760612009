//! The task behind a [`Fetcher`](super::Fetcher): one request at a time to each leader. As soon as an answer is there, the
//! next request is sent from the positions that the batches' headers tell; decoding comes later, on the reader's side.
use super::cluster::Cluster;
use super::connection::Connection;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::fetch::{FetchFailure, Message, Raw, Reading, Shared};
use super::metadata::{ClusterMetadata, TopicMetadata, TopicPartition};
use super::offsets::{IsolationLevel, OffsetSpec, Offsets};
use super::record_batch::{DecodeOptions, Decoder, scan};
use super::stale::{Ask, StaleTopics};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

const IDLE: Duration = Duration::from_secs(5);
const ASK: Duration = Duration::from_secs(10);
/// A partition must be unknown this long to count as gone: a broker that has just started may not know it yet.
const UNKNOWN_AFTER: Duration = Duration::from_secs(5);
/// While its answers are small, a leader is asked this often at most: many requests for a few records each cost the broker more
/// than the records, and the engine's ticks are coarser.
const PACE: Duration = Duration::from_millis(5);
/// Bytes from which an answer is not small: more is waiting, or soon will be.
const SMALL: usize = 64 << 10;
/// First version with topic ids instead of names.
const TOPIC_IDS: i16 = 13;

struct Node {
    connection: Option<Connection>,
    connecting: bool,
    in_flight: bool,
    not_before: Option<Instant>,
    backoff: Backoff,
    asked_at: Instant,
    /// When it may be asked again, after a small answer.
    rests_until: Option<Instant>,
    /// Where the next request's list of partitions begins, so that none is always last.
    turn: usize,
}

/// A partition that was asked for.
struct Asked {
    partition: TopicPartition,
    generation: u64,
    from: i64,
}

enum Event {
    Connected(i32, Result<Connection>),
    Answered(i32, Vec<Asked>, HashMap<Uuid, Arc<str>>, Result<FetchResponse>),
    /// The metadata was asked for, with the ids of topics as they are now.
    Metadata(Result<Arc<ClusterMetadata>>),
    /// First offset and end of a partition whose position is outside.
    Ends(Asked, Result<(i64, i64)>),
}

pub(super) struct FetchTask {
    shared: Arc<Shared>,
    messages: UnboundedSender<Message>,
    nodes: HashMap<i32, Node>,
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    stale: StaleTopics,
}

impl FetchTask {
    pub fn new(shared: Arc<Shared>, messages: UnboundedSender<Message>) -> Self {
        FetchTask { shared, messages, nodes: HashMap::new(), events: FuturesUnordered::new(), stale: StaleTopics::default() }
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        while !self.messages.is_closed() {
            let wake = self.dispatch();
            tokio::select! {
                Some(event) = self.events.next(), if !self.events.is_empty() => self.take(event),
                () = shared.work.notified() => {}
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    fn send(&self, message: Message) {
        // Without a receiver the task is about to end.
        _ = self.messages.send(message);
    }

    /// Asks for what can be asked for; returns when to look again at the latest.
    fn dispatch(&mut self) -> Instant {
        let now = Instant::now();
        let mut wake = now + IDLE;
        let shared = self.shared.clone();
        let mut by_node: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        {
            let mut state = shared.lock();
            if state.buffered >= shared.config.buffer_bytes {
                return wake;
            }
            for (partition, reading) in &mut state.partitions {
                if reading.paused || reading.in_flight {
                    continue;
                }
                if let Some(at) = reading.not_before.filter(|at| *at > now) {
                    wake = wake.min(at);
                    continue;
                }
                if reading.topic_id.is_none() {
                    reading.topic_id = shared.cluster.cached_topic_id(&partition.topic);
                }
                match shared.cluster.cached_leader(partition) {
                    Some(leader) => by_node.entry(leader.node).or_default().push(partition.clone()),
                    None => self.stale.insert(partition.topic.clone()),
                }
            }
        }
        for (node, mut partitions) in by_node {
            partitions.sort_unstable();
            if let Some(at) = self.fetch_from(node, partitions, now) {
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

    fn fetch_from(&mut self, id: i32, mut partitions: Vec<TopicPartition>, now: Instant) -> Option<Instant> {
        let node = self.nodes.entry(id).or_insert_with(|| Node {
            connection: None,
            connecting: false,
            in_flight: false,
            not_before: None,
            backoff: Backoff::default(),
            asked_at: now,
            rests_until: None,
            turn: 0,
        });
        if node.in_flight || node.connecting {
            return None;
        }
        let Some(connection) = node.connection.clone().filter(Connection::is_usable) else {
            if let Some(at) = node.not_before.filter(|at| *at > now) {
                return Some(at);
            }
            (node.connection, node.connecting) = (None, true);
            let cluster = self.shared.cluster.clone();
            self.events.push(async move { Event::Connected(id, cluster.open(id, cluster.deadline()).await) }.boxed());
            return None;
        };
        if let Some(at) = node.rests_until.filter(|at| *at > now) {
            return Some(at);
        }
        (node.in_flight, node.asked_at) = (true, now);
        node.turn = node.turn.wrapping_add(1);
        let turn = node.turn % partitions.len();
        partitions.rotate_left(turn);
        let (asked, names, request, ids) = self.request(&partitions);
        let sent = connection.version::<FetchRequest>(4, if ids { TOPIC_IDS } else { TOPIC_IDS - 1 }).and_then(|version| {
            let mut request = request;
            if version < TOPIC_IDS {
                for topic in &mut request.topics {
                    topic.topic_id = Uuid::nil();
                }
            }
            Ok((version, connection.send(&request, version)?))
        });
        self.events.push(
            async move {
                let answer = match sent {
                    Ok((version, answer)) => answer.frame().await.and_then(|frame| connection.decode::<FetchRequest>(frame, version)),
                    Err(error) => Err(error),
                };
                Event::Answered(id, asked, names, answer)
            }
            .boxed(),
        );
        None
    }

    /// A request for these partitions; last, whether every topic's id is known.
    fn request(&self, partitions: &[TopicPartition]) -> (Vec<Asked>, HashMap<Uuid, Arc<str>>, FetchRequest, bool) {
        let config = &self.shared.config;
        let mut state = self.shared.lock();
        let (mut asked, mut names, mut ids) = (Vec::new(), HashMap::new(), true);
        // Neighbours of one topic go together; the order is that of the partitions.
        let mut topics: Vec<(Arc<str>, Option<Uuid>, Vec<FetchPartition>)> = Vec::new();
        for partition in partitions {
            let Some(reading) = state.partitions.get_mut(partition) else { continue };
            reading.in_flight = true;
            asked.push(Asked { partition: partition.clone(), generation: reading.generation, from: reading.position });
            match reading.topic_id {
                Some(id) => _ = names.insert(id, partition.topic.clone()),
                None => ids = false,
            }
            let wanted = FetchPartition::default()
                .with_partition(partition.partition)
                .with_current_leader_epoch(-1)
                .with_fetch_offset(reading.position)
                .with_last_fetched_epoch(reading.epoch)
                .with_log_start_offset(-1)
                .with_partition_max_bytes(config.partition_max_bytes);
            match topics.last_mut() {
                Some((topic, id, list)) if *topic == partition.topic && *id == reading.topic_id => list.push(wanted),
                _ => topics.push((partition.topic.clone(), reading.topic_id, vec![wanted])),
            }
        }
        let topics = topics.into_iter().map(|(topic, id, partitions)| {
            let name = TopicName(StrBytes::from_string(topic.to_string()));
            let topic = FetchTopic::default().with_topic(name).with_partitions(partitions);
            if ids { topic.with_topic_id(id.unwrap_or_default()) } else { topic }
        });
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(config.max_wait.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(config.min_bytes)
            .with_max_bytes(config.max_bytes)
            .with_isolation_level(config.isolation.code())
            .with_session_epoch(-1)
            .with_topics(topics.collect());
        (asked, names, request, ids)
    }

    fn take(&mut self, event: Event) {
        let now = Instant::now();
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
                        tracing::debug!(broker = id, %error, "a leader cannot be reached; its partitions may have moved");
                        self.all_stale(id);
                    }
                    Err(error) => self.send(Message::Broken(error)),
                }
            }
            Event::Answered(id, asked, names, answer) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.in_flight = false;
                    node.rests_until = answer.as_ref().is_ok_and(|a| bytes_of(a) < SMALL).then(|| node.asked_at + PACE);
                    if answer.is_err() {
                        node.connection = None;
                    }
                }
                self.answered(asked, &names, answer, now);
            }
            Event::Metadata(Ok(metadata)) => {
                self.stale.answered();
                self.metadata(&metadata.topics, now);
            }
            Event::Metadata(Err(error)) => {
                self.stale.answered();
                if !error.is_retriable() {
                    self.send(Message::Broken(error));
                }
            }
            Event::Ends(asked, ends) => self.ends(asked, ends, now),
        }
    }

    /// The leaders of everything that a broker leads must be asked for.
    fn all_stale(&mut self, id: i32) {
        let state = self.shared.lock();
        let led = state.partitions.keys().filter(|p| self.shared.cluster.cached_leader(p).is_some_and(|l| l.node == id));
        self.stale.extend(led.map(|p| p.topic.clone()));
    }

    fn metadata(&mut self, topics: &HashMap<Arc<str>, TopicMetadata>, now: Instant) {
        let mut failed = Vec::new();
        let mut state = self.shared.lock();
        for (partition, reading) in &mut state.partitions {
            let Some(TopicMetadata { error: code, id, .. }) = topics.get(&partition.topic) else { continue };
            let failure = match (*code, reading.topic_id) {
                (ErrorCode::NONE, Some(read)) if !id.is_nil() && read != *id => Some(FetchFailure::TopicRecreated),
                (ErrorCode::NONE, _) => None,
                (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, _) => {
                    let since = *reading.unknown_since.get_or_insert(now);
                    (now.duration_since(since) > UNKNOWN_AFTER).then_some(FetchFailure::UnknownTopicOrPartition)
                }
                (code @ (ErrorCode::TOPIC_AUTHORIZATION_FAILED | ErrorCode::INVALID_TOPIC_EXCEPTION), _) => {
                    Some(FetchFailure::Refused(code))
                }
                _ => None,
            };
            if let Some(failure) = failure {
                failed.push(Message::Failed {
                    partition: partition.clone(),
                    generation: reading.generation,
                    offset: reading.position,
                    failure,
                });
                reading.paused = true;
            }
        }
        drop(state);
        failed.into_iter().for_each(|message| self.send(message));
    }

    fn answered(&mut self, asked: Vec<Asked>, names: &HashMap<Uuid, Arc<str>>, answer: Result<FetchResponse>, now: Instant) {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let mut found: HashMap<TopicPartition, PartitionData> = HashMap::new();
        let mut failed = None;
        match answer {
            Ok(answer) if answer.error_code == 0 => {
                for topic in answer.responses {
                    let name = names.get(&topic.topic_id).cloned().unwrap_or_else(|| topic.topic.0.as_str().into());
                    for p in topic.partitions {
                        found.insert(TopicPartition { topic: name.clone(), partition: p.partition_index }, p);
                    }
                }
            }
            Ok(answer) => failed = Some(ClientError::broker("Fetch", answer.error_code, None)),
            Err(error) => failed = Some(error),
        }
        if let Some(error) = failed.as_ref().filter(|e| !e.is_retriable() && e.code().is_none()) {
            self.send(Message::Broken(error.clone()));
        }
        for asked in asked {
            let Some(reading) = state.partitions.get_mut(&asked.partition).filter(|r| r.generation == asked.generation) else { continue };
            reading.in_flight = false;
            let Some(data) = found.remove(&asked.partition) else {
                // The whole request failed, or the broker knows nothing of the partition (any more).
                reading.not_before = Some(now + reading.backoff.pause());
                self.stale.insert(asked.partition.topic.clone());
                continue;
            };
            let code = ErrorCode(data.error_code);
            match code {
                ErrorCode::NONE if data.diverging_epoch.epoch >= 0 => {
                    let failure =
                        FetchFailure::Truncated { epoch: data.diverging_epoch.epoch, end_offset: data.diverging_epoch.end_offset };
                    reading.paused = true;
                    self.send(Message::Failed { partition: asked.partition, generation: asked.generation, offset: asked.from, failure });
                }
                ErrorCode::NONE => {
                    let size = deliver(&self.messages, reading, asked, data);
                    state.buffered += size;
                }
                ErrorCode::OFFSET_OUT_OF_RANGE => {
                    reading.in_flight = true;
                    let cluster = shared.cluster.clone();
                    self.events.push(
                        async move {
                            let ends = range(&cluster, &asked.partition).await;
                            Event::Ends(asked, ends)
                        }
                        .boxed(),
                    );
                }
                code if code.is_leader_moved() || matches!(code, ErrorCode::UNKNOWN_TOPIC_ID | ErrorCode::INCONSISTENT_TOPIC_ID) => {
                    reading.not_before = Some(now + reading.backoff.pause());
                    if code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION || code == ErrorCode::UNKNOWN_TOPIC_ID {
                        let since = *reading.unknown_since.get_or_insert(now);
                        if now.duration_since(since) > UNKNOWN_AFTER {
                            reading.paused = true;
                            let failure = FetchFailure::UnknownTopicOrPartition;
                            self.send(Message::Failed {
                                partition: asked.partition.clone(),
                                generation: asked.generation,
                                offset: asked.from,
                                failure,
                            });
                        }
                    }
                    self.stale.insert(asked.partition.topic);
                }
                code if code.is_retriable() => reading.not_before = Some(now + reading.backoff.pause()),
                code => {
                    reading.paused = true;
                    self.send(Message::Failed {
                        partition: asked.partition,
                        generation: asked.generation,
                        offset: asked.from,
                        failure: FetchFailure::Refused(code),
                    });
                }
            }
        }
        self.stale.calm();
    }

    /// A position was out of range; now it is known what the broker has.
    fn ends(&mut self, asked: Asked, ends: Result<(i64, i64)>, now: Instant) {
        let mut state = self.shared.lock();
        let Some(reading) = state.partitions.get_mut(&asked.partition).filter(|r| r.generation == asked.generation) else { return };
        reading.in_flight = false;
        match ends {
            Ok((log_start, log_end)) if asked.from < log_start || asked.from > log_end => {
                reading.paused = true;
                let failure = FetchFailure::OffsetOutOfRange { log_start, log_end };
                self.send(Message::Failed { partition: asked.partition, generation: asked.generation, offset: asked.from, failure });
            }
            // A leader that had not caught up yet, or does not answer.
            _ => {
                reading.not_before = Some(now + reading.backoff.pause());
                self.stale.insert(asked.partition.topic);
            }
        }
    }
}

fn bytes_of(answer: &FetchResponse) -> usize {
    answer.responses.iter().flat_map(|topic| &topic.partitions).filter_map(|p| p.records.as_ref()).map(bytes::Bytes::len).sum()
}

/// Hands on what was fetched and moves the position; returns the bytes.
fn deliver(messages: &UnboundedSender<Message>, reading: &mut Reading, asked: Asked, data: PartitionData) -> usize {
    let records = data.records.unwrap_or_default();
    let seen = scan(&records, asked.from);
    let ends = (data.high_watermark, data.last_stable_offset);
    let damaged = seen.batches == 0
        && !records.is_empty()
        && Decoder::new(records.clone(), asked.from, [], DecodeOptions::default()).next_chunk().is_err();
    (reading.unknown_since, reading.not_before, reading.backoff) = (None, None, Backoff::default());
    reading.heard_at = Instant::now();
    if seen.batches == 0 && !damaged && ends == reading.ends {
        return 0;
    }
    reading.ends = ends;
    reading.position = seen.next_offset;
    if seen.leader_epoch >= 0 {
        reading.epoch = seen.leader_epoch;
    }
    // Damage is told once; the reader then decides.
    reading.paused |= damaged;
    // A batch that is cut off will be fetched again, whole.
    let records = if seen.batches == 0 && !damaged { bytes::Bytes::new() } else { records };
    let size = records.len();
    let aborted = data.aborted_transactions.unwrap_or_default().into_iter().map(|a| (a.producer_id.0, a.first_offset)).collect();
    let raw = Raw {
        partition: asked.partition,
        generation: asked.generation,
        from: asked.from,
        records,
        aborted,
        high_watermark: data.high_watermark,
        last_stable_offset: data.last_stable_offset,
        log_start_offset: data.log_start_offset,
    };
    _ = messages.send(Message::Raw(raw));
    size
}

/// First offset and end that the broker has of a partition.
async fn range(cluster: &Cluster, partition: &TopicPartition) -> Result<(i64, i64)> {
    let offsets = Offsets::new(cluster.clone());
    let deadline = Deadline::after(ASK);
    let mut found = [0, 0];
    for (found, spec) in found.iter_mut().zip([OffsetSpec::Earliest, OffsetSpec::Latest]) {
        let listed = offsets.list(&[(partition.clone(), spec)], IsolationLevel::ReadUncommitted, deadline).await?;
        let listed = listed.get(partition).copied().unwrap_or(Err(ErrorCode::UNKNOWN_SERVER_ERROR));
        let listed = listed.map_err(|code| ClientError::Broker { what: format!("listing offsets of {partition}"), code, message: None })?;
        *found = listed.offset.unwrap_or(0);
    }
    Ok((found[0], found[1]))
}
