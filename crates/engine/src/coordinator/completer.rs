//! All parts of checkpoint *n* are durable when the acks have passed *n*: no counting, no membership list. Writes its journal
//! entry, and only when that is durable lets its transactions be committed.
use super::upkeep::Upkeep;
use super::{Shared, checkpoint_metrics, unix_ms};
use crate::ack::{Ack, AckPart, vec_output};
use crate::failure::{Failure, fail};
use crate::job::JobContext;
use crate::tasks::{Answers, Mailbox};
use crate::time::{CLOSED, Time, checkpoint_of, first_of, low, next};
use crate::watermark::NONE;
use crate::wire::Json;
use semel_checkpoint::{
    AppendError, Appender, CheckpointEntry, CheckpointId, CommitPermit, Committable, DurableCheckpoint, OperatorUid, Part, SplitState,
    retained_after,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::{info, warn};

/// Completer -> committers: a checkpoint's entry is durable.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Commit {
    /// Index of the worker.
    pub to: u64,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The right to commit.
    pub permit: CommitPermit,
    /// This worker's transactions, of all sinks, oldest first.
    pub committables: Vec<Committable>,
    /// A durable entry says that every checkpoint up to this one is committed.
    pub released: CheckpointId,
    /// The source ranges whose rows the checkpoint holds: what is lost, should one of its transactions be.
    pub ranges: Arc<str>,
}

/// Builds the operator on every worker; it works on worker 0.
pub fn completer<'s>(
    scope: Scope<'s, Time>,
    acks: StreamVec<'s, Time, Json<Ack>>,
    shared: Shared,
    upkeep: Option<Upkeep>,
    job: Arc<JobContext>,
) -> StreamVec<'s, Time, Json<Commit>> {
    let (here, peers) = (scope.index() == 0, scope.peers() as u64);
    let mut b = OperatorBuilder::new("completer".into(), scope);
    let mut input = b.new_input(acks, Exchange::new(|_: &Json<Ack>| 0));
    let (mut output, stream) = vec_output(&mut b);
    let activator = scope.worker().sync_activator_for(b.operator_info().address.to_vec());
    let journal = here.then(|| {
        checkpoint_metrics::begin(job.assignment.restored.as_ref());
        let appender = job.assignment.appender.clone().attach(job.store.clone());
        Mailbox::spawn(&job.runtime, "the journal".into(), activator, move |entries, answers| append(appender, entries, answers))
    });
    b.build_reschedule(move |mut capabilities| {
        let mut capability = capabilities.pop().filter(|_| here); // For the first checkpoint without a durable entry.
        let mut parts: BTreeMap<CheckpointId, Vec<Ack>> = BTreeMap::new();
        let mut waited_for = job.first_checkpoint();
        let mut history = History::new(&job);
        let mut ended = false;
        move |frontiers| {
            input.for_each(|stamp, acks| {
                if let Some(time) = stamp.least() {
                    parts.entry(checkpoint_of(*time)).or_default().extend(acks.drain(..).map(|Json(ack)| ack));
                }
            });
            let (Some(held), Some(journal)) = (&mut capability, &journal) else { return false };
            let frontier = low(&frontiers[0]);
            let mut c = shared.borrow_mut();
            if frontier >= first_of(job.first_checkpoint()) && !c.ready {
                c.ready = true;
                c.wake();
            }
            while frontier != CLOSED && waited_for < checkpoint_of(frontier) {
                let acks = parts.remove(&waited_for).unwrap_or_default();
                let declined = acks.iter().find_map(|a| match &a.part {
                    AckPart::Declined(why) => Some(format!("{} subtask {}: {why}", a.operator, a.subtask)),
                    _ => None,
                });
                if let Some(why) = &declined {
                    warn!(checkpoint = %waited_for, why, "checkpoint declined");
                    checkpoint_metrics::failed();
                }
                let triggered_at_ms = c.checkpoints.triggered_at_ms(waited_for).unwrap_or_default();
                if c.checkpoints.parts_are_in(waited_for, declined.is_some(), Instant::now()) {
                    let finished = c.ended.is_some_and(|ended| checkpoint_of(ended) <= waited_for);
                    let sync_us =
                        acks.iter().filter_map(|a| if let AckPart::State { sync_us, .. } = a.part { Some(sync_us) } else { None });
                    metrics::gauge!("lastCheckpointSyncDuration").set(sync_us.max().unwrap_or_default() as f64 / 1e3);
                    let mut entry = history.entry(&job, waited_for, acks, c.checkpoints.committed());
                    (entry.triggered_at_ms, entry.finished) = (triggered_at_ms, finished);
                    crate::failpoint::passing("before_journal");
                    journal.send(Request::Append(Box::new(entry)));
                } else {
                    history.carry(acks);
                    journal.send(Request::Skip(waited_for));
                    c.wake();
                }
                waited_for = next(waited_for);
            }
            while let Some(answer) = journal.answer() {
                let (id, durable) = match answer {
                    Answer::Durable(durable) => (durable.entry.id, Some(durable)),
                    Answer::Skipped(id) => (id, None),
                    Answer::Ended => {
                        capability = None;
                        return false;
                    }
                };
                if *held.time() < first_of(id) {
                    held.downgrade(&first_of(id)); // From 0, the first time.
                }
                if let Some(durable) = durable {
                    crate::failpoint::passing("after_journal");
                    c.checkpoints.durable(id, Instant::now());
                    job.status.checkpoints.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    job.status.newest_checkpoint.store(id.0, std::sync::atomic::Ordering::Relaxed);
                    note(&durable.entry);
                    let copies = commits(&durable, peers);
                    output.activate().session_with_builder(&*held).give_iterator(copies.into_iter().map(Json));
                    if let Some(upkeep) = &upkeep {
                        upkeep.completed(*durable);
                    }
                }
                held.downgrade(&first_of(next(id)));
                c.wake();
            }
            if frontier == CLOSED && !ended {
                // The job has ended well. No further checkpoint will say that the last one's transactions are committed.
                ended = true;
                journal.send(Request::End(c.checkpoints.committed()));
            }
            false
        }
    });
    stream
}

