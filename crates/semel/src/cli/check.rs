//! `check`: preflight alone.
use crate::job::Job;
use crate::options::Settings;
use crate::supervisor::preflight;
use semel_engine::failure::Failure;
use semel_engine::sink::Severity;
use std::process::ExitCode;

/// Prints every finding; fails if one of them is an error.
pub(super) async fn check(job: &Job, settings: &Settings) -> Result<ExitCode, Failure> {
    let findings = preflight::all(job, settings).await?;
    for finding in &findings {
        println!("{}", preflight::describe(finding));
    }
    let errors = findings.iter().filter(|f| f.severity >= Severity::Error).count();
    println!("{} checks, {errors} {}", findings.len(), if errors == 1 { "error" } else { "errors" });
    // With the exit code of a `run` that would be refused.
    Ok(preflight::verdict(&findings).map_or_else(|refused| ExitCode::from(refused.exit_code() as u8), |()| ExitCode::SUCCESS))
}
