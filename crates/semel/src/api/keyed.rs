//! [`KeyedStream`] and [`WindowedStream`]: aggregates per key.
use super::error::no_duplicates;
use super::plan::Work;
use super::time::millis;
use super::{AggregateCall, ApiError, Emit, Stream, aggregates};
use semel_engine::operators::aggregate::KeyedAggregate;
use semel_engine::operators::keyed::Aggregation;
use semel_engine::operators::window::WindowAggregate;
use semel_engine::operators::window_assigner::WindowAssigner;
use std::sync::Arc;
use std::time::Duration;

/// Rows divided by key.
#[derive(Debug, Clone)]
pub struct KeyedStream {
    stream: Stream,
    keys: Vec<String>,
    emit: Emit,
}

impl KeyedStream {
    pub(crate) fn new(stream: Stream, keys: Vec<String>) -> KeyedStream {
        KeyedStream { stream, keys, emit: Emit::EachTick }
    }

    /// Divides the rows of each key into event-time windows as well.
    pub fn window(&self, assigner: WindowAssigner) -> WindowedStream {
        WindowedStream { keyed: self.clone(), assigner, lateness: Duration::ZERO, late: None }
    }

    /// When changed results of running aggregates come out; default with each tick (10 ms).
    pub fn emit(mut self, emit: Emit) -> KeyedStream {
        self.emit = emit;
        self
    }

    /// Running aggregates: a row of keys and results for each key whose results have changed.
    ///
    /// # Errors
    /// A column that does not exist or is named twice, or a type for which an aggregate is not defined.
    pub fn aggregate(&self, calls: impl IntoIterator<Item = AggregateCall>) -> Result<Stream, ApiError> {
        let calls = resolve(calls, &self.keys, &[])?;
        let rows = self.stream.narrowed(&columns(&self.keys, &calls, None))?;
        let operator = KeyedAggregate::new(rows.schema.clone(), &self.keys, &calls, self.emit)?;
        Ok(add(&rows, "aggregate", Arc::new(operator)))
    }
}

/// The name of a side output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputTag {
    pub(crate) name: String,
}

impl OutputTag {
    /// A tag of this name.
    pub fn new(name: impl Into<String>) -> OutputTag {
        OutputTag { name: name.into() }
    }
}

/// Rows divided by key and window. A window fires when the watermark has reached its end.
#[derive(Debug, Clone)]
pub struct WindowedStream {
    keyed: KeyedStream,
    assigner: WindowAssigner,
    lateness: Duration,
    late: Option<OutputTag>,
}

impl WindowedStream {
    /// Keeps windows for so long after they have fired; a row that comes in that time makes the result come out again.
    pub fn allowed_lateness(mut self, lateness: Duration) -> WindowedStream {
        self.lateness = lateness;
        self
    }

    /// Rows that are too late for all their windows can be read by [`Stream::side_output`] of the result; else they are counted
    /// (`numLateRecordsDropped`) and dropped.
    pub fn side_output_late_data(mut self, tag: &OutputTag) -> WindowedStream {
        self.late = Some(tag.clone());
        self
    }

    /// Rows of `window_start`, `window_end` (timestamps), the keys and the results.
    ///
    /// # Errors
    /// As [`KeyedStream::aggregate`]; a stream without event time; windows of senseless lengths.
    pub fn aggregate(&self, calls: impl IntoIterator<Item = AggregateCall>) -> Result<Stream, ApiError> {
        let KeyedStream { stream, keys, .. } = &self.keyed;
        let calls = resolve(calls, keys, &["window_start", "window_end"])?;
        let Some(time) = &stream.event_time else {
            return Err(ApiError::Operator(
                "a window needs rows with an event time: give the source a watermark strategy and keep that column in select, or name another by .event_time(column)".into(),
            ));
        };
        // Only what the window needs goes over the exchange, unless late rows are wanted as they came.
        let rows = match &self.late {
            Some(_) => stream.clone(),
            None => stream.narrowed(&columns(keys, &calls, Some(time)))?,
        };
        let operator = WindowAggregate::new(rows.schema.clone(), keys, time, self.assigner, millis(self.lateness), &calls)?;
        let result = add(&rows, "window", Arc::new(operator));
        if let Some(tag) = &self.late {
            result.shared.borrow_mut().plan.name_output(result.port, &tag.name, 1);
        }
        Ok(result)
    }
}

/// The shorthands for a single aggregate.
macro_rules! shorthands {
    ($stream:ty, $running:literal) => {
        impl $stream {
            #[doc = concat!("The ", $running, "number of rows, as `count`.")]
            ///
            /// # Errors
            /// As [`Self::aggregate`]; so for the following.
            pub fn count(&self) -> Result<Stream, ApiError> {
                self.aggregate([aggregates::count()])
            }
            #[doc = concat!("The ", $running, "sum, as `sum_<column>`.")]
            pub fn sum(&self, column: &str) -> Result<Stream, ApiError> {
                self.aggregate([aggregates::sum(column)])
            }
            #[doc = concat!("The ", $running, "minimum, as `min_<column>`.")]
            pub fn min(&self, column: &str) -> Result<Stream, ApiError> {
                self.aggregate([aggregates::min(column)])
            }
            #[doc = concat!("The ", $running, "maximum, as `max_<column>`.")]
            pub fn max(&self, column: &str) -> Result<Stream, ApiError> {
                self.aggregate([aggregates::max(column)])
            }
            #[doc = concat!("The ", $running, "mean, as `avg_<column>`.")]
            pub fn avg(&self, column: &str) -> Result<Stream, ApiError> {
                self.aggregate([aggregates::avg(column)])
            }
        }
    };
}
shorthands!(KeyedStream, "running ");
shorthands!(WindowedStream, "");

fn resolve(calls: impl IntoIterator<Item = AggregateCall>, keys: &[String], before: &[&str]) -> Result<Vec<Aggregation>, ApiError> {
    let calls: Vec<Aggregation> = calls.into_iter().map(|call| call.0).collect();
    if calls.is_empty() {
        return Err(ApiError::Operator("aggregate needs at least one aggregate, e.g. count()".into()));
    }
    let names = before.iter().copied().chain(keys.iter().map(String::as_str)).chain(calls.iter().map(|c| c.name.as_str()));
    no_duplicates(names, &|| "in the result of an aggregate".to_owned())?;
    Ok(calls)
}

fn columns<'a>(keys: &'a [String], calls: &'a [Aggregation], time: Option<&'a str>) -> Vec<&'a str> {
    let inputs = calls.iter().filter_map(|c| c.column.as_deref());
    keys.iter().map(String::as_str).chain(inputs).chain(time).collect()
}

fn add(rows: &Stream, kind: &'static str, operator: Arc<dyn semel_engine::graph::Operator>) -> Stream {
    let schema = operator.outputs().into_iter().next().unwrap_or_else(|| rows.schema.clone());
    let port = rows.shared.borrow_mut().plan.add(kind, Work::Operator(operator), vec![rows.port]);
    Stream { shared: rows.shared.clone(), port, schema, event_time: None }
}
