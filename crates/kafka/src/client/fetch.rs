//! [`Fetcher`]: reads partitions from their leaders.
use super::cluster::Cluster;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::fetch_task::FetchTask;
use super::metadata::TopicPartition;
use super::offsets::IsolationLevel;
use super::properties::Properties;
use super::record_batch::{DecodeOptions, Decoder, FetchedRecords};
use bytes::Bytes;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// How a [`Fetcher`] reads.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// `isolation.level`.
    pub isolation: IsolationLevel,
    /// `fetch.max.wait.ms`: how long the broker holds an answer back when there is nothing new.
    pub max_wait: Duration,
    /// `fetch.min.bytes`.
    pub min_bytes: i32,
    /// `fetch.max.bytes` of one answer.
    pub max_bytes: i32,
    /// `max.partition.fetch.bytes`.
    pub partition_max_bytes: i32,
    /// Bytes that wait for the reader before fetching pauses.
    pub buffer_bytes: usize,
    /// `check.crcs`.
    pub check_crcs: bool,
}

impl Default for FetchConfig {
    fn default() -> Self {
        FetchConfig {
            isolation: IsolationLevel::ReadCommitted,
            max_wait: Duration::from_millis(500),
            min_bytes: 1,
            max_bytes: 8 << 20,
            partition_max_bytes: 2 << 20,
            buffer_bytes: 8 << 20,
            check_crcs: true,
        }
    }
}

impl FetchConfig {
    /// Takes the fetch properties; what is absent keeps its default.
    pub fn take(p: &mut Properties) -> Result<Self> {
        let mut config = Self::default();
        if let Some(level) = p.take("isolation.level") {
            config.isolation = match level.trim() {
                "read_committed" => IsolationLevel::ReadCommitted,
                "read_uncommitted" => IsolationLevel::ReadUncommitted,
                other => {
                    return Err(ClientError::config(
                        "isolation.level",
                        format!("'{other}' is neither read_committed nor read_uncommitted"),
                    ));
                }
            };
        }
        if let Some(ms) = p.parse::<u64>("fetch.max.wait.ms", "a number of milliseconds")? {
            config.max_wait = Duration::from_millis(ms);
        }
        let bytes = "a number of bytes";
        if let Some(n) = p.parse("fetch.min.bytes", bytes)? {
            config.min_bytes = n;
        }
        if let Some(n) = p.parse("fetch.max.bytes", bytes)? {
            config.max_bytes = n;
        }
        if let Some(n) = p.parse("max.partition.fetch.bytes", bytes)? {
            config.partition_max_bytes = n;
        }
        if let Some(check) = p.boolean("check.crcs")? {
            config.check_crcs = check;
        }
        Ok(config)
    }
}

/// Where a partition is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartAt {
    /// First offset wanted.
    pub offset: i64,
    /// Leader epoch of the record before it, when known: lets the broker find a truncated log.
    pub leader_epoch: Option<i32>,
}

/// Records of one partition.
#[derive(Debug)]
pub struct Fetched {
    /// The partition.
    pub partition: TopicPartition,
    /// The records; may be empty with a moved `next_offset` or watermark.
    pub records: FetchedRecords,
    /// Offset after the last replicated record.
    pub high_watermark: i64,
    /// Offset of the first record of the oldest open transaction, or the high watermark: read_committed ends here.
    pub last_stable_offset: i64,
    /// First offset that retention has left.
    pub log_start_offset: i64,
}

/// Why a partition is no longer read (until it is added again).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchFailure {
    /// The wanted offset is outside what the broker has.
    OffsetOutOfRange {
        /// First offset the broker has.
        log_start: i64,
        /// Offset after the last.
        log_end: i64,
    },
    /// The topic or partition does not exist (any more).
    UnknownTopicOrPartition,
    /// The topic was deleted and created again: offsets mean something else now.
    TopicRecreated,
    /// An unclean leader election cut the log before the wanted offset.
    Truncated {
        /// Leader epoch at which the logs differ.
        epoch: i32,
        /// Offset from which they differ.
        end_offset: i64,
    },
    /// A batch is damaged.
    Corrupt {
        /// Offset of the batch.
        offset: i64,
        /// What is wrong.
        reason: String,
    },
    /// Another code that a retry does not help against.
    Refused(ErrorCode),
}

