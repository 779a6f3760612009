//! Looks after the transactions that a subtask has ended until the partitions show it; see [`hanging`](crate::hanging). Beside the
//! commits, never in their way.

use crate::client::{TopicPartition, Transactions};
use crate::handle::KafkaTransaction;
use crate::hanging::{end_hanging, open_in, partitions_of};
use crate::ids::IdScope;
use crate::sink::SharedPool;
use crate::{ConnectorError, ConnectorResult};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Ended transactions of one subtask whose partitions have not shown it yet.
#[derive(Debug)]
pub struct Proof {
    transactions: Transactions,
    scope: IdScope,
    pool: Arc<SharedPool>,
    waiting: Arc<Mutex<Vec<Waiting>>>,
    task: Option<JoinHandle<()>>,
}

/// Found open once, it is looked at again after this time; found open again, its end may be missing.
const SOON: Duration = Duration::from_millis(50);
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
        Proof { transactions, scope, pool, waiting: Arc::default(), task: None }
    }

    /// Its end was answered.
    pub fn ended(&self, transaction: KafkaTransaction) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Waiting { transaction, late: false, due: Instant::now() });
    }

    /// Looks at what is due, unless somebody does already. Called once per checkpoint.
    pub fn look(&mut self) {
        if self.task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let now = Instant::now();
        let waiting: Vec<Waiting> =
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).extract_if(.., |one| one.due <= now).collect();
        if waiting.is_empty() {
            return;
        }
        let (transactions, scope, pool, left) = (self.transactions.clone(), self.scope.clone(), self.pool.clone(), self.waiting.clone());
        self.task = Some(tokio::spawn(async move {
            let keep = |one: Waiting| left.lock().unwrap_or_else(PoisonError::into_inner).push(one);
            for one in waiting {
                match shown(&transactions, &scope, &one).await {
                    Ok(true) => {
                        let KafkaTransaction { transactional_id, producer_id, epoch, .. } = &one.transaction;
                        pool.lock().shown(transactional_id, (*producer_id, *epoch));
                        pool.changed.notify_waiters();
                    }
                    Ok(false) => {
                        let after = if one.late { LATE } else { SOON };
                        keep(one.again(after, true));
                    }
                    Err(error) => {
                        tracing::warn!(%error, transaction = %one.transaction, "it is not known whether the partitions show the end of a transaction; asked again");
                        let late = one.late;
                        keep(one.again(FAILED, late));
                    }
                }
            }
        }));
    }
}

/// Whether its partitions show its end. Where they may not be asked, its coordinator is believed, as every other client does.
async fn shown(transactions: &Transactions, scope: &IdScope, one: &Waiting) -> ConnectorResult<bool> {
    static WARNED: Once = Once::new();
    match open_in(transactions, &one.transaction).await {
        Ok(false) => return Ok(true),
        Ok(true) => {}
        Err(ConnectorError::Fatal(why)) => {
            WARNED.call_once(|| tracing::warn!("{why}; until then a transaction whose end Kafka has dropped (KAFKA-20734) goes unnoticed"));
            return Ok(true);
        }
        Err(other) => return Err(other),
    }
    if one.late {
        let partitions: BTreeSet<TopicPartition> = partitions_of(&one.transaction);
        end_hanging(transactions, scope, &partitions).await?;
    }
    Ok(false)
}
