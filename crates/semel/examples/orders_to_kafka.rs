//! The job that this project was conceived for: orders from Kafka, transformed record by record, into Kafka, each exactly once.
//!
//! ```text
//! cargo run --release --example orders_to_kafka -- run --checkpoint-dir /var/lib/orders \
//!     --param brokers=localhost:9092 --param in=orders --param out=orders-eur
//! ```
//!
//! Kill it whenever you like, and start it again with the same command. Read the output with `isolation.level=read_committed`.
use semel::api::*;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Deserialize)]
struct Order {
    order_id: i64,
    customer_id: i64,
    /// A DECIMAL is exact: it is a text here.
    amount: String,
    ts: i64,
    region: String,
}

#[derive(Serialize, Deserialize)]
struct PricedOrder {
    order_id: i64,
    customer_id: i64,
    amount: String,
    currency: String,
    ts: i64,
}

fn main() -> ExitCode {
    execute("orders-to-kafka", |env| {
        env.enable_checkpointing(Duration::from_secs(10))
            .set_min_pause_between_checkpoints(Duration::from_secs(1))
            .set_checkpoint_timeout(Duration::from_secs(60))
            .set_tolerable_checkpoint_failure_number(3)
            .set_num_retained(3);

        let brokers = env.parameter_or("brokers", "localhost:9092");
        let schema = SchemaBuilder::new()
            .column_not_null("order_id", DataTypes::bigint())
            .column_not_null("customer_id", DataTypes::bigint())
            .column_not_null("amount", DataTypes::decimal(10, 2))
            .column_not_null("ts", DataTypes::bigint())
            .column_not_null("region", DataTypes::string())
            .build()?;
        let source = KafkaSource::json(schema)
            .bootstrap_servers(&brokers)
            .topics([env.parameter_or("in", "orders")])
            .group_id("orders-to-kafka")
            .starting_offsets(OffsetsInitializer::Earliest)
            .bounded(if env.parameter("bounded").is_some() { BoundedMode::Latest } else { BoundedMode::Unbounded })
            .build()?;
        let sink = KafkaSink::json()
            .bootstrap_servers(&brokers)
            .topic(env.parameter_or("out", "orders-out"))
            .key_columns(["order_id"])
            .key_format(KeyFormat::json())
            .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
            .transactional_id_prefix("orders-to-kafka")
            .property("transaction.timeout.ms", "900000")
            .build()?;

        env.from_source(source, WatermarkStrategy::no_watermarks(), "orders")?
            .typed::<Order>()?
            .filter(|order| order.region != "ap")?
            .map(|order| PricedOrder {
                order_id: order.order_id,
                customer_id: order.customer_id,
                amount: order.amount,
                currency: if order.region == "us" { "USD" } else { "EUR" }.to_owned(),
                ts: order.ts,
            })?
            .sink_to(sink)?
            .uid("orders-out")?;
        Ok(())
    })
}