/// What a [`Fetcher`] delivers.
#[derive(Debug)]
pub enum FetchEvent {
    /// Records, or news about the watermarks.
    Records(Fetched),
    /// The partition is no longer read.
    Failed {
        /// The partition.
        partition: TopicPartition,
        /// The offset that was wanted.
        offset: i64,
        /// Why.
        failure: FetchFailure,
    },
}

/// One partition's part of an answer, not decoded yet.
pub(super) struct Raw {
    pub partition: TopicPartition,
    pub generation: u64,
    pub from: i64,
    pub records: Bytes,
    /// (producer id, first offset)
    pub aborted: Vec<(i64, i64)>,
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start_offset: i64,
}

pub(super) enum Message {
    Raw(Raw),
    Failed {
        partition: TopicPartition,
        generation: u64,
        offset: i64,
        failure: FetchFailure,
    },
    /// Reading has ended for all partitions.
    Broken(ClientError),
}

/// A partition that is read.
pub(super) struct Reading {
    /// Tells answers of an earlier `add` from those of the present one.
    pub generation: u64,
    pub position: i64,
    /// Leader epoch of the last batch read.
    pub epoch: i32,
    pub topic_id: Option<uuid::Uuid>,
    pub paused: bool,
    pub in_flight: bool,
    pub not_before: Option<Instant>,
    pub backoff: Backoff,
    /// Since when the broker says that there is no such partition.
    pub unknown_since: Option<Instant>,
    /// High watermark and last stable offset as last told.
    pub ends: (i64, i64),
    /// When its leader last told what there is.
    pub heard_at: Instant,
}

#[derive(Default)]
pub(super) struct State {
    pub partitions: HashMap<TopicPartition, Reading>,
    pub generation: u64,
    /// Bytes fetched and not decoded.
    pub buffered: usize,
}

