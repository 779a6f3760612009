//! What a new generation does with the files of those before it.
use crate::io::{failed, remove, sync_folder};
use crate::names::{Kind, PendingName, pending_folder};
use semel_checkpoint::{JobIdentity, OperatorUid};
use semel_engine::sink::{ConnectorResult, Swept};
use std::io::ErrorKind;
use std::path::Path;

/// All names in a pending folder that a sink wrote. A folder that does not exist is empty.
pub(crate) fn list(pending: &Path) -> ConnectorResult<Vec<PendingName>> {
    let entries = match std::fs::read_dir(pending) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(failed("listing", pending, e)),
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.map_err(|e| failed("listing", pending, e))?;
        names.extend(entry.file_name().to_str().and_then(PendingName::parse));
    }
    Ok(names)
}

/// Which files are orphans: parts of strictly lower generations of this very job and sink, with their markers. Everything that a
/// journal entry holds has been renamed before, so a part that is still there is in no entry. A marker without parts is the
/// memory of a commit and stays.
pub(crate) fn orphans(names: &[PendingName], job: &JobIdentity, sink: &OperatorUid) -> Vec<PendingName> {
    let lower = |n: &&PendingName| n.job == job.uuid && n.sink == *sink && n.generation < job.generation;
    let is_part = |n: &PendingName| n.kind != Kind::Ready;
    let has_parts = |marker: &PendingName| names.iter().any(|n| is_part(n) && n.same_transaction(marker));
    let mut orphans: Vec<PendingName> = names.iter().filter(lower).filter(|n| is_part(n) || has_parts(n)).cloned().collect();
    orphans.sort_by_key(|n| (n.kind == Kind::Ready, n.generation, n.checkpoint, n.subtask, n.kind)); // Markers last.
    orphans
}

/// Removes the orphans. Names the parts that are gone.
pub(crate) fn sweep(folder: &Path, job: &JobIdentity, sink: &OperatorUid) -> ConnectorResult<Swept> {
    let pending = pending_folder(folder);
    let mut swept = Swept::default();
    let orphans = orphans(&list(&pending)?, job, sink);
    for name in &orphans {
        if remove(&pending.join(name.to_string()))? && name.kind != Kind::Ready {
            swept.aborted.push(name.to_string());
        }
    }
    if !orphans.is_empty() {
        sync_folder(&pending)?;
    }
    Ok(swept)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::committer::expired_markers;
    use semel_checkpoint::{CheckpointId, Generation, JobUuid};

    fn job(generation: u64) -> JobIdentity {
        JobIdentity {
            name: "orders".into(),
            uuid: "01234567-89ab-4def-8123-456789abcdef".parse().unwrap(),
            generation: Generation(generation),
        }
    }

    fn name(generation: u64, checkpoint: u64, kind: Kind) -> PendingName {
        PendingName {
            job: job(0).uuid,
            sink: "out".parse().unwrap(),
            subtask: 0,
            checkpoint: CheckpointId(checkpoint),
            generation: Generation(generation),
            kind,
        }
    }

    #[test]
    fn only_lower_generations_of_this_job_and_sink_are_orphans() {
        let sink: OperatorUid = "out".parse().unwrap();
        let names = vec![
            name(1, 4, Kind::Part(0)),
            name(1, 4, Kind::Ready),
            name(1, 3, Kind::Ready), // committed
            name(2, 5, Kind::Part(0)),
            name(3, 5, Kind::Part(0)),
            PendingName { sink: "out2".parse().unwrap(), ..name(1, 4, Kind::Part(0)) },
            PendingName { job: JobUuid::random(), ..name(1, 4, Kind::Part(0)) },
        ];
        assert_eq!(orphans(&names, &job(2), &sink), [name(1, 4, Kind::Part(0)), name(1, 4, Kind::Ready)]);
        assert_eq!(orphans(&names, &job(1), &sink), []);
    }

    #[test]
    fn a_marker_goes_only_when_released_and_without_parts() {
        let sink: OperatorUid = "out".parse().unwrap();
        let names = vec![
            name(1, 3, Kind::Ready),
            name(1, 4, Kind::Ready),
            name(1, 4, Kind::Part(1)),
            name(2, 5, Kind::Ready),
            name(3, 3, Kind::Ready),
        ];
        assert_eq!(expired_markers(&names, &job(2), &sink, CheckpointId(4)), [name(1, 3, Kind::Ready)]);
        assert_eq!(expired_markers(&names, &job(2), &sink, CheckpointId(5)), [name(1, 3, Kind::Ready), name(2, 5, Kind::Ready)]);
    }
}
