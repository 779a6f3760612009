//! Aggregates of a group: `count`, `sum`, `min`, `max`, `avg`. NULLs are ignored, as in SQL.
use semel_engine::operators::keyed::Aggregation;
use semel_engine::state::AggregateKind;

/// An aggregate with its name in the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateCall(pub(crate) Aggregation);

impl AggregateCall {
    fn of(kind: AggregateKind, function: &str, column: String) -> AggregateCall {
        let name = format!("{function}_{column}");
        AggregateCall(Aggregation { kind, column: Some(column), name })
    }
    /// Names its column in the output; without it: `count`, `sum_<column>`, ...
    pub fn alias(mut self, name: impl Into<String>) -> AggregateCall {
        self.0.name = name.into();
        self
    }
}

/// `COUNT(*)`: BIGINT.
pub fn count() -> AggregateCall {
    AggregateCall(Aggregation { kind: AggregateKind::Count, column: None, name: "count".into() })
}
/// `COUNT(column)`: rows in which it is not NULL.
pub fn count_column(column: impl Into<String>) -> AggregateCall {
    AggregateCall::of(AggregateKind::CountColumn, "count", column.into())
}
/// `SUM(column)`: BIGINT for integers, DECIMAL(38, scale) for decimals, DOUBLE for floats. An overflow fails the job.
pub fn sum(column: impl Into<String>) -> AggregateCall {
    AggregateCall::of(AggregateKind::Sum, "sum", column.into())
}
/// `MIN(column)`.
pub fn min(column: impl Into<String>) -> AggregateCall {
    AggregateCall::of(AggregateKind::Min, "min", column.into())
}
/// `MAX(column)`.
pub fn max(column: impl Into<String>) -> AggregateCall {
    AggregateCall::of(AggregateKind::Max, "max", column.into())
}
/// `AVG(column)`: DOUBLE for integers and floats, DECIMAL(38, max(6, scale)) for decimals.
pub fn avg(column: impl Into<String>) -> AggregateCall {
    AggregateCall::of(AggregateKind::Avg, "avg", column.into())
}
