//! Which bytes are JSON and which are not, and what a bad record's reason says.
#![allow(clippy::unwrap_used)]
mod common;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use common::{decode, json, reason, schema};

/// Texts of a value, and whether RFC 8259 (with UTF-8, and without lone surrogates) has them.
const VALUES: &[(&[u8], bool)] = &[
    (b"0", true),
    (b"-0", true),
    (b"-1.5e+10", true),
    (b"1E400", true),
    (b"123456789012345678901234567890", true),
    (b"0.00000000000000000000000000001", true),
    (b"true", true),
    (b"false", true),
    (b"null", true),
    (b"\"\"", true),
    (b"\"a\"", true),
    (b"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", true),
    (b"\"\\u0000\\u00e4\\uD83D\\ude00\"", true),
    ("\"ä€😀\u{7f}\u{2028}\"".as_bytes(), true),
    (b"[]", true),
    (b"[ ]", true),
    (b"[1,[2,{\"b\":[]}],\"]\"]", true),
    (b"{}", true),
    (b"{ }", true),
    (b"{\"\":1,\"\":2}", true),
    (b" \t\r\n1\n", true),
    (b"", false),
    (b"01", false),
    (b"-", false),
    (b"-01", false),
    (b"+1", false),
    (b"1.", false),
    (b".5", false),
    (b"1.e5", false),
    (b"1e", false),
    (b"1e+", false),
    (b"0x10", false),
    (b"1_000", false),
    (b"1 2", false),
    (b"NaN", false),
    (b"Infinity", false),
    (b"-Infinity", false),
    (b"True", false),
    (b"tru", false),
    (b"truee", false),
    (b"nul", false),
    (b"undefined", false),
    (b"'a'", false),
    (b"\"a", false),
    (b"a\"", false),
    (b"\"\\", false),
    (b"\"\\x41\"", false),
    (b"\"\\a\"", false),
    (b"\"\\u12\"", false),
    (b"\"\\u12g4\"", false),
    (b"\"\\ud800\"", false),
    (b"\"\\udc00\"", false),
    (b"\"\\ud800\\u0041\"", false),
    (b"\"\\ud83d\\ud83d\"", false),
    (b"\"\n\"", false),
    (b"\"\t\"", false),
    (b"\"\0\"", false),
    (b"\"\x1f\"", false),
    (b"\"\xff\"", false),
    (b"\"\xc0\x80\"", false),
    (b"\"\xed\xa0\x80\"", false),
    (b"\"\xf4\x90\x80\x80\"", false),
    (b"\"abcdefgh\xe2\x82\"", false),
    (b"[", false),
    (b"]", false),
    (b"[1", false),
    (b"[1,]", false),
    (b"[,1]", false),
    (b"[1 2]", false),
    (b"[1}", false),
    (b"{", false),
    (b"{\"a\"}", false),
    (b"{\"a\":}", false),
    (b"{\"a\":1,}", false),
    (b"{,}", false),
    (b"{a:1}", false),
    (b"{1:1}", false),
    (b"{\"a\" 1}", false),
    (b"{\"a\"::1}", false),
    (b"{\"a\":1 \"b\":2}", false),
    (b"{\"\\x\":1}", false),
    (b"/* */1", false),
    (b"1//", false),
    (b"\xc2\xa01", false),
    (b"\x0b1", false),
    (b"\xef\xbb\xbf1", false),
];

fn with_value(value: &[u8]) -> Vec<u8> {
    [b"{\"x\":", value, b",\"a\":7}"].concat()
}

#[test]
fn values_are_accepted_exactly_if_they_are_json() {
    // Skipped as an unknown field; and kept as text, where strings are unescaped and others copied.
    for columns in [vec![("a", DataType::Int64)], vec![("a", DataType::Int64), ("x", DataType::Utf8)]] {
        let schema = schema(&columns);
        for (value, valid) in VALUES {
            let record = with_value(value);
            let shown = String::from_utf8_lossy(&record).into_owned();
            let decoded = decode(&json(), &schema, &[record]);
            assert_eq!(decoded.bad.is_empty(), *valid, "{shown} {:?}", decoded.bad);
            if *valid {
                assert_eq!(decoded.rows.column(0).as_primitive::<Int64Type>().value(0), 7, "{shown}");
            }
        }
    }
}

#[test]
fn the_table_agrees_with_serde_json() {
    for (value, valid) in VALUES {
        let record = with_value(value);
        // It refuses numbers beyond 64-bit floats, which is not a matter of grammar.
        let expected = serde_json::from_slice::<serde_json::Value>(&record).is_ok() || *value == b"1E400";
        assert_eq!(expected, *valid, "{}", String::from_utf8_lossy(&record));
    }
}

