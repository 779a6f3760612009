//! The checks before a job starts: I/O here, the rules in [`rules`](crate::rules). Nothing is created or changed.

use crate::client::{
    Acks, AclOperation, Admin, ClientConfig, ClientError, Cluster, Deadline, ErrorCode, IsolationLevel, Offsets, TopicMetadata,
    TopicPartition, TransactionState, Transactions,
};
use crate::config::{DeliveryGuarantee, OffsetResetStrategy, OffsetsInitializer, SinkSettings, SourceSettings, TopicSelection};
use crate::connect::acl;
use crate::effect;
use crate::encode::RowEncoder;
use crate::ids::parse_under_prefix;
use crate::rules::{self, UnderPrefix};
use arrow::datatypes::SchemaRef;
use semel_engine::sink::{Finding, JobNeeds, Severity};
use std::time::Duration;

/// Longest time for each question.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A topic that is unknown for so long does not exist.
const NEW_TOPIC: Duration = Duration::from_secs(2);

fn deadline() -> Deadline {
    Deadline::after(TIMEOUT)
}

/// A failed question as a finding.
fn unanswered(check: &str, error: &ClientError, subject: &str) -> Finding {
    let remedy = match error {
        ClientError::Broker { code, .. } => acl(*code, subject),
        ClientError::Authentication { .. } => Some("correct sasl.mechanism and sasl.jaas.config in the properties, or create the user with kafka-configs.sh --alter --add-config 'SCRAM-SHA-512=[password=...]' --entity-type users --entity-name <user>".to_owned()),
        ClientError::Tls { .. } => Some("correct security.protocol and ssl.* in the properties".to_owned()),
        _ => None,
    };
    let away = matches!(error, ClientError::Connect { .. } | ClientError::Deadline { .. } | ClientError::Closed { .. });
    Finding::new(
        if away { Severity::Unanswered } else { Severity::Error },
        check,
        error.to_string(),
        "an answer",
        remedy.unwrap_or_else(|| "see that the brokers run and are reachable from here".to_owned()),
    )
}

/// Each bootstrap server alone, and then the cluster.
async fn brokers(config: &ClientConfig, findings: &mut Vec<Finding>) -> Option<Cluster> {
    let mut cluster = None;
    let mut reached = 0;
    for server in &config.bootstrap {
        let check = format!("broker {server} answers");
        let mut one = config.clone();
        one.bootstrap = vec![server.clone()];
        one.connect_timeout = one.connect_timeout.min(TIMEOUT);
        let answer = tokio::time::timeout(TIMEOUT, Cluster::connect(one)).await;
        match answer.unwrap_or_else(|_| Err(ClientError::Deadline { what: format!("connecting to {server}"), after: TIMEOUT })) {
            Ok(connected) => {
                reached += 1;
                cluster = Some(connected);
                findings.push(Finding::ok(&check, "yes", "yes"));
            }
            Err(error) => findings.push(unanswered(&check, &error, server)),
        }
    }
    // One of several that is away does not keep the job from starting.
    if reached > 0 {
        for finding in findings.iter_mut().filter(|finding| finding.check.starts_with("broker ") && finding.severity >= Severity::Error) {
            finding.severity = Severity::Warning;
        }
    }
    cluster
}

/// The topic's metadata, with findings about its existence, permission and leaders.
async fn topic(cluster: &Cluster, name: &str, bootstrap: &str, findings: &mut Vec<Finding>) -> Option<TopicMetadata> {
    let check = format!("topic {name} exists");
    // A broker may not have heard yet of a topic that was just created.
    let settle = Deadline::after(NEW_TOPIC);
    let metadata = loop {
        match cluster.metadata(Some(&[name]), deadline()).await {
            Ok(metadata) if metadata.topics.get(name).is_some_and(|topic| topic.error != ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {
                break metadata;
            }
            Ok(metadata) if !settle.sleep(Duration::from_millis(200)).await => break metadata,
            Ok(_) => {}
            Err(error) => {
                findings.push(unanswered(&check, &error, name));
                return None;
            }
        }
    };
    let topic = metadata.topics.get(name);
    let error = topic.map_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, |topic| topic.error);
    match error {
        ErrorCode::NONE => {}
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {
            let create = format!("kafka-topics.sh --bootstrap-server {bootstrap} --create --topic {name} --partitions <n>");
            findings.push(Finding::new(Severity::Error, &check, "no", "yes", format!("create it with {create}, or correct the name")));
            return None;
        }
        other => {
            let remedy = acl(other, name).unwrap_or_else(|| "try again when the cluster is healthy".to_owned());
            findings.push(Finding::new(Severity::Error, &check, other.to_string(), "yes", remedy));
            return None;
        }
    }
    let topic = topic?.clone();
    findings.push(Finding::ok(&check, format!("yes, with {} partitions", topic.partitions.len()), "yes"));
    let leaderless: Vec<String> = topic.partitions.iter().filter(|p| p.leader.is_none()).map(|p| p.partition.to_string()).collect();
    if !leaderless.is_empty() {
        findings.push(Finding::new(
            Severity::Error,
            &format!("leaders of topic {name}"),
            format!("none for partitions {}", leaderless.join(", ")),
            "one for each",
            "start the brokers that hold them",
        ));
    }
    Some(topic)
}

