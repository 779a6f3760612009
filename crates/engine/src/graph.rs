//! The graph of operators that a job consists of, and how each worker thread builds it as a timely dataflow.
use crate::ack::Ack;
use crate::batch::Batch;
use crate::coordinator::ticker::Control;
use crate::erased::{DynCommitter, SharedSink, SharedSource};
use crate::failure::Failure;
use crate::job::JobContext;
use crate::time::Time;
use crate::watermark::Report;
use crate::wire::Json;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::OperatorUid;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use timely::dataflow::{Scope, Stream, StreamVec};
use tokio::sync::oneshot;

/// An operator: one value per operator of the job, built once by each worker thread as one of its subtasks.
pub trait Operator: Send + Sync {
    /// What it is, for people and for the plan's hash: everything that its state depends on.
    fn describe(&self) -> String;
    /// Schemas of its outputs.
    fn outputs(&self) -> Vec<SchemaRef>;
    /// Builds a subtask: takes a stream per input, gives one per output.
    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>>;
    /// The source, if it is one.
    fn source(&self) -> Option<&SharedSource> {
        None
    }
    /// The sink and the schema of its rows, if it is one.
    fn sink(&self) -> Option<(&SharedSink, &SchemaRef)> {
        None
    }
    /// Whether it keeps keyed state.
    fn stateful(&self) -> bool {
        false
    }
}

/// An output of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Index of the node.
    pub node: usize,
    /// Index of the output.
    pub output: usize,
}

/// An operator in its place.
#[derive(Clone)]
pub struct Node {
    /// Stable over restarts: state is found by it.
    pub uid: OperatorUid,
    /// What it does.
    pub operator: Arc<dyn Operator>,
    /// Where its rows come from. Only nodes before it.
    pub inputs: Vec<Port>,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Adds an operator behind others; its first output is the answer.
    ///
    /// # Errors
    /// A uid that another operator has, or an input that does not exist.
    pub fn add(&mut self, uid: OperatorUid, operator: Arc<dyn Operator>, inputs: Vec<Port>) -> Result<Port, Failure> {
        if self.nodes.iter().any(|n| n.uid == uid) {
            return Err(Failure::Fatal(format!(
                "two operators have the uid {uid:?}: give one of them another with `.uid(...)`",
                uid = uid.as_str()
            )));
        }
        for input in &inputs {
            if self.nodes.get(input.node).is_none_or(|n| input.output >= n.operator.outputs().len()) {
                return Err(Failure::Fatal(format!("operator {uid} reads an output that does not exist")));
            }
        }
        self.nodes.push(Node { uid, operator, inputs });
        Ok(Port { node: self.nodes.len() - 1, output: 0 })
    }
    /// All operators; inputs come before what reads them.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// The schema of an output.
    pub fn schema(&self, port: Port) -> Option<SchemaRef> {
        self.nodes.get(port.node)?.operator.outputs().get(port.output).cloned()
    }
    /// All sources.
    pub fn sources(&self) -> impl Iterator<Item = (&OperatorUid, &SharedSource)> {
        self.nodes.iter().filter_map(|n| Some((&n.uid, n.operator.source()?)))
    }
    /// All sinks, with the schema of their rows.
    pub fn sinks(&self) -> impl Iterator<Item = (&OperatorUid, &SharedSink, &SchemaRef)> {
        self.nodes.iter().filter_map(|n| n.operator.sink().map(|(sink, schema)| (&n.uid, sink, schema)))
    }
    /// What must be equal in all processes of a generation: operators, their order, their schemas.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for node in &self.nodes {
            hash.update(format!("{} {} {:?} {:?}\n", node.uid, node.operator.describe(), node.inputs, node.operator.outputs()));
        }
        hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
    }
    /// Checks what must hold before a start: sources and sinks exist, and state and pending transactions have somebody to go to.
    pub fn check(&self) -> Result<(), Failure> {
        if self.sources().next().is_none() {
            return Err(Failure::Fatal("the job has no source".into()));
        }
        if self.sinks().next().is_none() {
            return Err(Failure::Fatal("the job has no sink: nothing would ever leave it".into()));
        }
        Ok(())
    }
}

/// Rows on their way between two operators.
#[derive(Clone)]
pub struct Edge<'s> {
    /// The rows.
    pub rows: Stream<'s, Time, Batch>,
    /// The sources that they come from, as indices into [`Builder::reports`]: their watermarks are the rows' watermark.
    pub sources: Vec<usize>,
}

/// A sink's committer on its way from the writer's task, which opens both, to the committer's.
pub struct OpenedSink {
    /// Of the sink.
    pub uid: OperatorUid,
    /// Comes when the sink is open.
    pub committer: oneshot::Receiver<Box<dyn DynCommitter>>,
}

/// What a worker thread gathers while it builds the graph.
pub struct Builder<'s> {
    /// Timely's scope.
    pub scope: Scope<'s, Time>,
    /// What is run.
    pub job: Arc<JobContext>,
    /// From the ticker, for sources.
    pub control: StreamVec<'s, Time, Control>,
    /// For the completer.
    pub acks: Vec<StreamVec<'s, Time, Json<Ack>>>,
    /// Data-less: their frontier says what the sinks have written.
    pub written: Vec<StreamVec<'s, Time, ()>>,
    /// Watermarks, one stream per source.
    pub reports: Vec<StreamVec<'s, Time, Report>>,
    /// For the committers.
    pub sinks: Vec<OpenedSink>,
}

impl<'s> Builder<'s> {
    /// 0-based.
    pub fn subtask(&self) -> u32 {
        self.scope.index() as u32
    }
    /// The watermarks of the sources that rows come from.
    pub fn reports_of(&self, edge: &Edge<'s>) -> Vec<StreamVec<'s, Time, Report>> {
        edge.sources.iter().map(|i| self.reports[*i].clone()).collect()
    }
}
