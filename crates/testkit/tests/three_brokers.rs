//! A replicated cluster: leaders move, a killed broker is replaced, and links to it can be stalled.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_testkit::{Cut, Kafka, KafkaOptions, Load, WriteRow, compare, orders};

#[test]
fn a_killed_leader_is_replaced_and_acknowledged_rows_stay() {
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::three_brokers().through_proxy()).unwrap());
    let topic = kafka.create_topic("replicated", 3).unwrap();
    for info in kafka.describe_topic(&topic).unwrap() {
        assert_eq!((info.replicas.len(), info.isr.len()), (3, 3), "{info:?}");
    }
    let n = 6000;
    let load = Load::start(&kafka, &topic, 500, orders::rows(orders::orders(3, n), 3));
    load.wait_written(1000, Duration::from_secs(60)).unwrap();

    let other = kafka.leader(&topic, 0).unwrap().unwrap() % 3 + 1;
    kafka.move_leader(&topic, 0, other).unwrap();
    let began = Instant::now();
    kafka.kill(other).unwrap();
    let next = kafka.wait_leader(&topic, 0, |leader| leader.is_some_and(|id| id != other)).unwrap().unwrap();
    println!("a new leader {:?} after the kill", began.elapsed());
    assert_ne!(next, other);
    let at_kill = load.written();
    load.wait_written(at_kill + 500, Duration::from_secs(60)).unwrap();
    kafka.start_again(other).unwrap();
    assert_eq!(load.finish().unwrap(), n);

    // Rows of the idempotent Java producer, read back by the Java consumer: each order once.
    let got = kafka.read_committed(&topic).unwrap();
    let expected = orders::orders(3, n).map(|order| (order.order_id, order.to_json()));
    let got = got.iter().map(|record| {
        let (id, _) = orders::parse_filter(&record.value).unwrap();
        (id, record.value_text().to_owned())
    });
    compare(expected, got).assert_exactly_once();

    // Clients are told the proxies' addresses, so a stall of all of them is seen by clients and not by the kit.
    let client = |limit| kafka.read_as(&topic, &[("default.api.timeout.ms".into(), "2000".into())], limit);
    assert_eq!(client(Duration::from_secs(30)).unwrap().len(), usize::try_from(n).unwrap());
    // Not each of them: one that was started again leads nothing for a while.
    assert!((1..=3).any(|id| kafka.proxy(id).unwrap().passed().1 > 0), "no broker was reached through its proxy");
    (1..=3).for_each(|id| kafka.proxy(id).unwrap().stall());
    assert!(client(Duration::from_secs(3)).is_err());
    assert_eq!(kafka.count_committed(&topic).unwrap(), n);
    (1..=3).for_each(|id| kafka.proxy(id).unwrap().cut(Cut::Reset));
    assert!(client(Duration::from_secs(3)).is_err());
    (1..=3).for_each(|id| kafka.proxy(id).unwrap().resume());
    assert_eq!(client(Duration::from_secs(30)).unwrap().len(), usize::try_from(n).unwrap());

    kafka.restart_all().unwrap();
    kafka.write_transaction(&topic, "t", &[WriteRow::to(0).value("x")], true).unwrap();
    assert_eq!(kafka.count_committed(&topic).unwrap(), n + 1);
}
