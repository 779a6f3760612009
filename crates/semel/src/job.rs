//! A job: what a program hands to the command line.
use futures::future::BoxFuture;
use semel_checkpoint::{JobIdentity, OperatorUid};
use semel_engine::graph::Graph;
use semel_engine::sink::ConnectorResult;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What is to be run. Built anew in every process of the job, so it must be the same each time: the plan's hash is compared.
pub struct Job {
    /// Its name; the option `pipeline.name` overrides it. Fixed for the life of its checkpoints.
    pub name: String,
    /// Sources, operators and sinks.
    pub graph: Graph,
    /// Options that the program sets; environment and command line override them.
    pub options: BTreeMap<String, String>,
    /// What the command `transactions` asks about the transactions in a sink's external system.
    pub transactions: BTreeMap<OperatorUid, Arc<dyn TransactionAdmin>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("name", &self.name).field("plan", &self.graph.hash()).finish_non_exhaustive()
    }
}

impl Job {
    /// Without options.
    pub fn new(name: impl Into<String>, graph: Graph) -> Job {
        Job { name: name.into(), graph, options: BTreeMap::new(), transactions: BTreeMap::new() }
    }

    /// Sets an option, as the program's default.
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        self.options.insert(name.into(), value.into());
        self
    }

    /// Lets the command `transactions` look into the external system of a sink.
    pub fn transactions(mut self, sink: OperatorUid, admin: Arc<dyn TransactionAdmin>) -> Job {
        self.transactions.insert(sink, admin);
        self
    }
}

/// A transaction as the external system shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExternalTransaction {
    /// Its name there, for example the transactional id.
    pub name: String,
    /// What the external system calls its state, for example `Ongoing`.
    pub state: String,
    /// Whose it is, as far as the name tells: job uuid, generation, subtask.
    pub owner: String,
    /// For how long it has been open, in milliseconds, if it is known.
    pub age_ms: Option<u64>,
}

/// Transactions of a sink, looked at and ended by hand.
pub trait TransactionAdmin: Send + Sync {
    /// All open transactions under the sink's names, also those of other jobs. `job` is `None` before the job's first start.
    fn list<'a>(&'a self, job: Option<&'a JobIdentity>) -> BoxFuture<'a, ConnectorResult<Vec<ExternalTransaction>>>;
    /// Aborts one by its name. Its rows will never appear.
    fn abort<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ConnectorResult<()>>;
}
