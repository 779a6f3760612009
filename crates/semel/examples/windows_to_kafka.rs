//! Orders from Kafka, counted and summed per customer in windows of 10 s, into Kafka, exactly once.
//!
//! ```text
//! cargo run --release --example windows_to_kafka -- run --checkpoint-dir /var/lib/windows \
//!     --param brokers=localhost:9092 --param in=orders --param out=windows
//! ```
//!
//! Orders that come more than 2 s after a newer one of their partition are late. With `--param late=TOPIC` they go to that topic.
use semel::api::*;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    execute("windows-to-kafka", |env| {
        env.enable_checkpointing(Duration::from_secs(1)).set_checkpoint_timeout(Duration::from_secs(60));
        let brokers = env.parameter_or("brokers", "localhost:9092");
        let schema = SchemaBuilder::new()
            .column_not_null("customer_id", DataTypes::bigint())
            .column_not_null("amount", DataTypes::decimal(10, 2))
            .column_not_null("ts", DataTypes::bigint())
            .build()?;
        let source = KafkaSource::json(schema)
            .bootstrap_servers(&brokers)
            .topics([env.parameter_or("in", "orders")])
            .group_id("windows-to-kafka")
            .starting_offsets(OffsetsInitializer::Earliest)
            .bounded(if env.parameter("bounded").is_some() { BoundedMode::Latest } else { BoundedMode::Unbounded })
            .build()?;
        let sink = |topic: String, prefix: &str| {
            KafkaSink::json()
                .bootstrap_servers(&brokers)
                .topic(topic)
                .key_columns(["customer_id"])
                .key_format(KeyFormat::json())
                .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
                .transactional_id_prefix(prefix)
                .property("transaction.timeout.ms", "900000")
                .build()
        };

        let late = OutputTag::new("late");
        let watermarks =
            WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(2)).with_idleness(Duration::from_secs(10));
        let mut windows = env
            .from_source(source, watermarks, "orders")?
            .key_by(["customer_id"])
            .window(TumblingEventTimeWindows::of(Duration::from_secs(10)));
        if env.parameter("late").is_some() {
            windows = windows.side_output_late_data(&late);
        }
        let totals = windows.aggregate([count().alias("cnt"), sum("amount").alias("total")])?.uid("totals")?;
        totals.sink_to(sink(env.parameter_or("out", "windows"), "windows-to-kafka")?)?.uid("windows")?;
        if let Some(topic) = env.parameter("late") {
            totals.side_output(&late)?.sink_to(sink(topic.to_owned(), "windows-to-kafka-late")?)?.uid("late")?;
        }
        Ok(())
    })
}
