//! Questions that only the leaders of partitions can answer.
use super::cluster::{Cluster, Purpose, pause};
use super::connection::Connection;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::{ClusterMetadata, Leader, TopicPartition};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a leader says of one partition: an answer, or the code that stays.
pub type Answer<T> = std::result::Result<T, ErrorCode>;

/// Answers by partition.
pub type ByPartition<T> = HashMap<TopicPartition, Answer<T>>;

/// A partition that the cluster does not know must be missing this long to count as unknown: a broker that has just started may not
/// know it yet.
const UNKNOWN_AFTER: Duration = Duration::from_secs(5);

/// What one leader says.
pub(super) type Answers<T> = Result<Vec<(TopicPartition, Answer<T>)>>;

/// A request that goes to each leader with the partitions that it leads.
pub(super) trait Question: Sync {
    /// About one partition.
    type Answer: Send;

    /// For errors, e.g. `the offsets of`.
    const ABOUT: &str;

    /// Whose connections it takes.
    const PURPOSE: Purpose;

    /// A partition that has no leader for this long is answered with LEADER_NOT_AVAILABLE.
    const LEADERLESS_AFTER: Duration;

    /// Others than the leader answer too: an answer counts when the one asked is still the leader afterwards, in the same epoch.
    const CONFIRM_LEADER: bool = false;

    /// Asks one leader.
    fn ask(
        &self,
        leader: &Connection,
        partitions: &[TopicPartition],
        deadline: Deadline,
    ) -> impl Future<Output = Answers<Self::Answer>> + Send;
}

/// Why nobody can be asked about a partition without a known leader. An error of its topic that stays, such as a missing permission, is
/// the answer; that a broker does not know it, or knows no leader, may pass.
fn why_absent(metadata: &ClusterMetadata, partition: &TopicPartition) -> ErrorCode {
    match metadata.topics.get(&partition.topic) {
        Some(topic) if !topic.error.is_none() && !topic.error.is_retriable() => topic.error,
        Some(topic) if topic.error == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => topic.error,
        Some(topic) if topic.error.is_none() && topic.partition(partition.partition).is_none() => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        _ => ErrorCode::LEADER_NOT_AVAILABLE,
    }
}

/// Since when partitions have had no leader, or been unknown, by all answers in a row: a silence before them tells nothing.
#[derive(Default)]
struct Absent(HashMap<TopicPartition, (ErrorCode, Instant)>);

impl Absent {
    /// Takes an answer.
    fn for_long(&mut self, partition: &TopicPartition, code: ErrorCode, long: Duration, now: Instant) -> bool {
        let since = self.0.entry(partition.clone()).or_insert((code, now));
        if since.0 != code {
            *since = (code, now);
        }
        now.duration_since(since.1) >= long
    }

    /// It was told otherwise, or nobody has answered.
    fn forget(&mut self, partition: &TopicPartition) {
        self.0.remove(partition);
    }
}

