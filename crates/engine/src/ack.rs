//! The acknowledging half of every operator that takes part in checkpoints: one capability per checkpoint, held until the
//! operator's part is durable.
use crate::time::{Time, first_of, next};
use crate::wire::Json;
use semel_checkpoint::{CheckpointId, Committable, OperatorUid, SplitState, StateFile};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::Antichain;

/// An output of plain values.
pub type VecOutput<D> = OutputBuilder<Time, CapacityContainerBuilder<Vec<D>>>;

/// What one subtask contributes to a checkpoint.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Ack {
    /// Of the operator.
    pub operator: OperatorUid,
    /// 0-based.
    pub subtask: u32,
    /// What it contributes.
    pub part: AckPart,
}

/// See [`Ack`].
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum AckPart {
    /// Positions of a source's splits.
    Source {
        /// Of this subtask.
        splits: Vec<SplitState>,
    },
    /// Files of keyed state.
    State {
        /// The whole chain, oldest first.
        files: Vec<StateFile>,
        /// Bytes that are new in this checkpoint.
        new_bytes: u64,
        /// For how long the operator had to stop for it, in microseconds.
        sync_us: u64,
        /// The operator's watermark at the barrier, the same at every subtask. `i64::MIN`: none yet.
        watermark: i64,
        /// Namespaces below this are dead for ever, also for a restart with another allowed lateness.
        live_from: Option<i64>,
    },
    /// A pre-committed transaction; `None` if there were no rows.
    Sink(Option<Committable>),
    /// This part could not be made durable; it goes into the next checkpoint.
    Declined(String),
}

/// Adds an output of plain values.
pub fn vec_output<'s, D: Clone + 'static>(b: &mut OperatorBuilder<'s, Time>) -> (VecOutput<D>, StreamVec<'s, Time, D>) {
    let (output, stream) = b.new_output::<Vec<D>>();
    (OutputBuilder::from(output), stream)
}

/// Adds the output for acks. It is connected to no input: its frontier is what [`Acks`] holds and nothing else. Were it
/// connected, no operator could be seen to be ready before the first grant, which waits for just that.
pub fn ack_output<'s>(b: &mut OperatorBuilder<'s, Time>) -> (VecOutput<Json<Ack>>, StreamVec<'s, Time, Json<Ack>>) {
    let (output, stream) = b.new_output_connection::<Vec<Json<Ack>>, _>(Vec::<(usize, Antichain<u64>)>::new());
    (OutputBuilder::from(output), stream)
}

/// See the module.
pub struct Acks {
    output: VecOutput<Json<Ack>>,
    /// For the checkpoint in progress. `None` after the end.
    capability: Option<Capability<Time>>,
    /// For those whose parts are not durable yet, in order.
    waiting: VecDeque<Capability<Time>>,
    /// The checkpoint in progress.
    pub checkpoint: CheckpointId,
}

impl Acks {
    /// The capability stays at time 0 until [`ready`](Self::ready); as long as any operator's does, the ticker grants nothing.
    pub fn new(output: VecOutput<Json<Ack>>, capability: Capability<Time>, first: CheckpointId) -> Self {
        Acks { output, capability: Some(capability), waiting: VecDeque::new(), checkpoint: first }
    }
    /// The operator's state is restored.
    pub fn ready(&mut self) {
        if let Some(capability) = &mut self.capability {
            capability.downgrade(&first_of(self.checkpoint));
        }
    }
    /// The barrier was passed and the operator's part handed over to be made durable: go on with the next checkpoint.
    pub fn barrier(&mut self) {
        self.checkpoint = next(self.checkpoint);
        if let Some(capability) = &mut self.capability {
            self.waiting.push_back(capability.clone());
            capability.downgrade(&first_of(self.checkpoint));
        }
    }
    /// The oldest part that was waited for is durable, or declined.
    pub fn send(&mut self, ack: Ack) {
        if let Some(capability) = self.waiting.pop_front() {
            self.output.activate().session_with_builder(&capability).give(Json(ack));
        }
    }
    /// No barrier will come any more.
    pub fn close(&mut self) {
        self.capability = None;
    }
}
