//! The benchmark jobs, from Kafka to Kafka, exactly once: `A` (filter), `B` (10 s windows per customer), `D` (running count per
//! customer). `bench/engine.sh` runs it.
//!
//! Parameters: `job`, `brokers`, `in`, `out`, `prefix`, `bounded` (`latest-offset` or `unbounded`).
use semel::api::*;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    execute("bench", |env| {
        env.checkpoint_config().set_checkpoint_timeout(Duration::from_secs(60));
        let needed = |name: &str| env.parameter(name).map(str::to_owned).ok_or(format!("--param {name}=... is needed"));
        let (job, brokers, prefix) = (needed("job")?, needed("brokers")?, needed("prefix")?);
        let schema = SchemaBuilder::new()
            .column_not_null("order_id", DataTypes::bigint())
            .column_not_null("customer_id", DataTypes::int())
            .column_not_null("amount", DataTypes::decimal(10, 2))
            .column_not_null("ts", DataTypes::bigint())
            .column_not_null("region", DataTypes::string());
        // What a job does not use is not decoded, as a planner would see to.
        let schema = match job.as_str() {
            "A" => schema,
            "B" => SchemaBuilder::new()
                .column_not_null("customer_id", DataTypes::int())
                .column_not_null("amount", DataTypes::decimal(10, 2))
                .column_not_null("ts", DataTypes::bigint()),
            "D" => SchemaBuilder::new().column_not_null("customer_id", DataTypes::int()),
            other => return Err(format!("there is no job {other:?}: A, B or D").into()),
        };
        let bounded = match needed("bounded")?.as_str() {
            "unbounded" => BoundedMode::Unbounded,
            "latest-offset" => BoundedMode::Latest,
            other => return Err(format!("bounded={other:?}: latest-offset or unbounded is needed").into()),
        };
        let source = KafkaSource::json(schema.build()?)
            .bootstrap_servers(&brokers)
            .topics([needed("in")?])
            .group_id(&prefix)
            .starting_offsets(OffsetsInitializer::Earliest)
            .bounded(bounded)
            .build()?;
        let sink = KafkaSink::json()
            .bootstrap_servers(&brokers)
            .topic(needed("out")?)
            .delivery_guarantee(DeliveryGuarantee::ExactlyOnce)
            .transactional_id_prefix(&prefix)
            .property("transaction.timeout.ms", "900000")
            .build()?;
        let watermarks = match job.as_str() {
            "B" => WatermarkStrategy::for_bounded_out_of_orderness("ts", Duration::from_secs(2)),
            _ => WatermarkStrategy::no_watermarks(),
        };
        let orders = env.from_source(source, watermarks, "orders")?;
        let result = match job.as_str() {
            "A" => orders.filter(col("region").not_eq(lit("ap")))?.select_columns(["order_id", "customer_id", "amount", "ts"])?,
            "B" => orders
                .key_by(["customer_id"])
                .window(TumblingEventTimeWindows::of(Duration::from_secs(10)))
                .aggregate([count().alias("cnt"), sum("amount").alias("total")])?
                .select_columns(["window_start", "customer_id", "cnt", "total"])?,
            _ => orders.key_by(["customer_id"]).aggregate([count().alias("cnt")])?,
        };
        result.sink_to(sink)?.uid("out")?;
        Ok(())
    })
}
