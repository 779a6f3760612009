//! The load of most tests, and what must come out of it.
//!
//! Order `i` is a pure function of the seed and `i`. The expectations here are computed order by order with plain
//! maps: no watermarks, no state, no batches, nothing shared with the engine.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::random::mix;
use crate::{Error, Result};

/// Names of the regions; half of the orders are `eu`, 30 % `us`, 20 % `ap`.
pub const REGIONS: [&str; 3] = ["eu", "us", "ap"];

/// One order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The number of the order, from 0.
    pub order_id: u64,
    /// From 0 below [`Orders::customers`].
    pub customer_id: u64,
    /// The amount in hundredths: 100 to 100000.
    pub cents: i64,
    /// Event time in milliseconds since 1970, UTC.
    pub ts: i64,
    /// One of [`REGIONS`].
    pub region: &'static str,
}

impl Order {
    /// `{"order_id":..,"customer_id":..,"amount":12.34,"ts":..,"region":".."}`.
    pub fn to_json(&self) -> String {
        format!(
            "{{\"order_id\":{},\"customer_id\":{},\"amount\":{}.{:02},\"ts\":{},\"region\":\"{}\"}}",
            self.order_id,
            self.customer_id,
            self.cents / 100,
            self.cents % 100,
            self.ts,
            self.region
        )
    }
}

/// A reproducible sequence of orders.
#[derive(Debug, Clone, Copy)]
pub struct Orders {
    seed: u64,
    /// Number of customers.
    pub customers: u64,
    /// Orders per millisecond of event time.
    pub per_millisecond: u64,
    /// An order is at most this many milliseconds (exclusive) behind the newest before it.
    pub disorder_ms: u64,
    /// Event time of the first orders, plus `disorder_ms`.
    pub start_ms: i64,
}

impl Orders {
    /// 1000 customers, one order per millisecond, less than 2 s of disorder.
    pub fn new(seed: u64) -> Self {
        Self { seed, customers: 1000, per_millisecond: 1, disorder_ms: 2000, start_ms: 1_700_000_000_000 }
    }

    /// Sets the number of customers.
    pub fn customers(mut self, customers: u64) -> Self {
        self.customers = customers.max(1);
        self
    }

    /// Sets the number of orders per millisecond of event time.
    pub fn per_millisecond(mut self, orders: u64) -> Self {
        self.per_millisecond = orders.max(1);
        self
    }

    /// Order number `i`.
    pub fn order(&self, i: u64) -> Order {
        let h = mix(self.seed.wrapping_mul(0x632B_E59B_D9B4_E019).wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let region = match mix(h ^ 2) % 10 {
            0..5 => REGIONS[0],
            5..8 => REGIONS[1],
            _ => REGIONS[2],
        };
        let time = self.disorder_ms + i / self.per_millisecond - mix(h ^ 3) % self.disorder_ms.max(1);
        Order {
            order_id: i,
            customer_id: h % self.customers,
            cents: i64::try_from(100 + mix(h ^ 1) % 99_901).unwrap_or(100),
            ts: self.start_ms + i64::try_from(time).unwrap_or(0),
            region,
        }
    }

    /// The first `n` orders.
    pub fn take(self, n: u64) -> impl Iterator<Item = Order> + Clone + Send {
        (0..n).map(move |i| self.order(i))
    }
}

/// `n` orders of [`Orders::new`].
pub fn orders(seed: u64, n: u64) -> impl Iterator<Item = Order> + Clone + Send {
    Orders::new(seed).take(n)
}

/// A record for each order, order `i` in partition `i % partitions`, without key, its event time as timestamp.
pub fn rows(orders: impl Iterator<Item = Order>, partitions: u32) -> impl Iterator<Item = crate::WriteRow> {
    orders.map(move |order| {
        let partition = i32::try_from(order.order_id % u64::from(partitions.max(1))).unwrap_or(0);
        crate::WriteRow::to(partition).value(order.to_json()).timestamp(order.ts)
    })
}

/// The job "filter": orders outside region `ap`, by order number.
pub fn expect_filter(orders: impl Iterator<Item = Order>) -> BTreeMap<u64, FilterRow> {
    orders
        .filter(|order| order.region != "ap")
        .map(|order| {
            let row = FilterRow { customer_id: order.customer_id, cents: order.cents, ts: order.ts };
            (order.order_id, row)
        })
        .collect()
}

/// The job "windows": by (window start in milliseconds, customer), windows of `size_ms` that begin each `slide_ms`.
///
/// Both are at least 1; tumbling windows have `slide_ms == size_ms`. Every order counts: none is late.
pub fn expect_windows(orders: impl Iterator<Item = Order>, size_ms: i64, slide_ms: i64) -> BTreeMap<(i64, u64), WindowRow> {
    let mut windows: BTreeMap<(i64, u64), WindowRow> = BTreeMap::new();
    for order in orders {
        // Every window start in (ts - size, ts] that is a multiple of the slide.
        let mut start = order.ts.div_euclid(slide_ms.max(1)) * slide_ms.max(1);
        while start > order.ts - size_ms {
            let window = windows.entry((start, order.customer_id)).or_default();
            window.cnt += 1;
            window.cents += order.cents;
            start -= slide_ms.max(1);
        }
    }
    windows
}

/// The job "running count": the last number of orders of each customer.
pub fn expect_counts(orders: impl Iterator<Item = Order>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for order in orders {
        *counts.entry(order.customer_id).or_default() += 1;
    }
    counts
}

/// What "filter" keeps of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterRow {
    /// The customer.
    pub customer_id: u64,
    /// The amount in hundredths.
    pub cents: i64,
    /// Event time in milliseconds since 1970.
    pub ts: i64,
}

