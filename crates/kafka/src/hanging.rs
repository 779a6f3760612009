//! Transactions that are over for their coordinator and still open in a partition, so that readers of committed rows wait there
//! for ever.
//!
//! A coordinator that finds a partition without a leader when it writes the markers of an ended transaction takes the partition for
//! deleted, leaves the marker out and calls the transaction complete (Kafka 4.3, KAFKA-20734; seen after a kill -9 of the only
//! replica). Rows that are committed stay invisible, with all that follows them; and when the transactional id begins its next
//! transaction, the partition counts the old rows to it, so that an abort takes committed rows with it. Two rules keep that from
//! happening: an id is used again only when the partitions show its transaction ended ([`open_in`]), and what a partition has missed
//! is written there ([`end_hanging`]), a commit as a commit. Kafka's own tool can only abort such a transaction.

use crate::client::{Deadline, ErrorCode, Marker, OpenProducer, TopicPartition, TransactionDescription, TransactionState, Transactions};
use crate::connect::connector_error;
use crate::handle::KafkaTransaction;
use crate::ids::IdScope;
use crate::{ConnectorError, ConnectorResult};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long one request may take.
const CALL: Duration = Duration::from_secs(10);
/// Most ends are on their way, and are there after one of these.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1000), Duration::from_millis(2000)];

/// What the coordinator's word means for a transaction that is open in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The coordinator holds it open, or is about to write its end.
    Alive,
    /// It is over, and the partition has missed it.
    Over {
        /// How it ended.
        commit: bool,
    },
    /// The id has moved on, so that its coordinator cannot tell how this one ended.
    Unknown,
}

/// Judges an open transaction of a partition. `described` must be older than `open`: the coordinator calls a transaction complete only
/// when it believes every marker to be written.
pub fn verdict(described: &TransactionDescription, open: &OpenProducer) -> Verdict {
    if !described.code.is_none() || described.producer_id != open.producer_id {
        return Verdict::Unknown;
    }
    let epoch = i32::from(described.epoch);
    // The end itself bumps the epoch (EndTxn v5), or leaves it (older ones).
    let newest = epoch == open.epoch || epoch == open.epoch + 1;
    match described.state {
        TransactionState::Ongoing if epoch == open.epoch => Verdict::Alive,
        TransactionState::PrepareCommit
        | TransactionState::PrepareAbort
        | TransactionState::PrepareEpochFence
        | TransactionState::Other(_) => Verdict::Alive,
        TransactionState::CompleteCommit if newest => Verdict::Over { commit: true },
        TransactionState::CompleteAbort if newest => Verdict::Over { commit: false },
        _ => Verdict::Unknown,
    }
}

/// What is open, by producer and partition.
type Open = BTreeMap<i64, BTreeMap<TopicPartition, OpenProducer>>;

/// The partitions of a transaction.
pub fn partitions_of(transaction: &KafkaTransaction) -> BTreeSet<TopicPartition> {
    let partitions = transaction.partitions.iter();
    partitions.flat_map(|(topic, ids)| ids.iter().map(move |id| TopicPartition::new(topic.as_str(), *id))).collect()
}

/// What is open, and the partitions that have no leader to tell it.
async fn look(transactions: &Transactions, partitions: &BTreeSet<TopicPartition>) -> ConnectorResult<(Open, BTreeSet<TopicPartition>)> {
    let answers = transactions.producers().open(partitions, Deadline::after(CALL)).await.map_err(connector_error)?;
    let mut found = Open::new();
    let mut silent = BTreeSet::new();
    for (partition, answer) in answers {
        match answer {
            Ok(open) => open.into_iter().for_each(|open| _ = found.entry(open.producer_id).or_default().insert(partition.clone(), open)),
            // Deleted: nobody waits there.
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {}
            Err(ErrorCode::LEADER_NOT_AVAILABLE) => _ = silent.insert(partition),
            Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED) => {
                return Err(ConnectorError::Fatal(format!(
                    "no permission to see whether transactions have ended in {partition}: grant it with kafka-acls.sh --add \
                     --allow-principal User:<user> --operation Read --topic {}",
                    partition.topic
                )));
            }
            Err(code) => return Err(ConnectorError::Retryable(format!("the open transactions of {partition}: {code}"))),
        }
    }
    Ok((found, silent))
}

