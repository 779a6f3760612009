//! Event time: which column of the rows holds it, as milliseconds since 1970-01-01 UTC.
use crate::failure::Failure;
use crate::watermark::Millis;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, PrimitiveArray, RecordBatch};
use arrow::compute::max;
use arrow::datatypes::{
    DataType, Int64Type, Schema, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use std::sync::Arc;

/// A column with event times: `Int64` (milliseconds) or a timestamp of any unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTime {
    /// Index of the column.
    pub column: usize,
    /// Its name, for errors.
    pub name: String,
}

impl EventTime {
    /// Finds the column, or says what is wrong with it.
    pub fn of(schema: &Schema, name: &str) -> Result<EventTime, Failure> {
        let Some((column, field)) = schema.column_with_name(name) else {
            let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            return Err(Failure::Fatal(format!("there is no event-time column {name:?}; the columns are {}", names.join(", "))));
        };
        match field.data_type() {
            DataType::Int64 | DataType::Timestamp(_, _) => Ok(EventTime { column, name: name.into() }),
            other => Err(Failure::Fatal(format!(
                "column {name:?} is {other} and cannot be an event time: use BIGINT (milliseconds) or a timestamp"
            ))),
        }
    }

    /// The newest time of a batch. `None`: there are no rows, or all are NULL.
    pub fn newest(&self, rows: &RecordBatch) -> Option<Millis> {
        max(self.millis(rows.column(self.column)).as_primitive::<Int64Type>())
    }

    /// The times of all rows. A NULL is a failure that names the column: a row without event time belongs to no window.
    pub fn of_rows(&self, rows: &RecordBatch) -> Result<Int64Array, Failure> {
        let millis = self.millis(rows.column(self.column));
        if millis.null_count() > 0 {
            return Err(Failure::Fatal(format!(
                "event-time column {:?} is NULL in {} of {} rows: filter such rows out before the window",
                self.name,
                millis.null_count(),
                millis.len()
            )));
        }
        Ok(millis.as_primitive::<Int64Type>().clone())
    }

    fn millis(&self, column: &ArrayRef) -> ArrayRef {
        match column.data_type() {
            DataType::Timestamp(TimeUnit::Second, _) => scale(column.as_primitive::<TimestampSecondType>(), |x| x.saturating_mul(1000)),
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                Arc::new(column.as_primitive::<TimestampMillisecondType>().reinterpret_cast::<Int64Type>())
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                scale(column.as_primitive::<TimestampMicrosecondType>(), |x| x.div_euclid(1000))
            }
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                scale(column.as_primitive::<TimestampNanosecondType>(), |x| x.div_euclid(1_000_000))
            }
            _ => column.clone(),
        }
    }
}

fn scale<T: arrow::datatypes::ArrowPrimitiveType<Native = i64>>(column: &PrimitiveArray<T>, f: impl Fn(i64) -> i64) -> ArrayRef {
    Arc::new(column.unary::<_, Int64Type>(f))
}

/// How a source finds its watermark (Flink's `WatermarkStrategy`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatermarkStrategy {
    /// The column with the event time.
    pub column: String,
    /// Bounded out-of-orderness: how far, in milliseconds, a row may be behind the newest of its split.
    pub delay_ms: i64,
    /// A split that is caught up and had no row for so long does not hold the others back.
    pub idle_timeout: Option<std::time::Duration>,
}

impl WatermarkStrategy {
    /// No row before the answer is expected from a split whose newest row is this (Flink's `BoundedOutOfOrdernessWatermarks`).
    pub fn watermark(&self, newest: Millis) -> Millis {
        newest.saturating_sub(self.delay_ms).saturating_sub(1)
    }
}
