//! [`Fetcher`]: reads partitions from their leaders.
use super::cluster::Cluster;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::TopicPartition;
use super::offsets::IsolationLevel;
use super::properties::Properties;
use super::record_batch::FetchedRecords;
use std::time::Duration;

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
}

impl Default for FetchConfig {
    fn default() -> Self {
        FetchConfig {
            isolation: IsolationLevel::ReadCommitted,
            max_wait: Duration::from_millis(500),
            min_bytes: 1,
            max_bytes: 16 << 20,
            partition_max_bytes: 4 << 20,
            buffer_bytes: 32 << 20,
        }
    }
}

impl FetchConfig {
    /// Takes the fetch properties; what is absent keeps its default.
    pub fn take(_properties: &mut Properties) -> Result<Self> {
        Ok(Self::default())
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

/// Reads a changing set of partitions from their leaders, in the background. Dropping it ends the reading.
#[derive(Debug)]
pub struct Fetcher {}

impl Fetcher {
    /// A fetcher without partitions.
    pub fn new(_cluster: Cluster, _config: FetchConfig) -> Self {
        Fetcher {}
    }
    /// Reads these partitions from now on; one that is read already goes on from the new position.
    pub fn add(&self, _partitions: impl IntoIterator<Item = (TopicPartition, StartAt)>) {}
    /// Reads these no more; nothing of them is delivered after the call.
    pub fn remove(&self, _partitions: &[TopicPartition]) {}
    /// Stops asking for these until resumed (what was asked for already is still delivered).
    pub fn pause(&self, _partitions: &[TopicPartition]) {}
    /// Ends a pause.
    pub fn resume(&self, _partitions: &[TopicPartition]) {}
    /// The next event; `Ok(None)` when the deadline passes first. Safe to cancel.
    pub async fn next(&mut self, _deadline: Deadline) -> Result<Option<FetchEvent>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// The next event if one is ready.
    pub fn try_next(&mut self) -> Result<Option<FetchEvent>> {
        Ok(None)
    }
}