/// Whether partitions still hold this ended transaction open, or may do so.
pub async fn open_in(transactions: &Transactions, transaction: &KafkaTransaction) -> ConnectorResult<bool> {
    let (found, silent) = look(transactions, &partitions_of(transaction)).await?;
    if !silent.is_empty() {
        return Ok(true);
    }
    let open = found.get(&transaction.producer_id).into_iter().flat_map(BTreeMap::values);
    Ok(open.into_iter().any(|open| open.epoch <= i32::from(transaction.epoch)))
}

/// Ends in these partitions what transactions of the scope have ended at their coordinators; the ids, sorted. A partition without a
/// leader is for the next call.
pub async fn end_hanging(
    transactions: &Transactions,
    scope: &IdScope,
    partitions: &BTreeSet<TopicPartition>,
) -> ConnectorResult<Vec<String>> {
    let prefix = format!("{scope}-");
    let (mut suspects, _) = look(transactions, partitions).await?;
    if !suspects.is_empty() {
        let alive = transactions.list(&[TransactionState::Ongoing], &prefix, Deadline::after(CALL)).await.map_err(connector_error)?;
        alive.iter().for_each(|listed| _ = suspects.remove(&listed.producer_id));
    }
    if suspects.is_empty() {
        return Ok(vec![]);
    }
    let listed = transactions.list(&[], &prefix, Deadline::after(CALL)).await.map_err(connector_error)?;
    let own = listed.into_iter().filter(|listed| scope.parse(&listed.transactional_id).is_some());
    let mut ids: BTreeMap<i64, String> = own.map(|listed| (listed.producer_id, listed.transactional_id)).collect();
    let mut ended = vec![];
    for pause in PAUSES {
        ids.retain(|producer_id, _| suspects.contains_key(producer_id));
        if ids.is_empty() {
            break;
        }
        tokio::time::sleep(pause).await;
        let described = describe(transactions, &ids).await?;
        let (now, _) = look(transactions, partitions).await?;
        let again = describe(transactions, &ids).await?;
        suspects.retain(|producer_id, before| {
            // Only what has been open all the time, and whose coordinator has said the same before and after.
            let now = now.get(producer_id);
            before.retain(|partition, open| now.and_then(|now| now.get(partition)) == Some(open));
            !before.is_empty()
        });
        for (producer_id, open) in suspects.clone() {
            let Some(described) = described.get(&producer_id).filter(|described| again.get(&producer_id) == Some(*described)) else {
                continue;
            };
            let verdicts: BTreeSet<_> = open.values().map(|open| format!("{:?}", verdict(described, open))).collect();
            match open.values().next().map(|open| verdict(described, open)) {
                Some(Verdict::Over { commit }) if verdicts.len() == 1 => {
                    end(transactions, described, &open, commit).await?;
                    ended.push(described.transactional_id.clone());
                    suspects.remove(&producer_id);
                }
                Some(Verdict::Unknown) => {
                    let held: Vec<String> = open.keys().map(ToString::to_string).collect();
                    tracing::warn!(
                        "{} hold a transaction of {} open (producer id {producer_id}) which is over for its coordinator, nobody can tell how: \
                         readers of committed rows wait there; see kafka-transactions.sh find-hanging",
                        held.join(", "),
                        described.transactional_id
                    );
                    suspects.remove(&producer_id);
                }
                _ => {}
            }
        }
    }
    ended.sort_unstable();
    Ok(ended)
}

async fn describe(transactions: &Transactions, ids: &BTreeMap<i64, String>) -> ConnectorResult<BTreeMap<i64, TransactionDescription>> {
    let names: Vec<&str> = ids.values().map(String::as_str).collect();
    let described = transactions.describe(&names, Deadline::after(CALL)).await.map_err(connector_error)?;
    Ok(ids.keys().copied().zip(described).collect())
}

