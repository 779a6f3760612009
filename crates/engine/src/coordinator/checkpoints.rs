//! Which checkpoints are under way, when the next may begin, and which have failed. Decisions only: time and facts come in.
use crate::config::CheckpointConfig;
use semel_checkpoint::CheckpointId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Where a checkpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its parts are being made durable.
    Snapshot,
    /// The same, but its time is over: it will be declined when the last part is in.
    Expired,
    /// Its entry has been sent to the journal: it can no longer be declined.
    Entry,
    /// Its entry is durable; its transactions are being committed.
    Commit,
}

#[derive(Debug, Clone, Copy)]
struct Progress {
    phase: Phase,
    injected: Instant,
    triggered_at_ms: i64,
    durable: Option<Instant>,
}

/// Times of a checkpoint that has ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durations {
    /// Barrier to durable entry.
    pub complete: Duration,
    /// Barrier to the last commit.
    pub committed: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Checkpoints {
    config: CheckpointConfig,
    under_way: BTreeMap<CheckpointId, Progress>,
    last_barrier: Instant,
    last_end: Option<Instant>,
    failed_in_a_row: u32,
    committed: CheckpointId,
    /// Its parts went into the next checkpoint.
    declined: u64,
}

impl Checkpoints {
    /// `committed`: every checkpoint up to it is.
    pub fn new(config: CheckpointConfig, committed: CheckpointId, now: Instant) -> Self {
        Checkpoints { config, under_way: BTreeMap::new(), last_barrier: now, last_end: None, failed_in_a_row: 0, committed, declined: 0 }
    }

    /// Whether the next barrier is due. `urgent`: the job is ending, so neither interval nor pause count.
    pub fn due(&self, now: Instant, urgent: bool) -> bool {
        let count = |phases: &[Phase]| self.under_way.values().filter(|p| phases.contains(&p.phase)).count() as u32;
        let room = count(&[Phase::Snapshot, Phase::Entry]) < self.config.max_concurrent_checkpoints
            && count(&[Phase::Commit]) <= self.config.max_concurrent_checkpoints;
        let paused = self.last_end.is_some_and(|end| now < end + self.config.min_pause);
        room && (urgent || (now >= self.last_barrier + self.config.interval && !paused))
    }

    /// Whether a job that is to end with checkpoint `last` needs the barrier that ends `current`. One behind `last` is needed only where
    /// `last` has failed, since its transactions travel with the next one: any other would be in the journal, and not committed, when
    /// the job ends.
    pub fn needed_to_end(&self, current: CheckpointId, last: CheckpointId) -> bool {
        current <= last || self.under_way.values().all(|p| p.phase == Phase::Expired)
    }

    /// When `due` should be asked again at the latest, if nothing else happens.
    pub fn next_due(&self) -> Instant {
        let interval = self.last_barrier + self.config.interval;
        self.last_end.map_or(interval, |end| interval.max(end + self.config.min_pause))
    }

    /// The barrier of this checkpoint was injected.
    pub fn injected(&mut self, checkpoint: CheckpointId, now: Instant, triggered_at_ms: i64) {
        self.last_barrier = now;
        self.under_way.insert(checkpoint, Progress { phase: Phase::Snapshot, injected: now, triggered_at_ms, durable: None });
    }

    /// Marks and returns the checkpoints whose time is over. Counts each as failed.
    pub fn expire(&mut self, now: Instant) -> Vec<CheckpointId> {
        let timeout = self.config.timeout;
        let over = |p: &Progress| p.phase == Phase::Snapshot && now >= p.injected + timeout;
        let expired: Vec<CheckpointId> = self
            .under_way
            .iter_mut()
            .filter(|(_, p)| over(p))
            .map(|(id, p)| {
                p.phase = Phase::Expired;
                *id
            })
            .collect();
        if !expired.is_empty() {
            self.failed_in_a_row += expired.len() as u32;
            self.last_end = Some(now);
        }
        expired
    }

    /// All parts are in. `true`: write its entry; from now on it cannot fail. `false`: it was declined, or its time was over.
    pub fn parts_are_in(&mut self, checkpoint: CheckpointId, declined: bool, now: Instant) -> bool {
        let Some(progress) = self.under_way.get_mut(&checkpoint) else { return false };
        if declined || progress.phase == Phase::Expired {
            if progress.phase != Phase::Expired {
                self.failed_in_a_row += 1;
                self.last_end = Some(now);
            }
            self.declined += 1;
            self.under_way.remove(&checkpoint);
            return false;
        }
        progress.phase = Phase::Entry;
        true
    }

    /// Its entry is durable.
    pub fn durable(&mut self, checkpoint: CheckpointId, now: Instant) {
        self.failed_in_a_row = 0;
        self.last_end = Some(now);
        if let Some(progress) = self.under_way.get_mut(&checkpoint) {
            progress.phase = Phase::Commit;
            progress.durable = Some(now);
        }
    }

