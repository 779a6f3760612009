//! The preflight checks on a real broker: each with a wrong setting. A finding says the value found, the value needed, and
//! what sets it.
#![allow(clippy::unwrap_used)]
mod support;

use semel_engine::sink::{Finding, JobNeeds, Severity, TwoPhaseCommitSink};
use semel_engine::source::Source;
use semel_kafka::{DeliveryGuarantee, KafkaSinkBuilder, KafkaSource, KafkaSourceBuilder, OffsetsInitializer};
use semel_testkit::{Kafka, WriteRow, reserve_port};
use std::time::{Duration, Instant};
use support::{Job, open_ids, pre_commit, rows, sink, source, uid};

fn needs(job: Option<Job>) -> JobNeeds {
    JobNeeds {
        job_name: "job".into(),
        job_uuid: job.map(|job| job.0),
        parallelism: 1,
        checkpoint_interval: Duration::from_secs(10),
        checkpoint_timeout: Duration::from_secs(120),
        max_concurrent_checkpoints: 1,
        commit_timeout: Duration::from_secs(60),
        longest_restart: Duration::from_secs(60),
    }
}

async fn of_sink(builder: KafkaSinkBuilder, needs: &JobNeeds) -> Vec<Finding> {
    builder.build().unwrap().preflight(needs, &uid(), &support::schema()).await
}

async fn of_source(builder: KafkaSourceBuilder) -> Vec<Finding> {
    builder.build().unwrap().preflight(&needs(None), &uid()).await
}

/// The one finding of a check.
fn one<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let found: Vec<&Finding> = findings.iter().filter(|finding| finding.check.contains(check)).collect();
    assert_eq!(found.len(), 1, "{check:?} in {findings:#?}");
    found[0]
}

