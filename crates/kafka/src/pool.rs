//! The transactional ids of one subtask, shared by its writer and its committer. Pure: no I/O.
//!
//! An id goes round: *fresh* -> *initialising* -> *ready* -> *open* -> *ended* -> *ready*. It leaves *ended* only when all are
//! true: its `EndTxn` was answered NONE, a durable journal entry says that the checkpoint is committed, and the partitions show the
//! end. The answer alone is not enough: after a crash the commit is repeated until an entry says so, and a repeat after the id's
//! next transaction has begun could not be told from a loss. For the partitions see [`hanging`](crate::hanging).

use crate::ids::{IdParts, IdScope};
use semel_checkpoint::CheckpointId;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// Needs `InitProducerId`.
    Fresh,
    /// Somebody is doing that.
    Initialising,
    /// May begin a transaction.
    Ready { producer_id: i64, epoch: i16 },
    /// Holds a transaction that was begun in this checkpoint.
    Open { checkpoint: CheckpointId, producer_id: i64, epoch: i16 },
    /// The transaction was ended; the producer id and epoch are for the next one, where the broker gave them.
    Ended { checkpoint: CheckpointId, ended: (i64, i16), next: Option<(i64, i16)>, released: bool, shown: bool },
}

impl Slot {
    /// An ended one, when nothing is wanting any more, as its next transaction finds it.
    fn freed(self) -> Slot {
        match self {
            Slot::Ended { next, released: true, shown: true, .. } => {
                next.map_or(Slot::Fresh, |(producer_id, epoch)| Slot::Ready { producer_id, epoch })
            }
            other => other,
        }
    }
}

/// An id that may begin a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The transactional id.
    pub transactional_id: String,
    /// Producer id of the transaction.
    pub producer_id: i64,
    /// Epoch of the transaction.
    pub epoch: i16,
}

/// See the module.
#[derive(Debug)]
pub struct IdPool {
    scope: IdScope,
    generation: u64,
    subtask: u32,
    slots: BTreeMap<u32, Slot>,
}

impl IdPool {
    /// The pool of one subtask of one generation: only names of its own.
    pub fn new(scope: IdScope, generation: u64, subtask: u32) -> IdPool {
        IdPool { scope, generation, subtask, slots: BTreeMap::new() }
    }

    fn id(&self, k: u32) -> String {
        self.scope.format(IdParts { generation: self.generation, subtask: self.subtask, k })
    }

    fn k_of(&self, transactional_id: &str) -> Option<u32> {
        let parts = self.scope.parse(transactional_id)?;
        (parts.generation == self.generation && parts.subtask == self.subtask).then_some(parts.k)
    }

    /// Takes the smallest ready id for a transaction of this checkpoint.
    pub fn take(&mut self, checkpoint: CheckpointId) -> Option<Lease> {
        let (k, slot) = self.slots.iter_mut().find(|(_, slot)| matches!(slot, Slot::Ready { .. }))?;
        let Slot::Ready { producer_id, epoch } = *slot else { return None };
        *slot = Slot::Open { checkpoint, producer_id, epoch };
        let k = *k;
        Some(Lease { transactional_id: self.id(k), producer_id, epoch })
    }

    /// The id that should be initialised now, so that the next [`take`](Self::take) need not wait; it is marked as being
    /// initialised. `None` while one is ready or under way.
    pub fn to_initialise(&mut self) -> Option<String> {
        if self.slots.values().any(|slot| matches!(slot, Slot::Ready { .. } | Slot::Initialising)) {
            return None;
        }
        let fresh = self.slots.iter().find(|(_, slot)| **slot == Slot::Fresh).map(|(k, _)| *k);
        let k = fresh.unwrap_or(self.slots.len() as u32); // Numbers have no gaps: none is ever taken out.
        self.slots.insert(k, Slot::Initialising);
        Some(self.id(k))
    }

    /// `InitProducerId` was answered with a producer id and an epoch, or failed (`None`).
    pub fn initialised(&mut self, transactional_id: &str, producer: Option<(i64, i16)>) {
        let Some(k) = self.k_of(transactional_id) else { return };
        if self.slots.get(&k) == Some(&Slot::Initialising) {
            let slot = producer.map_or(Slot::Fresh, |(producer_id, epoch)| Slot::Ready { producer_id, epoch });
            self.slots.insert(k, slot);
        }
    }

    /// `EndTxn` was answered NONE. `next` is what it said of the next transaction (v5), else the id is initialised again.
    /// A repeat for a transaction that is not the id's newest changes nothing.
    pub fn ended(&mut self, transactional_id: &str, ended: (i64, i16), next: Option<(i64, i16)>) {
        let Some(k) = self.k_of(transactional_id) else { return };
        if let Some(Slot::Open { checkpoint, producer_id, epoch }) = self.slots.get(&k).copied()
            && (producer_id, epoch) == ended
        {
            self.slots.insert(k, Slot::Ended { checkpoint, ended, next, released: false, shown: false });
        }
    }

    /// A durable entry says that everything up to `committed` is committed.
    pub fn released(&mut self, committed: CheckpointId) {
        for slot in self.slots.values_mut() {
            if let Slot::Ended { checkpoint, released, .. } = slot
                && *checkpoint <= committed
            {
                *released = true;
                *slot = slot.freed();
            }
        }
    }

