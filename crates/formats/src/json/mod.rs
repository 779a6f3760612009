//! JSON (RFC 8259), one object per record.
//!
//! # Decoding
//! Strict: trailing bytes, bad escapes, control characters in strings, invalid UTF-8, numbers such as `01` or `1.`, and
//! more than 128 nested levels make a record bad. A lone surrogate (`"\ud800"`) does too: no UTF-8 text can hold it.
//! Fields that the schema does not have are checked and skipped. A missing field and JSON `null` are NULL, an error if
//! the column is NOT NULL. Of several fields with one name the last wins, but each must fit the column.
//!
//! | type | accepted |
//! |---|---|
//! | integers | numbers without a fraction: `1`, `1.0`, `1e3`; out of range is an error |
//! | DECIMAL | any number, exact; excess fraction digits are rounded half up, too many integer digits are an error |
//! | FLOAT, DOUBLE | any number, to the nearest float; one that would be infinite is an error |
//! | BOOLEAN | `true`, `false` |
//! | Utf8 | strings; other values as they are written |
//! | Binary | base64 (RFC 4648, with padding) |
//! | DATE | `"2024-01-31"` |
//! | TIME | `"23:59:59.123"`, digits beyond the column's unit are cut off |
//! | TIMESTAMP | `"2024-01-31 23:59:59.123"` or `"2024-01-31T23:59:59.123"`, each also with a zone (`Z`, `+02:00`), which turns it into UTC; a number counts the column's units since 1970 |
//! | List, Struct, Map | arrays; objects; objects |
//!
//! As in Flink, numbers and booleans may also stand in strings.
//!
//! # Encoding
//! Compact, fields in the schema's order, decimals with all digits of their scale, timestamps in SQL's form or ISO
//! 8601's with as many fraction digits as needed, and `Z` if the column has a zone. NaN and infinities are an error,
//! for JSON has no text for them.
pub(crate) mod cursor;
mod decode;
mod encode;
pub(crate) mod object;
mod value;

pub use decode::JsonDecoder;
pub use encode::JsonEncoder;

use arrow::datatypes::{DataType, FieldRef, Fields, Schema};
use serde::{Deserialize, Serialize};

use crate::error::SchemaError;

/// How timestamps are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimestampFormat {
    /// `2024-01-31 23:59:59.123`
    #[default]
    #[serde(rename = "SQL")]
    Sql,
    /// `2024-01-31T23:59:59.123`
    #[serde(rename = "ISO-8601")]
    Iso8601,
}

/// Options of JSON, with Flink's names after the prefix `json.`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JsonOptions {
    /// How timestamps are written; both forms are always read.
    #[serde(rename = "timestamp-format.standard")]
    pub timestamp_format: TimestampFormat,
    /// Whether NULL fields are left out instead of written as `null`; entries of maps and elements of lists never are.
    #[serde(rename = "encode.ignore-null-fields")]
    pub ignore_null_fields: bool,
    /// Whether a record that lacks a field of the schema is bad even if the column may be NULL. Looks at the record's
    /// own fields, not at those of nested objects.
    #[serde(rename = "fail-on-missing-field")]
    pub fail_on_missing_field: bool,
}

/// Checks that JSON can hold all columns.
pub(crate) fn check(schema: &Schema) -> Result<(), SchemaError> {
    check_fields(schema.fields(), "")
}

fn check_fields(fields: &Fields, parent: &str) -> Result<(), SchemaError> {
    for (i, field) in fields.iter().enumerate() {
        let column = if parent.is_empty() { field.name().clone() } else { format!("{parent}.{}", field.name()) };
        if fields.iter().take(i).any(|other| other.name() == field.name()) {
            let what = format!("two fields are named '{column}'; rename one");
            return Err(SchemaError::Columns { format: "JSON", what });
        }
        check_field(field, column)?;
    }
    Ok(())
}

fn check_field(field: &FieldRef, column: String) -> Result<(), SchemaError> {
    let refused = |hint| Err(SchemaError::Type { column: column.clone(), data_type: field.data_type().clone(), format: "JSON", hint });
    match field.data_type() {
        DataType::List(item) => check_field(item, column),
        DataType::Struct(fields) => check_fields(fields, &column),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 && *fields[0].data_type() == DataType::Utf8 => check_field(&fields[1], column),
            _ => refused("a map's keys must be strings"),
        },
        _ if crate::column::Column::new(field).is_none() => {
            refused("use a boolean, integer, float, string, binary, decimal, date, time, timestamp, list, struct or map")
        }
        _ => Ok(()),
    }
}
