//! What is played.
use super::play::{Play, Prepared, Subtask, json, ok, within};
use super::{CRASH_POINTS, CrashPoint, Target};
use semel_checkpoint::{CheckpointId, Generation, JobIdentity, JobUuid, OperatorUid};
use semel_engine::sink::{ConnectorError, SinkCommitter, SinkWriter, TwoPhaseCommitSink};

/// Dies at each point, each time in the second checkpoint of a generation, and goes on. All on one journal, so that what one crash
/// leaves behind meets the next.
pub async fn every_crash_point<T: Target>(target: &T) {
    let mut play = Play::new(target, "every crash point").await;
    for crash in CRASH_POINTS {
        let mut subtasks = play.start(2).await;
        play.check(&format!("after the start before {crash:?}")).await;
        play.checkpoint(&mut subtasks).await;
        until(&mut play, &mut subtasks, crash).await;
        play.check(&format!("at {crash:?}")).await;
        drop(subtasks); // The processes are dead. Nothing may be committed by that.
        play.check(&format!("after a crash at {crash:?}")).await;
    }
    drop(play.start(2).await);
    play.check("after the last crash").await;
    play.none_open("every crash's leftovers are ended by the next start").await;
}

/// A checkpoint of two subtasks until its crash.
async fn until<T: Target>(play: &mut Play<'_, T>, subtasks: &mut [Subtask<T>], crash: CrashPoint) {
    use CrashPoint::*;
    let id = play.take_checkpoint();
    let mut open = vec![];
    for subtask in subtasks.iter_mut() {
        open.push(play.begin(subtask, id).await);
    }
    if crash == Begun {
        return;
    }
    for (subtask, open) in subtasks.iter_mut().zip(&mut open) {
        play.invoke(subtask, open).await;
    }
    if crash == Written {
        return;
    }
    let mut prepared: Vec<Prepared> = vec![];
    for (subtask, open) in subtasks.iter_mut().zip(open) {
        prepared.push(play.pre_commit(subtask, open).await);
        if crash == HalfPreCommitted {
            return;
        }
    }
    if crash == PreCommitted {
        return;
    }
    play.entry(id, prepared, id - 1);
    let committing = match crash {
        Entry => 0,
        HalfCommitted => 1,
        _ => 2,
    };
    play.commit_all(&mut subtasks[..committing], id, id - 1).await;
    if matches!(crash, NextWritten | NextPreCommitted) {
        let id = play.take_checkpoint();
        for subtask in subtasks {
            let mut open = play.begin(subtask, id).await;
            play.invoke(subtask, &mut open).await;
            if crash == NextPreCommitted {
                play.pre_commit(subtask, open).await;
            }
        }
    }
}

/// Recovery itself is repeated, since the supervisor dies before the next entry, and with another parallelism each time.
pub async fn crash_while_recovering<T: Target>(target: &T) {
    let mut play = Play::new(target, "crash while recovering").await;
    let mut subtasks = play.start(2).await;
    until(&mut play, &mut subtasks, CrashPoint::HalfCommitted).await;
    drop(subtasks);
    for parallelism in [1, 3, 2] {
        drop(play.start(parallelism).await);
        play.check("after a repeated recovery").await;
    }
    let mut subtasks = play.start(1).await;
    play.checkpoint(&mut subtasks).await;
    play.check("after recovery with fewer subtasks").await;
}

/// A checkpoint whose state could not be stored is declined: its transactions stay pre-committed and travel with the next entry.
pub async fn declined_checkpoints<T: Target>(target: &T) {
    let mut play = Play::new(target, "declined checkpoints").await;
    for crash in [true, false] {
        let mut subtasks = play.start(2).await;
        let declined = play.take_checkpoint();
        let mut prepared = play.prepare(&mut subtasks, declined).await;
        let id = play.take_checkpoint();
        prepared.extend(play.prepare(&mut subtasks, id).await);
        play.check("before the entry that holds them").await;
        play.entry(id, prepared, declined - 1);
        if !crash {
            play.commit_all(&mut subtasks, id, declined - 1).await;
            play.check("after the commit of two checkpoints").await;
            play.checkpoint(&mut subtasks).await;
            play.check("in the checkpoint after them").await;
        }
    }
    drop(play.start(2).await);
    play.check("after a restart").await;
    play.none_open("after a restart").await;
}

/// Commits lag behind entries: recovery finds several entries, some of them committed in part.
pub async fn several_pending_entries<T: Target>(target: &T) {
    let mut play = Play::new(target, "several pending entries").await;
    let mut subtasks = play.start(2).await;
    play.checkpoint(&mut subtasks).await;
    let mut before = play.next_checkpoint - 1;
    for _ in 0..2 {
        let committed = before;
        for entry in 0..3 {
            let id = play.take_checkpoint();
            let prepared = play.prepare(&mut subtasks, id).await;
            play.entry(id, prepared, committed);
            if entry == 0 {
                play.commit_all(&mut subtasks[..1], id, committed).await;
            }
            before = id;
        }
        play.check("three entries, one commit").await;
        drop(subtasks);
        subtasks = play.start(2).await;
        play.check("after recovery").await;
    }
    play.checkpoint(&mut subtasks).await;
    play.check("in operation").await;
}

