//! The job that the kill tests run: `job=filter` (stateless) or `job=windows` (keyed state and watermarks), from generated orders
//! or from Kafka, into Kafka or files, exactly once.
//!
//! Parameters: `job`; `rows` and `rate` (generated) or `in-brokers` and `in` (a topic); `brokers`, `out`, `prefix` (a topic) or
//! `folder` (files); `bounded` ends at what the topic holds at the start; `fetch` is
//! `max.partition.fetch.bytes`; `timeout` is `transaction.timeout.ms`.
use semel::api::*;
use std::process::ExitCode;
use std::time::Duration;

/// Length of a window: short, so that most checkpoints hold finished ones.
const WINDOW: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    execute("kill-job", |env| {
        env.enable_checkpointing(Duration::from_millis(50));
        let job = env.parameter_or("job", "windows");
        let bounded = if env.parameter("bounded").is_some() { BoundedMode::Latest } else { BoundedMode::Unbounded };
        let watermarks = match job.as_str() {
            "windows" => WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(2)),
            "filter" => WatermarkStrategy::no_watermarks(),
            other => return Err(format!("there is no job {other:?}: filter or windows").into()),
        };
        let orders = match env.parameter("in") {
            None => {
                let (rows, rate) = (env.parameter_or("rows", "10000").parse()?, env.parameter_or("rate", "10000").parse()?);
                env.from_source(datagen::orders(1).rows(rows).rows_per_second(rate), watermarks, "orders")?
            }
            Some(topic) => env.from_source(topic_source(env, topic, bounded)?, watermarks, "orders")?,
        };
        let result = match job.as_str() {
            "filter" => orders.filter(col("region").not_eq(lit("ap")))?.select_columns(["order_id", "customer_id", "amount", "ts"])?,
            _ => orders
                .key_by(["customer_id"])
                .window(TumblingEventTimeWindows::of(WINDOW))
                .aggregate([count().alias("cnt"), sum("amount").alias("total")])?
                .uid("totals")?
                .select_columns(["window_start", "customer_id", "cnt", "total"])?,
        };
        match env.parameter("folder") {
            Some(folder) => result.sink_to(FileSink::json(folder).build()?)?.uid("out")?,
            None => result.sink_to(topic_sink(env)?)?.uid("out")?,
        };
        Ok(())
    })
}

fn topic_source(env: &StreamExecutionEnvironment, topic: &str, bounded: BoundedMode) -> Result<KafkaSource, Box<dyn std::error::Error>> {
    let schema = SchemaBuilder::new()
        .column_not_null("order_id", DataTypes::bigint())
        .column_not_null("customer_id", DataTypes::bigint())
        .column_not_null("amount", DataTypes::decimal(10, 2))
        .column_not_null("ts", DataTypes::bigint())
        .column_not_null("region", DataTypes::string())
        .build()?;
    let brokers = env.parameter("in-brokers").or(env.parameter("brokers")).unwrap_or("localhost:9092");
    Ok(KafkaSource::json(schema)
        .bootstrap_servers(brokers)
        .topics([topic])
        .group_id("kill-job")
        .starting_offsets(OffsetsInitializer::Earliest)
        .bounded(bounded)
        .property("max.partition.fetch.bytes", env.parameter_or("fetch", "4194304"))
        .build()?)
}

fn topic_sink(env: &StreamExecutionEnvironment) -> Result<KafkaSink, Box<dyn std::error::Error>> {
    let needed = |name: &str| env.parameter(name).ok_or(format!("--param {name}=... is needed"));
    Ok(KafkaSink::json()
        .bootstrap_servers(needed("brokers")?)
        .topic(needed("out")?)
        .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
        .transactional_id_prefix(needed("prefix")?)
        .property("transaction.timeout.ms", env.parameter_or("timeout", "900000"))
        .build()?)
}
