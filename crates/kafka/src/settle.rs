//! Ends transactions and does not return before it is known what became of them: the loop around [`decide`](crate::decide).

use crate::client::{ClientError, Deadline, EndTxn, ErrorCode, TransactionDescription, Transactions};
use crate::connect::connector_error;
use crate::decide::{self, Answer, Decision};
use crate::handle::KafkaTransaction;
use crate::{Committed, ConnectorError, ConnectorResult};
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(50);
/// Longest time for one request before the same one is sent again.
const ONE_CALL: Duration = Duration::from_secs(30);

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Committed.
    Committed {
        /// By this call or an earlier one.
        how: Committed,
        /// Producer id and epoch for the id's next transaction, where `EndTxn` was answered NONE and said so.
        next: Next,
    },
    /// Aborted, or not open any more.
    Aborted {
        /// As above.
        next: Next,
    },
}

/// What may be done with a transactional id after its transaction was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// `EndTxn` was answered NONE and gave this producer id and epoch (v5).
    Identity(i64, i16),
    /// `EndTxn` was answered NONE: initialise the id before its next transaction (below v5).
    Initialise,
    /// `EndTxn` was not answered NONE: do not use the id again.
    Leave,
}

/// Ends transactions at their coordinators.
#[derive(Debug, Clone)]
pub struct Settler {
    transactions: Transactions,
    timeout: Duration,
}

impl Settler {
    /// `timeout`: how long a transaction may stay undecided before the call fails (and is repeated by the next generation).
    pub fn new(transactions: Transactions, timeout: Duration) -> Settler {
        Settler { transactions, timeout }
    }

    /// The calls.
    pub fn transactions(&self) -> &Transactions {
        &self.transactions
    }

    /// Commits, or proves that it was committed. Never takes "unknown" for success.
    pub async fn commit(&self, transaction: &KafkaTransaction) -> ConnectorResult<Settled> {
        self.end(transaction, true).await
    }

    /// Aborts. A transaction that turns out to be committed is answered as such.
    pub async fn abort(&self, transaction: &KafkaTransaction) -> ConnectorResult<Settled> {
        self.end(transaction, false).await
    }

    async fn end(&self, transaction: &KafkaTransaction, commit: bool) -> ConnectorResult<Settled> {
        let deadline = Deadline::after(self.timeout);
        loop {
            let id = &transaction.transactional_id;
            let ended = self.transactions.end_txn(id, transaction.producer_id, transaction.epoch, commit, deadline.at_most(ONE_CALL)).await;
            let (answer, next) = match ended {
                Ok(end) => (Answer::Code(end.code), next_of(&end)),
                Err(error) => (answer_of(error)?, Next::Leave),
            };
            let mut decision =
                if commit { decide::commit_answered(transaction, answer) } else { decide::abort_answered(transaction, answer) };
            if let (Decision::AskDescribe, Answer::Code(code)) = (&decision, answer) {
                decision = match self.describe(id, &deadline).await? {
                    None => Decision::RetryAfter,
                    Some(described) if commit => decide::commit_described(transaction, code, &described),
                    Some(described) => decide::abort_described(transaction, &described),
                };
                tracing::info!(transaction = %transaction, commit, answer = %code, ?decision, "the end of a transaction was decided by its description");
            }
            match decision {
                Decision::Committed(how) => return Ok(Settled::Committed { how, next }),
                Decision::Aborted => return Ok(Settled::Aborted { next }),
                Decision::RetryAfter | Decision::FindCoordinator | Decision::AskDescribe => {}
                Decision::Lost { why } => return Err(ConnectorError::Lost(format!("{transaction}: {why}"))),
                Decision::Undecidable { why } => {
                    return Err(ConnectorError::Fatal(format!(
                        "nobody can tell any more whether this transaction was committed ({transaction}): {why}; compare the rows in the topic with the source, then restart from a checkpoint of your choice"
                    )));
                }
                Decision::Stop { why } => return Err(ConnectorError::Fatal(format!("{transaction}: {why}"))),
            }
            if !deadline.sleep(PAUSE).await {
                return Err(ConnectorError::Retryable(format!(
                    "the {} of {transaction} is not decided after {:?}: the coordinator does not answer for good (last: {answer:?}); it is asked again after the restart",
                    if commit { "commit" } else { "abort" },
                    self.timeout
                )));
            }
        }
    }

    /// The newest transaction of an id; `None` when the coordinator did not answer this time.
    async fn describe(&self, id: &str, deadline: &Deadline) -> ConnectorResult<Option<TransactionDescription>> {
        match self.transactions.describe(&[id], deadline.at_most(ONE_CALL)).await {
            Ok(described) => Ok(described.into_iter().next()),
            Err(error) if error.is_retriable() => Ok(None),
            Err(error) => Err(connector_error(error)),
        }
    }

    /// Waits until the coordinator confirms that a transaction can be committed.
    pub async fn pre_commit(&self, transaction: &KafkaTransaction) -> ConnectorResult<()> {
        let deadline = Deadline::after(self.timeout);
        loop {
            let decision = match self.describe(&transaction.transactional_id, &deadline).await? {
                None => Decision::RetryAfter,
                Some(described) => match decide::pre_commit_described(transaction, &described) {
                    Ok(()) => return Ok(()),
                    Err(decision) => decision,
                },
            };
            match decision {
                Decision::RetryAfter | Decision::FindCoordinator => {}
                Decision::Stop { why } | Decision::Lost { why } | Decision::Undecidable { why } => {
                    return Err(ConnectorError::Retryable(format!("{transaction} cannot be pre-committed: {why}")));
                }
                other => return Err(ConnectorError::Retryable(format!("{transaction} cannot be pre-committed: {other:?}"))),
            }
            if !deadline.sleep(PAUSE).await {
                return Err(ConnectorError::Retryable(format!(
                    "the pre-commit of {transaction} is not confirmed after {:?}: its coordinator does not answer",
                    self.timeout
                )));
            }
        }
    }
}

fn next_of(end: &EndTxn) -> Next {
    match (end.code, end.producer_id, end.epoch) {
        (ErrorCode::NONE, Some(producer_id), Some(epoch)) if end.version >= decide::END_TXN_BUMPS_EPOCH => {
            Next::Identity(producer_id, epoch)
        }
        (ErrorCode::NONE, ..) => Next::Initialise,
        _ => Next::Leave,
    }
}

/// A failed call as an answer: a code that is judged, silence that is asked again, or an error that stays.
fn answer_of(error: ClientError) -> ConnectorResult<Answer> {
    match error.code() {
        Some(code) => Ok(Answer::Code(code)),
        None if error.is_retriable() => Ok(Answer::Nothing),
        None => Err(connector_error(error)),
    }
}
