//! Expressions over columns: `col("region").not_eq(lit("ap"))`.
//!
//! They are checked and compiled against the schema when the stream is built, and evaluated by Arrow's kernels, a whole batch
//! at a time. NULLs behave as in SQL: what is computed from NULL is NULL, `and`/`or` are three-valued, and a filter keeps the
//! rows whose condition is true. Both sides of `and` and `or` are evaluated for all rows: guard a division by a `filter` before
//! it, not by `and`. An overflow, a division by zero or a cast that fails ends the job with an error: no value is made up.
mod compile;
mod evaluate;
mod types;

pub(crate) use compile::{Typed, compile};
pub(crate) use evaluate::{evaluate, evaluate_mask};

use arrow::datatypes::DataType;
use std::fmt;

/// An expression. Made by [`col`] and [`lit`].
#[derive(Debug, Clone)]
pub struct Expr(pub(crate) Node);

#[derive(Debug, Clone)]
pub(crate) enum Node {
    Column(String),
    Literal(Literal),
    Binary(BinaryOp, Box<Node>, Box<Node>),
    Not(Box<Node>),
    Negative(Box<Node>),
    IsNull(Box<Node>),
    IsNotNull(Box<Node>),
    Cast(Box<Node>, DataType),
    Alias(Box<Node>, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
    And,
    Or,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl BinaryOp {
    fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Eq => "=",
            BinaryOp::NotEq => "<>",
            BinaryOp::Lt => "<",
            BinaryOp::LtEq => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::GtEq => ">=",
            BinaryOp::And => "AND",
            BinaryOp::Or => "OR",
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Remainder => "%",
        }
    }
}

/// A constant. It takes the type of what it is combined with, if it fits without loss: `lit(5)` and `lit("12.50")` can be compared
/// with a DECIMAL, `lit("2024-01-31 10:00:00")` with a timestamp.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// NULL.
    Null,
    /// Alone: BOOLEAN.
    Boolean(bool),
    /// Alone: INT if it fits, else BIGINT.
    Integer(i64),
    /// Alone: DOUBLE. Against a DECIMAL it is its decimal digits, as in SQL.
    Float(f64),
    /// Alone: STRING.
    Text(String),
}

macro_rules! literal_from {
    ($($from:ty => $variant:ident),*) => {
        $(impl From<$from> for Literal {
            fn from(value: $from) -> Literal {
                Literal::$variant(value.into())
            }
        })*
    };
}
literal_from!(bool => Boolean, i8 => Integer, i16 => Integer, i32 => Integer, i64 => Integer, u8 => Integer, u16 => Integer, u32 => Integer,
    f32 => Float, f64 => Float, &str => Text, String => Text);

impl<T: Into<Literal>> From<Option<T>> for Literal {
    fn from(value: Option<T>) -> Literal {
        value.map_or(Literal::Null, Into::into)
    }
}

/// The column of this name.
pub fn col(name: impl Into<String>) -> Expr {
    Expr(Node::Column(name.into()))
}

/// A constant; `lit(None::<i64>)` is NULL.
pub fn lit(value: impl Into<Literal>) -> Expr {
    Expr(Node::Literal(value.into()))
}

impl Expr {
    fn binary(self, op: BinaryOp, other: Expr) -> Expr {
        Expr(Node::Binary(op, Box::new(self.0), Box::new(other.0)))
    }
    /// `=`.
    pub fn eq(self, other: Expr) -> Expr {
        self.binary(BinaryOp::Eq, other)
    }
    /// `<>`.
    pub fn not_eq(self, other: Expr) -> Expr {
        self.binary(BinaryOp::NotEq, other)
    }
    /// `<`.
    pub fn lt(self, other: Expr) -> Expr {
        self.binary(BinaryOp::Lt, other)
    }
    /// `<=`.
    pub fn lt_eq(self, other: Expr) -> Expr {
        self.binary(BinaryOp::LtEq, other)
    }
    /// `>`.
    pub fn gt(self, other: Expr) -> Expr {
        self.binary(BinaryOp::Gt, other)
    }
    /// `>=`.
    pub fn gt_eq(self, other: Expr) -> Expr {
        self.binary(BinaryOp::GtEq, other)
    }
    /// `AND`.
    pub fn and(self, other: Expr) -> Expr {
        self.binary(BinaryOp::And, other)
    }
    /// `OR`.
    pub fn or(self, other: Expr) -> Expr {
        self.binary(BinaryOp::Or, other)
    }
    /// `IS NULL`.
    pub fn is_null(self) -> Expr {
        Expr(Node::IsNull(Box::new(self.0)))
    }
    /// `IS NOT NULL`.
    pub fn is_not_null(self) -> Expr {
        Expr(Node::IsNotNull(Box::new(self.0)))
    }
    /// `CAST(... AS ...)`. A value that does not fit fails the job; digits behind the point are rounded.
    pub fn cast(self, to: DataType) -> Expr {
        Expr(Node::Cast(Box::new(self.0), to))
    }
    /// Names the column that it makes.
    pub fn alias(self, name: impl Into<String>) -> Expr {
        Expr(Node::Alias(Box::new(self.0), name.into()))
    }
    /// The name of the column that it makes: of the alias or the column, else its text.
    pub fn name(&self) -> String {
        match &self.0 {
            Node::Alias(_, name) | Node::Column(name) => name.clone(),
            other => other.to_string(),
        }
    }
}

macro_rules! operators {
    ($($of:ident $method:ident $op:ident),*) => {
        $(impl std::ops::$of for Expr {
            type Output = Expr;
            fn $method(self, other: Expr) -> Expr {
                self.binary(BinaryOp::$op, other)
            }
        })*
    };
}
operators!(Add add Add, Sub sub Subtract, Mul mul Multiply, Div div Divide, Rem rem Remainder);

impl std::ops::Not for Expr {
    type Output = Expr;
    fn not(self) -> Expr {
        Expr(Node::Not(Box::new(self.0)))
    }
}

impl std::ops::Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        Expr(Node::Negative(Box::new(self.0)))
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Null => f.write_str("NULL"),
            Literal::Boolean(value) => value.fmt(f),
            Literal::Integer(value) => value.fmt(f),
            Literal::Float(value) => write!(f, "{value:?}"),
            Literal::Text(value) => write!(f, "'{}'", value.replace('\'', "''")),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Column(name) => f.write_str(name),
            Node::Literal(literal) => literal.fmt(f),
            Node::Binary(op, left, right) => write!(f, "({left} {} {right})", op.symbol()),
            Node::Not(of) => write!(f, "(NOT {of})"),
            Node::Negative(of) => write!(f, "(-{of})"),
            Node::IsNull(of) => write!(f, "({of} IS NULL)"),
            Node::IsNotNull(of) => write!(f, "({of} IS NOT NULL)"),
            Node::Cast(of, to) => write!(f, "CAST({of} AS {})", semel_engine::state::type_name(to)),
            Node::Alias(of, name) => write!(f, "{of} AS {name}"),
        }
    }
}
