//! The sink itself.
use crate::committer::{FileCommitter, check_permit, commit};
use crate::config::{FileSinkBuilder, FileSinkSettings};
use crate::io::{blocking, create_folder};
use crate::names::{FileTransaction, pending_folder};
use crate::preflight::preflight;
use crate::recovery::sweep;
use crate::writer::FileWriter;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{JobIdentity, OperatorUid};
use semel_engine::sink::{ConnectorResult, Finding, JobNeeds, Pending, SinkContext, Swept, TwoPhaseCommitSink};
use semel_formats::Format;
use std::path::PathBuf;
use std::sync::Arc;

/// Writes rows as lines of text into a folder, exactly once. See the crate's documentation.
#[derive(Debug, Clone)]
pub struct FileSink {
    settings: Arc<FileSinkSettings>,
}

impl FileSink {
    /// Begins a sink: the folder that readers look into, and how a row becomes a line.
    pub fn builder(folder: impl Into<PathBuf>, format: Format) -> FileSinkBuilder {
        FileSinkBuilder::new(folder, format)
    }

    /// Begins a sink that writes each row as a line of JSON.
    pub fn json(folder: impl Into<PathBuf>) -> FileSinkBuilder {
        FileSink::builder(folder, Format::Json(semel_formats::JsonOptions::default()))
    }

    pub(crate) fn new(settings: FileSinkSettings) -> FileSink {
        FileSink { settings: Arc::new(settings) }
    }

    /// Its settings.
    pub fn settings(&self) -> &FileSinkSettings {
        &self.settings
    }
}

impl TwoPhaseCommitSink for FileSink {
    type Transaction = FileTransaction;
    type Writer = FileWriter;
    type Committer = FileCommitter;

    fn elsewhere(&self, transaction: &FileTransaction) -> Option<String> {
        let (then, now) = (&transaction.folder, &self.settings.folder);
        (then != now).then(|| format!("into {}; the sink now writes into {}", then.display(), now.display()))
    }

    async fn preflight(&self, needs: &JobNeeds, uid: &OperatorUid, schema: &SchemaRef) -> Vec<Finding> {
        preflight(&self.settings, needs, uid, schema).await
    }

    async fn recover(&self, job: &JobIdentity, uid: &OperatorUid, mut pending: Vec<Pending<FileTransaction>>) -> ConnectorResult<Swept> {
        pending.sort_by_key(|p| (p.checkpoint, p.subtask));
        for Pending { transaction, permit, .. } in pending {
            check_permit(&transaction, &permit)?;
            let what = format!("commit of {}", transaction.describe());
            blocking(self.settings.io_timeout, what, move || commit(&transaction)).await?;
        }
        self.sweep(job, uid).await
    }

    async fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> ConnectorResult<Swept> {
        let (folder, job, uid) = (self.settings.folder.clone(), job.clone(), uid.clone());
        blocking(self.settings.io_timeout, format!("sweep of {}", folder.display()), move || sweep(&folder, &job, &uid)).await
    }

    async fn open(&self, context: SinkContext) -> ConnectorResult<(FileWriter, FileCommitter)> {
        let folder = pending_folder(&self.settings.folder);
        blocking(self.settings.io_timeout, format!("creating {}", folder.display()), move || create_folder(&folder)).await?;
        let committer = FileCommitter {
            settings: self.settings.clone(),
            job: context.job.clone(),
            sink: context.uid.clone(),
            subtask: context.subtask,
        };
        Ok((FileWriter::new(self.settings.clone(), context)?, committer))
    }
}
