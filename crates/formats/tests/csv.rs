//! CSV: quotes, escapes, NULL, line ends, header.
#![allow(clippy::unwrap_used)]
mod common;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use common::{csv, decode, encode, reason, schema};
use semel_formats::Format;
use semel_formats::csv::CsvOptions;

fn with(change: impl FnOnce(&mut CsvOptions)) -> Format {
    let mut options = CsvOptions::default();
    change(&mut options);
    Format::Csv(options)
}

/// The fields of one record of as many text columns as there are.
fn fields(format: &Format, columns: usize, record: &str) -> Result<Vec<Option<String>>, String> {
    let names: Vec<String> = (0..columns).map(|i| format!("c{i}")).collect();
    let columns: Vec<_> = names.iter().map(|name| (name.as_str(), DataType::Utf8)).collect();
    let decoded = decode(format, &schema(&columns), &[record]);
    if let Some(bad) = decoded.bad.first() {
        return Err(bad.reason.clone());
    }
    let text = |c: &ArrayRef| c.is_valid(0).then(|| c.as_string::<i32>().value(0).to_owned());
    Ok(decoded.rows.columns().iter().map(text).collect())
}

#[test]
fn quotes_null_and_line_ends() {
    let table: &[(&str, &[Option<&str>])] = &[
        ("a,b", &[Some("a"), Some("b")]),
        ("a,", &[Some("a"), None]),
        (",", &[None, None]),
        ("\"\",\"\"", &[Some(""), Some("")]),
        ("\"a\",\"b\"", &[Some("a"), Some("b")]),
        ("\"a,b\",c", &[Some("a,b"), Some("c")]),
        ("\"a\"\"b\",\"\"\"\"", &[Some("a\"b"), Some("\"")]),
        ("\"a\nb\r\n\",\"\n\"", &[Some("a\nb\r\n"), Some("\n")]),
        ("a\"b,c\"", &[Some("a\"b"), Some("c\"")]),
        (" a , b ", &[Some(" a "), Some(" b ")]),
        (" \"a\",b", &[Some(" \"a\""), Some("b")]),
        ("a,b\n", &[Some("a"), Some("b")]),
        ("a,b\r\n", &[Some("a"), Some("b")]),
        ("a,\r\n", &[Some("a"), None]),
        ("ä,😀", &[Some("ä"), Some("😀")]),
        ("a\\,b", &[Some("a\\"), Some("b")]),
    ];
    for (record, expected) in table {
        let expected: Vec<_> = expected.iter().map(|f| f.map(str::to_owned)).collect();
        assert_eq!(fields(&csv(), 2, record), Ok(expected), "{record:?}");
    }
    assert_eq!(fields(&csv(), 1, ""), Ok(vec![None]));
    assert_eq!(fields(&csv(), 1, "\"\""), Ok(vec![Some(String::new())]));
}

#[test]
fn what_is_not_csv_is_refused() {
    let table = [
        ("a", "1 fields instead of 2, at byte 1"),
        ("a,b,c", "more than 2 fields, at byte 3"),
        ("a,b,", "more than 2 fields, at byte 3"),
        ("\"a,b", "column 'c0': a quote that is not closed, at byte 0"),
        ("a,\"b", "column 'c1': a quote that is not closed, at byte 2"),
        ("\"a\"b,c", "column 'c0': text after a closing quote, at byte 3"),
        ("a\nb,c", "column 'c0': a line end outside of quotes, at byte 1"),
        ("a,b\n\n", "column 'c1': a line end outside of quotes, at byte 3"),
        ("a,b\nc,d", "column 'c1': a line end outside of quotes, at byte 3"),
    ];
    for (record, expected) in table {
        assert_eq!(fields(&csv(), 2, record), Err(expected.to_owned()), "{record:?}");
    }
}

#[test]
fn other_characters() {
    let some = |texts: &[&str]| Ok(texts.iter().map(|t| Some((*t).to_owned())).collect::<Vec<_>>());
    let escaped = with(|o| o.escape = Some('\\'));
    assert_eq!(fields(&escaped, 2, r#"a\,b,"c\"d\\""#), some(&["a,b", "c\"d\\"]));
    assert_eq!(fields(&escaped, 2, r"\ä,b"), some(&["ä", "b"]));
    assert!(fields(&escaped, 1, "a\\").unwrap_err().contains("an escape character with nothing after it"));
    let unquoted = with(|o| o.quote = None);
    assert_eq!(fields(&unquoted, 2, "\"a,b\""), some(&["\"a", "b\""]));
    let literal = with(|o| o.null_literal = "NULL".to_owned());
    assert_eq!(
        fields(&literal, 4, "NULL,\"NULL\",,null"),
        Ok(vec![None, Some("NULL".to_owned()), Some(String::new()), Some("null".to_owned())])
    );
    let tabs = with(|o| o.delimiter = '\t');
    assert_eq!(fields(&tabs, 2, "a,b\tc"), some(&["a,b", "c"]));
}

#[test]
fn null_where_the_column_may_not_hold_it() {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("name", DataType::Utf8, false)]));
    let decoded = decode(&csv(), &schema, &["1,", "2,a"]);
    assert_eq!(decoded.rows.column(1).as_string::<i32>().value(0), "");
    assert_eq!(reason(&csv(), &schema, b",a"), "column 'id': NULL, and the column is NOT NULL, at byte 0");
}

