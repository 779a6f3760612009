//! Every type, written and read back, in JSON and CSV; and what cannot be held or written.
#![allow(clippy::unwrap_used)]
mod common;

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Float32Type, Float64Type, Schema};
use common::{csv, decode, encode, json};
use semel_formats::csv::CsvOptions;
use semel_formats::json::{JsonOptions, TimestampFormat};
use semel_formats::{EncodeError, EncodedRows, Format, SchemaError};

fn plain_columns() -> Vec<ArrayRef> {
    let max = 10_i128.pow(38) - 1;
    let decimals = |values: Vec<Option<i128>>, precision, scale| {
        Arc::new(Decimal128Array::from(values).with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    let floats = vec![
        Some(0.1),
        Some(-0.0),
        Some(f64::MAX),
        Some(f64::MIN_POSITIVE),
        Some(5e-324),
        None,
        Some(1.0 / 3.0),
        Some(1e21),
        Some(-123_456_789.125),
    ];
    let singles = vec![Some(0.1), Some(-0.0), Some(f32::MAX), Some(f32::MIN_POSITIVE), Some(1e-45), None, Some(16_777_217.0), Some(0.3)];
    let days = vec![Some(0), Some(-1), Some(19_753), None, Some(-719_528), Some(-719_529), Some(i32::MAX), Some(i32::MIN)];
    let units = vec![Some(0), Some(-1), None, Some(1_700_000_000_123), Some(i64::MAX), Some(i64::MIN), Some(100)];
    vec![
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        Arc::new(Int8Array::from(vec![Some(i8::MIN), Some(i8::MAX), None, Some(0)])),
        Arc::new(Int16Array::from(vec![Some(i16::MIN), Some(i16::MAX), None, Some(0)])),
        Arc::new(Int32Array::from(vec![Some(i32::MIN), Some(i32::MAX), None, Some(0)])),
        Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(i64::MAX), None, Some(0), Some(999_999_999_999_999_999)])),
        Arc::new(UInt8Array::from(vec![Some(u8::MAX), None, Some(0)])),
        Arc::new(UInt16Array::from(vec![Some(u16::MAX), None, Some(0)])),
        Arc::new(UInt32Array::from(vec![Some(u32::MAX), None, Some(0)])),
        Arc::new(UInt64Array::from(vec![Some(u64::MAX), None, Some(0), Some(10_000_000_000_000_000_000)])),
        Arc::new(Float32Array::from(singles)),
        Arc::new(Float64Array::from(floats)),
        decimals(vec![Some(12_345), Some(-5), None, Some(0), Some(9_999_999_999)], 10, 2),
        decimals(vec![Some(max), Some(-max), None, Some(0), Some(1)], 38, 38),
        decimals(vec![Some(max), Some(-max), None, Some(0), Some(1)], 38, 0),
        decimals(vec![Some(10_i128.pow(20)), Some(-1), None], 38, 18),
        Arc::new(StringArray::from(vec![
            Some(""),
            Some("a"),
            None,
            Some("\"quoted\""),
            Some("a,b"),
            Some("line\nend\r\n"),
            Some("back\\slash/"),
            Some("\u{0}\u{1}\u{8}\u{c}\u{1f}\u{7f}"),
            Some("äöü€😀"),
            Some(" spaces "),
            Some("null"),
            Some("12"),
            Some("exactly8"),
            Some("sixteen bytes 16"),
            Some("1234567\""),
            Some("12345678\"9"),
            Some("\\N"),
        ])),
        Arc::new(BinaryArray::from(vec![Some(&b""[..]), Some(b"\0\xff"), None, Some(b"abc"), Some(b"abcd")])),
        Arc::new(Date32Array::from(days)),
        Arc::new(Time32SecondArray::from(vec![Some(0), Some(86_399), None])),
        Arc::new(Time32MillisecondArray::from(vec![Some(0), Some(86_399_999), None, Some(10)])),
        Arc::new(Time64MicrosecondArray::from(vec![Some(0), Some(86_399_999_999), None, Some(10)])),
        Arc::new(Time64NanosecondArray::from(vec![Some(0), Some(86_399_999_999_999), None, Some(10)])),
        Arc::new(TimestampSecondArray::from(units.clone())),
        Arc::new(TimestampMillisecondArray::from(units.clone())),
        Arc::new(TimestampMicrosecondArray::from(units.clone())),
        Arc::new(TimestampNanosecondArray::from(units.clone())),
        Arc::new(TimestampMillisecondArray::from(units).with_timezone("UTC")),
    ]
}

