//! The worker processes of a job: started, told what to run, watched and ended.
use super::verdict::{self, Signs};
use crate::cluster::auth::Secret;
use crate::cluster::control::{ControlEvent, ControlServer, Link, Timing};
use crate::cluster::messages::{Bootstrap, FromWorker, Heartbeat, ToWorker};
use crate::cluster::worker::WORKER_OF;
use semel_engine::failure::Failure;
use semel_engine::job::Assignment;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tracing::{debug, warn};

/// A process that has closed its control link is about to end; after this time it is ended. And the other way round: what an ended
/// process has said may still be on its way for so long.
const LEAVE: Duration = Duration::from_secs(1);

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Launched,
    Ready(SocketAddr),
    Assigned,
    Running,
}

struct Process {
    launch: u64,
    pid: u32,
    stage: Stage,
    launched: Instant,
    link: Option<Link>,
    signs: Signs,
    /// It has seen the end of the job.
    finished: bool,
    /// When it closed its link.
    closed: Option<Instant>,
    /// When and how it ended.
    exited: Option<(Instant, Result<ExitStatus, String>)>,
    /// It was told why it is ended, or told why it ends: its end says nothing more.
    explained: bool,
    /// Dropped: it is killed.
    kill: Option<oneshot::Sender<()>>,
}

/// See the module.
pub(super) struct Processes {
    server: ControlServer,
    secret: Secret,
    timing: Timing,
    start_timeout: Duration,
    next_launch: u64,
    control: UnboundedReceiver<(u64, ControlEvent)>,
    exits: UnboundedReceiver<(u64, std::io::Result<ExitStatus>)>,
    tell_exit: UnboundedSender<(u64, std::io::Result<ExitStatus>)>,
    /// Those of the generation, by index.
    team: Vec<Process>,
    /// Killed ones of earlier generations that have not ended yet.
    dying: BTreeSet<u64>,
    failures: Vec<Failure>,
    last_look: Instant,
    /// Heartbeats since they were last taken.
    heartbeats: Vec<(usize, Heartbeat)>,
}

impl Processes {
    pub fn new(bind: IpAddr, secret: Secret, plan_hash: String, timing: Timing, start_timeout: Duration) -> Result<Processes, Failure> {
        let (events, control) = unbounded_channel();
        let (tell_exit, exits) = unbounded_channel();
        let server = ControlServer::start(bind, secret.clone(), plan_hash, timing, events)
            .map_err(|e| Failure::Fatal(format!("semel.cluster.bind-address = {bind}: {e}")))?;
        Ok(Processes {
            server,
            secret,
            timing,
            start_timeout,
            next_launch: 1,
            control,
            exits,
            tell_exit,
            team: vec![],
            dying: BTreeSet::new(),
            failures: vec![],
            last_look: Instant::now(),
            heartbeats: vec![],
        })
    }

    /// Launches processes until there are this many. They prepare themselves and wait for an assignment.
    pub fn launch(&mut self, count: usize) -> Result<(), Failure> {
        while self.team.len() < count {
            let launch = self.next_launch;
            self.next_launch += 1;
            self.server.expect(launch);
            let child = self.spawn(launch).map_err(|e| Failure::Retryable(format!("starting a worker process: {e}")))?;
            let pid = child.id().unwrap_or_default();
            debug!(launch, pid, "worker process launched");
            let (kill, killed) = oneshot::channel();
            tokio::spawn(attend(child, launch, killed, self.tell_exit.clone()));
            let now = Instant::now();
            let signs = Signs { heard: now, stalled: Duration::ZERO };
            self.team.push(Process {
                launch,
                pid,
                stage: Stage::Launched,
                launched: now,
                link: None,
                signs,
                finished: false,
                closed: None,
                exited: None,
                explained: false,
                kill: Some(kill),
            });
        }
        Ok(())
    }

