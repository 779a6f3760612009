//! [`Cluster`]: metadata, leaders, coordinators and connections.
use super::config::ClientConfig;
use super::deadline::Deadline;
use super::error::{ClientError, Result};
use super::metadata::*;
use std::sync::Arc;

/// What a shared connection is for: the broker answers one connection's requests in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Metadata, offsets, administration.
    Control,
    /// Ends and descriptions of transactions.
    Transactions,
}

/// What a coordinator coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoordinatorKind {
    /// A consumer group.
    Group,
    /// A transactional id.
    Transaction,
}

/// A cluster, as all parts of the client share it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    config: Arc<ClientConfig>,
}

impl Cluster {
    /// Connects to the first bootstrap broker that answers, logs in and reads the brokers and features.
    pub async fn connect(_config: ClientConfig) -> Result<Self> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// The configuration.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }
    /// A deadline of `default.api.timeout.ms` from now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.config.api_timeout)
    }
    /// The finalized level of the feature `transaction.version`: 2 = partitions join a transaction by Produce itself.
    pub fn transaction_version(&self) -> i16 {
        0
    }
    /// Asks for fresh metadata; `None` for all topics. An unknown topic is in the answer with its error.
    pub async fn metadata(&self, _topics: Option<&[&str]>, _deadline: Deadline) -> Result<Arc<ClusterMetadata>> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// The topic from the cache, or asked for. An unknown topic is an error.
    pub async fn topic(&self, _topic: &str, _deadline: Deadline) -> Result<TopicMetadata> {
        Err(ClientError::Usage("not built yet".into()))
    }
}
