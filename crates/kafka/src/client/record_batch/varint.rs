//! Zigzag variable-length integers, as in Protocol Buffers.

/// Longest encoding of an i64.
pub(crate) const MAX: usize = 10;

/// Writes `v` at `at` and returns the position after it. `out` must have [`MAX`] bytes from `at`.
#[inline]
pub(crate) fn put(out: &mut [u8], mut at: usize, v: i64) -> usize {
    let mut z = ((v << 1) ^ (v >> 63)) as u64;
    while z >= 0x80 {
        out[at] = (z as u8) | 0x80;
        at += 1;
        z >>= 7;
    }
    out[at] = z as u8;
    at + 1
}

/// Bytes that `v` takes.
#[inline]
pub(crate) fn len(v: i64) -> usize {
    let z = ((v << 1) ^ (v >> 63)) as u64;
    (64 - (z | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads a number at `at` and moves `at` behind it; `None` when the bytes end or the number is too long.
#[inline]
pub(crate) fn read(data: &[u8], at: &mut usize) -> Option<i64> {
    let first = *data.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(unzigzag(u64::from(first)));
    }
    let second = *data.get(*at + 1)?;
    if second < 0x80 {
        *at += 2;
        return Some(unzigzag(u64::from(first & 0x7f) | u64::from(second) << 7));
    }
    read_long(data, at)
}

#[cold]
fn read_long(data: &[u8], at: &mut usize) -> Option<i64> {
    let mut z = 0u64;
    for i in 0..MAX {
        let byte = *data.get(*at + i)?;
        z |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            *at += i + 1;
            return Some(unzigzag(z));
        }
    }
    None
}

#[inline]
fn unzigzag(z: u64) -> i64 {
    (z >> 1) as i64 ^ -((z & 1) as i64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_come_back_and_have_the_said_length() {
        for shift in 0..64 {
            for v in [1i64 << shift, (1i64 << shift).wrapping_sub(1), -(1i64 << shift.min(62)), 0, -1] {
                let mut b = [0; MAX + 1];
                let n = put(&mut b, 0, v);
                assert_eq!(n, len(v));
                let mut at = 0;
                assert_eq!(read(&b, &mut at), Some(v));
                assert_eq!(at, n);
                assert_eq!(read(&b[..n - 1], &mut 0), None);
            }
        }
        assert_eq!(read(&[0xff; 20], &mut 0), None);
    }
}
