//! The rules of the preflight checks: facts in, findings out, no I/O.

use crate::ids::{IdParts, IdScope};
use semel_engine::sink::{Finding, JobNeeds, Severity};
use std::time::Duration;

/// What a transaction's time-out must leave beyond checkpoint and restart, for the coordinator's own delays.
pub const MARGIN: Duration = Duration::from_secs(5 * 60);

fn configs(bootstrap: &str, entity: &str, setting: &str) -> String {
    format!("kafka-configs.sh --bootstrap-server {bootstrap} --alter {entity} --add-config {setting}")
}

fn grant(bootstrap: &str, operation: &str, resource: &str) -> String {
    format!("kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:<user> --operation {operation} {resource}")
}

/// `transaction.timeout.ms` against the broker's maximum. `maximum`: of the broker that allows least, `None` if it cannot be read.
pub fn timeout_against_broker(timeout: Duration, maximum: Option<Duration>, bootstrap: &str) -> Finding {
    const CHECK: &str = "transaction.timeout.ms against the broker's transaction.max.timeout.ms";
    let found = format!("transaction.timeout.ms = {}", timeout.as_millis());
    match maximum {
        None => Finding::new(
            Severity::Warning,
            CHECK,
            found,
            "the broker's transaction.max.timeout.ms, which could not be read",
            "grant it with kafka-acls.sh --add --allow-principal User:<user> --operation DescribeConfigs --cluster",
        ),
        Some(maximum) if timeout > maximum => Finding::new(
            Severity::Error,
            CHECK,
            found,
            format!("at most the broker's transaction.max.timeout.ms = {}", maximum.as_millis()),
            format!(
                "set transaction.timeout.ms = {} in the sink's properties, or on every broker transaction.max.timeout.ms={} in server.properties (read at its start; {bootstrap})",
                maximum.as_millis(),
                timeout.as_millis()
            ),
        ),
        Some(maximum) => Finding::ok(CHECK, found, format!("at most {}", maximum.as_millis())),
    }
}

/// `transaction.timeout.ms` against the time that can pass from the first row of a checkpoint to its commit after a restart.
pub fn timeout_against_job(timeout: Duration, maximum: Option<Duration>, needs: &JobNeeds) -> Finding {
    const CHECK: &str = "transaction.timeout.ms against checkpoint timeout + longest restart + 5 minutes";
    let needed = needs.checkpoint_timeout + needs.longest_restart + MARGIN;
    let found = format!("transaction.timeout.ms = {}", timeout.as_millis());
    let needed_text = format!(
        "at least {} ms (checkpoint timeout {} + longest restart {} + 300000)",
        needed.as_millis(),
        needs.checkpoint_timeout.as_millis(),
        needs.longest_restart.as_millis()
    );
    if timeout >= needed {
        return Finding::ok(CHECK, found, needed_text);
    }
    let broker = match maximum {
        Some(maximum) if maximum < needed => format!(" (and transaction.max.timeout.ms={} on every broker)", needed.as_millis()),
        _ => String::new(),
    };
    // Below this, a normal checkpoint can outlive its transaction: then it is not only a question of long restarts.
    let severity = if timeout < needs.checkpoint_timeout { Severity::Error } else { Severity::Warning };
    Finding::new(
        severity,
        CHECK,
        found,
        needed_text,
        format!(
            "set transaction.timeout.ms = {} in the sink's properties{broker}, or lower execution.checkpointing.timeout; else the broker can abort a pre-committed transaction during a long restart; the job then fails with exit code 79 and names the rows that are lost",
            needed.as_millis()
        ),
    )
}

/// Whether `EndTxn` v5 is offered. `version`: the highest one offered.
pub fn end_txn(version: Option<i16>) -> Finding {
    const CHECK: &str = "EndTxn version offered by the brokers";
    match version {
        Some(version) if version >= crate::decide::END_TXN_BUMPS_EPOCH => Finding::ok(CHECK, version.to_string(), "5"),
        found => Finding::new(
            Severity::Warning,
            CHECK,
            found.map_or("none".to_owned(), |version| version.to_string()),
            "5 (Kafka 4.0, KIP-890)",
            "upgrade the brokers to Kafka 4.0 or newer; until then the epoch is bumped before each transaction, and a late request of a stopped process can still add rows to the transaction that it had open",
        ),
    }
}

