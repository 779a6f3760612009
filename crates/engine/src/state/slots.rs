//! From key to slot: a hash that never changes.
//!
//! A key's slot decides which subtask owns it and where it lies in snapshot files, so **this hash is a file format**: it is the
//! same on all platforms and in all versions (`tests/state_slots.rs` holds golden values), and it may never be changed.
//!
//! * Equal values hash equally whatever carries them: `Int32` 5 and `Int64` 5, `Utf8` and a dictionary of it. Integers, booleans,
//!   dates, times, timestamps and unscaled decimals hash as the integer they are stored as: `mix(value as u64)`, where a decimal beyond
//!   64 bits is `mix(low ^ mix(high))`. (So a column must keep its time unit and scale; the stored schema checks that.)
//! * Floats hash as the bits of their `f64`, with -0.0 as 0.0 and one NaN. Texts and byte strings hash by XXH3 (64 bits, seed 0).
//! * NULL hashes as a constant. Further columns are folded in by `mix(rotate_left(hash, 27) + column hash)`.
//! * `mix` is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

use super::error::StateError;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::*;
use std::ops::RangeInclusive;
use twox_hash::XxHash3_64;

const NULL_HASH: u64 = 0x4E55_4C4C_5345_4D4C;

/// Flink's number of key groups where nothing else is configured (`pipeline.max-parallelism`).
pub const DEFAULT_SLOTS: u32 = 256;

/// SplitMix64's output function, a bijection.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[inline]
pub(crate) fn hash_wide(value: i128) -> u64 {
    match i64::try_from(value) {
        Ok(narrow) => mix(narrow as u64),
        Err(_) => mix(value as u64 ^ mix((value >> 64) as u64)),
    }
}

#[inline]
pub(crate) fn hash_bytes(value: &[u8]) -> u64 {
    XxHash3_64::oneshot(value)
}

/// -0.0 equals 0.0 and every NaN is the same key.
#[inline]
pub(crate) fn canonical_f64(value: f64) -> f64 {
    match value {
        v if v.is_nan() => f64::from_bits(0x7FF8_0000_0000_0000),
        v => v + 0.0,
    }
}

/// Hashes rows: `columns` are the key columns, all of the same length; `out` is overwritten with one hash per row.
///
/// The module's documentation defines the hash. Nested and interval types are refused.
pub fn hash_columns(columns: &[ArrayRef], out: &mut Vec<u64>) -> Result<(), StateError> {
    out.clear();
    out.resize(columns.first().map_or(0, |column| column.len()), NULL_HASH);
    for (i, column) in columns.iter().enumerate() {
        hash_column(column, i == 0, out)?;
    }
    Ok(())
}

fn fill(out: &mut [u64], nulls: Option<&NullBuffer>, first: bool, hash: impl Fn(usize) -> u64) {
    let fold = |before: u64, hash: u64| mix(before.rotate_left(27).wrapping_add(hash));
    match (nulls, first) {
        (None, true) => out.iter_mut().enumerate().for_each(|(i, h)| *h = hash(i)),
        (None, false) => out.iter_mut().enumerate().for_each(|(i, h)| *h = fold(*h, hash(i))),
        (Some(nulls), _) => out.iter_mut().enumerate().for_each(|(i, h)| {
            let value = if nulls.is_null(i) { NULL_HASH } else { hash(i) };
            *h = if first { value } else { fold(*h, value) };
        }),
    }
}

