//! The groups of one namespace: keys, accumulators and what changed since the last checkpoint.

use super::accumulators::Accumulator;
use super::bits::Bits;
use super::error::StateError;
use super::group_index::GroupIndex;
use super::schema::StateSchema;
use super::types::check_type;
use arrow::array::ArrayRef;

/// Rows that are copied at once.
pub(crate) const CHUNK: usize = 1 << 16;

pub(crate) struct Namespace {
    pub index: GroupIndex,
    pub accumulators: Vec<Box<dyn Accumulator>>,
    changed: Bits,
    /// May hold a group that is no longer changed (removed), or twice (its id was used again); `changed` decides.
    changed_list: Vec<u32>,
    /// Keys of removed groups.
    tombstones: Vec<Vec<ArrayRef>>,
}

impl Namespace {
    pub fn new(schema: &StateSchema) -> Result<Namespace, StateError> {
        Ok(Namespace {
            index: GroupIndex::new(&schema.key_types())?,
            accumulators: schema.accumulators()?,
            changed: Bits::default(),
            changed_list: Vec::new(),
            tombstones: Vec::new(),
        })
    }

    /// Finds or makes the groups of these keys, with room for them everywhere.
    pub fn groups_of(&mut self, keys: &[ArrayRef], hashes: &[u64], groups: &mut Vec<u32>) -> Result<(), StateError> {
        let before = self.index.bound();
        self.index.find_or_insert(keys, hashes, groups)?;
        let bound = self.index.bound();
        if bound > before {
            self.accumulators.iter_mut().for_each(|accumulator| accumulator.resize(bound));
            self.changed.resize(bound);
        }
        Ok(())
    }

    /// Adds rows to groups and notes that these changed.
    pub fn update(&mut self, schema: &StateSchema, groups: &[u32], inputs: &[ArrayRef]) -> Result<(), StateError> {
        for (accumulator, spec) in self.accumulators.iter_mut().zip(&schema.aggregates) {
            let input = match &spec.input {
                None => None,
                Some((at, data_type)) => {
                    let column = inputs.get(*at).ok_or_else(|| StateError::ColumnType {
                        what: format!("input of {}", spec.name),
                        expected: format!("column {at}"),
                        found: format!("{} columns", inputs.len()),
                    })?;
                    check_type(column, &super::types::canonical_type(data_type), &|| format!("input of {}", spec.name))?;
                    Some(column)
                }
            };
            accumulator.update(groups, input)?;
        }
        for group in groups {
            if !self.changed.set(*group) {
                self.changed_list.push(*group);
            }
        }
        Ok(())
    }

    /// Forgets groups; those that do not exist are ignored.
    pub fn remove(&mut self, groups: &[u32]) -> Result<(), StateError> {
        let mut live = groups.to_vec();
        live.sort_unstable();
        live.dedup();
        live.retain(|group| self.index.contains(*group));
        if live.is_empty() {
            return Ok(());
        }
        self.tombstones.push(self.index.keys(&live)?);
        live.iter().for_each(|group| self.forget(*group));
        Ok(())
    }

    /// Removes a group without a tombstone.
    pub fn forget(&mut self, group: u32) {
        if self.index.remove(group) {
            self.changed.clear(group);
            self.accumulators.iter_mut().for_each(|accumulator| accumulator.reset(group));
        }
    }

    /// The changed groups and the keys of removed ones since the last call. A key that was removed and came again is in both.
    pub fn take_changes(&mut self) -> (Vec<u32>, Vec<Vec<ArrayRef>>) {
        let changed = &mut self.changed;
        let groups = self.changed_list.drain(..).filter(|group| changed.clear(*group)).collect();
        self.changed_list.shrink_to(CHUNK);
        (groups, std::mem::take(&mut self.tombstones))
    }

    pub fn has_changes(&self) -> bool {
        !self.changed_list.is_empty() || !self.tombstones.is_empty()
    }

    /// All state columns of these groups.
    pub fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        let columns = self.accumulators.iter().map(|accumulator| accumulator.state_columns(groups));
        Ok(columns.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Gives each accumulator its share of `columns`.
    pub fn with_states(
        &mut self,
        columns: &[ArrayRef],
        mut each: impl FnMut(&mut dyn Accumulator, &[ArrayRef]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut at = 0;
        for accumulator in &mut self.accumulators {
            let end = at + accumulator.state_types().len();
            let share = columns.get(at..end).ok_or_else(|| StateError::ColumnType {
                what: "state columns".into(),
                expected: format!("at least {end}"),
                found: columns.len().to_string(),
            })?;
            each(accumulator.as_mut(), share)?;
            at = end;
        }
        Ok(())
    }

    /// The results of these groups, one array per aggregate.
    pub fn results(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        self.accumulators.iter().map(|accumulator| accumulator.output(groups)).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        let accumulators: usize = self.accumulators.iter().map(|accumulator| accumulator.memory_bytes()).sum();
        size_of::<Namespace>() + self.index.memory_bytes() + accumulators + self.changed.memory_bytes() + self.changed_list.capacity() * 4
    }
}
