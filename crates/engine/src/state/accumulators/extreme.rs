//! MIN, MAX, FIRST_VALUE and LAST_VALUE of fixed-width types.

use super::{Accumulator, AggregateKind, input, state_column};
use crate::state::bits::Bits;
use crate::state::error::{Doing, StateError};
use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::*;
use std::sync::Arc;

/// Keeps one of the values it has seen.
#[derive(Debug)]
pub(crate) struct Extreme<T: ArrowPrimitiveType> {
    kind: AggregateKind,
    name: String,
    data_type: DataType,
    values: Vec<T::Native>,
    seen: Bits,
}

impl<T: ArrowPrimitiveType> Extreme<T> {
    /// `kind` is one of MIN, MAX, FIRST_VALUE, LAST_VALUE.
    pub fn new(kind: AggregateKind, name: String, data_type: DataType) -> Extreme<T> {
        Extreme { kind, name, data_type, values: Vec::new(), seen: Bits::default() }
    }

    fn add(&mut self, groups: &[u32], values: &PrimitiveArray<T>) {
        match self.kind {
            AggregateKind::Min => self.add_if(groups, values, |new, old| new.is_lt(old)),
            AggregateKind::Max => self.add_if(groups, values, |new, old| new.is_gt(old)),
            AggregateKind::First => self.add_if(groups, values, |_, _| false),
            _ => self.add_if(groups, values, |_, _| true),
        }
    }

    #[inline]
    fn add_if(&mut self, groups: &[u32], values: &PrimitiveArray<T>, better: impl Fn(T::Native, T::Native) -> bool) {
        let (kept, seen) = (&mut self.values, &mut self.seen);
        let mut add = |group: u32, value: T::Native| {
            let kept = &mut kept[group as usize];
            if !seen.set(group) || better(value, *kept) {
                *kept = value;
            }
        };
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => groups.iter().zip(values.values()).for_each(|(group, value)| add(*group, *value)),
            Some(_) => groups.iter().zip(values).for_each(|(group, value)| value.into_iter().for_each(|value| add(*group, value))),
        }
    }
}

impl<T: ArrowPrimitiveType> Accumulator for Extreme<T> {
    fn resize(&mut self, n: usize) {
        self.values.resize(n.max(self.values.len()), T::Native::default());
        self.seen.resize(n);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let column = input(column, &self.name)?;
        let column = crate::state::types::canonical_column(column, &self.data_type, &|| format!("input of {}", self.name))?;
        self.add(groups, column.as_primitive::<T>());
        Ok(())
    }

    fn output_type(&self) -> DataType {
        self.data_type.clone()
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        let values = groups.iter().map(|group| self.values[*group as usize]);
        let values = PrimitiveArray::<T>::new(values.collect::<Vec<_>>().into(), self.seen.validity(groups));
        Ok(Arc::new(values.with_data_type(self.data_type.clone())))
    }

    fn state_types(&self) -> Vec<DataType> {
        vec![self.data_type.clone()]
    }

    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.output(groups)?])
    }

    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let values = state_column(columns, 0, &self.data_type, &self.name)?.as_primitive::<T>();
        for (group, value) in groups.iter().zip(values) {
            self.values[*group as usize] = value.unwrap_or_default();
            match value {
                Some(_) => self.seen.set(*group),
                None => self.seen.clear(*group),
            };
        }
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let values = state_column(columns, 0, &self.data_type, &self.name)?.as_primitive::<T>().clone();
        self.add(groups, &values);
        Ok(())
    }

    fn reset(&mut self, group: u32) {
        self.values[group as usize] = T::Native::default();
        self.seen.clear(group);
    }

    fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>() + self.seen.memory_bytes()
    }
}

/// Booleans, kept as 0 and 1.
#[derive(Debug)]
pub(crate) struct BooleanExtreme(Extreme<UInt8Type>);

impl BooleanExtreme {
    pub fn new(kind: AggregateKind, name: String) -> BooleanExtreme {
        BooleanExtreme(Extreme::new(kind, name, DataType::UInt8))
    }

    fn numbers(&self, column: &ArrayRef, what: &str) -> Result<ArrayRef, StateError> {
        let what = || format!("{what} of {}", self.0.name);
        let column = crate::state::types::canonical_column(column, &DataType::Boolean, &what)?;
        cast(&column, &DataType::UInt8).doing("reading booleans")
    }

    fn number_state(&self, columns: &[ArrayRef]) -> Result<[ArrayRef; 1], StateError> {
        Ok([self.numbers(state_column(columns, 0, &DataType::Boolean, &self.0.name)?, "state")?])
    }
}

impl Accumulator for BooleanExtreme {
    fn resize(&mut self, n: usize) {
        self.0.resize(n);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let numbers = self.numbers(input(column, &self.0.name)?, "input")?;
        self.0.update(groups, Some(&numbers))
    }

    fn output_type(&self) -> DataType {
        DataType::Boolean
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        cast(&self.0.output(groups)?, &DataType::Boolean).doing("giving booleans back")
    }

    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::Boolean]
    }

    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.output(groups)?])
    }

    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let numbers = self.number_state(columns)?;
        self.0.restore(groups, &numbers)
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let numbers = self.number_state(columns)?;
        self.0.merge(groups, &numbers)
    }

    fn reset(&mut self, group: u32) {
        self.0.reset(group);
    }

    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
}
