//! Parallelism and process count change from kill to kill: the state goes on, in other places.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, What, rows, topic, wait_running, workers};
use semel_testkit::{Kafka, Load, faults};
use std::sync::Arc;

#[test]
fn keyed_state_moves_between_kills() {
    let kafka = Arc::new(Kafka::start().unwrap());
    let orders = topic(&kafka, "orders");
    let load = Load::start(&kafka, &orders, 2000, rows(10_000_000));
    let mut job = Job::kafka(What::Windows, &kafka, &orders);
    for (i, (parallelism, processes)) in [(2, 1), (4, 2), (3, 1), (1, 1), (6, 3), (2, 2)].into_iter().enumerate() {
        job = job.layout(parallelism, processes);
        let mut running = job.start();
        job.wait_committed(&kafka, job.committed(&kafka));
        // Every second layout also loses a worker, and goes on by itself.
        if i % 2 == 1 {
            let before = line::generation(&running);
            faults::kill(*workers(&running).last().unwrap()).unwrap();
            wait_running(&mut running, before + 1);
            job.wait_committed(&kafka, job.committed(&kafka));
        }
        println!("parallelism {parallelism}, {processes} processes: {} rows committed", job.committed(&kafka));
        running.kill_tree().unwrap();
    }
    let written = load.stop().unwrap();
    job.finish();
    job.assert_exact(&kafka, written);
}

#[test]
fn file_sinks_rescale_too() {
    const ROWS: u64 = 40_000;
    let mut job = Job::files(What::Windows, ROWS, 8000);
    for (parallelism, processes) in [(2, 1), (4, 2), (1, 1)] {
        job = job.layout(parallelism, processes);
        let mut running = job.start();
        running.wait_for_output("checkpoint complete", line::LONG).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(700));
        running.kill_tree().unwrap();
    }
    job = job.layout(3, 1);
    job.finish_files(ROWS);
}
