//! A transaction that the broker has aborted between pre-commit and commit is lost: that is said, and the job fails.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, LONG, What, input, wait_frozen, wait_until};
use semel_testkit::{Kafka, KafkaOptions, Running, faults};
use std::sync::OnceLock;

const ROWS: u64 = 12_000;

/// The failure that a user sees: all that a search for the missing rows needs.
fn assert_says_what_is_lost(log: &str, id: &str) {
    let line = log.lines().rfind(|line| line.contains("rows are lost")).unwrap_or_else(|| panic!("it does not say so:\n{log}"));
    for needed in ["out", id, "orders-", "results-", "rows"] {
        assert!(line.contains(needed), "{needed:?} is missing in: {line}");
    }
    assert!(line.contains("["), "the ranges of the source: {line}");
}

/// What is found when a frozen job goes on, and at every later start.
fn assert_reported(job: &mut Job, kafka: &Kafka, running: &mut Running, ids: &[String], code: i32, words: &str) {
    let before = job.committed(kafka);
    let status = running.wait(LONG).unwrap();
    let log = running.stderr();
    assert_eq!(status.code(), Some(code), "{log}");
    assert!(!log.contains("generation 2 is running"), "no restart brings them back:\n{log}");
    let said = |log: &str| {
        let line = log.lines().rfind(|line| line.contains(words)).unwrap_or_else(|| panic!("it does not say {words:?}:\n{log}"));
        let id = ids.iter().find(|id| line.contains(*id)).unwrap_or_else(|| panic!("it names none of {ids:?}: {line}"));
        println!("{line}");
        id.clone()
    };
    let id = said(&log);
    if code == 79 {
        assert_says_what_is_lost(&log, &id);
    }
    // Nor does another start hide it.
    job.env.clear();
    let mut again = job.start();
    assert_eq!(again.wait(LONG).unwrap().code(), Some(code), "{}", again.stderr());
    let id = said(&again.stderr());
    if code == 79 {
        assert_says_what_is_lost(&again.stderr(), &id);
    }
    assert_eq!(job.committed(kafka), before, "nothing of it appears");
}

/// The job frozen between pre-commit and commit, and its open transactions.
fn frozen(job: &Job, kafka: &Kafka) -> (Running, u32, Vec<String>) {
    let running = job.start();
    let pid = wait_frozen(&running);
    let open: Vec<String> = job.open(kafka).into_iter().map(|t| t.transactional_id).collect();
    assert!(!open.is_empty());
    (running, pid, open)
}

fn prepared(kafka: &Kafka, parallelism: usize) -> Job {
    let orders = input(kafka, ROWS);
    Job::kafka(What::Filter, kafka, &orders).layout(parallelism, 1).slowly().failpoint("before_one_commit:3:stop", 0)
}

/// A broker that aborts a transaction soon after its time is over.
fn quick_to_abort() -> &'static Kafka {
    static KAFKA: OnceLock<Kafka> = OnceLock::new();
    let often = KafkaOptions::default().property("transaction.abort.timed.out.transaction.cleanup.interval.ms", 200);
    KAFKA.get_or_init(|| Kafka::start_with(often).unwrap())
}

/// With transactions that the broker aborts after 4 s.
fn short_lived(kafka: &Kafka, parallelism: usize) -> Job {
    let job = prepared(kafka, parallelism).param("timeout", 4000).set("execution.checkpointing.timeout", "3s");
    job.set("heartbeat.timeout", "1min")
}

#[test]
fn an_abort_by_the_brokers_clock_is_reported_and_fails_the_job() {
    let kafka = quick_to_abort();
    let mut job = short_lived(kafka, 1);
    let (mut running, pid, ids) = frozen(&job, kafka);
    wait_until("the broker aborts them", LONG, || job.open(kafka).is_empty());
    faults::resume(pid).unwrap();
    assert_reported(&mut job, kafka, &mut running, &ids, 79, "rows are lost");
}

#[test]
fn an_abort_while_nothing_runs_is_reported_at_the_next_start() {
    let kafka = quick_to_abort();
    let mut job = short_lived(kafka, 2);
    let (mut running, _, ids) = frozen(&job, kafka);
    running.kill_tree().unwrap();
    // The command that ends orphans does not take them for such.
    job.env.clear();
    for id in &ids {
        let mut abort = job.command("transactions").args(["abort", "--sink", "out", id]).start().unwrap();
        let code = abort.wait(LONG).unwrap().code();
        // Of those that are open, one or two are of a checkpoint that is complete; the others hold rows that come again.
        println!("abort {id}: {code:?} {}{}", abort.stdout(), abort.stderr());
    }
    assert!(!job.open(kafka).is_empty(), "what the journal holds is not aborted by hand");
    wait_until("the broker aborts them", LONG, || job.open(kafka).is_empty());
    let mut again = job.start();
    assert_reported(&mut job, kafka, &mut again, &ids, 79, "rows are lost");
}

#[test]
fn what_nobody_can_tell_is_no_success() {
    let kafka = Kafka::shared().unwrap();
    let mut job = prepared(kafka, 1).set("heartbeat.timeout", "1min");
    let (mut running, pid, ids) = frozen(&job, kafka);
    // kafka-transactions.sh: an InitProducerId, after which committed and aborted look the same.
    ids.iter().for_each(|id| kafka.terminate_transaction(id).unwrap());
    faults::resume(pid).unwrap();
    assert_reported(&mut job, kafka, &mut running, &ids, 78, "nobody can tell");
}
