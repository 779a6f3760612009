//! Dates and times between text and Arrow's integers.
//!
//! The calendar is the proleptic Gregorian one, without leap seconds. Years outside 0000 to 9999 have a sign, as in
//! ISO 8601's expanded form and in Java's `LocalDate`: `+12024-01-01`, `-0044-03-15`.
use arrow::datatypes::TimeUnit;

use super::writer::Writer;

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;

/// Days from 1970-01-01 to the given day. The algorithm is `days_from_civil` of Howard Hinnant's
/// "chrono-Compatible Low-Level Date Algorithms".
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day that lie `days` days after 1970-01-01; `civil_from_days` of the same source.
fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let doe = days.rem_euclid(146_097) as u32;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (i64::from(yoe) + era * 400 + i64::from(month <= 2), month, day)
}

fn two(text: &[u8], at: usize) -> Option<i64> {
    match text.get(at..at + 2)? {
        [a @ b'0'..=b'9', b @ b'0'..=b'9'] => Some(i64::from(a - b'0') * 10 + i64::from(b - b'0')),
        _ => None,
    }
}

/// Days since 1970-01-01 of the date at the head of `text`, and the date's length.
fn date_prefix(text: &[u8]) -> Option<(i64, usize)> {
    let signed = matches!(text.first(), Some(b'+' | b'-'));
    let first = usize::from(signed);
    let len = text.iter().skip(first).take_while(|b| b.is_ascii_digit()).count();
    // Twelve digits hold every year that 64 bits of seconds reach.
    if !(len == 4 || (signed && (4..=12).contains(&len))) {
        return None;
    }
    let mut year = text[first..first + len].iter().fold(0_i64, |year, b| year * 10 + i64::from(b - b'0'));
    if text.first() == Some(&b'-') {
        year = -year;
    }
    let at = first + len;
    let month = two(text, at + 1)?;
    let day = two(text, at + 4)?;
    if text.get(at) != Some(&b'-') || text.get(at + 3) != Some(&b'-') || !(1..=12).contains(&month) {
        return None;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (1..=days).contains(&day).then(|| (days_from_civil(year, month, day), at + 6))
}

/// Seconds of the day and nanoseconds of the time at the head of `text` (`HH:MM`, `HH:MM:SS`, `HH:MM:SS.f` with one
/// to nine digits), and its length.
fn time_prefix(text: &[u8]) -> Option<(i64, u32, usize)> {
    let hour = two(text, 0).filter(|h| *h < 24)?;
    let minute = two(text, 3).filter(|m| *m < 60 && text[2] == b':')?;
    if text.get(5) != Some(&b':') {
        return Some((hour * 3600 + minute * 60, 0, 5));
    }
    let second = two(text, 6).filter(|s| *s < 60)?;
    let seconds = hour * 3600 + minute * 60 + second;
    if text.get(8) != Some(&b'.') {
        return Some((seconds, 0, 8));
    }
    let digits = text.iter().skip(9).take_while(|b| b.is_ascii_digit()).count();
    if !(1..=9).contains(&digits) {
        return None;
    }
    let fraction = text[9..9 + digits].iter().fold(0_u32, |n, b| n * 10 + u32::from(b - b'0'));
    Some((seconds, fraction * 10_u32.pow(9 - digits as u32), 9 + digits))
}

/// Seconds east of UTC: `Z`, `+HH`, `+HHMM` or `+HH:MM`. `None` if `text` is something else.
fn zone(text: &[u8]) -> Option<i64> {
    let sign = match text.first()? {
        b'Z' | b'z' if text.len() == 1 => return Some(0),
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = two(text, 1).filter(|h| *h <= 18)?;
    let minutes = match (text.len(), text.get(3)) {
        (3, _) => 0,
        (5, _) => two(text, 3)?,
        (6, Some(b':')) => two(text, 4)?,
        _ => return None,
    };
    (minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Days since 1970-01-01 of a date such as `2024-02-29`; `None` if `text` is not one.
pub(crate) fn parse_date(text: &[u8]) -> Option<i64> {
    date_prefix(text).filter(|(_, len)| *len == text.len()).map(|(days, _)| days)
}

/// Units since midnight of a time such as `23:59:59.5`; digits beyond the unit are cut off.
pub(crate) fn parse_time(text: &[u8], unit: TimeUnit) -> Option<i64> {
    let (seconds, nanos, len) = time_prefix(text)?;
    if len != text.len() {
        return None;
    }
    in_unit(seconds.into(), nanos, unit)
}

/// Why a text is not a timestamp of the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampFault {
    Syntax,
    Range,
}

/// Units since 1970-01-01 00:00:00 UTC of a timestamp in SQL's form (`2024-01-01 00:00:00.123`) or ISO 8601's
/// (`2024-01-01T00:00:00.123`), each with or without a zone (`Z`, `+02:00`). Without one it is taken as UTC; with one
/// it is turned into UTC. Digits beyond the unit are cut off.
pub(crate) fn parse_timestamp(text: &[u8], unit: TimeUnit) -> Result<i64, TimestampFault> {
    let (days, at) = date_prefix(text).ok_or(TimestampFault::Syntax)?;
    if !matches!(text.get(at), Some(b' ' | b'T' | b't')) {
        return Err(TimestampFault::Syntax);
    }
    let rest = &text[at + 1..];
    let (seconds, nanos, len) = time_prefix(rest).ok_or(TimestampFault::Syntax)?;
    let offset = match &rest[len..] {
        [] => 0,
        text => zone(text).ok_or(TimestampFault::Syntax)?,
    };
    let seconds = i128::from(days) * i128::from(DAY) + i128::from(seconds - offset);
    in_unit(seconds, nanos, unit).ok_or(TimestampFault::Range)
}

/// Units per second.
pub(crate) const fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn in_unit(seconds: i128, nanos: u32, unit: TimeUnit) -> Option<i64> {
    let per_second = per_second(unit);
    let units = seconds * i128::from(per_second) + i128::from(i64::from(nanos) / (1_000_000_000 / per_second));
    i64::try_from(units).ok()
}

/// Most bytes that [`write_date`], [`write_time`] or [`write_timestamp`] write at once.
pub(crate) const MAX_LEN: usize = 48;

/// Writes the date that lies `days` after 1970-01-01. The writer has room for [`MAX_LEN`] bytes.
pub(crate) fn write_date(out: &mut Writer, days: i64) {
    let (year, month, day) = civil_from_days(days);
    if (0..=9999).contains(&year) {
        out.two_digits((year / 100) as u32);
        out.two_digits((year % 100) as u32);
    } else {
        out.byte(if year < 0 { b'-' } else { b'+' });
        let year = year.unsigned_abs();
        if year < 1000 {
            out.two_digits((year / 100) as u32);
            out.two_digits((year % 100) as u32);
        } else {
            out.u64(year);
        }
    }
    out.byte(b'-');
    out.two_digits(month);
    out.byte(b'-');
    out.two_digits(day);
}

/// Writes `HH:MM:SS` and, if there is one, the fraction without trailing zeros. `units` is at least 0 and below a day.
/// The writer has room for [`MAX_LEN`] bytes.
pub(crate) fn write_time(out: &mut Writer, units: i64, unit: TimeUnit) {
    let per_second = per_second(unit);
    let seconds = (units / per_second) as u32;
    out.two_digits(seconds / 3600);
    out.byte(b':');
    out.two_digits(seconds / 60 % 60);
    out.byte(b':');
    out.two_digits(seconds % 60);
    let nanos = (units % per_second) * (1_000_000_000 / per_second);
    if nanos == 0 {
        return;
    }
    out.byte(b'.');
    let (mut fraction, mut digits) = (nanos as u64, 9);
    while fraction % 1000 == 0 {
        fraction /= 1000;
        digits -= 3;
    }
    while fraction % 10 == 0 {
        fraction /= 10;
        digits -= 1;
    }
    out.padded(fraction, digits);
}

/// Writes date, `separator` and time of a timestamp, and `Z` if it is one of a known instant. The writer has room for
/// [`MAX_LEN`] bytes.
pub(crate) fn write_timestamp(out: &mut Writer, units: i64, unit: TimeUnit, separator: u8, zoned: bool) {
    let per_day = DAY * per_second(unit);
    write_date(out, units.div_euclid(per_day));
    out.byte(separator);
    write_time(out, units.rem_euclid(per_day), unit);
    if zoned {
        out.byte(b'Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_agree_over_eight_hundred_years() {
        let mut expected = (1599, 12, 31);
        let first = days_from_civil(1600, 1, 1);
        assert_eq!(days_from_civil(1970, 1, 1), 0);
        for days in first..first + 2 * 146_097 {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, i64::from(month), i64::from(day)), days);
            let next_day = (expected.0, expected.1, expected.2 + 1) == (year, month, day);
            let next_month = day == 1 && (year, month) == (expected.0, expected.1 + 1);
            let next_year = day == 1 && month == 1 && year == expected.0 + 1;
            assert!(next_day || next_month || next_year, "{expected:?} {year}-{month}-{day}");
            expected = (year, month, day);
        }
        assert_eq!(expected, (2399, 12, 31));
    }

    #[test]
    fn timestamps_in_both_forms() {
        let good: &[(&str, i64)] = &[
            ("1970-01-01 00:00:00", 0),
            ("2023-11-14 22:13:20.123", 1_700_000_000_123),
            ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
            ("2023-11-14T22:13:20.123999999", 1_700_000_000_123),
            ("2023-11-15T00:13:20.123+02:00", 1_700_000_000_123),
            ("2023-11-14T17:43:20.123-0430", 1_700_000_000_123),
            ("2023-11-14T22:13", 1_699_999_980_000),
            ("1969-12-31 23:59:59.999", -1),
            ("0000-01-01 00:00:00", -62_167_219_200_000),
            ("+10000-01-01 00:00:00", 253_402_300_800_000),
            ("2024-02-29 12:00:00.5", 1_709_208_000_500),
        ];
        for (text, expected) in good {
            assert_eq!(parse_timestamp(text.as_bytes(), TimeUnit::Millisecond), Ok(*expected), "{text}");
        }
        let bad = [
            "",
            "2024-01-01",
            "2023-02-29 00:00:00",
            "2024-13-01 00:00:00",
            "2024-00-10 00:00:00",
            "2024-01-32 00:00:00",
            "2024-01-01 24:00:00",
            "2024-01-01 00:60:00",
            "2024-01-01 00:00:60",
            "2024-01-01  00:00:00",
            "2024-1-01 00:00:00",
            "24-01-01 00:00:00",
            "2024-01-01 00:00:00.",
            "2024-01-01 00:00:00.1234567890",
            "2024-01-01 00:00:00 ",
            "2024-01-01 00:00:00x",
            "2024-01-01T00:00:00+2",
            "2024-01-01T00:00:00+19:00",
            "12024-01-01 00:00:00",
            "2024-01-01 0:00:00",
            "2024-01-01_00:00:00",
            "2024-01-01 00:00:00+00:60",
        ];
        for text in bad {
            assert_eq!(parse_timestamp(text.as_bytes(), TimeUnit::Second), Err(TimestampFault::Syntax), "{text}");
        }
        assert_eq!(parse_timestamp(b"2300-01-01 00:00:00", TimeUnit::Nanosecond), Err(TimestampFault::Range));
        assert_eq!(parse_timestamp(b"+999999999999-01-01 00:00:00", TimeUnit::Second), Err(TimestampFault::Range));
    }

    #[test]
    fn all_that_is_written_is_read_back() {
        for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond] {
            for units in [i64::MIN, i64::MIN + 1, -1, 0, 1, 10, 1_700_000_000_120, i64::MAX - 1, i64::MAX] {
                for (separator, zoned) in [(b' ', false), (b'T', true)] {
                    let mut out = Writer::default();
                    out.room(MAX_LEN);
                    write_timestamp(&mut out, units, unit, separator, zoned);
                    let text = String::from_utf8_lossy(out.written()).into_owned();
                    assert!(text.len() <= MAX_LEN);
                    assert_eq!(parse_timestamp(text.as_bytes(), unit), Ok(units), "{text}");
                }
            }
        }
    }
}