fn assert_finding(findings: &[Finding], check: &str, severity: Severity, found: &str, needed: &str, remedy: &str) {
    let finding = one(findings, check);
    assert_eq!(finding.severity, severity, "{finding:#?}");
    assert!(finding.found.contains(found), "{found:?} was found: {finding:#?}");
    assert!(finding.needed.contains(needed), "{needed:?} is needed: {finding:#?}");
    assert!(finding.remedy.contains(remedy), "{remedy:?} helps: {finding:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn right_settings_have_no_errors_and_nothing_is_changed() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("right", 2).unwrap();
    let findings = of_sink(sink(kafka, &topic), &needs(None)).await;
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error), "{findings:#?}");
    // One broker, one replica: that is said, and no more.
    let warnings: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Warning).collect();
    assert_eq!(warnings.len(), 1, "{findings:#?}");
    assert_finding(&findings, "replicas", Severity::Warning, "replication factor 1", "replication factor 3", "--replication-factor 3");
    assert_finding(&findings, "EndTxn", Severity::Ok, "5", "5", "");
    let findings = of_source(source(kafka, &topic)).await;
    assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:#?}");
    assert!(kafka.transactions().unwrap().iter().all(|t| !t.transactional_id.starts_with(&topic)), "no id was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_that_do_not_answer_are_named() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("unreachable", 1).unwrap();
    let port = reserve_port().unwrap();
    let nobody = format!("127.0.0.1:{}", port.port());
    let began = Instant::now();
    for findings in [
        of_sink(sink(kafka, &topic).bootstrap_servers(&nobody), &needs(None)).await,
        of_source(source(kafka, &topic).bootstrap_servers(&nobody)).await,
    ] {
        assert_finding(&findings, &nobody, Severity::Unanswered, "cannot connect", "an answer", "reachable");
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    let both = format!("{nobody},{}", kafka.bootstrap());
    let findings = of_sink(sink(kafka, &topic).bootstrap_servers(&both), &needs(None)).await;
    assert_finding(&findings, &nobody, Severity::Warning, "cannot connect", "an answer", "reachable");
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error), "the others are enough: {findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_topics_come_with_the_command_that_creates_them() {
    let kafka = Kafka::shared().unwrap();
    let create = "kafka-topics.sh --bootstrap-server 127.0.0.1:";
    let findings = of_sink(sink(kafka, "nowhere"), &needs(None)).await;
    assert_finding(&findings, "topic nowhere exists", Severity::Error, "no", "yes", create);
    let findings = of_source(source(kafka, "nowhere")).await;
    assert_finding(&findings, "topic nowhere exists", Severity::Error, "no", "yes", "--create --topic nowhere");
    let pattern =
        KafkaSource::builder(std::sync::Arc::new(|| semel_formats::Format::Raw.deserializer(support::schema()).map_err(|e| e.to_string())))
            .bootstrap_servers(kafka.bootstrap())
            .topic_pattern("nowhere-.*");
    assert_finding(&of_source(pattern).await, "pattern", Severity::Warning, "nowhere-.*", "at least one", "create the topics");
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_timeouts_are_compared_with_the_broker_and_with_the_job() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("timeouts", 1).unwrap();
    let with = |ms: &str| sink(kafka, &topic).property("transaction.timeout.ms", ms);
    let findings = of_sink(with("900001"), &needs(None)).await;
    let against_broker = "transaction.max.timeout.ms";
    assert_finding(&findings, against_broker, Severity::Error, "900001", "900000", "set transaction.timeout.ms = 900000");
    assert_finding(&findings, against_broker, Severity::Error, "900001", "900000", "transaction.max.timeout.ms=900001");
    // 120 s + 60 s + 5 minutes.
    let against_job = "checkpoint timeout + longest restart";
    assert_finding(&of_sink(with("480000"), &needs(None)).await, against_job, Severity::Ok, "480000", "480000", "");
    let findings = of_sink(with("479999"), &needs(None)).await;
    assert_finding(&findings, against_job, Severity::Warning, "479999", "480000", "set transaction.timeout.ms = 480000");
    let findings = of_sink(with("119999"), &needs(None)).await;
    assert_finding(&findings, against_job, Severity::Error, "119999", "480000", "set transaction.timeout.ms = 480000");
    let mut long = needs(None);
    long.longest_restart = Duration::from_secs(1200);
    let findings = of_sink(with("900000"), &long).await;
    assert_finding(&findings, against_job, Severity::Warning, "900000", "1620000", "transaction.max.timeout.ms=1620000");
    // Without transactions nobody needs to know.
    let findings = of_sink(with("900001").delivery_guarantee(DeliveryGuarantee::AtLeastOnce), &needs(None)).await;
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_jobs_transactions_under_the_prefix_are_reported_and_not_touched() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("foreign", 1).unwrap();
    let (own, other) = (Job::new(), Job::new());
    let (mut writer, _) = sink(kafka, &topic).build().unwrap().open(own.sink(1)).await.unwrap();
    let own_transaction = pre_commit(&mut writer, 1, rows(["own".to_owned()])).await;
    const CHECK: &str = "open transactions of other jobs";
    let findings = of_sink(sink(kafka, &topic), &needs(Some(own))).await;
    assert_finding(&findings, CHECK, Severity::Ok, "none", "none", "");
    let (mut writer, _) = sink(kafka, &topic).build().unwrap().open(other.sink(1)).await.unwrap();
    let others = pre_commit(&mut writer, 1, rows(["other".to_owned()])).await;
    let by_hand = format!("{topic}-by-hand");
    kafka.open_transaction(&topic, &by_hand, &[WriteRow::to(0).value("x")], Duration::from_secs(60)).unwrap();
    let findings = of_sink(sink(kafka, &topic), &needs(Some(own))).await;
    assert_finding(&findings, CHECK, Severity::Warning, &others.transactional_id, "a prefix belongs to one job", "kafka-transactions.sh");
    let finding = one(&findings, CHECK);
    assert!(finding.found.contains(&by_hand) && !finding.found.contains(&own_transaction.transactional_id), "{finding:#?}");
    assert_eq!(open_ids(kafka, &topic).len(), 3, "all are still open");
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_that_cannot_take_the_rows_are_named() {
    let kafka = Kafka::shared().unwrap();
    let small = kafka.create_topic_with("small", 1, &[("max.message.bytes", "1000")]).unwrap();
    let findings = of_sink(sink(kafka, &small), &needs(None)).await;
    let remedy = format!("--entity-type topics --entity-name {small} --add-config max.message.bytes=262144");
    assert_finding(&findings, "max.message.bytes", Severity::Error, "max.message.bytes 1000", "batch.size at most 1000", &remedy);
    let strict = kafka.create_topic_with("strict", 1, &[("min.insync.replicas", "2")]).unwrap();
    let findings = of_sink(sink(kafka, &strict), &needs(None)).await;
    assert_finding(&findings, "replicas", Severity::Error, "min.insync.replicas 2", "at most 1", "min.insync.replicas=1");
    let weak = sink(kafka, &strict).delivery_guarantee(DeliveryGuarantee::AtLeastOnce).property("acks", "1");
    let topic = kafka.create_topic("weak", 1).unwrap();
    let findings = of_sink(weak.topic(&topic), &needs(None)).await;
    assert_finding(&findings, "replicas", Severity::Warning, "acks not all", "acks=all", "set acks = all");
    let findings = of_sink(sink(kafka, &topic).key_columns(["customer"]), &needs(None)).await;
    assert_finding(&findings, "columns", Severity::Error, "customer", "settings", "correct");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_told_of_missing_group_offsets_and_of_weak_isolation() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("group", 2).unwrap();
    let builder = source(kafka, &topic).group_id("nobodys").starting_offsets(OffsetsInitializer::committed_offsets());
    let findings = of_source(builder).await;
    assert_finding(&findings, "group nobodys", Severity::Error, "for 0 of 2 partitions", "all", "auto.offset.reset");
    let findings = of_source(source(kafka, &topic).property("isolation.level", "read_uncommitted")).await;
    assert_finding(
        &findings,
        "isolation.level",
        Severity::Warning,
        "read_uncommitted",
        "read_committed",
        "isolation.level = read_committed",
    );
}

/// A broker whose client listener does not answer at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_does_not_hang_the_check() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let kafka = Kafka::shared().unwrap();
    let builder = sink(kafka, "any").bootstrap_servers(&address).property("request.timeout.ms", "1500");
    let began = Instant::now();
    let findings = of_sink(builder, &needs(None)).await;
    assert_finding(&findings, &address, Severity::Unanswered, "", "an answer", "reachable");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_do_nothing_are_named_in_one_warning() {
    let kafka = Kafka::shared().unwrap();
    let topic = kafka.create_topic("idle", 1).unwrap();
    let given = source(kafka, &topic).group_id("g").property("enable.auto.commit", "true").property("auto.offset.reset", "latest");
    let findings = of_source(given.property("acks", "all")).await;
    let check = "settings take effect";
    assert_finding(&findings, check, Severity::Warning, "enable.auto.commit (", "take effect", "take them out");
    assert_finding(&findings, check, Severity::Warning, "auto.offset.reset (", "take effect", "take them out");
    assert_finding(&findings, check, Severity::Warning, "acks (of a sink)", "take effect", "take them out");
    assert!(!one(&findings, check).found.contains("group.id ("));
    let long = sink(kafka, &topic).property("retries", "3").decision_timeout(Duration::from_secs(60));
    let findings = of_sink(long, &needs(None)).await;
    assert_finding(&findings, check, Severity::Warning, "retries (", "take effect", "take them out");
    assert_finding(&findings, "decision timeout", Severity::Warning, "60s", "semel.sink.commit-timeout = 60s", "semel.sink.commit-timeout");
}
