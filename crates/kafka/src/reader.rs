//! Reads the splits of one subtask: a task fetches and decodes ahead, within a bound, and `next` hands out what is ready.

use crate::client::{FetchEvent, FetchFailure, Fetched, Fetcher, StartAt, TopicPartition};
use crate::config::{BoundedMode, SourceSettings};
use crate::connect::{self, acl};
use crate::decode::RecordDecoder;
use crate::discovery::Discovery;
use crate::merge::{Merged, Message};
use crate::metrics::SourceMetrics;
use crate::split::{Resumed, Split, Topics, check_topic, reached, resume, undiscovered};
use crate::{ConnectorError, ConnectorResult};
use arrow::array::RecordBatch;
use semel_checkpoint::SplitState;
use semel_engine::source::{SourceContext, SourceEvent, SourceReader};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Bytes of decoded rows that may wait; with what the fetcher buffers, this bounds a subtask's memory.
const QUEUE_BYTES: usize = 4 << 20;
/// Most messages that are joined in one go.
const MERGE: usize = 64;
/// A topic must be missing this long before it counts as deleted: a broker that has just started may not know it yet.
const CONFIRM: Duration = Duration::from_secs(2);
/// How long after `fetch.max.wait.ms` a leader may owe an answer before nobody knows what it has.
const SILENT: Duration = Duration::from_secs(2);
/// How often that is looked at.
const DOUBT: Duration = Duration::from_millis(500);

/// Reads the splits of one subtask. Dropping it ends the reading.
pub struct KafkaReader {
    messages: mpsc::UnboundedReceiver<Message>,
    ready: Merged,
    failed: Option<ConnectorError>,
    /// Those owned at the start, until they are asked for.
    first: Vec<SplitState>,
    task: JoinHandle<()>,
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl KafkaReader {
    pub(crate) async fn open(
        settings: Arc<SourceSettings>,
        context: SourceContext,
        restored: Option<Vec<SplitState>>,
    ) -> ConnectorResult<KafkaReader> {
        let discovery =
            Discovery::new(connect::connect(&connect::named(&settings.client.client, &settings.properties, context.subtask)).await?);
        let metrics = SourceMetrics::new(context.uid.as_str(), context.subtask);
        let (sender, messages) = mpsc::unbounded_channel();
        let mut task = ReaderTask {
            decoder: RecordDecoder::new(&settings, metrics.clone())?,
            fetcher: Fetcher::new(discovery.cluster().clone(), settings.client.fetch.clone()),
            settings,
            context,
            discovery,
            known: BTreeSet::new(),
            splits: HashMap::new(),
            room: Arc::new(Semaphore::new(QUEUE_BYTES)),
            sender,
            metrics,
        };
        let first = task.begin(restored).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = task.run().await {
                // The receiver is gone only when nobody reads any more.
                _ = task.sender.send(Message::Failed(error));
            }
        });
        Ok(KafkaReader { messages, ready: Merged::default(), failed: None, first, task })
    }

    /// Takes a message; an error waits until what came before it is delivered.
    fn take(&mut self, message: Message) {
        if let Err(error) = self.ready.push(message) {
            self.failed = Some(error);
        }
    }
}

impl SourceReader for KafkaReader {
    fn splits(&mut self) -> Vec<SplitState> {
        std::mem::take(&mut self.first)
    }

    async fn next(&mut self) -> ConnectorResult<SourceEvent> {
        // The only wait is for the first message: dropping the future there loses nothing.
        if self.ready.is_empty() && self.failed.is_none() {
            match self.messages.recv().await {
                Some(message) => self.take(message),
                None => return Err(ConnectorError::Retryable("the Kafka reader's task has ended".to_owned())),
            }
        }
        while self.ready.len() < MERGE && self.failed.is_none() {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(_) => break,
            }
        }
        match self.ready.pop() {
            Some(event) => event.map_err(|error| ConnectorError::Fatal(format!("batches of a split cannot be joined: {error}"))),
            None => Err(self.failed.take().unwrap_or_else(|| ConnectorError::Retryable("the Kafka reader has ended".to_owned()))),
        }
    }
}

