//! [`Admin`]: topics, configurations, the cluster.
use super::cluster::{Cluster, Purpose};
use super::deadline::{Backoff, Deadline};
use super::error::{ClientError, ErrorCode, Result};
use super::metadata::{BrokerNode, TopicMetadata};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, DescribeConfigsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Name.
    pub name: String,
    /// Number of partitions, -1 for the broker's default.
    pub partitions: i32,
    /// Replicas, -1 for the broker's default.
    pub replication_factor: i16,
    /// Topic configuration.
    pub configs: Vec<(String, String)>,
}

/// One configuration value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Key.
    pub name: String,
    /// Value; `None` for null or hidden ones.
    pub value: Option<String>,
    /// Whether nobody has set it.
    pub is_default: bool,
}

/// The cluster's own description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Cluster id.
    pub cluster_id: String,
    /// Controller, or a broker that forwards to it.
    pub controller: Option<i32>,
    /// Live brokers.
    pub brokers: Vec<BrokerNode>,
}

/// Topics, configurations, the cluster.
#[derive(Clone, Debug)]
pub struct Admin {
    cluster: Cluster,
}

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

/// What is left of a deadline, as requests hold it.
fn timeout_ms(deadline: Deadline) -> i32 {
    i32::try_from(deadline.remaining().as_millis()).unwrap_or(i32::MAX).clamp(1, 30_000)
}

impl Admin {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Self {
        Admin { cluster }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Creates topics and waits until they have leaders; the codes are in the order asked (`TOPIC_ALREADY_EXISTS` is one).
    pub async fn create_topics(&self, topics: &[NewTopic], deadline: Deadline) -> Result<Vec<(ErrorCode, Option<String>)>> {
        let creatable = topics.iter().map(|t| {
            let configs =
                t.configs.iter().map(|(name, value)| CreatableTopicConfig::default().with_name(text(name)).with_value(Some(text(value))));
            CreatableTopic::default()
                .with_name(TopicName(text(&t.name)))
                .with_num_partitions(t.partitions)
                .with_replication_factor(t.replication_factor)
                .with_configs(configs.collect())
        });
        let request = CreateTopicsRequest::default().with_topics(creatable.collect()).with_timeout_ms(timeout_ms(deadline));
        let (answer, _) = self.cluster.call_any(&request, 4, 7, deadline).await?;
        let mut codes = Vec::new();
        for topic in topics {
            let found = answer.topics.iter().find(|t| t.name.0.as_str() == topic.name);
            codes.push(found.map_or((ErrorCode::UNKNOWN_SERVER_ERROR, None), |t| {
                (ErrorCode(t.error_code), t.error_message.as_ref().map(ToString::to_string))
            }));
        }
        let created: Vec<&str> = topics.iter().zip(&codes).filter(|(_, (code, _))| code.is_none()).map(|(t, _)| t.name.as_str()).collect();
        let mut backoff = Backoff::default();
        while !created.is_empty() {
            let metadata = self.cluster.metadata(Some(&created), deadline).await?;
            let ready =
                |t: &TopicMetadata| t.error.is_none() && !t.partitions.is_empty() && t.partitions.iter().all(|p| p.leader.is_some());
            if created.iter().all(|name| metadata.topics.get(*name).is_some_and(ready)) {
                break;
            }
            if !deadline.sleep(backoff.pause()).await {
                return Err(deadline.exceeded(format!("waiting for leaders of the new topics {}", created.join(", "))));
            }
        }
        Ok(codes)
    }

    /// Deletes topics; the codes are in the order asked.
    pub async fn delete_topics(&self, topics: &[&str], deadline: Deadline) -> Result<Vec<ErrorCode>> {
        let names = topics.iter().map(|t| TopicName(text(t))).collect();
        let request = DeleteTopicsRequest::default().with_topic_names(names).with_timeout_ms(timeout_ms(deadline));
        let (answer, _) = self.cluster.call_any(&request, 1, 5, deadline).await?;
        let code = |topic: &&str| {
            answer
                .responses
                .iter()
                .find(|r| r.name.as_ref().is_some_and(|n| n.0.as_str() == *topic))
                .map_or(ErrorCode::UNKNOWN_SERVER_ERROR, |r| ErrorCode(r.error_code))
        };
        Ok(topics.iter().map(code).collect())
    }

    /// Configuration of a topic; `keys` empty for all.
    pub async fn topic_configs(&self, topic: &str, keys: &[&str], deadline: Deadline) -> Result<Vec<ConfigEntry>> {
        let (answer, _) = self.cluster.call_any(&Self::configs_request(TOPIC, topic, keys), 1, 4, deadline).await?;
        Self::configs(topic, &answer)
    }

    /// Configuration of a broker (asked of that broker); `keys` empty for all. E.g. `transaction.max.timeout.ms`.
    pub async fn broker_configs(&self, broker: i32, keys: &[&str], deadline: Deadline) -> Result<Vec<ConfigEntry>> {
        let connection = self.cluster.connection(broker, Purpose::Control, deadline).await?;
        let version = connection.version::<DescribeConfigsRequest>(1, 4)?;
        let name = broker.to_string();
        let answer = connection.call(&Self::configs_request(BROKER, &name, keys), version, deadline).await?;
        Self::configs(&format!("broker {name}"), &answer)
    }

    fn configs_request(kind: i8, name: &str, keys: &[&str]) -> DescribeConfigsRequest {
        let keys = (!keys.is_empty()).then(|| keys.iter().map(|k| text(k)).collect());
        let resource =
            DescribeConfigsResource::default().with_resource_type(kind).with_resource_name(text(name)).with_configuration_keys(keys);
        DescribeConfigsRequest::default().with_resources(vec![resource])
    }

    fn configs(subject: &str, answer: &DescribeConfigsResponse) -> Result<Vec<ConfigEntry>> {
        // Source 5 is Kafka's own default.
        const DEFAULT: i8 = 5;
        let mut entries = Vec::new();
        for result in &answer.results {
            if result.error_code != 0 {
                return Err(ClientError::broker(
                    format!("the configuration of {subject}"),
                    result.error_code,
                    result.error_message.as_deref(),
                ));
            }
            entries.extend(result.configs.iter().map(|c| ConfigEntry {
                name: c.name.to_string(),
                value: c.value.as_ref().filter(|_| !c.is_sensitive).map(ToString::to_string),
                is_default: c.config_source == DEFAULT,
            }));
        }
        Ok(entries)
    }

    /// Brokers and controller.
    pub async fn describe_cluster(&self, deadline: Deadline) -> Result<ClusterDescription> {
        let metadata = self.cluster.metadata(Some(&[]), deadline).await?;
        Ok(ClusterDescription {
            cluster_id: metadata.cluster_id.clone().unwrap_or_default(),
            controller: metadata.controller,
            brokers: metadata.brokers.values().cloned().collect(),
        })
    }
}
