//! A source subtask. It has no clock: it works at the time that is granted. Its reader reads ahead in a task of its own.
use crate::ack::{Ack, AckPart, Acks, ack_output, vec_output};
use crate::batch::{Batch, BatchOutput};
use crate::coordinator::ticker::Control;
use crate::erased::{DynReader, SharedSource};
use crate::event_time::{EventTime, WatermarkStrategy};
use crate::failure::{Failure, fail};
use crate::graph::{Builder, Edge, Operator};
use crate::source::{SourceContext, SourceEvent};
use crate::tasks::{Answers, Mailbox};
use crate::time::{CLOSED, Time, checkpoint_of, first_of, low};
use crate::watermark::{Level, NONE, Report};
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{OperatorUid, SplitState};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use tokio::sync::Semaphore;

/// Events that the reader may be ahead.
const READ_AHEAD: usize = 4;

/// See the module.
pub struct SourceOperator {
    /// Where rows come from.
    pub source: SharedSource,
    /// How the watermark is found. `None`: there is none until the source has ended.
    pub watermark: Option<WatermarkStrategy>,
}

enum Answer {
    Opened(Vec<SplitState>),
    Event(SourceEvent),
}

impl Operator for SourceOperator {
    fn describe(&self) -> String {
        format!("source, watermark {:?}", self.watermark)
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        vec![self.source.schema()]
    }
    fn source(&self) -> Option<&SharedSource> {
        Some(&self.source)
    }

    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, _: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let (scope, job, subtask) = (builder.scope, builder.job.clone(), builder.subtask());
        let peers = scope.peers() as u64;
        let mut b = OperatorBuilder::new(uid.to_string(), scope);
        let mut control = b.new_input(builder.control.clone(), Exchange::new(|c: &Control| c.to));
        let (rows, row_stream) = b.new_output::<Batch>();
        let mut rows = BatchOutput::from(rows);
        let (mut reports, report_stream) = vec_output::<Report>(&mut b);
        let (acks, ack_stream) = ack_output(&mut b);
        let address = b.operator_info().address;
        let activator = scope.worker().sync_activator_for(address.to_vec());

        let strategy = self.watermark.clone();
        let time_column = strategy
            .as_ref()
            .map(|s| EventTime::of(&self.source.schema(), &s.column).unwrap_or_else(|e| fail(e.within(format_args!("source {uid}")))));
        let read_ahead = Arc::new(Semaphore::new(READ_AHEAD));
        let context = SourceContext { job: job.identity().clone(), uid: uid.clone(), subtask, parallelism: job.parallelism() };
        let restored = job.restored_splits(uid).cloned();
        let task = read(self.source.clone(), context, restored.clone(), read_ahead.clone());
        let place = format!("source {uid} subtask {subtask}");
        let reader = Mailbox::<(), Answer>::spawn(&job.runtime, place.clone(), activator, move |_, answers| task(place, answers));
        let rows_in = metrics::counter!("numRecordsIn", "operator" => uid.to_string(), "subtask" => subtask.to_string());
        let uid = uid.clone();

        b.build_reschedule(move |capabilities| {
            let mut emit = None;
            let mut ack_cap = None;
            if let Ok([row_cap, report_cap, cap]) = <[Capability<Time>; 3]>::try_from(capabilities) {
                emit = Some((row_cap, report_cap));
                ack_cap = Some(cap);
            }
            let mut acks = ack_cap.map(|cap| Acks::new(acks, cap, job.first_checkpoint()));
            let mut splits = Splits { strategy, ..Splits::default() };
            let (mut opened, mut waiting) = (false, None);
            let (mut now, mut reported, mut emitted, mut cap, mut last) = (0, None, 0u64, 0u64, None);
            move |frontiers| {
                control.for_each(|_, commands| commands.drain(..).for_each(|c| (cap, last) = (c.bytes_per_tick, c.last)));
                let (Some((row_cap, report_cap)), Some(acks)) = (&mut emit, &mut acks) else { return false };
                if !opened {
                    let Some(Answer::Opened(own)) = reader.answer() else { return false };
                    splits.open(own, restored.as_deref().unwrap_or_default());
                    opened = true;
                    acks.ready();
                }
                let granted = low(&frontiers[0]);
                if granted == CLOSED {
                    acks.close();
                    emit = None;
                    return false;
                }
                if granted < first_of(job.first_checkpoint()) {
                    return false; // Not all operators are ready.
                }
                if granted > now {
                    // Leaving tick `now`: its watermark is known. After a stall everything looks idle, while rows wait here.
                    let level = splits.level();
                    if matches!(level, Level::Idle(_)) && waiting.is_none() {
                        waiting = reader.answer();
                    }
                    let stalled = matches!(level, Level::Idle(_)) && waiting.is_some();
                    if now > 0 && !stalled && reported != Some(level) {
                        reported = Some(level);
                        reports.activate().session_with_builder(&*report_cap).give_iterator((0..peers).map(|to| Report {
                            to,
                            subtask,
                            level,
                        }));
                    }
                    while acks.checkpoint < checkpoint_of(granted) {
                        acks.barrier();
                        acks.send(Ack { operator: uid.clone(), subtask, part: AckPart::Source { splits: splits.states() } });
                    }
                    now = granted;
                    emitted = 0;
                    row_cap.downgrade(&now);
                    report_cap.downgrade(&now);
                }
                if last.is_some_and(|last| checkpoint_of(now) > last) {
                    return false; // The next run reads them.
                }
                let mut output = rows.activate();
                while emitted < cap.max(1) {
                    let Some(Answer::Event(event)) = waiting.take().or_else(|| reader.answer()) else { break };
                    read_ahead.add_permits(1);
                    let Some(batch) = splits.take(event, time_column.as_ref()) else { continue };
                    emitted += batch.get_array_memory_size() as u64;
                    rows_in.increment(batch.num_rows() as u64);
                    job.status.rows_in.fetch_add(batch.num_rows() as u64, Relaxed);
                    output.session_with_builder(&*row_cap).give_container(&mut Batch::from(batch));
                }
                false
            }
        });
        builder.acks.push(ack_stream);
        builder.reports.push(report_stream);
        vec![Edge { rows: row_stream, sources: vec![builder.reports.len() - 1] }]
    }
}

