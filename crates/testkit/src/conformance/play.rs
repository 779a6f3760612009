//! The kit's own supervisor, workers and journal.
use super::Target;
use semel_checkpoint::{CheckpointId, CommitPermit, Generation, JobIdentity, JobUuid, OperatorUid};
use semel_engine::sink::{Committed, ConnectorResult, Pending, SinkCommitter, SinkContext, SinkWriter, Swept, TwoPhaseCommitSink};
use serde::Serialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

/// No single call of a sink may take longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// A system may show what was committed a little later (Kafka writes its markers after the answer).
const GRACE: Duration = Duration::from_secs(3);

pub type TransactionOf<T> = <<T as Target>::Sink as TwoPhaseCommitSink>::Transaction;

/// One subtask in its process.
pub struct Subtask<T: Target> {
    pub subtask: u32,
    pub writer: <T::Sink as TwoPhaseCommitSink>::Writer,
    pub committer: <T::Sink as TwoPhaseCommitSink>::Committer,
}

/// A transaction with rows that is not pre-committed.
pub struct Open<X> {
    pub transaction: X,
    pub rows: Vec<u64>,
}

/// A pre-committed transaction as the journal holds it: JSON, since it comes from another process.
#[derive(Clone)]
pub struct Prepared {
    pub subtask: u32,
    pub handle: serde_json::Value,
    pub rows: Vec<u64>,
}

impl Prepared {
    pub fn transaction<T: Target>(&self) -> TransactionOf<T> {
        serde_json::from_value(self.handle.clone()).unwrap_or_else(|e| panic!("a handle must come back from JSON: {e}: {}", self.handle))
    }
}

pub fn json<V: Serialize>(value: &V) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_else(|e| panic!("a handle must be storable as JSON: {e}"))
}

/// Ends a call that hangs.
pub async fn within<V>(what: &str, call: impl Future<Output = V>) -> V {
    tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(|_| panic!("{what} took longer than {DEADLINE:?}"))
}

/// A call that must succeed.
pub async fn ok<V>(scene: &str, what: &str, call: impl Future<Output = ConnectorResult<V>>) -> V {
    within(what, call).await.unwrap_or_else(|e| panic!("{scene}, {what}: {e}"))
}

/// A job on a target.
pub struct Play<'a, T: Target> {
    pub target: &'a T,
    pub scene: &'static str,
    pub identity: JobIdentity,
    pub uid: OperatorUid,
    pub next_checkpoint: u64,
    /// Of all entries.
    highest: u64,
    next_row: u64,
    /// Rows that must be visible now.
    expected: Vec<u64>,
    /// The generation that was claimed last has committed what was pending, and may sweep.
    recovered: bool,
    /// Entries that no later entry calls committed.
    pub pending: BTreeMap<u64, Vec<Prepared>>,
}

impl<'a, T: Target> Play<'a, T> {
    pub async fn new(target: &'a T, scene: &'static str) -> Self {
        let expected = target.visible().await;
        Play {
            target,
            scene,
            identity: JobIdentity { name: "conformance".into(), uuid: JobUuid::random(), generation: Generation(0) },
            uid: OperatorUid::new("sink").unwrap_or_else(|e| panic!("{e}")),
            next_checkpoint: 1,
            highest: 0,
            next_row: expected.iter().max().map_or(0, |row| row + 1),
            expected,
            recovered: false,
            pending: BTreeMap::new(),
        }
    }

    /// The supervisor claims the next generation. What it must commit in recovery.
    pub fn claim(&mut self) -> Vec<Pending<TransactionOf<T>>> {
        self.identity.generation = self.identity.generation.next();
        self.recovered = false;
        // Above every id in the journal: numbers that the dead generation gave out and that are in no entry come again.
        self.next_checkpoint = self.highest + 1;
        let entries = self.pending.iter().flat_map(|(checkpoint, held)| held.iter().map(|prepared| (*checkpoint, prepared)));
        let pending = entries.map(|(checkpoint, prepared)| Pending {
            transaction: prepared.transaction::<T>(),
            permit: self.permit(checkpoint),
            subtask: prepared.subtask,
            checkpoint: CheckpointId(checkpoint),
        });
        pending.collect()
    }

    /// Recovery of the generation that was claimed last.
    pub async fn recover(&mut self, pending: Vec<Pending<TransactionOf<T>>>) -> Swept {
        let swept = ok(self.scene, "recover", self.target.sink().recover(&self.identity, &self.uid, pending)).await;
        self.all_committed();
        swept
    }

    /// What every entry holds is committed.
    pub fn all_committed(&mut self) {
        let rows: Vec<u64> = self.pending.values().flatten().flat_map(|prepared| prepared.rows.clone()).collect();
        rows.into_iter().for_each(|row| self.expect(row));
        self.recovered = true;
    }

    fn expect(&mut self, row: u64) {
        if !self.expected.contains(&row) {
            self.expected.push(row);
        }
    }

    pub async fn open(&self, parallelism: u32) -> Vec<Subtask<T>> {
        let sink = self.target.sink();
        let mut subtasks = vec![];
        for subtask in 0..parallelism {
            let (job, uid, schema) = (self.identity.clone(), self.uid.clone(), self.target.schema());
            let (writer, committer) = ok(self.scene, "open", sink.open(SinkContext { job, uid, subtask, parallelism, schema })).await;
            subtasks.push(Subtask { subtask, writer, committer });
        }
        subtasks
    }

    /// Claim, recover, open.
    pub async fn start(&mut self, parallelism: u32) -> Vec<Subtask<T>> {
        let pending = self.claim();
        self.recover(pending).await;
        self.open(parallelism).await
    }