/// Whether a topic that exists may be read, or written.
async fn permission(cluster: &Cluster, operation: AclOperation, topic: &str, bootstrap: &str) -> Finding {
    // A broker that does not say refuses later, with the same remedy.
    let granted = Admin::new(cluster.clone()).granted_on_topic(topic, deadline()).await.ok();
    rules::permission(&format!("{operation:?}"), topic, granted.and_then(|granted| granted.allows(operation)), bootstrap)
}

async fn topic_config(cluster: &Cluster, topic: &str, keys: &[&str]) -> Vec<(String, i64)> {
    let entries = Admin::new(cluster.clone()).topic_configs(topic, keys, deadline()).await.unwrap_or_default();
    entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?.parse().ok()?))).collect()
}

fn value(configs: &[(String, i64)], key: &str) -> Option<i64> {
    configs.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
}

/// The checks of a sink.
pub async fn sink(settings: &SinkSettings, needs: &JobNeeds, schema: &SchemaRef) -> Vec<Finding> {
    let mut findings = Vec::new();
    let bootstrap = settings.bootstrap_servers.as_str();
    match RowEncoder::new(settings, schema) {
        Ok(_) => findings.push(Finding::ok("columns of the sink", "as needed", "as needed")),
        Err(error) => findings.push(Finding::new(
            Severity::Error,
            "columns of the sink",
            error.to_string(),
            "as the sink's settings say",
            "correct the settings or the rows",
        )),
    }
    findings.extend(effect::finding_of(&settings.without_effect));
    findings.push(rules::decision_timeout(settings.decision_timeout, needs.commit_timeout));
    let Some(cluster) = brokers(&settings.client.client, &mut findings).await else { return findings };
    if let Some(name) = settings.topic.fixed()
        && let Some(topic) = topic(&cluster, name, bootstrap, &mut findings).await
    {
        let configs = topic_config(&cluster, name, &["max.message.bytes", "min.insync.replicas"]).await;
        let fewest = topic.partitions.iter().map(|partition| partition.replicas.len() as i32).min().unwrap_or(0);
        let min_insync = value(&configs, "min.insync.replicas").map(|value| value as i32);
        findings.push(rules::replicas(name, fewest, min_insync, settings.client.producer.acks == Acks::All, bootstrap));
        findings.push(rules::message_size(name, settings.client.producer.batch_size, value(&configs, "max.message.bytes"), bootstrap));
        findings.push(permission(&cluster, AclOperation::Write, name, bootstrap).await);
    }
    if settings.guarantee == DeliveryGuarantee::ExactlyOnce {
        transactions(settings, needs, &cluster, &mut findings).await;
    }
    findings
}

async fn transactions(settings: &SinkSettings, needs: &JobNeeds, cluster: &Cluster, findings: &mut Vec<Finding>) {
    let (prefix, bootstrap) = (settings.transactional_id_prefix.as_str(), settings.bootstrap_servers.as_str());
    let maximum = max_timeout(cluster).await;
    findings.push(rules::timeout_against_broker(settings.transaction_timeout, maximum, bootstrap));
    findings.push(rules::timeout_against_job(settings.transaction_timeout, maximum, needs));
    let transactions = Transactions::new(cluster.clone());
    // An id that does not exist: the answer tells whether ids under the prefix may be used, and changes nothing.
    let probe = format!("{prefix}-preflight");
    const PERMISSION: &str = "permission for transactional ids under the prefix";
    match transactions.describe(&[&probe], deadline()).await {
        Err(error) => findings.push(unanswered(PERMISSION, &error, prefix)),
        Ok(described) => match described.first().map(|described| described.code) {
            Some(code @ ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED) => {
                let remedy = format!(
                    "kafka-acls.sh --bootstrap-server {bootstrap} --add --allow-principal User:<user> --operation Write --operation Describe --transactional-id {prefix} --resource-pattern-type prefixed"
                );
                findings.push(Finding::new(Severity::Error, PERMISSION, code.to_string(), "Write and Describe", remedy));
            }
            _ => findings.push(Finding::ok(PERMISSION, "Describe is granted", "Write and Describe")),
        },
    }
    let admin = Admin::new(cluster.clone());
    let topic = settings.topic.fixed();
    let read = match topic {
        Some(topic) => admin.granted_on_topic(topic, deadline()).await.ok().and_then(|granted| granted.allows(AclOperation::Read)),
        None => None,
    };
    let alter = admin.granted_on_cluster(deadline()).await.ok().and_then(|granted| granted.allows(AclOperation::Alter));
    findings.push(rules::hanging_transactions(topic, read, alter, bootstrap));
    let version = transactions.end_txn_version();
    findings.push(rules::end_txn((version > 0).then_some(version)));
    const LIST: &str = "open transactions of other jobs under the transactional-id prefix";
    match transactions.list(&[TransactionState::Ongoing], &format!("{prefix}-"), deadline()).await {
        Err(error) => findings.push(unanswered(LIST, &error, prefix)),
        Ok(listed) => {
            let found: Vec<UnderPrefix> = listed
                .into_iter()
                .map(|listed| UnderPrefix {
                    parts: parse_under_prefix(prefix, &listed.transactional_id),
                    transactional_id: listed.transactional_id,
                    ongoing: true,
                })
                .collect();
            let job = needs.job_uuid.map(|uuid| uuid.short());
            findings.push(rules::foreign(prefix, job.as_deref(), &found, bootstrap));
        }
    }
}

