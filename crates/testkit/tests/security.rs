//! Encryption and authentication of a real broker.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use semel_testkit::{Kafka, KafkaOptions, PASSWORD, Security, USER, WriteRow};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn sasl_over_tls_takes_the_right_password_only() {
    let kafka = Kafka::start_with(KafkaOptions::default().security(Security::SaslSsl)).unwrap();
    let topic = kafka.create_topic("secure", 1).unwrap();
    kafka.write(&topic, [WriteRow::to(0).value("x")]).unwrap();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"] {
        let properties = kafka.client_properties(mechanism, USER, PASSWORD);
        assert_eq!(kafka.read_as(&topic, &properties, LIMIT).unwrap().len(), 1, "{mechanism}");
    }
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let wrong = kafka.client_properties(mechanism, USER, "guessed");
        let error = kafka.read_as(&topic, &wrong, LIMIT).unwrap_err().to_string();
        assert!(error.contains("SaslAuthenticationException"), "{mechanism}: {error}");
    }
    let plaintext = [("default.api.timeout.ms".to_owned(), "2000".to_owned())];
    assert!(kafka.read_as(&topic, &plaintext, Duration::from_secs(5)).is_err(), "no TLS, no answer");
    let mut untrusted = kafka.client_properties("PLAIN", USER, PASSWORD);
    untrusted.retain(|(name, _)| !name.starts_with("ssl.truststore"));
    let error = kafka.read_as(&topic, &untrusted, LIMIT).unwrap_err().to_string();
    assert!(error.contains("SslAuthenticationException"), "{error}");
}

#[test]
fn a_client_certificate_can_be_asked_for() {
    let kafka = Kafka::start_with(KafkaOptions::default().security(Security::SslClientAuth)).unwrap();
    let topic = kafka.create_topic("secure", 1).unwrap();
    kafka.write(&topic, [WriteRow::to(0).value("x")]).unwrap();
    let mut properties = kafka.client_properties("", "", "");
    assert_eq!(kafka.read_as(&topic, &properties, LIMIT).unwrap().len(), 1);
    properties.retain(|(name, _)| !name.starts_with("ssl.keystore"));
    assert!(kafka.read_as(&topic, &properties, LIMIT).is_err());
    let tls = kafka.tls().unwrap();
    assert!(tls.ca().exists() && tls.client_certificate().exists() && tls.client_key().exists());
}

#[test]
fn an_older_transaction_version_can_be_asked_for() {
    let options = KafkaOptions { transaction_version: Some(1), ..KafkaOptions::default() };
    let kafka = Kafka::start_with(options).unwrap();
    let features = kafka.tool("features", serde_json::json!({}), LIMIT).unwrap();
    assert_eq!(features["finalized"]["transaction.version"], 1);
}
