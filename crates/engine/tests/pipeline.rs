//! Whole jobs in one process, compared with a brute-force computation, row by row.
#![allow(clippy::unwrap_used)]
mod common;
use common::*;
use semel_checkpoint::OperatorUid;
use semel_engine::event_time::WatermarkStrategy;
use semel_engine::graph::{Graph, Port};
use semel_engine::operators::aggregate::{Emit, KeyedAggregate};
use semel_engine::operators::keyed::Aggregation;
use semel_engine::operators::sink_writer::SinkOperator;
use semel_engine::operators::source::SourceOperator;
use semel_engine::operators::window::WindowAggregate;
use semel_engine::operators::window_assigner::WindowAssigner;
use semel_engine::source::Source;
use semel_engine::state::AggregateKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn uid(name: &str) -> OperatorUid {
    OperatorUid::new(name).unwrap()
}

fn count_and_sum() -> Vec<Aggregation> {
    vec![
        Aggregation { kind: AggregateKind::Count, column: None, name: "n".into() },
        Aggregation { kind: AggregateKind::Sum, column: Some("value".into()), name: "total".into() },
    ]
}

fn add_source(graph: &mut Graph, numbers: Numbers, delay_ms: i64) -> Port {
    let watermark = Some(WatermarkStrategy { column: "time".into(), delay_ms, idle_timeout: None });
    graph.add(uid("numbers"), Arc::new(SourceOperator { source: Arc::new(numbers), watermark }), vec![]).unwrap()
}

fn add_sink(graph: &mut Graph, name: &str, sink: &Memory, input: Port) {
    let schema = graph.schema(input).unwrap();
    graph.add(uid(name), Arc::new(SinkOperator { sink: Arc::new(sink.clone()), schema }), vec![input]).unwrap();
}

fn numbers(rows: i64, pause_ms: u64) -> Numbers {
    Numbers { splits: 4, rows, keys: 100, pause: Duration::from_millis(pause_ms) }
}

fn all_rows(rows: i64) -> impl Iterator<Item = (i64, i64, i64)> {
    (0..4).flat_map(move |split| (0..rows).map(move |position| row(split, position, 100)))
}

#[test]
fn rows_pass_through_once_and_commits_are_in_order() {
    for threads in [1, 2, 3] {
        let (sink, store) = (Memory::default(), memory_store(&format!("pass-{threads}")));
        let mut graph = Graph::default();
        let rows = add_source(&mut graph, numbers(20_000, 1), 2000);
        add_sink(&mut graph, "sink", &sink, rows);
        run(graph, &store, threads, config(), None);
        let mut got = sink.rows();
        let mut want: Vec<Vec<i64>> = all_rows(20_000).map(|(k, v, t)| vec![k, v, t]).collect();
        got.sort();
        want.sort();
        assert_eq!(got.len(), want.len());
        assert!(got == want);
        let commits = sink.tables.lock().unwrap().commits.clone();
        for subtask in 0..threads as u32 {
            let order: Vec<u64> = commits.iter().filter(|(s, _)| *s == subtask).map(|(_, c)| *c).collect();
            assert!(order.is_sorted() && !order.is_empty(), "{order:?}");
        }
    }
}

