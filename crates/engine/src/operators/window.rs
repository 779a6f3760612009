//! Aggregates over tumbling and sliding event-time windows per key.
//!
//! A window fires when the watermark reaches its last millisecond. With an allowed lateness its state is kept for that much
//! longer, and a row that arrives in that time makes the window's result for its key come out again. A row all of whose windows
//! are over goes to the second output. A window that is over stays so, also if a restart allows more lateness: its state is gone.
use super::keyed::{Aggregation, Keyed};
use super::snapshots::{Restored, Snapshots};
use super::window_assigner::WindowAssigner;
use crate::ack::{Acks, ack_output};
use crate::batch::{Batch, BatchOutput};
use crate::event_time::EventTime;
use crate::exchange::by_key;
use crate::failure::{Failure, at_work};
use crate::graph::{Builder, Edge, Operator};
use crate::state::{KeyedState, hash_columns};
use crate::time::{CLOSED, Time, checkpoint_of, first_of, low};
use crate::watermark::{Millis, NONE, Report, Watermark};
use arrow::array::{ArrayRef, RecordBatch, TimestampMillisecondArray, UInt32Array};
use arrow::compute::{concat_batches, take, take_record_batch};
use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use semel_checkpoint::{CheckpointId, OperatorUid};
use std::collections::BTreeMap;
use std::sync::Arc;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Rows of a fired batch.
const FIRED_ROWS: usize = 8192;

/// See the module. Outputs: 0 = `window_start`, `window_end` (timestamps in ms), keys, aggregates; 1 = late rows as they came.
pub struct WindowAggregate {
    windows: Windows,
    outputs: Vec<SchemaRef>,
}

/// What every subtask must know.
#[derive(Clone)]
struct Windows {
    keyed: Keyed,
    time: EventTime,
    assigner: WindowAssigner,
    lateness_ms: i64,
    fired: SchemaRef,
    /// Windows that start before it were over at the restored checkpoint.
    live_from: Millis,
}

impl WindowAggregate {
    /// Resolves names against the schema of the input.
    ///
    /// # Errors
    /// Unknown columns, types that cannot be keys, times or inputs of the aggregate, senseless lengths.
    pub fn new(
        input: SchemaRef,
        keys: &[String],
        time_column: &str,
        assigner: WindowAssigner,
        allowed_lateness_ms: i64,
        aggregations: &[Aggregation],
    ) -> Result<Self, Failure> {
        if let Some(problem) = assigner.problem() {
            return Err(Failure::Fatal(problem));
        }
        if allowed_lateness_ms < 0 {
            return Err(Failure::Fatal(format!("allowed lateness {allowed_lateness_ms} ms is below 0")));
        }
        let time = EventTime::of(&input, time_column)?;
        let keyed = Keyed::new(input.clone(), keys, aggregations)?;
        let bound = |name| Field::new(name, DataType::Timestamp(TimeUnit::Millisecond, None), false);
        let fired = keyed.output_schema(vec![bound("window_start"), bound("window_end")]);
        let windows = Windows { keyed, time, assigner, lateness_ms: allowed_lateness_ms, fired: fired.clone(), live_from: Millis::MIN };
        Ok(WindowAggregate { windows, outputs: vec![fired, input] })
    }
}

impl Operator for WindowAggregate {
    fn describe(&self) -> String {
        let w = &self.windows;
        format!("window {:?}, allowed lateness {} ms, time {}, {}", w.assigner, w.lateness_ms, w.time.name, w.keyed.describe())
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        self.outputs.clone()
    }
    fn stateful(&self) -> bool {
        true
    }

    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let (scope, job) = (builder.scope, builder.job.clone());
        let Some(edge) = inputs.into_iter().next() else { return vec![] };
        let reports = builder.reports_of(&edge);
        let sources = edge.sources.clone();
        let mut b = OperatorBuilder::new(uid.to_string(), scope);
        let mut input = b.new_input(edge.rows, by_key(self.windows.keyed.keys.clone(), job.config().max_parallelism));
        let mut reports: Vec<_> = reports.into_iter().map(|r| b.new_input(r, Exchange::new(|r: &Report| r.to))).collect();
        let (fired, fired_stream) = b.new_output::<Batch>();
        let (late, late_stream) = b.new_output::<Batch>();
        let (mut fired, mut late) = (BatchOutput::from(fired), BatchOutput::from(late));
        let (acks, ack_stream) = ack_output(&mut b);
        let activator = scope.worker().sync_activator_for(b.operator_info().address.to_vec());
        let restored = job.restored_state(uid);
        let restored_watermark = restored.and_then(|s| s.watermark).unwrap_or(NONE);
        let live_from = restored.and_then(|s| s.live_from).unwrap_or(Millis::MIN);
        let windows = Windows { live_from, ..self.windows.clone() };
        let keep = {
            let windows = windows.clone();
            move |start| !windows.is_over(start, restored_watermark)
        };
        let state_schema = windows.keyed.state_schema(job.config().max_parallelism, windows.assigner.namespaces());
        let snapshots = Snapshots::start(builder, activator, uid, state_schema, keep);
        let late_rows =
            metrics::counter!("numLateRecordsDropped", "operator" => uid.to_string(), "subtask" => builder.subtask().to_string());
        let watermark_gauge =
            metrics::gauge!("currentInputWatermark", "operator" => uid.to_string(), "subtask" => builder.subtask().to_string());
        let uid = uid.clone();

