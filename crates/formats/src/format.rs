//! The choice of a format.
use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::csv::{CsvDecoder, CsvEncoder, CsvOptions};
use crate::error::SchemaError;
use crate::json::{JsonDecoder, JsonEncoder, JsonOptions};
use crate::raw::{RawDecoder, RawEncoder};
use crate::record::{DeserializationSchema, SerializationSchema};

/// A format with its options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object per record.
    Json(JsonOptions),
    /// One CSV line per record.
    Csv(CsvOptions),
    /// The record's bytes in one column.
    Raw,
}

impl Format {
    /// A decoder of rows of `schema`.
    ///
    /// # Errors
    /// If the format cannot hold a column (the error names column and type), or the options contradict each other.
    pub fn deserializer(&self, schema: SchemaRef) -> Result<Box<dyn DeserializationSchema>, SchemaError> {
        Ok(match self {
            Self::Json(options) => Box::new(JsonDecoder::new(schema, options)?),
            Self::Csv(options) => Box::new(CsvDecoder::new(schema, options)?),
            Self::Raw => Box::new(RawDecoder::new(schema)?),
        })
    }

    /// An encoder of rows of `schema`.
    ///
    /// # Errors
    /// As [`Self::deserializer`].
    pub fn serializer(&self, schema: SchemaRef) -> Result<Box<dyn SerializationSchema>, SchemaError> {
        Ok(match self {
            Self::Json(options) => Box::new(JsonEncoder::new(schema, options)?),
            Self::Csv(options) => Box::new(CsvEncoder::new(schema, options)?),
            Self::Raw => Box::new(RawEncoder::new(schema)?),
        })
    }

    /// The line that a file begins with, without a line end; `None` if the format or its options have none.
    ///
    /// # Errors
    /// As [`Self::serializer`].
    pub fn header(&self, schema: SchemaRef) -> Result<Option<Vec<u8>>, SchemaError> {
        match self {
            Self::Csv(options) if options.header => CsvEncoder::new(schema, options)?.header().map(Some),
            _ => Ok(None),
        }
    }
}
