//! Identities as types of their own, so that they cannot be mistaken for each other.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The number of a checkpoint: grows with every barrier of a job and is never used for two completed checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CheckpointId(pub u64);

impl CheckpointId {
    /// The id after this one.
    pub fn next(self) -> CheckpointId {
        CheckpointId(self.0.saturating_add(1))
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of an incarnation of a job: each start claims the next one in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation after this one.
    pub fn next(self) -> Generation {
        Generation(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Drawn once, by journal entry 0. Part of every external name, so that a wiped store or a second job of the same
/// name never takes foreign work for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobUuid(pub Uuid);

impl JobUuid {
    /// A new random one.
    pub fn random() -> JobUuid {
        JobUuid(Uuid::new_v4())
    }

    /// The first 8 hexadecimal digits, for names whose length is limited.
    pub fn short(&self) -> String {
        let mut digits = self.0.simple().to_string();
        digits.truncate(8);
        digits
    }
}

impl fmt::Display for JobUuid {
    /// 32 hexadecimal digits without hyphens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

impl FromStr for JobUuid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<JobUuid, IdError> {
        Uuid::parse_str(text).map(JobUuid).map_err(|_| IdError::JobUuid(text.to_owned()))
    }
}

/// The stable name of an operator, a source or a sink; state and transactions are found by it after a restart.
/// 1 to 100 characters of `A-Z a-z 0-9 _ . -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct OperatorUid(String);

impl OperatorUid {
    /// The longest allowed uid, in characters.
    pub const MAX_LENGTH: usize = 100;

    /// Checks and takes a name.
    pub fn new(name: impl Into<String>) -> Result<OperatorUid, IdError> {
        let name = name.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if name.is_empty() || name.len() > Self::MAX_LENGTH || !name.chars().all(allowed) {
            return Err(IdError::OperatorUid(name));
        }
        Ok(OperatorUid(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperatorUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for OperatorUid {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for OperatorUid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<OperatorUid, IdError> {
        OperatorUid::new(text)
    }
}

impl TryFrom<&str> for OperatorUid {
    type Error = IdError;

    fn try_from(text: &str) -> Result<OperatorUid, IdError> {
        OperatorUid::new(text)
    }
}

impl TryFrom<String> for OperatorUid {
    type Error = IdError;

    fn try_from(text: String) -> Result<OperatorUid, IdError> {
        OperatorUid::new(text)
    }
}

impl<'de> Deserialize<'de> for OperatorUid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OperatorUid, D::Error> {
        OperatorUid::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A text that is no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not a uid.
    #[error("{0:?} is not a valid uid: use 1 to 100 characters out of A-Z, a-z, 0-9, '_', '.' and '-'")]
    OperatorUid(String),
    /// Not a job uuid.
    #[error("{0:?} is not a job uuid: 32 hexadecimal digits, with or without hyphens, are expected")]
    JobUuid(String),
    /// Not the path of a snapshot or of staged rows.
    #[error("{0:?} is not a path of this store: expected snapshots/<checkpoint>/<uid>-<subtask>-<generation>-<serial>-<job>.arrow")]
    Path(String),
}

/// What every external name of a running job is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobIdentity {
    /// The name that the user gave.
    pub name: String,
    /// Drawn by journal entry 0.
    pub uuid: JobUuid,
    /// The incarnation that runs.
    pub generation: Generation,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_uid_is_checked_also_when_it_is_read() {
        for good in ["a", "orders.window-1_x", &"x".repeat(100)] {
            assert_eq!(OperatorUid::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a/b", "a b", "ä", "..\\x", &"x".repeat(101)] {
            let error = OperatorUid::new(bad).unwrap_err().to_string();
            assert!(error.contains("A-Z, a-z, 0-9, '_', '.' and '-'"), "{error}");
            assert!(serde_json::from_value::<OperatorUid>(serde_json::json!(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_job_uuid_has_a_short_form() {
        let uuid: JobUuid = "01234567-89ab-4def-8123-456789abcdef".parse().unwrap();
        assert_eq!(uuid.short(), "01234567");
        assert_eq!(uuid.to_string(), "0123456789ab4def8123456789abcdef");
        assert_eq!(uuid.to_string().parse::<JobUuid>().unwrap(), uuid);
    }
}
