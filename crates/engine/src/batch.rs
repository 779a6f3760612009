//! [`Batch`]: an Arrow `RecordBatch` as a timely container, and Arrow IPC as its form on the wire.
use crate::time::Time;
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use std::cell::OnceCell;
use timely::bytes::arc::Bytes;
use timely::container::{Accountable, NoopBuilder};
use timely::dataflow::channels::ContainerBytes;
use timely::dataflow::operators::generic::OutputBuilder;

/// An output that sends whole batches.
pub type BatchOutput = OutputBuilder<Time, NoopBuilder<Batch>>;

/// Rows on their way from one operator to another.
#[derive(Clone, Default)]
pub struct Batch {
    rows: Option<RecordBatch>,
    ipc: OnceCell<Vec<u8>>,
}

impl From<RecordBatch> for Batch {
    fn from(rows: RecordBatch) -> Self {
        Batch { rows: Some(rows), ipc: OnceCell::new() }
    }
}

impl Batch {
    /// The rows, which the batch then no longer has. `None` for a batch that was taken before.
    pub fn take(&mut self) -> Option<RecordBatch> {
        self.rows.take()
    }

    /// Timely asks for the length before the bytes, so they are made once and kept.
    fn encoded(&self) -> &[u8] {
        self.ipc.get_or_init(|| match self.rows.as_ref().map(encode) {
            Some(Ok(bytes)) => bytes,
            Some(Err(e)) => {
                crate::failure::fail(crate::failure::Failure::Fatal(format!("a batch cannot be encoded for another process: {e}")))
            }
            None => Vec::new(),
        })
    }
}

/// Arrow IPC of one batch, with its schema.
pub fn encode(rows: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::with_capacity(rows.get_array_memory_size() + 1024), rows.schema_ref())?;
    writer.write(rows)?;
    writer.into_inner()
}

/// What [`encode`] wrote. Copies, so that the bytes given may be freed.
pub fn decode(bytes: &[u8]) -> Result<Option<RecordBatch>, ArrowError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    StreamDecoder::new().decode(&mut Buffer::from(bytes))
}

impl Accountable for Batch {
    fn record_count(&self) -> i64 {
        self.rows.as_ref().map_or(0, |r| r.num_rows() as i64)
    }
}

/// On the wire: length, Arrow IPC, padding to 8 bytes.
impl ContainerBytes for Batch {
    fn from_bytes(bytes: Bytes) -> Self {
        let (length, rest) = bytes.split_at(8);
        let length = length.try_into().map_or(0, u64::from_le_bytes) as usize;
        // Copies: a slice of timely's slab must not outlive the activation.
        match decode(&rest[..length.min(rest.len())]) {
            Ok(rows) => Batch { rows, ipc: OnceCell::new() },
            // Links are authenticated and carry a hash of the plan, so this is a broken link.
            Err(e) => crate::failure::fail(crate::failure::Failure::Retryable(format!("a batch from another process cannot be read: {e}"))),
        }
    }
    fn length_in_bytes(&self) -> usize {
        8 + self.encoded().len().next_multiple_of(8)
    }
    fn into_bytes<W: std::io::Write>(&self, writer: &mut W) {
        let bytes = self.encoded();
        let padding = bytes.len().next_multiple_of(8) - bytes.len();
        let written = writer
            .write_all(&(bytes.len() as u64).to_le_bytes())
            .and_then(|()| writer.write_all(bytes))
            .and_then(|()| writer.write_all(&[0; 8][..padding]));
        if let Err(e) = written {
            crate::failure::fail(crate::failure::Failure::Retryable(format!("a batch for another process cannot be written: {e}")));
        }
    }
}