/// The smallest `transaction.max.timeout.ms` of all brokers; `None` if one cannot be asked.
async fn max_timeout(cluster: &Cluster) -> Option<Duration> {
    const KEY: &str = "transaction.max.timeout.ms";
    let admin = Admin::new(cluster.clone());
    let described = admin.describe_cluster(deadline()).await.ok()?;
    let mut smallest = None;
    for broker in described.brokers {
        let configs = admin.broker_configs(broker.id, &[KEY], deadline()).await.ok()?;
        let millis: u64 = configs.into_iter().find(|entry| entry.name == KEY)?.value?.parse().ok()?;
        smallest = Some(smallest.map_or(millis, |smallest: u64| smallest.min(millis)));
    }
    smallest.map(Duration::from_millis)
}

/// The checks of a source.
pub async fn source(settings: &SourceSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let bootstrap = settings.bootstrap_servers.as_str();
    findings.extend(effect::finding_of(&settings.without_effect));
    let Some(cluster) = brokers(&settings.client.client, &mut findings).await else { return findings };
    let mut partitions = Vec::new();
    match &settings.topics {
        TopicSelection::Topics(names) => {
            for name in names {
                if let Some(topic) = topic(&cluster, name, bootstrap, &mut findings).await {
                    partitions.extend(topic.partitions.iter().map(|p| TopicPartition::new(name.as_str(), p.partition)));
                    findings.push(permission(&cluster, AclOperation::Read, name, bootstrap).await);
                }
            }
        }
        TopicSelection::Pattern(pattern) => {
            const CHECK: &str = "topics that match the pattern";
            match cluster.metadata(None, deadline()).await {
                Err(error) => findings.push(unanswered(CHECK, &error, pattern.as_str())),
                Ok(metadata) => {
                    let mut names: Vec<&str> = metadata
                        .topics
                        .values()
                        .filter(|t| !t.internal && t.error.is_none() && pattern.is_match(&t.name))
                        .map(|t| &*t.name)
                        .collect();
                    names.sort_unstable();
                    match names.is_empty() {
                        false => findings.push(Finding::ok(CHECK, names.join(", "), "at least one")),
                        true => findings.push(Finding::new(
                            Severity::Warning,
                            CHECK,
                            format!("none of {} visible topics matches {}", metadata.topics.len(), pattern.as_str()),
                            "at least one",
                            "correct the pattern, create the topics, or grant Describe on them with kafka-acls.sh; topics that appear later are read from the beginning",
                        )),
                    }
                }
            }
        }
    }
    group(settings, &cluster, &partitions, &mut findings).await;
    const ISOLATION: &str = "isolation.level of the source";
    findings.push(match settings.isolation {
        IsolationLevel::ReadCommitted => Finding::ok(ISOLATION, "read_committed", "read_committed"),
        IsolationLevel::ReadUncommitted => Finding::new(
            Severity::Warning,
            ISOLATION,
            "read_uncommitted",
            "read_committed",
            "set isolation.level = read_committed in the source's properties: else rows of aborted transactions are read, and rows of open ones can be read that are never committed",
        ),
    });
    findings
}

async fn group(settings: &SourceSettings, cluster: &Cluster, partitions: &[TopicPartition], findings: &mut Vec<Finding>) {
    let (Some(group), OffsetsInitializer::CommittedOffsets(reset)) = (&settings.group_id, &settings.starting) else { return };
    let check = format!("committed offsets of group {group}");
    match Offsets::new(cluster.clone()).committed(group, partitions, deadline()).await {
        Err(error) => findings.push(unanswered(&check, &error, group)),
        Ok(committed) => {
            let missing: Vec<String> =
                partitions.iter().filter(|partition| !committed.contains_key(partition)).map(ToString::to_string).collect();
            let found = format!("for {} of {} partitions", partitions.len() - missing.len(), partitions.len());
            findings.push(match (missing.is_empty(), reset) {
                (true, _) | (false, OffsetResetStrategy::Earliest | OffsetResetStrategy::Latest) => Finding::ok(&check, found, "all, or auto.offset.reset"),
                (false, OffsetResetStrategy::None) => Finding::new(
                    Severity::Error,
                    &check,
                    format!("{found}, none for {}", missing.join(", ")),
                    "all, or auto.offset.reset",
                    "set the property auto.offset.reset to earliest or latest, or choose another startup mode (a restored job does not need them)",
                ),
            });
        }
    }
}
