//! A strict RFC 8259 reader over the bytes of one record.
//!
//! Strictness: only the four whitespace characters of the RFC, only its escapes, no control characters in strings,
//! valid UTF-8, no leading zeros, digits on both sides of a point. A `\u` escape of a surrogate that is not one of a
//! pair is refused, for no UTF-8 text can hold it. Arrays and objects may be nested [`MAX_DEPTH`] deep.
use std::borrow::Cow;

use crate::text::number::{self, Number};
use crate::text::{POW10, eight_digits, non_digits, string_specials};

/// How deep arrays and objects may be nested in one record.
pub(crate) const MAX_DEPTH: u32 = 128;

const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;

/// What is wrong in a record. Boxed, so that results stay small.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Byte position in the record.
    pub(crate) at: usize,
    pub(crate) what: String,
    /// Names from the innermost field outwards.
    pub(crate) path: Vec<String>,
}

impl Fault {
    /// The reason in words.
    pub(crate) fn reason(&self) -> String {
        let mut path = self.path.iter().rev().map(String::as_str);
        match path.next() {
            None => format!("{} at byte {}", self.what, self.at),
            Some(first) => {
                let column = path.fold(first.to_owned(), |path, name| path + "." + name);
                format!("column '{column}': {} at byte {}", self.what, self.at)
            }
        }
    }

    #[cold]
    pub(crate) fn within(mut self: Box<Self>, name: &str) -> Box<Self> {
        self.path.push(name.to_owned());
        self
    }
}

/// A result with a position in the record.
pub(crate) type Parsed<T> = Result<T, Box<Fault>>;

/// The inside of a string, quotes left out.
#[derive(Clone, Copy)]
pub(crate) struct Quoted<'a> {
    pub(crate) raw: &'a [u8],
    pub(crate) escaped: bool,
}

impl<'a> Quoted<'a> {
    /// The string's value as UTF-8.
    pub(crate) fn value(&self) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut value = Vec::with_capacity(self.raw.len());
        self.unescape(&mut value);
        Cow::Owned(value)
    }

    /// Appends the string's value to `out`. The escapes were checked when the string was read.
    pub(crate) fn unescape(&self, out: &mut Vec<u8>) {
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            out.extend_from_slice(&rest[..at]);
            let plain = match rest.get(at + 1) {
                Some(b'b') => 8,
                Some(b'f') => 12,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'u') => {
                    let (char, len) = unicode(rest, at).unwrap_or((char::REPLACEMENT_CHARACTER, 6));
                    out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                    rest = rest.get(at + len..).unwrap_or_default();
                    continue;
                }
                Some(other) => *other,
                None => b'\\',
            };
            out.push(plain);
            rest = rest.get(at + 2..).unwrap_or_default();
        }
        out.extend_from_slice(rest);
    }
}

/// The value of the four hexadecimal digits at `text[at]`.
fn hex4(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..at + 4)?.iter().try_fold(0, |n, b| Some(n * 16 + char::from(*b).to_digit(16)?))
}

/// The character of the `\u` escape at `text[at]`, and the number of bytes that it takes.
fn unicode(text: &[u8], at: usize) -> Option<(char, usize)> {
    let first = hex4(text, at + 2)?;
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first)?, 6));
    }
    let second = (text.get(at + 6..at + 8) == Some(b"\\u")).then(|| hex4(text, at + 8)).flatten()?;
    let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
    Some((char::from_u32(0x10000 + ((first - 0xd800) << 10) + low)?, 12))
}

/// Digits read fast: `int` has at most 18 of them; `fraction` has `fraction_len`, at most 7.
pub(crate) struct Fixed {
    pub(crate) negative: bool,
    pub(crate) int: u64,
    pub(crate) int_len: usize,
    pub(crate) fraction: u64,
    pub(crate) fraction_len: usize,
}

