//! Rows to records: the value, the key, headers and timestamp of each row, and the partition it goes to. No object per row: the
//! serializer writes all values of a batch into one buffer that is used again, and partitions are lists of row numbers.

use crate::config::{KeyFormat, SinkSettings, TopicSelector, ValueFields};
use crate::partitioner::{Partitioner, partition_of_key};
use crate::{ConnectorError, ConnectorResult};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, SchemaRef, TimeUnit, TimestampMillisecondType};
use semel_formats::{EncodedRows, SerializationSchema};
use std::collections::BTreeMap;
use std::sync::Arc;

enum Key {
    None,
    Raw(usize),
    Serialized { columns: Vec<usize>, serializer: Box<dyn SerializationSchema> },
}

/// A topic and the numbers of its rows; `None`: all.
pub type TopicRows = (Arc<str>, Option<Vec<u32>>);

/// Encodes the rows of one subtask.
pub struct RowEncoder {
    schema: SchemaRef,
    value_columns: Vec<usize>,
    serializer: Box<dyn SerializationSchema>,
    key: Key,
    topic: TopicColumn,
    headers: Vec<(String, usize)>,
    timestamp: Option<usize>,
    encoded: EncodedBatch,
}

enum TopicColumn {
    Fixed(Arc<str>),
    Column(usize),
}

/// A batch in encoded form; valid until the next one is encoded.
#[derive(Default)]
pub struct EncodedBatch {
    values: EncodedRows,
    keys: EncodedRows,
    key_column: Option<ArrayRef>,
    has_keys: bool,
    topic_column: Option<ArrayRef>,
    header_columns: Vec<(String, ArrayRef)>,
    timestamps: Option<ArrayRef>,
}

/// Bytes of a text or binary array's row; `None` for NULL.
fn bytes_at(array: &ArrayRef, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        _ => None, // Columns are cast to one of the two before.
    }
}

impl EncodedBatch {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value of a row.
    pub fn value(&self, row: usize) -> &[u8] {
        self.values.row(row).unwrap_or_default()
    }

    /// Number of bytes of all values.
    pub fn value_bytes(&self) -> usize {
        self.values.data.len()
    }

    /// The values of all rows.
    pub fn values(&self) -> &EncodedRows {
        &self.values
    }

    /// The key of a row.
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        match &self.key_column {
            Some(column) => bytes_at(column, row),
            None if self.has_keys => self.keys.row(row),
            None => None,
        }
    }

    /// Writes all keys one after the other, with the end of each and whether it is not NULL.
    pub fn keys_into(&self, data: &mut Vec<u8>, ends: &mut Vec<usize>, valid: &mut Vec<bool>) {
        data.clear();
        ends.clear();
        valid.clear();
        for row in 0..self.len() {
            let key = self.key(row);
            data.extend_from_slice(key.unwrap_or_default());
            ends.push(data.len());
            valid.push(key.is_some());
        }
    }

    /// The keys, where a serializer has written them (then none is NULL).
    pub fn serialized_keys(&self) -> Option<&EncodedRows> {
        (self.has_keys && self.key_column.is_none()).then_some(&self.keys)
    }

    /// Whether rows can have keys.
    pub fn is_keyed(&self) -> bool {
        self.has_keys
    }

    /// Whether rows can have headers.
    pub fn has_headers(&self) -> bool {
        !self.header_columns.is_empty()
    }

    /// The headers of a row; those that are NULL are left out.
    pub fn headers(&self, row: usize) -> impl Iterator<Item = (&str, &[u8])> {
        self.header_columns.iter().filter_map(move |(name, column)| Some((name.as_str(), bytes_at(column, row)?)))
    }

    /// The timestamp of a row, if the sink takes it from a column and it is not NULL.
    pub fn timestamp(&self, row: usize) -> Option<i64> {
        let column = self.timestamps.as_ref()?;
        column.is_valid(row).then(|| column.as_primitive::<Int64Type>().value(row))
    }

    /// The timestamps of all rows, with `otherwise` where there is none; `None` if the sink does not take them from a column.
    pub fn timestamps(&self, otherwise: i64) -> Option<Vec<i64>> {
        self.timestamps.as_ref().map(|_| (0..self.len()).map(|row| self.timestamp(row).unwrap_or(otherwise)).collect())
    }
}

