//! Keyed state.

mod accumulators;
mod bits;
mod error;
mod group_index;
mod keyed_state;
mod namespace;
mod schema;
mod slots;
mod types;

pub use accumulators::{Accumulator, AggregateKind, AggregateSpec};
pub use error::StateError;
pub use group_index::{GroupIndex, NO_GROUP};
pub use keyed_state::{Combined, Frozen, KeyedState};
pub use schema::{StateSchema, StoredColumn, StoredSchema};
pub use slots::{DEFAULT_SLOTS, hash_columns, slot_of, slot_range, subtask_of};
pub use types::{canonical_type, type_name};