/// A transaction that was found under the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderPrefix {
    /// Its id.
    pub transactional_id: String,
    /// The parts of the id, where it is one of ours.
    pub parts: Option<(IdScope, IdParts)>,
    /// Whether it is open.
    pub ongoing: bool,
}

/// Other jobs' open transactions under the prefix. `job` is our own uuid's short form, once there is one.
pub fn foreign(prefix: &str, job: Option<&str>, found: &[UnderPrefix], bootstrap: &str) -> Finding {
    const CHECK: &str = "open transactions of other jobs under the transactional-id prefix";
    let own = |transaction: &&UnderPrefix| transaction.parts.as_ref().is_some_and(|(scope, _)| Some(scope.job.as_str()) == job);
    let mut foreign: Vec<&str> = found.iter().filter(|t| t.ongoing).filter(|t| !own(t)).map(|t| t.transactional_id.as_str()).collect();
    foreign.sort_unstable();
    if foreign.is_empty() {
        return Finding::ok(CHECK, "none", "none");
    }
    let shown = foreign.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    let more = foreign.len().saturating_sub(5);
    Finding::new(
        Severity::Warning,
        CHECK,
        format!("{} under {prefix}: {shown}{}", foreign.len(), if more > 0 { format!(" and {more} more") } else { String::new() }),
        "none: a prefix belongs to one job",
        format!(
            "give this job a prefix of its own; if the other job is gone for good (or its store was wiped), end them with kafka-transactions.sh --bootstrap-server {bootstrap} abort, or `transactions abort`: this job never touches them, and read_committed readers wait for them until their timeout"
        ),
    )
}

/// An operation that the job cannot do without. `granted`: as the broker says, `None` if it does not.
pub fn permission(operation: &str, topic: &str, granted: Option<bool>, bootstrap: &str) -> Finding {
    let check = format!("permission for topic {topic}");
    match granted {
        Some(false) => Finding::new(
            Severity::Error,
            &check,
            format!("{operation} is not granted"),
            operation,
            grant(bootstrap, operation, &format!("--topic {topic}")),
        ),
        Some(true) => Finding::ok(&check, format!("{operation} is granted"), operation),
        None => Finding::ok(&check, "the broker does not say", operation),
    }
}

/// What is needed to see, and to end, a transaction whose end Kafka has dropped in a partition. `read`, `alter`: as [`permission`].
pub fn hanging_transactions(topic: Option<&str>, read: Option<bool>, alter: Option<bool>, bootstrap: &str) -> Finding {
    const CHECK: &str = "permission to write the end of a transaction that Kafka has dropped (KAFKA-20734)";
    const NEEDED: &str = "Read on the topic, Alter on the cluster";
    let (topic_name, mut missing, mut commands) = (topic.unwrap_or("<topic>"), vec![], vec![]);
    if read == Some(false) {
        missing.push("Read on the topic");
        commands.push(grant(bootstrap, "Read", &format!("--topic {topic_name}")));
    }
    if alter == Some(false) {
        missing.push("Alter on the cluster");
        commands.push(grant(bootstrap, "Alter", "--cluster"));
    }
    if missing.is_empty() {
        return Finding::ok(CHECK, "granted, as far as the broker says", NEEDED);
    }
    let found = format!("not granted: {}", missing.join(", "));
    let remedy = format!(
        "{}; else a partition that is without a leader at the moment of a commit can keep readers of committed rows waiting, until somebody runs kafka-transactions.sh abort there, which takes those rows away",
        commands.join(" and ")
    );
    Finding::new(Severity::Warning, CHECK, found, NEEDED, remedy)
}