#[test]
fn at_the_end_only_retained_checkpoints_are_left() {
    let (sink, store) = (Memory::default(), memory_store("collected"));
    let mut config = config();
    (config.checkpoint.interval, config.checkpoint.num_retained) = (Duration::from_millis(10), 2);
    let mut graph = Graph::default();
    let rows = add_source(&mut graph, numbers(20_000, 5), 2000);
    add_sink(&mut graph, "sink", &sink, rows);
    run(graph, &store, 2, config, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let journal = runtime.block_on(semel_checkpoint::read_journal(store)).unwrap();
    let checkpoints: Vec<u64> = journal.entries.iter().filter_map(|(_, entry)| entry.checkpoint()).map(|c| c.id.0).collect();
    assert_eq!(checkpoints.len(), 2, "{checkpoints:?}");
    assert!(checkpoints[1] > 10, "checkpoints came faster than rounds of collection: {checkpoints:?}");
}

fn windows_of(rows: i64, size: i64, slide: i64) -> BTreeMap<(i64, i64), (i64, i64)> {
    let mut windows = BTreeMap::new();
    for (key, value, time) in all_rows(rows) {
        let mut start = time.div_euclid(slide) * slide;
        while start > time - size {
            let group: &mut (i64, i64) = windows.entry((start, key)).or_default();
            *group = (group.0 + 1, group.1 + value);
            start -= slide;
        }
    }
    windows
}

type Results = BTreeMap<(i64, i64), (i64, i64)>;

fn assert_windows(got: &Results, want: &Results) {
    let lost: Vec<_> = want.keys().filter(|k| !got.contains_key(k)).collect();
    let wrong: Vec<_> = got.iter().filter(|(k, v)| want.get(k) != Some(v)).map(|(k, v)| (k, v, want.get(k))).collect();
    let some = |n: usize| n.min(5);
    assert!(
        lost.is_empty() && wrong.is_empty(),
        "lost {}: {:?}, wrong {}: {:?}",
        lost.len(),
        &lost[..some(lost.len())],
        wrong.len(),
        &wrong[..some(wrong.len())]
    );
}

#[test]
fn windows_hold_every_row_once_and_fire_once() {
    let sliding = WindowAssigner::Sliding { size_ms: 10_000, slide_ms: 2500, offset_ms: 0 };
    let tumbling = WindowAssigner::Tumbling { size_ms: 10_000, offset_ms: 0 };
    for (name, assigner, slide) in [("t", tumbling, 10_000), ("s", sliding, 2500)] {
        let (sink, late, store) = (Memory::default(), Memory::default(), memory_store(&format!("windows-{name}")));
        let mut graph = Graph::default();
        let rows = add_source(&mut graph, numbers(60_000, 1), 2000);
        let window = WindowAggregate::new(schema(), &["key".into()], "time", assigner, 0, &count_and_sum()).unwrap();
        let fired = graph.add(uid("window"), Arc::new(window), vec![rows]).unwrap();
        add_sink(&mut graph, "sink", &sink, fired);
        add_sink(&mut graph, "late", &late, Port { node: fired.node, output: 1 });
        run(graph, &store, 2, config(), None);
        assert_eq!(late.rows(), Vec::<Vec<i64>>::new(), "the delay covers the disorder");
        let mut got = BTreeMap::new();
        for r in sink.rows() {
            assert_eq!(r[1], r[0] + 10_000);
            assert_eq!(got.insert((r[0], r[2]), (r[3], r[4])), None, "a window fires once");
        }
        assert!(got == windows_of(60_000, 10_000, slide));
    }
}

#[test]
fn a_row_is_in_a_window_or_late_never_both_and_lateness_fires_again() {
    let (sink, late, store) = (Memory::default(), Memory::default(), memory_store("late"));
    let mut graph = Graph::default();
    // The disorder is 2000 ms and the watermark allows only 200.
    let rows = add_source(&mut graph, numbers(60_000, 1), 200);
    let window = WindowAggregate::new(
        schema(),
        &["key".into()],
        "time",
        WindowAssigner::Tumbling { size_ms: 1000, offset_ms: 0 },
        500,
        &count_and_sum(),
    )
    .unwrap();
    let fired = graph.add(uid("window"), Arc::new(window), vec![rows]).unwrap();
    add_sink(&mut graph, "sink", &sink, fired);
    add_sink(&mut graph, "late", &late, Port { node: fired.node, output: 1 });
    run(graph, &store, 2, config(), None);
    // The last result of a window is the one with the highest count; with the late rows it holds everything.
    let mut last: BTreeMap<(i64, i64), (i64, i64)> = BTreeMap::new();
    let results = sink.rows();
    for r in &results {
        let group = last.entry((r[0], r[2])).or_default();
        *group = (*group).max((r[3], r[4]));
    }
    assert!(results.len() > last.len(), "some windows have fired again");
    let late = late.rows();
    assert!(!late.is_empty());
    for r in &late {
        let group = last.entry((r[2].div_euclid(1000) * 1000, r[0])).or_default();
        *group = (group.0 + 1, group.1 + r[1]);
    }
    assert!(last == windows_of(60_000, 1000, 1000));
}

#[test]
fn running_aggregates_end_with_the_totals() {
    for (name, emit) in [("tick", Emit::EachTick), ("checkpoint", Emit::AtCheckpoint)] {
        let (sink, store) = (Memory::default(), memory_store(&format!("aggregate-{name}")));
        let mut graph = Graph::default();
        let rows = add_source(&mut graph, numbers(30_000, 1), 2000);
        let aggregate = KeyedAggregate::new(schema(), &["key".into()], &count_and_sum(), emit).unwrap();
        let changes = graph.add(uid("aggregate"), Arc::new(aggregate), vec![rows]).unwrap();
        add_sink(&mut graph, "sink", &sink, changes);
        run(graph, &store, 2, config(), None);
        let mut last: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for r in sink.rows() {
            let group = last.entry(r[0]).or_default();
            *group = (*group).max((r[1], r[2]));
        }
        let mut want: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for (key, value, _) in all_rows(30_000) {
            let group = want.entry(key).or_default();
            *group = (group.0 + 1, group.1 + value);
        }
        assert!(last == want);
    }
}

#[test]
fn stopped_and_restarted_with_another_parallelism_the_result_is_the_same() {
    let (sink, sums, store) = (Memory::default(), Memory::default(), memory_store("rescale"));
    let build = || {
        let mut graph = Graph::default();
        let rows = add_source(&mut graph, numbers(60_000, 5), 2000);
        let window = WindowAggregate::new(
            schema(),
            &["key".into()],
            "time",
            WindowAssigner::Tumbling { size_ms: 10_000, offset_ms: 0 },
            0,
            &count_and_sum(),
        )
        .unwrap();
        let fired = graph.add(uid("window"), Arc::new(window), vec![rows]).unwrap();
        add_sink(&mut graph, "sink", &sink, fired);
        let aggregate = KeyedAggregate::new(schema(), &["key".into()], &count_and_sum(), Emit::AtCheckpoint).unwrap();
        let changes = graph.add(uid("aggregate"), Arc::new(aggregate), vec![rows]).unwrap();
        add_sink(&mut graph, "sums", &sums, changes);
        graph
    };
    for threads in [1, 2, 3, 1] {
        run(build(), &store, threads, config(), Some(Duration::from_millis(300)));
    }
    assert!(sink.rows().len() < windows_of(60_000, 10_000, 10_000).len(), "the test must stop it before its end");
    run(build(), &store, 2, config(), None);
    let mut got = BTreeMap::new();
    for r in sink.rows() {
        assert_eq!(got.insert((r[0], r[2]), (r[3], r[4])), None, "a window fires once");
    }
    assert_windows(&got, &windows_of(60_000, 10_000, 10_000));
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for r in sums.rows() {
        let n = last.entry(r[0]).or_default();
        *n = (*n).max(r[1]);
    }
    assert_eq!(last.values().sum::<i64>(), 4 * 60_000);
}

#[test]
fn a_slow_sink_holds_the_source_back() {
    let (sink, store) = (Memory { slow: Duration::from_millis(2), ..Memory::default() }, memory_store("slow"));
    let mut graph = Graph::default();
    let source = Numbers { splits: 4, rows: 400_000, keys: 100, pause: Duration::ZERO };
    assert_eq!(source.schema(), schema());
    let rows = add_source(&mut graph, source, 2000);
    add_sink(&mut graph, "sink", &sink, rows);
    let mut config = config();
    config.sink_buffer_bytes = 64 << 10;
    run(graph, &store, 2, config, Some(Duration::from_millis(1500)));
    let n = sink.rows().len();
    println!("{n} rows");
    // 500 rows per 2 ms and subtask, two of them: at most 500 rows/ms, so about 750 k rows in all; checkpoints complete.
    assert!(n > 10_000 && n < 1_500_000, "{n}");
    assert!(sink.tables.lock().unwrap().commits.len() > 10, "checkpoints go on under back-pressure");
}
