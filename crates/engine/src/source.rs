//! The source: what a connector writes to bring rows in.
//!
//! A source is divided into *splits* (Kafka: partitions), each with a position from which it can be read again. Which subtask
//! reads a split follows from the split alone ([`owner_of_split`]), so nobody assigns: every subtask finds its own splits, also
//! those that appear while the job runs.
use crate::sink::{ConnectorResult, Finding, JobNeeds};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{JobIdentity, OperatorUid, SplitState};
use std::future::Future;

/// Everything that one subtask of a source must know.
#[derive(Debug, Clone)]
pub struct SourceContext {
    /// Whose source this is.
    pub job: JobIdentity,
    /// Of the source.
    pub uid: OperatorUid,
    /// 0-based.
    pub subtask: u32,
    /// Number of subtasks.
    pub parallelism: u32,
}

impl SourceContext {
    /// Whether this subtask reads the split.
    pub fn owns(&self, split: &str) -> bool {
        owner_of_split(split, self.parallelism) == self.subtask
    }
}

/// The subtask that reads a split: a split named `<name>-<number>` goes to `(hash(name) + number) % parallelism`, which spreads
/// the partitions of a topic evenly (Flink's `KafkaSourceEnumerator` does the same); any other to `hash(split) % parallelism`.
pub fn owner_of_split(split: &str, parallelism: u32) -> u32 {
    let hash = |text: &str| twox_hash::XxHash3_64::oneshot(text.as_bytes()) % u64::from(parallelism);
    let numbered = split.rsplit_once('-').and_then(|(name, number)| Some((name, number.parse::<u32>().ok()?)));
    let owner = match numbered {
        Some((name, number)) => (hash(name) + u64::from(number)) % u64::from(parallelism),
        None => hash(split),
    };
    owner as u32 // Below `parallelism`.
}

/// A source: one value per source of the job, shared by all its subtasks.
pub trait Source: Send + Sync + 'static {
    /// Reads the splits of one subtask.
    type Reader: SourceReader;

    /// The schema of the rows.
    fn schema(&self) -> SchemaRef;

    /// Looks at the external system and changes nothing.
    fn preflight(&self, needs: &JobNeeds, uid: &OperatorUid) -> impl Future<Output = Vec<Finding>> + Send;

    /// Opens a subtask. `restored` holds **all** splits of the checkpoint, not only this subtask's (`None`: a fresh start): a
    /// split that is known anywhere is not a new one.
    fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>)
    -> impl Future<Output = ConnectorResult<Self::Reader>> + Send;

    /// A checkpoint with these splits is durable. For outside observers only (Kafka: the group's offsets); failures are logged.
    /// Called by process 0.
    fn checkpoint_complete(&self, job: &JobIdentity, splits: &[SplitState]) -> impl Future<Output = ConnectorResult<()>> + Send {
        _ = (job, splits);
        async { Ok(()) }
    }
}

/// Reads ahead; the engine takes an event when it may emit one. A reader is never told of barriers: the engine notes the
/// position of the last event that it has emitted before each.
pub trait SourceReader: Send + 'static {
    /// The splits that this subtask owns at the start, each with the position to begin at. Asked once, right after `open`: they
    /// are part of the first checkpoint, so that a start mode such as *latest* is resolved only once.
    fn splits(&mut self) -> Vec<SplitState>;
    /// The next event. Waits; must be cancel-safe (dropping the future loses nothing).
    fn next(&mut self) -> impl Future<Output = ConnectorResult<SourceEvent>> + Send;
}

/// What a reader brings.
#[derive(Debug)]
pub enum SourceEvent {
    /// A split that appeared after `open`; the reader owns it from now on and begins at its position.
    Split(SplitState),
    /// Rows of one split, at most about 1 MiB and 16 k rows. May be empty of rows: positions move over what is skipped.
    Rows {
        /// Name of the split.
        split: std::sync::Arc<str>,
        /// The rows.
        rows: RecordBatch,
        /// Where to go on after them.
        position: i64,
        /// Whether there was nothing more to read in this split at that moment. Only such a split may become idle.
        caught_up: bool,
    },
    /// A split has reached its bound and ends at this position.
    SplitFinished {
        /// Name of the split.
        split: std::sync::Arc<str>,
    },
    /// Every split has been announced and no more will appear (bounded sources): with all of them finished, the source is.
    NoMoreSplits,
}