/// Asks the leader of each partition, again where leaders move, until each has given an answer that stays. What is unknown to the
/// cluster for 5 s, by all answers in a row, is answered with UNKNOWN_TOPIC_OR_PARTITION.
pub(super) async fn ask<Q: Question>(
    cluster: &Cluster,
    question: &Q,
    partitions: impl IntoIterator<Item = TopicPartition>,
    deadline: Deadline,
) -> Result<ByPartition<Q::Answer>> {
    let mut found = HashMap::new();
    let mut left: BTreeSet<TopicPartition> = partitions.into_iter().collect();
    let mut backoff = Backoff::default();
    let mut absent = Absent::default();
    let failed = |partition: &TopicPartition, code| ClientError::Broker { what: format!("{} {partition}", Q::ABOUT), code, message: None };
    while !left.is_empty() {
        let unknown: BTreeSet<&str> = left.iter().filter(|p| cluster.cached_leader(p).is_none()).map(|p| &*p.topic).collect();
        let described = match unknown.is_empty() {
            true => None,
            false => Some(cluster.metadata(Some(&Vec::from_iter(unknown)), deadline).await?),
        };
        let mut last = None;
        let mut by_node: BTreeMap<i32, Vec<TopicPartition>> = BTreeMap::new();
        let mut leaders: HashMap<TopicPartition, Leader> = HashMap::new();
        for partition in &left {
            if let Some(leader) = cluster.cached_leader(partition) {
                by_node.entry(leader.node).or_default().push(partition.clone());
                leaders.insert(partition.clone(), leader);
                continue;
            }
            let code = described.as_ref().map_or(ErrorCode::LEADER_NOT_AVAILABLE, |metadata| why_absent(metadata, partition));
            let after = match code {
                ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => UNKNOWN_AFTER,
                ErrorCode::LEADER_NOT_AVAILABLE => Q::LEADERLESS_AFTER,
                _ => Duration::ZERO,
            };
            match absent.for_long(partition, code, after, Instant::now()) {
                true => _ = found.insert(partition.clone(), Err(code)),
                false => last = Some(failed(partition, code)),
            }
        }
        let mut stale: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut unconfirmed = vec![];
        for (node, asked) in by_node {
            let attempt = cluster.attempt(deadline);
            let answers = match cluster.connection(node, Q::PURPOSE, attempt).await {
                Ok(leader) => question.ask(&leader, &asked, attempt).await,
                Err(error) => Err(error),
            };
            match answers {
                Ok(answers) => {
                    for (partition, answer) in answers {
                        let unknown = matches!(&answer, Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
                        match answer {
                            Err(code)
                                if code.is_retriable()
                                    && !(unknown && absent.for_long(&partition, code, UNKNOWN_AFTER, Instant::now())) =>
                            {
                                if !unknown {
                                    absent.forget(&partition);
                                }
                                last = Some(failed(&partition, code));
                                stale.insert(partition.topic);
                            }
                            Ok(answer) if Q::CONFIRM_LEADER => unconfirmed.push((partition, answer)),
                            answer => _ = found.insert(partition, answer),
                        }
                    }
                }
                Err(error) if error.is_retriable() => {
                    asked.iter().for_each(|partition| absent.forget(partition));
                    stale.extend(asked.into_iter().map(|p| p.topic));
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        if !unconfirmed.is_empty() {
            let topics: BTreeSet<&str> = unconfirmed.iter().map(|(partition, _)| &*partition.topic).collect();
            cluster.metadata(Some(&Vec::from_iter(topics)), deadline).await?;
            let led = |partition: &TopicPartition| cluster.cached_leader(partition).as_ref() == leaders.get(partition);
            let confirmed = unconfirmed.into_iter().filter(|(partition, _)| led(partition));
            found.extend(confirmed.map(|(partition, answer)| (partition, Ok(answer))));
        }
        left.retain(|partition| !found.contains_key(partition));
        let Some(one) = left.first() else { break };
        let last = last.unwrap_or_else(|| failed(one, ErrorCode::LEADER_NOT_AVAILABLE));
        pause(&mut backoff, deadline, last).await?;
        if !stale.is_empty() {
            let stale: Vec<&str> = stale.iter().map(|topic| &**topic).collect();
            cluster.metadata(Some(&stale), deadline).await?;
        }
    }
    Ok(found)
}

pub(super) fn topic_name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_string()))
}

/// The items of each topic with the numbers of their partitions, as requests carry them.
pub(super) fn by_topic<T>(items: impl IntoIterator<Item = (TopicPartition, T)>) -> BTreeMap<Arc<str>, Vec<(i32, T)>> {
    let mut topics: BTreeMap<Arc<str>, Vec<(i32, T)>> = BTreeMap::new();
    for (partition, item) in items {
        topics.entry(partition.topic).or_default().push((partition.partition, item));
    }
    topics
}

/// The answer that an error code of the wire stands for.
pub(super) fn answered<T>(code: i16, answer: impl FnOnce() -> T) -> Answer<T> {
    match ErrorCode(code) {
        ErrorCode::NONE => Ok(answer()),
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    use super::super::metadata::{PartitionMetadata, TopicMetadata};
    use super::*;

    #[test]
    fn a_partition_is_absent_for_long_only_by_answers_in_a_row() {
        let (one, long) = (TopicPartition::new("t", 0), Duration::from_secs(5));
        let (unknown, leaderless) = (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::LEADER_NOT_AVAILABLE);
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut absent = Absent::default();
        // However long nobody has answered before: the first answer begins the row.
        assert!(!absent.for_long(&one, unknown, long, at(60)));
        assert!(!absent.for_long(&one, unknown, long, at(64)));
        assert!(absent.for_long(&one, unknown, long, at(65)));
        assert!(!absent.for_long(&one, leaderless, long, at(66)), "another answer begins another row");
        absent.forget(&one);
        assert!(!absent.for_long(&one, leaderless, long, at(80)), "a silence ends it");
        assert!(absent.for_long(&one, leaderless, Duration::ZERO, at(80)), "without patience the first counts");
    }

    #[test]
    fn why_nobody_can_be_asked() {
        let topic = |name: &str, error, numbers: &[i32]| TopicMetadata {
            name: name.into(),
            id: uuid::Uuid::nil(),
            error,
            internal: false,
            partitions: numbers
                .iter()
                .map(|number| PartitionMetadata { partition: *number, leader: None, replicas: vec![], in_sync: vec![] })
                .collect(),
        };
        let topics = [
            topic("here", ErrorCode::NONE, &[0]),
            topic("gone", ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, &[]),
            topic("secret", ErrorCode::TOPIC_AUTHORIZATION_FAILED, &[]),
            topic("starting", ErrorCode::LEADER_NOT_AVAILABLE, &[]),
        ];
        let topics = topics.into_iter().map(|topic| (topic.name.clone(), topic)).collect();
        let metadata = ClusterMetadata { topics, ..ClusterMetadata::default() };
        for (topic, number, expected) in [
            ("here", 0, ErrorCode::LEADER_NOT_AVAILABLE),
            ("here", 1, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            ("gone", 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            ("secret", 0, ErrorCode::TOPIC_AUTHORIZATION_FAILED),
            ("starting", 0, ErrorCode::LEADER_NOT_AVAILABLE),
            ("not asked for", 0, ErrorCode::LEADER_NOT_AVAILABLE),
        ] {
            assert_eq!(why_absent(&metadata, &TopicPartition::new(topic, number)), expected, "{topic}-{number}");
        }
    }
}