/// Replicas of a topic that is written to.
pub fn replicas(topic: &str, fewest: i32, min_insync: Option<i32>, acks_all: bool, bootstrap: &str) -> Finding {
    let check = format!("replicas of topic {topic}");
    let min_insync = min_insync.unwrap_or(1);
    let found = format!("replication factor {fewest}, min.insync.replicas {min_insync}, acks {}", if acks_all { "all" } else { "not all" });
    let entity = format!("--entity-type topics --entity-name {topic}");
    if fewest < min_insync {
        let needed = format!("min.insync.replicas at most {fewest}");
        return Finding::new(
            Severity::Error,
            &check,
            found,
            needed,
            configs(bootstrap, &entity, &format!("min.insync.replicas={}", fewest.max(1))),
        );
    }
    if !acks_all {
        return Finding::new(
            Severity::Warning,
            &check,
            found,
            "acks=all",
            "set acks = all in the sink's properties: a row that one broker has acknowledged is gone with that broker",
        );
    }
    if fewest >= 2 && min_insync < 2 {
        return Finding::new(
            Severity::Warning,
            &check,
            found,
            "min.insync.replicas 2",
            format!(
                "{}; else an acknowledged, even a committed row can be on one broker only",
                configs(bootstrap, &entity, "min.insync.replicas=2")
            ),
        );
    }
    if fewest < 2 {
        return Finding::new(
            Severity::Warning,
            &check,
            found,
            "replication factor 3, min.insync.replicas 2",
            format!(
                "for production create the topic with kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {topic} --replication-factor 3; with one replica a lost disk loses committed rows"
            ),
        );
    }
    Finding::ok(&check, found, "replication factor 3, min.insync.replicas 2")
}

/// Size of our batches against what the topic takes.
pub fn message_size(topic: &str, batch: usize, maximum: Option<i64>, bootstrap: &str) -> Finding {
    let check = format!("max.message.bytes of topic {topic}");
    match maximum {
        Some(maximum) if (batch as i64) > maximum => Finding::new(
            Severity::Error,
            &check,
            format!("batch.size {batch}, max.message.bytes {maximum}"),
            format!("batch.size at most {maximum}"),
            format!(
                "set batch.size = {maximum} in the sink's properties, or {}",
                configs(bootstrap, &format!("--entity-type topics --entity-name {topic}"), &format!("max.message.bytes={batch}"))
            ),
        ),
        Some(maximum) => {
            Finding::ok(&check, format!("batch.size {batch}, max.message.bytes {maximum}"), "batch.size at most max.message.bytes")
        }
        None => Finding::new(
            Severity::Warning,
            &check,
            "could not be read",
            format!("at least {batch}"),
            format!(
                "grant it with kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:<user> --operation DescribeConfigs --topic {topic}"
            ),
        ),
    }
}

