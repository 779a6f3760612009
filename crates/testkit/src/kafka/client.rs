//! What tests ask a cluster, answered by Apache's Java client over the plaintext listener.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Kafka;
use crate::java::{Reply, call};
use crate::{Error, Result};

/// Limit of one call, long enough for a broker that is being started again.
const CALL: Duration = Duration::from_secs(60);
/// Limit for reading a whole topic.
const READ: Duration = Duration::from_secs(180);

/// A record as a Java consumer saw it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Partition number.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Milliseconds since 1970, UTC.
    pub timestamp: i64,
    /// The key, `None` if null.
    pub key: Option<Vec<u8>>,
    /// The value, `None` if null.
    pub value: Option<Vec<u8>>,
    /// Names and values of the headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The value as text; empty if null or not UTF-8.
    pub fn value_text(&self) -> &str {
        self.value.as_deref().and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
    }
}

/// A record to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteRow {
    /// Partition; `None` leaves the choice to the Java client (by key).
    pub partition: Option<i32>,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Option<Vec<u8>>,
    /// Milliseconds since 1970, UTC; `None` is now.
    pub timestamp: Option<i64>,
    /// Headers in order.
    pub headers: Vec<(String, Vec<u8>)>,
}

impl WriteRow {
    /// A record for this partition, everything else empty.
    pub fn to(partition: i32) -> Self {
        Self { partition: Some(partition), ..Self::default() }
    }

    /// A record that the Java client places by its key.
    pub fn keyed(key: impl Into<Vec<u8>>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// Sets the value.
    pub fn value(mut self, value: impl Into<Vec<u8>>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Sets the key.
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the timestamp.
    pub fn timestamp(mut self, milliseconds: i64) -> Self {
        self.timestamp = Some(milliseconds);
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn to_json(&self) -> Value {
        let bytes = |b: &Option<Vec<u8>>| b.as_ref().map(|b| STANDARD.encode(b));
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (name, STANDARD.encode(value))).collect();
        json!([self.partition, bytes(&self.key), bytes(&self.value), self.timestamp, headers])
    }
}

/// A transaction that a coordinator knows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TransactionInfo {
    /// Its transactional id.
    pub transactional_id: String,
    /// `Ongoing`, `CompleteCommit`, `CompleteAbort`, `PrepareCommit`, `Empty`, ... as Kafka's tools print it.
    pub state: String,
    /// Its producer.
    pub producer_id: i64,
    /// The producer's epoch, if it could be described.
    #[serde(default)]
    pub producer_epoch: Option<i32>,
    /// `transaction.timeout.ms`, if it could be described.
    #[serde(default)]
    pub timeout_ms: Option<i64>,
    /// `topic-partition` of what an open one has written to.
    #[serde(default)]
    pub partitions: Vec<String>,
}

impl TransactionInfo {
    /// True in every state in which rows wait for an end (`Ongoing` or one of the `Prepare` states).
    pub fn is_open(&self) -> bool {
        self.state == "Ongoing" || self.state.starts_with("Prepare")
    }
}

/// A transaction that is open by a partition's own account; its coordinator may know nothing of it (KIP-664, KIP-890).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OpenProducer {
    /// Partition number.
    pub partition: i32,
    /// Its producer.
    pub producer_id: i64,
    /// The producer's epoch, as the partition knows it.
    pub producer_epoch: i32,
    /// First offset of the transaction: `read_committed` readers get no further than this.
    pub start_offset: i64,
}

/// Leader and replicas of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PartitionInfo {
    /// Partition number.
    pub partition: i32,
    /// Broker that leads it; -1 if none.
    pub leader: i32,
    /// All replicas, the preferred leader first.
    pub replicas: Vec<i32>,
    /// Replicas in sync.
    pub isr: Vec<i32>,
}

/// First and end offset of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct PartitionOffsets {
    /// Partition number.
    pub partition: i32,
    /// First offset that is kept.
    pub begin: i64,
    /// The last stable offset (read_committed) or the high watermark.
    pub end: i64,
}

type RowJson = (i32, i64, i64, Option<String>, Option<String>, Vec<(String, Option<String>)>);

