//! Phase two: what is seen of a part decides what its commit is.
use crate::config::FileSinkSettings;
use crate::io::{blocking, create_folder, exists, failed, remove, sync_folder};
use crate::names::{FileTransaction, Kind, PendingName};
use crate::recovery::list;
use semel_checkpoint::{CheckpointId, CommitPermit, JobIdentity, OperatorUid};
use semel_engine::sink::{Committed, ConnectorError, ConnectorResult, SinkCommitter};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is seen of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) pending: bool,
    pub(crate) visible: bool,
    pub(crate) ready: bool,
}

/// What a commit has to do with one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Rename it.
    Rename,
    /// Nothing: it was renamed before.
    Done,
    /// It cannot be done any more.
    Lost,
    /// Another file has its visible name.
    Taken,
}

/// The table in the crate's documentation.
pub(crate) fn decide(seen: Seen) -> Step {
    match seen {
        Seen { pending: true, visible: false, .. } => Step::Rename,
        Seen { pending: true, visible: true, .. } => Step::Taken,
        Seen { visible: true, .. } | Seen { ready: true, .. } => Step::Done,
        _ => Step::Lost,
    }
}

/// Commits a transaction. May be repeated, also by several processes at once.
pub(crate) fn commit(transaction: &FileTransaction) -> ConnectorResult<Committed> {
    let mut committed = Committed::Already;
    for part in transaction.part_numbers() {
        if commit_part(transaction, part)? == Committed::Now {
            committed = Committed::Now;
        }
    }
    // Also when nothing was renamed: the process that did it may have died before its own fsync.
    sync_folder(&transaction.folder)?;
    let pending = transaction.pending_folder();
    // Somebody may have removed it, with nothing in it that this commit needed.
    create_folder(&pending)?;
    sync_folder(&pending)?;
    Ok(committed)
}

fn commit_part(transaction: &FileTransaction, part: u32) -> ConnectorResult<Committed> {
    let (pending, visible) = (transaction.pending(part), transaction.visible(part));
    // The second round is for a process that renames the same part at the same time: it then sees what that one did.
    for _ in 0..2 {
        // In this order: `pending` turns into `visible`, never back, so that a rename in between is not taken for a loss.
        let seen = Seen { pending: exists(&pending)?, visible: exists(&visible)?, ready: exists(&transaction.ready())? };
        match decide(seen) {
            Step::Done => return Ok(Committed::Already),
            Step::Rename => match std::fs::rename(&pending, &visible) {
                Ok(()) => return Ok(Committed::Now),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(failed(&format!("renaming {} to", pending.display()), &visible, e)),
            },
            Step::Lost => break,
            Step::Taken if !exists(&pending)? => {} // It was renamed between the two looks.
            Step::Taken => {
                return Err(ConnectorError::Fatal(format!(
                    "{} cannot be committed as {}: another file has that name. Move that file away, then start the job again; nothing has been overwritten",
                    pending.display(),
                    visible.display()
                )));
            }
        }
    }
    Err(ConnectorError::Lost(format!(
        "{}: part {part} is neither pending ({}) nor visible ({})",
        transaction.describe(),
        pending.display(),
        visible.display()
    )))
}

/// Removes the parts of a transaction that are not visible yet. May be repeated.
pub(crate) fn abort(transaction: &FileTransaction) -> ConnectorResult<()> {
    for part in transaction.part_numbers() {
        remove(&transaction.pending(part))?;
    }
    // Last: without parts the marker means "committed", which nobody asks of an aborted transaction.
    remove(&transaction.ready())?;
    let pending = transaction.pending_folder();
    match exists(&pending)? {
        true => sync_folder(&pending),
        false => Ok(()),
    }
}

/// Which markers may go when everything up to `committed` is committed for good: those without parts.
pub(crate) fn expired_markers(names: &[PendingName], job: &JobIdentity, sink: &OperatorUid, committed: CheckpointId) -> Vec<PendingName> {
    let own = |n: &&PendingName| n.job == job.uuid && n.sink == *sink && n.generation <= job.generation;
    let has_parts = |marker: &PendingName| names.iter().any(|n| n.kind != Kind::Ready && n.same_transaction(marker));
    let markers = names.iter().filter(own).filter(|n| n.kind == Kind::Ready && n.checkpoint <= committed);
    markers.filter(|n| !has_parts(n)).cloned().collect()
}

/// See [`SinkCommitter`].
pub struct FileCommitter {
    pub(crate) settings: Arc<FileSinkSettings>,
    pub(crate) job: JobIdentity,
    pub(crate) sink: OperatorUid,
    pub(crate) subtask: u32,
}

impl SinkCommitter for FileCommitter {
    type Transaction = FileTransaction;

    async fn commit(&mut self, transaction: &FileTransaction, permit: &CommitPermit) -> ConnectorResult<Committed> {
        check_permit(transaction, permit)?;
        let transaction = transaction.clone();
        blocking(self.settings.io_timeout, format!("commit of {}", transaction.describe()), move || commit(&transaction)).await
    }

    async fn abort(&mut self, transaction: &FileTransaction) -> ConnectorResult<()> {
        let transaction = transaction.clone();
        blocking(self.settings.io_timeout, format!("abort of {}", transaction.describe()), move || abort(&transaction)).await
    }

    /// Subtask 0 removes the markers of all: subtasks of a former generation may have no successor.
    async fn released(&mut self, committed: CheckpointId) -> ConnectorResult<()> {
        if self.subtask != 0 {
            return Ok(());
        }
        let (job, sink, folder) = (self.job.clone(), self.sink.clone(), self.settings.folder.clone());
        blocking(self.settings.io_timeout, format!("removing markers in {}", folder.display()), move || {
            let pending: PathBuf = crate::names::pending_folder(&folder);
            let gone = expired_markers(&list(&pending)?, &job, &sink, committed);
            gone.iter().try_for_each(|name| remove(&pending.join(Path::new(&name.to_string()))).map(drop))
        })
        .await
    }
}

/// Refuses a permit of another job or of an earlier checkpoint.
pub(crate) fn check_permit(transaction: &FileTransaction, permit: &CommitPermit) -> ConnectorResult<()> {
    match permit.job() == transaction.job && transaction.checkpoint <= permit.checkpoint() {
        true => Ok(()),
        false => Err(ConnectorError::Fatal(format!(
            "a permit for checkpoint {} of job {} does not cover {}",
            permit.checkpoint(),
            permit.job(),
            transaction.describe()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sight_has_one_decision() {
        let table = [
            ((true, false, true), Step::Rename),
            ((true, false, false), Step::Rename),
            ((false, true, true), Step::Done),
            ((false, true, false), Step::Done),
            ((false, false, true), Step::Done),
            ((false, false, false), Step::Lost),
            ((true, true, true), Step::Taken),
            ((true, true, false), Step::Taken),
        ];
        for ((pending, visible, ready), expected) in table {
            assert_eq!(decide(Seen { pending, visible, ready }), expected, "{pending} {visible} {ready}");
        }
    }
}
