//! Exact numbers from decimal text, without a detour through floating point.
use super::pow10_i128;

/// A JSON number (RFC 8259, section 6) taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number<'a> {
    negative: bool,
    int: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
    /// All of it but the sign.
    text: &'a str,
}

/// Why a number does not fit its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFault {
    /// It has a fraction and the column is an integer.
    Fraction,
    /// It is outside of the type's range.
    Range,
}

fn digits(text: &[u8], from: usize) -> usize {
    text.iter().skip(from).take_while(|b| b.is_ascii_digit()).count()
}

/// Reads the number that begins at `text[at]`. Returns it and the position after it.
///
/// # Errors
/// The position and nature of what is not a number.
pub(crate) fn scan(text: &[u8], at: usize) -> Result<(Number<'_>, usize), (usize, &'static str)> {
    let mut pos = at;
    let negative = text.get(pos) == Some(&b'-');
    pos += usize::from(negative);
    let start = pos;
    let int_len = digits(text, pos);
    if int_len == 0 {
        return Err((pos, "expected a digit"));
    }
    let int = &text[pos..pos + int_len];
    if int_len > 1 && int[0] == b'0' {
        return Err((pos, "a number with a leading zero"));
    }
    pos += int_len;
    let mut fraction: &[u8] = &[];
    if text.get(pos) == Some(&b'.') {
        let len = digits(text, pos + 1);
        if len == 0 {
            return Err((pos + 1, "expected a digit after the decimal point"));
        }
        fraction = &text[pos + 1..pos + 1 + len];
        pos += 1 + len;
    }
    let mut exponent = 0_i64;
    if matches!(text.get(pos), Some(b'e' | b'E')) {
        pos += 1;
        let sign = text.get(pos).copied();
        pos += usize::from(matches!(sign, Some(b'+' | b'-')));
        let len = digits(text, pos);
        if len == 0 {
            return Err((pos, "expected a digit in the exponent"));
        }
        for digit in &text[pos..pos + len] {
            // Beyond any type's range and beyond any record's number of digits, far from overflow.
            exponent = (exponent * 10 + i64::from(digit - b'0')).min(1 << 40);
        }
        if sign == Some(b'-') {
            exponent = -exponent;
        }
        pos += len;
    }
    let Ok(whole) = std::str::from_utf8(&text[start..pos]) else {
        return Err((at, "expected a number"));
    };
    Ok((Number { negative, int, fraction, exponent, text: whole }, pos))
}

/// The number that is all of `text`; unlike in JSON it may have a plus sign and leading zeros.
pub(crate) fn parse_lenient(text: &[u8]) -> Option<Number<'_>> {
    let negative = text.first() == Some(&b'-');
    let unsigned = match text {
        [b'+' | b'-', rest @ ..] => rest,
        _ => text,
    };
    let zeros = unsigned.iter().zip(unsigned.iter().skip(1)).take_while(|(a, b)| **a == b'0' && b.is_ascii_digit());
    let digits = &unsigned[zeros.count()..];
    match scan(digits, 0) {
        Ok((number, end)) if end == digits.len() && !number.negative => Some(Number { negative, ..number }),
        _ => None,
    }
}

