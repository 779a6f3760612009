//! Claiming, appending and fencing through the real I/O paths.
#![allow(clippy::unwrap_used)]

mod support;

use semel_checkpoint::testing::{Fault, FaultyStore, Rates};
use semel_checkpoint::*;
use std::sync::Arc;
use support::*;

#[tokio::test]
async fn a_first_start_and_a_restart() {
    let store = memory();
    let mut first = claim(store.clone(), request("a")).await.unwrap();
    assert_eq!(first.identity.generation, Generation(1));
    assert_eq!((first.restored.is_none(), first.next_checkpoint, first.pending.len()), (true, CheckpointId(1), 0));
    for id in 1..=3 {
        let durable = first.appender.append(entry(&first, id, id.saturating_sub(2), &[id])).await.unwrap();
        assert_eq!(durable.permit().checkpoint(), CheckpointId(id));
        assert_eq!(durable.permit().generation(), Generation(1));
    }
    let second = claim(store.clone(), request("b")).await.unwrap();
    assert_eq!(second.identity.uuid, first.identity.uuid);
    assert_eq!(second.identity.generation, Generation(2));
    assert_eq!(second.restored.as_ref().unwrap().id, CheckpointId(3));
    // 3 says that 1 was committed: 2 as well as 3 may not be.
    assert_eq!(pending(&second), [(2, 2), (3, 3)]);
    assert_eq!(second.pending[0].0.generation(), Generation(2), "the permit names who commits");
    assert_eq!(second.next_checkpoint, CheckpointId(4));
    assert_eq!(numbers(&store).await, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn an_old_incarnation_is_fenced_and_told_by_whom() {
    let store = memory();
    let mut old = claim(store.clone(), request("old")).await.unwrap();
    old.appender.append(entry(&old, 1, 0, &[1])).await.unwrap();
    claim(store.clone(), request("new")).await.unwrap();
    let error = old.appender.append(entry(&old, 2, 1, &[2])).await.unwrap_err();
    assert!(matches!(&error, AppendError::Fenced { winner } if winner.host == "new" && winner.generation.0 == 2));
    assert!(error.to_string().contains("started on new (process 7)"), "{error}");
    let again = old.appender.append(entry(&old, 3, 1, &[3])).await.unwrap_err();
    assert!(matches!(again, AppendError::InDoubt), "fenced is terminal: {again}");
}

#[tokio::test]
async fn the_appender_travels_to_another_process() {
    let store = memory();
    let old = claim(store.clone(), request("a")).await.unwrap();
    let next = entry(&old, 1, 0, &[1]);
    let state = serde_json::to_string(&old.appender.into_state()).unwrap();
    let mut appender = serde_json::from_str::<AppenderState>(&state).unwrap().attach(store.clone());
    appender.append(next).await.unwrap();
    assert_eq!(claim(store, request("b")).await.unwrap().restored.unwrap().id, CheckpointId(1));
}

#[tokio::test]
async fn of_supervisors_started_at_once_one_ends_up_running() {
    let store = memory();
    let starts = (0..8).map(|n| tokio::spawn(claim(store.clone(), request(&format!("host{n}")))));
    let results = futures::future::join_all(starts.collect::<Vec<_>>()).await;
    let mut claims: Vec<Claim> = Vec::new();
    for result in results {
        match result.unwrap() {
            Ok(claim) => claims.push(claim),
            Err(error) => assert!(matches!(error, ClaimError::Fenced { .. }), "{error}"),
        }
    }
    claims.sort_by_key(|claim| claim.identity.generation);
    let uuid = claims[0].identity.uuid;
    assert!(claims.iter().all(|claim| claim.identity.uuid == uuid));
    let last = claims.len() - 1;
    for (n, claim) in claims.iter_mut().enumerate() {
        let entry = entry(claim, 1, 0, &[1]);
        assert_eq!(claim.appender.append(entry).await.is_ok(), n == last, "only the newest generation appends");
    }
}

#[tokio::test]
async fn lost_and_refused_answers_are_resolved() {
    for fault in [Fault::LoseAnswer, Fault::Refuse, Fault::Hold] {
        let inner = memory();
        let store = FaultyStore::new(inner.clone());
        let mut claimed = claim(Arc::new(store.clone()), request("a")).await.unwrap();
        store.on_next_write(fault);
        claimed.appender.append(entry(&claimed, 1, 0, &[1])).await.unwrap();
        store.deliver().await.unwrap();
        claimed.appender.append(entry(&claimed, 2, 1, &[2])).await.unwrap();
        assert_eq!(numbers(&inner).await, [0, 1, 2, 3], "{fault:?}");
    }
}

/// The first put of an old incarnation succeeded, the answer was lost; the successor claimed, went on and collected
/// that entry; the repeated put fills the hole. Only the number after it tells.
#[tokio::test]
async fn a_repeated_put_into_a_hole_is_fenced() {
    let inner = memory();
    let store = FaultyStore::new(inner.clone());
    let mut old = claim(Arc::new(store.clone()), request("old")).await.unwrap();
    store.on_next_write(Fault::Hold);
    let append = {
        let next = entry(&old, 1, 0, &[1]);
        tokio::spawn(async move { old.appender.append(next).await })
    };
    while store.writes() < 3 {
        tokio::task::yield_now().await;
    }
    // Before it reads back: the held put arrives, the successor starts, and the entry is collected.
    store.deliver().await.unwrap();
    let mut new = claim(inner.clone(), request("new")).await.unwrap();
    assert_eq!(pending(&new), [(1, 1)]);
    new.appender.append(entry(&new, 2, 1, &[2])).await.unwrap();
    inner.delete(&paths::journal_entry(2)).await.unwrap();
    let error = append.await.unwrap().unwrap_err();
    assert!(matches!(&error, AppendError::Fenced { winner } if winner.host == "new"), "{error}");
    let third = claim(inner, request("third")).await.unwrap();
    assert_eq!(third.restored.as_ref().unwrap().id, CheckpointId(2), "the late entry is no new checkpoint");
    assert_eq!(pending(&third), [(2, 2)]);
}

/// A claimer that froze after reading the journal may find its number free again, since collection made a hole.
#[tokio::test]
async fn a_claim_into_a_hole_claims_nothing() {
    let inner = memory();
    let mut running = claim(inner.clone(), request("running")).await.unwrap();
    running.appender.append(entry(&running, 1, 0, &[1])).await.unwrap();
    let store = FaultyStore::new(inner.clone());
    store.on_next_write(Fault::Hold);
    let frozen = tokio::spawn(claim(Arc::new(store.clone()), request("frozen")));
    while store.writes() < 1 {
        tokio::task::yield_now().await;
    }
    for id in 2..=3 {
        running.appender.append(entry(&running, id, id - 1, &[id])).await.unwrap();
    }
    inner.delete(&paths::journal_entry(3)).await.unwrap();
    store.deliver().await.unwrap();
    let woken = frozen.await.unwrap().unwrap();
    assert_eq!(woken.restored.as_ref().unwrap().id, CheckpointId(3), "it saw what was written while it was frozen");
    assert!(running.appender.append(entry(&running, 4, 3, &[4])).await.is_err());
}

#[tokio::test]
async fn dying_at_any_write_of_a_life_loses_no_checkpoint() {
    for n in 1..=6 {
        for fault in [Fault::StopBefore, Fault::StopAfter] {
            let inner = memory();
            let store = FaultyStore::new(inner.clone()).on_write(n, fault);
            let mut durable = 0;
            if let Ok(mut life) = claim(Arc::new(store.clone()), request("a")).await {
                for id in 1..=4 {
                    let next = entry(&life, id, id - 1, &[id]);
                    let Ok(checkpoint) = life.appender.append(next).await else {
                        break;
                    };
                    durable = checkpoint.entry.id.0;
                }
            }
            assert!(store.stopped(), "write {n} happens");
            let next = claim(inner, request("b")).await.unwrap();
            let restored = next.restored.as_ref().map_or(0, |checkpoint| checkpoint.id.0);
            // The answered ones are there; the one in doubt may be, and is then pending.
            let in_doubt = u64::from(fault == Fault::StopAfter && n > 2);
            assert_eq!(restored, durable + in_doubt, "{fault:?} at write {n}");
            assert_eq!(next.pending.len(), usize::from(restored > 0));
        }
    }
}

#[tokio::test]
async fn a_flaky_store_and_many_incarnations_keep_one_history() {
    for seed in 0..20 {
        let inner = memory();
        let rates = Rates { lose: 150, refuse: 150, refuse_reads: 20, hold: 100, delay: 100 };
        let store = FaultyStore::random(inner.clone(), seed, rates);
        let mut newest = CheckpointId(0);
        for _ in 0..3 {
            let mut life = match claim(Arc::new(store.clone()), request("a")).await {
                Ok(life) => life,
                Err(ClaimError::Journal(JournalError::Store(error))) if error.is_transient() => {
                    continue;
                }
                // A put of this very loop that arrived late.
                Err(ClaimError::Fenced { .. }) => continue,
                Err(error) => panic!("seed {seed}: {error}"),
            };
            let restored = life.restored.as_ref().map_or(CheckpointId(0), |checkpoint| checkpoint.id);
            assert_eq!(restored, newest, "seed {seed}");
            for _ in 0..3 {
                let id = life.next_checkpoint.0.max(newest.0 + 1);
                match life.appender.append(entry(&life, id, newest.0, &[id])).await {
                    Ok(durable) => newest = durable.entry.id,
                    Err(error) => panic!("seed {seed}: nobody else appends, {error}"),
                }
            }
        }
        let view = read_journal(inner).await.unwrap();
        let found: Vec<u64> = view.checkpoints().map(|checkpoint| checkpoint.id.0).collect();
        assert_eq!(found, (1..=newest.0).collect::<Vec<_>>(), "seed {seed}: each once, in order");
    }
}

#[tokio::test]
async fn an_older_checkpoint_is_restored_only_while_it_is_retained() {
    let store = memory();
    let mut old = claim(store.clone(), request("a")).await.unwrap();
    for (id, committed, retained) in [(1, 0, vec![1]), (2, 1, vec![1, 2]), (3, 1, vec![2, 3])] {
        old.appender.append(entry(&old, id, committed, &retained)).await.unwrap();
    }
    let error = claim(store.clone(), from(1)).await.unwrap_err().to_string();
    assert!(error.contains("checkpoint 1 is not retained") && error.contains("2"), "{error}");
    let mut back = claim(store.clone(), from(2)).await.unwrap();
    assert_eq!(back.restored.as_ref().unwrap().id, CheckpointId(2));
    assert_eq!(pending(&back), [(2, 2)], "3 is given up, 2 is not");
    assert_eq!(back.abandoned.iter().map(|c| c.id.0).collect::<Vec<_>>(), [3]);
    assert_eq!((back.next_checkpoint, back.retained.clone()), (CheckpointId(4), ids(&[2])));
    // A crash before the first checkpoint of the new line must not bring the old line back.
    let again = claim(store.clone(), request("b")).await.unwrap();
    assert_eq!(again.restored.as_ref().unwrap().id, CheckpointId(2));
    assert_eq!(pending(&again), [(2, 2)]);
    assert!(matches!(claim(store.clone(), from(3)).await, Err(ClaimError::NotRetained(_))), "3 was ended");
    assert!(back.appender.append(entry(&back, 4, 3, &[2, 4])).await.is_err(), "fenced by the restart");
}

#[tokio::test]
async fn one_folder_holds_one_job() {
    let store = memory();
    claim(store.clone(), request("a")).await.unwrap();
    let other = ClaimRequest { job_name: "payments".into(), ..request("a") };
    let error = claim(store, other).await.unwrap_err().to_string();
    assert!(error.contains("\"orders\"") && error.contains("a checkpoint folder of its own"), "{error}");
}

#[tokio::test]
async fn an_entry_of_a_wiped_journal_is_found() {
    let store = memory();
    let mut old = claim(store.clone(), request("a")).await.unwrap();
    for object in store.list("").await.unwrap() {
        store.delete(&object.path).await.unwrap();
    }
    let new = claim(store.clone(), request("b")).await.unwrap();
    assert_ne!(new.identity.uuid, old.identity.uuid);
    // The old incarnation does not know yet and appends into the new journal: it commits nothing and stops.
    let error = old.appender.append(entry(&old, 1, 0, &[1])).await.unwrap_err();
    assert!(matches!(error, AppendError::Replaced { number: 1 }), "{error}");
    let error = claim(store.clone(), request("c")).await.unwrap_err();
    assert!(matches!(&error, ClaimError::Journal(JournalError::Foreign { .. })), "{error}");
    assert!(error.to_string().contains("00000000000000000002.json"), "{error}");
}

/// A fenced incarnation whose fence was deleted together with everything else.
#[tokio::test]
async fn a_zombie_does_not_go_on_in_an_emptied_folder() {
    let store = memory();
    let mut old = claim(store.clone(), request("old")).await.unwrap();
    let mut new = claim(store.clone(), request("new")).await.unwrap();
    for object in store.list("").await.unwrap() {
        store.delete(&object.path).await.unwrap();
    }
    for (life, number) in [(&mut old, 1), (&mut new, 2)] {
        let next = entry(life, 1, 0, &[1]);
        let error = life.appender.append(next).await.unwrap_err();
        assert!(error.to_string().contains(&format!("entries 0 and {number}): the folder was emptied")), "{error}");
    }
    let error = claim(store.clone(), request("c")).await.unwrap_err();
    assert!(matches!(&error, ClaimError::Journal(JournalError::NoJob)), "{error}");
}

/// The put of its own start was repeated, and the first one arrives after the folder was emptied.
#[tokio::test]
async fn a_start_that_comes_back_late_is_not_enough() {
    let inner = memory();
    let store = FaultyStore::new(inner.clone()).on_write(2, Fault::Hold);
    let mut life = claim(Arc::new(store.clone()), request("a")).await.unwrap();
    for object in inner.list("").await.unwrap() {
        inner.delete(&object.path).await.unwrap();
    }
    store.deliver().await.unwrap();
    assert!(inner.get(&paths::journal_entry(1)).await.unwrap().is_some(), "it is back");
    let error = life.appender.append(entry(&life, 1, 0, &[1])).await.unwrap_err();
    assert!(matches!(error, AppendError::Replaced { number: 1 }), "{error}");
}

/// It was frozen between reading the journal and its put; meanwhile the folder was emptied.
#[tokio::test]
async fn a_claim_in_an_emptied_folder_claims_nothing() {
    let inner = memory();
    claim(inner.clone(), request("first")).await.unwrap();
    for replaced in [false, true] {
        let store = FaultyStore::new(inner.clone());
        store.on_next_write(Fault::Hold);
        let frozen = tokio::spawn(claim(Arc::new(store.clone()), request("frozen")));
        while store.writes() < 1 {
            tokio::task::yield_now().await;
        }
        for object in inner.list("").await.unwrap() {
            inner.delete(&object.path).await.unwrap();
        }
        if replaced {
            claim(inner.clone(), request("second")).await.unwrap();
        }
        store.deliver().await.unwrap();
        let error = frozen.await.unwrap().unwrap_err();
        assert!(matches!(&error, ClaimError::Journal(_)), "{error}");
        for object in inner.list("").await.unwrap() {
            inner.delete(&object.path).await.unwrap();
        }
        claim(inner.clone(), request("third")).await.unwrap();
    }
}

#[tokio::test]
async fn wrong_entries_are_refused_before_anything_is_written() {
    let store = memory();
    let mut life = claim(store.clone(), request("a")).await.unwrap();
    let good = entry(&life, 2, 1, &[2]);
    let wrong = [
        CheckpointEntry { generation: Generation(9), ..good.clone() },
        CheckpointEntry { committed: CheckpointId(2), ..good.clone() },
        CheckpointEntry { retained: vec![], ..good.clone() },
        CheckpointEntry { committables: entry(&life, 3, 0, &[]).committables, ..good.clone() },
    ];
    for entry in wrong {
        assert!(matches!(life.appender.append(entry).await, Err(AppendError::Invalid { .. })));
    }
    life.appender.append(good).await.unwrap();
    let old = entry(&life, 2, 1, &[2]);
    assert!(matches!(life.appender.append(old).await, Err(AppendError::Invalid { .. })));
    assert_eq!(numbers(&store).await, [0, 1, 2]);
}

#[tokio::test]
async fn an_ended_job_leaves_nothing_pending() {
    let store = memory();
    let mut first = claim(store.clone(), request("a")).await.unwrap();
    first.appender.append(entry(&first, 1, 0, &[1])).await.unwrap();
    first.appender.append(entry(&first, 2, 1, &[2])).await.unwrap();
    let early = first.appender.append_committed(CheckpointId(3), true).await;
    assert!(matches!(early, Err(AppendError::Invalid { .. })), "it is not even complete");
    first.appender.append_committed(CheckpointId(2), true).await.unwrap();
    let mut second = claim(store.clone(), request("b")).await.unwrap();
    assert_eq!((second.restored.as_ref().unwrap().id, second.pending.len(), second.next_checkpoint), (CheckpointId(2), 0, CheckpointId(3)));
    // After a start has committed what was pending, in the place of the next checkpoint.
    second.appender.append(entry(&second, 3, 2, &[3])).await.unwrap();
    let mut third = claim(store.clone(), request("c")).await.unwrap();
    assert_eq!(pending(&third), [(3, 3)]);
    let late = second.appender.append_committed(CheckpointId(3), true).await.unwrap_err();
    assert!(matches!(late, AppendError::Fenced { .. }), "{late}");
    third.appender.append_committed(third.committed, false).await.unwrap();
    assert_eq!(claim(store.clone(), request("d")).await.unwrap().pending.len(), 0);
    let view = read_journal(store).await.unwrap();
    let written: Vec<_> = view.entries.iter().filter(|(_, e)| matches!(e, Entry::Committed(_))).collect();
    let text = String::from_utf8(encode_entry(view.job().unwrap().0, &written[0].1).unwrap().to_vec()).unwrap();
    assert!(text.contains("\"format\": 2"), "an older version must refuse it: {text}");
}

#[test]
fn the_format_is_versioned() {
    let job = JobUuid::random();
    let entry = Entry::Checkpoint(with_files(checkpoint(Generation(1), 2, 1, &[1, 2]), &[path(job, 2, 1)]));
    let bytes = encode_entry(job, &entry).unwrap();
    assert_eq!(decode_entry("x", &bytes).unwrap(), (job, entry));
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text.contains("\"format\": 1") && text.contains("\"kind\": \"checkpoint\""), "{text}");
    let newer = text.replace("\"format\": 1", "\"format\": 3");
    let error = decode_entry("journal/7.json", newer.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("journal/7.json has format 3"), "{error}");
    let unknown = text.replace("\"kind\": \"checkpoint\"", "\"kind\": \"savepoint\"");
    let error = decode_entry("x", unknown.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("does not know the kind \"savepoint\""), "{error}");
    assert!(decode_entry("x", b"{\"format\": 1").is_err());
}
