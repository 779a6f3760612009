//! Timestamps: `checkpoint id << 24 | tick`. The barrier of checkpoint *n* is the first time of *n* + 1.
use semel_checkpoint::CheckpointId;
use timely::progress::frontier::MutableAntichain;

/// A timestamp of the dataflow.
pub type Time = u64;

/// Bits of the tick within a checkpoint.
pub const TICK_BITS: u32 = 24;

/// What [`low`] answers for an input that is closed: later than every time.
pub const CLOSED: Time = Time::MAX;

/// The first time of a checkpoint, which is the barrier of the one before.
pub fn first_of(checkpoint: CheckpointId) -> Time {
    checkpoint.0 << TICK_BITS
}

/// The checkpoint that a time belongs to.
pub fn checkpoint_of(time: Time) -> CheckpointId {
    CheckpointId(time >> TICK_BITS)
}

/// The checkpoint after this one.
pub fn next(checkpoint: CheckpointId) -> CheckpointId {
    CheckpointId(checkpoint.0 + 1)
}

/// The number of the tick within its checkpoint.
pub fn tick_of(time: Time) -> u64 {
    time & ((1 << TICK_BITS) - 1)
}

/// The least time that may still arrive at an input.
pub fn low(frontier: &MutableAntichain<Time>) -> Time {
    frontier.frontier().first().copied().unwrap_or(CLOSED)
}
