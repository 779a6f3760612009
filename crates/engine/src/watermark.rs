//! Watermarks: `watermark(tick)` of a source is the minimum over its subtasks, effective when the frontier has passed the tick.
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

/// What a source subtask says when it leaves a tick.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No row before this is expected.
    Active(Millis),
    /// There is nothing to read: others decide.
    Idle,
    /// A bounded source has ended.
    Ended,
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
    value: Millis,
}

impl SourceWatermark {
    /// `subtasks` that report. Without a report a subtask counts as active without a watermark: it holds all others back.
    pub fn new(subtasks: u32) -> Self {
        SourceWatermark { reports: BTreeMap::new(), levels: vec![Level::Active(NONE); subtasks as usize], value: NONE }
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
        self.value = self.value.max(minimum(&self.levels));
    }
    /// The watermark now. Never falls; stays where it is while every subtask is idle.
    pub fn value(&self) -> Millis {
        self.value
    }
}

fn minimum(levels: &[Level]) -> Millis {
    let active = levels.iter().filter_map(|l| match l {
        Level::Active(millis) => Some(*millis),
        _ => None,
    });
    match active.min() {
        Some(millis) => millis,
        None if levels.iter().all(|l| *l == Level::Ended) => END,
        None => NONE,
    }
}

/// The watermark of an operator: the minimum over the sources that it depends on.
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
            let minimum = self.sources.iter().map(SourceWatermark::value).min().unwrap_or(NONE);
            if minimum > self.effective {
                self.effective = minimum;
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
        w.report(0, 2, [report(1, Level::Idle)]);
        assert_eq!((w.rise(9), w.effective()), (Some(2), 7));
    }

    #[test]
    fn all_idle_is_not_the_end_and_all_ended_is() {
        let mut w = Watermark::new(1, 2, 3);
        w.report(0, 1, [report(0, Level::Idle), report(1, Level::Idle)]);
        assert_eq!((w.rise(9), w.effective()), (None, 3));
        w.report(0, 2, [report(0, Level::Ended)]);
        assert_eq!(w.rise(9), None);
        w.report(0, 3, [report(1, Level::Ended)]);
        assert_eq!((w.rise(9), w.effective()), (Some(3), END));
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