/// The aggregates of one customer in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowRow {
    /// Number of orders.
    pub cnt: u64,
    /// Sum of the amounts in hundredths.
    pub cents: i64,
}

/// Hundredths of a decimal number or a string that holds one, exactly; `None` if it has more than two decimals.
pub fn cents(json: &str) -> Option<i64> {
    let text = json.trim().trim_matches('"');
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let decimals = decimals.trim_end_matches('0');
    if whole.is_empty() || decimals.len() > 2 || !(whole.bytes().chain(decimals.bytes())).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value = whole.parse::<i64>().ok()?.checked_mul(100)? + format!("{decimals:0<2}").parse::<i64>().ok()?;
    Some(if negative { -value } else { value })
}

/// Milliseconds since 1970 of a number, or of `YYYY-MM-DD HH:MM:SS[.fff]` (also with `T` and `Z`), UTC.
pub fn milliseconds(json: &str) -> Option<i64> {
    let text = json.trim().trim_matches('"').trim_end_matches('Z');
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let numbers = |text: &str, by: char| text.split(by).map(|n| n.parse::<i64>().ok()).collect::<Option<Vec<_>>>();
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let ([year, month, day], [hour, minute, second]) =
        (<[i64; 3]>::try_from(numbers(date, '-')?).ok()?, <[i64; 3]>::try_from(numbers(time, ':')?).ok()?);
    // Days from civil, H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let year_of_era = y - era * 400;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let ms = format!("{fraction:0<3}").get(..3)?.parse::<i64>().ok()?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms)
}

fn text(value: &Option<Vec<u8>>) -> Result<&str> {
    let bytes = value.as_deref().ok_or_else(|| Error::Setup("an output row is null".into()))?;
    std::str::from_utf8(bytes).map_err(|e| Error::Setup(format!("an output row is not UTF-8: {e}")))
}

fn bad(line: &str, why: impl std::fmt::Display) -> Error {
    Error::Setup(format!("output row {line} cannot be read: {why}"))
}

/// Reads an output row of the job "filter": `{"order_id","customer_id","amount","ts"}`.
pub fn parse_filter(value: &Option<Vec<u8>>) -> Result<(u64, FilterRow)> {
    #[derive(Deserialize)]
    struct Row<'a> {
        order_id: u64,
        customer_id: u64,
        #[serde(borrow)]
        amount: &'a RawValue,
        #[serde(borrow)]
        ts: &'a RawValue,
    }
    let line = text(value)?;
    let row: Row<'_> = serde_json::from_str(line).map_err(|e| bad(line, e))?;
    let cents = cents(row.amount.get()).ok_or_else(|| bad(line, "amount"))?;
    let ts = milliseconds(row.ts.get()).ok_or_else(|| bad(line, "ts"))?;
    Ok((row.order_id, FilterRow { customer_id: row.customer_id, cents, ts }))
}

