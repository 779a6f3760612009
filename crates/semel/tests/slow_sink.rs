//! A sink that accepts a tenth of what the source could give: memory stays bounded and checkpoints complete.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, What, rows, topic, wait_running, workers};
use semel_testkit::{Kafka, KafkaOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Peak resident memory of a process, in MiB.
fn peak_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn completed(log: &str) -> usize {
    log.matches("checkpoint complete").count()
}

#[test]
fn memory_is_bounded_and_checkpoints_complete() {
    const ROWS: u64 = 300_000;
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap());
    let orders = topic(&kafka, "orders");
    kafka.write(&orders, rows(ROWS)).unwrap();
    // The source reads past the proxy, as fast as it can: 300,000 rows of 90 bytes, about 27 MB.
    let job = Job::kafka(What::Filter, &kafka, &orders).param("in-brokers", kafka.internal_bootstrap()).param("bounded", 1);
    let mut job = job.set("execution.checkpointing.interval", "1s");
    let began = Instant::now();
    let mut running = job.start();
    running.wait_success(line::LONG).unwrap();
    let fast = began.elapsed();
    job.assert_exact(&kafka, ROWS);

    // The same with a sink that takes a tenth of it.
    let bytes: u64 =
        kafka.read_committed(job.out.as_ref().unwrap()).unwrap().iter().map(|r| r.value.as_ref().map_or(0, Vec::len) as u64).sum();
    let rate = (bytes as f64 / fast.as_secs_f64().max(1.0) / 10.0) as u64;
    job = Job::kafka(What::Filter, &kafka, &orders).param("in-brokers", kafka.internal_bootstrap()).param("bounded", 1);
    job = job.set("execution.checkpointing.interval", "1s");
    let mut running = job.start();
    wait_running(&mut running, 1);
    // Two connections of writers carry the rows.
    kafka.proxy(1).unwrap().slow((rate / 2).max(50_000));
    let slow = Instant::now();
    let (mut peak, mut seen) = (0, 0);
    while slow.elapsed() < Duration::from_secs(20) && running.try_wait().unwrap().is_none() {
        for pid in workers(&running) {
            peak = peak.max(std::panic::catch_unwind(|| peak_mb(pid)).unwrap_or(0));
        }
        seen = completed(&running.stderr());
        std::thread::sleep(Duration::from_millis(200));
    }
    println!(
        "the sink took {bytes} bytes in {fast:.1?} at full speed; at {rate} bytes/s: peak memory of the worker {peak} MiB, {seen} checkpoints complete in {:.0?}",
        slow.elapsed()
    );
    assert!(running.try_wait().unwrap().is_none(), "it was not slow: this shows nothing");
    assert!(seen >= 3, "checkpoints complete meanwhile:\n{}", running.stderr());
    assert!(peak > 0 && peak < 400, "{peak} MiB");
    assert!(!running.stderr().contains("generation 2 is running"), "it only waits:\n{}", running.stderr());
    kafka.proxy(1).unwrap().resume();
    running.wait_success(line::LONG).unwrap();
    job.assert_exact(&kafka, ROWS);
}
