//! Settings of the sink.

use super::{ConfigError, DeliveryGuarantee, KafkaProperties, bootstrap_servers};
use crate::connect::{ClientSettings, client_settings};
use crate::effect::{Role, without_effect};
use crate::partitioner::Partitioner;
use crate::sink::KafkaSink;
use arrow::datatypes::SchemaRef;
use semel_formats::{Format, JsonOptions, SerializationSchema};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Makes a serializer for rows of a schema; called once per subtask, for the value and (with [`KeyFormat::Serialized`]) the key.
pub type SerializerFactory = Arc<dyn Fn(&SchemaRef) -> Result<Box<dyn SerializationSchema>, String> + Send + Sync>;

/// Below the default of `semel.sink.commit-timeout` (60 s), so that the sink's own message, which knows why, comes first.
const DECISION_TIMEOUT: Duration = Duration::from_secs(50);

/// Where the topic's name comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicSelector {
    /// One topic.
    Fixed(String),
    /// A text column holds it, row by row. It is not part of the value.
    Column(String),
}

impl TopicSelector {
    /// The one topic, if it is one.
    pub fn fixed(&self) -> Option<&str> {
        match self {
            TopicSelector::Fixed(topic) => Some(topic),
            TopicSelector::Column(_) => None,
        }
    }
}

/// How the key is written.
#[derive(Clone)]
pub enum KeyFormat {
    /// The bytes of the one key column (text or binary); NULL is a record without key.
    Raw,
    /// The key columns by a serializer of their own.
    Serialized(SerializerFactory),
}

impl KeyFormat {
    /// The key columns, of any type, as a JSON object.
    pub fn json() -> KeyFormat {
        let format = Format::Json(JsonOptions::default());
        KeyFormat::Serialized(Arc::new(move |schema| format.serializer(schema.clone()).map_err(|e| e.to_string())))
    }
}

impl fmt::Debug for KeyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyFormat::Raw => "Raw",
            KeyFormat::Serialized(_) => "Serialized",
        })
    }
}

/// Whether key columns are written into the value too; Flink's `value.fields-include`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValueFields {
    /// They are.
    #[default]
    All,
    /// They are not.
    ExceptKey,
}

/// Checked settings of a [`KafkaSink`].
#[derive(Clone)]
pub struct SinkSettings {
    /// `bootstrap.servers`.
    pub bootstrap_servers: String,
    /// All of Kafka's own settings.
    pub properties: KafkaProperties,
    /// The same, as the client takes them.
    pub client: ClientSettings,
    /// Where rows go.
    pub topic: TopicSelector,
    /// What is promised.
    pub guarantee: DeliveryGuarantee,
    /// Begin of all transactional ids; empty unless exactly-once.
    pub transactional_id_prefix: String,
    /// `transaction.timeout.ms`.
    pub transaction_timeout: Duration,
    /// Columns of the key, in order; empty: records without key.
    pub key_columns: Vec<String>,
    /// How the key is written.
    pub key_format: KeyFormat,
    /// Whether the value holds the key columns.
    pub value_fields: ValueFields,
    /// How rows are spread over partitions.
    pub partitioner: Partitioner,
    /// Headers: name and (text or binary) column. NULL: the header is left out. Not part of the value.
    pub headers: Vec<(String, String)>,
    /// Column with the record's timestamp (timestamp or 64-bit ms). Not part of the value.
    pub timestamp_column: Option<String>,
    /// Makes the value's serializer.
    pub serializer: SerializerFactory,
    /// How long a commit, an abort or a pre-commit may take to be decided.
    pub decision_timeout: Duration,
    /// Settings of Kafka's that were given and do nothing, with the reasons.
    pub without_effect: Vec<String>,
}

impl fmt::Debug for SinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSettings")
            .field("properties", &self.properties)
            .field("topic", &self.topic)
            .field("guarantee", &self.guarantee)
            .field("transactional_id_prefix", &self.transactional_id_prefix)
            .field("transaction_timeout", &self.transaction_timeout)
            .field("key_columns", &self.key_columns)
            .field("partitioner", &self.partitioner)
            .finish_non_exhaustive()
    }
}

