//! Keyed state: what an operator remembers per namespace and key.

use super::error::{Doing, StateError};
use super::namespace::{CHUNK, Namespace};
use super::schema::{DELETED, NAMESPACE, SLOT, StateSchema};
use super::slots::hash_columns;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take_arrays;
use arrow::datatypes::{Int64Type, SchemaRef, UInt16Type};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The state of one subtask of a keyed operator: groups by namespace (the start of a window; 0 for a plain aggregate) and key.
///
/// Everything is columnar. Changes are tracked per group, so that [`freeze`](KeyedState::freeze) copies only these.
///
/// **A namespace that is dropped must stay dead.** Dropping writes no tombstones (a fired window of a million keys costs nothing); instead the
/// operator tells [`freeze`](KeyedState::freeze) which namespaces can never live again, and at restore leaves them out by the same rule,
/// from the restored watermark. A single group is removed with [`remove`](KeyedState::remove), which does leave a tombstone.
pub struct KeyedState {
    schema: Arc<StateSchema>,
    frozen_schema: SchemaRef,
    namespaces: BTreeMap<i64, Namespace>,
    /// Namespaces with changes.
    dirty: BTreeSet<i64>,
}

/// The changes of one checkpoint, copied out of the live state.
#[derive(Debug, Clone, Default)]
pub struct Frozen {
    /// Columns: `__namespace` (Int64), `__deleted` (Boolean), the keys, the state columns of the accumulators. The slots are
    /// computed and sorted by later, off the stream's path.
    pub batches: Vec<RecordBatch>,
    /// All namespaces below this are dead and never come again; `None` if none is.
    pub min_live_namespace: Option<i64>,
}

impl Frozen {
    /// Number of changed and removed groups.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

impl KeyedState {
    /// Empty state.
    pub fn new(schema: Arc<StateSchema>) -> Result<KeyedState, StateError> {
        Namespace::new(&schema)?; // Refuses unsupported types now, not with the first row.
        let frozen_schema = schema.frozen_schema()?;
        Ok(KeyedState { schema, frozen_schema, namespaces: BTreeMap::new(), dirty: BTreeSet::new() })
    }

    /// The schema it was made with.
    pub fn schema(&self) -> &Arc<StateSchema> {
        &self.schema
    }

    /// Adds rows to a namespace: `keys` are the key columns, `hashes` those of [`hash_columns`] over them, `inputs` the columns that the
    /// aggregates refer to by index. `groups` receives the group of each row. After an error the state is unusable.
    pub fn update(
        &mut self,
        namespace: i64,
        keys: &[ArrayRef],
        hashes: &[u64],
        inputs: &[ArrayRef],
        groups: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        let space = entry(&mut self.namespaces, &self.schema, namespace)?;
        space.groups_of(keys, hashes, groups)?;
        if !groups.is_empty() {
            if !space.has_changes() {
                self.dirty.insert(namespace);
            }
            space.update(&self.schema, groups, inputs)?;
        }
        Ok(())
    }

    /// The group of each row, or [`NO_GROUP`](super::NO_GROUP): looks only. `groups` is overwritten.
    pub fn find(&mut self, namespace: i64, keys: &[ArrayRef], hashes: &[u64], groups: &mut Vec<u32>) -> Result<(), StateError> {
        match self.namespaces.get_mut(&namespace) {
            Some(space) => space.index.find(keys, hashes, groups),
            None => {
                groups.clear();
                groups.resize(hashes.len(), super::NO_GROUP);
                Ok(())
            }
        }
    }

    /// Removes groups of a namespace, for example when their time to live is over. Ids that are not in use are ignored.
    pub fn remove(&mut self, namespace: i64, groups: &[u32]) -> Result<(), StateError> {
        let Some(space) = self.namespaces.get_mut(&namespace) else { return Ok(()) };
        space.remove(groups)?;
        if space.has_changes() {
            self.dirty.insert(namespace);
        }
        Ok(())
    }

    /// The live namespaces in order.
    pub fn namespaces(&self) -> impl Iterator<Item = i64> {
        self.namespaces.keys().copied()
    }

    /// The groups of a namespace, ascending; empty if there is no such namespace.
    pub fn groups(&self, namespace: i64) -> Vec<u32> {
        self.namespaces.get(&namespace).map_or_else(Vec::new, |space| space.index.groups())
    }

