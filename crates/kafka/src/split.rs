//! Splits of the source, one per partition: names, what the checkpoint keeps of them, and the decisions about them. Pure.

use crate::client::TopicPartition;
use crate::config::{BoundedMode, OffsetResetStrategy, OffsetsInitializer};
use semel_checkpoint::SplitState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// The partition of a split's name, `<topic>-<partition>`.
pub fn parse_split(split: &str) -> Option<TopicPartition> {
    let (topic, partition) = split.rsplit_once('-')?;
    let parsed = TopicPartition::new(topic, partition.parse().ok()?);
    (!topic.is_empty() && parsed.partition >= 0 && parsed.to_string() == split).then_some(parsed)
}

/// What a checkpoint keeps of a partition besides the next offset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitDetail {
    /// Tells a topic from one of the same name that was created later. `None`: a broker without topic ids (before 2.8).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<Uuid>,
    /// Where a bounded read ends, exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_offset: Option<i64>,
}

/// A split as the reader works with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Which partition.
    pub partition: TopicPartition,
    /// Next offset to read.
    pub position: i64,
    /// The rest.
    pub detail: SplitDetail,
}

impl Split {
    /// As the checkpoint keeps it.
    pub fn to_state(&self) -> SplitState {
        SplitState {
            split: self.partition.to_string(),
            position: self.position,
            watermark: None,
            detail: serde_json::to_value(self.detail).unwrap_or_default(),
        }
    }

    /// From a checkpoint. `Err` says what cannot be read.
    pub fn from_state(state: &SplitState) -> Result<Split, String> {
        let unreadable = |what: &str| format!("the checkpoint's split {:?} is not one of a Kafka source: {what}", state.split);
        let partition = parse_split(&state.split).ok_or_else(|| unreadable("its name is not <topic>-<partition>"))?;
        let detail = match &state.detail {
            serde_json::Value::Null => SplitDetail::default(),
            value => SplitDetail::deserialize(value).map_err(|error| unreadable(&error.to_string()))?,
        };
        Ok(Split { partition, position: state.position, detail })
    }
}

/// A topic as the cluster's metadata shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicFacts {
    /// `None`: the broker has no topic ids.
    pub id: Option<Uuid>,
    /// Number of partitions.
    pub partitions: i32,
}

/// The topics that exist, by name.
pub type Topics = BTreeMap<String, TopicFacts>;

/// Whether a split can still be read from these topics; `Err` says what became of its topic.
pub fn check_topic(split: &Split, topics: &Topics) -> Result<(), String> {
    let name = &split.partition.topic;
    let remedy = "start the job from a savepoint of the time before, or without state, or name another topic; the offsets in the state mean nothing in a new topic";
    let Some(topic) = topics.get(&**name) else {
        return Err(format!(
            "topic {name} does not exist any more: it was deleted, and what was not read from {} at offset {} on is gone; {remedy}",
            split.partition, split.position
        ));
    };
    if let (Some(recorded), Some(found)) = (split.detail.topic_id, topic.id)
        && recorded != found
    {
        return Err(format!(
            "topic {name} was deleted and created again (topic id {found}, was {recorded}), position {} of {} belongs to the former; {remedy}",
            split.position, split.partition
        ));
    }
    if split.partition.partition >= topic.partitions {
        return Err(format!(
            "topic {name} has {} partitions, so {} does not exist any more: the topic was deleted and created again; {remedy}",
            topic.partitions, split.partition
        ));
    }
    Ok(())
}

/// Partitions that exist and are not known yet, in order.
pub fn undiscovered(topics: &Topics, known: &BTreeSet<TopicPartition>) -> Vec<TopicPartition> {
    let all = topics.iter().flat_map(|(name, facts)| {
        let topic: Arc<str> = name.as_str().into();
        (0..facts.partitions).map(move |partition| TopicPartition { topic: topic.clone(), partition })
    });
    all.filter(|partition| !known.contains(partition)).collect()
}

/// Where an offset comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetQuery {
    /// Known without asking.
    At(i64),
    /// The oldest offset that the broker has.
    Earliest,
    /// The end of the partition (for `read_committed` readers, of what is committed).
    Latest,
    /// The first record with this timestamp or a later one; the end where there is none.
    Timestamp(i64),
    /// What the group has committed; where it has nothing, as the strategy says.
    Committed(OffsetResetStrategy),
}

