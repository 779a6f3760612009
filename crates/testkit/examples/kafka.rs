//! Starts Apache Kafka in a temporary folder and keeps it until stdin ends, for trying things out by hand.
//!
//! `cargo run -p semel-testkit --example kafka [1|3]` prints `bootstrap=...`; Ctrl-D or Ctrl-C ends it.

use std::io::Read;

use semel_testkit::{Error, Kafka, KafkaOptions, Result};

fn main() -> Result<()> {
    let brokers = match std::env::args().nth(1).as_deref() {
        None | Some("1") => 1,
        Some("3") => 3,
        Some(other) => {
            return Err(Error::Setup(format!("1 or 3 brokers can be started, not {other}")));
        }
    };
    let kafka = Kafka::start_with(KafkaOptions { brokers, ..KafkaOptions::default() })?;
    println!("bootstrap={} pid={:?} folder={}", kafka.bootstrap(), kafka.pid(1)?, kafka.dir().display());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}
