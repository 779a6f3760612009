//! Runs the example `tiny_job` as a user would, and reads what it has committed.
#![allow(clippy::unwrap_used, dead_code)]
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing here takes longer on any machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Checkpoint folder and output folder of one job.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("out")).unwrap();
        Place { folder }
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.example("tiny_job", arguments);
        command.arg("--param").arg(format!("out={}", self.path("out").display()));
        command
    }
    /// A program of the examples, with the checkpoint folder.
    pub fn example(&self, name: &str, arguments: &[&str]) -> Command {
        let program = std::env::current_exe().unwrap();
        let program = program.parent().unwrap().parent().unwrap().join("examples").join(name);
        assert!(
            program.exists(),
            "{} is missing: run `cargo build -p semel --examples`, or `cargo test -p semel` without --test",
            program.display()
        );
        let mut command = Command::new(program);
        command.args(arguments).arg("--checkpoint-dir").arg(self.path("checkpoints"));
        command
    }
    /// Starts `run` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> Running {
        let mut all = vec!["run"];
        all.extend(arguments);
        Running::new(self.command(&all))
    }
    /// A command that ends by itself: exit code, standard output, standard error.
    pub fn ask(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.command(arguments).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    }
    /// Committed files, oldest first: generation, checkpoint, subtask.
    pub fn committed(&self) -> Vec<(u64, u64, u64)> {
        let mut files: Vec<_> = std::fs::read_dir(self.path("out")).unwrap().filter_map(|f| parts(&f.unwrap().path())).collect();
        files.sort_unstable();
        files
    }
    /// Asserts that the committed rows of each of `splits` splits are 0, 1, 2, ... once each; answers with how many each has.
    pub fn exact_rows(&self, splits: u64) -> Vec<i64> {
        let mut rows: BTreeMap<u64, Vec<i64>> = (0..splits).map(|s| (s, vec![])).collect();
        for file in std::fs::read_dir(self.path("out")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|e| e == "txt") {
                for line in std::fs::read_to_string(path).unwrap().lines() {
                    let (split, position) = line.split_once(' ').unwrap();
                    rows.get_mut(&split.parse().unwrap()).unwrap().push(position.parse().unwrap());
                }
            }
        }
        for (split, rows) in &mut rows {
            rows.sort_unstable();
            let wrong = rows.iter().enumerate().find(|(i, position)| *i as i64 != **position);
            assert_eq!(wrong, None, "split {split}: (place, row) of the first row that is lost or doubled");
        }
        rows.values().map(|r| r.len() as i64).collect()
    }
    /// Waits until a file is committed for which this holds.
    pub fn wait_committed(&self, wanted: impl Fn(&(u64, u64, u64)) -> bool) -> Instant {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            if self.committed().iter().any(&wanted) {
                return Instant::now();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("nothing of the kind was committed; there is {:?}", self.committed());
    }
    /// Waits until this many more files are committed than there are now; the job must not end before.
    pub fn wait_more(&self, job: &mut Running, files: usize) {
        let enough = self.committed().len() + files;
        let end = Instant::now() + LONG;
        while self.committed().len() < enough {
            assert!(Instant::now() < end && job.child.try_wait().unwrap().is_none(), "{}", job.wait().1);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn parts(path: &Path) -> Option<(u64, u64, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".txt")?;
    let mut numbers = name.split('_').skip(2).map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// A supervisor with its workers. Killed when dropped; its workers go with it.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    pub fn new(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| _ = send.send(line)));
        Running { child, lines, seen: vec![] }
    }
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }
    /// Waits for a log line that holds this text, and answers with it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + LONG;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{text:?} was not logged in time:\n{}", self.seen.join("\n"))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{text:?} was not logged:\n{}", self.seen.join("\n"))
                }
            }
        }
    }
    /// Pids of the worker processes.
    pub fn workers(&self) -> Vec<i32> {
        children(self.pid())
    }
    /// Waits until it has ended by itself: exit code and everything that it has logged.
    pub fn end(mut self) -> (i32, String) {
        let (status, log) = self.wait();
        (status.code().unwrap_or_else(|| panic!("{status}:\n{log}")), log)
    }
    pub fn wait(&mut self) -> (ExitStatus, String) {
        let end = Instant::now() + LONG;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > end => {
                    self.seen.extend(self.lines.try_iter());
                    panic!("it did not end:\n{}", self.seen.join("\n"))
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
            self.seen.push(line);
        }
        (status, self.seen.join("\n"))
    }
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

pub fn kill(pid: i32, signal: Signal) {
    assert!(try_kill(pid, signal), "process {pid} is gone");
}

/// Whether the process was still there.
pub fn try_kill(pid: i32, signal: Signal) -> bool {
    match kill_process(Pid::from_raw(pid).unwrap(), signal) {
        Ok(()) => true,
        Err(rustix::io::Errno::SRCH) => false,
        Err(error) => panic!("process {pid}: {error}"),
    }
}

/// Whether a process lives (a zombie does not).
pub fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|s| !matches!(s.rsplit(')').next().and_then(|rest| rest.trim().chars().next()), Some('Z' | 'X')))
}

/// Waits until a process is gone.
pub fn wait_gone(pid: i32) {
    let end = Instant::now() + LONG;
    while lives(pid) {
        assert!(Instant::now() < end, "process {pid} still lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ports of 127.0.0.1 at which a process listens.
pub fn listens(pid: i32) -> Vec<u16> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| {
            Some(std::fs::read_link(fd.ok()?.path()).ok()?.to_string_lossy().strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    // Columns: number, local address:port, remote, state (0A: listens), ..., inode at 9.
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|r| r[3] == "0A" && sockets.iter().any(|s| s == r[9]))
        .map(|r| u16::from_str_radix(r[1].split(':').nth(1).unwrap(), 16).unwrap())
        .collect()
}

fn children(parent: i32) -> Vec<i32> {
    let mut found: Vec<i32> = std::fs::read_dir(format!("/proc/{parent}/task"))
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok())
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .filter(|pid| lives(*pid))
        .collect();
    found.sort_unstable();
    found
}
