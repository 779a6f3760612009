//! The sink conformance kit: drives any [`TwoPhaseCommitSink`] through every point at which a process can die, and through what
//! zombies can do, and compares what the external system shows with what the protocol promises. A new connector is done when it
//! passes.
//!
//! The kit plays supervisor, workers and journal. What must be visible is simple: the rows of every checkpoint whose entry is in
//! the journal, once, and nothing else.
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{CheckpointId, CommitPermit, Generation, JobIdentity, JobUuid, OperatorUid};
use semel_engine::sink::{Pending, SinkCommitter, SinkContext, SinkWriter, TwoPhaseCommitSink};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

/// No single call of a sink may take longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the kit must be able to do with the system behind a sink.
pub trait Target: Sync {
    /// The sink.
    type Sink: TwoPhaseCommitSink;
    /// A new instance, as a new process would make it.
    fn sink(&self) -> Self::Sink;
    /// Of the rows.
    fn schema(&self) -> SchemaRef;
    /// A batch with these row ids, all different.
    fn rows(&self, ids: std::ops::Range<u64>) -> RecordBatch;
    /// The row ids that a reader sees, with repetitions. Must not use the sink's own code.
    fn visible(&self) -> impl Future<Output = Vec<u64>> + Send;
    /// How many transactions are open in the external system.
    fn open_transactions(&self) -> impl Future<Output = usize> + Send;
}

type TransactionOf<T> = <<T as Target>::Sink as TwoPhaseCommitSink>::Transaction;
type WriterOf<T> = <<T as Target>::Sink as TwoPhaseCommitSink>::Writer;
type CommitterOf<T> = <<T as Target>::Sink as TwoPhaseCommitSink>::Committer;

/// Where the processes die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CrashPoint {
    /// After `begin_transaction`.
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
    /// The next checkpoint has begun, with the entry that says so still to come.
    NextBegun,
}

/// All of them.
pub const CRASH_POINTS: [CrashPoint; 8] = {
    use CrashPoint::*;
    [Begun, Written, HalfPreCommitted, PreCommitted, Entry, HalfCommitted, Committed, NextBegun]
};

/// The journal and the counters that the kit keeps.
struct Play<'a, T: Target> {
    target: &'a T,
    identity: JobIdentity,
    uid: OperatorUid,
    next_checkpoint: u64,
    next_row: u64,
    /// Rows of checkpoints that have an entry.
    promised: Vec<u64>,
    /// Handles of the entries that no later entry calls committed, as JSON: they come from another process.
    pending: BTreeMap<u64, Vec<(u32, serde_json::Value)>>,
}

struct Subtask<T: Target> {
    subtask: u32,
    writer: WriterOf<T>,
    committer: CommitterOf<T>,
}

fn json<V: Serialize>(value: &V) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_else(|e| panic!("a handle must be storable as JSON: {e}"))
}

fn from_json<V: DeserializeOwned>(value: &serde_json::Value) -> V {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("a handle must come back from JSON: {e}"))
}

async fn within<V>(what: &str, call: impl Future<Output = V>) -> V {
    tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(|_| panic!("{what} took longer than {DEADLINE:?}"))
}

impl<'a, T: Target> Play<'a, T> {
    fn new(target: &'a T) -> Self {
        Play {
            target,
            identity: JobIdentity { name: "conformance".into(), uuid: JobUuid::random(), generation: Generation(0) },
            uid: OperatorUid::new("sink").unwrap_or_else(|e| panic!("{e}")),
            next_checkpoint: 1,
            next_row: 0,
            promised: vec![],
            pending: BTreeMap::new(),
        }
    }

    /// The supervisor starts a generation: claim, recover, open.
    async fn start(&mut self) -> Vec<Subtask<T>> {
        self.identity.generation = Generation(self.identity.generation.0 + 1);
        let sink = self.target.sink();
        let pending = self.pending.iter().flat_map(|(checkpoint, handles)| {
            let permit = CommitPermit::for_tests(self.identity.uuid, CheckpointId(*checkpoint), self.identity.generation);
            handles.iter().map(move |(subtask, handle)| Pending {
                transaction: from_json::<TransactionOf<T>>(handle),
                permit: permit.clone(),
                subtask: *subtask,
                checkpoint: CheckpointId(*checkpoint),
            })
        });
        let pending = pending.collect();
        within("recover", sink.recover(&self.identity, &self.uid, pending)).await.unwrap_or_else(|e| panic!("recover: {e}"));
        let mut subtasks = vec![];
        for subtask in 0..2 {
            let context =
                SinkContext { job: self.identity.clone(), uid: self.uid.clone(), subtask, parallelism: 2, schema: self.target.schema() };
            let (writer, committer) = within("open", sink.open(context)).await.unwrap_or_else(|e| panic!("open: {e}"));
            subtasks.push(Subtask { subtask, writer, committer });
        }
        subtasks
    }

