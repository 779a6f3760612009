//! Settings of the source.

use super::{BoundedMode, ConfigError, KafkaProperties, OffsetResetStrategy, OffsetsInitializer, OnBadRecord, bootstrap_servers};
use crate::client::IsolationLevel;
use crate::connect::{ClientSettings, client_settings};
use crate::effect::{Role, without_effect};
use crate::source::KafkaSource;
use crate::split::parse_split;
use arrow::datatypes::{DataType, Field, Fields, SchemaRef, TimeUnit};
use semel_formats::DeserializationSchema;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Makes a deserializer; called once per subtask.
pub type DeserializerFactory = Arc<dyn Fn() -> Result<Box<dyn DeserializationSchema>, String> + Send + Sync>;

/// Which topics are read.
#[derive(Debug, Clone)]
pub enum TopicSelection {
    /// These. All must exist.
    Topics(Vec<String>),
    /// All whose whole name matches.
    Pattern(regex::Regex),
}

impl TopicSelection {
    /// Whether a topic is read.
    pub fn matches(&self, topic: &str) -> bool {
        match self {
            TopicSelection::Topics(topics) => topics.iter().any(|name| name == topic),
            TopicSelection::Pattern(pattern) => pattern.is_match(topic),
        }
    }
}

/// What a metadata column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataField {
    /// Topic, text.
    Topic,
    /// Partition, 32 bits.
    Partition,
    /// Offset, 64 bits.
    Offset,
    /// Record timestamp, ms UTC.
    Timestamp,
    /// Key, bytes; NULL without key.
    Key,
    /// Headers, a map from text to bytes.
    Headers,
}

impl MetadataField {
    /// The column's type and whether it can be NULL.
    pub fn data_type(self) -> (DataType, bool) {
        match self {
            MetadataField::Topic => (DataType::Utf8, false),
            MetadataField::Partition => (DataType::Int32, false),
            MetadataField::Offset => (DataType::Int64, false),
            MetadataField::Timestamp => (DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())), false),
            MetadataField::Key => (DataType::Binary, true),
            MetadataField::Headers => {
                let entry = Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Binary, true)]);
                (DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false), false)
            }
        }
    }
}

/// A column that is appended to the decoded ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataColumn {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub field: MetadataField,
}

/// Checked settings of a [`KafkaSource`].
#[derive(Clone)]
pub struct SourceSettings {
    /// `bootstrap.servers`.
    pub bootstrap_servers: String,
    /// All of Kafka's own settings.
    pub properties: KafkaProperties,
    /// The same, as the client takes them.
    pub client: ClientSettings,
    /// What is read.
    pub topics: TopicSelection,
    /// `group.id`, for group offsets.
    pub group_id: Option<String>,
    /// Where a fresh start begins.
    pub starting: OffsetsInitializer,
    /// Where it ends.
    pub bounded: BoundedMode,
    /// Which records are seen.
    pub isolation: IsolationLevel,
    /// How often new topics and partitions are looked for; `None`: never.
    pub discovery_interval: Option<Duration>,
    /// What happens to a record that cannot be decoded.
    pub on_bad_record: OnBadRecord,
    /// Whether the group's offsets are committed when a checkpoint is complete (for monitoring only).
    pub commit_offsets_on_checkpoint: bool,
    /// Settings of Kafka's that were given and do nothing, with the reasons.
    pub without_effect: Vec<String>,
    /// Appended columns.
    pub metadata: Vec<MetadataColumn>,
    /// Of the rows, with the metadata columns.
    pub schema: SchemaRef,
    /// Makes the deserializer.
    pub deserializer: DeserializerFactory,
}

impl fmt::Debug for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSettings")
            .field("properties", &self.properties)
            .field("topics", &self.topics)
            .field("starting", &self.starting)
            .field("bounded", &self.bounded)
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// Builds a [`KafkaSource`].
#[derive(Clone)]
pub struct KafkaSourceBuilder {
    properties: KafkaProperties,
    topics: Option<Result<TopicSelection, ConfigError>>,
    starting: OffsetsInitializer,
    bounded: BoundedMode,
    discovery_interval: Option<Duration>,
    on_bad_record: OnBadRecord,
    commit_offsets: Option<bool>,
    metadata: Vec<MetadataColumn>,
    deserializer: DeserializerFactory,
}

impl KafkaSourceBuilder {
    /// With the deserializer of the value.
    pub fn new(deserializer: DeserializerFactory) -> KafkaSourceBuilder {
        KafkaSourceBuilder {
            properties: KafkaProperties::default(),
            topics: None,
            starting: OffsetsInitializer::default(),
            bounded: BoundedMode::default(),
            discovery_interval: Some(Duration::from_secs(300)),
            on_bad_record: OnBadRecord::default(),
            commit_offsets: None,
            metadata: Vec::new(),
            deserializer,
        }
    }

