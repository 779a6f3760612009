use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::tail;
use crate::faults::{self, ProcessInfo, signal};
use crate::guardian::{self, Folder};
use crate::{Error, Netns, Result};

/// A program to run: what, with which arguments and environment.
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    path: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    cwd: Option<PathBuf>,
    netns: Option<String>,
}

impl Program {
    /// A program file.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_name().map_or_else(|| "program".into(), |name| name.to_string_lossy().into_owned());
        Self { name, path, args: Vec::new(), env: Vec::new(), cwd: None, netns: None }
    }

    /// An example of a package of this workspace, in the profile of the running test.
    ///
    /// It is built first (once per test process), so it is never older than the source; `SEMEL_TEST_NO_BUILD` set
    /// to anything takes what is there.
    pub fn example(package: &str, name: &str) -> Result<Self> {
        Ok(Self::path(built(package, "--example", name)?))
    }

    /// A binary of a package of this workspace, as [`example`](Self::example).
    pub fn binary(package: &str, name: &str) -> Result<Self> {
        Ok(Self::path(built(package, "--bin", name)?))
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Takes a variable out of the environment.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// Sets the working folder; the default is a temporary one.
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    /// Runs it inside a network namespace.
    pub fn in_netns(mut self, netns: &Netns) -> Self {
        self.netns = Some(netns.name().to_owned());
        self
    }

    /// Starts it as leader of a process group of its own, with its output in files.
    pub fn start(&self) -> Result<Running> {
        let dir = Folder::new("run")?;
        let create = |name: &str| {
            let path = dir.path().join(name);
            File::create(&path).map_err(Error::io(format!("making {}", path.display())))
        };
        let mut command = match &self.netns {
            None => Command::new(&self.path),
            Some(name) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", name]).arg(&self.path);
                ip
            }
        };
        command.args(&self.args).current_dir(self.cwd.as_deref().unwrap_or(dir.path()));
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::null()).stdout(create("stdout.log")?).stderr(create("stderr.log")?);
        let child = guardian::spawn(&mut command)?;
        Ok(Running { name: self.name.clone(), child, status: None, began: Instant::now(), dir })
    }
}

/// A started program. Dropping it kills its whole process tree.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    began: Instant,
    dir: Folder,
}

impl Running {
    /// Id of the process that was started (of its process group, too).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time since the start.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// What it has printed on stdout.
    pub fn stdout(&self) -> String {
        self.read("stdout.log")
    }

    /// What it has printed on stderr.
    pub fn stderr(&self) -> String {
        self.read("stderr.log")
    }

