//! Rows into records of JSON.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Fields, SchemaRef};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{JsonOptions, TimestampFormat};
use crate::cells::{CellValues, Cells, MAX_PLAIN};
use crate::encode::{check_batch, flush};
use crate::error::SchemaError;
use crate::record::{EncodeError, EncodedRows, SerializationSchema};
use crate::text::string_specials;
use crate::text::writer::Writer;

/// Encodes each row as one JSON object. See the [module](super) for how values are written.
pub struct JsonEncoder {
    schema: SchemaRef,
    fields: Vec<Key>,
    style: Style,
    out: Writer,
}

impl std::fmt::Debug for JsonEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonEncoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
struct Style {
    separator: u8,
    ignore_nulls: bool,
}

/// What stands before a field's value, and the same for the fields inside the value.
struct Key {
    name: String,
    /// `,"name":` in pieces that can be copied whole.
    padded: Vec<[u8; 16]>,
    len: usize,
    inner: Vec<Key>,
}

impl Key {
    fn of_fields(fields: &Fields) -> Vec<Self> {
        fields.iter().map(|field| Self::new(field.name(), field.data_type())).collect()
    }

    fn new(name: &str, data_type: &DataType) -> Self {
        let mut out = Writer::default();
        out.room(2);
        out.byte(b',');
        string(&mut out, name.as_bytes(), 0, name.len());
        out.room(1);
        out.byte(b':');
        let padded = out.written().chunks(16).map(|chunk| {
            let mut piece = [0; 16];
            piece[..chunk.len()].copy_from_slice(chunk);
            piece
        });
        let inner = match data_type {
            DataType::Struct(fields) => Self::of_fields(fields),
            DataType::List(item) => vec![Self::new(item.name(), item.data_type())],
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(fields) => Self::of_fields(fields),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        Self { name: name.to_owned(), padded: padded.collect(), len: out.len(), inner }
    }
}

/// What is wrong with a value, and the names from the innermost field outwards.
struct Refused {
    what: String,
    path: Vec<String>,
}

impl Refused {
    #[cold]
    fn new(what: String) -> Box<Self> {
        Box::new(Self { what, path: Vec::new() })
    }

