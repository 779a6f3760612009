//! The Rust API: what a user of Flink's DataStream API expects, on Arrow columns.
//!
//! A program builds streams in a [`StreamExecutionEnvironment`]; [`execute`] makes a program of it, with command line,
//! checkpoints, restarts and worker processes. There are two kinds of streams, and each turns into the other:
//!
//! * [`Stream`] holds rows as columns and works on them with expressions ([`col`], [`lit`]), many rows at a time;
//! * [`DataStream<T>`] works on one record at a time with closures, where `T` is a serde type.
//!
//! ```no_run
//! use semel::api::*;
//! use std::time::Duration;
//!
//! fn main() -> std::process::ExitCode {
//!     execute("orders", |env| {
//!         env.enable_checkpointing(Duration::from_secs(1));
//!         let watermarks = WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(2));
//!         env.from_source(datagen::orders(1).rows(1_000_000), watermarks, "orders")?
//!             .filter(col("region").not_eq(lit("ap")))?
//!             .key_by(["customer_id"])
//!             .window(TumblingEventTimeWindows::of(Duration::from_secs(10)))
//!             .aggregate([count().alias("cnt"), sum("amount").alias("total")])?
//!             .sink_to(FileSink::json("/tmp/out").build()?)?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! | module | |
//! |---|---|
//! | [`environment`] | [`StreamExecutionEnvironment`]: sources, checkpoint settings, parameters |
//! | [`stream`], [`keyed`] | [`Stream`], [`KeyedStream`], [`WindowedStream`] |
//! | [`expr`] | expressions over columns |
//! | [`aggregates`] | `count`, `sum`, `min`, `max`, `avg` |
//! | [`data_stream`] | [`DataStream<T>`] |
//! | [`schema`] | schemas with SQL's types |
//! | [`datagen`], [`discard`] | rows without any server, from nowhere and to nowhere |
pub mod aggregates;
pub mod data_stream;
pub mod datagen;
pub mod discard;
pub mod environment;
pub mod error;
pub mod expr;
pub mod keyed;
mod plan;
mod program;
pub mod schema;
mod steps;
pub mod stream;
pub mod time;

pub use aggregates::{AggregateCall, avg, count, count_column, max, min, sum};
pub use data_stream::DataStream;
pub use datagen::GeneratorSource;
pub use discard::DiscardingSink;
pub use environment::{CheckpointSettings, StreamExecutionEnvironment};
pub use error::ApiError;
pub use expr::{Expr, col, lit};
pub use keyed::{KeyedStream, OutputTag, WindowedStream};
pub use program::execute;
pub use schema::{DataTypes, SchemaBuilder};
pub use semel_engine::operators::aggregate::Emit;
pub use semel_files::FileSink;
pub use semel_formats::Format;
pub use semel_kafka::{BoundedMode, DeliveryGuarantee, KafkaSink, KafkaSource, KeyFormat, OffsetsInitializer, OnBadRecord};
pub use stream::{DataStreamSink, Stream};
pub use time::{SlidingEventTimeWindows, TumblingEventTimeWindows, WatermarkStrategy};
