//! The command line: options that are wrong, `check`, `checkpoints`, `transactions`, `/metrics`.
#![allow(clippy::unwrap_used)]
mod common;

use common::Place;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn wrong_options_are_refused_before_anything_starts() {
    let place = Place::new();
    let refused = |arguments: &[&str], texts: &[&str]| {
        let mut all = vec!["run"];
        all.extend(arguments);
        let (code, _, log) = place.ask(&all);
        assert_eq!(code, 78, "{arguments:?}: {log}");
        assert!(texts.iter().all(|text| log.contains(text)), "{arguments:?}: {log}");
    };
    refused(&["--set", "execution.checkpointing.intervall=1s"], &["execution.checkpointing.interval\"", "--set"]);
    refused(&["--set", "heartbeat.timeout=soon"], &["heartbeat.timeout", "500 ms"]);
    refused(&["-p", "3", "--processes", "2"], &["multiple of 2"]);
    refused(&["--set", "heartbeat.interval=20s"], &["heartbeat.interval", "heartbeat.timeout"]);
    refused(&["--from", "7"], &["--from", "not retained"]);
    refused(&["--param", "rows=many"], &["building the job"]);
    assert!(
        !place.path("checkpoints/journal").exists() || std::fs::read_dir(place.path("checkpoints/journal")).unwrap().next().is_none(),
        "no trace in the journal"
    );
}

#[test]
fn check_says_what_is_wrong_and_run_refuses_it() {
    let place = Place::new();
    let (code, out, log) = place.ask(&["check"]);
    assert_eq!(code, 0, "{out}{log}");
    std::fs::remove_dir(place.path("out")).unwrap();
    let (code, out, _) = place.ask(&["check"]);
    assert!(code == 78 && out.contains("mkdir"), "{out}");
    let (code, _, log) = place.ask(&["run"]);
    assert!(code == 78 && log.contains("mkdir"), "{log}");
}

#[test]
fn a_start_that_nobody_answers_may_be_tried_again() {
    let place = Place::new();
    for example in ["orders_to_kafka", "windows_to_kafka"] {
        // Nobody listens at port 1, and all else is right.
        for (command, line) in [("run", "ERROR"), ("check", "ERROR")] {
            let output = place.example(example, &[command, "--param", "brokers=127.0.0.1:1"]).output().unwrap();
            let text = format!("{}{}", String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            assert_eq!(output.status.code(), Some(75), "{text}");
            assert!(text.contains(line) && text.contains("cannot connect to Kafka at 127.0.0.1:1"), "{text}");
        }
    }
}

#[test]
fn a_sink_whose_transactions_are_pending_cannot_be_left_out() {
    let place = Place::new();
    // Ends after the entry of checkpoint 2 is durable and before its transactions are committed.
    let mut command = place.command(&["run", "-p", "2", "--param", "rows=0", "--set", "restart-strategy.type=none"]);
    command.env("SEMEL_FAILPOINT", "after_journal:2");
    let (code, log) = common::Running::new(command).end();
    assert!(code == 75 && log.contains("failpoint after_journal"), "{log}");
    let (code, out, _) = place.ask(&["transactions", "list"]);
    assert!(code == 0 && !out.starts_with("0 transactions"), "{out}");
    let (code, _, log) = place.ask(&["run", "--param", "sink-uid=other"]);
    assert!(code == 78 && log.contains("\"lines\"") && log.contains("start once with the sink as it was"), "{log}");
    let journal = || std::fs::read_dir(place.path("checkpoints/journal")).unwrap().count();
    let entries = journal();
    let (code, out, _) = place.ask(&["check", "--param", "sink-uid=other"]);
    assert!(code == 78 && out.contains("ERROR    restore: ") && out.contains("start once with the sink as it was"), "{out}");
    let (code, out, _) = place.ask(&["check", "--from", "999"]);
    assert!(code == 78 && out.contains("--from") && out.contains("not retained"), "{out}");
    let (code, out, _) = place.ask(&["check"]);
    assert!(code == 0 && out.contains("ok       restore: from checkpoint 2"), "{out}");
    assert_eq!(journal(), entries, "it writes nothing");
    let files = place.committed().len();
    let (code, out, _) = place.ask(&["transactions", "commit"]);
    assert_eq!(code, 0, "{out}");
    assert!(place.committed().len() > files, "{out}");
    place.exact_rows(4);
}

#[test]
fn after_a_clean_stop_a_sink_may_be_renamed() {
    let place = Place::new();
    let mut job = place.run(&["-p", "2", "--param", "rows=0"]);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 1);
    job.signal(Signal::TERM);
    assert_eq!(job.end().0, 0);
    let (code, out, _) = place.ask(&["transactions", "list"]);
    assert!(code == 0 && out.starts_with("0 transactions"), "{out}");
    let (_, out, _) = place.ask(&["checkpoints", "list"]);
    assert!(out.contains(", final") && out.contains("generation 1 has ended"), "{out}");
    let mut job = place.run(&["-p", "2", "--param", "rows=0", "--param", "sink-uid=other"]);
    job.wait_for("is running");
    place.wait_committed(|f| f.0 == 2);
    // Committed by the start that follows a crash: the sink may go again.
    job.signal(Signal::KILL);
    job.wait();
    let (code, out, log) = place.ask(&["transactions", "commit", "--param", "sink-uid=other"]);
    assert_eq!(code, 0, "{out}{log}");
    let (code, out, _) = place.ask(&["transactions", "list"]);
    assert!(code == 0 && out.starts_with("0 transactions"), "{out}");
    let (code, log) = place.run(&["-p", "2", "--param", "rows=1"]).end();
    assert_eq!(code, 0, "{log}");
    place.exact_rows(4);
}

#[test]
fn checkpoints_are_listed_and_inspected() {
    let place = Place::new();
    let (code, log) = place.run(&["-p", "2", "--param", "rows=2000", "--set", "execution.checkpointing.num-retained=2"]).end();
    assert_eq!(code, 0, "{log}");
    let (code, out, _) = place.ask(&["checkpoints", "list"]);
    assert!(code == 0 && out.contains("generation 1 started from the beginning") && out.contains("final"), "{out}");
    let last = place.committed().last().unwrap().1;
    let (code, out, _) = place.ask(&["checkpoints", "inspect", &last.to_string()]);
    let entry: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, entry["sources"]["numbers"][0]["position"].as_i64()), (0, Some(2000)), "{out}");
    let (code, _, log) = place.ask(&["checkpoints", "inspect", "999"]);
    assert!(code == 78 && log.contains("there is no checkpoint 999"), "{log}");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn one_page_shows_the_metrics_of_all_processes() {
    let place = Place::new();
    let mut job = place.run(&["-p", "2", "--processes", "2", "--param", "rows=0"]);
    let line = job.wait_for("metrics at http://");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    job.wait_for("is running");
    assert!(get(&address, "/health").contains("200 OK"));
    let end = std::time::Instant::now() + common::LONG;
    loop {
        let page = get(&address, "/metrics");
        let sent = |worker: u32| {
            page.lines().any(|l| l.starts_with("numRecordsSend{") && l.contains(&format!("worker=\"{worker}\"")) && !l.ends_with(" 0"))
        };
        if sent(0) && sent(1) {
            assert!(page.contains("numberOfCompletedCheckpoints") && page.contains("numRestarts 0"), "{page}");
            break;
        }
        assert!(std::time::Instant::now() < end, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
    job.signal(Signal::TERM);
    assert_eq!(job.end().0, 0);
}
