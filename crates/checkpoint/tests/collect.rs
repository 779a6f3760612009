//! What collection removes, and above all what it does not.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use semel_checkpoint::testing::{Fault, FaultyStore};
use semel_checkpoint::*;
use serde_json::json;
use std::sync::Arc;
use support::*;

async fn upload(store: &Arc<dyn Store>, path: &SnapshotPath) {
    store.put(&path.to_string(), Bytes::from("data")).await.unwrap();
}

async fn files(store: &Arc<dyn Store>) -> Vec<String> {
    let mut files = store.list("snapshots/").await.unwrap();
    files.extend(store.list("staged/").await.unwrap());
    files.into_iter().map(|object| object.path).collect()
}

/// Five checkpoints of one generation, each a change on top of the one before, with a new base at 4; two retained.
async fn life(store: &Arc<dyn Store>) -> Claim {
    let mut life = claim(store.clone(), request("a")).await.unwrap();
    let mut chain = Vec::new();
    let mut retained = Vec::new();
    for id in 1..=5 {
        let file = path(life.identity.uuid, id, 1);
        upload(store, &file).await;
        if id == 4 {
            chain.clear();
        }
        chain.push(file);
        retained = retained_after(&retained, CheckpointId(id), 2);
        let mut next = with_files(entry(&life, id, id.saturating_sub(1), &[]), &chain);
        next.retained = retained.clone();
        life.appender.append(next).await.unwrap();
    }
    life
}

#[tokio::test]
async fn only_what_a_restart_can_need_stays() {
    let store = memory();
    let life = life(&store).await;
    let in_flight = path(life.identity.uuid, 6, 1);
    let failed = SnapshotPath { serial: 9, ..path(life.identity.uuid, 5, 1) };
    upload(&store, &in_flight).await;
    upload(&store, &failed).await;
    let collected = collect(store.clone(), &life.identity).await.unwrap();
    assert_eq!((collected.entries, collected.files, collected.bytes), (3, 4, 16));
    // 0: the job, 1: the generation, 5 and 6: checkpoints 4 and 5.
    assert_eq!(numbers(&store).await, [0, 1, 5, 6]);
    let kept = [path(life.identity.uuid, 4, 1), path(life.identity.uuid, 5, 1), in_flight];
    assert_eq!(files(&store).await, kept.map(|path| path.to_string()));
    assert_eq!(collect(store, &life.identity).await.unwrap(), Collected::default());
}

#[tokio::test]
async fn what_is_not_committed_stays_although_it_is_not_retained() {
    let store = memory();
    let mut life = claim(store.clone(), request("a")).await.unwrap();
    for id in 1..=4 {
        life.appender.append(entry(&life, id, id.saturating_sub(1).min(1), &[id])).await.unwrap();
    }
    collect(store.clone(), &life.identity).await.unwrap();
    let next = claim(store, request("b")).await.unwrap();
    assert_eq!(pending(&next), [(2, 2), (3, 3), (4, 4)]);
}

#[tokio::test]
async fn dying_at_any_deletion_leaves_a_journal_that_restarts() {
    for n in 1.. {
        let inner = memory();
        let life = life(&inner).await;
        let store = FaultyStore::new(inner.clone()).on_write(n, Fault::StopAfter);
        let complete = collect(Arc::new(store.clone()), &life.identity).await.is_ok();
        let next = claim(inner.clone(), request("b")).await.unwrap();
        assert_eq!(next.restored.as_ref().unwrap().id, CheckpointId(5));
        for checkpoint in read_journal(inner.clone()).await.unwrap().checkpoints() {
            for path in checkpoint.state_paths() {
                assert!(inner.get(path).await.unwrap().is_some(), "{path} of checkpoint {}", checkpoint.id);
            }
        }
        collect(inner.clone(), &next.identity).await.unwrap();
        assert_eq!(files(&inner).await.len(), 2, "the next collection finds what was left");
        if complete {
            assert!(n > 5);
            return;
        }
    }
}

#[tokio::test]
async fn a_zombie_collects_nothing() {
    let store = memory();
    let old = life(&store).await;
    let new = claim(store.clone(), request("new")).await.unwrap();
    upload(&store, &path(old.identity.uuid, 6, 2)).await;
    let before = (numbers(&store).await, files(&store).await);
    let error = collect(store.clone(), &old.identity).await.unwrap_err();
    assert!(matches!(error, CollectError::Fenced { winner } if winner.host == "new"));
    assert_eq!((numbers(&store).await, files(&store).await), before);
    // The zombie's late upload of checkpoint 6 is an orphan for its successor, whose own is in flight.
    upload(&store, &path(old.identity.uuid, 6, 1)).await;
    collect(store.clone(), &new.identity).await.unwrap();
    let job = old.identity.uuid;
    let kept = [path(job, 4, 1), path(job, 5, 1), path(job, 6, 2)].map(|path| path.to_string());
    assert_eq!(files(&store).await, kept);
}

#[tokio::test]
async fn foreign_files_are_never_touched() {
    let store = memory();
    let life = life(&store).await;
    let foreign = path(JobUuid::random(), 1, 0).to_string();
    store.put(&foreign, Bytes::new()).await.unwrap();
    store.put("snapshots/1/notes.txt", Bytes::new()).await.unwrap();
    collect(store.clone(), &life.identity).await.unwrap();
    let files = files(&store).await;
    assert!(files.contains(&foreign) && files.contains(&"snapshots/1/notes.txt".to_owned()), "{files:?}");
    for object in store.list("journal/").await.unwrap() {
        store.delete(&object.path).await.unwrap();
    }
    claim(store.clone(), request("other")).await.unwrap();
    assert!(matches!(collect(store, &life.identity).await, Err(CollectError::Replaced)));
}

#[tokio::test]
async fn staged_rows_stay_while_a_kept_handle_names_them() {
    let store = memory();
    let mut life = claim(store.clone(), request("a")).await.unwrap();
    let staged = |id| StagedPath(path(life.identity.uuid, id, 1)).to_string();
    for id in 1..=3 {
        store.put(&staged(id), Bytes::new()).await.unwrap();
    }
    let handles = [json!({ "rows": staged(1) }), json!(["x", { "url": format!("s3://b/j/{}?v=1", staged(2)) }]), json!(staged(3))];
    for (id, handle) in (1..=3).zip(handles) {
        let mut next = checkpoint(Generation(1), id, id - 1, &[id]);
        next.retained = if id == 3 { ids(&[2, 3]) } else { ids(&[id]) };
        next.committables[0].handle = handle;
        life.appender.append(next).await.unwrap();
    }
    collect(store.clone(), &life.identity).await.unwrap();
    assert_eq!(files(&store).await, [staged(2), staged(3)]);
}

#[test]
fn retained_sets_only_lose_old_members() {
    assert_eq!(retained_after(&[], CheckpointId(1), 3), ids(&[1]));
    assert_eq!(retained_after(&ids(&[1, 2, 3]), CheckpointId(4), 3), ids(&[2, 3, 4]));
    assert_eq!(retained_after(&ids(&[1, 2, 3]), CheckpointId(4), 1), ids(&[4]));
    assert_eq!(retained_after(&ids(&[1]), CheckpointId(4), 0), ids(&[4]), "the newest always stays");
    assert_eq!(retained_after(&ids(&[3]), CheckpointId(4), 10), ids(&[3, 4]), "what is gone does not come back");
}