    /// The keys of these groups, one array per key column.
    pub fn keys(&self, namespace: i64, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.space(namespace)?.index.keys(groups)
    }

    /// The results of these groups, one array per aggregate.
    pub fn results(&self, namespace: i64, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.space(namespace)?.results(groups)
    }

    /// Forgets a namespace and frees its memory at once. It must not come again: see [`KeyedState`].
    pub fn drop_namespace(&mut self, namespace: i64) -> bool {
        self.dirty.remove(&namespace);
        self.namespaces.remove(&namespace).is_some()
    }

    /// Merges namespaces, in this order: the panes of a sliding window. Those that do not exist count as empty.
    pub fn combine(&self, namespaces: impl IntoIterator<Item = i64>) -> Result<Combined, StateError> {
        let mut all = Namespace::new(&self.schema)?;
        let (mut hashes, mut groups) = (Vec::new(), Vec::new());
        for space in namespaces.into_iter().filter_map(|namespace| self.namespaces.get(&namespace)) {
            for chunk in space.index.groups().chunks(CHUNK) {
                let keys = space.index.keys(chunk)?;
                hash_columns(&keys, &mut hashes)?;
                all.groups_of(&keys, &hashes, &mut groups)?;
                all.with_states(&space.state_columns(chunk)?, |accumulator, columns| accumulator.merge(&groups, columns))?;
            }
        }
        Ok(Combined(all))
    }

    /// Copies what changed since the last call; the time it takes follows the number of changed groups. Everything else about the
    /// snapshot happens on the copy. `min_live_namespace`: all namespaces below are dead for ever (`None`: none is).
    pub fn freeze(&mut self, min_live_namespace: Option<i64>) -> Result<Frozen, StateError> {
        let mut batches = Vec::new();
        for namespace in std::mem::take(&mut self.dirty) {
            let Some(space) = self.namespaces.get_mut(&namespace) else { continue };
            let (changed, tombstones) = space.take_changes();
            let key_columns = self.schema.keys.len();
            // Tombstones first: a key that came again is live.
            for keys in tombstones {
                let rows = keys.first().map_or(0, |column| column.len());
                let fields = &self.frozen_schema.fields()[2 + key_columns..];
                let states = fields.iter().map(|field| new_null_array(field.data_type(), rows)).collect();
                batches.push(frozen_batch(&self.frozen_schema, namespace, true, rows, keys, states)?);
            }
            for chunk in changed.chunks(CHUNK) {
                let (keys, states) = (space.index.keys(chunk)?, space.state_columns(chunk)?);
                batches.push(frozen_batch(&self.frozen_schema, namespace, false, chunk.len(), keys, states)?);
            }
            if space.index.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
        Ok(Frozen { batches, min_live_namespace })
    }

    /// Takes in rows of a snapshot file, in order: later rows override earlier ones. Rows outside of `slots` are skipped, and so are namespaces
    /// that `keep_namespace` declines: it must decline all that were dead when the checkpoint was taken, as the restored watermark tells.
    /// What is restored does not count as changed.
    pub fn restore(
        &mut self,
        batch: &RecordBatch,
        slots: &RangeInclusive<u16>,
        keep_namespace: impl Fn(i64) -> bool,
    ) -> Result<(), StateError> {
        let parts = file_columns(batch)?;
        let mut rows_of: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        let mut last: Option<(i64, Vec<u32>)> = None; // Usually all rows have one namespace.
        for (row, (namespace, slot)) in parts.namespaces.iter().zip(parts.slots).enumerate() {
            if !slots.contains(slot) {
                continue;
            }
            if last.as_ref().is_none_or(|(current, _)| current != namespace) {
                let rows = rows_of.remove(namespace).unwrap_or_default();
                rows_of.extend(last.replace((*namespace, rows)));
            }
            last.iter_mut().for_each(|(_, rows)| rows.push(row as u32));
        }
        rows_of.extend(last);
        for (namespace, rows) in rows_of {
            if !rows.is_empty() && keep_namespace(namespace) {
                self.restore_rows(namespace, &parts, rows, batch)?;
            }
        }
        Ok(())
    }

    fn restore_rows(&mut self, namespace: i64, parts: &FileColumns<'_>, rows: Vec<u32>, batch: &RecordBatch) -> Result<(), StateError> {
        let space = entry(&mut self.namespaces, &self.schema, namespace)?;
        let any_deleted = rows.iter().any(|row| parts.deleted.value(*row as usize));
        let data = match rows.len() == batch.num_rows() {
            true => parts.data.to_vec(),
            false => take_arrays(parts.data, &UInt32Array::from(rows.clone()), None).doing("selecting rows to restore")?,
        };
        let (keys, states) = data.split_at_checked(self.schema.keys.len()).unwrap_or((&data, &[]));
        let (mut hashes, mut groups) = (Vec::new(), Vec::new());
        hash_columns(keys, &mut hashes)?;
        space.groups_of(keys, &hashes, &mut groups)?;
        space.with_states(states, |accumulator, columns| accumulator.restore(&groups, columns))?;
        if any_deleted {
            // The last row of a group decides.
            let mut last = BTreeMap::new();
            groups.iter().zip(&rows).for_each(|(group, row)| _ = last.insert(*group, parts.deleted.value(*row as usize)));
            last.into_iter().filter(|(_, deleted)| *deleted).for_each(|(group, _)| space.forget(group));
        }
        if space.index.is_empty() {
            self.namespaces.remove(&namespace);
        }
        Ok(())
    }

    /// Number of groups in all namespaces.
    pub fn len(&self) -> usize {
        self.namespaces.values().map(|space| space.index.len()).sum()
    }

    /// Whether there is no group.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory in use (reserved but untouched capacity included).
    pub fn memory_bytes(&self) -> usize {
        self.namespaces.values().map(Namespace::memory_bytes).sum()
    }

    fn space(&self, namespace: i64) -> Result<&Namespace, StateError> {
        self.namespaces.get(&namespace).ok_or(StateError::NoNamespace { namespace })
    }
}

fn entry<'a>(namespaces: &'a mut BTreeMap<i64, Namespace>, schema: &StateSchema, namespace: i64) -> Result<&'a mut Namespace, StateError> {
    use std::collections::btree_map::Entry;
    Ok(match namespaces.entry(namespace) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(Namespace::new(schema)?),
    })
}

