//! The sink on a real broker: writer, committer and recovery; read by Apache's client.
#![allow(clippy::unwrap_used)]
mod support;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use semel_checkpoint::CheckpointId;
use semel_engine::sink::{SinkCommitter, SinkContext, SinkWriter, TwoPhaseCommitSink};
use semel_formats::{Format, JsonOptions};
use semel_kafka::transactions::TransactionTool;
use semel_kafka::{Committed, ConnectorError, DeliveryGuarantee, KafkaSink, KafkaTransaction, ValueFields};
use semel_testkit::{Cut, Direction, Kafka, KafkaOptions, WriteRow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Job, committed, open_ids, pre_commit, rows, sink, through_json, uid};

fn values(name: &str, n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{name}/{i:0>3}")).collect()
}

fn subtask(job: Job, generation: u64, subtask: u32, parallelism: u32) -> SinkContext {
    SinkContext { subtask, parallelism, ..job.sink(generation) }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_visible_after_the_commit_and_a_repeat_changes_nothing() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("visible", 3).unwrap();
    let (job, sink) = (Job::new(), sink(kafka, &topic).build().unwrap());
    let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
    let first = pre_commit(&mut writer, 1, rows(values("a", 100))).await;
    assert_eq!(first.rows, 100);
    assert!(!first.partitions[&topic].is_empty());
    // Rows of checkpoint 2 are taken and pre-committed before checkpoint 1 is committed.
    let second = pre_commit(&mut writer, 2, rows(values("b", 100))).await;
    assert_ne!(first.transactional_id, second.transactional_id);
    assert!(committed(kafka, &topic).is_empty(), "visible before its commit");
    assert_eq!(kafka.read_uncommitted(&topic).unwrap().len(), 200, "pre-committed rows are on the broker");

    let permit = job.permit(1, 1);
    assert_eq!(committer.commit(&first, &permit).await.unwrap(), Committed::Now);
    for _ in 0..2 {
        // Repeated at once and later, by this process and by another one.
        committer.commit(&first, &permit).await.unwrap();
        let (_, mut other) = sink.open(job.sink(2)).await.unwrap();
        other.commit(&through_json(&first), &permit).await.unwrap();
        support::settled(kafka, &topic);
    }
    committer.commit(&second, &job.permit(2, 1)).await.unwrap();
    committer.released(CheckpointId(1)).await.unwrap();
    // The released id is used again as soon as the partitions have shown the end of its transaction.
    let mut wanted = [values("a", 100), values("b", 100)].concat();
    for checkpoint in 3.. {
        assert!(checkpoint < 50, "{} is not used again", first.transactional_id);
        let next = pre_commit(&mut writer, checkpoint, rows(values(&format!("c{checkpoint:0>2}"), 10))).await;
        wanted.extend(values(&format!("c{checkpoint:0>2}"), 10));
        committer.commit(&next, &job.permit(checkpoint, 1)).await.unwrap();
        if next.transactional_id == first.transactional_id {
            assert_eq!(next.epoch, first.epoch + 1);
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(committed(kafka, &topic), wanted);
    // The id has moved on: nobody can prove the first any more, and nobody calls that a success.
    let error = committer.commit(&first, &permit).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains(&first.transactional_id)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_transaction_is_never_visible() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("aborted", 1).unwrap();
    let (job, sink) = (Job::new(), sink(kafka, &topic).build().unwrap());
    let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
    let first = pre_commit(&mut writer, 1, rows(values("a", 10))).await;
    committer.abort(&first).await.unwrap();
    committer.abort(&through_json(&first)).await.unwrap();
    let error = committer.commit(&first, &job.permit(1, 1)).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Lost(_)), "{error}");
    let second = pre_commit(&mut writer, 2, rows(values("b", 10))).await;
    committer.commit(&second, &job.permit(2, 1)).await.unwrap();
    assert!(committer.abort(&second).await.is_err(), "what is committed cannot be aborted");
    assert_eq!(committed(kafka, &topic), values("b", 10));
    assert!(open_ids(kafka, &topic).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn recovery_commits_what_is_pending_and_aborts_what_nobody_holds() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("recovery", 3).unwrap();
    let (job, sink) = (Job::new(), sink(kafka, &topic).build().unwrap());
    // Generation 1 with three subtasks: one transaction is in the journal, one is pre-committed, one is open.
    let mut halves = vec![];
    for n in 0..3 {
        halves.push(sink.open(subtask(job, 1, n, 3)).await.unwrap());
    }
    let pending = pre_commit(&mut halves[0].0, 1, rows(values("pending", 50))).await;
    let orphan = pre_commit(&mut halves[1].0, 2, rows(values("orphan", 50))).await;
    let mut open = halves[2].0.begin_transaction(CheckpointId(2)).await.unwrap();
    halves[2].0.invoke(&mut open, rows(values("open", 50))).await.unwrap();
    let wait = Instant::now() + Duration::from_secs(10);
    while open_ids(kafka, &topic).len() < 3 {
        assert!(Instant::now() < wait, "an open batch lingers for longer than linger.ms");
    }
    drop(halves);
    // Neither another job's, nor another sink's, nor anything else under the prefix may be touched.
    let (mut foreign_job, _) = sink.open(Job::new().sink(1)).await.unwrap();
    let foreign_job = pre_commit(&mut foreign_job, 1, rows(values("other job", 1))).await;
    let other_uid = semel_checkpoint::OperatorUid::new("out-1").unwrap();
    let (mut other_sink, _) = sink.open(SinkContext { uid: other_uid, ..job.sink(1) }).await.unwrap();
    let other_sink = pre_commit(&mut other_sink, 1, rows(values("other sink", 1))).await;
    let by_hand = format!("{topic}-by-hand");
    kafka.open_transaction(&topic, &by_hand, &[WriteRow::to(0).value("by hand")], Duration::from_secs(60)).unwrap();

    // Generation 2 has one subtask.
    let sink = support::sink(kafka, &topic).build().unwrap();
    let swept = sink.recover(&job.identity(2), &uid(), vec![job.pending(1, &through_json(&pending), 2)]).await.unwrap();
    let mut gone = vec![orphan.transactional_id.clone(), open.transactional_id.clone()];
    gone.sort();
    assert_eq!(swept.aborted, gone);
    let mut left = vec![foreign_job.transactional_id.clone(), other_sink.transactional_id.clone(), by_hand.clone()];
    left.sort();
    assert_eq!(open_ids(kafka, &topic), left);
    // The supervisor dies and recovers again, in the same and in the next generation.
    for generation in [2, 3] {
        let swept = sink.recover(&job.identity(generation), &uid(), vec![job.pending(1, &pending, generation)]).await.unwrap();
        assert!(swept.aborted.is_empty(), "{swept:?}");
    }
    let (mut writer, mut committer) = sink.open(job.sink(3)).await.unwrap();
    let next = pre_commit(&mut writer, 2, rows(values("replayed", 50))).await;
    assert!(sink.sweep(&job.identity(3), &uid()).await.unwrap().aborted.is_empty(), "its own generation is not swept");
    committer.commit(&next, &job.permit(2, 3)).await.unwrap();
    for id in [&foreign_job.transactional_id, &other_sink.transactional_id, &by_hand] {
        kafka.terminate_transaction(id).unwrap();
    }
    assert_eq!(committed(kafka, &topic), [values("pending", 50), values("replayed", 50)].concat());
}

/// A process that was frozen wakes after its successor has recovered.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_shows_no_row_and_leaves_nothing_open() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("zombie", 2).unwrap();
    let (job, old) = (Job::new(), sink(kafka, &topic).build().unwrap());
    let (mut zombie, mut zombies_committer) = old.open(job.sink(1)).await.unwrap();
    let complete = pre_commit(&mut zombie, 1, rows(values("complete", 10))).await;
    let mut frozen = zombie.begin_transaction(CheckpointId(2)).await.unwrap();
    zombie.invoke(&mut frozen, rows(values("frozen", 10))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;

    let new = sink(kafka, &topic).build().unwrap();
    new.recover(&job.identity(2), &uid(), vec![job.pending(1, &complete, 2)]).await.unwrap();
    let (mut writer, mut committer) = new.open(job.sink(2)).await.unwrap();
    // It holds an honest permit for checkpoint 1, which is committed already.
    zombies_committer.commit(&complete, &job.permit(1, 1)).await.unwrap();
    // It goes on with the transaction that its successor has aborted.
    _ = zombie.invoke(&mut frozen, rows(values("late", 10))).await;
    let error = zombie.pre_commit(&mut frozen).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Fenced(_)), "{error}");
    assert!(zombies_committer.commit(&frozen, &job.permit(2, 1)).await.is_err());
    // A second zombie opens new transactions on waking, and they are honest ones to the broker.
    let (mut waking, mut wakings_committer) = old.open(subtask(job, 1, 1, 2)).await.unwrap();
    let opened = pre_commit(&mut waking, 2, rows(values("opened", 10))).await;
    assert_eq!(open_ids(kafka, &topic), std::slice::from_ref(&opened.transactional_id));
    // Behind it the successor's rows wait for the sweep, not for the transaction's timeout.
    let next = pre_commit(&mut writer, 2, rows(values("next", 10))).await;
    committer.commit(&next, &job.permit(2, 2)).await.unwrap();
    let swept = new.sweep(&job.identity(2), &uid()).await.unwrap();
    assert_eq!(swept.aborted, [opened.transactional_id.as_str()]);
    assert!(open_ids(kafka, &topic).is_empty());
    let error = wakings_committer.commit(&opened, &job.permit(2, 1)).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Lost(_)), "{error}");
    assert_eq!(committed(kafka, &topic), [values("complete", 10), values("next", 10)].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_broker_aborted_is_lost_and_the_others_are_committed() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("lost", 2).unwrap();
    let job = Job::new();
    let short = sink(kafka, &topic).property("transaction.timeout.ms", "1000").build().unwrap();
    let (mut writer, mut committer) = short.open(subtask(job, 1, 0, 2)).await.unwrap();
    let lost = pre_commit(&mut writer, 1, rows(values("lost", 10))).await;
    let long = sink(kafka, &topic).build().unwrap();
    let (mut other, _) = long.open(subtask(job, 1, 1, 2)).await.unwrap();
    let kept = pre_commit(&mut other, 1, rows(values("kept", 10))).await;
    let later = pre_commit(&mut other, 2, rows(values("later", 10))).await;
    // A third one is aborted by hand, with the tool that leaves a trace.
    let killed = pre_commit(&mut other, 2, rows(values("killed", 10))).await;
    let tool = TransactionTool::new(support::cluster(kafka).await);
    assert_eq!(tool.abort(&killed.transactional_id).await.unwrap().partitions, killed.partitions);
    // The coordinator looks for overdue transactions every 10 s.
    let wait = Instant::now() + Duration::from_secs(40);
    while open_ids(kafka, &topic).contains(&lost.transactional_id) {
        assert!(Instant::now() < wait, "the broker does not abort an overdue transaction");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let error = committer.commit(&lost, &job.permit(1, 1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Lost(text) if text.contains(&lost.transactional_id) && text.contains("10 rows")), "{error}");
    let pending = [(1, &lost), (1, &kept), (2, &later), (2, &killed)].map(|(id, t)| job.pending(id, t, 2)).to_vec();
    let error = long.recover(&job.identity(2), &uid(), pending).await.unwrap_err();
    let ConnectorError::Lost(text) = &error else { panic!("{error}") };
    for part in [&lost.transactional_id, &killed.transactional_id, "checkpoint 1", "checkpoint 2"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains(&kept.transactional_id), "{text}");
    assert_eq!(committed(kafka, &topic), [values("kept", 10), values("later", 10)].concat());
    // What ends a transaction without a trace (forceTerminateTransaction) leaves nobody who can tell, and that is no success.
    let erased = pre_commit(&mut other, 3, rows(values("erased", 10))).await;
    kafka.terminate_transaction(&erased.transactional_id).unwrap();
    let error = long.recover(&job.identity(2), &uid(), vec![job.pending(3, &erased, 2)]).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains("nobody can tell")), "{error}");
    // Rows that come after the timeout are told what to change.
    let mut overdue = writer.begin_transaction(CheckpointId(3)).await.unwrap();
    writer.invoke(&mut overdue, rows(values("x", 1))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    while !open_ids(kafka, &topic).is_empty() {
        assert!(Instant::now() < wait, "the broker does not abort an overdue transaction");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    _ = writer.invoke(&mut overdue, rows(values("y", 1))).await;
    let error = writer.pre_commit(&mut overdue).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Retryable(text) if text.contains("transaction.timeout.ms")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_transactions_rows_are_visible_at_the_barrier() {
    let kafka = Kafka::shared().unwrap();
    for guarantee in [DeliveryGuarantee::None, DeliveryGuarantee::AtLeastOnce] {
        let topic = kafka.create_topic("plain", 2).unwrap();
        let (job, sink) = (Job::new(), sink(kafka, &topic).delivery_guarantee(guarantee).build().unwrap());
        let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
        for checkpoint in 1..=3 {
            let transaction = pre_commit(&mut writer, checkpoint, rows(values(&checkpoint.to_string(), 20))).await;
            assert!(!transaction.is_transactional());
            assert_eq!(committed(kafka, &topic).len(), 20 * checkpoint as usize, "{guarantee:?}");
            committer.commit(&transaction, &job.permit(checkpoint, 1)).await.unwrap();
            sink.recover(&job.identity(2), &uid(), vec![job.pending(checkpoint, &transaction, 2)]).await.unwrap();
        }
        assert!(kafka.transactions().unwrap().iter().all(|t| !t.transactional_id.starts_with(&topic)));
    }
}

/// What an exactly-once sink has left is committed also after the sink's guarantee was changed.
#[tokio::test(flavor = "multi_thread")]
async fn pending_transactions_outlive_a_change_of_the_guarantee() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("changed", 1).unwrap();
    let job = Job::new();
    let (mut writer, _) = sink(kafka, &topic).build().unwrap().open(job.sink(1)).await.unwrap();
    let pending = pre_commit(&mut writer, 1, rows(values("a", 5))).await;
    let now = sink(kafka, &topic).delivery_guarantee(DeliveryGuarantee::AtLeastOnce).build().unwrap();
    now.recover(&job.identity(2), &uid(), vec![job.pending(1, &pending, 2)]).await.unwrap();
    assert_eq!(committed(kafka, &topic), values("a", 5));
}

fn keyed_rows(n: usize) -> RecordBatch {
    let key = |i: usize| (i % 10 != 9).then(|| format!("key {} \u{e9}", i * 7));
    let keys: ArrayRef = Arc::new((0..n).map(key).collect::<StringArray>());
    let values: ArrayRef = Arc::new(StringArray::from_iter_values((0..n).map(|i| format!("v{i}"))));
    let header: ArrayRef = Arc::new((0..n).map(|i| (i % 2 == 0).then(|| format!("h{i}"))).collect::<StringArray>());
    let times: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n).map(|i| 1_750_000_000_000 + i as i64)));
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("v", values, false), ("h", header, true), ("t", times, false)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_headers_timestamps_and_partitions_are_as_apaches_client_writes_them() {
    let kafka = Kafka::shared().unwrap();
    let batch = keyed_rows(200);
    // Where Apache's client puts these keys.
    let reference = kafka.create_topic("reference", 7).unwrap();
    let keys: Vec<Option<String>> = (0..200).map(|i| (i % 10 != 9).then(|| format!("key {} \u{e9}", i * 7))).collect();
    kafka.write(&reference, keys.iter().flatten().map(|key| WriteRow::keyed(key.as_bytes()).value("x"))).unwrap();
    let wanted: BTreeMap<Vec<u8>, i32> =
        kafka.read_committed(&reference).unwrap().into_iter().map(|r| (r.key.unwrap(), r.partition)).collect();
    assert!(wanted.values().collect::<std::collections::BTreeSet<_>>().len() == 7, "the keys reach every partition");
    for headers in [false, true] {
        let topic = kafka.create_topic("keyed", 7).unwrap();
        let mut builder = KafkaSink::builder(Arc::new(|schema| {
            Format::Json(JsonOptions::default()).serializer(schema.clone()).map_err(|e| e.to_string())
        }))
        .bootstrap_servers(kafka.bootstrap())
        .topic(&topic)
        .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
        .transactional_id_prefix(&topic)
        .key_columns(["k"])
        .value_fields(ValueFields::ExceptKey)
        .timestamp_column("t");
        if headers {
            builder = builder.header("head", "h");
        }
        let (job, sink) = (Job::new(), builder.build().unwrap());
        let context = SinkContext { schema: batch.schema(), ..job.sink(1) };
        let (mut writer, mut committer) = sink.open(context).await.unwrap();
        let transaction = pre_commit(&mut writer, 1, batch.clone()).await;
        committer.commit(&transaction, &job.permit(1, 1)).await.unwrap();
        support::settled(kafka, &topic);
        let read = kafka.read_committed(&topic).unwrap();
        assert_eq!(read.len(), 200);
        for record in read {
            let i = usize::try_from(record.timestamp - 1_750_000_000_000).unwrap();
            assert_eq!(record.key.as_deref(), keys[i].as_ref().map(String::as_bytes), "row {i}");
            let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap()).unwrap();
            assert_eq!(value["v"], format!("v{i}"));
            assert!(value.get("k").is_none() && value.get("t").is_none(), "key and timestamp are not part of the value: {value}");
            assert_eq!(value.get("h").is_some(), !headers, "a header is not part of the value: {value}");
            match (headers, i % 2) {
                (true, 0) => assert_eq!(record.headers, [("head".to_owned(), Some(format!("h{i}").into_bytes()))]),
                _ => assert!(record.headers.is_empty(), "a NULL is no header"),
            }
            if let Some(key) = &record.key {
                assert_eq!(record.partition, wanted[key], "row {i}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_is_read_by_apaches_client() {
    let kafka = Kafka::shared().unwrap();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = kafka.create_topic("compressed", 2).unwrap();
        let (job, sink) = (Job::new(), sink(kafka, &topic).property("compression.type", codec).build().unwrap());
        let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
        let transaction = pre_commit(&mut writer, 1, rows(values(codec, 5000))).await;
        committer.commit(&transaction, &job.permit(1, 1)).await.unwrap();
        assert_eq!(committed(kafka, &topic).len(), 5000, "{codec}");
    }
}

/// Names are used again, so that the broker's list of transactional ids does not grow with the number of checkpoints.
#[tokio::test(flavor = "multi_thread")]
async fn a_few_ids_are_enough_for_any_number_of_checkpoints() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("many", 2).unwrap();
    let (job, sink) = (Job::new(), sink(kafka, &topic).build().unwrap());
    let (mut writer, mut committer) = sink.open(job.sink(1)).await.unwrap();
    // Asked of the partitions are all transactions of 250 ms at once: what those of two rounds were called is not free yet.
    let mut interval = tokio::time::interval(Duration::from_millis(100));
    let mut wanted = vec![];
    for checkpoint in 1..=60 {
        interval.tick().await;
        let transaction = pre_commit(&mut writer, checkpoint, rows(values(&format!("{checkpoint:0>3}"), 3))).await;
        wanted.extend(values(&format!("{checkpoint:0>3}"), 3));
        // This checkpoint's entry says that the one before is committed.
        committer.released(CheckpointId(checkpoint - 1)).await.unwrap();
        committer.commit(&transaction, &job.permit(checkpoint, 1)).await.unwrap();
    }
    assert_eq!(committed(kafka, &topic), wanted);
    let ids = kafka.transactions().unwrap().into_iter().filter(|t| t.transactional_id.starts_with(&topic)).count();
    assert!(ids <= 10, "{ids} ids");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_named() {
    let kafka = Kafka::shared().unwrap();
    let job = Job::new();
    async fn refused(job: Job, sink: KafkaSink, rows: RecordBatch) -> ConnectorError {
        let (mut writer, _) = sink.open(SinkContext { schema: rows.schema(), ..job.sink(1) }).await.unwrap();
        let mut transaction: KafkaTransaction = writer.begin_transaction(CheckpointId(1)).await.unwrap();
        match writer.invoke(&mut transaction, rows).await {
            Ok(()) => writer.pre_commit(&mut transaction).await.unwrap_err(),
            Err(error) => error,
        }
    }
    let small = kafka.create_topic_with("small", 1, &[("max.message.bytes", "2000")]).unwrap();
    let error = refused(job, sink(kafka, &small).build().unwrap(), rows(["x".repeat(5000)])).await;
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains(&small) && text.contains("max.message.bytes")), "{error}");

    let missing = format!("{small}-missing");
    let patient = |sink: semel_kafka::KafkaSinkBuilder| sink.property("delivery.timeout.ms", "1000").build().unwrap();
    let began = Instant::now();
    let error = refused(job, patient(sink(kafka, &missing)), rows(values("a", 1))).await;
    assert!(error.to_string().contains(&missing), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    let too_long = sink(kafka, &small).property("transaction.timeout.ms", "900001").build().unwrap();
    let (mut writer, _) = too_long.open(job.sink(1)).await.unwrap();
    let error = writer.begin_transaction(CheckpointId(1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains("transaction.max.timeout.ms")), "{error}");

    let compacted = kafka.create_topic_with("compacted", 1, &[("cleanup.policy", "compact")]).unwrap();
    let error = refused(job, sink(kafka, &compacted).build().unwrap(), rows(values("a", 1))).await;
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains(&compacted) && text.contains("key")), "{error}");

    let by_column = KafkaSink::builder(Arc::new(|schema| Format::Raw.serializer(schema.clone()).map_err(|e| e.to_string())))
        .bootstrap_servers(kafka.bootstrap())
        .topic_column("topic")
        .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
        .transactional_id_prefix("by-column");
    let topics = [kafka.create_topic("one", 1).unwrap(), kafka.create_topic("two", 2).unwrap()];
    let two = |names: [&str; 4]| {
        let topic: ArrayRef = Arc::new(StringArray::from_iter_values(names));
        let value: ArrayRef = Arc::new(StringArray::from_iter_values(["a", "b", "c", "d"]));
        RecordBatch::try_from_iter([("topic", topic), ("v", value)]).unwrap()
    };
    let batch = two([&topics[0], &topics[1], &topics[0], &topics[1]]);
    let sink = by_column.build().unwrap();
    let (mut writer, mut committer) = sink.open(SinkContext { schema: batch.schema(), ..job.sink(1) }).await.unwrap();
    let transaction = pre_commit(&mut writer, 1, batch).await;
    assert_eq!(transaction.partitions.len(), 2);
    committer.commit(&transaction, &job.permit(1, 1)).await.unwrap();
    support::settled(kafka, "by-column");
    assert_eq!(committed(kafka, &topics[0]), ["a", "c"]);
    assert_eq!(committed(kafka, &topics[1]), ["b", "d"]);
}

