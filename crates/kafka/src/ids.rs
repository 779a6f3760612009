//! Names of transactions: `<prefix>-<8 hex of job uuid>-<sink uid>-<generation>-<subtask>-<k>`, written and read here only.
//!
//! The job uuid tells whose a transaction is, the generation which incarnation opened it (a lower one's may be ended, its own
//! never), `k` counts the ids of one subtask. Names are matched whole: that of sink `a` is never taken for one of sink `a-1`.

use std::fmt;

/// What all transactional ids of a sink begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdScope {
    /// `transactional-id-prefix`.
    pub prefix: String,
    /// First 8 hex digits of the job uuid.
    pub job: String,
    /// Uid of the sink.
    pub sink: String,
}

/// A transactional id of a known scope, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdParts {
    /// Generation that opened it.
    pub generation: u64,
    /// Subtask of that generation.
    pub subtask: u32,
    /// Number within the subtask.
    pub k: u32,
}

impl IdScope {
    /// `job_uuid` is any text form of the uuid; its first 8 hex digits are used.
    pub fn new(prefix: &str, job_uuid: &str, sink: &str) -> IdScope {
        let job = job_uuid.chars().filter(char::is_ascii_hexdigit).take(8).map(|digit| digit.to_ascii_lowercase()).collect();
        IdScope { prefix: prefix.to_owned(), job, sink: sink.to_owned() }
    }

    /// The transactional id.
    pub fn format(&self, parts: IdParts) -> String {
        format!("{self}-{}-{}-{}", parts.generation, parts.subtask, parts.k)
    }

    /// The parts of a transactional id of this scope; `None` for any other name.
    pub fn parse(&self, id: &str) -> Option<IdParts> {
        let rest = id.strip_prefix(&self.to_string())?.strip_prefix('-')?;
        let mut fields = rest.split('-');
        let parts =
            IdParts { generation: fields.next()?.parse().ok()?, subtask: fields.next()?.parse().ok()?, k: fields.next()?.parse().ok()? };
        // Only the very text that `format` writes: no sign, no leading zero, nothing behind.
        (self.format(parts) == id).then_some(parts)
    }
}

impl fmt::Display for IdScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.prefix, self.job, self.sink)
    }
}

/// Takes apart a transactional id under a prefix, whosever it is: job, sink and parts. `None` where it is not one of ours.
pub fn parse_under_prefix(prefix: &str, id: &str) -> Option<(IdScope, IdParts)> {
    let rest = id.strip_prefix(prefix)?.strip_prefix('-')?;
    let (job, rest) = rest.split_once('-')?;
    let mut fields = rest.rsplitn(4, '-');
    let (_k, _subtask, _generation, sink) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    if job.len() != 8 || !job.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return None;
    }
    let scope = IdScope { prefix: prefix.to_owned(), job: job.to_owned(), sink: sink.to_owned() };
    let parts = scope.parse(id)?;
    Some((scope, parts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scope(sink: &str) -> IdScope {
        IdScope::new("orders", "0A1b2c3d-4e5f-6789-abcd-ef0123456789", sink)
    }

    #[test]
    fn an_id_is_read_back_as_it_was_written() {
        let parts = IdParts { generation: 12, subtask: 3, k: 1 };
        let id = scope("out").format(parts);
        assert_eq!(id, "orders-0a1b2c3d-out-12-3-1");
        assert_eq!(scope("out").parse(&id), Some(parts));
        assert_eq!(parse_under_prefix("orders", &id), Some((scope("out"), parts)));
    }

    #[test]
    fn names_are_matched_whole() {
        let parts = IdParts { generation: 1, subtask: 2, k: 3 };
        // A sink whose uid looks like the tail of another's id, both ways.
        let longer = scope("a-1").format(parts);
        assert_eq!(scope("a").parse(&longer), None);
        assert_eq!(scope("a-1").parse(&scope("a").format(parts)), None);
        assert_eq!(parse_under_prefix("orders", &longer), Some((scope("a-1"), parts)));
        // A job whose prefix begins with ours.
        assert_eq!(scope("a").parse("orders-eu-0a1b2c3d-a-1-2-3"), None);
        assert_eq!(parse_under_prefix("orders", "orders-eu-0a1b2c3d-a-1-2-3"), None);
        // Another uuid.
        assert_eq!(scope("a").parse("orders-0a1b2c3e-a-1-2-3"), None);
    }

    #[test]
    fn only_the_canonical_text_is_accepted() {
        for id in [
            "orders-0a1b2c3d-a-01-2-3",
            "orders-0a1b2c3d-a-+1-2-3",
            "orders-0a1b2c3d-a-1-2",
            "orders-0a1b2c3d-a-1-2-3-",
            "orders-0a1b2c3d-a-1-2-3x",
        ] {
            assert_eq!(scope("a").parse(id), None, "{id}");
            assert!(parse_under_prefix("orders", id).is_none_or(|(scope, _)| scope.sink != "a"), "{id}");
        }
    }
}
