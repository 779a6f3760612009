//! Fail-stop: whatever fails ends the whole process at once, with a code that says why. Nothing unwinds, so that no `Drop`
//! of a half-finished sink runs; the supervisor starts the next generation from the newest checkpoint. Only a panic in an
//! operator's work on a batch ([`caught`]) unwinds, as far as that operator, which says where it was and then ends the process as well.
use crate::sink::ConnectorError;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Why a worker process ends before its job has finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// May go away with a restart.
    #[error("{0}")]
    Retryable(String),
    /// Another worker process of the generation is gone, which only follows from its failure.
    #[error("{0}")]
    PeerLost(String),
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
            Failure::Retryable(_) | Failure::PeerLost(_) => 75,
            Failure::Fenced(_) => 76,
            Failure::Fatal(_) => 78,
            Failure::Lost(_) => 79,
        }
    }

    /// Puts words before the reason: where it happened.
    pub fn within(self, place: impl std::fmt::Display) -> Failure {
        match self {
            Failure::Retryable(why) => Failure::Retryable(format!("{place}: {why}")),
            Failure::PeerLost(why) => Failure::PeerLost(format!("{place}: {why}")),
            Failure::Fatal(why) => Failure::Fatal(format!("{place}: {why}")),
            Failure::Lost(why) => Failure::Lost(format!("{place}: {why}")),
            Failure::Fenced(why) => Failure::Fenced(format!("{place}: {why}")),
        }
    }

    /// What a panic means. Timely's communication threads report a broken link by one, with these words.
    fn of_panic(at: &str, message: &str) -> Failure {
        match message.strip_prefix("timely communication error: ") {
            Some(why) => Failure::PeerLost(format!("lost the link to a peer worker process: {why}")),
            None => Failure::Retryable(panicked(at, message)),
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

fn panicked(at: &str, message: &str) -> String {
    format!("panicked at {at}: {message}")
}

/// Timely reports a lost peer, and a bug shows itself, as a panic on whichever thread notices first: end the process there, unless
/// it is [`caught`]. What breaks after [`finished`] is only connections that close.
pub fn exit_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let (at, message) = parts(info);
        if cfg!(panic = "unwind") && CATCHER.with_borrow_mut(|catcher| catcher.tell(&at, message)) {
            return;
        }
        if !FINISHED.load(SeqCst) {
            let failure = Failure::of_panic(&at, message);
            // Connectors work in tasks; nothing of theirs may unwind.
            fail(match PLACE.try_with(String::clone) {
                Ok(place) => failure.within(place),
                Err(_) => failure,
            });
        }
        default(info);
    }));
}

fn parts<'a>(info: &'a PanicHookInfo<'_>) -> (String, &'a str) {
    let at = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    (at, message_of(info.payload()))
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("(without a message)")
}

/// Whether somebody on this thread waits for a panic, and what it was.
#[derive(Default)]
enum Catcher {
    #[default]
    Nobody,
    Waiting,
    Told(String),
}

impl Catcher {
    /// `false`: nobody waits for it. A second panic while the first one unwinds ends the process.
    fn tell(&mut self, at: &str, message: &str) -> bool {
        let waits = matches!(self, Catcher::Waiting);
        if waits {
            *self = Catcher::Told(panicked(at, message));
        }
        waits
    }
}

tokio::task_local! {
    /// Where a task works, for the report of a panic in it: `sink orders subtask 0`.
    pub(crate) static PLACE: String;
}

thread_local! {
    static CATCHER: RefCell<Catcher> = const { RefCell::new(Catcher::Nobody) };
}

/// Runs code of a program or connector, many rows at a time. If it panics, the error is the panic's message with its place; whoever
/// gets it can say more, must not use what the code was working on, and ends the process by [`fail`].
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let outer = CATCHER.replace(Catcher::Waiting);
    let result = catch_unwind(AssertUnwindSafe(run));
    match (result, CATCHER.replace(outer)) {
        (Ok(value), _) => Ok(value),
        (Err(_), Catcher::Told(text)) => Err(text),
        // The process has another hook.
        (Err(payload), _) => Err(format!("panicked: {}", message_of(payload.as_ref()))),
    }
}

/// Does a piece of an operator's work. What goes wrong in it, be it a panic, ends the process and says where.
pub(crate) fn at_work<R>(place: impl std::fmt::Display, work: impl FnOnce() -> Result<R, Failure>) -> R {
    match caught(work).unwrap_or_else(|panic| Err(Failure::Retryable(panic))) {
        Ok(value) => value,
        Err(failure) => fail(failure.within(place)),
    }
}

/// This process' part of the job has ended well.
pub fn finished() {
    FINISHED.store(true, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_link_is_no_fault_of_this_process() {
        let lost = Failure::of_panic("/home/x/tcp.rs:22:5", "timely communication error: reading data: connection reset");
        assert_eq!(lost, Failure::PeerLost("lost the link to a peer worker process: reading data: connection reset".into()));
        assert_eq!(lost.exit_code(), 75);
        let bug = Failure::of_panic("src/main.rs:7:9", "index out of bounds");
        assert_eq!(bug, Failure::Retryable("panicked at src/main.rs:7:9: index out of bounds".into()));
    }

    #[test]
    fn a_caught_panic_keeps_its_message() {
        assert_eq!(caught(|| 7), Ok(7));
        let panic = |n: u32| {
            if n > 0 {
                panic!("no price for {n}")
            }
        };
        let (inner, outer) = (caught(|| caught(|| panic(3))), caught(|| panic(4)));
        assert!(inner.is_ok_and(|inner| inner.is_err_and(|text| text.ends_with(": no price for 3"))));
        assert!(outer.is_err_and(|text| text.starts_with("panicked") && text.ends_with(": no price for 4")));
        assert!(CATCHER.with_borrow(|catcher| matches!(catcher, Catcher::Nobody)));
    }

    #[test]
    fn only_the_first_panic_of_a_caught_call_may_unwind() {
        let mut catcher = Catcher::Nobody;
        assert!(!catcher.tell("a", "b"), "nobody waits");
        catcher = Catcher::Waiting;
        assert!(catcher.tell("src/a.rs:1:1", "first") && !catcher.tell("src/a.rs:2:2", "second, in a destructor"));
        assert!(matches!(catcher, Catcher::Told(text) if text == "panicked at src/a.rs:1:1: first"));
    }
}
