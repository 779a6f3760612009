//! Column builders: plain vectors that a failed record is cut out of again.
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, BooleanBufferBuilder, ListArray, MapArray, NullBufferBuilder, PrimitiveArray, StringArray,
    StructArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, FieldRef, Fields, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;

use crate::json::object::Object;
use crate::text::pow10_i128;

/// One column under construction.
pub(crate) struct Column {
    pub(crate) field: FieldRef,
    pub(crate) nullable: bool,
    pub(crate) values: Values,
    pub(crate) nulls: NullBufferBuilder,
}

/// The values of a column; at a NULL there is a placeholder.
pub(crate) enum Values {
    Boolean(BooleanBufferBuilder),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt8(Vec<u8>),
    UInt16(Vec<u16>),
    UInt32(Vec<u32>),
    UInt64(Vec<u64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Utf8(VarLen),
    Binary(VarLen),
    Decimal { values: Vec<i128>, precision: u8, scale: u32, limit: i128 },
    Date32(Vec<i32>),
    Time32 { values: Vec<i32>, unit: TimeUnit },
    Time64 { values: Vec<i64>, unit: TimeUnit },
    Timestamp { values: Vec<i64>, unit: TimeUnit },
    List { offsets: Vec<i32>, item: Box<Column> },
    Struct(Box<Object>),
    Map(Box<MapValues>),
}

/// Keys and values of a map column; offsets as Arrow has them.
pub(crate) struct MapValues {
    pub(crate) offsets: Vec<i32>,
    pub(crate) key: Column,
    pub(crate) value: Column,
    entries: FieldRef,
    sorted: bool,
}

/// Byte strings one after the other; `offsets` has one element more than there are strings.
pub(crate) struct VarLen {
    pub(crate) data: Vec<u8>,
    offsets: Vec<i32>,
}

/// What a value that does not fit into one batch any more is refused with.
pub(crate) const FULL: &str = "the column's values exceed 2 GiB in one batch; decode fewer records at once";

impl VarLen {
    fn new() -> Self {
        Self { data: Vec::new(), offsets: vec![0] }
    }

    /// Adds a string.
    ///
    /// # Errors
    /// [`FULL`].
    #[inline(always)]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.data.extend_from_slice(bytes);
        self.close()
    }

    /// Ends a string whose bytes were put into `data`.
    ///
    /// # Errors
    /// [`FULL`].
    #[inline(always)]
    pub(crate) fn close(&mut self) -> Result<(), &'static str> {
        let end = i32::try_from(self.data.len()).map_err(|_| FULL)?;
        self.offsets.push(end);
        Ok(())
    }

    fn push_empty(&mut self) {
        // Cuts off what a failed conversion may have left behind.
        let end = self.offsets.last().copied().unwrap_or(0);
        self.data.truncate(end as usize);
        self.offsets.push(end);
    }

    fn truncate(&mut self, len: usize) {
        self.offsets.truncate(len + 1);
        self.data.truncate(self.offsets.last().copied().unwrap_or(0) as usize);
    }

    fn reserve(&mut self, rows: usize) {
        self.offsets.reserve(rows);
    }

    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        let data = std::mem::take(&mut self.data);
        // The next batch will be about as large.
        self.data.reserve(data.len());
        (OffsetBuffer::new(ScalarBuffer::from(offsets)), Buffer::from_vec(data))
    }
}

fn take_offsets(offsets: &mut Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])))
}

/// Runs `$body` with `$vec` bound to the vector of a fixed-width column.
macro_rules! fixed {
    ($values:expr, $vec:ident => $body:expr, $($other:pat => $result:expr),+ $(,)?) => {
        match $values {
            Values::Int8($vec) => $body,
            Values::Int16($vec) => $body,
            Values::Int32($vec) | Values::Date32($vec) | Values::Time32 { values: $vec, .. } => $body,
            Values::Int64($vec) | Values::Time64 { values: $vec, .. } | Values::Timestamp { values: $vec, .. } => $body,
            Values::UInt8($vec) => $body,
            Values::UInt16($vec) => $body,
            Values::UInt32($vec) => $body,
            Values::UInt64($vec) => $body,
            Values::Float32($vec) => $body,
            Values::Float64($vec) => $body,
            Values::Decimal { values: $vec, .. } => $body,
            $($other => $result,)+
        }
    };
}

