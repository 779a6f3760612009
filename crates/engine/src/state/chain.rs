//! The chain of files that a subtask's state consists of, and when to compact it. Pure decisions.

use super::snapshot_file::{FileHeader, SnapshotReader};
use semel_checkpoint::{Part, StateFile};
use std::ops::RangeInclusive;

/// More units than this are compacted. The base counts as one, every other file too.
const MOST_UNITS: usize = 12;
/// A base is rewritten when the changes since are this many times its size.
const OUTWEIGHED: u64 = 2;
/// Below this size nothing outweighs anything.
const SMALL: u64 = 1 << 20;
/// A compaction merges at least this many files.
const LEAST_MERGED: usize = 4;

/// A durable file of a chain, with what decisions need of its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainFile {
    /// `slots` is what the chain uses of it: after rescaling this can be less than what is in the file.
    pub file: StateFile,
    /// Nothing before it is needed for its writer's slots.
    pub base: bool,
    /// The highest namespace in it.
    pub max_namespace: i64,
    /// Bytes of the batches that hold the slots used.
    pub weight: u64,
}

impl ChainFile {
    pub fn opened(reader: &SnapshotReader) -> ChainFile {
        ChainFile::new(reader.file().clone(), reader.header(), reader.bytes_of(&reader.batches()))
    }

    pub fn new(file: StateFile, header: &FileHeader, weight: u64) -> ChainFile {
        ChainFile { file, base: header.base, max_namespace: header.max_namespace, weight }
    }
}

/// The durable files of one subtask, oldest first: later rows override earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain(pub(crate) Vec<ChainFile>);

impl Chain {
    /// The files, as a checkpoint lists them.
    pub fn files(&self) -> Vec<StateFile> {
        self.0.iter().map(|entry| entry.file.clone()).collect()
    }

    /// Leaves out files that hold nothing but dead namespaces.
    pub(crate) fn drop_dead(&mut self, min_live_namespace: Option<i64>) {
        self.0.retain(|entry| min_live_namespace.is_none_or(|lowest| entry.max_namespace >= lowest));
    }

    /// The index of the first file to merge, together with all after it; `None` if the chain is good as it is. 0 makes a new base.
    ///
    /// A long chain of small changes after a large base does not rewrite the base: only the newest files are merged, as far back as
    /// each is not much larger than all after it. So file sizes grow geometrically towards the base, and a row is rewritten
    /// a logarithmic number of times.
    pub(crate) fn compaction(&self) -> Option<usize> {
        let base = self.0.iter().take_while(|entry| entry.base).count().max(1).min(self.0.len());
        let weigh = |files: &[ChainFile]| files.iter().map(|entry| entry.weight).sum::<u64>();
        let (base_bytes, changes) = (weigh(&self.0[..base]), weigh(&self.0[base..]));
        if changes > SMALL && changes > OUTWEIGHED * base_bytes {
            return Some(0);
        }
        if self.0.len() - base < MOST_UNITS {
            return None;
        }
        let mut first = self.0.len() - LEAST_MERGED;
        let mut merged = weigh(&self.0[first..]);
        while first > base && self.0[first - 1].weight <= OUTWEIGHED * merged {
            first -= 1;
            merged += self.0[first].weight;
        }
        Some(if first == base && base_bytes <= OUTWEIGHED * merged { 0 } else { first })
    }
}

/// The files of a checkpoint that hold any of these slots, in chain order, cut down to them.
///
/// The slots of the parts do not overlap, whatever the files hold: so one part's files may follow another's.
pub(crate) fn files_of(parts: &[Part], slots: &RangeInclusive<u16>) -> Vec<StateFile> {
    let mut files: Vec<StateFile> = Vec::new();
    for file in parts.iter().flat_map(|part| &part.files) {
        let (first, last) = (file.slots.0.max(*slots.start()), file.slots.1.min(*slots.end()));
        if first > last || slots.is_empty() {
            continue;
        }
        // Two parts may each use one half of a file that was written before them. It is one again if nothing that came
        // before the second half overlaps that.
        let overlaps = |other: &StateFile| other.slots.0 <= last && other.slots.1 >= first;
        let half = files.iter().position(|other| other.path == file.path && u32::from(other.slots.1) + 1 == u32::from(first));
        match half {
            Some(i) if !files[i + 1..].iter().any(overlaps) => files[i].slots.1 = last,
            _ => files.push(StateFile { slots: (first, last), ..file.clone() }),
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(base: u64, changes: &[u64]) -> Chain {
        let entry = |(i, weight): (usize, &u64)| ChainFile {
            file: StateFile { path: i.to_string(), bytes: *weight, slots: (0, 255) },
            base: i == 0,
            max_namespace: i as i64,
            weight: *weight,
        };
        Chain([&[base], changes].concat().iter().enumerate().map(entry).collect())
    }

    #[test]
    fn a_chain_is_compacted_when_it_is_long_or_its_base_is_outweighed() {
        const MB: u64 = 1 << 20;
        assert_eq!(Chain::default().compaction(), None);
        assert_eq!(chain(100 * MB, &[MB; 11]).compaction(), None);
        assert_eq!(chain(4 * MB, &[8 * MB]).compaction(), None);
        assert_eq!(chain(4 * MB, &[8 * MB + 1]).compaction(), Some(0));
        assert_eq!(chain(10, &[MB]).compaction(), None, "too small to matter");
        assert_eq!(chain(100, &[1000; 12]).compaction(), Some(0), "a base that is cheap to rewrite");
        assert_eq!(chain(1 << 40, &[1000; 12]).compaction(), Some(1), "a base that is not");
        let mut changes = vec![1 << 30, 1 << 25];
        changes.extend([1000; 11]);
        assert_eq!(chain(1 << 40, &changes).compaction(), Some(3), "large files are left alone as well");
        let growing: Vec<u64> = (0..13).rev().map(|i| 10u64.pow(i)).collect();
        assert_eq!(chain(1 << 60, &growing).compaction(), Some(10), "always some, or the chain would grow for ever");
    }

    #[test]
    fn files_of_dead_namespaces_fall_out() {
        let mut chain = chain(1, &[1, 1]);
        chain.drop_dead(None);
        assert_eq!(chain.0.len(), 3);
        chain.drop_dead(Some(2));
        assert_eq!(chain.files().iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["2"]);
    }

    #[test]
    fn each_subtask_takes_its_share_of_the_files() {
        let file = |path: &str, first, last| StateFile { path: path.into(), bytes: 1, slots: (first, last) };
        let part = |subtask, files| Part { subtask, files };
        // Part 1 has compacted what it had in "old", part 0 has not.
        let compacted = [part(0, vec![file("old", 0, 127), file("a", 3, 100)]), part(1, vec![file("b", 128, 255)])];
        assert_eq!(files_of(&compacted, &(0..=255)), [file("old", 0, 127), file("a", 3, 100), file("b", 128, 255)]);
        assert_eq!(files_of(&compacted, &(101..=200)), [file("old", 101, 127), file("b", 128, 200)]);
        let halves = [part(0, vec![file("old", 0, 127), file("a", 3, 100)]), part(1, vec![file("old", 128, 255)])];
        assert_eq!(files_of(&halves, &(0..=255)), [file("old", 0, 255), file("a", 3, 100)]);
        let before = [part(0, vec![file("old", 0, 127)]), part(1, vec![file("older", 128, 255), file("old", 128, 255)])];
        assert_eq!(files_of(&before, &(0..=255)).len(), 3, "the order within a part counts");
        assert_eq!(files_of(&halves, &RangeInclusive::new(1, 0)), []);
    }
}
