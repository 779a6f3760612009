//! What can go wrong with keyed state.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// An error of keyed state, its snapshots or its restore. Each says what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A key column has a type that has no stable hash.
    #[error("a key of type {data_type} is not supported: cast the key to a number, string, date, timestamp or decimal")]
    UnsupportedKey {
        /// The type of the key column.
        data_type: DataType,
    },
    /// The aggregate function does not take this type.
    #[error("{aggregate}: {kind} is not defined for {data_type}: cast the column first")]
    UnsupportedAggregate {
        /// The aggregate's name, such as `SUM(amount)`.
        aggregate: String,
        /// The function.
        kind: &'static str,
        /// The type of its input, or "no column".
        data_type: String,
    },
    /// A column does not have the type that was declared when the state was created.
    #[error("{what}: expected {expected}, found {found}")]
    ColumnType {
        /// Which column.
        what: String,
        /// The declared type.
        expected: String,
        /// The type of the column that came.
        found: String,
    },
    /// An aggregate left the range of its type. Flink wraps around silently; Semel fails.
    #[error("{aggregate}: the result does not fit {data_type}: cast the column to a wider type such as DECIMAL or DOUBLE")]
    Overflow {
        /// The aggregate's name.
        aggregate: String,
        /// The type that was too small.
        data_type: &'static str,
    },
    /// A namespace of one subtask holds 2^32 - 1 groups, or one output column more than 2 GiB of text.
    #[error("{0}: raise the parallelism")]
    TooLarge(&'static str),
    /// A namespace was asked for that was never made or was dropped.
    #[error("namespace {namespace} does not exist: it was never updated, or has been dropped")]
    NoNamespace {
        /// The namespace.
        namespace: i64,
    },
    /// Arrow refused an operation.
    #[error("{doing}: {source}")]
    Arrow {
        /// What was being done.
        doing: &'static str,
        /// Arrow's error.
        source: ArrowError,
    },
    /// A snapshot file could not be read or written.
    #[error("snapshot file {path}: {reason}")]
    Store {
        /// The file's path in the checkpoint store.
        path: String,
        /// Why.
        reason: String,
    },
    /// A snapshot file does not hold what it should.
    #[error("snapshot file {path} is damaged: {reason}; restore an older checkpoint with --from")]
    Corrupt {
        /// The file's path in the checkpoint store.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A snapshot file was written by a newer version.
    #[error("snapshot file {path} has format {found}, and this version reads format {known}: use the version that wrote it")]
    Format {
        /// The file's path in the checkpoint store.
        path: String,
        /// The format of the file.
        found: u32,
        /// The only one that is read.
        known: u32,
    },
    /// The state in the checkpoint was written by an operator with another schema.
    #[error(
        "the state of operator {uid} does not fit this job.\n  in the checkpoint: {stored}\n  in this job:       {wanted}\n\
         Undo the change, or give the operator another uid and start with --allow-non-restored-state to drop its old state"
    )]
    Incompatible {
        /// The operator.
        uid: String,
        /// Schema stored with the file.
        stored: String,
        /// Schema of the running operator.
        wanted: String,
    },
}

/// Adds to an Arrow error what was being done.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StateError>;
}

impl<T> Doing<T> for Result<T, ArrowError> {
    fn doing(self, doing: &'static str) -> Result<T, StateError> {
        self.map_err(|source| StateError::Arrow { doing, source })
    }
}
