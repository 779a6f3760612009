//! TLS, logins and permissions of a real broker, for data and for transactions.
#![allow(clippy::unwrap_used)]
mod support;

use semel_engine::sink::{Finding, JobNeeds, Severity, SinkCommitter, SinkWriter, TwoPhaseCommitSink};
use semel_engine::source::Source;
use semel_kafka::{BoundedMode, ConnectorError, KafkaSinkBuilder, KafkaSourceBuilder};
use semel_testkit::{Kafka, KafkaOptions, PASSWORD, Security, USER};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use support::{Job, committed, pre_commit, rows, sink, source, uid};

const MECHANISMS: [&str; 4] = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"];
const WRONG: &str = "guessed-and-wrong";

fn sasl_ssl() -> &'static Kafka {
    static SASL: OnceLock<Kafka> = OnceLock::new();
    SASL.get_or_init(|| Kafka::start_with(KafkaOptions::default().security(Security::SaslSsl)).unwrap())
}

/// Base64 for URLs, without padding.
fn base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        out.extend((0..=chunk.len()).map(|i| DIGITS[(bits >> (18 - 6 * i) & 63) as usize] as char));
    }
    out
}

/// An unsecured token, as the broker's default handler takes it.
fn token(user: &str) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let claims = format!("{{\"sub\":\"{user}\",\"iat\":{now},\"exp\":{}}}", now + 600);
    format!("{}.{}.", base64("{\"alg\":\"none\"}"), base64(&claims))
}

/// The settings that a user of Apache's client has, and the token where that client would make one itself.
fn properties(kafka: &Kafka, mechanism: &str, password: &str) -> Vec<(String, String)> {
    let mut properties = kafka.client_properties(mechanism, USER, password);
    if mechanism == "OAUTHBEARER" {
        let token = if password == PASSWORD { token(USER) } else { password.to_owned() };
        let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule";
        properties.retain(|(name, _)| name != "sasl.jaas.config");
        properties.push(("sasl.jaas.config".into(), format!("{module} required token=\"{token}\";")));
    }
    properties
}

fn secure_sink(kafka: &Kafka, topic: &str, properties: &[(String, String)]) -> KafkaSinkBuilder {
    properties.iter().fold(sink(kafka, topic), |builder, (name, value)| builder.property(name, value))
}

fn secure_source(kafka: &Kafka, topic: &str, properties: &[(String, String)]) -> KafkaSourceBuilder {
    properties.iter().fold(source(kafka, topic), |builder, (name, value)| builder.property(name, value))
}

fn needs() -> JobNeeds {
    JobNeeds {
        job_name: "job".into(),
        job_uuid: None,
        parallelism: 1,
        checkpoint_interval: Duration::from_secs(10),
        checkpoint_timeout: Duration::from_secs(120),
        max_concurrent_checkpoints: 1,
        commit_timeout: Duration::from_secs(60),
        longest_restart: Duration::from_secs(60),
    }
}

async fn check(builder: KafkaSinkBuilder) -> Vec<Finding> {
    builder.build().unwrap().preflight(&needs(), &uid(), &support::schema()).await
}

fn errors(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity >= Severity::Error).collect()
}

/// Data, a commit, a recovery with an orphan, and the reading of it.
async fn both_ways(kafka: &Kafka, properties: &[(String, String)]) {
    let topic = kafka.create_topic("secure", 2).unwrap();
    both_ways_in(kafka, &topic, properties).await;
}

