//! [`DataStream<T>`]: one record at a time, in closures.
//!
//! Rows are turned into records of a serde type and back, batch by batch. That costs several times what [`Stream`]'s expressions
//! cost: use closures where the logic needs them. A closure that panics fails the job, which restarts under its strategy; the failure
//! names the operator, the row's place in its batch, and what the panic said.
use super::error::{column_index, describe};
use super::keyed::KeyedStream;
use super::plan::Work;
use super::stream::DataStreamSink;
use super::{ApiError, Stream, col};
use arrow::array::{BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use semel_engine::event_time::EventTime;
use semel_engine::failure::{Failure, caught};
use semel_engine::operators::transform::{Function, Transform};
use semel_engine::sink::TwoPhaseCommitSink;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_arrow::schema::{SchemaLike, TracingOptions};
use std::any::type_name as rust_name;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::sync::Arc;

/// A stream of records. Made by [`Stream::typed`].
pub struct DataStream<T> {
    stream: Stream,
    records: PhantomData<fn() -> T>,
}

impl<T> Clone for DataStream<T> {
    fn clone(&self) -> Self {
        DataStream { stream: self.stream.clone(), records: PhantomData }
    }
}

impl<T> fmt::Debug for DataStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataStream").field("record", &rust_name::<T>()).field("stream", &self.stream).finish()
    }
}

impl<T: DeserializeOwned + 'static> DataStream<T> {
    pub(crate) fn of(stream: &Stream) -> Result<DataStream<T>, ApiError> {
        let wanted = traced::<T>()?;
        for field in wanted.fields() {
            let place = || format!("for {}", rust_name::<T>());
            let column = stream.schema.field(column_index(&stream.schema, field.name(), &place)?);
            fits::<T>(field, column)?;
        }
        let names: Vec<&str> = wanted.fields().iter().map(|f| f.name().as_str()).collect();
        let all: Vec<&str> = stream.schema.fields().iter().map(|f| f.name().as_str()).collect();
        let stream = if names == all { stream.clone() } else { stream.select(names.into_iter().map(col))? };
        Ok(DataStream { stream, records: PhantomData })
    }

    /// The columns.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Keeps the records for which the closure answers true.
    ///
    /// # Errors
    /// None at present.
    pub fn filter(&self, keep: impl FnMut(&T) -> bool + Clone + Send + Sync + 'static) -> Result<DataStream<T>, ApiError> {
        let function = move || {
            let mut keep = keep.clone();
            Box::new(move |rows: RecordBatch, out: &mut Vec<RecordBatch>| {
                let mut mask = BooleanBufferBuilder::new(rows.num_rows());
                each(records::<T>(&rows)?.iter(), |record| {
                    mask.append(keep(record));
                    Ok(())
                })?;
                let mask = BooleanArray::from(mask.finish());
                out.push(arrow::compute::filter_record_batch(&rows, &mask).map_err(|e| Failure::Fatal(e.to_string()))?);
                Ok(())
            }) as Box<dyn Function>
        };
        let stream = self.transform("filter", self.stream.schema.clone(), Box::new(function))?;
        Ok(DataStream { stream, records: PhantomData })
    }

    /// Makes one record of each.
    ///
    /// # Errors
    /// A type `U` whose columns cannot be told from the type alone: see [`Self::flat_map_into`].
    pub fn map<U: Serialize + DeserializeOwned + 'static>(
        &self,
        mut map: impl FnMut(T) -> U + Clone + Send + Sync + 'static,
    ) -> Result<DataStream<U>, ApiError> {
        self.try_flat_map("map", traced::<U>()?, move |record| Ok::<_, Failure>(std::iter::once(map(record))))
    }

    /// As [`Self::map`], with a closure that may fail: an error ends the job with its text, before anything of this checkpoint is
    /// committed.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn try_map<U: Serialize + DeserializeOwned + 'static, E: Display>(
        &self,
        mut map: impl FnMut(T) -> Result<U, E> + Clone + Send + Sync + 'static,
    ) -> Result<DataStream<U>, ApiError> {
        self.try_flat_map("map", traced::<U>()?, move |record| map(record).map(std::iter::once))
    }

    /// Makes any number of records of each.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn flat_map<U: Serialize + DeserializeOwned + 'static, I: IntoIterator<Item = U> + 'static>(
        &self,
        map: impl FnMut(T) -> I + Clone + Send + Sync + 'static,
    ) -> Result<DataStream<U>, ApiError> {
        self.flat_map_into(traced::<U>()?, map)
    }

    /// As [`Self::flat_map`], with the columns as they shall be: for DECIMAL, DATE and timestamps, and for types `U` whose columns
    /// cannot be told from the type alone. A field of `U` is the column of its name.
    ///
    /// # Errors
    /// None at present; a record that does not fit the columns ends the job.
    pub fn flat_map_into<U: Serialize + DeserializeOwned + 'static, I: IntoIterator<Item = U> + 'static>(
        &self,
        schema: SchemaRef,
        mut map: impl FnMut(T) -> I + Clone + Send + Sync + 'static,
    ) -> Result<DataStream<U>, ApiError> {
        self.try_flat_map("flat_map", schema, move |record| Ok::<_, Failure>(map(record)))
    }

    fn try_flat_map<U: Serialize + DeserializeOwned + 'static, I: IntoIterator<Item = U> + 'static, E: Display>(
        &self,
        kind: &'static str,
        schema: SchemaRef,
        map: impl FnMut(T) -> Result<I, E> + Clone + Send + Sync + 'static,
    ) -> Result<DataStream<U>, ApiError> {
        let fields: Vec<FieldRef> = schema.fields().to_vec();
        let function = move || {
            let (mut map, fields) = (map.clone(), fields.clone());
            Box::new(move |rows: RecordBatch, out: &mut Vec<RecordBatch>| {
                let mut made: Vec<U> = Vec::with_capacity(rows.num_rows());
                each(records::<T>(&rows)?.into_iter(), |record| {
                    made.extend(map(record).map_err(|e| Failure::Fatal(e.to_string()))?);
                    Ok(())
                })?;
                if !made.is_empty() {
                    let rows = serde_arrow::to_record_batch(&fields, &made)
                        .map_err(|e| Failure::Fatal(format!("a {} does not fit the columns: {e}", rust_name::<U>())))?;
                    out.push(rows);
                }
                Ok(())
            }) as Box<dyn Function>
        };
        let stream = self.transform(kind, schema, Box::new(function))?;
        Ok(DataStream { stream, records: PhantomData })
    }

    fn transform(
        &self,
        kind: &'static str,
        schema: SchemaRef,
        function: semel_engine::operators::transform::FunctionFactory,
    ) -> Result<Stream, ApiError> {
        let shared = self.stream.shared.clone();
        // The event time goes on if there is still a column of that name that can be one.
        let event_time = self.stream.event_time.clone().filter(|column| EventTime::of(&schema, column).is_ok());
        let description = format!("{kind}({} -> {})", rust_name::<T>(), describe(&schema));
        let operator = Arc::new(Transform { description, schema: schema.clone(), function });
        let port = shared.borrow_mut().plan.add(kind, Work::Operator(operator), vec![self.stream.port]);
        Ok(Stream { shared, port, schema, event_time })
    }

    /// See [`Stream::uid`].
    ///
    /// # Errors
    /// As there; so for the following.
    pub fn uid(self, uid: &str) -> Result<DataStream<T>, ApiError> {
        Ok(DataStream { stream: self.stream.uid(uid)?, records: PhantomData })
    }

    /// See [`Stream::key_by`].
    pub fn key_by<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> KeyedStream {
        self.stream.key_by(columns)
    }

    /// See [`Stream::union`].
    ///
    /// # Errors
    /// As there.
    pub fn union<'a>(&self, others: impl IntoIterator<Item = &'a DataStream<T>>) -> Result<DataStream<T>, ApiError> {
        let stream = self.stream.union(others.into_iter().map(|other| &other.stream))?;
        Ok(DataStream { stream, records: PhantomData })
    }

    /// See [`Stream::sink_to`].
    ///
    /// # Errors
    /// As there.
    pub fn sink_to(&self, sink: impl TwoPhaseCommitSink) -> Result<DataStreamSink, ApiError> {
        self.stream.sink_to(sink)
    }
}

