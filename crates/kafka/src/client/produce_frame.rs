//! Produce requests, with the batches as pieces of the frame instead of copies in it.
use super::connection::{Answer, Connection};
use super::error::Result;
use super::metadata::TopicPartition;
use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// First version in the compact form that [`send`] writes by itself.
const COMPACT: i16 = 9;

/// One batch for each partition.
pub(super) struct Produce<'a> {
    pub transactional_id: Option<&'a str>,
    pub acks: i16,
    pub timeout_ms: i32,
    pub batches: &'a [(TopicPartition, Bytes)],
}

impl Produce<'_> {
    fn by_topic(&self) -> BTreeMap<&Arc<str>, Vec<(i32, &Bytes)>> {
        let mut topics: BTreeMap<&Arc<str>, Vec<(i32, &Bytes)>> = BTreeMap::new();
        for (partition, batch) in self.batches {
            topics.entry(&partition.topic).or_default().push((partition.partition, batch));
        }
        topics
    }

    /// The request for the codec, which copies the batches.
    pub(super) fn request(&self) -> ProduceRequest {
        let text = |text: &str| StrBytes::from_string(text.to_string());
        let topics = self.by_topic().into_iter().map(|(topic, partitions)| {
            let partitions = partitions
                .into_iter()
                .map(|(index, batch)| PartitionProduceData::default().with_index(index).with_records(Some(batch.clone())));
            TopicProduceData::default().with_name(TopicName(text(topic))).with_partition_data(partitions.collect())
        });
        ProduceRequest::default()
            .with_transactional_id(self.transactional_id.map(|id| TransactionalId(text(id))))
            .with_acks(self.acks)
            .with_timeout_ms(self.timeout_ms)
            .with_topic_data(topics.collect())
    }

    /// Sends it.
    pub(super) fn send(&self, connection: &Connection, version: i16) -> Result<Answer> {
        if version < COMPACT {
            return connection.send(&self.request(), version);
        }
        let correlation = connection.next_correlation();
        let head = connection.begin::<ProduceRequest>(version, correlation)?;
        connection.send_frame::<ProduceRequest>(self.pieces(head), version, correlation)
    }

    /// The request in versions 9 to 12 behind `head`.
    fn pieces(&self, mut head: BytesMut) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(2 * self.batches.len() + 1);
        match self.transactional_id {
            None => head.put_u8(0),
            Some(id) => put_text(&mut head, id),
        }
        head.put_i16(self.acks);
        head.put_i32(self.timeout_ms);
        let topics = self.by_topic();
        put_length(&mut head, topics.len());
        for (topic, partitions) in topics {
            put_text(&mut head, topic);
            put_length(&mut head, partitions.len());
            for (index, batch) in partitions {
                head.put_i32(index);
                put_length(&mut head, batch.len());
                pieces.push(head.split().freeze());
                pieces.push(batch.clone());
                head.put_u8(0);
            }
            head.put_u8(0);
        }
        head.put_u8(0);
        pieces.push(head.freeze());
        pieces
    }
}

/// A length in the compact form: plus one, 7 bits a byte.
fn put_length(out: &mut BytesMut, length: usize) {
    let mut rest = length as u64 + 1;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn put_text(out: &mut BytesMut, text: &str) {
    put_length(out, text.len());
    out.put_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn the_pieces_are_what_the_codec_writes() {
        let batches: Vec<_> = [("a", 0, 5), ("topic", 300, 200), ("a", 7, 70_000), ("b", 1, 0)]
            .map(|(topic, partition, length)| (TopicPartition::new(topic, partition), Bytes::from(vec![partition as u8; length])))
            .to_vec();
        for id in [None, Some("transactional")] {
            let produce = Produce { transactional_id: id, acks: -1, timeout_ms: 1234, batches: &batches };
            for version in [9, 12] {
                let mut by_codec = BytesMut::new();
                produce.request().encode(&mut by_codec, version).unwrap();
                let by_hand: Vec<u8> = produce.pieces(BytesMut::new()).concat();
                assert!(by_hand == by_codec, "version {version}, {id:?}");
            }
        }
    }
}
