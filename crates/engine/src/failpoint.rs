//! Places at which a test can end or freeze a process on purpose, before and after the durable effect of every step of the
//! protocol.
//!
//! `SEMEL_FAILPOINT=<name>:<n>[:<action>]` acts when the point is passed for the n-th time in this process. Actions: `exit`
//! (default; exit code 77) and `stop` (SIGSTOP to itself, as if the machine had paused). `SEMEL_FAILPOINT_PROCESS=<index>`
//! restricts it to one worker process, and `SEMEL_FAILPOINT_GENERATION=<g>` to one generation.
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

struct Armed {
    name: String,
    nth: u64,
    stop: bool,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
static PASSED: AtomicU64 = AtomicU64::new(0);

fn parse(text: &str) -> Option<Armed> {
    let mut parts = text.split(':');
    let name = parts.next()?.to_string();
    let nth = parts.next().unwrap_or("1").parse().ok()?;
    Some(Armed { name, nth, stop: parts.next() == Some("stop") })
}

/// Called once, by a process that knows its index and generation. Before it, and without the variable, points do nothing.
pub fn arm(process: usize, generation: u64) {
    let only = |variable: &str, value: u64| std::env::var(variable).map_or(true, |v| v == value.to_string());
    let armed = std::env::var("SEMEL_FAILPOINT").ok().as_deref().and_then(parse);
    let armed = armed.filter(|_| only("SEMEL_FAILPOINT_PROCESS", process as u64) && only("SEMEL_FAILPOINT_GENERATION", generation));
    _ = ARMED.set(armed);
}

/// The process passes the point with this name.
pub fn passing(point: &str) {
    let Some(Some(armed)) = ARMED.get() else { return };
    if armed.name != point || PASSED.fetch_add(1, SeqCst) + 1 != armed.nth {
        return;
    }
    eprintln!("failpoint {point}");
    if armed.stop {
        _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        // Any thread may take the signal; this one must not go on in the moment before it is stopped with the others.
        std::thread::sleep(std::time::Duration::from_millis(200));
    } else {
        std::process::exit(77);
    }
}
