//! Batches from our encoder through our decoder, and damaged ones. Kafka's own clients check both in `tests/client.rs`.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::client::compression::Compression;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const CODECS: [Compression; 5] = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

fn identity(producer_id: i64) -> BatchIdentity {
    BatchIdentity { producer_id, epoch: 0, sequence: 0, transactional: producer_id >= 0 }
}

/// A batch at `base` with `n` records `v<offset>`, each third without a value.
fn batch(base: i64, n: i64, producer: i64, codec: Compression) -> Vec<u8> {
    let mut b = BatchBuilder::new();
    for i in base..base + n {
        let value = format!("v{i}");
        b.push(1000 + i, Some(format!("k{i}").as_bytes()), (i % 3 != 0).then_some(value.as_bytes()), &[]);
    }
    let mut batch = b.seal(identity(producer), codec).unwrap().to_vec();
    batch[..8].copy_from_slice(&base.to_be_bytes());
    batch
}

/// A transaction marker at `offset`.
fn marker(offset: i64, producer: i64, abort: bool) -> Vec<u8> {
    let mut b = BatchBuilder::new();
    b.push(0, Some(&[0, 0, 0, u8::from(!abort)]), Some(&[0; 6]), &[]);
    let mut m = b.seal(identity(producer), Compression::None).unwrap().to_vec();
    m[22] |= 0x20;
    m[..8].copy_from_slice(&offset.to_be_bytes());
    let crc = crc32c::crc32c(&m[21..]);
    m[17..21].copy_from_slice(&crc.to_be_bytes());
    m
}

fn decode(records: Vec<u8>, from: i64, aborted: &[(i64, i64)]) -> (Vec<i64>, i64) {
    let mut d = Decoder::new(records.into(), from, aborted.iter().copied(), DecodeOptions::default());
    let mut offsets = Vec::new();
    while let Some(c) = d.next_chunk().unwrap() {
        for row in 0..c.len() {
            let o = c.offsets[row];
            assert_eq!(c.timestamps[row], 1000 + o);
            assert_eq!(c.key(row).unwrap(), format!("k{o}").as_bytes());
            assert_eq!(c.value(row), (o % 3 != 0).then_some(format!("v{o}").as_bytes()));
        }
        offsets.extend(&c.offsets);
        assert_eq!(c.next_offset, d.next_offset());
    }
    (offsets, d.next_offset())
}

#[test]
fn records_come_back_in_every_codec_and_mix_of_codecs() {
    let mut all = Vec::new();
    for (i, codec) in CODECS.into_iter().chain(CODECS).enumerate() {
        all.extend(batch(i as i64 * 10, 10, -1, codec));
    }
    assert_eq!(decode(all.clone(), 0, &[]), ((0..100).collect(), 100));
    assert_eq!(decode(all, 37, &[]), ((37..100).collect(), 100), "records before the wanted offset are skipped");
}

#[test]
fn a_cut_last_batch_is_left_for_the_next_fetch() {
    let mut all = batch(0, 5, -1, Compression::None);
    let whole = all.len();
    all.extend(batch(5, 5, -1, Compression::None));
    for cut in whole..all.len() {
        assert_eq!(decode(all[..cut].to_vec(), 0, &[]), ((0..5).collect(), 5));
    }
}

#[test]
fn markers_and_aborted_records_are_not_delivered_but_passed() {
    let mut all = batch(0, 2, 7, Compression::None); // aborted
    all.extend(batch(2, 2, 8, Compression::Lz4)); // committed
    all.extend(batch(4, 1, -1, Compression::None)); // without a transaction
    all.extend(marker(5, 7, true));
    all.extend(batch(6, 2, 7, Compression::None)); // the next transaction of 7, committed
    all.extend(marker(8, 8, false));
    all.extend(marker(9, 7, false));
    assert_eq!(decode(all.clone(), 0, &[(7, 0)]), (vec![2, 3, 4, 6, 7], 10));
    assert_eq!(decode(all.clone(), 1, &[(7, 0)]), (vec![2, 3, 4, 6, 7], 10));
    assert_eq!(decode(all, 0, &[]), (vec![0, 1, 2, 3, 4, 6, 7], 10), "read_uncommitted");
}

