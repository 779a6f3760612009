//! Which type two values have in common, and what a literal becomes beside another value.
use super::Literal;
use arrow::array::{ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit};
use std::sync::Arc;

/// An error instead of NULL for what does not fit.
pub(super) const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: arrow::util::display::FormatOptions::new() };

/// The type to which both can be converted without loss (floats: within their precision).
pub(super) fn common_type(left: &DataType, right: &DataType) -> Option<DataType> {
    use DataType::*;
    Some(match (left, right) {
        (l, r) if l == r => l.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Dictionary(_, values), other) | (other, Dictionary(_, values)) => return common_type(values, other),
        (l, r) if is_text(l) && is_text(r) => Utf8,
        (l, r) if is_bytes(l) && is_bytes(r) => Binary,
        (l, r) if l.is_floating() && r.is_numeric() || l.is_numeric() && r.is_floating() => Float64,
        (l, r) if l.is_integer() && r.is_integer() => match (bits(l), bits(r)) {
            // Unsigned beside signed: the next wider signed type holds both.
            ((a, true), (b, true)) => signed(a.max(b)),
            ((a, false), (b, false)) => unsigned(a.max(b)),
            ((u, false), (s, true)) | ((s, true), (u, false)) if u < 64 => signed(s.max(u * 2)),
            _ => Decimal128(20, 0),
        },
        (l, r) if l.is_numeric() && r.is_numeric() => {
            let ((p1, s1), (p2, s2)) = (as_decimal(l)?, as_decimal(r)?);
            let scale = s1.max(s2);
            let digits = (p1 as i16 - s1 as i16).max(p2 as i16 - s2 as i16) + scale as i16;
            // Digits that would be lost are an error of the cast, not of the plan.
            Decimal128(digits.clamp(1, 38) as u8, scale)
        }
        (Timestamp(a, zone), Timestamp(b, other)) if zone.is_some() == other.is_some() => Timestamp(finer(*a, *b), zone.clone()),
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(*unit, None),
        _ => return None,
    })
}

pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Digits and scale of the decimals that hold every value of a type.
pub(super) fn as_decimal(data_type: &DataType) -> Option<(u8, i8)> {
    use DataType::*;
    Some(match data_type {
        Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) => (*p, *s),
        Int8 | UInt8 => (3, 0),
        Int16 | UInt16 => (5, 0),
        Int32 | UInt32 => (10, 0),
        Int64 => (19, 0),
        UInt64 => (20, 0),
        _ => return None,
    })
}

fn bits(data_type: &DataType) -> (u32, bool) {
    (data_type.primitive_width().map_or(64, |bytes| bytes as u32 * 8), data_type.is_signed_integer())
}

fn signed(bits: u32) -> DataType {
    match bits {
        8 => DataType::Int8,
        16 => DataType::Int16,
        32 => DataType::Int32,
        _ => DataType::Int64,
    }
}

fn unsigned(bits: u32) -> DataType {
    match bits {
        8 => DataType::UInt8,
        16 => DataType::UInt16,
        32 => DataType::UInt32,
        _ => DataType::UInt64,
    }
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    let rank = |unit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    if rank(a) >= rank(b) { a } else { b }
}

/// The literal as an array of one value, in the type that it has beside a value of type `beside` (`None`: alone).
///
/// # Errors
/// A text that is no value of that type.
pub(super) fn literal(literal: &Literal, beside: Option<&DataType>) -> Result<ArrayRef, String> {
    let beside = match beside {
        Some(DataType::Dictionary(_, values)) => Some(values.as_ref()),
        other => other,
    };
    Ok(match (literal, beside) {
        (Literal::Null, beside) => new_null_array(beside.unwrap_or(&DataType::Null), 1),
        (Literal::Boolean(value), _) => Arc::new(BooleanArray::from(vec![*value])),
        (Literal::Integer(value), beside) => integer(*value, beside),
        (Literal::Float(value), Some(DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..))) => {
            decimal(&format!("{value}")).ok_or_else(|| format!("{value:?} is not a decimal number"))?
        }
        (Literal::Float(value), _) => Arc::new(Float64Array::from(vec![*value])),
        (Literal::Text(value), Some(DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..))) => {
            decimal(value.trim()).ok_or_else(|| format!("'{value}' is not a decimal number"))?
        }
        (Literal::Text(value), beside) => {
            let text: ArrayRef = Arc::new(StringArray::from(vec![value.as_str()]));
            match beside {
                None | Some(DataType::Null) => text,
                Some(to) => cast_with_options(&text, to, &STRICT)
                    .map_err(|_| format!("'{value}' is not a value of type {}", semel_engine::state::type_name(to)))?,
            }
        }
    })
}

/// The type beside it if that holds the value, else the narrowest that does.
fn integer(value: i64, beside: Option<&DataType>) -> ArrayRef {
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![value]));
    match beside {
        Some(to) if to.is_integer() || to.is_floating() => {
            let exact = !to.is_floating() || value.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS;
            let to = if to.is_floating() { &DataType::Float64 } else { to };
            cast_with_options(&wide, to, &STRICT).ok().filter(|_| exact).unwrap_or(wide)
        }
        Some(DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..)) => decimal(&value.to_string()).unwrap_or(wide),
        _ => i32::try_from(value).map_or(wide, |value| Arc::new(Int32Array::from(vec![value]))),
    }
}

/// `-12.50` as DECIMAL(4, 2): exactly the digits that are written.
fn decimal(text: &str) -> Option<ArrayRef> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{fraction}");
    if all.is_empty() || all.len() > 38 || !all.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value = all.parse::<i128>().ok()?;
    let array = Decimal128Array::from(vec![if negative { -value } else { value }]);
    Some(Arc::new(array.with_precision_and_scale(all.len() as u8, fraction.len() as i8).ok()?))
}