    /// All commits up to and with this checkpoint are done. `None` if it had been declined: its transactions are the next one's.
    pub fn committed_up_to(&mut self, checkpoint: CheckpointId, now: Instant) -> Option<Durations> {
        let progress = self.under_way.get(&checkpoint).copied().filter(|p| p.phase == Phase::Commit)?;
        self.under_way.remove(&checkpoint);
        self.committed = self.committed.max(checkpoint);
        let complete = progress.durable.unwrap_or(now) - progress.injected;
        Some(Durations { complete, committed: now - progress.injected })
    }

    /// Every checkpoint up to this one is committed.
    pub fn committed(&self) -> CheckpointId {
        self.committed
    }

    /// How many have failed since the last one that did not, if those are too many.
    pub fn too_many_failed(&self) -> Option<u32> {
        Some(self.failed_in_a_row).filter(|n| *n > self.config.tolerable_failed_checkpoints)
    }

    /// When its barrier was injected, in ms since 1970.
    pub fn triggered_at_ms(&self, checkpoint: CheckpointId) -> Option<i64> {
        self.under_way.get(&checkpoint).map(|p| p.triggered_at_ms)
    }

    /// Checkpoints whose parts or entry are not durable yet.
    pub fn in_progress(&self) -> usize {
        self.under_way.values().filter(|p| p.phase != Phase::Commit).count()
    }

    /// How many were declined in this generation.
    pub fn declined(&self) -> u64 {
        self.declined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CheckpointConfig {
        CheckpointConfig {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            min_pause: Duration::ZERO,
            tolerable_failed_checkpoints: 1,
            max_concurrent_checkpoints: 1,
            num_retained: 1,
        }
    }
    const N: CheckpointId = CheckpointId(7);
    const M: CheckpointId = CheckpointId(8);

    #[test]
    fn one_at_a_time_each_interval() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        assert!(!c.due(at(999), false));
        assert!(c.due(at(999), true), "the end of a job does not wait");
        assert!(c.due(at(1000), false));
        c.injected(N, at(1000), 0);
        assert!(!c.due(at(2500), false), "one is under way");
        assert!(c.parts_are_in(N, false, at(2600)));
        assert!(!c.due(at(2600), true));
        c.durable(N, at(2700));
        assert!(c.due(at(2700), false), "its commits may still run");
        assert_eq!(c.committed(), CheckpointId(6));
        let durations = c.committed_up_to(N, at(2800)).unwrap();
        assert_eq!((durations.complete.as_millis(), durations.committed.as_millis()), (1700, 1800));
        assert_eq!(c.committed(), N);
    }

    #[test]
    fn nothing_follows_the_last_checkpoint_unless_it_has_failed() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        assert!(c.needed_to_end(N, N), "the last one itself");
        c.injected(N, at(0), 0);
        assert!(!c.needed_to_end(M, N));
        assert!(c.parts_are_in(N, false, at(10)));
        c.durable(N, at(20));
        assert!(!c.needed_to_end(M, N), "its commits still run");

        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        c.injected(N, at(0), 0);
        assert!(!c.parts_are_in(N, true, at(10)));
        assert!(c.needed_to_end(M, N), "it was declined");

        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        c.injected(N, at(0), 0);
        c.expire(at(5000));
        assert!(c.needed_to_end(M, N), "its time is over");
    }

    #[test]
    fn min_pause_counts_from_the_end() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut c = Checkpoints::new(CheckpointConfig { min_pause: Duration::from_millis(500), ..config() }, CheckpointId(6), start);
        c.injected(N, at(1000), 0);
        c.parts_are_in(N, false, at(1900));
        c.durable(N, at(1900));
        assert!(!c.due(at(2300), false));
        assert_eq!(c.next_due(), at(2400));
        assert!(c.due(at(2400), false));
    }

    #[test]
    fn declined_and_expired_ones_count_until_one_succeeds() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        c.injected(N, at(1000), 0);
        assert!(!c.parts_are_in(N, true, at(1100)));
        assert_eq!(c.too_many_failed(), None, "one failure is tolerable here");
        assert_eq!(c.committed_up_to(N, at(1200)), None, "a declined checkpoint is not committed");
        c.injected(M, at(2000), 0);
        assert!(c.expire(at(6999)).is_empty());
        assert_eq!(c.expire(at(7000)), [M]);
        assert_eq!(c.expire(at(7001)), [], "once");
        assert_eq!(c.too_many_failed(), Some(2));
        assert!(c.due(at(8000), false), "an expired one does not hold back the next");
        assert!(!c.parts_are_in(M, false, at(8000)), "it is too late");
        let k = CheckpointId(9);
        c.injected(k, at(9000), 0);
        c.parts_are_in(k, false, at(9001));
        c.durable(k, at(9002));
        assert_eq!(c.too_many_failed(), None);
        assert_eq!(c.committed(), CheckpointId(6));
    }

    #[test]
    fn an_entry_that_was_sent_cannot_expire() {
        let start = Instant::now();
        let mut c = Checkpoints::new(config(), CheckpointId(6), start);
        c.injected(N, start, 0);
        assert!(c.parts_are_in(N, false, start));
        assert!(c.expire(start + Duration::from_secs(100)).is_empty());
    }
}
