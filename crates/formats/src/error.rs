//! Errors of a format against a schema.
use arrow::datatypes::DataType;

/// Why a format cannot be used with a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A column is of a type that the format cannot hold.
    #[error("column '{column}' is of type {data_type}, which {format} cannot hold; {hint}")]
    Type {
        /// The column; a field inside another one as `column.field`.
        column: String,
        /// Its type.
        data_type: DataType,
        /// The format.
        format: &'static str,
        /// What to use instead.
        hint: &'static str,
    },
    /// The columns, taken together, cannot be held.
    #[error("{format}: {what}")]
    Columns {
        /// The format.
        format: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
    /// An option has a value that the format cannot work with.
    #[error("{format}: option '{option}': {what}")]
    Option {
        /// The format.
        format: &'static str,
        /// The option's name.
        option: &'static str,
        /// What is wrong and what to do.
        what: String,
    },
}

impl SchemaError {
    /// For a builder that refuses what the check let through.
    pub(crate) fn unsupported_schema(format: &'static str) -> Self {
        Self::Columns { format, what: "the schema holds a type that cannot be decoded".to_owned() }
    }
}
