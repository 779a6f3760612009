//! JSON values into columns.
//!
//! A value must fit its column's type. As in Flink, numbers may stand in strings (`"12.5"`) and so may `true` and
//! `false`; a text column takes numbers, booleans, arrays and objects too, as they are written.
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::cursor::{Cursor, Parsed, Quoted};
use super::object::Object;
use crate::column::{Column, FULL, MapValues, Values, VarLen};
use crate::text::POW10;
use crate::text::datetime::{self, TimestampFault};
use crate::text::number::NumberFault;

impl Column {
    /// Reads one value and adds it. After a failure the column must be truncated to its former length.
    #[inline]
    pub(crate) fn parse(&mut self, cursor: &mut Cursor<'_>) -> Parsed<()> {
        cursor.skip_whitespace();
        if cursor.peek() == Some(b'n') {
            return self.parse_null(cursor);
        }
        match &mut self.values {
            Values::Int64(values) => values.push(integer(cursor, "BIGINT")?),
            Values::Int32(values) => values.push(integer(cursor, "INT")?),
            Values::Decimal { values, precision, scale, limit } => {
                values.push(decimal(cursor, *precision, *scale, *limit)?);
            }
            Values::Utf8(bytes) => text(cursor, bytes)?,
            Values::Float64(values) => values.push(double(cursor)?),
            Values::Timestamp { values, unit } => {
                let value = match cursor.peek() {
                    Some(b'"') => {
                        let start = cursor.pos;
                        let text = cursor.string()?;
                        match datetime::parse_timestamp(&text.value(), *unit) {
                            Ok(value) => value,
                            Err(fault) => return no_timestamp(cursor, start, fault),
                        }
                    }
                    Some(b'-' | b'0'..=b'9') => integer(cursor, "TIMESTAMP")?,
                    _ => return cursor.expected("a timestamp"),
                };
                values.push(value);
            }
            Values::Boolean(bits) => bits.append(boolean(cursor)?),
            Values::Struct(object) => object_value(object, cursor)?,
            Values::List { offsets, item } => list(offsets, item, cursor)?,
            Values::Map(map) => map_value(map, cursor)?,
            Values::Int8(values) => values.push(integer(cursor, "TINYINT")?),
            Values::Int16(values) => values.push(integer(cursor, "SMALLINT")?),
            Values::UInt8(values) => values.push(integer(cursor, "unsigned 8-bit integer")?),
            Values::UInt16(values) => values.push(integer(cursor, "unsigned 16-bit integer")?),
            Values::UInt32(values) => values.push(integer(cursor, "unsigned 32-bit integer")?),
            Values::UInt64(values) => values.push(integer(cursor, "unsigned 64-bit integer")?),
            Values::Float32(values) => values.push(float(cursor)?),
            Values::Binary(bytes) => binary(cursor, bytes)?,
            Values::Date32(values) => {
                let parse = |text: &[u8]| datetime::parse_date(text).and_then(|days| i32::try_from(days).ok());
                values.push(quoted(cursor, "a date such as \"2024-01-31\"", parse)?);
            }
            Values::Time32 { values, unit } => {
                let parse = |text: &[u8]| datetime::parse_time(text, *unit).and_then(|units| i32::try_from(units).ok());
                values.push(quoted(cursor, TIME, parse)?);
            }
            Values::Time64 { values, unit } => {
                values.push(quoted(cursor, TIME, |text| datetime::parse_time(text, *unit))?);
            }
        }
        self.nulls.append_non_null();
        Ok(())
    }

    #[cold]
    fn parse_null(&mut self, cursor: &mut Cursor<'_>) -> Parsed<()> {
        cursor.literal("null")?;
        if !self.nullable {
            return cursor.fault("null, and the column is NOT NULL");
        }
        self.push_null();
        Ok(())
    }
}

const TIME: &str = "a time such as \"23:59:59\"";

#[cold]
fn number_fault<T>(cursor: &mut Cursor<'_>, start: usize, fault: NumberFault, type_name: &str) -> Parsed<T> {
    cursor.pos = start;
    match fault {
        NumberFault::Fraction => cursor.fault(format!("a number with a fraction for {type_name}")),
        NumberFault::Range => cursor.fault(format!("a number out of the range of {type_name}")),
    }
}

#[inline(always)]
fn integer<T: TryFrom<i64> + TryFrom<i128>>(cursor: &mut Cursor<'_>, type_name: &str) -> Parsed<T> {
    let start = cursor.pos;
    if let Some(value) = cursor.small_integer() {
        return match T::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) => number_fault(cursor, start, NumberFault::Range, type_name),
        };
    }
    let value = match cursor.number()?.integer() {
        Ok(value) => value,
        Err(fault) => return number_fault(cursor, start, fault, type_name),
    };
    match T::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => number_fault(cursor, start, NumberFault::Range, type_name),
    }
}

#[inline(always)]
fn decimal(cursor: &mut Cursor<'_>, precision: u8, scale: u32, limit: i128) -> Parsed<i128> {
    let start = cursor.pos;
    if let Some(fixed) = cursor.fixed() {
        let digits = scale as usize;
        if fixed.int_len + digits <= 18 && fixed.fraction_len <= digits {
            let value = fixed.int * POW10[digits] + fixed.fraction * POW10[digits - fixed.fraction_len];
            let value = i128::from(value);
            if value < limit {
                return Ok(if fixed.negative { -value } else { value });
            }
        }
        cursor.pos = start;
    }
    match cursor.number()?.decimal(precision, scale) {
        Ok(value) => Ok(value),
        Err(fault) => number_fault(cursor, start, fault, &format!("DECIMAL({precision}, {scale})")),
    }
}

