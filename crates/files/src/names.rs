//! Names: they alone tie a file to its transaction, so they hold job uuid, sink uid, subtask, checkpoint and generation.
use semel_checkpoint::{CheckpointId, Generation, JobUuid, OperatorUid};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The folder inside the sink's folder that holds what is not committed.
pub const PENDING_FOLDER: &str = ".semel-pending";

/// The handle of a transaction: enough to commit or abort it from another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTransaction {
    /// The sink's folder, absolute: where it was written, whatever the settings say later.
    pub folder: PathBuf,
    /// Of the job.
    pub job: JobUuid,
    /// Of the sink.
    pub sink: OperatorUid,
    /// The subtask that wrote it.
    pub subtask: u32,
    /// The checkpoint whose rows it holds.
    pub checkpoint: CheckpointId,
    /// The generation that wrote it.
    pub generation: Generation,
    /// Begin of the visible names.
    pub prefix: String,
    /// End of the visible names.
    pub suffix: String,
    /// Bytes of each part, in order; the index is the part's number.
    pub parts: Vec<u64>,
}

impl FileTransaction {
    /// The folder of pending files.
    pub fn pending_folder(&self) -> PathBuf {
        self.folder.join(PENDING_FOLDER)
    }

    /// Where a part lies until the commit.
    pub fn pending(&self, part: u32) -> PathBuf {
        self.pending_folder().join(self.name(Kind::Part(part)).to_string())
    }

    /// The marker that says that all parts are complete and durable.
    pub fn ready(&self) -> PathBuf {
        self.pending_folder().join(self.name(Kind::Ready).to_string())
    }

    /// Where a part lies after the commit. Without the generation: for one checkpoint id only one generation ever gets a permit.
    pub fn visible(&self, part: u32) -> PathBuf {
        let FileTransaction { prefix, sink, subtask, checkpoint, suffix, .. } = self;
        self.folder.join(format!("{prefix}-{}-{sink}-{subtask}-{checkpoint}-{part}{suffix}", self.job.short()))
    }

    /// Numbers of the parts.
    pub fn part_numbers(&self) -> std::ops::Range<u32> {
        0..self.parts.len() as u32
    }

    /// For people.
    pub fn describe(&self) -> String {
        let FileTransaction { folder, sink, subtask, checkpoint, generation, parts, .. } = self;
        format!(
            "{} part file(s) of checkpoint {checkpoint} (generation {generation}) of sink {sink} subtask {subtask} in {}",
            parts.len(),
            folder.display()
        )
    }

    fn name(&self, kind: Kind) -> PendingName {
        PendingName {
            job: self.job,
            sink: self.sink.clone(),
            subtask: self.subtask,
            checkpoint: self.checkpoint,
            generation: self.generation,
            kind,
        }
    }
}

/// What a file in the pending folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The n-th part of a transaction.
    Part(u32),
    /// The marker.
    Ready,
}

/// The name of a file in the pending folder. `~` cannot be part of a uid, so names can be read back without doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingName {
    pub(crate) job: JobUuid,
    pub(crate) sink: OperatorUid,
    pub(crate) subtask: u32,
    pub(crate) checkpoint: CheckpointId,
    pub(crate) generation: Generation,
    pub(crate) kind: Kind,
}

impl std::fmt::Display for PendingName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PendingName { job, sink, subtask, checkpoint, generation, kind } = self;
        write!(f, "{job}~{sink}~{subtask}~{checkpoint}~{generation}~")?;
        match kind {
            Kind::Part(part) => write!(f, "{part}.part"),
            Kind::Ready => f.write_str("ready"),
        }
    }
}

impl PendingName {
    /// Reads a name back; `None` for a file that no sink wrote. Only names that this module itself writes are read: no `+1`, no `01`.
    pub(crate) fn parse(name: &str) -> Option<PendingName> {
        let [job, sink, subtask, checkpoint, generation, kind]: [&str; 6] = name.split('~').collect::<Vec<_>>().try_into().ok()?;
        let kind = match kind.strip_suffix(".part") {
            Some(part) => Kind::Part(part.parse().ok()?),
            None if kind == "ready" => Kind::Ready,
            None => return None,
        };
        let parsed = PendingName {
            job: job.parse().ok()?,
            sink: sink.parse().ok()?,
            subtask: subtask.parse().ok()?,
            checkpoint: CheckpointId(checkpoint.parse().ok()?),
            generation: Generation(generation.parse().ok()?),
            kind,
        };
        (parsed.to_string() == name).then_some(parsed)
    }

    /// Whether both belong to one transaction.
    pub(crate) fn same_transaction(&self, other: &PendingName) -> bool {
        (self.job, &self.sink, self.subtask, self.checkpoint, self.generation)
            == (other.job, &other.sink, other.subtask, other.checkpoint, other.generation)
    }
}

/// The pending folder of a sink's folder.
pub(crate) fn pending_folder(folder: &Path) -> PathBuf {
    folder.join(PENDING_FOLDER)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(kind: Kind) -> PendingName {
        PendingName {
            job: "01234567-89ab-4def-8123-456789abcdef".parse().unwrap(),
            sink: "out.files-1_x".parse().unwrap(),
            subtask: 3,
            checkpoint: CheckpointId(17),
            generation: Generation(2),
            kind,
        }
    }

    #[test]
    fn names_are_read_back() {
        for kind in [Kind::Part(0), Kind::Part(12), Kind::Ready] {
            assert_eq!(PendingName::parse(&name(kind).to_string()).unwrap(), name(kind));
        }
        assert_eq!(name(Kind::Part(4)).to_string(), "0123456789ab4def8123456789abcdef~out.files-1_x~3~17~2~4.part");
    }

    #[test]
    fn foreign_names_are_left_alone() {
        let good = name(Kind::Part(4)).to_string();
        for bad in [
            "",
            "x.part",
            "a~b~c~d~e~f.part",
            &format!("{good}x"),
            &format!("x{good}"),
            &good.replace("~3~", "~03~"),
            &good.replace("~3~", "~+3~"),
            &good.replace(".part", ".tmp"),
            &good.replace("0123456789ab4def", "01234567-89ab-4def"),
            &format!("{good}~ready"),
        ] {
            assert_eq!(PendingName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_longest_names_fit_a_file_system() {
        let long = PendingName {
            sink: "x".repeat(100).parse().unwrap(),
            subtask: u32::MAX,
            checkpoint: CheckpointId(u64::MAX),
            generation: Generation(u64::MAX),
            kind: Kind::Part(u32::MAX),
            ..name(Kind::Ready)
        };
        assert!(long.to_string().len() <= 255);
        let handle = FileTransaction {
            folder: "/".into(),
            job: long.job,
            sink: long.sink.clone(),
            subtask: u32::MAX,
            checkpoint: long.checkpoint,
            generation: long.generation,
            prefix: "p".repeat(40),
            suffix: "s".repeat(40),
            parts: vec![],
        };
        assert!(handle.visible(u32::MAX).file_name().unwrap().len() <= 255);
    }
}
