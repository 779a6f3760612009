//! What an answer of the broker says about a transaction: facts in, decision out, no I/O.
//!
//! The rules were found by trying each on a real broker (Kafka 4.3, `transaction.version` 1 and 2). In short: `EndTxn` v5 bumps
//! the producer epoch in the same step as it ends the transaction, so its answer NONE for the recorded producer id and epoch
//! proves that *this* transaction was committed, now or by an earlier call, also after a broker restart and at the end of the
//! epoch range. Everything that is not NONE is decided by asking `DescribeTransactions`, and what stays in doubt is an error,
//! never a success.

use crate::client::{ErrorCode, TransactionDescription, TransactionState};
use crate::handle::KafkaTransaction;

/// First version of `EndTxn` that bumps the epoch (KIP-890).
pub const END_TXN_BUMPS_EPOCH: i16 = 5;

/// The last epoch that the broker hands out: a transaction of it is ended with a new producer id and epoch 0.
pub const LAST_EPOCH: i16 = i16::MAX - 1;

/// How `EndTxn` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// With this error code.
    Code(ErrorCode),
    /// Not at all: a time-out or a broken connection. The request may have been carried out, or may be later.
    Nothing,
}

/// What is to be done with a transaction, or what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Committed, by this call or by an earlier one.
    Committed(crate::Committed),
    /// Aborted, or there was nothing to abort.
    Aborted,
    /// The same request again, after a short pause.
    RetryAfter,
    /// Find the coordinator, then the same request again.
    FindCoordinator,
    /// `DescribeTransactions` decides.
    AskDescribe,
    /// The rows will not appear.
    Lost {
        /// What proves it.
        why: String,
    },
    /// Nobody can tell any more whether it was committed.
    Undecidable {
        /// What is known.
        why: String,
    },
    /// Somebody must change something (permission, version); nothing is lost yet.
    Stop {
        /// What, and how.
        why: String,
    },
}

/// What to do after an answer to `EndTxn(commit)` for `transaction`.
pub fn commit_answered(transaction: &KafkaTransaction, answer: Answer) -> Decision {
    match answer {
        Answer::Code(ErrorCode::NONE) => Decision::Committed(crate::Committed::Now),
        other => unless_none(transaction, other),
    }
}

/// What to do after an answer to `EndTxn(abort)` for `transaction`.
pub fn abort_answered(transaction: &KafkaTransaction, answer: Answer) -> Decision {
    match answer {
        Answer::Code(ErrorCode::NONE) => Decision::Aborted,
        other => unless_none(transaction, other),
    }
}

fn unless_none(transaction: &KafkaTransaction, answer: Answer) -> Decision {
    match answer {
        Answer::Nothing => Decision::RetryAfter,
        Answer::Code(code) => match code {
            ErrorCode::CONCURRENT_TRANSACTIONS | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS => Decision::RetryAfter,
            ErrorCode::REQUEST_TIMED_OUT
            | ErrorCode::NETWORK_EXCEPTION
            | ErrorCode::KAFKA_STORAGE_ERROR
            | ErrorCode::UNKNOWN_SERVER_ERROR => Decision::RetryAfter,
            ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR => Decision::FindCoordinator,
            ErrorCode::INVALID_TXN_STATE
            | ErrorCode::PRODUCER_FENCED
            | ErrorCode::INVALID_PRODUCER_EPOCH
            | ErrorCode::INVALID_PRODUCER_ID_MAPPING
            | ErrorCode::TRANSACTION_ABORTABLE => Decision::AskDescribe,
            other => Decision::Stop { why: refused(&transaction.transactional_id, other) },
        },
    }
}

/// What is known of a transaction whose commit was answered with `answered` (one of the codes that lead to
/// [`Decision::AskDescribe`]), now that the broker has described it.
pub fn commit_described(transaction: &KafkaTransaction, answered: ErrorCode, described: &TransactionDescription) -> Decision {
    if let Some(decision) = described_error(transaction, described) {
        return decision;
    }
    let (recorded, epoch) = (transaction.producer_id, transaction.epoch);
    let same_producer = described.producer_id == recorded;
    let same = same_producer && described.epoch == epoch;
    let next = same_producer && epoch < i16::MAX && described.epoch == epoch + 1;
    let wrapped = !same_producer && epoch >= LAST_EPOCH && described.epoch == 0;
    // 48 is only answered for the recorded epoch, or for its successor when the request is the retry of an end (v5).
    let about_ours = answered == ErrorCode::INVALID_TXN_STATE;
    let at = || format!("the broker says {:?} with producer id {} and epoch {}", described.state, described.producer_id, described.epoch);
    match described.state {
        TransactionState::PrepareCommit
        | TransactionState::PrepareAbort
        | TransactionState::PrepareEpochFence
        | TransactionState::Other(_) => Decision::RetryAfter,
        TransactionState::Ongoing if same => Decision::RetryAfter,
        TransactionState::CompleteAbort if next || (same && about_ours) || (wrapped && about_ours) => {
            Decision::Lost { why: format!("it was aborted (by its transaction.timeout.ms, or by somebody): {}", at()) }
        }
        // Ended by somebody with an older EndTxn, which leaves the epoch; pre-commit saw it Ongoing at this epoch.
        TransactionState::CompleteCommit if same && about_ours => Decision::Committed(crate::Committed::Already),
        TransactionState::Empty if same && about_ours => Decision::Stop {
            why: format!(
                "nothing was ever written in this epoch, although pre-commit saw the transaction open: {}; please report this",
                at()
            ),
        },
        _ => Decision::Undecidable { why: format!("its transactional id was used again before the commit was proven: {}", at()) },
    }
}

