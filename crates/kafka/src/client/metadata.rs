//! What the cluster says about itself: brokers, topics, partitions and their leaders.
use super::error::ErrorCode;
use kafka_protocol::messages::MetadataResponse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// A partition of a topic. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Number of the partition, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// The partition `partition` of `topic`.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        TopicPartition { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A broker as the cluster names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerNode {
    /// The broker's `node.id`.
    pub id: i32,
    /// Advertised host name or address.
    pub host: String,
    /// Advertised port.
    pub port: u16,
    /// Its rack, when configured.
    pub rack: Option<String>,
}

impl BrokerNode {
    /// `host:port`, an IPv6 address in brackets.
    pub fn address(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

/// The broker that leads a partition, and since which leader epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The broker's `node.id`.
    pub node: i32,
    /// Number of the leadership; it grows with each change.
    pub epoch: i32,
}

/// A partition as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// Number of the partition.
    pub partition: i32,
    /// Its leader, if it has one now.
    pub leader: Option<Leader>,
    /// Brokers that hold it.
    pub replicas: Vec<i32>,
    /// Brokers that hold it completely.
    pub in_sync: Vec<i32>,
}

/// A topic as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Name.
    pub name: Arc<str>,
    /// Id of this incarnation: a recreated topic of the same name has another. Nil with brokers before 2.8.
    pub id: Uuid,
    /// `NONE`, or why the topic cannot be described (unknown, not authorised, no leader yet).
    pub error: ErrorCode,
    /// Whether Kafka itself uses it (`__consumer_offsets`, `__transaction_state`).
    pub internal: bool,
    /// Partitions in the order of their numbers.
    pub partitions: Vec<PartitionMetadata>,
}

impl TopicMetadata {
    /// The partition with this number.
    pub fn partition(&self, partition: i32) -> Option<&PartitionMetadata> {
        self.partitions.iter().find(|p| p.partition == partition)
    }
}

/// One answer of the cluster about itself.
#[derive(Clone, Debug, Default)]
pub struct ClusterMetadata {
    /// Id of the cluster, when the broker tells it.
    pub cluster_id: Option<String>,
    /// The controller, or a broker that forwards to it.
    pub controller: Option<i32>,
    /// Brokers by id.
    pub brokers: BTreeMap<i32, BrokerNode>,
    /// Topics by name.
    pub topics: HashMap<Arc<str>, TopicMetadata>,
}

impl ClusterMetadata {
    /// Reads an answer to Metadata; the partitions of a topic come in the order of their numbers.
    pub(crate) fn from_response(response: &MetadataResponse) -> Self {
        let brokers = response
            .brokers
            .iter()
            .filter_map(|b| {
                let port = u16::try_from(b.port).ok()?;
                let node = BrokerNode { id: b.node_id.0, host: b.host.to_string(), port, rack: b.rack.as_ref().map(|r| r.to_string()) };
                Some((node.id, node))
            })
            .collect();
        let mut topics = HashMap::new();
        for t in &response.topics {
            let Some(name) = &t.name else { continue };
            let name: Arc<str> = Arc::from(name.0.as_str());
            let mut partitions: Vec<_> = t
                .partitions
                .iter()
                .map(|p| PartitionMetadata {
                    partition: p.partition_index,
                    leader: (p.leader_id.0 >= 0).then_some(Leader { node: p.leader_id.0, epoch: p.leader_epoch }),
                    replicas: p.replica_nodes.iter().map(|b| b.0).collect(),
                    in_sync: p.isr_nodes.iter().map(|b| b.0).collect(),
                })
                .collect();
            partitions.sort_by_key(|p| p.partition);
            let topic =
                TopicMetadata { name: name.clone(), id: t.topic_id, error: ErrorCode(t.error_code), internal: t.is_internal, partitions };
            topics.insert(name, topic);
        }
        ClusterMetadata {
            cluster_id: response.cluster_id.as_ref().map(|c| c.to_string()),
            controller: (response.controller_id.0 >= 0).then_some(response.controller_id.0),
            brokers,
            topics,
        }
    }
}
