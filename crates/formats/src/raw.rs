//! The record's value as it is, in one column of text or bytes.
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};

use crate::cells::CellValues;
use crate::column::{Column, Values};
use crate::encode::check_batch;
use crate::error::SchemaError;
use crate::record::{Decoded, DeserializationSchema, EncodeError, EncodedRows, Records, SerializationSchema};
use crate::rows::Rows;

/// Decodes records into one Utf8 or Binary column; invalid UTF-8 makes a record bad.
pub struct RawDecoder {
    schema: SchemaRef,
    column: Column,
}

impl std::fmt::Debug for RawDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawDecoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// Encodes one Utf8 or Binary column. A NULL is an error, for a record without a value has no bytes.
#[derive(Debug)]
pub struct RawEncoder {
    schema: SchemaRef,
}

fn check(schema: &Schema) -> Result<(), SchemaError> {
    match &schema.fields()[..] {
        [field] if matches!(field.data_type(), DataType::Utf8 | DataType::Binary) => Ok(()),
        [field] => Err(SchemaError::Type {
            column: field.name().clone(),
            data_type: field.data_type().clone(),
            format: "raw",
            hint: "use a string or binary",
        }),
        fields => Err(SchemaError::Columns {
            format: "raw",
            what: format!("the schema has {} columns; it must have one, a string or binary", fields.len()),
        }),
    }
}

impl RawDecoder {
    /// A decoder into the one column of `schema`.
    ///
    /// # Errors
    /// If the schema is not one Utf8 or Binary column.
    pub fn new(schema: SchemaRef) -> Result<Self, SchemaError> {
        check(&schema)?;
        match schema.fields().first().and_then(Column::new) {
            Some(column) => Ok(Self { schema, column }),
            None => Err(SchemaError::unsupported_schema("raw")),
        }
    }

    fn record(&mut self, record: &[u8]) -> Result<(), String> {
        let name = self.column.field.name();
        match &mut self.column.values {
            Values::Utf8(bytes) => {
                if let Err(error) = simdutf8::compat::from_utf8(record) {
                    return Err(format!("column '{name}': invalid UTF-8 at byte {}", error.valid_up_to()));
                }
                bytes.push(record)?;
            }
            Values::Binary(bytes) => bytes.push(record)?,
            _ => return Err(format!("column '{name}': neither text nor bytes")),
        }
        self.column.nulls.append_non_null();
        Ok(())
    }
}

impl DeserializationSchema for RawDecoder {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn decode(&mut self, records: Records<'_>) -> Decoded {
        self.column.truncate(0);
        self.column.reserve(records.spans.len());
        let rows = Rows::of(records, self, |decoder, record, _| decoder.record(record), |decoder, len| decoder.column.truncate(len));
        let batch = self.column.finish().and_then(|column| RecordBatch::try_new(Arc::clone(&self.schema), vec![column]));
        rows.decoded(&self.schema, batch)
    }
}

impl RawEncoder {
    /// An encoder of the one column of `schema`.
    ///
    /// # Errors
    /// If the schema is not one Utf8 or Binary column.
    pub fn new(schema: SchemaRef) -> Result<Self, SchemaError> {
        check(&schema)?;
        Ok(Self { schema })
    }
}

impl SerializationSchema for RawEncoder {
    fn append(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError> {
        let cells = check_batch(&self.schema, rows)?;
        let Some(cells) = cells.first() else {
            return Ok(());
        };
        let (CellValues::Utf8(bytes) | CellValues::Binary(bytes)) = &cells.values else {
            return Ok(());
        };
        for row in 0..rows.num_rows() {
            if cells.is_null(row) {
                let what = "NULL cannot be written in the format raw; filter it out".to_owned();
                return Err(EncodeError::Value { row, column: self.schema.field(0).name().clone(), what });
            }
            out.data.extend_from_slice(bytes.get(row));
            out.ends.push(out.data.len());
        }
        Ok(())
    }
}
