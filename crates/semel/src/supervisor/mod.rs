//! The supervisor: claims generations, starts and watches worker processes, and restarts the job when something fails.
mod page;
pub mod preflight;
mod processes;
pub mod restart;
pub(crate) mod restore;
pub(crate) mod start;
pub mod verdict;

use crate::cluster::auth::Secret;
use crate::cluster::control::Timing;
use crate::job::Job;
use crate::logging;
use crate::options::{OptionError, Settings};
use metrics_exporter_prometheus::PrometheusHandle;
use page::Page;
use processes::Processes;
use restart::{Decision, RestartStrategy, Restarts};
use semel_checkpoint::{Generation, Store, open_store};
use semel_engine::failure::Failure;
use start::{NotStarted, Start, not_replaced, start};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};

/// Other processes of a failed generation may say more about the cause within this time.
const GATHER: Duration = Duration::from_millis(30);
/// Processes that have seen the end of the job end within this time.
const LEAVE: Duration = Duration::from_secs(5);
/// How long the end of what a failed job leaves open may take.
const CLEAR_UP: Duration = Duration::from_secs(10);
/// A pause before a restart that is longer than this is not spent with idle processes.
const IDLE: Duration = Duration::from_secs(2);

/// How a job ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its sources are bounded and everything is committed.
    Finished,
    /// It was asked to stop and has committed a final checkpoint.
    Stopped,
    /// It was asked to stop before it had begun.
    NotStarted,
}

enum End {
    Ended(Ended),
    /// Before anything was claimed: no restart is worth its time.
    Refused(Failure),
    Failed {
        failure: Failure,
        ran_for: Duration,
    },
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What a run needs of its options.
pub(crate) struct Configured<'a> {
    url: &'a str,
    processes: usize,
    threads: usize,
    restarts: RestartStrategy,
    timing: Timing,
    bind: IpAddr,
}

/// Reads the options that only fit together or not at all.
pub(crate) fn configured(settings: &Settings) -> Result<Configured<'_>, Failure> {
    let fatal = |e: OptionError| Failure::Fatal(e.to_string());
    let url = settings.checkpoint_dir().map_err(fatal)?;
    if url.starts_with("memory:") {
        return Err(Failure::Fatal(format!(
            "checkpoint folder {url}: memory is not shared between processes and ends with them; use a path, s3:// or gs://"
        )));
    }
    let (processes, threads) = settings.layout().map_err(fatal)?;
    let restarts = RestartStrategy::from_settings(settings).map_err(fatal)?;
    let timing = Timing { interval: settings.duration("heartbeat.interval"), timeout: settings.duration("heartbeat.timeout") };
    if timing.interval >= timing.timeout {
        return Err(Failure::Fatal(format!(
            "heartbeat.interval ({:?}) must be shorter than heartbeat.timeout ({:?})",
            timing.interval, timing.timeout
        )));
    }
    let bind = settings.text("semel.cluster.bind-address").unwrap_or_default();
    let bind = bind.parse().map_err(|_| Failure::Fatal(format!("semel.cluster.bind-address = {bind:?}: an IP address is needed")))?;
    Ok(Configured { url, processes, threads, restarts, timing, bind })
}

/// Runs a job to its end. Must be called on a thread that lives as long as the process.
///
/// # Errors
/// A failure that no restart may mend, the last one that the restart strategy allowed, or another supervisor's takeover.
pub async fn run(job: &Job, settings: &Settings, recorder: Option<PrometheusHandle>) -> Result<Ended, Failure> {
    job.graph.check()?;
    let Configured { url, processes, threads, restarts, timing, bind } = configured(settings)?;
    let restarts = Restarts::new(restarts);
    let store = open_store(url).map_err(|e| Failure::Fatal(format!("checkpoint folder: {e}")))?;
    let signals = |kind| signal(kind).map_err(|e| Failure::Retryable(format!("signals: {e}")));
    let signals = Signals { terminate: signals(SignalKind::terminate())?, interrupt: signals(SignalKind::interrupt())? };
    let team = Processes::new(bind, Secret::from_environment(), job.graph.hash(), timing, settings.duration("semel.start-timeout"))?;
    let page = Page::new(preflight::name(job, settings), recorder);
    let generation = Cell::new(None);
    let served = page.clone().serve(settings);
    let supervisor = Supervisor {
        job,
        settings,
        store,
        processes,
        threads,
        team,
        restarts,
        signals,
        stop: None,
        generation: &generation,
        ran: false,
        page,
        began: Instant::now(),
        failed_at: None,
    };
    let (served, ended) = futures::join!(served, supervisor.run());
    // A port that is taken shall not end a job that runs.
    if let Err(error) = served {
        error!("{error}");
    }
    ended
}

