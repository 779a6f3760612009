//! Watermarks of whole jobs: of sources that fall silent, and over restarts.
#![allow(clippy::unwrap_used)]
mod common;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use common::*;
use semel_checkpoint::{OperatorUid, SplitState};
use semel_engine::event_time::WatermarkStrategy;
use semel_engine::graph::{Graph, Port};
use semel_engine::operators::keyed::Aggregation;
use semel_engine::operators::sink_writer::SinkOperator;
use semel_engine::operators::source::SourceOperator;
use semel_engine::operators::union::Union;
use semel_engine::operators::window::WindowAggregate;
use semel_engine::operators::window_assigner::WindowAssigner;
use semel_engine::sink::{ConnectorResult, Finding, JobNeeds};
use semel_engine::source::*;
use semel_engine::state::AggregateKind;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const IDLE: Duration = Duration::from_millis(100);
/// Long enough that windows which can fire have fired.
const RUN: Duration = Duration::from_millis(1500);

/// A split without end: rows at these times, all at once, if it has not been read before. Then nothing, and after a while the news that
/// it is caught up.
#[derive(Clone)]
struct Burst {
    split: &'static str,
    times: Vec<i64>,
    caught_up_after: Option<Duration>,
}

#[derive(Clone)]
struct Bursts(Vec<Burst>);

struct BurstsReader {
    splits: Vec<SplitState>,
    events: VecDeque<(Duration, SourceEvent)>,
}

fn rows(times: &[i64]) -> RecordBatch {
    let column = |value: fn(&i64) -> i64| Arc::new(times.iter().map(value).collect::<Int64Array>()) as ArrayRef;
    RecordBatch::try_new(schema(), vec![column(|_| 1), column(|_| 1), column(|time| *time)]).unwrap()
}

impl Source for Bursts {
    type Reader = BurstsReader;
    fn schema(&self) -> SchemaRef {
        schema()
    }
    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid) -> Vec<Finding> {
        vec![]
    }
    async fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>) -> ConnectorResult<BurstsReader> {
        let (mut splits, mut events) = (vec![], vec![]);
        for burst in self.0.iter().filter(|b| context.owns(b.split)) {
            let position = restored.iter().flatten().find(|s| s.split == burst.split).map_or(0, |s| s.position);
            // As the Kafka reader does, it forgets the split's watermark.
            splits.push(SplitState { split: burst.split.into(), position, watermark: None, detail: serde_json::Value::Null });
            let end = burst.times.len() as i64;
            let event = |rows, caught_up| SourceEvent::Rows { split: burst.split.into(), rows, position: end, caught_up };
            if position < end {
                events.push((Duration::ZERO, event(rows(&burst.times[position as usize..]), false)));
            }
            events.extend(burst.caught_up_after.map(|after| (after, event(rows(&[]), true))));
        }
        events.sort_by_key(|(after, _)| *after);
        Ok(BurstsReader { splits, events: events.into() })
    }
}

impl SourceReader for BurstsReader {
    fn splits(&mut self) -> Vec<SplitState> {
        std::mem::take(&mut self.splits)
    }
    async fn next(&mut self) -> ConnectorResult<SourceEvent> {
        let Some((after, event)) = self.events.pop_front() else { return std::future::pending().await };
        tokio::time::sleep(after).await;
        Ok(event)
    }
}

fn burst(split: &'static str, times: &[i64], caught_up_after_ms: u64) -> Burst {
    Burst { split, times: times.to_vec(), caught_up_after: Some(Duration::from_millis(caught_up_after_ms)) }
}

/// Counts rows per second of these sources together; the graph and where the results go.
fn counts(sources: &[Bursts]) -> (Graph, Memory) {
    let (graph, sink, _) = counts_and_late_rows(sources, 0);
    (graph, sink)
}

