//! `transactions list|commit|abort`.
use super::open;
use crate::job::Job;
use crate::options::Settings;
use crate::supervisor::start::{self, Start};
use semel_checkpoint::{CheckpointId, Committable, Generation, JobIdentity, decide_claim, read_journal};
use semel_engine::failure::Failure;
use semel_engine::sink::TransactionAdmin;
use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

struct Known {
    identity: Option<JobIdentity>,
    pending: Vec<(CheckpointId, Committable)>,
}

async fn known(settings: &Settings) -> Result<Known, Failure> {
    let view = read_journal(open(settings)?).await.map_err(|e| Failure::Fatal(format!("journal: {e}")))?;
    let generation = view.newest_generation().map_or(Generation(0), |g| g.generation);
    let identity = view.job().map(|(uuid, name)| JobIdentity { name: name.to_owned(), uuid, generation });
    let pending = decide_claim(&view.entries, None).map_err(|e| Failure::Fatal(e.to_string()))?.pending;
    Ok(Known { identity, pending })
}

async fn within<T>(what: &str, call: impl Future<Output = semel_engine::sink::ConnectorResult<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(result) => result.map_err(|e| Failure::from(e).within(what)),
        Err(_) => Err(Failure::Retryable(format!("{what}: no answer within {DEADLINE:?}"))),
    }
}

pub(super) async fn list(job: &Job, settings: &Settings) -> Result<ExitCode, Failure> {
    let known = known(settings).await?;
    println!("{} transactions in the journal that may not be committed yet", known.pending.len());
    for (checkpoint, c) in &known.pending {
        println!(
            "  sink {} subtask {} checkpoint {} (entry {checkpoint}, generation {}): {} rows, {} bytes, {}",
            c.sink, c.subtask, c.checkpoint, c.generation, c.rows, c.bytes, c.handle
        );
    }
    for (uid, sink, _) in job.graph.sinks() {
        let Some(admin) = sink.transactions() else {
            println!("sink {uid}: its external system has no transactions that could be listed");
            continue;
        };
        let open = within(&format!("sink {uid}"), admin.list(known.identity.as_ref())).await?;
        println!("sink {uid}: {} open transactions in the external system", open.len());
        for t in open {
            let age = t.age_ms.map_or("age unknown".to_owned(), |ms| format!("open for {:.1} s", ms as f64 / 1e3));
            println!("  {} {}, {age}, {}", t.name, t.state, t.owner);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn commit(job: &Job, settings: &Settings) -> Result<ExitCode, Failure> {
    let claimed = Cell::new(None);
    let started = start::start(&request(job, settings, &claimed)?).await?;
    println!(
        "generation {}: {} transactions of the journal are committed, {} others were ended",
        started.assignment.identity.generation, started.committed, started.aborted
    );
    Ok(ExitCode::SUCCESS)
}

fn request<'a>(job: &'a Job, settings: &'a Settings, claimed: &'a Cell<Option<Generation>>) -> Result<Start<'a>, Failure> {
    Ok(Start { job, settings, store: open(settings)?, first: true, claimed, threads: 1, processes: 1 })
}

pub(super) async fn abort(job: &Job, settings: &Settings, sink: &str, name: &str) -> Result<ExitCode, Failure> {
    let Some((_, found, _)) = job.graph.sinks().find(|(uid, _, _)| uid.as_str() == sink) else {
        let sinks: Vec<&str> = job.graph.sinks().map(|(uid, _, _)| uid.as_str()).collect();
        return Err(Failure::Fatal(format!("there is no sink {sink:?}; there are {sinks:?}")));
    };
    let Some(admin) = found.transactions() else {
        return Err(Failure::Fatal(format!("sink {sink}: its external system has no transactions that could be aborted by name")));
    };
    let known = known(settings).await?;
    unless_held(known.pending.iter().map(|(checkpoint, c)| (*checkpoint, c)), sink, name)?;
    if known.identity.is_some() {
        // A job that runs may be about to write the entry that holds it: from the claim on it cannot.
        let claimed = Cell::new(None);
        let claim = start::take_over(&request(job, settings, &claimed)?).await?;
        unless_held(claim.pending.iter().map(|(permit, c)| (permit.checkpoint(), c)), sink, name)?;
    }
    abort_now(admin.as_ref(), sink, name).await?;
    println!("{name} is aborted");
    Ok(ExitCode::SUCCESS)
}

fn unless_held<'a>(pending: impl Iterator<Item = (CheckpointId, &'a Committable)>, sink: &str, name: &str) -> Result<(), Failure> {
    let mut pending = pending.filter(|(_, c)| c.sink.as_str() == sink && mentions(&c.handle, name));
    match pending.next() {
        None => Ok(()),
        Some((checkpoint, _)) => Err(Failure::Fatal(format!(
            "{name} belongs to checkpoint {checkpoint}, whose rows would be lost: commit it with `transactions commit`, or start the job"
        ))),
    }
}

async fn abort_now(admin: &dyn TransactionAdmin, sink: &str, name: &str) -> Result<(), Failure> {
    within(&format!("sink {sink}"), admin.abort(name)).await
}

/// Whether a handle holds this name.
fn mentions(handle: &serde_json::Value, name: &str) -> bool {
    match handle {
        serde_json::Value::String(text) => text == name,
        serde_json::Value::Array(values) => values.iter().any(|v| mentions(v, name)),
        serde_json::Value::Object(members) => members.values().any(|v| mentions(v, name)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_searched_for_whole_names() {
        let handle = serde_json::json!({"id": "p-0a-1-0-0", "parts": [{"topic": "t"}]});
        assert!(mentions(&handle, "p-0a-1-0-0") && mentions(&handle, "t"));
        assert!(!mentions(&handle, "p-0a-1-0"));
    }
}
