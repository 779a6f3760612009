//! The column types that state keeps, and their stable names.
//!
//! State outlives the plan that wrote it. The same text may come as `Utf8` today and as a dictionary or a view tomorrow,
//! so state knows one canonical type for each family, and files name types in words of our own, not in Arrow's.

use super::error::{Doing, StateError};
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, TimeUnit};

/// The type under which a column of type `data_type` is kept: dictionaries become their values, all texts `Utf8`, all byte strings `Binary`.
pub fn canonical_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => canonical_type(values),
        DataType::RunEndEncoded(_, values) => canonical_type(values.data_type()),
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// `column` as its canonical type, which must be `expected`. `what` names the column in the error.
pub(crate) fn canonical_column(column: &ArrayRef, expected: &DataType, what: &dyn Fn() -> String) -> Result<ArrayRef, StateError> {
    if column.data_type() == expected {
        return Ok(column.clone());
    }
    check_type(column, expected, what)?;
    arrow::compute::cast(column, expected).doing("converting a column for state")
}

/// Refuses a column whose canonical type is not `expected`.
pub(crate) fn check_type(column: &ArrayRef, expected: &DataType, what: &dyn Fn() -> String) -> Result<(), StateError> {
    match column.data_type() == expected || canonical_type(column.data_type()) == *expected {
        true => Ok(()),
        false => Err(StateError::ColumnType { what: what(), expected: type_name(expected), found: type_name(column.data_type()) }),
    }
}

/// A name that never changes, close to Flink SQL's: it is stored with snapshots and compared at restore.
pub fn type_name(data_type: &DataType) -> String {
    use DataType::*;
    let digits = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    match data_type {
        Null => "NULL".into(),
        Boolean => "BOOLEAN".into(),
        Int8 => "TINYINT".into(),
        Int16 => "SMALLINT".into(),
        Int32 => "INT".into(),
        Int64 => "BIGINT".into(),
        UInt8 => "TINYINT UNSIGNED".into(),
        UInt16 => "SMALLINT UNSIGNED".into(),
        UInt32 => "INT UNSIGNED".into(),
        UInt64 => "BIGINT UNSIGNED".into(),
        Float16 => "HALF".into(),
        Float32 => "FLOAT".into(),
        Float64 => "DOUBLE".into(),
        Utf8 | LargeUtf8 | Utf8View => "STRING".into(),
        Binary | LargeBinary | BinaryView => "BYTES".into(),
        FixedSizeBinary(n) => format!("BINARY({n})"),
        Date32 => "DATE".into(),
        Date64 => "DATE MILLIS".into(),
        Time32(unit) | Time64(unit) => format!("TIME({})", digits(unit)),
        Duration(unit) => format!("INTERVAL SECOND({})", digits(unit)),
        Timestamp(unit, None) => format!("TIMESTAMP({})", digits(unit)),
        Timestamp(unit, Some(zone)) => format!("TIMESTAMP({}) AT {zone}", digits(unit)),
        Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s) => format!("DECIMAL({p}, {s})"),
        Dictionary(_, values) => type_name(values),
        other => other.to_string(),
    }
}