    fn take_rows(&mut self) -> (RecordBatch, std::ops::Range<u64>) {
        let ids = self.next_row..self.next_row + 10;
        self.next_row += 10;
        (self.target.rows(ids.clone()), ids)
    }

    /// One checkpoint of both subtasks, until the crash point. `true`: it was reached.
    async fn checkpoint(&mut self, subtasks: &mut [Subtask<T>], crash: Option<CrashPoint>) -> bool {
        use CrashPoint::*;
        let id = self.next_checkpoint;
        self.next_checkpoint += 1;
        let mut open = vec![];
        let mut rows = vec![];
        for s in subtasks.iter_mut() {
            let mut transaction = within("begin_transaction", s.writer.begin_transaction(CheckpointId(id)))
                .await
                .unwrap_or_else(|e| panic!("begin_transaction: {e}"));
            if crash == Some(Begun) {
                continue;
            }
            for _ in 0..2 {
                let (batch, ids) = self.take_rows();
                rows.extend(ids);
                within("invoke", s.writer.invoke(&mut transaction, batch)).await.unwrap_or_else(|e| panic!("invoke: {e}"));
            }
            open.push((s.subtask, transaction));
        }
        if matches!(crash, Some(Begun | Written)) {
            return true;
        }
        let mut handles = vec![];
        for (s, (subtask, mut transaction)) in subtasks.iter_mut().zip(open) {
            within("pre_commit", s.writer.pre_commit(&mut transaction)).await.unwrap_or_else(|e| panic!("pre_commit: {e}"));
            handles.push((subtask, json(&transaction)));
            if crash == Some(HalfPreCommitted) {
                return true;
            }
        }
        if crash == Some(PreCommitted) {
            return true;
        }
        // The entry: everything before it is then known to be committed, so the pending ones are only this checkpoint's.
        let committed = id - 1;
        self.pending = BTreeMap::from([(id, handles.clone())]);
        self.promised.extend(rows);
        if crash == Some(Entry) {
            return true;
        }
        let permit = CommitPermit::for_tests(self.identity.uuid, CheckpointId(id), self.identity.generation);
        for (s, (_, handle)) in subtasks.iter_mut().zip(&handles) {
            within("commit", s.committer.commit(&from_json(handle), &permit)).await.unwrap_or_else(|e| panic!("commit: {e}"));
            within("released", s.committer.released(CheckpointId(committed))).await.unwrap_or_else(|e| panic!("released: {e}"));
            if crash == Some(HalfCommitted) {
                return true;
            }
        }
        if crash == Some(NextBegun) {
            for s in subtasks.iter_mut() {
                let (batch, _) = self.take_rows();
                let mut next = within("begin_transaction", s.writer.begin_transaction(CheckpointId(id + 1)))
                    .await
                    .unwrap_or_else(|e| panic!("begin_transaction: {e}"));
                within("invoke", s.writer.invoke(&mut next, batch)).await.unwrap_or_else(|e| panic!("invoke: {e}"));
                within("pre_commit", s.writer.pre_commit(&mut next)).await.unwrap_or_else(|e| panic!("pre_commit: {e}"));
            }
            self.next_checkpoint += 1;
        }
        matches!(crash, Some(Committed | NextBegun))
    }

    async fn check(&self, when: &str) {
        let mut seen = self.target.visible().await;
        seen.sort_unstable();
        let mut promised = self.promised.clone();
        promised.sort_unstable();
        let lost: Vec<_> = promised.iter().filter(|id| seen.binary_search(id).is_err()).take(5).collect();
        let foreign: Vec<_> = seen.iter().filter(|id| promised.binary_search(id).is_err()).take(5).collect();
        let doubled: Vec<_> = seen.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).take(5).collect();
        assert!(
            lost.is_empty() && foreign.is_empty() && doubled.is_empty(),
            "{when}: lost {lost:?}, not committed but visible {foreign:?}, doubled {doubled:?}"
        );
    }
}

/// Runs everything. Panics with what is wrong.
pub async fn run<T: Target>(target: &T) {
    every_crash_point(target).await;
    crash_while_recovering(target).await;
    zombies(target).await;
    many_checkpoints(target).await;
}