    pub fn permit(&self, checkpoint: u64) -> CommitPermit {
        self.permit_of(checkpoint, self.identity.generation)
    }

    pub fn permit_of(&self, checkpoint: u64, generation: Generation) -> CommitPermit {
        CommitPermit::for_tests(self.identity.uuid, CheckpointId(checkpoint), generation)
    }

    pub fn take_checkpoint(&mut self) -> u64 {
        self.next_checkpoint += 1;
        self.next_checkpoint - 1
    }

    pub fn take_rows(&mut self) -> Range<u64> {
        self.next_row += 10;
        self.next_row - 10..self.next_row
    }

    pub async fn begin(&self, subtask: &mut Subtask<T>, checkpoint: u64) -> Open<TransactionOf<T>> {
        let transaction = ok(self.scene, "begin_transaction", subtask.writer.begin_transaction(CheckpointId(checkpoint))).await;
        Open { transaction, rows: vec![] }
    }

    /// Two batches.
    pub async fn invoke(&mut self, subtask: &mut Subtask<T>, open: &mut Open<TransactionOf<T>>) {
        for _ in 0..2 {
            let rows = self.take_rows();
            ok(self.scene, "invoke", subtask.writer.invoke(&mut open.transaction, self.target.rows(rows.clone()))).await;
            ok(self.scene, "idle", subtask.writer.idle()).await;
            open.rows.extend(rows);
        }
    }

    pub async fn pre_commit(&self, subtask: &mut Subtask<T>, mut open: Open<TransactionOf<T>>) -> Prepared {
        ok(self.scene, "pre_commit", subtask.writer.pre_commit(&mut open.transaction)).await;
        Prepared { subtask: subtask.subtask, handle: json(&open.transaction), rows: open.rows }
    }

    /// All of phase one, in each of these subtasks.
    pub async fn prepare(&mut self, subtasks: &mut [Subtask<T>], checkpoint: u64) -> Vec<Prepared> {
        let mut prepared = vec![];
        for subtask in subtasks {
            let mut open = self.begin(subtask, checkpoint).await;
            self.invoke(subtask, &mut open).await;
            prepared.push(self.pre_commit(subtask, open).await);
        }
        prepared
    }

    /// The journal entry of a checkpoint: says that everything up to `committed` is committed.
    pub fn entry(&mut self, checkpoint: u64, prepared: Vec<Prepared>, committed: u64) {
        self.pending.retain(|id, _| *id > committed);
        self.pending.insert(checkpoint, prepared);
        self.highest = checkpoint;
    }

    /// Commits one transaction of an entry, as its subtask does.
    pub async fn commit(&mut self, subtask: &mut Subtask<T>, entry: u64, prepared: &Prepared) {
        let answer = ok(self.scene, "commit", subtask.committer.commit(&prepared.transaction::<T>(), &self.permit(entry))).await;
        assert!(answer == Committed::Now, "{}: the first commit of {} says that it was done before", self.scene, prepared.handle);
        prepared.rows.iter().for_each(|row| self.expect(*row));
    }

    /// Phase two of an entry in these subtasks, then the release of what the entry called committed.
    pub async fn commit_all(&mut self, subtasks: &mut [Subtask<T>], entry: u64, committed: u64) {
        let held = self.pending.get(&entry).cloned().unwrap_or_default();
        for subtask in subtasks {
            let own = subtask.subtask;
            for prepared in held.iter().filter(|prepared| prepared.subtask == own) {
                self.commit(subtask, entry, prepared).await;
            }
            ok(self.scene, "released", subtask.committer.released(CheckpointId(committed))).await;
        }
    }

    /// A whole checkpoint.
    pub async fn checkpoint(&mut self, subtasks: &mut [Subtask<T>]) {
        let id = self.take_checkpoint();
        let prepared = self.prepare(subtasks, id).await;
        self.entry(id, prepared, id - 1);
        self.commit_all(subtasks, id, id - 1).await;
    }

    pub async fn sweep(&self, identity: &JobIdentity) -> ConnectorResult<Swept> {
        within("sweep", self.target.sink().sweep(identity, &self.uid)).await
    }

    /// Compares what is visible with what must be. What a process had under way when it died may have reached the target after its
    /// successor's recovery: the sweeps end that, here as in a job.
    pub async fn check(&self, when: &str) {
        let began = std::time::Instant::now();
        loop {
            let mut seen = self.target.visible().await;
            seen.sort_unstable();
            let mut expected = self.expected.clone();
            expected.sort_unstable();
            let lost: Vec<_> = expected.iter().filter(|id| seen.binary_search(id).is_err()).take(5).collect();
            let foreign: Vec<_> = seen.iter().filter(|id| expected.binary_search(id).is_err()).take(5).collect();
            let doubled: Vec<_> = seen.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).take(5).collect();
            if foreign.is_empty() && doubled.is_empty() && !lost.is_empty() && began.elapsed() < GRACE {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if self.recovered {
                    _ = self.sweep(&self.identity).await;
                }
                continue;
            }
            assert!(
                lost.is_empty() && foreign.is_empty() && doubled.is_empty(),
                "{}, {when}: lost {lost:?}, visible but not committed {foreign:?}, doubled {doubled:?}",
                self.scene
            );
            return;
        }
    }

    /// Nothing may be open in the external system.
    pub async fn none_open(&self, when: &str) {
        let open = self.target.open_transactions().await;
        assert!(open == 0, "{}, {when}: {open} transactions are still open", self.scene);
    }
}
