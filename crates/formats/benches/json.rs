//! CPU time per row of JSON, on one thread: `cargo bench -p semel-formats`.
//!
//! Decoding is compared with arrow-json's decoder, encoding with its line writer.
#![allow(clippy::unwrap_used, missing_docs)]
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use semel_formats::json::{JsonDecoder, JsonEncoder, JsonOptions};
use semel_formats::{DeserializationSchema, EncodedRows, Records, SerializationSchema, Span};

const ROWS: usize = 8192;
const ROUNDS: usize = 60;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("order_id", DataType::Int64, true),
        Field::new("customer_id", DataType::Int32, true),
        Field::new("amount", DataType::Decimal128(10, 2), true),
        Field::new("ts", DataType::Int64, true),
        Field::new("region", DataType::Utf8, true),
    ]))
}

fn orders() -> (Vec<u8>, Vec<Span>) {
    let (mut data, mut spans) = (Vec::new(), Vec::new());
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for i in 0..ROWS as u64 {
        let region = ["eu", "us", "asia", "africa"][random(4) as usize];
        let text = format!(
            r#"{{"order_id":{},"customer_id":{},"amount":{}.{:02},"ts":{},"region":"{region}"}}"#,
            1_234_567 + i,
            random(100_000),
            random(1000),
            random(100),
            1_700_000_000_123 + i,
        );
        spans.push(Span::new(data.len() as u32, text.len() as u32));
        data.extend_from_slice(text.as_bytes());
    }
    (data, spans)
}

/// The best of the rounds, in nanoseconds per row.
fn time(mut round: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_nanos() as f64 / ROWS as f64);
    }
    best
}

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let run = |name: &str| only.is_empty() || name.contains(&only);
    let (data, spans) = orders();
    let schema = schema();
    let mut decoder = JsonDecoder::new(Arc::clone(&schema), &JsonOptions::default()).unwrap();
    let decoded = decoder.decode(Records { data: &data, spans: &spans });
    assert!(decoded.bad.is_empty() && decoded.rows.num_rows() == ROWS, "{:?}", decoded.bad.first());
    let rows: RecordBatch = decoded.rows;
    println!("{ROWS} rows of {:.1} bytes, best of {ROUNDS} rounds, ns per row", data.len() as f64 / ROWS as f64);
    if run("decode") {
        let ns = time(|| {
            black_box(decoder.decode(Records { data: black_box(&data), spans: &spans }));
        });
        println!("decode, semel       {ns:7.1}");
    }
    if run("arrow-decode") {
        let mut arrow = arrow::json::ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(ROWS).build_decoder().unwrap();
        let ns = time(|| {
            let consumed = arrow.decode(black_box(&data)).unwrap();
            assert_eq!(consumed, data.len());
            let batch = arrow.flush().unwrap().unwrap();
            assert_eq!(batch.num_rows(), ROWS);
            black_box(batch);
        });
        println!("decode, arrow-json  {ns:7.1}");
    }
    if run("encode") {
        let mut encoder = JsonEncoder::new(Arc::clone(&schema), &JsonOptions::default()).unwrap();
        let mut out = EncodedRows::default();
        let ns = time(|| {
            encoder.encode(black_box(&rows), &mut out).unwrap();
            black_box(&out);
        });
        assert_eq!(out.data.len(), data.len());
        println!("encode, semel       {ns:7.1}");
    }
    if run("arrow-encode") {
        let mut out = Vec::new();
        let ns = time(|| {
            out.clear();
            let mut writer = arrow::json::LineDelimitedWriter::new(&mut out);
            writer.write(black_box(&rows)).unwrap();
            writer.finish().unwrap();
            black_box(&out);
        });
        println!("encode, arrow-json  {ns:7.1}");
    }
}