/// The old processes are not dead, only slow: they wake after their successor has recovered, commit with the permit that they
/// hold, finish what they had open, open new transactions and sweep. The successor's sweep ends what they leave.
pub async fn zombies<T: Target>(target: &T) {
    let mut play = Play::new(target, "zombies").await;
    let mut old = play.start(2).await;
    let old_identity = play.identity.clone();
    // Frozen with a permit in hand (subtask 0 and 1), and amid the next checkpoint.
    until(&mut play, &mut old, CrashPoint::Entry).await;
    let held = *play.pending.keys().next_back().unwrap_or_else(|| panic!("the kit itself: an entry was written"));
    let handles = play.pending[&held].clone();
    let id = play.take_checkpoint();
    let mut torn = vec![];
    for zombie in &mut old {
        let mut open = play.begin(zombie, id).await;
        play.invoke(zombie, &mut open).await;
        torn.push(open);
    }
    let mut new = play.start(2).await;
    play.check("the successor has recovered").await;
    assert_eq!(play.take_checkpoint(), id, "the kit itself: the successor gives out the same number");
    let prepared = play.prepare(&mut new, id).await;

    // They wake. The permit is honest: its checkpoint is complete. What it commits is committed already.
    let permit = play.permit_of(held, old_identity.generation);
    for (zombie, prepared) in old.iter_mut().zip(&handles) {
        _ = within("a zombie's commit", zombie.committer.commit(&prepared.transaction::<T>(), &permit)).await;
    }
    play.check("zombies have committed what was committed").await;
    // They go on with the checkpoint that their successor has pre-committed under the same number, and begin another one.
    for (zombie, mut open) in old.iter_mut().zip(torn) {
        let rows = target.rows(play.take_rows());
        _ = within("a zombie's invoke", zombie.writer.invoke(&mut open.transaction, rows)).await;
        _ = within("a zombie's pre_commit", zombie.writer.pre_commit(&mut open.transaction)).await;
        let rows = target.rows(play.take_rows());
        if let Ok(mut open) = within("a zombie's begin_transaction", zombie.writer.begin_transaction(CheckpointId(id + 1))).await {
            // With luck they are refused at once; at the latest the sweep ends it.
            _ = within("a zombie's invoke", zombie.writer.invoke(&mut open, rows)).await;
            _ = within("a zombie's pre_commit", zombie.writer.pre_commit(&mut open)).await;
        }
        _ = within("a zombie's release", zombie.committer.released(CheckpointId(held))).await;
    }
    play.check("zombies have written").await;
    _ = play.sweep(&old_identity).await;
    play.entry(id, prepared, held);
    play.commit_all(&mut new, id, held).await;
    let identity = play.identity.clone();
    play.sweep(&identity).await.unwrap_or_else(|e| panic!("sweep: {e}"));
    play.none_open("after the successor's sweep").await;
    // Not sooner: what a zombie had under way may have reached the target after the recovery's sweep and before the successor's
    // rows, which readers then see when the next sweep has ended it.
    play.check("zombies have ended nothing of their successor's").await;

    // Later still: names may have been used again.
    for _ in 0..3 {
        play.checkpoint(&mut new).await;
    }
    let id = play.take_checkpoint();
    let prepared = play.prepare(&mut new, id).await;
    for (zombie, prepared) in old.iter_mut().zip(&handles) {
        _ = within("a zombie's commit", zombie.committer.commit(&prepared.transaction::<T>(), &permit)).await;
        _ = within("a zombie's abort", zombie.committer.abort(&prepared.transaction::<T>())).await;
    }
    _ = play.sweep(&old_identity).await;
    drop(old);
    play.check("zombies have committed and aborted very late").await;
    play.entry(id, prepared, id - 1);
    play.commit_all(&mut new, id, id - 1).await;
    play.check("the successor goes on").await;
}

/// A supervisor that is frozen between its claim and its recovery, and wakes when its successor runs.
pub async fn slow_supervisor<T: Target>(target: &T) {
    let mut play = Play::new(target, "a slow supervisor").await;
    let mut subtasks = play.start(2).await;
    until(&mut play, &mut subtasks, CrashPoint::HalfCommitted).await;
    drop(subtasks);
    let late = play.claim();
    let late_identity = play.identity.clone();
    let mut subtasks = play.start(2).await;
    play.checkpoint(&mut subtasks).await;
    let id = play.take_checkpoint();
    let prepared = play.prepare(&mut subtasks, id).await;
    _ = within("a late recovery", target.sink().recover(&late_identity, &play.uid, late)).await;
    play.check("after the late recovery").await;
    play.entry(id, prepared, id - 1);
    play.commit_all(&mut subtasks, id, id - 1).await;
    play.check("the successor goes on").await;
}

