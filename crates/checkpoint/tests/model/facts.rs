//! Between the model's small values and the crate's real types, so that the real decisions decide.

use super::Rules;
use super::state::{Content, File, Record, State};
use semel_checkpoint::*;
use std::collections::BTreeMap;
use uuid::Uuid;

pub fn job_uuid(job: u8) -> JobUuid {
    JobUuid(Uuid::from_u128(u128::from(job) + 1))
}

pub fn nonce(record: &Record) -> Uuid {
    let kind = match &record.content {
        Content::Job => 0,
        Content::Generation { .. } => 1,
        Content::Checkpoint(checkpoint) => 2 + u128::from(checkpoint.id),
        Content::Committed { committed, .. } => 128 + u128::from(*committed),
    };
    let writer = u128::from(record.writer) << 16 | u128::from(record.start) << 8;
    Uuid::from_u128(1 + (writer | kind | u128::from(record.job) << 24))
}

pub fn path(file: File) -> SnapshotPath {
    SnapshotPath {
        checkpoint: CheckpointId(file.checkpoint.into()),
        uid: uid("state"),
        subtask: 0,
        generation: Generation(file.generation.into()),
        serial: 0,
        job: job_uuid(file.job),
    }
}

pub fn id(id: u8) -> CheckpointId {
    CheckpointId(id.into())
}

pub fn small(id: CheckpointId) -> u8 {
    u8::try_from(id.0).unwrap()
}

fn uid(name: &str) -> OperatorUid {
    OperatorUid::new(name).unwrap()
}

pub fn entry(record: &Record) -> Entry {
    let nonce = nonce(record);
    match &record.content {
        Content::Job => Entry::Job { uuid: job_uuid(record.job), name: String::new(), nonce, created_at_ms: 0 },
        Content::Generation { generation, restored } => Entry::Generation(GenerationEntry {
            generation: Generation((*generation).into()),
            nonce,
            plan_hash: String::new(),
            parallelism: 1,
            processes: 1,
            host: String::new(),
            pid: 0,
            supervisor: nonce,
            started_at_ms: 0,
            restored: restored.map(id),
        }),
        Content::Committed { committed, generation, .. } => Entry::Committed(CommittedEntry {
            generation: Generation((*generation).into()),
            nonce,
            committed: id(*committed),
            ended: true,
            written_at_ms: 0,
        }),
        Content::Checkpoint(checkpoint) => {
            let file = |file: &File| StateFile { path: path(*file).to_string(), bytes: 0, slots: (0, 0) };
            let part = Part { subtask: 0, files: checkpoint.files.iter().map(file).collect() };
            let snapshot = OperatorSnapshot { parts: vec![part], ..OperatorSnapshot::default() };
            let committables = checkpoint.transactions.iter().map(|transaction| Committable {
                sink: uid("sink"),
                subtask: 0,
                checkpoint: id(transaction.checkpoint),
                generation: Generation(transaction.generation.into()),
                handle: serde_json::Value::Null,
                rows: 0,
                bytes: 0,
            });
            Entry::Checkpoint(CheckpointEntry {
                id: id(checkpoint.id),
                generation: Generation(checkpoint.generation.into()),
                nonce,
                parallelism: 1,
                slots: 1,
                committed: id(checkpoint.committed),
                operators: BTreeMap::from([(uid("state"), snapshot)]),
                sources: BTreeMap::new(),
                committables: committables.collect(),
                retained: checkpoint.retained.iter().copied().map(id).collect(),
                finished: false,
                triggered_at_ms: 0,
                completed_at_ms: 0,
                state_bytes: 0,
                new_bytes: 0,
                ranges: String::new(),
            })
        }
    }
}

/// The journal as the real code reads it; `None` if it would refuse because of an entry of another job.
pub fn entries(state: &State) -> Option<Vec<(u64, Entry)>> {
    let job = state.job()?;
    let all = state.journal.iter();
    all.map(|(number, record)| (record.job == job).then(|| (u64::from(*number), entry(record)))).collect()
}

/// The real collection plan, or one made by broken rules.
pub fn plan(rules: &Rules, state: &State, job: u8, generation: u8, listed: &[File]) -> (Vec<u8>, Vec<File>) {
    let Some(entries) = entries(state).filter(|_| state.job() == Some(job)) else {
        return (vec![], vec![]);
    };
    let identity = JobIdentity { name: String::new(), uuid: job_uuid(job), generation: Generation(generation.into()) };
    let objects: Vec<StoredObject> = listed.iter().map(|file| StoredObject { path: path(*file).to_string(), bytes: 0 }).collect();
    let facts = CollectionFacts { identity: &identity, entries: &entries, files: &objects };
    let planned = plan_collection(facts);
    let mut numbers: Vec<u8> = planned.entries.iter().map(|number| u8::try_from(*number).unwrap()).collect();
    let removed = |file: &File| planned.files.iter().any(|object| object.path == path(*file).to_string());
    let mut files: Vec<File> = listed.iter().copied().filter(removed).collect();
    let newest = state.checkpoints().next_back();
    if !rules.generation_entries_stay {
        let before = state.journal.iter().rev().find(|(_, record)| matches!(record.content, Content::Checkpoint(_)));
        let before = before.map_or(0, |(number, _)| *number);
        let old = state.journal.iter().filter(|(number, record)| **number < before && matches!(record.content, Content::Generation { .. }));
        numbers.extend(old.map(|(number, _)| *number));
    }
    if !rules.own_files_in_flight_stay {
        let wanted = |file: &File| state.checkpoints().any(|checkpoint| checkpoint.files.contains(file));
        files.extend(listed.iter().filter(|file| file.generation == generation && !wanted(file)));
    }
    if !rules.uncommitted_entries_stay {
        let retained = newest.map(|newest| newest.retained.clone()).unwrap_or_default();
        let old = state.journal.iter().filter(|(_, record)| match &record.content {
            Content::Checkpoint(checkpoint) => !retained.contains(&checkpoint.id),
            _ => false,
        });
        numbers.extend(old.map(|(number, _)| *number));
    }
    (numbers, files)
}
