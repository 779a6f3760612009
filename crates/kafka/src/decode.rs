//! Fetched records to rows, in pieces of bounded size, with metadata columns where asked for.

use crate::client::{FetchedRecords, Span, TopicPartition};
use crate::config::{MetadataColumn, MetadataField, OnBadRecord, SourceSettings};
use crate::metrics::SourceMetrics;
use crate::{ConnectorError, ConnectorResult};
use arrow::array::{
    ArrayRef, BinaryBuilder, Int32Array, Int64Array, MapBuilder, MapFieldNames, RecordBatch, StringArray, StringBuilder,
    TimestampMillisecondArray,
};
use arrow::datatypes::SchemaRef;
use semel_formats::{DeserializationSchema, Records};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most rows of one batch.
pub const MAX_ROWS: usize = 16 * 1024;
/// Bytes of records after which a batch ends.
pub const MAX_BYTES: usize = 1 << 20;
/// At least this long between two log lines about skipped records.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Rows of one partition and where to go on after them.
#[derive(Debug)]
pub struct Piece {
    /// The rows; may be none.
    pub rows: RecordBatch,
    /// Offset to go on from.
    pub position: i64,
    /// Bytes of the records that were decoded.
    pub bytes: usize,
}

/// Decodes the records of one subtask.
pub struct RecordDecoder {
    schema: SchemaRef,
    deserializer: Box<dyn DeserializationSchema>,
    metadata: Vec<MetadataColumn>,
    policy: OnBadRecord,
    metrics: SourceMetrics,
    spans: Vec<semel_formats::Span>,
    skipped: u64,
    logged: Option<Instant>,
}

impl RecordDecoder {
    /// By the settings of a source.
    pub fn new(settings: &SourceSettings, metrics: SourceMetrics) -> ConnectorResult<RecordDecoder> {
        let deserializer = (settings.deserializer)().map_err(ConnectorError::Fatal)?;
        Ok(RecordDecoder {
            schema: settings.schema.clone(),
            deserializer,
            metadata: settings.metadata.clone(),
            policy: settings.on_bad_record,
            metrics,
            spans: Vec::new(),
            skipped: 0,
            logged: None,
        })
    }

    /// Decodes the records below `stop`. The last piece's position is behind everything fetched (or `stop`), so that a restart does not read
    /// control records and skipped ones again.
    pub fn decode(&mut self, partition: &TopicPartition, records: &FetchedRecords, stop: Option<i64>) -> ConnectorResult<Vec<Piece>> {
        let wanted = stop.map_or(records.len(), |stop| records.offsets.partition_point(|offset| *offset < stop));
        let end = stop.map_or(records.next_offset, |stop| records.next_offset.min(stop));
        let mut pieces = Vec::new();
        for range in pieces_of(records, wanted) {
            let last = range.end == wanted;
            let position = if last { end } else { records.offsets.get(range.end).copied().unwrap_or(end) };
            let bytes = range.clone().map(|i| length(records.values[i]) + length(records.keys[i])).sum();
            let rows = self.rows(partition, records, range)?;
            pieces.push(Piece { rows, position, bytes });
        }
        if pieces.is_empty() {
            pieces.push(Piece { rows: RecordBatch::new_empty(self.schema.clone()), position: end, bytes: 0 });
        }
        Ok(pieces)
    }

    fn rows(&mut self, partition: &TopicPartition, records: &FetchedRecords, range: Range<usize>) -> ConnectorResult<RecordBatch> {
        let first = range.start;
        self.spans.clear();
        self.spans.extend(records.values[range.clone()].iter().map(|span| match span.is_null() {
            true => semel_formats::Span::NULL,
            false => semel_formats::Span::new(span.start, span.len),
        }));
        let decoded = self.deserializer.decode(Records { data: &records.data, spans: &self.spans });
        if let Some(bad) = decoded.bad.first() {
            let offset = records.offsets.get(first + bad.index).copied().unwrap_or_default();
            let text = format!(
                "the record at topic {}, partition {}, offset {offset} cannot be decoded: {}",
                partition.topic, partition.partition, bad.reason
            );
            match self.policy {
                OnBadRecord::Fail => {
                    return Err(ConnectorError::Fatal(format!("{text}; correct the schema, or let such records be skipped")));
                }
                OnBadRecord::Skip => self.skip(decoded.bad.len() as u64, &text),
            }
        }
        self.metrics.records_in.increment(decoded.rows.num_rows() as u64);
        if self.metadata.is_empty() {
            return Ok(decoded.rows);
        }
        let kept: Vec<usize> = match &decoded.kept {
            None => range.collect(),
            Some(kept) => kept.iter().map(|index| first + *index as usize).collect(),
        };
        let mut columns: Vec<ArrayRef> = decoded.rows.columns().to_vec();
        for column in &self.metadata {
            columns.push(metadata_column(column.field, partition, records, &kept));
        }
        RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|error| ConnectorError::Fatal(format!("metadata columns of {partition}: {error}")))
    }

    fn skip(&mut self, records: u64, text: &str) {
        self.metrics.record_errors.increment(records);
        self.skipped += records;
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(skipped = self.skipped, "skipped records; the first of these: {text}");
            self.logged = Some(Instant::now());
            self.skipped = 0;
        }
    }
}

fn length(span: Span) -> usize {
    if span.is_null() { 0 } else { span.len as usize }
}

/// Cuts the first `wanted` records into ranges of at most [`MAX_ROWS`] records and about [`MAX_BYTES`].
fn pieces_of(records: &FetchedRecords, wanted: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for i in 0..wanted {
        bytes += length(records.values[i]);
        if bytes >= MAX_BYTES || i + 1 - start >= MAX_ROWS || i + 1 == wanted {
            ranges.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    ranges
}

fn metadata_column(field: MetadataField, partition: &TopicPartition, records: &FetchedRecords, kept: &[usize]) -> ArrayRef {
    match field {
        MetadataField::Topic => Arc::new(StringArray::from_iter_values(kept.iter().map(|_| &*partition.topic))),
        MetadataField::Partition => Arc::new(Int32Array::from_value(partition.partition, kept.len())),
        MetadataField::Offset => Arc::new(Int64Array::from_iter_values(kept.iter().map(|i| records.offsets[*i]))),
        MetadataField::Timestamp => {
            Arc::new(TimestampMillisecondArray::from_iter_values(kept.iter().map(|i| records.timestamps[*i])).with_timezone("UTC"))
        }
        MetadataField::Key => {
            let mut keys = BinaryBuilder::with_capacity(kept.len(), 0);
            kept.iter().for_each(|i| keys.append_option(records.bytes(records.keys[*i])));
            Arc::new(keys.finish())
        }
        MetadataField::Headers => {
            let names = MapFieldNames { entry: "entries".to_owned(), key: "keys".to_owned(), value: "values".to_owned() };
            let mut map = MapBuilder::new(Some(names), StringBuilder::new(), BinaryBuilder::new());
            for i in kept {
                for (name, value) in records.headers(*i) {
                    map.keys().append_value(name);
                    map.values().append_option(value);
                }
                // Keys and values are appended together: their lengths agree.
                _ = map.append(true);
            }
            Arc::new(map.finish())
        }
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
