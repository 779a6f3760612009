//! A worker process: started by a supervisor, told by it what to run, and gone when the supervisor is.
use super::auth::Secret;
use super::control::Timing;
use super::data::{DataListener, Mesh, MeshError, meet};
use super::frame::{LIMIT, read, write};
use super::handshake::{Hello, Purpose, connect};
use super::messages::{Bootstrap, FromWorker, Heartbeat, ToWorker};
use crate::job::Job;
use crate::logging;
use crate::options::Settings;
use metrics_exporter_prometheus::PrometheusHandle;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use semel_checkpoint::open_store;
use semel_engine::failure::{Failure, fail, on_failure};
use semel_engine::job::{Assignment, JobContext};
use semel_engine::status::Status;
use semel_engine::worker::run_worker;
use std::fmt::Display;
use std::io::{BufRead, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, error, warn};

/// Tells a process that it is a worker: the supervisor's process id. Nothing secret; that comes through stdin.
pub(crate) const WORKER_OF: &str = "SEMEL_WORKER_OF";

/// Whether this process was started by a supervisor. (A program that a worker starts inherits the variable but has another parent.)
pub(crate) fn is_worker() -> bool {
    let supervisor = std::env::var(WORKER_OF).ok().and_then(|pid| pid.parse::<i32>().ok());
    supervisor.is_some_and(|pid| getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == pid))
}

/// From the first line to the last of a worker process.
pub(crate) fn main<E: Display>(build: impl FnOnce(&Settings) -> Result<Job, E>, settings: &mut Settings) -> ExitCode {
    // The supervisor may have died before this call took effect; then the pipe is closed or the control link refused.
    _ = set_parent_process_death_signal(Some(Signal::KILL));
    if !is_worker() {
        return ExitCode::from(75);
    }
    show_name();
    match prepare(build, settings) {
        Ok(worker) => worker.run(),
        Err(failure) => {
            error!("worker process: {failure}");
            ExitCode::from(failure.exit_code() as u8)
        }
    }
}

/// The system calls a process by the file that it was started from, here a link; people look for the program's name.
fn show_name() {
    let program = std::env::args().next().unwrap_or_default();
    if let Some(name) = std::path::Path::new(&program).file_name() {
        _ = std::fs::write("/proc/self/comm", name.as_encoded_bytes());
    }
}

struct Worker {
    job: Job,
    store: Arc<dyn semel_checkpoint::Store>,
    secret: Secret,
    timing: Timing,
    start_timeout: Duration,
    listener: DataListener,
    control: Arc<Control>,
    assigned: Receiver<(Box<Assignment>, Vec<SocketAddr>)>,
    status: Arc<Status>,
    runtime: Runtime,
}

/// This process' end of the control link.
struct Control {
    stream: TcpStream,
    sending: Mutex<()>,
    timeout: Duration,
}

impl Control {
    fn send(&self, message: &FromWorker) -> bool {
        let _one = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        write(&self.stream, message, Instant::now() + self.timeout).is_ok()
    }
}

fn retryable(what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |e| Failure::Retryable(format!("{what}: {e}"))
}

fn prepare<E: Display>(build: impl FnOnce(&Settings) -> Result<Job, E>, settings: &mut Settings) -> Result<Worker, Failure> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(retryable("the pipe from the supervisor"))?;
    let bootstrap: Bootstrap = serde_json::from_str(&line).map_err(|e| Failure::Retryable(format!("the pipe from the supervisor: {e}")))?;
    drop(line);
    let secret = Secret::from_hex(&bootstrap.secret).ok_or_else(|| Failure::Fatal("the supervisor sent no secret".into()))?;
    let runtime =
        Builder::new_multi_thread().worker_threads(2).thread_name("io").enable_all().build().map_err(retryable("starting threads"))?;
    {
        // The supervisor decides what a signal means; service managers and terminals send it to all processes. Registered once,
        // a handler replaces the default action for the life of the process.
        let _inside = runtime.enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
            drop(signal(kind).map_err(retryable("signals"))?);
        }
    }
    let metrics = crate::metrics::install();
    let job = build(settings).map_err(|e| Failure::Fatal(format!("building the job: {e}")))?;
    crate::cli::with_defaults(settings, &job).map_err(|e| Failure::Fatal(e.to_string()))?;
    logging::start(settings);
    let store = settings.checkpoint_dir().map_err(|e| Failure::Fatal(e.to_string()))?;
    let store = open_store(store).map_err(|e| Failure::Fatal(e.to_string()))?;
    let bind = settings.text("semel.cluster.bind-address").and_then(|a| a.parse().ok());
    let bind = bind.ok_or_else(|| Failure::Fatal("semel.cluster.bind-address is not an IP address".into()))?;
    let listener = DataListener::bind(bind).map_err(retryable("listening for other workers"))?;

    let timing = Timing { interval: settings.duration("heartbeat.interval"), timeout: settings.duration("heartbeat.timeout") };
    let stream = TcpStream::connect_timeout(&bootstrap.supervisor, timing.timeout).map_err(retryable("connecting to the supervisor"))?;
    let hello = Hello::new(Purpose::Control, 0, job.graph.hash(), bootstrap.launch);
    connect(&stream, &secret, &hello, timing.timeout).map_err(|e| Failure::Retryable(format!("the supervisor: {e}")))?;
    let control = Arc::new(Control { stream, sending: Mutex::new(()), timeout: timing.timeout });
    let status = Arc::new(Status::default());
    let (assign, assigned) = sync_channel(1);
    spawn("control-read", {
        let (control, status) = (control.clone(), status.clone());
        move || listen(&control, &status, &assign)
    })?;
    control.send(&FromWorker::Ready { data: listener.address() });
    spawn("heartbeat", {
        let (control, status) = (control.clone(), status.clone());
        move || beat(&control, &status, metrics.as_ref(), timing.interval)
    })?;
    let start_timeout = settings.duration("semel.start-timeout");
    Ok(Worker { job, store, secret, timing, start_timeout, listener, control, assigned, status, runtime })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop).map_err(retryable("starting threads"))
}

