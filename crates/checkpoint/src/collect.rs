//! Collection: removing what no restart can need.

use crate::ids::{CheckpointId, JobIdentity};
use crate::journal::{JournalError, read_journal};
use crate::paths::{self, SnapshotPath, StagedPath};
use crate::store::{Store, StoreError, StoredObject};
use crate::types::{CheckpointEntry, Entry, GenerationEntry};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;

/// What is observed before collecting. The files should be listed *before* the journal is read.
#[derive(Clone, Copy, Debug)]
pub struct CollectionFacts<'a> {
    /// Who collects.
    pub identity: &'a JobIdentity,
    /// All entries of the journal, ascending by number.
    pub entries: &'a [(u64, Entry)],
    /// All objects under `snapshots/` and `staged/`.
    pub files: &'a [StoredObject],
}

/// What to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// Numbers of journal entries.
    pub entries: Vec<u64>,
    /// Files, to be removed after the entries, so that no entry ever refers to a missing file.
    pub files: Vec<StoredObject>,
}

/// Decides what may be removed.
///
/// * *Entries*: checkpoints that are neither in the newest entry's retained set nor after its `committed`. Never
///   entry 0, a `Generation`, or the newest checkpoint.
/// * *Files* that no kept entry refers to, of this job, of a strictly lower generation, or of the own one and of a
///   checkpoint up to the newest entry (later ones may be in flight).
///
/// A plan may be carried out late, even by a zombie whose successor has gone on. That is harmless because what it
/// holds never becomes wanted again: retained sets only lose members, `committed` only grows, an entry
/// lists only files that an entry before it listed or that its own generation wrote for a checkpoint after
/// that entry, and a successor's files are of a higher generation.
pub fn plan_collection(facts: CollectionFacts<'_>) -> Collection {
    let CollectionFacts { identity, entries, files } = facts;
    let current = entries.iter().rev().find_map(|(_, entry)| entry.generation());
    if current.is_none_or(|start| start.generation != identity.generation) {
        return Collection::default();
    }
    let Some(newest) = entries.iter().rev().find_map(|(_, entry)| entry.checkpoint()) else {
        return Collection {
            entries: Vec::new(),
            files: files.iter().filter(|file| superseded(&file.path, identity, None)).cloned().collect(),
        };
    };
    let (mut removed, mut wanted) = (Vec::new(), HashSet::new());
    for (number, entry) in entries {
        let Entry::Checkpoint(checkpoint) = entry else {
            continue;
        };
        let kept = checkpoint.id == newest.id || checkpoint.id > newest.committed || newest.retained.contains(&checkpoint.id);
        if kept {
            add_references(checkpoint, &mut wanted);
        } else {
            removed.push(*number);
        }
    }
    let unwanted = |file: &&StoredObject| !wanted.contains(file.path.as_str()) && superseded(&file.path, identity, Some(newest.id));
    Collection { entries: removed, files: files.iter().filter(unwanted).cloned().collect() }
}

/// Whether only an entry that exists already could refer to the file.
fn superseded(path: &str, identity: &JobIdentity, newest: Option<CheckpointId>) -> bool {
    let parsed = path.parse::<SnapshotPath>().or_else(|_| path.parse::<StagedPath>().map(|staged| staged.0));
    let Ok(file) = parsed else { return false };
    let own = file.generation == identity.generation && newest.is_some_and(|newest| file.checkpoint <= newest);
    file.job == identity.uuid && (file.generation < identity.generation || own)
}

fn add_references(checkpoint: &CheckpointEntry, wanted: &mut HashSet<String>) {
    wanted.extend(checkpoint.state_paths().map(str::to_owned));
    for committable in &checkpoint.committables {
        add_staged(&committable.handle, wanted);
    }
}

/// Finds every staged path anywhere in a handle, also as part of a longer text such as a URL.
fn add_staged(value: &Value, wanted: &mut HashSet<String>) {
    match value {
        Value::String(text) => {
            for (start, _) in text.match_indices(paths::STAGED) {
                let rest = text.get(start..).unwrap_or_default();
                // A uid may hold ".arrow" itself, so each possible end counts.
                for (end, suffix) in rest.match_indices(".arrow") {
                    wanted.extend(rest.get(..end + suffix.len()).map(str::to_owned));
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| add_staged(value, wanted)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            add_staged(&Value::String(name.clone()), wanted);
            add_staged(value, wanted);
        }),
        _ => {}
    }
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Journal entries.
    pub entries: usize,
    /// Files.
    pub files: usize,
    /// The files' bytes.
    pub bytes: u64,
}

/// Why nothing, or not everything, was collected. What is left is found by the next collection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CollectError {
    /// A newer incarnation runs; nothing was removed.
    #[error("generation {} of this job was started on {} (process {})", winner.generation, winner.host, winner.pid)]
    Fenced {
        /// The newer incarnation.
        winner: Box<GenerationEntry>,
    },
    /// The folder was emptied or replaced under the running job; nothing was removed.
    #[error("the journal is no longer that of this job: the folder was emptied or replaced while the job ran; stop it")]
    Replaced,
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Collects once: lists, decides, removes entries, then files. May be repeated and interrupted at any point.
pub async fn collect(store: Arc<dyn Store>, identity: &JobIdentity) -> Result<Collected, CollectError> {
    let mut files = store.list(paths::SNAPSHOTS).await?;
    files.extend(store.list(paths::STAGED).await?);
    let view = read_journal(store.clone()).await?;
    if view.job().is_none_or(|(uuid, _)| uuid != identity.uuid) {
        return Err(CollectError::Replaced);
    }
    if let Some(winner) = view.newest_generation().filter(|start| start.generation != identity.generation) {
        return Err(CollectError::Fenced { winner: Box::new(winner.clone()) });
    }
    let plan = plan_collection(CollectionFacts { identity, entries: &view.entries, files: &files });
    let entries: Vec<String> = plan.entries.iter().map(|number| paths::journal_entry(*number)).collect();
    let files: Vec<String> = plan.files.iter().map(|file| file.path.clone()).collect();
    remove(store.as_ref(), &entries).await?;
    remove(store.as_ref(), &files).await?;
    let bytes = plan.files.iter().map(|file| file.bytes).sum();
    Ok(Collected { entries: entries.len(), files: files.len(), bytes })
}

async fn remove(store: &dyn Store, paths: &[String]) -> Result<(), StoreError> {
    // Collected first: a lazy iterator of borrowing closures would keep the future from being `Send`.
    let deletions: Vec<_> = paths.iter().map(|path| store.delete(path)).collect();
    futures::stream::iter(deletions).buffered(8).try_collect::<Vec<()>>().await.map(drop)
}
