//! Whether a job may go on from what its journal holds. Decisions only: the journal's entries come in.
use crate::options::Settings;
use semel_checkpoint::{CheckpointEntry, CheckpointId, Committable, JournalView, decide_claim};
use semel_engine::failure::Failure;
use semel_engine::graph::Graph;
use semel_engine::sink::{Finding, Severity};

/// `--from`, if it is given.
pub(crate) fn from(settings: &Settings) -> Option<CheckpointId> {
    const FROM: &str = "execution.state-recovery.path";
    settings.text(FROM).map(|_| CheckpointId(settings.number(FROM)))
}

/// What a start would restore, and what speaks against it.
pub(crate) fn findings(graph: &Graph, settings: &Settings, view: &JournalView) -> Vec<Finding> {
    let told = |severity, found: String| Finding::new(severity, "restore", found, "", "");
    let decision = match decide_claim(&view.entries, from(settings)) {
        Ok(decision) => decision,
        Err(e) => return vec![told(Severity::Error, format!("--from: {e}"))],
    };
    let pending: Vec<&Committable> = decision.pending.iter().map(|(_, c)| c).collect();
    let restored = decision.restored.as_ref();
    let mut findings = vec![match may_restore(graph, settings, restored, &pending, &decision.abandoned) {
        Err(Failure::Retryable(why) | Failure::PeerLost(why) | Failure::Fatal(why) | Failure::Lost(why) | Failure::Fenced(why)) => {
            told(Severity::Error, why)
        }
        Ok(Some(dropped)) => told(Severity::Warning, dropped),
        Ok(None) => told(Severity::Ok, restored.map_or("nothing, the job begins".to_owned(), |c| format!("from checkpoint {}", c.id))),
    }];
    if let Some(restored) = restored {
        findings.extend(moved(graph, view, restored.id));
    }
    findings
}

/// Sinks whose newest known transaction went to another place than the sink writes to now.
fn moved(graph: &Graph, view: &JournalView, restored: CheckpointId) -> Vec<Finding> {
    let mut findings = vec![];
    for (uid, sink, _) in graph.sinks() {
        let checkpoints = view.checkpoints().rev().filter(|c| c.id <= restored);
        let last = checkpoints.flat_map(|c| &c.committables).find(|c| c.sink == *uid);
        if let Some((checkpoint, how)) = last.and_then(|last| Some((last.checkpoint, sink.elsewhere(last)?))) {
            findings.push(Finding::new(
                Severity::Warning,
                &format!("sink {uid}: place"),
                format!("rows of checkpoint {checkpoint} went elsewhere: {how}"),
                "the same place, unless the change is wanted",
                "rows that were written before stay where they are, and what is pending is committed there",
            ));
        }
    }
    findings
}