/// Prefix and uid are texts, not patterns.
#[tokio::test(flavor = "multi_thread")]
async fn names_with_characters_of_patterns_are_matched_as_they_are() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("names", 1).unwrap();
    let strange = format!("{topic} (a+b)*[1]$|.\\Q\u{e9}");
    let job = Job::new();
    let built = sink(kafka, &topic).transactional_id_prefix(&strange).build().unwrap();
    let (mut writer, _) = built.open(job.sink(1)).await.unwrap();
    let pending = pre_commit(&mut writer, 1, rows(values("a", 3))).await;
    let orphan = pre_commit(&mut writer, 2, rows(values("b", 3))).await;
    drop(writer);
    let swept = built.recover(&job.identity(2), &uid(), vec![job.pending(1, &through_json(&pending), 2)]).await.unwrap();
    assert_eq!(swept.aborted, [orphan.transactional_id]);
    assert_eq!(committed(kafka, &topic), values("a", 3));
}

/// The link to the broker fails while transactions are ended and rows are written.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_are_asked_again_and_silence_ends_at_the_deadline() {
    let kafka = Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap();
    let proxy = kafka.proxy(1).unwrap();
    let topic = kafka.create_topic("lost-answers", 2).unwrap();
    let job = Job::new();
    let built = sink(&kafka, &topic)
        .property("request.timeout.ms", "1500")
        .property("delivery.timeout.ms", "4000")
        .decision_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    let (mut writer, mut committer) = built.open(job.sink(1)).await.unwrap();
    let mut wanted = vec![];
    for (checkpoint, cut) in (1..).zip([Cut::Reset, Cut::Close]) {
        // The broker commits, but its answer does not come; then the connection breaks.
        let mut transaction = writer.begin_transaction(CheckpointId(checkpoint)).await.unwrap();
        writer.invoke(&mut transaction, rows(values(&format!("{checkpoint}"), 10))).await.unwrap();
        writer.pre_commit(&mut transaction).await.unwrap();
        proxy.stall_only(Direction::ToClient);
        let permit = job.permit(checkpoint, 1);
        let commit = async { committer.commit(&transaction, &permit).await };
        let repair = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            proxy.drop_connections(cut);
            proxy.resume();
        };
        let (done, ()) = tokio::join!(commit, repair);
        assert_eq!(done.unwrap(), Committed::Now);
        wanted.extend(values(&format!("{checkpoint}"), 10));
        assert_eq!(committed(&kafka, &topic), wanted);
    }
    // Nobody answers: every call ends, says so, and can be repeated.
    let held = pre_commit(&mut writer, 3, rows(values("3", 10))).await;
    let mut open = writer.begin_transaction(CheckpointId(4)).await.unwrap();
    proxy.stall();
    let began = Instant::now();
    let error = committer.commit(&held, &job.permit(3, 1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Retryable(text) if text.contains(&held.transactional_id)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    _ = writer.invoke(&mut open, rows(values("4", 10))).await;
    let error = writer.pre_commit(&mut open).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Retryable(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    proxy.drop_connections(Cut::Reset);
    proxy.resume();
    let swept = built.recover(&job.identity(2), &uid(), vec![job.pending(3, &held, 2)]).await.unwrap();
    assert!(swept.aborted.iter().all(|id| *id == open.transactional_id), "{swept:?}");
    wanted.extend(values("3", 10));
    assert_eq!(committed(&kafka, &topic), wanted);
    assert!(open_ids(&kafka, &topic).is_empty());
}

/// The epoch of a producer has 16 bits, and each transaction takes one. At the end of the range the broker gives a new producer
/// id, and the last transaction of the old one can still be committed again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes"]
async fn the_end_of_the_epoch_range_is_crossed() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("epochs", 1).unwrap();
    let (job, built) = (Job::new(), sink(kafka, &topic).build().unwrap());
    let (mut writer, mut committer) = built.open(job.sink(1)).await.unwrap();
    let mut sent = 0;
    let mut producers = std::collections::BTreeSet::new();
    let mut last = None;
    for checkpoint in 1..=70_000 {
        let transaction = pre_commit(&mut writer, checkpoint, rows([format!("{checkpoint:0>8}")])).await;
        sent += 1;
        producers.insert(transaction.producer_id);
        committer.commit(&transaction, &job.permit(checkpoint, 1)).await.unwrap();
        if transaction.epoch == i16::MAX - 1 {
            committer.commit(&transaction, &job.permit(checkpoint, 1)).await.unwrap();
            last = Some(transaction);
        }
        committer.released(CheckpointId(checkpoint)).await.unwrap();
        if last.is_some() && producers.len() > 2 {
            break;
        }
    }
    assert!(last.is_some(), "the end was not reached with {sent} transactions");
    support::settled(kafka, &topic);
    assert_eq!(kafka.count_committed(&topic).unwrap(), sent);
}
