//! Kafka source and exactly-once sink, on a client of their own.
//!
//! The [`sink`] writes the rows of a checkpoint into a Kafka transaction. At the barrier it is *pre-committed*: everything is
//! acknowledged, and the broker confirms that it holds the transaction open with our producer id, epoch and partitions. These
//! go into the checkpoint, and any process can commit by them ([`decide`] says what an answer proves). Transactional ids hold
//! job uuid, sink and generation ([`ids`]), so that what a dead process left open is found and ended, and nothing else is.
//!
//! The [`source`] reads partitions as splits; their offsets are part of the checkpoint and never reset silently.
//!
//! The [`client`] speaks Kafka's protocol in record batches, not in records: see there why there is one.
pub mod client;
pub mod committer;
pub mod config;
pub mod connect;
pub mod decide;
pub mod decode;
pub mod discovery;
pub mod effect;
pub mod encode;
pub mod handle;
pub mod hanging;
pub mod ids;
mod merge;
mod metrics;
pub mod partitioner;
pub mod pool;
pub mod preflight;
pub mod proof;
pub mod reader;
pub mod recovery;
pub mod rules;
pub mod settle;
pub mod sink;
pub mod source;
pub mod split;
mod transaction_admin;
pub mod transactions;
pub mod writer;

pub use config::{
    BoundedMode, ConfigError, DeliveryGuarantee, KafkaProperties, KafkaSinkBuilder, KafkaSourceBuilder, KeyFormat, MetadataField,
    OffsetResetStrategy, OffsetsInitializer, OnBadRecord, ValueFields,
};
pub use handle::KafkaTransaction;
pub use partitioner::Partitioner;
pub use reader::KafkaReader;
pub use semel_engine::sink::{Committed, ConnectorError, ConnectorResult};
pub use sink::KafkaSink;
pub use source::KafkaSource;
