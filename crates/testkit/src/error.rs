use std::path::PathBuf;
use std::time::Duration;

/// What went wrong in the test's surroundings (not in what is under test).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, socket or process call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path or command.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Something did not happen before its deadline.
    #[error("{what} did not happen within {after:?}; {hint}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// Where to look (a log file, the last answer).
        hint: String,
    },
    /// The Java tool refused a request or ended.
    #[error("{op}: {message}")]
    Tool {
        /// The operation.
        op: String,
        /// The tool's words.
        message: String,
    },
    /// A process ended when it should be running.
    #[error("{what} ended with {status}; the end of {log}: {tail}")]
    Ended {
        /// Which process.
        what: String,
        /// Its exit status.
        status: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// An installation step or a request to the kit itself was wrong.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The last lines of a log, for error messages; empty if it cannot be read.
pub(crate) fn tail(path: &std::path::Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