fn decode(reply: &Reply) -> Result<Vec<Record>> {
    let bad = |e: &dyn std::fmt::Display| Error::Setup(format!("the Java tool sent a row that cannot be read: {e}"));
    let bytes = |text: Option<String>| text.map(|t| STANDARD.decode(t)).transpose().map_err(|e| bad(&e));
    let mut records = Vec::new();
    for batch in &reply.rows {
        let rows: Vec<RowJson> = serde_json::from_str(batch.get()).map_err(|e| bad(&e))?;
        for (partition, offset, timestamp, key, value, headers) in rows {
            let headers = headers.into_iter().map(|(name, value)| Ok((name, bytes(value)?))).collect::<Result<_>>()?;
            records.push(Record { partition, offset, timestamp, key: bytes(key)?, value: bytes(value)?, headers });
        }
    }
    records.sort_unstable_by_key(|record| (record.partition, record.offset));
    Ok(records)
}

fn field<T: serde::de::DeserializeOwned>(op: &str, value: &Value) -> Result<T> {
    T::deserialize(value).map_err(|e| Error::Tool { op: op.into(), message: format!("{value} cannot be read: {e}") })
}

impl Kafka {
    /// Runs any operation of the Java tool on the plaintext listener; the fields are those of `KafkaTool.java`.
    pub fn tool(&self, op: &str, mut request: Value, timeout: Duration) -> Result<Value> {
        request["bootstrap"] = json!(self.internal_bootstrap());
        Ok(call(op, request, timeout)?.ok)
    }

    /// Creates a topic with a unique name that starts with `prefix`, default replication, and leaders known.
    pub fn create_topic(&self, prefix: &str, partitions: u32) -> Result<String> {
        self.create_topic_with(prefix, partitions, &[])
    }