impl Worker {
    fn run(self) -> ExitCode {
        let Ok((assignment, peers)) = self.assigned.recv() else {
            return ExitCode::from(75);
        };
        let (process, generation) = (assignment.process, assignment.identity.generation.0);
        logging::set_who(Some(process), Some(generation));
        let control = self.control.clone();
        on_failure(move |failure| {
            match failure {
                // The peer, or what has become of it, is the error.
                Failure::PeerLost(_) => warn!("{failure}"),
                _ => error!("{failure}"),
            }
            control.send(&FromWorker::Failed(failure.clone()));
        });
        let mesh = Mesh {
            index: process,
            peers,
            generation,
            plan_hash: self.job.graph.hash(),
            secret: self.secret,
            link_timeout: self.timing.timeout,
            deadline: self.start_timeout,
        };
        let sockets = match meet(self.listener, &mesh) {
            Ok(sockets) => sockets,
            Err(MeshError::Fenced(refusal)) => fail(Failure::Fenced(refusal.to_string())),
            Err(error) => fail(Failure::Retryable(error.to_string())),
        };
        self.control.send(&FromWorker::Running);
        let context =
            JobContext { assignment: *assignment, store: self.store, runtime: self.runtime.handle().clone(), status: self.status };
        if let Err(failure) = run_worker(Arc::new(self.job.graph), Arc::new(context), sockets) {
            fail(failure);
        }
        debug!("this process' part of the job has ended");
        self.control.send(&FromWorker::Finished);
        self.runtime.shutdown_background();
        ExitCode::SUCCESS
    }
}

/// Ends the process when the supervisor is gone or silent.
fn listen(control: &Control, status: &Status, assign: &SyncSender<(Box<Assignment>, Vec<SocketAddr>)>) {
    loop {
        match read::<ToWorker>(&control.stream, LIMIT, Instant::now() + control.timeout) {
            Ok(ToWorker::Assign { assignment, peers }) => _ = assign.try_send((assignment, peers)),
            Ok(ToWorker::Stop) => status.request_stop(),
            Ok(ToWorker::Ping) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                debug!("the supervisor has closed the control link");
                std::process::exit(75);
            }
            Err(error) => {
                error!("the supervisor is gone ({error}): this worker process ends at once");
                std::process::exit(75);
            }
        }
    }
}

fn beat(control: &Control, status: &Status, metrics: Option<&PrometheusHandle>, interval: Duration) {
    let mut told = Instant::now();
    loop {
        let text = (told.elapsed() >= Duration::from_secs(1)).then_some(()).and(metrics).map(|metrics| {
            told = Instant::now();
            metrics.run_upkeep();
            metrics.render()
        });
        let heartbeat = Heartbeat {
            stalled_ms: status.stalled_for().as_millis() as u64,
            rows_in: status.rows_in.load(Relaxed),
            rows_out: status.rows_out.load(Relaxed),
            checkpoints: status.checkpoints.load(Relaxed),
            newest_checkpoint: status.newest_checkpoint.load(Relaxed),
            metrics: text,
        };
        if !control.send(&FromWorker::Heartbeat(heartbeat)) {
            return; // The reading thread ends the process.
        }
        std::thread::sleep(interval);
    }
}
