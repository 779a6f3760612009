//! One real broker: what is written is read back, transactions hide, a kill keeps the data.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use semel_testkit::{Kafka, KafkaOptions, WriteRow};

fn rows(n: usize) -> Vec<WriteRow> {
    (0..n)
        .map(|i| {
            WriteRow::to(i32::try_from(i % 4).unwrap())
                .key(format!("k{i}"))
                .value(format!("value {i} \u{e9}\0"))
                .timestamp(1_700_000_000_000 + i64::try_from(i).unwrap())
                .header("h", i.to_string())
        })
        .collect()
}

#[test]
fn a_thousand_rows_come_back_as_written() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("roundtrip", 4).unwrap();
    let rows = rows(1000);
    assert_eq!(kafka.write(&topic, rows.clone()).unwrap(), 1000);
    kafka.write(&topic, [WriteRow::to(3)]).unwrap(); // null key and value

    let read = kafka.read_committed(&topic).unwrap();
    assert_eq!(read.len(), 1001);
    for (i, row) in rows.iter().enumerate() {
        let partition = row.partition.unwrap();
        let found = read.iter().find(|r| r.partition == partition && r.offset == (i / 4) as i64).unwrap();
        assert_eq!((&found.key, &found.value), (&row.key, &row.value));
        assert_eq!(Some(found.timestamp), row.timestamp);
        assert_eq!(found.headers, [("h".to_owned(), Some(i.to_string().into_bytes()))]);
    }
    let last = read.last().unwrap();
    assert_eq!((last.partition, last.offset, &last.key, &last.value), (3, 250, &None, &None));
    assert_eq!(kafka.count_committed(&topic).unwrap(), 1001);
    let from = kafka.read_committed_from(&topic, &[(0, 249), (1, 250), (2, 250), (3, 250)].into()).unwrap();
    assert_eq!(from.iter().map(|r| (r.partition, r.offset)).collect::<Vec<_>>(), [(0, 249), (3, 250)]);
}

#[test]
fn read_committed_shows_committed_transactions_only() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("transactions", 1).unwrap();
    let row = |text: &str| vec![WriteRow::to(0).value(text)];
    let id = |name: &str| format!("{topic}-{name}");
    kafka.write_transaction(&topic, &id("a"), &row("committed"), true).unwrap();
    kafka.write_transaction(&topic, &id("b"), &row("aborted"), false).unwrap();
    kafka.open_transaction(&topic, &id("c"), &row("open"), Duration::from_secs(60)).unwrap();
    kafka.write(&topic, row("behind the open one")).unwrap();

    let text = |committed: bool| {
        let read = if committed { kafka.read_committed(&topic) } else { kafka.read_uncommitted(&topic) };
        read.unwrap().iter().map(|r| r.value_text().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(text(true), ["committed"]);
    assert_eq!(text(false), ["committed", "aborted", "open", "behind the open one"]);
    let open = kafka.open_transactions(&topic).unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].transactional_id.as_str(), open[0].state.as_str()), (id("c").as_str(), "Ongoing"));
    assert_eq!(open[0].partitions, [format!("{topic}-0")]);
    let ends = |committed| kafka.offsets(&topic, committed).unwrap()[0].end;
    assert!(ends(true) < ends(false));

    kafka.end_transaction(&id("c"), true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !kafka.open_transactions(&topic).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the transaction stays open after its commit");
    }
    assert_eq!(text(true), ["committed", "open", "behind the open one"]);
}

#[test]
fn a_transaction_is_ended_from_outside() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("terminated", 1).unwrap();
    kafka.open_transaction(&topic, &topic, &[WriteRow::to(0).value("x")], Duration::from_secs(60)).unwrap();
    kafka.terminate_transaction(&topic).unwrap();
    assert!(kafka.open_transactions(&topic).unwrap().is_empty());
    assert!(kafka.end_transaction(&topic, true).is_err(), "its producer is fenced");
    assert!(kafka.read_committed(&topic).unwrap().is_empty());
}

#[test]
fn topics_grow_lose_records_and_go() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic_with("admin", 1, &[("max.message.bytes", "2000")]).unwrap();
    kafka
        .write(
            &topic,
            rows(4).into_iter().map(|mut row| {
                row.partition = Some(0);
                row
            }),
        )
        .unwrap();
    kafka.delete_records(&topic, 0, 3).unwrap();
    assert_eq!(kafka.read_committed(&topic).unwrap().iter().map(|r| r.offset).collect::<Vec<_>>(), [3]);
    let offsets = kafka.offsets(&topic, true).unwrap()[0];
    assert_eq!((offsets.begin, offsets.end), (3, 4));
    let error = kafka.write(&topic, [WriteRow::to(0).value(vec![0; 5000])]).unwrap_err().to_string();
    assert!(error.contains("RecordTooLarge"), "{error}");
    kafka.create_partitions(&topic, 3).unwrap();
    assert_eq!(kafka.describe_topic(&topic).unwrap().len(), 3);
    kafka.delete_topic(&topic).unwrap();
    // The broker has taken the order; it carries it out within moments.
    let until = Instant::now() + Duration::from_secs(10);
    while kafka.describe_topic(&topic).is_ok() {
        assert!(Instant::now() < until, "the deleted topic stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn kill_9_and_start_again_keeps_rows_and_open_transactions() {
    let kafka = Kafka::start_with(KafkaOptions::default().property("transaction.max.timeout.ms", 120_000)).unwrap();
    let topic = kafka.create_topic("kept", 2).unwrap();
    kafka.write(&topic, (0..500).map(|i| WriteRow::to(i % 2).value(format!("{i}")))).unwrap();
    kafka.open_transaction(&topic, "t", &[WriteRow::to(0).value("later")], Duration::from_secs(100)).unwrap();
    let before = kafka.pid(1).unwrap().unwrap();
    kafka.kill(1).unwrap();
    assert_eq!(kafka.pid(1).unwrap(), None);
    assert!(semel_testkit::faults::process(before).is_none(), "the killed broker is gone from /proc");
    let began = Instant::now();
    kafka.start_again(1).unwrap();
    println!("a killed broker answers again after {:?}", began.elapsed());
    assert_eq!(kafka.read_committed(&topic).unwrap().len(), 500);
    kafka.end_transaction("t", true).unwrap();
    assert_eq!(kafka.read_uncommitted(&topic).unwrap().len(), 501);
    let error = kafka.open_transaction(&topic, "too long", &[WriteRow::to(0)], Duration::from_secs(121)).unwrap_err().to_string();
    assert!(error.contains("transaction timeout is larger"), "the option was not used: {error}");
}

#[test]
fn a_paused_broker_does_not_answer_until_it_is_resumed() {
    let kafka = Kafka::start().unwrap();
    let topic = kafka.create_topic("paused", 1).unwrap();
    kafka.pause(1).unwrap();
    let request = serde_json::json!({ "topic": topic });
    assert!(kafka.tool("describe-topic", request, Duration::from_secs(2)).is_err());
    kafka.resume(1).unwrap();
    kafka.wait_ready(1).unwrap();
    assert_eq!(kafka.describe_topic(&topic).unwrap().len(), 1);
    kafka.stop(1).unwrap();
    kafka.start_again(1).unwrap();
    assert_eq!(kafka.leader(&topic, 0).unwrap(), Some(1));
}
