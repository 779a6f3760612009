//! The hash table, split by hash once it is large.

use hashbrown::HashTable;

/// Entries in a single table before it is split: rehashing this many takes about a millisecond.
const SPLIT_AT: usize = 1 << 16;
const SHARDS: usize = 256;

/// Hash tables of group ids. Small: one. Large: 256, which grow one by one, so that growing never stops the stream for long.
#[derive(Debug)]
pub(crate) struct Shards {
    tables: Vec<HashTable<u32>>,
    mask: usize,
}

impl Default for Shards {
    fn default() -> Shards {
        Shards { tables: vec![HashTable::new()], mask: 0 }
    }
}

impl Shards {
    // hashbrown uses the lowest and the 7 highest bits, slots bits 48 to 55 (with 256 of them): take bits in between.
    #[inline]
    fn at(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.mask
    }

    #[inline]
    pub fn table(&mut self, hash: u64) -> &mut HashTable<u32> {
        let at = self.at(hash);
        &mut self.tables[at]
    }

    pub fn contains(&self, hash: u64, group: u32) -> bool {
        self.tables[self.at(hash)].find(hash, |&other| other == group).is_some()
    }

    pub fn remove(&mut self, hash: u64, group: u32) -> bool {
        match self.table(hash).find_entry(hash, |&other| other == group) {
            Ok(entry) => {
                entry.remove();
                true
            }
            Err(_) => false,
        }
    }

    pub fn should_split(&self) -> bool {
        self.mask == 0 && self.tables[0].len() > SPLIT_AT
    }

    pub fn split(&mut self, hash: impl Fn(u32) -> u64) {
        let Some(old) = self.tables.pop() else { return };
        self.mask = SHARDS - 1;
        self.tables = (0..SHARDS).map(|_| HashTable::with_capacity(old.len() / SHARDS)).collect();
        for group in old {
            let h = hash(group);
            self.table(h).insert_unique(h, group, |&group| hash(group));
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.allocation_size() + size_of::<HashTable<u32>>()).sum()
    }
}
