//! What the encoders have in common.
use arrow::array::{Array, RecordBatch};
use arrow::datatypes::Schema;

use crate::cells::Cells;
use crate::record::{EncodeError, EncodedRows};
use crate::text::writer::Writer;

/// The cells of a batch, after a check that its columns are those of `schema` by name and type.
pub(crate) fn check_batch<'a>(schema: &Schema, rows: &'a RecordBatch) -> Result<Vec<Cells<'a>>, EncodeError> {
    let wrong = |what: String| Err(EncodeError::Schema { what });
    if rows.num_columns() != schema.fields().len() {
        return wrong(format!("{} columns instead of {}", rows.num_columns(), schema.fields().len()));
    }
    let mut cells = Vec::with_capacity(rows.num_columns());
    for (i, (column, field)) in rows.columns().iter().zip(schema.fields()).enumerate() {
        let found = rows.schema_ref().field(i).name();
        if found != field.name() {
            return wrong(format!("column {i} is '{found}' instead of '{}'", field.name()));
        }
        if column.data_type() != field.data_type() {
            let (found, expected) = (column.data_type(), field.data_type());
            return wrong(format!("column '{}' is of type {found} instead of {expected}", field.name()));
        }
        match Cells::new(column) {
            Some(column) => cells.push(column),
            None => {
                return wrong(format!("column '{}' of type {} cannot be written", field.name(), field.data_type()));
            }
        }
    }
    Ok(cells)
}

/// How much text is gathered, in the processor's nearest cache, before it is moved to the output.
const CHUNK: usize = 16 * 1024;

/// Moves the text to the output if there is enough of it, or if it is the `last`.
#[inline(always)]
pub(crate) fn flush(from: &mut Writer, to: &mut EncodedRows, last: bool) {
    if last || from.len() >= CHUNK {
        to.data.extend_from_slice(from.written());
        from.clear();
    }
}
