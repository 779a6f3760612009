//! [`Deadline`]: the point in time at which a call gives up.
use super::error::{ClientError, Result};
use std::future::Future;
use std::time::{Duration, Instant};

/// The point in time at which a call gives up, and how long that was from its start.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    end: Instant,
}

impl Deadline {
    /// A deadline this long from now.
    pub fn after(duration: Duration) -> Self {
        let start = Instant::now();
        // A year is as good as never, and does not overflow.
        let duration = duration.min(Duration::from_secs(31_536_000));
        Deadline { start, end: start + duration }
    }

    /// What is left, zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The moment itself.
    pub fn instant(&self) -> Instant {
        self.end
    }

    /// The earlier of this deadline and one this long from now.
    pub fn at_most(&self, duration: Duration) -> Self {
        let other = Deadline::after(duration);
        if other.end < self.end { other } else { *self }
    }

    /// The error of a call that did not end in time.
    pub fn exceeded(&self, what: impl Into<String>) -> ClientError {
        ClientError::Deadline { what: what.into(), after: self.end.saturating_duration_since(self.start) }
    }

    /// Runs `future` until the deadline; then [`ClientError::Deadline`] with `what`.
    pub async fn run<T>(&self, what: impl Fn() -> String, future: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout_at(self.end.into(), future).await {
            Ok(result) => result,
            Err(_) => Err(self.exceeded(what())),
        }
    }

    /// Sleeps for `duration`, or until the deadline; false when the deadline has passed.
    pub async fn sleep(&self, duration: Duration) -> bool {
        let left = self.remaining();
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(duration.min(left)).await;
        true
    }
}

/// Exponential pauses between attempts: 20 ms doubling to 1 s, each shortened at random by up to half.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { next: Duration::from_millis(20), max: Duration::from_secs(1) }
    }
}

impl Backoff {
    /// A backoff that begins with `first` and ends with `max`.
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Backoff { next: first, max }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(self.max);
        pause.mul_f64(rand::random_range(0.5..=1.0))
    }
}
