//! From key columns to dense group ids.

mod arena;
mod fixed;
mod shards;

use self::arena::{Arena, ByteKeys, RowKeys};
use self::fixed::Fixed;
use self::shards::Shards;
use super::error::StateError;
use super::slots::hash_columns;
use super::types::{canonical_type, check_type, type_name};
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

/// Stands for "no such group" in the answers of [`GroupIndex::find`].
pub const NO_GROUP: u32 = u32::MAX;

/// Maps the values of one or more key columns to dense group ids: 0, 1, 2, ...
///
/// Keys are kept columnar and without an allocation of their own:
/// * key columns that fit 16 bytes together (numbers, dates, timestamps, decimals, booleans) are packed into one `u64` or `u128`;
/// * a single text or byte string is kept as its bytes in one arena;
/// * everything else in Arrow's row format, in an arena.
///
/// The ids of removed groups are used again. NULL equals NULL. -0.0 equals 0.0 and NaN equals NaN.
/// The hash table is split into shards when it grows, so that no single insert pays for rehashing millions of keys.
#[derive(Debug)]
pub struct GroupIndex {
    types: Vec<DataType>,
    keys: Keys,
    shards: Shards,
    ids: Ids,
}

#[derive(Debug)]
enum Keys {
    Narrow(Fixed<u64>),
    Wide(Fixed<u128>),
    Bytes(ByteKeys),
    Rows(Box<RowKeys>),
}

/// Hands out group ids.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    next: u32,
    free: Vec<u32>,
}

impl Ids {
    /// The id for a new group, and whether it was in use before.
    #[inline]
    fn take(&mut self) -> Result<(u32, bool), StateError> {
        if let Some(id) = self.free.pop() {
            return Ok((id, true));
        }
        if self.next == NO_GROUP {
            return Err(StateError::TooLarge("a subtask holds 2^32 - 1 groups in one namespace"));
        }
        self.next += 1;
        Ok((self.next - 1, false))
    }
}

impl GroupIndex {
    /// An empty index over key columns of these types (at least one); they are made canonical.
    pub fn new(types: &[DataType]) -> Result<GroupIndex, StateError> {
        let types: Vec<DataType> = types.iter().map(canonical_type).collect();
        for data_type in &types {
            // Refuses, before any row comes, what has no stable hash.
            hash_columns(&[arrow::array::new_empty_array(data_type)], &mut Vec::new())?;
        }
        let keys = match fixed::layout(&types) {
            Some((fields, 0..=8)) => Keys::Narrow(Fixed::new(fields)),
            Some((fields, _)) => Keys::Wide(Fixed::new(fields)),
            None => match types.as_slice() {
                [DataType::Utf8 | DataType::Binary] => Keys::Bytes(ByteKeys::default()),
                _ => Keys::Rows(Box::new(RowKeys::new(&types)?)),
            },
        };
        Ok(GroupIndex { types, keys, shards: Shards::default(), ids: Ids::default() })
    }

