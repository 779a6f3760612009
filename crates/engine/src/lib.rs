//! The engine: time, barriers, alignment, keyed state, windows, sources and two-phase-commit sinks on timely dataflow.
//!
//! A job is a [`graph::Graph`] of [`graph::Operator`]s. Every worker thread builds all of it and runs one subtask of each
//! operator. A timestamp is `checkpoint id << 24 | tick`, so that the barrier of a checkpoint is a frontier and alignment and
//! completion are timely's progress protocol; `docs/design.md` tells why and how.
//!
//! | module | what it holds |
//! |---|---|
//! | [`sink`], [`source`] | the traits that connectors, also users' own, implement |
//! | [`graph`], [`job`], [`config`] | what is run, in which generation, with which settings |
//! | [`operators`] | one operator, one file |
//! | [`coordinator`] | grants, barriers, completion, commits: what worker 0 decides |
//! | [`state`] | keyed state and its incremental snapshots |
//! | [`worker`], [`failure`], [`status`] | a worker process, how it ends, and what it tells |
pub mod ack;
pub mod batch;
pub mod config;
pub mod coordinator;
pub mod ending;
pub mod erased;
pub mod event_time;
pub mod exchange;
pub mod failpoint;
pub mod failure;
pub mod graph;
pub mod job;
pub mod operators;
mod share;
pub mod sink;
pub mod source;
pub mod state;
pub mod status;
pub mod tasks;
pub mod time;
pub mod transaction_admin;
pub mod watermark;
pub mod wire;
pub mod worker;