/// Reads an output row of the job "windows": `{"window_start","customer_id","cnt","total"}`.
pub fn parse_window(value: &Option<Vec<u8>>) -> Result<((i64, u64), WindowRow)> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        window_start: &'a RawValue,
        customer_id: u64,
        cnt: u64,
        #[serde(borrow)]
        total: &'a RawValue,
    }
    let line = text(value)?;
    let row: Row<'_> = serde_json::from_str(line).map_err(|e| bad(line, e))?;
    let cents = cents(row.total.get()).ok_or_else(|| bad(line, "total"))?;
    let start = milliseconds(row.window_start.get()).ok_or_else(|| bad(line, "window_start"))?;
    Ok(((start, row.customer_id), WindowRow { cnt: row.cnt, cents }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn orders_are_the_same_for_a_seed_and_within_their_bounds() {
        let all: Vec<_> = orders(5, 20_000).collect();
        assert_eq!(all, orders(5, 20_000).collect::<Vec<_>>());
        assert_ne!(all[0], orders(6, 1).next().unwrap());
        let mut newest = 0;
        let mut disordered = 0;
        for order in &all {
            assert!((100..=100_000).contains(&order.cents) && order.customer_id < 1000);
            assert!(order.ts > newest - 2000, "{order:?} is too far behind {newest}");
            disordered += u32::from(order.ts < newest);
            newest = newest.max(order.ts);
        }
        assert!(disordered > 10_000, "time must not be in order");
        for (region, percent) in [("eu", 50), ("us", 30), ("ap", 20)] {
            let share = all.iter().filter(|order| order.region == region).count() * 100 / all.len();
            assert!((percent - 2..percent + 2).contains(&share), "{share} % are of {region}");
        }
    }

    #[test]
    fn sliding_windows_hold_every_order_size_by_slide_times() {
        let order = |i, ts| Order { order_id: i, customer_id: 1, cents: 10, ts, region: "eu" };
        let tumbling = expect_windows([order(0, 9_999), order(1, 10_000)].into_iter(), 10_000, 10_000);
        assert_eq!(tumbling.keys().map(|k| k.0).collect::<Vec<_>>(), [0, 10_000]);
        let sliding = expect_windows([order(0, 10_000)].into_iter(), 10_000, 3_000);
        assert_eq!(sliding.keys().map(|k| k.0).collect::<Vec<_>>(), [3_000, 6_000, 9_000]);
        let negative = expect_windows([order(0, -1)].into_iter(), 10, 10);
        assert_eq!(negative.keys().map(|k| k.0).collect::<Vec<_>>(), [-10]);
        let n = 5000;
        let all = expect_windows(orders(1, n), 10_000, 2_500);
        assert_eq!(all.values().map(|w| w.cnt).sum::<u64>(), 4 * n);
        assert_eq!(all.values().map(|w| w.cents).sum::<i64>(), 4 * orders(1, n).map(|o| o.cents).sum::<i64>());
    }

    #[test]
    fn decimals_and_times_are_read_exactly() {
        for (text, found) in [("12.3", Some(1230)), ("\"-0.05\"", Some(-5)), ("7", Some(700)), ("1.250", Some(125))] {
            assert_eq!(cents(text), found, "{text}");
        }
        assert_eq!(cents("1.255"), None);
        assert_eq!(cents("1e3"), None);
        assert_eq!(milliseconds("1700000000123"), Some(1_700_000_000_123));
        assert_eq!(milliseconds("\"2023-11-14 22:13:20\""), Some(1_700_000_000_000));
        assert_eq!(milliseconds("\"2024-02-29T00:00:00.5Z\""), Some(1_709_164_800_500));
        assert_eq!(milliseconds("\"yesterday\""), None);
    }

    #[test]
    fn rows_of_the_jobs_are_read() {
        let order = orders(1, 1).next().unwrap();
        let (id, row) = parse_filter(&Some(order.to_json().into_bytes())).unwrap();
        assert_eq!((id, row), (0, FilterRow { customer_id: order.customer_id, cents: order.cents, ts: order.ts }));
        let line = br#"{"window_start":"2023-11-14 22:13:20","customer_id":3,"cnt":2,"total":"10.50"}"#.to_vec();
        let window = ((1_700_000_000_000, 3), WindowRow { cnt: 2, cents: 1050 });
        assert_eq!(parse_window(&Some(line)).unwrap(), window);
        assert!(parse_window(&None).is_err() && parse_filter(&Some(b"{}".to_vec())).is_err());
    }
}
