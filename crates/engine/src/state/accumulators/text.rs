//! MIN, MAX, FIRST_VALUE and LAST_VALUE of texts and byte strings. One allocation per group: slower than numbers.

use super::{Accumulator, AggregateKind, input, state_column};
use crate::state::error::{Doing, StateError};
use crate::state::types::canonical_column;
use arrow::array::{ArrayRef, AsArray, BinaryArray, BinaryBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct TextExtreme {
    kind: AggregateKind,
    name: String,
    data_type: DataType,
    values: Vec<Option<Box<[u8]>>>,
    bytes: usize,
}

impl TextExtreme {
    /// `data_type` is `Utf8` or `Binary`.
    pub fn new(kind: AggregateKind, name: String, data_type: DataType) -> TextExtreme {
        TextExtreme { kind, name, data_type, values: Vec::new(), bytes: 0 }
    }

    fn binary(column: &ArrayRef) -> Result<BinaryArray, StateError> {
        Ok(cast(column, &DataType::Binary).doing("reading texts")?.as_binary::<i32>().clone())
    }

    fn set(&mut self, group: u32, value: Option<&[u8]>) {
        let kept = &mut self.values[group as usize];
        self.bytes -= kept.as_ref().map_or(0, |old| old.len());
        self.bytes += value.map_or(0, <[u8]>::len);
        *kept = value.map(Box::from);
    }

    fn add(&mut self, groups: &[u32], column: &ArrayRef) -> Result<(), StateError> {
        for (group, value) in groups.iter().zip(&Self::binary(column)?) {
            let Some(value) = value else { continue };
            let better = match (&self.values[*group as usize], self.kind) {
                (None, _) => true,
                (Some(kept), AggregateKind::Min) => *value < **kept,
                (Some(kept), AggregateKind::Max) => *value > **kept,
                (Some(_), kind) => kind != AggregateKind::First,
            };
            if better {
                self.set(*group, Some(value));
            }
        }
        Ok(())
    }
}

impl Accumulator for TextExtreme {
    fn resize(&mut self, n: usize) {
        self.values.resize_with(n.max(self.values.len()), || None);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let column = canonical_column(input(column, &self.name)?, &self.data_type, &|| format!("input of {}", self.name))?;
        self.add(groups, &column)
    }

    fn output_type(&self) -> DataType {
        self.data_type.clone()
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        let value = |group: &u32| self.values[*group as usize].as_deref();
        let length: usize = groups.iter().filter_map(value).map(<[u8]>::len).sum();
        if i32::try_from(length).is_err() {
            return Err(StateError::TooLarge("the texts of one batch hold more than 2 GiB"));
        }
        let mut builder = BinaryBuilder::with_capacity(groups.len(), length);
        groups.iter().for_each(|group| builder.append_option(value(group)));
        let column: ArrayRef = Arc::new(builder.finish());
        cast(&column, &self.data_type).doing("giving texts back")
    }

    fn state_types(&self) -> Vec<DataType> {
        vec![self.data_type.clone()]
    }

    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.output(groups)?])
    }

    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let column = Self::binary(state_column(columns, 0, &self.data_type, &self.name)?)?;
        groups.iter().zip(&column).for_each(|(group, value)| self.set(*group, value));
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let column = state_column(columns, 0, &self.data_type, &self.name)?.clone();
        self.add(groups, &column)
    }

    fn reset(&mut self, group: u32) {
        self.set(group, None);
    }

    fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<Option<Box<[u8]>>>() + self.bytes
    }
}
