//! The start of a generation: claim it in the journal, let the sinks commit what is pending, and say what is to be run.
use super::{preflight, restore};
use crate::job::Job;
use crate::options::Settings;
use futures::future::join_all;
use semel_checkpoint::{
    AppendError, CheckpointEntry, CheckpointId, Claim, ClaimError, ClaimRequest, Committable, Entry, Generation, GenerationEntry,
    JournalError, JournalView, Store, claim, read_journal,
};
use semel_engine::failure::Failure;
use semel_engine::graph::Graph;
use semel_engine::job::Assignment;
use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::{error, info};
use uuid::Uuid;

/// What a start depends on.
pub(crate) struct Start<'a> {
    pub job: &'a Job,
    pub settings: &'a Settings,
    pub store: Arc<dyn Store>,
    /// The first start of this supervisor: preflight is made, `--from` counts.
    pub first: bool,
    /// The newest generation that this supervisor has claimed; set by the claim, also of a start that fails after it.
    pub claimed: &'a Cell<Option<Generation>>,
    pub threads: usize,
    pub processes: usize,
}

/// A generation that can be run.
pub(crate) struct Started {
    /// For process 0.
    pub assignment: Assignment,
    /// Transactions of the journal that were committed now (or before).
    pub committed: usize,
    /// Transactions that no entry held, aborted.
    pub aborted: usize,
}

/// Why a generation cannot be run.
pub(crate) enum NotStarted {
    /// Preflight has found something: nothing has been claimed, and somebody is waiting for an answer.
    Refused(Failure),
    /// Something has failed.
    Failed(Failure),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> NotStarted {
        NotStarted::Failed(failure)
    }
}

impl From<NotStarted> for Failure {
    fn from(why: NotStarted) -> Failure {
        match why {
            NotStarted::Refused(failure) | NotStarted::Failed(failure) => failure,
        }
    }
}

/// Claims and recovers.
pub(crate) async fn start(start: &Start<'_>) -> Result<Started, NotStarted> {
    let (graph, settings) = (&start.job.graph, start.settings);
    let from = restore::from(settings).filter(|_| start.first);
    if start.first {
        // Refused starts must leave no trace in the journal.
        let findings = preflight::checks(start.job, settings, &start.store).await.map_err(NotStarted::Refused)?;
        preflight::judge(&findings).map_err(NotStarted::Refused)?;
    }
    let began = Instant::now();
    let mut claimed = claim_next(start, from).await?;
    start.claimed.set(Some(claimed.identity.generation));
    let claim_took = began.elapsed();
    let pending: Vec<&Committable> = claimed.pending.iter().map(|(_, c)| c).collect();
    restore::may_restore(graph, settings, claimed.restored.as_ref(), &pending, &claimed.abandoned)?;
    let aborted = match recover(graph, &claimed, settings.duration("semel.recovery-timeout")).await {
        Err(Failure::Lost(why)) => {
            let lost = format!("{why}. {}", lost_ranges(&start.store, &claimed).await);
            // What is lost later was not known when somebody accepted it.
            if !(start.first && settings.flag("semel.state-recovery.accept-losses")) {
                return Err(Failure::Lost(format!(
                    "{lost}. Read those ranges again by other means, or restore an older checkpoint with --from; to go on without the lost rows, \
                     start once with --accept-losses"
                ))
                .into());
            }
            error!("{lost}. The job goes on without them, since losses are accepted");
            0
        }
        recovered => recovered?,
    };
    let committed = claimed.pending.len();
    // Between the restarts of one supervisor the job stays as it is, and its next checkpoint will say it.
    if start.first && committed > 0 {
        tell_committed(&mut claimed).await?;
    }
    let from = claimed.restored.as_ref().map_or("the beginning".to_owned(), |c| format!("checkpoint {}", c.id));
    info!(
        generation = claimed.identity.generation.0,
        claim_ms = claim_took.as_millis(),
        recover_ms = (began.elapsed() - claim_took).as_millis(),
        "starting from {from}; {committed} pending transactions committed, {aborted} others ended"
    );
    let assignment = Assignment {
        identity: claimed.identity,
        first_checkpoint: claimed.next_checkpoint,
        committed: claimed.committed,
        restored: claimed.restored,
        retained: claimed.retained,
        appender: claimed.appender.into_state(),
        config: settings.engine(),
        process: 0,
        processes: start.processes,
        threads: start.threads,
    };
    Ok(Started { assignment, committed, aborted })
}

