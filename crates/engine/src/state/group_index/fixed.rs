//! Keys of at most 16 bytes, packed into one integer.

use super::shards::Shards;
use super::{Ids, NO_GROUP};
use crate::state::error::{Doing, StateError};
use crate::state::slots::{canonical_f64, mix};
use crate::state::types::canonical_column;
use arrow::array::{Array, ArrayData, ArrayRef, AsArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Float32Type, Float64Type};
use hashbrown::hash_table::Entry;

/// Where a column lies in the packed key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    width: usize,
    shift: u32,
}

/// The fields and their total width in bytes, if all columns have a fixed width and fit 16 bytes.
pub(crate) fn layout(types: &[DataType]) -> Option<(Vec<Field>, usize)> {
    let mut bytes = 0;
    let mut fields = Vec::with_capacity(types.len());
    for data_type in types {
        let width = match data_type {
            DataType::Boolean => 1,
            other => other.primitive_width().filter(|width| *width <= 16)?,
        };
        fields.push(Field { width, shift: bytes as u32 * 8 });
        bytes += width;
    }
    (bytes > 0 && bytes <= 16).then_some((fields, bytes))
}

/// An integer that holds a packed key.
pub(crate) trait Packed: Copy + Eq + Default {
    fn place(self, value: u128, shift: u32) -> Self;
    fn pick(self, shift: u32) -> u128;
    /// Not the hash of the slots: never stored, may change.
    fn hash(self) -> u64;
}

impl Packed for u64 {
    #[inline]
    fn place(self, value: u128, shift: u32) -> u64 {
        self | (value as u64) << shift
    }
    #[inline]
    fn pick(self, shift: u32) -> u128 {
        u128::from(self >> shift)
    }
    #[inline]
    fn hash(self) -> u64 {
        mix(self)
    }
}

impl Packed for u128 {
    #[inline]
    fn place(self, value: u128, shift: u32) -> u128 {
        self | value << shift
    }
    #[inline]
    fn pick(self, shift: u32) -> u128 {
        self >> shift
    }
    #[inline]
    fn hash(self) -> u64 {
        mix(self as u64 ^ mix((self >> 64) as u64))
    }
}

/// Packed keys by group id.
#[derive(Debug)]
pub(crate) struct Fixed<K> {
    fields: Vec<Field>,
    values: Vec<K>,
    /// One bit per NULL column (its value is packed as 0), for every group; `None` until the first NULL comes.
    masks: Option<Vec<u16>>,
    batch: Vec<K>,
    batch_masks: Vec<u16>,
}

impl<K: Packed> Fixed<K> {
    pub fn new(fields: Vec<Field>) -> Fixed<K> {
        Fixed { fields, values: Vec::new(), masks: None, batch: Vec::new(), batch_masks: Vec::new() }
    }

    #[inline]
    pub fn hash(&self, group: u32) -> u64 {
        self.values[group as usize].hash()
    }

    pub fn resolve(
        &mut self,
        keys: &[ArrayRef],
        types: &[DataType],
        insert: bool,
        shards: &mut Shards,
        ids: &mut Ids,
        groups: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        self.pack(keys, types)?;
        if !self.batch_masks.is_empty() {
            self.masks.get_or_insert_with(|| vec![0; self.values.len()]);
        }
        let Fixed { values, masks, batch, batch_masks, .. } = self;
        for (row, &key) in batch.iter().enumerate() {
            let hash = key.hash();
            let mask = batch_masks.get(row).copied().unwrap_or(0);
            let table = shards.table(hash);
            let equal = |&group: &u32| values[group as usize] == key && masks.as_ref().is_none_or(|masks| masks[group as usize] == mask);
            if !insert {
                groups.push(table.find(hash, equal).copied().unwrap_or(NO_GROUP));
                continue;
            }
            match table.entry(hash, equal, |&group| values[group as usize].hash()) {
                Entry::Occupied(entry) => groups.push(*entry.get()),
                Entry::Vacant(entry) => {
                    let (group, used) = ids.take()?;
                    entry.insert(group);
                    groups.push(group);
                    if used {
                        values[group as usize] = key;
                        masks.iter_mut().for_each(|masks| masks[group as usize] = mask);
                    } else {
                        values.push(key);
                        masks.iter_mut().for_each(|masks| masks.push(mask));
                    }
                }
            }
        }
        Ok(())
    }

