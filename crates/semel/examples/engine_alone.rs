//! The engine without connectors: generated numbers, keyed work, nothing written. `bench/engine_alone.sh` runs it.
//!
//! Parameters: `job` (`filter`, `sum`: a running sum per key, `window`: sums per key in windows of 10 s of event time), `keys`, `rows`
//! (0: endless), `rate` (rows per second, 0: as fast as it can).
use semel::api::*;
use semel::arrow::array::{Int64Array, RecordBatch};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Rows per millisecond of event time.
const DENSITY: u64 = 100;

fn main() -> ExitCode {
    execute("engine-alone", |env| {
        let number = |name: &str, default: &str| env.parameter_or(name, default).parse::<u64>().map_err(|e| format!("{name}: {e}"));
        let (keys, rows, rate) = (number("keys", "1000")?.max(1), number("rows", "10000000")?, number("rate", "0")?);
        let schema = SchemaBuilder::new()
            .column_not_null("key", DataTypes::bigint())
            .column_not_null("value", DataTypes::bigint())
            .column_not_null("ts", DataTypes::bigint())
            .build()?;
        let made = schema.clone();
        let mut source = GeneratorSource::new(schema, move |numbers| {
            let column = |of: &dyn Fn(u64) -> u64| Arc::new(Int64Array::from_iter_values(numbers.iter().map(|i| of(*i) as i64)));
            // A prime multiplier visits the keys in no order, and each as often as the others.
            let columns = [column(&|i| i.wrapping_mul(1_000_000_007) % keys), column(&|i| i % 1000), column(&|i| i / DENSITY)];
            RecordBatch::try_new(made.clone(), columns.map(|c| c as _).to_vec())
        });
        if rows > 0 {
            source = source.rows(rows);
        }
        let watermarks = WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(1));
        let numbers = env.from_source(source.rows_per_second(rate as f64), watermarks, "numbers")?;
        let result = match env.parameter_or("job", "sum").as_str() {
            "filter" => numbers.filter((col("key") % lit(5)).not_eq(lit(0)))?,
            "sum" => numbers.key_by(["key"]).aggregate([sum("value")])?.uid("sum")?,
            "window" => {
                let windows = numbers.key_by(["key"]).window(TumblingEventTimeWindows::of(Duration::from_secs(10)));
                windows.aggregate([sum("value")])?.uid("window")?
            }
            other => return Err(format!("there is no job {other:?}: filter, sum or window").into()),
        };
        result.sink_to(DiscardingSink)?.uid("nowhere")?;
        Ok(())
    })
}
