//! Restart strategies: whether and when the next generation starts after a failure. Flink's strategies, names and rules;
//! pure, time comes in.
use crate::options::{OptionError, Settings};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// `restart-strategy.*`.
#[derive(Debug, Clone, PartialEq)]
pub enum RestartStrategy {
    /// Any failure ends the job.
    None,
    /// A number of restarts, each after the same pause.
    FixedDelay {
        /// Restarts before the job fails.
        attempts: u64,
        /// The pause.
        delay: Duration,
    },
    /// Pauses that grow with each failure until the job runs well again.
    ExponentialDelay {
        /// The first pause.
        initial: Duration,
        /// The longest pause.
        max: Duration,
        /// How much longer each one is.
        multiplier: f64,
        /// Running this long without a failure makes the next pause the first one again.
        reset_after: Duration,
        /// Random part, up and down.
        jitter: f64,
        /// Restarts before the job fails. `None`: without end.
        attempts: Option<u64>,
    },
    /// Restarts as long as failures are rare enough.
    FailureRate {
        /// Failures within the interval that are allowed.
        max_failures: usize,
        /// The interval.
        interval: Duration,
        /// The pause.
        delay: Duration,
    },
}

impl RestartStrategy {
    /// From `restart-strategy.*`.
    ///
    /// # Errors
    /// Values that do not fit together.
    pub fn from_settings(settings: &Settings) -> Result<Self, OptionError> {
        let exponential = |name: &str| format!("restart-strategy.exponential-delay.{name}");
        Ok(match settings.text("restart-strategy.type") {
            Some("none") => RestartStrategy::None,
            Some("fixed-delay") => RestartStrategy::FixedDelay {
                attempts: settings.number("restart-strategy.fixed-delay.attempts"),
                delay: settings.duration("restart-strategy.fixed-delay.delay"),
            },
            Some("failure-rate") => RestartStrategy::FailureRate {
                max_failures: settings.number("restart-strategy.failure-rate.max-failures-per-interval") as usize,
                interval: settings.duration("restart-strategy.failure-rate.failure-rate-interval"),
                delay: settings.duration("restart-strategy.failure-rate.delay"),
            },
            _ => {
                let initial = settings.duration(&exponential("initial-backoff"));
                let max = settings.duration(&exponential("max-backoff"));
                if initial > max {
                    return Err(OptionError::Together(format!(
                        "restart-strategy.exponential-delay: initial-backoff ({initial:?}) must not be longer than max-backoff ({max:?})"
                    )));
                }
                let attempts = exponential("attempts-before-reset-backoff");
                RestartStrategy::ExponentialDelay {
                    initial,
                    max,
                    multiplier: settings.float(&exponential("backoff-multiplier")),
                    reset_after: settings.duration(&exponential("reset-backoff-threshold")),
                    jitter: settings.float(&exponential("jitter-factor")).min(1.0),
                    attempts: settings.text(&attempts).map(|_| settings.number(&attempts)),
                }
            }
        })
    }

    /// The longest pause between two attempts.
    pub fn longest_pause(&self) -> Duration {
        match self {
            RestartStrategy::None => Duration::ZERO,
            RestartStrategy::FixedDelay { delay, .. } | RestartStrategy::FailureRate { delay, .. } => *delay,
            RestartStrategy::ExponentialDelay { max, jitter, .. } => max.mul_f64(1.0 + jitter),
        }
    }
}

/// What to do after a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Start the next generation after this pause.
    Restart(Duration),
    /// The job fails; why no further restart is made.
    GiveUp(String),
}

/// A strategy with what has happened so far.
#[derive(Debug)]
pub struct Restarts {
    strategy: RestartStrategy,
    failures: u64,
    recent: VecDeque<Instant>,
    backoff: Option<Duration>,
}

impl Restarts {
    /// Nothing has happened yet.
    pub fn new(strategy: RestartStrategy) -> Self {
        Restarts { strategy, failures: 0, recent: VecDeque::new(), backoff: None }
    }