fn read(
    source: SharedSource,
    context: SourceContext,
    restored: Option<Vec<SplitState>>,
    read_ahead: Arc<Semaphore>,
) -> impl FnOnce(String, Answers<Answer>) -> futures::future::BoxFuture<'static, ()> {
    move |place, answers| {
        Box::pin(async move {
            let mut reader: Box<dyn DynReader> =
                source.open(context, restored).await.unwrap_or_else(|e| fail(Failure::from(e).within(&place)));
            answers.send(Answer::Opened(reader.splits()));
            loop {
                let Ok(permit) = read_ahead.acquire().await else { return };
                permit.forget();
                let event = reader.next().await.unwrap_or_else(|e| fail(Failure::from(e).within(&place)));
                if !answers.send(Answer::Event(event)) {
                    return; // The operator is gone.
                }
            }
        })
    }
}

struct Split {
    state: SplitState,
    caught_up: bool,
    finished: bool,
    last_row: Instant,
}

/// The splits of one subtask.
#[derive(Default)]
struct Splits {
    splits: BTreeMap<Arc<str>, Split>,
    no_more: bool,
    strategy: Option<WatermarkStrategy>,
}

impl Splits {
    /// Takes the splits that the reader has opened. Readers know positions only: watermarks come from the checkpoint, so that a split
    /// without new rows does not forget how far it was.
    fn open(&mut self, own: Vec<SplitState>, restored: &[SplitState]) {
        for mut split in own {
            let before = restored.iter().find(|r| r.split == split.split).and_then(|r| r.watermark);
            split.watermark = split.watermark.max(before);
            self.add(split);
        }
    }

    fn add(&mut self, state: SplitState) {
        self.splits.insert(state.split.as_str().into(), Split { state, caught_up: false, finished: false, last_row: Instant::now() });
    }

    fn states(&self) -> Vec<SplitState> {
        self.splits.values().map(|s| s.state.clone()).collect()
    }

    fn take(&mut self, event: SourceEvent, time: Option<&EventTime>) -> Option<arrow::array::RecordBatch> {
        match event {
            SourceEvent::Split(state) => self.add(state),
            SourceEvent::NoMoreSplits => self.no_more = true,
            SourceEvent::SplitFinished { split } => {
                if let Some(split) = self.splits.get_mut(&split) {
                    split.finished = true;
                }
            }
            SourceEvent::Rows { split, rows, position, caught_up } => {
                let split = self.splits.get_mut(&split)?;
                split.state.position = position;
                split.caught_up = caught_up;
                if rows.num_rows() > 0 {
                    split.last_row = Instant::now();
                    let newest = time.and_then(|t| t.newest(&rows));
                    split.state.watermark = split.state.watermark.max(newest);
                    return Some(rows);
                }
            }
        }
        None
    }

