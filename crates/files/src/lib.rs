//! The exactly-once file sink: rows become visible when their checkpoint has completed, and never before.
//!
//! The rows of a checkpoint are written into part files under `<folder>/.semel-pending/`, which no reader looks into. `pre_commit`
//! fsyncs them and puts an empty *ready* marker beside them; `commit` renames each part to its visible name in `<folder>`. Both
//! names follow from the transaction alone, so a commit can be repeated by anybody:
//!
//! | pending part | visible file | ready marker | a commit |
//! |---|---|---|---|
//! | yes | no | | renames it |
//! | no | yes | | was done before |
//! | no | no | yes | was done before, and a reader has taken the file away since |
//! | no | no | no | is impossible: the rows are **lost** and the job fails |
//! | yes | yes | | finds a foreign file in its place, overwrites nothing and fails |
//!
//! The rename is one atomic step, so a reader that moves or deletes visible files at once never makes a repeated commit double
//! or miss a row. Markers go once a journal entry says that nobody will ask for their transaction again.
//!
//! A process of an older generation that wakes can only rename parts whose checkpoint the journal holds (the same file to the same
//! name as its successor), and parts that it opens carry its generation in their name: the next sweep removes them.
//!
//! | module | |
//! |---|---|
//! | [`config`] | settings, with Flink's names |
//! | [`names`] | names of pending, ready and visible files |
//! | [`sink`] | [`FileSink`], the [`semel_engine::sink::TwoPhaseCommitSink`] |
//! | [`writer`], [`committer`], [`recovery`], [`preflight`] | its parts |
pub mod committer;
pub mod config;
mod io;
pub mod names;
pub mod preflight;
pub mod recovery;
pub mod sink;
pub mod writer;

pub use config::{ConfigError, FileSinkBuilder, FileSinkSettings, RollingPolicy};
pub use names::FileTransaction;
pub use semel_formats::Format;
pub use sink::FileSink;
