//! Durations and sizes in Flink's spelling.
use std::time::Duration;

/// `10s`, `500 ms`, `1 min`, `2 h`, `1 d`; a plain number is milliseconds. (Flink's `TimeUtils.parseDuration`.)
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let nanos: u64 = match unit {
        "ns" | "nano" | "nanosecond" | "nanoseconds" => 1,
        "us" | "µs" | "micro" | "microsecond" | "microseconds" => 1_000,
        "" | "ms" | "milli" | "millis" | "millisecond" | "milliseconds" => 1_000_000,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000_000,
        "m" | "min" | "minute" | "minutes" => 60_000_000_000,
        "h" | "hour" | "hours" => 3_600_000_000_000,
        "d" | "day" | "days" => 86_400_000_000_000,
        _ => return None,
    };
    number.checked_mul(nanos).map(Duration::from_nanos)
}

/// `8mb`, `64 kb`, `1 gib`; a plain number is bytes; factors are powers of 1024. (Flink's `MemorySize`.)
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kib" | "kibibytes" => 10,
        "m" | "mb" | "mib" | "mebibytes" => 20,
        "g" | "gb" | "gib" | "gibibytes" => 30,
        "t" | "tb" | "tib" | "tebibytes" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_flink_writes_them() {
        for (text, ms) in [("10s", 10_000), ("500 ms", 500), ("1 min", 60_000), ("2h", 7_200_000), ("1 d", 86_400_000), ("250", 250)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_duration("5 us"), Some(Duration::from_micros(5)));
        for text in ["", "s", "-1s", "1.5s", "10 parsecs", "99999999999999 d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_as_flink_writes_them() {
        for (text, bytes) in [("100", 100), ("8mb", 8 << 20), ("64 kb", 64 << 10), ("1 gib", 1 << 30)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "mb", "1 zb", "99999999999 tb"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
