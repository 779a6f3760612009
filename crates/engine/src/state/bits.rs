//! A growable bitmap: one bit per group.

use arrow::buffer::{BooleanBuffer, NullBuffer};

/// One bit per group id. Reads beyond the end are false.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Makes room for `n` bits; new bits are false.
    pub fn resize(&mut self, n: usize) {
        let words = n.div_ceil(64);
        if words > self.0.len() {
            self.0.resize(words, 0);
        }
    }

    #[inline]
    pub fn get(&self, i: u32) -> bool {
        self.0.get(i as usize / 64).is_some_and(|word| word >> (i % 64) & 1 == 1)
    }

    /// Sets the bit and tells whether it was set before. The caller has resized.
    #[inline]
    pub fn set(&mut self, i: u32) -> bool {
        let word = &mut self.0[i as usize / 64];
        let before = *word >> (i % 64) & 1 == 1;
        *word |= 1 << (i % 64);
        before
    }

    /// Clears the bit and tells whether it was set before.
    #[inline]
    pub fn clear(&mut self, i: u32) -> bool {
        let Some(word) = self.0.get_mut(i as usize / 64) else { return false };
        let before = *word >> (i % 64) & 1 == 1;
        *word &= !(1 << (i % 64));
        before
    }

    /// The validity of a result column: a group whose bit is not set is NULL.
    pub fn validity(&self, groups: &[u32]) -> Option<NullBuffer> {
        let bits = BooleanBuffer::collect_bool(groups.len(), |i| self.get(groups[i]));
        Some(NullBuffer::new(bits)).filter(|nulls| nulls.null_count() > 0)
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.capacity() * 8
    }
}
