//! The handle of a transaction: what the checkpoint stores, and all that a commit needs.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A Kafka transaction of one subtask and checkpoint. Enough, with the sink's connection settings, to commit or abort it from
/// any process. Holds no secrets. Of a sink without transactions (`none`, `at-least-once`) it only counts rows, and its
/// `transactional_id` is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KafkaTransaction {
    /// Where it is, `bootstrap.servers`.
    pub bootstrap_servers: String,
    /// Its name at the coordinator; empty where the sink has no transactions.
    pub transactional_id: String,
    /// Producer id that its rows carry.
    pub producer_id: i64,
    /// Producer epoch that its rows carry.
    pub epoch: i16,
    /// Topics and partitions written.
    pub partitions: BTreeMap<String, BTreeSet<i32>>,
    /// Unix time in ms after which the broker may abort it (begin + `transaction.timeout.ms`, by this machine's clock: for messages only).
    pub deadline_ms: i64,
    /// Version of `EndTxn` that must end it, always the same for one transaction.
    pub end_version: i16,
    /// Number of rows.
    pub rows: u64,
}

impl KafkaTransaction {
    /// Whether there is a transaction at the broker at all.
    pub fn is_transactional(&self) -> bool {
        !self.transactional_id.is_empty()
    }
}

impl fmt::Display for KafkaTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitions: Vec<String> =
            self.partitions.iter().flat_map(|(topic, ids)| ids.iter().map(move |id| format!("{topic}-{id}"))).collect();
        write!(
            f,
            "transactional id {}, producer id {}, epoch {}, {} rows in {}",
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.rows,
            partitions.join(", ")
        )
    }
}
