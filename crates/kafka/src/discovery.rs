//! Finds the topics and offsets of a source in the cluster.

use crate::client::{Cluster, ErrorCode, IsolationLevel, OffsetSpec, Offsets, TopicPartition};
use crate::config::{OffsetResetStrategy, SourceSettings, TopicSelection};
use crate::connect::{acl, connector_error};
use crate::split::{OffsetQuery, Split, SplitDetail, TopicFacts, Topics, starting_query, stopping_query};
use crate::{ConnectorError, ConnectorResult};
use std::collections::HashMap;
use std::time::Duration;

/// What helps where a read begins at offsets that the group has not committed.
const NO_START: &str = "set the property auto.offset.reset to earliest or latest, or another startup mode";
/// What helps where it ends there.
const NO_STOP: &str = "commit one with kafka-consumer-groups.sh --reset-offsets, or set another bounded mode";

/// Asks the cluster for a source.
#[derive(Debug, Clone)]
pub struct Discovery {
    cluster: Cluster,
}

impl Discovery {
    /// On this cluster.
    pub fn new(cluster: Cluster) -> Discovery {
        Discovery { cluster }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The selected topics that exist. With `complete`, a topic of a list that does not exist is an error; else it is left out.
    pub async fn topics(&self, selection: &TopicSelection, complete: bool) -> ConnectorResult<Topics> {
        let deadline = self.cluster.deadline();
        loop {
            let names: Option<Vec<&str>> = match selection {
                TopicSelection::Topics(names) => Some(names.iter().map(String::as_str).collect()),
                TopicSelection::Pattern(_) => None,
            };
            let metadata = self.cluster.metadata(names.as_deref(), deadline).await.map_err(connector_error)?;
            let mut topics = Topics::new();
            let mut unready = None;
            for topic in metadata.topics.values().filter(|topic| selection.matches(&topic.name)) {
                let listed = names.is_some();
                match topic.error {
                    ErrorCode::NONE if topic.internal && !listed => {}
                    ErrorCode::NONE => {
                        let id = (!topic.id.is_nil()).then_some(topic.id);
                        topics.insert(topic.name.to_string(), TopicFacts { id, partitions: topic.partitions.len() as i32 });
                    }
                    ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {}
                    error => match acl(error, &topic.name) {
                        Some(command) if listed => {
                            return Err(ConnectorError::Fatal(format!(
                                "topic {} cannot be read: {error}; grant it with {command}",
                                topic.name
                            )));
                        }
                        Some(_) => {} // A pattern selects among what may be seen.
                        None => unready = Some(format!("topic {} is not ready: {error}", topic.name)),
                    },
                }
            }
            match unready {
                None => {
                    let missing = names.iter().flatten().find(|name| !topics.contains_key(**name));
                    if let (true, Some(missing)) = (complete, missing) {
                        return Err(ConnectorError::Fatal(format!(
                            "topic {missing} does not exist: create it with kafka-topics.sh --bootstrap-server {} --create --topic {missing}, or correct the source's topics",
                            self.cluster.config().bootstrap.join(",")
                        )));
                    }
                    return Ok(topics);
                }
                Some(text) if !deadline.sleep(Duration::from_millis(200)).await => return Err(ConnectorError::Retryable(text)),
                Some(_) => {}
            }
        }
    }

    /// The splits of these partitions at a fresh start: where each begins and, for a bounded source, where it ends.
    pub async fn initial_splits(
        &self,
        settings: &SourceSettings,
        topics: &Topics,
        partitions: Vec<TopicPartition>,
    ) -> ConnectorResult<Vec<Split>> {
        let starts: Vec<_> =
            partitions.iter().map(|partition| (partition.clone(), starting_query(&settings.starting, partition))).collect();
        let stops: Vec<_> =
            partitions.iter().filter_map(|partition| Some((partition.clone(), stopping_query(&settings.bounded, partition)?))).collect();
        let starts = self.resolve(settings, &starts, NO_START).await?;
        let stops = self.resolve(settings, &stops, NO_STOP).await?;
        let splits = partitions.into_iter().map(|partition| {
            let position = starts.get(&partition).copied().unwrap_or(0);
            let topic_id = topics.get(&*partition.topic).and_then(|topic| topic.id);
            let detail = SplitDetail { topic_id, stop_offset: stops.get(&partition).copied() };
            Split { partition, position, detail }
        });
        Ok(splits.collect())
    }

    /// Splits that were read without an end so far, of a source that is bounded now: where they end. Those that have an end keep it.
    pub async fn bound(&self, settings: &SourceSettings, splits: &mut [Split]) -> ConnectorResult<()> {
        let endless = splits.iter().filter(|split| split.detail.stop_offset.is_none()).map(|split| &split.partition);
        let stops: Vec<_> = endless.filter_map(|p| Some((p.clone(), stopping_query(&settings.bounded, p)?))).collect();
        let stops = self.resolve(settings, &stops, NO_STOP).await?;
        for split in splits {
            split.detail.stop_offset = split.detail.stop_offset.or_else(|| stops.get(&split.partition).copied());
        }
        Ok(())
    }

    /// The splits of partitions that appeared while the job runs: from the beginning, whatever the startup mode.
    pub async fn new_splits(&self, topics: &Topics, partitions: Vec<TopicPartition>) -> ConnectorResult<Vec<Split>> {
        let wanted: Vec<_> = partitions.iter().map(|partition| (partition.clone(), OffsetSpec::Earliest)).collect();
        let begins = self.list(&wanted, IsolationLevel::ReadUncommitted).await?;
        let splits = partitions.into_iter().map(|partition| {
            let topic_id = topics.get(&*partition.topic).and_then(|topic| topic.id);
            let position = begins.get(&partition).copied().flatten().unwrap_or(0);
            Split { partition, position, detail: SplitDetail { topic_id, stop_offset: None } }
        });
        Ok(splits.collect())
    }

    async fn list(
        &self,
        wanted: &[(TopicPartition, OffsetSpec)],
        isolation: IsolationLevel,
    ) -> ConnectorResult<HashMap<TopicPartition, Option<i64>>> {
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let listed = Offsets::new(self.cluster.clone()).list(wanted, isolation, self.cluster.deadline()).await.map_err(connector_error)?;
        let mut found = HashMap::new();
        for (partition, _) in wanted {
            match listed.get(partition) {
                Some(Ok(listed)) => _ = found.insert(partition.clone(), listed.offset),
                Some(Err(code)) => {
                    let text = format!("the offsets of {partition} cannot be listed: {code}");
                    return Err(match acl(*code, &partition.topic) {
                        Some(command) => ConnectorError::Fatal(format!("{text}; grant it with {command}")),
                        None => ConnectorError::Retryable(text),
                    });
                }
                None => return Err(ConnectorError::Retryable(format!("the offsets of {partition} were not answered"))),
            }
        }
        Ok(found)
    }

    /// Turns queries into offsets. `remedy`: what to do where the group has committed none.
    async fn resolve(
        &self,
        settings: &SourceSettings,
        queries: &[(TopicPartition, OffsetQuery)],
        remedy: &str,
    ) -> ConnectorResult<HashMap<TopicPartition, i64>> {
        let mut found = HashMap::new();
        let mut committed_wanted = Vec::new();
        let mut specs = Vec::new();
        let mut ask = |partition: &TopicPartition, spec| specs.push((partition.clone(), spec));
        for (partition, query) in queries {
            match query {
                OffsetQuery::At(offset) => _ = found.insert(partition.clone(), *offset),
                OffsetQuery::Earliest => ask(partition, OffsetSpec::Earliest),
                OffsetQuery::Latest => ask(partition, OffsetSpec::Latest),
                OffsetQuery::Timestamp(ms) => ask(partition, OffsetSpec::Timestamp(*ms)),
                OffsetQuery::Committed(_) => committed_wanted.push(partition.clone()),
            }
        }
        if let (false, Some(group)) = (committed_wanted.is_empty(), &settings.group_id) {
            let committed = Offsets::new(self.cluster.clone())
                .committed(group, &committed_wanted, self.cluster.deadline())
                .await
                .map_err(connector_error)?;
            for (partition, query) in queries {
                let OffsetQuery::Committed(reset) = query else { continue };
                match (committed.get(partition), reset) {
                    (Some(committed), _) => _ = found.insert(partition.clone(), committed.offset),
                    (None, OffsetResetStrategy::Earliest) => specs.push((partition.clone(), OffsetSpec::Earliest)),
                    (None, OffsetResetStrategy::Latest) => specs.push((partition.clone(), OffsetSpec::Latest)),
                    (None, OffsetResetStrategy::None) => {
                        return Err(ConnectorError::Fatal(format!("group {group} has committed no offset for {partition}: {remedy}")));
                    }
                }
            }
        }
        let listed = self.list(&specs, settings.isolation).await?;
        let beyond = specs.iter().filter(|(partition, _)| listed.get(partition).copied().flatten().is_none());
        // No record has the asked timestamp or a later one: the end.
        let ends: Vec<_> = beyond.map(|(partition, _)| (partition.clone(), OffsetSpec::Latest)).collect();
        let ends = self.list(&ends, settings.isolation).await?;
        for (partition, _) in specs {
            let offset = listed.get(&partition).copied().flatten().or_else(|| ends.get(&partition).copied().flatten());
            let Some(offset) = offset else {
                return Err(ConnectorError::Retryable(format!("the end of {partition} was not answered")));
            };
            found.insert(partition, offset);
        }
        Ok(found)
    }
}
