//! The hash of keys is a file format: these values may never change.
#![allow(clippy::unwrap_used)]
use arrow::array::*;
use arrow::datatypes::Int32Type;
use semel_engine::state::{hash_columns, slot_of, slot_range, subtask_of};
use std::sync::Arc;

fn hash(columns: &[ArrayRef]) -> Vec<u64> {
    let mut hashes = vec![7];
    hash_columns(columns, &mut hashes).unwrap();
    hashes
}

const NULL: u64 = 0x4E55_4C4C_5345_4D4C;
/// The first output of SplitMix64 with seed 0.
const OF_0: u64 = 0xE220_A839_7B1D_CDAF;
const OF_5: u64 = 0x6303_3B0C_A389_C35A;
const OF_MINUS_1: u64 = 0xE4D9_7177_1B65_2C20;
/// XXH3 (64 bits, seed 0) of "abc", and of nothing.
const OF_ABC: u64 = 0x78AF_5F94_892F_3950;
const OF_EMPTY: u64 = 0x2D06_8005_38D3_94C2;

#[test]
fn one_value_has_one_hash_in_every_type_that_can_hold_it() {
    let numbers = [Some(0), Some(5), Some(-1), None];
    let expected = [OF_0, OF_5, OF_MINUS_1, NULL];
    assert_eq!(hash(&[Arc::new(Int64Array::from_iter(numbers))]), expected);
    assert_eq!(hash(&[Arc::new(Int32Array::from_iter(numbers.map(|n| n.map(|n| n as i32))))]), expected);
    assert_eq!(hash(&[Arc::new(Int8Array::from_iter(numbers.map(|n| n.map(|n| n as i8))))]), expected);
    assert_eq!(hash(&[Arc::new(TimestampMillisecondArray::from_iter(numbers))]), expected);
    assert_eq!(hash(&[Arc::new(Decimal128Array::from_iter(numbers.map(|n| n.map(i128::from))))]), expected);
    let texts = [Some("abc"), Some(""), None];
    let expected = [OF_ABC, OF_EMPTY, NULL];
    assert_eq!(hash(&[Arc::new(StringArray::from_iter(texts))]), expected);
    assert_eq!(hash(&[Arc::new(LargeStringArray::from_iter(texts))]), expected);
    assert_eq!(hash(&[Arc::new(StringViewArray::from_iter(texts))]), expected);
    assert_eq!(hash(&[Arc::new(BinaryArray::from_iter(texts.map(|t| t.map(str::as_bytes))))]), expected);
    assert_eq!(hash(&[Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>())]), expected);
}

#[test]
fn floats_wide_decimals_and_several_columns() {
    let floats = hash(&[Arc::new(Float64Array::from(vec![0.0, -0.0, 1.5, f64::NAN, -f64::NAN]))]);
    assert_eq!(floats, [OF_0, OF_0, 0xD6DA_B18E_1392_608A, 0xC729_71D8_2E15_BB46, 0xC729_71D8_2E15_BB46]);
    assert_eq!(hash(&[Arc::new(Float32Array::from(vec![1.5]))]), [0xD6DA_B18E_1392_608A]);
    assert_eq!(hash(&[Arc::new(Decimal128Array::from(vec![1i128 << 70]))]), [0xAE22_6EB2_35AC_6E61]);
    let pair: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![5])), Arc::new(StringArray::from(vec!["abc"]))];
    assert_eq!(hash(&pair), [0xBC71_7192_9A5C_57C8]);
    assert_eq!(hash(&[pair[1].clone(), pair[0].clone()]), [0xB139_0A85_F41B_5F4A]);
    assert!(hash(&[]).is_empty());
}

#[test]
fn slots_of_hashes() {
    assert_eq!([OF_0, OF_5, OF_MINUS_1, OF_ABC, NULL].map(|hash| slot_of(hash, 256)), [32, 3, 217, 175, 85]);
    assert_eq!([OF_0, OF_5, OF_MINUS_1, OF_ABC, NULL].map(|hash| slot_of(hash, 100)), [12, 1, 84, 68, 33]);
    assert_eq!(slot_of(u64::MAX, 65536), 65535);
}

#[test]
fn every_slot_has_one_owner_and_owners_have_neighbouring_slots() {
    for slots in [1u32, 7, 128, 256, 65536] {
        for parallelism in [1usize, 2, 3, 7, 64, 300] {
            let mut next = 0u32;
            for subtask in 0..parallelism {
                for slot in slot_range(subtask, slots, parallelism) {
                    assert_eq!(u32::from(slot), next);
                    assert_eq!(subtask_of(slot, slots, parallelism), subtask);
                    next += 1;
                }
            }
            assert_eq!(next, slots);
        }
    }
}
