//! Phase one, one per subtask: rows into the open transaction, and the proof that it can be committed.

use crate::client::{
    Acks, ClientError, Cluster, Column, Deadline, Header, Identity, Producer, ProducerIdentity, RowColumns, Timestamps, TopicPartition,
    Transactions,
};
use crate::config::{DeliveryGuarantee, SinkSettings};
use crate::connect::{self, connector_error, now_ms};
use crate::decide::END_TXN_BUMPS_EPOCH;
use crate::encode::{Assigned, EncodedBatch, RowEncoder, Rows, assign};
use crate::handle::KafkaTransaction;
use crate::metrics::SinkMetrics;
use crate::partitioner::Partitioner;
use crate::pool::Lease;
use crate::settle::Settler;
use crate::sink::SharedPool;
use crate::{ConnectorError, ConnectorResult};
use arrow::array::RecordBatch;
use semel_checkpoint::CheckpointId;
use semel_engine::sink::{SinkContext, SinkWriter};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Longest time for getting a transactional id ready.
const INITIALISE: Duration = Duration::from_secs(60);

/// Writes the rows of one subtask. Dropping it ends no transaction.
pub struct KafkaWriter {
    guarantee: DeliveryGuarantee,
    partitioner: Partitioner,
    subtask: u32,
    piece_bytes: usize,
    timeout: Duration,
    send_timeout: Duration,
    bootstrap_servers: String,
    cluster: Cluster,
    encoder: RowEncoder,
    /// Made at the first transaction.
    producer: Option<Producer>,
    ids: Ids,
    settler: Settler,
    round: u32,
    scratch: Scratch,
    metrics: SinkMetrics,
}

/// Buffers that are used again.
#[derive(Default)]
struct Scratch {
    indices: Vec<u32>,
    key_data: Vec<u8>,
    key_ends: Vec<usize>,
    key_valid: Vec<bool>,
}

/// Gets transactional ids ready, in the background, ahead of need.
struct Ids {
    pool: Arc<SharedPool>,
    transactions: Transactions,
    timeout_ms: i32,
    task: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<ConnectorError>>>,
}

impl Drop for Ids {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Ids {
    /// Starts to initialise an id, unless one is ready or under way.
    fn prefetch(&mut self) {
        let Some(id) = self.pool.lock().to_initialise() else { return };
        let (pool, transactions, timeout_ms, failed) = (self.pool.clone(), self.transactions.clone(), self.timeout_ms, self.failed.clone());
        self.task = Some(tokio::spawn(async move {
            let answer = transactions.init_producer_id(Some(&id), timeout_ms, Deadline::after(INITIALISE)).await;
            let producer = match answer {
                Ok(identity) => Some((identity.producer_id, identity.epoch)),
                Err(error) => {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(connector_error(error));
                    None
                }
            };
            pool.lock().initialised(&id, producer);
            pool.changed.notify_waiters();
        }));
    }

    /// An id for a transaction, in steady state without waiting.
    async fn take(&mut self, checkpoint: CheckpointId) -> ConnectorResult<Lease> {
        let deadline = Deadline::after(INITIALISE);
        loop {
            let pool = self.pool.clone();
            let changed = pool.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let lease = self.pool.lock().take(checkpoint);
            if let Some(lease) = lease {
                // A failure of another id is over: it must not end a later wait.
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
                self.prefetch();
                return Ok(lease);
            }
            if let Some(error) = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(error);
            }
            self.prefetch();
            if tokio::time::timeout(deadline.remaining(), changed).await.is_err() {
                return Err(ConnectorError::Retryable(format!(
                    "no transactional id became ready within {INITIALISE:?}: their coordinators do not answer"
                )));
            }
        }
    }
}

impl KafkaWriter {
    pub(crate) async fn open(settings: &SinkSettings, context: &SinkContext, pool: Arc<SharedPool>) -> ConnectorResult<KafkaWriter> {
        let encoder = RowEncoder::new(settings, &context.schema)?;
        let cluster = connect::connect(&settings.client.client).await?;
        let transactions = Transactions::new(cluster.clone());
        let timeout_ms = i32::try_from(settings.transaction_timeout.as_millis()).unwrap_or(i32::MAX);
        let mut ids = Ids { pool, transactions: transactions.clone(), timeout_ms, task: None, failed: Arc::default() };
        if settings.guarantee == DeliveryGuarantee::ExactlyOnce {
            ids.prefetch();
        }
        let mut writer = KafkaWriter {
            guarantee: settings.guarantee,
            partitioner: settings.partitioner,
            subtask: context.subtask,
            piece_bytes: settings.client.producer.batch_size,
            timeout: settings.transaction_timeout,
            // A row is acknowledged or failed after delivery.timeout.ms; the margin is for the producer to say so.
            send_timeout: settings.client.producer.delivery_timeout + Duration::from_secs(10),
            bootstrap_servers: settings.bootstrap_servers.clone(),
            cluster,
            encoder,
            producer: None,
            ids,
            settler: Settler::new(transactions, settings.decision_timeout),
            round: context.subtask,
            scratch: Scratch::default(),
            metrics: SinkMetrics::new(context.uid.as_str(), context.subtask),
        };
        if settings.guarantee != DeliveryGuarantee::ExactlyOnce {
            writer.open_without_transactions(settings).await?;
        }
        writer.producer_config_check(settings)?;
        Ok(writer)
    }

