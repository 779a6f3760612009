//! [`Producers`]: what partitions know of transactions, which may differ from what coordinators know.
use super::cluster::{Cluster, Purpose};
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::Result;
use super::leaders::{self, Answers, ByPartition, Question, answered, by_topic, topic_name};
use super::metadata::TopicPartition;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{DescribeProducersRequest, ProducerId, WriteTxnMarkersRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// A transaction that is open in a partition: readers of committed rows get no further than its first offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenProducer {
    /// Its producer.
    pub producer_id: i64,
    /// The producer's newest epoch in this partition.
    pub epoch: i32,
    /// Epoch of the coordinator that wrote the producer's last marker here; -1 when there was none.
    pub coordinator_epoch: i32,
    /// First offset of the transaction.
    pub start_offset: i64,
}

/// An end of a transaction in partitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marker {
    /// Its producer.
    pub producer_id: i64,
    /// Epoch that the transaction has in the partitions. A partition with a newer one refuses the marker with INVALID_PRODUCER_EPOCH.
    pub epoch: i16,
    /// Commit or abort.
    pub commit: bool,
    /// Not below that of the producer's last marker.
    pub coordinator_epoch: i32,
}

/// Transactions as the leaders of partitions know them.
#[derive(Clone, Debug)]
pub struct Producers {
    cluster: Cluster,
}

impl Producers {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Producers { cluster }
    }

    /// The transactions that are open in each partition (DescribeProducers, KIP-664; needs READ on the topics). A partition without a
    /// leader is answered with LEADER_NOT_AVAILABLE.
    pub async fn open(&self, partitions: &BTreeSet<TopicPartition>, deadline: Deadline) -> Result<ByPartition<Vec<OpenProducer>>> {
        leaders::ask(&self.cluster, &WhatIsOpen, partitions.iter().cloned(), deadline).await
    }

    /// Ends a transaction in these partitions, as its coordinator should have (WriteTxnMarkers; needs ALTER or CLUSTER_ACTION on the
    /// cluster). A marker where nothing is open changes nothing that readers see.
    pub async fn write(&self, marker: &Marker, partitions: &BTreeSet<TopicPartition>, deadline: Deadline) -> Result<ByPartition<()>> {
        leaders::ask(&self.cluster, marker, partitions.iter().cloned(), deadline).await
    }
}

/// The numbers of the partitions of each topic.
fn numbers(partitions: &[TopicPartition]) -> BTreeMap<Arc<str>, Vec<i32>> {
    let topics = by_topic(partitions.iter().map(|partition| (partition.clone(), ())));
    topics.into_iter().map(|(topic, numbers)| (topic, numbers.into_iter().map(|(number, ())| number).collect())).collect()
}

struct WhatIsOpen;

impl Question for WhatIsOpen {
    type Answer = Vec<OpenProducer>;

    const ABOUT: &str = "the open transactions of";

    const PURPOSE: Purpose = Purpose::Transactions;

    // It may have none for long: that is an answer too.
    const LEADERLESS_AFTER: Duration = Duration::ZERO;

    // A broker tells what its own replica holds, be it a follower's.
    const CONFIRM_LEADER: bool = true;

    async fn ask(&self, leader: &Connection, partitions: &[TopicPartition], deadline: Deadline) -> Answers<Vec<OpenProducer>> {
        let version = leader.version::<DescribeProducersRequest>(0, 0)?;
        let topics = numbers(partitions).into_iter();
        let topics = topics.map(|(topic, numbers)| TopicRequest::default().with_name(topic_name(&topic)).with_partition_indexes(numbers));
        let request = DescribeProducersRequest::default().with_topics(topics.collect());
        let mut found = Vec::new();
        for topic in leader.call(&request, version, deadline).await?.topics {
            let name: Arc<str> = topic.name.0.as_str().into();
            found.extend(topic.partitions.into_iter().map(|p| {
                let open = p.active_producers.iter().filter(|producer| producer.current_txn_start_offset >= 0);
                let open = open.map(|producer| OpenProducer {
                    producer_id: producer.producer_id.0,
                    epoch: producer.producer_epoch,
                    coordinator_epoch: producer.coordinator_epoch,
                    start_offset: producer.current_txn_start_offset,
                });
                (TopicPartition::new(name.clone(), p.partition_index), answered(p.error_code, || open.collect()))
            }));
        }
        Ok(found)
    }
}

impl Question for Marker {
    type Answer = ();

    const ABOUT: &str = "the end of a transaction in";

    const PURPOSE: Purpose = Purpose::Transactions;

    const LEADERLESS_AFTER: Duration = Duration::ZERO;

    async fn ask(&self, leader: &Connection, partitions: &[TopicPartition], deadline: Deadline) -> Answers<()> {
        let version = leader.version::<WriteTxnMarkersRequest>(1, 1)?;
        let topics = numbers(partitions).into_iter();
        let topics =
            topics.map(|(topic, numbers)| WritableTxnMarkerTopic::default().with_name(topic_name(&topic)).with_partition_indexes(numbers));
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_transaction_result(self.commit)
            .with_coordinator_epoch(self.coordinator_epoch)
            .with_topics(topics.collect());
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        let mut found = Vec::new();
        for topic in leader.call(&request, version, deadline).await?.markers.into_iter().flat_map(|marker| marker.topics) {
            let name: Arc<str> = topic.name.0.as_str().into();
            let partitions = topic.partitions.into_iter();
            found.extend(partitions.map(|p| (TopicPartition::new(name.clone(), p.partition_index), answered(p.error_code, || ()))));
        }
        Ok(found)
    }
}
