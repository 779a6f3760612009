//! SUM.

use super::{Accumulator, input, state_column};
use crate::state::bits::Bits;
use crate::state::error::{Doing, StateError};
use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::*;
use std::sync::Arc;

/// A type in which sums are kept.
pub(crate) trait SumType: ArrowPrimitiveType {
    /// Its name in messages.
    const NAME: &'static str;
    /// The sum, if it is in range.
    fn add(a: Self::Native, b: Self::Native) -> Option<Self::Native>;
}

impl SumType for Int64Type {
    const NAME: &'static str = "BIGINT";
    #[inline]
    fn add(a: i64, b: i64) -> Option<i64> {
        a.checked_add(b)
    }
}

impl SumType for Float64Type {
    const NAME: &'static str = "DOUBLE";
    #[inline]
    fn add(a: f64, b: f64) -> Option<f64> {
        Some(a + b)
    }
}

impl SumType for Decimal128Type {
    const NAME: &'static str = "DECIMAL(38)";
    // 38 digits are fewer than 128 bits could hold.
    #[inline]
    fn add(a: i128, b: i128) -> Option<i128> {
        a.checked_add(b).filter(|sum| sum.unsigned_abs() < 10u128.pow(38))
    }
}

/// Sums in type `T`, into which inputs are widened. NULL until there is an input.
#[derive(Debug)]
pub(crate) struct Sum<T: SumType> {
    name: String,
    data_type: DataType,
    sums: Vec<T::Native>,
    seen: Bits,
}

impl<T: SumType> Sum<T> {
    /// `data_type` is `T`'s, with the scale of the input.
    pub fn new(name: String, data_type: DataType) -> Sum<T> {
        Sum { name, data_type, sums: Vec::new(), seen: Bits::default() }
    }

    /// The sum, if there was any input.
    pub fn get(&self, group: u32) -> Option<T::Native> {
        self.seen.get(group).then(|| self.sums[group as usize])
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn add(&mut self, groups: &[u32], values: &PrimitiveArray<T>) -> Result<(), StateError> {
        let (sums, seen) = (&mut self.sums, &mut self.seen);
        let mut add = |group: u32, value: T::Native| {
            let sum = &mut sums[group as usize];
            *sum = T::add(*sum, value)?;
            seen.set(group);
            Some(())
        };
        let done = match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => groups.iter().zip(values.values()).try_for_each(|(group, value)| add(*group, *value)),
            Some(_) => groups.iter().zip(values).try_for_each(|(group, value)| value.map_or(Some(()), |value| add(*group, value))),
        };
        done.ok_or_else(|| StateError::Overflow { aggregate: self.name.clone(), data_type: T::NAME })
    }

    /// `column` in type `T`; integers and floats are widened.
    fn widen(&self, column: &ArrayRef) -> Result<PrimitiveArray<T>, StateError> {
        if let Some(values) = column.as_primitive_opt::<T>() {
            return Ok(values.clone());
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        Ok(cast_with_options(column, &self.data_type, &options).doing("widening the input of SUM or AVG")?.as_primitive::<T>().clone())
    }
}

impl<T: SumType> Accumulator for Sum<T> {
    fn resize(&mut self, n: usize) {
        self.sums.resize(n.max(self.sums.len()), T::Native::default());
        self.seen.resize(n);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let values = self.widen(input(column, &self.name)?)?;
        self.add(groups, &values)
    }

    fn output_type(&self) -> DataType {
        self.data_type.clone()
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        let values = groups.iter().map(|group| self.sums[*group as usize]);
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
        let sums = state_column(columns, 0, &self.data_type, &self.name)?.as_primitive::<T>();
        for (group, sum) in groups.iter().zip(sums) {
            self.sums[*group as usize] = sum.unwrap_or_default();
            match sum {
                Some(_) => self.seen.set(*group),
                None => self.seen.clear(*group),
            };
        }
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let sums = state_column(columns, 0, &self.data_type, &self.name)?.as_primitive::<T>().clone();
        self.add(groups, &sums)
    }

    fn reset(&mut self, group: u32) {
        self.sums[group as usize] = T::Native::default();
        self.seen.clear(group);
    }

    fn memory_bytes(&self) -> usize {
        self.sums.capacity() * size_of::<T::Native>() + self.seen.memory_bytes()
    }
}
