//! Processes are killed, frozen, doubled and stopped; the committed rows are exactly right.
#![allow(clippy::unwrap_used)]
mod common;

use common::{Place, kill, listens, lives, wait_gone};
use rustix::process::Signal;
use semel::cluster::auth::Secret;
use semel::cluster::frame;
use semel::cluster::handshake::{Hello, Purpose, Refusal, connect};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn a_bounded_job_finishes_with_every_row_once() {
    let place = Place::new();
    let (code, log) = place.run(&["-p", "2", "--param", "rows=5000"]).end();
    assert_eq!(code, 0, "{log}");
    assert_eq!(place.exact_rows(4), [5000; 4]);
    // Started again it has nothing to do.
    let files = place.committed();
    let (code, log) = place.run(&["-p", "2", "--param", "rows=5000"]).end();
    assert_eq!((code, place.committed()), (0, files), "{log}");
}

#[test]
fn killed_workers_are_replaced_without_waiting_for_heartbeats() {
    let place = Place::new();
    let mut job = place.run(&["-p", "2", "--param", "rows=0", "--set", "execution.checkpointing.interval=50ms"]);
    job.wait_for("is running");
    for generation in 1..=4 {
        place.wait_committed(|f| f.0 == generation);
        let workers = job.workers();
        assert_eq!(workers.len(), 1);
        let killed = Instant::now();
        kill(workers[0], Signal::KILL);
        job.wait_for("is running");
        let running = killed.elapsed();
        let committed = place.wait_committed(|f| f.0 == generation + 1) - killed;
        println!("generation {generation} killed: the next one runs after {running:?}, first new committed row after {committed:?}");
        // The pauses of the default strategy grow: 100 ms, 150 ms, 225 ms, 338 ms. Silence would be noticed after 10 s.
        assert!(running < Duration::from_secs(5), "{running:?}");
    }
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    assert!(place.exact_rows(4).iter().all(|n| *n > 0));
}

#[test]
fn sigterm_takes_a_final_checkpoint_and_the_next_start_goes_on_from_it() {
    let place = Place::new();
    // No checkpoint would come by itself.
    let options = ["-p", "2", "--param", "rows=0", "--set", "execution.checkpointing.interval=1h"];
    let mut before = vec![0; 4];
    for _ in 0..2 {
        let mut job = place.run(&options);
        job.wait_for("is running");
        std::thread::sleep(Duration::from_millis(300));
        let stopped = Instant::now();
        job.signal(Signal::TERM);
        let (code, log) = job.end();
        assert_eq!(code, 0, "{log}");
        assert!(log.contains("final checkpoint") && !log.contains("ERROR"), "{log}");
        assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
        let now = place.exact_rows(4);
        assert!(now.iter().zip(&before).all(|(now, before)| now > before), "{before:?} {now:?}");
        before = now;
    }
}

#[test]
fn a_frozen_worker_is_replaced_and_changes_nothing() {
    let place = Place::new();
    let options = ["-p", "2", "--param", "rows=0", "--set", "heartbeat.timeout=1s", "--set", "heartbeat.interval=100ms"];
    let mut job = place.run(&options);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    let worker = job.workers()[0];
    let frozen = Instant::now();
    kill(worker, Signal::STOP);
    let line = job.wait_for("worker process killed");
    assert!(line.contains(&worker.to_string()), "{line}");
    job.wait_for("is running");
    let took = frozen.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(4), "{took:?}");
    wait_gone(worker);
    place.wait_committed(|f| f.0 == 2);
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    place.exact_rows(4);
}

#[test]
fn one_frozen_process_of_two_is_replaced_with_its_peer() {
    let place = Place::new();
    let options =
        ["-p", "2", "--processes", "2", "--param", "rows=0", "--set", "heartbeat.timeout=1s", "--set", "heartbeat.interval=100ms"];
    let mut job = place.run(&options);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    let workers = job.workers();
    assert_eq!(workers.len(), 2);
    kill(workers[1], Signal::STOP);
    job.wait_for("is running");
    workers.into_iter().for_each(wait_gone);
    place.wait_committed(|f| f.0 == 2);
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    place.exact_rows(4);
}

