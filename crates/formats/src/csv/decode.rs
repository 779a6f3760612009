//! Records of CSV into rows.
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{CsvOptions, Dialect};
use crate::column::{Column, Values};
use crate::error::SchemaError;
use crate::record::{Decoded, DeserializationSchema, Records};
use crate::rows::Rows;
use crate::text::datetime::{self, TimestampFault};
use crate::text::number::{Number, NumberFault, parse_lenient};

/// Decodes records that hold one CSV line each. See the [module](super) for what is accepted.
pub struct CsvDecoder {
    schema: SchemaRef,
    dialect: Dialect,
    columns: Vec<Column>,
    field: Vec<u8>,
}

impl std::fmt::Debug for CsvDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsvDecoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl CsvDecoder {
    /// A decoder of rows of `schema`.
    ///
    /// # Errors
    /// If a column is of a type that CSV cannot hold, or the options contradict each other.
    pub fn new(schema: SchemaRef, options: &CsvOptions) -> Result<Self, SchemaError> {
        super::check(&schema)?;
        let dialect = Dialect::new(options)?;
        match schema.fields().iter().map(Column::new).collect() {
            Some(columns) => Ok(Self { schema, dialect, columns, field: Vec::new() }),
            None => Err(SchemaError::unsupported_schema("CSV")),
        }
    }

