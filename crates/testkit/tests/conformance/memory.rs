//! A transactional system in memory, its sink, and the ways in which a sink can be wrong.
use arrow::array::{AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use semel_checkpoint::{CheckpointId, CommitPermit, JobIdentity, OperatorUid};
use semel_engine::sink::{
    Committed, ConnectorError, ConnectorResult, Finding, JobNeeds, Pending, SinkCommitter, SinkContext, SinkWriter, Swept,
    TwoPhaseCommitSink,
};
use semel_testkit::conformance::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// One fault of the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    VisibleAtInvoke,
    VisibleAtPreCommit,
    CommitsOnDrop,
    FlushesLate,
    CommitsTwice,
    SweepsFirst,
    SweepsFirstAndIsContent,
    CommitsNewestOnly,
    SweepsNothing,
    SweepsAllGenerations,
    NoGenerationInNames,
    NoJobInSweep,
    SweepsByPrefix,
    ReusesAtCommit,
    CallsLostCommitted,
    PermitMustBeEqual,
    OneAtATime,
}

/// The handle. `name` has one transaction at a time, as a transactional id of Kafka.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Handle {
    job: String,
    sink: String,
    generation: u64,
    subtask: u32,
    k: u32,
    checkpoint: u64,
}

type Name = (String, String, u64, u32, u32);

impl Handle {
    fn name(&self, wrong: Option<Wrong>) -> Name {
        let generation = if wrong == Some(Wrong::NoGenerationInNames) { 0 } else { self.generation };
        (self.job.clone(), self.sink.clone(), generation, self.subtask, self.k)
    }
}

/// What the system knows of a name.
#[derive(Debug, Default)]
struct Slot {
    open: Option<(Handle, Vec<u64>)>,
    /// How the last one ended. `true`: committed.
    last: Option<(bool, Vec<u64>)>,
}

#[derive(Debug, Default)]
struct System {
    slots: BTreeMap<Name, Slot>,
    visible: Vec<u64>,
}

type Shared = Arc<Mutex<System>>;

/// The system and the sink's configuration.
#[derive(Clone)]
pub struct Memory {
    system: Shared,
    wrong: Option<Wrong>,
}

impl Memory {
    pub fn new(wrong: Option<Wrong>) -> Memory {
        Memory { system: Shared::default(), wrong }
    }

    fn system(&self) -> MutexGuard<'_, System> {
        self.system.lock().unwrap()
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Acts on whatever is open under the name, as many systems do.
    fn commit(&self, handle: &Handle) -> ConnectorResult<Committed> {
        let mut system = self.system();
        let slot = system.slots.entry(handle.name(self.wrong)).or_default();
        if let Some((_, rows)) = slot.open.take() {
            slot.last = Some((true, rows.clone()));
            system.visible.extend(rows);
            return Ok(Committed::Now);
        }
        match slot.last.clone() {
            Some((true, rows)) if self.is(Wrong::CommitsTwice) => {
                system.visible.extend(rows);
                Ok(Committed::Already)
            }
            Some((true, _)) => Ok(Committed::Already),
            _ if self.is(Wrong::CallsLostCommitted) || self.is(Wrong::SweepsFirstAndIsContent) => Ok(Committed::Already),
            _ => Err(ConnectorError::Lost(format!("{handle:?} is not there"))),
        }
    }

    fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> Swept {
        let mut swept = Swept::default();
        if self.is(Wrong::SweepsNothing) {
            return swept;
        }
        for slot in self.system().slots.values_mut() {
            let Some((handle, rows)) = &slot.open else { continue };
            let same_job = handle.job == job.uuid.to_string() || self.is(Wrong::NoJobInSweep);
            let same_sink = handle.sink == uid.as_str() || self.is(Wrong::SweepsByPrefix) && handle.sink.starts_with(uid.as_str());
            let lower = handle.generation < job.generation.0;
            let other = handle.generation != job.generation.0 && self.is(Wrong::SweepsAllGenerations);
            if same_job && same_sink && (lower || other) {
                swept.aborted.push(format!("{handle:?}"));
                slot.last = Some((false, rows.clone()));
                slot.open = None;
            }
        }
        swept
    }
}

impl Target for Memory {
    type Sink = Memory;

    fn sink(&self) -> Memory {
        self.clone()
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("id", DataType::UInt64, false)]))
    }

    fn rows(&self, ids: Range<u64>) -> RecordBatch {
        RecordBatch::try_new(self.schema(), vec![Arc::new(UInt64Array::from_iter_values(ids))]).unwrap()
    }

    async fn visible(&self) -> Vec<u64> {
        self.system().visible.clone()
    }

    async fn open_transactions(&self) -> usize {
        self.system().slots.values().filter(|slot| slot.open.is_some()).count()
    }
}

impl TwoPhaseCommitSink for Memory {
    type Transaction = Handle;
    type Writer = Writer;
    type Committer = Committer;

    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid, _: &SchemaRef) -> Vec<Finding> {
        vec![]
    }

    async fn recover(&self, job: &JobIdentity, uid: &OperatorUid, mut pending: Vec<Pending<Handle>>) -> ConnectorResult<Swept> {
        if self.is(Wrong::SweepsFirst) || self.is(Wrong::SweepsFirstAndIsContent) {
            Memory::sweep(self, job, uid);
        }
        pending.sort_by_key(|pending| pending.checkpoint);
        let newest = pending.last().map(|pending| pending.checkpoint);
        pending.retain(|pending| !self.is(Wrong::CommitsNewestOnly) || Some(pending.checkpoint) == newest);
        for pending in &pending {
            self.commit(&pending.transaction)?;
        }
        Ok(Memory::sweep(self, job, uid))
    }

    async fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> ConnectorResult<Swept> {
        Ok(Memory::sweep(self, job, uid))
    }

    async fn open(&self, context: SinkContext) -> ConnectorResult<(Writer, Committer)> {
        let used = Arc::default();
        let uncommitted = Arc::default();
        let committer = Committer { memory: self.clone(), used: Arc::clone(&used), uncommitted: Arc::clone(&uncommitted) };
        Ok((Writer { memory: self.clone(), context, used, uncommitted, buffer: vec![], open: None }, committer))
    }
}