/// Tells the user what a restored source does, where it is not what an uninterrupted run would do.
fn say(resumed: &Resumed) {
    match resumed {
        Resumed::Endless { dropped: 0, .. } => {}
        Resumed::Endless { dropped, .. } => {
            tracing::info!(
                splits = dropped,
                "the former run was bounded, this one is not: its stop offsets are dropped, and reading goes on"
            );
        }
        Resumed::BoundNow { new } => {
            tracing::info!(
                ?new,
                "the former run was unbounded, this one is bounded: it ends at bounds that are taken now, and reads new partitions too"
            );
        }
        Resumed::Bounded { beyond, ended } => {
            if !beyond.is_empty() {
                tracing::warn!(
                    partitions = ?beyond,
                    "these partitions are not read: they appeared after the bounds of this bounded run were taken; start without this checkpoint, or unbounded, to read them"
                );
            }
            if *ended {
                tracing::info!(
                    "all partitions stand at the ends that this bounded run took at its start: it reads nothing; start with another checkpoint folder, or unbounded, to read what came later"
                );
            }
        }
    }
}

struct Reading {
    name: Arc<str>,
    split: Split,
    caught_up: bool,
    pending: i64,
}

/// A look at the topics, under way.
struct Look(JoinHandle<ConnectorResult<Topics>>);

impl Drop for Look {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct ReaderTask {
    settings: Arc<SourceSettings>,
    context: SourceContext,
    discovery: Discovery,
    fetcher: Fetcher,
    decoder: RecordDecoder,
    /// Partitions that were ever seen, also those of other subtasks.
    known: BTreeSet<TopicPartition>,
    splits: HashMap<TopicPartition, Reading>,
    room: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Message>,
    metrics: SourceMetrics,
}

impl ReaderTask {
    fn bounded(&self) -> bool {
        self.settings.bounded != BoundedMode::Unbounded
    }

    fn send(&self, message: Message) {
        // Without a receiver nobody reads any more, and the task is about to be ended.
        _ = self.sender.send(message);
    }

    /// Begins to read; returns the splits that this subtask owns at the start.
    async fn begin(&mut self, restored: Option<Vec<SplitState>>) -> ConnectorResult<Vec<SplitState>> {
        let fresh = restored.is_none();
        let topics = self.discovery.topics(&self.settings.topics, fresh).await?;
        let splits = match restored {
            Some(states) => self.resume(&states, &topics).await?,
            None => {
                let own = self.own_of(undiscovered(&topics, &self.known));
                self.discovery.initial_splits(&self.settings, &topics, own).await?
            }
        };
        let first = splits.iter().map(Split::to_state).collect();
        self.add(splits);
        if self.bounded() {
            self.send(Message::NoMoreSplits);
        }
        Ok(first)
    }

    /// The splits of this subtask at a restored start, with their bounds.
    async fn resume(&mut self, states: &[SplitState], topics: &Topics) -> ConnectorResult<Vec<Split>> {
        let mut all = self.selected(states)?;
        let resumed = resume(&mut all, &self.settings.bounded, topics);
        // The decision is the same in every subtask: one of them says it.
        if self.context.subtask == 0 {
            say(&resumed);
        }
        self.known.extend(all.iter().map(|split| split.partition.clone()));
        let mut splits: Vec<Split> = all.into_iter().filter(|split| self.context.owns(&split.partition.to_string())).collect();
        splits.iter().try_for_each(|split| check_topic(split, topics)).map_err(ConnectorError::Fatal)?;
        if let Resumed::Endless { .. } | Resumed::BoundNow { .. } = resumed {
            splits.extend(self.undiscovered(topics).await?);
        }
        self.discovery.bound(&self.settings, &mut splits).await?;
        Ok(splits)
    }

    /// The restored splits of all subtasks whose topics are still selected.
    fn selected(&self, states: &[SplitState]) -> ConnectorResult<Vec<Split>> {
        let mut selected = Vec::new();
        for state in states {
            let split = Split::from_state(state).map_err(ConnectorError::Fatal)?;
            match self.settings.topics.matches(&split.partition.topic) {
                true => selected.push(split),
                false => {
                    tracing::warn!(split = %split.partition, position = split.position, "the source no longer selects this topic: it is not read, and its position is dropped");
                }
            }
        }
        Ok(selected)
    }

    /// Those that this subtask reads of partitions that were found; all are known from now on.
    fn own_of(&mut self, found: Vec<TopicPartition>) -> Vec<TopicPartition> {
        self.known.extend(found.iter().cloned());
        found.into_iter().filter(|partition| self.context.owns(&partition.to_string())).collect()
    }

    /// The splits of partitions that appeared since the last look and belong to this subtask.
    async fn undiscovered(&mut self, topics: &Topics) -> ConnectorResult<Vec<Split>> {
        let new = undiscovered(topics, &self.known);
        let own = new.iter().filter(|partition| self.context.owns(&partition.to_string())).cloned().collect::<Vec<_>>();
        let splits = match own.is_empty() {
            true => Vec::new(),
            false => {
                tracing::info!(partitions = ?own, "new partitions were discovered");
                self.discovery.new_splits(topics, own).await?
            }
        };
        self.known.extend(new);
        Ok(splits)
    }

