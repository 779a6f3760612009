//! Closures on records of one's own: generated orders, priced one by one, to files.
//!
//! ```text
//! cargo run --example closures -- run --checkpoint-dir /tmp/closures --param out=/tmp/priced
//! ```
//!
//! Parameters: `out` (folder of the output), `rows`, `unknown` (an order whose price nobody knows: the closure panics, and the failure
//! names the operator, the row and what the panic said).
use semel::api::*;
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

#[derive(Deserialize)]
struct Order {
    order_id: i64,
    /// A DECIMAL is exact: it is a text here.
    amount: String,
    region: String,
}

#[derive(Serialize, Deserialize)]
struct PricedOrder {
    order_id: i64,
    price: String,
}

fn main() -> ExitCode {
    execute("closures", |env| {
        let rows: u64 = env.parse_parameter("rows")?.unwrap_or(100_000);
        let unknown: Option<i64> = env.parse_parameter("unknown")?;
        let out = env.parameter("out").ok_or("--param out=FOLDER is needed")?;
        env.from_source(datagen::orders(1).rows(rows), WatermarkStrategy::no_watermarks(), "orders")?
            .typed::<Order>()?
            .map(move |order| {
                if Some(order.order_id) == unknown {
                    panic!("nobody knows the price of order {}", order.order_id);
                }
                let currency = if order.region == "us" { "USD" } else { "EUR" };
                PricedOrder { order_id: order.order_id, price: format!("{} {currency}", order.amount) }
            })?
            .uid("priced")?
            .sink_to(FileSink::json(out).build()?)?
            .uid("files")?;
        Ok(())
    })
}