    /// A generation has failed. `ran_for`: how long it had been running (zero if it never was); `random`: from 0 to 1.
    pub fn failed(&mut self, now: Instant, ran_for: Duration, random: f64) -> Decision {
        match &self.strategy {
            RestartStrategy::None => Decision::GiveUp("restart-strategy.type is none".into()),
            RestartStrategy::FixedDelay { attempts, delay } => {
                self.failures += 1;
                if self.failures > *attempts {
                    return Decision::GiveUp(format!("restart-strategy.fixed-delay.attempts = {attempts} restarts have been made"));
                }
                Decision::Restart(*delay)
            }
            RestartStrategy::ExponentialDelay { initial, max, multiplier, reset_after, jitter, attempts } => {
                if ran_for >= *reset_after {
                    (self.failures, self.backoff) = (0, None);
                }
                self.failures += 1;
                if let Some(attempts) = attempts
                    && self.failures > *attempts
                {
                    return Decision::GiveUp(format!(
                        "restart-strategy.exponential-delay.attempts-before-reset-backoff = {attempts} restarts have been made without running \
                         for {reset_after:?} in between"
                    ));
                }
                let backoff = self.backoff.map_or(*initial, |last| last.mul_f64(*multiplier)).min(*max);
                self.backoff = Some(backoff);
                Decision::Restart(backoff.mul_f64((1.0 + jitter * (2.0 * random - 1.0)).max(0.0)))
            }
            RestartStrategy::FailureRate { max_failures, interval, delay } => {
                while self.recent.front().is_some_and(|at| now.duration_since(*at) > *interval) {
                    self.recent.pop_front();
                }
                self.recent.push_back(now);
                if self.recent.len() > *max_failures {
                    return Decision::GiveUp(format!(
                        "{} failures within {interval:?}, more than restart-strategy.failure-rate.max-failures-per-interval = {max_failures}",
                        self.recent.len()
                    ));
                }
                Decision::Restart(*delay)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::Origin;

    fn strategy(options: &[(&str, &str)]) -> RestartStrategy {
        let mut settings = Settings::default();
        for (name, value) in options {
            settings.set(&format!("restart-strategy.{name}"), value, Origin::Code).unwrap();
        }
        RestartStrategy::from_settings(&settings).unwrap()
    }

    fn pauses(restarts: &mut Restarts, ran_for_s: &[u64]) -> Vec<Option<u64>> {
        let now = Instant::now();
        let pause = |s: &u64| match restarts.failed(now, Duration::from_secs(*s), 0.5) {
            Decision::Restart(pause) => Some(pause.as_millis() as u64),
            Decision::GiveUp(_) => None,
        };
        ran_for_s.iter().map(pause).collect()
    }

    #[test]
    fn the_default_grows_to_the_maximum_and_is_reset_by_running_well() {
        let mut restarts = Restarts::new(strategy(&[("exponential-delay.max-backoff", "300 ms")]));
        assert_eq!(pauses(&mut restarts, &[0, 1, 1, 1, 1]), [100, 150, 225, 300, 300].map(Some));
        assert_eq!(pauses(&mut restarts, &[30, 0]), [100, 150].map(Some), "30 s without a failure");
    }

    #[test]
    fn jitter_spreads_a_pause_up_and_down() {
        let pause = |random| Restarts::new(strategy(&[])).failed(Instant::now(), Duration::ZERO, random);
        assert_eq!(pause(0.0), Decision::Restart(Duration::from_millis(90)));
        assert_eq!(pause(1.0), Decision::Restart(Duration::from_millis(110)));
    }

    #[test]
    fn attempts_are_limited_where_they_are_set() {
        let limited = [("exponential-delay.attempts-before-reset-backoff", "2")];
        let mut restarts = Restarts::new(strategy(&limited));
        assert_eq!(pauses(&mut restarts, &[0, 0, 31, 0, 0]), [Some(100), Some(150), Some(100), Some(150), None]);
        let fixed = [("type", "fixed-delay"), ("fixed-delay.attempts", "2"), ("fixed-delay.delay", "3 s")];
        assert_eq!(pauses(&mut Restarts::new(strategy(&fixed)), &[0, 9999, 9999]), [Some(3000), Some(3000), None]);
        assert_eq!(pauses(&mut Restarts::new(strategy(&[("type", "none")])), &[9999]), [None]);
    }

    #[test]
    fn failure_rate_counts_within_a_sliding_interval() {
        let options =
            [("type", "failure-rate"), ("failure-rate.max-failures-per-interval", "2"), ("failure-rate.failure-rate-interval", "10 s")];
        let mut restarts = Restarts::new(strategy(&options));
        let start = Instant::now();
        let mut at = |s| restarts.failed(start + Duration::from_secs(s), Duration::ZERO, 0.0);
        let again = Decision::Restart(Duration::from_secs(1));
        assert_eq!([at(0), at(6), at(11), at(17)], [again.clone(), again.clone(), again.clone(), again]);
        assert!(matches!(at(18), Decision::GiveUp(why) if why.contains("3 failures")));
    }

    #[test]
    fn preflight_learns_the_longest_pause() {
        assert_eq!(strategy(&[]).longest_pause(), Duration::from_secs(66));
        assert_eq!(strategy(&[("type", "fixed-delay"), ("fixed-delay.delay", "7 s")]).longest_pause(), Duration::from_secs(7));
        let mut settings = Settings::default();
        settings.set("restart-strategy.exponential-delay.initial-backoff", "5 min", Origin::Code).unwrap();
        assert!(RestartStrategy::from_settings(&settings).is_err());
    }
}