    /// The (canonical) types of the key columns.
    pub fn types(&self) -> &[DataType] {
        &self.types
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.ids.next as usize - self.ids.free.len()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids are below this.
    pub fn bound(&self) -> usize {
        self.ids.next as usize
    }

    /// The ids in use, ascending.
    pub fn groups(&self) -> Vec<u32> {
        let mut free = super::bits::Bits::default();
        free.resize(self.bound());
        self.ids.free.iter().for_each(|&id| _ = free.set(id));
        (0..self.ids.next).filter(|&id| !free.get(id)).collect()
    }

    /// The group of each row, created where there is none. `groups` is overwritten.
    ///
    /// `hashes` are those of [`hash_columns`] over `keys`.
    pub fn find_or_insert(&mut self, keys: &[ArrayRef], hashes: &[u64], groups: &mut Vec<u32>) -> Result<(), StateError> {
        self.resolve(keys, hashes, true, groups)
    }

    /// The group of each row, or [`NO_GROUP`]. `groups` is overwritten. Takes `&mut self` for its scratch space only.
    pub fn find(&mut self, keys: &[ArrayRef], hashes: &[u64], groups: &mut Vec<u32>) -> Result<(), StateError> {
        self.resolve(keys, hashes, false, groups)
    }

    fn resolve(&mut self, keys: &[ArrayRef], hashes: &[u64], insert: bool, groups: &mut Vec<u32>) -> Result<(), StateError> {
        groups.clear();
        let rows = keys.first().map_or(0, |column| column.len());
        if keys.len() != self.types.len() || hashes.len() != rows || keys.iter().any(|column| column.len() != rows) {
            return Err(StateError::ColumnType {
                what: "key columns".into(),
                expected: format!("{} of {rows} rows with as many hashes", self.types.len()),
                found: format!("{} with {} hashes", keys.len(), hashes.len()),
            });
        }
        for (i, (column, expected)) in keys.iter().zip(&self.types).enumerate() {
            check_type(column, expected, &|| format!("key column {i}"))?;
        }
        groups.reserve(rows);
        let GroupIndex { types, keys: store, shards, ids } = self;
        match store {
            Keys::Narrow(store) => store.resolve(keys, types, insert, shards, ids, groups)?,
            Keys::Wide(store) => store.resolve(keys, types, insert, shards, ids, groups)?,
            Keys::Bytes(store) => store.resolve(&keys[0], hashes, insert, shards, ids, groups)?,
            Keys::Rows(store) => store.resolve(keys, types, insert, shards, ids, groups)?,
        }
        if shards.should_split() {
            match store {
                Keys::Narrow(store) => shards.split(|id| store.hash(id)),
                Keys::Wide(store) => shards.split(|id| store.hash(id)),
                Keys::Bytes(store) => shards.split(|id| store.arena.hash(id)),
                Keys::Rows(store) => shards.split(|id| store.arena.hash(id)),
            }
        }
        Ok(())
    }

    /// The keys of these groups, one array per key column, in canonical types.
    pub fn keys(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        match &self.keys {
            Keys::Narrow(store) => store.columns(&self.types, groups),
            Keys::Wide(store) => store.columns(&self.types, groups),
            Keys::Bytes(store) => store.column(&self.types[0], groups).map(|column| vec![column]),
            Keys::Rows(store) => store.columns(groups),
        }
    }

    /// Whether this id is in use.
    pub fn contains(&self, group: u32) -> bool {
        let hash = match &self.keys {
            _ if group >= self.ids.next => return false,
            Keys::Narrow(store) => store.hash(group),
            Keys::Wide(store) => store.hash(group),
            Keys::Bytes(store) if store.is_null(group) => return true,
            Keys::Bytes(store) => store.arena.hash(group),
            Keys::Rows(store) => store.arena.hash(group),
        };
        self.shards.contains(hash, group)
    }

    /// Forgets a group; its id will be used again. Unknown and already removed ids are ignored (false).
    pub fn remove(&mut self, group: u32) -> bool {
        if group >= self.ids.next {
            return false;
        }
        let removed = match &mut self.keys {
            Keys::Narrow(store) => self.shards.remove(store.hash(group), group),
            Keys::Wide(store) => self.shards.remove(store.hash(group), group),
            Keys::Bytes(store) => store.remove(group, &mut self.shards),
            Keys::Rows(store) => self.shards.remove(store.arena.hash(group), group) && store.arena.free(group),
        };
        if removed {
            self.ids.free.push(group);
        }
        removed
    }

    /// Memory that the keys and the hash table take.
    pub fn memory_bytes(&self) -> usize {
        let keys = match &self.keys {
            Keys::Narrow(store) => store.memory_bytes(),
            Keys::Wide(store) => store.memory_bytes(),
            Keys::Bytes(store) => store.arena.memory_bytes(),
            Keys::Rows(store) => store.arena.memory_bytes(),
        };
        keys + self.shards.memory_bytes() + self.ids.free.capacity() * 4
    }

    /// The key of one group as text, for messages.
    pub fn describe(&self, group: u32) -> String {
        let Ok(columns) = self.keys(&[group]) else { return "?".into() };
        let texts = columns
            .iter()
            .zip(&self.types)
            .map(|(column, data_type)| arrow::util::display::array_value_to_string(column, 0).unwrap_or_else(|_| type_name(data_type)));
        texts.collect::<Vec<_>>().join(", ")
    }
}

/// Appends the group found under `hash` by `equal`, or a new one that `store` has taken in.
#[inline]
pub(crate) fn append_arena_group(
    arena: &mut Arena,
    shards: &mut Shards,
    ids: &mut Ids,
    key: &[u8],
    hash: u64,
    insert: bool,
) -> Result<u32, StateError> {
    let table = shards.table(hash);
    if let Some(&group) = table.find(hash, |&group| arena.get(group) == key) {
        return Ok(group);
    }
    if !insert {
        return Ok(NO_GROUP);
    }
    let (group, _) = ids.take()?;
    arena.set(group, key);
    table.insert_unique(hash, group, |&group| arena.hash(group));
    Ok(group)
}
