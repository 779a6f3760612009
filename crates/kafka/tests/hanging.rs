//! A partition without a leader misses the end of a transaction (KAFKA-20734): its rows are shown all the same, and the next
//! transactions take none with them.
#![allow(clippy::unwrap_used)]
mod support;

use semel_checkpoint::CheckpointId;
use semel_engine::sink::{Committed, ConnectorError, SinkCommitter, TwoPhaseCommitSink};
use semel_kafka::client::{Deadline, ErrorCode, Marker, Producers, TopicPartition};
use semel_kafka::committer::KafkaCommitter;
use semel_kafka::writer::KafkaWriter;
use semel_kafka::{KafkaSink, KafkaTransaction};
use semel_testkit::{Kafka, KafkaOptions};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::{Job, rows, sink, uid};
use tokio::sync::{Mutex, MutexGuard};

const SOON: Duration = Duration::from_secs(60);

fn brokers() -> &'static Kafka {
    static BROKERS: OnceLock<Kafka> = OnceLock::new();
    BROKERS.get_or_init(|| Kafka::start_with(KafkaOptions::three_brokers()).unwrap())
}

/// A topic with one replica, so that its partition has no leader while one broker is away.
fn unreplicated(kafka: &Kafka) -> (String, usize) {
    let topic = format!("alone-{}", semel_checkpoint::JobUuid::random().short());
    let config = json!({ "min.insync.replicas": "1" });
    let request = json!({ "topic": topic, "partitions": 1, "replication": 1, "topic_config": config });
    kafka.tool("create-topic", request, SOON).unwrap();
    let leader = kafka.leader(&topic, 0).unwrap().unwrap();
    (topic, leader)
}

/// One scene at a time: each takes a broker away.
static STAGE: Mutex<()> = Mutex::const_new(());

struct Scene {
    _stage: MutexGuard<'static, ()>,
    kafka: &'static Kafka,
    topic: String,
    leader: usize,
    job: Job,
    sink: KafkaSink,
    writer: KafkaWriter,
    committer: KafkaCommitter,
}

impl Scene {
    /// With a pre-committed transaction of generation 1 whose coordinator is another broker than the partition's leader.
    async fn new(value: &str) -> (Scene, KafkaTransaction) {
        let stage = STAGE.lock().await;
        let kafka = brokers();
        let (topic, leader) = unreplicated(kafka);
        let sink = sink(kafka, &topic).build().unwrap();
        loop {
            let job = Job::new();
            let (mut writer, committer) = sink.open(job.sink(1)).await.unwrap();
            let transaction = support::pre_commit(&mut writer, 1, rows([value.to_owned()])).await;
            let all = kafka.tool("transactions", json!({}), SOON).unwrap();
            let found = all["transactions"].as_array().unwrap().iter().find(|t| t["transactional_id"] == transaction.transactional_id);
            if found.unwrap()["coordinator"] != json!(leader) {
                return (Scene { _stage: stage, kafka, topic, leader, job, sink, writer, committer }, transaction);
            }
            sink.recover(&job.identity(2), &uid(), vec![]).await.unwrap();
        }
    }

    fn state(&self, transaction: &KafkaTransaction) -> String {
        let all = self.kafka.transactions().unwrap();
        all.into_iter().find(|t| t.transactional_id == transaction.transactional_id).map_or(String::new(), |t| t.state)
    }

    /// Kills the partition's leader, has the transaction ended, and starts the broker again when the coordinator calls it complete.
    async fn miss(&mut self, transaction: &KafkaTransaction, end: impl AsyncFnOnce(&mut Scene)) {
        self.kafka.kill(self.leader).unwrap();
        self.kafka.wait_leader(&self.topic, 0, |leader| leader.is_none()).unwrap();
        end(self).await;
        // A broker without the fault keeps the marker, and stays in Prepare until the leader is back.
        let until = Instant::now() + Duration::from_secs(5);
        while self.state(transaction).starts_with("Prepare") && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let state = self.state(transaction);
        self.kafka.start_again(self.leader).unwrap();
        self.kafka.wait_leader(&self.topic, 0, |leader| leader.is_some()).unwrap();
        println!("{state}; open in the partition: {:?}", self.kafka.open_producers(&self.topic).unwrap());
    }