fn frozen_batch(
    schema: &SchemaRef,
    namespace: i64,
    deleted: bool,
    rows: usize,
    keys: Vec<ArrayRef>,
    states: Vec<ArrayRef>,
) -> Result<RecordBatch, StateError> {
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from_value(namespace, rows)), Arc::new(BooleanArray::from(vec![deleted; rows]))];
    columns.extend(keys);
    columns.extend(states);
    RecordBatch::try_new(schema.clone(), columns).doing("freezing state")
}

/// The columns of a batch of a snapshot file.
pub(crate) struct FileColumns<'a> {
    pub namespaces: &'a [i64],
    pub slots: &'a [u16],
    pub deleted: &'a BooleanArray,
    /// Keys and state columns.
    pub data: &'a [ArrayRef],
}

/// Takes a batch of a snapshot file apart: `__namespace`, `__slot`, `__deleted`, keys, state columns.
pub(crate) fn file_columns(batch: &RecordBatch) -> Result<FileColumns<'_>, StateError> {
    let schema = batch.schema_ref();
    let named = |i: usize, name: &str| schema.fields().get(i).is_some_and(|field| field.name() == name);
    let columns = match batch.columns() {
        [namespaces, slots, deleted, data @ ..] if named(0, NAMESPACE) && named(1, SLOT) && named(2, DELETED) => namespaces
            .as_primitive_opt::<Int64Type>()
            .zip(slots.as_primitive_opt::<UInt16Type>())
            .zip(deleted.as_boolean_opt())
            .map(|((namespaces, slots), deleted)| FileColumns { namespaces: namespaces.values(), slots: slots.values(), deleted, data }),
        _ => None,
    };
    columns.ok_or_else(|| StateError::ColumnType {
        what: "rows of a snapshot file".into(),
        expected: format!("{NAMESPACE}, {SLOT}, {DELETED}, keys, states"),
        found: schema.to_string(),
    })
}

/// Several namespaces merged into one.
pub struct Combined(Namespace);

impl Combined {
    /// The groups, ascending. Their ids are not those of the namespaces.
    pub fn groups(&self) -> Vec<u32> {
        self.0.index.groups()
    }

    /// The keys of these groups, one array per key column.
    pub fn keys(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.0.index.keys(groups)
    }

    /// The results of these groups, one array per aggregate.
    pub fn results(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.0.results(groups)
    }
}