    fn spawn(&self, launch: u64) -> std::io::Result<Child> {
        // The very file that this process runs, also when another version has been put in its place.
        let mut command = std::process::Command::new("/proc/self/exe");
        let mut arguments = std::env::args_os();
        if let Some(name) = arguments.next() {
            std::os::unix::process::CommandExt::arg0(&mut command, name);
        }
        command.args(arguments).env(WORKER_OF, std::process::id().to_string()).env_remove(crate::cluster::auth::SECRET_VARIABLE);
        let mut child = Command::from(command).stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        let bootstrap = Bootstrap { secret: self.secret.to_hex(), supervisor: self.server.address(), launch };
        let mut line = serde_json::to_vec(&bootstrap)?;
        line.push(b'\n');
        if let Some(mut pipe) = child.stdin.take() {
            // A pipe takes a line of this length at once.
            tokio::spawn(async move { _ = pipe.write_all(&line).await });
        }
        Ok(child)
    }

    /// Waits until something has happened, or it is time to look after everybody.
    pub async fn step(&mut self) {
        let pause = (self.timing.timeout / 10).clamp(Duration::from_millis(5), Duration::from_millis(200));
        tokio::select! {
            Some((launch, event)) = self.control.recv() => self.heard(launch, event),
            Some((launch, status)) = self.exits.recv() => self.exited(launch, status),
            () = tokio::time::sleep(pause) => {}
        }
        let now = Instant::now();
        if now.duration_since(self.last_look) >= pause {
            self.look(now, pause);
        }
    }

    fn heard(&mut self, launch: u64, event: ControlEvent) {
        let Some((index, process)) = self.team.iter_mut().enumerate().find(|(_, p)| p.launch == launch) else {
            return;
        };
        let who = format!("worker process {index} (pid {})", process.pid);
        process.signs.heard = Instant::now();
        match event {
            ControlEvent::Connected(link) => process.link = Some(link),
            ControlEvent::Closed(why) => {
                debug!(index, why, "control link closed");
                process.closed = Some(Instant::now());
                self.conclude(index);
            }
            ControlEvent::Message(message) => match message {
                FromWorker::Ready { data } => process.stage = Stage::Ready(data),
                FromWorker::Running => process.stage = Stage::Running,
                FromWorker::Finished => process.finished = true,
                FromWorker::Heartbeat(heartbeat) => {
                    process.signs.stalled = Duration::from_millis(heartbeat.stalled_ms);
                    self.heartbeats.push((index, heartbeat));
                }
                FromWorker::Failed(failure) => {
                    process.explained = true;
                    self.failures.push(failure.within(who));
                }
            },
        }
    }

    fn exited(&mut self, launch: u64, status: std::io::Result<ExitStatus>) {
        self.server.forget(launch);
        if self.dying.remove(&launch) {
            return;
        }
        let Some((index, process)) = self.team.iter_mut().enumerate().find(|(_, p)| p.launch == launch) else {
            return;
        };
        process.kill = None;
        process.exited = Some((Instant::now(), status.map_err(|e| e.to_string())));
        // What it said before it ended explains it better, and comes through the link.
        if process.link.is_none() || process.closed.is_some() {
            self.conclude(index);
        }
    }

    /// Judges the end of a process that has said all that it will say.
    fn conclude(&mut self, index: usize) {
        let Some(process) = self.team.get_mut(index) else {
            return;
        };
        let Some((_, status)) = &process.exited else {
            return;
        };
        if process.finished || std::mem::replace(&mut process.explained, true) {
            return;
        }
        let failure = match status {
            Ok(status) => {
                verdict::of_exit(*status).unwrap_or_else(|| Failure::Retryable("it ended with code 0 before the job had ended".into()))
            }
            Err(e) => Failure::Retryable(e.clone()),
        };
        self.failures.push(failure.within(format!("worker process {index} (pid {})", process.pid)));
    }

