//! Watermarks: `watermark(tick)` of a source is that of its subtasks by [`Level::combined`], effective when the frontier has passed the tick.
//! By then every row of the tick has arrived, so it is one agreed function, the same at every subtask of every operator.
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Milliseconds since 1970-01-01 UTC, or one of the two ends.
pub type Millis = i64;
/// No row has been seen yet.
pub const NONE: Millis = Millis::MIN;
/// No row will come any more.
pub const END: Millis = Millis::MAX;

/// How far a split, a source subtask or a source is. Each variant holds the watermark: no row before it is expected from there.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Rows come, or may: the others' rows wait for it.
    Active(Millis),
    /// There has been nothing to read for a while: others decide.
    Idle(Millis),
    /// Bounded, and read to its end.
    Ended(Millis),
}

impl Level {
    /// Its watermark.
    pub fn watermark(self) -> Millis {
        match self {
            Level::Active(millis) | Level::Idle(millis) | Level::Ended(millis) => millis,
        }
    }
    /// Several as one, by the rule of Flink's `StatusWatermarkValve`: the minimum of those that are active. With none active it
    /// is the maximum: nothing is left to wait for, and of what they have promised nothing is forgotten. Ended only if all are.
    ///
    /// It does not matter in which groups they are combined. None at all are idle.
    pub fn combined(levels: impl Iterator<Item = Level>) -> Level {
        levels.reduce(Level::with).unwrap_or(Level::Idle(NONE))
    }
    fn with(self, other: Level) -> Level {
        match (self, other) {
            (Level::Active(a), Level::Active(b)) => Level::Active(a.min(b)),
            (Level::Active(a), _) | (_, Level::Active(a)) => Level::Active(a),
            (Level::Ended(a), Level::Ended(b)) => Level::Ended(a.max(b)),
            (a, b) => Level::Idle(a.watermark().max(b.watermark())),
        }
    }
}

/// One source subtask's report, addressed to one worker: broadcasting is sending a copy to each.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Report {
    /// Index of the worker.
    pub to: u64,
    /// The source subtask.
    pub subtask: u32,
    /// What it says.
    pub level: Level,
}

/// The reports of one source, applied tick by tick.
#[derive(Debug)]
pub struct SourceWatermark {
    reports: BTreeMap<Time, Vec<Report>>,
    levels: Vec<Level>,
}

impl SourceWatermark {
    /// `subtasks` that report. Without a report a subtask counts as active without a watermark: it holds all others back.
    pub fn new(subtasks: u32) -> Self {
        SourceWatermark { reports: BTreeMap::new(), levels: vec![Level::Active(NONE); subtasks as usize] }
    }
    /// Takes in reports of a tick.
    pub fn report(&mut self, time: Time, reports: impl IntoIterator<Item = Report>) {
        self.reports.entry(time).or_default().extend(reports);
    }
    /// The next tick before `limit` that has reports.
    pub fn next_before(&self, limit: Time) -> Option<Time> {
        self.reports.first_key_value().map(|(time, _)| *time).filter(|time| *time < limit)
    }
    /// Applies the reports of all ticks up to and with `time`.
    pub fn apply(&mut self, time: Time) {
        while let Some(entry) = self.reports.first_entry().filter(|e| *e.key() <= time) {
            for report in entry.remove() {
                if let Some(level) = self.levels.get_mut(report.subtask as usize) {
                    *level = report.level;
                }
            }
        }
    }
    /// Where the source is now. May fall, when a subtask that was idle goes on: what must not fall is what has come of it.
    pub fn level(&self) -> Level {
        Level::combined(self.levels.iter().copied())
    }
}

/// The watermark of an operator: that of all subtasks of all sources that it depends on. Never falls.
#[derive(Debug)]
pub struct Watermark {
    sources: Vec<SourceWatermark>,
    effective: Millis,
}

