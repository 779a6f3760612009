//! The JSON decoder against serde_json, on generated documents and on damaged ones.
#![allow(clippy::unwrap_used)]
mod common;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Decimal128Type, Field, Float64Type, Int32Type, Int64Type, SchemaRef};
use common::{buffer, check, encode, json, schema};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use semel_formats::Records;
use serde_json::{Map, Value, json};

fn columns() -> SchemaRef {
    let inner = [("x", DataType::Int32), ("y", DataType::Utf8)];
    let inner: Vec<_> = inner.into_iter().map(|(n, t)| Field::new(n, t, true)).collect();
    schema(&[
        ("i", DataType::Int64),
        ("f", DataType::Float64),
        ("s", DataType::Utf8),
        ("b", DataType::Boolean),
        ("d", DataType::Decimal128(20, 3)),
        ("l", DataType::new_list(DataType::Int64, true)),
        ("o", DataType::Struct(inner.into())),
    ])
}

fn text(random: &mut StdRng) -> String {
    const PARTS: &[&str] = &["a", "order", "\"", "\\", "\n", "\u{0}", "\u{1f}", "/", "ä", "€", "😀", " ", "{", "}", ","];
    (0..random.random_range(0..12)).map(|_| PARTS[random.random_range(0..PARTS.len())]).collect()
}

fn number(random: &mut StdRng) -> i64 {
    // All magnitudes alike.
    random.random::<i64>() >> random.random_range(0..64)
}

fn value(random: &mut StdRng, name: &str) -> Value {
    if random.random_bool(0.1) {
        return Value::Null;
    }
    match name {
        "i" => json!(number(random)),
        "f" => match random.random_range(0..3) {
            0 => json!(f64::from_bits(random.random()).clamp(-1e300, 1e300)),
            1 => json!(f64::from(random.random::<i32>()) / 64.0),
            _ => json!(number(random)),
        },
        "s" | "y" => json!(text(random)),
        "b" => json!(random.random::<bool>()),
        // An integer of thousandths; the document holds it with a point.
        "d" => json!(number(random) / 4096),
        "l" => (0..random.random_range(0..4)).map(|_| value(random, "i")).collect(),
        "x" => json!(random.random::<i32>()),
        "o" => object(random, &["x", "y"]),
        _ => match random.random_range(0..4) {
            0 => object(random, &["i", "f", "o", "s"]),
            1 => json!([value(random, "f"), value(random, "other"), []]),
            2 => json!({}),
            _ => value(random, "s"),
        },
    }
}

/// Some of the fields, in any order.
fn object(random: &mut StdRng, names: &[&str]) -> Value {
    let mut names = names.to_vec();
    if random.random_bool(0.3) {
        names.shuffle(random);
    }
    names.retain(|_| random.random_bool(0.9));
    names.into_iter().map(|name| (name.to_owned(), value(random, name))).collect::<Map<_, _>>().into()
}

fn write(value: &Value, spaces: &str, out: &mut String, random: &mut StdRng) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(spaces);
                write(item, spaces, out, random);
            }
            out.push_str(spaces);
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            if random.random_bool(0.2) {
                fields.shuffle(random);
            }
            out.push('{');
            for (i, (name, value)) in fields.into_iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(spaces);
                out.push_str(&format!("\"{name}\"{spaces}:{spaces}"));
                match value {
                    Value::Number(n) if name == "d" => {
                        let n = n.as_i64().unwrap();
                        let sign = if n < 0 { "-" } else { "" };
                        out.push_str(&format!("{sign}{}.{:03}", n.abs() / 1000, n.abs() % 1000));
                    }
                    Value::String(text) if random.random_bool(0.2) => {
                        out.push('"');
                        text.encode_utf16().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
                        out.push('"');
                    }
                    value => write(value, spaces, out, random),
                }
            }
            out.push_str(spaces);
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

const NAMES: &[&str] = &["i", "f", "s", "b", "d", "l", "o", "other", "more"];

/// Documents and what they hold.
fn documents(seed: u64, count: usize) -> Vec<(String, Value)> {
    let mut random = StdRng::seed_from_u64(seed);
    let document = |_| {
        let value = object(&mut random, NAMES);
        let spaces = ["", "", "", " ", "\t\r\n "][random.random_range(0..5)];
        let mut text = String::new();
        write(&value, spaces, &mut text, &mut random);
        (text, value)
    };
    (0..count).map(document).collect()
}

/// What row `row` of a column holds, as JSON.
fn cell(array: &ArrayRef, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Int64 => json!(array.as_primitive::<Int64Type>().value(row)),
        DataType::Int32 => json!(array.as_primitive::<Int32Type>().value(row)),
        DataType::Float64 => json!(array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(..) => {
            json!(i64::try_from(array.as_primitive::<Decimal128Type>().value(row)).unwrap())
        }
        DataType::Boolean => json!(array.as_boolean().value(row)),
        DataType::Utf8 => json!(array.as_string::<i32>().value(row)),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            (0..items.len()).map(|i| cell(&items, i)).collect()
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            fields.iter().zip(columns).map(|(f, c)| (f.name().clone(), cell(c, row))).collect()
        }
        other => panic!("no column is of type {other}"),
    }
}

