//! A store that fails on purpose, for tests of this crate and of those above it.

use crate::store::{PutOutcome, Store, StoreError, StoreResult, StoredObject};
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What happens to one write (`put_if_absent`, `put` or `delete`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, and the store is dead from here on: the process died before the effect.
    StopBefore,
    /// It is written, and the store is dead from here on: the process died after the effect.
    StopAfter,
    /// It is written, and the answer is lost.
    LoseAnswer,
    /// It is not written, and the answer is a 503.
    Refuse,
    /// The answer is lost, and it is written only when [`FaultyStore::deliver`] is called.
    Hold,
    /// It is written, and answered after this time.
    Delay(Duration),
}

/// How often, out of 1000 writes, each fault happens by chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of [`Fault::LoseAnswer`].
    pub lose: u32,
    /// Of [`Fault::Refuse`].
    pub refuse: u32,
    /// Of reads that are answered with a 503.
    pub refuse_reads: u32,
    /// Of [`Fault::Hold`], delivered at some later write.
    pub hold: u32,
    /// Of [`Fault::Delay`] by up to 5 ms.
    pub delay: u32,
}

#[derive(Clone, Debug)]
enum Held {
    PutIfAbsent(String, Bytes),
    Put(String, Bytes),
    Delete(String),
}

#[derive(Debug, Default)]
struct Plan {
    writes: u64,
    log: Vec<String>,
    faults: BTreeMap<u64, Fault>,
    chance: Option<(StdRng, Rates)>,
    held: Vec<Held>,
    stopped: bool,
}

/// Wraps any store and fails as told: by the number of the write, or at random from a seed. Clones share the plan.
#[derive(Clone, Debug)]
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

impl FaultyStore {
    /// Without faults at first.
    pub fn new(inner: Arc<dyn Store>) -> FaultyStore {
        FaultyStore { inner, plan: Arc::default() }
    }

    /// With faults by chance; the same seed and the same calls give the same faults.
    pub fn random(inner: Arc<dyn Store>, seed: u64, rates: Rates) -> FaultyStore {
        let store = FaultyStore::new(inner);
        store.plan().chance = Some((StdRng::seed_from_u64(seed), rates));
        store
    }

    /// Lets the n-th write from the beginning (the first is 1) fail so.
    pub fn on_write(self, n: u64, fault: Fault) -> FaultyStore {
        self.plan().faults.insert(n, fault);
        self
    }

    /// Lets the next write fail so.
    pub fn on_next_write(&self, fault: Fault) {
        let mut plan = self.plan();
        let n = plan.writes + 1;
        plan.faults.insert(n, fault);
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.plan().writes
    }

    /// All writes so far, as `operation path`.
    pub fn log(&self) -> Vec<String> {
        self.plan().log.clone()
    }

    /// Whether a stop has happened.
    pub fn stopped(&self) -> bool {
        self.plan().stopped
    }

    /// Carries out the writes that were held, oldest first; returns how many.
    pub async fn deliver(&self) -> Result<usize, StoreError> {
        let held = std::mem::take(&mut self.plan().held);
        let count = held.len();
        for write in held {
            self.carry_out(write).await?;
        }
        Ok(count)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, write: Held) -> Result<PutOutcome, StoreError> {
        match write {
            Held::PutIfAbsent(path, bytes) => self.inner.put_if_absent(&path, bytes).await,
            Held::Put(path, bytes) => self.inner.put(&path, bytes).await.map(|()| PutOutcome::Written),
            Held::Delete(path) => self.inner.delete(&path).await.map(|()| PutOutcome::Written),
        }
    }

    /// The fault of the next write, and a held write that arrives now.
    fn next_write(&self, operation: &'static str, path: &str) -> (Option<Fault>, Option<Held>) {
        let mut plan = self.plan();
        plan.writes += 1;
        plan.log.push(format!("{operation} {path}"));
        let planned = plan.writes;
        if let Some(fault) = plan.faults.remove(&planned) {
            return (Some(fault), None);
        }
        let Some((mut chance, rates)) = plan.chance.take() else {
            return (None, None);
        };
        let late = !plan.held.is_empty() && chance.random_ratio(1, 4);
        let late = late.then(|| plan.held.remove(0));
        let delay = Duration::from_micros(chance.random_range(0..5000));
        let mut draw = chance.random_range(0..1000);
        plan.chance = Some((chance, rates));
        let table =
            [(rates.lose, Fault::LoseAnswer), (rates.refuse, Fault::Refuse), (rates.hold, Fault::Hold), (rates.delay, Fault::Delay(delay))];
        for (rate, fault) in table {
            if draw < rate {
                return (Some(fault), late);
            }
            draw -= rate;
        }
        (None, late)
    }

    fn check_alive(&self, operation: &'static str, path: &str) -> Result<(), StoreError> {
        match self.stopped() {
            true => Err(StoreError::fatal(operation, path, "stopped by the test", "this process counts as dead")),
            false => Ok(()),
        }
    }

    async fn write(&self, operation: &'static str, path: &str, write: Held) -> Result<PutOutcome, StoreError> {
        self.check_alive(operation, path)?;
        let (fault, late) = self.next_write(operation, path);
        if let Some(late) = late {
            self.carry_out(late).await?;
        }
        let lost = || StoreError::transient(operation, path, "the test lost the answer");
        match fault {
            None => self.carry_out(write).await,
            Some(Fault::StopBefore) => {
                self.plan().stopped = true;
                self.check_alive(operation, path).map(|()| PutOutcome::Exists)
            }
            Some(Fault::StopAfter) => {
                self.carry_out(write).await?;
                self.plan().stopped = true;
                self.check_alive(operation, path).map(|()| PutOutcome::Exists)
            }
            Some(Fault::LoseAnswer) => {
                self.carry_out(write).await?;
                Err(lost())
            }
            Some(Fault::Refuse) => Err(StoreError::transient(operation, path, "503 by the test")),
            Some(Fault::Hold) => {
                self.plan().held.push(write);
                Err(lost())
            }
            Some(Fault::Delay(time)) => {
                let outcome = self.carry_out(write).await;
                tokio::time::sleep(time).await;
                outcome
            }
        }
    }

    fn read(&self, operation: &'static str, path: &str) -> Result<(), StoreError> {
        self.check_alive(operation, path)?;
        let mut plan = self.plan();
        let refused = match &mut plan.chance {
            Some((chance, rates)) => chance.random_range(0..1000) < rates.refuse_reads,
            None => false,
        };
        if refused { Err(StoreError::transient(operation, path, "503 by the test")) } else { Ok(()) }
    }
}

impl Store for FaultyStore {
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome> {
        Box::pin(self.write("put_if_absent", path, Held::PutIfAbsent(path.to_owned(), bytes)))
    }

    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()> {
        Box::pin(async move { self.write("put", path, Held::Put(path.to_owned(), bytes)).await.map(drop) })
    }

    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>> {
        Box::pin(async move {
            self.read("get", path)?;
            self.inner.get(path).await
        })
    }

    fn get_range<'a>(&'a self, path: &'a str, range: Range<u64>) -> StoreResult<'a, Bytes> {
        Box::pin(async move {
            self.read("get_range", path)?;
            self.inner.get_range(path, range).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>> {
        Box::pin(async move {
            self.read("list", prefix)?;
            self.inner.list(prefix).await
        })
    }

    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()> {
        Box::pin(async move { self.write("delete", path, Held::Delete(path.to_owned())).await.map(drop) })
    }
}
