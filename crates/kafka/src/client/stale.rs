//! Topics whose leaders must be asked for again: one question at a time, with growing pauses between.
use super::cluster::Cluster;
use super::deadline::{Backoff, Deadline};
use super::error::Result;
use super::metadata::ClusterMetadata;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ASK: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct StaleTopics {
    topics: BTreeSet<Arc<str>>,
    asking: bool,
    not_before: Option<Instant>,
    backoff: Backoff,
}

/// What there is to do.
pub(super) enum Ask {
    Nothing,
    /// Not before then.
    At(Instant),
    /// This; then [`StaleTopics::answered`].
    Now(BoxFuture<'static, Result<Arc<ClusterMetadata>>>),
}

impl StaleTopics {
    pub fn insert(&mut self, topic: Arc<str>) {
        self.topics.insert(topic);
    }

    pub fn extend(&mut self, topics: impl Iterator<Item = Arc<str>>) {
        self.topics.extend(topics);
    }

    pub fn ask(&mut self, cluster: &Cluster, now: Instant) -> Ask {
        if self.topics.is_empty() || self.asking {
            return Ask::Nothing;
        }
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return Ask::At(at);
        }
        self.asking = true;
        self.not_before = Some(now + self.backoff.pause());
        let (topics, cluster) = (std::mem::take(&mut self.topics), cluster.clone());
        Ask::Now(
            async move {
                let names: Vec<&str> = topics.iter().map(|t| &**t).collect();
                cluster.metadata(Some(&names), Deadline::after(ASK)).await
            }
            .boxed(),
        )
    }

    pub fn answered(&mut self) {
        self.asking = false;
    }

    /// A broker answered well: unless something is to be asked for all the same, the next pause is short again.
    pub fn calm(&mut self) {
        if self.topics.is_empty() && !self.asking {
            self.backoff = Backoff::default();
        }
    }
}