/// Says in the journal that what was pending is committed, so that also a sink that is renamed now leaves nothing behind.
async fn tell_committed(claimed: &mut Claim) -> Result<(), Failure> {
    claimed.appender.append_committed(claimed.committed, false).await.map_err(|e| match e {
        AppendError::Fenced { winner } => replaced_by(&winner),
        AppendError::Journal(e) => journal(e),
        e => Failure::Retryable(format!("journal: {e}")),
    })
}

/// Claims a generation that will not be run, so that no other one can add to the journal any more.
pub(crate) async fn take_over(start: &Start<'_>) -> Result<Claim, Failure> {
    claim_next(start, None).await
}

/// After the last failure of a supervisor: commits what the newest checkpoint holds and ends what no entry holds. Else the rows of both
/// would keep readers of the target waiting, until the next start or the target's own timeout.
pub(crate) async fn clear_up(start: &Start<'_>) -> Result<(), Failure> {
    let mut claimed = take_over(start).await?;
    let sinks: Vec<_> = start.job.graph.sinks().map(|(uid, _, _)| uid).collect();
    if let Some((_, other)) = claimed.pending.iter().find(|(_, c)| !sinks.contains(&&c.sink)) {
        return Err(Failure::Fatal(format!("the journal holds transactions of a sink {} that this job does not have", other.sink)));
    }
    let timeout = start.settings.duration("semel.recovery-timeout");
    let aborted = recover(&start.job.graph, &claimed, timeout).await?;
    if !claimed.pending.is_empty() {
        tell_committed(&mut claimed).await?;
    }
    info!("after the last failure: {} pending transactions committed, {aborted} others ended", claimed.pending.len());
    Ok(())
}

async fn claim_next(start: &Start<'_>, from: Option<CheckpointId>) -> Result<Claim, Failure> {
    if let Some(own) = start.claimed.get() {
        // Whoever has started since then has won: claiming above it would take the job back, and so on without end.
        not_replaced(&start.store, own).await?;
    }
    let request = ClaimRequest {
        job_name: preflight::name(start.job, start.settings),
        plan_hash: start.job.graph.hash(),
        parallelism: (start.processes * start.threads) as u32,
        processes: start.processes as u32,
        host: host(),
        pid: std::process::id(),
        supervisor: supervisor(),
        from,
    };
    claim(start.store.clone(), request).await.map_err(|e| match e {
        ClaimError::Fenced { winner } => replaced_by(&winner),
        ClaimError::Deadline => Failure::Retryable(e.to_string()),
        ClaimError::Journal(e) => journal(e),
        ClaimError::OtherJob { .. } | ClaimError::NotRetained(_) => Failure::Fatal(e.to_string()),
    })
}

