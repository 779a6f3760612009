//! Which JSON values each type of column takes.
#![allow(clippy::unwrap_used)]
mod common;

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimeUnit};
use common::{decode, encode, json, reason, schema};
use semel_formats::json::JsonOptions;
use semel_formats::{Format, Records};

/// The value as it is written again, or `None` if it is refused.
fn normal(data_type: &DataType, value: &str) -> Option<String> {
    let decoded = decode(&json(), &schema(&[("c", data_type.clone())]), &[format!("{{\"c\":{value}}}")]);
    if !decoded.bad.is_empty() {
        return None;
    }
    let text = encode(&json(), &decoded.rows).remove(0);
    Some(text.strip_prefix("{\"c\":").unwrap().strip_suffix('}').unwrap().to_owned())
}

/// A type, texts it takes with what they are written as again, and texts it refuses.
type Case<'a> = (DataType, &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn values_by_type() {
    use DataType::*;
    let millis = Timestamp(TimeUnit::Millisecond, None);
    let list = DataType::new_list(Int8, false);
    let table: &[Case<'_>] = &[
        (
            Int8,
            &[("127", "127"), ("-128", "-128"), ("1.0", "1"), ("1e2", "100"), ("\"5\"", "5"), ("-0", "0")],
            &["128", "-129", "0.5", "1e3", "true", "\"\"", "\" 5\"", "[]", "{}"],
        ),
        (UInt16, &[("65535", "65535"), ("0", "0"), ("-0", "0")], &["-1", "65536"]),
        (
            Int64,
            &[
                ("999999999999999999", "999999999999999999"),
                ("1000000000000000000", "1000000000000000000"),
                ("-9223372036854775808", "-9223372036854775808"),
                ("1234567", "1234567"),
                ("12345678", "12345678"),
                ("123456789", "123456789"),
                ("1234567890123456", "1234567890123456"),
                ("12345678901234567", "12345678901234567"),
                ("9.2e18", "9200000000000000000"),
            ],
            &["9223372036854775808", "-9223372036854775809", "1e19", "99999999999999999999999"],
        ),
        (UInt64, &[("18446744073709551615", "18446744073709551615")], &["18446744073709551616", "-1"]),
        (
            Float64,
            &[
                ("1", "1.0"),
                ("0.1", "0.1"),
                ("-0.0", "-0.0"),
                ("1e400", ""),
                ("123456789.1234567", "123456789.1234567"),
                ("0.30000000000000004", "0.30000000000000004"),
                ("1e-400", "0.0"),
                ("\"2.5\"", "2.5"),
                ("2.2250738585072011e-308", "2.225073858507201e-308"),
            ],
            &["1e309", "\"NaN\"", "\"inf\"", "true"],
        ),
        (Float32, &[("16777217", "16777216.0"), ("0.1", "0.1")], &["1e39", "-3.5e38"]),
        (Boolean, &[("true", "true"), ("false", "false"), ("\"true\"", "true")], &["1", "\"True\"", "\"\""]),
        (
            Decimal128(10, 2),
            &[
                ("123.45", "123.45"),
                ("123", "123.00"),
                ("0.005", "0.01"),
                ("-0.005", "-0.01"),
                ("0.004999", "0.00"),
                ("1.234567890123", "1.23"),
                ("99999999.99", "99999999.99"),
                ("1e-3", "0.00"),
                ("1.5e3", "1500.00"),
                ("\"12.5\"", "12.50"),
                ("-0.00", "0.00"),
                ("00000000.1", ""),
            ],
            &["100000000", "99999999.995", "1e8", "\"\"", "\"abc\"", "true"],
        ),
        (
            Decimal128(38, 10),
            &[("1234567890123456789012345678.0123456789", "1234567890123456789012345678.0123456789"), ("0.00000000005", "0.0000000001")],
            &["12345678901234567890123456789"],
        ),
        (
            Utf8,
            &[
                ("\"a\\u0062\\n\"", "\"ab\\n\""),
                ("12.50", "\"12.50\""),
                ("true", "\"true\""),
                ("{\"a\": [1]}", "\"{\\\"a\\\": [1]}\""),
                ("\"\\/\"", "\"/\""),
                ("\"\\ud83d\\ude00\"", "\"😀\""),
            ],
            &["01", "[1,]"],
        ),
        (Binary, &[("\"AP8=\"", "\"AP8=\""), ("\"\"", "\"\""), ("\"\\u0041P8=\"", "\"AP8=\"")], &["\"AP8\"", "\"A\"", "\"äääa\"", "1"]),
        (
            Date32,
            &[("\"2024-02-29\"", "\"2024-02-29\""), ("\"0000-01-01\"", "\"0000-01-01\"")],
            &["\"2023-02-29\"", "\"2024-1-1\"", "1", "\"2024-01-01 00:00:00\"", "\"+9999999-01-01\""],
        ),
        (
            Time32(TimeUnit::Millisecond),
            &[("\"23:59:59.1239\"", "\"23:59:59.123\""), ("\"01:02\"", "\"01:02:00\"")],
            &["\"24:00:00\"", "\"1:2:3\"", "5"],
        ),
        (
            millis,
            &[
                ("1700000000123", "\"2023-11-14 22:13:20.123\""),
                ("\"2023-11-14T22:13:20.5Z\"", "\"2023-11-14 22:13:20.5\""),
                ("\"2023-11-15 00:13:20+02:00\"", "\"2023-11-14 22:13:20\""),
                ("-1", "\"1969-12-31 23:59:59.999\""),
            ],
            &["\"2023-11-14\"", "\"1700000000123\"", "1.5", "true", "\"\""],
        ),
        (list, &[("[]", "[]"), ("[ 1 , 2 ]", "[1,2]")], &["[1,null]", "[300]", "1", "{}", "\"[1]\""]),
    ];
    for (data_type, good, bad) in table {
        for (value, expected) in *good {
            let expected = (!expected.is_empty()).then(|| (*expected).to_owned());
            assert_eq!(normal(data_type, value), expected, "{data_type} {value}");
        }
        for value in *bad {
            assert_eq!(normal(data_type, value), None, "{data_type} {value}");
        }
        assert_eq!(normal(data_type, " null "), Some("null".to_owned()));
    }
}