impl Number<'_> {
    /// The number times 10^`scale`, rounded half up (away from zero on a tie, as `RoundingMode.HALF_UP` in Java and
    /// so in Flink), and whether digits other than zero were cut off. `None` if it does not fit into 128 bits.
    fn scaled(&self, scale: u32) -> Option<(i128, bool)> {
        let total = (self.int.len() + self.fraction.len()) as i64;
        let kept = self.int.len() as i64 + self.exponent + i64::from(scale);
        let mut value = 0_i128;
        let mut inexact = false;
        for (i, digit) in self.int.iter().chain(self.fraction).enumerate() {
            let digit = i128::from(digit - b'0');
            if (i as i64) < kept {
                value = value.checked_mul(10)?.checked_add(digit)?;
            } else {
                if i as i64 == kept && digit >= 5 {
                    value = value.checked_add(1)?;
                }
                inexact |= digit != 0;
            }
        }
        if value != 0 && kept > total {
            let zeros = u32::try_from(kept - total).ok().filter(|z| *z <= 38)?;
            value = value.checked_mul(pow10_i128(zeros))?;
        }
        Some((if self.negative { -value } else { value }, inexact))
    }

    /// The number if it is an integer: `1`, `1.0` and `1e3` are, `1.5` is not.
    pub(crate) fn integer(&self) -> Result<i128, NumberFault> {
        match self.scaled(0) {
            Some((value, false)) => Ok(value),
            Some((_, true)) => Err(NumberFault::Fraction),
            None => Err(NumberFault::Range),
        }
    }

    /// The unscaled value of the number as DECIMAL(`precision`, `scale`). Excess fraction digits are rounded half up;
    /// too many integer digits (also as a result of rounding) are a [`NumberFault::Range`].
    pub(crate) fn decimal(&self, precision: u8, scale: u32) -> Result<i128, NumberFault> {
        let (value, _) = self.scaled(scale).ok_or(NumberFault::Range)?;
        if value.unsigned_abs() < pow10_i128(u32::from(precision)).unsigned_abs() { Ok(value) } else { Err(NumberFault::Range) }
    }

    /// The nearest 64-bit float; a number that would be infinite is a [`NumberFault::Range`].
    pub(crate) fn f64(&self) -> Result<f64, NumberFault> {
        let value = self.text.parse().ok().filter(|v: &f64| v.is_finite()).ok_or(NumberFault::Range)?;
        Ok(if self.negative { -value } else { value })
    }

    /// The nearest 32-bit float; a number that would be infinite is a [`NumberFault::Range`].
    pub(crate) fn f32(&self) -> Result<f32, NumberFault> {
        let value = self.text.parse().ok().filter(|v: &f32| v.is_finite()).ok_or(NumberFault::Range)?;
        Ok(if self.negative { -value } else { value })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decimal(text: &str, precision: u8, scale: u32) -> Result<i128, NumberFault> {
        let (number, end) = scan(text.as_bytes(), 0).unwrap();
        assert_eq!(end, text.len());
        number.decimal(precision, scale)
    }

    #[test]
    fn decimals_round_half_up_and_keep_every_digit() {
        let max = "9".repeat(38);
        let table: &[(&str, u8, u32, Result<i128, NumberFault>)] = &[
            ("0", 10, 2, Ok(0)),
            ("-0.00", 10, 2, Ok(0)),
            ("123.45", 10, 2, Ok(12345)),
            ("123.4", 10, 2, Ok(12340)),
            ("1.005", 10, 2, Ok(101)),
            ("-1.005", 10, 2, Ok(-101)),
            ("1.00499999999999999999999999999999999999999999", 10, 2, Ok(100)),
            ("0.995", 2, 2, Err(NumberFault::Range)),
            ("0.004", 10, 2, Ok(0)),
            ("0.005", 10, 2, Ok(1)),
            ("0.0005", 10, 2, Ok(0)),
            ("5e-3", 10, 2, Ok(1)),
            ("5e-4", 10, 2, Ok(0)),
            ("9e-1000000000000000000000", 10, 2, Ok(0)),
            ("1e1000000000000000000000", 10, 2, Err(NumberFault::Range)),
            ("0e1000000000000000000000", 10, 2, Ok(0)),
            ("1.5E+2", 10, 2, Ok(15000)),
            ("99999999.99", 10, 2, Ok(9_999_999_999)),
            ("99999999.995", 10, 2, Err(NumberFault::Range)),
            ("100000000", 10, 2, Err(NumberFault::Range)),
            (&max, 38, 0, Ok(10_i128.pow(38) - 1)),
            ("1e38", 38, 0, Err(NumberFault::Range)),
            ("0.00000000000000000000000000000000000001", 38, 38, Ok(1)),
        ];
        for (text, precision, scale, expected) in table {
            assert_eq!(decimal(text, *precision, *scale), *expected, "{text}");
        }
    }

    #[test]
    fn integers_may_be_written_with_point_or_exponent() {
        let table = [
            ("1.0", Ok(1)),
            ("-1e3", Ok(-1000)),
            ("1200e-2", Ok(12)),
            ("1250e-2", Err(NumberFault::Fraction)),
            ("0.5", Err(NumberFault::Fraction)),
            ("18446744073709551615", Ok(i128::from(u64::MAX))),
        ];
        for (text, expected) in table {
            assert_eq!(scan(text.as_bytes(), 0).unwrap().0.integer(), expected, "{text}");
        }
    }

    #[test]
    fn plus_signs_and_leading_zeros_outside_of_json() {
        let table = [("+1", Some(1)), ("-007", Some(-7)), ("000", Some(0)), ("00.0", Some(0)), ("--1", None), ("+-1", None)];
        for (text, expected) in table {
            let found = parse_lenient(text.as_bytes()).map(|number| number.integer().unwrap());
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(parse_lenient(b"-0012.5").unwrap().f64(), Ok(-12.5));
        assert!(parse_lenient(b"").is_none() && parse_lenient(b"+").is_none());
    }

    #[test]
    fn what_is_not_a_json_number_is_refused() {
        for text in ["", "-", "01", "-01", "1.", ".1", "1.e1", "1e", "1e+", "+1", "--1", "NaN", "Infinity"] {
            assert!(scan(text.as_bytes(), 0).is_err(), "{text}");
        }
    }
}
