//! The journal's files: coding, and reading all of them.

use crate::ids::{Generation, JobUuid};
use crate::paths;
use crate::store::{Store, StoreError};
use crate::types::{CheckpointEntry, Entry, GenerationEntry};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// The newest version of the format that is read. Each entry is written in the oldest one that has its kind.
pub const FORMAT: u64 = 2;

/// How often a journal that changes while it is read is read again.
const MAX_READS: usize = 20;

/// The journal cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file that is no entry.
    #[error("{path} is not a journal entry: {reason}; restore the file from a backup or start the job in a new folder")]
    Corrupt {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Written by a newer version.
    #[error("{path} has format {found}, this version reads formats up to {FORMAT}: run the version that wrote it, or a newer one")]
    Format {
        /// The file.
        path: String,
        /// Its format.
        found: String,
    },
    /// An entry of another job.
    #[error(
        "{path} was written by job {found}, but this journal belongs to job {expected}: the folder was emptied while an old \
         incarnation still ran, or is shared by two jobs; make sure that only one runs, then remove this file"
    )]
    Foreign {
        /// The file.
        path: String,
        /// Who wrote it.
        found: JobUuid,
        /// Whose journal it is.
        expected: JobUuid,
    },
    /// Entries without entry 0.
    #[error("the journal has entries but no entry 0: files were removed by hand; restore them or start in a new folder")]
    NoJob,
    /// It changed during every attempt.
    #[error("the journal changed during each of {MAX_READS} attempts to read it: another incarnation is running")]
    Unstable,
}

#[derive(Serialize)]
struct Envelope<'a> {
    format: u64,
    job: JobUuid,
    #[serde(flatten)]
    entry: &'a Entry,
}

#[derive(Deserialize)]
struct Opened {
    job: JobUuid,
    #[serde(flatten)]
    entry: Entry,
}

fn format_of(entry: &Entry) -> u64 {
    match entry {
        Entry::Job { .. } | Entry::Generation(_) | Entry::Checkpoint(_) => 1,
        Entry::Committed(_) => 2,
    }
}

/// The bytes of an entry: JSON with `format`, `job` (the uuid), `kind` and the fields of its kind.
pub fn encode_entry(job: JobUuid, entry: &Entry) -> Result<Bytes, JournalError> {
    let envelope = Envelope { format: format_of(entry), job, entry };
    let corrupt = |error: serde_json::Error| JournalError::Corrupt { path: "new entry".to_owned(), reason: error.to_string() };
    serde_json::to_vec_pretty(&envelope).map(Bytes::from).map_err(corrupt)
}

/// Reads an entry and the job that wrote it. `path` is for the error.
pub fn decode_entry(path: &str, bytes: &[u8]) -> Result<(JobUuid, Entry), JournalError> {
    let corrupt = |reason: String| JournalError::Corrupt { path: path.to_owned(), reason };
    let value: Value = serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))?;
    let format = value.get("format").ok_or_else(|| corrupt("it has no field \"format\"".to_owned()))?;
    if !format.as_u64().is_some_and(|format| (1..=FORMAT).contains(&format)) {
        return Err(JournalError::Format { path: path.to_owned(), found: format.to_string() });
    }
    match value.get("kind").and_then(Value::as_str) {
        Some("job" | "generation" | "checkpoint" | "committed") => {}
        Some(kind) => {
            return Err(corrupt(format!("this version does not know the kind {kind:?}")));
        }
        None => return Err(corrupt("it has no field \"kind\"".to_owned())),
    }
    let opened: Opened = serde_json::from_value(value).map_err(|error| corrupt(error.to_string()))?;
    Ok((opened.job, opened.entry))
}

/// All entries of a journal, as they were at some moment while they were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalView {
    /// Number and entry, ascending. Collected checkpoints leave gaps.
    pub entries: Vec<(u64, Entry)>,
}

impl JournalView {
    /// Uuid and name of the job; `None` for an empty journal.
    pub fn job(&self) -> Option<(JobUuid, &str)> {
        self.entries.iter().find_map(|(_, entry)| match entry {
            Entry::Job { uuid, name, .. } => Some((*uuid, name.as_str())),
            _ => None,
        })
    }

    /// The number at which the next entry belongs.
    pub fn next_number(&self) -> u64 {
        self.entries.last().map_or(0, |(number, _)| number + 1)
    }

    /// The newest start.
    pub fn newest_generation(&self) -> Option<&GenerationEntry> {
        self.entries.iter().rev().find_map(|(_, entry)| entry.generation())
    }

    /// The newest completed checkpoint.
    pub fn newest_checkpoint(&self) -> Option<&CheckpointEntry> {
        self.entries.iter().rev().find_map(|(_, entry)| entry.checkpoint())
    }

    /// All checkpoints that are still there, in the journal's order.
    pub fn checkpoints(&self) -> impl DoubleEndedIterator<Item = &CheckpointEntry> {
        self.entries.iter().filter_map(|(_, entry)| entry.checkpoint())
    }

    /// The start of this generation.
    pub fn generation(&self, generation: Generation) -> Option<&GenerationEntry> {
        self.entries.iter().rev().filter_map(|(_, entry)| entry.generation()).find(|g| g.generation == generation)
    }
}

/// Reads the whole journal. An empty one is no error.
pub async fn read_journal(store: Arc<dyn Store>) -> Result<JournalView, JournalError> {
    for _ in 0..MAX_READS {
        if let Some(view) = read_once(store.as_ref()).await? {
            return Ok(view);
        }
    }
    Err(JournalError::Unstable)
}

/// `None` when the newest entry listed was collected before it was read: the list was too old to decide from.
async fn read_once(store: &dyn Store) -> Result<Option<JournalView>, JournalError> {
    let listed = store.list(paths::JOURNAL).await?;
    let mut numbers: Vec<u64> = listed.iter().filter_map(|object| paths::journal_number(&object.path)).collect();
    numbers.sort_unstable();
    let read = |number: u64| async move { read_entry(store, number).await.map(|entry| (number, entry)) };
    let found: Vec<_> = futures::stream::iter(numbers.iter().copied().map(read)).buffered(16).try_collect().await?;
    if found.last().is_some_and(|(_, entry)| entry.is_none()) {
        return Ok(None);
    }
    let expected = match found.first() {
        None => return Ok(Some(JournalView::default())),
        Some((0, Some((_, Entry::Job { uuid, .. })))) => *uuid,
        Some(_) => return Err(JournalError::NoJob),
    };
    let mut entries = Vec::with_capacity(found.len());
    for (number, entry) in found {
        let Some((job, entry)) = entry else { continue };
        if job != expected {
            return Err(JournalError::Foreign { path: paths::journal_entry(number), found: job, expected });
        }
        entries.push((number, entry));
    }
    Ok(Some(JournalView { entries }))
}

/// Reads one entry; `None` if there is none with this number.
pub(crate) async fn read_entry(store: &dyn Store, number: u64) -> Result<Option<(JobUuid, Entry)>, JournalError> {
    let path = paths::journal_entry(number);
    match store.get(&path).await? {
        Some(bytes) => decode_entry(&path, &bytes).map(Some),
        None => Ok(None),
    }
}