    /// `bootstrap.servers`: `host:port`, separated by commas.
    pub fn bootstrap_servers(self, servers: impl Into<String>) -> Self {
        self.property("bootstrap.servers", servers)
    }

    /// Any setting of Kafka's consumer, by its name there.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.set(name, value);
        self
    }

    /// `group.id`.
    pub fn group_id(self, group: impl Into<String>) -> Self {
        self.property("group.id", group)
    }

    /// Reads these topics.
    pub fn topics(mut self, topics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.topics = Some(Ok(TopicSelection::Topics(topics.into_iter().map(Into::into).collect())));
        self
    }

    /// Reads all topics whose whole name matches this regular expression.
    pub fn topic_pattern(mut self, pattern: &str) -> Self {
        self.topics = Some(
            regex::Regex::new(&format!("^(?:{pattern})$"))
                .map(TopicSelection::Pattern)
                .map_err(|error| ConfigError(format!("the topic pattern {pattern:?} is not a regular expression: {error}"))),
        );
        self
    }

    /// Where a fresh start begins; default earliest. The property `auto.offset.reset` fills in what
    /// [`committed_offsets`](OffsetsInitializer::committed_offsets) leaves open: where to begin partitions without a committed offset.
    pub fn starting_offsets(mut self, initializer: OffsetsInitializer) -> Self {
        self.starting = initializer;
        self
    }

    /// Where to stop; default never.
    pub fn bounded(mut self, mode: BoundedMode) -> Self {
        self.bounded = mode;
        self
    }

    /// `partition.discovery.interval.ms`; default 5 minutes, `None`: no discovery.
    pub fn partition_discovery_interval(mut self, interval: Option<Duration>) -> Self {
        self.discovery_interval = interval.filter(|interval| !interval.is_zero());
        self
    }

    /// What happens to a record that cannot be decoded; default: the job fails.
    pub fn on_bad_record(mut self, policy: OnBadRecord) -> Self {
        self.on_bad_record = policy;
        self
    }

    /// `commit.offsets.on.checkpoint`; default: if there is a `group.id`. The property of that name says the same and counts more.
    pub fn commit_offsets_on_checkpoint(mut self, commit: bool) -> Self {
        self.commit_offsets = Some(commit);
        self
    }

    /// Appends a column.
    pub fn metadata_column(mut self, name: impl Into<String>, field: MetadataField) -> Self {
        self.metadata.push(MetadataColumn { name: name.into(), field });
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Names the setting, what was found and what is needed.
    pub fn build(self) -> Result<KafkaSource, ConfigError> {
        let wrong = |text: String| Err(ConfigError(text));
        let bootstrap_servers = bootstrap_servers(&self.properties)?;
        let topics =
            self.topics.unwrap_or_else(|| Err(ConfigError("the Kafka source has no topics: set topics or a topic pattern".to_owned())))?;
        if matches!(&topics, TopicSelection::Topics(names) if names.is_empty() || names.iter().any(String::is_empty)) {
            return wrong("the Kafka source's list of topics is empty, or has an empty name".to_owned());
        }
        let isolation = match self.properties.get("isolation.level") {
            None | Some("read_committed") => IsolationLevel::ReadCommitted,
            Some("read_uncommitted") => IsolationLevel::ReadUncommitted,
            Some(other) => return wrong(format!("isolation.level must be read_committed or read_uncommitted, found {other:?}")),
        };
        let group_id = self.properties.get("group.id").map(str::to_owned).filter(|group| !group.is_empty());
        let mut without_effect = without_effect(&self.properties, Role::Source);
        let (starting, ineffective) = reset(self.starting, self.properties.get("auto.offset.reset"))?;
        without_effect.extend(ineffective);
        let needs_group = matches!(starting, OffsetsInitializer::CommittedOffsets(_)) || self.bounded == BoundedMode::CommittedOffsets;
        if needs_group && group_id.is_none() {
            return wrong("group offsets need group.id".to_owned());
        }
        let commit_offsets = match self.properties.get("commit.offsets.on.checkpoint").map(str::trim) {
            None => self.commit_offsets,
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(other) => return wrong(format!("commit.offsets.on.checkpoint must be true or false, found {other:?}")),
        };
        let commit_offsets_on_checkpoint = commit_offsets.unwrap_or(group_id.is_some());
        if commit_offsets_on_checkpoint && group_id.is_none() {
            return wrong("commit.offsets.on.checkpoint needs group.id".to_owned());
        }
        for offsets in [
            if let OffsetsInitializer::Offsets(offsets) = &starting { Some(offsets) } else { None },
            if let BoundedMode::Offsets(offsets) = &self.bounded { Some(offsets) } else { None },
        ]
        .into_iter()
        .flatten()
        {
            for (name, offset) in offsets {
                match parse_split(name) {
                    Some(partition) if topics.matches(&partition.topic) && *offset >= 0 => {}
                    _ => {
                        return wrong(format!(
                            "specific offset {name:?} = {offset}: expected <topic>-<partition> of a topic that is read, and an offset from 0 on"
                        ));
                    }
                }
            }
        }
        let schema = (self.deserializer)().map_err(ConfigError)?.schema().clone();
        let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
        for column in &self.metadata {
            if fields.iter().any(|field| *field.name() == column.name) {
                return wrong(format!("metadata column {:?} has the name of another column", column.name));
            }
            let (data_type, nullable) = column.field.data_type();
            fields.push(Arc::new(Field::new(&column.name, data_type, nullable)));
        }
        let discovery_interval = match self.properties.get("partition.discovery.interval.ms") {
            None => self.discovery_interval,
            Some(text) => match text.trim().parse::<i64>() {
                Ok(ms) => u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis),
                Err(_) => return wrong(format!("partition.discovery.interval.ms must be a number of milliseconds, found {text:?}")),
            },
        };
        let mut client = client_settings(&self.properties)?;
        client.fetch.isolation = isolation;
        Ok(KafkaSource::new(SourceSettings {
            bootstrap_servers,
            client,
            properties: self.properties,
            topics,
            group_id,
            starting,
            bounded: self.bounded,
            isolation,
            discovery_interval,
            on_bad_record: self.on_bad_record,
            commit_offsets_on_checkpoint,
            without_effect,
            metadata: self.metadata,
            schema: Arc::new(arrow::datatypes::Schema::new_with_metadata(fields, schema.metadata().clone())),
            deserializer: self.deserializer,
        }))
    }
}