#[test]
fn two_processes_finish_although_either_is_killed() {
    let place = Place::new();
    let mut job = place.run(&["-p", "4", "--processes", "2", "--param", "rows=20000"]);
    for generation in 1..=2 {
        job.wait_for("is running");
        place.wait_committed(|f| f.0 == generation);
        let workers = job.workers();
        assert_eq!(workers.len(), 2);
        kill(workers[generation as usize - 1], Signal::KILL);
        wait_gone(workers[2 - generation as usize]);
    }
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("killed (signal 9)"), "the cause is named:\n{log}");
    let lost = log.lines().filter(|line| line.contains("lost the link to a peer worker process"));
    assert!(lost.clone().all(|line| line.contains(" WARN ")) && !log.contains("panicked") && !log.contains("ERROR"), "{log}");
    println!("{} lines say that a peer is gone", lost.count());
    assert_eq!(place.exact_rows(4), [20000; 4]);
    let subtasks: std::collections::BTreeSet<u64> = place.committed().iter().map(|f| f.2).collect();
    assert_eq!(subtasks.len(), 4, "every subtask of both processes has written");
}

#[test]
fn workers_die_with_their_supervisor() {
    let place = Place::new();
    let options = ["-p", "2", "--processes", "2", "--param", "rows=20000"];
    let mut job = place.run(&options);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    let workers = job.workers();
    assert_eq!(workers.len(), 2);
    job.signal(Signal::KILL);
    workers.into_iter().for_each(wait_gone);
    let (code, log) = place.run(&options).end();
    assert_eq!(code, 0, "{log}");
    assert_eq!(place.exact_rows(4), [20000; 4]);
}

#[test]
fn workers_of_a_frozen_supervisor_end_by_themselves() {
    let place = Place::new();
    let mut job = place.run(&["-p", "1", "--param", "rows=0", "--set", "heartbeat.timeout=1s", "--set", "heartbeat.interval=100ms"]);
    job.wait_for("is running");
    let workers = job.workers();
    job.signal(Signal::STOP);
    wait_gone(workers[0]);
    job.signal(Signal::CONT);
    job.wait_for("generation 2 is running");
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    place.exact_rows(4);
}

#[test]
fn of_two_supervisors_one_runs_and_the_other_names_it() {
    let place = Place::new();
    let options = ["-p", "1", "--param", "rows=0"];
    let mut jobs = [place.run(&options), place.run(&options)];
    let end = Instant::now() + common::LONG;
    let loser = loop {
        if let Some(loser) = (0..2).find(|i| jobs[*i].child.try_wait().unwrap().is_some()) {
            break loser;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(10));
    };
    let winner = jobs[1 - loser].pid();
    let (status, log) = jobs[loser].wait();
    assert_eq!(status.code(), Some(76), "{log}");
    assert!(log.contains(&format!("process {winner}")), "it names {winner}:\n{log}");
    let generation = place.committed().last().map_or(0, |f| f.0);
    place.wait_committed(|f| f.0 >= generation);
    assert!(lives(winner));
    jobs[1 - loser].signal(Signal::TERM);
    let (status, log) = jobs[1 - loser].wait();
    assert_eq!(status.code(), Some(0), "{log}");
    place.exact_rows(4);
}

#[test]
fn a_worker_that_is_fenced_says_so_once() {
    let place = Place::new();
    let mut old = place.run(&["-p", "1", "--param", "rows=0"]);
    old.wait_for("is running");
    // Another supervisor's claim and nothing else: the worker meets it in the journal.
    let (code, _, log) = place.ask(&["transactions", "commit"]);
    assert_eq!(code, 0, "{log}");
    let (code, log) = old.end();
    assert_eq!(code, 76, "{log}");
    assert!(log.contains("fenced: ") && !log.contains("fenced: fenced: ") && log.matches("fenced").count() <= 3, "{log}");
}

#[test]
fn a_supervisor_that_was_replaced_stops_and_does_not_take_the_job_back() {
    let place = Place::new();
    let options = ["-p", "2", "--param", "rows=0"];
    let mut old = place.run(&options);
    old.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    let mut new = place.run(&options);
    let (code, log) = old.end();
    assert_eq!(code, 76, "{log}");
    assert!(log.contains("generation 2") && log.contains(&format!("process {}", new.pid())), "{log}");
    new.wait_for("is running");
    place.wait_committed(|f| f.0 == 2);
    new.signal(Signal::TERM);
    let (code, log) = new.end();
    assert_eq!(code, 0, "{log}");
    assert!(place.committed().iter().all(|f| f.0 <= 2), "no third generation");
    place.exact_rows(4);
}

