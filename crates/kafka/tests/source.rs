//! The source on a real broker, whose topics are written by Apache's client.
#![allow(clippy::unwrap_used)]
mod support;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimestampMillisecondType};
use semel_engine::source::{Source, SourceEvent, SourceReader};
use semel_kafka::{
    BoundedMode, ConnectorError, KafkaSource, KafkaSourceBuilder, MetadataField, OffsetResetStrategy, OffsetsInitializer, OnBadRecord,
};
use semel_testkit::{Cut, Kafka, KafkaOptions, WriteRow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use support::{Job, Seen, failure, open, positions, read_all, read_until, source};

const TIME: i64 = 1_750_000_000_000;

fn value(partition: i32, i: i64) -> String {
    format!("{partition}/{i:0>4}")
}

/// `from..to` of each partition, with timestamps that follow the offsets.
fn write(kafka: &Kafka, topic: &str, partitions: i32, range: std::ops::Range<i64>) {
    let row = |p, i| WriteRow::to(p).value(value(p, i)).timestamp(TIME + i);
    kafka.write(topic, (0..partitions).flat_map(|p| range.clone().map(move |i| row(p, i)))).unwrap();
}

fn values(partition: i32, range: std::ops::Range<i64>) -> Vec<String> {
    range.map(|i| value(partition, i)).collect()
}

fn offsets<const N: usize>(topic: &str, offsets: [(i32, i64); N]) -> BTreeMap<String, i64> {
    offsets.into_iter().map(|(p, offset)| (format!("{topic}-{p}"), offset)).collect()
}

fn fatal(error: ConnectorError, parts: &[&str]) {
    let ConnectorError::Fatal(text) = &error else { panic!("not fatal: {error}") };
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

async fn open_error(source: &KafkaSourceBuilder) -> ConnectorError {
    match source.clone().build().unwrap().open(Job::new().source(0, 1), None).await {
        Ok(_) => panic!("the source opens"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_startup_mode_begins_where_it_says() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("startup", 2).unwrap();
    let group = format!("{topic}-group");
    write(kafka, &topic, 2, 0..10);
    let base = source(kafka, &topic).group_id(&group).bounded(BoundedMode::Latest);
    let cases = |seen: Seen| [0, 1].map(|p| seen.values.get(&format!("{topic}-{p}")).cloned().unwrap_or_default());
    let start = |mode| base.clone().starting_offsets(mode);

    assert_eq!(cases(read_all(&start(OffsetsInitializer::Earliest), None).await), [values(0, 0..10), values(1, 0..10)]);
    let specific = OffsetsInitializer::Offsets(offsets(&topic, [(0, 7)]));
    assert_eq!(cases(read_all(&start(specific), None).await), [values(0, 7..10), values(1, 0..10)]);
    let time = OffsetsInitializer::Timestamp;
    assert_eq!(cases(read_all(&start(time(TIME + 4)), None).await), [values(0, 4..10), values(1, 4..10)]);
    assert_eq!(read_all(&start(time(TIME + 10)), None).await.count(), 0, "no record is that late");

    // The group has nothing yet.
    let committed = OffsetsInitializer::CommittedOffsets;
    fatal(open_error(&start(committed(OffsetResetStrategy::None))).await, &[&group, &topic, "auto.offset.reset"]);
    assert_eq!(read_all(&start(committed(OffsetResetStrategy::Earliest)), None).await.count(), 20);
    assert_eq!(read_all(&start(committed(OffsetResetStrategy::Latest)), None).await.count(), 0);
    // Its offsets are committed after a checkpoint; those of Apache's tools are the same.
    let (_, mut splits) = open(&base, None).await;
    for (state, position) in splits.iter_mut().zip([3, 8]) {
        state.position = position;
    }
    base.clone().build().unwrap().checkpoint_complete(&Job::new().identity(1), &splits).await.unwrap();
    assert_eq!(kafka.group_offsets(&group, &topic).unwrap(), BTreeMap::from([(0, 3), (1, 8)]));
    assert_eq!(cases(read_all(&start(committed(OffsetResetStrategy::None)), None).await), [values(0, 3..10), values(1, 8..10)]);

    let latest = source(kafka, &topic).starting_offsets(OffsetsInitializer::Latest);
    let (mut reader, splits) = open(&latest, None).await;
    assert_eq!(splits.iter().map(|s| s.position).collect::<Vec<_>>(), [10, 10], "resolved once, for the first checkpoint");
    write(kafka, &topic, 2, 10..13);
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 6).await;
    assert_eq!(cases(seen), [values(0, 10..13), values(1, 10..13)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bounded_modes_end_where_they_say_also_after_a_restore() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("bounded", 2).unwrap();
    write(kafka, &topic, 2, 0..10);
    // The end is a marker without rows: aborted rows and their marker.
    let aborted: Vec<WriteRow> = (0..3).map(|_| WriteRow::to(1).value("aborted")).collect();
    kafka.write_transaction(&topic, &format!("{topic}-t"), &aborted, false).unwrap();
    let end = |mode| source(kafka, &topic).bounded(mode);
    let latest = end(BoundedMode::Latest);
    let (mut reader, splits) = open(&latest, None).await;
    write(kafka, &topic, 2, 10..20);
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.no_more && seen.finished.len() == 2).await;
    assert_eq!(seen.sorted(), [values(0, 0..10), values(1, 0..10)].concat());
    // It goes on waiting instead of failing.
    assert!(tokio::time::timeout(Duration::from_millis(200), reader.next()).await.is_err());

    let mut half = splits.clone();
    half[0].position = 6;
    let seen = read_all(&latest, Some(half)).await;
    assert_eq!(seen.sorted(), [values(0, 6..10), values(1, 0..10)].concat(), "the bounds are those of the fresh start");
    let seen = read_all(&latest, Some(positions(&splits, &seen))).await;
    assert_eq!((seen.count(), seen.finished.len()), (0, 2), "a finished source is finished at once");

    let seen = read_all(&end(BoundedMode::Timestamp(TIME + 5)), None).await;
    assert_eq!(seen.sorted(), [values(0, 0..5), values(1, 0..5)].concat());
    let seen = read_all(&end(BoundedMode::Offsets(offsets(&topic, [(1, 4)]))), None).await;
    assert_eq!(seen.sorted(), values(1, 0..4), "a partition that is not named is not read");
    let group = format!("{topic}-group");
    let by_group = end(BoundedMode::CommittedOffsets).group_id(&group);
    fatal(open_error(&by_group).await, &[&group]);
    let mut at = splits;
    (at[0].position, at[1].position) = (2, 9);
    by_group.clone().build().unwrap().checkpoint_complete(&Job::new().identity(1), &at).await.unwrap();
    assert_eq!(read_all(&by_group, None).await.sorted(), [values(0, 0..2), values(1, 0..9)].concat());
}

/// What appeared while the job was down is within the bounds that are taken at its return.
#[tokio::test(flavor = "multi_thread")]
async fn an_unbounded_job_that_comes_back_bounded_reads_all_there_is_by_then() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("endless", 1).unwrap();
    write(kafka, &topic, 1, 0..10);
    let of = |mode| {
        KafkaSource::builder(Arc::new(|| semel_formats::Format::Raw.deserializer(support::schema()).map_err(|e| e.to_string())))
            .bootstrap_servers(kafka.bootstrap())
            .topic_pattern(&format!("{topic}.*"))
            .starting_offsets(OffsetsInitializer::Latest)
            .bounded(mode)
    };
    let (reader, mut splits) = open(&of(BoundedMode::Unbounded), None).await;
    drop(reader);
    splits[0].position = 7;
    kafka.create_partitions(&topic, 3).unwrap();
    let second = format!("{topic}-second");
    kafka.create_topic_named(&second, 1, &[]).unwrap();
    write(kafka, &topic, 3, 10..20);
    write(kafka, &second, 1, 0..5);
    let built = of(BoundedMode::Latest).build().unwrap();
    let job = Job::new();
    let (mut all, mut state) = (BTreeMap::new(), Vec::new());
    for subtask in 0..2 {
        let mut reader = built.open(job.source(subtask, 2), Some(splits.clone())).await.unwrap();
        let own = reader.splits();
        write(kafka, &topic, 3, 20..21); // Later than the bounds of this subtask.
        let mut seen = Seen::default();
        read_until(&mut reader, &mut seen, |seen| seen.no_more && seen.finished.len() == own.len()).await;
        state.extend(positions(&own, &seen));
        all.extend(seen.values);
    }
    let read = |name: &str| all.get(name).cloned().unwrap_or_default();
    // A subtask that opens second takes its bounds later: the row in between may be there.
    let begins = |name: &str, wanted: Vec<String>| assert_eq!(read(name)[..wanted.len()], wanted, "{name}");
    begins(&format!("{topic}-0"), [values(0, 7..10), values(0, 10..20)].concat());
    begins(&format!("{topic}-1"), values(1, 10..20));
    begins(&format!("{topic}-2"), values(2, 10..20));
    begins(&format!("{second}-0"), values(0, 0..5));
    assert_eq!(state.len(), 4, "every partition is in the next checkpoint: {state:?}");
    // From here on the bounds are those of the checkpoint.
    write(kafka, &second, 1, 5..9);
    kafka.create_partitions(&topic, 4).unwrap();
    write(kafka, &topic, 4, 30..31);
    let again = read_all(&of(BoundedMode::Latest), Some(state)).await;
    assert_eq!((again.count(), again.finished.len()), (0, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_job_that_comes_back_unbounded_goes_on() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("freed", 2).unwrap();
    write(kafka, &topic, 2, 0..10);
    let bounded = source(kafka, &topic).bounded(BoundedMode::Latest);
    let (mut reader, splits) = open(&bounded, None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.finished.len() == 2).await;
    let ended = positions(&splits, &seen);
    write(kafka, &topic, 2, 10..15);
    kafka.create_partitions(&topic, 3).unwrap();
    write(kafka, &topic, 3, 15..20);
    assert_eq!(read_all(&bounded, Some(ended.clone())).await.count(), 0, "bounded again: the bounds are kept");
    let (mut reader, splits) = open(&source(kafka, &topic), Some(ended)).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 25).await;
    assert_eq!(seen.sorted(), [values(0, 10..20), values(1, 10..20), values(2, 15..20)].concat());
    assert!(seen.finished.is_empty() && !seen.no_more);
    // Bounded once more: the bounds are taken anew.
    let state = positions(&splits, &seen);
    write(kafka, &topic, 3, 20..22);
    let seen = read_all(&bounded, Some(state)).await;
    assert_eq!(seen.sorted(), [values(0, 20..22), values(1, 20..22), values(2, 20..22)].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_of_the_group_do_what_they_say() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("properties", 2).unwrap();
    let group = format!("{topic}-group");
    write(kafka, &topic, 2, 0..10);
    let base = source(kafka, &topic)
        .group_id(&group)
        .bounded(BoundedMode::Latest)
        .starting_offsets(OffsetsInitializer::committed_offsets())
        .property("client.id.prefix", "tests");
    let reset = |to: &str| base.clone().property("auto.offset.reset", to);
    assert_eq!(read_all(&reset("latest"), None).await.count(), 0);
    assert_eq!(read_all(&reset("earliest"), None).await.count(), 20);
    let (_, mut splits) = open(&reset("earliest"), None).await;
    (splits[0].position, splits[1].position) = (4, 6);
    let complete = async |builder: KafkaSourceBuilder| {
        builder.build().unwrap().checkpoint_complete(&Job::new().identity(1), &splits).await.unwrap();
        kafka.group_offsets(&group, &topic).unwrap_or_default()
    };
    assert_eq!(complete(reset("earliest").property("commit.offsets.on.checkpoint", "false")).await, BTreeMap::new());
    assert_eq!(complete(reset("earliest")).await, BTreeMap::from([(0, 4), (1, 6)]));
    assert_eq!(read_all(&reset("earliest"), None).await.sorted(), [values(0, 4..10), values(1, 6..10)].concat(), "the group's count more");
    // What the group has committed was deleted: nothing resets it silently.
    kafka.delete_records(&topic, 0, 8).unwrap();
    let (mut reader, _) = open(&reset("earliest"), None).await;
    fatal(failure(&mut reader).await, &[&topic, "offsets 4 to 7"]);
    // An end that the group does not have cannot be made by auto.offset.reset.
    let by_group =
        source(kafka, &topic).group_id("nobodys").property("auto.offset.reset", "earliest").bounded(BoundedMode::CommittedOffsets);
    fatal(open_error(&by_group).await, &["nobodys", "kafka-consumer-groups.sh", "another bounded mode"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_committed_hides_aborted_rows_and_waits_for_open_transactions() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("isolation", 1).unwrap();
    let row = |text: &str| vec![WriteRow::to(0).value(text)];
    let id = |name: &str| format!("{topic}-{name}");
    kafka.write_transaction(&topic, &id("a"), &row("committed"), true).unwrap();
    kafka.write_transaction(&topic, &id("b"), &row("aborted"), false).unwrap();
    kafka.write_transaction(&topic, &id("a"), &row("committed too"), true).unwrap();
    kafka.open_transaction(&topic, &id("c"), &row("open"), Duration::from_secs(60)).unwrap();
    kafka.write(&topic, row("behind")).unwrap();
    let split = format!("{topic}-0");
    let (mut reader, _) = open(&source(kafka, &topic), None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 2 && seen.positions[&split] == 6).await;
    assert_eq!(seen.values[&split], ["committed", "committed too"], "up to the open transaction, behind all markers");
    assert!(!seen.caught_up[&split], "rows that may be committed are waiting: the partition is not idle");
    assert!(tokio::time::timeout(Duration::from_millis(700), reader.next()).await.is_err(), "nothing passes the open transaction");
    let all = source(kafka, &topic).property("isolation.level", "read_uncommitted").bounded(BoundedMode::Latest);
    let raw = read_all(&all, None).await;
    assert_eq!(raw.values[&split], ["committed", "aborted", "committed too", "open", "behind"]);
    // A bounded reader of committed rows ends before what is open.
    assert_eq!(read_all(&source(kafka, &topic).bounded(BoundedMode::Latest), None).await.count(), 2);
    kafka.end_transaction(&id("c"), true).unwrap();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 4 && seen.caught_up[&split]).await;
    assert_eq!(seen.values[&split], ["committed", "committed too", "open", "behind"]);
}

/// Rows that are larger than what one fetch asks for still come, and small fetches lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn small_fetch_sizes_lose_nothing() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("small", 2).unwrap();
    let long = |i: i32| format!("{i:0>4}{}", "x".repeat(5000));
    kafka.write(&topic, (0..60).map(|i| WriteRow::to(i % 2).value(long(i)))).unwrap();
    let small = source(kafka, &topic)
        .property("fetch.max.bytes", "1000")
        .property("max.partition.fetch.bytes", "1000")
        .bounded(BoundedMode::Latest);
    let seen = read_all(&small, None).await;
    assert_eq!(seen.sorted(), (0..60).map(long).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partitions_and_topics_are_read_from_the_beginning() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("grows", 1).unwrap();
    write(kafka, &topic, 1, 0..5);
    let builder = KafkaSource::builder(Arc::new(|| semel_formats::Format::Raw.deserializer(support::schema()).map_err(|e| e.to_string())))
        .bootstrap_servers(kafka.bootstrap())
        .topic_pattern(&format!("{topic}.*"))
        .starting_offsets(OffsetsInitializer::Latest)
        .partition_discovery_interval(Some(Duration::from_millis(300)));
    let built = builder.clone().build().unwrap();
    let job = Job::new();
    let mut readers = vec![];
    let mut first = vec![];
    for subtask in 0..2 {
        let mut reader = built.open(job.source(subtask, 2), None).await.unwrap();
        first.extend(reader.splits());
        readers.push(reader);
    }
    assert_eq!(first.len(), 1, "each split has one owner: {first:?}");
    kafka.create_partitions(&topic, 3).unwrap();
    write(kafka, &topic, 3, 5..8);
    let second = format!("{topic}-second");
    kafka.create_topic_named(&second, 2, &[]).unwrap();
    write(kafka, &second, 2, 0..4);
    let wanted: Vec<(String, Vec<String>)> =
        [(&topic, 0, 5..8), (&topic, 1, 5..8), (&topic, 2, 5..8), (&second, 0, 0..4), (&second, 1, 0..4)]
            .into_iter()
            .map(|(name, p, range)| (format!("{name}-{p}"), values(p, range)))
            .collect();
    let mut seen = [Seen::default(), Seen::default()];
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while seen.iter().map(Seen::count).sum::<usize>() < 17 {
        assert!(std::time::Instant::now() < end, "{seen:?}");
        for (reader, seen) in readers.iter_mut().zip(&mut seen) {
            if let Ok(event) = tokio::time::timeout(Duration::from_millis(50), reader.next()).await {
                match event.unwrap() {
                    SourceEvent::Split(split) => seen.new_splits.push(format!("{} from {}", split.split, split.position)),
                    SourceEvent::Rows { split, rows, position, .. } => {
                        seen.values.entry(split.to_string()).or_default().extend(support::texts(&rows));
                        seen.positions.insert(split.to_string(), position);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    let [mut one, two] = seen;
    one.values.extend(two.values);
    assert_eq!(one.values.into_iter().collect::<Vec<_>>(), wanted);
    one.new_splits.extend(two.new_splits);
    one.new_splits.sort();
    assert_eq!(one.new_splits, wanted[1..].iter().map(|(split, _)| format!("{split} from 0")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_source_goes_on_exactly_also_with_another_parallelism() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("restored", 4).unwrap();
    write(kafka, &topic, 4, 0..50);
    // The startup mode of a restored source says nothing.
    let builder = source(kafka, &topic).starting_offsets(OffsetsInitializer::Earliest);
    let (mut reader, splits) = open(&builder, None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 200).await;
    let mut state = positions(&splits, &seen);
    for (split, position) in state.iter_mut().zip([10, 20, 30, 50]) {
        split.position = position;
    }
    drop(reader);
    kafka.create_partitions(&topic, 5).unwrap();
    write(kafka, &topic, 5, 50..60);
    let later = source(kafka, &topic).starting_offsets(OffsetsInitializer::Latest).build().unwrap();
    let job = Job::new();
    let mut all = Vec::new();
    let mut owners = 0;
    for subtask in 0..3 {
        let mut reader = later.open(job.source(subtask, 3), Some(state.clone())).await.unwrap();
        let own = reader.splits();
        owners += own.len();
        let wanted: i64 = own.iter().map(|s| if s.split.ends_with("-4") { 10 } else { 60 - s.position }).sum();
        let mut seen = Seen::default();
        read_until(&mut reader, &mut seen, |seen| seen.count() as i64 == wanted).await;
        all.extend(seen.sorted());
    }
    all.sort();
    assert_eq!(owners, 5);
    assert_eq!(all, [values(0, 10..60), values(1, 20..60), values(2, 30..60), values(3, 50..60), values(4, 50..60)].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_gone_by_retention_fail_and_the_range_is_named() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("retention", 1).unwrap();
    write(kafka, &topic, 1, 0..20);
    let builder = source(kafka, &topic);
    let (mut reader, splits) = open(&builder, None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 20).await;
    drop(reader);
    let mut state = splits.clone();
    state[0].position = 3;
    kafka.delete_records(&topic, 0, 12).unwrap();
    let (mut reader, _) = open(&builder, Some(state.clone())).await;
    fatal(failure(&mut reader).await, &[&topic, "partition 0", "offsets 3 to 11", "retention"]);
    // At the border nothing is lost.
    state[0].position = 12;
    let (mut reader, _) = open(&builder, Some(state.clone())).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 8).await;
    assert_eq!(seen.sorted(), values(0, 12..20));
    // Beyond the end: the log is not the one that was read.
    state[0].position = 99;
    let (mut reader, _) = open(&builder, Some(state)).await;
    fatal(failure(&mut reader).await, &[&topic, "offset 99"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_or_created_again_fails_and_says_so() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("deleted", 1).unwrap();
    let builder = source(kafka, &topic).partition_discovery_interval(None);
    write(kafka, &topic, 1, 0..5);
    let (mut reader, splits) = open(&builder, None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 5).await;
    kafka.delete_topic(&topic).unwrap();
    fatal(failure(&mut reader).await, &[&topic, "was deleted", "offset 5"]);
    drop(reader);
    let state = positions(&splits, &seen);
    let built = builder.clone().build().unwrap();
    let restored = |state| built.open(Job::new().source(0, 1), Some(state));
    fatal(restored(state.clone()).await.map(drop).unwrap_err(), &[&topic, "does not exist any more"]);
    fatal(open_error(&builder).await, &[&topic, "does not exist", "kafka-topics.sh"]);
    // Created again, with more rows than were read: only the topic id tells.
    kafka.create_topic_named(&topic, 1, &[]).unwrap();
    write(kafka, &topic, 1, 0..9);
    fatal(restored(state).await.map(drop).unwrap_err(), &[&topic, "deleted and created again"]);
    // While it is read.
    let (mut reader, _) = open(&builder, None).await;
    let mut seen = Seen::default();
    read_until(&mut reader, &mut seen, |seen| seen.count() == 9).await;
    kafka.delete_topic(&topic).unwrap();
    kafka.create_topic_named(&topic, 1, &[]).unwrap();
    write(kafka, &topic, 1, 0..20);
    let error = failure(&mut reader).await;
    fatal(error, &[&topic, "deleted"]);
}

/// A link that stalls, is slow or breaks delays rows and loses none.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_link_loses_and_doubles_nothing() {
    let kafka = Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap();
    let proxy = kafka.proxy(1).unwrap();
    let topic = kafka.create_topic("link", 2).unwrap();
    let builder = source(&kafka, &topic).property("request.timeout.ms", "1500").property("fetch.max.bytes", "20000");
    let (mut reader, _) = open(&builder, None).await;
    let mut seen = Seen::default();
    let mut written = 0;
    for fault in 0..5 {
        let rows: Vec<WriteRow> = (written..written + 500)
            .flat_map(|i| [0, 1].map(|p| WriteRow::to(p).value(format!("{}{}", value(p, i), "x".repeat(100)))))
            .collect();
        kafka.write(&topic, rows).unwrap();
        written += 500;
        let half = written as usize * 2 - 900;
        read_until(&mut reader, &mut seen, |seen| seen.count() >= half).await;
        match fault {
            0 => proxy.drop_connections(Cut::Reset),
            1 => proxy.drop_connections(Cut::Close),
            2 => proxy.stall(),
            3 => proxy.slow(50_000),
            _ => proxy.cut(Cut::Reset),
        }
        let wait = if fault == 3 { 300 } else { 2500 };
        let quiet = tokio::time::timeout(Duration::from_millis(wait), async {
            loop {
                read_until(&mut reader, &mut seen, |_| false).await;
            }
        });
        assert!(quiet.await.is_err());
        proxy.resume();
    }
    read_until(&mut reader, &mut seen, |seen| seen.count() >= written as usize * 2).await;
    for partition in [0, 1] {
        let got: Vec<String> = seen.values[&format!("{topic}-{partition}")].iter().map(|v| v.trim_end_matches('x').to_owned()).collect();
        assert_eq!(got, values(partition, 0..written));
    }
}

/// Nobody knows what a silent broker has: its partitions must not become idle, or the watermark would pass their rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_broker_is_silent_is_not_caught_up() {
    let kafka = Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap();
    let topic = kafka.create_topic("silent", 2).unwrap();
    kafka.write(&topic, [0, 1].map(|p| WriteRow::to(p).value(value(p, 0)))).unwrap();
    let (mut reader, _) = open(&source(&kafka, &topic).property("request.timeout.ms", "3000"), None).await;
    let mut seen = Seen::default();
    let all = |seen: &Seen, expected: bool| seen.caught_up.len() == 2 && seen.caught_up.values().all(|caught_up| *caught_up == expected);
    read_until(&mut reader, &mut seen, |seen| seen.count() == 2 && all(seen, true)).await;
    let quiet = tokio::time::timeout(Duration::from_secs(5), reader.next()).await;
    assert!(quiet.is_err(), "an idle topic stays caught up: {quiet:?}");
    kafka.proxy(1).unwrap().stall();
    read_until(&mut reader, &mut seen, |seen| all(seen, false)).await;
    kafka.proxy(1).unwrap().resume();
    read_until(&mut reader, &mut seen, |seen| all(seen, true)).await;
    assert_eq!(seen.count(), 2);
}

/// Counts what the connector counts.
#[derive(Default)]
struct Counters(std::sync::Mutex<BTreeMap<String, Arc<std::sync::atomic::AtomicU64>>>);

impl metrics::Recorder for &'static Counters {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(self.0.lock().unwrap().entry(key.name().to_owned()).or_default().clone())
    }
    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }
    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_decoded_fails_by_name_or_is_skipped_and_counted() {
    let counters: &'static Counters = Box::leak(Box::default());
    _ = metrics::set_global_recorder(counters);
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("bad", 2).unwrap();
    let json = |i: i64| format!("{{\"n\": {i}}}");
    kafka
        .write(&topic, (0..10).map(|i| WriteRow::to(1).value(if i == 4 || i == 7 { "{\"n\": \"four\"}".into() } else { json(i) })))
        .unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let builder = KafkaSource::json(schema)
        .bootstrap_servers(kafka.bootstrap())
        .topics([&topic])
        .metadata_column("offset", MetadataField::Offset)
        .bounded(BoundedMode::Latest);
    let (mut reader, _) = open(&builder, None).await;
    fatal(failure(&mut reader).await, &[&topic, "partition 1", "offset 4", "column 'n'", "expected a number"]);
    let (mut reader, _) = open(&builder.on_bad_record(OnBadRecord::Skip), None).await;
    let mut found = vec![];
    let mut end = 0;
    let mut finished = 0;
    while finished < 2 {
        match tokio::time::timeout(Duration::from_secs(20), reader.next()).await.unwrap().unwrap() {
            SourceEvent::Rows { rows, position, .. } => {
                let column = |i: usize| rows.column(i).as_primitive::<Int64Type>().values().to_vec();
                found.extend(column(0).into_iter().zip(column(1)));
                end = end.max(position);
            }
            SourceEvent::SplitFinished { .. } => finished += 1,
            _ => {}
        }
    }
    let good: Vec<(i64, i64)> = (0..10).filter(|i| *i != 4 && *i != 7).map(|i| (i, i)).collect();
    assert_eq!((found, end), (good, 10));
    let counted = counters.0.lock().unwrap()["numRecordsInErrors"].load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(counted, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_columns_hold_what_apaches_client_wrote() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("metadata", 3).unwrap();
    let row = |i: i64| {
        let row = WriteRow::to(2).value(format!("v{i}")).timestamp(TIME + i);
        if i % 2 == 0 { row.key(format!("k{i}")).header("a", format!("{i}")).header("b", "x") } else { row }
    };
    kafka.write(&topic, (0..6).map(row)).unwrap();
    use MetadataField::{Headers, Key, Offset, Partition, Timestamp, Topic};
    let names = ["topic", "partition", "offset", "timestamp", "key", "headers"];
    let builder = names
        .into_iter()
        .zip([Topic, Partition, Offset, Timestamp, Key, Headers])
        .fold(source(kafka, &topic), |builder, (name, field)| builder.metadata_column(name, field));
    let (mut reader, _) = open(&builder, None).await;
    let mut i = 0;
    while i < 6 {
        let event = tokio::time::timeout(Duration::from_secs(20), reader.next()).await.unwrap().unwrap();
        let SourceEvent::Rows { rows, .. } = event else { continue };
        for at in 0..rows.num_rows() {
            assert_eq!(rows["v"].as_string::<i32>().value(at), format!("v{i}"));
            assert_eq!(rows["topic"].as_string::<i32>().value(at), topic);
            assert_eq!(rows["partition"].as_primitive::<Int32Type>().value(at), 2);
            assert_eq!(rows["offset"].as_primitive::<Int64Type>().value(at), i);
            assert_eq!(rows["timestamp"].as_primitive::<TimestampMillisecondType>().value(at), TIME + i);
            let (key, headers) = (rows["key"].as_binary::<i32>(), rows["headers"].as_map().value(at));
            let text = |column: usize| format!("{:?}", headers.column(column));
            match i % 2 {
                0 => {
                    assert_eq!(key.value(at), format!("k{i}").as_bytes());
                    assert_eq!(headers.len(), 2, "{headers:?}");
                    assert!(text(0).contains("\"a\"") && text(0).contains("\"b\""), "{headers:?}");
                }
                _ => assert!(key.is_null(at) && headers.is_empty()),
            }
            i += 1;
        }
    }
}
