//! Aggregate functions over groups: one flat vector per accumulator, indexed by group id.

mod avg;
mod count;
mod extreme;
mod sum;
mod text;

use self::extreme::{BooleanExtreme, Extreme};
use self::text::TextExtreme;
use super::error::StateError;
use super::types::{canonical_type, type_name};
use arrow::array::ArrayRef;
use arrow::datatypes::*;
use serde::{Deserialize, Serialize};

/// An aggregate function.
///
/// NULL inputs are ignored by all but `Count`; over no (non-NULL) input `Count` and `CountColumn` are 0 and all others NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AggregateKind {
    /// `COUNT(*)`: BIGINT.
    Count,
    /// `COUNT(column)`, of any type: BIGINT.
    CountColumn,
    /// `SUM`: BIGINT for integers, DECIMAL(38, scale) for decimals, DOUBLE for floats. Too large a result is an error that names the
    /// aggregate (Flink gives integers the input's type and wraps around silently).
    Sum,
    /// The smallest value, in the column's type. Floats by total order: NaN is the greatest. Texts by their bytes, false before true.
    Min,
    /// The greatest value; order as for `Min`.
    Max,
    /// The mean: DOUBLE for integers and floats, DECIMAL(38, max(6, scale)) for decimals, rounded half up as in Flink.
    Avg,
    /// The first non-NULL value in order of arrival.
    First,
    /// The last non-NULL value in order of arrival.
    Last,
}

impl AggregateKind {
    /// The function's name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            AggregateKind::Count | AggregateKind::CountColumn => "COUNT",
            AggregateKind::Sum => "SUM",
            AggregateKind::Min => "MIN",
            AggregateKind::Max => "MAX",
            AggregateKind::Avg => "AVG",
            AggregateKind::First => "FIRST_VALUE",
            AggregateKind::Last => "LAST_VALUE",
        }
    }
}

/// One aggregate of a keyed operator.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateSpec {
    /// The function.
    pub kind: AggregateKind,
    /// How it is called in messages and in the stored schema, such as `SUM(amount)`.
    pub name: String,
    /// The index of its input among the input columns, and its type. `None` for `Count` alone.
    pub input: Option<(usize, DataType)>,
}

impl AggregateSpec {
    /// `COUNT(*)`.
    pub fn count() -> AggregateSpec {
        AggregateSpec { kind: AggregateKind::Count, name: "COUNT(*)".into(), input: None }
    }

    /// A function of input column `index`, which is called `column` and has type `data_type`.
    pub fn new(kind: AggregateKind, column: &str, index: usize, data_type: DataType) -> AggregateSpec {
        AggregateSpec { kind, name: format!("{}({column})", kind.name()), input: Some((index, data_type)) }
    }

    /// An empty accumulator, or why the function is not defined for the type.
    pub fn accumulator(&self) -> Result<Box<dyn Accumulator>, StateError> {
        use AggregateKind::*;
        let input = self.input.as_ref().map(|(_, data_type)| canonical_type(data_type));
        let undefined = || StateError::UnsupportedAggregate {
            aggregate: self.name.clone(),
            kind: self.kind.name(),
            data_type: input.as_ref().map_or("no column".into(), type_name),
        };
        Ok(match (self.kind, &input) {
            (Count, _) => Box::<count::Count>::default(),
            (_, None) => return Err(undefined()),
            (CountColumn, Some(_)) => Box::new(count::Count::of_column()),
            (Sum, Some(t)) if t.is_integer() => Box::new(sum::Sum::<Int64Type>::new(self.name.clone(), DataType::Int64)),
            (Sum, Some(t)) if t.is_floating() => Box::new(sum::Sum::<Float64Type>::new(self.name.clone(), DataType::Float64)),
            (Sum, Some(DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s))) => {
                Box::new(sum::Sum::<Decimal128Type>::new(self.name.clone(), DataType::Decimal128(38, *s)))
            }
            (Avg, Some(t)) if t.is_floating() => Box::new(avg::Avg::floats(self.name.clone())),
            (Avg, Some(t)) if t.is_integer() => Box::new(avg::Avg::integers(self.name.clone())),
            (Avg, Some(DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s))) => {
                Box::new(avg::Avg::decimals(self.name.clone(), *s))
            }
            (Min | Max | First | Last, Some(t)) => extreme(self.kind, &self.name, t).ok_or_else(undefined)?,
            _ => return Err(undefined()),
        })
    }
}

