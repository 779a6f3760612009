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
    refused(&["--param", "sink-uidd=x"], &["no parameter \"sink-uidd\"", "did you mean \"sink-uid\"?", "fail, fail-once, out, "]);
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
            let (code, text) = output(place.example(example, &[command, "--param", "brokers=127.0.0.1:1"]));
            assert_eq!(code, 75, "{text}");
            assert!(text.contains(line) && text.contains("cannot connect to Kafka at 127.0.0.1:1"), "{text}");
        }
    }
}

#[test]
fn a_sink_whose_transactions_are_pending_cannot_be_left_out() {
    let place = Place::new();
    // Stands still after the entry of checkpoint 2 is durable and before its transactions are committed. Everything dies there.
    let mut command = place.command(&["run", "-p", "2", "--param", "rows=0"]);
    command.env("SEMEL_FAILPOINT", "after_journal:2:stop");
    let mut job = common::Running::new(command);
    job.wait_for("failpoint after_journal");
    job.signal(Signal::KILL);
    job.wait();
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
    // Nobody needs the program's parameters for that, here `out`.
    let bare = |arguments: &[&str]| output(place.example("tiny_job", arguments));
    let (code, listed) = bare(&["checkpoints", "list"]);
    assert!(code == 0 && listed.contains("generation 1 started from the beginning"), "{listed}");
    assert_eq!(bare(&["checkpoints", "inspect", &last.to_string()]), (0, out));
    // Without the folder, only the program could know it; and `run` needs what it has always needed.
    let mut nowhere = place.example("tiny_job", &[]);
    nowhere = std::process::Command::new(nowhere.get_program());
    nowhere.args(["checkpoints", "list"]);
    let (code, text) = output(nowhere);
    assert!(code == 78 && text.contains("--param out=FOLDER is needed") && text.contains("--checkpoint-dir"), "{text}");
    let (code, text) = bare(&["run", "--param", "otu=x"]);
    assert!(
        code == 78 && text.contains("--param out=FOLDER is needed") && text.contains("\"otu\" is given where \"out\" is asked for"),
        "{text}"
    );
}

#[test]
fn unknown_variables_of_the_environment_are_warned_of_with_the_nearest() {
    let place = Place::new();
    let mut command = place.command(&["check"]);
    command.envs([("SEMEL_PARALELISM_DEFAULT", "2"), ("SEMEL_PARAM_ROSW", "1"), ("SEMEL_TEST_SCALE", "short"), ("SEMEL_CACHE", "/tmp")]);
    let (code, text) = output(command);
    assert_eq!(code, 0, "{text}");
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("environment variable")).collect();
    assert!(warnings.len() == 2 && warnings.iter().all(|line| line.contains(" WARN ")), "{text}");
    assert!(text.contains("did you mean SEMEL_PARALLELISM_DEFAULT?") && text.contains("did you mean SEMEL_PARAM_ROWS?"), "{text}");
}

#[test]
fn a_panic_in_a_closure_names_operator_row_and_message() {
    let place = Place::new();
    let out = format!("out={}", place.path("out").display());
    let arguments = ["run", "-p", "1", "--param", &out, "--param", "unknown=77", "--set", "restart-strategy.type=none"];
    let (code, text) = output(place.example("closures", &arguments));
    assert_eq!(code, 75, "{text}");
    let supervisor = text.lines().find(|line| line.starts_with("sv ") && line.contains("ERROR")).unwrap();
    // Of four splits the second: orders 1, 5, ... 77.
    for wanted in ["operator priced (map(", "checkpoint 1: row 20 of a batch of ", "closures.rs:", ": nobody knows the price of order 77"] {
        assert!(supervisor.contains(wanted), "{wanted:?}: {text}");
    }
    assert!(
        std::fs::read_dir(place.path("out")).unwrap().all(|f| f.unwrap().file_name().to_string_lossy().starts_with(['.', '_'])),
        "{text}"
    );
}

/// Exit code and everything that it has written.
fn output(mut command: std::process::Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn page_of(job: &mut common::Running) -> String {
    let line = job.wait_for("metrics at http://");
    line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
}

#[test]
fn checkpoints_are_counted_before_there_is_one() {
    let place = Place::new();
    let mut job = place.run(&["-p", "1", "--param", "rows=0", "--set", "execution.checkpointing.interval=1h"]);
    let address = page_of(&mut job);
    job.wait_for("is running");
    let index = get(&address, "/");
    assert!(index.contains("200 OK") && index.contains("<h1>tiny</h1>") && index.contains("running"), "{index}");
    assert!(index.contains("href=\"metrics\"") && index.contains("href=\"health\""), "{index}");
    let wanted = [
        "numberOfCompletedCheckpoints{worker=\"0\"} 0",
        "numberOfFailedCheckpoints{worker=\"0\"} 0",
        "lastCheckpointDuration{worker=\"0\"} -1",
    ];
    let end = std::time::Instant::now() + common::LONG;
    loop {
        let page = get(&address, "/metrics");
        if wanted.iter().all(|wanted| page.lines().any(|line| line == *wanted)) {
            break;
        }
        assert!(std::time::Instant::now() < end, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
    job.signal(Signal::TERM);
    assert_eq!(job.end().0, 0);
    // Started again, it knows the newest one.
    let mut job = place.run(&["-p", "1", "--param", "rows=0", "--set", "execution.checkpointing.interval=1h"]);
    let address = page_of(&mut job);
    let end = std::time::Instant::now() + common::LONG;
    while !get(&address, "/metrics").contains("lastCompletedCheckpointId{worker=\"0\"} 1\n") {
        assert!(std::time::Instant::now() < end, "{}", get(&address, "/metrics"));
        std::thread::sleep(Duration::from_millis(50));
    }
    job.signal(Signal::TERM);
    assert_eq!(job.end().0, 0);
}

#[test]
fn one_page_shows_the_metrics_of_all_processes() {
    let place = Place::new();
    let mut job = place.run(&["-p", "2", "--processes", "2", "--param", "rows=0"]);
    let address = page_of(&mut job);
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
