//! What goes on for a moment after the dataflow has ended.
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tracing::warn;

/// How long that may take in all.
pub const LAST_ROUND: Duration = Duration::from_secs(10);

/// Held by each task that has something to do after the end.
#[derive(Clone)]
pub struct Ending {
    _alive: Sender<()>,
}

/// For the process, which waits for them.
pub struct Ended(Receiver<()>);

/// Both ends.
pub fn ending() -> (Ending, Ended) {
    let (alive, ended) = channel();
    (Ending { _alive: alive }, Ended(ended))
}

impl Ended {
    /// Waits until every [`Ending`] is dropped, for 10 s at most.
    pub fn wait(self) {
        if let Err(RecvTimeoutError::Timeout) = self.0.recv_timeout(LAST_ROUND) {
            warn!("what follows the last checkpoint was not done within {LAST_ROUND:?}; the next start of this job does it");
        }
    }
}
