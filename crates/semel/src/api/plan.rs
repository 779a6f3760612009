//! What a program has built so far. It becomes the engine's graph when it is executed: then uids are given to operators that
//! have none, and neighbouring stateless steps become one operator.
use super::ApiError;
use super::steps::Steps;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::OperatorUid;
use semel_engine::failure::Failure;
use semel_engine::graph::{Graph, Operator, Port};
use semel_engine::operators::transform::{Function, Transform};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(crate) struct Plan {
    nodes: Vec<PlanNode>,
    pub(crate) options: BTreeMap<String, String>,
}

pub(crate) enum Work {
    Steps(Steps),
    Operator(Arc<dyn Operator>),
}

struct PlanNode {
    /// Derived uids are made of it.
    kind: &'static str,
    uid: Option<OperatorUid>,
    work: Work,
    inputs: Vec<Port>,
    /// Names of outputs beside the first.
    side_outputs: BTreeMap<String, usize>,
}

impl Plan {
    pub(crate) fn add(&mut self, kind: &'static str, work: Work, inputs: Vec<Port>) -> Port {
        self.nodes.push(PlanNode { kind, uid: None, work, inputs, side_outputs: BTreeMap::new() });
        Port { node: self.nodes.len() - 1, output: 0 }
    }

    pub(crate) fn name_output(&mut self, port: Port, name: &str, output: usize) {
        self.nodes[port.node].side_outputs.insert(name.to_owned(), output);
    }

    pub(crate) fn side_output(&self, port: Port, name: &str) -> Option<(Port, SchemaRef)> {
        let node = &self.nodes[port.node];
        let output = *node.side_outputs.get(name)?;
        let Work::Operator(operator) = &node.work else { return None };
        Some((Port { node: port.node, output }, operator.outputs().get(output)?.clone()))
    }

    pub(crate) fn set_uid(&mut self, node: usize, uid: &str) -> Result<(), ApiError> {
        let uid = OperatorUid::new(uid)?;
        if let Some(other) = self.nodes.iter().enumerate().find(|(at, n)| *at != node && n.uid.as_ref() == Some(&uid)).map(|(_, n)| n) {
            return Err(ApiError::Uid(format!(
                "uid {:?} is already that of another operator (a {}): state would be mixed up",
                uid.as_str(),
                other.kind
            )));
        }
        self.nodes[node].uid = Some(uid);
        Ok(())
    }

    /// The uid of each operator: as given, else its kind and its place among all of its kind.
    fn uids(&self) -> Result<Vec<OperatorUid>, ApiError> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut uids: Vec<OperatorUid> = vec![];
        for node in &self.nodes {
            let place = counts.entry(node.kind).or_default();
            *place += 1;
            uids.push(match &node.uid {
                Some(uid) => uid.clone(),
                None => OperatorUid::new(format!("{}-{place}", node.kind))?,
            });
        }
        Ok(uids)
    }

    /// The engine's graph.
    ///
    /// # Errors
    /// An explicit uid that is also the derived one of another operator.
    pub(crate) fn graph(&self) -> Result<Graph, ApiError> {
        let uids = self.uids()?;
        let mut readers = vec![0; self.nodes.len()];
        self.nodes.iter().flat_map(|n| &n.inputs).for_each(|port| readers[port.node] += 1);
        let mut graph = Graph::default();
        // Where each node's first output is in the graph, or the steps that wait to be joined with their only reader.
        let mut done: Vec<Done> = vec![];
        for (at, node) in self.nodes.iter().enumerate() {
            let mut inputs = vec![];
            let mut before: Option<Steps> = None;
            for port in &node.inputs {
                match &done[port.node] {
                    Done::Port(base) => inputs.push(Port { node: base.node, output: port.output }),
                    Done::Waiting(steps, port) => {
                        before = Some(steps.clone());
                        inputs.push(*port);
                    }
                }
            }
            done.push(match &node.work {
                Work::Steps(steps) => {
                    let steps = match before {
                        Some(before) => before.then(steps.clone()),
                        None => steps.clone(),
                    };
                    let reader = self.nodes.iter().find(|n| n.inputs.iter().any(|port| port.node == at));
                    let joins = readers[at] == 1 && reader.is_some_and(|n| matches!(n.work, Work::Steps(_)));
                    match (joins, inputs.first()) {
                        (true, Some(port)) => Done::Waiting(steps, *port),
                        _ => Done::Port(graph.add(uids[at].clone(), transform(steps.pruned()), inputs)?),
                    }
                }
                Work::Operator(operator) => Done::Port(graph.add(uids[at].clone(), operator.clone(), inputs)?),
            });
        }
        Ok(graph)
    }
}

enum Done {
    Port(Port),
    Waiting(Steps, Port),
}

struct Apply(Arc<Steps>);

impl Function for Apply {
    fn apply(&mut self, rows: RecordBatch, out: &mut Vec<RecordBatch>) -> Result<(), Failure> {
        out.extend(self.0.apply(rows)?);
        Ok(())
    }
}

fn transform(steps: Steps) -> Arc<dyn Operator> {
    let (description, schema, steps) = (steps.description.clone(), steps.schema.clone(), Arc::new(steps));
    Arc::new(Transform { description, schema, function: Box::new(move || Box::new(Apply(steps.clone()))) })
}