impl RowEncoder {
    /// For rows of this schema. Fails where a column that the settings name does not exist or has the wrong type.
    pub fn new(settings: &SinkSettings, schema: &SchemaRef) -> ConnectorResult<RowEncoder> {
        let index = |name: &str, role: &str| {
            schema.index_of(name).map_err(|_| {
                let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                ConnectorError::Fatal(format!("the Kafka sink's {role} column {name:?} is not in the rows: they have {}", names.join(", ")))
            })
        };
        let texts = |index: usize, role: &str| match schema.field(index).data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
                Ok(index)
            }
            other => Err(ConnectorError::Fatal(format!(
                "the Kafka sink's {role} column {:?} must be text or binary, it is {other}",
                schema.field(index).name()
            ))),
        };
        let topic = match &settings.topic {
            TopicSelector::Fixed(topic) => TopicColumn::Fixed(topic.as_str().into()),
            TopicSelector::Column(column) => TopicColumn::Column(texts(index(column, "topic")?, "topic")?),
        };
        let headers = settings
            .headers
            .iter()
            .map(|(name, column)| Ok((name.clone(), texts(index(column, "header")?, "header")?)))
            .collect::<ConnectorResult<Vec<_>>>()?;
        let timestamp = settings.timestamp_column.as_deref().map(|column| index(column, "timestamp")).transpose()?;
        if let Some(index) = timestamp
            && !matches!(schema.field(index).data_type(), DataType::Timestamp(..) | DataType::Int64)
        {
            let field = schema.field(index);
            return Err(ConnectorError::Fatal(format!(
                "the Kafka sink's timestamp column {:?} must be a timestamp or a 64-bit number of ms, it is {}",
                field.name(),
                field.data_type()
            )));
        }
        let keys = settings.key_columns.iter().map(|column| index(column, "key")).collect::<ConnectorResult<Vec<_>>>()?;
        let value_columns: Vec<usize> = (0..schema.fields().len())
            .filter(|column| {
                let metadata = matches!(topic, TopicColumn::Column(index) if index == *column)
                    || headers.iter().any(|(_, index)| index == column)
                    || timestamp == Some(*column);
                !(metadata || settings.value_fields == ValueFields::ExceptKey && keys.contains(column))
            })
            .collect();
        let fatal =
            |what: &'static str| move |error: String| ConnectorError::Fatal(format!("the Kafka sink's {what} cannot be written: {error}"));
        let project = |columns: &[usize]| {
            schema.project(columns).map(Arc::new).map_err(|error| ConnectorError::Fatal(format!("the Kafka sink's columns: {error}")))
        };
        let serializer = (settings.serializer)(&project(&value_columns)?).map_err(fatal("value"))?;
        let key = match (&settings.key_format, keys.as_slice()) {
            (_, []) => Key::None,
            (KeyFormat::Raw, columns) => Key::Raw(texts(columns[0], "key")?),
            (KeyFormat::Serialized(factory), columns) => {
                Key::Serialized { columns: columns.to_vec(), serializer: factory(&project(columns)?).map_err(fatal("key"))? }
            }
        };
        Ok(RowEncoder {
            schema: schema.clone(),
            value_columns,
            serializer,
            key,
            topic,
            headers,
            timestamp,
            encoded: EncodedBatch::default(),
        })
    }

    /// Encodes a batch. The result is valid until the next call.
    pub fn encode(&mut self, rows: &RecordBatch) -> ConnectorResult<&EncodedBatch> {
        let fatal = |what: &str, error: &dyn std::fmt::Display| {
            ConnectorError::Fatal(format!("the Kafka sink cannot write the {what} of a row: {error}"))
        };
        if rows.num_columns() != self.schema.fields().len() {
            return Err(fatal("columns", &format!("{} columns were expected, {} came", self.schema.fields().len(), rows.num_columns())));
        }
        let encoded = &mut self.encoded;
        match self.value_columns.len() == rows.num_columns() {
            true => self.serializer.encode(rows, &mut encoded.values),
            false => {
                let values = rows.project(&self.value_columns).map_err(|error| fatal("value", &error))?;
                self.serializer.encode(&values, &mut encoded.values)
            }
        }
        .map_err(|error| fatal("value", &error))?;
        let as_bytes = |column: usize, what: &str| -> ConnectorResult<ArrayRef> {
            let array = rows.column(column);
            let target = match array.data_type() {
                DataType::Utf8 | DataType::Binary => return Ok(array.clone()),
                DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
                _ => DataType::Binary,
            };
            cast(array, &target).map_err(|error| fatal(what, &error))
        };
        encoded.has_keys = !matches!(self.key, Key::None);
        encoded.key_column = None;
        match &mut self.key {
            Key::None => {}
            Key::Raw(column) => encoded.key_column = Some(as_bytes(*column, "key")?),
            Key::Serialized { columns, serializer } => {
                let keys = rows.project(columns).map_err(|error| fatal("key", &error))?;
                serializer.encode(&keys, &mut encoded.keys).map_err(|error| fatal("key", &error))?;
            }
        }
        encoded.topic_column = match self.topic {
            TopicColumn::Fixed(_) => None,
            TopicColumn::Column(column) => Some(as_bytes(column, "topic")?),
        };
        encoded.header_columns.clear();
        for (name, column) in &self.headers {
            encoded.header_columns.push((name.clone(), as_bytes(*column, "header")?));
        }
        encoded.timestamps = match self.timestamp {
            None => None,
            Some(column) => Some(milliseconds(rows.column(column)).map_err(|error| fatal("timestamp", &error))?),
        };
        Ok(&self.encoded)
    }

    /// The last encoded batch.
    pub fn encoded(&self) -> &EncodedBatch {
        &self.encoded
    }

    /// The topics of the last encoded batch with the numbers of their rows; `None` for the rows: all.
    pub fn topics(&self) -> ConnectorResult<Vec<TopicRows>> {
        let column = match (&self.topic, &self.encoded.topic_column) {
            (TopicColumn::Fixed(topic), _) => return Ok(vec![(topic.clone(), None)]),
            (TopicColumn::Column(_), Some(column)) => column,
            (TopicColumn::Column(_), None) => return Ok(Vec::new()),
        };
        let mut topics: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for row in 0..self.encoded.len() {
            let name = bytes_at(column, row).and_then(|bytes| std::str::from_utf8(bytes).ok()).filter(|name| !name.is_empty());
            let Some(name) = name else {
                return Err(ConnectorError::Fatal(format!(
                    "the Kafka sink's topic column is NULL, empty or not UTF-8 in row {row} of a batch: every row needs a topic"
                )));
            };
            topics.entry(name).or_default().push(row as u32);
        }
        Ok(topics.into_iter().map(|(name, rows)| (name.into(), Some(rows))).collect())
    }
}

