#![allow(clippy::unwrap_used)]
use super::*;
use crate::config::KafkaSourceBuilder;
use crate::source::KafkaSource;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimestampMillisecondType};
use semel_formats::{BadRecord, Decoded};

/// Decodes decimal numbers; everything else is bad.
struct Numbers(SchemaRef);
impl DeserializationSchema for Numbers {
    fn schema(&self) -> &SchemaRef {
        &self.0
    }
    fn decode(&mut self, records: Records<'_>) -> Decoded {
        let (mut values, mut kept, mut bad) = (Vec::new(), Vec::new(), Vec::new());
        for (index, span) in records.spans.iter().enumerate() {
            if span.is_null() {
                continue;
            }
            let text = std::str::from_utf8(&records.data[span.start as usize..][..span.len as usize]).unwrap();
            match text.parse::<i32>() {
                Ok(value) => {
                    values.push(value);
                    kept.push(index as u32);
                }
                Err(_) => bad.push(BadRecord { index, reason: format!("{text:?} is no number") }),
            }
        }
        let kept = (kept.len() < records.spans.len()).then_some(kept);
        Decoded { rows: RecordBatch::try_new(self.0.clone(), vec![Arc::new(Int32Array::from(values))]).unwrap(), bad, kept }
    }
}

fn builder() -> KafkaSourceBuilder {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("v", DataType::Int32, false)]));
    KafkaSource::builder(Arc::new(move || Ok(Box::new(Numbers(schema.clone()))))).bootstrap_servers("localhost:1").topics(["t"])
}

fn decoder(builder: KafkaSourceBuilder) -> RecordDecoder {
    RecordDecoder::new(builder.build().unwrap().settings(), SourceMetrics::new("s", 0)).unwrap()
}

/// Records at offsets 10, 12, 14, ...; `None` is a tombstone.
fn records(values: &[Option<&str>]) -> FetchedRecords {
    let mut records = FetchedRecords::default();
    let mut data = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let start = data.len() as u32;
        data.extend_from_slice(value.unwrap_or_default().as_bytes());
        records.values.push(value.map_or(Span::NULL, |value| Span { start, len: value.len() as u32 }));
        records.keys.push(Span::NULL);
        records.offsets.push(10 + 2 * i as i64);
        records.timestamps.push(1000 + i as i64);
    }
    records.data = data.into();
    records.next_offset = 10 + 2 * values.len() as i64 + 5;
    records
}

fn partition() -> TopicPartition {
    TopicPartition::new("t", 3)
}

#[test]
fn the_position_moves_over_everything_fetched() {
    let pieces = decoder(builder()).decode(&partition(), &records(&[Some("1"), None, Some("3")]), None).unwrap();
    assert_eq!((pieces.len(), pieces[0].rows.num_rows(), pieces[0].position), (1, 2, 21));
    // Nothing but control records, and nothing but tombstones.
    let pieces = decoder(builder()).decode(&partition(), &records(&[]), None).unwrap();
    assert_eq!((pieces.len(), pieces[0].rows.num_rows(), pieces[0].position), (1, 0, 15));
    let pieces = decoder(builder()).decode(&partition(), &records(&[None, None]), None).unwrap();
    assert_eq!((pieces.len(), pieces[0].rows.num_rows(), pieces[0].position), (1, 0, 19));
}

#[test]
fn nothing_at_or_after_the_stop_offset_is_decoded() {
    // The bad record lies behind the bound: it does not matter.
    let records = records(&[Some("1"), Some("2"), Some("bad")]);
    let pieces = decoder(builder()).decode(&partition(), &records, Some(14)).unwrap();
    assert_eq!((pieces[0].rows.num_rows(), pieces[0].position), (2, 14));
    let pieces = decoder(builder()).decode(&partition(), &records, Some(10)).unwrap();
    assert_eq!((pieces[0].rows.num_rows(), pieces[0].position), (0, 10));
}

#[test]
fn a_bad_record_is_named_or_skipped() {
    let records = records(&[Some("1"), Some("x"), Some("3")]);
    let error = decoder(builder()).decode(&partition(), &records, None).unwrap_err();
    let ConnectorError::Fatal(text) = error else { panic!("{error}") };
    for part in ["topic t", "partition 3", "offset 12", "is no number"] {
        assert!(text.contains(part), "{text}");
    }
    let mut skipping = decoder(builder().on_bad_record(OnBadRecord::Skip));
    let pieces = skipping.decode(&partition(), &records, None).unwrap();
    assert_eq!(pieces[0].rows.column(0).as_primitive::<Int32Type>().values(), &[1, 3]);
}

#[test]
fn long_fetches_are_cut_and_each_piece_says_where_to_go_on() {
    let values = vec![Some("7"); MAX_ROWS + 3];
    let pieces = decoder(builder()).decode(&partition(), &records(&values), None).unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.rows.num_rows()).collect::<Vec<_>>(), [MAX_ROWS, 3]);
    assert_eq!(pieces[0].position, 10 + 2 * MAX_ROWS as i64);
    let long = "0".repeat(MAX_BYTES / 2);
    let pieces = decoder(builder()).decode(&partition(), &records(&[Some(&long), Some(&long), Some("1")]), None).unwrap();
    assert_eq!(pieces.iter().map(|piece| piece.rows.num_rows()).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn metadata_columns_belong_to_their_rows() {
    let all = [
        ("topic", MetadataField::Topic),
        ("partition", MetadataField::Partition),
        ("offset", MetadataField::Offset),
        ("timestamp", MetadataField::Timestamp),
        ("key", MetadataField::Key),
        ("headers", MetadataField::Headers),
    ];
    let builder = all.into_iter().fold(builder(), |builder, (name, field)| builder.metadata_column(name, field));
    let pieces = decoder(builder).decode(&partition(), &records(&[None, Some("5"), Some("6")]), None).unwrap();
    let rows = &pieces[0].rows;
    assert_eq!(rows.column(1).as_string::<i32>().value(1), "t");
    assert_eq!(rows.column(2).as_primitive::<Int32Type>().value(0), 3);
    assert_eq!(rows.column(3).as_primitive::<Int64Type>().values(), &[12, 14]);
    assert_eq!(rows.column(4).as_primitive::<TimestampMillisecondType>().values(), &[1001, 1002]);
    assert!(rows.column(5).is_null(0));
    assert_eq!(rows.column(6).as_map().value(0).len(), 0);
}