    /// As [`create_topic`](Self::create_topic), with topic configuration.
    pub fn create_topic_with(&self, prefix: &str, partitions: u32, config: &[(&str, &str)]) -> Result<String> {
        let name = format!("{prefix}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        self.create_topic_named(&name, partitions, config)?;
        Ok(name)
    }

    /// Creates a topic with exactly this name (to create a deleted one again, for instance).
    pub fn create_topic_named(&self, name: &str, partitions: u32, config: &[(&str, &str)]) -> Result<()> {
        let config: BTreeMap<_, _> = config.iter().copied().collect();
        self.tool("create-topic", json!({ "topic": name, "partitions": partitions, "topic_config": config }), CALL)?;
        Ok(())
    }

    /// Grants an operation of `AclOperation` on a resource of `ResourceType`; transactional ids by their prefix.
    pub fn allow(&self, user: &str, resource: &str, name: &str, operation: &str) -> Result<()> {
        let prefixed = resource == "TRANSACTIONAL_ID";
        let request = json!({ "user": user, "resource": resource, "name": name, "operation": operation, "prefixed": prefixed });
        self.tool("allow", request, CALL).map(drop)
    }

    /// Deletes a topic.
    pub fn delete_topic(&self, topic: &str) -> Result<()> {
        self.tool("delete-topic", json!({ "topic": topic }), CALL).map(drop)
    }

    /// Raises the number of partitions.
    pub fn create_partitions(&self, topic: &str, partitions: u32) -> Result<()> {
        self.tool("create-partitions", json!({ "topic": topic, "partitions": partitions }), CALL).map(drop)
    }

    /// Deletes all records of a partition before an offset, as retention would.
    pub fn delete_records(&self, topic: &str, partition: i32, before: i64) -> Result<()> {
        let request = json!({ "topic": topic, "partition": partition, "before": before });
        self.tool("delete-records", request, CALL).map(drop)
    }

    /// Writes with an idempotent Java producer and `acks=all`; returns when every row is acknowledged.
    pub fn write(&self, topic: &str, rows: impl IntoIterator<Item = WriteRow>) -> Result<u64> {
        let mut rows = rows.into_iter().peekable();
        let mut written = 0;
        while rows.peek().is_some() {
            let batch: Vec<Value> = rows.by_ref().take(10_000).map(|row| row.to_json()).collect();
            written += batch.len() as u64;
            self.tool("write", json!({ "topic": topic, "rows": batch }), READ)?;
        }
        Ok(written)
    }

    /// Reads a topic from its beginning to its last stable offset, sorted by partition and offset.
    pub fn read_committed(&self, topic: &str) -> Result<Vec<Record>> {
        self.read(topic, "read_committed", &BTreeMap::new())
    }

    /// Reads a topic from its beginning to its high watermark, rows of open and aborted transactions included.
    pub fn read_uncommitted(&self, topic: &str) -> Result<Vec<Record>> {
        self.read(topic, "read_uncommitted", &BTreeMap::new())
    }

    /// As [`read_committed`](Self::read_committed), from an offset for each named partition.
    pub fn read_committed_from(&self, topic: &str, from: &BTreeMap<i32, i64>) -> Result<Vec<Record>> {
        self.read(topic, "read_committed", from)
    }

    fn read(&self, topic: &str, isolation: &str, from: &BTreeMap<i32, i64>) -> Result<Vec<Record>> {
        let request = json!({ "bootstrap": self.internal_bootstrap(), "topic": topic, "isolation": isolation, "from": from });
        decode(&call("read", request, READ)?)
    }

    /// Reads a topic as a client under test would: through [`bootstrap`](Self::bootstrap), with these settings.
    pub fn read_as(&self, topic: &str, properties: &[(String, String)], timeout: Duration) -> Result<Vec<Record>> {
        let config: BTreeMap<_, _> = properties.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let request = json!({ "bootstrap": self.bootstrap(), "topic": topic, "config": config });
        decode(&call("read", request, timeout)?)
    }

    /// Number of committed records of a topic, counted by reading them.
    pub fn count_committed(&self, topic: &str) -> Result<u64> {
        let ok = self.tool("count", json!({ "topic": topic }), READ)?;
        field("count", &ok["count"])
    }

    /// First offsets and last stable offsets (`committed`) or high watermarks of a topic.
    pub fn offsets(&self, topic: &str, committed: bool) -> Result<Vec<PartitionOffsets>> {
        let isolation = if committed { "read_committed" } else { "read_uncommitted" };
        let ok = self.tool("end-offsets", json!({ "topic": topic, "isolation": isolation }), CALL)?;
        field("end-offsets", &ok["partitions"])
    }

    /// Writes rows in a transaction of a Java producer and commits it (`commit`) or aborts it. Returns when that is carried out:
    /// the producer itself is told as soon as it is decided, before the markers are written.
    pub fn write_transaction(&self, topic: &str, id: &str, rows: &[WriteRow], commit: bool) -> Result<()> {
        self.transaction(topic, id, rows, if commit { "commit" } else { "abort" }, 60_000)?;
        self.wait_settled(id, CALL)
    }

    /// Writes rows in a transaction and leaves it open; [`end_transaction`](Self::end_transaction) ends it.
    pub fn open_transaction(&self, topic: &str, id: &str, rows: &[WriteRow], timeout: Duration) -> Result<()> {
        self.transaction(topic, id, rows, "open", u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
    }

    fn transaction(&self, topic: &str, id: &str, rows: &[WriteRow], end: &str, timeout_ms: u64) -> Result<()> {
        let rows: Vec<Value> = rows.iter().map(WriteRow::to_json).collect();
        let request = json!({
            "topic": topic, "transactional_id": id, "rows": rows, "end": end, "transaction_timeout_ms": timeout_ms,
        });
        self.tool("transaction", request, CALL).map(drop)
    }

    /// Ends a transaction that [`open_transaction`](Self::open_transaction) left open, with the same producer.
    pub fn end_transaction(&self, id: &str, commit: bool) -> Result<()> {
        let end = if commit { "commit" } else { "abort" };
        self.tool("end-transaction", json!({ "transactional_id": id, "end": end }), CALL)?;
        self.wait_settled(id, CALL)
    }

    /// Aborts whatever is open under an id from outside (`kafka-transactions.sh forceTerminateTransaction`).
    pub fn terminate_transaction(&self, id: &str) -> Result<()> {
        self.tool("terminate-transaction", json!({ "transactional_id": id }), CALL).map(drop)
    }

    /// All transactions that any broker lists, with their state.
    pub fn transactions(&self) -> Result<Vec<TransactionInfo>> {
        let ok = self.tool("transactions", json!({}), CALL)?;
        field("transactions", &ok["transactions"])
    }

    /// The open transactions whose id starts with `prefix`.
    pub fn open_transactions(&self, prefix: &str) -> Result<Vec<TransactionInfo>> {
        let mut open = self.transactions()?;
        open.retain(|transaction| transaction.is_open() && transaction.transactional_id.starts_with(prefix));
        Ok(open)
    }

    /// What is open by the account of a topic's partitions.
    pub fn open_producers(&self, topic: &str) -> Result<Vec<OpenProducer>> {
        let ok = self.tool("open-producers", json!({ "topic": topic }), CALL)?;
        field("open-producers", &ok["producers"])
    }

    /// Waits until no transaction under the prefix is being ended: a commit is decided before its markers are written.
    pub fn wait_settled(&self, prefix: &str, within: Duration) -> Result<()> {
        let ending = |t: &TransactionInfo| t.transactional_id.starts_with(prefix) && t.state.starts_with("Prepare");
        self.wait_for("a transaction that is being ended", within, || {
            Ok(self.transactions()?.into_iter().filter(ending).map(|t| format!("{t:?}")).collect())
        })
    }

    /// Waits until `read_committed` readers of a topic can get to its end.
    pub fn wait_stable(&self, topic: &str, within: Duration) -> Result<()> {
        self.wait_for("a transaction that is open in its partitions", within, || {
            let (stable, all) = (self.offsets(topic, true)?, self.offsets(topic, false)?);
            let held = stable.iter().zip(&all).filter(|(stable, all)| stable.end < all.end);
            let mut held: Vec<String> = held.map(|(s, a)| format!("{topic}-{}: stable to {} of {}", s.partition, s.end, a.end)).collect();
            if !held.is_empty() {
                held.extend(self.open_producers(topic)?.iter().map(|open| format!("{open:?}")));
            }
            Ok(held)
        })
    }

    /// Waits until nothing is found.
    fn wait_for(&self, what: &str, within: Duration, mut find: impl FnMut() -> Result<Vec<String>>) -> Result<()> {
        let end = Instant::now() + within;
        loop {
            let found = find()?;
            if found.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error::Setup(format!("{what} stays for {within:?}: {}", found.join("; "))));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Leader and replicas of each partition.
    pub fn describe_topic(&self, topic: &str) -> Result<Vec<PartitionInfo>> {
        let ok = self.tool("describe-topic", json!({ "topic": topic }), CALL)?;
        field("describe-topic", &ok["partitions"])
    }

    /// The broker that leads a partition; `None` while there is none.
    pub fn leader(&self, topic: &str, partition: i32) -> Result<Option<usize>> {
        let all = self.describe_topic(topic)?;
        let found = all.iter().find(|info| info.partition == partition);
        Ok(found.and_then(|info| usize::try_from(info.leader).ok()).filter(|leader| *leader > 0))
    }

    /// Moves the leadership of a partition to a broker that holds a replica of it, and waits until it leads.
    pub fn move_leader(&self, topic: &str, partition: i32, to: usize) -> Result<()> {
        let wanted = i32::try_from(to).map_err(|_| Error::Setup(format!("there is no broker {to}")))?;
        let all = self.describe_topic(topic)?;
        let Some(info) = all.iter().find(|info| info.partition == partition) else {
            return Err(Error::Setup(format!("{topic} has no partition {partition}")));
        };
        let mut replicas = vec![wanted];
        replicas.extend(info.replicas.iter().filter(|id| **id != wanted));
        let request = json!({ "topic": topic, "partition": partition, "replicas": replicas });
        self.tool("reassign", request, CALL)?;
        self.tool("elect-leader", json!({ "topic": topic, "partition": partition }), CALL)?;
        self.wait_leader(topic, partition, |leader| leader == Some(to)).map(drop)
    }

    /// Waits until the leader of a partition is as wanted, and returns it.
    pub fn wait_leader(&self, topic: &str, partition: i32, wanted: impl Fn(Option<usize>) -> bool) -> Result<Option<usize>> {
        let deadline = std::time::Instant::now() + CALL;
        loop {
            let leader = self.leader(topic, partition)?;
            if wanted(leader) {
                return Ok(leader);
            }
            if std::time::Instant::now() > deadline {
                return Err(Error::Deadline {
                    what: format!("the wanted leader of {topic}-{partition}"),
                    after: CALL,
                    hint: format!("it is {leader:?}"),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Offsets that a consumer group has committed for a topic, by partition.
    pub fn group_offsets(&self, group: &str, topic: &str) -> Result<BTreeMap<i32, i64>> {
        #[derive(Deserialize)]
        struct One {
            topic: String,
            partition: i32,
            offset: i64,
        }
        let ok = self.tool("group-offsets", json!({ "group": group }), CALL)?;
        let all: Vec<One> = field("group-offsets", &ok["offsets"])?;
        Ok(all.into_iter().filter(|one| one.topic == topic).map(|one| (one.partition, one.offset)).collect())
    }
}
