//! Which partition a row goes to.

use serde::{Deserialize, Serialize};

/// How rows are spread over a topic's partitions; Flink's `sink.partitioner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Partitioner {
    /// By the key's hash, as Kafka's Java client does (murmur2); rows without a key go round, a batch at a time.
    #[default]
    Default,
    /// Each subtask writes to one partition.
    Fixed,
    /// Round, a batch at a time, also with keys.
    RoundRobin,
}

/// The partition of a key among `partitions`, equal to that of Kafka's Java client.
pub fn partition_of_key(key: &[u8], partitions: u32) -> u32 {
    ((murmur2(key) as u32) & 0x7fff_ffff) % partitions.max(1)
}

/// MurmurHash2, 32 bits, with the seed of Kafka's Java client (`Utils.murmur2`).
pub fn murmur2(data: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ (hash >> 15)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_java_client() {
        // Vectors of the Java client's own test, UtilsTest.testMurmur2.
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn a_negative_hash_gives_a_valid_partition() {
        assert!(murmur2(b"21") < 0);
        assert!(partition_of_key(b"21", 4) < 4);
        assert_eq!(partition_of_key(b"anything", 1), 0);
        assert_eq!(partition_of_key(b"anything", 0), 0);
    }
}
