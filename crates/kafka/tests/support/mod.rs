//! What the tests on a real broker share.
#![allow(clippy::unwrap_used, dead_code)]
use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use semel_checkpoint::{CheckpointId, CommitPermit, Generation, JobIdentity, JobUuid, OperatorUid, SplitState};
use semel_engine::sink::{Pending, SinkContext, SinkWriter, TwoPhaseCommitSink};
use semel_engine::source::{Source, SourceContext, SourceEvent, SourceReader};
use semel_formats::Format;
use semel_kafka::client::{ClientConfig, Cluster, Deadline};
use semel_kafka::writer::KafkaWriter;
use semel_kafka::{
    ConnectorError, DeliveryGuarantee, KafkaReader, KafkaSink, KafkaSinkBuilder, KafkaSource, KafkaSourceBuilder, KafkaTransaction,
};
use semel_testkit::Kafka;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub fn within(seconds: u64) -> Deadline {
    Deadline::after(Duration::from_secs(seconds))
}

pub async fn cluster(kafka: &Kafka) -> Cluster {
    Cluster::connect(ClientConfig::new(kafka.bootstrap().split(','))).await.unwrap()
}

/// One column of text.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("v", DataType::Utf8, false)]))
}

pub fn rows(values: impl IntoIterator<Item = String>) -> RecordBatch {
    RecordBatch::try_new(schema(), vec![Arc::new(StringArray::from_iter_values(values))]).unwrap()
}

pub fn texts(rows: &RecordBatch) -> Vec<String> {
    rows.column(0).as_string::<i32>().iter().map(|v| v.unwrap().to_owned()).collect()
}

/// An exactly-once sink of raw text.
pub fn sink(kafka: &Kafka, topic: &str) -> KafkaSinkBuilder {
    KafkaSink::builder(Arc::new(|schema| Format::Raw.serializer(schema.clone()).map_err(|e| e.to_string())))
        .bootstrap_servers(kafka.bootstrap())
        .topic(topic)
        .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
        .transactional_id_prefix(topic)
}

/// A source of raw text.
pub fn source(kafka: &Kafka, topic: &str) -> KafkaSourceBuilder {
    KafkaSource::builder(Arc::new(|| Format::Raw.deserializer(schema()).map_err(|e| e.to_string())))
        .bootstrap_servers(kafka.bootstrap())
        .topics([topic])
}

pub fn uid() -> OperatorUid {
    OperatorUid::new("out").unwrap()
}

/// A job, whose generations a test counts.
#[derive(Clone, Copy)]
pub struct Job(pub JobUuid);

impl Job {
    pub fn new() -> Job {
        Job(JobUuid::random())
    }

    pub fn identity(self, generation: u64) -> JobIdentity {
        JobIdentity { name: "job".to_owned(), uuid: self.0, generation: Generation(generation) }
    }

    pub fn sink(self, generation: u64) -> SinkContext {
        SinkContext { job: self.identity(generation), uid: uid(), subtask: 0, parallelism: 1, schema: schema() }
    }

    pub fn source(self, subtask: u32, parallelism: u32) -> SourceContext {
        SourceContext { job: self.identity(1), uid: OperatorUid::new("in").unwrap(), subtask, parallelism }
    }

    pub fn permit(self, checkpoint: u64, generation: u64) -> CommitPermit {
        CommitPermit::for_tests(self.0, CheckpointId(checkpoint), Generation(generation))
    }

    pub fn pending(self, checkpoint: u64, transaction: &KafkaTransaction, generation: u64) -> Pending<KafkaTransaction> {
        Pending {
            transaction: transaction.clone(),
            permit: self.permit(checkpoint, generation),
            subtask: 0,
            checkpoint: CheckpointId(checkpoint),
        }
    }
}

/// Waits until no transaction under the prefix is being ended: a commit is decided before its markers are written.
pub fn settled(kafka: &Kafka, prefix: &str) {
    kafka.wait_settled(prefix, Duration::from_secs(20)).unwrap();
}

/// Sweeps as the engine does, again and again, until readers of committed rows get to the topic's end: a partition whose
/// leader went away can have missed the end of a transaction (KAFKA-20734).
pub async fn swept_until_stable(kafka: &Kafka, topic: &str, sink: &KafkaSink, job: &JobIdentity) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let swept = sink.sweep(job, &uid()).await;
        let stable = kafka.wait_stable(topic, Duration::from_secs(3));
        match (swept, stable) {
            (Ok(_), Ok(())) => return,
            (swept, stable) => assert!(Instant::now() < until, "{swept:?}, {stable:?}"),
        }
    }
}

