//! The Kafka sink in the testkit's conformance kit, on a real broker.
#![allow(clippy::unwrap_used)]
mod support;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_kafka::KafkaSink;
use semel_testkit::conformance::{self, Target};
use semel_testkit::{Kafka, KafkaOptions};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

/// One topic, whose name is also the prefix.
struct KafkaTarget {
    kafka: &'static Kafka,
    topic: String,
}

impl KafkaTarget {
    fn new(kafka: &'static Kafka) -> KafkaTarget {
        KafkaTarget { kafka, topic: kafka.create_topic("conformance", 3).unwrap() }
    }
}

impl Target for KafkaTarget {
    type Sink = KafkaSink;

    fn sink(&self) -> KafkaSink {
        support::sink(self.kafka, &self.topic).build().unwrap()
    }

    fn schema(&self) -> SchemaRef {
        support::schema()
    }

    fn rows(&self, ids: Range<u64>) -> RecordBatch {
        support::rows(ids.map(|id| id.to_string()))
    }

    async fn visible(&self) -> Vec<u64> {
        tokio::task::block_in_place(|| {
            let values = support::committed(self.kafka, &self.topic);
            // Shown when a scene fails.
            if let Err(held) = self.kafka.wait_stable(&self.topic, Duration::ZERO) {
                let mut known = self.kafka.transactions().unwrap();
                known.retain(|t| t.transactional_id.starts_with(&self.topic));
                println!("readers are held up: {held}; known transactions: {known:?}");
            }
            values.iter().map(|v| v.parse().unwrap()).collect()
        })
    }

    async fn open_transactions(&self) -> usize {
        tokio::task::block_in_place(|| support::open_ids(self.kafka, &self.topic)).len()
    }
}

/// Brokers whose `transaction.version` is 1: partitions are added by a request of their own.
fn old_protocol() -> &'static Kafka {
    static OLD: OnceLock<Kafka> = OnceLock::new();
    OLD.get_or_init(|| Kafka::start_with(KafkaOptions { transaction_version: Some(1), ..KafkaOptions::default() }).unwrap())
}

/// Each scene on a topic of its own; the broker is shared.
macro_rules! scenes {
    ($($scene:ident),* $(,)?) => {
        mod transaction_version_2 {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scene() {
                conformance::$scene(&KafkaTarget::new(Kafka::shared().unwrap())).await;
            })*
        }
        mod transaction_version_1 {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scene() {
                conformance::$scene(&KafkaTarget::new(old_protocol())).await;
            })*
        }
    };
}

scenes!(
    every_crash_point,
    crash_while_recovering,
    declined_checkpoints,
    several_pending_entries,
    zombies,
    slow_supervisor,
    commits_at_once,
    many_checkpoints,
    strangers,
    lost_transactions,
);
