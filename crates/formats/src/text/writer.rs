//! A buffer that text is written into with wide stores: a store may cover more bytes than count, and the next one
//! overwrites the rest.
use super::POW10;

/// Text being written. Callers reserve with [`Writer::room`] before they write; the other methods assume it.
#[derive(Default)]
pub(crate) struct Writer {
    buf: Vec<u8>,
    pos: usize,
}

/// What every store may cover beyond the bytes that count.
const SLACK: usize = 16;

/// Largest number of bytes that one number takes, with sign and point: 39 digits and 38 leading zeros at most.
pub(crate) const MAX_NUMBER: usize = 48;

impl Writer {
    /// Makes room for `n` more bytes.
    #[inline(always)]
    pub(crate) fn room(&mut self, n: usize) {
        if self.buf.len() - self.pos < n + SLACK {
            self.grow(n);
        }
    }

    #[cold]
    fn grow(&mut self, n: usize) {
        self.buf.resize((self.pos + n + SLACK).max(self.buf.len() * 2), 0);
    }

    /// The bytes written so far.
    pub(crate) fn written(&self) -> &[u8] {
        &self.buf[..self.pos]
    }

    /// Number of bytes written so far.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.pos
    }

    /// Forgets what was written.
    pub(crate) fn clear(&mut self) {
        self.pos = 0;
    }

    /// Replaces the byte at `at`, which is already written.
    #[inline(always)]
    pub(crate) fn patch(&mut self, at: usize, byte: u8) {
        self.buf[at] = byte;
    }

    #[inline(always)]
    pub(crate) fn byte(&mut self, byte: u8) {
        self.buf[self.pos] = byte;
        self.pos += 1;
    }

    #[inline(always)]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.buf[self.pos..self.pos + bytes.len()].copy_from_slice(bytes);
        self.pos += bytes.len();
    }

    /// Writes the first `n` (at most 8) bytes of `word`, lowest first.
    #[inline(always)]
    pub(crate) fn word(&mut self, word: u64, n: usize) {
        self.buf[self.pos..self.pos + 8].copy_from_slice(&word.to_le_bytes());
        self.pos += n;
    }

    /// Writes the first `n` bytes of `padded`, whose length is a multiple of 16 and at most `n` + 15.
    #[inline(always)]
    pub(crate) fn padded_bytes(&mut self, padded: &[[u8; 16]], n: usize) {
        let mut at = self.pos;
        for chunk in padded {
            self.buf[at..at + 16].copy_from_slice(chunk);
            at += 16;
        }
        self.pos += n;
    }

    /// Writes a number below 100 with two digits.
    #[inline(always)]
    pub(crate) fn two_digits(&mut self, n: u32) {
        self.buf[self.pos..self.pos + 2].copy_from_slice(&[b'0' + (n / 10) as u8, b'0' + (n % 10) as u8]);
        self.pos += 2;
    }

    /// Writes a number below 10^8 without leading zeros.
    #[inline(always)]
    fn up_to_eight(&mut self, n: u64) {
        let bcd = bcd8(n);
        let zeros = (bcd.trailing_zeros() / 8).min(7);
        self.word((bcd | ASCII_ZEROS) >> (8 * zeros), 8 - zeros as usize);
    }

    /// Writes a number without leading zeros.
    #[inline(always)]
    pub(crate) fn u64(&mut self, n: u64) {
        const E8: u64 = 100_000_000;
        if n < E8 {
            self.up_to_eight(n);
        } else if n < E8 * E8 {
            self.up_to_eight(n / E8);
            self.word(bcd8(n % E8) | ASCII_ZEROS, 8);
        } else {
            self.up_to_eight(n / (E8 * E8));
            self.word(bcd8(n / E8 % E8) | ASCII_ZEROS, 8);
            self.word(bcd8(n % E8) | ASCII_ZEROS, 8);
        }
    }

    #[inline(always)]
    pub(crate) fn i64(&mut self, n: i64) {
        // Written in any case and counted only if it belongs there: no branch on the sign.
        self.buf[self.pos] = b'-';
        self.pos += usize::from(n < 0);
        self.u64(n.unsigned_abs());
    }

    /// Writes a number below 10^`digits` with leading zeros; `digits` is at most 18.
    #[inline(always)]
    pub(crate) fn padded(&mut self, n: u64, digits: usize) {
        if digits <= 8 {
            self.word(bcd8(n * POW10[8 - digits]) | ASCII_ZEROS, digits);
        } else {
            self.padded_long(n, digits);
        }
    }

    fn padded_long(&mut self, n: u64, digits: usize) {
        for i in (0..digits).rev() {
            self.byte(b'0' + (n / POW10[i] % 10) as u8);
        }
    }

    /// Writes the decimal number `n` / 10^`scale` with exactly `scale` fraction digits; `scale` is at most 38.
    #[inline(always)]
    pub(crate) fn decimal(&mut self, n: i128, scale: usize) {
        match (i64::try_from(n), scale) {
            (Ok(n), 0) => self.i64(n),
            (Ok(n), 1..=18) => {
                self.buf[self.pos] = b'-';
                self.pos += usize::from(n < 0);
                let n = n.unsigned_abs();
                self.u64(n / POW10[scale]);
                self.byte(b'.');
                self.padded(n % POW10[scale], scale);
            }
            _ => self.decimal_long(n, scale),
        }
    }

    fn decimal_long(&mut self, n: i128, scale: usize) {
        let mut digits = [b'0'; 40];
        let mut rest = n.unsigned_abs();
        let mut first = digits.len();
        while rest > 0 || digits.len() - first <= scale {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        if n < 0 {
            self.byte(b'-');
        }
        let point = digits.len() - scale;
        self.bytes(&digits[first..point]);
        if scale > 0 {
            self.byte(b'.');
            self.bytes(&digits[point..]);
        }
    }
}