fn nested_columns() -> Vec<ArrayRef> {
    let strings = StringArray::from(vec![Some("a"), None, Some("\"b\""), Some(""), Some("c")]);
    let list = ListArray::new(
        Arc::new(Field::new("item", DataType::Utf8, true)),
        OffsetBuffer::from_lengths([2, 0, 0, 1, 2]),
        Arc::new(strings.clone()),
        Some(NullBuffer::from(vec![true, true, false, true, true])),
    );
    let fields = Fields::from(vec![Field::new("x", DataType::Int64, false), Field::new("deep", list.data_type().clone(), true)]);
    // The value of `x` below a NULL has no text; what is read back holds a zero.
    let x = Arc::new(Int64Array::from(vec![1, 0, 2, 3, 4]));
    let nulls = NullBuffer::from(vec![true, false, true, true, true]);
    let structs = StructArray::new(fields, vec![x, Arc::new(list.clone())], Some(nulls));
    let entries = Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Utf8, true)]);
    let keys = StringArray::from(vec!["k", "l", "", "\n", "z"]);
    let map = MapArray::new(
        Arc::new(Field::new("entries", DataType::Struct(entries.clone()), false)),
        OffsetBuffer::from_lengths([3, 0, 0, 1, 1]),
        StructArray::new(entries, vec![Arc::new(keys), Arc::new(strings)], None),
        Some(NullBuffer::from(vec![true, true, false, true, true])),
        false,
    );
    let of_structs = ListArray::new(
        Arc::new(Field::new("item", structs.data_type().clone(), true)),
        OffsetBuffer::from_lengths([1, 2, 0, 2]),
        Arc::new(structs.clone()),
        None,
    );
    vec![Arc::new(list), Arc::new(structs), Arc::new(map), Arc::new(of_structs)]
}

fn batch(column: &ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([("column", Arc::clone(column), true)]).unwrap()
}

/// Whether both hold the same rows; floats are compared by their bits, so that -0.0 counts.
fn assert_same(found: &RecordBatch, expected: &RecordBatch, context: &str) {
    assert_eq!(found, expected, "{context}");
    let column = expected.column(0);
    if let (Some(a), Some(b)) = (found.column(0).as_primitive_opt::<Float64Type>(), column.as_primitive_opt()) {
        let bits = |a: &Float64Array| a.iter().map(|v| v.map(f64::to_bits)).collect::<Vec<_>>();
        assert_eq!(bits(a), bits(b), "{context}");
    }
    if let (Some(a), Some(b)) = (found.column(0).as_primitive_opt::<Float32Type>(), column.as_primitive_opt()) {
        let bits = |a: &Float32Array| a.iter().map(|v| v.map(f32::to_bits)).collect::<Vec<_>>();
        assert_eq!(bits(a), bits(b), "{context}");
    }
}

fn round_trip(format: &Format, rows: &RecordBatch) {
    // Whole, and as a slice, whose buffers begin elsewhere.
    for rows in [rows.clone(), rows.slice(1, rows.num_rows() - 1), rows.slice(1, 0)] {
        let texts = encode(format, &rows);
        let decoded = decode(format, &rows.schema(), &texts);
        let context = format!("{} {texts:?} {:?}", rows.column(0).data_type(), decoded.bad);
        assert_same(&decoded.rows, &rows, &context);
        assert_eq!(decoded.kept, None);
    }
}

#[test]
fn every_type_comes_back_from_json() {
    let iso = JsonOptions { timestamp_format: TimestampFormat::Iso8601, ..JsonOptions::default() };
    let without = JsonOptions { ignore_null_fields: true, ..JsonOptions::default() };
    for format in [json(), Format::Json(iso), Format::Json(without)] {
        for column in plain_columns().iter().chain(&nested_columns()) {
            round_trip(&format, &batch(column));
        }
    }
}

#[test]
fn every_plain_type_comes_back_from_csv() {
    let all = [
        CsvOptions::default(),
        CsvOptions { delimiter: ';', null_literal: "\\N".to_owned(), ..CsvOptions::default() },
        CsvOptions { delimiter: '\t', quote: Some('\''), escape: Some('\\'), ..CsvOptions::default() },
        // A delimiter that numbers, dates and times are full of.
        CsvOptions { delimiter: '-', null_literal: "0".to_owned(), ..CsvOptions::default() },
        CsvOptions { delimiter: ':', null_literal: "null".to_owned(), ..CsvOptions::default() },
    ];
    for options in all {
        let format = Format::Csv(options);
        for column in plain_columns() {
            round_trip(&format, &batch(&column));
            // The same in a row of three.
            let column = || Arc::clone(&column);
            let columns = [("a", column(), true), ("b", column(), true), ("c", column(), true)];
            round_trip(&format, &RecordBatch::try_from_iter_with_nullable(columns).unwrap());
        }
    }
}