    fn pack(&mut self, keys: &[ArrayRef], types: &[DataType]) -> Result<(), StateError> {
        let rows = keys[0].len();
        self.batch.clear();
        self.batch.resize(rows, K::default());
        self.batch_masks.clear();
        for (i, (field, column)) in self.fields.iter().zip(keys).enumerate() {
            let column = canonical_column(column, &types[i], &|| format!("key column {i}"))?;
            let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
            if let Some(nulls) = nulls {
                self.batch_masks.resize(rows, 0);
                self.batch_masks.iter_mut().zip(nulls).for_each(|(mask, valid)| *mask |= u16::from(!valid) << i);
            }
            pack_column(&column, *field, nulls, &mut self.batch);
        }
        Ok(())
    }

    pub fn columns(&self, types: &[DataType], groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        let fields = self.fields.iter().zip(types).enumerate();
        fields.map(|(i, (field, data_type))| self.column(i, *field, data_type, groups)).collect()
    }

    fn column(&self, i: usize, field: Field, data_type: &DataType, groups: &[u32]) -> Result<ArrayRef, StateError> {
        let shift = field.shift;
        let value = |group: &u32| self.values[*group as usize].pick(shift);
        let buffer = match field.width {
            _ if *data_type == DataType::Boolean => {
                BooleanBuffer::collect_bool(groups.len(), |row| value(&groups[row]) as u8 != 0).into_inner()
            }
            1 => Buffer::from_iter(groups.iter().map(|group| value(group) as u8)),
            2 => Buffer::from_iter(groups.iter().map(|group| value(group) as u16)),
            4 => Buffer::from_iter(groups.iter().map(|group| value(group) as u32)),
            8 => Buffer::from_iter(groups.iter().map(|group| value(group) as u64)),
            _ => Buffer::from_iter(groups.iter().map(|group| value(group) as i128)),
        };
        let nulls = self
            .masks
            .as_ref()
            .map(|masks| NullBuffer::new(BooleanBuffer::collect_bool(groups.len(), |row| masks[groups[row] as usize] >> i & 1 == 0)));
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0).map(|nulls| nulls.into_inner().into_inner());
        let data = ArrayData::try_new(data_type.clone(), groups.len(), nulls, 0, vec![buffer], vec![]);
        Ok(make_array(data.doing("giving keys back")?))
    }

    pub fn memory_bytes(&self) -> usize {
        (self.values.capacity() + self.batch.capacity()) * size_of::<K>()
            + (self.masks.as_ref().map_or(0, Vec::capacity) + self.batch_masks.capacity()) * 2
    }
}

fn pack_column<K: Packed>(column: &ArrayRef, field: Field, nulls: Option<&NullBuffer>, batch: &mut [K]) {
    let shift = field.shift;
    macro_rules! pack {
        ($values:expr) => {
            match nulls {
                None => batch.iter_mut().zip($values).for_each(|(key, value)| *key = key.place(value, shift)),
                Some(nulls) => batch.iter_mut().zip($values).zip(nulls).for_each(|((key, value), valid)| {
                    *key = key.place(if valid { value } else { 0 }, shift);
                }),
            }
        };
    }
    fn raw<T: ArrowNativeType>(column: &ArrayRef) -> Vec<T> {
        let data = column.to_data();
        data.buffers()[0].typed_data::<T>()[data.offset()..data.offset() + data.len()].to_vec()
    }
    match (column.data_type(), field.width) {
        (DataType::Boolean, _) => pack!(column.as_boolean().values().iter().map(u128::from)),
        (DataType::Float32, _) => {
            let values = column.as_primitive::<Float32Type>().values().iter();
            pack!(values.map(|v| u128::from((canonical_f64(f64::from(*v)) as f32).to_bits())))
        }
        (DataType::Float64, _) => {
            let values = column.as_primitive::<Float64Type>().values().iter();
            pack!(values.map(|v| u128::from(canonical_f64(*v).to_bits())))
        }
        (_, 1) => pack!(raw::<u8>(column).into_iter().map(u128::from)),
        (_, 2) => pack!(raw::<u16>(column).into_iter().map(u128::from)),
        (_, 4) => pack!(raw::<u32>(column).into_iter().map(u128::from)),
        (_, 8) => pack!(raw::<u64>(column).into_iter().map(u128::from)),
        _ => pack!(raw::<i128>(column).into_iter().map(|v| v as u128)),
    }
}