/// Builds a [`KafkaSink`].
#[derive(Clone)]
pub struct KafkaSinkBuilder {
    properties: KafkaProperties,
    topic: Option<TopicSelector>,
    guarantee: DeliveryGuarantee,
    prefix: Option<String>,
    key_columns: Vec<String>,
    key_format: KeyFormat,
    value_fields: ValueFields,
    partitioner: Partitioner,
    headers: Vec<(String, String)>,
    timestamp_column: Option<String>,
    serializer: SerializerFactory,
    decision_timeout: Duration,
}

impl KafkaSinkBuilder {
    /// With the serializer of the value.
    pub fn new(serializer: SerializerFactory) -> KafkaSinkBuilder {
        KafkaSinkBuilder {
            properties: KafkaProperties::default(),
            topic: None,
            guarantee: DeliveryGuarantee::default(),
            prefix: None,
            key_columns: Vec::new(),
            key_format: KeyFormat::Raw,
            value_fields: ValueFields::All,
            partitioner: Partitioner::Default,
            headers: Vec::new(),
            timestamp_column: None,
            serializer,
            decision_timeout: DECISION_TIMEOUT,
        }
    }

    /// `bootstrap.servers`: `host:port`, separated by commas.
    pub fn bootstrap_servers(self, servers: impl Into<String>) -> Self {
        self.property("bootstrap.servers", servers)
    }

