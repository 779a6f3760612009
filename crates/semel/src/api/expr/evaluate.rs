//! Compiled expressions on batches of rows, by Arrow's kernels.
use super::BinaryOp;
use super::compile::Compiled;
use super::types::STRICT;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Datum, RecordBatch, Scalar, UInt32Array};
use arrow::compute::kernels::{cmp, numeric};
use arrow::compute::{and_kleene, cast_with_options, is_not_null, is_null, not, or_kleene, take};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use std::sync::Arc;

/// A value per row, or one for all of them.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Array(ArrayRef),
    Scalar(Scalar<ArrayRef>),
}

impl Datum for Value {
    fn get(&self) -> (&dyn Array, bool) {
        match self {
            Value::Array(array) => (array.as_ref(), false),
            Value::Scalar(scalar) => scalar.get(),
        }
    }
}

impl Value {
    pub(crate) fn data_type(&self) -> DataType {
        self.get().0.data_type().clone()
    }

    /// One value per row.
    pub(crate) fn into_array(self, rows: usize) -> Result<ArrayRef, ArrowError> {
        match self {
            Value::Array(array) => Ok(array),
            Value::Scalar(scalar) => take(&scalar.into_inner(), &UInt32Array::from_value(0, rows), None),
        }
    }

    /// The same kind, made of the one array that it holds.
    fn map(self, f: impl FnOnce(&ArrayRef) -> Result<ArrayRef, ArrowError>) -> Result<Value, ArrowError> {
        Ok(match self {
            Value::Array(array) => Value::Array(f(&array)?),
            Value::Scalar(scalar) => Value::Scalar(Scalar::new(f(&scalar.into_inner())?)),
        })
    }
}

/// Evaluates an expression.
///
/// # Errors
/// Overflow, division by zero, a value that cannot be cast.
pub(crate) fn evaluate(expr: &Compiled, rows: &RecordBatch) -> Result<Value, ArrowError> {
    Ok(match expr {
        Compiled::Column(index) => Value::Array(rows.column(*index).clone()),
        Compiled::Scalar(scalar) => Value::Scalar(scalar.clone()),
        Compiled::Not(of) => evaluate(of, rows)?.map(|array| Ok(Arc::new(not(array.as_boolean())?)))?,
        Compiled::Negative(of) => evaluate(of, rows)?.map(|array| numeric::neg(array.as_ref()))?,
        Compiled::IsNull(of) => evaluate(of, rows)?.map(|array| Ok(Arc::new(is_null(array)?)))?,
        Compiled::IsNotNull(of) => evaluate(of, rows)?.map(|array| Ok(Arc::new(is_not_null(array)?)))?,
        Compiled::Cast(of, to) => evaluate(of, rows)?.map(|array| cast_with_options(array, to, &STRICT))?,
        Compiled::Binary(op, left, right) => {
            let (left, right) = (evaluate(left, rows)?, evaluate(right, rows)?);
            let constant = matches!((&left, &right), (Value::Scalar(_), Value::Scalar(_)));
            let result = match op {
                BinaryOp::And | BinaryOp::Or => {
                    let count = if constant { 1 } else { rows.num_rows() };
                    let (left, right) = (left.into_array(count)?, right.into_array(count)?);
                    let kernel = if *op == BinaryOp::And { and_kleene } else { or_kleene };
                    Arc::new(kernel(left.as_boolean(), right.as_boolean())?)
                }
                _ => kernel(*op, &left, &right)?,
            };
            if constant { Value::Scalar(Scalar::new(result)) } else { Value::Array(result) }
        }
    })
}

fn kernel(op: BinaryOp, left: &Value, right: &Value) -> Result<ArrayRef, ArrowError> {
    let compare = |f: fn(&dyn Datum, &dyn Datum) -> Result<BooleanArray, ArrowError>| -> Result<ArrayRef, ArrowError> {
        Ok(Arc::new(f(left, right)?))
    };
    match op {
        BinaryOp::Eq => compare(cmp::eq),
        BinaryOp::NotEq => compare(cmp::neq),
        BinaryOp::Lt => compare(cmp::lt),
        BinaryOp::LtEq => compare(cmp::lt_eq),
        BinaryOp::Gt => compare(cmp::gt),
        BinaryOp::GtEq => compare(cmp::gt_eq),
        BinaryOp::Add => numeric::add(left, right),
        BinaryOp::Subtract => numeric::sub(left, right),
        BinaryOp::Multiply => numeric::mul(left, right),
        BinaryOp::Divide => numeric::div(left, right),
        BinaryOp::Remainder => numeric::rem(left, right),
        BinaryOp::And | BinaryOp::Or => Err(ArrowError::InvalidArgumentError("not a kernel over any type".into())),
    }
}

/// Evaluates a condition: which rows to keep (NULL: not).
pub(crate) fn evaluate_mask(expr: &Compiled, rows: &RecordBatch) -> Result<BooleanArray, ArrowError> {
    let mask = evaluate(expr, rows)?.into_array(rows.num_rows())?;
    mask.as_boolean_opt().cloned().ok_or_else(|| ArrowError::InvalidArgumentError("a condition must be BOOLEAN".into()))
}