/// Dies at each point, each time in the second checkpoint of a generation, and goes on. All on one journal, so that what one crash
/// leaves behind meets the next.
pub async fn every_crash_point<T: Target>(target: &T) {
    let mut play = Play::new(target);
    for crash in CRASH_POINTS {
        let mut subtasks = play.start().await;
        play.check(&format!("after the start before {crash:?}")).await;
        play.checkpoint(&mut subtasks, None).await;
        play.check(&format!("in operation before {crash:?}")).await;
        assert!(play.checkpoint(&mut subtasks, Some(crash)).await, "{crash:?} is a point of the script");
        drop(subtasks); // The processes are dead. Nothing may be committed by that.
    }
    drop(play.start().await);
    play.check("after the last crash").await;
    assert_eq!(target.open_transactions().await, 0, "every crash's leftovers are ended by the next start");
}

/// Recovery itself is repeated: the supervisor dies after it, twice.
pub async fn crash_while_recovering<T: Target>(target: &T) {
    let mut play = Play::new(target);
    let mut subtasks = play.start().await;
    play.checkpoint(&mut subtasks, Some(CrashPoint::HalfCommitted)).await;
    drop(subtasks);
    for _ in 0..3 {
        drop(play.start().await);
        play.check("after a repeated recovery").await;
    }
}

/// The old processes are not dead, only slow: they wake after their successor has recovered, commit with the permit that they
/// hold, and open new transactions. The successor's sweep ends those.
pub async fn zombies<T: Target>(target: &T) {
    let mut play = Play::new(target);
    let mut old = play.start().await;
    let old_identity = play.identity.clone();
    play.checkpoint(&mut old, Some(CrashPoint::Entry)).await;
    let (held, handles) =
        play.pending.iter().next_back().map(|(id, handles)| (*id, handles.clone())).unwrap_or_else(|| panic!("an entry was written"));
    let mut new = play.start().await;
    play.check("the successor has recovered").await;
    // The permit that the zombie holds is honest: its checkpoint is complete. What it commits is committed already.
    let permit = CommitPermit::for_tests(old_identity.uuid, CheckpointId(held), old_identity.generation);
    for (zombie, (_, handle)) in old.iter_mut().zip(&handles) {
        _ = within("a zombie's commit", zombie.committer.commit(&from_json(handle), &permit)).await;
    }
    play.check("zombies have committed what was committed").await;
    // They go on writing the next checkpoint: with luck they are refused at once, at the latest the sweep ends it.
    let mut late = vec![];
    for zombie in &mut old {
        let (batch, _) = play.take_rows();
        if let Ok(mut t) = within("a zombie's begin", zombie.writer.begin_transaction(CheckpointId(held + 1))).await {
            let written = within("a zombie's invoke", zombie.writer.invoke(&mut t, batch)).await.is_ok();
            if written && within("a zombie's pre_commit", zombie.writer.pre_commit(&mut t)).await.is_ok() {
                late.push(t);
            }
        }
    }
    play.check("zombies have written").await;
    let sink = target.sink();
    within("sweep", sink.sweep(&play.identity, &play.uid)).await.unwrap_or_else(|e| panic!("sweep: {e}"));
    assert_eq!(target.open_transactions().await, 0, "{} transactions of zombies were open", late.len());
    play.checkpoint(&mut new, None).await;
    play.check("the successor goes on").await;
    // A zombie's own sweep must not end what its successor has open.
    let id = CheckpointId(play.next_checkpoint);
    let (batch, ids) = play.take_rows();
    let mut open = within("begin", new[0].writer.begin_transaction(id)).await.unwrap_or_else(|e| panic!("begin: {e}"));
    within("invoke", new[0].writer.invoke(&mut open, batch)).await.unwrap_or_else(|e| panic!("invoke: {e}"));
    within("pre_commit", new[0].writer.pre_commit(&mut open)).await.unwrap_or_else(|e| panic!("pre_commit: {e}"));
    _ = within("a zombie's sweep", sink.sweep(&old_identity, &play.uid)).await;
    play.promised.extend(ids);
    let permit = CommitPermit::for_tests(play.identity.uuid, id, play.identity.generation);
    within("commit", new[0].committer.commit(&open, &permit)).await.unwrap_or_else(|e| panic!("commit after a zombie's sweep: {e}"));
    play.check("a zombie's sweep has ended nothing of its successor's").await;
}

/// Many checkpoints of one generation: names that are used again must not meet.
pub async fn many_checkpoints<T: Target>(target: &T) {
    let mut play = Play::new(target);
    let mut subtasks = play.start().await;
    for _ in 0..12 {
        play.checkpoint(&mut subtasks, None).await;
    }
    play.check("after many checkpoints").await;
}
