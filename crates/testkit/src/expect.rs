//! Row-by-row comparison of committed output with an expectation.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// How many examples of each fault a verdict keeps.
const SAMPLES: usize = 5;

/// What a comparison found. [`assert_exactly_once`](Self::assert_exactly_once) is what most tests call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Rows expected.
    pub expected: u64,
    /// Rows found.
    pub got: u64,
    /// Expected rows of which nothing was found.
    pub lost: u64,
    /// Rows found again after all expected ones of their key were found.
    pub doubled: u64,
    /// Rows of an expected key with other values.
    pub wrong: u64,
    /// Rows of a key that nobody expected.
    pub unexpected: u64,
    /// The first few of each, in words.
    pub samples: Vec<String>,
}

impl Verdict {
    /// True if every expected row was found once, right, and nothing else.
    pub fn is_exact(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.wrong == 0 && self.unexpected == 0
    }

    /// Panics with the counts and the first few rows of each fault unless all is exact.
    ///
    /// # Panics
    /// If a row is lost, doubled, wrong or unexpected, or if nothing was expected (then the test shows nothing).
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        assert!(self.expected > 0, "nothing was expected: the comparison shows nothing");
        assert!(self.is_exact(), "{self}");
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lost, {} doubled, {} wrong, {} unexpected ({} rows expected, {} found)",
            self.lost, self.doubled, self.wrong, self.unexpected, self.expected, self.got
        )?;
        self.samples.iter().try_for_each(|sample| write!(f, "\n  {sample}"))
    }
}

/// Compares rows by key. A key may be expected several times, with equal or different rows; their order is free.
pub fn compare<K, V>(expected: impl IntoIterator<Item = (K, V)>, got: impl IntoIterator<Item = (K, V)>) -> Verdict
where
    K: Hash + Eq + Ord + Debug + Clone,
    V: PartialEq + Debug,
{
    struct Group<V> {
        missing: Vec<V>,
        found: Vec<V>,
        /// Rows that are not equal to any expected one; each stands for one that is missing.
        other: Vec<V>,
    }
    let mut verdict = Verdict::default();
    let mut groups: HashMap<K, Group<V>> = HashMap::new();
    for (key, row) in expected {
        verdict.expected += 1;
        let new = || Group { missing: Vec::new(), found: Vec::new(), other: Vec::new() };
        groups.entry(key).or_insert_with(new).missing.push(row);
    }
    let (mut doubled, mut unexpected, mut wrong, mut lost) = (Samples::new(), Samples::new(), Samples::new(), Samples::new());
    for (key, row) in got {
        verdict.got += 1;
        let Some(group) = groups.get_mut(&key) else {
            verdict.unexpected += 1;
            unexpected.add(|| format!("unexpected: {key:?} -> {row:?}"));
            continue;
        };
        match group.missing.iter().position(|missing| *missing == row) {
            Some(at) => {
                let row = group.missing.swap_remove(at);
                group.found.push(row);
            }
            None if group.found.contains(&row) => {
                verdict.doubled += 1;
                doubled.add(|| format!("doubled: {key:?} -> {row:?}"));
            }
            None => group.other.push(row),
        }
    }
    let mut bad: Vec<_> = groups.into_iter().filter(|(_, g)| !g.missing.is_empty() || !g.other.is_empty()).collect();
    bad.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, group) in bad {
        let mut other = group.other.into_iter();
        for row in group.missing {
            match other.next() {
                Some(instead) => {
                    verdict.wrong += 1;
                    wrong.add(|| format!("wrong: {key:?} -> {instead:?}, expected {row:?}"));
                }
                None => {
                    verdict.lost += 1;
                    lost.add(|| format!("lost: {key:?} -> {row:?}"));
                }
            }
        }
        for row in other {
            verdict.doubled += 1;
            doubled.add(|| format!("doubled with other values: {key:?} -> {row:?}"));
        }
    }
    for samples in [lost, doubled, wrong, unexpected] {
        verdict.samples.extend(samples.0);
    }
    verdict
}

struct Samples(Vec<String>);

impl Samples {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, say: impl FnOnce() -> String) {
        if self.0.len() < SAMPLES {
            self.0.push(say());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expected: &[(u32, &'static str)], got: &[(u32, &'static str)]) -> (u64, u64, u64, u64) {
        let v = compare(expected.iter().copied(), got.iter().copied());
        assert_eq!(v.is_exact(), (v.lost, v.doubled, v.wrong, v.unexpected) == (0, 0, 0, 0));
        (v.lost, v.doubled, v.wrong, v.unexpected)
    }

    #[test]
    fn each_fault_is_counted_as_what_it_is() {
        let expected = [(1, "a"), (2, "b"), (3, "c")];
        assert_eq!(verdict(&expected, &[(3, "c"), (1, "a"), (2, "b")]), (0, 0, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "a"), (3, "c")]), (1, 0, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "a"), (2, "b"), (3, "c"), (2, "b"), (2, "b")]), (0, 2, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "a"), (2, "x"), (3, "c")]), (0, 0, 1, 0));
        assert_eq!(verdict(&expected, &[(2, "x"), (2, "b"), (1, "a"), (3, "c")]), (0, 1, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "a"), (2, "b"), (3, "c"), (9, "z")]), (0, 0, 0, 1));
        assert_eq!(verdict(&expected, &[]), (3, 0, 0, 0));
    }

    #[test]
    fn a_key_may_be_expected_more_than_once() {
        let expected = [(1, "a"), (1, "a"), (1, "b")];
        assert_eq!(verdict(&expected, &[(1, "b"), (1, "a"), (1, "a")]), (0, 0, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "b"), (1, "a")]), (1, 0, 0, 0));
        assert_eq!(verdict(&expected, &[(1, "b"), (1, "a"), (1, "a"), (1, "b")]), (0, 1, 0, 0));
    }

    #[test]
    #[should_panic(
        expected = "1 lost, 1 doubled, 0 wrong, 0 unexpected (3 rows expected, 3 found)\n  lost: 2 -> \"b\"\n  doubled: 1 -> \"a\""
    )]
    fn the_panic_shows_the_rows() {
        compare([(1, "a"), (2, "b"), (3, "c")], [(1, "a"), (1, "a"), (3, "c")]).assert_exactly_once();
    }

    #[test]
    #[should_panic(expected = "nothing was expected")]
    fn an_empty_expectation_shows_nothing() {
        compare::<u8, u8>([], []).assert_exactly_once();
    }
}
