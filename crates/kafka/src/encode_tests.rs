#![allow(clippy::unwrap_used)]
use super::*;
use crate::config::{KafkaSinkBuilder, SerializerFactory};
use crate::sink::KafkaSink;
use arrow::array::{Int32Array, Int64Array, StringArray};
use arrow::datatypes::{Field, Schema};
use semel_formats::EncodeError;

/// Writes the columns' names and display values: enough to see which columns a serializer was given.
struct Plain(SchemaRef);
impl SerializationSchema for Plain {
    fn append(&mut self, rows: &RecordBatch, out: &mut EncodedRows) -> Result<(), EncodeError> {
        for row in 0..rows.num_rows() {
            for (field, column) in self.0.fields().iter().zip(rows.columns()) {
                let text = arrow::util::display::array_value_to_string(column, row).unwrap();
                out.data.extend_from_slice(format!("{}={text};", field.name()).as_bytes());
            }
            out.ends.push(out.data.len());
        }
        Ok(())
    }
}

fn plain() -> SerializerFactory {
    Arc::new(|schema| Ok(Box::new(Plain(schema.clone()))))
}

fn builder() -> KafkaSinkBuilder {
    KafkaSink::builder(plain()).bootstrap_servers("localhost:1")
}

fn rows() -> RecordBatch {
    RecordBatch::try_from_iter(vec![
        ("id", Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef),
        ("k", Arc::new(StringArray::from(vec![Some("21"), None, Some("abc")])) as ArrayRef),
        ("t", Arc::new(StringArray::from(vec!["a", "b", "a"])) as ArrayRef),
        ("ts", Arc::new(Int64Array::from(vec![Some(10), None, Some(30)])) as ArrayRef),
    ])
    .unwrap()
}

fn encoder(builder: KafkaSinkBuilder) -> RowEncoder {
    RowEncoder::new(builder.build().unwrap().settings(), &rows().schema()).unwrap()
}

fn error(builder: KafkaSinkBuilder) -> String {
    RowEncoder::new(builder.build().unwrap().settings(), &rows().schema()).err().unwrap().to_string()
}

#[test]
fn metadata_columns_are_not_part_of_the_value() {
    let mut encoder = encoder(builder().topic_column("t").timestamp_column("ts").key_columns(["k"]));
    let encoded = encoder.encode(&rows()).unwrap();
    assert_eq!(encoded.value(0), b"id=1;k=21;");
    assert_eq!((encoded.key(0), encoded.key(1)), (Some(&b"21"[..]), None));
    assert_eq!((encoded.timestamp(0), encoded.timestamp(1)), (Some(10), None));
    assert_eq!(encoded.timestamps(99), Some(vec![10, 99, 30]));
    let topics = encoder.topics().unwrap();
    assert_eq!(topics, [("a".into(), Some(vec![0, 2])), ("b".into(), Some(vec![1]))]);
}

#[test]
fn key_columns_can_be_left_out_of_the_value_and_serialized_on_their_own() {
    let builder =
        builder().topic("o").key_columns(["k", "id"]).key_format(KeyFormat::Serialized(plain())).value_fields(ValueFields::ExceptKey);
    let mut encoder = encoder(builder.header("h", "t"));
    let encoded = encoder.encode(&rows()).unwrap();
    assert_eq!(encoded.value(0), b"ts=10;");
    assert_eq!(encoded.key(0), Some(&b"k=21;id=1;"[..]));
    assert_eq!(encoded.headers(1).collect::<Vec<_>>(), [("h", &b"b"[..])]);
    assert_eq!(encoder.topics().unwrap(), [("o".into(), None)]);
}

#[test]
fn wrong_columns_are_named() {
    assert!(error(builder().topic("o").key_columns(["nope"])).contains("nope"));
    assert!(error(builder().topic_column("id")).contains("must be text"));
    assert!(error(builder().topic("o").timestamp_column("k")).contains("timestamp"));
}

#[test]
fn a_row_without_a_topic_is_an_error() {
    let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int32, true), Field::new("t", DataType::Utf8, true)]));
    let batch =
        RecordBatch::try_new(schema.clone(), vec![Arc::new(Int32Array::from(vec![1])), Arc::new(StringArray::from(vec![None::<&str>]))])
            .unwrap();
    let mut encoder = RowEncoder::new(builder().topic_column("t").build().unwrap().settings(), &schema).unwrap();
    encoder.encode(&batch).unwrap();
    assert!(encoder.topics().unwrap_err().to_string().contains("row 0"));
}

#[test]
fn keys_go_where_the_java_client_sends_them() {
    let mut encoder = encoder(builder().topic("o").key_columns(["k"]));
    let encoded = encoder.encode(&rows()).unwrap();
    let mut round = 3;
    let assigned = assign(encoded, None, 4, Partitioner::Default, 0, 1 << 16, &mut round);
    let of = |row: u32| assigned.iter().find(|part| part.rows.iter().any(|r| r == row)).unwrap().partition;
    assert_eq!(of(0), ((-973_932_308i32 & 0x7fff_ffff) % 4));
    assert_eq!(of(2), 479_470_107 % 4);
    // The row without a key goes to the round's partition, and the next batch to another.
    assert_eq!((of(1), round), (3, 4));
    assert_eq!(assigned.iter().map(|part| part.rows.len()).sum::<usize>(), 3);
}

#[test]
fn rows_without_key_go_round_in_pieces() {
    let mut encoder = encoder(builder().topic("o"));
    let encoded = encoder.encode(&rows()).unwrap();
    let mut round = 1;
    let whole = assign(encoded, None, 2, Partitioner::Default, 0, 1 << 16, &mut round);
    assert_eq!(whole, [Assigned { partition: 1, rows: Rows::Range(0, 3) }]);
    let pieces = assign(encoded, None, 2, Partitioner::Default, 0, 1, &mut round);
    assert_eq!(pieces.iter().map(|part| part.partition).collect::<Vec<_>>(), [0, 1, 0]);
    let fixed = assign(encoded, Some(&[0, 2]), 2, Partitioner::Fixed, 5, 1, &mut round);
    assert_eq!(fixed, [Assigned { partition: 1, rows: Rows::List(vec![0, 2]) }]);
}