    #[cold]
    fn at(mut self, row: usize) -> EncodeError {
        self.path.reverse();
        EncodeError::Value { row, column: self.path.join("."), what: self.what }
    }
}

impl JsonEncoder {
    /// An encoder of rows of `schema`.
    ///
    /// # Errors
    /// If a column is of a type that JSON cannot hold.
    pub fn new(schema: SchemaRef, options: &JsonOptions) -> Result<Self, SchemaError> {
        super::check(&schema)?;
        let style = Style {
            separator: match options.timestamp_format {
                TimestampFormat::Sql => b' ',
                TimestampFormat::Iso8601 => b'T',
            },
            ignore_nulls: options.ignore_null_fields,
        };
        Ok(Self { fields: Key::of_fields(schema.fields()), schema, style, out: Writer::default() })
    }
}

impl SerializationSchema for JsonEncoder {
    fn append(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError> {
        let cells = check_batch(&self.schema, rows)?;
        out.ends.reserve(rows.num_rows());
        self.out.clear();
        for row in 0..rows.num_rows() {
            object(&mut self.out, &self.fields, &cells, row, self.style).map_err(|refused| refused.at(row))?;
            out.ends.push(out.data.len() + self.out.len());
            flush(&mut self.out, out, false);
        }
        flush(&mut self.out, out, true);
        Ok(())
    }
}

#[inline(always)]
fn object(out: &mut Writer, keys: &[Key], cells: &[Cells<'_>], row: usize, style: Style) -> Result<(), Box<Refused>> {
    let start = out.len();
    for (key, cells) in keys.iter().zip(cells) {
        let null = cells.is_null(row);
        if null && style.ignore_nulls {
            continue;
        }
        // The key, the largest plain value between quotes, and the closing bracket.
        out.room(key.padded.len() * 16 + MAX_PLAIN + 3);
        out.padded_bytes(&key.padded, key.len);
        if null {
            out.bytes(b"null");
        } else if let Err(mut refused) = value(out, key, &cells.values, row, style) {
            refused.path.push(key.name.clone());
            return Err(refused);
        }
    }
    if out.len() == start {
        out.room(2);
        out.byte(b'{');
    } else {
        // In place of the first key's comma.
        out.patch(start, b'{');
        out.room(1);
    }
    out.byte(b'}');
    Ok(())
}

/// Writes a value that is not NULL; there is room for a plain one.
#[inline(always)]
fn value(out: &mut Writer, key: &Key, cells: &CellValues<'_>, row: usize, style: Style) -> Result<(), Box<Refused>> {
    match cells {
        CellValues::Utf8(bytes) => {
            let (start, end) = bytes.range(row);
            string(out, bytes.data, start, end);
            Ok(())
        }
        CellValues::Binary(_) | CellValues::List { .. } | CellValues::Struct(_) | CellValues::Map { .. } => {
            nested(out, key, cells, row, style)
        }
        cells if cells.is_temporal() => {
            out.byte(b'"');
            cells.write_plain(row, out, style.separator).map_err(Refused::new)?;
            out.byte(b'"');
            Ok(())
        }
        cells => cells.write_plain(row, out, style.separator).map_err(Refused::new),
    }
}

fn nested(out: &mut Writer, key: &Key, cells: &CellValues<'_>, row: usize, style: Style) -> Result<(), Box<Refused>> {
    match cells {
        CellValues::Binary(bytes) => {
            let text = BASE64.encode(bytes.get(row));
            out.room(text.len() + 2);
            out.byte(b'"');
            out.bytes(text.as_bytes());
            out.byte(b'"');
        }
        CellValues::Struct(fields) => object(out, &key.inner, fields, row, style)?,
        CellValues::List { offsets, item } => {
            let Some(item_key) = key.inner.first() else {
                return Ok(());
            };
            let start = out.len();
            for i in offsets[row]..offsets[row + 1] {
                out.room(1);
                out.byte(b',');
                value_or_null(out, item_key, item, i as usize, style)?;
            }
            brackets(out, start, b'[', b']');
        }
        CellValues::Map { offsets, keys, value } => {
            let Some(value_key) = key.inner.get(1) else {
                return Ok(());
            };
            let start = out.len();
            for i in offsets[row]..offsets[row + 1] {
                let i = i as usize;
                out.room(1);
                out.byte(b',');
                let (from, to) = keys.range(i);
                string(out, keys.data, from, to);
                out.room(1);
                out.byte(b':');
                value_or_null(out, value_key, value, i, style)?;
            }
            brackets(out, start, b'{', b'}');
        }
        _ => {}
    }
    Ok(())
}

/// Encloses what was written since `start`, each element with a comma before it.
fn brackets(out: &mut Writer, start: usize, open: u8, close: u8) {
    out.room(2);
    if out.len() == start {
        out.byte(open);
    } else {
        out.patch(start, open);
    }
    out.byte(close);
}

fn value_or_null(out: &mut Writer, key: &Key, cells: &Cells<'_>, i: usize, style: Style) -> Result<(), Box<Refused>> {
    out.room(MAX_PLAIN + 2);
    if cells.is_null(i) {
        out.bytes(b"null");
        return Ok(());
    }
    value(out, key, &cells.values, i, style)
}

/// Writes `data[start..end]` as a JSON string.
#[inline(always)]
fn string(out: &mut Writer, data: &[u8], start: usize, end: usize) {
    out.room(end - start + 2);
    out.byte(b'"');
    let mut at = start;
    while at < end {
        // May load bytes of the next value too; they are not counted.
        let word = match data.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => data[at..].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        let plain = string_specials(word).trailing_zeros() as usize / 8;
        let len = plain.min(end - at);
        out.word(word, len);
        at += len;
        if at < end && len < 8 {
            escape(out, data[at], end - at);
            at += 1;
        }
    }
    out.byte(b'"');
}

#[cold]
fn escape(out: &mut Writer, byte: u8, left: usize) {
    out.room(left + 8);
    let short = match byte {
        b'"' | b'\\' => byte,
        8 => b'b',
        12 => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.bytes(b"\\u00");
            out.byte(HEX[usize::from(byte >> 4)]);
            out.byte(HEX[usize::from(byte & 15)]);
            return;
        }
    };
    out.byte(b'\\');
    out.byte(short);
}
