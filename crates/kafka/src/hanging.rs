//! Transactions that are over for their coordinator and still open in a partition, so that readers of committed rows wait there
//! for ever.
//!
//! A coordinator that finds a partition without a leader when it writes the markers of an ended transaction takes the partition for
//! deleted, leaves the marker out and calls the transaction complete (Kafka 4.3, KAFKA-20734; seen after a kill -9 of the only
//! replica). Rows that are committed stay invisible, with all that follows them; and when the transactional id begins its next
//! transaction, the partition counts the old rows to it, so that an abort takes committed rows with it. Two rules keep that from
//! happening: an id is used again only when the partitions show its transaction ended ([`shown`]), and what a partition has missed
//! is written there ([`end_hanging`]), a commit as a commit. Kafka's own tool can only abort such a transaction.

use crate::client::{Deadline, ErrorCode, Marker, OpenProducer, TopicPartition, TransactionDescription, TransactionState, Transactions};
use crate::connect::connector_error;
use crate::decide::END_TXN_BUMPS_EPOCH;
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
/// when it believes every marker to be written. `bumps`: an end raises the epoch (`transaction.version` 2, KIP-890); below that an epoch
/// that is one higher may as well belong to the id's next transaction.
pub fn verdict(described: &TransactionDescription, open: &OpenProducer, bumps: bool) -> Verdict {
    if !described.code.is_none() || described.producer_id != open.producer_id {
        return Verdict::Unknown;
    }
    let epoch = i32::from(described.epoch);
    let its_end = epoch == open.epoch + i32::from(bumps);
    match described.state {
        TransactionState::Ongoing if epoch == open.epoch => Verdict::Alive,
        TransactionState::PrepareCommit
        | TransactionState::PrepareAbort
        | TransactionState::PrepareEpochFence
        | TransactionState::Other(_) => Verdict::Alive,
        TransactionState::CompleteCommit if its_end => Verdict::Over { commit: true },
        TransactionState::CompleteAbort if its_end => Verdict::Over { commit: false },
        _ => Verdict::Unknown,
    }
}

/// What is open, by producer and partition.
type Open = BTreeMap<i64, BTreeMap<TopicPartition, OpenProducer>>;

/// What partitions have said of open transactions.
struct Seen {
    open: Open,
    /// Those that did not say it, and why.
    unseen: BTreeMap<TopicPartition, ErrorCode>,
}

async fn look(transactions: &Transactions, partitions: &BTreeSet<TopicPartition>) -> ConnectorResult<Seen> {
    let answers = transactions.producers().open(partitions, Deadline::after(CALL)).await.map_err(connector_error)?;
    let mut seen = Seen { open: Open::new(), unseen: BTreeMap::new() };
    for (partition, answer) in answers {
        match answer {
            Ok(open) => {
                open.into_iter().for_each(|open| _ = seen.open.entry(open.producer_id).or_default().insert(partition.clone(), open));
            }
            // Deleted: nobody waits there.
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {}
            Err(code) => _ = seen.unseen.insert(partition, code),
        }
    }
    Ok(seen)
}

impl Seen {
    /// What the partitions say of an ended transaction.
    fn of(&self, transaction: &KafkaTransaction) -> Shown {
        let open = self.open.get(&transaction.producer_id).into_iter().flat_map(BTreeMap::values);
        if open.into_iter().any(|open| open.epoch <= i32::from(transaction.epoch)) {
            return Shown::Open;
        }
        let unseen = partitions_of(transaction).into_iter().filter_map(|partition| Some((*self.unseen.get(&partition)?, partition)));
        let (forbidden, silent): (Vec<_>, Vec<_>) = unseen.partition(|(code, _)| *code == ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        match (silent.into_iter().next(), forbidden.into_iter().next()) {
            (Some((code, partition)), _) => Shown::Unseen(partition, code),
            (None, Some((_, partition))) => Shown::Forbidden(partition),
            (None, None) => Shown::Ended,
        }
    }
}

/// What partitions show of a transaction that its coordinator has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// The end, all of them.
    Ended,
    /// One holds it open.
    Open,
    /// One has not told.
    Unseen(TopicPartition, ErrorCode),
    /// All that may be asked show the end; this one may not be.
    Forbidden(TopicPartition),
}

