//! Joins small batches of one split that wait in the queue anyway, so that a slow consumer gets few large batches. Nothing is
//! ever held back for it.

use crate::ConnectorResult;
use crate::decode::{MAX_BYTES, MAX_ROWS};
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::error::ArrowError;
use semel_checkpoint::SplitState;
use semel_engine::source::SourceEvent;
use std::collections::VecDeque;
use std::sync::Arc;

/// What the reading task sends.
#[derive(Debug)]
pub(crate) enum Message {
    /// A split begins.
    Split(SplitState),
    /// Rows, with the room in the queue that they take.
    Rows { split: Arc<str>, rows: RecordBatch, position: i64, caught_up: bool, bytes: usize, room: tokio::sync::OwnedSemaphorePermit },
    /// A split ends.
    Finished(Arc<str>),
    /// No split will come any more.
    NoMoreSplits,
    /// The reading has ended.
    Failed(crate::ConnectorError),
}

#[derive(Debug)]
struct Group {
    split: Arc<str>,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    position: i64,
    caught_up: bool,
}

#[derive(Debug)]
enum Entry {
    Rows(Group),
    Event(SourceEvent),
}

/// The messages that were taken from the queue, joined where possible. The order within a split stays.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    entries: VecDeque<Entry>,
}

impl Merged {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of entries that wait.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes a message. An error ends the reading, but what came before it is still delivered by then.
    pub(crate) fn push(&mut self, message: Message) -> ConnectorResult<()> {
        let event = match message {
            Message::Rows { split, rows, position, caught_up, bytes, room } => {
                drop(room);
                self.push_rows(split, rows, position, caught_up, bytes);
                return Ok(());
            }
            Message::Split(state) => SourceEvent::Split(state),
            Message::Finished(split) => SourceEvent::SplitFinished { split },
            Message::NoMoreSplits => SourceEvent::NoMoreSplits,
            Message::Failed(error) => return Err(error),
        };
        self.entries.push_back(Entry::Event(event));
        Ok(())
    }

    fn push_rows(&mut self, split: Arc<str>, rows: RecordBatch, position: i64, caught_up: bool, bytes: usize) {
        let newest = self.entries.iter_mut().rev().find_map(|entry| match entry {
            Entry::Rows(group) if group.split == split => Some(group),
            _ => None,
        });
        let count = rows.num_rows();
        match newest {
            Some(group) if group.rows + count <= MAX_ROWS && group.bytes + bytes <= MAX_BYTES => {
                group.rows += count;
                group.bytes += bytes;
                (group.position, group.caught_up) = (position, caught_up);
                // Of batches without rows one is kept, for the schema.
                if count > 0 || group.batches.is_empty() {
                    group.batches.push(rows);
                }
            }
            _ => self.entries.push_back(Entry::Rows(Group { split, batches: vec![rows], rows: count, bytes, position, caught_up })),
        }
    }

    /// The oldest entry as an event.
    pub(crate) fn pop(&mut self) -> Option<Result<SourceEvent, ArrowError>> {
        Some(match self.entries.pop_front()? {
            Entry::Event(event) => Ok(event),
            Entry::Rows(group) => group.join(),
        })
    }
}

impl Group {
    fn join(mut self) -> Result<SourceEvent, ArrowError> {
        let rows = match self.batches.len() {
            1 => self.batches.swap_remove(0),
            _ => concat_batches(&self.batches[0].schema(), &self.batches)?,
        };
        Ok(SourceEvent::Rows { split: self.split, rows, position: self.position, caught_up: self.caught_up })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use arrow::array::{ArrayRef, Int32Array};

    fn rows(values: Vec<i32>) -> RecordBatch {
        RecordBatch::try_from_iter([("v", Arc::new(Int32Array::from(values)) as ArrayRef)]).unwrap()
    }

    fn message(split: &str, values: Vec<i32>, position: i64) -> Message {
        let room = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
        Message::Rows { split: split.into(), bytes: values.len() * 4, rows: rows(values), position, caught_up: position > 5, room }
    }

    fn drained(merged: &mut Merged) -> Vec<(String, usize, i64)> {
        std::iter::from_fn(|| merged.pop())
            .map(|event| match event.unwrap() {
                SourceEvent::Rows { split, rows, position, .. } => (split.to_string(), rows.num_rows(), position),
                SourceEvent::SplitFinished { split } => (format!("end {split}"), 0, 0),
                other => (format!("{other:?}"), 0, 0),
            })
            .collect()
    }

    #[test]
    fn waiting_batches_of_one_split_become_one_and_the_order_stays() {
        let mut merged = Merged::default();
        for (split, values, position) in [("a", vec![1], 1), ("b", vec![9], 4), ("a", vec![2, 3], 3), ("a", vec![], 7)] {
            merged.push(message(split, values, position)).unwrap();
        }
        merged.push(Message::Finished("a".into())).unwrap();
        assert_eq!(drained(&mut merged), [("a".to_owned(), 3, 7), ("b".to_owned(), 1, 4), ("end a".to_owned(), 0, 0)]);
    }

    #[test]
    fn batches_do_not_grow_beyond_the_limits() {
        let mut merged = Merged::default();
        merged.push(message("a", vec![0; MAX_ROWS - 1], 1)).unwrap();
        merged.push(message("a", vec![0; 2], 2)).unwrap();
        merged.push(message("a", vec![0; 3], 3)).unwrap();
        assert_eq!(drained(&mut merged), [("a".to_owned(), MAX_ROWS - 1, 1), ("a".to_owned(), 5, 3)]);
    }
}
