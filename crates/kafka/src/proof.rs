//! Looks after the transactions that a subtask has ended until the partitions show it; see [`hanging`](crate::hanging). Beside the
//! commits, never in their way.

use crate::client::Transactions;
use crate::handle::KafkaTransaction;
use crate::hanging::{Shown, end_hanging, forbidden, partitions_of, shown};
use crate::ids::IdScope;
use crate::sink::SharedPool;
use crate::{ConnectorError, ConnectorResult};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Ended transactions of one subtask whose partitions have not shown it yet.
#[derive(Debug)]
pub struct Proof {
    prover: Prover,
    /// The next look begins no earlier: each costs requests, and one look is for all that wait.
    due: Instant,
    task: Option<JoinHandle<()>>,
}

/// What is shared with the task that looks.
#[derive(Debug, Clone)]
struct Prover {
    transactions: Transactions,
    scope: IdScope,
    pool: Arc<SharedPool>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
}

/// Between two looks.
const PACE: Duration = Duration::from_millis(250);
/// Found open twice, the end of a transaction may be missing; then it is looked at after this time.
const LATE: Duration = Duration::from_secs(1);
/// After an error, which is told each time.
const FAILED: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
struct Waiting {
    transaction: KafkaTransaction,
    /// Found open before.
    late: bool,
    due: Instant,
}

impl Waiting {
    fn again(self, after: Duration, late: bool) -> Waiting {
        Waiting { late, due: Instant::now() + after, ..self }
    }
}

impl Drop for Proof {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Proof {
    /// For the ids of one subtask.
    pub(crate) fn new(transactions: Transactions, scope: IdScope, pool: Arc<SharedPool>) -> Proof {
        Proof { prover: Prover { transactions, scope, pool, waiting: Arc::default() }, due: Instant::now(), task: None }
    }

    /// Its end was answered.
    pub fn ended(&self, transaction: KafkaTransaction) {
        self.prover.waiting().push(Waiting { transaction, late: false, due: Instant::now() });
    }

    /// Looks at what is due, unless somebody does already or has just done so. Called once per checkpoint.
    pub fn look(&mut self) {
        let now = Instant::now();
        if self.due > now || self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let waiting = self.prover.take(|one| one.due <= now);
        if waiting.is_empty() {
            return;
        }
        self.due = now + PACE;
        let prover = self.prover.clone();
        self.task = Some(tokio::spawn(async move { prover.look(waiting).await }));
    }

    /// Looks until all is shown.
    pub async fn finish(&mut self) {
        if let Some(task) = self.task.take() {
            // It has told what it has to tell.
            _ = task.await;
        }
        loop {
            let waiting = self.prover.take(|_| true);
            if waiting.is_empty() {
                return;
            }
            self.prover.look(waiting).await;
            if !self.prover.waiting().is_empty() {
                tokio::time::sleep(PACE).await;
            }
        }
    }
}

impl Prover {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, which: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.waiting().extract_if(.., |one| which(one)).collect()
    }

    /// One look for all.
    async fn look(&self, waiting: Vec<Waiting>) {
        let seen = match shown(&self.transactions, waiting.iter().map(|one| &one.transaction)).await {
            Ok(seen) => seen,
            Err(error) => return self.failed(waiting, &error),
        };
        let mut late = vec![];
        for (one, seen) in waiting.into_iter().zip(seen) {
            match seen {
                Shown::Ended => self.shown(&one.transaction),
                // Its coordinator is believed, as every other client does.
                Shown::Forbidden(partition) => {
                    warn_once(&forbidden(&partition));
                    self.shown(&one.transaction);
                }
                Shown::Open if one.late => late.push(one),
                Shown::Open => self.waiting().push(one.again(PACE, true)),
                Shown::Unseen(..) => self.waiting().push(one.again(LATE, true)),
            }
        }
        if !late.is_empty() {
            match self.end(&late).await {
                Ok(()) => self.waiting().extend(late.into_iter().map(|one| one.again(LATE, true))),
                Err(error) => self.failed(late, &error),
            }
        }
    }

    fn shown(&self, transaction: &KafkaTransaction) {
        self.pool.lock().shown(&transaction.transactional_id, (transaction.producer_id, transaction.epoch));
        self.pool.changed.notify_waiters();
    }

    fn failed(&self, waiting: Vec<Waiting>, error: &ConnectorError) {
        let names: Vec<&str> = waiting.iter().map(|one| one.transaction.transactional_id.as_str()).collect();
        tracing::warn!(%error, transactions = ?names, "it is not known whether the partitions show the ends of these transactions; asked again");
        self.waiting().extend(waiting.into_iter().map(|one| {
            let late = one.late;
            one.again(FAILED, late)
        }));
    }

    /// Writes the ends that partitions have missed.
    async fn end(&self, late: &[Waiting]) -> ConnectorResult<()> {
        let producers = late.iter().map(|one| one.transaction.producer_id).collect();
        let partitions = late.iter().flat_map(|one| partitions_of(&one.transaction)).collect();
        end_hanging(&self.transactions, &self.scope, &partitions, Some(&producers)).await.map(drop)
    }
}

fn warn_once(why: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| tracing::warn!("{why}; until then a transaction whose end Kafka has dropped (KAFKA-20734) goes unnoticed"));
}
