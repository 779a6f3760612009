//! [`Stream`]: rows as columns.
use super::error::{column_index, describe};
use super::keyed::{KeyedStream, OutputTag};
use super::plan::{Plan, Work};
use super::steps::Steps;
use super::{ApiError, DataStream, Expr, col};
use arrow::datatypes::SchemaRef;
use semel_engine::event_time::EventTime;
use semel_engine::graph::Port;
use semel_engine::operators::sink_writer::SinkOperator;
use semel_engine::operators::union::Union;
use semel_engine::sink::TwoPhaseCommitSink;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// What all streams of an environment share.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
}

/// A stream of rows. Every method makes a new stream and leaves this one as it is: it can be read any number of times.
#[derive(Clone)]
pub struct Stream {
    pub(crate) shared: Rc<RefCell<Shared>>,
    pub(crate) port: Port,
    pub(crate) schema: SchemaRef,
    /// The column with the event time.
    pub(crate) event_time: Option<String>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("schema", &describe(&self.schema)).field("event_time", &self.event_time).finish_non_exhaustive()
    }
}

impl Stream {
    /// Of the rows.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives the operator that made this stream a stable name: its state is found by it when the job is restarted. An operator
    /// without one is called after its kind and its place among those of its kind (`window-1`), which changes when another of
    /// that kind is put before it. 1 to 100 characters of `A-Z a-z 0-9 _ . -`.
    ///
    /// # Errors
    /// A text that is no uid, or that of another operator.
    pub fn uid(self, uid: &str) -> Result<Stream, ApiError> {
        self.shared.borrow_mut().plan.set_uid(self.port.node, uid)?;
        Ok(self)
    }

    /// Keeps the rows for which the condition is true.
    ///
    /// # Errors
    /// See [`super::expr`]; or it is no condition.
    pub fn filter(&self, condition: Expr) -> Result<Stream, ApiError> {
        self.steps("filter", Steps::filter(&condition, &self.schema)?, self.event_time.clone())
    }

    /// Rows of these columns.
    ///
    /// # Errors
    /// See [`super::expr`]; or two columns have the same name.
    pub fn select(&self, columns: impl IntoIterator<Item = Expr>) -> Result<Stream, ApiError> {
        let columns: Vec<Expr> = columns.into_iter().collect();
        let steps = Steps::project(&columns, &self.schema)?;
        // The event time goes on under the first name that its unchanged column has.
        let event_time = self.event_time.as_ref().and_then(|time| columns.iter().find(|e| is_column(e, time)).map(Expr::name));
        self.steps("select", steps, event_time)
    }

    /// Rows of these columns as they are.
    ///
    /// # Errors
    /// A column that does not exist, or is named twice.
    pub fn select_columns<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> Result<Stream, ApiError> {
        self.select(columns.into_iter().map(col))
    }

    /// Appends a column, or replaces the one of that name.
    ///
    /// # Errors
    /// See [`super::expr`].
    pub fn with_column(&self, name: &str, value: Expr) -> Result<Stream, ApiError> {
        let mut value = Some(value.alias(name));
        let mut columns: Vec<Expr> = vec![];
        for field in self.schema.fields() {
            let replaced = if field.name() == name { value.take() } else { None };
            columns.push(replaced.unwrap_or_else(|| col(field.name())));
        }
        columns.extend(value);
        let steps = Steps::project(&columns, &self.schema)?;
        let event_time = self.event_time.clone();
        if event_time.as_deref() == Some(name) {
            EventTime::of(&steps.schema, name)?;
        }
        self.steps("select", steps, event_time)
    }

    /// Says which column holds the event time from here on, for windows over results of windows or computed times. The
    /// watermark stays that of the sources: a row whose time here is behind it is late.
    ///
    /// # Errors
    /// No such column, or not of a type that can be a time.
    pub fn event_time(mut self, column: &str) -> Result<Stream, ApiError> {
        EventTime::of(&self.schema, column)?;
        self.event_time = Some(column.to_owned());
        Ok(self)
    }

    /// Rows of equal keys go to one subtask.
    pub fn key_by<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> KeyedStream {
        KeyedStream::new(self.clone(), columns.into_iter().map(str::to_owned).collect())
    }

