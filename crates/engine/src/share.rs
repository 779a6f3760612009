//! Which part of its time a thread was busy or held up: milliseconds per second, as Flink shows it.
use std::time::{Duration, Instant};

const EACH: Duration = Duration::from_secs(1);

/// A gauge of how fast a sum of time grows, set about once a second.
pub struct Share {
    gauge: metrics::Gauge,
    before: Option<(Instant, Duration)>,
}

impl Share {
    /// `subtask`: the worker thread, if it is about one.
    pub fn new(name: &'static str, subtask: Option<usize>) -> Share {
        let gauge = match subtask {
            Some(subtask) => metrics::gauge!(name, "subtask" => subtask.to_string()),
            None => metrics::gauge!(name),
        };
        Share { gauge, before: None }
    }

    /// `sum` is only asked for when the gauge is due.
    pub fn observe(&mut self, now: Instant, sum: impl FnOnce() -> Duration) {
        match self.before {
            Some((at, _)) if now < at + EACH => {}
            Some((at, before)) => {
                let sum = sum();
                self.gauge.set(1000.0 * sum.saturating_sub(before).as_secs_f64() / (now - at).as_secs_f64());
                self.before = Some((now, sum));
            }
            None => self.before = Some((now, sum())),
        }
    }
}

/// Time that this thread has run on a processor.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