/// Whether the graph can go on from a checkpoint without losing anything; in words, what it drops as it was told to.
pub(super) fn may_restore(
    graph: &Graph,
    settings: &Settings,
    restored: Option<&CheckpointEntry>,
    pending: &[&Committable],
    abandoned: &[CheckpointEntry],
) -> Result<Option<String>, Failure> {
    let sinks: Vec<&str> = graph.sinks().map(|(uid, _, _)| uid.as_str()).collect();
    if let Some(orphan) = pending.iter().find(|c| !sinks.contains(&c.sink.as_str())) {
        return Err(Failure::Fatal(format!(
            "checkpoint {} holds rows for sink {:?} that are not committed yet, and the job has no such sink (it has {sinks:?}): start once with the sink as it was, so that they are committed",
            orphan.checkpoint,
            orphan.sink.as_str()
        )));
    }
    let held: Vec<String> = abandoned
        .iter()
        .filter(|c| !c.committables.is_empty())
        .map(|c| format!("{} ({} transactions)", c.id, c.committables.len()))
        .collect();
    if !held.is_empty() && !settings.flag("semel.state-recovery.accept-duplicates") {
        return Err(Failure::Fatal(format!(
            "--from: rows of later checkpoints may be committed already and would come again: checkpoints {}. Add --accept-duplicates to allow it",
            held.join(", ")
        )));
    }
    let Some(restored) = restored else {
        return Ok(None);
    };
    let slots = settings.number("pipeline.max-parallelism");
    if u64::from(restored.slots) != slots && !restored.operators.is_empty() {
        return Err(Failure::Fatal(format!(
            "the state of checkpoint {} has {} key slots, pipeline.max-parallelism is {slots}: set it to {} (it is fixed for the life of the state)",
            restored.id, restored.slots, restored.slots
        )));
    }
    let known: Vec<&str> = graph.nodes().iter().map(|n| n.uid.as_str()).collect();
    let mut unclaimed: Vec<&str> =
        restored.operators.keys().chain(restored.sources.keys()).map(|uid| uid.as_str()).filter(|uid| !known.contains(uid)).collect();
    unclaimed.dedup();
    if unclaimed.is_empty() {
        return Ok(None);
    }
    let text = format!("checkpoint {} holds state of operators that the job does not have: {unclaimed:?} (it has {known:?})", restored.id);
    if settings.flag("execution.state-recovery.ignore-unclaimed-state") {
        return Ok(Some(format!("{text}; it is dropped")));
    }
    Err(Failure::Fatal(format!("{text}. Give the operators their old uids, or drop that state with --allow-non-restored-state")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::{DataTypes, FileSink, GeneratorSource, SchemaBuilder, StreamExecutionEnvironment, WatermarkStrategy, sum};
    use crate::options::Origin;
    use arrow::array::RecordBatch;
    use semel_checkpoint::{Entry, decode_entry};

    /// A running sum into a folder.
    fn job(uid: &str, folder: &str) -> Graph {
        let env = StreamExecutionEnvironment::new();
        let schema = SchemaBuilder::new().column_not_null("k", DataTypes::bigint()).build().unwrap();
        let source = GeneratorSource::new(schema.clone(), move |_| Ok(RecordBatch::new_empty(schema.clone())));
        let rows = env.from_source(source, WatermarkStrategy::no_watermarks(), "numbers").unwrap();
        let sums = rows.key_by(["k"]).aggregate([sum("k").alias("s")]).unwrap().uid(uid).unwrap();
        sums.sink_to(FileSink::json(folder).build().unwrap()).unwrap().uid("out").unwrap();
        env.job("job").unwrap().graph
    }

    fn entry(text: &str) -> Entry {
        let job = "b2969759-3a0a-44c5-8241-882128be3dd7";
        let text = text.replace("JOB", &format!(r#""format": 1, "job": "{job}", "nonce": "{job}""#));
        decode_entry("x", text.as_bytes()).unwrap().1
    }

    /// Checkpoint 1 with 256 slots, its rows in `/old`.
    fn journal() -> JournalView {
        let checkpoint = r#"{JOB, "kind": "checkpoint", "id": 1, "generation": 1, "parallelism": 1, "slots": 256, "committed": 0,
            "operators": {"sums": {"parts": [], "watermark": null}}, "sources": {"numbers": []}, "retained": [1], "finished": false,
            "committables": [{"sink": "out", "subtask": 0, "checkpoint": 1, "generation": 1, "rows": 1, "bytes": 1, "handle":
                {"folder": "/old", "job": "b2969759-3a0a-44c5-8241-882128be3dd7", "sink": "out", "subtask": 0, "checkpoint": 1,
                 "generation": 1, "prefix": "part", "suffix": ".json", "parts": [1]}}],
            "triggered_at_ms": 0, "completed_at_ms": 0, "state_bytes": 0, "new_bytes": 0}"#;
        let job = r#"{JOB, "kind": "job", "uuid": "b2969759-3a0a-44c5-8241-882128be3dd7", "name": "job", "created_at_ms": 0}"#;
        JournalView { entries: vec![(0, entry(job)), (2, entry(checkpoint))] }
    }

    fn found(graph: &Graph, options: &[(&str, &str)]) -> Vec<(Severity, String)> {
        let mut settings = Settings::default();
        options.iter().for_each(|(name, value)| settings.set(name, value, Origin::Code).unwrap());
        findings(graph, &settings, &journal()).into_iter().map(|f| (f.severity, f.found)).collect()
    }

    #[test]
    fn the_same_job_goes_on() {
        assert_eq!(found(&job("sums", "/old"), &[]), [(Severity::Ok, "from checkpoint 1".to_owned())]);
    }

    #[test]
    fn key_slots_uids_and_an_unknown_checkpoint_are_errors() {
        let slots = found(&job("sums", "/old"), &[("pipeline.max-parallelism", "128")]);
        assert!(slots[0].0 == Severity::Error && slots[0].1.contains("256 key slots"), "{slots:?}");
        let uid = found(&job("other", "/old"), &[]);
        assert!(uid[0].0 == Severity::Error && uid[0].1.contains("sums"), "{uid:?}");
        let dropped = found(&job("other", "/old"), &[("execution.state-recovery.ignore-unclaimed-state", "true")]);
        assert!(dropped[0].0 == Severity::Warning && dropped[0].1.contains("it is dropped"), "{dropped:?}");
        let from = found(&job("sums", "/old"), &[("execution.state-recovery.path", "7")]);
        assert!(from[0].0 == Severity::Error && from[0].1.contains("--from"), "{from:?}");
    }

    #[test]
    fn a_sink_that_writes_to_another_place_is_told() {
        let moved = found(&job("sums", "/new"), &[]);
        assert!(moved[1].0 == Severity::Warning && moved[1].1.contains("into /old; the sink now writes into /new"), "{moved:?}");
    }
}