/// How long the sink waits for a decision, against the engine's deadline for the same call.
pub fn decision_timeout(timeout: Duration, commit_timeout: Duration) -> Finding {
    const CHECK: &str = "decision timeout of the sink against semel.sink.commit-timeout";
    let found = format!("decision timeout {timeout:?}");
    match timeout < commit_timeout {
        true => Finding::ok(CHECK, found, format!("less than {commit_timeout:?}")),
        false => Finding::new(
            Severity::Warning,
            CHECK,
            found,
            format!("less than semel.sink.commit-timeout = {commit_timeout:?}, which ends the call first, without saying why"),
            "set semel.sink.commit-timeout above it, or a shorter decision_timeout of the sink",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs() -> JobNeeds {
        JobNeeds {
            job_name: "j".to_owned(),
            job_uuid: None,
            parallelism: 2,
            checkpoint_interval: Duration::from_secs(10),
            checkpoint_timeout: Duration::from_secs(120),
            max_concurrent_checkpoints: 1,
            commit_timeout: Duration::from_secs(60),
            longest_restart: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_timeout_above_the_brokers_is_an_error_with_both_remedies() {
        let hour = Duration::from_secs(3600);
        let finding = timeout_against_broker(hour, Some(Duration::from_secs(900)), "b:1");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.found.contains("3600000") && finding.needed.contains("900000"), "{finding:?}");
        assert!(
            finding.remedy.contains("transaction.timeout.ms = 900000") && finding.remedy.contains("transaction.max.timeout.ms=3600000"),
            "{finding:?}"
        );
        assert_eq!(timeout_against_broker(hour, Some(hour), "b:1").severity, Severity::Ok);
        assert_eq!(timeout_against_broker(hour, None, "b:1").severity, Severity::Warning);
    }

    #[test]
    fn a_timeout_that_a_restart_can_outlast_is_reported() {
        let at = |seconds| timeout_against_job(Duration::from_secs(seconds), Some(Duration::from_secs(300)), &needs());
        assert_eq!(at(480).severity, Severity::Ok);
        let short = at(479);
        assert_eq!(short.severity, Severity::Warning);
        assert!(short.remedy.contains("480000") && short.remedy.contains("transaction.max.timeout.ms=480000"), "{short:?}");
        assert_eq!(at(119).severity, Severity::Error);
    }

    #[test]
    fn a_decision_timeout_that_the_engine_cuts_off_is_reported() {
        let minute = Duration::from_secs(60);
        assert_eq!(decision_timeout(Duration::from_secs(59), minute).severity, Severity::Ok);
        let cut = decision_timeout(minute, minute);
        assert!(cut.severity == Severity::Warning && cut.remedy.contains("semel.sink.commit-timeout"), "{cut:?}");
    }

    #[test]
    fn old_brokers_are_named_as_weaker() {
        assert_eq!(end_txn(Some(5)).severity, Severity::Ok);
        assert_eq!(end_txn(Some(4)).severity, Severity::Warning);
        assert_eq!(end_txn(None).severity, Severity::Warning);
    }

    #[test]
    fn only_open_transactions_of_others_are_reported() {
        let transaction =
            |id: &str, ongoing| UnderPrefix { transactional_id: id.to_owned(), parts: crate::ids::parse_under_prefix("p", id), ongoing };
        let found = [
            transaction("p-00000001-s-1-0-0", true),
            transaction("p-00000002-s-1-0-0", true),
            transaction("p-00000003-s-1-0-0", false),
            transaction("p-x", true),
        ];
        let finding = foreign("p", Some("00000001"), &found, "b:1");
        assert_eq!(finding.severity, Severity::Warning);
        assert!(
            finding.found.starts_with("2 ") && finding.found.contains("p-00000002-s-1-0-0") && finding.found.contains("p-x"),
            "{finding:?}"
        );
        assert!(!finding.found.contains("00000001"), "{finding:?}");
        assert_eq!(foreign("p", Some("00000001"), &found[..1], "b:1").severity, Severity::Ok);
        // Before the job has a uuid, everything there is foreign.
        assert_eq!(foreign("p", None, &found[..1], "b:1").severity, Severity::Warning);
    }

    #[test]
    fn replicas_and_acks() {
        assert_eq!(replicas("t", 3, Some(2), true, "b").severity, Severity::Ok);
        assert_eq!(replicas("t", 1, Some(2), true, "b").severity, Severity::Error);
        assert_eq!(replicas("t", 1, Some(1), true, "b").severity, Severity::Warning);
        assert_eq!(replicas("t", 3, Some(1), true, "b").severity, Severity::Warning);
        let weak = replicas("t", 3, Some(2), false, "b");
        assert!(weak.severity == Severity::Warning && weak.remedy.contains("acks = all"), "{weak:?}");
    }

    #[test]
    fn batches_must_fit_the_topic() {
        assert_eq!(message_size("t", 1000, Some(1000), "b").severity, Severity::Ok);
        let small = message_size("t", 1001, Some(1000), "b");
        assert!(small.severity == Severity::Error && small.remedy.contains("max.message.bytes=1001"), "{small:?}");
        assert_eq!(message_size("t", 1, None, "b").severity, Severity::Warning);
    }
}
