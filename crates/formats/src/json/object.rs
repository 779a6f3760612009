//! JSON objects into columns, with the fields' order predicted from the objects before.
//!
//! Producers write the same fields in the same order with the same spacing. So each object's tokens between two
//! values (`,"amount":`, as the bytes stand there) are learned, and the next object is first compared with them:
//! one wide comparison takes the place of reading punctuation and name and of looking the name up. What differs is
//! read in full and learned in its turn. The comparison cannot weaken the grammar: a token was read in full when it
//! was learned, and is only looked for in the same place (before the first field, or after a value).
use std::collections::HashMap;

use arrow::array::ArrayRef;
use arrow::datatypes::Fields;
use arrow::error::ArrowError;

use super::cursor::{Cursor, Parsed};
use crate::column::Column;

/// Columns that are filled from the fields of objects.
pub(crate) struct Object {
    pub(crate) columns: Vec<Column>,
    names: HashMap<Vec<u8>, usize>,
    tokens: Vec<Token>,
    /// How many tokens may still be learned: objects without any order must not be slowed down by learning.
    credit: u32,
    /// Per column, the number of the object that it was last filled from.
    seen: Vec<u64>,
    object: u64,
    rows: usize,
    /// Whether a field that is missing is an error even where NULL is allowed.
    pub(crate) fail_on_missing_field: bool,
}

/// The bytes from the end of one value to the start of the next.
struct Token {
    /// The first 16 bytes, and which of them count.
    head: u128,
    mask: u128,
    bytes: Vec<u8>,
    first: bool,
    column: Option<usize>,
}

/// Tokens beyond the expected one that are tried: fields may be left out.
const LOOK_AHEAD: usize = 4;
const CREDIT: u32 = 64;
/// What a learned token costs; an object read to its end gives one back.
const COST: u32 = 4;
/// Longer tokens are not learned.
const MAX_TOKEN: usize = 128;

impl Token {
    fn new(bytes: &[u8], first: bool, column: Option<usize>) -> Self {
        let (mut head, mut mask) = ([0; 16], [0; 16]);
        for (i, byte) in bytes.iter().take(16).enumerate() {
            head[i] = *byte;
            mask[i] = 0xff;
        }
        Self { head: u128::from_le_bytes(head), mask: u128::from_le_bytes(mask), bytes: bytes.to_vec(), first, column }
    }
}

impl Object {
    /// Columns for the fields; `None` if a type has no builder.
    pub(crate) fn new(fields: &Fields) -> Option<Self> {
        let columns = fields.iter().map(Column::new).collect::<Option<Vec<_>>>()?;
        let names = fields.iter().enumerate().map(|(i, f)| (f.name().clone().into_bytes(), i)).collect();
        Some(Self {
            seen: vec![0; columns.len()],
            columns,
            names,
            tokens: Vec::new(),
            credit: CREDIT,
            object: 0,
            rows: 0,
            fail_on_missing_field: false,
        })
    }

    /// Number of complete objects.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    pub(crate) fn reserve(&mut self, rows: usize) {
        for column in &mut self.columns {
            column.reserve(rows);
        }
    }

    pub(crate) fn push_null(&mut self) {
        for column in &mut self.columns {
            column.push_null();
        }
        self.rows += 1;
    }

    /// Drops all objects after the first `len`, and the fields of a half-read one.
    pub(crate) fn truncate(&mut self, len: usize) {
        for column in &mut self.columns {
            column.truncate(len);
        }
        self.rows = len;
    }

    /// Takes the columns out as arrays.
    ///
    /// # Errors
    /// Only if a builder broke one of Arrow's rules; the columns are then empty all the same.
    pub(crate) fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        let arrays: Vec<_> = self.columns.iter_mut().map(Column::finish).collect();
        self.rows = 0;
        arrays.into_iter().collect()
    }

    /// Reads one object and adds its fields to the columns. After a failure the columns must be truncated to their
    /// former length.
    #[inline]
    pub(crate) fn parse(&mut self, cursor: &mut Cursor<'_>) -> Parsed<()> {
        cursor.enter()?;
        self.object += 1;
        let mut filled = 0;
        let mut next = 0;
        let mut first = true;
        loop {
            let column = match self.predicted(cursor, next, first) {
                Some(token) => {
                    next = token + 1;
                    self.tokens[token].column
                }
                None => {
                    let start = cursor.pos;
                    let Some(key) = cursor.key(first)? else { break };
                    let column = self.names.get(&*key.value()).copied();
                    next = self.learn(next, cursor.since(start), first, column);
                    column
                }
            };
            first = false;
            match column {
                None => cursor.skip_value()?,
                Some(i) => {
                    let column = &mut self.columns[i];
                    if self.seen[i] == self.object {
                        // The last of several fields with one name wins.
                        column.truncate(self.rows);
                    } else {
                        self.seen[i] = self.object;
                        filled += 1;
                    }
                    if let Err(fault) = column.parse(cursor) {
                        return Err(fault.within(column.field.name()));
                    }
                }
            }
            if cursor.peek() == Some(b'}') {
                cursor.pos += 1;
                break;
            }
        }
        if filled < self.columns.len() {
            self.fill_missing(cursor)?;
        }
        cursor.leave();
        self.rows += 1;
        self.credit = (self.credit + 1).min(CREDIT);
        Ok(())
    }

    /// The learned token that is next in the record, if one is; the cursor is moved behind it.
    #[inline(always)]
    fn predicted(&self, cursor: &mut Cursor<'_>, next: usize, first: bool) -> Option<usize> {
        for (i, token) in self.tokens.iter().enumerate().skip(next).take(LOOK_AHEAD) {
            if token.first == first && cursor.is_next(token.head, token.mask, &token.bytes) {
                cursor.pos += token.bytes.len();
                return Some(i);
            }
        }
        None
    }

    /// Learns a token that was met where `next` was expected. Returns which token to expect after it.
    #[cold]
    fn learn(&mut self, next: usize, bytes: &[u8], first: bool, column: Option<usize>) -> usize {
        if self.credit < COST || bytes.len() > MAX_TOKEN {
            return next;
        }
        self.credit -= COST;
        let token = Token::new(bytes, first, column);
        if self.tokens.len() < 2 * self.columns.len() + 16 || next >= self.tokens.len() {
            self.tokens.truncate(2 * self.columns.len() + 32);
            self.tokens.insert(next.min(self.tokens.len()), token);
        } else {
            self.tokens[next] = token;
        }
        next + 1
    }

    /// Adds NULL to the columns that the object had no field for.
    #[cold]
    fn fill_missing(&mut self, cursor: &Cursor<'_>) -> Parsed<()> {
        for (column, seen) in self.columns.iter_mut().zip(&self.seen) {
            if *seen == self.object {
                continue;
            }
            if !column.nullable || self.fail_on_missing_field {
                let fault = cursor.fault("the field is missing");
                return fault.map_err(|fault| fault.within(column.field.name()));
            }
            column.push_null();
        }
        Ok(())
    }
}