    /// The partitions show the end of this transaction.
    pub fn shown(&mut self, transactional_id: &str, transaction: (i64, i16)) {
        let Some(k) = self.k_of(transactional_id) else { return };
        if let Some(slot) = self.slots.get_mut(&k)
            && let Slot::Ended { ended, shown, .. } = slot
            && *ended == transaction
        {
            *shown = true;
            *slot = slot.freed();
        }
    }

    /// Number of ids in all.
    pub fn size(&self) -> usize {
        self.slots.len()
    }

    /// Number of ids that hold a transaction which was not ended yet.
    pub fn open(&self) -> usize {
        self.slots.values().filter(|slot| matches!(slot, Slot::Open { .. })).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pool() -> IdPool {
        IdPool::new(IdScope::new("p", "0123456789abcdef", "s"), 4, 1)
    }

    fn ready(pool: &mut IdPool) -> String {
        let id = pool.to_initialise().unwrap();
        pool.initialised(&id, Some((100, 0)));
        id
    }

    #[test]
    fn an_id_is_free_again_only_after_its_end_and_its_release() {
        let mut pool = pool();
        let id = ready(&mut pool);
        assert_eq!(id, "p-01234567-s-4-1-0");
        assert_eq!(pool.take(CheckpointId(5)).unwrap().transactional_id, id);
        assert_eq!(pool.take(CheckpointId(6)), None);
        // Released, but not ended: the commit is not proven.
        pool.released(CheckpointId(5));
        assert_eq!(pool.take(CheckpointId(6)), None);
        // Ended, and an older release does not count.
        pool.ended(&id, (100, 0), Some((100, 1)));
        pool.released(CheckpointId(4));
        assert_eq!(pool.take(CheckpointId(6)), None);
        pool.released(CheckpointId(5));
        // A partition may have missed the end.
        assert_eq!(pool.take(CheckpointId(6)), None);
        pool.shown(&id, (100, 7));
        assert_eq!(pool.take(CheckpointId(6)), None);
        pool.shown(&id, (100, 0));
        assert_eq!(pool.take(CheckpointId(6)), Some(Lease { transactional_id: id, producer_id: 100, epoch: 1 }));
    }

    #[test]
    fn the_smallest_free_id_is_taken_and_the_pool_stops_growing() {
        let mut pool = pool();
        for checkpoint in 1..=50 {
            if let Some(id) = pool.to_initialise() {
                pool.initialised(&id, Some((7, 0)));
            }
            let lease = pool.take(CheckpointId(checkpoint)).unwrap();
            pool.ended(&lease.transactional_id, (lease.producer_id, lease.epoch), Some((lease.producer_id, lease.epoch + 1)));
            pool.shown(&lease.transactional_id, (lease.producer_id, lease.epoch));
            // Entry n says that n - 1 is committed.
            pool.released(CheckpointId(checkpoint - 1));
        }
        assert_eq!(pool.size(), 2);
        assert_eq!(pool.open(), 0);
    }

    #[test]
    fn declined_checkpoints_grow_the_pool_instead_of_reusing_ids() {
        let mut pool = pool();
        let mut taken = Vec::new();
        for checkpoint in 1..=4 {
            ready(&mut pool);
            taken.push(pool.take(CheckpointId(checkpoint)).unwrap().transactional_id);
        }
        taken.dedup();
        assert_eq!(taken.len(), 4);
        assert_eq!(pool.open(), 4);
    }

    #[test]
    fn only_one_id_is_initialised_ahead_of_need_and_a_failure_is_tried_again() {
        let mut pool = pool();
        let id = pool.to_initialise().unwrap();
        assert_eq!(pool.to_initialise(), None);
        pool.initialised(&id, None);
        assert_eq!(pool.to_initialise().unwrap(), id);
        pool.initialised(&id, Some((1, 0)));
        assert_eq!(pool.to_initialise(), None);
    }

    #[test]
    fn a_late_repeat_of_an_older_end_does_not_touch_the_next_transaction() {
        let mut pool = pool();
        let id = ready(&mut pool);
        pool.take(CheckpointId(1)).unwrap();
        pool.ended(&id, (100, 0), Some((100, 1)));
        pool.shown(&id, (100, 0));
        pool.released(CheckpointId(1));
        pool.take(CheckpointId(2)).unwrap();
        pool.ended(&id, (100, 0), Some((100, 1)));
        pool.shown(&id, (100, 0));
        pool.released(CheckpointId(2));
        assert_eq!(pool.open(), 1);
        assert_eq!(pool.take(CheckpointId(3)), None);
    }

    #[test]
    fn without_a_next_epoch_the_id_is_initialised_again() {
        let mut pool = pool();
        let id = ready(&mut pool);
        pool.take(CheckpointId(1)).unwrap();
        pool.ended(&id, (100, 0), None);
        pool.released(CheckpointId(1));
        pool.shown(&id, (100, 0));
        assert_eq!(pool.take(CheckpointId(2)), None);
        assert_eq!(pool.to_initialise().unwrap(), id);
    }

    #[test]
    fn ids_of_others_are_ignored() {
        let mut pool = pool();
        let id = ready(&mut pool);
        pool.take(CheckpointId(1)).unwrap();
        for other in ["p-01234567-s-3-1-0", "p-01234567-s-4-0-0", "p-01234567-t-4-1-0", "x"] {
            pool.ended(other, (100, 0), Some((100, 1)));
            pool.shown(other, (100, 0));
            pool.released(CheckpointId(9));
            assert_eq!(pool.take(CheckpointId(2)), None, "{other}");
        }
        assert_eq!(pool.k_of(&id), Some(0));
    }
}
