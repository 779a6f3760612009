//! A transaction that the broker has aborted between pre-commit and commit is lost: that is said, and the job fails.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, LONG, What, assert_input, input, rows, topic, wait_frozen, wait_until};
use semel_testkit::{Kafka, KafkaOptions, Load, Running, faults};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const ROWS: u64 = 12_000;

/// The failure that a user sees: all that a search for the missing rows needs.
fn assert_says_what_is_lost(log: &str, id: &str) {
    let line = log.lines().rfind(|line| line.contains("rows are lost")).unwrap_or_else(|| panic!("it does not say so:\n{log}"));
    for needed in ["out", id, "orders-", "results-", "rows"] {
        assert!(line.contains(needed), "{needed:?} is missing in: {line}");
    }
    assert!(line.contains("["), "the ranges of the source: {line}");
}

/// What is found when a frozen job goes on, and at every later start. `before`: the rows committed until then.
fn assert_reported(job: &mut Job, kafka: &Kafka, before: u64, running: &mut Running, ids: &[String], code: i32, words: &str) {
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
    let status = again.wait(LONG).unwrap();
    let second = again.stderr();
    assert_eq!(status.code(), Some(code), "{second}");
    let id = said(&second);
    if code == 79 {
        assert_says_what_is_lost(&second, &id);
    }
    // What is whole is committed by a start, and once more by the next one, as no entry says so yet; nothing else appears.
    let whole: BTreeSet<&str> = [&log, &second].iter().flat_map(|log| log.lines()).filter_map(committed_at_recovery).collect();
    assert_eq!(job.committed(kafka), before + whole.into_iter().map(rows_told).sum::<u64>(), "nothing of what is lost appears");
}

/// The transaction that a line of the log tells of.
fn committed_at_recovery(line: &str) -> Option<&str> {
    let (_, transaction) = line.split_once("committed at recovery")?;
    transaction.rsplit_once(" how=").map(|(transaction, _)| transaction)
}

/// The rows of all transactions that a line of the log names.
fn rows_told(line: &str) -> u64 {
    line.match_indices(" rows in ").map(|(at, _)| line[..at].rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
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
    let before = job.committed(kafka);
    faults::resume(pid).unwrap();
    assert_reported(&mut job, kafka, before, &mut running, &ids, 79, "rows are lost");
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
    let before = job.committed(kafka);
    let mut again = job.start();
    assert_reported(&mut job, kafka, before, &mut again, &ids, 79, "rows are lost");

    // Whoever accepts the loss goes on without those rows, and with every other one.
    let mut job = job.set("semel.state-recovery.accept-losses", true);
    let log = job.finish();
    assert!(log.contains("goes on without them"), "{log}");
    let line = log.lines().find(|line| line.contains("goes on without them")).unwrap();
    let told = rows_told(line);
    let verdict = job.verdict(kafka, ROWS);
    assert!(told > 0, "{line}");
    assert_eq!((verdict.lost, verdict.doubled, verdict.wrong, verdict.unexpected), (told, 0, 0, 0), "{verdict}\n{line}");
    let mut job = job.set("semel.state-recovery.accept-losses", false);
    job.finish();
    assert!(job.open(kafka).is_empty());
}

/// A transaction that is open now may be in the journal a moment later: the command takes the job over before it aborts one.
#[test]
fn an_abort_by_hand_stops_a_running_job_and_loses_nothing() {
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::default()).unwrap());
    let orders = topic(&kafka, "orders");
    let load = Load::start(&kafka, &orders, 2000, rows(10_000_000));
    let mut job = Job::kafka(What::Filter, &kafka, &orders).layout(2, 1);
    for round in 0..4 {
        let mut running = job.start();
        job.wait_committed(&kafka, job.committed(&kafka));
        let mut id = None;
        wait_until("a transaction is open", LONG, || {
            id = job.open(&kafka).into_iter().find(|t| t.state == "Ongoing").map(|t| t.transactional_id);
            id.is_some()
        });
        let mut abort = job.command("transactions").args(["abort", "--sink", "out", &id.unwrap()]).start().unwrap();
        let code = abort.wait(LONG).unwrap().code();
        println!("round {round}: {code:?} {}{}", abort.stdout(), abort.stderr());
        if abort.stderr().contains("whose rows would be lost") && running.try_wait().unwrap().is_none() {
            // Seen in the journal before anything was taken over.
            running.kill_tree().unwrap();
            continue;
        }
        let ended = running.wait(LONG).unwrap().code();
        assert_eq!(ended, Some(76), "{}", running.stderr());
    }
    let written = load.stop().unwrap();
    job.finish();
    assert_input(&kafka, &orders, written);
    job.assert_exact(&kafka, written);
}

/// Whoever gives up leaves no reader waiting for `transaction.timeout.ms`.
#[test]
fn a_job_that_fails_for_good_leaves_no_transaction_open() {
    let kafka = Kafka::shared().unwrap();
    let orders = input(kafka, ROWS / 2);
    let mut more = rows(ROWS).skip(ROWS as usize / 2).peekable();
    let mut job = Job::kafka(What::Filter, kafka, &orders).layout(2, 1).slowly();
    let out = job.out.clone().unwrap();
    let limit = |bytes: &str| {
        let request = serde_json::json!({ "topic": out, "topic_config": { "max.message.bytes": bytes } });
        kafka.tool("alter-topic", request, LONG).unwrap();
    };
    let mut running = job.start();
    job.wait_committed(kafka, 500);
    limit("100");
    // Something to write, from when the limit holds at the latest.
    while more.peek().is_some() && running.try_wait().unwrap().is_none() {
        kafka.write(&orders, more.by_ref().take(400)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    let code = running.wait(LONG).unwrap().code();
    assert_eq!(code, Some(78), "{}", running.stderr());
    assert!(running.stderr().contains("after the last failure"), "{}", running.stderr());
    // A decided abort is carried out within moments; left alone, a transaction stays for 15 minutes.
    let soon = Duration::from_secs(15);
    wait_until("every transaction has ended", soon, || job.open(kafka).is_empty());
    kafka.wait_stable(&out, soon).unwrap();
    limit("1048588");
    while more.peek().is_some() {
        kafka.write(&orders, more.by_ref().take(400)).unwrap();
    }
    job.finish();
    job.assert_exact(kafka, ROWS);
}

#[test]
fn what_nobody_can_tell_is_no_success() {
    let kafka = Kafka::shared().unwrap();
    let mut job = prepared(kafka, 1).set("heartbeat.timeout", "1min");
    let (mut running, pid, ids) = frozen(&job, kafka);
    // kafka-transactions.sh: an InitProducerId, after which committed and aborted look the same.
    ids.iter().for_each(|id| kafka.terminate_transaction(id).unwrap());
    let before = job.committed(kafka);
    faults::resume(pid).unwrap();
    assert_reported(&mut job, kafka, before, &mut running, &ids, 78, "nobody can tell");
}
