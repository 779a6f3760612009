//! The only place that makes and reads names in the store.

use crate::ids::{CheckpointId, Generation, IdError, JobUuid, OperatorUid};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The folder of the journal.
pub const JOURNAL: &str = "journal/";
/// The folder of operator state.
pub const SNAPSHOTS: &str = "snapshots/";
/// The folder of rows that are staged for a sink.
pub const STAGED: &str = "staged/";

/// The path of the journal entry with this number.
pub fn journal_entry(number: u64) -> String {
    format!("{JOURNAL}{number:020}.json")
}

/// The number in the path of a journal entry; `None` for any other path.
pub fn journal_number(path: &str) -> Option<u64> {
    let digits = path.strip_prefix(JOURNAL)?.strip_suffix(".json")?;
    let number = (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())??;
    Some(number)
}

/// The path of a file of operator state: `snapshots/<checkpoint>/<uid>-<subtask>-<generation>-<serial>-<job>.arrow`.
///
/// Generation and job make it unique to its writer: a zombie and its successor both write checkpoint n + 1. The
/// checkpoint must be the first one that lists the file, since collection relies on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SnapshotPath {
    /// The first checkpoint that lists it.
    pub checkpoint: CheckpointId,
    /// The operator.
    pub uid: OperatorUid,
    /// The subtask that wrote it.
    pub subtask: u32,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Distinguishes several files of one subtask in one checkpoint.
    pub serial: u32,
    /// The job that wrote it.
    pub job: JobUuid,
}

impl fmt::Display for SnapshotPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SnapshotPath { checkpoint, uid, subtask, generation, serial, job } = self;
        write!(f, "{SNAPSHOTS}{checkpoint}/{uid}-{subtask}-{generation}-{serial}-{job}.arrow")
    }
}

impl FromStr for SnapshotPath {
    type Err = IdError;

    fn from_str(path: &str) -> Result<SnapshotPath, IdError> {
        parse(SNAPSHOTS, path)
    }
}

/// The path of staged rows of a sink: as [`SnapshotPath`], under `staged/`. A committable's handle holds it as text,
/// which is how collection knows that it is still wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StagedPath(pub SnapshotPath);

impl fmt::Display for StagedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SnapshotPath { checkpoint, uid, subtask, generation, serial, job } = &self.0;
        write!(f, "{STAGED}{checkpoint}/{uid}-{subtask}-{generation}-{serial}-{job}.arrow")
    }
}

impl FromStr for StagedPath {
    type Err = IdError;

    fn from_str(path: &str) -> Result<StagedPath, IdError> {
        parse(STAGED, path).map(StagedPath)
    }
}

fn parse(folder: &str, path: &str) -> Result<SnapshotPath, IdError> {
    let parts = || {
        let (checkpoint, name) = path.strip_prefix(folder)?.strip_suffix(".arrow")?.split_once('/')?;
        // From the right: a uid may hold hyphens.
        let mut parts = name.rsplitn(5, '-');
        let job = parts.next()?.parse().ok()?;
        let serial = parts.next()?.parse().ok()?;
        let generation = Generation(parts.next()?.parse().ok()?);
        let subtask = parts.next()?.parse().ok()?;
        let uid = OperatorUid::new(parts.next()?).ok()?;
        let checkpoint = CheckpointId(checkpoint.parse().ok()?);
        Some(SnapshotPath { checkpoint, uid, subtask, generation, serial, job })
    };
    parts().ok_or_else(|| IdError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_are_read_back_as_written() {
        let path = SnapshotPath {
            checkpoint: CheckpointId(12),
            uid: OperatorUid::new("sum-by-1-2").unwrap(),
            subtask: 3,
            generation: Generation(4),
            serial: 5,
            job: JobUuid::random(),
        };
        assert!(path.to_string().starts_with("snapshots/12/sum-by-1-2-3-4-5-"));
        assert_eq!(path.to_string().parse::<SnapshotPath>().unwrap(), path);
        let staged = StagedPath(path);
        assert_eq!(staged.to_string().parse::<StagedPath>().unwrap(), staged);
        assert!(staged.to_string().parse::<SnapshotPath>().is_err());
        assert!("snapshots/12/x-1-2-3.arrow".parse::<SnapshotPath>().is_err());
    }

    #[test]
    fn only_whole_numbers_of_20_digits_are_entries() {
        assert_eq!(journal_number(&journal_entry(12)), Some(12));
        for other in ["journal/12.json", "journal/+0000000000000000012.json", "journal/00000000000000000012.json.tmp"] {
            assert_eq!(journal_number(other), None);
        }
    }
}