/// Writes what the coordinator should have written: the marker has the epoch that the coordinator has gone on to.
async fn end(
    transactions: &Transactions,
    described: &TransactionDescription,
    open: &BTreeMap<TopicPartition, OpenProducer>,
    commit: bool,
) -> ConnectorResult<()> {
    let coordinator_epoch = open.values().map(|open| open.coordinator_epoch).max().unwrap_or(0).max(0);
    let marker = Marker { producer_id: described.producer_id, epoch: described.epoch, commit, coordinator_epoch };
    let partitions = open.keys().cloned().collect();
    let id = &described.transactional_id;
    let how = if commit { "commit" } else { "abort" };
    let answers = transactions.producers().write(&marker, &partitions, Deadline::after(CALL)).await.map_err(connector_error)?;
    for (partition, answer) in answers {
        match answer {
            Ok(()) => tracing::warn!("{partition} had missed the {how} of a transaction of {id} (KAFKA-20734); it is written there now"),
            Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED) => {
                return Err(ConnectorError::Fatal(format!(
                    "{partition} has missed the {how} of a transaction of {id} (KAFKA-20734), and readers of committed rows wait there; this \
                     user may not write it: grant it with kafka-acls.sh --add --allow-principal User:<user> --operation Alter --cluster{}",
                    if commit { ". Do not abort it with kafka-transactions.sh: its rows are committed" } else { "" }
                )));
            }
            Err(code) => return Err(ConnectorError::Retryable(format!("the {how} of a transaction of {id} in {partition}: {code}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(state: TransactionState, epoch: i16) -> TransactionDescription {
        TransactionDescription {
            transactional_id: "p-01234567-s-1-0-0".into(),
            code: ErrorCode::NONE,
            state,
            producer_id: 7,
            epoch,
            timeout_ms: 1,
            start_ms: -1,
            partitions: vec![],
        }
    }

    fn open(epoch: i32) -> OpenProducer {
        OpenProducer { producer_id: 7, epoch, coordinator_epoch: -1, start_offset: 3 }
    }

    #[test]
    fn only_the_newest_transaction_of_an_id_is_judged_by_its_coordinator() {
        use TransactionState::{CompleteAbort, CompleteCommit, Empty, Ongoing, PrepareAbort, PrepareCommit, PrepareEpochFence};
        for (state, epoch, expected) in [
            (CompleteCommit, 3, Verdict::Over { commit: true }),
            (CompleteCommit, 4, Verdict::Over { commit: true }),
            (CompleteAbort, 3, Verdict::Over { commit: false }),
            (CompleteAbort, 4, Verdict::Over { commit: false }),
            // The abort is that of a later transaction: the rows may be committed ones.
            (CompleteAbort, 5, Verdict::Unknown),
            (CompleteCommit, 5, Verdict::Unknown),
            (CompleteCommit, 2, Verdict::Unknown),
            (Ongoing, 3, Verdict::Alive),
            (Ongoing, 4, Verdict::Unknown),
            (Empty, 4, Verdict::Unknown),
            (PrepareCommit, 4, Verdict::Alive),
            (PrepareAbort, 4, Verdict::Alive),
            (PrepareEpochFence, 4, Verdict::Alive),
        ] {
            assert_eq!(verdict(&described(state.clone(), epoch), &open(3)), expected, "{state:?} {epoch}");
        }
    }

    #[test]
    fn another_producer_or_a_failed_answer_tells_nothing() {
        let over = described(TransactionState::CompleteCommit, 4);
        assert_eq!(verdict(&TransactionDescription { producer_id: 8, ..over.clone() }, &open(3)), Verdict::Unknown);
        let unknown = TransactionDescription { code: ErrorCode::TRANSACTIONAL_ID_NOT_FOUND, ..over };
        assert_eq!(verdict(&unknown, &open(3)), Verdict::Unknown);
    }
}