    fn add(&mut self, splits: Vec<Split>) {
        let mut starts = Vec::new();
        for split in splits {
            let name: Arc<str> = split.partition.to_string().into();
            match reached(split.position, split.detail.stop_offset) {
                true => self.send(Message::Finished(name)),
                false => {
                    starts.push((split.partition.clone(), StartAt { offset: split.position, leader_epoch: None }));
                    self.splits.insert(split.partition.clone(), Reading { name, split, caught_up: false, pending: 0 });
                }
            }
        }
        self.fetcher.add(starts);
    }

    async fn run(&mut self) -> ConnectorResult<()> {
        let interval = self.settings.discovery_interval.filter(|_| !self.bounded());
        let mut discover_at = interval.map(|interval| Instant::now() + interval);
        // In a task of its own: brokers that are slow to answer must not hold up what is read, nor the doubt.
        let mut look: Option<Look> = None;
        let mut doubt_at = Instant::now() + DOUBT;
        loop {
            if self.bounded() && self.splits.is_empty() {
                // All is read. The task stays, so that `next` waits instead of failing.
                self.sender.closed().await;
                return Ok(());
            }
            let wake = discover_at.map_or(doubt_at, |at| at.min(doubt_at));
            let wait = wake.saturating_duration_since(Instant::now());
            match self.fetcher.next(crate::client::Deadline::after(wait)).await {
                Ok(Some(FetchEvent::Records(fetched))) => self.records(fetched).await?,
                Ok(Some(FetchEvent::Failed { partition, offset, failure })) => self.failed(&partition, offset, failure).await?,
                Ok(None) => {}
                Err(error) => return Err(connect::connector_error(error)),
            }
            if let Some(seen) = look.as_mut().filter(|look| look.0.is_finished()) {
                let seen = (&mut seen.0).await.unwrap_or_else(|error| Err(ConnectorError::Retryable(error.to_string())));
                look = None;
                self.discovered(seen).await?;
                discover_at = interval.map(|interval| Instant::now() + interval);
            }
            if look.is_none() && discover_at.is_some_and(|at| Instant::now() >= at) {
                look = Some(self.look());
                discover_at = None;
            }
            if Instant::now() >= doubt_at {
                self.doubt_the_silent().await;
                doubt_at = Instant::now() + DOUBT;
            }
        }
    }

    /// A partition whose leader is silent may have rows: it must not become idle, or the watermark would pass them.
    async fn doubt_the_silent(&mut self) {
        for partition in self.fetcher.silent(SILENT + self.settings.client.fetch.max_wait) {
            let Some(reading) = self.splits.get_mut(&partition).filter(|reading| reading.caught_up) else { continue };
            let Ok(room) = self.room.clone().acquire_many_owned(64).await else { return };
            reading.caught_up = false;
            let (split, rows, position) =
                (reading.name.clone(), RecordBatch::new_empty(self.settings.schema.clone()), reading.split.position);
            self.send(Message::Rows { split, rows, position, caught_up: false, bytes: 0, room });
        }
    }

    async fn records(&mut self, fetched: Fetched) -> ConnectorResult<()> {
        let Some(reading) = self.splits.get_mut(&fetched.partition) else { return Ok(()) };
        let (name, stop, before) = (reading.name.clone(), reading.split.detail.stop_offset, reading.split.position);
        // Also with committed rows only: those of a transaction that is still open are there and will come.
        let end = fetched.high_watermark;
        let pieces = self.decoder.decode(&fetched.partition, &fetched.records, stop)?;
        let count = pieces.len();
        for (i, piece) in pieces.into_iter().enumerate() {
            // A moved position counts also without rows; the same position twice says nothing.
            let position = piece.position.max(before);
            let caught_up = i + 1 == count && position >= end;
            let Some(reading) = self.splits.get_mut(&fetched.partition) else { return Ok(()) };
            if piece.rows.num_rows() == 0 && position == reading.split.position && caught_up == reading.caught_up {
                continue;
            }
            (reading.split.position, reading.caught_up) = (position, caught_up);
            self.metrics.bytes_in.increment(piece.bytes as u64);
            // A piece that is larger than the queue takes the whole queue. At least one byte, so that pieces without rows are bounded too.
            let bytes = piece.bytes.max(piece.rows.get_array_memory_size().min(2 * piece.bytes)).clamp(64, QUEUE_BYTES);
            let room = self.room.clone().acquire_many_owned(bytes as u32).await;
            let Ok(room) = room else { return Ok(()) };
            self.send(Message::Rows { split: name.clone(), rows: piece.rows, position, caught_up, bytes: piece.bytes, room });
        }
        let Some(reading) = self.splits.get_mut(&fetched.partition) else { return Ok(()) };
        reading.pending = (fetched.high_watermark - reading.split.position).max(0);
        if reached(reading.split.position, stop) {
            self.splits.remove(&fetched.partition);
            self.fetcher.remove(std::slice::from_ref(&fetched.partition));
            self.send(Message::Finished(name));
        }
        self.metrics.pending_records.set(self.splits.values().map(|reading| reading.pending).sum::<i64>() as f64);
        Ok(())
    }

