//! Phase one of a sink: a subtask hands rows to its writer's task through a bounded buffer, and a barrier after the last row of
//! each checkpoint. A full buffer, and nothing else, holds back the frontier that flow control watches.
use crate::ack::{Ack, AckPart, Acks, ack_output, vec_output};
use crate::coordinator::ticker::Control;
use crate::erased::{DynCommitter, DynWriter, SharedSink};
use crate::failure::{Failure, fail};
use crate::graph::{Builder, Edge, OpenedSink, Operator};
use crate::job::JobContext;
use crate::sink::{ConnectorError, SinkContext};
use crate::tasks::{Answers, Mailbox};
use crate::time::{CLOSED, Time, checkpoint_of, low};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{CheckpointId, Committable, OperatorUid};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use tokio::sync::{mpsc::UnboundedReceiver, oneshot};

/// How often an idle writer is called.
const IDLE: Duration = Duration::from_millis(50);

/// See the module; the other half is [`super::sink_committer`].
pub struct SinkOperator {
    /// Where rows go.
    pub sink: SharedSink,
    /// Of the rows.
    pub schema: SchemaRef,
}

enum Request {
    Rows(CheckpointId, RecordBatch, u64),
    Barrier(CheckpointId),
}

enum Answer {
    Opened,
    PreCommitted(Option<Committable>),
    /// There is room again.
    Room,
}

/// Bytes that were handed over and are not written yet.
#[derive(Default)]
struct Buffer {
    bytes: AtomicU64,
    /// The operator waits for room.
    full: std::sync::atomic::AtomicBool,
}

impl Operator for SinkOperator {
    fn describe(&self) -> String {
        "sink".into()
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        vec![]
    }
    fn sink(&self) -> Option<(&SharedSink, &SchemaRef)> {
        Some((&self.sink, &self.schema))
    }

    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let (scope, job, subtask) = (builder.scope, builder.job.clone(), builder.subtask());
        let Some(edge) = inputs.into_iter().next() else { return vec![] };
        let mut b = OperatorBuilder::new(format!("{uid} writer"), scope);
        let mut input = b.new_input(edge.rows, Pipeline);
        let mut control = b.new_input(builder.control.clone(), Exchange::new(|c: &Control| c.to));
        let (acks, ack_stream) = ack_output(&mut b);
        let (written, written_stream) = vec_output::<()>(&mut b);
        let activator = scope.worker().sync_activator_for(b.operator_info().address.to_vec());

        let context = SinkContext {
            job: job.identity().clone(),
            uid: uid.clone(),
            subtask,
            parallelism: job.parallelism(),
            schema: self.schema.clone(),
        };
        let (to_committer, committer) = oneshot::channel();
        let buffer = Arc::new(Buffer::default());
        let place = format!("sink {uid} subtask {subtask}");
        let task = WriterTask { place: place.clone(), sink: self.sink.clone(), context, job: job.clone(), buffer: buffer.clone() };
        let task = move |requests, answers| task.run(requests, answers, to_committer);
        let writer = Mailbox::<Request, Answer>::spawn(&job.runtime, place, activator, task);
        let rows_out = metrics::counter!("numRecordsSend", "operator" => uid.to_string(), "subtask" => subtask.to_string());
        let room = job.config().sink_buffer_bytes;
        builder.sinks.push(OpenedSink { uid: uid.clone(), committer });
        let uid = uid.clone();

        b.build_reschedule(move |mut capabilities| {
            capabilities.truncate(1); // None of its own for `written`: that follows the input and what is queued.
            let mut acks = capabilities.pop().map(|cap| Acks::new(acks, cap, job.first_checkpoint()));
            let mut opened = false;
            // Beyond the barrier: they come after it, however early they are. Those beyond the last checkpoint of a stop come only if
            // another one follows it after all (it was declined); they hold nothing back, or that one would never be granted.
            let mut early = Early::new();
            let mut last: Option<CheckpointId> = None;
            // In order; not handed over because the buffer is full. What is queued has not passed its tick.
            let mut queue = Queue::new();
            move |frontiers| {
                _ = &written; // Nothing is sent on it; its frontier is what is told.
                let Some(acks) = &mut acks else { return false };
                while let Some(answer) = writer.answer() {
                    match answer {
                        Answer::Opened => {
                            opened = true;
                            acks.ready();
                        }
                        Answer::PreCommitted(committable) => acks.send(Ack { operator: uid.clone(), subtask, part: AckPart::Sink(committable) }),
                        Answer::Room => {}
                    }
                }
                if !opened {
                    return false;
                }
                control.for_each(|_, commands| commands.drain(..).for_each(|c| last = c.last));
                let beyond = |checkpoint| last.is_some_and(|last| checkpoint > last);
                if last.is_some() {
                    early.iter_mut().filter(|(checkpoint, _)| beyond(**checkpoint)).flat_map(|(_, rows)| rows).for_each(|rows| rows.0 = None);
                }
                input.for_each(|stamp, batch| {
                    let (Some(rows), Some(capability)) = (batch.take(), stamp.retain_least(1)) else { return };
                    rows_out.increment(rows.num_rows() as u64);
                    job.status.rows_out.fetch_add(rows.num_rows() as u64, Relaxed);
                    let checkpoint = checkpoint_of(*capability.time());
                    if checkpoint < acks.checkpoint {
                        fail(Failure::Fatal(format!("operator {uid}: rows of checkpoint {checkpoint} came after its barrier; this is a fault of an operator before it")));
                    } else if checkpoint == acks.checkpoint && !beyond(checkpoint) {
                        queue.push_back((Some(capability), request(checkpoint, rows)));
                    } else {
                        early.entry(checkpoint).or_default().push((Some(capability).filter(|_| !beyond(checkpoint)), rows));
                    }
                });
                // A checkpoint's rows are taken when what was said before its first tick has been heard.
                let frontier = low(&frontiers[0]).min(low(&frontiers[1]));
                while frontier != CLOSED && acks.checkpoint < checkpoint_of(frontier) {
                    take(&mut queue, &mut early, acks.checkpoint);
                    crate::failpoint::passing("before_pre_commit");
                    queue.push_back((None, Request::Barrier(acks.checkpoint)));
                    acks.barrier();
                    if !beyond(acks.checkpoint) {
                        take(&mut queue, &mut early, acks.checkpoint);
                    }
                }
                hand_over(&mut queue, &writer, &buffer, room);
                if frontier == CLOSED && queue.is_empty() {
                    acks.close();
                }
                false
            }
        });
        builder.acks.push(ack_stream);
        builder.written.push(written_stream);
        vec![]
    }
}

