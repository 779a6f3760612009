//! What the connector counts, by Flink's names, with the labels `operator` and `subtask`.

use metrics::{Counter, Gauge, counter, gauge};

/// Of one subtask of a source.
#[derive(Clone)]
pub struct SourceMetrics {
    /// `numRecordsIn`: records decoded to rows.
    pub records_in: Counter,
    /// `numBytesIn`: bytes of fetched batches.
    pub bytes_in: Counter,
    /// `numRecordsInErrors`: records skipped because they could not be decoded.
    pub record_errors: Counter,
    /// `pendingRecords`: records between the positions and the ends of the partitions.
    pub pending_records: Gauge,
    /// `KafkaSourceReader.commitsSucceeded`.
    pub commits_succeeded: Counter,
    /// `KafkaSourceReader.commitsFailed`.
    pub commits_failed: Counter,
}

impl SourceMetrics {
    /// Of a subtask.
    pub fn new(operator: &str, subtask: u32) -> SourceMetrics {
        let labels = labels(operator, subtask);
        SourceMetrics {
            records_in: counter!("numRecordsIn", &labels),
            bytes_in: counter!("numBytesIn", &labels),
            record_errors: counter!("numRecordsInErrors", &labels),
            pending_records: gauge!("pendingRecords", &labels),
            commits_succeeded: counter!("commitsSucceeded", &labels),
            commits_failed: counter!("commitsFailed", &labels),
        }
    }
}

/// Of one subtask of a sink.
#[derive(Clone)]
pub struct SinkMetrics {
    /// `numRecordsSend`: rows handed to the producer.
    pub records_send: Counter,
    /// `numBytesSend`: bytes of their values.
    pub bytes_send: Counter,
    /// `numRecordsSendErrors`: rows of transactions that failed.
    pub record_errors: Counter,
    /// `currentSendTime`: ms that the last flush waited for acknowledgements.
    pub send_time: Gauge,
    /// `transactionalIds`: size of the pool of transactional ids.
    pub ids: Gauge,
    /// `openTransactions`: transactions of this subtask that were begun and not ended yet.
    pub open: Gauge,
}

impl SinkMetrics {
    /// Of a subtask.
    pub fn new(operator: &str, subtask: u32) -> SinkMetrics {
        let labels = labels(operator, subtask);
        SinkMetrics {
            records_send: counter!("numRecordsSend", &labels),
            bytes_send: counter!("numBytesSend", &labels),
            record_errors: counter!("numRecordsSendErrors", &labels),
            send_time: gauge!("currentSendTime", &labels),
            ids: gauge!("transactionalIds", &labels),
            open: gauge!("openTransactions", &labels),
        }
    }
}

fn labels(operator: &str, subtask: u32) -> [(&'static str, String); 2] {
    [("operator", operator.to_owned()), ("subtask", subtask.to_string())]
}
