//! A sink that accepts a tenth of what the source could give: memory stays bounded and checkpoints complete.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, What, wait_running, workers};
use semel_testkit::{Kafka, KafkaOptions, orders, scale};
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

/// Generated orders, as fast as they can be made, into Kafka.
fn job(kafka: &Kafka) -> Job {
    let job = Job::generated(What::Filter, kafka, 0).set("execution.checkpointing.interval", "500ms");
    // What stands before a barrier is what the next checkpoint waits for.
    job.set("semel.sink.buffer-size", "1mb")
}

fn written(kafka: &Kafka, job: &Job) -> u64 {
    kafka.offsets(job.out.as_ref().unwrap(), false).unwrap().iter().map(|p| p.end as u64).sum()
}

#[test]
fn memory_is_bounded_and_checkpoints_complete() {
    let kafka = Kafka::start_with(KafkaOptions::default().through_proxy()).unwrap();
    // At full speed.
    let fast = job(&kafka);
    let mut running = fast.start();
    wait_running(&mut running, 1);
    fast.wait_committed(&kafka, 0);
    let (before, began) = (written(&kafka, &fast), Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    let full = (written(&kafka, &fast) - before) as f64 / began.elapsed().as_secs_f64();
    running.kill_tree().unwrap();

    // With a sink that takes a tenth of it: two connections carry the rows, about 75 bytes each.
    let slow = job(&kafka);
    let mut running = slow.start();
    wait_running(&mut running, 1);
    kafka.proxy(1).unwrap().slow((full * 75.0 / 10.0 / 2.0) as u64);
    let began = Instant::now();
    let mut peaks = vec![];
    std::thread::sleep(Duration::from_secs(5));
    let before = (written(&kafka, &slow), completed(&running.stderr()), Instant::now());
    while began.elapsed() < Duration::from_secs(scale(25, 60)) {
        assert!(running.try_wait().unwrap().is_none(), "{}", running.stderr());
        peaks.push(workers(&running).into_iter().map(peak_mb).sum::<u64>());
        std::thread::sleep(Duration::from_millis(500));
    }
    let taken = (written(&kafka, &slow) - before.0) as f64 / before.2.elapsed().as_secs_f64();
    let (first, last) = (peaks[0], peaks[peaks.len() - 1]);
    let complete = completed(&running.stderr()) - before.1;
    println!(
        "the sink takes {taken:.0} of {full:.0} rows/s: peak memory of the worker {first} MiB after 5 s, {last} MiB after {:.0?}; {complete} checkpoints complete",
        began.elapsed()
    );
    assert!(taken < full / 3.0, "it is not slow: this shows nothing");
    assert!(complete >= 5, "checkpoints complete meanwhile:\n{}", running.stderr());
    assert!(last < 300 && last < first + 60, "memory grows: {peaks:?} MiB");
    assert!(!running.stderr().contains("generation 2 is running"), "it only waits:\n{}", running.stderr());
    running.kill_tree().unwrap();
    kafka.proxy(1).unwrap().resume();

    // What is committed is a prefix of each split, each order once.
    let committed = kafka.read_committed(slow.out.as_ref().unwrap()).unwrap();
    let mut ids: Vec<u64> = committed.iter().map(|r| orders::parse_filter(&r.value).unwrap().0).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an order is doubled");
}