    fn look(&mut self, now: Instant, expected: Duration) {
        let paused = verdict::was_paused(self.last_look, now, expected);
        self.last_look = now;
        if paused {
            warn!("the supervisor was itself paused for a while");
            self.team.iter_mut().for_each(|p| p.signs.heard = now);
            return;
        }
        for index in 0..self.team.len() {
            if self.team[index].exited.as_ref().is_some_and(|(at, _)| now >= *at + LEAVE) {
                self.conclude(index);
            }
        }
        for (index, process) in self.team.iter_mut().enumerate() {
            let reason = match process.stage {
                _ if process.explained || process.finished || process.exited.is_some() => None,
                _ if process.closed.is_some_and(|at| now >= at + LEAVE) => Some("it closed its control link and did not end".to_owned()),
                Stage::Launched => (now >= process.launched + self.start_timeout)
                    .then(|| format!("it was not ready within semel.start-timeout = {:?}", self.start_timeout)),
                _ => verdict::hung(&process.signs, now, self.timing.timeout),
            };
            if let Some(reason) = reason {
                warn!(index, pid = process.pid, "{reason}: worker process killed");
                process.explained = true;
                process.kill = None;
                self.failures.push(Failure::Retryable(format!("worker process {index} (pid {}): {reason}", process.pid)));
            }
        }
    }

    /// The failure that decides, if there is one.
    pub fn failure(&self) -> Option<Failure> {
        verdict::worst(self.failures.iter().cloned())
    }

    pub fn all_ready(&self) -> bool {
        self.team.iter().all(|p| matches!(p.stage, Stage::Ready(_)))
    }

    pub fn all_running(&self) -> bool {
        self.team.iter().all(|p| p.stage == Stage::Running)
    }

    /// Whether a process has seen the end of the job. The end is agreed upon by all of them: progress is tracked together.
    pub fn any_finished(&self) -> bool {
        self.team.iter().any(|p| p.finished)
    }

    pub fn all_exited(&self) -> bool {
        self.team.iter().all(|p| p.exited.is_some())
    }

    /// Tells every process what to run.
    pub fn assign(&mut self, assignment: &Assignment) {
        let address = |p: &Process| match p.stage {
            Stage::Ready(data) => Some(data),
            _ => None,
        };
        let peers: Vec<SocketAddr> = self.team.iter().filter_map(address).collect();
        for (index, process) in self.team.iter_mut().enumerate() {
            if let Some(link) = &process.link {
                link.send(ToWorker::Assign {
                    assignment: Box::new(Assignment { process: index, ..assignment.clone() }),
                    peers: peers.clone(),
                });
            }
            process.stage = Stage::Assigned;
        }
    }

    /// Asks for a final checkpoint.
    pub fn stop(&self) {
        self.team.iter().filter_map(|p| p.link.as_ref()).for_each(|link| link.send(ToWorker::Stop));
    }

    /// Heartbeats that came since the last call, with the index of the process.
    pub fn take_heartbeats(&mut self) -> Vec<(usize, Heartbeat)> {
        std::mem::take(&mut self.heartbeats)
    }

    /// Kills all; what becomes of them is not waited for: their generation is fenced.
    pub fn kill(&mut self) {
        let old = std::mem::take(&mut self.team).into_iter().filter(|p| p.exited.is_none());
        self.dying.extend(old.map(|p| p.launch)); // Dropping `kill` kills.
        self.failures.clear();
        self.heartbeats.clear();
    }

    /// Waits until the killed ones are gone, at most this long.
    pub async fn reap(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.dying.is_empty() && Instant::now() < until {
            self.step().await;
        }
    }
}

/// Waits for the end of a child; ends it when asked to.
async fn attend(mut child: Child, launch: u64, killed: oneshot::Receiver<()>, tell: UnboundedSender<(u64, std::io::Result<ExitStatus>)>) {
    let status = tokio::select! {
        status = child.wait() => status,
        _ = killed => {
            _ = child.start_kill();
            child.wait().await
        }
    };
    _ = tell.send((launch, status));
}