    fn record(&mut self, record: &[u8]) -> Result<(), String> {
        let record = record.strip_suffix(b"\n").map_or(record, |r| r.strip_suffix(b"\r").unwrap_or(r));
        if let Err(error) = simdutf8::compat::from_utf8(record) {
            return Err(format!("invalid UTF-8 at byte {}", error.valid_up_to()));
        }
        let fields = self.columns.len();
        let mut at = 0;
        for (i, column) in self.columns.iter_mut().enumerate() {
            let (end, quoted) = field(record, at, &self.dialect, &mut self.field).map_err(|what| in_column(column, what))?;
            if i + 1 < fields && end == record.len() {
                return Err(format!("{} fields instead of {fields}, at byte {end}", i + 1));
            }
            if i + 1 == fields && end < record.len() {
                return Err(format!("more than {fields} fields, at byte {end}"));
            }
            let null = !quoted && self.field == self.dialect.null_literal;
            let pushed = match (null, column.nullable) {
                (true, true) => {
                    column.push_null();
                    Ok(())
                }
                // The literal of NULL stands for itself where NULL cannot be meant.
                (true, false) if !matches!(column.values, Values::Utf8(_)) => Err("NULL, and the column is NOT NULL".to_owned()),
                _ => column.push_text(&self.field),
            };
            pushed.map_err(|what| in_column(column, format!("{what}, at byte {at}")))?;
            at = end + 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let arrays: Vec<_> = self.columns.iter_mut().map(Column::finish).collect();
        RecordBatch::try_new(Arc::clone(&self.schema), arrays.into_iter().collect::<Result<_, _>>()?)
    }
}

impl DeserializationSchema for CsvDecoder {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn decode(&mut self, records: Records<'_>) -> Decoded {
        for column in &mut self.columns {
            column.truncate(0);
            column.reserve(records.spans.len());
        }
        let undo = |decoder: &mut Self, len| decoder.columns.iter_mut().for_each(|column| column.truncate(len));
        let rows = Rows::of(records, self, |decoder, record, _| decoder.record(record), undo);
        let batch = self.finish();
        rows.decoded(&self.schema, batch)
    }
}

fn in_column(column: &Column, what: String) -> String {
    format!("column '{}': {what}", column.field.name())
}

/// Reads the field at `at` into `out`. Returns the position of the delimiter or end after it, and whether it was
/// quoted.
fn field(record: &[u8], at: usize, dialect: &Dialect, out: &mut Vec<u8>) -> Result<(usize, bool), String> {
    out.clear();
    let quoted = dialect.quote.is_some() && record.get(at).copied() == dialect.quote;
    let mut pos = at + usize::from(quoted);
    loop {
        match record.get(pos).copied() {
            None if quoted => return Err(format!("a quote that is not closed, at byte {at}")),
            None => return Ok((pos, false)),
            Some(byte) if Some(byte) == dialect.escape => {
                match record.get(pos + 1) {
                    Some(escaped) => out.push(*escaped),
                    None => {
                        return Err(format!("an escape character with nothing after it, at byte {pos}"));
                    }
                }
                pos += 2;
            }
            Some(byte) if quoted && Some(byte) == dialect.quote => {
                pos += 1;
                match record.get(pos).copied() {
                    None => return Ok((pos, true)),
                    Some(next) if next == dialect.delimiter => return Ok((pos, true)),
                    Some(next) if next == byte => out.push(byte),
                    Some(_) => return Err(format!("text after a closing quote, at byte {pos}")),
                }
                pos += 1;
            }
            Some(byte) if !quoted && byte == dialect.delimiter => return Ok((pos, false)),
            Some(b'\n' | b'\r') if !quoted => {
                return Err(format!("a line end outside of quotes, at byte {pos}"));
            }
            Some(byte) => {
                out.push(byte);
                pos += 1;
            }
        }
    }
}

impl Column {
    /// Adds the value that `text` (valid UTF-8) stands for.
    fn push_text(&mut self, text: &[u8]) -> Result<(), String> {
        let trimmed = text.trim_ascii();
        match &mut self.values {
            Values::Utf8(bytes) => bytes.push(text)?,
            Values::Binary(bytes) => {
                BASE64.decode_vec(trimmed, &mut bytes.data).map_err(|_| "expected base64")?;
                bytes.close()?;
            }
            Values::Boolean(bits) => bits.append(match () {
                () if trimmed.eq_ignore_ascii_case(b"true") => true,
                () if trimmed.eq_ignore_ascii_case(b"false") => false,
                () => return Err("expected true or false".to_owned()),
            }),
            Values::Int8(values) => values.push(integer(trimmed)?),
            Values::Int16(values) => values.push(integer(trimmed)?),
            Values::Int32(values) => values.push(integer(trimmed)?),
            Values::Int64(values) => values.push(integer(trimmed)?),
            Values::UInt8(values) => values.push(integer(trimmed)?),
            Values::UInt16(values) => values.push(integer(trimmed)?),
            Values::UInt32(values) => values.push(integer(trimmed)?),
            Values::UInt64(values) => values.push(integer(trimmed)?),
            Values::Float32(values) => values.push(number(trimmed)?.f32().map_err(range)?),
            Values::Float64(values) => values.push(number(trimmed)?.f64().map_err(range)?),
            Values::Decimal { values, precision, scale, .. } => {
                let out_of_range = |_| format!("a number out of the range of DECIMAL({precision}, {scale})");
                values.push(number(trimmed)?.decimal(*precision, *scale).map_err(out_of_range)?);
            }
            Values::Date32(values) => {
                let days = datetime::parse_date(trimmed).and_then(|days| i32::try_from(days).ok());
                values.push(days.ok_or("expected a date such as 2024-01-31")?);
            }
            Values::Time32 { values, unit } => {
                let units = datetime::parse_time(trimmed, *unit).and_then(|units| i32::try_from(units).ok());
                values.push(units.ok_or(TIME)?);
            }
            Values::Time64 { values, unit } => values.push(datetime::parse_time(trimmed, *unit).ok_or(TIME)?),
            Values::Timestamp { values, unit } => {
                let value = datetime::parse_timestamp(trimmed, *unit).map_err(|fault| match fault {
                    TimestampFault::Syntax => "expected a timestamp such as 2024-01-31 23:59:59.123",
                    TimestampFault::Range => "a timestamp out of the range of the column's unit",
                });
                values.push(value?);
            }
            Values::List { .. } | Values::Struct(_) | Values::Map(_) => {
                return Err("a type that CSV cannot hold".to_owned());
            }
        }
        self.nulls.append_non_null();
        Ok(())
    }
}

const TIME: &str = "expected a time such as 23:59:59";

fn number(text: &[u8]) -> Result<Number<'_>, String> {
    parse_lenient(text).ok_or_else(|| "expected a number".to_owned())
}

fn range(fault: NumberFault) -> String {
    match fault {
        NumberFault::Fraction => "a number with a fraction in a column of integers".to_owned(),
        NumberFault::Range => "a number out of the column's range".to_owned(),
    }
}

fn integer<T: TryFrom<i128>>(text: &[u8]) -> Result<T, String> {
    let value = number(text)?.integer().map_err(range)?;
    T::try_from(value).map_err(|_| range(NumberFault::Range))
}
