//! What must hold before a job starts: looked at, never changed.
use super::restart::RestartStrategy;
use super::{configured, restore};
use crate::job::Job;
use crate::options::Settings;
use futures::future::join_all;
use semel_checkpoint::{JobUuid, JournalError, Store, open_store, probe_put_if_absent, read_journal};
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
        commit_timeout: settings.engine().commit_timeout,
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
    _ = configured(settings)?;
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
    let refused = |away: bool| if away { Severity::Unanswered } else { Severity::Error };
    let folder = match (&view, probe) {
        (Err(e), _) => {
            let away = matches!(e, JournalError::Unstable) || matches!(e, JournalError::Store(e) if e.is_transient());
            folder(refused(away), e.to_string())
        }
        (_, Err(e)) => folder(refused(e.is_transient()), e.to_string()),
        (Ok(view), Ok(())) => match view.job() {
            Some((_, name)) if name != needs.job_name => {
                folder(Severity::Error, format!("it belongs to job {name:?}, this is {:?}", needs.job_name))
            }
            _ => folder(Severity::Ok, "writable, conditional".to_owned()),
        },
    };
    let restored = view.map(|view| restore::findings(&job.graph, settings, &view)).unwrap_or_default();
    Ok(std::iter::once(folder).chain(restored).chain(connectors).collect())
}

fn folder(severity: Severity, found: String) -> Finding {
    let needed = "writable, puts really conditional, of this job alone";
    let remedy = match severity {
        Severity::Unanswered => "see that the store runs and can be reached from here",
        _ => "choose another folder with --checkpoint-dir, or repair its permissions",
    };
    Finding::new(severity, "checkpoint folder", found, needed, remedy)
}

async fn connectors(job: &Job, needs: &JobNeeds) -> Vec<Finding> {
    let sources = job.graph.sources().map(|(uid, source)| limited(format!("source {uid}"), source.preflight(needs, uid)));
    let sinks = job.graph.sinks().map(|(uid, sink, schema)| limited(format!("sink {uid}"), sink.preflight(needs, uid, schema)));
    let (sources, sinks) = futures::join!(join_all(sources), join_all(sinks));
    sources.into_iter().chain(sinks).flatten().collect()
}

async fn limited(who: String, call: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    let found = tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(|_| {
        let remedy = "check that it runs and that addresses and firewalls are right";
        vec![Finding::new(Severity::Unanswered, "external system", format!("no answer within {DEADLINE:?}"), "an answer", remedy)]
    });
    found.into_iter().map(|f| Finding { check: format!("{who}: {}", f.check), ..f }).collect()
}

/// A finding as one line.
pub fn describe(f: &Finding) -> String {
    let severity = match f.severity {
        Severity::Ok => "ok      ",
        Severity::Warning => "warning ",
        Severity::Error | Severity::Unanswered => "ERROR   ",
    };
    format!("{severity} {}", words(f))
}

/// What was found, without its severity.
fn words(f: &Finding) -> String {
    let mut text = format!("{}: {}", f.check, f.found);
    if f.severity > Severity::Ok {
        if !f.needed.is_empty() {
            text.push_str(&format!("; needed: {}", f.needed));
        }
        if !f.remedy.is_empty() {
            text.push_str(&format!("; {}", f.remedy));
        }
    }
    text
}

/// Logs findings; any error among them refuses the start.
pub(super) fn judge(findings: &[Finding]) -> Result<(), Failure> {
    for finding in findings {
        match finding.severity {
            Severity::Ok => debug!("preflight: {}", words(finding)),
            Severity::Warning => warn!("preflight: {}", words(finding)),
            Severity::Error | Severity::Unanswered => {}
        }
    }
    verdict(findings)
}

/// Whether the job may start.
///
/// # Errors
/// All findings that keep it from starting.
pub fn verdict(findings: &[Finding]) -> Result<(), Failure> {
    let errors: Vec<&Finding> = findings.iter().filter(|f| f.severity >= Severity::Error).collect();
    if errors.is_empty() {
        return Ok(());
    }
    let text = errors.iter().map(|f| words(f)).collect::<Vec<_>>().join("\n  ");
    let text = format!("preflight: the job is not started\n  {text}");
    // Who does not answer may do so later; everything else needs somebody's help.
    match errors.iter().all(|f| f.severity == Severity::Unanswered) {
        true => Err(Failure::Retryable(text)),
        false => Err(Failure::Fatal(text)),
    }
}
