//! Rows without any server: a source that makes them, for demonstrations, load and tests.
//!
//! Row `i` is a pure function of its number, so that a restart makes the same rows again. Split `k` of `n` holds the rows `i` with
//! `i % n == k`.
use super::{DataTypes, SchemaBuilder};
use arrow::array::{ArrayRef, Decimal128Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use semel_checkpoint::{OperatorUid, SplitState};
use semel_engine::sink::{ConnectorError, ConnectorResult, Finding, JobNeeds};
use semel_engine::source::{Source, SourceContext, SourceEvent, SourceReader};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Most rows of a batch.
const BATCH: u64 = 8192;

type Generator = Arc<dyn Fn(&[u64]) -> Result<RecordBatch, ArrowError> + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub struct GeneratorSource {
    schema: SchemaRef,
    generator: Generator,
    rows: Option<u64>,
    rows_per_second: Option<f64>,
    splits: u64,
}

impl fmt::Debug for GeneratorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GeneratorSource { rows, rows_per_second, splits, .. } = self;
        let mut debug = f.debug_struct("GeneratorSource");
        debug.field("rows", rows).field("rows_per_second", rows_per_second).field("splits", splits).finish_non_exhaustive()
    }
}

impl GeneratorSource {
    /// Endless, as fast as it can, 4 splits. `generator` makes the rows of the given numbers, in their order.
    pub fn new(
        schema: SchemaRef,
        generator: impl Fn(&[u64]) -> Result<RecordBatch, ArrowError> + Send + Sync + 'static,
    ) -> GeneratorSource {
        GeneratorSource { schema, generator: Arc::new(generator), rows: None, rows_per_second: None, splits: 4 }
    }
    /// Ends after so many rows (the numbers below it).
    pub fn rows(mut self, rows: u64) -> GeneratorSource {
        self.rows = Some(rows);
        self
    }
    /// At most so many rows per second, by all subtasks together.
    pub fn rows_per_second(mut self, rows: f64) -> GeneratorSource {
        self.rows_per_second = (rows > 0.0).then_some(rows);
        self
    }
    /// Divides the rows into so many splits (at least 1). Fixed for the life of the job's state.
    pub fn splits(mut self, splits: u32) -> GeneratorSource {
        self.splits = u64::from(splits.max(1));
        self
    }

    fn rows_of_split(&self, split: u64) -> Option<u64> {
        self.rows.map(|rows| (rows + self.splits - 1 - split) / self.splits)
    }

    fn state(&self, split: &GeneratedSplit) -> SplitState {
        let detail = serde_json::json!({ "splits": self.splits });
        SplitState { split: split.name.to_string(), position: split.position as i64, watermark: None, detail }
    }
}

impl Source for GeneratorSource {
    type Reader = GeneratorReader;

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid) -> Vec<Finding> {
        vec![]
    }

    async fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>) -> ConnectorResult<GeneratorReader> {
        let restored = restored.unwrap_or_default();
        if let Some(other) = restored.iter().find(|split| split.detail["splits"] != self.splits) {
            return Err(ConnectorError::Fatal(format!(
                "source {}: the checkpoint was made with {} splits, the program asks for {}: row numbers would change. Keep the number of splits",
                context.uid, other.detail["splits"], self.splits
            )));
        }
        let position = |name: &str| restored.iter().find(|s| s.split == name).map_or(0, |s| s.position as u64);
        let split = |number| {
            let name = format!("generated-{number}");
            GeneratedSplit { number, position: position(&name), name: name.into() }
        };
        let own = (0..self.splits).map(split).filter(|split| context.owns(&split.name)).collect::<Vec<_>>();
        let rate = self.rows_per_second.map(|all| all * own.len() as f64 / self.splits as f64);
        Ok(GeneratorReader { source: self.clone(), own, next: 0, announced: false, rate, made: 0, began: Instant::now(), numbers: vec![] })
    }
}

#[derive(Debug)]
struct GeneratedSplit {
    number: u64,
    name: Arc<str>,
    position: u64,
}

/// The reader of [`GeneratorSource`].
#[derive(Debug)]
pub struct GeneratorReader {
    source: GeneratorSource,
    own: Vec<GeneratedSplit>,
    next: usize,
    announced: bool,
    /// Rows per second of this subtask.
    rate: Option<f64>,
    made: u64,
    began: Instant,
    numbers: Vec<u64>,
}

impl SourceReader for GeneratorReader {
    fn splits(&mut self) -> Vec<SplitState> {
        self.own.iter().map(|split| self.source.state(split)).collect()
    }