        b.build_reschedule(move |capabilities| {
            let mut capabilities = capabilities.into_iter();
            let mut out = capabilities.next().zip(capabilities.next());
            if let Some((fired, late)) = &mut out {
                fired.downgrade(&first_of(job.first_checkpoint()));
                late.downgrade(&first_of(job.first_checkpoint()));
            }
            let mut acks = capabilities.next().map(|cap| Acks::new(acks, cap, job.first_checkpoint()));
            let mut subtask: Option<Subtask> = None;
            let mut watermark = Watermark::new(reports.len(), job.parallelism(), restored_watermark);
            let mut early: BTreeMap<CheckpointId, Vec<(Time, RecordBatch)>> = BTreeMap::new();
            move |frontiers| {
                let Some(acks) = &mut acks else { return false };
                while let Some(answer) = snapshots.answer() {
                    match answer {
                        Restored::State(state) => {
                            subtask = Some(Subtask { windows: windows.clone(), state, hashes: vec![], groups: vec![] });
                            acks.ready();
                        }
                        Restored::Saved(ack) => acks.send(ack),
                    }
                }
                let (Some(subtask), Some((fired_cap, late_cap))) = (&mut subtask, &mut out) else { return false };
                for (source, input) in reports.iter_mut().enumerate() {
                    input.for_each(|stamp, batch| {
                        if let Some(time) = stamp.least() {
                            watermark.report(source, *time, batch.drain(..));
                        }
                    });
                }
                // Rows wait for their checkpoint, not for their tick: at worst a late row is still accepted.
                input.for_each(|stamp, batch| {
                    if let (Some(time), Some(rows)) = (stamp.least(), batch.take()) {
                        early.entry(checkpoint_of(*time)).or_default().push((*time, rows));
                    }
                });
                let (mut fired, mut late) = (fired.activate(), late.activate());
                let place = format_args!("operator {uid} (window)");
                // A tick is over when all inputs have passed it.
                let frontier = frontiers.iter().map(low).min().unwrap_or(CLOSED);
                loop {
                    for (time, rows) in early.remove(&acks.checkpoint).into_iter().flatten() {
                        let added = at_work(place, || subtask.add(&rows, watermark.effective()));
                        if let Some(rows) = added.late {
                            late_rows.increment(rows.num_rows() as u64);
                            late.session_with_builder(&late_cap.delayed(&time)).give_container(&mut rows.into());
                        }
                        if !added.again.is_empty() {
                            let capability = fired_cap.delayed(&time);
                            let mut session = fired.session_with_builder(&capability);
                            added.again.into_iter().for_each(|rows| session.give_container(&mut rows.into()));
                        }
                    }
                    let barrier = first_of(crate::time::next(acks.checkpoint));
                    loop {
                        let before = watermark.effective();
                        let Some(tick) = watermark.rise(frontier.min(barrier)) else { break };
                        watermark_gauge.set(watermark.effective() as f64);
                        let batches = at_work(place, || subtask.fire(before, watermark.effective()));
                        if !batches.is_empty() {
                            let capability = fired_cap.delayed(&tick);
                            let mut session = fired.session_with_builder(&capability);
                            batches.into_iter().for_each(|rows| session.give_container(&mut rows.into()));
                        }
                    }
                    if frontier == CLOSED {
                        acks.close();
                        out = None;
                        return false;
                    }
                    if frontier < barrier {
                        follow(fired_cap, frontier);
                        follow(late_cap, frontier);
                        return false;
                    }
                    let live = windows.oldest_live(watermark.effective());
                    at_work(place, || snapshots.take(&mut subtask.state, acks.checkpoint, live, watermark.effective()));
                    acks.barrier();
                    follow(fired_cap, barrier);
                    follow(late_cap, barrier);
                }
            }
        });
        builder.acks.push(ack_stream);
        let edge = |rows| Edge { rows, sources: sources.clone() };
        vec![edge(fired_stream), edge(late_stream)]
    }
}

impl Windows {
    /// Whether the window's state is gone and rows for it are late.
    fn is_over(&self, start: Millis, watermark: Millis) -> bool {
        start < self.live_from || self.assigner.is_over(start, self.lateness_ms, watermark)
    }
    /// No window that starts before this will ever be seen again. `None`: nothing is known yet.
    fn oldest_live(&self, watermark: Millis) -> Option<Millis> {
        let oldest = watermark.saturating_sub(self.lateness_ms).saturating_sub(self.assigner.size_ms()).saturating_add(2);
        (watermark != NONE).then(|| oldest.max(self.live_from))
    }
}