type Queue = VecDeque<(Option<Capability<Time>>, Request)>;
type Early = BTreeMap<CheckpointId, Vec<(Option<Capability<Time>>, RecordBatch)>>;

/// Queues what came early of a checkpoint.
fn take(queue: &mut Queue, early: &mut Early, checkpoint: CheckpointId) {
    let rows = early.remove(&checkpoint).into_iter().flatten();
    queue.extend(rows.map(|(capability, rows)| (capability, request(checkpoint, rows))));
}

fn request(checkpoint: CheckpointId, rows: RecordBatch) -> Request {
    let bytes = rows.get_array_memory_size() as u64;
    Request::Rows(checkpoint, rows, bytes)
}

/// Hands over what fits. A single batch larger than the buffer fits when the buffer is empty.
fn hand_over(queue: &mut Queue, writer: &Mailbox<Request, Answer>, buffer: &Buffer, room: u64) {
    while let Some((capability, request)) = queue.pop_front() {
        if let Request::Rows(_, _, bytes) = &request {
            let used = buffer.bytes.load(Relaxed);
            if used > 0 && used + bytes > room {
                queue.push_front((capability, request));
                buffer.full.store(true, std::sync::atomic::Ordering::SeqCst);
                // The writer may have made room between the two: then nobody would wake us.
                if buffer.bytes.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                    continue;
                }
                return;
            }
            buffer.bytes.fetch_add(*bytes, Relaxed);
        }
        writer.send(request);
    }
}

struct WriterTask {
    place: String,
    sink: SharedSink,
    context: SinkContext,
    job: Arc<JobContext>,
    buffer: Arc<Buffer>,
}

impl WriterTask {
    async fn run(
        self,
        mut requests: UnboundedReceiver<Request>,
        answers: Answers<Answer>,
        to_committer: oneshot::Sender<Box<dyn DynCommitter>>,
    ) {
        let place = &self.place;
        let failed = |e: ConnectorError| -> Failure { Failure::from(e).within(place) };
        let (mut writer, committer) = self.sink.open(self.context.clone()).await.unwrap_or_else(|e| fail(failed(e)));
        if to_committer.send(committer).is_err() || !answers.send(Answer::Opened) {
            return;
        }
        let uncommitted =
            metrics::gauge!("uncommittedBytes", "operator" => self.context.uid.to_string(), "subtask" => self.context.subtask.to_string());
        let (mut rows_in_transaction, mut bytes_in_transaction) = (0, 0);
        loop {
            let request = match tokio::time::timeout(IDLE, requests.recv()).await {
                Ok(Some(request)) => request,
                Ok(None) => return, // The operator is gone.
                Err(_) => {
                    writer.idle().await.unwrap_or_else(|e| fail(failed(e)));
                    continue;
                }
            };
            match request {
                Request::Rows(checkpoint, rows, bytes) => {
                    rows_in_transaction += rows.num_rows() as u64;
                    bytes_in_transaction += bytes;
                    uncommitted.set(bytes_in_transaction as f64);
                    writer.write(checkpoint, rows).await.unwrap_or_else(|e| fail(failed(e)));
                    self.buffer.bytes.fetch_sub(bytes, std::sync::atomic::Ordering::SeqCst);
                    if self.buffer.full.swap(false, std::sync::atomic::Ordering::SeqCst) && !answers.send(Answer::Room) {
                        return;
                    }
                }
                Request::Barrier(checkpoint) => {
                    let committable = self.pre_commit(&mut writer, checkpoint, rows_in_transaction, bytes_in_transaction).await;
                    (rows_in_transaction, bytes_in_transaction) = (0, 0);
                    crate::failpoint::passing("after_pre_commit");
                    if !answers.send(Answer::PreCommitted(committable.unwrap_or_else(|e| fail(e.within(place))))) {
                        return;
                    }
                }
            }
        }
    }

    async fn pre_commit(
        &self,
        writer: &mut Box<dyn DynWriter>,
        checkpoint: CheckpointId,
        rows: u64,
        bytes: u64,
    ) -> Result<Option<Committable>, Failure> {
        let deadline = self.job.config().commit_timeout;
        let handle = match tokio::time::timeout(deadline, writer.pre_commit()).await {
            Ok(handle) => handle.map_err(|e| Failure::from(e).within(format_args!("pre-commit of checkpoint {checkpoint}")))?,
            Err(_) => return Err(Failure::Retryable(format!("pre-commit of checkpoint {checkpoint} took longer than {deadline:?}"))),
        };
        let (sink, subtask, generation) = (self.context.uid.clone(), self.context.subtask, self.context.job.generation);
        Ok(handle.map(|handle| Committable { sink, subtask, checkpoint, generation, handle, rows, bytes }))
    }
}
