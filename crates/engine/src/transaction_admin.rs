//! Transactions of a sink, looked at and ended by hand: the command `transactions`.
use crate::sink::ConnectorResult;
use futures::future::BoxFuture;
use semel_checkpoint::JobIdentity;
use serde::Serialize;

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

/// See the module.
pub trait TransactionAdmin: Send + Sync {
    /// All open transactions under the sink's names, also those of other jobs. `job` is `None` before the job's first start.
    fn list<'a>(&'a self, job: Option<&'a JobIdentity>) -> BoxFuture<'a, ConnectorResult<Vec<ExternalTransaction>>>;
    /// Aborts one by its name. Its rows will never appear.
    fn abort<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ConnectorResult<()>>;
}
