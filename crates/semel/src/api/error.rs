//! What can be wrong with a program; found when it is built, before anything runs.
use arrow::datatypes::{DataType, Schema};
use semel_checkpoint::IdError;
use semel_engine::failure::Failure;

/// See the module.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// A column that the rows do not have.
    #[error("there is no column {column:?} {place}; the columns are {columns}")]
    UnknownColumn {
        /// What was asked for.
        column: String,
        /// Which ones there are.
        columns: String,
        /// Where it was asked for, e.g. `in filter(...)`.
        place: String,
    },
    /// Two columns of one name.
    #[error("two columns are named {column:?} {place}: give one of them another name with `.alias(...)`")]
    DuplicateColumn {
        /// Its name.
        column: String,
        /// Where.
        place: String,
    },
    /// Values that cannot be combined like this.
    #[error("{expression}: {why}")]
    Expression {
        /// The expression.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
    /// Rows of one schema were needed.
    #[error("{place}: the schemas differ: {left} and {right}")]
    SchemaMismatch {
        /// Where.
        place: String,
        /// The first schema.
        left: String,
        /// The other one.
        right: String,
    },
    /// A record type that does not fit the columns.
    #[error("{record} does not fit the stream's columns: {why}")]
    Record {
        /// The Rust type.
        record: String,
        /// What does not fit.
        why: String,
    },
    /// A uid that cannot be one, or that another operator has.
    #[error("{0}")]
    Uid(String),
    /// Streams of two environments in one operator.
    #[error("{0}: the streams belong to two environments")]
    Environment(String),
    /// An operator that cannot be built like this.
    #[error("{0}")]
    Operator(String),
}

impl From<IdError> for ApiError {
    fn from(error: IdError) -> ApiError {
        ApiError::Uid(error.to_string())
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        ApiError::Operator(failure.to_string())
    }
}

/// `order_id BIGINT, amount DECIMAL(10, 2) NOT NULL`.
pub(crate) fn describe(schema: &Schema) -> String {
    let column = |name: &str, data_type: &DataType, nullable: bool| {
        format!("{name} {}{}", semel_engine::state::type_name(data_type), if nullable { "" } else { " NOT NULL" })
    };
    let columns: Vec<String> = schema.fields().iter().map(|f| column(f.name(), f.data_type(), f.is_nullable())).collect();
    columns.join(", ")
}

/// Index of a column, or an error that lists those there are.
pub(crate) fn column_index(schema: &Schema, name: &str, place: &dyn Fn() -> String) -> Result<usize, ApiError> {
    schema.column_with_name(name).map(|(index, _)| index).ok_or_else(|| ApiError::UnknownColumn {
        column: name.to_owned(),
        columns: schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", "),
        place: place(),
    })
}

/// Refuses two columns of one name.
pub(crate) fn no_duplicates<'a>(names: impl Iterator<Item = &'a str>, place: &dyn Fn() -> String) -> Result<(), ApiError> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ApiError::DuplicateColumn { column: name.to_owned(), place: place() });
        }
    }
    Ok(())
}
