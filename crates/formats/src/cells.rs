//! The values of a batch's columns, ready to be written row by row.
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::text::datetime;
use crate::text::writer::{MAX_NUMBER, Writer};

/// One column of a batch, or of what is nested in it.
pub(crate) struct Cells<'a> {
    nulls: Option<&'a NullBuffer>,
    pub(crate) values: CellValues<'a>,
}

/// The values by type.
pub(crate) enum CellValues<'a> {
    Boolean(&'a BooleanArray),
    Int8(&'a [i8]),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    UInt8(&'a [u8]),
    UInt16(&'a [u16]),
    UInt32(&'a [u32]),
    UInt64(&'a [u64]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Decimal(&'a [i128], usize),
    Utf8(Bytes<'a>),
    Binary(Bytes<'a>),
    Date32(&'a [i32]),
    Time32(&'a [i32], TimeUnit),
    Time64(&'a [i64], TimeUnit),
    Timestamp { values: &'a [i64], unit: TimeUnit, zoned: bool },
    List { offsets: &'a [i32], item: Box<Cells<'a>> },
    Struct(Vec<Cells<'a>>),
    Map { offsets: &'a [i32], keys: Bytes<'a>, value: Box<Cells<'a>> },
}

/// Byte strings of a column.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) data: &'a [u8],
    offsets: &'a [i32],
}

impl<'a> Bytes<'a> {
    /// Where string `row` begins and ends in `data`.
    #[inline(always)]
    pub(crate) fn range(&self, row: usize) -> (usize, usize) {
        (self.offsets[row] as usize, self.offsets[row + 1] as usize)
    }

    #[inline(always)]
    pub(crate) fn get(&self, row: usize) -> &'a [u8] {
        let (start, end) = self.range(row);
        &self.data[start..end]
    }
}

fn values<T: ArrowPrimitiveType>(array: &ArrayRef) -> Option<&[T::Native]> {
    array.as_any().downcast_ref::<PrimitiveArray<T>>().map(|array| &array.values()[..])
}

fn strings(array: &ArrayRef) -> Option<Bytes<'_>> {
    let array = array.as_string_opt::<i32>()?;
    Some(Bytes { data: array.values(), offsets: array.value_offsets() })
}

impl<'a> Cells<'a> {
    /// The cells of an array. `None` if its type, or one inside it, cannot be written.
    pub(crate) fn new(array: &'a ArrayRef) -> Option<Self> {
        let values = match array.data_type() {
            DataType::Boolean => CellValues::Boolean(array.as_boolean_opt()?),
            DataType::Int8 => CellValues::Int8(values::<Int8Type>(array)?),
            DataType::Int16 => CellValues::Int16(values::<Int16Type>(array)?),
            DataType::Int32 => CellValues::Int32(values::<Int32Type>(array)?),
            DataType::Int64 => CellValues::Int64(values::<Int64Type>(array)?),
            DataType::UInt8 => CellValues::UInt8(values::<UInt8Type>(array)?),
            DataType::UInt16 => CellValues::UInt16(values::<UInt16Type>(array)?),
            DataType::UInt32 => CellValues::UInt32(values::<UInt32Type>(array)?),
            DataType::UInt64 => CellValues::UInt64(values::<UInt64Type>(array)?),
            DataType::Float32 => CellValues::Float32(values::<Float32Type>(array)?),
            DataType::Float64 => CellValues::Float64(values::<Float64Type>(array)?),
            DataType::Decimal128(_, scale) => {
                let scale = usize::try_from(*scale).ok().filter(|s| *s <= 38)?;
                CellValues::Decimal(values::<Decimal128Type>(array)?, scale)
            }
            DataType::Utf8 => CellValues::Utf8(strings(array)?),
            DataType::Binary => {
                let array = array.as_binary_opt::<i32>()?;
                CellValues::Binary(Bytes { data: array.values(), offsets: array.value_offsets() })
            }
            DataType::Date32 => CellValues::Date32(values::<Date32Type>(array)?),
            DataType::Time32(unit @ TimeUnit::Second) => CellValues::Time32(values::<Time32SecondType>(array)?, *unit),
            DataType::Time32(unit) => CellValues::Time32(values::<Time32MillisecondType>(array)?, *unit),
            DataType::Time64(unit @ TimeUnit::Microsecond) => CellValues::Time64(values::<Time64MicrosecondType>(array)?, *unit),
            DataType::Time64(unit) => CellValues::Time64(values::<Time64NanosecondType>(array)?, *unit),
            DataType::Timestamp(unit, zone) => CellValues::Timestamp {
                values: match unit {
                    TimeUnit::Second => values::<TimestampSecondType>(array)?,
                    TimeUnit::Millisecond => values::<TimestampMillisecondType>(array)?,
                    TimeUnit::Microsecond => values::<TimestampMicrosecondType>(array)?,
                    TimeUnit::Nanosecond => values::<TimestampNanosecondType>(array)?,
                },
                unit: *unit,
                zoned: zone.is_some(),
            },
            DataType::List(_) => {
                let list = array.as_list_opt::<i32>()?;
                CellValues::List { offsets: list.value_offsets(), item: Box::new(Self::new(list.values())?) }
            }
            DataType::Struct(_) => {
                let columns = array.as_struct_opt()?.columns();
                CellValues::Struct(columns.iter().map(Self::new).collect::<Option<_>>()?)
            }
            DataType::Map(_, _) => {
                let map = array.as_map_opt()?;
                CellValues::Map { offsets: map.value_offsets(), keys: strings(map.keys())?, value: Box::new(Self::new(map.values())?) }
            }
            _ => return None,
        };
        Some(Self { nulls: array.nulls().filter(|nulls| nulls.null_count() > 0), values })
    }

    #[inline(always)]
    pub(crate) fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(row))
    }
}

/// Most bytes that [`CellValues::write_plain`] writes.
pub(crate) const MAX_PLAIN: usize = if MAX_NUMBER > datetime::MAX_LEN { MAX_NUMBER } else { datetime::MAX_LEN };

impl CellValues<'_> {
    /// Writes a number, boolean, date or time; timestamps with `separator` between date and time. The writer has room
    /// for [`MAX_PLAIN`] bytes. Values of other types are left out: the formats write those in their own ways.
    ///
    /// # Errors
    /// What is wrong with the value.
    #[inline(always)]
    pub(crate) fn write_plain(&self, row: usize, out: &mut Writer, separator: u8) -> Result<(), String> {
        match self {
            Self::Int64(values) => out.i64(values[row]),
            Self::Int32(values) => out.i64(i64::from(values[row])),
            Self::Decimal(values, scale) => out.decimal(values[row], *scale),
            Self::Boolean(values) => out.bytes(if values.value(row) { b"true" } else { b"false" }),
            Self::Float64(values) => {
                let value = finite(values[row], f64::is_finite)?;
                out.bytes(zmij::Buffer::new().format_finite(value).as_bytes());
            }
            Self::Float32(values) => {
                let value = finite(values[row], f32::is_finite)?;
                out.bytes(zmij::Buffer::new().format_finite(value).as_bytes());
            }
            Self::Timestamp { values, unit, zoned } => {
                datetime::write_timestamp(out, values[row], *unit, separator, *zoned);
            }
            Self::Date32(values) => datetime::write_date(out, i64::from(values[row])),
            Self::Time32(values, unit) => time(out, i64::from(values[row]), *unit)?,
            Self::Time64(values, unit) => time(out, values[row], *unit)?,
            Self::Int8(values) => out.i64(i64::from(values[row])),
            Self::Int16(values) => out.i64(i64::from(values[row])),
            Self::UInt8(values) => out.u64(u64::from(values[row])),
            Self::UInt16(values) => out.u64(u64::from(values[row])),
            Self::UInt32(values) => out.u64(u64::from(values[row])),
            Self::UInt64(values) => out.u64(values[row]),
            Self::Utf8(_) | Self::Binary(_) | Self::List { .. } | Self::Struct(_) | Self::Map { .. } => {}
        }
        Ok(())
    }

    /// Whether [`Self::write_plain`] writes a date or time.
    #[inline(always)]
    pub(crate) fn is_temporal(&self) -> bool {
        matches!(self, Self::Timestamp { .. } | Self::Date32(_) | Self::Time32(..) | Self::Time64(..))
    }
}

fn finite<T: Copy + std::fmt::Display>(value: T, is_finite: impl Fn(T) -> bool) -> Result<T, String> {
    if is_finite(value) { Ok(value) } else { Err(format!("{value} cannot be written; filter it out or turn it into NULL")) }
}

fn time(out: &mut Writer, units: i64, unit: TimeUnit) -> Result<(), String> {
    if !(0..datetime::DAY * datetime::per_second(unit)).contains(&units) {
        return Err(format!("{units} is not a time of the day in the column's unit"));
    }
    datetime::write_time(out, units, unit);
    Ok(())
}