struct Supervisor<'a> {
    job: &'a Job,
    settings: &'a Settings,
    store: Arc<dyn Store>,
    processes: usize,
    threads: usize,
    team: Processes,
    restarts: Restarts,
    signals: Signals,
    /// When a stop was asked for.
    stop: Option<Instant>,
    /// The newest generation that this supervisor has claimed.
    generation: &'a Cell<Option<Generation>>,
    /// Whether a generation has got to work.
    ran: bool,
    page: Page,
    began: Instant,
    failed_at: Option<Instant>,
}

impl Supervisor<'_> {
    async fn run(mut self) -> Result<Ended, Failure> {
        let ended = self.generations().await;
        self.team.kill();
        self.team.reap(LEAVE).await;
        if let Err(Failure::Fatal(_) | Failure::Retryable(_) | Failure::PeerLost(_)) = &ended
            && self.ran
            && self.stop.is_none()
        {
            self.clear_up().await;
        }
        ended
    }

    /// Leaves nothing open at the targets, if that can be done soon.
    async fn clear_up(&self) {
        let request = Start {
            job: self.job,
            settings: self.settings,
            store: self.store.clone(),
            first: false,
            claimed: self.generation,
            threads: self.threads,
            processes: self.processes,
        };
        match tokio::time::timeout(CLEAR_UP, start::clear_up(&request)).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => warn!("after the last failure, transactions may be left open until the next start: {why}"),
            Err(_) => warn!("after the last failure, transactions may be left open until the next start: not ended within {CLEAR_UP:?}"),
        }
    }

    async fn generations(&mut self) -> Result<Ended, Failure> {
        let mut restarts = 0;
        loop {
            metrics::gauge!("numRestarts").set(f64::from(restarts));
            let (failure, ran_for) = match self.generation().await {
                End::Ended(ended) => return Ok(ended),
                End::Refused(failure) => return Err(failure),
                End::Failed { failure, ran_for } => (failure, ran_for),
            };
            self.page.running(false);
            self.failed_at.get_or_insert_with(Instant::now);
            self.pause_or_give_up(failure, ran_for).await?;
            restarts += 1;
        }
    }

    /// One generation, from its start to its end.
    async fn generation(&mut self) -> End {
        let failed = |failure| End::Failed { failure, ran_for: Duration::ZERO };
        if let Err(failure) = self.team.launch(self.processes) {
            return failed(failure);
        }
        let first = self.generation.get().is_none();
        let request = Start {
            job: self.job,
            settings: self.settings,
            store: self.store.clone(),
            first,
            claimed: self.generation,
            threads: self.threads,
            processes: self.processes,
        };
        // The worker processes prepare themselves meanwhile.
        let mut starting = std::pin::pin!(start(&request));
        let started = loop {
            tokio::select! {
                started = &mut starting => break started,
                () = self.team.step() => {
                    if let Some(failure) = self.team.failure() {
                        return failed(failure);
                    }
                }
                () = self.signals.next(), if self.stop.is_none() => {
                    self.stop = Some(Instant::now());
                    if first {
                        return End::Ended(Ended::NotStarted);
                    }
                }
            }
        };
        let assignment = match started {
            Ok(started) => started.assignment,
            Err(NotStarted::Refused(failure)) => return End::Refused(failure),
            Err(NotStarted::Failed(failure)) => return failed(failure),
        };
        let generation = assignment.identity.generation;
        logging::set_who(None, Some(generation.0));
        while !self.team.all_ready() {
            self.team.step().await;
            if let Some(failure) = self.team.failure() {
                return failed(failure);
            }
        }
        self.team.assign(&assignment);
        self.ran = true;
        self.watch(generation).await
    }

    /// From the assignment to the end.
    async fn watch(&mut self, generation: Generation) -> End {
        let mut running: Option<Instant> = None;
        let mut told_to_stop = false;
        let limit = self.settings.duration("semel.shutdown-timeout");
        loop {
            if running.is_none() && self.team.all_running() {
                running = Some(Instant::now());
                self.page.running(true);
                let since = self.failed_at.take().unwrap_or(self.began);
                info!(
                    ms = since.elapsed().as_millis(),
                    "generation {generation} is running: {} processes, {} threads each", self.processes, self.threads
                );
                metrics::gauge!("restartingTime").set(since.elapsed().as_millis() as f64);
            }
            for (index, heartbeat) in self.team.take_heartbeats() {
                if let Some(text) = heartbeat.metrics {
                    self.page.worker(index, text);
                }
            }
            metrics::gauge!("uptime").set(running.map_or(0.0, |at| at.elapsed().as_millis() as f64));
            if self.team.any_finished() {
                return End::Ended(self.farewell().await);
            }
            if let Some(failure) = self.team.failure() {
                return End::Failed { failure, ran_for: running.map(|at| at.elapsed()).unwrap_or_default() };
            }
            if let Some(asked) = self.stop {
                if !told_to_stop {
                    told_to_stop = true;
                    info!("stop: taking a final checkpoint");
                    self.team.stop();
                }
                if asked.elapsed() >= limit {
                    let failure = Failure::Retryable(format!(
                        "no final checkpoint within semel.shutdown-timeout = {limit:?}; the next start goes on from the newest one"
                    ));
                    return End::Failed { failure, ran_for: Duration::ZERO };
                }
            }
            tokio::select! {
                () = self.team.step() => {}
                () = self.signals.next() => match self.stop {
                    None => self.stop = Some(Instant::now()),
                    Some(_) => {
                        let failure = Failure::Retryable("stopped at once, without a final checkpoint; the next start goes on from the newest one".into());
                        return End::Failed { failure, ran_for: Duration::ZERO };
                    }
                },
            }
        }
    }

    /// The job has ended in one process, so it has in all of them.
    async fn farewell(&mut self) -> Ended {
        let until = Instant::now() + LEAVE;
        while !self.team.all_exited() && Instant::now() < until {
            self.team.step().await;
        }
        if self.stop.is_some() { Ended::Stopped } else { Ended::Finished }
    }

    /// After a failure: ends the generation's processes, launches the next ones, and waits as the strategy says.
    async fn pause_or_give_up(&mut self, mut failure: Failure, ran_for: Duration) -> Result<(), Failure> {
        let failed = Instant::now();
        while failed.elapsed() < GATHER && !self.team.all_exited() {
            self.team.step().await;
        }
        failure = verdict::worst([failure].into_iter().chain(self.team.failure())).unwrap_or_else(|| Failure::Retryable("unknown".into()));
        self.team.kill();
        if let Some(own) = self.generation.get() {
            // What a successor does to this generation may look like anything; being replaced explains it.
            match tokio::time::timeout(Duration::from_secs(10), not_replaced(&self.store, own)).await {
                Ok(Err(fenced @ Failure::Fenced(_))) => return Err(fenced),
                Ok(Err(other)) => warn!("after a failure: {other}"),
                Ok(Ok(())) => {
                    if let Failure::Fenced(why) = failure {
                        failure = Failure::Retryable(format!("{why} (yet no other start is in the journal)"));
                    }
                }
                Err(_) => warn!("after a failure: the journal could not be read within 10 s"),
            }
        }
        if !matches!(failure, Failure::Retryable(_) | Failure::PeerLost(_)) {
            return Err(failure);
        }
        if self.stop.is_some_and(|asked| asked.elapsed() >= self.settings.duration("semel.shutdown-timeout")) {
            return Err(failure);
        }
        let pause = match self.restarts.failed(Instant::now(), ran_for, rand::random()) {
            Decision::Restart(pause) => pause,
            Decision::GiveUp(why) => {
                return Err(failure.within(format!("the job fails: {why}; its last failure")));
            }
        };
        warn!("{failure}; restarting in {:.3} s", pause.as_secs_f64());
        let until = failed + pause;
        while Instant::now() < until {
            if until.saturating_duration_since(Instant::now()) < IDLE {
                // They are ready when the pause is over.
                self.team.launch(self.processes)?;
            }
            let left = until.saturating_duration_since(Instant::now());
            tokio::select! {
                () = self.team.step() => {}
                () = tokio::time::sleep(left) => {}
                () = self.signals.next() => {
                    if self.stop.is_some() {
                        return Err(failure);
                    }
                    // The restart still takes place: only it can commit what the newest checkpoint holds.
                    self.stop = Some(Instant::now());
                }
            }
        }
        Ok(())
    }
}
