//! Frozen processes and incarnations behind a cut link come back when another generation has taken over: nothing changes, and 15 s
//! later none of their transactions is open.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, LONG, What, generation_of, rows, topic, wait_frozen, wait_running, wait_until, workers};
use semel_testkit::{Kafka, KafkaOptions, Load, Netns, Running, TransactionInfo, faults};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A zombie's transactions are ended within this time of its waking.
const ENDED: Duration = Duration::from_secs(15);

/// Where the first generation is frozen: between freeze and pre-commit, between pre-commit and the journal, and between the permit
/// and the commit.
const POINTS: &[&str] = &["after_freeze", "before_pre_commit", "after_pre_commit", "before_journal", "after_journal", "before_one_commit"];

fn of_first(job: &Job, kafka: &Kafka) -> Vec<TransactionInfo> {
    job.open(kafka).into_iter().filter(|t| generation_of(t) == 1).collect()
}

/// Waits until [`ENDED`] is over: no transaction of the first generation is open then. How many were seen open meanwhile.
fn watch(job: &Job, kafka: &Kafka) -> usize {
    let woke = Instant::now();
    let mut seen = BTreeSet::new();
    while woke.elapsed() < ENDED {
        seen.extend(of_first(job, kafka).into_iter().map(|t| (t.transactional_id, t.producer_epoch)));
        std::thread::sleep(Duration::from_millis(200));
    }
    let open = of_first(job, kafka);
    assert!(open.is_empty(), "still open: {open:?}");
    // Readers go on: nothing of the zombie's stands before the new rows.
    job.wait_committed(kafka, job.committed(kafka));
    seen.len()
}

/// Freezes the first generation at a point, lets another take over, and wakes the workers of the first. Answers whether they opened
/// transactions, which the sweep of the second has ended.
fn frozen_at(kafka: &Arc<Kafka>, what: What, point: &str, processes: usize) -> bool {
    let orders = topic(kafka, "orders");
    let load = Load::start(kafka, &orders, 500, rows(10_000_000));
    // Its workers are left alone by their supervisor, which is frozen with them and does not come back.
    let job = Job::kafka(what, kafka, &orders).layout(2, processes).set("heartbeat.timeout", "2min");
    let mut job = job.failpoint(&format!("{point}:6:stop"), 0);
    let zombie = job.start();
    wait_frozen(&zombie);
    zombie.pause_tree().unwrap();
    let held = workers(&zombie);
    assert_eq!(held.len(), processes);
    let before = job.committed(kafka);

    job.env.clear();
    let mut new = job.start();
    wait_running(&mut new, 2);
    job.wait_committed(kafka, before);
    held.iter().for_each(|pid| faults::resume(*pid).unwrap());
    let seen = watch(&job, kafka);
    let swept = new.stderr().contains("ended transactions of lower generations");
    println!("{what:?} frozen at {point}, {processes} processes: woke up; {seen} of its transactions were seen open, swept: {swept}");
    // All of them have given up by themselves.
    wait_until("the zombies end", LONG, || held.iter().all(|pid| faults::process(*pid).is_none_or(|p| p.state == 'Z')));
    let written = load.stop().unwrap();
    assert!(new.try_wait().unwrap().is_none(), "the job went on:\n{}", new.stderr());
    assert_eq!(line::generation(&new), 2, "undisturbed:\n{}", new.stderr());
    new.kill_tree().unwrap();
    drop(zombie);
    job.finish();
    job.assert_exact(kafka, written);
    swept
}

#[test]
fn frozen_workers_wake_up_and_change_nothing() {
    let kafka = Arc::new(Kafka::start().unwrap());
    let cases = POINTS.iter().enumerate().map(|(i, point)| (*point, i % 2 + 1, if i % 3 == 1 { What::Filter } else { What::Windows }));
    let next = Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((point, processes, what)) = next.lock().unwrap().next() else { return };
                    frozen_at(&kafka, what, point, processes);
                }
            });
        }
    });
}

#[test]
fn transactions_that_a_zombie_opens_on_waking_are_ended() {
    let kafka = Arc::new(Kafka::start().unwrap());
    // It opens one unless another of its threads learns first that it is replaced.
    let opened = (0..4).any(|i| frozen_at(&kafka, [What::Filter, What::Windows][i % 2], "before_begin_transaction", i % 2 + 1));
    assert!(opened, "none has opened one: this shows nothing");
}

#[test]
fn a_frozen_worker_is_replaced_within_its_time() {
    let kafka = Kafka::shared().unwrap();
    let orders = line::input(kafka, 12_000);
    for point in ["before_one_commit:3:stop", "after_pre_commit:4:stop"] {
        let job = Job::kafka(What::Windows, kafka, &orders).layout(2, 2).slowly().param("bounded", 1);
        let job = job.set("heartbeat.timeout", "1s").set("heartbeat.interval", "100ms").failpoint(point, 1);
        let mut running = job.start();
        let frozen = wait_frozen(&running);
        let began = Instant::now();
        wait_running(&mut running, 2);
        println!("frozen at {point}: the next generation ran after {:?}", began.elapsed());
        // Found by its silence, or by a step that its last sign of life called unfinished.
        assert!(running.stderr().contains("worker process killed"));
        assert!(faults::process(frozen).is_none_or(|p| p.state == 'Z'));
        running.wait_success(LONG).unwrap();
        job.assert_exact(kafka, 12_000);
    }
}

/// Starts the job in its namespace, and cuts it off under load.
fn cut_off(netns: &Netns, kafka: &Arc<Kafka>, what: What, processes: usize) {
    let orders = topic(kafka, "orders");
    let load = Load::start(kafka, &orders, 2000, rows(10_000_000));
    let mut job = Job::kafka(what, kafka, &orders).layout(2, processes);
    let mut old: Running = job.program().in_netns(netns).start().unwrap();
    wait_running(&mut old, 1);
    job.wait_committed(kafka, 100);
    netns.cut().unwrap();
    let cut = Instant::now();
    // The checkpoint folder is shared, so it can learn of its successor; what it had sent is on its way meanwhile.
    let mut new = job.start();
    wait_running(&mut new, 2);
    let before = job.committed(kafka);
    job.wait_committed(kafka, before);
    println!("cut off: the next incarnation has committed after {:?}; open of the first: {:?}", cut.elapsed(), of_first(&job, kafka).len());
    assert!(of_first(&job, kafka).is_empty(), "recovery has ended them");
    std::thread::sleep(Duration::from_secs(2));
    netns.heal().unwrap();
    let seen = watch(&job, kafka);
    let status = old.wait(LONG).unwrap();
    println!("{what:?} came back behind its link with {seen} transactions and ended: {status}");
    assert_eq!(status.code(), Some(76), "{}", old.stderr());
    assert!(old.stderr().contains(&format!("process {}", new.pid())), "it names the winner:\n{}", old.stderr());
    let written = load.stop().unwrap();
    assert_eq!(line::generation(&new), 2, "undisturbed:\n{}", new.stderr());
    new.kill_tree().unwrap();
    job.finish();
    job.assert_exact(kafka, written);
}

#[test]
fn an_incarnation_behind_a_cut_link_comes_back_and_changes_nothing() {
    let Some(netns) = Netns::try_new() else { return };
    let kafka = Arc::new(Kafka::start_with(KafkaOptions { host: IpAddr::V4(netns.host()), ..KafkaOptions::default() }).unwrap());
    cut_off(&netns, &kafka, What::Windows, 1);
    cut_off(&netns, &kafka, What::Filter, 2);
}
