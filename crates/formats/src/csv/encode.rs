//! Rows into records of CSV.
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{CsvOptions, Dialect};
use crate::cells::{CellValues, Cells, MAX_PLAIN};
use crate::encode::{check_batch, flush};
use crate::error::SchemaError;
use crate::record::{EncodeError, EncodedRows, SerializationSchema};
use crate::text::writer::Writer;

/// Encodes each row as one CSV line, without a line end. See the [module](super) for how values are written.
pub struct CsvEncoder {
    schema: SchemaRef,
    dialect: Dialect,
    out: Writer,
    value: Writer,
}

impl std::fmt::Debug for CsvEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsvEncoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl CsvEncoder {
    /// An encoder of rows of `schema`.
    ///
    /// # Errors
    /// If a column is of a type that CSV cannot hold, or the options contradict each other.
    pub fn new(schema: SchemaRef, options: &CsvOptions) -> Result<Self, SchemaError> {
        super::check(&schema)?;
        let dialect = Dialect::new(options)?;
        Ok(Self { schema, dialect, out: Writer::default(), value: Writer::default() })
    }

    /// The columns' names as a line, without a line end.
    ///
    /// # Errors
    /// If a name cannot be written in this dialect.
    pub(crate) fn header(&mut self) -> Result<Vec<u8>, SchemaError> {
        self.out.clear();
        for (i, field) in self.schema.fields().iter().enumerate() {
            separate(&mut self.out, &self.dialect, i);
            let name = field.name().as_bytes();
            write_field(&mut self.out, name, &self.dialect)
                .map_err(|what| SchemaError::Columns { format: "CSV", what: format!("the name of column '{}': {what}", field.name()) })?;
        }
        let header = self.out.written().to_vec();
        self.out.clear();
        Ok(header)
    }

    fn encode_row(&mut self, cells: &[Cells<'_>], row: usize) -> Result<(), (usize, String)> {
        for (i, cells) in cells.iter().enumerate() {
            separate(&mut self.out, &self.dialect, i);
            if cells.is_null(row) {
                self.out.room(self.dialect.null_literal.len());
                self.out.bytes(&self.dialect.null_literal);
                continue;
            }
            let written = match &cells.values {
                CellValues::Utf8(bytes) => write_field(&mut self.out, bytes.get(row), &self.dialect),
                CellValues::Binary(bytes) => write_field(&mut self.out, BASE64.encode(bytes.get(row)).as_bytes(), &self.dialect),
                plain => {
                    self.value.clear();
                    self.value.room(MAX_PLAIN);
                    plain
                        .write_plain(row, &mut self.value, b' ')
                        .and_then(|()| write_field(&mut self.out, self.value.written(), &self.dialect))
                }
            };
            written.map_err(|what| (i, what))?;
        }
        Ok(())
    }
}

impl SerializationSchema for CsvEncoder {
    fn append(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError> {
        let cells = check_batch(&self.schema, rows)?;
        out.ends.reserve(rows.num_rows());
        self.out.clear();
        for row in 0..rows.num_rows() {
            self.encode_row(&cells, row).map_err(|(column, what)| EncodeError::Value {
                row,
                column: self.schema.field(column).name().clone(),
                what,
            })?;
            out.ends.push(out.data.len() + self.out.len());
            flush(&mut self.out, out, false);
        }
        flush(&mut self.out, out, true);
        Ok(())
    }
}

/// Writes what stands before field `i`.
fn separate(out: &mut Writer, dialect: &Dialect, i: usize) {
    if i > 0 {
        out.room(1);
        out.byte(dialect.delimiter);
    }
}

/// Writes a value that is not NULL, in quotes or with escapes where it could be misread.
fn write_field(out: &mut Writer, text: &[u8], dialect: &Dialect) -> Result<(), String> {
    let special = |b: u8| b == dialect.delimiter || Some(b) == dialect.quote || Some(b) == dialect.escape;
    let line_end = text.iter().any(|b| matches!(b, b'\n' | b'\r'));
    let like_null = text == dialect.null_literal;
    let specials = text.iter().filter(|b| special(**b)).count();
    out.room(text.len() + specials + 2);
    if specials == 0 && !line_end && !like_null {
        out.bytes(text);
        return Ok(());
    }
    let Some(quote) = dialect.quote else {
        if line_end || like_null {
            let what = if line_end { "a text with a line end" } else { "a text that equals the null literal" };
            return Err(format!("{what} cannot be written without quoting; set csv.quote-character"));
        }
        let Some(escape) = dialect.escape else {
            let what = "a text with the delimiter in it cannot be written; set csv.quote-character or \
                        csv.escape-character";
            return Err(what.to_owned());
        };
        for byte in text {
            if special(*byte) {
                out.byte(escape);
            }
            out.byte(*byte);
        }
        return Ok(());
    };
    out.byte(quote);
    for byte in text {
        if *byte == quote {
            out.byte(quote);
        } else if Some(*byte) == dialect.escape {
            out.byte(*byte);
        }
        out.byte(*byte);
    }
    out.byte(quote);
    Ok(())
}
