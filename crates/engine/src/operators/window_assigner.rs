//! Which windows a time belongs to, when they fire, and when they are over. Decisions only; times in milliseconds.
use crate::state::Namespaces;
use crate::watermark::Millis;

/// How windows are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowAssigner {
    /// Each time is in exactly one window.
    Tumbling {
        /// Length.
        size_ms: i64,
        /// Start of the window that holds time 0, before or after it.
        offset_ms: i64,
    },
    /// A window of `size_ms` begins each `slide_ms`.
    Sliding {
        /// Length.
        size_ms: i64,
        /// Distance of two starts.
        slide_ms: i64,
        /// As for tumbling windows.
        offset_ms: i64,
    },
}

impl WindowAssigner {
    /// What is wrong with its lengths, if anything.
    pub fn problem(&self) -> Option<String> {
        let (size, slide) = (self.size_ms(), self.slide_ms());
        match () {
            () if size <= 0 || slide <= 0 => Some(format!("a window's size ({size} ms) and slide ({slide} ms) must be above 0")),
            () if slide > size => Some(format!("with a slide ({slide} ms) above the size ({size} ms) some rows would be in no window")),
            () if size / slide > 1000 => {
                Some(format!("each row would be in {} windows; use a slide of at least 1/1000 of the size", size / slide))
            }
            () => None,
        }
    }
    /// Length of a window.
    pub fn size_ms(&self) -> i64 {
        match *self {
            WindowAssigner::Tumbling { size_ms, .. } | WindowAssigner::Sliding { size_ms, .. } => size_ms,
        }
    }
    fn slide_ms(&self) -> i64 {
        match *self {
            WindowAssigner::Tumbling { size_ms, .. } => size_ms,
            WindowAssigner::Sliding { slide_ms, .. } => slide_ms,
        }
    }
    fn offset_ms(&self) -> i64 {
        match *self {
            WindowAssigner::Tumbling { offset_ms, .. } | WindowAssigner::Sliding { offset_ms, .. } => offset_ms,
        }
    }
    /// What is stored with the state: equal for assigners that lay out the same windows.
    pub fn namespaces(&self) -> Namespaces {
        let (size_ms, slide_ms) = (self.size_ms(), self.slide_ms());
        Namespaces::Windows { size_ms, slide_ms, offset_ms: self.offset_ms().rem_euclid(slide_ms) }
    }
    /// Start of the newest window that holds this time. A window that would start before the first representable time starts there.
    pub fn newest_start(&self, time: Millis) -> Millis {
        let slide = self.slide_ms();
        // Both remainders are within [0, slide), so nothing here can overflow.
        let (time_in, offset_in) = (time.rem_euclid(slide), self.offset_ms().rem_euclid(slide));
        let into = if time_in >= offset_in { time_in - offset_in } else { time_in + (slide - offset_in) };
        time.saturating_sub(into)
    }
    /// Starts of all windows that hold this time, newest first.
    pub fn starts(&self, time: Millis) -> impl Iterator<Item = Millis> + use<> {
        let (size, slide) = (self.size_ms(), self.slide_ms());
        std::iter::successors(Some(self.newest_start(time)), move |start| start.checked_sub(slide))
            .take_while(move |start| time.saturating_sub(*start) < size)
    }
    /// The window that starts there fires when the watermark reaches this: its last millisecond (Flink's `maxTimestamp`).
    pub fn last_ms(&self, start: Millis) -> Millis {
        start.saturating_add(self.size_ms() - 1)
    }
    /// Whether the window has fired.
    pub fn has_fired(&self, start: Millis, watermark: Millis) -> bool {
        self.last_ms(start) <= watermark
    }
    /// Whether the window is over: its state is dropped and rows for it are late.
    pub fn is_over(&self, start: Millis, lateness_ms: i64, watermark: Millis) -> bool {
        self.last_ms(start).saturating_add(lateness_ms) <= watermark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: WindowAssigner = WindowAssigner::Tumbling { size_ms: 10, offset_ms: 0 };

    #[test]
    fn tumbling_windows_hold_each_time_once_also_before_1970() {
        for (time, start) in [(0, 0), (9, 0), (10, 10), (-1, -10), (-10, -10), (-11, -20)] {
            assert_eq!(TEN.starts(time).collect::<Vec<_>>(), [start], "{time}");
        }
        let offset = WindowAssigner::Tumbling { size_ms: 10, offset_ms: 3 };
        assert_eq!([offset.newest_start(2), offset.newest_start(3), offset.newest_start(13)], [-7, 3, 13]);
    }

    #[test]
    fn sliding_windows_overlap() {
        let w = WindowAssigner::Sliding { size_ms: 10, slide_ms: 4, offset_ms: 0 };
        assert_eq!(w.starts(9).collect::<Vec<_>>(), [8, 4, 0]);
        assert_eq!(w.starts(10).collect::<Vec<_>>(), [8, 4]);
        assert_eq!(w.starts(-1).collect::<Vec<_>>(), [-4, -8]);
    }

    #[test]
    fn a_window_fires_at_its_last_millisecond_and_ends_after_its_lateness() {
        assert!(!TEN.has_fired(0, 8));
        assert!(TEN.has_fired(0, 9));
        assert!(TEN.is_over(0, 0, 9));
        assert!(!TEN.is_over(0, 5, 13));
        assert!(TEN.is_over(0, 5, 14));
        assert!(TEN.has_fired(0, i64::MAX), "the end of a bounded source fires everything");
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let shifted = WindowAssigner::Tumbling { size_ms: 10, offset_ms: 3 };
        let sliding = WindowAssigner::Sliding { size_ms: 10, slide_ms: 4, offset_ms: -1 };
        let whole = WindowAssigner::Tumbling { size_ms: i64::MAX, offset_ms: i64::MIN };
        for assigner in [TEN, shifted, sliding, whole] {
            for time in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX] {
                let starts: Vec<_> = assigner.starts(time).collect();
                assert!(matches!(starts.len(), 1..=3), "{assigner:?} {time} {starts:?}");
                assert!(starts.iter().all(|start| *start <= time));
                assert!(starts.iter().all(|start| !assigner.is_over(*start, 0, time.saturating_sub(1))), "it takes what is not late");
            }
        }
        // 2^63 - 1 ends with 7.
        assert_eq!([TEN.newest_start(i64::MAX), shifted.newest_start(i64::MAX)], [i64::MAX - 7, i64::MAX - 4]);
        assert!(!TEN.has_fired(i64::MAX - 7, i64::MAX - 1) && TEN.has_fired(i64::MAX - 7, i64::MAX), "it fires at the end");
    }

    #[test]
    fn assigners_are_stored_alike_if_their_windows_are_the_same() {
        let stored = |size_ms, slide_ms, offset_ms| WindowAssigner::Sliding { size_ms, slide_ms, offset_ms }.namespaces();
        assert_eq!(TEN.namespaces(), stored(10, 10, 0));
        assert_eq!(stored(10, 4, -1), stored(10, 4, 3));
        for other in [stored(20, 10, 0), stored(10, 5, 0), stored(10, 10, 1)] {
            assert_ne!(TEN.namespaces(), other);
        }
    }

    #[test]
    fn senseless_lengths_are_refused() {
        assert!(TEN.problem().is_none());
        for (size_ms, slide_ms) in [(0, 1), (10, 0), (10, 11), (-1, -1), (100_000, 1)] {
            assert!(WindowAssigner::Sliding { size_ms, slide_ms, offset_ms: 0 }.problem().is_some(), "{size_ms} {slide_ms}");
        }
    }
}