/// A zombie commits what its successor's recovery commits at the same moment.
pub async fn commits_at_once<T: Target>(target: &T) {
    let mut play = Play::new(target, "commits at once").await;
    for _ in 0..3 {
        let mut old = play.start(2).await;
        play.checkpoint(&mut old).await;
        until(&mut play, &mut old, CrashPoint::Entry).await;
        let newest = play.pending.last_key_value().map(|(id, handles)| (*id, handles.clone()));
        let (held, handles) = newest.unwrap_or_else(|| panic!("the kit itself: an entry was written"));
        let permit = play.permit(held);
        let zombies = async {
            for (zombie, prepared) in old.iter_mut().zip(&handles) {
                _ = within("a zombie's commit", zombie.committer.commit(&prepared.transaction::<T>(), &permit)).await;
            }
        };
        let pending = play.claim();
        let sink = target.sink();
        let (recovered, ()) = tokio::join!(within("recover", sink.recover(&play.identity, &play.uid, pending)), zombies);
        recovered.unwrap_or_else(|e| panic!("recover, while a zombie commits: {e}"));
        play.all_committed();
        play.check("both have committed").await;
    }
}

/// Many checkpoints of one generation. Rows of the next one are written before the commit of the one before; now and then a
/// subtask has none.
pub async fn many_checkpoints<T: Target>(target: &T) {
    let mut play = Play::new(target, "many checkpoints").await;
    let mut subtasks = play.start(2).await;
    let mut committing: Option<u64> = None;
    let mut committed = play.next_checkpoint - 1;
    for round in 0..12 {
        let id = play.take_checkpoint();
        let with_rows = if round % 3 == 2 { 1 } else { 2 };
        let mut open = vec![];
        for subtask in &mut subtasks[..with_rows] {
            let mut transaction = play.begin(subtask, id).await;
            play.invoke(subtask, &mut transaction).await;
            open.push(transaction);
        }
        if let Some(before) = committing {
            play.commit_all(&mut subtasks, before, committed).await;
            committed = before;
        }
        let mut prepared = vec![];
        for (subtask, open) in subtasks.iter_mut().zip(open) {
            prepared.push(play.pre_commit(subtask, open).await);
        }
        play.entry(id, prepared, committed);
        committing = Some(id);
        if round % 4 == 0 {
            play.check("with the next checkpoint pre-committed").await;
        }
    }
    drop(subtasks);
    drop(play.start(2).await);
    play.check("after many checkpoints and a restart").await;
    play.none_open("after many checkpoints and a restart").await;
}

/// Another job, and another sink of the same job whose uid begins alike, write to the same target.
pub async fn strangers<T: Target>(target: &T) {
    let mut play = Play::new(target, "strangers").await;
    let mut subtasks = play.start(2).await;
    let id = play.take_checkpoint();
    let prepared = play.prepare(&mut subtasks, id).await;
    play.entry(id, prepared, id - 1);
    let job = JobIdentity { uuid: JobUuid::random(), generation: Generation(99), ..play.identity.clone() };
    let same_job = JobIdentity { generation: Generation(99), ..play.identity.clone() };
    let uid = |name: &str| OperatorUid::new(name).unwrap_or_else(|e| panic!("{e}"));
    for (job, uid) in [(&job, uid("sink")), (&same_job, uid("sin")), (&same_job, uid("sink-0")), (&same_job, uid("sink-1"))] {
        ok(play.scene, "a stranger's recover", target.sink().recover(job, &uid, vec![])).await;
        ok(play.scene, "a stranger's sweep", target.sink().sweep(job, &uid)).await;
    }
    play.check("strangers have swept").await;
    play.commit_all(&mut subtasks, id, id - 1).await;
    play.check("they have ended nothing").await;
}

/// A pre-committed transaction that is gone must be reported as lost, by the committer and in recovery; and an abort may be repeated.
pub async fn lost_transactions<T: Target>(target: &T) {
    let mut play = Play::new(target, "lost transactions").await;
    let mut subtasks = play.start(1).await;
    play.checkpoint(&mut subtasks).await;
    let id = play.take_checkpoint();
    let prepared = play.prepare(&mut subtasks, id).await.remove(0);
    for _ in 0..2 {
        ok(play.scene, "abort", subtasks[0].committer.abort(&prepared.transaction::<T>())).await;
    }
    play.check("after an abort").await;
    play.none_open("after an abort").await;
    let (transaction, permit) = (prepared.transaction::<T>(), play.permit(id));
    let answer = within("the commit of an aborted transaction", subtasks[0].committer.commit(&transaction, &permit)).await;
    assert!(
        matches!(answer, Err(ConnectorError::Lost(_))),
        "lost transactions: the commit of an aborted transaction must fail with Lost, not {answer:?}: {}",
        json(&transaction)
    );
    drop(subtasks);
    play.entry(id, vec![prepared], id - 1);
    let pending = play.claim();
    let answer = within("the recovery of a lost transaction", target.sink().recover(&play.identity, &play.uid, pending)).await;
    assert!(matches!(answer, Err(ConnectorError::Lost(_))), "lost transactions: recovery must fail with Lost, not {answer:?}");
    play.check("nothing of it is visible").await;
}
