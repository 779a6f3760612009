//! What process 0 does beside the dataflow: collects what no checkpoint refers to any more, tells sources of completed
//! checkpoints, and sweeps for transactions of lower generations.
use crate::ending::Ending;
use crate::erased::{SharedSink, SharedSource};
use crate::failure::{Failure, fail};
use crate::graph::Graph;
use crate::job::JobContext;
use crate::sink::ConnectorError;
use semel_checkpoint::{DurableCheckpoint, OperatorUid, collect};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};
use tracing::{info, warn};

/// Checkpoints that follow each other faster share one round: each costs requests, and deletions on a disk.
const ROUND: Duration = Duration::from_millis(500);
/// Between two tries of the last sweep.
const AGAIN: Duration = Duration::from_millis(500);

/// The completer's end.
#[derive(Clone)]
pub struct Upkeep {
    completed: UnboundedSender<DurableCheckpoint>,
}

impl Upkeep {
    /// Starts the tasks. When all [`Upkeep`]s are gone, the job's last checkpoint is told, what is older collected, and what lower
    /// generations left open ended.
    pub fn start(graph: Arc<Graph>, job: Arc<JobContext>, ending: Ending) -> Upkeep {
        let (completed, checkpoints) = unbounded_channel();
        let sources: Vec<_> = graph.sources().map(|(uid, source)| (uid.clone(), source.clone())).collect();
        sources.iter().for_each(|(uid, _)| commits_failed(uid).increment(0));
        let sinks: Vec<(OperatorUid, SharedSink)> = graph.sinks().map(|(uid, sink, _)| (uid.clone(), sink.clone())).collect();
        for (uid, sink) in sinks.clone() {
            let job = job.clone();
            job.runtime.clone().spawn(async move {
                let mut clock = interval(job.config().sweep_interval);
                clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
                clock.tick().await; // Recovery has just swept.
                loop {
                    clock.tick().await;
                    _ = sweep(&job, &uid, &sink).await;
                }
            });
        }
        let runtime = job.runtime.clone();
        runtime.spawn(async move {
            after_checkpoints(sources, &job, checkpoints).await;
            // A short job ends before its first sweep is due, and what a dead process had on its way may have reached the target
            // after the recovery's: readers would wait for the transaction's timeout.
            for (uid, sink) in &sinks {
                while !sweep(&job, uid, sink).await {
                    sleep(AGAIN).await;
                }
            }
            drop(ending);
        });
        Upkeep { completed }
    }

    /// A checkpoint is durable.
    pub fn completed(&self, checkpoint: DurableCheckpoint) {
        _ = self.completed.send(checkpoint);
    }
}

/// `false`: it is worth another try.
async fn sweep(job: &JobContext, uid: &OperatorUid, sink: &SharedSink) -> bool {
    match sink.sweep(job.identity(), uid).await {
        Ok(swept) => {
            if !swept.aborted.is_empty() {
                info!(sink = %uid, transactions = ?swept.aborted, "ended transactions of lower generations");
            }
            true
        }
        Err(ConnectorError::Fenced(why)) => fail(Failure::Fenced(format!("sink {uid}: {why}"))),
        // It is done again: a broker that is away for a moment is no reason to restart.
        Err(e) => {
            warn!(sink = %uid, error = %e, "sweep failed");
            !matches!(e, ConnectorError::Retryable(_))
        }
    }
}

fn commits_failed(source: &OperatorUid) -> metrics::Counter {
    metrics::counter!("commitsFailed", "operator" => source.to_string())
}

async fn after_checkpoints(
    sources: Vec<(OperatorUid, SharedSource)>,
    job: &JobContext,
    mut checkpoints: UnboundedReceiver<DurableCheckpoint>,
) {
    let mut due = Instant::now();
    while let Some(mut checkpoint) = checkpoints.recv().await {
        // Only the newest matters: what an older one would have told or collected, it does as well. At the job's end there is no pause.
        while let Ok(Some(newer)) = timeout_at(due, checkpoints.recv()).await {
            checkpoint = newer;
        }
        due = Instant::now() + ROUND;
        for (uid, source) in &sources {
            let splits = checkpoint.entry.sources.get(uid).map(Vec::as_slice).unwrap_or_default();
            if let Err(e) = source.checkpoint_complete(job.identity(), splits).await {
                warn!(source = %uid, error = %e, "the source was not told of the checkpoint");
                commits_failed(uid).increment(1);
            }
        }
        if let Err(e) = collect(job.store.clone(), job.identity()).await {
            warn!(error = %e, "collection of old checkpoints failed; the next checkpoint tries again");
        }
    }
}