/// A position in a record.
pub(crate) struct Cursor<'a> {
    record: &'a [u8],
    /// The record and what follows it in the buffer: wide loads need not stop at the record's end.
    tail: &'a [u8],
    pub(crate) pos: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(record: &'a [u8], tail: &'a [u8]) -> Self {
        Self { record, tail, pos: 0, depth: 0 }
    }

    #[cold]
    pub(crate) fn fault<T>(&self, what: impl Into<String>) -> Parsed<T> {
        Err(Box::new(Fault { at: self.pos, what: what.into(), path: Vec::new() }))
    }

    /// The fault of having met something else than what is named.
    #[cold]
    pub(crate) fn expected<T>(&self, what: &str) -> Parsed<T> {
        let found = match self.peek() {
            None => "the record's end".to_owned(),
            Some(b'"') => "a string".to_owned(),
            Some(b'{') => "an object".to_owned(),
            Some(b'[') => "an array".to_owned(),
            Some(b'-' | b'0'..=b'9') => "a number".to_owned(),
            Some(byte) if byte.is_ascii_graphic() => format!("'{}'", char::from(byte)),
            Some(byte) => format!("byte 0x{byte:02x}"),
        };
        self.fault(format!("expected {what}, found {found}"))
    }

    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.record.get(self.pos).copied()
    }

    /// The bytes from `start` to the position.
    #[inline(always)]
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.record[start..self.pos]
    }

    #[inline(always)]
    pub(crate) fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.pos += 1;
        }
    }

    /// Eight bytes from `at`, the first in the lowest byte; zeros beyond the buffer's end. May reach beyond the record.
    #[inline(always)]
    fn load8(&self, at: usize) -> u64 {
        match self.tail.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(bytes) => u64::from_le_bytes(*bytes),
            None => self.load_last(at),
        }
    }

    #[cold]
    fn load_last(&self, at: usize) -> u64 {
        let rest = self.tail.get(at..).unwrap_or_default();
        rest.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    /// Whether `head` (the first 16 bytes of a token under `mask`), and then `rest`, are next.
    #[inline(always)]
    pub(crate) fn is_next(&self, head: u128, mask: u128, token: &[u8]) -> bool {
        let Some(bytes) = self.tail.get(self.pos..).and_then(|rest| rest.first_chunk::<16>()) else {
            return self.is_next_slow(token);
        };
        (u128::from_le_bytes(*bytes) ^ head) & mask == 0
            && self.pos + token.len() <= self.record.len()
            && (token.len() <= 16 || self.is_next_slow(token))
    }

    #[cold]
    fn is_next_slow(&self, token: &[u8]) -> bool {
        self.record[self.pos..].starts_with(token)
    }

    /// Goes into an array or object.
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fault(format!("arrays and objects nested more than {MAX_DEPTH} deep"));
        }
        Ok(())
    }

    /// Leaves an array or object.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(crate) fn literal(&mut self, word: &str) -> Parsed<()> {
        if !self.record[self.pos..].starts_with(word.as_bytes()) {
            return self.expected("a value");
        }
        self.pos += word.len();
        Ok(())
    }

    /// Digits from `at`: their value and number (at most 18 are read).
    #[inline(always)]
    fn digits(&self, at: usize) -> (u64, usize) {
        let word = self.load8(at);
        let len = non_digits(word).trailing_zeros() as usize / 8;
        if len == 0 {
            return (0, 0);
        }
        let value = eight_digits((word ^ ASCII_ZEROS) << (64 - 8 * len));
        if len < 8 {
            return (value, len);
        }
        let word = self.load8(at + 8);
        let more = non_digits(word).trailing_zeros() as usize / 8;
        if more == 0 {
            return (value, 8);
        }
        let value = value * POW10[more] + eight_digits((word ^ ASCII_ZEROS) << (64 - 8 * more));
        if more < 8 {
            return (value, 8 + more);
        }
        let word = self.load8(at + 16);
        // Three more, of which the caller accepts two: 18 digits fit into 63 bits.
        let last = (non_digits(word).trailing_zeros() as usize / 8).min(3);
        if last == 0 {
            return (value, 16);
        }
        if last == 3 {
            return (0, 19);
        }
        (value * POW10[last] + eight_digits((word ^ ASCII_ZEROS) << (64 - 8 * last)), 16 + last)
    }

    /// An integer of at most 18 digits, without fraction or exponent. `None`, with the position unchanged, for
    /// everything else, be it a number or not.
    #[inline(always)]
    pub(crate) fn small_integer(&mut self) -> Option<i64> {
        let negative = self.peek() == Some(b'-');
        let start = self.pos + usize::from(negative);
        let (value, len) = self.digits(start);
        let end = start + len;
        if len == 0 || len > 18 || end > self.record.len() || (len > 1 && self.record[start] == b'0') {
            return None;
        }
        if let Some(b'.' | b'e' | b'E') = self.record.get(end) {
            return None;
        }
        self.pos = end;
        let value = value as i64;
        Some(if negative { -value } else { value })
    }

    /// A number of at most 18 integer and 7 fraction digits, without exponent. `None`, with the position unchanged,
    /// for everything else, be it a number or not.
    #[inline(always)]
    pub(crate) fn fixed(&mut self) -> Option<Fixed> {
        let negative = self.peek() == Some(b'-');
        let start = self.pos + usize::from(negative);
        let (int, int_len) = self.digits(start);
        let mut end = start + int_len;
        if int_len == 0 || int_len > 18 || end > self.record.len() || (int_len > 1 && self.record[start] == b'0') {
            return None;
        }
        let (mut fraction, mut fraction_len) = (0, 0);
        if self.record.get(end) == Some(&b'.') {
            let word = self.load8(end + 1);
            fraction_len = non_digits(word).trailing_zeros() as usize / 8;
            if fraction_len == 0 || fraction_len == 8 {
                return None;
            }
            fraction = eight_digits((word ^ ASCII_ZEROS) << (64 - 8 * fraction_len));
            end += 1 + fraction_len;
            if end > self.record.len() {
                return None;
            }
        }
        if let Some(b'e' | b'E') = self.record.get(end) {
            return None;
        }
        self.pos = end;
        Some(Fixed { negative, int, int_len, fraction, fraction_len })
    }

    /// Any number; also one inside a string, which Flink accepts too (`"12.50"`).
    #[cold]
    pub(crate) fn number(&mut self) -> Parsed<Number<'a>> {
        let start = self.pos;
        match self.peek() {
            Some(b'"') => {
                let raw = self.string()?.raw;
                match number::scan(raw, 0) {
                    Ok((number, end)) if end == raw.len() => Ok(number),
                    _ => {
                        self.pos = start;
                        self.fault("expected a number, found a string that holds none")
                    }
                }
            }
            Some(b'-' | b'0'..=b'9') => match number::scan(self.record, start) {
                Ok((number, end)) => {
                    self.pos = end;
                    Ok(number)
                }
                Err((at, what)) => {
                    self.pos = at;
                    self.fault(what)
                }
            },
            _ => self.expected("a number"),
        }
    }

    /// A string; the position is at its opening quote.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Parsed<Quoted<'a>> {
        if self.peek() != Some(b'"') {
            return self.expected("a string");
        }
        let start = self.pos + 1;
        let mut at = start;
        let mut seen = 0;
        loop {
            let word = self.load8(at);
            let special = string_specials(word);
            if special == 0 {
                seen |= word;
                at += 8;
                continue;
            }
            at += special.trailing_zeros() as usize / 8;
            // The bytes before the special one; those after it may be another record's.
            seen |= word & (special & special.wrapping_neg()).wrapping_sub(1);
            break;
        }
        if self.record.get(at) != Some(&b'"') {
            return self.string_rest(start, at);
        }
        self.pos = at + 1;
        let raw = &self.record[start..at];
        if seen & 0x8080_8080_8080_8080 != 0 {
            self.check_utf8(raw, start)?;
        }
        Ok(Quoted { raw, escaped: false })
    }

    /// Goes on with a string that begins at `start`, from `at` where something other than a plain character or the
    /// closing quote is.
    #[cold]
    fn string_rest(&mut self, start: usize, mut at: usize) -> Parsed<Quoted<'a>> {
        let mut escaped = false;
        loop {
            self.pos = at;
            match self.record.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    at += match self.record.get(at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') if hex4(self.record, at + 2).is_none() => {
                            return self.fault("\\u without four hexadecimal digits");
                        }
                        Some(b'u') => match unicode(self.record, at) {
                            Some((_, len)) => len,
                            None => return self.fault("a surrogate that is not one of a pair"),
                        },
                        _ => return self.fault("an escape that JSON does not have"),
                    };
                }
                Some(0..0x20) => return self.fault("a control character in a string"),
                Some(_) => {
                    let special = string_specials(self.load8(at));
                    at += (special.trailing_zeros() as usize / 8).max(1);
                }
                None => {
                    self.pos = self.record.len();
                    return self.fault("a string without end");
                }
            }
        }
        let raw = &self.record[start..at];
        self.check_utf8(raw, start)?;
        self.pos = at + 1;
        Ok(Quoted { raw, escaped })
    }

    fn check_utf8(&mut self, raw: &[u8], start: usize) -> Parsed<()> {
        match simdutf8::compat::from_utf8(raw) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.pos = start + error.valid_up_to();
                self.fault("invalid UTF-8 in a string")
            }
        }
    }

    /// Skips and checks one value of any kind; whitespace before it is skipped too.
    pub(crate) fn skip_value(&mut self) -> Parsed<()> {
        self.skip_whitespace();
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => {
                if self.small_integer().is_none() && self.fixed().is_none() {
                    self.number()?;
                }
                Ok(())
            }
            Some(b'{') => self.skip_object(),
            Some(b'[') => self.skip_array(),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => self.expected("a value"),
        }
    }

    fn skip_object(&mut self) -> Parsed<()> {
        self.enter()?;
        let mut first = true;
        while self.key(first)?.is_some() {
            self.skip_value()?;
            first = false;
        }
        self.leave();
        Ok(())
    }

    fn skip_array(&mut self) -> Parsed<()> {
        self.enter()?;
        let mut first = true;
        while self.element(first)? {
            self.skip_value()?;
            first = false;
        }
        self.leave();
        Ok(())
    }

    /// Goes to the next element of an array; `first`: the position is at its `[`. False at the array's end.
    pub(crate) fn element(&mut self, first: bool) -> Parsed<bool> {
        if first {
            self.pos += 1;
            self.skip_whitespace();
            if self.peek() == Some(b']') {
                self.pos += 1;
                return Ok(false);
            }
            return Ok(true);
        }
        self.skip_whitespace();
        match self.peek() {
            Some(b',') => {
                self.pos += 1;
                Ok(true)
            }
            Some(b']') => {
                self.pos += 1;
                Ok(false)
            }
            _ => self.expected("',' or ']'"),
        }
    }

    /// Reads up to the next field's value and returns its key; `None` at the object's end. `first`: the position is
    /// before the object's `{`, else after a field's value.
    pub(crate) fn key(&mut self, first: bool) -> Parsed<Option<Quoted<'a>>> {
        self.skip_whitespace();
        match (self.peek(), first) {
            (Some(b'{'), true) => {
                self.pos += 1;
                self.skip_whitespace();
                if self.peek() == Some(b'}') {
                    self.pos += 1;
                    return Ok(None);
                }
            }
            (Some(b'}'), false) => {
                self.pos += 1;
                return Ok(None);
            }
            (Some(b','), false) => {
                self.pos += 1;
                self.skip_whitespace();
            }
            (_, true) => return self.expected("an object"),
            (_, false) => return self.expected("',' or '}'"),
        }
        if self.peek() != Some(b'"') {
            return self.expected("a field's name");
        }
        let key = self.string()?;
        self.skip_whitespace();
        if self.peek() != Some(b':') {
            return self.expected("':'");
        }
        self.pos += 1;
        self.skip_whitespace();
        Ok(Some(key))
    }

    /// Checks that only whitespace is left.
    #[inline(always)]
    pub(crate) fn end(&mut self) -> Parsed<()> {
        if self.pos == self.record.len() {
            return Ok(());
        }
        self.skip_whitespace();
        if self.pos == self.record.len() { Ok(()) } else { self.fault("more bytes after the record's end") }
    }
}
