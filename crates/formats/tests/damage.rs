//! Bad records in the middle of good ones: the good ones become rows, exactly as if the bad ones were not there.
#![allow(clippy::unwrap_used)]
mod common;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use common::{buffer, check, csv, decode, json};
use semel_formats::{Format, Records, Span};

fn nested_schema() -> SchemaRef {
    let point =
        Fields::from(vec![Field::new("x", DataType::Int32, false), Field::new("tags", DataType::new_list(DataType::Utf8, true), true)]);
    let entries = Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int16, true)]);
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false);
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("bin", DataType::Binary, true),
        Field::new("flag", DataType::Boolean, true),
        Field::new("price", DataType::Decimal128(6, 2), true),
        Field::new("at", DataType::Timestamp(TimeUnit::Millisecond, None), true),
        Field::new("points", DataType::new_list(DataType::Struct(point), true), true),
        Field::new("counts", map, true),
    ]))
}

fn good_json(i: usize) -> String {
    match i % 4 {
        0 => format!(
            r#"{{"id":{i},"name":"n{i}","bin":"AQI=","flag":true,"price":{i}.5,"at":"2024-01-31 23:59:59.{:03}","points":[{{"x":{i},"tags":["a","b\n"]}},null,{{"x":2}}],"counts":{{"k":1,"l":null}}}}"#,
            i % 1000
        ),
        1 => format!(r#"{{"id":{i},"points":[]}}"#),
        2 => format!(r#"{{"name":null,"counts":{{}},"id":{i},"unknown":[1,{{"a":"}}"}}]}}"#),
        _ => format!(r#"{{ "id": {i}, "points": [{{"tags": [], "x": 7}}], "flag": false }}"#),
    }
}

const BAD_JSON: &[&str] = &[
    "",
    "nonsense",
    "{",
    "[]",
    "null",
    r#"{"id":1"#,
    r#"{"id":1,"#,
    r#"{"id":1}}"#,
    r#"{"id":1} {"id":2}"#,
    r#"{"name":"without id"}"#,
    r#"{"id":null}"#,
    r#"{"id":1,"id":"x"}"#,
    r#"{"id":9223372036854775808}"#,
    r#"{"id":1,"name":"no end}"#,
    "{\"id\":1,\"name\":\"line\nend\"}",
    r#"{"id":1,"name":"half","bin":"AQI"}"#,
    r#"{"id":1,"name":"good","bin":"AQI=","flag":1}"#,
    r#"{"id":1,"name":"good","bin":"AQI=","flag":true,"price":12345.67}"#,
    r#"{"id":1,"price":1.5,"at":"2024-02-30 00:00:00"}"#,
    r#"{"id":1,"points":[{"x":1,"tags":["a","b"]},{"x":2,"tags":["c",{]}]}"#,
    r#"{"id":1,"points":[{"x":1},{"x":2,"tags":["c"]},{"tags":["d"]}]}"#,
    r#"{"id":1,"points":[{"x":1},{"x":1.5}]}"#,
    r#"{"id":1,"counts":{"a":1,"b":2,"c":40000}}"#,
    r#"{"id":1,"counts":{"a":1,"b":}}"#,
    r#"{"id":1,"points":[{"x":1}],"counts":{"a":1},"unknown":[1,2,}"#,
    r#"{"id":1,"name":"\ud800"}"#,
    r#"{"id":01}"#,
];

fn csv_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, true),
        Field::new("bin", DataType::Binary, true),
        Field::new("flag", DataType::Boolean, true),
        Field::new("price", DataType::Decimal128(6, 2), true),
        Field::new("at", DataType::Timestamp(TimeUnit::Millisecond, None), true),
    ]))
}

fn good_csv(i: usize) -> String {
    match i % 3 {
        0 => format!("{i},n{i},AQI=,true,{i}.5,2024-01-31 23:59:59"),
        1 => format!("{i},,,,,"),
        _ => format!("{i},\"a \"\"name\"\",\n\",,false,-1,"),
    }
}

const BAD_CSV: &[&str] = &[
    "",
    "1",
    "1,,,,",
    "1,,,,,,",
    ",a,,,,",
    "x,a,,,,",
    "1.5,a,,,,",
    "9223372036854775808,a,,,,",
    "1,\"a,,,,",
    "1,\"a\"b,,,,",
    "1,\"a\" ,,,,",
    "1,a\nb,,,,",
    "1,a\rb,,,,",
    "1,a,AQI,,,",
    "1,a,AQI=,yes,,",
    "1,a,AQI=,true,12345.67,",
    "1,a,AQI=,true,1e,",
    "1,a,AQI=,true,1.5,2024-02-30 00:00:00",
    "1,a,AQI=,true,1.5,yesterday",
    "1,a,AQI=,true,1.5,2024-01-31 23:59:59\n\n",
    "1,a,AQI=,\"\",1.5,",
    "1,a,AQI=,true,--1,",
];

