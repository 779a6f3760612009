//! From settings to the client, and from the client's errors to the engine's.

use crate::client::{self, ClientConfig, ClientError, Cluster, ErrorCode, FetchConfig, ProducerConfig};
use crate::config::{ConfigError, KafkaProperties};
use crate::effect;
use crate::{ConnectorError, ConnectorResult};
use std::collections::BTreeMap;

/// The client's settings of a source or a sink.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// How the cluster is reached.
    pub client: ClientConfig,
    /// How a source reads.
    pub fetch: FetchConfig,
    /// How a sink writes.
    pub producer: ProducerConfig,
}

/// Reads Kafka's own settings. One that nobody knows is an error that names the nearest known one.
pub fn client_settings(properties: &KafkaProperties) -> Result<ClientSettings, ConfigError> {
    let map: BTreeMap<String, String> = properties.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut left = client::Properties::new(&map);
    let wrong = |error: ClientError| ConfigError(error.to_string());
    let settings = ClientSettings {
        client: ClientConfig::take(&mut left).map_err(wrong)?,
        fetch: FetchConfig::take(&mut left).map_err(wrong)?,
        producer: ProducerConfig::take(&mut left).map_err(wrong)?,
    };
    left.ignore(&effect::SOURCE);
    left.ignore(&effect::SINK);
    effect::WITHOUT.iter().for_each(|(name, _)| left.ignore(&[*name]));
    left.finish().map_err(wrong)?;
    Ok(settings)
}

/// As whom a subtask is in the broker's logs and quotas: with `client.id.prefix`, `<prefix>-<number>`, as in Flink.
pub fn named(config: &ClientConfig, properties: &KafkaProperties, number: u32) -> ClientConfig {
    let prefix = properties.get("client.id.prefix").filter(|prefix| !prefix.is_empty());
    let client_id = prefix.map_or_else(|| config.client_id.clone(), |prefix| format!("{prefix}-{number}"));
    ClientConfig { client_id, ..config.clone() }
}

/// Connects.
pub async fn connect(config: &ClientConfig) -> ConnectorResult<Cluster> {
    Cluster::connect(config.clone()).await.map_err(connector_error)
}

/// What a permission error needs, as a command.
pub fn acl(code: ErrorCode, subject: &str) -> Option<String> {
    let grant = |what: &str| Some(format!("kafka-acls.sh --add --allow-principal User:<user> {what}"));
    match code {
        ErrorCode::TOPIC_AUTHORIZATION_FAILED => {
            grant(&format!("--operation Describe --operation Read (source) or --operation Write (sink) --topic {subject}"))
        }
        ErrorCode::GROUP_AUTHORIZATION_FAILED => grant(&format!("--operation Read --operation Describe --group {subject}")),
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => grant("--operation Describe --operation IdempotentWrite --cluster"),
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED => {
            grant("--operation Write --operation Describe --transactional-id <prefix> --resource-pattern-type prefixed")
        }
        _ => None,
    }
}

/// Whether an error of the client can go away by itself.
pub fn connector_error(error: ClientError) -> ConnectorError {
    let text = error.to_string();
    match &error {
        ClientError::Config { .. }
        | ClientError::Authentication { .. }
        | ClientError::Unsupported { .. }
        | ClientError::TooLarge { .. } => ConnectorError::Fatal(text),
        ClientError::Broker { code, what, .. } => match (acl(*code, what), *code) {
            (Some(command), _) => ConnectorError::Fatal(format!("{text}; grant it with {command}")),
            (None, ErrorCode::INVALID_TRANSACTION_TIMEOUT) => ConnectorError::Fatal(format!(
                "{text}: transaction.timeout.ms is above the broker's transaction.max.timeout.ms; lower the first or raise the second"
            )),
            (None, ErrorCode::INVALID_TOPIC_EXCEPTION | ErrorCode::UNSUPPORTED_VERSION | ErrorCode::INVALID_RECORD) => {
                ConnectorError::Fatal(text)
            }
            (None, _) => ConnectorError::Retryable(text),
        },
        _ => ConnectorError::Retryable(text),
    }
}

/// Unix time in ms by this machine's clock.
pub(crate) fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn java_clients_settings_are_taken_and_typos_are_named() {
        let mut properties = KafkaProperties::default();
        properties.set("bootstrap.servers", "localhost:1");
        properties.set("transaction.timeout.ms", "1000");
        properties.set("group.id", "g");
        assert!(client_settings(&properties).is_ok());
        properties.set("securty.protocol", "SSL");
        let error = client_settings(&properties).unwrap_err().0;
        assert!(error.contains("securty.protocol") && error.contains("security.protocol"), "{error}");
    }

    #[test]
    fn a_prefix_makes_the_client_id_of_each_subtask() {
        let mut properties = KafkaProperties::default();
        properties.set("bootstrap.servers", "localhost:1");
        properties.set("client.id", "mine");
        let config = client_settings(&properties).unwrap().client;
        assert_eq!(named(&config, &properties, 3).client_id, "mine");
        properties.set("client.id.prefix", "orders");
        assert_eq!(named(&config, &properties, 3).client_id, "orders-3");
    }

    #[test]
    fn permissions_are_fatal_and_name_the_grant() {
        let error =
            connector_error(ClientError::Broker { what: "orders".to_owned(), code: ErrorCode::TOPIC_AUTHORIZATION_FAILED, message: None });
        assert!(
            matches!(&error, ConnectorError::Fatal(text) if text.contains("kafka-acls.sh") && text.contains("--topic orders")),
            "{error}"
        );
        let error = connector_error(ClientError::Broker { what: "x".to_owned(), code: ErrorCode::NOT_ENOUGH_REPLICAS, message: None });
        assert!(matches!(error, ConnectorError::Retryable(_)));
        let error = connector_error(ClientError::TooLarge { subject: "orders-3".to_owned(), size: 9, limit: "8".to_owned() });
        assert!(
            matches!(&error, ConnectorError::Fatal(text) if text.contains("orders-3") && text.contains('9') && text.contains('8')),
            "{error}"
        );
    }
}