impl Watermark {
    /// `restored`: where the operator was at the barrier, else windows that have fired would open again.
    pub fn new(sources: usize, subtasks: u32, restored: Millis) -> Self {
        Watermark { sources: (0..sources).map(|_| SourceWatermark::new(subtasks)).collect(), effective: restored }
    }
    /// Takes in reports of one source.
    pub fn report(&mut self, source: usize, time: Time, reports: impl IntoIterator<Item = Report>) {
        self.sources[source].report(time, reports);
    }
    /// The next tick before `limit` at which the watermark rises, which it then has.
    pub fn rise(&mut self, limit: Time) -> Option<Time> {
        while let Some(time) = self.sources.iter().filter_map(|s| s.next_before(limit)).min() {
            self.sources.iter_mut().for_each(|s| s.apply(time));
            let now = match Level::combined(self.sources.iter().map(SourceWatermark::level)) {
                Level::Active(millis) | Level::Idle(millis) => millis,
                Level::Ended(_) => END,
            };
            if now > self.effective {
                self.effective = now;
                return Some(time);
            }
        }
        None
    }
    /// The watermark now.
    pub fn effective(&self) -> Millis {
        self.effective
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(subtask: u32, level: Level) -> Report {
        Report { to: 0, subtask, level }
    }

    #[test]
    fn it_is_the_minimum_and_waits_for_the_frontier() {
        let mut w = Watermark::new(1, 2, NONE);
        w.report(0, 5, [report(0, Level::Active(100)), report(1, Level::Active(50))]);
        w.report(0, 6, [report(1, Level::Active(120))]);
        assert_eq!(w.rise(5), None);
        assert_eq!((w.rise(10), w.effective()), (Some(5), 50));
        assert_eq!((w.rise(10), w.effective()), (Some(6), 100));
        assert_eq!(w.rise(10), None);
    }

    #[test]
    fn a_silent_subtask_holds_it_back_and_an_idle_one_does_not() {
        let mut w = Watermark::new(1, 2, NONE);
        w.report(0, 1, [report(0, Level::Active(7))]);
        assert_eq!(w.rise(9), None);
        w.report(0, 2, [report(1, Level::Idle(900))]);
        assert_eq!((w.rise(9), w.effective()), (Some(2), 7));
    }

    #[test]
    fn all_idle_is_not_the_end_and_all_ended_is() {
        let mut w = Watermark::new(1, 2, 3);
        w.report(0, 1, [report(0, Level::Idle(NONE)), report(1, Level::Idle(NONE))]);
        assert_eq!((w.rise(9), w.effective()), (None, 3));
        w.report(0, 2, [report(0, Level::Ended(7))]);
        assert_eq!((w.rise(9), w.effective()), (Some(2), 7), "the last rows of one that has ended fire when the rest is idle");
        w.report(0, 3, [report(1, Level::Ended(5))]);
        assert_eq!((w.rise(9), w.effective()), (Some(3), END));
    }

    #[test]
    fn when_the_last_one_becomes_idle_its_watermark_is_not_forgotten() {
        let mut w = Watermark::new(1, 2, NONE);
        // Both say so in one tick, or before the frontier has passed the tick in which one was still active.
        w.report(0, 1, [report(0, Level::Active(50))]);
        w.report(0, 2, [report(0, Level::Idle(80)), report(1, Level::Idle(NONE))]);
        assert_eq!((w.rise(9), w.effective()), (Some(2), 80));
    }

    #[test]
    fn with_all_idle_it_rises_to_the_newest_and_one_that_goes_on_counts_again() {
        let mut w = Watermark::new(1, 2, NONE);
        w.report(0, 1, [report(0, Level::Active(100)), report(1, Level::Active(40))]);
        assert_eq!((w.rise(9), w.effective()), (Some(1), 40));
        w.report(0, 2, [report(0, Level::Idle(100))]);
        assert_eq!((w.rise(9), w.effective()), (None, 40));
        w.report(0, 3, [report(1, Level::Idle(40))]);
        assert_eq!((w.rise(9), w.effective()), (Some(3), 100));
        w.report(0, 4, [report(1, Level::Active(60))]);
        assert_eq!((w.rise(9), w.effective()), (None, 100), "it does not fall");
        w.report(0, 5, [report(0, Level::Active(300))]);
        assert_eq!((w.rise(9), w.effective()), (None, 100), "the slow one holds it");
        w.report(0, 6, [report(1, Level::Active(200))]);
        assert_eq!((w.rise(9), w.effective()), (Some(6), 200));
    }

    #[test]
    fn a_source_that_is_idle_does_not_hold_the_other_back() {
        for idle in [NONE, 500] {
            let mut w = Watermark::new(2, 2, NONE);
            w.report(1, 1, [report(0, Level::Idle(idle)), report(1, Level::Idle(NONE))]);
            assert_eq!(w.rise(9), None, "the other has said nothing yet");
            w.report(0, 2, [report(0, Level::Active(70)), report(1, Level::Active(60))]);
            assert_eq!((w.rise(9), w.effective()), (Some(2), 60));
            w.report(0, 3, [report(0, Level::Idle(70)), report(1, Level::Idle(60))]);
            assert_eq!((w.rise(9), w.effective()), (Some(3), idle.max(70)), "with all idle it is the newest of all sources");
        }
    }

    #[test]
    fn a_source_that_has_ended_does_not_hold_the_other_back() {
        let mut w = Watermark::new(2, 1, NONE);
        w.report(0, 1, [report(0, Level::Ended(900))]);
        w.report(1, 2, [report(0, Level::Active(70))]);
        assert_eq!((w.rise(9), w.effective()), (Some(2), 70));
        w.report(1, 3, [report(0, Level::Ended(80))]);
        assert_eq!((w.rise(9), w.effective()), (Some(3), END));
    }

    #[test]
    fn after_a_restore_nothing_that_was_emitted_is_lost_and_idle_inputs_do_not_lower_it() {
        let mut w = Watermark::new(2, 1, 100);
        w.report(0, 1, [report(0, Level::Idle(100))]);
        w.report(1, 1, [report(0, Level::Idle(NONE))]);
        assert_eq!((w.rise(9), w.effective()), (None, 100));
        w.report(1, 2, [report(0, Level::Active(90))]);
        assert_eq!((w.rise(9), w.effective()), (None, 100));
    }

    #[test]
    fn levels_combine_alike_in_any_groups() {
        let levels: Vec<Level> = [NONE, 3, 8].into_iter().flat_map(|m| [Level::Active(m), Level::Idle(m), Level::Ended(m)]).collect();
        for (a, b, c) in levels.iter().flat_map(|a| levels.iter().flat_map(|b| levels.iter().map(|c| (*a, *b, *c)))) {
            let all = Level::combined([a, b, c].into_iter());
            assert_eq!(Level::combined([Level::combined([c, b].into_iter()), a].into_iter()), all, "{a:?} {b:?} {c:?}");
        }
        assert_eq!(Level::combined(std::iter::empty()), Level::Idle(NONE));
    }

    #[test]
    fn over_two_sources_it_is_the_slower_one_and_never_falls() {
        let mut w = Watermark::new(2, 1, 10);
        w.report(0, 1, [report(0, Level::Active(100))]);
        w.report(1, 2, [report(0, Level::Active(5))]);
        assert_eq!((w.rise(9), w.effective()), (None, 10));
        w.report(1, 3, [report(0, Level::Active(60))]);
        assert_eq!((w.rise(9), w.effective()), (Some(3), 60));
    }
}
