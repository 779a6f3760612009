//! The client on a real broker; what it writes is read by Apache's own client, and the other way round.
#![allow(clippy::unwrap_used)]
mod support;

use semel_kafka::client::*;
use semel_testkit::{Cut, Direction, Kafka, KafkaOptions, WriteRow};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::{cluster, within};

const CODECS: [(Compression, &str); 5] = [
    (Compression::None, "uncompressed"),
    (Compression::Gzip, "gzip"),
    (Compression::Snappy, "snappy"),
    (Compression::Lz4, "lz4"),
    (Compression::Zstd, "zstd"),
];

/// A timestamp of long ago.
const OLD: i64 = 1_700_000_000_000;

/// Sends values as columns.
async fn send(producer: &mut Producer, partition: &TopicPartition, values: &[String]) {
    send_at(producer, partition, values, OLD).await;
}

async fn send_at(producer: &mut Producer, partition: &TopicPartition, values: &[String], timestamp: i64) {
    let data = values.concat();
    let ends: Vec<usize> = values
        .iter()
        .scan(0, |end, v| {
            *end += v.len();
            Some(*end)
        })
        .collect();
    let rows = RowColumns {
        timestamps: Timestamps::All(timestamp),
        keys: None,
        values: Column { data: data.as_bytes(), ends: &ends, valid: None },
        headers: &[],
    };
    producer.send_rows(partition, &rows, None, within(60)).await.unwrap();
}