/// What is known of a transaction whose abort was answered with one of the codes that lead to [`Decision::AskDescribe`].
pub fn abort_described(transaction: &KafkaTransaction, described: &TransactionDescription) -> Decision {
    if described.code == ErrorCode::TRANSACTIONAL_ID_NOT_FOUND {
        return Decision::Aborted;
    }
    if let Some(decision) = described_error(transaction, described) {
        return decision;
    }
    let same_producer = described.producer_id == transaction.producer_id;
    let same = same_producer && described.epoch == transaction.epoch;
    let next = same_producer && transaction.epoch < i16::MAX && described.epoch == transaction.epoch + 1;
    let wrapped = !same_producer && transaction.epoch >= LAST_EPOCH && described.epoch == 0;
    match described.state {
        TransactionState::PrepareCommit
        | TransactionState::PrepareAbort
        | TransactionState::PrepareEpochFence
        | TransactionState::Other(_) => Decision::RetryAfter,
        TransactionState::Ongoing if same => Decision::RetryAfter,
        TransactionState::CompleteCommit if same || next || wrapped => Decision::Committed(crate::Committed::Already),
        // The id has moved on: whatever it does now, this transaction is not open any more.
        _ => Decision::Aborted,
    }
}

fn described_error(transaction: &KafkaTransaction, described: &TransactionDescription) -> Option<Decision> {
    Some(match described.code {
        ErrorCode::NONE => return None,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::REQUEST_TIMED_OUT | ErrorCode::NETWORK_EXCEPTION | ErrorCode::UNKNOWN_SERVER_ERROR => Decision::RetryAfter,
        ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR => Decision::FindCoordinator,
        ErrorCode::TRANSACTIONAL_ID_NOT_FOUND => Decision::Undecidable {
            why: "the broker does not know its transactional id: it expired (transactional.id.expiration.ms, 7 days by default), or this is another cluster"
                .to_owned(),
        },
        other => Decision::Stop { why: refused(&transaction.transactional_id, other) },
    })
}

/// Whether a transaction may be pre-committed: the broker must hold it open, as ours, with all the partitions written.
/// `Err` says what is wrong.
pub fn pre_commit_described(transaction: &KafkaTransaction, described: &TransactionDescription) -> Result<(), Decision> {
    if described.code == ErrorCode::TRANSACTIONAL_ID_NOT_FOUND {
        return Err(Decision::Stop { why: "the broker does not know its transactional id".to_owned() });
    }
    if let Some(decision) = described_error(transaction, described) {
        return Err(decision);
    }
    if matches!(described.state, TransactionState::PrepareEpochFence | TransactionState::Other(_)) {
        return Err(Decision::RetryAfter);
    }
    if described.state != TransactionState::Ongoing
        || described.producer_id != transaction.producer_id
        || described.epoch != transaction.epoch
    {
        return Err(Decision::Stop {
            why: format!(
                "it is no longer open (was it open for longer than transaction.timeout.ms, or did another generation end it?): the broker says {:?} with producer id {} and epoch {}, written were producer id {} and epoch {}",
                described.state, described.producer_id, described.epoch, transaction.producer_id, transaction.epoch
            ),
        });
    }
    let known: std::collections::BTreeSet<(&str, i32)> = described.partitions.iter().map(|p| (&*p.topic, p.partition)).collect();
    let missing: Vec<String> = transaction
        .partitions
        .iter()
        .flat_map(|(topic, ids)| ids.iter().map(move |id| (topic.as_str(), *id)))
        .filter(|partition| !known.contains(partition))
        .map(|(topic, id)| format!("{topic}-{id}"))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Decision::Stop { why: format!("the broker does not count these partitions to it: {}", missing.join(", ")) }),
    }
}

/// In words, with the remedy, why a request about a transactional id was refused for good.
pub fn refused(transactional_id: &str, error: ErrorCode) -> String {
    match error {
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED => format!(
            "no permission for transactional id {transactional_id}: grant it with kafka-acls.sh --add --allow-principal User:<user> --operation Write --operation Describe --transactional-id <prefix> --resource-pattern-type prefixed"
        ),
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            "no permission on the cluster: grant it with kafka-acls.sh --add --allow-principal User:<user> --operation IdempotentWrite --cluster".to_owned()
        }
        ErrorCode::UNSUPPORTED_VERSION => format!("the broker does not offer the request version that transaction {transactional_id} was begun with: was it downgraded?"),
        ErrorCode::INVALID_TRANSACTION_TIMEOUT => {
            "transaction.timeout.ms is above the broker's transaction.max.timeout.ms: lower the first or raise the second".to_owned()
        }
        other => format!("the broker refuses with {other}"),
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
