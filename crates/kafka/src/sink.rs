//! The Kafka sink: one value per sink of the job, shared by its subtasks.

use crate::client::{Cluster, Transactions};
use crate::committer::KafkaCommitter;
use crate::config::{DeliveryGuarantee, KafkaSinkBuilder, SerializerFactory, SinkSettings};
use crate::connect::{self, ClientSettings};
use crate::handle::KafkaTransaction;
use crate::ids::IdScope;
use crate::pool::IdPool;
use crate::settle::Settler;
use crate::writer::KafkaWriter;
use crate::{ConnectorError, ConnectorResult, preflight, recovery};
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{JobIdentity, OperatorUid};
use semel_engine::sink::{Finding, JobNeeds, Pending, SinkContext, Swept, TransactionAdmin, TwoPhaseCommitSink};
use semel_formats::{Format, JsonOptions};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Writes rows to Kafka with one of three delivery guarantees; see [`KafkaSink::builder`].
#[derive(Debug, Clone)]
pub struct KafkaSink {
    settings: Arc<SinkSettings>,
    /// For `recover` and `sweep`, which come again and again.
    cluster: Arc<tokio::sync::Mutex<Option<Cluster>>>,
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
        KafkaSink { settings: Arc::new(settings), cluster: Arc::default() }
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

    fn exactly_once(&self) -> bool {
        self.settings.guarantee == DeliveryGuarantee::ExactlyOnce
    }

    /// The names of this sink's transactions in a job.
    pub fn scope(&self, job: &JobIdentity, uid: &OperatorUid) -> IdScope {
        IdScope::new(&self.settings.transactional_id_prefix, &job.uuid.short(), uid.as_str())
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

impl TwoPhaseCommitSink for KafkaSink {
    type Transaction = KafkaTransaction;
    type Writer = KafkaWriter;
    type Committer = KafkaCommitter;

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
        let settler = self.settler().await?;
        recovery::commit_pending(&settler, pending).await?;
        match self.sweeps() {
            true => recovery::sweep(&settler, &self.scope(job, uid), job.generation).await,
            false => Ok(Swept::default()),
        }
    }

    async fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> ConnectorResult<Swept> {
        match self.sweeps() {
            true => recovery::sweep(&self.settler().await?, &self.scope(job, uid), job.generation).await,
            false => Ok(Swept::default()),
        }
    }

    async fn open(&self, context: SinkContext) -> ConnectorResult<(KafkaWriter, KafkaCommitter)> {
        if context.parallelism == 0 || context.subtask >= context.parallelism {
            return Err(ConnectorError::Fatal(format!("subtask {} of {} does not exist", context.subtask, context.parallelism)));
        }
        let scope = self.scope(&context.job, &context.uid);
        let pool = Arc::new(SharedPool {
            pool: Mutex::new(IdPool::new(scope, context.job.generation.0, context.subtask)),
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
        Ok((writer, KafkaCommitter::new(committer, pool)))
    }
}