    fn producer_config_check(&mut self, settings: &SinkSettings) -> ConnectorResult<()> {
        // The producer itself is made at the first transaction; a configuration that it refuses should show at the start.
        if self.producer.is_none() {
            self.producer =
                Some(Producer::new(self.cluster.clone(), settings.client.producer.clone(), Identity::Anonymous).map_err(connector_error)?);
        }
        Ok(())
    }

    async fn open_without_transactions(&mut self, settings: &SinkSettings) -> ConnectorResult<()> {
        let idempotent = settings.guarantee == DeliveryGuarantee::AtLeastOnce
            && settings.client.producer.acks == Acks::All
            && settings.properties.get("enable.idempotence").is_none_or(|value| value == "true");
        let identity = match idempotent {
            true => Identity::Producer(
                self.ids
                    .transactions
                    .init_producer_id(None, self.ids.timeout_ms, Deadline::after(INITIALISE))
                    .await
                    .map_err(connector_error)?,
            ),
            false => Identity::Anonymous,
        };
        self.producer = Some(Producer::new(self.cluster.clone(), settings.client.producer.clone(), identity).map_err(connector_error)?);
        Ok(())
    }

    fn producer(&mut self) -> ConnectorResult<&mut Producer> {
        let missing = || ConnectorError::Fatal("a row was written before its transaction was begun".to_owned());
        self.producer.as_mut().ok_or_else(missing)
    }

    /// Why rows could not be written. A fenced producer within the transaction's time was ended by somebody: a newer generation.
    fn failed(&self, error: ClientError, transaction: &KafkaTransaction) -> ConnectorError {
        self.metrics.record_errors.increment(transaction.rows.max(1));
        match &error {
            ClientError::Fenced { .. } if transaction.is_transactional() && now_ms() < transaction.deadline_ms => ConnectorError::Fenced(
                format!("{error}; {} was ended by a newer generation of this job, or by hand", transaction.transactional_id),
            ),
            ClientError::Fenced { .. } => ConnectorError::Retryable(format!(
                "{error}; {} was open for longer than transaction.timeout.ms = {}: checkpoint more often, or raise it",
                transaction.transactional_id,
                self.timeout.as_millis()
            )),
            _ => connector_error(error),
        }
    }

    async fn send(&mut self, transaction: &KafkaTransaction) -> ConnectorResult<()> {
        let now = now_ms();
        for (topic, rows) in self.encoder.topics()? {
            let deadline = Deadline::after(self.send_timeout);
            let partitions = self.cluster.topic(&topic, deadline).await.map_err(|error| self.failed(error, transaction))?.partitions.len();
            let encoded = self.encoder.encoded();
            let assigned =
                assign(encoded, rows.as_deref(), partitions as u32, self.partitioner, self.subtask, self.piece_bytes, &mut self.round);
            let Some(producer) = self.producer.as_mut() else { continue };
            let sent = match encoded.has_headers() {
                true => send_with_headers(producer, encoded, &topic, &assigned, now, deadline).await,
                false => send_columns(producer, encoded, &topic, &assigned, now, deadline, &mut self.scratch).await,
            };
            sent.map_err(|error| self.failed(error, transaction))?;
        }
        Ok(())
    }
}

/// All rows by columns: nothing is made per row.
async fn send_columns(
    producer: &mut Producer,
    encoded: &EncodedBatch,
    topic: &Arc<str>,
    assigned: &[Assigned],
    now: i64,
    deadline: Deadline,
    scratch: &mut Scratch,
) -> Result<(), ClientError> {
    let values = encoded.values();
    let Scratch { indices, key_data, key_ends, key_valid } = scratch;
    let keys = match encoded.serialized_keys() {
        Some(keys) => Some(Column { data: &keys.data, ends: &keys.ends, valid: None }),
        None if encoded.is_keyed() => {
            encoded.keys_into(key_data, key_ends, key_valid);
            Some(Column { data: key_data, ends: key_ends, valid: Some(key_valid) })
        }
        None => None,
    };
    let timestamps = encoded.timestamps(now);
    let columns = RowColumns {
        timestamps: timestamps.as_deref().map_or(Timestamps::All(now), Timestamps::Each),
        keys,
        values: Column { data: &values.data, ends: &values.ends, valid: None },
        headers: &[],
    };
    for part in assigned {
        let partition = TopicPartition { topic: topic.clone(), partition: part.partition };
        let chosen = match &part.rows {
            Rows::Range(0, to) if *to as usize == encoded.len() => None,
            Rows::Range(from, to) => {
                indices.clear();
                indices.extend(*from..*to);
                Some(&indices[..])
            }
            Rows::List(rows) => Some(&rows[..]),
        };
        producer.send_rows(&partition, &columns, chosen, deadline).await?;
    }
    Ok(())
}

