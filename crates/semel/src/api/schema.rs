//! Schemas with SQL's types, as in Flink's `Schema.newBuilder()` and `DataTypes`.
use super::ApiError;
use super::error::no_duplicates;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::sync::Arc;

/// Builds a schema column by column.
#[derive(Debug, Clone, Default)]
pub struct SchemaBuilder {
    fields: Vec<Field>,
}

impl SchemaBuilder {
    /// No column yet.
    pub fn new() -> SchemaBuilder {
        SchemaBuilder::default()
    }

    /// A column that may be NULL.
    pub fn column(mut self, name: impl Into<String>, data_type: DataType) -> Self {
        self.fields.push(Field::new(name, data_type, true));
        self
    }

    /// A column that is never NULL.
    pub fn column_not_null(mut self, name: impl Into<String>, data_type: DataType) -> Self {
        self.fields.push(Field::new(name, data_type, false));
        self
    }

    /// Columns that are known to be right.
    pub(crate) fn schema(self) -> SchemaRef {
        Arc::new(Schema::new(self.fields))
    }

    /// The schema.
    ///
    /// # Errors
    /// Two columns of one name; a DECIMAL with more than 38 digits, or with more digits behind the point than in all.
    pub fn build(self) -> Result<SchemaRef, ApiError> {
        no_duplicates(self.fields.iter().map(|f| f.name().as_str()), &|| "in the schema".to_owned())?;
        for field in &self.fields {
            if let DataType::Decimal128(precision, scale) = *field.data_type()
                && (precision == 0 || precision > 38 || scale < 0 || scale as u8 > precision)
            {
                let why = format!(
                    "column {:?}: DECIMAL({precision}, {scale}) must have 1 to 38 digits, and at most as many of them behind the point",
                    field.name()
                );
                return Err(ApiError::Operator(why));
            }
        }
        Ok(Arc::new(Schema::new(self.fields)))
    }
}

/// SQL's types.
#[derive(Debug, Clone, Copy)]
pub struct DataTypes;

impl DataTypes {
    /// `BOOLEAN`.
    pub fn boolean() -> DataType {
        DataType::Boolean
    }
    /// `INT`: 32 bits.
    pub fn int() -> DataType {
        DataType::Int32
    }
    /// `BIGINT`: 64 bits.
    pub fn bigint() -> DataType {
        DataType::Int64
    }
    /// `DOUBLE`.
    pub fn double() -> DataType {
        DataType::Float64
    }
    /// `DECIMAL(precision, scale)`: exact, at most 38 digits, `scale` of them behind the point.
    pub fn decimal(precision: u8, scale: i8) -> DataType {
        DataType::Decimal128(precision, scale)
    }
    /// `STRING`.
    pub fn string() -> DataType {
        DataType::Utf8
    }
    /// `BYTES`.
    pub fn bytes() -> DataType {
        DataType::Binary
    }
    /// `DATE`.
    pub fn date() -> DataType {
        DataType::Date32
    }
    /// `TIMESTAMP(3)`: milliseconds, without a zone.
    pub fn timestamp() -> DataType {
        DataType::Timestamp(TimeUnit::Millisecond, None)
    }
    /// `TIMESTAMP_LTZ(3)`: milliseconds, UTC.
    pub fn timestamp_ltz() -> DataType {
        DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
    }
}
