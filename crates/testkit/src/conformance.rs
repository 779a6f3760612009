//! The sink conformance kit: drives any [`TwoPhaseCommitSink`] through every point at which a process can die, and through what
//! zombies can do, and compares what the external system shows with what the protocol promises. A new connector is done when it
//! passes.
//!
//! The kit plays supervisor, workers and journal; the external system is the real one. What must be visible is simple: the rows of
//! every transaction that was committed, once, and nothing else; after a restart, those of every checkpoint whose entry is in the
//! journal.
//!
//! ```no_run
//! # use arrow::{array::RecordBatch, datatypes::SchemaRef};
//! # use semel_testkit::conformance::{self, Target};
//! # async fn example<MyTarget: Target>(my_target: MyTarget) {
//! // In a test of `#[tokio::test(flavor = "multi_thread")]`, with an implementation of `Target` for your sink:
//! conformance::run(&my_target).await;
//! # }
//! ```
//!
//! | scene | a sink that fails it |
//! |---|---|
//! | [`every_crash_point`] | shows rows early, commits when dropped, loses what it had not flushed, commits twice, uses a name again too early |
//! | [`crash_while_recovering`] | commits again in a second recovery, or needs the former parallelism |
//! | [`declined_checkpoints`] | takes the checkpoint of the permit for that of the transaction |
//! | [`several_pending_entries`] | commits only the newest entry in recovery, or aborts before it commits |
//! | [`zombies`] | lets a former generation add, change or end anything of its successor; leaves its transactions open |
//! | [`slow_supervisor`] | lets a supervisor that was replaced during its recovery end its successor's transactions |
//! | [`commits_at_once`] | commits twice when two processes commit the same transaction at the same time |
//! | [`many_checkpoints`] | makes a checkpoint wait for the commit of the one before; mixes up names that are used again |
//! | [`strangers`] | takes another job's or another sink's transactions for its own |
//! | [`lost_transactions`] | calls a commit successful whose rows are gone |
//!
//! Each scene panics with the scene, what was done, and which rows are lost, visible too early, or doubled. Scenes may share a
//! target; each begins with what is visible then. What the kit cannot see: whether rows are durable at the target after `pre_commit`
//! (power loss), and what happens *inside* one call; test those beside it.
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_engine::sink::TwoPhaseCommitSink;
use std::future::Future;
use std::ops::Range;

mod play;
mod scenes;

pub use scenes::{
    commits_at_once, crash_while_recovering, declined_checkpoints, every_crash_point, lost_transactions, many_checkpoints,
    several_pending_entries, slow_supervisor, strangers, zombies,
};

/// What the kit must be able to do with the system behind a sink.
pub trait Target: Sync {
    /// The sink.
    type Sink: TwoPhaseCommitSink;
    /// A new instance, as a new process would make it.
    fn sink(&self) -> Self::Sink;
    /// Of the rows.
    fn schema(&self) -> SchemaRef;
    /// A batch with these row ids, all different.
    fn rows(&self, ids: Range<u64>) -> RecordBatch;
    /// The row ids that a reader sees, with repetitions. Must not use the sink's own code.
    fn visible(&self) -> impl Future<Output = Vec<u64>> + Send;
    /// How many transactions are open or pre-committed in the external system, of any job. Those that were committed do not count,
    /// even if the system still remembers them.
    fn open_transactions(&self) -> impl Future<Output = usize> + Send;
}

/// Where the processes die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CrashPoint {
    /// After `begin_transaction` of both subtasks.
    Begun,
    /// After some rows.
    Written,
    /// After `pre_commit` of one of two subtasks.
    HalfPreCommitted,
    /// After `pre_commit` of both; the entry is not written.
    PreCommitted,
    /// The entry is written; nothing is committed.
    Entry,
    /// One of two subtasks has committed.
    HalfCommitted,
    /// Both have committed; no entry says so.
    Committed,
    /// As `Committed`, and the next checkpoint has rows.
    NextWritten,
    /// As `Committed`, and the next checkpoint is pre-committed.
    NextPreCommitted,
}

/// All of them.
pub const CRASH_POINTS: [CrashPoint; 9] = {
    use CrashPoint::*;
    [Begun, Written, HalfPreCommitted, PreCommitted, Entry, HalfCommitted, Committed, NextWritten, NextPreCommitted]
};

/// Runs every scene, one after the other on one target. Panics with what is wrong.
pub async fn run<T: Target>(target: &T) {
    every_crash_point(target).await;
    crash_while_recovering(target).await;
    declined_checkpoints(target).await;
    several_pending_entries(target).await;
    zombies(target).await;
    slow_supervisor(target).await;
    commits_at_once(target).await;
    many_checkpoints(target).await;
    strangers(target).await;
    lost_transactions(target).await;
}
