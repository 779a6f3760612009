//! [`Admin`]: topics, configurations, the cluster.
use super::cluster::Cluster;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::BrokerNode;

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Number of partitions, -1 for the broker's default.
    pub partitions: i32,
    /// Replicas, -1 for the broker's default.
    pub replication_factor: i16,
    /// Topic configuration.
    pub configs: Vec<(String, String)>,
}

/// One configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Key.
    pub name: String,
    /// Value; `None` for null or hidden ones.
    pub value: Option<String>,
    /// Whether nobody has set it.
    pub is_default: bool,
}

/// The cluster's own description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Cluster id.
    pub cluster_id: String,
    /// Controller, or a broker that forwards to it.
    pub controller: Option<i32>,
    /// Live brokers.
    pub brokers: Vec<BrokerNode>,
}

/// Topics, configurations, the cluster.
#[derive(Clone, Debug)]
pub struct Admin {
    _cluster: Cluster,
}

impl Admin {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Admin { _cluster: cluster }
    }
    /// Creates topics and waits until they have leaders; the codes are in the order asked (`TOPIC_ALREADY_EXISTS` is one).
    pub async fn create_topics(&self, _topics: &[NewTopic], _deadline: Deadline) -> Result<Vec<(ErrorCode, Option<String>)>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Deletes topics; the codes are in the order asked.
    pub async fn delete_topics(&self, _topics: &[&str], _deadline: Deadline) -> Result<Vec<ErrorCode>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Configuration of a topic; `keys` empty for all.
    pub async fn topic_configs(&self, _topic: &str, _keys: &[&str], _deadline: Deadline) -> Result<Vec<ConfigEntry>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Configuration of a broker (asked of that broker); `keys` empty for all. E.g. `transaction.max.timeout.ms`.
    pub async fn broker_configs(&self, _broker: i32, _keys: &[&str], _deadline: Deadline) -> Result<Vec<ConfigEntry>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Brokers and controller.
    pub async fn describe_cluster(&self, _deadline: Deadline) -> Result<ClusterDescription> {
        Err(ClientError::Usage("not built yet".into()))
    }
}
