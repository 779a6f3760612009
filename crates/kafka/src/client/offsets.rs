//! [`Offsets`]: positions in partitions, and those that a group committed.
use super::cluster::{Cluster, CoordinatorKind, Purpose, pause};
use super::connection::Connection;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::leaders::{self, Answers, ByPartition, Question, answered, by_topic, topic_name};
use super::metadata::TopicPartition;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{BrokerId, GroupId, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::StrBytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
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

impl IsolationLevel {
    /// The number that requests hold.
    pub(crate) fn code(self) -> i8 {
        match self {
            IsolationLevel::ReadUncommitted => 0,
            IsolationLevel::ReadCommitted => 1,
        }
    }
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
    cluster: Cluster,
}

struct WhichOffsets {
    wanted: HashMap<TopicPartition, OffsetSpec>,
    isolation: IsolationLevel,
}

impl Question for WhichOffsets {
    type Answer = ListedOffset;

    const ABOUT: &str = "the offsets of";

    const PURPOSE: Purpose = Purpose::Control;

    const LEADERLESS_AFTER: Duration = Duration::from_secs(5);

    async fn ask(&self, leader: &Connection, partitions: &[TopicPartition], deadline: Deadline) -> Answers<ListedOffset> {
        let version = leader.version::<ListOffsetsRequest>(2, 7)?;
        let wanted = partitions.iter().filter_map(|partition| Some((partition.clone(), *self.wanted.get(partition)?)));
        let topics = by_topic(wanted).into_iter().map(|(topic, partitions)| {
            let partitions = partitions.into_iter().map(|(partition, spec)| {
                let timestamp = match spec {
                    OffsetSpec::Latest => -1,
                    OffsetSpec::Earliest => -2,
                    OffsetSpec::Timestamp(ms) => ms.max(0),
                };
                ListOffsetsPartition::default().with_partition_index(partition).with_current_leader_epoch(-1).with_timestamp(timestamp)
            });
            ListOffsetsTopic::default().with_name(topic_name(&topic)).with_partitions(partitions.collect())
        });
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_isolation_level(self.isolation.code())
            .with_topics(topics.collect());
        let mut found = Vec::new();
        for topic in leader.call(&request, version, deadline).await?.topics {
            let name: Arc<str> = topic.name.0.as_str().into();
            found.extend(topic.partitions.iter().map(|p| {
                let offset = ListedOffset {
                    offset: (p.offset >= 0).then_some(p.offset),
                    timestamp: (p.timestamp >= 0).then_some(p.timestamp),
                    leader_epoch: (p.leader_epoch >= 0).then_some(p.leader_epoch),
                };
                (TopicPartition::new(name.clone(), p.partition_index), answered(p.error_code, || offset))
            }));
        }
        Ok(found)
    }
}

impl Offsets {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Offsets { cluster }
    }

    /// Finds positions on the leaders. Partitions that fail for good are in the result with their code.
    pub async fn list(
        &self,
        wanted: &[(TopicPartition, OffsetSpec)],
        isolation: IsolationLevel,
        deadline: Deadline,
    ) -> Result<ByPartition<ListedOffset>> {
        let question = WhichOffsets { wanted: wanted.iter().cloned().collect(), isolation };
        leaders::ask(&self.cluster, &question, question.wanted.keys().cloned(), deadline).await
    }

    /// What `group` has committed; partitions without a commit are not in the result. Waits for open transactional commits.
    pub async fn committed(
        &self,
        group: &str,
        partitions: &[TopicPartition],
        deadline: Deadline,
    ) -> Result<HashMap<TopicPartition, CommittedOffset>> {
        let topics: Vec<_> = by_topic(partitions.iter().map(|p| (p.clone(), ())))
            .into_iter()
            .map(|(topic, partitions)| {
                OffsetFetchRequestTopic::default()
                    .with_name(topic_name(&topic))
                    .with_partition_indexes(partitions.into_iter().map(|(p, ())| p).collect())
            })
            .collect();
        // Version 7 is the last that asks for one group in the old form, which every broker since 2.5 takes.
        let request = OffsetFetchRequest::default()
            .with_group_id(GroupId(StrBytes::from_string(group.to_string())))
            .with_topics(Some(topics))
            .with_require_stable(true);
        let mut backoff = Backoff::default();
        loop {
            let answer = match self.cluster.call_coordinator(CoordinatorKind::Group, group, &request, (7, 7), deadline).await {
                Ok((answer, _)) => answer,
                Err(error) => {
                    pause(&mut backoff, deadline, error).await?;
                    continue;
                }
            };
            let mut found = HashMap::new();
            let mut failed = (answer.error_code != 0).then_some((group.to_string(), answer.error_code));
            for topic in &answer.topics {
                let name: Arc<str> = topic.name.0.as_str().into();
                for p in &topic.partitions {
                    let partition = TopicPartition { topic: name.clone(), partition: p.partition_index };
                    match p.error_code {
                        0 if p.committed_offset >= 0 => {
                            let metadata = p.metadata.as_ref().filter(|m| !m.is_empty()).map(|m| m.to_string());
                            let leader_epoch = (p.committed_leader_epoch >= 0).then_some(p.committed_leader_epoch);
                            found.insert(partition, CommittedOffset { offset: p.committed_offset, leader_epoch, metadata });
                        }
                        // Nothing committed, or nothing that exists.
                        0 => {}
                        code if ErrorCode(code) == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {}
                        code => failed = Some((format!("{group}, {partition}"), code)),
                    }
                }
            }
            let Some((subject, code)) = failed else { return Ok(found) };
            if ErrorCode(code).is_coordinator_moved() {
                self.cluster.forget_coordinator(CoordinatorKind::Group, group);
            }
            pause(&mut backoff, deadline, ClientError::broker(format!("the offsets of group {subject}"), code, None)).await?;
        }
    }

    /// Commits positions for `group` without being a member of it.
    pub async fn commit(&self, group: &str, offsets: &[(TopicPartition, CommittedOffset)], deadline: Deadline) -> Result<()> {
        let topics = by_topic(offsets.iter().cloned()).into_iter().map(|(topic, partitions)| {
            let partitions = partitions.into_iter().map(|(partition, committed)| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(partition)
                    .with_committed_offset(committed.offset)
                    .with_committed_leader_epoch(committed.leader_epoch.unwrap_or(-1))
                    .with_committed_metadata(Some(StrBytes::from_string(committed.metadata.unwrap_or_default())))
            });
            OffsetCommitRequestTopic::default().with_name(topic_name(&topic)).with_partitions(partitions.collect())
        });
        let request = OffsetCommitRequest::default()
            .with_group_id(GroupId(StrBytes::from_string(group.to_string())))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(topics.collect());
        let mut backoff = Backoff::default();
        loop {
            let error = match self.cluster.call_coordinator(CoordinatorKind::Group, group, &request, (2, 8), deadline).await {
                Ok((answer, _)) => {
                    let failed =
                        answer.topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p))).find(|(_, p)| p.error_code != 0);
                    let Some((topic, partition)) = failed else { return Ok(()) };
                    if ErrorCode(partition.error_code).is_coordinator_moved() {
                        self.cluster.forget_coordinator(CoordinatorKind::Group, group);
                    }
                    let what = format!("committing offsets of group {group}, {}-{}", topic.name.0.as_str(), partition.partition_index);
                    ClientError::broker(what, partition.error_code, None)
                }
                Err(error) => error,
            };
            pause(&mut backoff, deadline, error).await?;
        }
    }

    /// Ids of the topics that exist: one that changes means that the topic was recreated.
    pub async fn topic_ids(&self, topics: &[&str], deadline: Deadline) -> Result<HashMap<String, Uuid>> {
        let metadata = self.cluster.metadata(Some(topics), deadline).await?;
        let known = metadata.topics.values().filter(|t| !t.id.is_nil());
        Ok(known.map(|t| (t.name.to_string(), t.id)).collect())
    }
}
