//! Numbers, dates and times between text and integers, shared by the formats.
pub(crate) mod datetime;
pub(crate) mod number;
pub(crate) mod writer;

/// Sets the high bit of each byte of `word` that is not an ASCII digit.
#[inline(always)]
pub(crate) fn non_digits(word: u64) -> u64 {
    let t = word ^ 0x3030_3030_3030_3030;
    (((t & 0x7f7f_7f7f_7f7f_7f7f) + 0x7676_7676_7676_7676) | t) & 0x8080_8080_8080_8080
}

/// Sets the high bit of each byte of `word` that ends or escapes a JSON string, or may not stand in one: quote,
/// backslash, control character. Only the lowest set bit is exact: those above it may be false.
#[inline(always)]
pub(crate) fn string_specials(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    ((quote.wrapping_sub(ONES) & !quote) | (backslash.wrapping_sub(ONES) & !backslash) | (word.wrapping_sub(ONES * 0x20) & !word)) & HIGH
}

/// The number that the eight digits in `word` (values 0 to 9, first digit in the lowest byte) stand for.
#[inline(always)]
pub(crate) fn eight_digits(word: u64) -> u64 {
    let word = (word.wrapping_mul(10).wrapping_add(word >> 8)) & 0x00ff_00ff_00ff_00ff;
    let word = (word.wrapping_mul(100).wrapping_add(word >> 16)) & 0x0000_ffff_0000_ffff;
    word.wrapping_mul(10_000).wrapping_add(word >> 32) & 0xffff_ffff
}

/// Powers of ten that fit into 64 bits.
pub(crate) const POW10: [u64; 20] = {
    let mut powers = [1; 20];
    let mut i = 1;
    while i < 20 {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// 10 to the power of `exponent`, which is at most 38.
pub(crate) const fn pow10_i128(exponent: u32) -> i128 {
    10_i128.pow(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_told_from_all_other_bytes() {
        for byte in 0..=255_u8 {
            let expected = if byte.is_ascii_digit() { 0 } else { 0x80 };
            for lane in 0..8 {
                let mut bytes = *b"90909090";
                bytes[lane] = byte;
                assert_eq!(non_digits(u64::from_le_bytes(bytes)), expected << (8 * lane), "{byte}");
            }
        }
    }

    #[test]
    fn the_first_special_byte_of_a_string_is_found() {
        for byte in 0..=255_u8 {
            let special = byte < 0x20 || byte == b'"' || byte == b'\\';
            for lane in 0..8 {
                let mut bytes = *b"a\xff!#[]\x7f ";
                bytes[lane] = byte;
                let found = string_specials(u64::from_le_bytes(bytes)).trailing_zeros() / 8;
                assert_eq!(found, if special { lane as u32 } else { 8 }, "{byte} at {lane}");
            }
        }
    }

    #[test]
    fn eight_digits_make_a_number() {
        for n in [0_u64, 1, 9, 10, 12_345_678, 87_654_321, 99_999_999, 10_000_000] {
            let text = format!("{n:08}");
            let mut bytes = [0; 8];
            bytes.copy_from_slice(text.as_bytes());
            assert_eq!(eight_digits(u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030), n);
        }
    }
}