const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight decimal digits of a number below 10^8, first digit in the lowest byte. Each step splits all lanes at once
/// by a multiplication with the reciprocal.
#[inline(always)]
fn bcd8(n: u64) -> u64 {
    let fours = (n / 10_000) | ((n % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - tens * 10) << 8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(write: impl FnOnce(&mut Writer)) -> String {
        let mut out = Writer::default();
        out.room(MAX_NUMBER);
        write(&mut out);
        String::from_utf8(out.written().to_vec()).unwrap()
    }

    #[test]
    fn integers_as_the_standard_library_writes_them() {
        let mut numbers = vec![0, u64::MAX, u64::MAX - 1, i64::MAX as u64, i64::MAX as u64 + 1];
        for power in POW10 {
            numbers.extend([power - 1, power, power + 1, power.wrapping_mul(7), power.wrapping_mul(123) / 100]);
        }
        for n in numbers {
            assert_eq!(text(|out| out.u64(n)), n.to_string());
            assert_eq!(text(|out| out.i64(n as i64)), (n as i64).to_string());
        }
        for n in 0..100_000 {
            assert_eq!(text(|out| out.u64(n * 1001)), (n * 1001).to_string());
        }
    }

    #[test]
    fn all_eight_digit_numbers_in_steps() {
        for n in (0..100_000_000_u64).step_by(97) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(format!("{n:08}").as_bytes());
            assert_eq!(bcd8(n) | ASCII_ZEROS, u64::from_le_bytes(bytes));
        }
    }

    #[test]
    fn decimals_keep_their_scale() {
        let table = [
            (0, 2, "0.00"),
            (5, 2, "0.05"),
            (-5, 2, "-0.05"),
            (12_345, 2, "123.45"),
            (-12_345, 0, "-12345"),
            (i128::from(i64::MIN), 18, "-9.223372036854775808"),
            (1, 18, "0.000000000000000001"),
            (1, 20, "0.00000000000000000001"),
            (10_i128.pow(38) - 1, 38, "0.99999999999999999999999999999999999999"),
            (1 - 10_i128.pow(38), 0, "-99999999999999999999999999999999999999"),
            (10_i128.pow(30), 10, "100000000000000000000.0000000000"),
        ];
        for (n, scale, expected) in table {
            assert_eq!(text(|out| out.decimal(n, scale)), expected);
        }
    }
}
