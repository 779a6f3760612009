//! The kit's own ways to break things: each does what it says, and nothing outlives a test.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use semel_testkit::{Cut, Direction, Netns, Program, Proxy, faults};

/// Answers every byte with the same one, on any number of connections, until the test process ends.
fn echo(host: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// A connection may already be refused or reset while it is made.
fn refused(to: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&to, LONG) {
        Err(_) => true,
        Ok(mut stream) => answered(&mut stream, b"x", LONG).is_err(),
    }
}

fn answered(stream: &mut TcpStream, text: &[u8], within: Duration) -> std::io::Result<()> {
    stream.write_all(text)?;
    receive(stream, text, within)
}

fn receive(stream: &mut TcpStream, text: &[u8], within: Duration) -> std::io::Result<()> {
    stream.set_read_timeout(Some(within))?;
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(back, text);
    Ok(())
}

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(10);

#[test]
fn a_stalled_proxy_loses_nothing_and_closes_nothing() {
    let proxy = Proxy::start(echo([127, 0, 0, 1].into())).unwrap();
    let mut stream = connect(proxy.address());
    answered(&mut stream, b"before", LONG).unwrap();
    proxy.stall();
    let stalled = answered(&mut stream, b"held", SHORT).unwrap_err();
    assert_eq!(stalled.kind(), ErrorKind::WouldBlock, "stalled, not closed");
    let mut new = connect(proxy.address());
    assert_eq!(answered(&mut new, b"new", SHORT).unwrap_err().kind(), ErrorKind::WouldBlock);
    proxy.resume();
    receive(&mut stream, b"held", LONG).unwrap();
    receive(&mut new, b"new", LONG).unwrap();
    assert_eq!((proxy.accepted(), proxy.open()), (2, 2));
}

#[test]
fn answers_alone_can_be_held_back() {
    let proxy = Proxy::start(echo([127, 0, 0, 1].into())).unwrap();
    let mut stream = connect(proxy.address());
    answered(&mut stream, b"x", LONG).unwrap();
    proxy.stall_only(Direction::ToClient);
    assert!(answered(&mut stream, b"request", SHORT).is_err());
    assert_eq!(proxy.passed(), (8, 1), "the server has the request, the client no answer");
    proxy.drop_connections(Cut::Close);
    assert_eq!(stream.read(&mut [0; 9]).unwrap(), 0, "the answer is lost");
    proxy.resume();
    answered(&mut connect(proxy.address()), b"again", LONG).unwrap();
}

#[test]
fn a_cut_proxy_resets_or_closes_until_it_is_resumed() {
    let proxy = Proxy::start(echo([127, 0, 0, 1].into())).unwrap();
    let mut stream = connect(proxy.address());
    answered(&mut stream, b"x", LONG).unwrap();
    proxy.cut(Cut::Reset);
    assert_eq!(stream.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(refused(proxy.address()));
    proxy.resume();
    let mut stream = connect(proxy.address());
    answered(&mut stream, b"y", LONG).unwrap();
    proxy.cut(Cut::Close);
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn the_ends_of_a_connection_are_passed_on() {
    let proxy = Proxy::start(echo([127, 0, 0, 1].into())).unwrap();
    let mut stream = connect(proxy.address());
    stream.write_all(b"last words").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words");
    let deadline = Instant::now() + LONG;
    while proxy.open() > 0 {
        assert!(Instant::now() < deadline, "the proxy keeps a connection that has ended");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    proxy.set_upstream(nobody);
    assert!(refused(proxy.address()));
}

#[test]
fn a_slow_proxy_keeps_to_its_rate() {
    let proxy = Proxy::start(echo([127, 0, 0, 1].into())).unwrap();
    let mut stream = connect(proxy.address());
    proxy.slow(100_000);
    let began = Instant::now();
    answered(&mut stream, &vec![7; 60_000], LONG).unwrap();
    let took = began.elapsed();
    assert!(took > SHORT && took < Duration::from_secs(6), "60 kB at 100 kB/s took {took:?}");
}

#[test]
fn a_program_is_watched_frozen_and_killed_with_its_children() {
    let script = "echo started; sleep 300 & sleep 301 & wait";
    let mut run = Program::path("bash").args(["-c", script]).env("X", "1").start().unwrap();
    run.wait_for_output("started", LONG).unwrap();
    let deadline = Instant::now() + LONG;
    while run.children().len() < 2 {
        assert!(Instant::now() < deadline, "{:?}", run.tree());
    }
    let pids: Vec<u32> = run.tree().iter().map(|p| p.pid).collect();
    let states = || pids.iter().map(|pid| faults::process(*pid).unwrap().state).collect::<String>();
    run.pause_tree().unwrap();
    let deadline = Instant::now() + LONG;
    while states() != "TTT" {
        assert!(Instant::now() < deadline, "{}", states());
    }
    run.resume_tree().unwrap();
    assert!(run.wait(Duration::from_millis(50)).is_err(), "it still runs");
    run.kill().unwrap();
    assert_eq!(run.tree().len(), 2, "orphans are still found");
    run.kill_tree().unwrap();
    assert!(run.tree().is_empty());
}

#[test]
fn exit_codes_and_output_are_told() {
    let mut run = Program::path("bash").args(["-c", "echo out; echo why >&2; exit 3"]).start().unwrap();
    assert_eq!(run.wait(LONG).unwrap().code(), Some(3));
    assert_eq!((run.stdout().as_str(), run.stderr().as_str()), ("out\n", "why\n"));
    let error = run.wait_success(LONG).unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.contains("why"), "{error}");
    let error = run.wait_for_output("never", LONG).unwrap_err().to_string();
    assert!(error.contains("never") && error.contains("why"), "{error}");
    let mut run = Program::path("sleep").arg("300").start().unwrap();
    run.terminate().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&run.wait(LONG).unwrap()), Some(15));
}

