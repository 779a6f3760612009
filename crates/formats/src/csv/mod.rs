//! CSV (RFC 4180), one line per record.
//!
//! A field that equals the null literal is NULL if it is not quoted; quoted, it is that text. So with the default, the
//! empty literal, `a,,b` holds a NULL and `a,"",b` an empty string, as in PostgreSQL's `COPY`. A record may hold line
//! ends inside quotes. One line end at its end is left out. Every record has as many fields as the schema has columns.
//! Whitespace around numbers, booleans, dates and times is left out; in text it counts. Numbers may have a plus sign
//! and leading zeros; otherwise values are read and written as in [JSON](crate::json). Nested types have no place in
//! CSV.
mod decode;
mod encode;

pub use decode::CsvDecoder;
pub use encode::CsvEncoder;

use arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};

use crate::error::SchemaError;

/// Options of CSV, with Flink's names after the prefix `csv.`. All characters are ASCII.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CsvOptions {
    /// Between fields; a comma by default.
    #[serde(rename = "field-delimiter")]
    pub delimiter: char,
    /// Around fields that hold special characters; `"` by default, `None` for no quoting.
    #[serde(rename = "quote-character")]
    pub quote: Option<char>,
    /// Before a character that is then taken as it is; none by default.
    #[serde(rename = "escape-character")]
    pub escape: Option<char>,
    /// What NULL is written as; empty by default.
    #[serde(rename = "null-literal")]
    pub null_literal: String,
    /// Whether [`Format::header`](crate::Format::header) makes a header line; off by default. The decoder does not know
    /// which record is a file's first: whoever reads the file leaves the header out.
    #[serde(rename = "header")]
    pub header: bool,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { delimiter: ',', quote: Some('"'), escape: None, null_literal: String::new(), header: false }
    }
}

/// The options as bytes.
#[derive(Clone, Debug)]
pub(crate) struct Dialect {
    delimiter: u8,
    quote: Option<u8>,
    escape: Option<u8>,
    null_literal: Vec<u8>,
}

impl Dialect {
    fn new(options: &CsvOptions) -> Result<Self, SchemaError> {
        let wrong = |option, what: &str| Err(SchemaError::Option { format: "CSV", option, what: what.to_owned() });
        let byte = |char: char| u8::try_from(char).ok().filter(|b| b.is_ascii() && !matches!(b, b'\n' | b'\r'));
        let Some(delimiter) = byte(options.delimiter) else {
            return wrong("field-delimiter", "must be one ASCII character other than a line end");
        };
        let quote = options.quote.map(byte);
        let escape = options.escape.map(byte);
        if quote == Some(None) || quote.flatten() == Some(delimiter) {
            return wrong("quote-character", "must be one ASCII character other than a line end and the delimiter");
        }
        let (quote, escape_byte) = (quote.flatten(), escape.flatten());
        if escape == Some(None) || escape_byte.is_some_and(|e| e == delimiter || Some(e) == quote) {
            return wrong("escape-character", "must be one ASCII character other than a line end, delimiter and quote");
        }
        let null_literal = options.null_literal.clone().into_bytes();
        let special = |b: &u8| *b == delimiter || Some(*b) == quote || Some(*b) == escape_byte || matches!(*b, b'\n' | b'\r');
        if null_literal.iter().any(special) {
            return wrong("null-literal", "must not hold the delimiter, quote or escape character or a line end");
        }
        Ok(Self { delimiter, quote, escape: escape_byte, null_literal })
    }
}

/// Checks that CSV can hold all columns.
pub(crate) fn check(schema: &Schema) -> Result<(), SchemaError> {
    if schema.fields().is_empty() {
        return Err(SchemaError::Columns { format: "CSV", what: "the schema has no columns; it needs one".to_owned() });
    }
    for field in schema.fields() {
        let nested = matches!(field.data_type(), DataType::List(_) | DataType::Struct(_) | DataType::Map(_, _));
        if nested || crate::column::Column::new(field).is_none() {
            return Err(SchemaError::Type {
                column: field.name().clone(),
                data_type: field.data_type().clone(),
                format: "CSV",
                hint: "use a boolean, number, string, binary, date, time or timestamp, or the format JSON",
            });
        }
    }
    Ok(())
}
