//! What is done with transactions of former generations: first everything that the journal holds is committed, then what
//! nobody holds is ended.

use crate::client::{Deadline, TopicPartition, TransactionState};
use crate::connect::connector_error;
use crate::handle::KafkaTransaction;
use crate::hanging::{end_hanging, partitions_of};
use crate::ids::{IdParts, IdScope};
use crate::settle::{Settled, Settler};
use crate::{ConnectorError, ConnectorResult};
use futures::future::{join_all, try_join_all};
use semel_checkpoint::{CheckpointId, Generation};
use semel_engine::sink::{Pending, Swept};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long listing the transactions of all brokers may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Commits everything that is pending, checkpoint by checkpoint, until each is proven. One that is lost does not keep the others
/// from being committed: they are complete as well, and the error then names all that is lost.
pub async fn commit_pending(settler: &Settler, pending: Vec<Pending<KafkaTransaction>>) -> ConnectorResult<()> {
    let mut checkpoints: BTreeMap<CheckpointId, Vec<KafkaTransaction>> = BTreeMap::new();
    for pending in pending {
        if pending.transaction.is_transactional() {
            checkpoints.entry(pending.checkpoint).or_default().push(pending.transaction);
        }
    }
    let mut lost = Vec::new();
    for (checkpoint, transactions) in checkpoints {
        let commits = transactions.iter().map(|transaction| async move {
            match settler.commit(transaction).await? {
                Settled::Committed { how, .. } => {
                    tracing::info!(%checkpoint, %transaction, ?how, "committed at recovery");
                    Ok(())
                }
                Settled::Aborted { .. } => Err(ConnectorError::Lost(format!("{transaction}: aborted"))),
            }
        });
        for outcome in join_all(commits).await {
            match outcome {
                Ok(()) => {}
                Err(ConnectorError::Lost(what)) => lost.push(format!("checkpoint {checkpoint}: {what}")),
                Err(other) => return Err(other),
            }
        }
    }
    match lost.is_empty() {
        true => Ok(()),
        false => Err(ConnectorError::Lost(lost.join("; "))),
    }
}

/// Which of the listed ids a generation may end: those of its own job and sink, of strictly lower generations.
pub fn orphans<'a>(scope: &IdScope, own: Generation, listed: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, IdParts)> {
    let parsed = listed.into_iter().filter_map(|id| Some((id, scope.parse(id)?)));
    parsed.filter(|(_, parts)| parts.generation < own.0).collect()
}

/// Aborts the open transactions of lower generations. `EndTxn` v5 bumps their epoch, so that a process that still believes to
/// own one can write no more; it can open a new one, which the next sweep finds. Called only when all that is pending is committed.
/// The answer has the partitions of those that were aborted.
pub async fn sweep(settler: &Settler, scope: &IdScope, own: Generation) -> ConnectorResult<(Swept, BTreeSet<TopicPartition>)> {
    let prefix = format!("{scope}-");
    let listed =
        settler.transactions().list(&[TransactionState::Ongoing], &prefix, Deadline::after(LIST_TIMEOUT)).await.map_err(connector_error)?;
    let ids: Vec<&str> =
        orphans(scope, own, listed.iter().map(|listed| listed.transactional_id.as_str())).into_iter().map(|(id, _)| id).collect();
    if ids.is_empty() {
        return Ok(Default::default());
    }
    let described = settler.transactions().describe(&ids, Deadline::after(LIST_TIMEOUT)).await.map_err(connector_error)?;
    let open = described.into_iter().filter(|described| described.code.is_none() && described.state == TransactionState::Ongoing);
    let aborts = open.map(|described| async move {
        let mut transaction = KafkaTransaction {
            transactional_id: described.transactional_id,
            producer_id: described.producer_id,
            epoch: described.epoch,
            ..KafkaTransaction::default()
        };
        for partition in described.partitions {
            transaction.partitions.entry(partition.topic.to_string()).or_default().insert(partition.partition);
        }
        match settler.abort(&transaction).await? {
            Settled::Aborted { .. } => {
                tracing::warn!(%transaction, "aborted a transaction of a former generation");
                Ok(Some(transaction))
            }
            // Its owner was faster, with a permit: nothing of ours to end.
            Settled::Committed { .. } => Ok::<_, ConnectorError>(None),
        }
    });
    let aborted: Vec<KafkaTransaction> = try_join_all(aborts).await?.into_iter().flatten().collect();
    let partitions = aborted.iter().flat_map(partitions_of).collect();
    let mut aborted: Vec<String> = aborted.into_iter().map(|transaction| transaction.transactional_id).collect();
    aborted.sort_unstable();
    Ok((Swept { aborted }, partitions))
}

/// The partitions of a topic.
pub async fn partitions(settler: &Settler, topic: &str) -> ConnectorResult<BTreeSet<TopicPartition>> {
    settler.transactions().partitions(topic, Deadline::after(LIST_TIMEOUT)).await.map_err(connector_error)
}

/// Ends what these partitions hold open although their coordinators call it over; see [`hanging`](crate::hanging).
pub async fn end_missed(settler: &Settler, scope: &IdScope, partitions: &BTreeSet<TopicPartition>) -> ConnectorResult<()> {
    end_hanging(settler.transactions(), scope, partitions, None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lower_generations_of_the_own_sink_are_orphans() {
        let scope = IdScope::new("p", "01234567", "s");
        let listed = [
            "p-01234567-s-1-0-0",
            "p-01234567-s-2-5-9",
            "p-01234567-s-3-0-0",
            "p-01234567-s-4-0-0",
            "p-01234567-s-1-1-0-0",
            "p-01234567-t-1-0-0",
            "p-89abcdef-s-1-0-0",
            "p2-01234567-s-1-0-0",
            "p-01234567-s-1-0",
        ];
        let found: Vec<&str> = orphans(&scope, Generation(3), listed).into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, ["p-01234567-s-1-0-0", "p-01234567-s-2-5-9"]);
    }
}
