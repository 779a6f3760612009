//! The Kafka sink: one value per sink of the job, shared by its subtasks.

use crate::client::{ClientConfig, Cluster, TopicPartition, Transactions};
use crate::committer::KafkaCommitter;
use crate::config::{DeliveryGuarantee, KafkaSinkBuilder, SerializerFactory, SinkSettings};
use crate::connect::{self, ClientSettings};
use crate::handle::KafkaTransaction;
use crate::hanging::partitions_of;
use crate::ids::IdScope;
use crate::pool::IdPool;
use crate::settle::Settler;
use crate::writer::KafkaWriter;
use crate::{ConnectorError, ConnectorResult, preflight, recovery};
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{JobIdentity, OperatorUid};
use semel_engine::sink::{Finding, JobNeeds, Pending, SinkContext, Swept, TransactionAdmin, TwoPhaseCommitSink};
use semel_formats::{Format, JsonOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Writes rows to Kafka with one of three delivery guarantees; see [`KafkaSink::builder`].
#[derive(Debug, Clone)]
pub struct KafkaSink {
    settings: Arc<SinkSettings>,
    /// For `recover` and `sweep`, which come again and again.
    cluster: Arc<tokio::sync::Mutex<Option<Cluster>>>,
    /// Of transactions that were ended here and are still to be seen ended, where no setting tells the topic.
    ended_in: Arc<Mutex<BTreeSet<TopicPartition>>>,
}

/// The pool of transactional ids of one subtask, shared by its writer and its committer.
#[derive(Debug)]
pub(crate) struct SharedPool {
    pool: Mutex<IdPool>,
    /// Something became ready, or failed to.
    pub(crate) changed: Notify,
}

impl SharedPool {
    pub(crate) fn lock(&self) -> MutexGuard<'_, IdPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KafkaSink {
    /// Begins a sink; the serializer makes the records' values.
    pub fn builder(serializer: SerializerFactory) -> KafkaSinkBuilder {
        KafkaSinkBuilder::new(serializer)
    }

    /// Begins a sink whose records' values are JSON objects.
    pub fn json() -> KafkaSinkBuilder {
        KafkaSink::with_format(Format::Json(JsonOptions::default()))
    }

    /// Begins a sink whose records' values are rows in this format.
    pub fn with_format(format: Format) -> KafkaSinkBuilder {
        KafkaSink::builder(Arc::new(move |schema| format.serializer(schema.clone()).map_err(|e| e.to_string())))
    }

    pub(crate) fn new(settings: SinkSettings) -> KafkaSink {
        KafkaSink { settings: Arc::new(settings), cluster: Arc::default(), ended_in: Arc::default() }
    }

    /// The checked settings.
    pub fn settings(&self) -> &SinkSettings {
        &self.settings
    }

    fn client(&self) -> &ClientSettings {
        &self.settings.client
    }

    /// Whether former generations can have left transactions. Also a sink that has none any more looks, as long as it has a prefix.
    fn sweeps(&self) -> bool {
        !self.settings.transactional_id_prefix.is_empty()
    }

    /// Whether a transaction was written with today's `bootstrap.servers`, in any order.
    fn same_brokers(&self, transaction: &KafkaTransaction) -> bool {
        places(&transaction.bootstrap_servers).collect::<BTreeSet<_>>() == places(&self.settings.bootstrap_servers).collect()
    }

    fn exactly_once(&self) -> bool {
        self.settings.guarantee == DeliveryGuarantee::ExactlyOnce
    }

    /// The names of this sink's transactions in a job.
    pub fn scope(&self, job: &JobIdentity, uid: &OperatorUid) -> IdScope {
        IdScope::new(&self.settings.transactional_id_prefix, &job.uuid.short(), uid.as_str())
    }

    /// A settler at the brokers at which these transactions were written. The same cluster may have other addresses by now, so that
    /// the sink's own brokers are asked where the old ones cannot be reached.
    async fn settler_at(&self, servers: &str) -> ConnectorResult<Settler> {
        let client = ClientConfig { bootstrap: places(servers).map(str::to_owned).collect(), ..self.client().client.clone() };
        match connect::connect(&client).await {
            Ok(cluster) => Ok(Settler::new(Transactions::new(cluster), self.settings.decision_timeout)),
            Err(error) => {
                let now = &self.settings.bootstrap_servers;
                tracing::warn!(%error, "transactions were written at {servers}, which cannot be reached; they are looked for at {now}");
                self.settler().await
            }
        }
    }

    /// Commits transactions of another `bootstrap.servers` than today's.
    async fn commit_elsewhere(&self, servers: &str, pending: Vec<Pending<KafkaTransaction>>) -> ConnectorResult<()> {
        let settler = self.settler_at(servers).await?;
        recovery::commit_pending(&settler, pending).await.map_err(|error| match error {
            ConnectorError::Lost(why) | ConnectorError::Fatal(why) => ConnectorError::Fatal(format!(
                "{why}; these transactions were written with bootstrap.servers = {servers}, the sink now has {}: if that is another cluster, \
                 start once with the old one",
                self.settings.bootstrap_servers
            )),
            other => other,
        })
    }

    /// Sees to it that the partitions of ended transactions show it, where no setting tells the topic.
    async fn look_after(&self, settler: &Settler, scope: &IdScope, ended_in: BTreeSet<TopicPartition>) -> ConnectorResult<()> {
        let all = {
            let mut all = self.ended_in.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(ended_in);
            all.clone()
        };
        if !all.is_empty() {
            recovery::end_missed(settler, scope, &all).await?;
            self.ended_in.lock().unwrap_or_else(PoisonError::into_inner).retain(|partition| !all.contains(partition));
        }
        Ok(())
    }

    async fn settler(&self) -> ConnectorResult<Settler> {
        let mut cluster = self.cluster.lock().await;
        let connected = match &*cluster {
            Some(connected) => connected.clone(),
            None => cluster.insert(connect::connect(&self.client().client).await?).clone(),
        };
        Ok(Settler::new(Transactions::new(connected), self.settings.decision_timeout))
    }
}

fn places(servers: &str) -> impl Iterator<Item = &str> {
    servers.split(',').map(str::trim).filter(|server| !server.is_empty())
}

impl TwoPhaseCommitSink for KafkaSink {
    type Transaction = KafkaTransaction;
    type Writer = KafkaWriter;
    type Committer = KafkaCommitter;

    fn elsewhere(&self, transaction: &KafkaTransaction) -> Option<String> {
        let SinkSettings { bootstrap_servers, topic, transactional_id_prefix, .. } = self.settings();
        let topics: Vec<&str> = transaction.partitions.keys().map(String::as_str).collect();
        let mut changes = vec![];
        if let Some(now) = topic.fixed()
            && topics.iter().any(|then| *then != now)
        {
            changes.push(format!("to topic {}; the sink now writes to {now}", topics.join(", ")));
        }
        if !self.same_brokers(transaction) {
            changes.push(format!("to bootstrap.servers {}; the sink now has {bootstrap_servers}", transaction.bootstrap_servers));
        }
        let id = &transaction.transactional_id;
        if transaction.is_transactional() && !id.starts_with(&format!("{transactional_id_prefix}-")) {
            changes.push(format!(
                "under the transactional id {id}; the prefix is now {transactional_id_prefix:?}, so that open transactions of the old one are \
                 not ended and hold back read_committed readers until transaction.timeout.ms is over"
            ));
        }
        (!changes.is_empty()).then(|| changes.join("; "))
    }

    fn transactions(&self) -> Option<Arc<dyn TransactionAdmin>> {
        Some(Arc::new(self.clone()))
    }

    async fn preflight(&self, needs: &JobNeeds, uid: &OperatorUid, schema: &SchemaRef) -> Vec<Finding> {
        _ = uid;
        preflight::sink(&self.settings, needs, schema).await
    }

    async fn recover(&self, job: &JobIdentity, uid: &OperatorUid, pending: Vec<Pending<KafkaTransaction>>) -> ConnectorResult<Swept> {
        // What is pending was written under the guarantee of its time, not of today's settings.
        let transactions = pending.iter().any(|pending| pending.transaction.is_transactional());
        if !transactions && !self.sweeps() {
            return Ok(Swept::default());
        }
        let (here, elsewhere): (Vec<_>, Vec<_>) = pending.into_iter().partition(|p| self.same_brokers(&p.transaction));
        let mut others: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for pending in elsewhere.into_iter().filter(|p| p.transaction.is_transactional()) {
            others.entry(pending.transaction.bootstrap_servers.clone()).or_default().push(pending);
        }
        for (servers, pending) in others {
            self.commit_elsewhere(&servers, pending).await?;
        }
        let settler = self.settler().await?;
        let mut ended_in: BTreeSet<_> = here.iter().flat_map(|pending| partitions_of(&pending.transaction)).collect();
        recovery::commit_pending(&settler, here).await?;
        if !self.sweeps() {
            return Ok(Swept::default());
        }
        let scope = self.scope(job, uid);
        let (swept, aborted_in) = recovery::sweep(&settler, &scope, job.generation).await?;
        // The first sweep looks at the sink's topic. Where rows tell it, nobody else would know these partitions.
        if self.settings.topic.fixed().is_none() {
            ended_in.extend(aborted_in);
            if let Err(error) = self.look_after(&settler, &scope, ended_in).await {
                tracing::warn!(%error, "it is not known whether the partitions show the ends of a former generation's transactions");
            }
        }
        Ok(swept)
    }

    async fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> ConnectorResult<Swept> {
        if !self.sweeps() {
            return Ok(Swept::default());
        }
        let (settler, scope) = (self.settler().await?, self.scope(job, uid));
        let (swept, ended_in) = recovery::sweep(&settler, &scope, job.generation).await?;
        match self.settings.topic.fixed() {
            Some(topic) => {
                let partitions = recovery::partitions(&settler, topic).await?;
                recovery::end_missed(&settler, &scope, &partitions).await?;
            }
            // Those of this generation's transactions are looked at by the committers that have ended them.
            None => self.look_after(&settler, &scope, ended_in).await?,
        }
        Ok(swept)
    }

    async fn open(&self, context: SinkContext) -> ConnectorResult<(KafkaWriter, KafkaCommitter)> {
        if context.parallelism == 0 || context.subtask >= context.parallelism {
            return Err(ConnectorError::Fatal(format!("subtask {} of {} does not exist", context.subtask, context.parallelism)));
        }
        let scope = self.scope(&context.job, &context.uid);
        let pool = Arc::new(SharedPool {
            pool: Mutex::new(IdPool::new(scope.clone(), context.job.generation.0, context.subtask)),
            changed: Notify::new(),
        });
        // Two sets of connections: a writer that waits for the broker never delays a commit.
        let committer = match self.exactly_once() {
            true => {
                let cluster = connect::connect(&self.client().client).await?;
                Some(Settler::new(Transactions::new(cluster), self.settings.decision_timeout))
            }
            false => None,
        };
        let writer = KafkaWriter::open(&self.settings, &context, pool.clone()).await?;
        Ok((writer, KafkaCommitter::new(committer, scope, pool)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_changed_place_is_told() {
        let sink = |topic: &str, servers: &str, prefix: &str| {
            let builder = KafkaSink::json().bootstrap_servers(servers).topic(topic).transactional_id_prefix(prefix);
            builder.delivery_guarantee(DeliveryGuarantee::ExactlyOnce).build().unwrap()
        };
        let transaction = KafkaTransaction {
            bootstrap_servers: "a:1,b:2".into(),
            transactional_id: "p-0a1b2c3d-out-1-0-0".into(),
            partitions: BTreeMap::from([("t".to_owned(), BTreeSet::from([0]))]),
            ..KafkaTransaction::default()
        };
        let told = |topic: &str, servers: &str, prefix: &str| sink(topic, servers, prefix).elsewhere(&transaction);
        assert_eq!(told("t", "b:2, a:1", "p"), None);
        assert!(told("u", "a:1,b:2", "p").unwrap().contains("to topic t; the sink now writes to u"));
        assert!(told("t", "c:3", "p").unwrap().contains("a:1,b:2; the sink now has c:3"));
        assert!(told("t", "a:1,b:2", "q").unwrap().contains("p-0a1b2c3d-out-1-0-0"));
    }
}
