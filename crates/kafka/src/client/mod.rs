//! A batch-native Kafka client.
//!
//! It speaks Kafka's protocol on the message codecs of crate `kafka-protocol`, but reads and writes record batches with
//! its own code: a batch goes from and to columns of spans without one object per record. It also does what other
//! clients cannot: end a transaction that another process opened ([`Transactions::end_txn`], version 5).
//!
//! Everything is asynchronous on tokio and has a [`Deadline`]; nothing waits forever. The parts, from the bottom:
//! [`Connection`] (one socket, pipelined), [`Cluster`] (metadata, leaders, coordinators), and on it [`Fetcher`],
//! [`Producer`], [`Transactions`], [`Offsets`] and [`Admin`].

mod admin;
mod cluster;
mod compression;
mod config;
mod connection;
mod deadline;
mod error;
mod fetch;
mod fetch_task;
mod jaas;
mod leaders;
mod metadata;
mod offsets;
mod permissions;
mod produce_frame;
mod producer;
mod producers;
mod properties;
mod record_batch;
mod sasl;
mod sender;
mod stale;
mod tls;
mod transactions;

pub use admin::{Admin, ClusterDescription, ConfigEntry, NewTopic};
pub use cluster::{Cluster, CoordinatorKind, Purpose};
pub use compression::Compression;
pub use config::{
    ClientConfig, Sasl, SaslCredentials, SaslMechanism, Secret, Security, TlsConfig, TlsVerify, TlsVersions, TokenProvider, TrustRoots,
};
pub use connection::{Connection, MAX_FRAME};
pub use deadline::Deadline;
pub use error::{ClientError, ErrorCode, Result};
pub use fetch::{FetchConfig, FetchEvent, FetchFailure, Fetched, Fetcher, StartAt};
pub use leaders::{Answer, ByPartition};
pub use metadata::{BrokerNode, ClusterMetadata, Leader, PartitionMetadata, TopicMetadata, TopicPartition};
pub use offsets::{CommittedOffset, IsolationLevel, ListedOffset, OffsetSpec, Offsets};
pub use permissions::{AclOperation, Granted};
pub use producer::{Acks, Identity, Producer, ProducerConfig};
pub use producers::{Marker, OpenProducer, Producers};
pub use properties::Properties;
pub use record_batch::{
    BatchBuilder, BatchIdentity, Column, DecodeError, DecodeOptions, Decoder, FetchedRecords, Header, HeaderIter, RowColumns, Span,
    Timestamps,
};
pub use transactions::{EndTxn, ListedTransaction, ProducerIdentity, TransactionDescription, TransactionState, Transactions};
