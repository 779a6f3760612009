//! Keyed state and its incremental snapshots.
//!
//! An operator changes its [`KeyedState`] and freezes it at each barrier: a copy of the changed groups. A [`Snapshotter`] makes files
//! of these, off the stream's path, and keeps the chain of files short; [`restore()`] reads a chain back for any range of slots.

mod accumulators;
mod bits;
mod chain;
mod encode;
mod error;
mod group_index;
mod keyed_state;
mod merge;
mod namespace;
mod restore;
mod schema;
mod slots;
mod snapshot_file;
mod snapshotter;
mod types;

pub use accumulators::{Accumulator, AggregateKind, AggregateSpec};
pub use chain::Chain;
pub use error::StateError;
pub use group_index::{GroupIndex, NO_GROUP};
pub use keyed_state::{Combined, Frozen, KeyedState};
pub use restore::restore;
pub use schema::{Namespaces, StateSchema, StoredColumn, StoredSchema};
pub use slots::{DEFAULT_SLOTS, hash_columns, slot_of, slot_range, subtask_of};
pub use snapshot_file::{BatchHeader, Compression, FILE_FORMAT, FileHeader, HEADER_KEY, SnapshotReader, SnapshotWriter};
pub use snapshotter::{Saved, SnapshotOwner, Snapshotter};
pub use types::{canonical_type, type_name};
