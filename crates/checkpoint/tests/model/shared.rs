//! Parts of a state that most steps leave alone: cloned by reference, hashed once. This makes the search several times faster.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

pub struct Shared<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: T,
    hash: OnceLock<u64>,
}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Shared<T> {
        Shared(Arc::new(Inner { value, hash: OnceLock::new() }))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T: Clone> Clone for Inner<T> {
    fn clone(&self) -> Inner<T> {
        Inner { value: self.value.clone(), hash: OnceLock::new() }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        let inner = Arc::make_mut(&mut self.0);
        inner.hash = OnceLock::new();
        &mut inner.value
    }
}

impl<T: Hash> Shared<T> {
    /// A hash that is the same in every run.
    pub fn hash_once(&self) -> u64 {
        *self.0.hash.get_or_init(|| {
            let mut folding = Folding(0x243f_6a88_85a3_08d3);
            self.0.value.hash(&mut folding);
            folding.finish()
        })
    }
}

/// Folded multiplication: as good as SipHash here, and quick without optimisation.
struct Folding(u64);

impl Folding {
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product as u64).rotate_left(23) ^ (product >> 64) as u64;
    }
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        let mut last = Folding(self.0);
        last.fold(0x0a40_9382_2299_f31d);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(7) {
            let word = chunk.iter().fold(chunk.len() as u64, |word, byte| word << 8 | u64::from(*byte));
            self.fold(word);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.fold(u64::from(value) | 1 << 40);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64 | 1 << 41);
    }

    fn write_isize(&mut self, value: isize) {
        self.fold(value as u64 | 1 << 42);
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }
}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.hash_once());
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Shared<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}
