//! Which of Kafka's settings have no effect here. Nobody should believe in a setting that does nothing. Pure.

use crate::config::KafkaProperties;
use semel_engine::sink::{Finding, Severity};

/// Whose settings they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Of a source.
    Source,
    /// Of a sink.
    Sink,
}

/// Settings that the source takes, not its client.
pub(crate) const SOURCE: [&str; 6] = [
    "group.id",
    "auto.offset.reset",
    "isolation.level",
    "partition.discovery.interval.ms",
    "commit.offsets.on.checkpoint",
    "client.id.prefix",
];

/// Settings that the sink takes, not its client.
pub(crate) const SINK: [&str; 2] = ["transaction.timeout.ms", "enable.idempotence"];

/// Settings of the client that only a source uses.
const FETCHES: [&str; 5] = ["fetch.max.wait.ms", "fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes", "check.crcs"];

/// Settings of the client that only a sink uses.
const WRITES: [&str; 8] = [
    "acks",
    "batch.size",
    "linger.ms",
    "compression.type",
    "buffer.memory",
    "max.in.flight.requests.per.connection",
    "delivery.timeout.ms",
    "max.request.size",
];

const RETRIES: &str = "requests are repeated until their time limit (request.timeout.ms, default.api.timeout.ms)";
const FORMAT: &str = "the format of the source or sink says it";
const NO_GROUP: &str = "partitions are divided by the job, not by the group";
const COMMITS: &str = "offsets are committed when a checkpoint is complete, see commit.offsets.on.checkpoint";

/// Settings of Kafka's Java clients that do nothing here, and why.
pub(crate) const WITHOUT: [(&str, &str); 21] = [
    ("retries", RETRIES),
    ("retry.backoff.ms", RETRIES),
    ("reconnect.backoff.ms", RETRIES),
    ("reconnect.backoff.max.ms", RETRIES),
    ("connections.max.idle.ms", "connections stay open"),
    ("key.serializer", FORMAT),
    ("value.serializer", FORMAT),
    ("key.deserializer", FORMAT),
    ("value.deserializer", FORMAT),
    ("enable.auto.commit", COMMITS),
    ("auto.commit.interval.ms", COMMITS),
    ("max.poll.records", "semel.source.max-bytes-per-tick bounds what is read at once"),
    ("max.poll.interval.ms", NO_GROUP),
    ("session.timeout.ms", NO_GROUP),
    ("heartbeat.interval.ms", NO_GROUP),
    ("register.consumer.metrics", "see metrics.enabled"),
    ("register.producer.metrics", "see metrics.enabled"),
    ("client.dns.lookup", "all addresses of a name are used"),
    ("allow.auto.create.topics", "topics are never created"),
    ("ssl.truststore.password", "a PEM trust store has none"),
    ("ssl.protocol", "ssl.enabled.protocols says which versions of TLS are used"),
];

/// The settings that were given and do nothing, each with the reason.
pub fn without_effect(properties: &KafkaProperties, role: Role) -> Vec<String> {
    let why = |name: &str| match WITHOUT.iter().find(|(known, _)| *known == name) {
        Some((_, why)) => Some(*why),
        None if role == Role::Source && (SINK.contains(&name) || WRITES.contains(&name)) => Some("of a sink"),
        None if role == Role::Sink && (SOURCE.contains(&name) || FETCHES.contains(&name)) => Some("of a source"),
        None => None,
    };
    properties.iter().filter_map(|(name, _)| Some(format!("{name} ({})", why(name)?))).collect()
}

/// The one warning about them; none where all do what they say.
pub fn finding_of(without_effect: &[String]) -> Option<Finding> {
    let check = "Kafka's settings take effect";
    let remedy = "take them out of the properties, or use what is named with them";
    (!without_effect.is_empty()).then(|| {
        Finding::new(
            Severity::Warning,
            check,
            format!("has no effect here: {}", without_effect.join(", ")),
            "only settings that take effect",
            remedy,
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn properties(names: &[&str]) -> KafkaProperties {
        let mut properties = KafkaProperties::default();
        names.iter().for_each(|name| properties.set(*name, "1"));
        properties
    }

    #[test]
    fn what_does_nothing_is_named_by_role_and_what_works_is_not() {
        let given = properties(&["enable.auto.commit", "acks", "group.id", "client.id", "request.timeout.ms"]);
        let source = without_effect(&given, Role::Source);
        assert_eq!(source.len(), 2, "{source:?}");
        assert!(source[0].starts_with("acks (") && source[1].contains("commit.offsets.on.checkpoint"), "{source:?}");
        let sink = without_effect(&given, Role::Sink);
        assert_eq!(sink.len(), 2, "{sink:?}");
        assert!(sink[0].starts_with("enable.auto.commit") && sink[1].starts_with("group.id"), "{sink:?}");
        let found = finding_of(&sink).unwrap();
        assert!(found.severity == Severity::Warning && found.found.starts_with("has no effect here: enable.auto.commit"), "{found:?}");
        assert_eq!(finding_of(&without_effect(&properties(&["client.id"]), Role::Sink)), None);
    }
}