/// Where to begin a partition that the first discovery of a fresh start has found.
pub fn starting_query(initializer: &OffsetsInitializer, partition: &TopicPartition) -> OffsetQuery {
    match initializer {
        OffsetsInitializer::Earliest => OffsetQuery::Earliest,
        OffsetsInitializer::Latest => OffsetQuery::Latest,
        OffsetsInitializer::CommittedOffsets(reset) => OffsetQuery::Committed(*reset),
        OffsetsInitializer::Timestamp(ms) => OffsetQuery::Timestamp(*ms),
        OffsetsInitializer::Offsets(offsets) => {
            offsets.get(&partition.to_string()).map_or(OffsetQuery::Earliest, |offset| OffsetQuery::At(*offset))
        }
    }
}

/// Where to end a partition; `None`: never.
pub fn stopping_query(bounded: &BoundedMode, partition: &TopicPartition) -> Option<OffsetQuery> {
    Some(match bounded {
        BoundedMode::Unbounded => return None,
        BoundedMode::Latest => OffsetQuery::Latest,
        BoundedMode::Timestamp(ms) => OffsetQuery::Timestamp(*ms),
        BoundedMode::CommittedOffsets => OffsetQuery::Committed(OffsetResetStrategy::None),
        // As in Flink: a partition that is not named is not read.
        BoundedMode::Offsets(offsets) => OffsetQuery::At(offsets.get(&partition.to_string()).copied().unwrap_or(0)),
    })
}

/// Whether a read that stands at `position` has reached its bound.
pub fn reached(position: i64, stop: Option<i64>) -> bool {
    stop.is_some_and(|stop| position >= stop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn split(topic_id: u128) -> Split {
        Split {
            partition: TopicPartition::new("a-b", 3),
            position: 17,
            detail: SplitDetail { topic_id: Some(Uuid::from_u128(topic_id)), stop_offset: Some(20) },
        }
    }

    fn topics(id: u128, partitions: i32) -> Topics {
        [("a-b".to_owned(), TopicFacts { id: Some(Uuid::from_u128(id)), partitions })].into()
    }

    #[test]
    fn a_split_survives_the_checkpoint() {
        let state = split(1).to_state();
        assert_eq!((state.split.as_str(), state.position), ("a-b-3", 17));
        assert_eq!(Split::from_state(&state).unwrap(), split(1));
        for bad in ["", "a", "-3", "a-", "a-03", "a-x"] {
            let state = SplitState { split: bad.to_owned(), ..state.clone() };
            assert!(Split::from_state(&state).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_topic_that_is_not_the_one_that_was_read_is_refused() {
        assert_eq!(check_topic(&split(1), &topics(1, 4)), Ok(()));
        let recreated = check_topic(&split(1), &topics(2, 4)).unwrap_err();
        assert!(recreated.contains("created again") && recreated.contains("17") && recreated.contains("a-b-3"), "{recreated}");
        let fewer = check_topic(&split(1), &topics(1, 3)).unwrap_err();
        assert!(fewer.contains("3 partitions"), "{fewer}");
        let gone = check_topic(&split(1), &Topics::new()).unwrap_err();
        assert!(gone.contains("does not exist"), "{gone}");
    }

    #[test]
    fn without_topic_ids_only_the_number_of_partitions_is_compared() {
        let mut old = topics(1, 4);
        old.get_mut("a-b").unwrap().id = None;
        assert_eq!(check_topic(&split(1), &old), Ok(()));
    }

    #[test]
    fn new_partitions_are_those_that_nobody_knows() {
        let known = [TopicPartition::new("a-b", 0), TopicPartition::new("a-b", 2)].into();
        let new = undiscovered(&topics(1, 4), &known);
        assert_eq!(new, [TopicPartition::new("a-b", 1), TopicPartition::new("a-b", 3)]);
    }

    #[test]
    fn start_and_stop_follow_the_modes() {
        let partition = TopicPartition::new("t", 1);
        let named = BTreeMap::from([("t-1".to_owned(), 5)]);
        assert_eq!(starting_query(&OffsetsInitializer::Offsets(named.clone()), &partition), OffsetQuery::At(5));
        assert_eq!(starting_query(&OffsetsInitializer::Offsets(named.clone()), &TopicPartition::new("t", 0)), OffsetQuery::Earliest);
        assert_eq!(stopping_query(&BoundedMode::Unbounded, &partition), None);
        assert_eq!(stopping_query(&BoundedMode::Offsets(named.clone()), &partition), Some(OffsetQuery::At(5)));
        assert_eq!(stopping_query(&BoundedMode::Offsets(named), &TopicPartition::new("t", 0)), Some(OffsetQuery::At(0)));
        assert!(reached(5, Some(5)) && !reached(4, Some(5)) && !reached(i64::MAX, None));
    }
}
