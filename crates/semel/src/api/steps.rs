//! Stateless work on columns: filters and projections, a chain of them as one operator.
use super::ApiError;
use super::error::no_duplicates;
use super::expr::{Expr, Typed, compile, evaluate, evaluate_mask};
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::FilterBuilder;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use semel_engine::failure::Failure;
use std::sync::Arc;

/// One piece of work, compiled against the schema of the rows that come to it.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Keeps the rows whose condition is true, and of them the columns `keep`.
    Filter { condition: Typed, keep: Vec<usize>, schema: SchemaRef },
    /// Makes these columns.
    Project { columns: Vec<Typed>, schema: SchemaRef },
}

/// Steps one after the other, with what they are for people and for the plan's hash.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    pub(crate) description: String,
    pub(crate) schema: SchemaRef,
}

impl Steps {
    pub(crate) fn filter(condition: &Expr, schema: &SchemaRef) -> Result<Steps, ApiError> {
        let typed = compile(condition, schema)?;
        if typed.data_type != arrow::datatypes::DataType::Boolean {
            let why = format!("it is {} where filter needs a condition (BOOLEAN)", semel_engine::state::type_name(&typed.data_type));
            return Err(ApiError::Expression { expression: condition.to_string(), why });
        }
        let step = Step::Filter { condition: typed, keep: (0..schema.fields().len()).collect(), schema: schema.clone() };
        Ok(Steps { steps: vec![step], description: format!("filter({condition})"), schema: schema.clone() })
    }

    pub(crate) fn project(columns: &[Expr], schema: &SchemaRef) -> Result<Steps, ApiError> {
        let texts: Vec<String> = columns.iter().map(Expr::to_string).collect();
        let description = format!("select({})", texts.join(", "));
        if columns.is_empty() {
            return Err(ApiError::Operator("select needs at least one column".into()));
        }
        let names: Vec<String> = columns.iter().map(Expr::name).collect();
        no_duplicates(names.iter().map(String::as_str), &|| format!("in {description}"))?;
        let typed = columns.iter().map(|e| compile(e, schema)).collect::<Result<Vec<_>, _>>()?;
        let fields: Vec<Field> = names.iter().zip(&typed).map(|(name, t)| Field::new(name, t.data_type.clone(), t.nullable)).collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(Steps { steps: vec![Step::Project { columns: typed, schema: schema.clone() }], description, schema })
    }

    /// This and then `next`, as one.
    pub(crate) fn then(mut self, next: Steps) -> Steps {
        self.steps.extend(next.steps);
        Steps { steps: self.steps, description: format!("{} -> {}", self.description, next.description), schema: next.schema }
    }

    /// Lets no filter copy a column that nothing behind it reads.
    pub(crate) fn pruned(mut self) -> Steps {
        // Which columns of the rows before a step are read by the steps behind it; `None`: all.
        let mut needed: Option<Vec<usize>> = None;
        for at in (0..self.steps.len()).rev() {
            if let Step::Filter { .. } = &self.steps[at] {
                self.prune_filter(at, needed.as_deref());
            }
            let mut reads = vec![];
            match &self.steps[at] {
                Step::Filter { condition, keep, .. } => {
                    condition.expr.columns(&mut reads);
                    reads.extend(keep);
                }
                Step::Project { columns, .. } => columns.iter().for_each(|c| c.expr.columns(&mut reads)),
            }
            reads.sort_unstable();
            reads.dedup();
            needed = Some(reads);
        }
        self
    }

    fn prune_filter(&mut self, at: usize, needed: Option<&[usize]>) {
        let Some(needed) = needed else { return };
        let Step::Filter { keep, schema, .. } = &mut self.steps[at] else { return };
        if needed.len() == keep.len() {
            return;
        }
        *keep = needed.to_vec();
        *schema = Arc::new(Schema::new(needed.iter().map(|i| schema.field(*i).clone()).collect::<Vec<_>>()));
        let kept = schema.clone();
        match self.steps.get_mut(at + 1) {
            Some(Step::Filter { condition, keep, .. }) => {
                condition.expr.remap(needed);
                keep.iter_mut().for_each(|k| *k = needed.iter().position(|n| n == k).unwrap_or(*k));
            }
            Some(Step::Project { columns, .. }) => columns.iter_mut().for_each(|c| c.expr.remap(needed)),
            None => {}
        }
        debug_assert_eq!(kept.fields().len(), needed.len());
    }

    /// Does it all. `None`: no row is left.
    pub(crate) fn apply(&self, rows: RecordBatch) -> Result<Option<RecordBatch>, Failure> {
        let mut rows = rows;
        for step in &self.steps {
            match step.apply(rows).map_err(|e| Failure::Fatal(format!("{}: {e}", self.description)))? {
                Some(left) => rows = left,
                None => return Ok(None),
            }
        }
        Ok(Some(rows))
    }
}

impl Step {
    fn apply(&self, rows: RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        match self {
            Step::Filter { condition, keep, schema } => {
                let mask = evaluate_mask(&condition.expr, &rows)?;
                let predicate = FilterBuilder::new(&mask).optimize().build();
                let left = predicate.count();
                if left == 0 {
                    return Ok(None);
                }
                if left == rows.num_rows() && keep.len() == rows.num_columns() {
                    return Ok(Some(rows));
                }
                let columns = keep.iter().map(|i| predicate.filter(rows.column(*i))).collect::<Result<Vec<_>, _>>()?;
                RecordBatch::try_new_with_options(schema.clone(), columns, &RecordBatchOptions::new().with_row_count(Some(left))).map(Some)
            }
            Step::Project { columns, schema } => {
                let count = rows.num_rows();
                let columns =
                    columns.iter().map(|c| evaluate(&c.expr, &rows)?.into_array(count)).collect::<Result<Vec<_>, ArrowError>>()?;
                RecordBatch::try_new(schema.clone(), columns).map(Some)
            }
        }
    }
}
