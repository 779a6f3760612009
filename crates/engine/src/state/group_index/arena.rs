//! Keys of variable length: bytes in one arena.

use super::shards::Shards;
use super::{Ids, NO_GROUP, append_arena_group};
use crate::state::error::{Doing, StateError};
use crate::state::slots::{canonical_f64, hash_bytes};
use crate::state::types::canonical_column;
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, StringArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::row::{RowConverter, Rows, SortField};
use std::sync::Arc;

/// Below this much garbage the arena is left alone.
const COMPACT_ABOVE: usize = 1 << 20;

/// Byte strings by group id, back to back. Freed ones are squeezed out when they are half of it.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    starts: Vec<u64>,
    lengths: Vec<u32>,
    garbage: usize,
}

impl Arena {
    #[inline]
    pub fn get(&self, group: u32) -> &[u8] {
        let start = self.starts[group as usize] as usize;
        &self.bytes[start..start + self.lengths[group as usize] as usize]
    }

    #[inline]
    pub fn hash(&self, group: u32) -> u64 {
        hash_bytes(self.get(group))
    }

    /// `group` is free, or the next id after all others.
    pub fn set(&mut self, group: u32, key: &[u8]) {
        let at = group as usize;
        if at >= self.starts.len() {
            self.starts.resize(at + 1, 0);
            self.lengths.resize(at + 1, 0);
        }
        self.starts[at] = self.bytes.len() as u64;
        self.lengths[at] = key.len() as u32; // Arrow's arrays hold less than 4 GiB each.
        self.bytes.extend_from_slice(key);
    }

    pub fn free(&mut self, group: u32) -> bool {
        self.garbage += self.lengths[group as usize] as usize;
        self.lengths[group as usize] = 0;
        if self.garbage > COMPACT_ABOVE && self.garbage > self.bytes.len() / 2 {
            let mut bytes = Vec::with_capacity(self.bytes.len() - self.garbage);
            for (start, length) in self.starts.iter_mut().zip(&self.lengths) {
                let key = &self.bytes[*start as usize..*start as usize + *length as usize];
                *start = bytes.len() as u64;
                bytes.extend_from_slice(key);
            }
            self.bytes = bytes;
            self.garbage = 0;
        }
        true
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.starts.capacity() * 8 + self.lengths.capacity() * 4
    }
}

/// One text or byte-string column.
#[derive(Debug, Default)]
pub(crate) struct ByteKeys {
    pub arena: Arena,
    null: Option<u32>,
}

impl ByteKeys {
    /// `hashes` of the column are those of its bytes, so they serve for the table too.
    pub fn resolve(
        &mut self,
        keys: &ArrayRef,
        hashes: &[u64],
        insert: bool,
        shards: &mut Shards,
        ids: &mut Ids,
        groups: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        let nulls = keys.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        macro_rules! each {
            ($column:expr) => {{
                let column = $column;
                for row in 0..column.len() {
                    let group = match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                        true => self.null_group(insert, ids)?,
                        false => {
                            let key: &[u8] = column.value(row).as_ref();
                            append_arena_group(&mut self.arena, shards, ids, key, hashes[row], insert)?
                        }
                    };
                    groups.push(group);
                }
            }};
        }
        match keys.data_type() {
            DataType::Utf8 => each!(keys.as_string::<i32>()),
            DataType::LargeUtf8 => each!(keys.as_string::<i64>()),
            DataType::Utf8View => each!(keys.as_string_view()),
            DataType::Binary => each!(keys.as_binary::<i32>()),
            DataType::LargeBinary => each!(keys.as_binary::<i64>()),
            DataType::BinaryView => each!(keys.as_binary_view()),
            other => {
                let plain = crate::state::types::canonical_type(other);
                let plain = canonical_column(keys, &plain, &|| "key column 0".into())?;
                return self.resolve(&plain, hashes, insert, shards, ids, groups);
            }
        }
        Ok(())
    }

    fn null_group(&mut self, insert: bool, ids: &mut Ids) -> Result<u32, StateError> {
        match self.null {
            Some(group) => Ok(group),
            None if !insert => Ok(NO_GROUP),
            None => {
                let (group, _) = ids.take()?;
                self.arena.set(group, &[]);
                self.null = Some(group);
                Ok(group)
            }
        }
    }

    pub fn is_null(&self, group: u32) -> bool {
        self.null == Some(group)
    }

    pub fn remove(&mut self, group: u32, shards: &mut Shards) -> bool {
        if self.null == Some(group) {
            self.null = None;
            return true;
        }
        shards.remove(self.arena.hash(group), group) && self.arena.free(group)
    }

    pub fn column(&self, data_type: &DataType, groups: &[u32]) -> Result<ArrayRef, StateError> {
        let length: usize = groups.iter().map(|group| self.arena.get(*group).len()).sum();
        if i32::try_from(length).is_err() {
            return Err(StateError::TooLarge("the keys of one batch hold more than 2 GiB"));
        }
        let mut offsets = Vec::with_capacity(groups.len() + 1);
        let mut bytes = Vec::with_capacity(length);
        offsets.push(0i32);
        for group in groups {
            bytes.extend_from_slice(self.arena.get(*group));
            offsets.push(bytes.len() as i32);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let null = self.null.filter(|null| groups.contains(null));
        let nulls = null.map(|null| NullBuffer::new(BooleanBuffer::collect_bool(groups.len(), |i| groups[i] != null)));
        let bytes = Buffer::from_vec(bytes);
        Ok(match data_type {
            DataType::Utf8 => Arc::new(StringArray::try_new(offsets, bytes, nulls).doing("giving keys back")?),
            _ => Arc::new(BinaryArray::try_new(offsets, bytes, nulls).doing("giving keys back")?),
        })
    }
}

/// Any other key columns, in Arrow's row format. Only in memory: files hold the columns.
#[derive(Debug)]
pub(crate) struct RowKeys {
    pub arena: Arena,
    converter: RowConverter,
    batch: Rows,
}

impl RowKeys {
    pub fn new(types: &[DataType]) -> Result<RowKeys, StateError> {
        let fields = types.iter().cloned().map(SortField::new).collect();
        let converter = RowConverter::new(fields).doing("preparing the key columns")?;
        Ok(RowKeys { arena: Arena::default(), batch: converter.empty_rows(0, 0), converter })
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
        let columns = keys
            .iter()
            .zip(types)
            .enumerate()
            .map(|(i, (column, data_type))| canonical_column(column, data_type, &|| format!("key column {i}")).map(canonical_floats));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        self.batch.clear();
        self.converter.append(&mut self.batch, &columns).doing("encoding keys")?;
        for row in &self.batch {
            let key = row.data();
            groups.push(append_arena_group(&mut self.arena, shards, ids, key, hash_bytes(key), insert)?);
        }
        Ok(())
    }

    pub fn columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        let parser = self.converter.parser();
        self.converter.convert_rows(groups.iter().map(|group| parser.parse(self.arena.get(*group)))).doing("giving keys back")
    }
}

fn canonical_floats(column: ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float32 => {
            let floats = column.as_primitive::<Float32Type>();
            Arc::new(floats.unary::<_, Float32Type>(|v| canonical_f64(f64::from(v)) as f32))
        }
        DataType::Float64 => Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical_f64)),
        _ => column,
    }
}