    /// Any setting of Kafka's producer, by its name there.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.set(name, value);
        self
    }

    /// All rows go to this topic.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(TopicSelector::Fixed(topic.into()));
        self
    }

    /// Each row goes to the topic that this column names.
    pub fn topic_column(mut self, column: impl Into<String>) -> Self {
        self.topic = Some(TopicSelector::Column(column.into()));
        self
    }

    /// What is promised; default at-least-once.
    pub fn delivery_guarantee(mut self, guarantee: DeliveryGuarantee) -> Self {
        self.guarantee = guarantee;
        self
    }

    /// Begin of all transactional ids. Needed for exactly-once; keep it unique in the cluster, and the same over restarts.
    pub fn transactional_id_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Columns of the key.
    pub fn key_columns(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.key_columns = columns.into_iter().map(Into::into).collect();
        self
    }

    /// How the key is written; default [`KeyFormat::Raw`].
    pub fn key_format(mut self, format: KeyFormat) -> Self {
        self.key_format = format;
        self
    }

    /// Whether the value holds the key columns; default: it does.
    pub fn value_fields(mut self, fields: ValueFields) -> Self {
        self.value_fields = fields;
        self
    }

    /// How rows are spread over partitions.
    pub fn partitioner(mut self, partitioner: Partitioner) -> Self {
        self.partitioner = partitioner;
        self
    }

    /// Writes a column as a header of the record.
    pub fn header(mut self, name: impl Into<String>, column: impl Into<String>) -> Self {
        self.headers.push((name.into(), column.into()));
        self
    }

    /// Takes the record's timestamp from a column; default: the time of writing.
    pub fn timestamp_column(mut self, column: impl Into<String>) -> Self {
        self.timestamp_column = Some(column.into());
        self
    }

    /// How long a pre-commit, commit or abort may stay undecided (coordinator away) before the generation fails; default 50 s.
    /// Keep it below `semel.sink.commit-timeout` (1 min), which cuts it off: `check` and every start compare them.
    pub fn decision_timeout(mut self, timeout: Duration) -> Self {
        self.decision_timeout = timeout;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Names the setting, what was found and what is needed.
    pub fn build(self) -> Result<KafkaSink, ConfigError> {
        let wrong = |text: &str| Err(ConfigError(text.to_owned()));
        let bootstrap_servers = bootstrap_servers(&self.properties)?;
        let Some(topic) = self.topic else { return wrong("the Kafka sink has no topic: set one, or a column that holds it") };
        if matches!(&topic, TopicSelector::Fixed(name) if name.is_empty()) {
            return wrong("the Kafka sink's topic is empty");
        }
        let exactly_once = self.guarantee == DeliveryGuarantee::ExactlyOnce;
        let prefix = self.prefix.unwrap_or_default();
        if exactly_once && prefix.is_empty() {
            return wrong(
                "delivery guarantee exactly-once needs a transactional-id prefix: set transactional_id_prefix (sink.transactional-id-prefix) to a text that no other job on this Kafka cluster uses and that stays the same over restarts",
            );
        }
        if prefix.len() > 1000 || prefix.chars().any(char::is_control) {
            return wrong("the transactional-id prefix must have at most 1000 bytes and no control characters");
        }
        let transaction_timeout = self.properties.millis("transaction.timeout.ms", Duration::from_secs(15 * 60))?;
        if transaction_timeout.is_zero() || transaction_timeout.as_millis() > i32::MAX as u128 {
            return wrong("transaction.timeout.ms must be from 1 to 2147483647");
        }
        if self.properties.get("transactional.id").is_some() {
            return wrong("transactional.id cannot be set for the Kafka sink: set the transactional-id prefix, the ids are made from it");
        }
        if exactly_once && self.properties.get("enable.idempotence").is_some_and(|value| value != "true") {
            return wrong("enable.idempotence must be true (or not set) with delivery guarantee exactly-once");
        }
        if exactly_once && self.properties.get("acks").is_some_and(|acks| acks != "all" && acks != "-1") {
            return wrong("acks must be all (or not set) with delivery guarantee exactly-once: with less, acknowledged rows can vanish");
        }
        if matches!(self.key_format, KeyFormat::Raw) && self.key_columns.len() > 1 {
            return wrong("the raw key format takes exactly one key column: use a serializer (key.format = json) for several");
        }
        if self.decision_timeout.is_zero() {
            return wrong("the decision timeout must not be zero");
        }
        let client = client_settings(&self.properties)?;
        Ok(KafkaSink::new(SinkSettings {
            bootstrap_servers,
            client,
            without_effect: without_effect(&self.properties, Role::Sink),
            properties: self.properties,
            topic,
            guarantee: self.guarantee,
            transactional_id_prefix: prefix,
            transaction_timeout,
            key_columns: self.key_columns,
            key_format: self.key_format,
            value_fields: self.value_fields,
            partitioner: self.partitioner,
            headers: self.headers,
            timestamp_column: self.timestamp_column,
            serializer: self.serializer,
            decision_timeout: self.decision_timeout,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn builder() -> KafkaSinkBuilder {
        KafkaSink::builder(Arc::new(|_| Err("unused".to_owned()))).bootstrap_servers("localhost:1").topic("out")
    }

    fn error(builder: KafkaSinkBuilder) -> String {
        builder.build().unwrap_err().0
    }

    #[test]
    fn exactly_once_needs_a_prefix_and_says_so() {
        let text = error(builder().delivery_guarantee(DeliveryGuarantee::ExactlyOnce));
        assert!(text.contains("transactional-id prefix") && text.contains("exactly-once"), "{text}");
        let sink = builder().delivery_guarantee(DeliveryGuarantee::ExactlyOnce).transactional_id_prefix("p").build().unwrap();
        assert_eq!(sink.settings().transaction_timeout, Duration::from_secs(900));
        assert!(builder().build().is_ok());
    }

    #[test]
    fn settings_that_break_the_promise_are_refused() {
        let exactly_once = || builder().delivery_guarantee(DeliveryGuarantee::ExactlyOnce).transactional_id_prefix("p");
        assert!(error(exactly_once().property("acks", "1")).contains("acks"));
        assert!(exactly_once().property("acks", "all").build().is_ok());
        assert!(error(exactly_once().property("enable.idempotence", "false")).contains("enable.idempotence"));
        assert!(error(exactly_once().property("transactional.id", "x")).contains("transactional.id"));
        assert!(error(exactly_once().property("transaction.timeout.ms", "soon")).contains("soon"));
        assert!(error(exactly_once().property("transaction.timeout.ms", "0")).contains("transaction.timeout.ms"));
        assert!(error(builder().key_columns(["a", "b"])).contains("raw key format"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let factory: SerializerFactory = Arc::new(|_| Err("unused".to_owned()));
        assert!(error(KafkaSinkBuilder::new(factory.clone()).topic("t")).contains("bootstrap.servers"));
        assert!(error(KafkaSinkBuilder::new(factory).bootstrap_servers("x:1")).contains("no topic"));
    }
}