    /// The rows of this and the other streams, in no particular order. Event time and watermark are those of all.
    ///
    /// # Errors
    /// Other columns or types, or another environment.
    pub fn union<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Result<Stream, ApiError> {
        let mut ports = vec![self.port];
        let mut event_time = self.event_time.clone();
        for other in others {
            if !Rc::ptr_eq(&self.shared, &other.shared) {
                return Err(ApiError::Environment("union".into()));
            }
            if self.schema.fields() != other.schema.fields() {
                return Err(ApiError::SchemaMismatch {
                    place: "union".into(),
                    left: describe(&self.schema),
                    right: describe(&other.schema),
                });
            }
            if other.event_time != event_time {
                event_time = None;
            }
            ports.push(other.port);
        }
        let work = Work::Operator(Arc::new(Union { schema: self.schema.clone() }));
        let port = self.shared.borrow_mut().plan.add("union", work, ports);
        Ok(Stream { shared: self.shared.clone(), port, schema: self.schema.clone(), event_time })
    }

    /// The rows as records of a serde type, for closures. Each field of `T` is the column of its name; a DECIMAL is a text there
    /// (or a type that is read from one). Columns that `T` does not have are left out.
    ///
    /// # Errors
    /// A field of `T` without a column, a column that may be NULL where `T` cannot, or a type that does not fit.
    pub fn typed<T: DeserializeOwned + 'static>(&self) -> Result<DataStream<T>, ApiError> {
        DataStream::of(self)
    }

    /// The rows that an operator put aside under this tag.
    ///
    /// # Errors
    /// The operator has no such output.
    pub fn side_output(&self, tag: &OutputTag) -> Result<Stream, ApiError> {
        let found = self.shared.borrow().plan.side_output(self.port, &tag.name);
        let (port, schema) = found.ok_or_else(|| {
            ApiError::Operator(format!("the operator has no side output {:?}: request it, e.g. by side_output_late_data", tag.name))
        })?;
        Ok(Stream { shared: self.shared.clone(), port, schema, event_time: None })
    }

    /// Writes the rows.
    ///
    /// # Errors
    /// None at present; kept for checks of the schema.
    pub fn sink_to(&self, sink: impl TwoPhaseCommitSink) -> Result<DataStreamSink, ApiError> {
        let operator = SinkOperator { sink: Arc::new(sink), schema: self.schema.clone() };
        let port = self.shared.borrow_mut().plan.add("sink", Work::Operator(Arc::new(operator)), vec![self.port]);
        Ok(DataStreamSink { shared: self.shared.clone(), node: port.node })
    }

    pub(crate) fn steps(&self, kind: &'static str, steps: Steps, event_time: Option<String>) -> Result<Stream, ApiError> {
        let schema = steps.schema.clone();
        let port = self.shared.borrow_mut().plan.add(kind, Work::Steps(steps), vec![self.port]);
        Ok(Stream { shared: self.shared.clone(), port, schema, event_time })
    }

    /// Only these columns, if there are others.
    pub(crate) fn narrowed(&self, columns: &[&str]) -> Result<Stream, ApiError> {
        let mut keep: Vec<usize> =
            columns.iter().map(|name| column_index(&self.schema, name, &|| "in a keyed operator".into())).collect::<Result<_, _>>()?;
        keep.sort_unstable();
        keep.dedup();
        if keep.len() == self.schema.fields().len() {
            return Ok(self.clone());
        }
        let columns: Vec<Expr> = keep.iter().map(|i| col(self.schema.field(*i).name())).collect();
        self.steps("project", Steps::project(&columns, &self.schema)?, self.event_time.clone())
    }
}

fn is_column(expr: &Expr, name: &str) -> bool {
    use super::expr::Node;
    match &expr.0 {
        Node::Column(column) => column == name,
        Node::Alias(of, _) => matches!(of.as_ref(), Node::Column(column) if column == name),
        _ => false,
    }
}

/// A sink in its place.
pub struct DataStreamSink {
    shared: Rc<RefCell<Shared>>,
    node: usize,
}

impl fmt::Debug for DataStreamSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataStreamSink").field("node", &self.node).finish()
    }
}

impl DataStreamSink {
    /// Gives the sink a stable name: its pending transactions are found by it. See [`Stream::uid`].
    ///
    /// # Errors
    /// A text that is no uid, or that of another operator.
    pub fn uid(self, uid: &str) -> Result<DataStreamSink, ApiError> {
        self.shared.borrow_mut().plan.set_uid(self.node, uid)?;
        Ok(self)
    }
}