    /// The folder of `stdout.log` and `stderr.log`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join(name)).unwrap_or_default()).into_owned()
    }

    /// The exit status, if the started process has ended (its children may live).
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(Error::io(format!("waiting for {}", self.name)))?;
        }
        Ok(self.status)
    }

    /// Waits for the end of the started process. After the deadline it still runs, and an error tells its log.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.deadline(&format!("the end of {}", self.name), within));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As [`wait`](Self::wait); an exit code other than 0 is an error that shows the end of the log.
    pub fn wait_success(&mut self, within: Duration) -> Result<()> {
        let status = self.wait(within)?;
        if status.success() {
            return Ok(());
        }
        let log = self.dir.path().join("stderr.log");
        Err(Error::Ended { what: self.name.clone(), status: status.to_string(), tail: tail(&log, 30), log })
    }

    /// Waits until stdout or stderr holds a text.
    pub fn wait_for_output(&mut self, text: &str, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            // Asked before the look at the output: what it printed last is there.
            let ended = self.try_wait()?;
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return Ok(());
            }
            if let Some(status) = ended {
                let log = self.dir.path().join("stderr.log");
                let what = format!("{} (before it printed {text:?})", self.name);
                return Err(Error::Ended { what, status: status.to_string(), tail: tail(&log, 30), log });
            }
            if Instant::now() > deadline {
                return Err(self.deadline(&format!("{text:?} in the output of {}", self.name), within));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn deadline(&self, what: &str, after: Duration) -> Error {
        let log = self.dir.path().join("stderr.log");
        let hint = format!("{}: {}", log.display(), tail(&log, 20));
        Error::Deadline { what: what.into(), after, hint }
    }

    /// The started process and everything below it.
    pub fn tree(&self) -> Vec<ProcessInfo> {
        faults::tree(self.pid())
    }

    /// Everything below the started process.
    pub fn children(&self) -> Vec<ProcessInfo> {
        self.tree().into_iter().filter(|p| p.pid != self.pid()).collect()
    }

    /// SIGKILL to the started process alone; returns when it is gone.
    pub fn kill(&mut self) -> Result<()> {
        if self.try_wait()?.is_none() {
            self.child.kill().map_err(Error::io(format!("killing {}", self.name)))?;
            self.status = Some(self.child.wait().map_err(Error::io(format!("waiting for {}", self.name)))?);
        }
        Ok(())
    }

    /// SIGTERM to the started process alone.
    pub fn terminate(&mut self) -> Result<()> {
        match self.try_wait()? {
            Some(_) => Ok(()),
            None => signal(self.pid(), Signal::TERM),
        }
    }

    /// SIGSTOP to the whole tree.
    pub fn pause_tree(&self) -> Result<()> {
        self.signal_tree(Signal::STOP)
    }

    /// SIGCONT to the whole tree.
    pub fn resume_tree(&self) -> Result<()> {
        self.signal_tree(Signal::CONT)
    }

    fn signal_tree(&self, what: Signal) -> Result<()> {
        for process in self.tree() {
            match signal(process.pid, what) {
                // It has ended since the list was made.
                Err(_) if faults::process(process.pid).is_none_or(|p| p.state == 'Z') => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// SIGKILL to the whole tree, again until nothing of it is left.
    pub fn kill_tree(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        // The parent first: it must not start new children.
        self.kill()?;
        loop {
            let left = self.tree();
            if left.is_empty() {
                guardian::ended(self.pid());
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.deadline(&format!("the end of {left:?}"), Duration::from_secs(20)));
            }
            self.signal_tree(Signal::KILL)?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill_tree();
        if std::thread::panicking() {
            let log = self.dir.path().join("stderr.log");
            eprintln!("{}, end of its stderr:\n{}", self.name, tail(&log, 40));
        }
    }
}

/// The folder of finished binaries (`target/debug`), from the path of the test itself (`target/debug/deps/x-1a2b`).
fn profile_dir(test: &Path) -> Option<PathBuf> {
    let dir = test.parent()?;
    let dir = if dir.ends_with("deps") || dir.ends_with("examples") { dir.parent()? } else { dir };
    Some(dir.to_owned())
}

fn built(package: &str, kind: &str, name: &str) -> Result<PathBuf> {
    static BUILT: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let built = built.get_or_insert_default();
    let key = format!("{package} {kind} {name}");
    if let Some(path) = built.get(&key) {
        return Ok(path.clone());
    }
    let test = std::env::current_exe().map_err(Error::io("finding the test's own path"))?;
    let Some(dir) = profile_dir(&test) else {
        return Err(Error::Setup(format!("{} is not in a target folder of cargo", test.display())));
    };
    let path = if kind == "--example" { dir.join("examples").join(name) } else { dir.join(name) };
    if std::env::var_os("SEMEL_TEST_NO_BUILD").is_none() {
        let profile = match dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let target = dir.parent().unwrap_or(&dir);
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            // Of the whole workspace, as the tests: a package alone has other features, and all it depends on would be built again.
            .args(["build", "--quiet", "--workspace", kind, name, "--profile", profile])
            .arg("--target-dir")
            .arg(target)
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io("running cargo build"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Setup(format!("building {key} failed: {said}")));
        }
    }
    if !path.exists() {
        return Err(Error::Setup(format!("{} does not exist: build {key} first", path.display())));
    }
    built.insert(key, path.clone());
    Ok(path)
}