async fn both_ways_in(kafka: &Kafka, topic: &str, properties: &[(String, String)]) {
    let (job, built) = (Job::new(), secure_sink(kafka, topic, properties).build().unwrap());
    assert_eq!(errors(&check(secure_sink(kafka, topic, properties)).await), Vec::<&Finding>::new());
    let (mut writer, mut committer) = built.open(job.sink(1)).await.unwrap();
    let first = pre_commit(&mut writer, 1, rows((0..500).map(|i| format!("{i:0>4}")))).await;
    committer.commit(&first, &job.permit(1, 1)).await.unwrap();
    let pending = pre_commit(&mut writer, 2, rows((500..600).map(|i| format!("{i:0>4}")))).await;
    let orphan = pre_commit(&mut writer, 3, rows(["orphan".to_owned()])).await;
    drop((writer, committer));
    let swept = built.recover(&job.identity(2), &uid(), vec![job.pending(2, &pending, 2)]).await.unwrap();
    assert_eq!(swept.aborted, [orphan.transactional_id]);
    let wanted: Vec<String> = (0..600).map(|i| format!("{i:0>4}")).collect();
    assert_eq!(committed(kafka, topic), wanted);
    let source = secure_source(kafka, topic, properties).group_id("secure").bounded(BoundedMode::Latest);
    assert_eq!(support::read_all(&source, None).await.sorted(), wanted);
    let (_, splits) = support::open(&source, None).await;
    source.build().unwrap().checkpoint_complete(&job.identity(1), &splits).await.unwrap();
    assert_eq!(kafka.group_offsets("secure", topic).unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mechanism_carries_data_and_transactions() {
    let kafka = sasl_ssl();
    for mechanism in MECHANISMS {
        println!("{mechanism}");
        both_ways(kafka, &properties(kafka, mechanism, PASSWORD)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_a_clear_error_without_the_secret() {
    let kafka = sasl_ssl();
    let topic = kafka.create_topic("wrong", 1).unwrap();
    for mechanism in MECHANISMS {
        let properties = properties(kafka, mechanism, WRONG);
        let built = secure_sink(kafka, &topic, &properties).build().unwrap();
        let began = Instant::now();
        let error = built.open(Job::new().sink(1)).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectorError::Fatal(_)), "{mechanism}: {error}");
        let read = secure_source(kafka, &topic, &properties).build().unwrap();
        let read_error = read.open(Job::new().source(0, 1), None).await.map(drop).unwrap_err();
        let findings = check(secure_sink(kafka, &topic, &properties)).await;
        let [finding] = errors(&findings)[..] else { panic!("{findings:#?}") };
        assert!(finding.remedy.contains("sasl.jaas.config"), "{finding:#?}");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        for text in [error.to_string(), read_error.to_string(), format!("{finding:?}")] {
            assert!(text.contains(mechanism) && text.contains("refused"), "{text}");
            assert!(!text.contains(WRONG), "{text}");
        }
        for text in [format!("{built:?}"), format!("{read:?}"), format!("{:?}", built.settings())] {
            assert!(!text.contains(WRONG), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_protocol_or_authority_is_a_clear_error_in_time() {
    let kafka = sasl_ssl();
    let right = properties(kafka, "SCRAM-SHA-512", PASSWORD);
    let without = |part: &str| right.iter().filter(|(name, _)| !name.starts_with(part)).cloned().collect::<Vec<_>>();
    for (settings, wanted) in [(without("ssl.truststore"), "TLS"), (without("security.protocol"), "security.protocol")] {
        let began = Instant::now();
        let findings = check(secure_sink(kafka, "any", &settings)).await;
        let [finding] = errors(&findings)[..] else { panic!("{findings:#?}") };
        assert!(finding.found.contains(wanted), "{wanted}: {finding:#?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    let mut unknown = without("sasl.mechanism");
    unknown.push(("sasl.mechanism".into(), "GSSAPI".into()));
    let error = secure_sink(kafka, "any", &unknown).build().unwrap_err().to_string();
    assert!(error.contains("GSSAPI") && error.contains("SCRAM-SHA-512") && !error.contains(PASSWORD), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let kafka = Kafka::start_with(KafkaOptions::default().security(Security::SslClientAuth)).unwrap();
    let with = kafka.client_properties("", "", "");
    both_ways(&kafka, &with).await;
    let without: Vec<_> = with.iter().filter(|(name, _)| !name.starts_with("ssl.keystore")).cloned().collect();
    let findings = check(secure_sink(&kafka, "any", &without)).await;
    assert_eq!(errors(&findings).len(), 1, "{findings:#?}");
}

/// The user may log in, and may do nothing.
fn with_acls() -> Kafka {
    let options = KafkaOptions::default()
        .security(Security::SaslSsl)
        .property("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
        .property("super.users", "User:ANONYMOUS");
    Kafka::start_with(options).unwrap()
}

/// What the README lists: each one is missed by name until it is granted, and together they are enough.
#[tokio::test(flavor = "multi_thread")]
async fn each_permission_is_missed_by_name_and_those_of_the_readme_are_enough() {
    let kafka = with_acls();
    let topic = kafka.create_topic("granted", 2).unwrap();
    let properties = properties(&kafka, "SCRAM-SHA-512", PASSWORD);
    let allow = |resource: &str, name: &str, operation: &str| kafka.allow(USER, resource, name, operation).unwrap();
    allow("TRANSACTIONAL_ID", &topic, "WRITE");
    allow("TOPIC", &topic, "DESCRIBE");
    let of_topic = format!("permission for topic {topic}");
    const MARKERS: &str = "KAFKA-20734";
    let found = async |part: &str, of_source: bool| {
        let findings = match of_source {
            true => secure_source(&kafka, &topic, &properties).build().unwrap().preflight(&needs(), &uid()).await,
            false => check(secure_sink(&kafka, &topic, &properties)).await,
        };
        findings.iter().find(|finding| finding.check.contains(part)).unwrap_or_else(|| panic!("{part}: {findings:#?}")).clone()
    };
    let missed = async |of: &str, part: &str, words: &[&str], severity: Severity| {
        let begin = Instant::now();
        loop {
            let finding = found(part, of == "source").await;
            if finding.severity == severity && words.iter().all(|word| finding.found.contains(word)) {
                return finding.remedy;
            }
            // A grant takes a moment to reach the broker's authorizer.
            assert!(begin.elapsed() < Duration::from_secs(5), "{words:?}: {finding:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let remedy = missed("sink", &of_topic, &["Write is not granted"], Severity::Error).await;
    assert!(remedy.contains("kafka-acls.sh") && remedy.contains(&format!("--operation Write --topic {topic}")), "{remedy}");
    let remedy = missed("source", &of_topic, &["Read is not granted"], Severity::Error).await;
    assert!(remedy.contains(&format!("--operation Read --topic {topic}")), "{remedy}");
    let remedy = missed("sink", MARKERS, &["Read on the topic", "Alter on the cluster"], Severity::Warning).await;
    assert!(remedy.contains(&format!("--operation Read --topic {topic}")) && remedy.contains("--operation Alter --cluster"), "{remedy}");
    allow("TOPIC", &topic, "WRITE");
    missed("sink", &of_topic, &["Write is granted"], Severity::Ok).await;
    allow("TOPIC", &topic, "READ");
    missed("source", &of_topic, &["Read is granted"], Severity::Ok).await;
    let remedy = missed("sink", MARKERS, &["Alter on the cluster"], Severity::Warning).await;
    assert!(!remedy.contains("--operation Read"), "{remedy}");
    allow("CLUSTER", "kafka-cluster", "ALTER");
    missed("sink", MARKERS, &["granted"], Severity::Ok).await;
    allow("GROUP", "secure", "READ");
    both_ways_in(&kafka, &topic, &properties).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_come_with_the_command_that_grants_them() {
    let kafka = with_acls();
    let topic = kafka.create_topic("forbidden", 1).unwrap();
    let properties = properties(&kafka, "SCRAM-SHA-512", PASSWORD);
    let findings = check(secure_sink(&kafka, &topic, &properties)).await;
    let denied = |part: &str| {
        let found = findings.iter().find(|f| f.check.contains(part)).unwrap_or_else(|| panic!("{part}: {findings:#?}"));
        assert!(found.severity >= Severity::Warning, "{found:#?}");
        assert!(found.remedy.contains("kafka-acls.sh") && found.remedy.contains("--add"), "{found:#?}");
        found
    };
    assert!(denied(&format!("topic {topic}")).remedy.contains(&topic));
    assert!(denied("permission for transactional ids").remedy.contains("--transactional-id"));
    let built = secure_sink(&kafka, &topic, &properties).build().unwrap();
    let (mut writer, _) = built.open(Job::new().sink(1)).await.unwrap();
    let error = writer.begin_transaction(semel_checkpoint::CheckpointId(1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains("--transactional-id")), "{error}");
    let reader = secure_source(&kafka, &topic, &properties).build().unwrap();
    let error = reader.open(Job::new().source(0, 1), None).await.map(drop).unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains("kafka-acls.sh") && text.contains(&topic)), "{error}");
}