    async fn next(&mut self) -> ConnectorResult<SourceEvent> {
        if !self.announced {
            self.announced = true;
            return Ok(SourceEvent::NoMoreSplits);
        }
        if self.own.is_empty() {
            return std::future::pending().await;
        }
        self.next = (self.next + 1) % self.own.len();
        let batch = match self.rate {
            // About fifty batches a second.
            Some(rate) => ((rate / 50.0).ceil() as u64).clamp(1, BATCH),
            None => BATCH,
        };
        if let Some(rate) = self.rate {
            sleep_until(self.began + Duration::from_secs_f64(self.made as f64 / rate)).await;
        }
        // Nothing is awaited below: dropping this future loses nothing.
        let split = &mut self.own[self.next];
        let end = self.source.rows_of_split(split.number).unwrap_or(i64::MAX as u64).min(split.position + batch);
        if end <= split.position {
            let split = self.own.remove(self.next).name;
            return Ok(SourceEvent::SplitFinished { split });
        }
        self.numbers.clear();
        self.numbers.extend((split.position..end).map(|position| position * self.source.splits + split.number));
        let rows = (self.source.generator)(&self.numbers);
        let rows = rows.map_err(|e| ConnectorError::Fatal(format!("making rows {} to {}: {e}", split.position, end)))?;
        self.made += end - split.position;
        split.position = end;
        Ok(SourceEvent::Rows { split: split.name.clone(), rows, position: end as i64, caught_up: self.rate.is_some() })
    }
}

/// One order, as [`orders`] makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Its number.
    pub order_id: u64,
    /// 0 to 999.
    pub customer_id: u64,
    /// The amount in hundredths: 100 to 100 000.
    pub cents: i64,
    /// Event time in milliseconds since 1970, UTC: one order per millisecond, up to 2 s out of order.
    pub ts: i64,
    /// `eu` (half of all), `us` (30 %) or `ap`.
    pub region: &'static str,
}

/// The finalizer of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Order number `i`.
pub fn order(seed: u64, i: u64) -> Order {
    let h = mix(seed.wrapping_mul(0x632B_E59B_D9B4_E019).wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let region = match mix(h ^ 2) % 10 {
        0..5 => "eu",
        5..8 => "us",
        _ => "ap",
    };
    let time = (2000 + i - mix(h ^ 3) % 2000) as i64;
    Order { order_id: i, customer_id: h % 1000, cents: 100 + (mix(h ^ 1) % 99_901) as i64, ts: 1_700_000_000_000 + time, region }
}

/// Orders: `order_id BIGINT, customer_id BIGINT, amount DECIMAL(10, 2), ts BIGINT, region STRING`, none NULL.
pub fn orders(seed: u64) -> GeneratorSource {
    let columns = SchemaBuilder::new()
        .column_not_null("order_id", DataTypes::bigint())
        .column_not_null("customer_id", DataTypes::bigint())
        .column_not_null("amount", DataTypes::decimal(10, 2))
        .column_not_null("ts", DataTypes::bigint())
        .column_not_null("region", DataTypes::string());
    let schema = columns.schema();
    GeneratorSource::new(schema.clone(), move |numbers| {
        let orders: Vec<Order> = numbers.iter().map(|i| order(seed, *i)).collect();
        let longs = |of: fn(&Order) -> i64| Arc::new(Int64Array::from_iter_values(orders.iter().map(of))) as ArrayRef;
        let amounts = Decimal128Array::from_iter_values(orders.iter().map(|o| i128::from(o.cents))).with_precision_and_scale(10, 2)?;
        let regions = StringArray::from_iter_values(orders.iter().map(|o| o.region));
        let columns =
            vec![longs(|o| o.order_id as i64), longs(|o| o.customer_id as i64), Arc::new(amounts), longs(|o| o.ts), Arc::new(regions)];
        RecordBatch::try_new(schema.clone(), columns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_hold_every_row_once() {
        for (rows, splits) in [(0, 3), (1, 4), (10, 3), (12, 4)] {
            let source = orders(1).rows(rows).splits(splits);
            let all: u64 = (0..u64::from(splits)).map(|k| source.rows_of_split(k).unwrap()).sum();
            assert_eq!(all, rows);
        }
    }

    #[test]
    fn the_orders_are_those_that_the_testkit_expects() {
        for (i, expected) in semel_testkit::orders::orders(7, 5000).enumerate() {
            let made = order(7, i as u64);
            assert_eq!(
                (made.order_id, made.customer_id, made.cents, made.ts, made.region),
                (expected.order_id, expected.customer_id, expected.cents, expected.ts, expected.region)
            );
        }
    }
}