/// Reads `count` records of partition 0 with the client's fetcher.
async fn fetch(cluster: &Cluster, topic: &str, isolation: IsolationLevel, count: usize) -> Vec<(i64, Option<Vec<u8>>, Option<Vec<u8>>)> {
    let mut fetcher = Fetcher::new(cluster.clone(), FetchConfig { isolation, ..FetchConfig::default() });
    fetcher.add([(TopicPartition::new(topic, 0), StartAt { offset: 0, leader_epoch: None })]);
    let mut found = Vec::new();
    let deadline = within(30);
    while found.len() < count {
        match fetcher.next(deadline).await.unwrap().expect("records in time") {
            FetchEvent::Records(f) => {
                let r = f.records;
                found.extend((0..r.len()).map(|i| (r.offsets[i], r.key(i).map(<[u8]>::to_vec), r.value(i).map(<[u8]>::to_vec))));
            }
            FetchEvent::Failed { failure, .. } => panic!("{failure:?}"),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_codec_is_read_and_written_as_by_apaches_client() {
    let kafka = Kafka::shared().unwrap();
    let cluster = cluster(kafka).await;
    for (compression, name) in CODECS {
        let topic = kafka.create_topic("codec", 1).unwrap();
        let config = ProducerConfig { compression, batch_size: 20_000, ..ProducerConfig::default() };
        let mut producer = Producer::new(cluster.clone(), config, Identity::Anonymous).unwrap();
        let values: Vec<String> = (0..3000).map(|i| format!("value {i} of {name} \u{e9}")).collect();
        let partition = TopicPartition::new(topic.as_str(), 0);
        send(&mut producer, &partition, &values).await;
        let header = Header { key: "h", value: Some(b"1") };
        producer.send(&partition, 5, Some(b"key"), None, &[header], within(10)).await.unwrap();
        producer.flush(within(30)).await.unwrap();
        assert_eq!(producer.buffered_bytes(), 0);
        let read = kafka.read_committed(&topic).unwrap();
        let texts: Vec<&str> = read[..3000].iter().map(|r| r.value_text()).collect();
        assert_eq!(texts, values, "{name}");
        assert_eq!(read[0].timestamp, OLD);
        let last = &read[3000];
        assert_eq!((last.key.as_deref(), &last.value, last.timestamp), (Some(&b"key"[..]), &None, 5));
        assert_eq!(last.headers, [("h".to_owned(), Some(b"1".to_vec()))]);

        let fetched = fetch(&cluster, &topic, IsolationLevel::ReadCommitted, 3001).await;
        assert!(fetched.iter().enumerate().all(|(i, (offset, ..))| *offset == i as i64));
        assert!(fetched.iter().zip(&values).all(|((_, key, value), v)| key.is_none() && value.as_deref() == Some(v.as_bytes())), "{name}");
        assert_eq!((&fetched[3000].1, &fetched[3000].2), (&Some(b"key".to_vec()), &None));

        // The broker packs what Apache's client wrote with the topic's codec.
        let topic = kafka.create_topic_with("recoded", 1, &[("compression.type", name)]).unwrap();
        kafka.write(&topic, (0..500).map(|i| WriteRow::to(0).key(format!("k{i}")).value(format!("row {i} of {name}").repeat(3)))).unwrap();
        let fetched = fetch(&cluster, &topic, IsolationLevel::ReadUncommitted, 500).await;
        for (i, (offset, key, value)) in fetched.iter().enumerate() {
            assert_eq!(
                (*offset, key.clone().unwrap(), value.clone().unwrap()),
                (i as i64, format!("k{i}").into_bytes(), format!("row {i} of {name}").repeat(3).into_bytes())
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_are_committed_aborted_described_and_listed() {
    let kafka = Kafka::shared().unwrap();
    let cluster = cluster(kafka).await;
    let topic = kafka.create_topic("transactions", 2).unwrap();
    let transactions = Transactions::new(cluster.clone());
    let id = format!("{topic}-id");
    let first = transactions.init_producer_id(Some(&id), 60_000, within(30)).await.unwrap();
    assert_eq!(transactions.end_txn_version(), 5);
    let mut producer = Producer::new(cluster.clone(), ProducerConfig::default(), Identity::Producer(first.clone())).unwrap();
    let partition = TopicPartition::new(topic.as_str(), 1);
    let mut identity = first.clone();
    let mut wanted = Vec::new();
    for round in 0..4 {
        let values: Vec<String> = (0..10).map(|i| format!("{round}/{i}")).collect();
        send(&mut producer, &partition, &values).await;
        producer.flush(within(30)).await.unwrap();
        assert_eq!(producer.partitions_written().into_iter().collect::<Vec<_>>(), std::slice::from_ref(&partition));
        let described = transactions.describe(&[&id], within(10)).await.unwrap();
        assert_eq!((described[0].code, &described[0].state), (ErrorCode::NONE, &TransactionState::Ongoing));
        assert_eq!(
            (described[0].producer_id, described[0].epoch, &described[0].partitions[..]),
            (identity.producer_id, identity.epoch, std::slice::from_ref(&partition))
        );
        let listed = transactions.list(&[TransactionState::Ongoing], &id, within(10)).await.unwrap();
        assert_eq!((listed.len(), listed[0].transactional_id.as_str()), (1, id.as_str()));
        let commit = round % 2 == 0;
        let ended = transactions.end_txn(&id, identity.producer_id, identity.epoch, commit, within(30)).await.unwrap();
        assert_eq!((ended.code, ended.version), (ErrorCode::NONE, 5));
        // The same again has the same answer.
        let again = transactions.end_txn(&id, identity.producer_id, identity.epoch, commit, within(30)).await.unwrap();
        assert_eq!((again.code, again.epoch), (ErrorCode::NONE, ended.epoch));
        identity.producer_id = ended.producer_id.unwrap();
        identity.epoch = ended.epoch.unwrap();
        producer.set_identity(Identity::Producer(identity.clone())).unwrap();
        assert!(producer.partitions_written().is_empty());
        if commit {
            wanted.extend(values);
        }
    }
    let read: Vec<String> = kafka.read_committed(&topic).unwrap().iter().map(|r| r.value_text().to_owned()).collect();
    assert_eq!(read, wanted);
    assert!(transactions.list(&[TransactionState::Ongoing], &id, within(10)).await.unwrap().is_empty());
    // The dead epoch can write no more.
    let mut zombie = Producer::new(cluster.clone(), ProducerConfig::default(), Identity::Producer(first)).unwrap();
    send(&mut zombie, &partition, &["late".to_owned()]).await;
    let error = zombie.flush(within(30)).await.unwrap_err();
    assert!(matches!(error, ClientError::Fenced { .. }), "{error}");
    let unknown = transactions.describe(&["nobody's"], within(10)).await.unwrap();
    assert_eq!(unknown[0].code, ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_works_with_transaction_version_1() {
    let kafka = Kafka::start_with(KafkaOptions { transaction_version: Some(1), ..KafkaOptions::default() }).unwrap();
    let cluster = cluster(&kafka).await;
    assert_eq!(cluster.transaction_version(), 1);
    let topic = kafka.create_topic("old", 3).unwrap();
    let transactions = Transactions::new(cluster.clone());
    let mut identity = transactions.init_producer_id(Some("old"), 60_000, within(30)).await.unwrap();
    let mut producer = Producer::new(cluster.clone(), ProducerConfig::default(), Identity::Producer(identity.clone())).unwrap();
    for round in 0..3 {
        for partition in 0..3 {
            send(&mut producer, &TopicPartition::new(topic.as_str(), partition), &[format!("{round}/{partition}")]).await;
        }
        producer.flush(within(30)).await.unwrap();
        let ended = transactions.end_txn("old", identity.producer_id, identity.epoch, true, within(30)).await.unwrap();
        assert_eq!((ended.code, ended.version), (ErrorCode::NONE, 5));
        (identity.producer_id, identity.epoch) = (ended.producer_id.unwrap(), ended.epoch.unwrap());
        producer.set_identity(Identity::Producer(identity.clone())).unwrap();
    }
    assert_eq!(kafka.count_committed(&topic).unwrap(), 9);
}

/// A broker forgets an idempotent producer when it starts again after a crash, if its newest *record timestamp* is older than
/// `producer.id.expiration.ms` (1 day); one with an open transaction it keeps, whatever the timestamps. So rows of long ago
/// are exact in transactions only.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_while_rows_are_written_neither_loses_nor_doubles_any() {
    let kafka = std::sync::Arc::new(Kafka::start().unwrap());
    let cluster = cluster(&kafka).await;
    let topics = [kafka.create_topic("idempotent", 2).unwrap(), kafka.create_topic("transactional", 2).unwrap()];
    let config = ProducerConfig { batch_size: 16 << 10, linger: Duration::from_millis(1), ..ProducerConfig::default() };
    let transactions = Transactions::new(cluster.clone());
    let plain = transactions.init_producer_id(None, 0, within(30)).await.unwrap();
    let transactional = transactions.init_producer_id(Some("killed"), 120_000, within(30)).await.unwrap();
    let mut producers =
        [plain, transactional.clone()].map(|id| Producer::new(cluster.clone(), config.clone(), Identity::Producer(id)).unwrap());
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let breaker = {
        let kafka = kafka.clone();
        std::thread::spawn(move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(700));
                kafka.kill(1).unwrap();
                kafka.start_again(1).unwrap();
            }
        })
    };
    let mut sent = 0;
    while !breaker.is_finished() || sent < 20_000 {
        let values: Vec<String> = (sent..sent + 100).map(|i| format!("{i:0>20}")).collect();
        for ((producer, topic), timestamp) in producers.iter_mut().zip(&topics).zip([now, OLD]) {
            for partition in [0, 1] {
                send_at(producer, &TopicPartition::new(topic.as_str(), partition), &values, timestamp).await;
            }
        }
        sent += 100;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    breaker.join().unwrap();
    for producer in &mut producers {
        producer.flush(within(60)).await.unwrap();
    }
    let ended = transactions.end_txn("killed", transactional.producer_id, transactional.epoch, true, within(30)).await.unwrap();
    assert_eq!(ended.code, ErrorCode::NONE);
    let wanted: Vec<String> = (0..sent).map(|i| format!("{i:0>20}")).collect();
    for topic in &topics {
        let mut read: BTreeMap<i32, Vec<String>> = BTreeMap::new();
        for record in kafka.read_committed(topic).unwrap() {
            read.entry(record.partition).or_default().push(record.value_text().to_owned());
        }
        for partition in [0, 1] {
            let got = &read[&partition];
            let at = got.iter().zip(&wanted).position(|(g, w)| g != w).unwrap_or(wanted.len());
            assert!(
                *got == wanted,
                "{topic}-{partition}: {} of {} rows; from {at} on: {:?}",
                got.len(),
                wanted.len(),
                got.get(at.saturating_sub(2)..(at + 3).min(got.len()))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_broker_gives_an_error_at_the_deadline_and_a_lost_answer_no_duplicate() {
    let kafka = Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap();
    let topic = kafka.create_topic("stalled", 1).unwrap();
    let mut config = ClientConfig::new([kafka.bootstrap()]);
    config.request_timeout = Duration::from_secs(2);
    let cluster = Cluster::connect(config.clone()).await.unwrap();
    let transactions = Transactions::new(cluster.clone());
    let identity = transactions.init_producer_id(None, 0, within(30)).await.unwrap();
    let mut producer = Producer::new(cluster.clone(), ProducerConfig::default(), Identity::Producer(identity)).unwrap();
    let partition = TopicPartition::new(topic.as_str(), 0);
    send(&mut producer, &partition, &["a".to_owned()]).await;
    producer.flush(within(30)).await.unwrap();

    let proxy = kafka.proxy(1).unwrap();
    proxy.stall();
    let began = Instant::now();
    let error = cluster.metadata(None, Deadline::after(Duration::from_millis(600))).await.unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    let error = transactions.describe(&["x"], Deadline::after(Duration::from_millis(600))).await.unwrap_err();
    assert!(error.is_retriable(), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    config.connect_timeout = Duration::from_millis(500);
    assert!(Cluster::connect(config).await.is_err());
    proxy.resume();

    // The broker gets the rows, the client no answer: it sends them again.
    proxy.stall_only(Direction::ToClient);
    send(&mut producer, &partition, &["b".to_owned()]).await;
    let error = producer.flush(Deadline::after(Duration::from_millis(700))).await.unwrap_err();
    assert!(matches!(error, ClientError::Deadline { .. }), "{error}");
    proxy.drop_connections(Cut::Reset);
    proxy.resume();
    send(&mut producer, &partition, &["c".to_owned()]).await;
    producer.flush(within(30)).await.unwrap();
    assert_eq!(support::committed(&kafka, &topic), ["a", "b", "c"]);
}
