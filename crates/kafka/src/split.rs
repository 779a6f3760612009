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

/// How a restored source goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// Without an end. The stop offsets of a former bounded run are dropped.
    Endless {
        /// Partitions that the checkpoint does not know.
        new: Vec<TopicPartition>,
        /// Number of splits that had a stop offset.
        dropped: usize,
    },
    /// Up to bounds that are taken now, as at a fresh start: the former run had none.
    BoundNow {
        /// Partitions that the checkpoint does not know; they are read from the beginning.
        new: Vec<TopicPartition>,
    },
    /// Up to the bounds of the checkpoint: so a bounded job that was killed ends at the same place as one that was not.
    Bounded {
        /// Partitions that the checkpoint does not know: beyond the bounds, not read.
        beyond: Vec<TopicPartition>,
        /// Every split stands at its end already: nothing is read.
        ended: bool,
    },
}

/// Decides how a source goes on from `restored`, the splits of all subtasks, in the topics that exist now. Every subtask must see the
/// same splits to decide the same. Drops the stop offsets where the source is unbounded now.
pub fn resume(restored: &mut [Split], bounded: &BoundedMode, topics: &Topics) -> Resumed {
    let new = undiscovered(topics, &restored.iter().map(|split| split.partition.clone()).collect());
    let stopped = restored.iter().filter(|split| split.detail.stop_offset.is_some()).count();
    if *bounded == BoundedMode::Unbounded {
        restored.iter_mut().for_each(|split| split.detail.stop_offset = None);
        return Resumed::Endless { new, dropped: stopped };
    }
    match stopped {
        0 => Resumed::BoundNow { new },
        _ => Resumed::Bounded { beyond: new, ended: restored.iter().all(|split| reached(split.position, split.detail.stop_offset)) },
    }
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

    fn at(partition: i32, position: i64, stop_offset: Option<i64>) -> Split {
        let detail = SplitDetail { topic_id: None, stop_offset };
        Split { partition: TopicPartition::new("a-b", partition), position, detail }
    }

    #[test]
    fn an_endless_run_that_is_bounded_now_takes_its_bounds_now_also_for_new_partitions() {
        let mut restored = [at(0, 5, None), at(2, 7, None)];
        let new = vec![TopicPartition::new("a-b", 1), TopicPartition::new("a-b", 3)];
        let before = restored.clone();
        assert_eq!(resume(&mut restored, &BoundedMode::Latest, &topics(1, 4)), Resumed::BoundNow { new });
        assert_eq!(restored, before);
        // Nothing was found so far, or what was read is not selected any more.
        let all = (0..2).map(|p| TopicPartition::new("a-b", p)).collect();
        assert_eq!(resume(&mut [], &BoundedMode::Latest, &topics(1, 2)), Resumed::BoundNow { new: all });
    }

    #[test]
    fn a_bounded_run_keeps_its_bounds_and_knows_when_it_is_at_its_end() {
        let beyond = vec![TopicPartition::new("a-b", 1)];
        let mut restored = [at(0, 5, Some(5)), at(2, 6, Some(7))];
        let before = restored.clone();
        let bounded = |ended| Resumed::Bounded { beyond: beyond.clone(), ended };
        assert_eq!(resume(&mut restored, &BoundedMode::Latest, &topics(1, 3)), bounded(false));
        assert_eq!(restored, before);
        restored[1].position = 7;
        assert_eq!(resume(&mut restored, &BoundedMode::Latest, &topics(1, 3)), bounded(true));
        // A split without a bound among those that have one is not at its end.
        assert_eq!(resume(&mut [at(0, 5, Some(5)), at(2, 7, None)], &BoundedMode::Latest, &topics(1, 3)), bounded(false));
    }

    #[test]
    fn a_bounded_run_that_is_unbounded_now_goes_on() {
        let mut restored = [at(0, 5, Some(5)), at(1, 6, Some(7)), at(2, 0, None)];
        let new = vec![TopicPartition::new("a-b", 3)];
        assert_eq!(resume(&mut restored, &BoundedMode::Unbounded, &topics(1, 4)), Resumed::Endless { new, dropped: 2 });
        assert_eq!(restored, [at(0, 5, None), at(1, 6, None), at(2, 0, None)]);
        assert_eq!(resume(&mut restored, &BoundedMode::Unbounded, &topics(1, 3)), Resumed::Endless { new: vec![], dropped: 0 });
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