enum Request {
    Append(Box<CheckpointEntry>),
    /// A declined checkpoint: nothing to write, but its turn must come after those before it.
    Skip(CheckpointId),
    /// The end of the job: every checkpoint up to this one is committed.
    End(CheckpointId),
}

enum Answer {
    Durable(Box<DurableCheckpoint>),
    Skipped(CheckpointId),
    Ended,
}

async fn append(mut appender: Appender, mut requests: UnboundedReceiver<Request>, answers: Answers<Answer>) {
    while let Some(request) = requests.recv().await {
        let appended = match request {
            Request::Skip(id) => Ok(Answer::Skipped(id)),
            Request::Append(entry) => appender.append(*entry).await.map(|durable| Answer::Durable(Box::new(durable))),
            Request::End(committed) => appender.append_committed(committed, true).await.map(|()| Answer::Ended),
        };
        let answer = match appended {
            Ok(answer) => answer,
            Err(e @ AppendError::Fenced { .. }) => fail(Failure::Fenced(e.to_string())),
            Err(e) => fail(Failure::Retryable(format!("the journal: {e}"))),
        };
        if !answers.send(answer) {
            return;
        }
    }
}

/// What one entry needs from those before it.
struct History {
    retained: Vec<CheckpointId>,
    /// Committables of declined checkpoints: they travel with the next entry.
    carried: Vec<Committable>,
    /// Positions at the entry before.
    positions: BTreeMap<OperatorUid, BTreeMap<String, i64>>,
    known_files: HashSet<String>,
}

impl History {
    fn new(job: &JobContext) -> History {
        let restored = job.assignment.restored.as_ref();
        History {
            retained: job.assignment.retained.clone(),
            carried: vec![],
            positions: restored
                .map(|c| c.sources.iter().map(|(uid, splits)| (uid.clone(), positions(splits))).collect())
                .unwrap_or_default(),
            known_files: restored.map(|c| c.state_paths().map(String::from).collect()).unwrap_or_default(),
        }
    }

    fn carry(&mut self, acks: Vec<Ack>) {
        self.carried.extend(acks.into_iter().filter_map(|a| match a.part {
            AckPart::Sink(committable) => committable,
            _ => None,
        }));
    }

