//! The operators: one operator, one file.
pub mod aggregate;
pub mod keyed;
pub mod sink_committer;
pub mod sink_writer;
pub mod snapshots;
pub mod source;
pub mod transform;
pub mod union;
pub mod window;
pub mod window_assigner;
