//! What the tests have in common.
#![allow(clippy::unwrap_used, dead_code)]
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use semel_formats::csv::CsvOptions;
use semel_formats::json::JsonOptions;
use semel_formats::{Decoded, EncodedRows, Format, Records, Span};

pub fn json() -> Format {
    Format::Json(JsonOptions::default())
}

pub fn csv() -> Format {
    Format::Csv(CsvOptions::default())
}

/// Nullable columns.
pub fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let fields: Vec<_> = columns.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect();
    Arc::new(Schema::new(fields))
}

/// The records one right after the other, as they lie in a fetched batch.
pub fn buffer<R: AsRef<[u8]>>(records: &[R]) -> (Vec<u8>, Vec<Span>) {
    let (mut data, mut spans) = (Vec::new(), Vec::new());
    for record in records.iter().map(AsRef::as_ref) {
        spans.push(Span::new(data.len() as u32, record.len() as u32));
        data.extend_from_slice(record);
    }
    (data, spans)
}

pub fn decode<R: AsRef<[u8]>>(format: &Format, schema: &SchemaRef, records: &[R]) -> Decoded {
    let (data, spans) = buffer(records);
    let mut decoder = format.deserializer(Arc::clone(schema)).unwrap();
    let decoded = decoder.decode(Records { data: &data, spans: &spans });
    check(&decoded, spans.len());
    decoded
}

/// What holds for every result: each record is a row or bad (there are no tombstones here), never both.
pub fn check(decoded: &Decoded, records: usize) {
    assert_eq!(decoded.rows.num_rows() + decoded.bad.len(), records);
    let mut all: Vec<usize> = match &decoded.kept {
        Some(kept) => kept.iter().map(|i| *i as usize).collect(),
        None => (0..decoded.rows.num_rows()).collect(),
    };
    assert!(all.is_sorted() && decoded.bad.is_sorted_by_key(|bad| bad.index));
    all.extend(decoded.bad.iter().map(|bad| bad.index));
    all.sort_unstable();
    assert_eq!(all, (0..records).collect::<Vec<_>>());
}

pub fn encode(format: &Format, rows: &RecordBatch) -> Vec<String> {
    let mut out = EncodedRows::default();
    format.serializer(rows.schema()).unwrap().encode(rows, &mut out).unwrap();
    assert_eq!(out.len(), rows.num_rows());
    out.iter().map(|row| String::from_utf8(row.to_vec()).unwrap()).collect()
}

/// The text of the first error, or what was decoded after all.
pub fn reason(format: &Format, schema: &SchemaRef, record: &[u8]) -> String {
    let decoded = decode(format, schema, &[record]);
    match decoded.bad.first() {
        Some(bad) => bad.reason.clone(),
        None => format!("no error, but {:?}", decoded.rows),
    }
}
