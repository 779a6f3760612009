//! [`Producer`]: writes rows to partitions.
use super::cluster::Cluster;
use super::compression::Compression;
use super::deadline::Deadline;
use super::error::{ClientError, Result};
use super::metadata::TopicPartition;
use super::properties::Properties;
use super::record_batch::{Header, RowColumns};
use super::transactions::ProducerIdentity;
use std::collections::BTreeSet;
use std::time::Duration;

/// Which acknowledgements are waited for (`acks`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// None.
    None,
    /// The leader's.
    Leader,
    /// Those of all in-sync replicas. Needed for idempotence and transactions.
    #[default]
    All,
}

/// How a [`Producer`] writes.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// `acks`.
    pub acks: Acks,
    /// `batch.size` in bytes before compression.
    pub batch_size: usize,
    /// `linger.ms`: longest wait of a row for its batch to fill.
    pub linger: Duration,
    /// `compression.type`.
    pub compression: Compression,
    /// `buffer.memory`: bytes sent or to be sent, not acknowledged.
    pub buffer_memory: usize,
    /// `max.in.flight.requests.per.connection`, 1 to 5.
    pub max_in_flight: usize,
    /// `delivery.timeout.ms`: longest time from a row to its acknowledgement.
    pub delivery_timeout: Duration,
    /// `max.request.size` in bytes.
    pub max_request_size: usize,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        ProducerConfig {
            acks: Acks::All,
            batch_size: 256 << 10,
            linger: Duration::from_millis(5),
            compression: Compression::None,
            buffer_memory: 32 << 20,
            max_in_flight: 5,
            delivery_timeout: Duration::from_secs(120),
            max_request_size: 1 << 20,
        }
    }
}

impl ProducerConfig {
    /// Takes the producer's properties; what is absent keeps its default.
    pub fn take(_properties: &mut Properties) -> Result<Self> {
        Ok(Self::default())
    }
}

/// As whom a [`Producer`] writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// As nobody: a retry may double or reorder rows.
    Anonymous,
    /// Each batch at most once; in a transaction when the identity has a transactional id.
    Producer(ProducerIdentity),
}

/// Writes rows to partitions. One transaction at a time; batches of a partition arrive in the order in which they were sent.
/// Dropping it forgets what was not flushed; it never ends a transaction.
#[derive(Debug)]
pub struct Producer {}

impl Producer {
    /// A producer with this identity.
    pub fn new(_cluster: Cluster, _config: ProducerConfig, _identity: Identity) -> Result<Self> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// The identity in use.
    pub fn identity(&self) -> &Identity {
        &Identity::Anonymous
    }
    /// Goes on as `identity` (next transaction): all rows before must be flushed. Clears `partitions_written`.
    pub fn set_identity(&mut self, _identity: Identity) -> Result<()> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Takes the rows `indices` (all rows when `None`) of `rows` for `partition`. Waits while the buffer is full (back-pressure),
    /// at most until the deadline. An earlier failure of any batch is returned here too.
    pub async fn send_rows(&mut self, _partition: &TopicPartition, _rows: &RowColumns<'_>, _indices: Option<&[u32]>, _deadline: Deadline) -> Result<()> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Takes one record.
    pub async fn send(&mut self, _partition: &TopicPartition, _timestamp: i64, _key: Option<&[u8]>, _value: Option<&[u8]>, _headers: &[Header<'_>], _deadline: Deadline) -> Result<()> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Sends all that is buffered and waits for every acknowledgement. The first failure is returned, now and ever after.
    pub async fn flush(&mut self, _deadline: Deadline) -> Result<()> {
        Err(ClientError::Usage("not built yet".into()))
    }
    /// Partitions that rows were sent to under this identity.
    pub fn partitions_written(&self) -> BTreeSet<TopicPartition> {
        BTreeSet::new()
    }
    /// Bytes taken and not yet acknowledged.
    pub fn buffered_bytes(&self) -> usize {
        0
    }
}