#[test]
fn text_and_bytes_come_back_raw() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["", "a\n", "ä"]));
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"ab"[..], b"", b"\xff\0"]));
    for column in [texts, bytes] {
        let rows = batch(&column);
        let mut out = EncodedRows::default();
        Format::Raw.serializer(rows.schema()).unwrap().encode(&rows, &mut out).unwrap();
        let records: Vec<_> = out.iter().map(<[u8]>::to_vec).collect();
        assert_eq!(decode(&Format::Raw, &rows.schema(), &records).rows, rows);
    }
}

#[test]
fn many_rows_fill_the_buffer_more_than_once_and_the_output_is_used_again() {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20_000));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..20_000).map(|i| "n\"".repeat(i % 50))));
    let rows = RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("name", names, true)]).unwrap();
    for format in [json(), csv()] {
        let mut encoder = format.serializer(rows.schema()).unwrap();
        let mut out = EncodedRows::default();
        encoder.encode(&rows, &mut out).unwrap();
        let first = out.clone();
        encoder.encode(&rows.slice(7, 1), &mut out).unwrap();
        assert_eq!((out.len(), out.row(0), out.row(1)), (1, first.row(7), None));
        encoder.encode(&rows, &mut out).unwrap();
        assert_eq!(out, first);
        let records: Vec<_> = out.iter().map(<[u8]>::to_vec).collect();
        assert_eq!(decode(&format, &rows.schema(), &records).rows, rows);
    }
}

