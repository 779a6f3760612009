//! Three brokers with replication: leaders move and brokers die under load, also between pre-commit and commit; the job goes on.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, PARTITIONS, What, assert_input, rows, topic, wait_frozen, wait_running};
use semel_testkit::{Kafka, KafkaOptions, Load, Random, Running, faults, scale};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The brokers that lead a partition of a topic.
fn leaders(kafka: &Kafka, topic: &str) -> Vec<usize> {
    let all = kafka.describe_topic(topic).unwrap();
    all.into_iter().filter_map(|p| usize::try_from(p.leader).ok()).filter(|id| *id > 0).collect()
}

/// Every replica of these topics in sync again: else the next kill could take a partition away.
fn wait_in_sync(kafka: &Kafka, topics: &[&str]) {
    for topic in topics.iter().chain(&["__transaction_state"]) {
        line::wait_until("all replicas are in sync", Duration::from_secs(90), || {
            kafka.describe_topic(topic).is_ok_and(|all| all.iter().all(|p| p.isr.len() == p.replicas.len()))
        });
    }
}

fn check(running: &mut Running, generations: u64) {
    assert!(running.try_wait().unwrap().is_none(), "the job has ended:\n{}", running.stderr());
    let now = line::generation(running);
    println!("it runs in generation {now}");
    assert!(now <= generations, "it restarted too often:\n{}", running.stderr());
}

#[test]
fn leaders_move_and_brokers_die_under_load() {
    let began = Instant::now();
    let mut random = Random::from_env("three brokers");
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::three_brokers()).unwrap());
    let orders = topic(&kafka, "orders");
    let load = Load::start(&kafka, &orders, 500, rows(10_000_000));
    let mut job = Job::kafka(What::Windows, &kafka, &orders).layout(2, 2).set("execution.checkpointing.interval", "200ms");
    let out = job.out.clone().unwrap();
    let mut running = job.start();
    wait_running(&mut running, 1);
    job.wait_committed(&kafka, 0);
    // Leaders of the input and of the output move while it runs.
    for _ in 0..scale(3, 8) {
        let moved = [&orders, &out][random.below(2) as usize];
        let partition = random.below(u64::from(PARTITIONS)) as i32;
        let to = 1 + random.below(3) as usize;
        kafka.move_leader(moved, partition, to).unwrap();
        println!("{:5.1} s: broker {to} leads {moved}-{partition}", began.elapsed().as_secs_f64());
        job.wait_committed(&kafka, job.committed(&kafka));
    }
    check(&mut running, 1);
    for _ in 0..scale(2, 3) {
        let victim = 1 + random.below(3) as usize;
        kafka.kill(victim).unwrap();
        println!("{:5.1} s: broker {victim} killed", began.elapsed().as_secs_f64());
        job.wait_committed(&kafka, job.committed(&kafka));
        println!("{:5.1} s: rows are committed without it", began.elapsed().as_secs_f64());
        kafka.start_again(victim).unwrap();
        wait_in_sync(&kafka, &[&orders, &out]);
    }
    check(&mut running, 4);
    let written = load.stop().unwrap();
    running.kill_tree().unwrap();
    job.finish();
    assert_input(&kafka, &orders, written);
    job.assert_exact(&kafka, written);
    println!("{written} orders, every result once ({:.0} s)", began.elapsed().as_secs_f64());
}

#[test]
fn a_broker_dies_between_pre_commit_and_commit() {
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::three_brokers()).unwrap());
    for (what, victim) in [(What::Filter, "the leader of its rows"), (What::Windows, "its coordinator")] {
        let orders = topic(&kafka, "orders");
        let load = Load::start(&kafka, &orders, 500, rows(10_000_000));
        let job = Job::kafka(what, &kafka, &orders).set("heartbeat.timeout", "2min").set("execution.checkpointing.interval", "200ms");
        let mut job = job.failpoint("before_one_commit:4:stop", 0);
        let out = job.out.clone().unwrap();
        let mut running = job.start();
        let frozen = wait_frozen(&running);
        let broker = match what {
            What::Filter => leaders(&kafka, &out)[0],
            // Of the ids of this prefix some have their coordinator on each broker: take the one that leads most.
            What::Windows => *leaders(&kafka, "__transaction_state").iter().max_by_key(|id| count(&kafka, **id)).unwrap(),
        };
        kafka.kill(broker).unwrap();
        faults::resume(frozen).unwrap();
        job.wait_committed(&kafka, job.committed(&kafka));
        println!("{what:?}: broker {broker} ({victim}) killed between pre-commit and commit; rows are committed without it");
        check(&mut running, 3);
        kafka.start_again(broker).unwrap();
        wait_in_sync(&kafka, &[&orders, &out]);
        let written = load.stop().unwrap();
        running.kill_tree().unwrap();
        job.finish();
        assert_input(&kafka, &orders, written);
        job.assert_exact(&kafka, written);
    }
}

fn count(kafka: &Kafka, broker: usize) -> usize {
    leaders(kafka, "__transaction_state").into_iter().filter(|id| *id == broker).count()
}