#[test]
fn headers_are_kept_and_parsed_lazily() {
    let mut b = BatchBuilder::new();
    b.push(0, None, Some(b"a"), &[]);
    b.push(0, None, None, &[Header { key: "h", value: Some(b"1") }, Header { key: "null", value: None }]);
    b.push(0, None, Some(b""), &[]);
    let mut d = Decoder::new(b.seal(BatchIdentity::ANONYMOUS, Compression::Zstd).unwrap(), 0, [], DecodeOptions::default());
    let c = d.next_chunk().unwrap().unwrap();
    assert_eq!(c.headers(0).count(), 0);
    assert_eq!(c.headers(1).collect::<Vec<_>>(), [("h", Some(&b"1"[..])), ("null", None)]);
    assert_eq!(c.headers(2).count(), 0);
    assert_eq!((c.value(0), c.value(1), c.value(2)), (Some(&b"a"[..]), None, Some(&b""[..])));
}

#[test]
fn rows_are_appended_until_the_batch_is_full() {
    let data = vec![b'x'; 1000];
    let ends: Vec<usize> = (1..=10).map(|i| i * 100).collect();
    let each: Vec<i64> = (0..10).collect();
    let rows = RowColumns {
        timestamps: Timestamps::Each(&each),
        keys: None,
        values: Column { data: &data, ends: &ends, valid: None },
        headers: &[],
    };
    let mut b = BatchBuilder::new();
    let at = b.append_rows(&rows, Some(&[9, 8, 7, 6]), 0, 400).unwrap();
    assert!(at < 4 && b.size() <= 400, "{at} rows, {} bytes", b.size());
    let sealed = b.seal(BatchIdentity::ANONYMOUS, Compression::None).unwrap();
    let c = Decoder::new(sealed, 0, [], DecodeOptions::default()).next_chunk().unwrap().unwrap();
    assert_eq!(c.timestamps, each.iter().rev().take(at).copied().collect::<Vec<_>>());
    assert_eq!(b.append_rows(&rows, Some(&[0]), 0, 10).unwrap(), 1, "a batch takes at least one row");
    assert!(b.append_rows(&rows, Some(&[10]), 0, 1000).is_err(), "a row that does not exist");
}

#[test]
fn a_wrong_checksum_stops_after_the_batches_before_it() {
    let mut all = batch(0, 5, -1, Compression::None);
    let n = all.len();
    all.extend(batch(5, 5, -1, Compression::None));
    all[n + 70] ^= 1;
    let mut d = Decoder::new(all.into(), 0, [], DecodeOptions::default());
    assert_eq!(d.next_chunk().unwrap().unwrap().len(), 5);
    let error = d.next_chunk().unwrap_err();
    assert_eq!(error.offset, 5);
    assert!(error.reason.contains("checksum"), "{error}");
}

/// Random damage, with the checksum set right again or not checked: no panic, no endless loop, no span outside the data.
#[test]
fn damaged_batches_never_panic() {
    let mut random = StdRng::seed_from_u64(42);
    let options = DecodeOptions { check_crc: false, chunk_bytes: 1 << 16, max_batch_bytes: 1 << 20 };
    let mut refused = 0;
    for round in 0..20_000 {
        let codec = CODECS[round % 5];
        let mut all = batch(0, 8, 3, codec);
        all.extend(batch(8, 8, -1, CODECS[round / 5 % 5]));
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..all.len());
            all[at] = match random.random_range(0..4) {
                0 => 0xff,
                1 => 0x7f,
                2 => 0,
                _ => random.random(),
            };
        }
        if random.random_bool(0.2) {
            all.truncate(random.random_range(0..all.len()));
        }
        scan(&all, 0);
        let mut d = Decoder::new(all.into(), random.random_range(0..20), [(3, 0)].into_iter().take(round % 2), options);
        let mut last = -1;
        loop {
            match d.next_chunk() {
                Ok(Some(c)) => {
                    for row in 0..c.len() {
                        assert!(c.offsets[row] > last);
                        last = c.offsets[row];
                        for span in [c.keys[row], c.values[row]] {
                            assert!(span.is_null() || c.bytes(span).is_some());
                        }
                        c.headers(row).count();
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    refused += 1;
                    break;
                }
            }
        }
    }
    assert!(refused > 1000, "only {refused} refused: the damage does not reach the decoder");
}