#[test]
fn workers_that_die_while_their_generation_is_claimed_do_not_end_the_job() {
    let place = Place::new();
    let quick = "restart-strategy.exponential-delay.max-backoff=10ms";
    let quick = ["--set", quick, "--set", "restart-strategy.exponential-delay.initial-backoff=1ms"];
    let mut job = place.run(&[&["-p", "2", "--processes", "2", "--param", "rows=0"], &quick[..]].concat());
    job.wait_for("is running");
    let end = Instant::now() + Duration::from_secs(4);
    let (mut killed, mut pause) = (0, 0);
    while Instant::now() < end {
        if let Some(pid) = job.workers().last() {
            // One may have ended with the other.
            killed += usize::from(common::try_kill(*pid, Signal::KILL));
        }
        // Every moment of a start is hit.
        pause = (pause + 7) % 60;
        std::thread::sleep(Duration::from_millis(pause));
    }
    println!("{killed} worker processes killed");
    place.wait_more(&mut job, 1);
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert_eq!(code, 0, "{log}");
    place.exact_rows(4);
}

#[test]
fn the_same_state_goes_on_with_another_parallelism_and_process_count() {
    let place = Place::new();
    for (parallelism, processes) in [("2", "1"), ("4", "2"), ("3", "1"), ("1", "1")] {
        let mut job = place.run(&["-p", parallelism, "--processes", processes, "--param", "rows=0"]);
        job.wait_for("is running");
        place.wait_more(&mut job, 5);
        job.signal(Signal::TERM);
        let (code, log) = job.end();
        assert_eq!(code, 0, "{log}");
        place.exact_rows(4);
    }
}

#[test]
fn a_failure_restarts_under_the_strategy_until_it_gives_up() {
    let place = Place::new();
    let options = [
        "-p",
        "2",
        "--param",
        "rows=5000",
        "--param",
        "fail=1000",
        "--set",
        "restart-strategy.type=fixed-delay",
        "--set",
        "restart-strategy.fixed-delay.delay=10ms",
        "--set",
        "restart-strategy.fixed-delay.attempts=2",
    ];
    let (code, log) = place.run(&options).end();
    assert_eq!(code, 75, "{log}");
    assert_eq!(log.matches("is running").count(), 3, "{log}");
    assert!(log.contains("asked to fail at position 1000") && log.contains("fixed-delay.attempts = 2"), "{log}");
    // A panic in a connector says whose it was, and what it said.
    let panics = [&options[..4], &["--param", "panic=1000"], &["--set", "restart-strategy.type=none"]].concat();
    let (code, log) = place.run(&panics).end();
    let told = log.lines().any(|line| {
        line.starts_with("sv ") && line.contains(": source numbers subtask ") && line.contains("asked to panic at position 1000")
    });
    assert!(code == 75 && told, "{log}");
    // A failure that goes away.
    let once = format!("fail-once={}", place.path("once").display());
    let (code, log) = place.run(&["-p", "2", "--param", "rows=5000", "--param", "fail=1000", "--param", &once]).end();
    assert_eq!(code, 0, "{log}");
    assert_eq!(place.exact_rows(4), [5000; 4]);
}

/// What a process hears that answers the challenge although it does not know the secret.
fn force(port: u16, purpose: Purpose) -> Refusal {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let soon = || Instant::now() + Duration::from_secs(10);
    frame::write(&stream, &Hello::new(purpose, 1, "plan", 1), soon()).unwrap();
    let _: serde_json::Value = frame::read(&stream, frame::UNPROVEN_LIMIT, soon()).unwrap();
    frame::write(&stream, &"00".repeat(32), soon()).unwrap();
    frame::read::<Result<(), Refusal>>(&stream, frame::UNPROVEN_LIMIT, soon()).unwrap().unwrap_err()
}

#[test]
fn a_process_with_a_wrong_secret_is_refused_everywhere_and_the_job_goes_on() {
    let place = Place::new();
    let mut command = place.command(&["run", "-p", "2", "--processes", "2", "--param", "rows=0", "--set", "metrics.enabled=false"]);
    command.env("SEMEL_CLUSTER_SECRET", "the right one");
    let mut job = common::Running::new(command);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    let control = listens(job.pid());
    let data: Vec<u16> = job.workers().into_iter().flat_map(listens).collect();
    assert_eq!((control.len(), data.len()), (1, 2));
    for (port, purpose) in control.iter().map(|p| (*p, Purpose::Control)).chain(data.iter().map(|p| (*p, Purpose::Data))) {
        assert_eq!(force(port, purpose), Refusal::Secret);
        job.wait_for("wrong cluster secret");
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let hello = Hello::new(purpose, 1, "plan", 1);
        let error = connect(&stream, &Secret::new(b"a wrong one"), &hello, Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("does not know this job's cluster secret"), "{error}");
        // With the secret, but of another plan or generation.
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let error = connect(&stream, &Secret::new(b"the right one"), &hello, Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
    job.signal(Signal::TERM);
    let (code, log) = job.end();
    assert!(code == 0 && !log.contains("generation 2"), "{log}");
    assert!(!log.contains("the right one"), "a secret is never logged");
    place.exact_rows(4);
}
