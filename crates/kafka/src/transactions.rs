//! Transactions by hand: what the command line's `transactions list`, `commit` and `abort` do.

use crate::client::{Cluster, Deadline, TransactionDescription, TransactionState, Transactions};
use crate::connect::{self, connector_error, now_ms};
use crate::decide::{self, END_TXN_BUMPS_EPOCH};
use crate::handle::KafkaTransaction;
use crate::ids::{IdParts, IdScope, parse_under_prefix};
use crate::settle::{Settled, Settler};
use crate::{Committed, ConnectorError, ConnectorResult, KafkaProperties};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A transaction as the coordinator shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its id.
    pub transactional_id: String,
    /// Job, sink, generation, subtask and number, where the id is one of Semel's.
    pub parts: Option<(IdScope, IdParts)>,
    /// State, by Kafka's name.
    pub state: String,
    /// Whether it is open, i.e. whether `read_committed` readers wait for it.
    pub open: bool,
    /// Current producer id.
    pub producer_id: i64,
    /// Current epoch.
    pub epoch: i16,
    /// How long it is open.
    pub age: Option<Duration>,
    /// Its `transaction.timeout.ms`.
    pub timeout: Duration,
    /// Partitions that it has written to, `<topic>-<partition>`.
    pub partitions: Vec<String>,
}

impl TransactionInfo {
    fn of(prefix: &str, described: TransactionDescription) -> TransactionInfo {
        let open = described.state == TransactionState::Ongoing;
        let age =
            (open && described.start_ms >= 0).then(|| Duration::from_millis(u64::try_from(now_ms() - described.start_ms).unwrap_or(0)));
        TransactionInfo {
            parts: parse_under_prefix(prefix, &described.transactional_id),
            transactional_id: described.transactional_id,
            state: state_name(&described.state),
            open,
            producer_id: described.producer_id,
            epoch: described.epoch,
            age,
            timeout: Duration::from_millis(u64::try_from(described.timeout_ms).unwrap_or(0)),
            partitions: described.partitions.iter().map(ToString::to_string).collect(),
        }
    }
}

fn state_name(state: &TransactionState) -> String {
    match state {
        TransactionState::Other(name) => name.clone(),
        known => format!("{known:?}"),
    }
}

/// Lists and ends transactions of one cluster.
#[derive(Debug, Clone)]
pub struct TransactionTool {
    settler: Settler,
}

impl TransactionTool {
    /// With Kafka's own settings, `bootstrap.servers` among them.
    pub async fn connect(properties: &KafkaProperties) -> ConnectorResult<TransactionTool> {
        let settings = connect::client_settings(properties).map_err(|error| ConnectorError::Fatal(error.to_string()))?;
        Ok(TransactionTool::new(connect::connect(&settings.client).await?))
    }

    /// On this cluster.
    pub fn new(cluster: Cluster) -> TransactionTool {
        TransactionTool { settler: Settler::new(Transactions::new(cluster), TIMEOUT) }
    }

    /// All transactions whose id begins with `<prefix>-`, sorted by id; with `open_only`, those that are open.
    pub async fn list(&self, prefix: &str, open_only: bool) -> ConnectorResult<Vec<TransactionInfo>> {
        let states: &[TransactionState] = if open_only { &[TransactionState::Ongoing] } else { &[] };
        let transactions = self.settler.transactions();
        let listed = transactions.list(states, &format!("{prefix}-"), Deadline::after(TIMEOUT)).await.map_err(connector_error)?;
        let ids: Vec<&str> = listed.iter().map(|listed| listed.transactional_id.as_str()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let described = transactions.describe(&ids, Deadline::after(TIMEOUT)).await.map_err(connector_error)?;
        let found = described.into_iter().filter(|described| described.code.is_none());
        let mut infos: Vec<TransactionInfo> = found.map(|described| TransactionInfo::of(prefix, described)).collect();
        infos.retain(|info| info.open || !open_only);
        infos.sort_by(|a, b| a.transactional_id.cmp(&b.transactional_id));
        Ok(infos)
    }

    /// Commits a transaction of the journal. The caller has read its handle there.
    pub async fn commit(&self, handle: &KafkaTransaction) -> ConnectorResult<Committed> {
        match self.settler.commit(handle).await? {
            Settled::Committed { how, .. } => Ok(how),
            Settled::Aborted { .. } => Err(ConnectorError::Lost(handle.to_string())),
        }
    }

    /// Commits the open transaction of an id, which no journal need hold: its rows appear, whole or half.
    pub async fn commit_open(&self, transactional_id: &str) -> ConnectorResult<KafkaTransaction> {
        let transaction = self.open(transactional_id).await?;
        self.commit(&transaction).await?;
        Ok(transaction)
    }

    /// Aborts the open transaction of an id: its rows never appear. If a checkpoint holds it, the job will fail and call it lost.
    pub async fn abort(&self, transactional_id: &str) -> ConnectorResult<KafkaTransaction> {
        let transaction = self.open(transactional_id).await?;
        match self.settler.abort(&transaction).await? {
            Settled::Aborted { .. } => Ok(transaction),
            Settled::Committed { .. } => Err(ConnectorError::Fatal(format!("{transaction} was committed in the meantime"))),
        }
    }

    async fn open(&self, transactional_id: &str) -> ConnectorResult<KafkaTransaction> {
        let described =
            self.settler.transactions().describe(&[transactional_id], Deadline::after(TIMEOUT)).await.map_err(connector_error)?;
        let Some(described) = described.into_iter().next() else {
            return Err(ConnectorError::Retryable(format!("transactional id {transactional_id} was not described")));
        };
        if !described.code.is_none() {
            return Err(ConnectorError::Fatal(format!(
                "transactional id {transactional_id}: {}",
                decide::refused(transactional_id, described.code)
            )));
        }
        if described.state != TransactionState::Ongoing {
            return Err(ConnectorError::Fatal(format!(
                "transactional id {transactional_id} has no open transaction: its state is {}",
                state_name(&described.state)
            )));
        }
        let mut transaction = KafkaTransaction {
            transactional_id: described.transactional_id,
            producer_id: described.producer_id,
            epoch: described.epoch,
            end_version: END_TXN_BUMPS_EPOCH,
            ..KafkaTransaction::default()
        };
        for partition in described.partitions {
            transaction.partitions.entry(partition.topic.to_string()).or_default().insert(partition.partition);
        }
        Ok(transaction)
    }
}