/// The expected cell: a field of the document, in the column's type.
fn expected(data_type: &DataType, value: Option<&Value>) -> Value {
    match (data_type, value) {
        (_, None) => Value::Null,
        (DataType::Float64, Some(Value::Number(n))) => json!(n.as_f64().unwrap()),
        (DataType::Struct(fields), Some(Value::Object(object))) => {
            fields.iter().map(|f| (f.name().clone(), expected(f.data_type(), object.get(f.name())))).collect()
        }
        (_, Some(value)) => value.clone(),
    }
}

#[test]
fn generated_documents_decode_to_what_they_hold() {
    let documents = documents(1, 20_000);
    let schema = columns();
    let (texts, values): (Vec<_>, Vec<_>) = documents.into_iter().unzip();
    // One decoder for all, so that what it learned from a batch meets the next.
    let mut decoder = json().deserializer(Arc::clone(&schema)).unwrap();
    for (texts, values) in texts.chunks(1000).zip(values.chunks(1000)) {
        let (data, spans) = buffer(texts);
        let decoded = decoder.decode(Records { data: &data, spans: &spans });
        assert_eq!(decoded.bad, [], "{:?}", decoded.bad.first().map(|bad| &texts[bad.index]));
        assert_eq!(decoded.kept, None);
        for (row, value) in values.iter().enumerate() {
            for (field, array) in schema.fields().iter().zip(decoded.rows.columns()) {
                let expected = expected(field.data_type(), value.get(field.name()));
                assert_eq!(cell(array, row), expected, "{}: {}", field.name(), texts[row]);
            }
        }
        // What is written of them is JSON to others, with the same values.
        for (row, text) in encode(&json(), &decoded.rows).iter().enumerate() {
            let read: Value = serde_json::from_str(text).unwrap();
            // Without its exact mode serde_json may miss a float's last bit, and it knows no decimals.
            let exact = |f: &&Arc<Field>| !matches!(f.data_type(), DataType::Decimal128(..) | DataType::Float64);
            for field in schema.fields().iter().filter(exact) {
                let read = expected(field.data_type(), read.get(field.name()));
                assert_eq!(read, expected(field.data_type(), values[row].get(field.name())), "{text}");
            }
            assert_eq!(read.as_object().unwrap().len(), schema.fields().len(), "{text}");
        }
    }
}

#[test]
fn damaged_documents_are_refused_exactly_if_serde_json_refuses_them() {
    const BYTES: &[u8] = b"\"\\{}[]:,0123456789.eE+-tfn \n\x00\x1f\x7f\x80\xc3\xff/u";
    let mut random = StdRng::seed_from_u64(2);
    let mut damaged = Vec::new();
    for (text, _) in documents(3, 30_000) {
        let mut bytes = text.into_bytes();
        for _ in 0..random.random_range(1..=2) {
            let at = random.random_range(0..bytes.len());
            let byte = BYTES[random.random_range(0..BYTES.len())];
            match random.random_range(0..4) {
                0 if bytes.len() > 1 => drop(bytes.remove(at)),
                1 => bytes.insert(at, byte),
                2 => bytes.truncate(at.max(1)),
                _ => bytes[at] = byte,
            }
        }
        damaged.push(bytes);
    }
    // No field is of interest, so only the grammar counts; "i" is read as text to try another path.
    for columns in [vec![("none", DataType::Int64)], vec![("i", DataType::Utf8)]] {
        let (data, spans) = buffer(&damaged);
        let mut decoder = json().deserializer(schema(&columns)).unwrap();
        let decoded = decoder.decode(Records { data: &data, spans: &spans });
        check(&decoded, damaged.len());
        let mut bad = decoded.bad.iter().peekable();
        let (mut refused, mut accepted) = (0, 0);
        for (i, bytes) in damaged.iter().enumerate() {
            let ours = bad.next_if(|bad| bad.index == i);
            let theirs = serde_json::from_slice::<Value>(bytes);
            if theirs.as_ref().is_err_and(|error| error.to_string().contains("number out of range")) {
                continue;
            }
            let valid = theirs.as_ref().is_ok_and(Value::is_object);
            assert_eq!(ours.is_none(), valid, "{}\n{ours:?}\n{theirs:?}", String::from_utf8_lossy(bytes));
            *(if valid { &mut accepted } else { &mut refused }) += 1;
        }
        assert!(refused > 10_000 && accepted > 1_000, "{refused} refused, {accepted} accepted");
    }
}

#[test]
fn records_of_any_bytes_do_no_harm() {
    let mut random = StdRng::seed_from_u64(4);
    let records: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            let len = random.random_range(0..40);
            let mut bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
            if random.random() {
                bytes.splice(0..0, *b"{\"i\":");
            }
            bytes
        })
        .collect();
    for format in [json(), common::csv()] {
        let schema = schema(&[("i", DataType::Int64), ("s", DataType::Utf8)]);
        let decoded = common::decode(&format, &schema, &records);
        for bad in &decoded.bad {
            assert!(!bad.reason.is_empty());
        }
    }
}
