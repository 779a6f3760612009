//! COUNT.

use super::{Accumulator, input, state_column};
use crate::state::error::StateError;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use std::sync::Arc;

/// Rows, or the non-NULL rows of a column.
#[derive(Debug, Default)]
pub(crate) struct Count {
    counts: Vec<i64>,
    of_column: bool,
}

impl Count {
    pub fn of_column() -> Count {
        Count { counts: Vec::new(), of_column: true }
    }
}

impl Accumulator for Count {
    fn resize(&mut self, n: usize) {
        self.counts.resize(n.max(self.counts.len()), 0);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let nulls = match self.of_column {
            true => input(column, "COUNT")?.logical_nulls().filter(|nulls| nulls.null_count() > 0),
            false => None,
        };
        match nulls {
            None => groups.iter().for_each(|group| self.counts[*group as usize] += 1),
            Some(nulls) => {
                groups.iter().zip(&nulls).for_each(|(group, valid)| self.counts[*group as usize] += i64::from(valid));
            }
        }
        Ok(())
    }

    fn output_type(&self) -> DataType {
        DataType::Int64
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        Ok(Arc::new(Int64Array::from_iter_values(groups.iter().map(|group| self.counts[*group as usize]))))
    }

    fn state_types(&self) -> Vec<DataType> {
        vec![DataType::Int64]
    }

    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        Ok(vec![self.output(groups)?])
    }

    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let counts = state_column(columns, 0, &DataType::Int64, "COUNT")?.as_primitive::<Int64Type>();
        groups.iter().zip(counts).for_each(|(group, count)| self.counts[*group as usize] = count.unwrap_or(0));
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        let counts = state_column(columns, 0, &DataType::Int64, "COUNT")?.as_primitive::<Int64Type>();
        groups.iter().zip(counts).for_each(|(group, count)| self.counts[*group as usize] += count.unwrap_or(0));
        Ok(())
    }

    fn reset(&mut self, group: u32) {
        self.counts[group as usize] = 0;
    }

    fn memory_bytes(&self) -> usize {
        self.counts.capacity() * 8
    }
}