/// The partitions of a transaction.
pub fn partitions_of(transaction: &KafkaTransaction) -> BTreeSet<TopicPartition> {
    let partitions = transaction.partitions.iter();
    partitions.flat_map(|(topic, ids)| ids.iter().map(move |id| TopicPartition::new(topic.as_str(), *id))).collect()
}

/// What the partitions of ended transactions show, in their order.
pub async fn shown<'a>(
    transactions: &Transactions,
    ended: impl Iterator<Item = &'a KafkaTransaction> + Clone,
) -> ConnectorResult<Vec<Shown>> {
    let partitions = ended.clone().flat_map(partitions_of).collect();
    let seen = look(transactions, &partitions).await?;
    Ok(ended.map(|transaction| seen.of(transaction)).collect())
}

/// What is to be said where partitions may not be asked.
pub fn forbidden(partition: &TopicPartition) -> String {
    format!(
        "no permission to see whether transactions have ended in {partition}: grant it with kafka-acls.sh --add --allow-principal \
         User:<user> --operation Read --topic {}",
        partition.topic
    )
}

/// Ends in these partitions what transactions of the scope have ended at their coordinators; the ids, sorted. `only`: of these
/// producers. An error when a partition could not be asked, or an end not be written, after all others were done: it is for the next
/// call.
pub async fn end_hanging(
    transactions: &Transactions,
    scope: &IdScope,
    partitions: &BTreeSet<TopicPartition>,
    only: Option<&BTreeSet<i64>>,
) -> ConnectorResult<Vec<String>> {
    let prefix = format!("{scope}-");
    let Seen { open: mut suspects, unseen } = look(transactions, partitions).await?;
    suspects.retain(|producer_id, _| only.is_none_or(|only| only.contains(producer_id)));
    let mut failed = unseen.iter().next().map(|(partition, code)| match *code {
        ErrorCode::TOPIC_AUTHORIZATION_FAILED => ConnectorError::Fatal(forbidden(partition)),
        code => ConnectorError::Retryable(format!("the open transactions of {partition}: {code}")),
    });
    if !suspects.is_empty() {
        let alive = transactions.list(&[TransactionState::Ongoing], &prefix, Deadline::after(CALL)).await.map_err(connector_error)?;
        alive.iter().for_each(|listed| _ = suspects.remove(&listed.producer_id));
    }
    let mut ended = BTreeSet::new();
    if !suspects.is_empty() {
        let listed = transactions.list(&[], &prefix, Deadline::after(CALL)).await.map_err(connector_error)?;
        let own = listed.into_iter().filter(|listed| scope.parse(&listed.transactional_id).is_some());
        let mut ids: BTreeMap<i64, String> = own.map(|listed| (listed.producer_id, listed.transactional_id)).collect();
        for pause in PAUSES {
            ids.retain(|producer_id, _| suspects.contains_key(producer_id));
            if ids.is_empty() {
                break;
            }
            tokio::time::sleep(pause).await;
            failed = judge(transactions, partitions, &ids, &mut suspects, &mut ended).await?.or(failed);
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(ended.into_iter().collect()),
    }
}

/// Judges what is still open, and writes the ends that are missing. What is over, or cannot be told, is no suspect any more. The answer
/// is what kept an end from being written.
async fn judge(
    transactions: &Transactions,
    partitions: &BTreeSet<TopicPartition>,
    ids: &BTreeMap<i64, String>,
    suspects: &mut Open,
    ended: &mut BTreeSet<String>,
) -> ConnectorResult<Option<ConnectorError>> {
    let described = describe(transactions, ids).await?;
    let now = look(transactions, partitions).await?.open;
    let again = describe(transactions, ids).await?;
    let bumps = transactions.end_txn_version() >= END_TXN_BUMPS_EPOCH;
    let mut failed = None;
    for (producer_id, open) in suspects.iter_mut() {
        // Only what has been open all the time, and whose coordinator has said the same before and after.
        let now = now.get(producer_id);
        open.retain(|partition, open| now.and_then(|now| now.get(partition)) == Some(open));
        let Some(described) = described.get(producer_id).filter(|described| again.get(producer_id) == Some(*described)) else {
            continue;
        };
        let mut over: BTreeMap<Marker, BTreeSet<TopicPartition>> = BTreeMap::new();
        let mut unknown = vec![];
        open.retain(|partition, open| match (verdict(described, open, bumps), i16::try_from(open.epoch)) {
            (Verdict::Alive, _) => true,
            (Verdict::Over { commit }, Ok(epoch)) => {
                // The partition's own epoch, not one that the id's next transaction may have.
                let marker = Marker { producer_id: *producer_id, epoch, commit, coordinator_epoch: open.coordinator_epoch.max(0) };
                over.entry(marker).or_default().insert(partition.clone());
                false
            }
            _ => {
                unknown.push(partition.to_string());
                false
            }
        });
        if !unknown.is_empty() {
            tracing::warn!(
                "{} hold a transaction of {} open (producer id {producer_id}) which is over for its coordinator, nobody can tell how: \
                 readers of committed rows wait there; see kafka-transactions.sh find-hanging",
                unknown.join(", "),
                described.transactional_id
            );
        }
        for (marker, partitions) in over {
            match end(transactions, &described.transactional_id, &marker, &partitions).await {
                Ok(()) => _ = ended.insert(described.transactional_id.clone()),
                Err(error) => failed = Some(error),
            }
        }
    }
    suspects.retain(|_, open| !open.is_empty());
    Ok(failed)
}

async fn describe(transactions: &Transactions, ids: &BTreeMap<i64, String>) -> ConnectorResult<BTreeMap<i64, TransactionDescription>> {
    let names: Vec<&str> = ids.values().map(String::as_str).collect();
    let described = transactions.describe(&names, Deadline::after(CALL)).await.map_err(connector_error)?;
    Ok(ids.keys().copied().zip(described).collect())
}

/// Writes what the coordinator should have written.
async fn end(transactions: &Transactions, id: &str, marker: &Marker, partitions: &BTreeSet<TopicPartition>) -> ConnectorResult<()> {
    let how = if marker.commit { "commit" } else { "abort" };
    let answers = transactions.producers().write(marker, partitions, Deadline::after(CALL)).await.map_err(connector_error)?;
    let mut failed = None;
    for (partition, answer) in answers {
        match answer {
            Ok(()) => tracing::warn!("{partition} had missed the {how} of a transaction of {id} (KAFKA-20734); it is written there now"),
            // The id has moved on, which it does only when the partition has shown the end.
            Err(ErrorCode::INVALID_PRODUCER_EPOCH) => {}
            Err(ErrorCode::CLUSTER_AUTHORIZATION_FAILED) => {
                failed = Some(ConnectorError::Fatal(format!(
                    "{partition} has missed the {how} of a transaction of {id} (KAFKA-20734), and readers of committed rows wait there; this \
                     user may not write it: grant it with kafka-acls.sh --add --allow-principal User:<user> --operation Alter --cluster{}",
                    if marker.commit { ". Do not abort it with kafka-transactions.sh: its rows are committed" } else { "" }
                )));
            }
            Err(code) => failed = Some(ConnectorError::Retryable(format!("the {how} of a transaction of {id} in {partition}: {code}"))),
        }
    }
    failed.map_or(Ok(()), Err)
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
        let (committed, aborted) = (Verdict::Over { commit: true }, Verdict::Over { commit: false });
        // By what the end leaves: the epoch after it, or below transaction.version 2 the transaction's own.
        for (state, epoch, bumped, kept) in [
            // Where ends raise the epoch, this one is of the transaction before.
            (CompleteCommit, 3, Verdict::Unknown, committed),
            (CompleteCommit, 4, committed, Verdict::Unknown),
            (CompleteAbort, 3, Verdict::Unknown, aborted),
            (CompleteAbort, 4, aborted, Verdict::Unknown),
            // The abort is that of a later transaction: the rows may be committed ones.
            (CompleteAbort, 5, Verdict::Unknown, Verdict::Unknown),
            (CompleteCommit, 5, Verdict::Unknown, Verdict::Unknown),
            (CompleteCommit, 2, Verdict::Unknown, Verdict::Unknown),
            (Ongoing, 3, Verdict::Alive, Verdict::Alive),
            (Ongoing, 4, Verdict::Unknown, Verdict::Unknown),
            (Empty, 4, Verdict::Unknown, Verdict::Unknown),
            (PrepareCommit, 4, Verdict::Alive, Verdict::Alive),
            (PrepareAbort, 4, Verdict::Alive, Verdict::Alive),
            (PrepareEpochFence, 4, Verdict::Alive, Verdict::Alive),
        ] {
            assert_eq!(verdict(&described(state.clone(), epoch), &open(3), true), bumped, "{state:?} {epoch}");
            assert_eq!(verdict(&described(state.clone(), epoch), &open(3), false), kept, "{state:?} {epoch}");
        }
    }

    #[test]
    fn another_producer_or_a_failed_answer_tells_nothing() {
        let over = described(TransactionState::CompleteCommit, 4);
        assert_eq!(verdict(&TransactionDescription { producer_id: 8, ..over.clone() }, &open(3), true), Verdict::Unknown);
        let unknown = TransactionDescription { code: ErrorCode::TRANSACTIONAL_ID_NOT_FOUND, ..over };
        assert_eq!(verdict(&unknown, &open(3), true), Verdict::Unknown);
    }

    #[test]
    fn an_end_is_shown_only_by_all_partitions_that_may_be_asked() {
        let transaction = KafkaTransaction {
            producer_id: 7,
            epoch: 3,
            partitions: BTreeMap::from([("t".to_owned(), BTreeSet::from([0, 1])), ("u".to_owned(), BTreeSet::from([0]))]),
            ..KafkaTransaction::default()
        };
        let at = |topic: &str, partition| TopicPartition::new(topic, partition);
        let of = |open: &[(i64, TopicPartition, i32)], unseen: &[(TopicPartition, ErrorCode)]| {
            let mut seen = Seen { open: Open::new(), unseen: unseen.iter().cloned().collect() };
            for (producer, partition, epoch) in open {
                let open = OpenProducer { producer_id: *producer, ..self::open(*epoch) };
                seen.open.entry(*producer).or_default().insert(partition.clone(), open);
            }
            seen.of(&transaction)
        };
        let (silent, secret) = (ErrorCode::LEADER_NOT_AVAILABLE, ErrorCode::TOPIC_AUTHORIZATION_FAILED);
        assert_eq!(of(&[], &[]), Shown::Ended);
        assert_eq!(of(&[(8, at("t", 0), 3)], &[]), Shown::Ended, "of another producer");
        assert_eq!(of(&[(7, at("t", 0), 4)], &[]), Shown::Ended, "the id's next one");
        assert_eq!(of(&[(7, at("t", 1), 3)], &[(at("t", 0), silent)]), Shown::Open);
        assert_eq!(of(&[], &[(at("t", 0), secret), (at("u", 0), silent)]), Shown::Unseen(at("u", 0), silent));
        assert_eq!(of(&[], &[(at("u", 0), secret)]), Shown::Forbidden(at("u", 0)));
        assert_eq!(of(&[], &[(at("elsewhere", 0), silent)]), Shown::Ended);
    }
}
