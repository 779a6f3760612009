use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Kafka, WriteRow};
use crate::{Error, Result};

/// Rows that are written in the background at a steady rate, until the iterator ends or [`stop`](Self::stop).
///
/// Every row is acknowledged by an idempotent producer, which repeats through restarts of brokers.
#[derive(Debug)]
pub struct Load {
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Load {
    /// Starts to write; `rate` is in rows per second.
    pub fn start(kafka: &Arc<Kafka>, topic: &str, rate: u64, rows: impl Iterator<Item = WriteRow> + Send + 'static) -> Self {
        let (written, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ended) = (Arc::clone(&written), Arc::clone(&stop));
        let (kafka, topic) = (Arc::clone(kafka), topic.to_owned());
        let thread = std::thread::spawn(move || {
            let mut rows = rows;
            let start = Instant::now();
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                // What is due by the clock; after a pause of the broker the rate is caught up in large requests.
                let due = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_mul(rate) / 1000;
                let batch: Vec<_> = rows.by_ref().take(usize::try_from(due - sent).unwrap_or(0).min(20_000)).collect();
                if batch.is_empty() && due > sent {
                    break;
                }
                sent += batch.len() as u64;
                if !batch.is_empty() {
                    kafka.write(&topic, batch)?;
                    count.store(sent, Ordering::Release);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        Self { written, stop, thread: Some(thread) }
    }

    /// Rows that are acknowledged so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// True when the iterator has ended and all is acknowledged, or writing has failed.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until at least this many rows are acknowledged.
    pub fn wait_written(&self, rows: u64, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while self.written() < rows {
            if self.is_finished() || Instant::now() > deadline {
                return Err(Error::Deadline {
                    what: format!("writing {rows} rows"),
                    after: within,
                    hint: format!("{} are written", self.written()),
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends the load after the request in flight; returns the number of rows written: exactly the first ones.
    pub fn stop(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }

    /// Waits for the end of the iterator; returns the number of rows written.
    pub fn finish(mut self) -> Result<u64> {
        self.join()
    }

    fn join(&mut self) -> Result<u64> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result.map(|()| self.written()),
            Some(Err(_)) => Err(Error::Setup("the thread that writes the load panicked".into())),
            None => Ok(self.written()),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.join();
    }
}
