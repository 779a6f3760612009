//! Stateless work on whole batches: map, filter, flat-map, projection.
use crate::batch::{Batch, BatchOutput};
use crate::failure::{Failure, at_work};
use crate::graph::{Builder, Edge, Operator};
use crate::time::checkpoint_of;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::OperatorUid;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// What a subtask does with a batch. May answer with no batch, or with several.
pub trait Function: Send {
    /// One batch in, any number out.
    fn apply(&mut self, rows: RecordBatch, out: &mut Vec<RecordBatch>) -> Result<(), Failure>;
}

impl<F: FnMut(RecordBatch, &mut Vec<RecordBatch>) -> Result<(), Failure> + Send> Function for F {
    fn apply(&mut self, rows: RecordBatch, out: &mut Vec<RecordBatch>) -> Result<(), Failure> {
        self(rows, out)
    }
}

/// Makes the function of each subtask.
pub type FunctionFactory = Box<dyn Fn() -> Box<dyn Function> + Send + Sync>;

/// See the module.
pub struct Transform {
    /// What it is, e.g. `filter(region <> 'ap')`.
    pub description: String,
    /// Of what comes out.
    pub schema: SchemaRef,
    /// Makes the function of each subtask.
    pub function: FunctionFactory,
}

impl Operator for Transform {
    fn describe(&self) -> String {
        self.description.clone()
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        vec![self.schema.clone()]
    }
    fn build<'s>(&self, builder: &mut Builder<'s>, uid: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let mut edges = vec![];
        for Edge { rows, sources } in inputs {
            let mut function = (self.function)();
            // Long ones list all columns.
            let name = match self.description.char_indices().nth(100) {
                Some((end, _)) => format!("{}...", &self.description[..end]),
                None => self.description.clone(),
            };
            let operator = format!("operator {uid} ({name})");
            let mut b = OperatorBuilder::new(uid.to_string(), builder.scope);
            let mut input = b.new_input(rows, Pipeline);
            let (output, stream) = b.new_output::<Batch>();
            let mut output = BatchOutput::from(output);
            let mut out = vec![];
            b.build(move |capabilities| {
                drop(capabilities);
                move |_| {
                    let mut output = output.activate();
                    input.for_each(|stamp, batch| {
                        let (Some(rows), Some(capability)) = (batch.take(), stamp.retain_least(0)) else { return };
                        let checkpoint = checkpoint_of(*capability.time());
                        at_work(format_args!("{operator}, checkpoint {checkpoint}"), || function.apply(rows, &mut out));
                        let mut session = output.session_with_builder(&capability);
                        for rows in out.drain(..).filter(|rows| rows.num_rows() > 0) {
                            session.give_container(&mut Batch::from(rows));
                        }
                    });
                }
            });
            edges.push(Edge { rows: stream, sources });
        }
        edges
    }
}