#[test]
fn records_are_one_object_and_nothing_else() {
    let schema = schema(&[("a", DataType::Int64)]);
    let table: &[(&str, bool)] = &[
        ("{}", true),
        ("{\"a\":1}", true),
        (" \t\r\n{ \"a\" : 1 } \r\n", true),
        ("{\"\\u0061\":1}", true),
        ("{\"a\":1}\n\n", true),
        ("", false),
        (" ", false),
        ("null", false),
        ("1", false),
        ("\"a\"", false),
        ("[]", false),
        ("[{\"a\":1}]", false),
        ("{\"a\":1}}", false),
        ("{\"a\":1}{\"a\":2}", false),
        ("{\"a\":1}\0", false),
        ("{\"a\":1},", false),
        ("\u{feff}{\"a\":1}", false),
        ("a", false),
    ];
    for (record, valid) in table {
        let decoded = decode(&json(), &schema, &[record]);
        assert_eq!(decoded.bad.is_empty(), *valid, "{record:?} {:?}", decoded.bad);
    }
}

#[test]
fn nesting_has_a_limit_that_protects_the_stack() {
    for (open, close) in [("[", "]"), ("{\"b\":", "}")] {
        let record = |depth: usize| {
            let inner = if open == "[" { "" } else { "1" };
            format!("{{\"x\":{}{inner}{},\"a\":7}}", open.repeat(depth), close.repeat(depth))
        };
        let schema = schema(&[("a", DataType::Int64)]);
        let decoded = decode(&json(), &schema, &[record(127), record(128), record(100_000), record(1)]);
        assert_eq!(decoded.kept, Some(vec![0, 3]));
        assert!(decoded.bad[0].reason.contains("nested more than 128 deep"), "{:?}", decoded.bad[0]);
    }
    let mut nested = DataType::Int64;
    for _ in 0..140 {
        nested = DataType::new_list(nested, true);
    }
    let schema = schema(&[("l", nested)]);
    let deep = format!("{{\"l\":{}{}}}", "[".repeat(140), "]".repeat(140));
    assert!(reason(&json(), &schema, deep.as_bytes()).contains("nested more than 128 deep"));
}

#[test]
fn a_beginning_of_a_record_is_bad_even_if_the_rest_follows_in_the_buffer() {
    let text = r#" {"a": 1234567890123, "s":"text of some lengt\u00e4 \"", "d":-12.25,"n":[{"k":null}],"b":true} "#;
    let schema = schema(&[("a", DataType::Int64), ("s", DataType::Utf8), ("d", DataType::Decimal128(10, 2)), ("b", DataType::Boolean)]);
    let mut decoder = json().deserializer(schema).unwrap();
    let full = text.trim_end().len();
    for len in 0..=text.len() {
        // The whole text comes first, so that its tokens are known when the beginning is read.
        let spans = [semel_formats::Span::new(0, text.len() as u32), semel_formats::Span::new(0, len as u32)];
        let decoded = decoder.decode(semel_formats::Records { data: text.as_bytes(), spans: &spans });
        assert_eq!(decoded.bad.is_empty(), len >= full, "{:?} {:?}", &text[..len], decoded.bad);
        let rows = decoded.rows;
        assert_eq!(rows.column(1).as_string::<i32>().value(0), "text of some lengtä \"");
        assert!(rows.num_rows() == 1 || rows.slice(0, 1) == rows.slice(1, 1));
    }
}

#[test]
fn reasons_name_column_finding_and_place() {
    let inner = DataType::Struct(vec![arrow::datatypes::Field::new("zip", DataType::Int32, true)].into());
    let list = DataType::new_list(DataType::Int8, true);
    let schema = schema(&[
        ("a", DataType::Int64),
        ("address", inner),
        ("d", DataType::Decimal128(4, 2)),
        ("t", DataType::Timestamp(arrow::datatypes::TimeUnit::Millisecond, None)),
        ("l", list),
    ]);
    let table = [
        (r#"{"a":"x"}"#, "column 'a': expected a number, found a string that holds none at byte 5"),
        (r#"{"a":{}}"#, "column 'a': expected a number, found an object at byte 5"),
        (r#"{"a":1.5}"#, "column 'a': a number with a fraction for BIGINT at byte 5"),
        (r#"{"a":9223372036854775808}"#, "column 'a': a number out of the range of BIGINT at byte 5"),
        (r#"{"a":1,"address":{"zip":true}}"#, "column 'address.zip': expected a number, found 't' at byte 24"),
        (r#"{"d":100}"#, "column 'd': a number out of the range of DECIMAL(4, 2) at byte 5"),
        (r#"{"t":"yesterday"}"#, "column 't': expected a timestamp such as"),
        (r#"{"l":[1,300]}"#, "column 'l': a number out of the range of TINYINT at byte 8"),
        (r#"{"a":1"#, "expected ',' or '}', found the record's end at byte 6"),
        (r#"{"a":1} x"#, "more bytes after the record's end at byte 8"),
    ];
    for (record, expected) in table {
        let found = reason(&json(), &schema, record.as_bytes());
        assert!(found.contains(expected), "{record}: {found}");
    }
}
