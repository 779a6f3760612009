//! A sink that throws rows away: to measure what comes before it.
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use semel_checkpoint::{CheckpointId, CommitPermit, JobIdentity, OperatorUid};
use semel_engine::sink::*;

/// See the module. Flink's `DiscardingSink`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiscardingSink;

/// The writer and the committer of a [`DiscardingSink`].
#[derive(Debug)]
pub struct Discarder;

impl TwoPhaseCommitSink for DiscardingSink {
    type Transaction = ();
    type Writer = Discarder;
    type Committer = Discarder;

    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid, _: &SchemaRef) -> Vec<Finding> {
        vec![]
    }
    async fn recover(&self, _: &JobIdentity, _: &OperatorUid, _: Vec<Pending<()>>) -> ConnectorResult<Swept> {
        Ok(Swept::default())
    }
    async fn sweep(&self, _: &JobIdentity, _: &OperatorUid) -> ConnectorResult<Swept> {
        Ok(Swept::default())
    }
    async fn open(&self, _: SinkContext) -> ConnectorResult<(Discarder, Discarder)> {
        Ok((Discarder, Discarder))
    }
}

impl SinkWriter for Discarder {
    type Transaction = ();
    async fn begin_transaction(&mut self, _: CheckpointId) -> ConnectorResult<()> {
        Ok(())
    }
    async fn invoke(&mut self, (): &mut (), _: RecordBatch) -> ConnectorResult<()> {
        Ok(())
    }
    async fn pre_commit(&mut self, (): &mut ()) -> ConnectorResult<()> {
        Ok(())
    }
}

impl SinkCommitter for Discarder {
    type Transaction = ();
    async fn commit(&mut self, (): &(), _: &CommitPermit) -> ConnectorResult<Committed> {
        Ok(Committed::Now)
    }
    async fn abort(&mut self, (): &()) -> ConnectorResult<()> {
        Ok(())
    }
}
