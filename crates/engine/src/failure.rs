//! Fail-stop: whatever fails ends the whole process at once, with a code that says why. Nothing unwinds, so that no `Drop`
//! of a half-finished sink runs; the supervisor starts the next generation from the newest checkpoint.
use crate::sink::ConnectorError;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Why a worker process ends before its job has finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// May go away with a restart.
    #[error("{0}")]
    Retryable(String),
    /// Needs somebody's help.
    #[error("{0}")]
    Fatal(String),
    /// Committed rows are missing at the target.
    #[error("rows are lost: {0}")]
    Lost(String),
    /// Another generation has taken over.
    #[error("fenced: {0}")]
    Fenced(String),
}

impl Failure {
    /// The exit code of a worker process (from `sysexits.h` where it has one).
    pub fn exit_code(&self) -> i32 {
        match self {
            Failure::Retryable(_) => 75,
            Failure::Fenced(_) => 76,
            Failure::Fatal(_) => 78,
            Failure::Lost(_) => 79,
        }
    }

    /// Puts words before the reason: where it happened.
    pub fn within(self, place: impl std::fmt::Display) -> Failure {
        match self {
            Failure::Retryable(why) => Failure::Retryable(format!("{place}: {why}")),
            Failure::Fatal(why) => Failure::Fatal(format!("{place}: {why}")),
            Failure::Lost(why) => Failure::Lost(format!("{place}: {why}")),
            Failure::Fenced(why) => Failure::Fenced(format!("{place}: {why}")),
        }
    }
}

impl From<ConnectorError> for Failure {
    fn from(error: ConnectorError) -> Failure {
        match error {
            ConnectorError::Retryable(why) => Failure::Retryable(why),
            ConnectorError::Fatal(why) => Failure::Fatal(why),
            ConnectorError::Lost(why) => Failure::Lost(why),
            ConnectorError::Fenced(why) => Failure::Fenced(why),
        }
    }
}

type Report = Box<dyn Fn(&Failure) + Send + Sync>;
static REPORT: OnceLock<Report> = OnceLock::new();
static FINISHED: AtomicBool = AtomicBool::new(false);
static FAILING: AtomicBool = AtomicBool::new(false);

/// What is told of a failure before the process ends: once per process, by its `main`. Must return soon.
pub fn on_failure(report: impl Fn(&Failure) + Send + Sync + 'static) {
    _ = REPORT.set(Box::new(report));
}

/// Ends the process at once. The first failure is reported; what follows from it is not.
pub fn fail(failure: Failure) -> ! {
    if FAILING.swap(true, SeqCst) {
        // Somebody else is reporting: leave them the time to do so, but not more.
        std::thread::sleep(std::time::Duration::from_millis(500));
        std::process::exit(failure.exit_code());
    }
    match REPORT.get() {
        Some(report) => report(&failure),
        None => eprintln!("{failure}"),
    }
    std::process::exit(failure.exit_code())
}

/// Timely reports a lost peer, and a bug shows itself, as a panic on whichever thread notices first: end the process there.
/// What breaks after [`finished`] is only connections that close.
pub fn exit_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !FINISHED.load(SeqCst) {
            fail(Failure::Retryable(format!("{info}")));
        }
        default(info);
    }));
}

/// This process' part of the job has ended well.
pub fn finished() {
    FINISHED.store(true, SeqCst);
}