pub(super) struct Shared {
    pub cluster: Cluster,
    pub config: FetchConfig,
    state: Mutex<State>,
    /// There is something to do for the task.
    pub work: Notify,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a changing set of partitions from their leaders, in the background. Dropping it ends the reading.
pub struct Fetcher {
    shared: Arc<Shared>,
    messages: mpsc::UnboundedReceiver<Message>,
    /// The answer that is being decoded.
    current: Option<(Raw, Decoder, usize)>,
    task: JoinHandle<()>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").finish_non_exhaustive()
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fetcher {
    /// A fetcher without partitions. Must be called on a tokio runtime.
    pub fn new(cluster: Cluster, config: FetchConfig) -> Self {
        let shared = Arc::new(Shared { cluster, config, state: Mutex::default(), work: Notify::new() });
        let (sender, messages) = mpsc::unbounded_channel();
        let task = tokio::spawn(FetchTask::new(shared.clone(), sender).run());
        Fetcher { shared, messages, current: None, task }
    }

    /// Reads these partitions from now on; one that is read already goes on from the new position.
    pub fn add(&self, partitions: impl IntoIterator<Item = (TopicPartition, StartAt)>) {
        let mut state = self.shared.lock();
        for (partition, start) in partitions {
            state.generation += 1;
            let reading = Reading {
                generation: state.generation,
                position: start.offset,
                epoch: start.leader_epoch.unwrap_or(-1),
                topic_id: None,
                paused: false,
                in_flight: false,
                not_before: None,
                backoff: Backoff::default(),
                unknown_since: None,
                ends: (-1, -1),
                heard_at: Instant::now(),
            };
            state.partitions.insert(partition, reading);
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// Reads these no more; nothing of them is delivered after the call.
    pub fn remove(&self, partitions: &[TopicPartition]) {
        let mut state = self.shared.lock();
        for partition in partitions {
            state.partitions.remove(partition);
        }
    }

    /// Stops asking for these until resumed (what was asked for already is still delivered).
    pub fn pause(&self, partitions: &[TopicPartition]) {
        self.set_paused(partitions, true);
    }

    /// Ends a pause.
    pub fn resume(&self, partitions: &[TopicPartition]) {
        self.set_paused(partitions, false);
    }

    fn set_paused(&self, partitions: &[TopicPartition], paused: bool) {
        let mut state = self.shared.lock();
        for partition in partitions {
            if let Some(reading) = state.partitions.get_mut(partition) {
                reading.paused = paused;
            }
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// The partitions whose leaders have not told for this long what there is. When they do, there is an event, also if nothing is new.
    pub fn silent(&self, patience: Duration) -> Vec<TopicPartition> {
        let mut state = self.shared.lock();
        let silent = state.partitions.iter_mut().filter(|(_, reading)| reading.heard_at.elapsed() >= patience);
        silent
            .map(|(partition, reading)| {
                reading.ends = (-1, -1);
                partition.clone()
            })
            .collect()
    }

    /// The next event; `Ok(None)` when the deadline passes first. Safe to cancel.
    pub async fn next(&mut self, deadline: Deadline) -> Result<Option<FetchEvent>> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            match tokio::time::timeout_at(deadline.instant().into(), self.messages.recv()).await {
                Err(_) => return Ok(None),
                Ok(Some(message)) => {
                    if let Some(event) = self.take(message)? {
                        return Ok(Some(event));
                    }
                }
                Ok(None) => return Err(ClientError::Usage("the fetcher's task has ended".into())),
            }
        }
    }

    /// The next event if one is ready.
    pub fn try_next(&mut self) -> Result<Option<FetchEvent>> {
        loop {
            if let Some(event) = self.decode() {
                return Ok(Some(event));
            }
            let Ok(message) = self.messages.try_recv() else { return Ok(None) };
            if let Some(event) = self.take(message)? {
                return Ok(Some(event));
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<Option<FetchEvent>> {
        match message {
            Message::Broken(error) => Err(error),
            Message::Failed { partition, generation, offset, failure } => {
                let mut state = self.shared.lock();
                if state.partitions.get(&partition).is_none_or(|r| r.generation != generation) {
                    return Ok(None);
                }
                state.partitions.remove(&partition);
                Ok(Some(FetchEvent::Failed { partition, offset, failure }))
            }
            Message::Raw(mut raw) => {
                let size = raw.records.len();
                let options = DecodeOptions { check_crc: self.shared.config.check_crcs, ..DecodeOptions::default() };
                let decoder = Decoder::new(std::mem::take(&mut raw.records), raw.from, std::mem::take(&mut raw.aborted), options);
                self.current = Some((raw, decoder, size));
                Ok(self.decode())
            }
        }
    }

    /// The next chunk of the present answer.
    fn decode(&mut self) -> Option<FetchEvent> {
        let (raw, decoder, size) = self.current.as_mut()?;
        let wanted = self.shared.lock().partitions.get(&raw.partition).is_some_and(|r| r.generation == raw.generation);
        let chunk = if wanted { decoder.next_chunk() } else { Ok(None) };
        let fetched = |raw: &Raw, records| Fetched {
            partition: raw.partition.clone(),
            records,
            high_watermark: raw.high_watermark,
            last_stable_offset: raw.last_stable_offset,
            log_start_offset: raw.log_start_offset,
        };
        match chunk {
            Ok(Some(records)) => {
                let event = FetchEvent::Records(fetched(raw, records));
                if decoder.at_end() {
                    self.release();
                }
                Some(event)
            }
            Ok(None) => {
                // An answer without a record brings news about the watermarks.
                let event = (wanted && *size == 0).then(|| {
                    let records = FetchedRecords { next_offset: decoder.next_offset(), leader_epoch: -1, ..FetchedRecords::default() };
                    FetchEvent::Records(fetched(raw, records))
                });
                self.release();
                event
            }
            Err(error) => {
                let partition = raw.partition.clone();
                let offset = decoder.next_offset();
                self.shared.lock().partitions.remove(&partition);
                self.release();
                Some(FetchEvent::Failed {
                    partition,
                    offset,
                    failure: FetchFailure::Corrupt { offset: error.offset, reason: error.reason },
                })
            }
        }
    }

    /// The present answer is decoded: there is room for more.
    fn release(&mut self) {
        if let Some((_, _, size)) = self.current.take() {
            let mut state = self.shared.lock();
            let full = state.buffered >= self.shared.config.buffer_bytes;
            state.buffered -= size;
            if full && state.buffered < self.shared.config.buffer_bytes {
                self.shared.work.notify_one();
            }
        }
    }
}
