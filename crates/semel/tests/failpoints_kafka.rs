//! A process ends before and after the durable effect of every step of the protocol: nothing is lost and nothing doubled.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, LONG, What, input};
use semel_testkit::Kafka;
use std::sync::Mutex;
use std::time::Instant;

/// Name, passing at which the process ends, and whether only process 0 passes it.
const POINTS: &[(&str, u32, bool)] = &[
    ("before_begin_transaction", 2, false),
    ("after_freeze", 3, false),
    ("after_upload", 3, false),
    ("before_pre_commit", 3, false),
    ("after_pre_commit", 3, false),
    ("before_journal", 3, true),
    ("after_journal", 3, true),
    ("before_one_commit", 2, false),
    ("after_one_commit", 2, false),
    ("after_all_commits", 2, true),
];
const ROWS: u64 = 24_000;

#[derive(Debug, Clone, Copy)]
struct Case {
    point: &'static str,
    nth: u32,
    what: What,
    processes: usize,
    /// Which process ends.
    process: usize,
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for (point, nth, first_only) in POINTS {
        for what in [What::Windows, What::Filter] {
            if what == What::Filter && ["after_freeze", "after_upload"].contains(point) {
                continue; // It has no state.
            }
            for processes in [1, 2] {
                let process = if *first_only { 0 } else { processes - 1 };
                cases.push(Case { point, nth: *nth, what, processes, process });
            }
        }
    }
    cases
}

/// Runs all cases, a few at a time, and tells all that went wrong.
fn run_all(run: impl Fn(&Case) -> Result<(), String> + Sync) {
    let began = Instant::now();
    let cases = cases();
    let (next, failed) = (Mutex::new(cases.iter()), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let Some(case) = next.lock().unwrap().next() else { return };
                    if let Err(why) = run(case) {
                        println!("{case:?}: {why}");
                        failed.lock().unwrap().push(format!("{case:?}: {why}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{} cases in {:.1} s, {} failed", cases.len(), began.elapsed().as_secs_f64(), failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Runs one job to its end, through the failpoint.
fn run(job: &Job, case: &Case) -> Result<(), String> {
    let mut running = job.start();
    let ended = running.wait_success(LONG);
    let log = running.stderr();
    ended.map_err(|e| e.to_string())?;
    for needed in [&format!("failpoint {}", case.point), "generation 2 is running"] {
        if !log.contains(needed) {
            return Err(format!("{needed:?} is not in its log: the case shows nothing\n{log}"));
        }
    }
    Ok(())
}

fn with_failpoint(job: Job, case: &Case) -> Job {
    job.layout(2, case.processes).failpoint(&format!("{}:{}", case.point, case.nth), case.process)
}

#[test]
fn into_kafka() {
    let kafka = Kafka::shared().unwrap();
    let orders = input(kafka, ROWS);
    run_all(|case| {
        let job = with_failpoint(Job::kafka(case.what, kafka, &orders).param("bounded", 1).slowly(), case);
        run(&job, case)?;
        let verdict = job.verdict(kafka, ROWS);
        let open = job.open(kafka);
        match verdict.is_exact() && verdict.expected > 0 && open.is_empty() {
            true => Ok(()),
            false => Err(format!("{verdict}; open: {open:?}")),
        }
    });
}

#[test]
fn into_files() {
    run_all(|case| {
        let job = with_failpoint(Job::files(case.what, ROWS, 20_000), case);
        run(&job, case)?;
        let verdict = job.file_verdict(ROWS);
        if verdict.is_exact() && verdict.expected > 0 { Ok(()) } else { Err(verdict.to_string()) }
    });
}
