//! What supervisor and workers say to each other on the control link.
use semel_engine::failure::Failure;
use semel_engine::job::Assignment;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Through the pipe to a worker process' stdin, as one line of JSON: what nobody else may see.
#[derive(Serialize, Deserialize)]
pub(crate) struct Bootstrap {
    /// The cluster secret, as hexadecimal digits.
    pub secret: String,
    /// Where the supervisor listens.
    pub supervisor: SocketAddr,
    /// The number under which this process was launched.
    pub launch: u64,
}

/// Worker to supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromWorker {
    /// Ready for an assignment.
    Ready {
        /// Where it listens for data links.
        data: SocketAddr,
    },
    /// The links to its peers stand and the dataflow starts.
    Running,
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// It ends now.
    Failed(Failure),
    /// It has finished its part of the job.
    Finished,
}

/// See [`FromWorker::Heartbeat`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// For how long the slowest worker thread has not finished a step.
    pub stalled_ms: u64,
    /// Rows that sources have emitted.
    pub rows_in: u64,
    /// Rows that sinks have taken.
    pub rows_out: u64,
    /// Checkpoints completed in this generation (process 0).
    pub checkpoints: u64,
    /// The newest of them; 0: none yet.
    pub newest_checkpoint: u64,
    /// Its metrics as Prometheus text, once a second.
    pub metrics: Option<String>,
}

/// Supervisor to worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ToWorker {
    /// What to run.
    Assign {
        /// See [`Assignment`].
        assignment: Box<Assignment>,
        /// Where each process listens for data links, by index.
        peers: Vec<SocketAddr>,
    },
    /// The supervisor is alive.
    Ping,
    /// Take a final checkpoint, commit it, and end.
    Stop,
}