fn hash_column(column: &ArrayRef, first: bool, out: &mut [u64]) -> Result<(), StateError> {
    let nulls = column.logical_nulls();
    let nulls = nulls.as_ref().filter(|n| n.null_count() > 0);
    macro_rules! integers {
        ($type:ty) => {{
            let values = column.as_primitive::<$type>().values();
            fill(out, nulls, first, |i| mix(values[i] as i64 as u64))
        }};
    }
    macro_rules! floats {
        ($type:ty) => {{
            let values = column.as_primitive::<$type>().values();
            fill(out, nulls, first, |i| mix(canonical_f64(f64::from(values[i])).to_bits()))
        }};
    }
    macro_rules! bytes {
        ($values:expr) => {{
            let values = $values;
            fill(out, nulls, first, |i| hash_bytes(AsRef::<[u8]>::as_ref(values.value(i))))
        }};
    }
    match column.data_type() {
        DataType::Null => fill(out, None, first, |_| NULL_HASH),
        DataType::Boolean => {
            let values = column.as_boolean();
            fill(out, nulls, first, |i| mix(values.value(i) as u64))
        }
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Date32 => integers!(Date32Type),
        DataType::Date64 => integers!(Date64Type),
        DataType::Time32(TimeUnit::Second) => integers!(Time32SecondType),
        DataType::Time32(_) => integers!(Time32MillisecondType),
        DataType::Time64(TimeUnit::Microsecond) => integers!(Time64MicrosecondType),
        DataType::Time64(_) => integers!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => integers!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => integers!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => integers!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => integers!(TimestampNanosecondType),
        DataType::Duration(TimeUnit::Second) => integers!(DurationSecondType),
        DataType::Duration(TimeUnit::Millisecond) => integers!(DurationMillisecondType),
        DataType::Duration(TimeUnit::Microsecond) => integers!(DurationMicrosecondType),
        DataType::Duration(TimeUnit::Nanosecond) => integers!(DurationNanosecondType),
        DataType::Decimal32(..) => integers!(Decimal32Type),
        DataType::Decimal64(..) => integers!(Decimal64Type),
        DataType::Decimal128(..) => {
            let values = column.as_primitive::<Decimal128Type>().values();
            fill(out, nulls, first, |i| hash_wide(values[i]))
        }
        DataType::Float16 => floats!(Float16Type),
        DataType::Float32 => floats!(Float32Type),
        DataType::Float64 => floats!(Float64Type),
        DataType::Utf8 => bytes!(column.as_string::<i32>()),
        DataType::LargeUtf8 => bytes!(column.as_string::<i64>()),
        DataType::Utf8View => bytes!(column.as_string_view()),
        DataType::Binary => bytes!(column.as_binary::<i32>()),
        DataType::LargeBinary => bytes!(column.as_binary::<i64>()),
        DataType::BinaryView => bytes!(column.as_binary_view()),
        DataType::FixedSizeBinary(_) => bytes!(column.as_fixed_size_binary()),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let mut hashes = vec![NULL_HASH; dictionary.values().len()];
            hash_column(dictionary.values(), true, &mut hashes)?;
            let at = if hashes.is_empty() { Vec::new() } else { dictionary.normalized_keys() };
            fill(out, nulls, first, |i| hashes[at[i]])
        }
        other => return Err(StateError::UnsupportedKey { data_type: other.clone() }),
    }
    Ok(())
}

/// The slot of a hash, below `slots` (at most 65536). It uses bits 24 to 55, so that the keys of one subtask still differ in the lowest and
/// highest bits, which hash tables use.
#[inline]
pub fn slot_of(hash: u64, slots: u32) -> u16 {
    ((((hash >> 24) & 0xFFFF_FFFF) * u64::from(slots)) >> 32) as u16
}

/// The subtask that owns a slot: `slot * parallelism / slots`, as in Flink's assignment of key groups.
#[inline]
pub fn subtask_of(slot: u16, slots: u32, parallelism: usize) -> usize {
    usize::from(slot) * parallelism / slots.max(1) as usize
}

/// The slots that a subtask owns. Empty (start above end) for some subtasks if `parallelism` exceeds `slots`.
pub fn slot_range(subtask: usize, slots: u32, parallelism: usize) -> RangeInclusive<u16> {
    let first = |subtask: usize| (subtask * slots as usize).div_ceil(parallelism.max(1));
    match (first(subtask), first(subtask + 1)) {
        (start, end) if start >= end => RangeInclusive::new(1, 0),
        (start, end) => start as u16..=(end - 1) as u16,
    }
}
