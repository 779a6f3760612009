//! Names to indices, types to a common type: all that can be wrong is found here, before rows come.
use super::evaluate::evaluate;
use super::types::{STRICT, as_decimal, common_type, literal};
use super::{BinaryOp, Expr, Literal, Node};
use crate::api::ApiError;
use crate::api::error::column_index;
use arrow::array::{ArrayRef, RecordBatch, Scalar};
use arrow::compute::{can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, Schema};
use std::sync::Arc;

/// An expression over the columns of one schema.
#[derive(Debug, Clone)]
pub(crate) enum Compiled {
    Column(usize),
    Scalar(Scalar<ArrayRef>),
    Binary(BinaryOp, Box<Compiled>, Box<Compiled>),
    Not(Box<Compiled>),
    Negative(Box<Compiled>),
    IsNull(Box<Compiled>),
    IsNotNull(Box<Compiled>),
    Cast(Box<Compiled>, DataType),
}

impl Compiled {
    /// All columns that it reads.
    pub(crate) fn columns(&self, into: &mut Vec<usize>) {
        match self {
            Compiled::Column(index) => into.push(*index),
            Compiled::Scalar(_) => {}
            Compiled::Binary(_, left, right) => {
                left.columns(into);
                right.columns(into);
            }
            Compiled::Not(of) | Compiled::Negative(of) | Compiled::IsNull(of) | Compiled::IsNotNull(of) | Compiled::Cast(of, _) => {
                of.columns(into)
            }
        }
    }

    /// The same over rows that only have the columns `kept`, in that order.
    pub(crate) fn remap(&mut self, kept: &[usize]) {
        match self {
            Compiled::Column(index) => *index = kept.iter().position(|k| k == index).unwrap_or(*index),
            Compiled::Scalar(_) => {}
            Compiled::Binary(_, left, right) => {
                left.remap(kept);
                right.remap(kept);
            }
            Compiled::Not(of) | Compiled::Negative(of) | Compiled::IsNull(of) | Compiled::IsNotNull(of) | Compiled::Cast(of, _) => {
                of.remap(kept)
            }
        }
    }
}

/// What an expression gives.
#[derive(Debug, Clone)]
pub(crate) struct Typed {
    pub(crate) expr: Compiled,
    pub(crate) data_type: DataType,
    pub(crate) nullable: bool,
}

/// Checks an expression against the rows' schema.
///
/// # Errors
/// Columns that do not exist, types that do not go together, literals that are no value of the type needed.
pub(crate) fn compile(expr: &Expr, schema: &Schema) -> Result<Typed, ApiError> {
    let compiler = Compiler { schema, whole: &expr.0 };
    let mut typed = compiler.node(&expr.0, None)?;
    // The kernels decide what comes out of what: asking them with no rows cannot differ from what they do later.
    let none = RecordBatch::new_empty(Arc::new(schema.clone()));
    let result = evaluate(&typed.expr, &none).map_err(|e| compiler.wrong(e.to_string()))?;
    typed.data_type = result.data_type();
    Ok(typed)
}

struct Compiler<'a> {
    schema: &'a Schema,
    whole: &'a Node,
}

