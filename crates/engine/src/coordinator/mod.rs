//! The coordination of a job: four operators that do their work on worker 0 and share one [`Coordinator`].
//!
//! * [`ticker`]: the only clock. Grants ticks, injects barriers, controls the flow.
//! * [`watcher`]: sees what the sinks have written, and the end of the sources.
//! * [`completer`]: all parts of a checkpoint are durable: writes its journal entry, and only then lets it be committed.
//! * [`collector`]: all its transactions are committed: ends it.
//!
//! The graph stays acyclic: what the ticker must know comes to it through the `Coordinator`, and `wake` schedules it.
mod checkpoint_metrics;
pub mod checkpoints;
pub mod collector;
pub mod completer;
pub mod pace;
pub mod ticker;
pub mod upkeep;
pub mod watcher;

use crate::job::JobContext;
use crate::time::Time;
use checkpoints::Checkpoints;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use timely::scheduling::Activator;

/// What worker 0 knows.
pub struct Coordinator {
    /// Every operator has restored its state.
    pub ready: bool,
    /// The sink writers have written everything before this.
    pub written: Time,
    /// The tick at which every source had reported its end.
    pub ended: Option<Time>,
    /// Checkpoints under way.
    pub checkpoints: Checkpoints,
    ticker: Option<Activator>,
}

/// Shared by the four operators of one worker thread.
pub type Shared = Rc<RefCell<Coordinator>>;

impl Coordinator {
    /// Before the first tick of a generation.
    pub fn new(job: &JobContext) -> Shared {
        Rc::new(RefCell::new(Coordinator {
            ready: false,
            written: 0,
            ended: None,
            checkpoints: Checkpoints::new(job.config().checkpoint.clone(), job.assignment.committed, Instant::now()),
            ticker: None,
        }))
    }

    /// Schedules the ticker.
    pub fn wake(&self) {
        if let Some(ticker) = &self.ticker {
            ticker.activate();
        }
    }
}

/// Milliseconds since 1970, for people and metrics only: no decision depends on the clock of a machine.
pub fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}