/// The inner half of the next test: starts a process and waits to be killed.
#[test]
fn inner_test_process() {
    if std::env::var_os("SEMEL_TESTKIT_INNER").is_none() {
        return;
    }
    let run = Program::path("bash").args(["-c", "sleep 302 & sleep 302"]).start().unwrap();
    println!("inner {} {}", run.pid(), run.dir().display());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn nothing_outlives_a_killed_test_process() {
    let me = std::env::current_exe().unwrap();
    let mut inner =
        Program::path(me).args(["--exact", "inner_test_process", "--nocapture"]).env("SEMEL_TESTKIT_INNER", "1").start().unwrap();
    inner.wait_for_output("inner ", LONG).unwrap();
    let line = inner.stdout().lines().find_map(|l| l.split_once("inner ").map(|(_, rest)| rest.to_owned())).unwrap();
    let (pid, dir) = line.split_once(' ').unwrap();
    let pid: u32 = pid.parse().unwrap();
    assert!(faults::process(pid).is_some() && std::path::Path::new(dir).exists());
    inner.kill().unwrap();
    let deadline = Instant::now() + LONG;
    while !faults::tree(pid).is_empty() || std::path::Path::new(dir).exists() {
        assert!(Instant::now() < deadline, "left behind: {:?} {dir}", faults::tree(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn in_a_partition_packets_vanish_and_connections_stay() {
    let Some(netns) = Netns::try_new() else {
        return;
    };
    let server = echo(netns.host().into());
    // A client inside: sends a line each 50 ms, prints what comes back.
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; i=0; (while read -r line <&3; do echo \"got $line\"; done; echo closed) & \
         while echo $i >&3; do i=$((i+1)); sleep 0.05; done; echo failed",
        server.ip(),
        server.port()
    );
    let mut client = Program::path("bash").args(["-c", &script]).in_netns(&netns).start().unwrap();
    client.wait_for_output("got 3\n", LONG).unwrap();
    netns.cut().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before = client.stdout();
    std::thread::sleep(Duration::from_millis(1000));
    assert_eq!(client.stdout(), before, "nothing passes, and nobody is told");
    netns.heal().unwrap();
    let next = format!("got {}\n", before.lines().count() + 10);
    client.wait_for_output(&next, Duration::from_secs(20)).unwrap();
    assert!(!client.stdout().contains("closed") && !client.stdout().contains("failed"));
}

#[test]
fn an_example_of_the_workspace_is_built_and_run() {
    let program = Program::example("semel-testkit", "kafka").unwrap();
    let mut run = program.start().unwrap(); // its stdin is at the end, so it stops as soon as the broker is up
    run.wait_success(Duration::from_secs(120)).unwrap();
    assert!(run.stdout().starts_with("bootstrap=127.0.0.1:"), "{}", run.stdout());
    assert!(run.tree().is_empty());
    let mut run = program.arg("2").start().unwrap();
    assert!(run.wait_success(LONG).unwrap_err().to_string().contains("not 2"));
    assert!(Program::example("semel-testkit", "no-such-example").is_err());
}
