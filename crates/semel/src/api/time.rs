//! Event time: watermarks and windows.
use semel_engine::event_time::WatermarkStrategy as EngineStrategy;
use semel_engine::operators::window_assigner::WindowAssigner;
use std::time::Duration;

/// How a source finds its watermark. The event time is a column: `BIGINT` (milliseconds since 1970, UTC) or a timestamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatermarkStrategy(pub(crate) Option<EngineStrategy>);

impl WatermarkStrategy {
    /// No row comes more than `delay` behind the newest one of its split; rows that do are late.
    pub fn for_bounded_out_of_orderness(column: impl Into<String>, delay: Duration) -> WatermarkStrategy {
        WatermarkStrategy(Some(EngineStrategy { column: column.into(), delay_ms: millis(delay), idle_timeout: None }))
    }
    /// Times never decrease within a split.
    pub fn for_monotonous_timestamps(column: impl Into<String>) -> WatermarkStrategy {
        WatermarkStrategy::for_bounded_out_of_orderness(column, Duration::ZERO)
    }
    /// There is no event time: no windows can be made of these rows.
    pub fn no_watermarks() -> WatermarkStrategy {
        WatermarkStrategy(None)
    }
    /// A split that is read to its end and had no row for so long does not hold the others back.
    pub fn with_idleness(mut self, timeout: Duration) -> WatermarkStrategy {
        if let Some(strategy) = &mut self.0 {
            strategy.idle_timeout = Some(timeout);
        }
        self
    }
}

/// Windows that follow each other without gap or overlap.
#[derive(Debug, Clone, Copy)]
pub struct TumblingEventTimeWindows;

impl TumblingEventTimeWindows {
    /// Windows of this length (whole milliseconds), aligned to 1970-01-01 00:00 UTC.
    pub fn of(size: Duration) -> WindowAssigner {
        WindowAssigner::Tumbling { size_ms: millis(size), offset_ms: 0 }
    }
    /// The same, shifted: `of_with_offset(day, Duration::from_hours(3))` begins each day at 3 o'clock UTC.
    pub fn of_with_offset(size: Duration, offset: Duration) -> WindowAssigner {
        WindowAssigner::Tumbling { size_ms: millis(size), offset_ms: millis(offset) }
    }
}

/// Windows that overlap: one begins with each slide.
#[derive(Debug, Clone, Copy)]
pub struct SlidingEventTimeWindows;

impl SlidingEventTimeWindows {
    /// Windows of length `size`, one each `slide` (whole milliseconds).
    pub fn of(size: Duration, slide: Duration) -> WindowAssigner {
        WindowAssigner::Sliding { size_ms: millis(size), slide_ms: millis(slide), offset_ms: 0 }
    }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