impl Compiler<'_> {
    fn wrong(&self, why: impl Into<String>) -> ApiError {
        ApiError::Expression { expression: self.whole.to_string(), why: why.into() }
    }

    /// `beside`: the type of the value that it is combined with, which a literal takes.
    fn node(&self, node: &Node, beside: Option<&DataType>) -> Result<Typed, ApiError> {
        Ok(match node {
            Node::Column(name) => {
                let index = column_index(self.schema, name, &|| format!("in {}", self.whole))?;
                let field = self.schema.field(index);
                Typed { expr: Compiled::Column(index), data_type: field.data_type().clone(), nullable: field.is_nullable() }
            }
            Node::Literal(value) => {
                let array = literal(value, beside).map_err(|why| self.wrong(why))?;
                let data_type = array.data_type().clone();
                Typed { expr: Compiled::Scalar(Scalar::new(array)), data_type, nullable: *value == Literal::Null }
            }
            Node::Alias(of, _) => self.node(of, beside)?,
            Node::Not(of) => {
                let of = self.condition(of)?;
                Typed { expr: Compiled::Not(Box::new(of.expr)), ..of }
            }
            Node::Negative(of) => {
                let of = self.node(of, beside)?;
                Typed { expr: Compiled::Negative(Box::new(of.expr)), ..of }
            }
            Node::IsNull(of) => {
                let of = self.node(of, None)?;
                Typed { expr: Compiled::IsNull(Box::new(of.expr)), data_type: DataType::Boolean, nullable: false }
            }
            Node::IsNotNull(of) => {
                let of = self.node(of, None)?;
                Typed { expr: Compiled::IsNotNull(Box::new(of.expr)), data_type: DataType::Boolean, nullable: false }
            }
            Node::Cast(of, to) => {
                let of = self.node(of, None)?;
                if !can_cast_types(&of.data_type, to) {
                    return Err(self.wrong(format!("{} cannot be cast to {}", name(&of.data_type), name(to))));
                }
                convert(of, to).map_err(|e| self.wrong(e.to_string()))?
            }
            Node::Binary(op @ (BinaryOp::And | BinaryOp::Or), left, right) => {
                let (left, right) = (self.condition(left)?, self.condition(right)?);
                self.binary(*op, left, right)
            }
            Node::Binary(op, left, right) => {
                let (left, right) = self.pair(left, right)?;
                let (left, right) = match op {
                    BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Remainder => {
                        self.operands(*op, left, right)?
                    }
                    _ => self.common(*op, left, right)?,
                };
                self.binary(*op, left, right)
            }
        })
    }

    fn binary(&self, op: BinaryOp, left: Typed, right: Typed) -> Typed {
        let nullable = left.nullable || right.nullable;
        let data_type = match op {
            // Close enough for what is above it; `compile` asks the kernels for the exact type of the whole.
            BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Remainder => {
                self.arithmetic_type(op, &left, &right)
            }
            _ => DataType::Boolean,
        };
        Typed { expr: Compiled::Binary(op, Box::new(left.expr), Box::new(right.expr)), data_type, nullable }
    }

    fn arithmetic_type(&self, op: BinaryOp, left: &Typed, right: &Typed) -> DataType {
        let whole = Compiled::Binary(op, Box::new(left.expr.clone()), Box::new(right.expr.clone()));
        let none = RecordBatch::new_empty(Arc::new(self.schema.clone()));
        evaluate(&whole, &none).map_or_else(|_| left.data_type.clone(), |value| value.data_type())
    }

    fn condition(&self, node: &Node) -> Result<Typed, ApiError> {
        let of = self.node(node, Some(&DataType::Boolean))?;
        match of.data_type {
            DataType::Boolean => Ok(of),
            other => Err(self.wrong(format!("{node} is {} where a condition (BOOLEAN) is needed", name(&other)))),
        }
    }

    /// Both sides; a literal takes its type from the other side.
    fn pair(&self, left: &Node, right: &Node) -> Result<(Typed, Typed), ApiError> {
        Ok(match (is_literal(left), is_literal(right)) {
            (true, false) => {
                let right = self.node(right, None)?;
                (self.node(left, Some(&right.data_type))?, right)
            }
            (_, right_is) => {
                let left = self.node(left, None)?;
                let beside = right_is.then(|| left.data_type.clone());
                let right = self.node(right, beside.as_ref())?;
                (left, right)
            }
        })
    }

    /// For a comparison: both in one type.
    fn common(&self, op: BinaryOp, left: Typed, right: Typed) -> Result<(Typed, Typed), ApiError> {
        let Some(to) = common_type(&left.data_type, &right.data_type) else {
            return Err(self.wrong(format!(
                "{} and {} cannot be compared by {}: cast one of them",
                name(&left.data_type),
                name(&right.data_type),
                op.symbol()
            )));
        };
        let both = convert(left, &to).and_then(|left| Ok((left, convert(right, &to)?)));
        both.map_err(|e| self.wrong(e.to_string()))
    }

    /// For arithmetic. Decimals keep their own scales: the kernels know what comes out. Times are left to the kernels.
    fn operands(&self, op: BinaryOp, left: Typed, right: Typed) -> Result<(Typed, Typed), ApiError> {
        let refuse = |left: &Typed, right: &Typed| {
            Err(self.wrong(format!(
                "{} {} {} is not defined: cast one of them",
                name(&left.data_type),
                op.symbol(),
                name(&right.data_type)
            )))
        };
        let number = |t: &Typed| t.data_type.is_numeric() || t.data_type == DataType::Null;
        if !number(&left) || !number(&right) {
            return match left.data_type.is_temporal() && right.data_type.is_temporal() {
                true => Ok((left, right)),
                false => refuse(&left, &right),
            };
        }
        let decimal = |t: &Typed| matches!(t.data_type, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..));
        let floating = left.data_type.is_floating() || right.data_type.is_floating();
        if (decimal(&left) || decimal(&right)) && !floating {
            let exact = |t: Typed| match as_decimal(&t.data_type) {
                Some((p, s)) => convert(t, &DataType::Decimal128(p, s)),
                None => Ok(t),
            };
            let both = exact(left).and_then(|left| Ok((left, exact(right)?)));
            return both.map_err(|e| self.wrong(e.to_string()));
        }
        self.common(op, left, right)
    }
}

fn is_literal(node: &Node) -> bool {
    match node {
        Node::Literal(_) => true,
        Node::Alias(of, _) | Node::Negative(of) => is_literal(of),
        _ => false,
    }
}

/// Constants are converted once, here.
fn convert(of: Typed, to: &DataType) -> Result<Typed, arrow::error::ArrowError> {
    if of.data_type == *to {
        return Ok(of);
    }
    let expr = match of.expr {
        Compiled::Scalar(value) => Compiled::Scalar(Scalar::new(cast_with_options(&value.into_inner(), to, &STRICT)?)),
        other => Compiled::Cast(Box::new(other), to.clone()),
    };
    Ok(Typed { expr, data_type: to.clone(), nullable: of.nullable })
}

fn name(data_type: &DataType) -> String {
    semel_engine::state::type_name(data_type)
}