#[inline(always)]
fn double(cursor: &mut Cursor<'_>) -> Parsed<f64> {
    let start = cursor.pos;
    if let Some(fixed) = cursor.fixed() {
        // Both the digits and the power of ten are exact in 64 bits, so one division rounds right (Clinger 1990).
        if fixed.int_len + fixed.fraction_len <= 15 {
            let power = POW10[fixed.fraction_len];
            let value = (fixed.int * power + fixed.fraction) as f64 / power as f64;
            return Ok(if fixed.negative { -value } else { value });
        }
        cursor.pos = start;
    }
    match cursor.number()?.f64() {
        Ok(value) => Ok(value),
        Err(fault) => number_fault(cursor, start, fault, "DOUBLE"),
    }
}

fn float(cursor: &mut Cursor<'_>) -> Parsed<f32> {
    let start = cursor.pos;
    match cursor.number()?.f32() {
        Ok(value) => Ok(value),
        Err(fault) => number_fault(cursor, start, fault, "FLOAT"),
    }
}

fn boolean(cursor: &mut Cursor<'_>) -> Parsed<bool> {
    match cursor.peek() {
        Some(b't') => cursor.literal("true").map(|()| true),
        Some(b'f') => cursor.literal("false").map(|()| false),
        Some(b'"') => quoted(cursor, "true or false", |text| match text {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }),
        _ => cursor.expected("true or false"),
    }
}

/// A value that is written as a string of a certain form.
fn quoted<T>(cursor: &mut Cursor<'_>, what: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Parsed<T> {
    let start = cursor.pos;
    if cursor.peek() != Some(b'"') {
        return cursor.expected(what);
    }
    let text = cursor.string()?;
    match parse(&text.value()) {
        Some(value) => Ok(value),
        None => {
            cursor.pos = start;
            cursor.fault(format!("expected {what}, found another string"))
        }
    }
}

#[cold]
fn no_timestamp(cursor: &mut Cursor<'_>, start: usize, fault: TimestampFault) -> Parsed<()> {
    cursor.pos = start;
    match fault {
        TimestampFault::Syntax => cursor.fault(
            "expected a timestamp such as \"2024-01-31 23:59:59.123\" or \"2024-01-31T23:59:59.123Z\", \
             found another string",
        ),
        TimestampFault::Range => cursor.fault("a timestamp out of the range of the column's unit"),
    }
}

#[inline(always)]
fn text(cursor: &mut Cursor<'_>, bytes: &mut VarLen) -> Parsed<()> {
    let start = cursor.pos;
    let pushed = if cursor.peek() == Some(b'"') {
        let text = cursor.string()?;
        if text.escaped { unescape(text, bytes) } else { bytes.push(text.raw) }
    } else {
        cursor.skip_value()?;
        bytes.push(cursor.since(start))
    };
    pushed.or_else(|what| cursor.fault(what))
}

#[cold]
fn unescape(text: Quoted<'_>, bytes: &mut VarLen) -> Result<(), &'static str> {
    text.unescape(&mut bytes.data);
    bytes.close()
}

fn binary(cursor: &mut Cursor<'_>, bytes: &mut VarLen) -> Parsed<()> {
    let start = cursor.pos;
    if cursor.peek() != Some(b'"') {
        return cursor.expected("a string in base64");
    }
    let text = cursor.string()?;
    if BASE64.decode_vec(text.value(), &mut bytes.data).is_err() {
        cursor.pos = start;
        return cursor.fault("expected a string in base64, found another string");
    }
    bytes.close().or_else(|what| cursor.fault(what))
}

fn object_value(object: &mut Object, cursor: &mut Cursor<'_>) -> Parsed<()> {
    if cursor.peek() != Some(b'{') {
        return cursor.expected("an object");
    }
    object.parse(cursor)
}

fn list(offsets: &mut Vec<i32>, item: &mut Column, cursor: &mut Cursor<'_>) -> Parsed<()> {
    if cursor.peek() != Some(b'[') {
        return cursor.expected("an array");
    }
    cursor.enter()?;
    let mut first = true;
    while cursor.element(first)? {
        item.parse(cursor)?;
        first = false;
    }
    cursor.leave();
    match i32::try_from(item.len()) {
        Ok(end) => offsets.push(end),
        Err(_) => return cursor.fault(FULL),
    }
    Ok(())
}

/// A map is read twice: first for its keys, of which the last of several alike wins, then for the values that stay.
fn map_value(map: &mut MapValues, cursor: &mut Cursor<'_>) -> Parsed<()> {
    if cursor.peek() != Some(b'{') {
        return cursor.expected("an object");
    }
    cursor.enter()?;
    let mut entries = Vec::new();
    let mut first = true;
    while let Some(key) = cursor.key(first)? {
        entries.push((key.value(), cursor.pos));
        cursor.skip_value()?;
        first = false;
    }
    let end = cursor.pos;
    // Stable, so that of equal keys the last is the last one written.
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|a, b| entries[*a].0.cmp(&entries[*b].0));
    let mut stays = vec![true; entries.len()];
    for pair in order.windows(2) {
        if let [a, b] = pair {
            stays[*a] = entries[*a].0 != entries[*b].0;
        }
    }
    for ((key, at), _) in entries.iter().zip(stays).filter(|(_, stays)| *stays) {
        cursor.pos = *at;
        if let Values::Utf8(bytes) = &mut map.key.values {
            bytes.push(key).or_else(|what| cursor.fault(what))?;
            map.key.nulls.append_non_null();
        }
        map.value.parse(cursor).map_err(|fault| fault.within(&String::from_utf8_lossy(key)))?;
    }
    cursor.pos = end;
    cursor.leave();
    match i32::try_from(map.key.len()) {
        Ok(end) => map.offsets.push(end),
        Err(_) => return cursor.fault(FULL),
    }
    Ok(())
}
