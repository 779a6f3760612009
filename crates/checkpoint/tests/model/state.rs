//! What the model consists of: the store, the sink, and up to three incarnations. Small numbers stand for all ids.

use super::Rules;
use super::shared::Shared;
use super::sink::{External, Transaction};
use semel_checkpoint::decide::AppendStep;
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot file by name, and who really wrote what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File {
    pub job: u8,
    pub checkpoint: u8,
    pub generation: u8,
}

/// A checkpoint's entry. `position` is the number of records that it covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    pub id: u8,
    pub generation: u8,
    pub committed: u8,
    /// What `committed` claims, in records. A ghost: no decision reads it.
    pub committed_position: u8,
    pub position: u8,
    pub retained: Vec<u8>,
    pub files: Vec<File>,
    pub transactions: Vec<Transaction>,
}

/// A journal entry's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Job,
    Generation {
        generation: u8,
        restored: Option<u8>,
    },
    Checkpoint(Checkpoint),
    /// `position` is what `committed` claims, in records: a ghost.
    Committed {
        committed: u8,
        generation: u8,
        position: u8,
    },
}

/// A journal entry: `writer` is the incarnation; with the content it stands for the nonce.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub job: u8,
    pub writer: u8,
    pub start: u8,
    pub content: Content,
}

/// An entry that is being appended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    pub number: u8,
    pub record: Record,
    pub step: Step,
    pub repeated: bool,
}

/// [`AppendStep`] with `Hash`, and the listing that follows a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Put,
    ReadBack,
    ReadNext,
    Durable,
    Fenced,
    Foreign,
    /// Only where a store may be emptied; else it happens with the step before.
    ReadStart,
    List,
}

impl From<AppendStep> for Step {
    fn from(step: AppendStep) -> Step {
        match step {
            AppendStep::Put => Step::Put,
            AppendStep::ReadBack => Step::ReadBack,
            AppendStep::ReadNext => Step::ReadNext,
            AppendStep::Durable => Step::Durable,
            AppendStep::Fenced => Step::Fenced,
            AppendStep::Foreign => Step::Foreign,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Off,
    Claiming,
    /// Claimed; commits what is pending, then sweeps.
    Recovering,
    Running,
    /// Fenced or failed. (A crash needs no state of its own: it is an incarnation that does nothing more.)
    Stopped,
}

/// A checkpoint after its barrier and upload, before its entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    pub id: u8,
    pub position: u8,
    pub files: Vec<File>,
    pub transactions: Vec<Transaction>,
}

/// The right to commit an entry's transactions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permit {
    pub id: u8,
    pub position: u8,
    pub transactions: Vec<Transaction>,
}

/// What a collection is about to remove.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Collecting {
    /// Files were listed; the journal not yet read.
    Listed(BTreeSet<File>),
    /// Entries, then files.
    Planned(Vec<u8>, Vec<File>),
    /// The entries are gone.
    Files(Vec<File>),
}

/// An incarnation of the job: supervisor and workers as one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation {
    pub phase: Phase,
    pub starts: u8,
    pub job: u8,
    pub generation: u8,
    pub number: u8,
    /// Number and content of its own `Generation` entry.
    pub start: (u8, Option<Record>),
    pub position: u8,
    pub next: u8,
    pub committed: u8,
    pub committed_position: u8,
    /// `committed` once recovery is over, with its position.
    pub recovered: (u8, u8),
    pub retained: Vec<u8>,
    pub chain: Vec<File>,
    /// Transactions of a declined checkpoint.
    pub declined: Vec<Transaction>,
    pub in_flight: Vec<InFlight>,
    pub permits: Vec<Permit>,
    pub append: Option<Append>,
    pub collecting: Option<Collecting>,
    /// Transactional ids in use: (k, checkpoint).
    pub ids: Vec<(u8, u8)>,
}

impl Incarnation {
    /// Whether the entry of its first checkpoint in flight is being put.
    pub fn has_sent(&self) -> bool {
        matches!(&self.append, Some(Append { record: Record { content: Content::Checkpoint(_), .. }, .. }))
    }
}

/// How much may still happen, to bound the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Puts whose answer is lost or that are delayed.
    pub faults: u8,
    /// Uploads that fail.
    pub declines: u8,
    /// Collections.
    pub collections: u8,
    /// Entries that tell what is committed.
    pub tells: u8,
    /// The store is emptied.
    pub wipes: u8,
    /// Starts with `--from`.
    pub from: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub journal: Shared<BTreeMap<u8, Record>>,
    pub files: Shared<BTreeMap<File, u8>>,
    /// Puts that are still on their way.
    pub network: Vec<(u8, Record)>,
    pub external: Shared<External>,
    pub incarnations: Vec<Shared<Incarnation>>,
    /// How often each record may be visible, per job: more than once only after `--from` gave it up.
    pub allowed: Shared<Vec<Vec<u8>>>,
    /// A ghost: an append was called durable although a successor had claimed.
    pub misled: bool,
    pub jobs: u8,
    pub budget: Budget,
}

impl State {
    /// The name of a file, as the rules make it.
    pub fn file_name(rules: &Rules, file: File) -> File {
        File {
            job: if rules.job_in_names { file.job } else { 0 },
            checkpoint: file.checkpoint,
            generation: if rules.generation_in_names { file.generation } else { 0 },
        }
    }

    /// The job whose journal it is.
    pub fn job(&self) -> Option<u8> {
        self.journal.get(&0).map(|record| record.job)
    }

    /// The checkpoint from which a restart goes on, worked out independently of the code under test.
    pub fn head(&self) -> Option<Option<&Checkpoint>> {
        let mut head = None;
        for record in self.own() {
            match &record.content {
                Content::Job | Content::Committed { .. } => {}
                Content::Checkpoint(checkpoint) => head = Some(checkpoint.id),
                Content::Generation { restored: Some(restored), .. } => head = Some(*restored),
                Content::Generation { restored: None, .. } => {}
            }
        }
        let Some(head) = head else { return Some(None) };
        self.checkpoints().find(|checkpoint| checkpoint.id == head).map(Some)
    }

    /// The entries of the job whose journal it is.
    pub fn own(&self) -> impl DoubleEndedIterator<Item = &Record> {
        let job = self.job();
        self.journal.values().filter(move |record| Some(record.job) == job)
    }

    pub fn checkpoints(&self) -> impl DoubleEndedIterator<Item = &Checkpoint> {
        self.own().filter_map(|record| match &record.content {
            Content::Checkpoint(checkpoint) => Some(checkpoint),
            _ => None,
        })
    }
}
