//! What a worker process tells about itself: that it is alive, and how far it is.
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Shared by all threads of a process.
#[derive(Debug)]
pub struct Status {
    started: Instant,
    /// Per worker thread: when it last stepped, in ms since `started`.
    steps: Mutex<Vec<std::sync::Arc<AtomicU64>>>,
    /// Rows that sources have emitted.
    pub rows_in: AtomicU64,
    /// Rows that sinks have taken.
    pub rows_out: AtomicU64,
    /// Checkpoints that were completed (process 0).
    pub checkpoints: AtomicU64,
    /// The id of the newest of them.
    pub newest_checkpoint: AtomicU64,
    /// Set from outside: take a checkpoint, commit it, and end.
    stop: AtomicBool,
    stop_wakers: Mutex<Vec<timely::scheduling::SyncActivator>>,
}

impl Default for Status {
    fn default() -> Self {
        Status {
            started: Instant::now(),
            steps: Mutex::default(),
            rows_in: AtomicU64::new(0),
            rows_out: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            newest_checkpoint: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            stop_wakers: Mutex::default(),
        }
    }
}

/// A worker thread's sign of life.
#[derive(Debug)]
pub struct Step {
    at: std::sync::Arc<AtomicU64>,
    started: Instant,
}

impl Step {
    /// The thread has just finished a step.
    pub fn now(&self) {
        self.at.store(self.started.elapsed().as_millis() as u64, Relaxed);
    }
}

/// A thread that has ended is not slow.
impl Drop for Step {
    fn drop(&mut self) {
        self.at.store(u64::MAX, Relaxed);
    }
}

impl Status {
    /// A new worker thread.
    pub fn thread(&self) -> Step {
        let step = Step { at: std::sync::Arc::default(), started: self.started };
        step.now();
        if let Ok(mut steps) = self.steps.lock() {
            steps.push(step.at.clone());
        }
        step
    }

    /// For how long the slowest worker thread has not finished a step. A thread steps at least once a second, also when idle.
    pub fn stalled_for(&self) -> Duration {
        let now = self.started.elapsed().as_millis() as u64;
        let oldest = self.steps.lock().ok().and_then(|steps| steps.iter().map(|s| s.load(Relaxed)).min());
        oldest.map_or(Duration::ZERO, |oldest| Duration::from_millis(now.saturating_sub(oldest)))
    }

    /// Asks the job to take a checkpoint, commit it, and end. Only process 0 listens.
    pub fn request_stop(&self) {
        self.stop.store(true, Relaxed);
        if let Ok(wakers) = self.stop_wakers.lock() {
            wakers.iter().for_each(|w| _ = w.activate());
        }
    }

    /// Whether [`request_stop`](Self::request_stop) was called.
    pub fn stop_requested(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// The operator that must hear of a stop.
    pub(crate) fn wake_on_stop(&self, waker: timely::scheduling::SyncActivator) {
        if let Ok(mut wakers) = self.stop_wakers.lock() {
            wakers.push(waker);
        }
    }
}