    /// What this subtask says of its watermark. A split that is not caught up is never idle: rows are waiting there.
    fn level(&self) -> Level {
        let watermark = |s: &Split| match (&self.strategy, s.state.watermark) {
            (Some(strategy), Some(newest)) => strategy.watermark(newest),
            _ => NONE,
        };
        let timeout = self.strategy.as_ref().and_then(|s| s.idle_timeout);
        let idle = |s: &Split| timeout.is_some_and(|timeout| s.caught_up && s.last_row.elapsed() >= timeout);
        let level = Level::combined(self.splits.values().map(|s| match () {
            () if s.finished => Level::Ended(watermark(s)),
            () if idle(s) => Level::Idle(watermark(s)),
            () => Level::Active(watermark(s)),
        }));
        match level {
            _ if self.no_more && self.splits.values().all(|s| s.finished) => Level::Ended(level.watermark()),
            _ if self.strategy.is_none() => Level::Active(NONE),
            Level::Ended(millis) => Level::Idle(millis),
            level => level,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use std::time::Duration;

    fn split(name: &str) -> SplitState {
        SplitState { split: name.into(), position: 0, watermark: None, detail: serde_json::Value::Null }
    }

    fn rows(split: &str, times: &[i64], caught_up: bool) -> SourceEvent {
        let schema = Arc::new(Schema::new(vec![Field::new("ts", DataType::Int64, false)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(times.to_vec()))]);
        SourceEvent::Rows { split: split.into(), rows: rows.unwrap_or_else(|e| panic!("{e}")), position: 9, caught_up }
    }

    fn splits(idle: Option<Duration>) -> Splits {
        let mut splits =
            Splits { strategy: Some(WatermarkStrategy { column: "ts".into(), delay_ms: 10, idle_timeout: idle }), ..Splits::default() };
        splits.add(split("t-0"));
        splits.add(split("t-1"));
        splits
    }

    #[test]
    fn the_watermark_is_that_of_the_slowest_split() {
        let time = EventTime { column: 0, name: "ts".into() };
        let mut s = splits(None);
        s.take(rows("t-0", &[50, 100, 70], true), Some(&time));
        assert_eq!(s.level(), Level::Active(NONE), "t-1 has not said anything");
        s.take(rows("t-1", &[60], true), Some(&time));
        assert_eq!(s.level(), Level::Active(49));
        s.take(rows("t-1", &[5], true), Some(&time));
        assert_eq!(s.level(), Level::Active(49), "it never falls");
    }

    #[test]
    fn only_a_split_that_is_caught_up_becomes_idle() {
        let time = EventTime { column: 0, name: "ts".into() };
        let mut s = splits(Some(Duration::ZERO));
        s.take(rows("t-0", &[100], false), Some(&time));
        s.take(rows("t-1", &[60], true), Some(&time));
        assert_eq!(s.level(), Level::Active(89));
        s.take(rows("t-0", &[], true), Some(&time));
        assert_eq!(s.level(), Level::Idle(89), "of what it has seen nothing is forgotten");
    }

    #[test]
    fn splits_that_are_all_idle_say_how_far_the_newest_is() {
        let time = EventTime { column: 0, name: "ts".into() };
        let mut s = splits(Some(Duration::ZERO));
        s.take(rows("t-0", &[100], true), Some(&time));
        assert_eq!(s.level(), Level::Active(NONE), "t-1 is not known to be caught up");
        s.take(rows("t-1", &[], true), Some(&time));
        assert_eq!(s.level(), Level::Idle(89));
        s.take(rows("t-1", &[30], false), Some(&time));
        assert_eq!(s.level(), Level::Active(19), "it counts again");
    }

    #[test]
    fn a_restored_split_knows_how_far_it_was() {
        let mut s = Splits { splits: BTreeMap::new(), ..splits(Some(Duration::ZERO)) };
        let restored = [("t-0", Some(100)), ("t-1", None), ("t-2", Some(70))];
        let restored = restored.map(|(name, watermark)| SplitState { watermark, ..split(name) });
        s.open(vec![split("t-0"), split("t-1")], &restored);
        for name in ["t-0", "t-1"] {
            s.take(rows(name, &[], true), None);
        }
        assert_eq!(s.level(), Level::Idle(89));
    }

    #[test]
    fn without_a_strategy_there_is_no_watermark_until_the_end() {
        let mut s = Splits::default();
        assert_eq!(s.level(), Level::Active(NONE));
        s.take(SourceEvent::NoMoreSplits, None);
        assert_eq!(s.level(), Level::Ended(NONE));
    }

    #[test]
    fn it_ends_when_all_splits_have_and_no_more_will_come() {
        let mut s = splits(None);
        for name in ["t-0", "t-1"] {
            s.take(SourceEvent::SplitFinished { split: name.into() }, None);
        }
        assert_eq!(s.level(), Level::Idle(NONE));
        s.take(SourceEvent::NoMoreSplits, None);
        assert_eq!(s.level(), Level::Ended(NONE));
    }
}
