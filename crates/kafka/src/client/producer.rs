//! [`Producer`]: writes rows to partitions.
use super::cluster::Cluster;
use super::compression::Compression;
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, Result};
use super::metadata::TopicPartition;
use super::properties::Properties;
use super::record_batch::{BatchBuilder, BatchIdentity, Header, RowColumns};
use super::sender::Sender;
use super::transactions::ProducerIdentity;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

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
            buffer_memory: 16 << 20,
            max_in_flight: 5,
            delivery_timeout: Duration::from_secs(120),
            max_request_size: 1 << 20,
        }
    }
}

impl ProducerConfig {
    /// Takes the producer's properties; what is absent keeps its default.
    pub fn take(p: &mut Properties) -> Result<Self> {
        let mut config = Self::default();
        if let Some(acks) = p.take("acks") {
            config.acks = match acks.trim() {
                "0" => Acks::None,
                "1" => Acks::Leader,
                "all" | "-1" => Acks::All,
                other => return Err(ClientError::config("acks", format!("'{other}' is not one of 0, 1, all"))),
            };
        }
        let bytes = "a number of bytes";
        if let Some(size) = p.parse::<usize>("batch.size", bytes)? {
            config.batch_size = size.clamp(1, 1 << 30);
        }
        if let Some(ms) = p.parse::<u64>("linger.ms", "a number of milliseconds")? {
            config.linger = Duration::from_millis(ms);
        }
        if let Some(codec) = p.take("compression.type") {
            config.compression = codec.parse()?;
        }
        if let Some(size) = p.parse("buffer.memory", bytes)? {
            config.buffer_memory = size;
        }
        if let Some(requests) = p.parse("max.in.flight.requests.per.connection", "a number from 1 to 5")? {
            config.max_in_flight = requests;
        }
        if let Some(timeout) = p.millis("delivery.timeout.ms")? {
            config.delivery_timeout = timeout;
        }
        if let Some(size) = p.parse("max.request.size", bytes)? {
            config.max_request_size = size;
        }
        Ok(config)
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

impl Identity {
    /// The transactional id, if there is one.
    pub(super) fn transactional_id(&self) -> Option<&str> {
        match self {
            Identity::Anonymous => None,
            Identity::Producer(identity) => identity.transactional_id.as_deref(),
        }
    }

    fn batch(&self, sequence: i32) -> BatchIdentity {
        match self {
            Identity::Anonymous => BatchIdentity::ANONYMOUS,
            Identity::Producer(p) => {
                BatchIdentity { producer_id: p.producer_id, epoch: p.epoch, sequence, transactional: p.transactional_id.is_some() }
            }
        }
    }
}

/// A sealed batch that is not acknowledged.
pub(super) struct Batch {
    pub id: u64,
    pub bytes: Bytes,
    pub sequence: i32,
    pub opened: Instant,
    pub in_flight: bool,
    /// Bytes that it takes of `buffer.memory`.
    pub held: usize,
}

/// What is to be written to a partition.
pub(super) struct Partition {
    builder: BatchBuilder,
    /// When the builder's first row came.
    opened: Instant,
    next_sequence: i32,
    /// Sealed batches in the order of their sequence.
    pub queue: VecDeque<Batch>,
    pub in_flight: usize,
    /// A batch must be sent again: only when nothing is in flight any more, so that the order stays.
    pub retrying: bool,
    pub not_before: Option<Instant>,
    pub backoff: Backoff,
    /// The last refusal, for the message when time is up.
    pub last: Option<ClientError>,
    /// Whether it takes part in the transaction by AddPartitionsToTxn (before transaction.version 2).
    pub added: bool,
    written: bool,
}

impl Partition {
    fn new() -> Self {
        Partition {
            builder: BatchBuilder::new(),
            opened: Instant::now(),
            next_sequence: 0,
            queue: VecDeque::new(),
            in_flight: 0,
            retrying: false,
            not_before: None,
            backoff: Cluster::backoff(),
            last: None,
            added: false,
            written: false,
        }
    }

    /// When the open batch has lingered long enough; `None` without one.
    pub fn lingers_until(&self, linger: Duration) -> Option<Instant> {
        (!self.builder.is_empty()).then(|| self.opened + linger)
    }
}

pub(super) struct State {
    pub identity: Identity,
    pub partitions: HashMap<TopicPartition, Partition>,
    buffered: usize,
    unacknowledged: usize,
    next_id: u64,
    pub failed: Option<ClientError>,
}

impl State {
    /// Ends the open batch of a partition.
    pub fn seal(&mut self, partition: &TopicPartition, compression: Compression) -> Result<()> {
        let Some(p) = self.partitions.get_mut(partition).filter(|p| !p.builder.is_empty()) else { return Ok(()) };
        let (held, count) = (p.builder.size(), p.builder.count());
        let bytes = p.builder.seal(self.identity.batch(p.next_sequence), compression)?;
        p.queue.push_back(Batch { id: self.next_id, bytes, sequence: p.next_sequence, opened: p.opened, in_flight: false, held });
        // Sequence numbers go round at 2^31.
        p.next_sequence = p.next_sequence.wrapping_add(count) & i32::MAX;
        self.next_id += 1;
        self.unacknowledged += 1;
        Ok(())
    }

    /// A batch is acknowledged, or nobody needs it any more.
    pub fn done(&mut self, partition: &TopicPartition, id: u64) {
        let Some(p) = self.partitions.get_mut(partition) else { return };
        let Some(at) = p.queue.iter().position(|b| b.id == id) else { return };
        if let Some(batch) = p.queue.remove(at) {
            self.buffered -= batch.held;
            self.unacknowledged -= 1;
        }
    }

    /// The first failure stays; what is buffered will not be sent any more.
    pub fn fail(&mut self, error: ClientError) {
        if self.failed.is_none() {
            tracing::debug!(%error, "the producer has failed");
            self.failed = Some(error);
        }
    }
}

pub(super) struct Shared {
    pub cluster: Cluster,
    pub config: ProducerConfig,
    state: Mutex<State>,
    /// There is something to do for the sender.
    pub work: Notify,
    /// Something was acknowledged, or has failed.
    pub changed: Notify,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes rows to partitions. One transaction at a time; batches of a partition arrive in the order in which they were sent.
/// Dropping it forgets what was not flushed; it never ends a transaction.
pub struct Producer {
    shared: Arc<Shared>,
    identity: Identity,
    sender: JoinHandle<()>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

impl Producer {
    /// A producer with this identity. Must be called on a tokio runtime.
    pub fn new(cluster: Cluster, config: ProducerConfig, identity: Identity) -> Result<Self> {
        check(&config, &identity)?;
        let state =
            State { identity: identity.clone(), partitions: HashMap::new(), buffered: 0, unacknowledged: 0, next_id: 0, failed: None };
        let shared = Arc::new(Shared { cluster, config, state: Mutex::new(state), work: Notify::new(), changed: Notify::new() });
        let sender = tokio::spawn(Sender::new(shared.clone()).run());
        Ok(Producer { shared, identity, sender })
    }

    /// The identity in use.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Goes on as `identity` (next transaction): all rows before must be flushed. Clears `partitions_written`.
    pub fn set_identity(&mut self, identity: Identity) -> Result<()> {
        check(&self.shared.config, &identity)?;
        let mut state = self.shared.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if state.buffered > 0 || state.unacknowledged > 0 {
            return Err(ClientError::Usage("rows of the former transaction are not flushed".into()));
        }
        let same = state.identity == identity;
        for p in state.partitions.values_mut() {
            (p.written, p.added) = (false, false);
            if !same {
                p.next_sequence = 0;
            }
        }
        state.identity = identity.clone();
        self.identity = identity;
        Ok(())
    }

    /// Takes the rows `indices` (all rows when `None`) of `rows` for `partition`. Waits while the buffer is full (back-pressure),
    /// at most until the deadline. An earlier failure of any batch is returned here too.
    pub async fn send_rows(
        &mut self,
        partition: &TopicPartition,
        rows: &RowColumns<'_>,
        indices: Option<&[u32]>,
        deadline: Deadline,
    ) -> Result<()> {
        let end = indices.map_or(rows.values.ends.len(), <[u32]>::len);
        let mut at = 0;
        while at < end {
            at = self
                .take(partition, deadline, |builder, size| builder.append_rows(rows, indices, at, size).map(|next| (next, next == end)))
                .await?;
        }
        Ok(())
    }

    /// Takes one record.
    pub async fn send(
        &mut self,
        partition: &TopicPartition,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
        deadline: Deadline,
    ) -> Result<()> {
        self.take(partition, deadline, |builder, _| {
            builder.push(timestamp, key, value, headers);
            Ok((0, true))
        })
        .await
        .map(drop)
    }

    /// Waits for room, then appends to the partition's open batch. `append` returns its position and whether all was taken; if
    /// not, or if the batch is full, it is sealed.
    async fn take(
        &self,
        partition: &TopicPartition,
        deadline: Deadline,
        append: impl FnOnce(&mut BatchBuilder, usize) -> Result<(usize, bool)>,
    ) -> Result<usize> {
        let shared = &*self.shared;
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = shared.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if state.buffered < shared.config.buffer_memory {
                    if !state.partitions.contains_key(partition) {
                        state.partitions.insert(partition.clone(), Partition::new());
                    }
                    let State { partitions, buffered, .. } = &mut *state;
                    let Some(p) = partitions.get_mut(partition) else { continue };
                    let (before, fresh) = (p.builder.size(), p.builder.is_empty());
                    if fresh {
                        p.opened = Instant::now();
                    }
                    p.written = true;
                    let (at, all) = append(&mut p.builder, shared.config.batch_size)?;
                    let size = p.builder.size();
                    *buffered += size - before;
                    let full = !all || size >= shared.config.batch_size;
                    if full {
                        state.seal(partition, shared.config.compression)?;
                    }
                    if full || fresh {
                        shared.work.notify_one();
                    }
                    return Ok(at);
                }
            }
            if tokio::time::timeout_at(deadline.instant().into(), changed).await.is_err() {
                return Err(deadline.exceeded(format!("room in the producer's buffer for {partition}")));
            }
        }
    }

    /// Sends all that is buffered and waits for every acknowledgement. The first failure is returned, now and ever after; a
    /// producer without identity ([`Identity::Anonymous`]) goes on after it, without what it had buffered.
    pub async fn flush(&mut self, deadline: Deadline) -> Result<()> {
        let shared = &*self.shared;
        {
            let mut state = shared.lock();
            let open: Vec<TopicPartition> =
                state.partitions.iter().filter(|(_, p)| !p.builder.is_empty()).map(|(tp, _)| tp.clone()).collect();
            for partition in open {
                state.seal(&partition, shared.config.compression)?;
            }
        }
        shared.work.notify_one();
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = shared.lock();
                if let Some(error) = state.failed.clone() {
                    if state.identity == Identity::Anonymous && state.partitions.values().all(|p| p.in_flight == 0) {
                        state.partitions.clear();
                        (state.buffered, state.unacknowledged, state.failed) = (0, 0, None);
                    }
                    return Err(error);
                }
                if state.unacknowledged == 0 {
                    return Ok(());
                }
            }
            if tokio::time::timeout_at(deadline.instant().into(), changed).await.is_err() {
                return Err(deadline.exceeded("the acknowledgement of the rows sent"));
            }
        }
    }

    /// Partitions that rows were sent to under this identity.
    pub fn partitions_written(&self) -> BTreeSet<TopicPartition> {
        self.shared.lock().partitions.iter().filter(|(_, p)| p.written).map(|(tp, _)| tp.clone()).collect()
    }

    /// Bytes taken and not yet acknowledged.
    pub fn buffered_bytes(&self) -> usize {
        self.shared.lock().buffered
    }
}

fn check(config: &ProducerConfig, identity: &Identity) -> Result<()> {
    if matches!(identity, Identity::Producer(_)) && config.acks != Acks::All {
        return Err(ClientError::config("acks", "must be all for an idempotent or transactional producer"));
    }
    if config.max_in_flight == 0 || (config.max_in_flight > 5 && matches!(identity, Identity::Producer(_))) {
        return Err(ClientError::config(
            "max.in.flight.requests.per.connection",
            "must be 1 to 5: the broker remembers the last five batches of a producer",
        ));
    }
    Ok(())
}
