//! Metrics of checkpoints, under Flink's names. They are there from the start: counters at 0, and a gauge of the newest checkpoint at
//! -1, as with Flink, until there is one.
use semel_checkpoint::CheckpointEntry;
use std::time::Duration;

/// At the start of a generation, whose newest checkpoint is the restored one.
pub(super) fn begin(restored: Option<&CheckpointEntry>) {
    metrics::counter!("numberOfCompletedCheckpoints").increment(0);
    metrics::counter!("numberOfFailedCheckpoints").increment(0);
    metrics::gauge!("lastCheckpointSyncDuration").set(-1.0);
    match restored {
        Some(entry) => {
            newest(entry);
            took((entry.completed_at_ms - entry.triggered_at_ms) as f64);
        }
        None => {
            let gauges = ["lastCompletedCheckpointId", "lastCheckpointSize", "lastCheckpointFullSize", "lastCheckpointCompletedTimestamp"];
            gauges.into_iter().for_each(|name| metrics::gauge!(name).set(-1.0));
            took(-1.0);
        }
    }
    // Those of the restored one are committed by now.
    metrics::gauge!("pendingCommittables").set(0.0);
}

/// A checkpoint's entry is durable.
pub(super) fn completed(entry: &CheckpointEntry) {
    metrics::counter!("numberOfCompletedCheckpoints").increment(1);
    newest(entry);
    metrics::gauge!("pendingCommittables").set(entry.committables.len() as f64);
}

/// A checkpoint was declined or timed out.
pub(super) fn failed() {
    metrics::counter!("numberOfFailedCheckpoints").increment(1);
}

/// From a checkpoint's trigger to its entry, and on to the commit of its transactions.
pub(super) fn committed(complete: Duration, committed: Duration) {
    took(complete.as_millis() as f64);
    metrics::histogram!("checkpointCommitDuration").record(committed.as_secs_f64());
}

fn took(ms: f64) {
    metrics::gauge!("lastCheckpointDuration").set(ms);
}

fn newest(entry: &CheckpointEntry) {
    metrics::gauge!("lastCompletedCheckpointId").set(entry.id.0 as f64);
    metrics::gauge!("lastCheckpointSize").set(entry.new_bytes as f64);
    metrics::gauge!("lastCheckpointFullSize").set(entry.state_bytes as f64);
    metrics::gauge!("lastCheckpointCompletedTimestamp").set(entry.completed_at_ms as f64);
}
