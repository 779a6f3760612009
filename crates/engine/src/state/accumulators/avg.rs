//! AVG: a sum and a count.

use super::sum::{Sum, SumType};
use super::{Accumulator, input, state_column};
use crate::state::error::StateError;
use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int64Array};
use arrow::datatypes::*;
use std::sync::Arc;

/// The mean of a column. Sums of integers are kept in 128 bits, so that a mean never overflows.
#[derive(Debug)]
pub(crate) struct Avg<T: SumType> {
    sum: Sum<T>,
    counts: Vec<i64>,
    output: fn(&Avg<T>, &[u32]) -> Result<ArrayRef, StateError>,
    output_type: DataType,
}

impl Avg<Float64Type> {
    /// DOUBLE of floats.
    pub fn floats(name: String) -> Avg<Float64Type> {
        let mean = |avg: &Avg<Float64Type>, groups: &[u32]| -> Result<ArrayRef, StateError> {
            let mean = |&group: &u32| Some(avg.sum.get(group)? / avg.counts[group as usize] as f64);
            Ok(Arc::new(groups.iter().map(mean).collect::<Float64Array>()))
        };
        Avg { sum: Sum::new(name, DataType::Float64), counts: Vec::new(), output: mean, output_type: DataType::Float64 }
    }
}

impl Avg<Decimal128Type> {
    /// DOUBLE of integers.
    pub fn integers(name: String) -> Avg<Decimal128Type> {
        let mean = |avg: &Avg<Decimal128Type>, groups: &[u32]| -> Result<ArrayRef, StateError> {
            let mean = |&group: &u32| {
                let (sum, count) = (avg.sum.get(group)?, i128::from(avg.counts[group as usize]));
                // In two parts: a large sum would lose digits as a float.
                Some((sum / count) as f64 + (sum % count) as f64 / count as f64)
            };
            Ok(Arc::new(groups.iter().map(mean).collect::<Float64Array>()))
        };
        let sum = Sum::new(name, DataType::Decimal128(38, 0));
        Avg { sum, counts: Vec::new(), output: mean, output_type: DataType::Float64 }
    }

    /// DECIMAL(38, max(6, scale)) of decimals, rounded half up.
    pub fn decimals(name: String, scale: i8) -> Avg<Decimal128Type> {
        let sum = Sum::new(name, DataType::Decimal128(38, scale));
        Avg { sum, counts: Vec::new(), output: decimal_mean, output_type: DataType::Decimal128(38, scale.max(6)) }
    }
}

fn decimal_mean(avg: &Avg<Decimal128Type>, groups: &[u32]) -> Result<ArrayRef, StateError> {
    let scale = |data_type: &DataType| if let DataType::Decimal128(_, scale) = data_type { i32::from(*scale) } else { 0 };
    let more = scale(&avg.output_type) - avg.sum.state_types().first().map_or(0, scale);
    let factor = 10i128.checked_pow(more.unsigned_abs()).unwrap_or(i128::MAX);
    let mean = |group: &u32| {
        let Some(sum) = avg.sum.get(*group) else { return Ok(None) };
        let count = i128::from(avg.counts[*group as usize]);
        let mean = sum.checked_mul(factor).map(|sum| {
            let (whole, rest) = (sum / count, sum % count);
            whole + if rest.abs() * 2 >= count { sum.signum() } else { 0 }
        });
        let mean = mean.filter(|mean| mean.unsigned_abs() < 10u128.pow(38));
        mean.map(Some).ok_or_else(|| StateError::Overflow { aggregate: avg.sum.name().to_owned(), data_type: "DECIMAL(38)" })
    };
    let means = groups.iter().map(mean).collect::<Result<Decimal128Array, _>>()?;
    Ok(Arc::new(means.with_data_type(avg.output_type.clone())))
}

impl<T: SumType> Accumulator for Avg<T> {
    fn resize(&mut self, n: usize) {
        self.sum.resize(n);
        self.counts.resize(n.max(self.counts.len()), 0);
    }

    fn update(&mut self, groups: &[u32], column: Option<&ArrayRef>) -> Result<(), StateError> {
        let column = input(column, self.sum.name())?;
        self.sum.update(groups, Some(column))?;
        match column.logical_nulls().filter(|nulls| nulls.null_count() > 0) {
            None => groups.iter().for_each(|group| self.counts[*group as usize] += 1),
            Some(nulls) => groups.iter().zip(&nulls).for_each(|(group, valid)| self.counts[*group as usize] += i64::from(valid)),
        }
        Ok(())
    }

    fn output_type(&self) -> DataType {
        self.output_type.clone()
    }

    fn output(&self, groups: &[u32]) -> Result<ArrayRef, StateError> {
        (self.output)(self, groups)
    }

    fn state_types(&self) -> Vec<DataType> {
        let mut types = self.sum.state_types();
        types.push(DataType::Int64);
        types
    }

    fn state_columns(&self, groups: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        let mut columns = self.sum.state_columns(groups)?;
        columns.push(Arc::new(Int64Array::from_iter_values(groups.iter().map(|group| self.counts[*group as usize]))));
        Ok(columns)
    }

    fn restore(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        self.sum.restore(groups, columns)?;
        let counts = state_column(columns, 1, &DataType::Int64, self.sum.name())?.as_primitive::<Int64Type>();
        groups.iter().zip(counts).for_each(|(group, count)| self.counts[*group as usize] = count.unwrap_or(0));
        Ok(())
    }

    fn merge(&mut self, groups: &[u32], columns: &[ArrayRef]) -> Result<(), StateError> {
        self.sum.merge(groups, columns)?;
        let counts = state_column(columns, 1, &DataType::Int64, self.sum.name())?.as_primitive::<Int64Type>();
        groups.iter().zip(counts).for_each(|(group, count)| self.counts[*group as usize] += count.unwrap_or(0));
        Ok(())
    }

    fn reset(&mut self, group: u32) {
        self.sum.reset(group);
        self.counts[group as usize] = 0;
    }

    fn memory_bytes(&self) -> usize {
        self.sum.memory_bytes() + self.counts.capacity() * 8
    }
}
