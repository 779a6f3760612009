//! Workers, supervisors and brokers are killed at random moments under load; the committed output is exactly right.
#![allow(clippy::unwrap_used)]
mod line;

use line::{Job, LONG, What, assert_input, generation, rows, topic, wait_until, workers};
use semel_testkit::{Kafka, KafkaOptions, Load, Random, Running, faults, scale};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a kill hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Worker,
    /// With it all its workers.
    Supervisor,
    Broker,
}

#[derive(Default)]
struct Kills {
    workers: u32,
    supervisors: u32,
    brokers: u32,
}

impl Kills {
    fn all(&self) -> u32 {
        self.workers + self.supervisors + self.brokers
    }
}

/// The job, its load, and the process that runs it now.
struct Storm {
    kafka: Arc<Kafka>,
    job: Job,
    running: Running,
    kills: Kills,
}

impl Storm {
    fn victim(random: &mut Random, brokers: u64) -> Victim {
        match (random.percent(brokers), random.below(10)) {
            (true, _) => Victim::Broker,
            (_, 0..8) => Victim::Worker,
            _ => Victim::Supervisor,
        }
    }

    /// Starts the job if it does not run, with another layout now and then.
    fn start_again(&mut self, random: &mut Random) {
        let layouts = [(2, 1), (2, 2), (3, 1), (4, 2), (1, 1)];
        (self.job.parallelism, self.job.processes) = *random.pick(&layouts).unwrap();
        self.running = self.job.start();
    }

    fn kill(&mut self, victim: Victim, random: &mut Random) {
        if let Some(status) = self.running.try_wait().unwrap() {
            if self.running.stderr().contains("see that the brokers run") {
                // A first start while the broker is away is refused; whoever runs the job starts it again.
                return self.start_again(random);
            }
            panic!("the job has ended by itself ({status}):\n{}", self.running.stderr());
        }
        match victim {
            Victim::Worker => {
                let Some(pid) = random.pick(&workers(&self.running)).copied() else { return };
                // It may have just ended.
                if faults::kill(pid).is_ok() {
                    self.kills.workers += 1;
                }
            }
            Victim::Supervisor => {
                self.running.kill().unwrap();
                self.kills.supervisors += 1;
                self.start_again(random);
            }
            Victim::Broker => {
                self.kafka.kill(1).unwrap();
                self.kills.brokers += 1;
                std::thread::sleep(Duration::from_millis(random.below(1500)));
                self.kafka.start_again(1).unwrap();
            }
        }
    }
}

/// `brokers`: so many of 100 kills hit the broker.
fn storm(what: What, seed: &str, kills: u32, brokers: u64) {
    let began = Instant::now();
    let mut random = Random::from_env(seed);
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::default()).unwrap());
    let orders = topic(&kafka, "orders");
    let load = Load::start(&kafka, &orders, 2000, rows(10_000_000));
    let job = Job::kafka(what, &kafka, &orders).layout(2, 2).set("execution.checkpointing.interval", "100ms");
    let job = job.set("log.level", "info");
    let running = job.start();
    let mut storm = Storm { kafka: kafka.clone(), job, running, kills: Kills::default() };
    let mut seen = 0;
    while storm.kills.all() < kills {
        // Most often while it runs, sometimes in the midst of a start.
        let pause = if random.percent(75) { random.range(300..1500) } else { random.range(0..300) };
        std::thread::sleep(Duration::from_millis(pause));
        let victim = Storm::victim(&mut random, brokers);
        storm.kill(victim, &mut random);
        if storm.kills.all().is_multiple_of(10) {
            // Kills one upon another must not keep it from ever getting on.
            wait_until("new rows are committed", LONG, || storm.job.committed(&kafka) > seen);
            seen = storm.job.committed(&kafka);
            println!(
                "{:6.1} s: {} kills, {seen} rows committed, generation {} of this supervisor",
                began.elapsed().as_secs_f64(),
                storm.kills.all(),
                generation(&storm.running)
            );
        }
    }
    let written = load.stop().unwrap();
    storm.running.kill_tree().unwrap();
    let ended = storm.job.finish();
    let Kills { workers, supervisors, brokers } = storm.kills;
    assert_input(&kafka, &orders, written);
    println!("the run that finishes it:\n{ended}");
    storm.job.assert_exact(&kafka, written);
    println!(
        "{what:?}: killed {workers} workers, {supervisors} supervisors, {brokers} brokers while {written} orders came: every result once, no transaction open ({:.0} s)",
        began.elapsed().as_secs_f64()
    );
}

#[test]
fn windows_survive_random_kills() {
    storm(What::Windows, "kills of the windows job", scale(10, 120), 10);
}

#[test]
fn a_filter_survives_random_kills() {
    storm(What::Filter, "kills of the filter job", scale(10, 120), 10);
}

#[test]
fn windows_survive_a_broker_that_dies_again_and_again() {
    storm(What::Windows, "kills of the broker", scale(3, 12), 90);
}

/// A stop ends with a last checkpoint, and with nothing behind it: readers of committed rows need not wait for the next start.
#[test]
fn a_stop_under_load_leaves_no_transaction_open() {
    let kafka = Arc::new(Kafka::start_with(KafkaOptions::default()).unwrap());
    for (what, parallelism, processes) in [(What::Filter, 2, 1), (What::Windows, 2, 2)] {
        let orders = topic(&kafka, "orders");
        let load = Load::start(&kafka, &orders, 4000, rows(10_000_000));
        let mut job = Job::kafka(what, &kafka, &orders).layout(parallelism, processes);
        let mut seen = 0;
        for _ in 0..6 {
            let mut running = job.start();
            job.wait_committed(&kafka, seen);
            running.terminate().unwrap();
            running.wait_success(LONG).unwrap();
            let open: Vec<_> = job.open(&kafka).into_iter().filter(|t| t.state == "Ongoing").collect();
            assert!(open.is_empty(), "{open:?}\n{}", running.stderr());
            assert!(running.stderr().contains("final checkpoint"), "{}", running.stderr());
            seen = job.committed(&kafka);
        }
        let written = load.stop().unwrap();
        job.finish();
        assert_input(&kafka, &orders, written);
        job.assert_exact(&kafka, written);
    }
}
