//! The asynchronous side of a stateful subtask: loads its state at the start, and makes its snapshots durable.
use super::keyed::Keyed;
use crate::ack::{Ack, AckPart};
use crate::failure::{Failure, fail};
use crate::graph::Builder;
use crate::state::{Frozen, KeyedState};
use crate::tasks::{Answers, Mailbox};
use crate::watermark::Millis;
use semel_checkpoint::{CheckpointId, OperatorUid};
use std::sync::Arc;
use timely::scheduling::SyncActivator;

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
}

/// The operator's end.
pub struct Snapshots {
    mailbox: Mailbox<Save, Restored>,
}

impl Snapshots {
    /// Starts the task. `keep`: which namespaces are still alive at the restored watermark.
    pub fn start(builder: &Builder<'_>, activator: SyncActivator, uid: &OperatorUid, keyed: &Keyed, keep: impl Fn(i64) -> bool + Send + 'static) -> Snapshots {
        let (job, subtask, uid) = (builder.job.clone(), builder.subtask(), uid.clone());
        let schema = Arc::new(keyed.state_schema(job.config().max_parallelism));
        let runtime = job.runtime.clone();
        let mailbox = Mailbox::spawn(&runtime, activator, move |mut requests: tokio::sync::mpsc::UnboundedReceiver<Save>, answers: Answers<Restored>| async move {
            _ = keep;
            let state = KeyedState::new(schema).unwrap_or_else(|e| fail(Failure::Fatal(format!("operator {uid}: {e}"))));
            answers.send(Restored::State(state));
            while let Some(save) = requests.recv().await {
                _ = (save.checkpoint, save.frozen);
                let part = AckPart::State { files: vec![], new_bytes: 0, watermark: save.watermark };
                answers.send(Restored::Saved(Ack { operator: uid.clone(), subtask, part }));
            }
        });
        Snapshots { mailbox }
    }

    /// Makes a snapshot durable.
    pub fn save(&self, checkpoint: CheckpointId, frozen: Frozen, watermark: Millis) {
        self.mailbox.send(Save { checkpoint, frozen, watermark });
    }

    /// The next answer, if there is one.
    pub fn answer(&self) -> Option<Restored> {
        self.mailbox.answer()
    }
}
