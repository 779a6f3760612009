//! Running aggregates per key: each result that changes comes out again.
use super::keyed::{Aggregation, Keyed};
use super::snapshots::{Restored, Snapshots};
use crate::ack::{Acks, ack_output};
use crate::batch::{Batch, BatchOutput};
use crate::exchange::by_key;
use crate::failure::{Failure, at_work};
use crate::graph::{Builder, Edge, Operator};
use crate::state::{KeyedState, Namespaces, hash_columns};
use crate::time::{CLOSED, checkpoint_of, first_of, low};
use crate::watermark::NONE;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{CheckpointId, OperatorUid};
use std::collections::BTreeMap;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Rows of an emitted batch.
const EMITTED_ROWS: usize = 8192;
/// All keys share one namespace.
const ALL: i64 = 0;

/// When changed results come out: at most one row per key each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emit {
    /// With each tick (10 ms).
    EachTick,
    /// With each checkpoint. Into an exactly-once sink nothing is seen earlier anyway, and far fewer rows are written.
    AtCheckpoint,
}

/// See the module. Output: keys, aggregates.
pub struct KeyedAggregate {
    keyed: Keyed,
    emit: Emit,
    output: SchemaRef,
}

impl KeyedAggregate {
    /// Resolves names against the schema of the input.
    ///
    /// # Errors
    /// Unknown columns, and types that cannot be keys or inputs of the aggregate.
    pub fn new(input: SchemaRef, keys: &[String], aggregations: &[Aggregation], emit: Emit) -> Result<Self, Failure> {
        let keyed = Keyed::new(input, keys, aggregations)?;
        let output = keyed.output_schema(vec![]);
        Ok(KeyedAggregate { keyed, emit, output })
    }
}

impl Operator for KeyedAggregate {
    fn describe(&self) -> String {
        format!("aggregate {}", self.keyed.describe())
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        vec![self.output.clone()]
    }
    fn stateful(&self) -> bool {
        true
    }

    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let (scope, job) = (builder.scope, builder.job.clone());
        let Some(edge) = inputs.into_iter().next() else { return vec![] };
        let mut b = OperatorBuilder::new(uid.to_string(), scope);
        let mut input = b.new_input(edge.rows, by_key(self.keyed.keys.clone(), job.config().max_parallelism));
        let (output, stream) = b.new_output::<Batch>();
        let mut output = BatchOutput::from(output);
        let (acks, ack_stream) = ack_output(&mut b);
        let activator = scope.worker().sync_activator_for(b.operator_info().address.to_vec());
        let state_schema = self.keyed.state_schema(job.config().max_parallelism, Namespaces::All);
        let snapshots = Snapshots::start(builder, activator, uid, state_schema, |_| true);
        let (keyed, emit, schema, uid) = (self.keyed.clone(), self.emit, self.output.clone(), uid.clone());

        b.build_reschedule(move |capabilities| {
            let mut capabilities = capabilities.into_iter();
            let mut out = capabilities.next();
            if let Some(cap) = &mut out {
                // Changes come out at the capability's time, which must never be before the first checkpoint.
                cap.downgrade(&first_of(job.first_checkpoint()));
            }
            let mut acks = capabilities.next().map(|cap| Acks::new(acks, cap, job.first_checkpoint()));
            let mut subtask: Option<Subtask> = None;
            let mut early: BTreeMap<CheckpointId, Vec<RecordBatch>> = BTreeMap::new();
            move |frontiers| {
                let Some(acks) = &mut acks else { return false };
                while let Some(answer) = snapshots.answer() {
                    match answer {
                        Restored::State(state) => {
                            subtask = Some(Subtask::new(keyed.clone(), schema.clone(), state));
                            acks.ready();
                        }
                        Restored::Saved(ack) => acks.send(ack),
                    }
                }
                let (Some(subtask), Some(cap)) = (&mut subtask, &mut out) else { return false };
                input.for_each(|stamp, batch| {
                    if let (Some(time), Some(rows)) = (stamp.least(), batch.take()) {
                        early.entry(checkpoint_of(*time)).or_default().push(rows);
                    }
                });
                let mut output = output.activate();
                let place = format_args!("operator {uid} (aggregate)");
                let frontier = low(&frontiers[0]);
                loop {
                    for rows in early.remove(&acks.checkpoint).into_iter().flatten() {
                        at_work(place, || subtask.add(&rows));
                    }
                    let barrier = first_of(crate::time::next(acks.checkpoint));
                    let at_barrier = frontier >= barrier;
                    // The capability is still at the time before the frontier: changes come out in the tick that made them, or
                    // in a later one of the same checkpoint.
                    if at_barrier || (emit == Emit::EachTick && frontier > *cap.time()) {
                        let mut session = output.session_with_builder(&*cap);
                        let changed = at_work(place, || subtask.changed());
                        changed.into_iter().for_each(|rows| session.give_container(&mut Batch::from(rows)));
                    }
                    if frontier == CLOSED {
                        acks.close();
                        out = None;
                        return false;
                    }
                    if !at_barrier {
                        let time = frontier.max(*cap.time());
                        cap.downgrade(&time);
                        return false;
                    }
                    at_work(place, || snapshots.take(&mut subtask.state, acks.checkpoint, None, NONE));
                    acks.barrier();
                    cap.downgrade(&barrier.max(*cap.time()));
                }
            }
        });
        builder.acks.push(ack_stream);
        vec![Edge { rows: stream, sources: edge.sources }]
    }
}

struct Subtask {
    keyed: Keyed,
    schema: SchemaRef,
    state: KeyedState,
    hashes: Vec<u64>,
    groups: Vec<u32>,
    /// Groups whose results have changed since they last came out, each once.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

impl Subtask {
    fn new(keyed: Keyed, schema: SchemaRef, state: KeyedState) -> Subtask {
        Subtask { keyed, schema, state, hashes: vec![], groups: vec![], changed: vec![], is_changed: vec![] }
    }

    fn add(&mut self, rows: &RecordBatch) -> Result<(), Failure> {
        let fatal = |e: &dyn std::fmt::Display| Failure::Fatal(e.to_string());
        let keys = self.keyed.key_columns(rows);
        hash_columns(&keys, &mut self.hashes).map_err(|e| fatal(&e))?;
        self.state.update(ALL, &keys, &self.hashes, &self.keyed.input_columns(rows), &mut self.groups).map_err(|e| fatal(&e))?;
        for group in &self.groups {
            let at = *group as usize;
            if at >= self.is_changed.len() {
                self.is_changed.resize((at + 1).next_power_of_two(), false);
            }
            if !std::mem::replace(&mut self.is_changed[at], true) {
                self.changed.push(*group);
            }
        }
        Ok(())
    }

    fn changed(&mut self) -> Result<Vec<RecordBatch>, Failure> {
        let fatal = |e: &dyn std::fmt::Display| Failure::Fatal(e.to_string());
        let mut batches = vec![];
        for groups in self.changed.chunks(EMITTED_ROWS) {
            let mut columns = self.state.keys(ALL, groups).map_err(|e| fatal(&e))?;
            columns.extend(self.state.results(ALL, groups).map_err(|e| fatal(&e))?);
            batches.push(RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| fatal(&e))?);
            groups.iter().for_each(|g| self.is_changed[*g as usize] = false);
        }
        self.changed.clear();
        Ok(batches)
    }
}
