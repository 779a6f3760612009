//! Short forms shared by the tests.
#![allow(dead_code)]

use semel_checkpoint::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

pub fn memory() -> Arc<dyn Store> {
    open_store(&format!("memory://{}", Uuid::new_v4())).unwrap()
}

pub fn request(host: &str) -> ClaimRequest {
    ClaimRequest {
        job_name: "orders".into(),
        plan_hash: "abc".into(),
        parallelism: 2,
        processes: 1,
        host: host.into(),
        pid: 7,
        supervisor: Uuid::new_v4(),
        from: None,
    }
}

pub fn from(id: u64) -> ClaimRequest {
    ClaimRequest { from: Some(CheckpointId(id)), ..request("host") }
}

pub fn uid(name: &str) -> OperatorUid {
    OperatorUid::new(name).unwrap()
}

pub fn ids(ids: &[u64]) -> Vec<CheckpointId> {
    ids.iter().map(|id| CheckpointId(*id)).collect()
}

/// A checkpoint with one committable named after it.
pub fn entry(claim: &Claim, id: u64, committed: u64, retained: &[u64]) -> CheckpointEntry {
    checkpoint(claim.identity.generation, id, committed, retained)
}

pub fn checkpoint(generation: Generation, id: u64, committed: u64, retained: &[u64]) -> CheckpointEntry {
    CheckpointEntry {
        id: CheckpointId(id),
        generation,
        nonce: Uuid::nil(),
        parallelism: 2,
        slots: 256,
        committed: CheckpointId(committed),
        operators: BTreeMap::new(),
        sources: BTreeMap::new(),
        committables: vec![Committable {
            sink: uid("sink"),
            subtask: 0,
            checkpoint: CheckpointId(id),
            generation,
            handle: json!({ "name": format!("t{id}") }),
            rows: 1,
            bytes: 10,
        }],
        retained: ids(retained),
        finished: false,
        triggered_at_ms: 1,
        completed_at_ms: 2,
        state_bytes: 0,
        new_bytes: 0,
        ranges: String::new(),
    }
}

pub fn with_files(mut entry: CheckpointEntry, files: &[SnapshotPath]) -> CheckpointEntry {
    let file = |path: &SnapshotPath| StateFile { path: path.to_string(), bytes: 4, slots: (0, 255) };
    let part = Part { subtask: 0, files: files.iter().map(file).collect() };
    let snapshot = OperatorSnapshot { parts: vec![part], ..OperatorSnapshot::default() };
    entry.operators.insert(uid("sum"), snapshot);
    entry
}

pub fn path(job: JobUuid, checkpoint: u64, generation: u64) -> SnapshotPath {
    SnapshotPath { checkpoint: CheckpointId(checkpoint), uid: uid("sum"), subtask: 0, generation: Generation(generation), serial: 0, job }
}

pub fn pending(claim: &Claim) -> Vec<(u64, u64)> {
    claim.pending.iter().map(|(permit, c)| (permit.checkpoint().0, c.checkpoint.0)).collect()
}

pub async fn numbers(store: &Arc<dyn Store>) -> Vec<u64> {
    read_journal(store.clone()).await.unwrap().entries.iter().map(|(number, _)| *number).collect()
}