fn milliseconds(array: &ArrayRef) -> Result<ArrayRef, arrow::error::ArrowError> {
    match array.data_type() {
        DataType::Int64 => Ok(array.clone()),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Ok(Arc::new(array.as_primitive::<TimestampMillisecondType>().reinterpret_cast::<Int64Type>()))
        }
        DataType::Timestamp(_, zone) => {
            let millis = cast(array, &DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))?;
            Ok(Arc::new(millis.as_primitive::<TimestampMillisecondType>().reinterpret_cast::<Int64Type>()))
        }
        other => cast(array, &DataType::Int64).map_err(|_| arrow::error::ArrowError::CastError(format!("{other} is no timestamp"))),
    }
}

/// Rows of a batch that go to one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// The partition.
    pub partition: i32,
    /// Row numbers, rising.
    pub rows: Rows,
}

/// Numbers of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rows {
    /// From the first to before the second.
    Range(u32, u32),
    /// These.
    List(Vec<u32>),
}

impl Rows {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Rows::Range(from, to) => (to - from) as usize,
            Rows::List(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One after the other.
    pub fn iter(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Rows::Range(from, to) => Box::new(*from..*to),
            Rows::List(rows) => Box::new(rows.iter().copied()),
        }
    }
}

/// Spreads the rows of a batch over the partitions of one topic. Rows without key go round in pieces of about
/// `piece_bytes`; `round` is the piece counter, kept between batches.
pub fn assign(
    encoded: &EncodedBatch,
    rows: Option<&[u32]>,
    partitions: u32,
    partitioner: Partitioner,
    subtask: u32,
    piece_bytes: usize,
    round: &mut u32,
) -> Vec<Assigned> {
    let partitions = partitions.max(1);
    let count = rows.map_or(encoded.len(), <[u32]>::len);
    let row_at = |i: usize| rows.map_or(i as u32, |rows| rows[i]);
    let slice = |from: usize, to: usize| match rows {
        None => Rows::Range(from as u32, to as u32),
        Some(rows) => Rows::List(rows[from..to].to_vec()),
    };
    if partitions == 1 || partitioner == Partitioner::Fixed {
        return match count {
            0 => Vec::new(),
            _ => vec![Assigned { partition: (subtask % partitions) as i32, rows: slice(0, count) }],
        };
    }
    if partitioner == Partitioner::Default && encoded.is_keyed() {
        let sticky = *round % partitions;
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); partitions as usize];
        let mut keyless = false;
        for row in (0..count).map(row_at) {
            let partition = match encoded.key(row as usize) {
                Some(key) => partition_of_key(key, partitions),
                None => {
                    keyless = true;
                    sticky
                }
            };
            lists[partition as usize].push(row);
        }
        *round = round.wrapping_add(u32::from(keyless));
        let filled = lists.into_iter().enumerate().filter(|(_, list)| !list.is_empty());
        return filled.map(|(partition, list)| Assigned { partition: partition as i32, rows: Rows::List(list) }).collect();
    }
    let mut assigned = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for i in 0..count {
        bytes += encoded.value(row_at(i) as usize).len() + 8;
        if bytes >= piece_bytes || i + 1 == count {
            assigned.push(Assigned { partition: (*round % partitions) as i32, rows: slice(from, i + 1) });
            *round = round.wrapping_add(1);
            (from, bytes) = (i + 1, 0);
        }
    }
    assigned
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