    async fn failed(&mut self, partition: &TopicPartition, offset: i64, failure: FetchFailure) -> ConnectorResult<()> {
        let Some(reading) = self.splits.get(partition) else { return Ok(()) };
        let (topic, number) = (&partition.topic, partition.partition);
        let text = match failure {
            FetchFailure::OffsetOutOfRange { log_start, log_end } if offset < log_start => format!(
                "topic {topic}, partition {number}: offsets {offset} to {} were deleted by retention before they were read (the broker has {log_start} to {log_end}); \
                 these records are lost to this job. Raise retention.ms or retention.bytes of the topic; to go on without them restart without state from a startup mode of your choice",
                log_start - 1
            ),
            FetchFailure::OffsetOutOfRange { log_start, log_end } => format!(
                "topic {topic}, partition {number}: offset {offset} is wanted, but the broker has only {log_start} to {log_end}: the log was cut or the topic was created again; \
                 start from a savepoint of the time before, or without state"
            ),
            FetchFailure::Truncated { epoch, end_offset } => format!(
                "topic {topic}, partition {number}: an unclean leader election cut the log at offset {end_offset} (leader epoch {epoch}), records up to {offset} had been read; \
                 what was read and is gone may already be in the results"
            ),
            FetchFailure::Corrupt { offset, reason } => {
                format!(
                    "topic {topic}, partition {number}: the batch at offset {offset} is damaged: {reason}; look at the broker's disk, or skip the offset with specific startup offsets"
                )
            }
            FetchFailure::Refused(code) => {
                let text = format!("topic {topic}, partition {number} cannot be read at offset {offset}: {code}");
                return Err(match acl(code, topic) {
                    Some(command) => ConnectorError::Fatal(format!("{text}; grant it with {command}")),
                    None => ConnectorError::Retryable(text),
                });
            }
            FetchFailure::TopicRecreated | FetchFailure::UnknownTopicOrPartition => {
                let split = reading.split.clone();
                Self::check(&self.discovery, &self.settings.topics, vec![split.clone()]).await?;
                if failure == FetchFailure::TopicRecreated {
                    format!(
                        "topic {topic} was deleted and created again while it was read: position {offset} of partition {number} belongs to the former"
                    )
                } else {
                    // It exists after all (a leader that has just changed): read on.
                    self.fetcher.add([(partition.clone(), StartAt { offset: split.position, leader_epoch: None })]);
                    return Ok(());
                }
            }
        };
        Err(ConnectorError::Fatal(text))
    }

    /// Whether splits can still be read. What looks wrong is looked at twice.
    async fn check(discovery: &Discovery, selection: &crate::config::TopicSelection, splits: Vec<Split>) -> ConnectorResult<Topics> {
        let mut again = true;
        loop {
            let topics = discovery.topics(selection, false).await?;
            match splits.iter().try_for_each(|split| check_topic(split, &topics)) {
                Ok(()) => return Ok(topics),
                Err(text) if !again => return Err(ConnectorError::Fatal(text)),
                Err(_) => tokio::time::sleep(CONFIRM).await,
            }
            again = false;
        }
    }

    fn look(&self) -> Look {
        let splits = self.splits.values().map(|reading| reading.split.clone()).collect();
        let (discovery, settings) = (self.discovery.clone(), self.settings.clone());
        Look(tokio::spawn(async move { Self::check(&discovery, &settings.topics, splits).await }))
    }

    async fn discovered(&mut self, seen: ConnectorResult<Topics>) -> ConnectorResult<()> {
        match seen {
            Ok(topics) => {
                let new = self.undiscovered(&topics).await?;
                for split in &new {
                    self.send(Message::Split(split.to_state()));
                }
                self.add(new);
                Ok(())
            }
            // A cluster that is away for a moment is the fetcher's matter; discovery is tried again at its next time.
            Err(ConnectorError::Retryable(error)) => {
                tracing::warn!(error, "partition discovery failed and is tried again later");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
