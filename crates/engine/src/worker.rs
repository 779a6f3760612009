//! A worker process: builds the graph in each of its threads and runs it to its end.
use crate::coordinator::Coordinator;
use crate::coordinator::collector::collector;
use crate::coordinator::completer::completer;
use crate::coordinator::ticker::ticker;
use crate::coordinator::upkeep::Upkeep;
use crate::coordinator::watcher::watcher;
use crate::ending::{Ending, ending};
use crate::failure::{Failure, exit_on_panic, finished};
use crate::graph::{Builder, Edge, Graph};
use crate::job::JobContext;
use crate::operators::sink_committer::sink_committer;
use crate::share::{Share, thread_time};
use crate::time::Time;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use timely::communication::allocator::ProcessBuilder;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::{AllocatorBuilder, Config, Hooks, WorkerGuards};
use timely::dataflow::operators::Concatenate;
use timely::worker::{Config as WorkerConfig, Worker};

/// A thread finishes a step at least this often, so that a hung one is noticed.
const STEP: Duration = Duration::from_millis(500);

/// Runs this process' subtasks until the job has ended. `sockets`: one per process, connected and authenticated, `None` in this
/// process' own place; empty with a single process. Every failure ends the process (see [`crate::failure`]); what is returned
/// is only a failure to start.
pub fn run_worker(graph: Arc<Graph>, job: Arc<JobContext>, sockets: Vec<Option<TcpStream>>) -> Result<(), Failure> {
    exit_on_panic();
    let assignment = &job.assignment;
    crate::failpoint::arm(assignment.process, assignment.identity.generation.0);
    let (ending, ended) = ending();
    let upkeep = (assignment.process == 0).then(|| Upkeep::start(graph.clone(), job.clone(), ending.clone()));
    let (threads, process) = (assignment.threads, assignment.process);
    let workers = start(sockets, threads, process, move |worker| run(worker, &graph, &job, &upkeep, &ending))?;
    for result in workers.join() {
        result.map_err(|e| Failure::Retryable(format!("a worker thread ended: {e}")))?;
    }
    ended.wait();
    Ok(())
}

fn start(
    sockets: Vec<Option<TcpStream>>,
    threads: usize,
    process: usize,
    f: impl Fn(&mut Worker) + Send + Sync + 'static,
) -> Result<WorkerGuards<()>, Failure> {
    let config = || WorkerConfig::default().idle_spin(Duration::ZERO);
    if sockets.len() < 2 {
        let communication = if threads == 1 { Config::Thread } else { Config::Process(threads) };
        return timely::execute(timely::Config { communication, worker: config() }, f).map_err(Failure::Fatal);
    }
    let hooks = Hooks::default();
    let local = ProcessBuilder::new_typed_vector(threads, hooks.refill.clone(), None);
    let connected = initialize_networking_from_sockets(local, sockets, process, threads, hooks);
    let (builders, guard) = connected.map_err(|e| Failure::Retryable(format!("links between workers: {e}")))?;
    let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
    timely::execute::execute_from(builders, Box::new(guard), config(), f).map_err(Failure::Fatal)
}

fn run(worker: &mut Worker, graph: &Graph, job: &Arc<JobContext>, upkeep: &Option<Upkeep>, ending: &Ending) {
    worker.dataflow::<Time, _, _>(|scope| {
        let shared = Coordinator::new(job);
        let control = ticker(scope, shared.clone(), job.clone());
        let mut builder = Builder { scope, job: job.clone(), control, acks: vec![], written: vec![], reports: vec![], sinks: vec![] };
        let mut outputs: Vec<Vec<Edge<'_>>> = vec![];
        for node in graph.nodes() {
            let inputs = node.inputs.iter().map(|port| outputs[port.node][port.output].clone()).collect();
            let edges = node.operator.build(&mut builder, &node.uid, inputs);
            outputs.push(edges);
        }
        let written = scope.concatenate(std::mem::take(&mut builder.written));
        watcher(scope, written, builder.reports.clone(), shared.clone());
        let acks = scope.concatenate(std::mem::take(&mut builder.acks));
        let commits = completer(scope, acks, shared.clone(), upkeep.clone(), job.clone());
        let sinks = std::mem::take(&mut builder.sinks);
        let reports: Vec<_> = sinks.into_iter().map(|sink| sink_committer(&builder, commits.clone(), sink, ending.clone())).collect();
        collector(scope, scope.concatenate(reports), shared, job.clone());
    });
    let step = job.status.thread();
    let mut busy = Share::new("busyTimeMsPerSecond", Some(worker.index()));
    while worker.has_dataflows() {
        worker.step_or_park(Some(STEP));
        step.now();
        busy.observe(Instant::now(), thread_time);
    }
    finished();
}