/// Names in use: (k, checkpoint).
type Used = Arc<Mutex<Vec<(u32, u64)>>>;

pub struct Writer {
    memory: Memory,
    context: SinkContext,
    used: Used,
    uncommitted: Arc<Mutex<bool>>,
    buffer: Vec<u64>,
    open: Option<Handle>,
}

impl Writer {
    /// Sends what is buffered. Refused when somebody has ended the transaction.
    fn flush(&mut self, handle: &Handle) -> ConnectorResult<()> {
        let mut system = self.memory.system();
        let slot = system.slots.entry(handle.name(self.memory.wrong)).or_default();
        match &mut slot.open {
            Some((_, rows)) => rows.append(&mut self.buffer),
            None => return Err(ConnectorError::Fenced("the transaction was ended".into())),
        }
        Ok(())
    }
}

impl SinkWriter for Writer {
    type Transaction = Handle;

    async fn begin_transaction(&mut self, checkpoint: CheckpointId) -> ConnectorResult<Handle> {
        let mut used = self.used.lock().unwrap();
        if self.memory.is(Wrong::OneAtATime) && *self.uncommitted.lock().unwrap() {
            return Err(ConnectorError::Retryable("waits for the commit of the one before".into()));
        }
        let k = (0..).find(|k| used.iter().all(|(taken, _)| taken != k)).unwrap();
        used.push((k, checkpoint.0));
        let SinkContext { job, uid, subtask, .. } = &self.context;
        let (job, sink, generation) = (job.uuid.to_string(), uid.to_string(), job.generation.0);
        let handle = Handle { job, sink, generation, subtask: *subtask, k, checkpoint: checkpoint.0 };
        let mut system = self.memory.system();
        let slot = system.slots.entry(handle.name(self.memory.wrong)).or_default();
        *slot = Slot { open: Some((handle.clone(), vec![])), last: None };
        self.open = Some(handle.clone());
        Ok(handle)
    }

    async fn invoke(&mut self, handle: &mut Handle, rows: RecordBatch) -> ConnectorResult<()> {
        if self.memory.is(Wrong::FlushesLate) {
            // The last batch of a checkpoint stays in the buffer until the next batch.
            self.flush(handle)?;
        }
        self.buffer.extend_from_slice(rows.column(0).as_primitive::<UInt64Type>().values());
        if self.memory.is(Wrong::VisibleAtInvoke) {
            self.memory.system().visible.append(&mut self.buffer);
        }
        Ok(())
    }

    async fn pre_commit(&mut self, handle: &mut Handle) -> ConnectorResult<()> {
        if !self.memory.is(Wrong::FlushesLate) {
            self.flush(handle)?;
        }
        self.open = None;
        *self.uncommitted.lock().unwrap() = true;
        if self.memory.is(Wrong::VisibleAtPreCommit) {
            let mut system = self.memory.system();
            let open = system.slots.get_mut(&handle.name(self.memory.wrong)).and_then(|slot| slot.open.as_mut());
            let rows = open.map(|(_, rows)| std::mem::take(rows)).unwrap_or_default();
            system.visible.extend(rows);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(handle) = self.open.take().filter(|_| self.memory.is(Wrong::CommitsOnDrop)) {
            _ = self.flush(&handle);
            _ = self.memory.commit(&handle);
        }
    }
}

pub struct Committer {
    memory: Memory,
    used: Used,
    uncommitted: Arc<Mutex<bool>>,
}

impl SinkCommitter for Committer {
    type Transaction = Handle;

    async fn commit(&mut self, handle: &Handle, permit: &CommitPermit) -> ConnectorResult<Committed> {
        let covered = if self.memory.is(Wrong::PermitMustBeEqual) {
            permit.checkpoint().0 == handle.checkpoint
        } else {
            permit.checkpoint().0 >= handle.checkpoint
        };
        if !covered {
            return Err(ConnectorError::Fatal("declined checkpoints: the permit does not fit".into()));
        }
        let committed = self.memory.commit(handle)?;
        *self.uncommitted.lock().unwrap() = false;
        if self.memory.is(Wrong::ReusesAtCommit) {
            self.used.lock().unwrap().retain(|(_, checkpoint)| *checkpoint != handle.checkpoint);
        }
        Ok(committed)
    }

    async fn abort(&mut self, handle: &Handle) -> ConnectorResult<()> {
        let mut system = self.memory.system();
        let slot = system.slots.entry(handle.name(self.memory.wrong)).or_default();
        if let Some((_, rows)) = slot.open.take() {
            slot.last = Some((false, rows));
        }
        Ok(())
    }

    async fn released(&mut self, committed: CheckpointId) -> ConnectorResult<()> {
        self.used.lock().unwrap().retain(|(_, checkpoint)| *checkpoint > committed.0);
        Ok(())
    }
}
