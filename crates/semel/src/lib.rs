//! Semel: end-to-end exactly-once stream processing. The library's public face, its command line and its supervisor.
//!
//! A program builds its streams in [`api::execute`]. The process that the user starts is the *supervisor*: it claims a
//! generation in the checkpoint store, lets the sinks commit what is pending, and starts worker processes (the same program) that
//! run the dataflow. Whatever fails ends the generation; the supervisor starts the next one from the newest checkpoint.
//!
//! | module | what it holds |
//! |---|---|
//! | [`api`] | streams, windows, sources and sinks: what a program is written with |
//! | [`job`] | what is run |
//! | [`options`] | settings: names, values and where they come from |
//! | [`cli`] | the command line that every program on the library has |
//! | [`supervisor`] | starts, watches and restarts worker processes |
//! | [`cluster`] | authenticated links between the processes of a job |
//! | [`metrics`], [`logging`] | what is shown of a running job |
pub mod api;
pub mod cli;
pub mod cluster;
pub mod job;
pub mod logging;
pub mod metrics;
pub mod options;
pub mod supervisor;

pub use job::Job;
pub use options::Settings;

/// Arrow, in the version that rows are made of.
pub use arrow;
/// The store of checkpoints, and the names in it.
pub use semel_checkpoint as checkpoint;
/// What a connector implements: [`sink::TwoPhaseCommitSink`], [`source::Source`].
pub use semel_engine::{sink, source};
/// The file sink.
pub use semel_files as files;
/// JSON and CSV.
pub use semel_formats as formats;
/// The Kafka source and sink, and the client below them.
pub use semel_kafka as kafka;