/// Puts each bad record, and then all of them, between good ones.
fn good_rows_stay(format: &Format, schema: &SchemaRef, good: fn(usize) -> String, bad: &[Vec<u8>]) {
    let rows: Vec<Vec<u8>> = (0..40).map(|i| good(i).into_bytes()).collect();
    let expected = decode(format, schema, &rows);
    assert_eq!((expected.bad.as_slice(), expected.kept), (&[][..], None));
    let expected = expected.rows;
    let mut decoder = format.deserializer(Arc::clone(schema)).unwrap();
    for damage in bad {
        let shown = String::from_utf8_lossy(damage);
        for at in [0, 1, 20, 21, 22, 23, 39, 40] {
            let mut records = rows.clone();
            records.insert(at, damage.clone());
            let (data, spans) = buffer(&records);
            let decoded = decoder.decode(Records { data: &data, spans: &spans });
            check(&decoded, records.len());
            assert_eq!(decoded.bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [at], "{shown}");
            assert_eq!(decoded.rows, expected, "{shown}");
        }
    }
    let mut records = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        records.push(row.clone());
        records.push(bad[i % bad.len()].clone());
        records.push(bad[(i * 7 + 3) % bad.len()].clone());
    }
    let decoded = decode(format, schema, &records);
    assert_eq!(decoded.bad.len(), 80);
    assert_eq!(decoded.kept, Some((0..40).map(|i| i * 3).collect()));
    assert_eq!(decoded.rows, expected);
    // Nothing but damage: an empty batch of the same schema, and the decoder goes on.
    let (data, spans) = buffer(bad);
    let decoded = decoder.decode(Records { data: &data, spans: &spans });
    assert_eq!((decoded.rows.num_rows(), decoded.bad.len()), (0, bad.len()));
    assert_eq!(decoded.rows.schema(), *schema);
    let (data, spans) = buffer(&rows);
    assert_eq!(decoder.decode(Records { data: &data, spans: &spans }).rows, expected);
}

fn with_invalid_utf8(bad: &[&str], record: &[u8]) -> Vec<Vec<u8>> {
    let mut bad: Vec<_> = bad.iter().map(|text| text.as_bytes().to_vec()).collect();
    bad.push(record.to_vec());
    assert!(bad.len() >= 20);
    bad
}

#[test]
fn bad_json_leaves_the_good_rows_as_they_are() {
    let bad = with_invalid_utf8(BAD_JSON, b"{\"id\":1,\"name\":\"\xff\"}");
    good_rows_stay(&json(), &nested_schema(), good_json, &bad);
}

#[test]
fn bad_csv_leaves_the_good_rows_as_they_are() {
    let bad = with_invalid_utf8(BAD_CSV, b"1,\xff,,,,");
    good_rows_stay(&csv(), &csv_schema(), good_csv, &bad);
}

#[test]
fn bad_raw_text_leaves_the_good_rows_as_they_are() {
    let schema = common::schema(&[("value", DataType::Utf8)]);
    let decoded = decode(&Format::Raw, &schema, &[&b"a"[..], b"b\xff", b"", b"\xed\xa0\x80", b"c"]);
    assert_eq!(decoded.kept, Some(vec![0, 2, 4]));
    assert_eq!(decoded.bad[0].reason, "column 'value': invalid UTF-8 at byte 1");
    assert_eq!(common::encode(&Format::Raw, &decoded.rows), ["a", "", "c"]);
}

#[test]
fn tombstones_are_skipped_and_spans_beyond_the_buffer_are_bad() {
    let cases = [
        (json(), csv_schema(), good_json(1)),
        (csv(), csv_schema(), good_csv(1)),
        (Format::Raw, common::schema(&[("value", DataType::Binary)]), "x".to_owned()),
    ];
    for (format, schema, good) in cases {
        let len = good.len() as u32;
        let spans = [
            Span::NULL,
            Span::new(0, len),
            Span::new(1, len),
            Span::new(len + 1, 0),
            Span::new(u32::MAX, 1),
            Span::NULL,
            Span::new(0, len),
            Span::new(0, u32::MAX),
        ];
        let mut decoder = format.deserializer(Arc::clone(&schema)).unwrap();
        let decoded = decoder.decode(Records { data: good.as_bytes(), spans: &spans });
        assert_eq!(decoded.kept, Some(vec![1, 6]), "{format:?}");
        assert_eq!(decoded.bad.iter().map(|bad| bad.index).collect::<Vec<_>>(), [2, 3, 4, 7], "{format:?}");
        assert_eq!(decoded.rows.slice(0, 1), decoded.rows.slice(1, 1));
        // Nothing at all is an empty batch.
        let nothing = decoder.decode(Records { data: &[], spans: &[] });
        assert_eq!((nothing.rows.num_rows(), nothing.bad.len(), nothing.kept), (0, 0, None));
    }
}
