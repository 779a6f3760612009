//! Exchanges rows by key slot: `subtask = slot * parallelism / slots`.
use crate::batch::Batch;
use crate::failure::{Failure, fail};
use crate::state::{hash_columns, slot_of, subtask_of};
use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{BatchCoalescer, take_record_batch};
use arrow::error::ArrowError;
use std::sync::Arc;
use timely::communication::Push;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::DistributorPact;
use timely::dataflow::channels::pushers::exchange::Distributor;
use timely::progress::Stamp;

/// Rows are gathered up to this many for each receiver.
const TARGET_ROWS: usize = 8192;

/// The pact that sends each row to the subtask that owns the slot of its key.
pub fn by_key(keys: Vec<usize>, slots: u32) -> DistributorPact<impl FnOnce(usize) -> ByKey> {
    DistributorPact(move |peers| ByKey { keys, slots, hashes: vec![], picks: vec![vec![]; peers], coalescers: vec![] })
}

/// See [`by_key`].
pub struct ByKey {
    keys: Vec<usize>,
    slots: u32,
    hashes: Vec<u64>,
    picks: Vec<Vec<u32>>,
    coalescers: Vec<BatchCoalescer>,
}

impl ByKey {
    fn split(&mut self, rows: &RecordBatch, peers: usize) -> Result<(), ArrowError> {
        if self.coalescers.is_empty() {
            self.coalescers = (0..peers).map(|_| BatchCoalescer::new(rows.schema(), TARGET_ROWS)).collect();
        }
        let keys: Vec<ArrayRef> = self.keys.iter().map(|i| rows.column(*i).clone()).collect();
        hash_columns(&keys, &mut self.hashes).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        for (row, hash) in self.hashes.iter().enumerate() {
            self.picks[subtask_of(slot_of(*hash, self.slots), self.slots, peers)].push(row as u32);
        }
        for (picks, coalescer) in self.picks.iter_mut().zip(&mut self.coalescers) {
            if picks.len() == rows.num_rows() {
                coalescer.push_batch(rows.clone())?;
            } else if !picks.is_empty() {
                let indices = UInt32Array::from(std::mem::take(picks));
                coalescer.push_batch(take_record_batch(rows, &indices)?)?;
                // The index buffer goes back to be filled again, if nobody else holds it.
                *picks = indices.into_parts().1.into_inner().into_vec().unwrap_or_default();
            }
            picks.clear();
        }
        Ok(())
    }
}

impl Distributor<Batch> for ByKey {
    fn partition<T: Clone, P: Push<Message<T, Batch>>>(&mut self, batch: &mut Batch, stamp: &Stamp<T>, pushers: &mut [P]) {
        let Some(rows) = batch.take() else { return };
        if let Err(e) = self.split(&rows, pushers.len()) {
            fail(Failure::Fatal(format!("rows cannot be exchanged by key: {e}")));
        }
        for (coalescer, pusher) in self.coalescers.iter_mut().zip(pushers) {
            send(coalescer, stamp, pusher);
        }
    }
    fn flush<T: Clone, P: Push<Message<T, Batch>>>(&mut self, stamp: &Stamp<T>, pushers: &mut [P]) {
        for (coalescer, pusher) in self.coalescers.iter_mut().zip(pushers) {
            if let Err(e) = coalescer.finish_buffered_batch() {
                fail(Failure::Fatal(format!("rows cannot be exchanged by key: {e}")));
            }
            send(coalescer, stamp, pusher);
        }
    }
}

fn send<T: Clone, P: Push<Message<T, Batch>>>(coalescer: &mut BatchCoalescer, stamp: &Stamp<T>, pusher: &mut P) {
    while let Some(rows) = coalescer.next_completed_batch() {
        Message::push_at(&mut Batch::from(rows), stamp.clone(), pusher);
    }
}

/// The rows' key columns.
pub fn columns(rows: &RecordBatch, indices: &[usize]) -> Vec<ArrayRef> {
    indices.iter().map(|i| Arc::clone(rows.column(*i))).collect()
}