impl Column {
    /// An empty column. `None` if its type, or one inside it, has no builder.
    pub(crate) fn new(field: &FieldRef) -> Option<Self> {
        let values = match field.data_type() {
            DataType::Boolean => Values::Boolean(BooleanBufferBuilder::new(0)),
            DataType::Int8 => Values::Int8(Vec::new()),
            DataType::Int16 => Values::Int16(Vec::new()),
            DataType::Int32 => Values::Int32(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::UInt8 => Values::UInt8(Vec::new()),
            DataType::UInt16 => Values::UInt16(Vec::new()),
            DataType::UInt32 => Values::UInt32(Vec::new()),
            DataType::UInt64 => Values::UInt64(Vec::new()),
            DataType::Float32 => Values::Float32(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Utf8 => Values::Utf8(VarLen::new()),
            DataType::Binary => Values::Binary(VarLen::new()),
            DataType::Decimal128(precision, scale) => Values::Decimal {
                values: Vec::new(),
                precision: *precision,
                scale: u32::try_from(*scale).ok().filter(|s| *s <= u32::from(*precision) && *precision <= 38)?,
                limit: pow10_i128(u32::from(*precision)),
            },
            DataType::Date32 => Values::Date32(Vec::new()),
            DataType::Time32(unit @ (TimeUnit::Second | TimeUnit::Millisecond)) => Values::Time32 { values: Vec::new(), unit: *unit },
            DataType::Time64(unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond)) => Values::Time64 { values: Vec::new(), unit: *unit },
            DataType::Timestamp(unit, _) => Values::Timestamp { values: Vec::new(), unit: *unit },
            DataType::List(item) => Values::List { offsets: vec![0], item: Box::new(Self::new(item)?) },
            DataType::Struct(fields) => Values::Struct(Box::new(Object::new(fields)?)),
            DataType::Map(entries, sorted) => {
                let DataType::Struct(fields) = entries.data_type() else {
                    return None;
                };
                let [key, value] = &fields[..] else {
                    return None;
                };
                if *key.data_type() != DataType::Utf8 {
                    return None;
                }
                Values::Map(Box::new(MapValues {
                    offsets: vec![0],
                    key: Self::new(key)?,
                    value: Self::new(value)?,
                    entries: Arc::clone(entries),
                    sorted: *sorted,
                }))
            }
            _ => return None,
        };
        Some(Self { nullable: field.is_nullable(), field: Arc::clone(field), values, nulls: NullBufferBuilder::new(0) })
    }

    /// Number of values; after a failure inside a value, of complete ones.
    pub(crate) fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Makes room for `rows` more values.
    pub(crate) fn reserve(&mut self, rows: usize) {
        fixed!(&mut self.values, vec => vec.reserve(rows),
            Values::Boolean(bits) => bits.reserve(rows),
            Values::Utf8(bytes) | Values::Binary(bytes) => bytes.reserve(rows),
            Values::List { offsets, .. } => offsets.reserve(rows),
            Values::Struct(object) => object.reserve(rows),
            Values::Map(map) => map.offsets.reserve(rows),
        );
    }

    /// Adds a NULL, whether or not the column may hold one: inside a struct that is NULL itself it may.
    pub(crate) fn push_null(&mut self) {
        fixed!(&mut self.values, vec => vec.push(Default::default()),
            Values::Boolean(bits) => bits.append(false),
            Values::Utf8(bytes) | Values::Binary(bytes) => bytes.push_empty(),
            Values::List { offsets, .. } => offsets.push(offsets.last().copied().unwrap_or(0)),
            Values::Struct(object) => object.push_null(),
            Values::Map(map) => map.offsets.push(map.offsets.last().copied().unwrap_or(0)),
        );
        self.nulls.append_null();
    }

    /// Drops all values after the first `len`, and whatever a failure left half done.
    pub(crate) fn truncate(&mut self, len: usize) {
        fixed!(&mut self.values, vec => vec.truncate(len),
            Values::Boolean(bits) => bits.truncate(len),
            Values::Utf8(bytes) | Values::Binary(bytes) => bytes.truncate(len),
            Values::List { offsets, item } => {
                offsets.truncate(len + 1);
                item.truncate(offsets.last().copied().unwrap_or(0) as usize);
            },
            Values::Struct(object) => object.truncate(len),
            Values::Map(map) => {
                map.offsets.truncate(len + 1);
                let entries = map.offsets.last().copied().unwrap_or(0) as usize;
                map.key.truncate(entries);
                map.value.truncate(entries);
            },
        );
        self.nulls.truncate(len);
    }

    /// Takes the values out as an array and leaves an empty column.
    ///
    /// # Errors
    /// Only if the builder broke one of Arrow's rules.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let nulls = self.nulls.finish();
        let data_type = self.field.data_type();
        Ok(match &mut self.values {
            Values::Boolean(bits) => {
                let values = bits.finish();
                Arc::new(BooleanArray::new(values, nulls))
            }
            Values::Int8(v) => primitive::<Int8Type>(v, nulls, data_type)?,
            Values::Int16(v) => primitive::<Int16Type>(v, nulls, data_type)?,
            Values::Int32(v) => primitive::<Int32Type>(v, nulls, data_type)?,
            Values::Int64(v) => primitive::<Int64Type>(v, nulls, data_type)?,
            Values::UInt8(v) => primitive::<UInt8Type>(v, nulls, data_type)?,
            Values::UInt16(v) => primitive::<UInt16Type>(v, nulls, data_type)?,
            Values::UInt32(v) => primitive::<UInt32Type>(v, nulls, data_type)?,
            Values::UInt64(v) => primitive::<UInt64Type>(v, nulls, data_type)?,
            Values::Float32(v) => primitive::<Float32Type>(v, nulls, data_type)?,
            Values::Float64(v) => primitive::<Float64Type>(v, nulls, data_type)?,
            Values::Decimal { values, .. } => primitive::<Decimal128Type>(values, nulls, data_type)?,
            Values::Date32(v) => primitive::<Date32Type>(v, nulls, data_type)?,
            Values::Time32 { values, unit: TimeUnit::Second } => primitive::<Time32SecondType>(values, nulls, data_type)?,
            Values::Time32 { values, .. } => primitive::<Time32MillisecondType>(values, nulls, data_type)?,
            Values::Time64 { values, unit: TimeUnit::Microsecond } => primitive::<Time64MicrosecondType>(values, nulls, data_type)?,
            Values::Time64 { values, .. } => primitive::<Time64NanosecondType>(values, nulls, data_type)?,
            Values::Timestamp { values, unit } => match unit {
                TimeUnit::Second => primitive::<TimestampSecondType>(values, nulls, data_type)?,
                TimeUnit::Millisecond => primitive::<TimestampMillisecondType>(values, nulls, data_type)?,
                TimeUnit::Microsecond => primitive::<TimestampMicrosecondType>(values, nulls, data_type)?,
                TimeUnit::Nanosecond => primitive::<TimestampNanosecondType>(values, nulls, data_type)?,
            },
            Values::Utf8(bytes) => {
                let (offsets, data) = bytes.take();
                Arc::new(StringArray::try_new(offsets, data, nulls)?)
            }
            Values::Binary(bytes) => {
                let (offsets, data) = bytes.take();
                Arc::new(BinaryArray::try_new(offsets, data, nulls)?)
            }
            Values::List { offsets, item } => {
                let offsets = take_offsets(offsets);
                Arc::new(ListArray::try_new(Arc::clone(&item.field), offsets, item.finish()?, nulls)?)
            }
            Values::Struct(object) => {
                let len = object.len();
                let fields = match data_type {
                    DataType::Struct(fields) => fields.clone(),
                    _ => Fields::empty(),
                };
                Arc::new(StructArray::try_new_with_length(fields, object.finish()?, nulls, len)?)
            }
            Values::Map(map) => {
                let offsets = take_offsets(&mut map.offsets);
                let fields = Fields::from(vec![Arc::clone(&map.key.field), Arc::clone(&map.value.field)]);
                let entries = StructArray::try_new(fields, vec![map.key.finish()?, map.value.finish()?], None)?;
                Arc::new(MapArray::try_new(Arc::clone(&map.entries), offsets, entries, nulls, map.sorted)?)
            }
        })
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
    data_type: &DataType,
) -> Result<ArrayRef, ArrowError> {
    let values = ScalarBuffer::from(std::mem::take(values));
    Ok(Arc::new(PrimitiveArray::<T>::try_new(values, nulls)?.with_data_type(data_type.clone())))
}
