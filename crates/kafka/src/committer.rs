//! Phase two, one per subtask, with connections of its own.

use crate::handle::KafkaTransaction;
use crate::ids::IdScope;
use crate::proof::Proof;
use crate::settle::{Next, Settled, Settler};
use crate::sink::SharedPool;
use crate::{Committed, ConnectorError, ConnectorResult};
use semel_checkpoint::{CheckpointId, CommitPermit};
use semel_engine::sink::SinkCommitter;
use std::sync::Arc;

/// Commits the transactions of one subtask.
#[derive(Debug)]
pub struct KafkaCommitter {
    settler: Option<Settler>,
    pool: Arc<SharedPool>,
    proof: Option<Proof>,
}

impl KafkaCommitter {
    /// `settler`: `None` where the sink has no transactions.
    pub(crate) fn new(settler: Option<Settler>, scope: IdScope, pool: Arc<SharedPool>) -> KafkaCommitter {
        let proof = settler.as_ref().map(|settler| Proof::new(settler.transactions().clone(), scope, pool.clone()));
        KafkaCommitter { settler, pool, proof }
    }

    fn settler(&self) -> ConnectorResult<&Settler> {
        let missing = || ConnectorError::Fatal("this sink's delivery guarantee has no transactions, but one is to be ended".to_owned());
        self.settler.as_ref().ok_or_else(missing)
    }

    fn ended(&self, transaction: &KafkaTransaction, next: Next) {
        let of_next = match next {
            Next::Identity(producer_id, epoch) => Some(Some((producer_id, epoch))),
            Next::Initialise => Some(None),
            Next::Leave => None, // The id is not used again; the partitions may have missed its end all the same.
        };
        if let Some(next) = of_next {
            self.pool.lock().ended(&transaction.transactional_id, (transaction.producer_id, transaction.epoch), next);
        }
        if let Some(proof) = &self.proof {
            proof.ended(transaction.clone());
        }
    }
}

impl SinkCommitter for KafkaCommitter {
    type Transaction = KafkaTransaction;

    async fn commit(&mut self, transaction: &KafkaTransaction, permit: &CommitPermit) -> ConnectorResult<Committed> {
        _ = permit;
        if !transaction.is_transactional() {
            return Ok(Committed::Now);
        }
        match self.settler()?.commit(transaction).await? {
            Settled::Committed { how, next } => {
                self.ended(transaction, next);
                Ok(how)
            }
            // `decide` never answers a commit so; if it did, it would be a loss.
            Settled::Aborted { .. } => Err(ConnectorError::Lost(format!("{transaction}: aborted"))),
        }
    }

    async fn abort(&mut self, transaction: &KafkaTransaction) -> ConnectorResult<()> {
        if !transaction.is_transactional() {
            return Ok(());
        }
        match self.settler()?.abort(transaction).await? {
            Settled::Aborted { next } => {
                self.ended(transaction, next);
                Ok(())
            }
            Settled::Committed { .. } => Err(ConnectorError::Fatal(format!("{transaction} cannot be aborted: it was committed before"))),
        }
    }

    async fn released(&mut self, committed: CheckpointId) -> ConnectorResult<()> {
        self.pool.lock().released(committed);
        self.pool.changed.notify_waiters();
        if let Some(proof) = &mut self.proof {
            proof.look();
        }
        Ok(())
    }

    async fn finish(&mut self) -> ConnectorResult<()> {
        if let Some(proof) = &mut self.proof {
            proof.finish().await;
        }
        Ok(())
    }
}
