//! What the command `transactions` asks a Kafka cluster.
use crate::connect::connect;
use crate::sink::KafkaSink;
use crate::transactions::{TransactionInfo, TransactionTool};
use futures::FutureExt;
use futures::future::BoxFuture;
use semel_checkpoint::JobIdentity;
use semel_engine::sink::{ConnectorResult, ExternalTransaction, TransactionAdmin};

async fn tool(sink: &KafkaSink) -> ConnectorResult<TransactionTool> {
    Ok(TransactionTool::new(connect(&sink.settings().client.client).await?))
}

/// Whose it is, as far as its name tells.
fn owner(info: &TransactionInfo, job: Option<&JobIdentity>) -> String {
    let Some((scope, parts)) = &info.parts else {
        return "not one of Semel's names".to_owned();
    };
    let own = job.is_some_and(|job| job.uuid.short() == scope.job);
    let whose = if own { "this job".to_owned() } else { format!("another job, uuid {}...", scope.job) };
    format!("{whose}, sink {}, generation {}, subtask {}", scope.sink, parts.generation, parts.subtask)
}

impl TransactionAdmin for KafkaSink {
    fn list<'a>(&'a self, job: Option<&'a JobIdentity>) -> BoxFuture<'a, ConnectorResult<Vec<ExternalTransaction>>> {
        async move {
            let prefix = &self.settings().transactional_id_prefix;
            if prefix.is_empty() {
                return Ok(vec![]);
            }
            let found = tool(self).await?.list(prefix, true).await?;
            let external = |info: TransactionInfo| ExternalTransaction {
                owner: format!("{}, partitions {}", owner(&info, job), info.partitions.join(" ")),
                age_ms: info.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                name: info.transactional_id,
                state: info.state,
            };
            Ok(found.into_iter().map(external).collect())
        }
        .boxed()
    }

    fn abort<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ConnectorResult<()>> {
        async move { tool(self).await?.abort(name).await.map(drop) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ids::{IdParts, IdScope};
    use semel_checkpoint::{Generation, JobUuid};
    use std::time::Duration;

    #[test]
    fn the_owner_is_told_by_the_whole_name() {
        let uuid: JobUuid = "0a1b2c3d4e5f6789abcdef0123456789".parse().unwrap();
        let job = JobIdentity { name: "j".into(), uuid, generation: Generation(3) };
        let info = |parts| TransactionInfo {
            transactional_id: "p".into(),
            parts,
            state: "Ongoing".into(),
            open: true,
            producer_id: 1,
            epoch: 0,
            age: None,
            timeout: Duration::ZERO,
            partitions: vec![],
        };
        let parts = IdParts { generation: 2, subtask: 1, k: 0 };
        let own = info(Some((IdScope::new("p", &uuid.to_string(), "out"), parts)));
        assert_eq!(owner(&own, Some(&job)), "this job, sink out, generation 2, subtask 1");
        assert!(owner(&own, None).contains("another job, uuid 0a1b2c3d..."), "nothing has started here");
        assert_eq!(owner(&info(None), Some(&job)), "not one of Semel's names");
    }
}
