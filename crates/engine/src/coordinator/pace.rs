//! Flow control: how fast ticks are granted and how many bytes a source may emit in one. Decisions only.
use crate::time::{TICK_BITS, Time, first_of, tick_of};
use semel_checkpoint::CheckpointId;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const LEAST_BYTES: u64 = 64 << 10;
const FIRST_BYTES: u64 = 256 << 10;
/// The cap grows by time, not by tick, or long ticks would learn slowly.
const GROW_EACH: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Pace {
    tick: Duration,
    window: usize,
    most_bytes: u64,
    granted: Time,
    /// Granted, and not yet written by every sink.
    outstanding: VecDeque<Time>,
    next_tick: Instant,
    bytes_per_tick: u64,
    grown: Instant,
    lagged_before: bool,
    lagging: Option<Instant>,
    /// Of all lags that are over.
    lagged: Duration,
}

impl Pace {
    /// `window`: how many ticks may be granted and not yet written.
    pub fn new(tick: Duration, window: usize, most_bytes: u64, now: Instant) -> Self {
        Pace {
            tick,
            window,
            most_bytes: most_bytes.max(LEAST_BYTES),
            granted: 0,
            outstanding: VecDeque::new(),
            next_tick: now,
            bytes_per_tick: FIRST_BYTES.min(most_bytes.max(LEAST_BYTES)),
            grown: now,
            lagged_before: false,
            lagging: None,
            lagged: Duration::ZERO,
        }
    }

    /// The sinks have written everything before this.
    pub fn written(&mut self, before: Time) {
        while self.outstanding.front().is_some_and(|t| *t < before) {
            self.outstanding.pop_front();
        }
    }

    /// Whether the sinks are too far behind for another tick. Adapts the cap: halved where a lag begins, cut again by as much as
    /// the lag outlasted the window, and grown while there is none.
    pub fn lagging(&mut self, now: Instant) -> bool {
        let lagging = self.outstanding.len() > self.window;
        match (lagging, self.lagging) {
            (true, None) => {
                self.bytes_per_tick = (self.bytes_per_tick / 2).max(LEAST_BYTES);
                self.lagged_before = true;
                self.grown = now;
                self.lagging = Some(now);
            }
            (false, Some(since)) => {
                let window = self.tick.as_secs_f64() * (self.window + 1) as f64;
                let factor = 2.0 * window / (window + (now - since).as_secs_f64());
                self.bytes_per_tick = ((self.bytes_per_tick as f64 * factor.min(1.0)) as u64).max(LEAST_BYTES);
                self.grown = now;
                self.lagging = None;
                self.lagged += now - since;
            }
            (false, None) if now >= self.grown + GROW_EACH => {
                let by = if self.lagged_before { self.bytes_per_tick / 16 } else { self.bytes_per_tick };
                self.bytes_per_tick = (self.bytes_per_tick + by).min(self.most_bytes);
                self.grown = now;
            }
            _ => {}
        }
        lagging
    }

    /// For how long in all sources had to wait for the sinks.
    pub fn lagged(&self, now: Instant) -> Duration {
        self.lagged + self.lagging.map_or(Duration::ZERO, |since| now - since)
    }

    /// Whether the clock says that the next tick is due.
    pub fn due(&self, now: Instant) -> bool {
        now >= self.next_tick
    }

    /// When it will be.
    pub fn next_tick(&self) -> Instant {
        self.next_tick
    }

    /// The next time to grant: the first of `checkpoint` if one is given, else the next tick.
    pub fn grant(&mut self, checkpoint: Option<CheckpointId>, now: Instant) -> Time {
        self.granted = checkpoint.map_or(self.granted + 1, first_of);
        self.outstanding.push_back(self.granted);
        // A clock that was held up does not catch up with a burst of ticks.
        self.next_tick = (self.next_tick + self.tick).max(now);
        self.granted
    }

    /// The time granted last; 0 before the first.
    pub fn granted(&self) -> Time {
        self.granted
    }

    /// Whether the ticks of this checkpoint are used up, so that it must end now.
    pub fn out_of_ticks(&self) -> bool {
        tick_of(self.granted) + 2 >= 1 << TICK_BITS
    }

    /// What a source subtask may emit in a tick.
    pub fn bytes_per_tick(&self) -> u64 {
        self.bytes_per_tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::checkpoint_of;

    #[test]
    fn grants_stop_when_the_window_is_full_and_go_on_when_it_is_not() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(10), 2, 8 << 20, now);
        let first = pace.grant(Some(CheckpointId(3)), now);
        assert_eq!(checkpoint_of(first), CheckpointId(3));
        assert!(!pace.lagging(now));
        pace.grant(None, now);
        assert!(!pace.lagging(now));
        let third = pace.grant(None, now);
        assert_eq!(third, first + 2);
        assert!(pace.lagging(now));
        pace.written(first);
        assert!(pace.lagging(now), "a frontier at the first tick has not passed it");
        pace.written(first + 1);
        assert!(!pace.lagging(now));
    }

    #[test]
    fn ticks_start_again_with_each_checkpoint_and_the_window_still_works() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(10), 1, 8 << 20, now);
        pace.grant(Some(CheckpointId(1)), now);
        let barrier = pace.grant(Some(CheckpointId(2)), now);
        assert!(pace.lagging(now));
        pace.written(barrier);
        assert!(!pace.lagging(now));
    }

    #[test]
    fn the_cap_doubles_until_the_first_lag_then_halves_and_grows_slowly() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(Duration::from_millis(10), 0, 64 << 20, start);
        assert!(!pace.lagging(at(50)));
        assert_eq!(pace.bytes_per_tick(), 512 << 10);
        assert!(!pace.lagging(at(60)));
        assert_eq!(pace.bytes_per_tick(), 512 << 10, "by time, not by call");
        pace.grant(None, at(60));
        assert!(pace.lagging(at(70)));
        assert!(pace.lagging(at(75)));
        assert_eq!(pace.bytes_per_tick(), 256 << 10, "halved once for one lag");
        pace.written(Time::MAX);
        assert!(!pace.lagging(at(80)));
        assert_eq!(pace.bytes_per_tick(), 256 << 10, "a short lag costs no more");
        assert!(!pace.lagging(at(130)));
        assert_eq!(pace.bytes_per_tick(), 272 << 10);
    }

    #[test]
    fn a_long_lag_cuts_the_cap_to_what_the_sink_takes() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(Duration::from_millis(10), 0, 64 << 20, start);
        pace.bytes_per_tick = 8 << 20;
        pace.grant(None, at(0));
        assert!(pace.lagging(at(10)));
        pace.written(Time::MAX);
        assert!(!pace.lagging(at(200)));
        assert_eq!(pace.bytes_per_tick(), (8 << 20) / 20);
        assert_eq!(pace.lagged(at(500)), Duration::from_millis(190));
    }

    #[test]
    fn a_checkpoint_ends_before_its_ticks_overflow() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_millis(10), 4, 1 << 20, now);
        pace.grant(Some(CheckpointId(1)), now);
        assert!(!pace.out_of_ticks());
        pace.granted = first_of(CheckpointId(2)) - 2;
        assert!(pace.out_of_ticks());
    }
}