impl OffsetsInitializer {
    /// `group-offsets`, failing where the group has none.
    pub fn committed_offsets() -> OffsetsInitializer {
        OffsetsInitializer::CommittedOffsets(OffsetResetStrategy::None)
    }
}

/// Where to begin by `auto.offset.reset`, and what to say where it does nothing. It is asked only where the group has committed
/// nothing and the program does not say; a position that is out of range is never reset by it.
fn reset(starting: OffsetsInitializer, property: Option<&str>) -> Result<(OffsetsInitializer, Option<String>), ConfigError> {
    let strategy = match property.map(|text| text.trim().to_ascii_lowercase()).as_deref() {
        None => return Ok((starting, None)),
        Some("earliest") => OffsetResetStrategy::Earliest,
        Some("latest") => OffsetResetStrategy::Latest,
        Some("none") => OffsetResetStrategy::None,
        Some(other) => return Err(ConfigError(format!("auto.offset.reset must be earliest, latest or none, found {other:?}"))),
    };
    let ineffective = match starting {
        OffsetsInitializer::CommittedOffsets(OffsetResetStrategy::None) => {
            return Ok((OffsetsInitializer::CommittedOffsets(strategy), None));
        }
        OffsetsInitializer::CommittedOffsets(own) if own == strategy => None,
        OffsetsInitializer::CommittedOffsets(_) => Some("the program says something else"),
        _ => Some("used by startup mode group-offsets only, OffsetsInitializer::committed_offsets()"),
    };
    Ok((starting, ineffective.map(|why| format!("auto.offset.reset ({why})"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use OffsetResetStrategy::{Earliest, Latest, None as Fail};
    use OffsetsInitializer::CommittedOffsets as Committed;

    #[test]
    fn auto_offset_reset_fills_in_what_the_program_leaves_open() {
        assert_eq!(reset(Committed(Fail), Some("Earliest")), Ok((Committed(Earliest), None)));
        assert_eq!(reset(Committed(Fail), Some("none")), Ok((Committed(Fail), None)));
        assert_eq!(reset(Committed(Fail), None), Ok((Committed(Fail), None)));
        assert_eq!(reset(Committed(Latest), Some("latest")), Ok((Committed(Latest), None)));
        let named = |starting: OffsetsInitializer, property| match reset(starting.clone(), Some(property)) {
            Ok((same, Some(text))) => same == starting && text.starts_with("auto.offset.reset ("),
            _ => false,
        };
        assert!(named(Committed(Latest), "earliest") && named(OffsetsInitializer::Earliest, "latest"));
        assert!(reset(Committed(Fail), Some("soonest")).is_err_and(|error| error.0.contains("soonest")));
    }

    #[test]
    fn commits_at_checkpoints_can_be_turned_off_by_property() {
        let schema: SchemaRef = Arc::new(arrow::datatypes::Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let builder = KafkaSource::json(schema).bootstrap_servers("localhost:1").topics(["t"]).group_id("g");
        let commits = |builder: KafkaSourceBuilder| builder.build().map(|source| source.settings().commit_offsets_on_checkpoint);
        assert_eq!(commits(builder.clone()), Ok(true));
        assert_eq!(commits(builder.clone().property("commit.offsets.on.checkpoint", "false")), Ok(false));
        assert!(commits(builder.property("commit.offsets.on.checkpoint", "no")).is_err());
    }
}