/// Tells this supervisor from every other one, also from one with its host and process id.
fn supervisor() -> Uuid {
    static SUPERVISOR: OnceLock<Uuid> = OnceLock::new();
    *SUPERVISOR.get_or_init(Uuid::new_v4)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

fn journal(error: JournalError) -> Failure {
    match &error {
        JournalError::Store(e) if e.is_transient() => Failure::Retryable(format!("journal: {error}")),
        JournalError::Unstable => Failure::Retryable(format!("journal: {error}")),
        _ => Failure::Fatal(format!("journal: {error}")),
    }
}

fn replaced_by(winner: &GenerationEntry) -> Failure {
    Failure::Fenced(format!(
        "generation {} of this job was started on {} (process {}); this supervisor stops",
        winner.generation, winner.host, winner.pid
    ))
}

/// Whether a generation is still the newest one.
pub(super) async fn not_replaced(store: &Arc<dyn Store>, own: Generation) -> Result<(), Failure> {
    let view = read_journal(store.clone()).await.map_err(journal)?;
    newest_is(&view, own)
}

fn newest_is(view: &JournalView, own: Generation) -> Result<(), Failure> {
    let newest = view.entries.iter().rev().find_map(|(_, entry)| match entry {
        Entry::Generation(g) => Some(g),
        _ => None,
    });
    match newest {
        // Its own: a claim that it gave up when a worker process died meanwhile, or whose answer was lost.
        Some(newest) if newest.generation > own && newest.supervisor != supervisor() => Err(replaced_by(newest)),
        _ => Ok(()),
    }
}

/// The source ranges whose results were pending.
async fn lost_ranges(store: &Arc<dyn Store>, claimed: &Claim) -> String {
    let view = match read_journal(store.clone()).await {
        Ok(view) => view,
        Err(e) => return format!("Their source ranges are in the journal, which cannot be read now: {e}"),
    };
    let held = |c: &CheckpointEntry| claimed.pending.iter().any(|(permit, _)| permit.checkpoint() == c.id);
    let ranges = view.entries.iter().filter_map(|(_, entry)| match entry {
        Entry::Checkpoint(c) if held(c) => Some(format!("checkpoint {}: {}", c.id, c.ranges)),
        _ => None,
    });
    format!("Rows of these checkpoints were pending, results of these source ranges: {}", ranges.collect::<Vec<_>>().join("; "))
}

/// All sinks at once, each to its end whatever becomes of the others; the number of transactions that were ended. A loss is told only
/// when everything else is committed.
async fn recover(graph: &Graph, claimed: &Claim, timeout: Duration) -> Result<usize, Failure> {
    let sinks = graph.sinks().map(|(uid, sink, _)| {
        let pending: Vec<_> = claimed.pending.iter().filter(|(_, c)| c.sink == *uid).cloned().collect();
        async move {
            match tokio::time::timeout(timeout, sink.recover(&claimed.identity, uid, pending)).await {
                Ok(swept) => swept.map_err(|e| Failure::from(e).within(format!("sink {uid}, committing what is pending"))),
                Err(_) => Err(Failure::Retryable(format!(
                    "sink {uid} did not commit what is pending within semel.recovery-timeout = {timeout:?}"
                ))),
            }
        }
    });
    let (mut lost, mut aborted) = (vec![], 0);
    for swept in join_all(sinks).await {
        match swept {
            Ok(swept) => aborted += swept.aborted.len(),
            Err(Failure::Lost(why)) => lost.push(why),
            Err(other) => return Err(other),
        }
    }
    match lost.is_empty() {
        true => Ok(aborted),
        false => Err(Failure::Lost(lost.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use semel_checkpoint::open_store;

    #[tokio::test]
    async fn a_claim_that_was_given_up_is_known_as_its_own() {
        let store = open_store("memory://claims-of-one-supervisor").unwrap();
        let request = |supervisor| ClaimRequest {
            job_name: "job".into(),
            plan_hash: String::new(),
            parallelism: 1,
            processes: 1,
            host: host(),
            pid: std::process::id(),
            supervisor,
            from: None,
        };
        for _ in 0..2 {
            claim(store.clone(), request(supervisor())).await.unwrap();
        }
        // It knows of the first only: a worker process died when the second was under way.
        assert_eq!(not_replaced(&store, Generation(1)).await, Ok(()));
        // Another one on the same host, which even has its process id.
        claim(store.clone(), request(Uuid::new_v4())).await.unwrap();
        assert!(matches!(not_replaced(&store, Generation(2)).await, Err(Failure::Fenced(_))));
    }
}