async fn send_with_headers(
    producer: &mut Producer,
    encoded: &EncodedBatch,
    topic: &Arc<str>,
    assigned: &[Assigned],
    now: i64,
    deadline: Deadline,
) -> Result<(), ClientError> {
    for part in assigned {
        let partition = TopicPartition { topic: topic.clone(), partition: part.partition };
        let rows: Vec<u32> = part.rows.iter().collect();
        for row in rows {
            let row = row as usize;
            let headers: Vec<Header<'_>> = encoded.headers(row).map(|(key, value)| Header { key, value: Some(value) }).collect();
            let timestamp = encoded.timestamp(row).unwrap_or(now);
            producer.send(&partition, timestamp, encoded.key(row), Some(encoded.value(row)), &headers, deadline).await?;
        }
    }
    Ok(())
}

impl SinkWriter for KafkaWriter {
    type Transaction = KafkaTransaction;

    async fn begin_transaction(&mut self, checkpoint: CheckpointId) -> ConnectorResult<KafkaTransaction> {
        if self.guarantee != DeliveryGuarantee::ExactlyOnce {
            return Ok(KafkaTransaction { bootstrap_servers: self.bootstrap_servers.clone(), ..KafkaTransaction::default() });
        }
        let lease = self.ids.take(checkpoint).await?;
        let (ids, open) = {
            let pool = self.ids.pool.lock();
            (pool.size(), pool.open())
        };
        self.metrics.ids.set(ids as f64);
        self.metrics.open.set(open as f64);
        let end_version = self.settler.transactions().end_txn_version();
        warn_once_if_weaker(end_version);
        let transaction = KafkaTransaction {
            bootstrap_servers: self.bootstrap_servers.clone(),
            transactional_id: lease.transactional_id,
            producer_id: lease.producer_id,
            epoch: lease.epoch,
            deadline_ms: now_ms().saturating_add(i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)),
            end_version,
            ..KafkaTransaction::default()
        };
        let identity = Identity::Producer(ProducerIdentity {
            transactional_id: Some(transaction.transactional_id.clone()),
            producer_id: transaction.producer_id,
            epoch: transaction.epoch,
        });
        self.producer()?.set_identity(identity).map_err(connector_error)?;
        Ok(transaction)
    }

    async fn invoke(&mut self, transaction: &mut KafkaTransaction, rows: RecordBatch) -> ConnectorResult<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let bytes = self.encoder.encode(&rows)?.value_bytes();
        self.send(transaction).await?;
        transaction.rows += rows.num_rows() as u64;
        self.metrics.records_send.increment(rows.num_rows() as u64);
        self.metrics.bytes_send.increment(bytes as u64);
        Ok(())
    }

    async fn pre_commit(&mut self, transaction: &mut KafkaTransaction) -> ConnectorResult<()> {
        let begun = Instant::now();
        let deadline = Deadline::after(self.send_timeout);
        let flushed = self.producer()?.flush(deadline).await;
        match flushed {
            Err(error) if self.guarantee == DeliveryGuarantee::None => tracing::warn!(%error, "rows were lost (delivery guarantee none)"),
            flushed => flushed.map_err(|error| self.failed(error, transaction))?,
        }
        self.metrics.send_time.set(begun.elapsed().as_millis() as f64);
        if !transaction.is_transactional() {
            return Ok(());
        }
        for partition in self.producer()?.partitions_written() {
            transaction.partitions.entry(partition.topic.to_string()).or_default().insert(partition.partition);
        }
        self.settler.pre_commit(transaction).await
    }
}

/// Says once per process what brokers before 4.0 lack.
fn warn_once_if_weaker(end_version: i16) {
    static WARNED: Once = Once::new();
    if end_version > 0 && end_version < END_TXN_BUMPS_EPOCH {
        WARNED.call_once(|| {
            tracing::warn!(
                "the brokers offer EndTxn v{end_version} only (Kafka before 4.0): the producer epoch is bumped by InitProducerId before each transaction, \
                 but a request of a stopped process that arrives late can still add rows to the transaction that it had open. Kafka 4.0 closes this (KIP-890)"
            );
        });
    }
}
