//! Phase one: rows into part files that nobody sees.
use crate::config::{FileSinkSettings, RollingPolicy};
use crate::io::{blocking, exists, failed, sync_folder};
use crate::names::FileTransaction;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::CheckpointId;
use semel_engine::sink::{ConnectorError, ConnectorResult, SinkContext, SinkWriter};
use semel_formats::{EncodedRows, SerializationSchema};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A part file that is being written.
#[derive(Debug)]
pub(crate) struct OpenPart {
    file: File,
    path: PathBuf,
    opened: Instant,
}

impl OpenPart {
    fn create(path: PathBuf) -> ConnectorResult<OpenPart> {
        // New: nobody else has this job uuid, generation and subtask.
        let file = File::options().write(true).create_new(true).open(&path).map_err(|e| failed("creating", &path, e))?;
        Ok(OpenPart { file, path, opened: Instant::now() })
    }
    fn write(&mut self, bytes: &[u8]) -> ConnectorResult<()> {
        self.file.write_all(bytes).map_err(|e| failed("writing", &self.path, e))
    }
    fn finish(self) -> ConnectorResult<()> {
        self.file.sync_all().map_err(|e| failed("fsync of", &self.path, e))
    }
}

/// Whether the next rows go to a new file.
pub(crate) fn must_roll(policy: &RollingPolicy, bytes: u64, open_for: Duration) -> bool {
    bytes >= policy.file_size || open_for >= policy.rollover_interval
}

/// See [`SinkWriter`].
pub struct FileWriter {
    settings: Arc<FileSinkSettings>,
    context: SinkContext,
    serializer: Box<dyn SerializationSchema>,
    header: Vec<u8>,
    encoded: EncodedRows,
    open: Option<OpenPart>,
}

impl FileWriter {
    pub(crate) fn new(settings: Arc<FileSinkSettings>, context: SinkContext) -> ConnectorResult<FileWriter> {
        let (serializer, header) = serializer(&settings, &context.schema)?;
        Ok(FileWriter { settings, context, serializer, header, encoded: EncodedRows::default(), open: None })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        doing: &str,
        work: impl FnOnce() -> ConnectorResult<T> + Send + 'static,
    ) -> ConnectorResult<T> {
        blocking(self.settings.io_timeout, format!("{doing} in {}", self.settings.folder.display()), work).await
    }

    /// The rows as lines.
    fn lines(&mut self, rows: &RecordBatch) -> ConnectorResult<Vec<u8>> {
        let encoded = self.serializer.encode(rows, &mut self.encoded);
        encoded
            .map_err(|e| ConnectorError::Fatal(format!("a row cannot be written to a file in {}: {e}", self.settings.folder.display())))?;
        Ok(lines(&self.encoded))
    }
}

fn lines(rows: &EncodedRows) -> Vec<u8> {
    let mut lines = Vec::with_capacity(rows.data.len() + rows.len());
    for row in rows.iter() {
        lines.extend_from_slice(row);
        lines.push(b'\n');
    }
    lines
}

/// The serializer for rows of a schema, and what each file begins with.
pub(crate) fn serializer(settings: &FileSinkSettings, schema: &SchemaRef) -> ConnectorResult<(Box<dyn SerializationSchema>, Vec<u8>)> {
    let serializer = settings.format.serializer(schema.clone());
    let both = serializer.and_then(|serializer| Ok((serializer, settings.format.header(schema.clone())?)));
    let (serializer, header) =
        both.map_err(|e| ConnectorError::Fatal(format!("rows cannot be written to files in {}: {e}", settings.folder.display())))?;
    let mut header = header.unwrap_or_default();
    if !header.is_empty() {
        header.push(b'\n');
    }
    Ok((serializer, header))
}

impl SinkWriter for FileWriter {
    type Transaction = FileTransaction;

    async fn begin_transaction(&mut self, checkpoint: CheckpointId) -> ConnectorResult<FileTransaction> {
        self.open = None;
        Ok(FileTransaction {
            folder: self.settings.folder.clone(),
            job: self.context.job.uuid,
            sink: self.context.uid.clone(),
            subtask: self.context.subtask,
            checkpoint,
            generation: self.context.job.generation,
            prefix: self.settings.prefix.clone(),
            suffix: self.settings.suffix.clone(),
            parts: vec![],
        })
    }

    async fn invoke(&mut self, transaction: &mut FileTransaction, rows: RecordBatch) -> ConnectorResult<()> {
        let lines = self.lines(&rows)?;
        let bytes = transaction.parts.last().copied().unwrap_or(0);
        let full = self.open.take_if(|part| must_roll(&self.settings.rolling, bytes, part.opened.elapsed()));
        let (open, path) = match self.open.take() {
            Some(open) => (Some(open), PathBuf::new()),
            None => {
                transaction.parts.push(0);
                (None, transaction.pending(transaction.parts.len() as u32 - 1))
            }
        };
        let header = if open.is_none() { self.header.clone() } else { vec![] };
        let written = (header.len() + lines.len()) as u64;
        let part = self
            .blocking("writing", move || {
                // A full part is made durable here already: less to do at the barrier.
                full.map_or(Ok(()), OpenPart::finish)?;
                let mut part = match open {
                    Some(part) => part,
                    None => OpenPart::create(path)?,
                };
                part.write(&header)?;
                part.write(&lines)?;
                Ok(part)
            })
            .await?;
        self.open = Some(part);
        if let Some(bytes) = transaction.parts.last_mut() {
            *bytes += written;
        }
        Ok(())
    }

    async fn pre_commit(&mut self, transaction: &mut FileTransaction) -> ConnectorResult<()> {
        let open = self.open.take();
        let transaction = transaction.clone();
        self.blocking("pre-commit", move || {
            open.map_or(Ok(()), OpenPart::finish)?;
            for part in transaction.part_numbers() {
                let pending = transaction.pending(part);
                if !exists(&pending)? {
                    return Err(ConnectorError::Fenced(format!(
                        "{} has been removed: a newer generation of the job took it for an orphan",
                        pending.display()
                    )));
                }
            }
            let ready = transaction.ready();
            match File::options().write(true).create_new(true).open(&ready) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(failed("creating", &ready, e)),
                _ => sync_folder(&transaction.pending_folder()),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_roll_by_size_and_by_time() {
        let policy = RollingPolicy { file_size: 100, rollover_interval: Duration::from_secs(10) };
        assert!(!must_roll(&policy, 99, Duration::from_secs(9)));
        assert!(must_roll(&policy, 100, Duration::ZERO));
        assert!(must_roll(&policy, 0, Duration::from_secs(10)));
    }

    #[test]
    fn a_full_disk_names_the_file_and_may_be_retried() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut part = OpenPart { file: full, path: "/data/out/.semel-pending/x.part".into(), opened: Instant::now() };
        let error = part.write(b"row\n").unwrap_err();
        assert!(
            matches!(&error, ConnectorError::Retryable(text) if text.contains("/data/out/.semel-pending/x.part") && text.contains("space")),
            "{error}"
        );
    }
}
