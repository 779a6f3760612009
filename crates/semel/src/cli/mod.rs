//! The command line that every program on the library has: `run`, `check`, `checkpoints list|inspect`,
//! `transactions list|commit|abort`.
mod args;
mod check;
mod checkpoints;
mod transactions;

use crate::cluster::worker;
use crate::job::Job;
use crate::options::{OptionError, Origin, Settings};
use crate::supervisor::{self, Ended};
use crate::{logging, metrics};
use args::{CheckpointsCommand, Cli, Command, JobCommand, TransactionsCommand};
use clap::Parser;
use semel_checkpoint::{Store, open_store};
use semel_engine::failure::Failure;
use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tracing::{error, info, warn};

/// Runs the program's command line; `build` makes the job, from the settings if it likes. It is called once per process, also in
/// every worker process, and must make the same job each time.
///
/// Exit codes: 0 the job has finished or was stopped with a final checkpoint; 2 usage; 75 a failure that may go away; 76 fenced:
/// another supervisor of this job has taken over; 78 somebody must change something; 79 rows are lost.
pub fn main<E: Display>(build: impl FnOnce(&Settings) -> Result<Job, E>) -> ExitCode {
    let cli = Cli::parse();
    let mut settings = Settings::default();
    let mut warnings = match cli.settings.apply(&mut settings) {
        Ok(warnings) => warnings,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(78);
        }
    };
    if worker::is_worker() {
        return worker::main(build, &mut settings);
    }
    let ended = match cli.command {
        Command::Checkpoints { command } => {
            // Who only looks at the store, and says where it is, need not have the program's parameters at hand.
            let placed = match settings.checkpoint_dir() {
                Ok(_) => Ok(()),
                Err(_) => built(build, &mut settings, &mut warnings).map(drop),
            };
            begin(&settings, warnings);
            let placed = placed.map_err(|why| Failure::Fatal(format!("{why}. With --checkpoint-dir the job is not needed")));
            placed.and_then(|()| look(command, &settings))
        }
        Command::Job(command) => {
            let job = built(build, &mut settings, &mut warnings);
            begin(&settings, warnings);
            job.and_then(|job| dispatch(command, &job, &settings))
        }
    };
    match ended {
        Ok(code) => code,
        Err(failure) => {
            error!("{failure}");
            ExitCode::from(failure.exit_code() as u8)
        }
    }
}

/// The job, with its options taken into the settings. The error says why there is none.
fn built<E: Display>(
    build: impl FnOnce(&Settings) -> Result<Job, E>,
    settings: &mut Settings,
    warnings: &mut Vec<String>,
) -> Result<Job, Failure> {
    let fatal = |e: OptionError| Failure::Fatal(e.to_string());
    let job = build(settings).map_err(|e| {
        let hint = settings.misspelled_parameter().map_or(String::new(), |hint| format!(" ({hint})"));
        Failure::Fatal(format!("building the job: {e}{hint}"))
    })?;
    warnings.extend(settings.check_parameters().map_err(fatal)?);
    with_defaults(settings, &job).map_err(fatal)?;
    Ok(job)
}

fn begin(settings: &Settings, warnings: Vec<String>) {
    logging::set_who(None, None);
    logging::start(settings);
    warnings.into_iter().for_each(|warning| warn!("{warning}"));
}

/// Puts the options that the job sets below those of environment and command line.
pub(crate) fn with_defaults(settings: &mut Settings, job: &Job) -> Result<(), OptionError> {
    job.options.iter().try_for_each(|(name, value)| settings.set(name, value, Origin::Code))
}

fn runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("io").enable_all().build();
    runtime.map_err(|e| Failure::Retryable(format!("starting threads: {e}")))
}

fn look(command: CheckpointsCommand, settings: &Settings) -> Result<ExitCode, Failure> {
    let (store, runtime) = (open(settings)?, runtime()?);
    let code = match command {
        CheckpointsCommand::List => runtime.block_on(checkpoints::list(store)),
        CheckpointsCommand::Inspect { id } => runtime.block_on(checkpoints::inspect(store, id)),
    };
    runtime.shutdown_background();
    code
}

fn dispatch(command: JobCommand, job: &Job, settings: &Settings) -> Result<ExitCode, Failure> {
    let runtime = runtime()?;
    let code = match command {
        JobCommand::Run => run(&runtime, job, settings),
        JobCommand::Check => runtime.block_on(check::check(job, settings)),
        JobCommand::Transactions { command } => match command {
            TransactionsCommand::List => runtime.block_on(transactions::list(job, settings)),
            TransactionsCommand::Commit => runtime.block_on(transactions::commit(job, settings)),
            TransactionsCommand::Abort { sink, name } => runtime.block_on(transactions::abort(job, settings, &sink, &name)),
        },
    };
    runtime.shutdown_background();
    code
}

fn run(runtime: &Runtime, job: &Job, settings: &Settings) -> Result<ExitCode, Failure> {
    let recorder = metrics::install();
    // On this thread: the system ends worker processes when the *thread* that started them ends.
    match runtime.block_on(supervisor::run(job, settings, recorder))? {
        Ended::Finished => info!("the job has finished"),
        Ended::Stopped => info!("the job was stopped with a final checkpoint"),
        Ended::NotStarted => info!("the job was stopped before it had started"),
    }
    Ok(ExitCode::SUCCESS)
}

/// The store at the checkpoint folder.
fn open(settings: &Settings) -> Result<Arc<dyn Store>, Failure> {
    let url = settings.checkpoint_dir().map_err(|e| Failure::Fatal(e.to_string()))?;
    open_store(url).map_err(|e| Failure::Fatal(format!("checkpoint folder: {e}")))
}