/// Values that a `read_committed` consumer of Apache's client sees, sorted. The topic is the prefix of the sink's ids.
pub fn committed(kafka: &Kafka, topic: &str) -> Vec<String> {
    settled(kafka, topic);
    let mut values: Vec<String> = kafka.read_committed(topic).unwrap().iter().map(|r| r.value_text().to_owned()).collect();
    values.sort_unstable();
    values
}

/// Ids of the open transactions under the prefix, by the broker's own account.
pub fn open_ids(kafka: &Kafka, prefix: &str) -> Vec<String> {
    settled(kafka, prefix);
    let mut ids: Vec<String> = kafka.open_transactions(prefix).unwrap().into_iter().map(|t| t.transactional_id).collect();
    ids.sort_unstable();
    ids
}

/// As another process would get it: by way of the journal.
pub fn through_json(transaction: &KafkaTransaction) -> KafkaTransaction {
    serde_json::from_str(&serde_json::to_string(transaction).unwrap()).unwrap()
}

/// Begins, writes and pre-commits.
pub async fn pre_commit(writer: &mut KafkaWriter, checkpoint: u64, rows: RecordBatch) -> KafkaTransaction {
    let mut transaction = writer.begin_transaction(CheckpointId(checkpoint)).await.unwrap();
    writer.invoke(&mut transaction, rows).await.unwrap();
    writer.pre_commit(&mut transaction).await.unwrap();
    transaction
}

/// What a reader brought.
#[derive(Default, Debug)]
pub struct Seen {
    pub values: BTreeMap<String, Vec<String>>,
    pub positions: BTreeMap<String, i64>,
    pub finished: Vec<String>,
    pub new_splits: Vec<String>,
    pub caught_up: BTreeMap<String, bool>,
    pub no_more: bool,
}

impl Seen {
    pub fn count(&self) -> usize {
        self.values.values().map(Vec::len).sum()
    }

    pub fn sorted(&self) -> Vec<String> {
        let mut all: Vec<String> = self.values.values().flatten().cloned().collect();
        all.sort_unstable();
        all
    }
}

/// Reads until `enough`, or panics after 30 s.
pub async fn read_until(reader: &mut KafkaReader, seen: &mut Seen, enough: impl Fn(&Seen) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !enough(seen) {
        let left = end.saturating_duration_since(Instant::now());
        let event = tokio::time::timeout(left, reader.next()).await.unwrap_or_else(|_| panic!("too late; seen so far: {seen:?}")).unwrap();
        match event {
            SourceEvent::Split(split) => seen.new_splits.push(split.split),
            SourceEvent::Rows { split, rows, position, caught_up } => {
                seen.values.entry(split.to_string()).or_default().extend(texts(&rows));
                seen.caught_up.insert(split.to_string(), caught_up);
                seen.positions.insert(split.to_string(), position);
            }
            SourceEvent::SplitFinished { split } => seen.finished.push(split.to_string()),
            SourceEvent::NoMoreSplits => seen.no_more = true,
        }
    }
}

/// Opens a source of its own job, alone or restored.
pub async fn open(source: &KafkaSourceBuilder, restored: Option<Vec<SplitState>>) -> (KafkaReader, Vec<SplitState>) {
    let mut reader = source.clone().build().unwrap().open(Job::new().source(0, 1), restored).await.unwrap();
    let splits = reader.splits();
    (reader, splits)
}

/// Reads a bounded source to its end.
pub async fn read_all(source: &KafkaSourceBuilder, restored: Option<Vec<SplitState>>) -> Seen {
    let (mut reader, splits) = open(source, restored).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.no_more && seen.finished.len() == splits.len()).await;
    seen
}

/// The failure that a reader ends with.
pub async fn failure(reader: &mut KafkaReader) -> ConnectorError {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if let Err(error) = tokio::time::timeout(left, reader.next()).await.expect("a failure in time") {
            return error;
        }
    }
}

/// Where a reader stands, as a checkpoint would keep it.
pub fn positions(splits: &[SplitState], seen: &Seen) -> Vec<SplitState> {
    let moved = splits.iter().cloned().map(|mut state| {
        state.position = seen.positions.get(&state.split).copied().unwrap_or(state.position);
        state
    });
    moved.collect()
}
