//! Several streams of one schema as one.
use crate::graph::{Builder, Edge, Operator};
use arrow::datatypes::SchemaRef;
use semel_checkpoint::OperatorUid;
use timely::dataflow::operators::Concatenate;

/// `UNION ALL`.
pub struct Union {
    /// Of all inputs.
    pub schema: SchemaRef,
}

impl Operator for Union {
    fn describe(&self) -> String {
        "union".into()
    }
    fn outputs(&self) -> Vec<SchemaRef> {
        vec![self.schema.clone()]
    }
    fn build<'s>(&self, builder: &mut Builder<'s>, _: &OperatorUid, inputs: Vec<Edge<'s>>) -> Vec<Edge<'s>> {
        let mut sources: Vec<usize> = inputs.iter().flat_map(|e| e.sources.clone()).collect();
        sources.sort_unstable();
        sources.dedup();
        let rows = builder.scope.concatenate(inputs.into_iter().map(|e| e.rows));
        vec![Edge { rows, sources }]
    }
}