fn extreme(kind: AggregateKind, name: &str, data_type: &DataType) -> Option<Box<dyn Accumulator>> {
    macro_rules! of {
        ($type:ty) => {
            Some(Box::new(Extreme::<$type>::new(kind, name.to_owned(), data_type.clone())))
        };
    }
    match data_type {
        DataType::Boolean => Some(Box::new(BooleanExtreme::new(kind, name.to_owned()))),
        DataType::Utf8 | DataType::Binary => Some(Box::new(TextExtreme::new(kind, name.to_owned(), data_type.clone()))),
        DataType::Int8 => of!(Int8Type),
        DataType::Int16 => of!(Int16Type),
        DataType::Int32 => of!(Int32Type),
        DataType::Int64 => of!(Int64Type),
        DataType::UInt8 => of!(UInt8Type),
        DataType::UInt16 => of!(UInt16Type),
        DataType::UInt32 => of!(UInt32Type),
        DataType::UInt64 => of!(UInt64Type),
        DataType::Float16 => of!(Float16Type),
        DataType::Float32 => of!(Float32Type),
        DataType::Float64 => of!(Float64Type),
        DataType::Date32 => of!(Date32Type),
        DataType::Date64 => of!(Date64Type),
        DataType::Time32(TimeUnit::Second) => of!(Time32SecondType),
        DataType::Time32(_) => of!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => of!(Time64MicrosecondType),
        DataType::Time64(_) => of!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => of!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of!(TimestampNanosecondType),
        DataType::Decimal32(..) => of!(Decimal32Type),
        DataType::Decimal64(..) => of!(Decimal64Type),
        DataType::Decimal128(..) => of!(Decimal128Type),
        _ => None,
    }
}

/// The state of one aggregate for many groups. Group ids are below the `n` of the last [`resize`](Accumulator::resize).
///
/// Implement it to keep another aggregate in [`KeyedState`](super::KeyedState).
pub trait Accumulator: Send {
    /// Makes room for group ids below `n`. New groups have seen no input. Never shrinks.
    fn resize(&mut self, n: usize);

    /// Adds one row to each of `groups` (repeats allowed): the rows of `column`, which has as many, or is `None` if the function has no input.
    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError>;

    /// The type of the results.
    fn output_type(&self) -> DataType;

    /// The results of these groups.
    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError>;

    /// The types of the state columns. They are stored: changing them makes old checkpoints unreadable.
    fn state_types(&self) -> Vec<DataType>;

    /// The state of these groups, for a snapshot or for `merge`.
    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError>;

    /// Overwrites the state of these groups; if one comes twice, the last one holds.
    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError>;

    /// Adds state columns of the same function to these groups: the panes of a sliding window, or partial aggregates. For
    /// `First` and `Last` merge in order of time.
    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError>;

    /// Makes a group as new.
    fn reset(&mut self, group: u32);

    /// Memory in use.
    fn memory_bytes(&self) -> usize;
}

/// The state column `i`, which has type `expected`.
pub(crate) fn state_column<'a>(columns: &'a [ArrayRef], i: usize, expected: &DataType, name: &str) -> Result<&'a ArrayRef, StateError> {
    let found = columns.get(i).map(|column| column.data_type());
    columns.get(i).filter(|_| found == Some(expected)).ok_or_else(|| StateError::ColumnType {
        what: format!("state column {i} of {name}"),
        expected: type_name(expected),
        found: found.map_or("none".into(), type_name),
    })
}

/// The input column, which the function needs.
pub(crate) fn input<'a>(column: Option<&'a ArrayRef>, name: &str) -> Result<&'a ArrayRef, StateError> {
    column.ok_or_else(|| StateError::ColumnType { what: format!("input of {name}"), expected: "a column".into(), found: "none".into() })
}
