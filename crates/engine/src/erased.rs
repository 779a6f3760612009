//! The engine's own view of sources and sinks: handles as JSON, futures in boxes.
use crate::sink::TransactionAdmin;
use crate::sink::{
    Committed, ConnectorError, ConnectorResult, Finding, JobNeeds, Pending, SinkCommitter, SinkContext, SinkWriter, Swept,
    TwoPhaseCommitSink,
};
use crate::source::{Source, SourceContext, SourceEvent, SourceReader};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::FutureExt;
use futures::future::BoxFuture;
use semel_checkpoint::{CheckpointId, CommitPermit, Committable, JobIdentity, OperatorUid, SplitState};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// See [`TwoPhaseCommitSink`].
pub trait DynSink: Send + Sync {
    /// See [`TwoPhaseCommitSink::preflight`].
    fn preflight<'a>(&'a self, needs: &'a JobNeeds, uid: &'a OperatorUid, schema: &'a SchemaRef) -> BoxFuture<'a, Vec<Finding>>;
    /// See [`TwoPhaseCommitSink::recover`].
    fn recover<'a>(
        &'a self,
        job: &'a JobIdentity,
        uid: &'a OperatorUid,
        pending: Vec<(CommitPermit, Committable)>,
    ) -> BoxFuture<'a, ConnectorResult<Swept>>;
    /// See [`TwoPhaseCommitSink::sweep`].
    fn sweep<'a>(&'a self, job: &'a JobIdentity, uid: &'a OperatorUid) -> BoxFuture<'a, ConnectorResult<Swept>>;
    /// See [`TwoPhaseCommitSink::elsewhere`].
    fn elsewhere(&self, committable: &Committable) -> Option<String>;
    /// See [`TwoPhaseCommitSink::transactions`].
    fn transactions(&self) -> Option<Arc<dyn TransactionAdmin>>;
    /// See [`TwoPhaseCommitSink::open`].
    fn open<'a>(&'a self, context: SinkContext) -> BoxFuture<'a, ConnectorResult<OpenSink>>;
}

/// The two halves of one subtask of a sink.
pub type OpenSink = (Box<dyn DynWriter>, Box<dyn DynCommitter>);

/// A writer with the transaction that it has open.
pub trait DynWriter: Send {
    /// Writes rows of this checkpoint; begins its transaction with the first.
    fn write<'a>(&'a mut self, checkpoint: CheckpointId, rows: RecordBatch) -> BoxFuture<'a, ConnectorResult<()>>;
    /// Pre-commits the open transaction and answers with its handle. `None`: there were no rows.
    fn pre_commit(&mut self) -> BoxFuture<'_, ConnectorResult<Option<serde_json::Value>>>;
    /// See [`SinkWriter::idle`].
    fn idle(&mut self) -> BoxFuture<'_, ConnectorResult<()>>;
}

/// See [`SinkCommitter`].
pub trait DynCommitter: Send {
    /// See [`SinkCommitter::commit`].
    fn commit<'a>(&'a mut self, committable: &'a Committable, permit: &'a CommitPermit) -> BoxFuture<'a, ConnectorResult<Committed>>;
    /// See [`SinkCommitter::released`].
    fn released(&mut self, committed: CheckpointId) -> BoxFuture<'_, ConnectorResult<()>>;
    /// See [`SinkCommitter::finish`].
    fn finish(&mut self) -> BoxFuture<'_, ConnectorResult<()>>;
}

fn handle<T: DeserializeOwned>(committable: &Committable) -> ConnectorResult<T> {
    serde_json::from_value(committable.handle.clone()).map_err(|e| {
        ConnectorError::Fatal(format!(
            "the transaction of checkpoint {} subtask {} of sink {} in the journal is not one of this sink ({e}); it was written by another kind of sink. \
             Start once with the sink as it was, so that it is committed, or end it by hand (`transactions`)",
            committable.checkpoint, committable.subtask, committable.sink
        ))
    })
}

impl<S: TwoPhaseCommitSink> DynSink for S {
    fn elsewhere(&self, committable: &Committable) -> Option<String> {
        TwoPhaseCommitSink::elsewhere(self, &handle(committable).ok()?)
    }
    fn transactions(&self) -> Option<Arc<dyn TransactionAdmin>> {
        TwoPhaseCommitSink::transactions(self)
    }
    fn preflight<'a>(&'a self, needs: &'a JobNeeds, uid: &'a OperatorUid, schema: &'a SchemaRef) -> BoxFuture<'a, Vec<Finding>> {
        TwoPhaseCommitSink::preflight(self, needs, uid, schema).boxed()
    }
    fn recover<'a>(
        &'a self,
        job: &'a JobIdentity,
        uid: &'a OperatorUid,
        pending: Vec<(CommitPermit, Committable)>,
    ) -> BoxFuture<'a, ConnectorResult<Swept>> {
        async move {
            let pending = pending
                .into_iter()
                .map(|(permit, c)| Ok(Pending { transaction: handle(&c)?, permit, subtask: c.subtask, checkpoint: c.checkpoint }));
            TwoPhaseCommitSink::recover(self, job, uid, pending.collect::<ConnectorResult<_>>()?).await
        }
        .boxed()
    }
    fn sweep<'a>(&'a self, job: &'a JobIdentity, uid: &'a OperatorUid) -> BoxFuture<'a, ConnectorResult<Swept>> {
        TwoPhaseCommitSink::sweep(self, job, uid).boxed()
    }
    fn open<'a>(&'a self, context: SinkContext) -> BoxFuture<'a, ConnectorResult<OpenSink>> {
        async move {
            let (writer, committer) = TwoPhaseCommitSink::open(self, context).await?;
            let writer: Box<dyn DynWriter> = Box::new(OpenWriter::<S> { writer, open: None });
            let committer: Box<dyn DynCommitter> = Box::new(OpenCommitter::<S>(committer));
            Ok((writer, committer))
        }
        .boxed()
    }
}

