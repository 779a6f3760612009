//! The asynchronous side of a stateful subtask: loads its state at the start, and makes its snapshots durable.
use crate::ack::{Ack, AckPart};
use crate::failure::{Failure, fail};
use crate::graph::Builder;
use crate::job::JobContext;
use crate::state::{Compression, Frozen, KeyedState, Saved, SnapshotOwner, Snapshotter, StateError, StateSchema, restore, slot_range};
use crate::tasks::{Answers, Mailbox};
use crate::watermark::Millis;
use semel_checkpoint::{CheckpointId, OperatorUid};
use std::sync::Arc;
use std::time::{Duration, Instant};
use timely::scheduling::SyncActivator;
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::info;

/// An answer of the task.
pub enum Restored {
    /// The state, once, before anything else.
    State(KeyedState),
    /// A snapshot is durable, or declined; in the order of checkpoints.
    Saved(Ack),
}

struct Save {
    checkpoint: CheckpointId,
    frozen: Frozen,
    watermark: Millis,
    sync: Duration,
}

/// The operator's end.
pub struct Snapshots {
    mailbox: Mailbox<Save, Restored>,
}

impl Snapshots {
    /// Starts the task. `keep`: which namespaces are still alive at the restored watermark.
    pub fn start(
        builder: &Builder<'_>,
        activator: SyncActivator,
        uid: &OperatorUid,
        schema: StateSchema,
        keep: impl Fn(i64) -> bool + Send + 'static,
    ) -> Snapshots {
        let (job, subtask, uid) = (builder.job.clone(), builder.subtask(), uid.clone());
        let schema = Arc::new(schema);
        let runtime = job.runtime.clone();
        let mailbox = Mailbox::spawn(&runtime, format!("snapshots of operator {uid}"), activator, move |requests, answers| async move {
            let (state, snapshotter) =
                load(&job, &uid, subtask, schema, keep).await.unwrap_or_else(|e| fail(failure(&e).within(format_args!("operator {uid}"))));
            answers.send(Restored::State(state));
            save_all(requests, answers, snapshotter, uid, subtask).await;
        });
        Snapshots { mailbox }
    }

    /// Takes a snapshot. Copying what has changed is all that the caller waits for; making it durable goes on beside.
    /// `min_live`: see [`KeyedState::freeze`].
    pub fn take(&self, state: &mut KeyedState, checkpoint: CheckpointId, min_live: Option<i64>, watermark: Millis) -> Result<(), Failure> {
        let began = Instant::now();
        let frozen = state.freeze(min_live).map_err(|e| Failure::Fatal(e.to_string()))?;
        let sync = began.elapsed();
        metrics::histogram!("checkpointSyncDuration").record(sync.as_secs_f64());
        crate::failpoint::passing("after_freeze");
        self.mailbox.send(Save { checkpoint, frozen, watermark, sync });
        Ok(())
    }

    /// The next answer, if there is one.
    pub fn answer(&self) -> Option<Restored> {
        self.mailbox.answer()
    }
}

async fn load(
    job: &JobContext,
    uid: &OperatorUid,
    subtask: u32,
    schema: Arc<StateSchema>,
    keep: impl Fn(i64) -> bool + Send,
) -> Result<(KeyedState, Snapshotter), StateError> {
    let began = Instant::now();
    let slots = slot_range(subtask as usize, job.config().max_parallelism, job.parallelism() as usize);
    let (state, chain) = restore(job.store.clone(), uid, schema.clone(), job.restored_state(uid), slots, keep).await?;
    if job.restored_state(uid).is_some() {
        info!(operator = %uid, subtask, groups = state.len(), ms = began.elapsed().as_millis(), "state restored");
    }
    let owner = SnapshotOwner { job: job.identity().uuid, generation: job.identity().generation, uid: uid.clone(), subtask };
    let snapshotter = Snapshotter::new(job.store.clone(), owner, schema, chain, Compression::default())?;
    Ok((state, snapshotter))
}

async fn save_all(
    mut requests: UnboundedReceiver<Save>,
    answers: Answers<Restored>,
    mut snapshotter: Snapshotter,
    operator: OperatorUid,
    subtask: u32,
) {
    while let Some(Save { checkpoint, frozen, watermark, sync }) = requests.recv().await {
        let live_from = frozen.min_live_namespace;
        let part = match snapshotter.save(checkpoint, frozen).await {
            Saved::Uploaded { files, new_bytes } => {
                crate::failpoint::passing("after_upload");
                AckPart::State { files, new_bytes, watermark, live_from, sync_us: sync.as_micros() as u64 }
            }
            Saved::Declined { reason } => AckPart::Declined(reason),
        };
        answers.send(Restored::Saved(Ack { operator: operator.clone(), subtask, part }));
    }
}

/// A store that does not answer may do so after a restart; state that does not fit never will.
fn failure(error: &StateError) -> Failure {
    match error {
        StateError::Store { .. } => Failure::Retryable(error.to_string()),
        _ => Failure::Fatal(error.to_string()),
    }
}
