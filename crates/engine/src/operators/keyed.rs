//! What the operators over keyed state have in common: which columns are keys, which are aggregated.
use crate::failure::Failure;
use crate::state::{AggregateKind, AggregateSpec, Namespaces, StateSchema};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};

/// One aggregate of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregation {
    /// COUNT, SUM, ...
    pub kind: AggregateKind,
    /// The column that goes in. `None` for COUNT(*).
    pub column: Option<String>,
    /// The name of the column that comes out.
    pub name: String,
}

/// Keys and aggregates, resolved against a schema.
#[derive(Debug, Clone)]
pub struct Keyed {
    /// Of the rows that go in.
    pub input: SchemaRef,
    /// Indices of the key columns.
    pub keys: Vec<usize>,
    /// Resolved aggregates; their inputs are indices into `inputs`.
    pub specs: Vec<AggregateSpec>,
    /// Indices of the columns that are aggregated.
    pub inputs: Vec<usize>,
    outputs: Vec<Field>,
}

impl Keyed {
    /// Resolves names.
    ///
    /// # Errors
    /// A column that does not exist, or of a type that the aggregate or a key cannot have.
    pub fn new(input: SchemaRef, keys: &[String], aggregations: &[Aggregation]) -> Result<Keyed, Failure> {
        let find = |name: &str| {
            let names = || input.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ");
            input
                .column_with_name(name)
                .map(|(i, _)| i)
                .ok_or_else(|| Failure::Fatal(format!("there is no column {name:?}; the columns are {}", names())))
        };
        let keys = keys.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err(Failure::Fatal("a keyed operator needs at least one key column".into()));
        }
        let mut inputs: Vec<usize> = vec![];
        let mut specs = vec![];
        let mut outputs = vec![];
        for a in aggregations {
            let spec = match a.column.as_deref().map(find).transpose()? {
                None => AggregateSpec::count(),
                Some(column) => {
                    let index = inputs.iter().position(|i| *i == column).unwrap_or_else(|| {
                        inputs.push(column);
                        inputs.len() - 1
                    });
                    let field = input.field(column);
                    AggregateSpec::new(a.kind, field.name(), index, field.data_type().clone())
                }
            };
            let accumulator = spec.accumulator().map_err(|e| Failure::Fatal(e.to_string()))?;
            let never_null = matches!(spec.kind, AggregateKind::Count | AggregateKind::CountColumn);
            outputs.push(Field::new(&a.name, accumulator.output_type(), !never_null));
            specs.push(spec);
        }
        Ok(Keyed { keys, specs, inputs, outputs, input })
    }

    /// Of the state that holds its groups. `namespaces`: what they stand for.
    pub fn state_schema(&self, slots: u32, namespaces: Namespaces) -> StateSchema {
        let key = |i: &usize| (self.input.field(*i).name().clone(), self.input.field(*i).data_type().clone());
        StateSchema { keys: self.keys.iter().map(key).collect(), aggregates: self.specs.clone(), slots, namespaces }
    }

    /// The rows' key columns.
    pub fn key_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.keys.iter().map(|i| rows.column(*i).clone()).collect()
    }

    /// The columns that are aggregated.
    pub fn input_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.inputs.iter().map(|i| rows.column(*i).clone()).collect()
    }

    /// `before`, then keys, then aggregates.
    pub fn output_schema(&self, before: Vec<Field>) -> SchemaRef {
        let keys = self.keys.iter().map(|i| self.input.field(*i).clone());
        std::sync::Arc::new(Schema::new(before.into_iter().chain(keys).chain(self.outputs.clone()).collect::<Vec<_>>()))
    }

    /// For [`crate::graph::Operator::describe`].
    pub fn describe(&self) -> String {
        let names: Vec<&str> = self.keys.iter().map(|i| self.input.field(*i).name().as_str()).collect();
        format!("by {} of {:?}", names.join(", "), self.specs)
    }
}