struct OpenWriter<S: TwoPhaseCommitSink> {
    writer: S::Writer,
    open: Option<S::Transaction>,
}

impl<S: TwoPhaseCommitSink> DynWriter for OpenWriter<S> {
    fn write<'a>(&'a mut self, checkpoint: CheckpointId, rows: RecordBatch) -> BoxFuture<'a, ConnectorResult<()>> {
        async move {
            let transaction = match &mut self.open {
                Some(open) => open,
                none => {
                    crate::failpoint::passing("before_begin_transaction");
                    none.insert(self.writer.begin_transaction(checkpoint).await?)
                }
            };
            self.writer.invoke(transaction, rows).await
        }
        .boxed()
    }
    fn pre_commit(&mut self) -> BoxFuture<'_, ConnectorResult<Option<serde_json::Value>>> {
        async move {
            let Some(mut transaction) = self.open.take() else { return Ok(None) };
            self.writer.pre_commit(&mut transaction).await?;
            let handle = serde_json::to_value(&transaction);
            handle.map(Some).map_err(|e| ConnectorError::Fatal(format!("the transaction's handle cannot be stored as JSON: {e}")))
        }
        .boxed()
    }
    fn idle(&mut self) -> BoxFuture<'_, ConnectorResult<()>> {
        self.writer.idle().boxed()
    }
}

struct OpenCommitter<S: TwoPhaseCommitSink>(S::Committer);

impl<S: TwoPhaseCommitSink> DynCommitter for OpenCommitter<S> {
    fn commit<'a>(&'a mut self, committable: &'a Committable, permit: &'a CommitPermit) -> BoxFuture<'a, ConnectorResult<Committed>> {
        async move { self.0.commit(&handle(committable)?, permit).await }.boxed()
    }
    fn released(&mut self, committed: CheckpointId) -> BoxFuture<'_, ConnectorResult<()>> {
        self.0.released(committed).boxed()
    }
    fn finish(&mut self) -> BoxFuture<'_, ConnectorResult<()>> {
        self.0.finish().boxed()
    }
}

/// See [`Source`].
pub trait DynSource: Send + Sync {
    /// See [`Source::schema`].
    fn schema(&self) -> SchemaRef;
    /// See [`Source::preflight`].
    fn preflight<'a>(&'a self, needs: &'a JobNeeds, uid: &'a OperatorUid) -> BoxFuture<'a, Vec<Finding>>;
    /// See [`Source::open`].
    fn open<'a>(&'a self, context: SourceContext, restored: Option<Vec<SplitState>>) -> BoxFuture<'a, ConnectorResult<Box<dyn DynReader>>>;
    /// See [`Source::checkpoint_complete`].
    fn checkpoint_complete<'a>(&'a self, job: &'a JobIdentity, splits: &'a [SplitState]) -> BoxFuture<'a, ConnectorResult<()>>;
}

/// See [`SourceReader`].
pub trait DynReader: Send {
    /// See [`SourceReader::splits`].
    fn splits(&mut self) -> Vec<SplitState>;
    /// See [`SourceReader::next`].
    fn next(&mut self) -> BoxFuture<'_, ConnectorResult<SourceEvent>>;
}

impl<S: Source> DynSource for S {
    fn schema(&self) -> SchemaRef {
        Source::schema(self)
    }
    fn preflight<'a>(&'a self, needs: &'a JobNeeds, uid: &'a OperatorUid) -> BoxFuture<'a, Vec<Finding>> {
        Source::preflight(self, needs, uid).boxed()
    }
    fn open<'a>(&'a self, context: SourceContext, restored: Option<Vec<SplitState>>) -> BoxFuture<'a, ConnectorResult<Box<dyn DynReader>>> {
        async move {
            let reader: Box<dyn DynReader> = Box::new(Source::open(self, context, restored).await?);
            Ok(reader)
        }
        .boxed()
    }
    fn checkpoint_complete<'a>(&'a self, job: &'a JobIdentity, splits: &'a [SplitState]) -> BoxFuture<'a, ConnectorResult<()>> {
        Source::checkpoint_complete(self, job, splits).boxed()
    }
}

impl<R: SourceReader> DynReader for R {
    fn splits(&mut self) -> Vec<SplitState> {
        SourceReader::splits(self)
    }
    fn next(&mut self) -> BoxFuture<'_, ConnectorResult<SourceEvent>> {
        SourceReader::next(self).boxed()
    }
}

/// A sink of any kind.
pub type SharedSink = Arc<dyn DynSink>;
/// A source of any kind.
pub type SharedSource = Arc<dyn DynSource>;
