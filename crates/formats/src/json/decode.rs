//! Records of JSON into rows.
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::JsonOptions;
use super::cursor::{Cursor, Parsed};
use super::object::Object;
use crate::error::SchemaError;
use crate::record::{Decoded, DeserializationSchema, Records};
use crate::rows::Rows;

/// Decodes records that hold one JSON object each. See the [module](super) for what is accepted.
pub struct JsonDecoder {
    schema: SchemaRef,
    object: Object,
}

impl std::fmt::Debug for JsonDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonDecoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl JsonDecoder {
    /// A decoder of rows of `schema`.
    ///
    /// # Errors
    /// If a column is of a type that JSON cannot hold.
    pub fn new(schema: SchemaRef, options: &JsonOptions) -> Result<Self, SchemaError> {
        super::check(&schema)?;
        let Some(mut object) = Object::new(schema.fields()) else {
            return Err(SchemaError::unsupported_schema("JSON"));
        };
        object.fail_on_missing_field = options.fail_on_missing_field;
        Ok(Self { schema, object })
    }

    #[inline]
    fn record(object: &mut Object, record: &[u8], tail: &[u8]) -> Parsed<()> {
        let mut cursor = Cursor::new(record, tail);
        object.parse(&mut cursor)?;
        cursor.end()
    }

    fn finish(&mut self, rows: usize) -> Result<RecordBatch, ArrowError> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), self.object.finish()?, &options)
    }
}

impl DeserializationSchema for JsonDecoder {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn decode(&mut self, records: Records<'_>) -> Decoded {
        self.object.truncate(0);
        self.object.reserve(records.spans.len());
        let parse = |object: &mut Object, record: &[u8], tail: &[u8]| Self::record(object, record, tail).map_err(|fault| fault.reason());
        let rows = Rows::of(records, &mut self.object, parse, Object::truncate);
        let batch = self.finish(rows.len());
        rows.decoded(&self.schema, batch)
    }
}