#[test]
fn spaces_signs_and_zeros_around_numbers() {
    let schema = schema(&[("id", DataType::Int64), ("flag", DataType::Boolean)]);
    let decoded = decode(&csv(), &schema, &[" +007 , TRUE ", "\"-1\",\"false\"", "1e3,"]);
    assert_eq!(decoded.bad, []);
    assert_eq!(decoded.rows.column(0).as_primitive::<Int64Type>().values(), &[7, -1, 1000]);
    assert_eq!(decoded.rows.column(1).as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false), None]);
}

fn texts(values: &[Option<&str>]) -> RecordBatch {
    let columns = values.iter().enumerate().map(|(i, value)| {
        let column: ArrayRef = Arc::new(StringArray::from(vec![*value]));
        (format!("c{i}"), column, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn fields_are_quoted_only_where_they_must_be() {
    let rows = texts(&[Some("a b"), None, Some(""), Some("a,b"), Some("\""), Some("\n"), Some("\\")]);
    assert_eq!(encode(&csv(), &rows), ["a b,,\"\",\"a,b\",\"\"\"\",\"\n\",\\"]);
    let literal = with(|o| o.null_literal = "NULL".to_owned());
    assert_eq!(encode(&literal, &texts(&[None, Some("NULL"), Some(""), Some("null")])), ["NULL,\"NULL\",,null"]);
    let escaped = with(|o| (o.quote, o.escape) = (None, Some('\\')));
    assert_eq!(encode(&escaped, &texts(&[Some("a,b"), Some("\\"), None, Some("\"")])), [r#"a\,b,\\,,""#]);
}

#[test]
fn texts_that_a_dialect_cannot_hold_are_refused() {
    let unquoted = with(|o| o.quote = None);
    let escaped = with(|o| (o.quote, o.escape) = (None, Some('\\')));
    let table = [
        (&unquoted, "a,b", "a text with the delimiter in it"),
        (&unquoted, "a\nb", "a text with a line end"),
        (&unquoted, "", "a text that equals the null literal"),
        (&escaped, "a\nb", "a text with a line end"),
        (&escaped, "", "a text that equals the null literal"),
    ];
    for (format, text, expected) in table {
        let rows = texts(&[Some("good"), Some(text)]);
        let mut out = semel_formats::EncodedRows::default();
        let error = format.serializer(rows.schema()).unwrap().encode(&rows, &mut out).unwrap_err().to_string();
        assert!(error.starts_with("row 0, column 'c1': ") && error.contains(expected), "{error}");
        assert!(error.contains("set csv.quote-character"), "{error}");
    }
}

#[test]
fn the_header_names_the_columns() {
    let schema = schema(&[("id", DataType::Int64), ("a,b", DataType::Utf8), ("", DataType::Utf8)]);
    let header = |format: Format| format.header(Arc::clone(&schema)).unwrap();
    assert_eq!(header(with(|o| o.header = true)).unwrap(), b"id,\"a,b\",\"\"");
    assert_eq!(header(csv()), None);
    assert_eq!(header(common::json()), None);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let schema = schema(&[("id", DataType::Int64)]);
    let table: &[(Format, &str)] = &[
        (with(|o| o.delimiter = 'ä'), "field-delimiter"),
        (with(|o| o.delimiter = '\n'), "field-delimiter"),
        (with(|o| o.delimiter = '"'), "quote-character"),
        (with(|o| o.quote = Some('\r')), "quote-character"),
        (with(|o| o.escape = Some('"')), "escape-character"),
        (with(|o| o.escape = Some(',')), "escape-character"),
        (with(|o| o.null_literal = "a,b".to_owned()), "null-literal"),
        (with(|o| o.null_literal = "\n".to_owned()), "null-literal"),
    ];
    for (format, option) in table {
        let error = format.deserializer(Arc::clone(&schema)).err().unwrap().to_string();
        assert!(error.starts_with(&format!("CSV: option '{option}': must")), "{error}");
    }
}
