//! Settings, with the names that Flink's Kafka connector and Kafka itself use. `build` checks them without any I/O.

mod sink;
mod source;

pub use sink::{KafkaSinkBuilder, KeyFormat, SerializerFactory, SinkSettings, TopicSelector, ValueFields};
pub use source::{DeserializerFactory, KafkaSourceBuilder, MetadataColumn, MetadataField, SourceSettings, TopicSelection};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A setting that cannot be used. Says which, what was found and what is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// Kafka's own settings (`properties.*` in SQL), by Kafka's names. Values of secret ones never appear in `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KafkaProperties(BTreeMap<String, String>);

impl KafkaProperties {
    /// Sets one; the last one counts.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A number of milliseconds, or the default.
    pub fn millis(&self, name: &str, default: Duration) -> Result<Duration, ConfigError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        text.trim()
            .parse::<u64>()
            .map(Duration::from_millis)
            .map_err(|_| ConfigError(format!("{name} must be a number of milliseconds, found {text:?}")))
    }
}

impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret =
            |name: &str| ["password", "jaas", "secret", "token", "key"].iter().any(|part| name.to_ascii_lowercase().contains(part));
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, if secret(name) { "***" } else { value.as_str() }))).finish()
    }
}

/// What a sink promises; Flink's `sink.delivery-guarantee`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryGuarantee {
    /// Rows can be lost and doubled.
    None,
    /// No row is lost; after a restart rows can appear again.
    #[default]
    AtLeastOnce,
    /// Every row appears once for `read_committed` readers.
    ExactlyOnce,
}

/// Where to begin when a consumer group has committed nothing; Kafka's `auto.offset.reset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OffsetResetStrategy {
    /// Fail.
    #[default]
    None,
    /// At the oldest record.
    Earliest,
    /// At the end.
    Latest,
}

/// Where a fresh start begins to read; Flink's `scan.startup.mode`. A restored source goes on where it was, whatever this says,
/// and partitions that appear later are read from the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OffsetsInitializer {
    /// `earliest-offset`.
    #[default]
    Earliest,
    /// `latest-offset`.
    Latest,
    /// `group-offsets`, with what to do where the group has none.
    CommittedOffsets(OffsetResetStrategy),
    /// `timestamp`: the first record at or after this unix time in ms.
    Timestamp(i64),
    /// `specific-offsets`: by `<topic>-<partition>`; partitions that are not named are read from the beginning.
    Offsets(BTreeMap<String, i64>),
}

/// Where to stop; Flink's `scan.bounded.mode`. Bounds are taken once and kept in the checkpoint: at a fresh start, or when a job that
/// was unbounded comes back bounded (then of all partitions that exist, also of new ones). A job that comes back unbounded drops them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BoundedMode {
    /// Never.
    #[default]
    Unbounded,
    /// `latest-offset`: at the end as it was at the start (with `read_committed`: of what was committed then).
    Latest,
    /// `timestamp`: before the first record at or after this unix time in ms.
    Timestamp(i64),
    /// `group-offsets`: at what the group has committed.
    CommittedOffsets,
    /// `specific-offsets`: before these, by `<topic>-<partition>`; partitions that are not named are not read.
    Offsets(BTreeMap<String, i64>),
}

/// What happens to a record that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBadRecord {
    /// The job fails and names topic, partition, offset and why.
    #[default]
    Fail,
    /// It is left out, counted (`numRecordsInErrors`) and logged now and then.
    Skip,
}

/// Bootstrap servers of either builder, checked.
fn bootstrap_servers(properties: &KafkaProperties) -> Result<String, ConfigError> {
    match properties.get("bootstrap.servers").map(str::trim) {
        Some(servers) if !servers.is_empty() => Ok(servers.to_owned()),
        _ => Err(ConfigError("bootstrap.servers is not set: name at least one broker, e.g. localhost:9092".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_never_appear_in_debug() {
        let mut properties = KafkaProperties::default();
        properties.set("sasl.jaas.config", "hush1");
        properties.set("ssl.truststore.password", "hush2");
        properties.set("ssl.keystore.key", "hush3");
        properties.set("client.id", "visible");
        let text = format!("{properties:?}");
        assert!(!text.contains("hush") && text.contains("visible"), "{text}");
    }
}