/// At first the frontier is 0, before the restored time.
fn follow(capability: &mut Capability<Time>, frontier: Time) {
    let time = frontier.max(*capability.time());
    capability.downgrade(&time);
}

struct Subtask {
    windows: Windows,
    state: KeyedState,
    hashes: Vec<u64>,
    groups: Vec<u32>,
}

struct Added {
    late: Option<RecordBatch>,
    /// Results that come out again, since their window had fired.
    again: Vec<RecordBatch>,
}

impl Subtask {
    fn add(&mut self, rows: &RecordBatch, watermark: Millis) -> Result<Added, Failure> {
        let fatal = |e: &dyn std::fmt::Display| Failure::Fatal(e.to_string());
        let assigner = self.windows.assigner;
        let times = self.windows.time.of_rows(rows)?;
        let keys = self.windows.keyed.key_columns(rows);
        let inputs = self.windows.keyed.input_columns(rows);
        hash_columns(&keys, &mut self.hashes).map_err(|e| fatal(&e))?;
        // Few windows at a time: a list of rows for each.
        let mut picks: Vec<(Millis, Vec<u32>)> = vec![];
        let mut late: Vec<u32> = vec![];
        for (row, time) in times.values().iter().enumerate() {
            let mut taken = false;
            for start in assigner.starts(*time) {
                if self.windows.is_over(start, watermark) {
                    continue;
                }
                taken = true;
                match picks.iter_mut().rev().find(|(s, _)| *s == start) {
                    Some((_, rows)) => rows.push(row as u32),
                    None => picks.push((start, vec![row as u32])),
                }
            }
            if !taken {
                late.push(row as u32);
            }
        }
        let mut again = vec![];
        for (start, picked) in picks {
            if picked.len() == rows.num_rows() {
                self.state.update(start, &keys, &self.hashes, &inputs, &mut self.groups).map_err(|e| fatal(&e))?;
            } else {
                let hashes: Vec<u64> = picked.iter().map(|row| self.hashes[*row as usize]).collect();
                let indices = UInt32Array::from(picked);
                let pick = |columns: &[ArrayRef]| columns.iter().map(|c| take(c, &indices, None)).collect::<Result<Vec<_>, _>>();
                let (keys, inputs) = (pick(&keys).map_err(|e| fatal(&e))?, pick(&inputs).map_err(|e| fatal(&e))?);
                self.state.update(start, &keys, &hashes, &inputs, &mut self.groups).map_err(|e| fatal(&e))?;
            }
            if assigner.has_fired(start, watermark) {
                self.groups.sort_unstable();
                self.groups.dedup();
                again.push(self.results(start, &self.groups)?);
            }
        }
        let late = match late.is_empty() {
            true => None,
            false => Some(take_record_batch(rows, &UInt32Array::from(late)).map_err(|e| fatal(&e))?),
        };
        Ok(Added { late, again })
    }

    /// Fires what the rise of the watermark makes due, and drops what is over.
    fn fire(&mut self, before: Millis, watermark: Millis) -> Result<Vec<RecordBatch>, Failure> {
        let assigner = self.windows.assigner;
        let due: Vec<Millis> = self.state.namespaces().take_while(|start| assigner.has_fired(*start, watermark)).collect();
        let mut batches = vec![];
        for start in due {
            if !assigner.has_fired(start, before) {
                for groups in self.state.groups(start).chunks(FIRED_ROWS) {
                    batches.push(self.results(start, groups)?);
                }
            }
            if self.windows.is_over(start, watermark) {
                self.state.drop_namespace(start);
            }
        }
        coalesce(&self.windows.fired, batches)
    }

    fn results(&self, start: Millis, groups: &[u32]) -> Result<RecordBatch, Failure> {
        let fatal = |e: &dyn std::fmt::Display| Failure::Fatal(e.to_string());
        let bound = |millis| Arc::new(TimestampMillisecondArray::from_value(millis, groups.len())) as ArrayRef;
        let mut columns = vec![bound(start), bound(start.saturating_add(self.windows.assigner.size_ms()))];
        columns.extend(self.state.keys(start, groups).map_err(|e| fatal(&e))?);
        columns.extend(self.state.results(start, groups).map_err(|e| fatal(&e))?);
        RecordBatch::try_new(self.windows.fired.clone(), columns).map_err(|e| fatal(&e))
    }
}

/// Many small windows may fire at once: their results travel together.
fn coalesce(schema: &SchemaRef, batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>, Failure> {
    if batches.len() < 2 {
        return Ok(batches);
    }
    let mut out = vec![];
    let (mut gathered, mut rows) = (vec![], 0);
    for batch in batches {
        rows += batch.num_rows();
        gathered.push(batch);
        if rows >= FIRED_ROWS {
            out.push(concat_batches(schema, &gathered).map_err(|e| Failure::Fatal(e.to_string()))?);
            gathered.clear();
            rows = 0;
        }
    }
    if !gathered.is_empty() {
        out.push(concat_batches(schema, &gathered).map_err(|e| Failure::Fatal(e.to_string()))?);
    }
    Ok(out)
}
