//! Real servers, faults and exact comparison, for the tests of every crate of Semel.
//!
//! A test that speaks of exactly-once needs three things: servers that behave as in production ([`Kafka`] starts
//! Apache's own broker), ways to break them and their clients ([`Proxy`], [`Program`], [`Netns`], [`faults`]), and an
//! expectation that was computed by other code than the code under test ([`orders`], [`expect`]). What a topic holds
//! is read with Apache's Java client ([`java`]), never with Semel's.
//!
//! Everything here blocks the calling thread, has a deadline, listens on loopback only, and touches only processes
//! that it started itself. A watcher process ends them and removes their folders when the test process dies, however
//! it dies.
//!
//! ```no_run
//! use semel_testkit::{Kafka, WriteRow};
//! # fn main() -> Result<(), semel_testkit::Error> {
//! let kafka = Kafka::shared()?;
//! let topic = kafka.create_topic("orders", 4)?;
//! kafka.write(&topic, [WriteRow::to(0).value("hello")])?;
//! assert_eq!(kafka.read_committed(&topic)?.len(), 1);
//! # Ok(())
//! # }
//! ```

pub mod conformance;
mod error;
pub mod expect;
pub mod faults;
mod guardian;
pub mod java;
mod kafka;
mod netns;
pub mod orders;
mod ports;
mod program;
mod proxy;
mod random;

pub use error::Error;
pub use expect::{Verdict, compare};
pub use kafka::{
    Kafka, KafkaOptions, Load, OpenProducer, PASSWORD, PartitionInfo, PartitionOffsets, Record, Security, Tls, TransactionInfo, USER,
    WriteRow,
};
pub use netns::Netns;
pub use ports::{PortLease, reserve_port};
pub use program::{Program, Running};
pub use proxy::{Cut, Direction, Proxy};
pub use random::{Random, scale};

/// Result of the calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
