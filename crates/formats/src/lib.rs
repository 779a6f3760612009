//! Formats between bytes and Arrow: records into rows of a schema, and rows into records.
//!
//! A decoder is given the values of many records inside one buffer ([`Records`]), writes them straight into column
//! builders and returns one batch ([`Decoded`]). A record that does not fit the schema is cut out and reported with its
//! index and a reason; the good ones around it all become rows. An encoder writes each row of a batch into one reused
//! buffer ([`EncodedRows`]). [`Format`] chooses: [`json`], [`csv`] or [`raw`].
//!
//! JSON is the hottest code of a job that reads and writes Kafka. Its decoder makes one pass over the bytes, directed by
//! the schema, and predicts each object's fields from the objects before; its encoder stores keys and digits in whole
//! words. Both work without unsafe code.
pub(crate) mod cells;
pub(crate) mod column;
pub mod csv;
mod encode;
mod error;
mod format;
pub mod json;
pub mod raw;
mod record;
mod rows;
pub(crate) mod text;

pub use csv::CsvOptions;
pub use error::SchemaError;
pub use format::Format;
pub use json::JsonOptions;
pub use record::{BadRecord, Decoded, DeserializationSchema, EncodeError, EncodedRows, Records, SerializationSchema, Span};
