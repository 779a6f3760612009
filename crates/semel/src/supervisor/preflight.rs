//! What must hold before a job starts: looked at, never changed.
use super::restart::RestartStrategy;
use crate::job::Job;
use crate::options::Settings;
use futures::future::join_all;
use semel_checkpoint::{JobUuid, Store, open_store, probe_put_if_absent, read_journal};
use semel_engine::failure::Failure;
use semel_engine::sink::{Finding, JobNeeds, Severity};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, warn};

/// A connector that has not answered after this time is reported as unreachable.
const DEADLINE: Duration = Duration::from_secs(60);

/// What connectors must know of the job.
///
/// # Errors
/// Options that do not fit together.
pub fn needs(job: &Job, settings: &Settings, job_uuid: Option<JobUuid>) -> Result<JobNeeds, Failure> {
    let (processes, threads) = settings.layout().map_err(fatal)?;
    let checkpoint = settings.engine().checkpoint;
    Ok(JobNeeds {
        job_name: name(job, settings),
        job_uuid,
        parallelism: (processes * threads) as u32,
        checkpoint_interval: checkpoint.interval,
        checkpoint_timeout: checkpoint.timeout,
        max_concurrent_checkpoints: checkpoint.max_concurrent_checkpoints,
        longest_restart: RestartStrategy::from_settings(settings).map_err(fatal)?.longest_pause(),
    })
}

fn fatal(error: impl std::fmt::Display) -> Failure {
    Failure::Fatal(error.to_string())
}

/// The job's name: `pipeline.name`, else the program's.
pub fn name(job: &Job, settings: &Settings) -> String {
    settings.text("pipeline.name").unwrap_or(&job.name).to_owned()
}

/// Every check of store, sources and sinks, for the command `check`.
///
/// # Errors
/// The graph or the options are wrong by themselves.
pub async fn all(job: &Job, settings: &Settings) -> Result<Vec<Finding>, Failure> {
    job.graph.check()?;
    let url = settings.checkpoint_dir().map_err(fatal)?;
    match open_store(url) {
        Ok(store) => checks(job, settings, &store).await,
        Err(e) => {
            let mut findings = vec![folder(Severity::Error, e.to_string())];
            findings.extend(connectors(job, &needs(job, settings, None)?).await);
            Ok(findings)
        }
    }
}

/// The checks once the store is open, all at once.
pub(super) async fn checks(job: &Job, settings: &Settings, store: &Arc<dyn Store>) -> Result<Vec<Finding>, Failure> {
    let view = read_journal(store.clone()).await;
    let uuid = view.as_ref().ok().and_then(|view| view.job()).map(|(uuid, _)| uuid);
    let needs = needs(job, settings, uuid)?;
    let (probe, connectors) = futures::join!(probe_put_if_absent(store.as_ref()), connectors(job, &needs));
    let folder = match (&view, probe) {
        (Err(e), _) => folder(Severity::Error, e.to_string()),
        (_, Err(e)) => folder(Severity::Error, e.to_string()),
        (Ok(view), Ok(())) => match view.job() {
            Some((_, name)) if name != needs.job_name => {
                folder(Severity::Error, format!("it belongs to job {name:?}, this is {:?}", needs.job_name))
            }
            _ => folder(Severity::Ok, "writable, conditional".to_owned()),
        },
    };
    Ok(std::iter::once(folder).chain(connectors).collect())
}

fn folder(severity: Severity, found: String) -> Finding {
    Finding {
        severity,
        check: "checkpoint folder".to_owned(),
        found,
        needed: "writable, puts really conditional, of this job alone".to_owned(),
        remedy: "choose another folder with --checkpoint-dir, or repair its permissions".to_owned(),
    }
}

async fn connectors(job: &Job, needs: &JobNeeds) -> Vec<Finding> {
    let sources = job.graph.sources().map(|(uid, source)| limited(format!("source {uid}"), source.preflight(needs, uid)));
    let sinks = job.graph.sinks().map(|(uid, sink, schema)| limited(format!("sink {uid}"), sink.preflight(needs, uid, schema)));
    let (sources, sinks) = futures::join!(join_all(sources), join_all(sinks));
    sources.into_iter().chain(sinks).flatten().collect()
}

async fn limited(who: String, call: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    let found = tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(|_| {
        vec![Finding {
            severity: Severity::Error,
            check: "external system".to_owned(),
            found: format!("no answer within {DEADLINE:?}"),
            needed: "an answer".to_owned(),
            remedy: "check that it runs and that addresses and firewalls are right".to_owned(),
        }]
    });
    found.into_iter().map(|f| Finding { check: format!("{who}: {}", f.check), ..f }).collect()
}

/// A finding as one line.
pub fn describe(f: &Finding) -> String {
    match f.severity {
        Severity::Ok => format!("ok       {}: {}", f.check, f.found),
        Severity::Warning => format!("warning  {}: found {}; needed {}; {}", f.check, f.found, f.needed, f.remedy),
        Severity::Error => format!("ERROR    {}: found {}; needed {}; {}", f.check, f.found, f.needed, f.remedy),
    }
}

/// Logs findings; any error among them refuses the start.
pub(super) fn judge(findings: &[Finding]) -> Result<(), Failure> {
    for finding in findings {
        match finding.severity {
            Severity::Ok => debug!("preflight: {}", describe(finding)),
            Severity::Warning => warn!("preflight: {}", describe(finding)),
            Severity::Error => {}
        }
    }
    let errors: Vec<String> = findings.iter().filter(|f| f.severity == Severity::Error).map(describe).collect();
    if errors.is_empty() { Ok(()) } else { Err(Failure::Fatal(format!("preflight: the job is not started\n{}", errors.join("\n")))) }
}