fn counts_and_late_rows(sources: &[Bursts], lateness_ms: i64) -> (Graph, Memory, Memory) {
    let (mut graph, sink, late) = (Graph::default(), Memory::default(), Memory::default());
    let uid = |name: &str| OperatorUid::new(name).unwrap();
    let mut ports = vec![];
    for (i, source) in sources.iter().enumerate() {
        let watermark = Some(WatermarkStrategy { column: "time".into(), delay_ms: 0, idle_timeout: Some(IDLE) });
        let source = SourceOperator { source: Arc::new(source.clone()), watermark };
        ports.push(graph.add(uid(&format!("source-{i}")), Arc::new(source), vec![]).unwrap());
    }
    let all = graph.add(uid("union"), Arc::new(Union { schema: schema() }), ports).unwrap();
    let count = vec![Aggregation { kind: AggregateKind::Count, column: None, name: "n".into() }];
    let assigner = WindowAssigner::Tumbling { size_ms: 1000, offset_ms: 0 };
    let window = WindowAggregate::new(schema(), &["key".into()], "time", assigner, lateness_ms, &count).unwrap();
    let fired = graph.add(uid("window"), Arc::new(window), vec![all]).unwrap();
    for (name, sink, port) in [("sink", &sink, fired), ("late", &late, Port { output: 1, ..fired })] {
        let schema = graph.schema(port).unwrap();
        graph.add(uid(name), Arc::new(SinkOperator { sink: Arc::new(sink.clone()), schema }), vec![port]).unwrap();
    }
    (graph, sink, late)
}

/// Start and count of each window that has fired.
fn fired(sink: &Memory) -> Vec<(i64, i64)> {
    let mut fired: Vec<_> = sink.rows().iter().map(|r| (r[0], r[3])).collect();
    fired.sort_unstable();
    fired
}

#[test]
fn in_a_union_a_source_that_is_idle_does_not_hold_the_other_back() {
    let live = Bursts(vec![burst("l-0", &[100, 1100, 1200, 2999], 50)]);
    let empty = Bursts(vec![burst("e-0", &[], 0)]);
    for (name, sources) in [("live-first", [live.clone(), empty.clone()]), ("empty-first", [empty, live])] {
        let (graph, sink) = counts(&sources);
        run(graph, &memory_store(&format!("idle-union-{name}")), 2, config(), Some(RUN));
        // 2999 promises nothing but that no row before it comes: its own window stays open.
        assert_eq!(fired(&sink), [(0, 1), (1000, 2)]);
    }
}

#[test]
fn in_a_source_the_last_split_to_fall_silent_is_not_forgotten() {
    // Neighbours belong to different subtasks. That with the rows is idle long before the other is known to be empty: at no time is one
    // active with a watermark while the other is idle.
    for (name, full, empty) in [("a", "s-0", "s-1"), ("b", "s-1", "s-0")] {
        let source = Bursts(vec![burst(full, &[100, 1100, 1200, 3000], 0), burst(empty, &[], 500)]);
        let (graph, sink) = counts(&[source]);
        run(graph, &memory_store(&format!("idle-race-{name}")), 2, config(), Some(RUN));
        assert_eq!(fired(&sink), [(0, 1), (1000, 2)]);
    }
}

#[test]
fn with_all_splits_idle_the_newest_decides() {
    let source = Bursts(vec![burst("s-0", &[100, 1500], 0), burst("s-1", &[200, 4500], 0)]);
    let (graph, sink) = counts(&[source]);
    run(graph, &memory_store("idle-newest"), 2, config(), Some(RUN));
    assert_eq!(fired(&sink), [(0, 2), (1000, 1)]);
}

#[test]
fn after_a_restart_a_silent_split_remembers_how_far_it_was() {
    let store = memory_store("idle-restart");
    let mut source = Bursts(vec![burst("s-0", &[100, 1100, 3000], 0), burst("s-1", &[], 0)]);
    let caught_up = source.clone();
    source.0.iter_mut().for_each(|b| b.caught_up_after = None);
    let (graph, sink) = counts(&[source]);
    run(graph, &store, 2, config(), Some(Duration::from_millis(400)));
    assert_eq!(fired(&sink), [], "nothing is known to be idle");
    let (graph, sink) = counts(&[caught_up]);
    run(graph, &store, 2, config(), Some(RUN));
    assert_eq!(fired(&sink), [(0, 1), (1000, 1)]);
}

#[test]
fn a_window_that_is_over_stays_so_when_a_restart_allows_more_lateness() {
    let store = memory_store("more-lateness");
    let source = |times: &[i64]| [Bursts(vec![burst("s-0", times, 0)])];
    let (graph, sink, _) = counts_and_late_rows(&source(&[100, 3500]), 0);
    run(graph, &store, 1, config(), Some(Duration::from_millis(400)));
    assert_eq!(fired(&sink), [(0, 1)]);
    // Of the first window nothing is left that 200 could be added to; 3600 is in one that is still open.
    let (graph, sink, late) = counts_and_late_rows(&source(&[100, 3500, 200, 3600, 5000]), 60_000);
    run(graph, &store, 1, config(), Some(Duration::from_millis(400)));
    assert_eq!(late.rows(), [[1, 1, 200]]);
    assert_eq!(fired(&sink), [(3000, 2)]);
}
