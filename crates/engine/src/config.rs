//! Settings of a job, with Flink's names and defaults where Flink has them.
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `execution.checkpointing.*`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointConfig {
    /// `execution.checkpointing.interval`: time between two barriers.
    pub interval: Duration,
    /// `execution.checkpointing.timeout`: a checkpoint that takes longer is declined, unless its entry is already being written.
    pub timeout: Duration,
    /// `execution.checkpointing.min-pause`: least time between the end of one checkpoint and the barrier of the next.
    pub min_pause: Duration,
    /// `execution.checkpointing.tolerable-failed-checkpoints`: more than this many in a row fail the generation.
    pub tolerable_failed_checkpoints: u32,
    /// `execution.checkpointing.max-concurrent-checkpoints`.
    pub max_concurrent_checkpoints: u32,
    /// `execution.checkpointing.num-retained`.
    pub num_retained: u32,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(600),
            min_pause: Duration::ZERO,
            tolerable_failed_checkpoints: 0,
            max_concurrent_checkpoints: 1,
            num_retained: 1,
        }
    }
}

/// Settings of the engine, the same in every process of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineConfig {
    /// `execution.checkpointing.*`.
    pub checkpoint: CheckpointConfig,
    /// `pipeline.max-parallelism`: number of key slots. Fixed for the life of a job's state.
    pub max_parallelism: u32,
    /// Length of a tick.
    pub tick: Duration,
    /// At most this many ticks are between the ticker and the sink writers.
    pub ticks_in_flight: usize,
    /// Bytes that one source subtask may emit in a tick, at most.
    pub max_bytes_per_tick: u64,
    /// Bytes that one sink subtask buffers before it pushes back.
    pub sink_buffer_bytes: u64,
    /// Deadline of one `pre_commit` or `commit`. The generation fails after it.
    pub commit_timeout: Duration,
    /// Time between two sweeps for transactions of lower generations.
    pub sweep_interval: Duration,
    /// A worker thread, a source's reader or a sink that shows no progress for this long is taken for hung.
    pub hang_timeout: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            checkpoint: CheckpointConfig::default(),
            max_parallelism: 256,
            tick: Duration::from_millis(10),
            ticks_in_flight: 4,
            max_bytes_per_tick: 4 << 20,
            sink_buffer_bytes: 4 << 20,
            commit_timeout: Duration::from_secs(60),
            sweep_interval: Duration::from_secs(10),
            hang_timeout: Duration::from_secs(10),
        }
    }
}