    /// Again when it fails, as the engine does.
    async fn sweep(&self, generation: u64) {
        let until = Instant::now() + SOON;
        while let Err(error) = self.sink.sweep(&self.job.identity(generation), &uid()).await {
            assert!(matches!(error, ConnectorError::Retryable(_)) && Instant::now() < until, "{error}");
        }
    }

    /// Readers get to the end, and see this.
    fn assert_committed(&self, expected: &[&str]) {
        self.kafka.wait_stable(&self.topic, Duration::from_secs(10)).unwrap();
        assert_eq!(support::committed(self.kafka, &self.topic), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missed_commit_is_written() {
    let (mut scene, transaction) = Scene::new("paid").await;
    let permit = scene.job.permit(1, 1);
    scene
        .miss(&transaction, async |scene| {
            assert_eq!(scene.committer.commit(&transaction, &permit).await.unwrap(), Committed::Now);
        })
        .await;
    // By the generation that has committed it, and by one that knows nothing of it.
    scene.sweep(1).await;
    scene.assert_committed(&["paid"]);
    scene.sweep(2).await;
    scene.assert_committed(&["paid"]);
}

/// A marker that was on its way for long reaches the partition when the id has begun its next transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_marker_does_not_end_the_next_transaction() {
    let (mut scene, first) = Scene::new("paid").await;
    let permit = scene.job.permit(1, 1);
    scene.committer.commit(&first, &permit).await.unwrap();
    let mut checkpoint = 2;
    let next = loop {
        scene.committer.released(CheckpointId(checkpoint - 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let next = support::pre_commit(&mut scene.writer, checkpoint, rows(["half".to_owned()])).await;
        if next.transactional_id == first.transactional_id {
            break next;
        }
        scene.committer.abort(&next).await.unwrap();
        checkpoint += 1;
    };
    assert_eq!(next.producer_id, first.producer_id);
    let cluster = support::cluster(scene.kafka).await;
    let partition = BTreeSet::from([TopicPartition::new(scene.topic.as_str(), 0)]);
    let write = async |epoch| {
        let marker = Marker { producer_id: first.producer_id, epoch, commit: true, coordinator_epoch: 0 };
        let answers = Producers::new(cluster.clone()).write(&marker, &partition, Deadline::after(SOON)).await.unwrap();
        answers.into_values().next().unwrap()
    };
    // An older coordinator's epoch would be refused as well, with another code.
    assert_eq!(write(first.epoch).await, Err(ErrorCode::INVALID_PRODUCER_EPOCH));
    assert_eq!(support::committed(scene.kafka, &scene.topic), ["paid"]);
    scene.committer.commit(&next, &scene.job.permit(1, checkpoint)).await.unwrap();
    scene.assert_committed(&["half", "paid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missed_abort_is_written() {
    let (mut scene, transaction) = Scene::new("never").await;
    scene
        .miss(&transaction, async |scene| {
            // Done, and whether the partition shows it is for the next sweep.
            let error = scene.sink.sweep(&scene.job.identity(2), &uid()).await.unwrap_err();
            assert!(matches!(&error, ConnectorError::Retryable(why) if why.contains(&format!("{}-0", scene.topic))), "{error}");
        })
        .await;
    scene.sweep(2).await;
    scene.assert_committed(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_not_used_again_while_a_partition_holds_its_last_transaction() {
    let (mut scene, first) = Scene::new("paid").await;
    let permit = scene.job.permit(1, 1);
    scene
        .miss(&first, async |scene| {
            scene.committer.commit(&first, &permit).await.unwrap();
            scene.committer.released(CheckpointId(1)).await.unwrap();
        })
        .await;
    // The second one would count the first one's rows to itself in the partition, and its abort would take them along.
    let second = support::pre_commit(&mut scene.writer, 2, rows(["half".to_owned()])).await;
    assert_ne!(second.transactional_id, first.transactional_id);
    // Every checkpoint looks again, once in 250 ms, and in the end the id is free.
    let until = Instant::now() + SOON;
    let mut checkpoint = 2;
    let mut last = second;
    while last.transactional_id != first.transactional_id {
        assert!(Instant::now() < until, "{} was not used again", first.transactional_id);
        scene.committer.abort(&last).await.unwrap();
        scene.committer.released(CheckpointId(checkpoint)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        checkpoint += 1;
        last = support::pre_commit(&mut scene.writer, checkpoint, rows([format!("half {checkpoint}")])).await;
    }
    scene.committer.abort(&last).await.unwrap();
    scene.assert_committed(&["paid"]);
}