#[test]
fn the_last_of_several_fields_with_one_name_wins() {
    let inner = DataType::Struct(vec![Field::new("x", DataType::Int32, true), Field::new("y", DataType::Utf8, true)].into());
    let entries = vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int32, true)];
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false);
    let schema = schema(&[
        ("a", DataType::Int64),
        ("s", DataType::Utf8),
        ("o", inner),
        ("l", DataType::new_list(DataType::Int32, true)),
        ("m", map),
    ]);
    let twice = r#"{"a":1,"s":"x","o":{"x":1,"y":"u","x":2},"a":null,"s":"y","l":[1,2],"o":{"y":"w"},"a":3,"l":[4],
        "m":{"k":1,"j":2,"k":3},"m":{"k":5,"j":6,"\u006b":7}}"#;
    let other = r#"{"a":9,"s":"z","o":{"x":8,"y":"q"},"l":[],"m":{}}"#;
    let decoded = decode(&json(), &schema, &[other, twice, other]);
    assert_eq!(decoded.bad, []);
    let found = encode(&json(), &decoded.rows);
    let once = r#"{"a":3,"s":"y","o":{"x":null,"y":"w"},"l":[4],"m":{"j":6,"k":7}}"#;
    assert_eq!(found, [other, once, other]);
}

#[test]
fn missing_fields() {
    let fields = vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int64, true)];
    let schema = Arc::new(Schema::new(fields));
    let decoded = decode(&json(), &schema, &[r#"{"a":1}"#, r#"{"a":1,"b":null}"#, r#"{"c":1,"a":1}"#]);
    assert_eq!((decoded.bad.len(), decoded.rows.column(1).null_count()), (0, 3));
    assert_eq!(reason(&json(), &schema, br#"{"b":1}"#), "column 'a': the field is missing at byte 7");
    assert!(reason(&json(), &schema, br#"{"a":null}"#).starts_with("column 'a': null, and the column is NOT NULL"));
    let strict = Format::Json(JsonOptions { fail_on_missing_field: true, ..JsonOptions::default() });
    let decoded = decode(&strict, &schema, &[r#"{"a":1}"#, r#"{"a":1,"b":null}"#, r#"{"b":2,"a":1}"#]);
    assert_eq!(decoded.kept, Some(vec![1, 2]));
    assert_eq!(decoded.bad[0].reason, "column 'b': the field is missing at byte 7");
}

#[test]
fn fields_may_change_their_order_their_spacing_and_their_set_from_row_to_row() {
    let names = ["a", "a_long_name_of_more_than_16_bytes", "a_long_name_of_more_than_17_bytes", "ab", ""];
    let columns: Vec<_> = names.iter().map(|name| (*name, DataType::Int32)).collect();
    let mut decoder = json().deserializer(schema(&columns)).unwrap();
    let (mut records, mut expected) = (Vec::new(), Vec::new());
    for i in 0..5000_i32 {
        // Runs of alike rows, so that one form is learned and then replaced by another.
        let form = if i < 2500 { i / 100 } else { i };
        let colon = [":", ": ", " :\t"][form as usize % 3];
        let mut fields: Vec<_> = names.iter().enumerate().map(|(c, name)| (c as i32, *name)).collect();
        fields.rotate_left(form as usize % 5);
        fields.retain(|(c, _)| (form + c) % 4 != 0);
        let mut row = [None; 5];
        let texts: Vec<String> = fields
            .iter()
            .map(|(c, name)| {
                row[*c as usize] = Some(i * 10 + c);
                format!("\"{name}\"{colon}{},\"unknown{}\":\"}}\"", i * 10 + c, form % 7)
            })
            .collect();
        records.push(format!("{{{}}}", texts.join(if form % 2 == 0 { "," } else { " , " })));
        expected.push(row);
    }
    for (records, expected) in records.chunks(700).zip(expected.chunks(700)) {
        let (data, spans) = common::buffer(records);
        let decoded = decoder.decode(Records { data: &data, spans: &spans });
        assert_eq!(decoded.bad, []);
        for (c, column) in decoded.rows.columns().iter().enumerate() {
            let column = column.as_primitive::<Int32Type>();
            for (i, row) in expected.iter().enumerate() {
                assert_eq!(column.is_valid(i).then(|| column.value(i)), row[c], "{}", records[i]);
            }
        }
    }
}

#[test]
fn a_schema_without_columns_counts_rows() {
    let decoded = decode(&json(), &Arc::new(Schema::empty()), &[r#"{"a":1}"#, "{}", "x"]);
    assert_eq!((decoded.rows.num_rows(), decoded.kept), (2, Some(vec![0, 1])));
    assert_eq!(encode(&json(), &decoded.rows), ["{}", "{}"]);
}

#[test]
fn spans_may_overlap_and_come_in_any_order() {
    let data = br#"{"a":1}  {"a":2}"#;
    let spans = [(9, 7), (0, 7), (0, 9), (7, 9)].map(|(start, len)| semel_formats::Span::new(start, len));
    let mut decoder = json().deserializer(schema(&[("a", DataType::Int64)])).unwrap();
    let decoded = decoder.decode(Records { data, spans: &spans });
    assert_eq!(decoded.rows.column(0).as_primitive::<Int64Type>().values(), &[2, 1, 1, 2]);
}
