//! The Kafka source: one value per source of the job, shared by its subtasks.

use crate::client::{Cluster, CommittedOffset, Offsets};
use crate::config::{DeserializerFactory, KafkaSourceBuilder, SourceSettings};
use crate::connect::{self, connector_error};
use crate::metrics::SourceMetrics;
use crate::reader::KafkaReader;
use crate::split::Split;
use crate::{ConnectorResult, preflight};
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{JobIdentity, OperatorUid, SplitState};
use semel_engine::sink::{Finding, JobNeeds};
use semel_engine::source::{Source, SourceContext};
use semel_formats::{Format, JsonOptions};
use std::sync::Arc;
use std::time::Duration;

/// Longest time for committing the group's offsets, which nothing depends on.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads topics; see [`KafkaSource::builder`].
#[derive(Debug, Clone)]
pub struct KafkaSource {
    settings: Arc<SourceSettings>,
    /// For the group's offsets.
    cluster: Arc<tokio::sync::Mutex<Option<Cluster>>>,
}

impl KafkaSource {
    /// Begins a source; the deserializer makes rows of the records' values.
    pub fn builder(deserializer: DeserializerFactory) -> KafkaSourceBuilder {
        KafkaSourceBuilder::new(deserializer)
    }

    /// Begins a source whose records' values are JSON objects with these columns.
    pub fn json(schema: SchemaRef) -> KafkaSourceBuilder {
        KafkaSource::with_format(Format::Json(JsonOptions::default()), schema)
    }

    /// Begins a source whose records' values are rows of this schema.
    pub fn with_format(format: Format, schema: SchemaRef) -> KafkaSourceBuilder {
        KafkaSource::builder(Arc::new(move || format.deserializer(schema.clone()).map_err(|e| e.to_string())))
    }

    pub(crate) fn new(settings: SourceSettings) -> KafkaSource {
        KafkaSource { settings: Arc::new(settings), cluster: Arc::default() }
    }

    /// The checked settings.
    pub fn settings(&self) -> &SourceSettings {
        &self.settings
    }

    async fn commit_group_offsets(&self, group: &str, splits: &[SplitState]) -> ConnectorResult<()> {
        let offsets: Vec<_> = splits
            .iter()
            .filter_map(|state| Split::from_state(state).ok())
            .map(|split| (split.partition, CommittedOffset { offset: split.position, leader_epoch: None, metadata: None }))
            .collect();
        if offsets.is_empty() {
            return Ok(());
        }
        let mut cluster = self.cluster.lock().await;
        let connected = match &*cluster {
            Some(connected) => connected.clone(),
            None => cluster.insert(connect::connect(&self.settings.client.client).await?).clone(),
        };
        drop(cluster);
        let deadline = crate::client::Deadline::after(COMMIT_TIMEOUT);
        Offsets::new(connected).commit(group, &offsets, deadline).await.map_err(connector_error)
    }
}

impl Source for KafkaSource {
    type Reader = KafkaReader;

    fn schema(&self) -> SchemaRef {
        self.settings.schema.clone()
    }

    async fn preflight(&self, needs: &JobNeeds, uid: &OperatorUid) -> Vec<Finding> {
        _ = (needs, uid);
        preflight::source(&self.settings).await
    }

    async fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>) -> ConnectorResult<KafkaReader> {
        KafkaReader::open(self.settings.clone(), context, restored).await
    }

    async fn checkpoint_complete(&self, job: &JobIdentity, splits: &[SplitState]) -> ConnectorResult<()> {
        _ = job;
        let (true, Some(group)) = (self.settings.commit_offsets_on_checkpoint, &self.settings.group_id) else {
            return Ok(());
        };
        // The offsets in the checkpoint are what counts; those of the group are for people and tools that watch.
        let metrics = SourceMetrics::new(group, 0);
        match self.commit_group_offsets(group, splits).await {
            Ok(()) => metrics.commits_succeeded.increment(1),
            Err(error) => {
                metrics.commits_failed.increment(1);
                tracing::warn!(%error, group, "the group's offsets were not committed");
            }
        }
        Ok(())
    }
}