    fn entry(&mut self, job: &JobContext, id: CheckpointId, acks: Vec<Ack>, committed: CheckpointId) -> CheckpointEntry {
        let mut entry = CheckpointEntry {
            id,
            generation: job.identity().generation,
            nonce: uuid::Uuid::nil(),
            parallelism: job.parallelism(),
            slots: job.config().max_parallelism,
            committed,
            operators: BTreeMap::new(),
            sources: BTreeMap::new(),
            committables: std::mem::take(&mut self.carried),
            retained: retained_after(&self.retained, id, job.config().checkpoint.num_retained as usize),
            finished: false,
            triggered_at_ms: 0,
            completed_at_ms: unix_ms(),
            state_bytes: 0,
            new_bytes: 0,
            ranges: String::new(),
        };
        for ack in acks {
            match ack.part {
                AckPart::Source { splits } => entry.sources.entry(ack.operator).or_default().extend(splits),
                AckPart::Sink(committable) => entry.committables.extend(committable),
                AckPart::State { files, watermark, live_from, .. } => {
                    let operator = entry.operators.entry(ack.operator).or_default();
                    operator.watermark = Some(watermark).filter(|w| *w != NONE);
                    operator.live_from = live_from;
                    operator.parts.push(Part { subtask: ack.subtask, files });
                }
                AckPart::Declined(_) => {} // There is none, or there would be no entry.
            }
        }
        entry.sources.values_mut().for_each(|splits| splits.sort_by(|a, b| a.split.cmp(&b.split)));
        entry.operators.values_mut().for_each(|o| o.parts.sort_by_key(|p| p.subtask));
        entry.committables.sort_by_key(|c| (c.checkpoint, c.subtask));
        let files: BTreeMap<&str, u64> =
            entry.operators.values().flat_map(|o| &o.parts).flat_map(|p| &p.files).map(|f| (f.path.as_str(), f.bytes)).collect();
        let state_bytes = files.values().sum();
        let new_bytes = files.iter().filter(|(path, _)| !self.known_files.contains(**path)).map(|(_, bytes)| bytes).sum();
        self.known_files = files.keys().map(|path| String::from(*path)).collect();
        (entry.state_bytes, entry.new_bytes) = (state_bytes, new_bytes);
        self.retained.clone_from(&entry.retained);
        entry.ranges = ranges(&self.positions, &entry.sources);
        self.positions = entry.sources.iter().map(|(uid, splits)| (uid.clone(), positions(splits))).collect();
        entry
    }
}

fn positions(splits: &[SplitState]) -> BTreeMap<String, i64> {
    splits.iter().map(|s| (s.split.clone(), s.position)).collect()
}

/// `orders: orders-0 [17, 42), orders-1 [0, 9)`; splits without new rows are left out.
fn ranges(from: &BTreeMap<OperatorUid, BTreeMap<String, i64>>, to: &BTreeMap<OperatorUid, Vec<SplitState>>) -> String {
    let mut sources = vec![];
    for (uid, splits) in to {
        let moved = splits.iter().filter_map(|s| {
            let start = from.get(uid).and_then(|splits| splits.get(&s.split));
            match start {
                Some(start) if *start == s.position => None,
                Some(start) => Some(format!("{} [{start}, {})", s.split, s.position)),
                None => Some(format!("{} [its start, {})", s.split, s.position)),
            }
        });
        let moved: Vec<String> = moved.collect();
        if !moved.is_empty() {
            sources.push(format!("{uid}: {}", moved.join(", ")));
        }
    }
    sources.join("; ")
}

fn commits(durable: &DurableCheckpoint, peers: u64) -> Vec<Commit> {
    let entry = &durable.entry;
    let ranges: Arc<str> = entry.ranges.as_str().into();
    let commit = |to| Commit {
        to,
        checkpoint: entry.id,
        permit: durable.permit(),
        committables: entry.committables.iter().filter(|c| u64::from(c.subtask) == to).cloned().collect(),
        released: entry.committed,
        ranges: ranges.clone(),
    };
    (0..peers).map(commit).collect()
}

fn note(entry: &CheckpointEntry) {
    checkpoint_metrics::completed(entry);
    info!(
        checkpoint = %entry.id,
        state_bytes = entry.state_bytes,
        new_bytes = entry.new_bytes,
        committables = entry.committables.len(),
        ms = entry.completed_at_ms - entry.triggered_at_ms,
        "checkpoint complete"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(split: &str, position: i64) -> SplitState {
        SplitState { split: split.into(), position, watermark: None, detail: serde_json::Value::Null }
    }

    #[test]
    fn ranges_name_what_has_moved() {
        let uid = OperatorUid::new("orders").unwrap_or_else(|e| panic!("{e}"));
        let before = BTreeMap::from([(uid.clone(), positions(&[split("o-0", 5), split("o-1", 7)]))]);
        let after = BTreeMap::from([(uid, vec![split("o-0", 9), split("o-1", 7), split("o-2", 3)])]);
        assert_eq!(ranges(&before, &after), "orders: o-0 [5, 9), o-2 [its start, 3)");
    }
}