#[test]
fn json_is_written_in_this_form() {
    let fields = [
        ("order_id", Arc::new(Int64Array::from(vec![1_234_567])) as ArrayRef, true),
        ("customer_id", Arc::new(Int32Array::from(vec![4211])), true),
        ("amount", Arc::new(Decimal128Array::from(vec![12_345]).with_precision_and_scale(10, 2).unwrap()), true),
        ("ts", Arc::new(TimestampMillisecondArray::from(vec![1_700_000_000_120]).with_timezone("UTC")), true),
        ("a \"key\" longer than 16 bytes", Arc::new(StringArray::from(vec!["tab\t \u{1}"])), true),
        ("none", Arc::new(Int64Array::from(vec![None])), true),
        ("bin", Arc::new(BinaryArray::from(vec![&b"\0\xff"[..]])), true),
        ("f", Arc::new(Float64Array::from(vec![100.0])), true),
    ];
    let rows = RecordBatch::try_from_iter_with_nullable(fields).unwrap();
    let head = r#"{"order_id":1234567,"customer_id":4211,"amount":123.45,"ts":"#;
    let tail = r#","bin":"AP8=","f":100.0}"#;
    let text = r#","a \"key\" longer than 16 bytes":"tab\t \u0001""#;
    let sql = format!(r#"{head}"2023-11-14 22:13:20.12Z"{text},"none":null{tail}"#);
    assert_eq!(encode(&json(), &rows), [sql]);
    let options = JsonOptions { timestamp_format: TimestampFormat::Iso8601, ignore_null_fields: true, ..JsonOptions::default() };
    let iso = format!(r#"{head}"2023-11-14T22:13:20.12Z"{text}{tail}"#);
    assert_eq!(encode(&Format::Json(options.clone()), &rows), [iso]);
    // All fields left out; but a map keeps its entries.
    assert_eq!(encode(&Format::Json(options.clone()), &rows.project(&[5]).unwrap()), ["{}"]);
    let map = encode(&Format::Json(options), &batch(&nested_columns()[2]));
    assert_eq!(map[0], r#"{"column":{"k":"a","l":null,"":"\"b\""}}"#);
}

#[test]
fn what_has_no_text_is_refused_with_row_and_column() {
    let error = |format: &Format, rows: &RecordBatch| {
        let mut out = EncodedRows { data: b"old".to_vec(), ends: vec![3] };
        let error = format.serializer(rows.schema()).unwrap().encode(rows, &mut out).unwrap_err();
        assert!(out.is_empty() && out.data.is_empty());
        error.to_string()
    };
    let nan: ArrayRef = Arc::new(Float64Array::from(vec![1.0, f64::NAN]));
    let infinite: ArrayRef = Arc::new(Float32Array::from(vec![f32::NEG_INFINITY]));
    let no_time: ArrayRef = Arc::new(Time32SecondArray::from(vec![0, 86_400]));
    for format in [json(), csv()] {
        assert!(error(&format, &batch(&nan)).starts_with("row 1, column 'column': NaN cannot be written"));
        assert!(error(&format, &batch(&infinite)).starts_with("row 0, column 'column': -inf cannot be written"));
        assert!(error(&format, &batch(&no_time)).contains("86400 is not a time of the day"));
    }
    let fields = Fields::from(vec![Field::new("x", DataType::Float64, true)]);
    let inner: ArrayRef = Arc::new(StructArray::new(fields, vec![nan], None));
    assert!(error(&json(), &batch(&inner)).starts_with("row 1, column 'column.x': NaN"));
    let null: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    assert!(error(&Format::Raw, &batch(&null)).starts_with("row 1, column 'column': NULL cannot be written"));
}

#[test]
fn batches_of_other_columns_are_refused() {
    let rows = batch(&(Arc::new(Int64Array::from(vec![1])) as ArrayRef));
    for format in [json(), csv()] {
        let others = [
            vec![Field::new("column", DataType::Int32, true)],
            vec![Field::new("other", DataType::Int64, true)],
            vec![Field::new("column", DataType::Int64, true), Field::new("more", DataType::Int64, true)],
        ];
        for fields in others {
            let mut encoder = format.serializer(Arc::new(Schema::new(fields))).unwrap();
            let error = encoder.encode(&rows, &mut EncodedRows::default()).unwrap_err();
            assert!(matches!(error, EncodeError::Schema { .. }), "{error}");
        }
    }
}

#[test]
fn schemas_that_a_format_cannot_hold_are_refused_by_name() {
    let field = |data_type: DataType| Field::new("c", data_type, true);
    let entries = Fields::from(vec![Field::new("keys", DataType::Int64, false), Field::new("values", DataType::Int64, true)]);
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false);
    let nested = DataType::Struct(vec![Field::new("inner", DataType::Float16, true)].into());
    let table = [
        (json(), vec![field(DataType::Float16)], "column 'c' is of type Float16, which JSON cannot hold"),
        (json(), vec![field(nested)], "column 'c.inner' is of type Float16"),
        (json(), vec![field(DataType::Decimal128(10, -2))], "column 'c'"),
        (json(), vec![field(map)], "a map's keys must be strings"),
        (json(), vec![field(DataType::Int64), field(DataType::Utf8)], "two fields are named 'c'"),
        (csv(), vec![field(DataType::new_list(DataType::Int64, true))], "which CSV cannot hold"),
        (csv(), vec![], "the schema has no columns"),
        (Format::Raw, vec![field(DataType::Int64)], "use a string or binary"),
        (Format::Raw, vec![field(DataType::Utf8), field(DataType::Utf8)], "the schema has 2 columns"),
    ];
    for (format, fields, expected) in table {
        let schema = Arc::new(Schema::new(fields));
        let errors: [SchemaError; 2] = [format.deserializer(Arc::clone(&schema)).err().unwrap(), format.serializer(schema).err().unwrap()];
        for error in errors {
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

#[test]
fn options_have_the_names_of_flink() {
    let text = r#"{"json":{"timestamp-format.standard":"ISO-8601","encode.ignore-null-fields":true}}"#;
    let options = JsonOptions { timestamp_format: TimestampFormat::Iso8601, ignore_null_fields: true, ..JsonOptions::default() };
    assert_eq!(serde_json::from_str::<Format>(text).unwrap(), Format::Json(options));
    let text = r#"{"csv":{"field-delimiter":";","quote-character":null,"null-literal":"-","header":true}}"#;
    let options = CsvOptions { delimiter: ';', quote: None, null_literal: "-".to_owned(), header: true, escape: None };
    assert_eq!(serde_json::from_str::<Format>(text).unwrap(), Format::Csv(options));
    assert_eq!(serde_json::from_str::<Format>("\"raw\"").unwrap(), Format::Raw);
    assert!(serde_json::from_str::<Format>(r#"{"json":{"timestamp-format":"SQL"}}"#).is_err());
}
