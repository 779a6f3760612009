//! Two kinds of external systems.

use super::Rules;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// As Kafka: a transactional id has one transaction at a time and is used again; commit and abort act on whatever
    /// is open under it, and tell "committed", "already" and "lost" apart.
    TestsAndSets,
    /// As files: hidden until renamed to a final name. A commit that finds nothing to rename believes that it was done.
    ByName,
}

/// A pre-committed transaction as its handle describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub job: u8,
    pub generation: u8,
    pub checkpoint: u8,
    /// The number of the transactional id in its pool; 0 where there is no pool.
    pub k: u8,
    /// The records in it.
    pub records: Vec<u8>,
}

/// (job, generation, id or checkpoint), with 0 for what a broken rule leaves out.
pub type Name = (u8, u8, u8);

/// What the external system knows under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    pub open: Option<Transaction>,
    pub done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct External {
    pub kind: Kind,
    pub slots: BTreeMap<Name, Slot>,
    /// How often each record is visible: `[job - 1][record - 1]`.
    pub visible: Vec<Vec<u8>>,
}

impl External {
    pub fn name(&self, rules: &Rules, transaction: &Transaction) -> Name {
        let key = match self.kind {
            Kind::TestsAndSets => transaction.k,
            Kind::ByName => transaction.checkpoint,
        };
        let job = if rules.job_in_names { transaction.job } else { 0 };
        let generation = if rules.generation_in_names { transaction.generation } else { 0 };
        (job, generation, key)
    }

    pub fn begin(&mut self, rules: &Rules, transaction: &Transaction) {
        let name = self.name(rules, transaction);
        let slot = self.slots.entry(name).or_default();
        slot.open = Some(transaction.clone());
        if self.kind == Kind::TestsAndSets {
            slot.done = false;
        }
    }

    pub fn commit(&mut self, rules: &Rules, transaction: &Transaction) {
        let name = self.name(rules, transaction);
        let Some(slot) = self.slots.get_mut(&name) else {
            return;
        };
        let open = slot.open.take();
        let already = slot.done && self.kind == Kind::ByName;
        let Some(open) = open.filter(|_| !already) else {
            return;
        };
        slot.done = true;
        for record in open.records {
            let visible = &mut self.visible[usize::from(open.job) - 1][usize::from(record) - 1];
            *visible = (*visible + 1).min(3);
        }
    }

    /// Ends what is open and selected; whether anything was.
    pub fn abort(&mut self, selected: impl Fn(&Transaction) -> bool) -> bool {
        let mut any = false;
        for slot in self.slots.values_mut() {
            if slot.open.as_ref().is_some_and(&selected) {
                slot.open = None;
                any = true;
            }
        }
        // A name that was never committed and holds nothing is as good as unknown.
        self.slots.retain(|_, slot| slot.open.is_some() || slot.done);
        any
    }

    pub fn is_open(&self, rules: &Rules, transaction: &Transaction) -> bool {
        let slot = self.slots.get(&self.name(rules, transaction));
        slot.is_some_and(|slot| slot.open.as_ref() == Some(transaction))
    }

    pub fn is_visible(&self, job: u8, record: u8) -> bool {
        self.visible[usize::from(job) - 1][usize::from(record) - 1] > 0
    }
}