fn records<T: DeserializeOwned>(rows: &RecordBatch) -> Result<Vec<T>, Failure> {
    serde_arrow::from_record_batch(rows).map_err(|e| Failure::Fatal(format!("a row cannot be read as {}: {e}", rust_name::<T>())))
}

/// Gives each record to a closure. What the closure reports, or panics with, says which record it was; that costs nothing before.
fn each<R: ExactSizeIterator>(mut records: R, mut closure: impl FnMut(R::Item) -> Result<(), Failure>) -> Result<(), Failure> {
    let all = records.len();
    let ended = caught(|| records.by_ref().try_for_each(&mut closure)).unwrap_or_else(|panic| Err(Failure::Retryable(panic)));
    ended.map_err(|failure| failure.within(format_args!("row {} of a batch of {all}", all - records.len())))
}

/// The columns of a record type, as far as the type tells them.
fn traced<T: DeserializeOwned>() -> Result<SchemaRef, ApiError> {
    let options = TracingOptions::default()
        .allow_null_fields(true)
        .strings_as_large_utf8(false)
        .bytes_as_large_binary(false)
        .sequence_as_large_list(false)
        .enums_without_data_as_strings(true);
    let fields = Vec::<FieldRef>::from_type::<T>(options)
        .map_err(|e| ApiError::Record { record: rust_name::<T>().into(), why: format!("its columns cannot be told from the type: {e}") })?;
    Ok(Arc::new(Schema::new(fields)))
}

/// Whether a column can be read as a field of a record.
fn fits<T>(field: &FieldRef, column: &arrow::datatypes::Field) -> Result<(), ApiError> {
    let wrong = |why: String| Err(ApiError::Record { record: rust_name::<T>().into(), why });
    let name = field.name();
    if column.is_nullable() && !field.is_nullable() {
        return wrong(format!("column {name:?} may be NULL: make the field an Option, or declare the column NOT NULL"));
    }
    let (wanted, found) = (field.data_type(), column.data_type());
    let time = |t: &DataType| matches!(t, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64);
    let text = |t: &DataType| matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let good = match wanted {
        wanted if wanted.is_integer() => found.is_integer() || time(found),
        wanted if wanted.is_floating() => found.is_floating(),
        DataType::Boolean => *found == DataType::Boolean,
        wanted if text(wanted) => text(found) || time(found) || matches!(found, DataType::Decimal128(..)),
        _ => true,
    };
    if good {
        return Ok(());
    }
    let sql = semel_engine::state::type_name;
    let hint = if matches!(found, DataType::Decimal128(..)) { "; a DECIMAL is read as a String" } else { "" };
    wrong(format!("column {name:?} is {}, the field would need {}{hint}", sql(found), sql(wanted)))
}
