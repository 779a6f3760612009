//! Apache's Java client, kept running: one JVM per test process answers all requests, concurrently.
//!
//! The other side is `tools/java/KafkaTool.java`, which documents the operations and the JSON lines.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::error::tail;
use crate::guardian::{self, Folder};
use crate::{Error, Result};

/// Where the jars of Apache Kafka and the compiled tool are.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The folder of jars.
    pub lib: PathBuf,
    /// The folder of the compiled tool.
    pub classes: PathBuf,
}

impl Installation {
    /// Finds the installation, or makes it with `./dev kafka` (needs a JDK 17, Maven and the network once).
    pub fn find() -> Result<Self> {
        static FOUND: OnceLock<Installation> = OnceLock::new();
        static FINDING: Mutex<()> = Mutex::new(());
        let _one = FINDING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = FOUND.get() {
            return Ok(found.clone());
        }
        let dev = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev");
        let output =
            Command::new(&dev).arg("kafka").stdin(Stdio::null()).output().map_err(Error::io(format!("running {}", dev.display())))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let mut lines = said.lines();
        match (output.status.success(), lines.next(), lines.next()) {
            (true, Some(lib), Some(classes)) => {
                let found = Self { lib: lib.into(), classes: classes.into() };
                Ok(FOUND.get_or_init(|| found).clone())
            }
            _ => Err(Error::Setup(format!("`./dev kafka` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr)))),
        }
    }
}

/// The `java` to run: `$JAVA_HOME/bin/java`, else the one in the path.
pub(crate) fn java() -> Command {
    match std::env::var_os("JAVA_HOME") {
        Some(home) => Command::new(Path::new(&home).join("bin/java")),
        None => Command::new("java"),
    }
}

/// An answer of the tool: the rows (if the operation has any), then one object.
#[derive(Debug)]
pub struct Reply {
    /// Batches of rows, each a JSON array of arrays.
    pub rows: Vec<Box<RawValue>>,
    /// The closing object.
    pub ok: Value,
}

#[derive(Deserialize)]
struct Line {
    id: u64,
    rows: Option<Box<RawValue>>,
    ok: Option<Value>,
    error: Option<String>,
}

type Waiting = Arc<Mutex<HashMap<u64, Sender<Line>>>>;

/// The running JVM.
struct Connection {
    child: Child,
    stdin: ChildStdin,
    waiting: Waiting,
    log: PathBuf,
    _dir: Folder,
}

impl Connection {
    fn start() -> Result<Self> {
        let found = Installation::find()?;
        let dir = Folder::new("java")?;
        let log = dir.path().join("tool.log");
        let file = std::fs::File::create(&log).map_err(Error::io(format!("making {}", log.display())))?;
        let class_path = format!("{}/*:{}", found.lib.display(), found.classes.display());
        let mut command = java();
        command
            .args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
            .args(["-cp", &class_path, "KafkaTool", "serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file);
        let mut child = guardian::spawn(&mut command)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Setup("the Java tool has no pipes".into()));
        };
        let waiting = Waiting::default();
        let readers = Arc::clone(&waiting);
        std::thread::spawn(move || {
            for line in BufReader::with_capacity(1 << 20, stdout).lines() {
                let Ok(line) = line else { break };
                let Ok(line) = serde_json::from_str::<Line>(&line) else {
                    break;
                };
                let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
                let last = line.rows.is_none();
                let id = line.id;
                if let Some(to) = readers.get(&id) {
                    let _ = to.send(line);
                }
                if last {
                    readers.remove(&id);
                }
            }
            // Those who wait are told by the end of their channels.
            readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        });
        Ok(Self { child, stdin, waiting, log, _dir: dir })
    }

    fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        guardian::ended(self.child.id());
    }
}

static CONNECTION: Mutex<Option<Connection>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn submit(op: &str, mut request: Value) -> Result<(Receiver<Line>, PathBuf, Waiting, u64)> {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    request["id"] = json!(id);
    request["op"] = json!(op);
    let mut text = request.to_string();
    text.push('\n');
    let mut slot = CONNECTION.lock().unwrap_or_else(PoisonError::into_inner);
    if !slot.as_mut().is_some_and(Connection::alive) {
        *slot = None;
        *slot = Some(Connection::start()?);
    }
    let Some(connection) = slot.as_mut() else {
        return Err(Error::Setup("the Java tool did not start".into()));
    };
    let (to, from) = channel();
    connection.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, to);
    connection.stdin.write_all(text.as_bytes()).map_err(Error::io(format!("asking the Java tool to {op}")))?;
    Ok((from, connection.log.clone(), Arc::clone(&connection.waiting), id))
}

/// Runs one operation of the tool.
///
/// `request` is an object with `bootstrap` and the operation's fields. `timeout` is passed on as `timeout_ms`; the
/// tool gets 15 s more to answer.
pub fn call(op: &str, mut request: Value, timeout: Duration) -> Result<Reply> {
    request["timeout_ms"] = json!(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    let (from, log, waiting, id) = submit(op, request)?;
    let limit = timeout + Duration::from_secs(15);
    let deadline = Instant::now() + limit;
    let mut rows = Vec::new();
    loop {
        match from.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Line { rows: Some(batch), .. }) => rows.push(batch),
            Ok(Line { error: Some(message), .. }) => {
                return Err(Error::Tool { op: op.into(), message });
            }
            Ok(Line { ok, .. }) => {
                return Ok(Reply { rows, ok: ok.unwrap_or(Value::Null) });
            }
            Err(RecvTimeoutError::Timeout) => {
                waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
                return Err(Error::Deadline {
                    what: format!("the answer of the Java tool to {op}"),
                    after: limit,
                    hint: format!("its log {}: {}", log.display(), tail(&log, 5)),
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Tool { op: op.into(), message: format!("the tool ended: {}", tail(&log, 5)) });
            }
        }
    }
}
