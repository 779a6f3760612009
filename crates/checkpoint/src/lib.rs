//! The checkpoint protocol: journal, generations, fencing, restore and collection.
//!
//! A job has one **journal**: numbered entries, each written with put-if-absent at the next number. A start appends a
//! `Generation`; a completed checkpoint appends a `Checkpoint`. Whoever finds its number taken is **fenced**: that is
//! the whole fencing, without lock, lease or clock. Only a durable entry gives a [`CommitPermit`], so nothing becomes
//! visible outside before everything needed to go on from there is safe.
//!
//! What to do is decided by pure functions over observed facts (module [`decide`], [`plan_collection`],
//! [`retained_after`]); the model check in `tests/model.rs` runs these same functions through all interleavings of
//! zombies, lost answers and late deletions. The I/O around them ([`claim`], [`Appender`], [`collect`]) is thin.
//! `JOURNAL.md` beside this crate holds the format and the state diagrams.

mod appender;
mod claim;
mod collect;
pub mod decide;
mod ids;
mod journal;
pub mod paths;
mod permit;
mod store;
pub mod testing;
mod types;

pub use appender::{AppendError, Appender, AppenderState, DurableCheckpoint};
pub use claim::{Claim, ClaimError, ClaimRequest, claim};
pub use collect::{CollectError, Collected, Collection, CollectionFacts, collect, plan_collection};
pub use decide::{ClaimDecision, NotRetained, decide_claim, retained_after};
pub use ids::{CheckpointId, Generation, IdError, JobIdentity, JobUuid, OperatorUid};
pub use journal::{FORMAT, JournalError, JournalView, decode_entry, encode_entry, read_journal};
pub use paths::{SnapshotPath, StagedPath};
pub use permit::CommitPermit;
pub use store::{
    ATTEMPT_DEADLINE, LocalStore, ObjectStoreBackend, PutOutcome, Store, StoreError, StoreResult, StoredObject, TOTAL_DEADLINE, open_store,
    probe_put_if_absent,
};
pub use types::{CheckpointEntry, Committable, CommittedEntry, Entry, GenerationEntry, OperatorSnapshot, Part, SplitState, StateFile};
