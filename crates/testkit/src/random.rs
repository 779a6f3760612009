use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

/// Random numbers that a failed test can repeat: the seed is printed, and `SEMEL_SEED` sets it.
///
/// The sequence (SplitMix64, Steele et al. 2014) is the same for a seed on every machine and in every version.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for the named test, seeded from `SEMEL_SEED` or at random; prints how to repeat the run.
    pub fn from_env(test: &str) -> Self {
        let given = std::env::var("SEMEL_SEED").ok().and_then(|text| text.trim().parse().ok());
        let seed = given.unwrap_or_else(|| Self::unseeded().next_u64() >> 16);
        println!("{test}: SEMEL_SEED={seed} repeats the random choices of this run");
        Self::new(seed)
    }

    /// A generator with a fixed seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator that nobody needs to repeat (names, ports).
    pub(crate) fn unseeded() -> Self {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Self::new(hasher.finish())
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `bound` (0 if `bound` is 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number of the range, whose end is excluded.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// One element, or `None` of an empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(usize::try_from(self.below(from.len() as u64)).ok()?)
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The finalizer of SplitMix64: every bit of the input changes every bit of the output.
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `short` where `SEMEL_TEST_SCALE=short` (two cores, under an hour in all), else `full`.
pub fn scale<T>(short: T, full: T) -> T {
    if std::env::var("SEMEL_TEST_SCALE").is_ok_and(|scale| scale == "short") { short } else { full }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        assert_eq!((0..5).map(|_| a.next_u64()).collect::<Vec<_>>(), (0..5).map(|_| b.next_u64()).collect::<Vec<_>>());
        assert_ne!(Random::new(8).next_u64(), Random::new(7).next_u64());
        // Published first value of SplitMix64 with seed 0.
        assert_eq!(Random::new(0).next_u64(), 0xE220_A839_7B1D_CDAF);
    }

    #[test]
    fn range_and_pick_stay_inside() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| (3..9).contains(&random.range(3..9))));
        assert_eq!(random.pick::<u8>(&[]), None);
        assert_eq!(random.pick(&[4]), Some(&4));
    }
}
