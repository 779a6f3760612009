//! [`Offsets`]: positions in partitions, and those that a group committed.
use super::cluster::Cluster;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::TopicPartition;
use std::collections::HashMap;
use uuid::Uuid;

/// Which records a reader sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// All, those of open and aborted transactions too.
    ReadUncommitted,
    /// Those of committed transactions and those without a transaction.
    #[default]
    ReadCommitted,
}

/// A position that ListOffsets can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The first record that retention has left.
    Earliest,
    /// The end: the high watermark, or the last stable offset in read_committed.
    Latest,
    /// The first record with this timestamp (ms since 1970) or a later one.
    Timestamp(i64),
}

/// A found position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset; `None` when no record has the asked timestamp or a later one.
    pub offset: Option<i64>,
    /// The found record's timestamp, only for [`OffsetSpec::Timestamp`].
    pub timestamp: Option<i64>,
    /// Leader epoch of the found record, when known.
    pub leader_epoch: Option<i32>,
}

/// A group's committed position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// Next offset to read.
    pub offset: i64,
    /// Leader epoch of the record before it, when known.
    pub leader_epoch: Option<i32>,
    /// The committer's own text.
    pub metadata: Option<String>,
}

/// Positions in partitions and in groups.
#[derive(Clone, Debug)]
pub struct Offsets {
    _cluster: Cluster,
}

impl Offsets {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Offsets { _cluster: cluster }
    }
    /// Finds positions on the leaders. Partitions that fail for good are in the result with their code.
    pub async fn list(&self, _wanted: &[(TopicPartition, OffsetSpec)], _isolation: IsolationLevel, _deadline: Deadline) -> Result<HashMap<TopicPartition, std::result::Result<ListedOffset, ErrorCode>>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// What `group` has committed; partitions without a commit are not in the result. Waits for open transactional commits.
    pub async fn committed(&self, _group: &str, _partitions: &[TopicPartition], _deadline: Deadline) -> Result<HashMap<TopicPartition, CommittedOffset>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Commits positions for `group` without being a member of it.
    pub async fn commit(&self, _group: &str, _offsets: &[(TopicPartition, CommittedOffset)], _deadline: Deadline) -> Result<()> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Ids of the topics that exist: one that changes means that the topic was recreated.
    pub async fn topic_ids(&self, _topics: &[&str], _deadline: Deadline) -> Result<HashMap<String, Uuid>> {
        Err(ClientError::Usage("not built yet".into()))
    }
}
