//! The narrow storage trait under everything, and the places it can stand on.

mod local;
mod object;

pub use local::LocalStore;
pub use object::ObjectStoreBackend;

use bytes::Bytes;
use futures::future::BoxFuture;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one attempt of one call.
pub const ATTEMPT_DEADLINE: Duration = Duration::from_secs(20);
/// Deadline of a call with all its attempts.
pub const TOTAL_DEADLINE: Duration = Duration::from_secs(60);

/// What a conditional put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutOutcome {
    /// This very call wrote the object.
    Written,
    /// An object of this name may exist already: somebody else's, or ours from an attempt whose answer was lost.
    /// Read it back to know; a store may also answer so when two puts collide and neither is there yet.
    Exists,
}

/// An object found by [`Store::list`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredObject {
    /// Its path under the root.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// The result of a call to a store.
pub type StoreResult<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Objects under a root, named by relative paths such as `journal/00000000000000000001.json`.
///
/// Every method has a deadline inside and never hangs.
pub trait Store: Send + Sync + Debug {
    /// Writes the object only if there is none of this name; durable on `Written`. **One attempt**: it is never
    /// repeated inside, because the caller must know whether a put was repeated. A transient error leaves open
    /// whether the object was or will still be written.
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome>;
    /// Writes an object whose name is unique to its writer; durable on return.
    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()>;
    /// Reads an object; `None` if there is none.
    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>>;
    /// Reads some bytes of an object, fewer if it ends before; [`StoreError::NotFound`] if there is none.
    fn get_range<'a>(&'a self, path: &'a str, range: Range<u64>) -> StoreResult<'a, Bytes>;
    /// All objects whose path starts with a folder such as `journal/` (the empty text lists all), ordered by path.
    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>>;
    /// Removes an object; no error if there is none.
    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()>;
}

/// Why a call to a store failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Retryable. Whether a write happened, or will still happen, is unknown.
    #[error("{operation} {path}: {reason} (transient; the outcome of a write is unknown until it is read back)")]
    Transient {
        /// What was tried.
        operation: &'static str,
        /// On which object.
        path: String,
        /// What happened.
        reason: String,
    },
    /// There is no such object.
    #[error("{path} is not in the store")]
    NotFound {
        /// The object.
        path: String,
    },
    /// Repeating will not help: permissions, credentials, configuration, a full disk.
    #[error("{operation} {path}: {reason}; {hint}")]
    Final {
        /// What was tried.
        operation: &'static str,
        /// On which object.
        path: String,
        /// What happened.
        reason: String,
        /// What to do.
        hint: String,
    },
}

impl StoreError {
    /// Whether the call may be repeated.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Transient { .. })
    }

    pub(crate) fn transient(operation: &'static str, path: &str, reason: impl ToString) -> StoreError {
        StoreError::Transient { operation, path: path.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn fatal(operation: &'static str, path: &str, reason: impl ToString, hint: impl Into<String>) -> StoreError {
        StoreError::Final { operation, path: path.to_owned(), reason: reason.to_string(), hint: hint.into() }
    }
}

/// Opens the store at a URL: `file:///folder` or a plain path, `s3://bucket/folder`, `gs://bucket/folder`, or
/// `memory://name` (shared by all who open the name in this process).
///
/// Credentials and endpoints come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, web identity and instance roles for S3; `GOOGLE_APPLICATION_CREDENTIALS` (or
/// `GOOGLE_SERVICE_ACCOUNT`) and the metadata server for GCS.
pub fn open_store(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => ("file".to_owned(), url),
    };
    match scheme.as_str() {
        "file" => Ok(Arc::new(LocalStore::open(rest.strip_prefix("localhost").unwrap_or(rest))?)),
        "memory" => Ok(Arc::new(ObjectStoreBackend::memory(rest))),
        "s3" | "s3a" => Ok(Arc::new(ObjectStoreBackend::s3(rest)?)),
        "gs" => Ok(Arc::new(ObjectStoreBackend::gcs(rest)?)),
        other => Err(StoreError::fatal(
            "open",
            url,
            format_args!("there is no store for {other:?}"),
            "use a path, file://, s3://, gs:// or memory://",
        )),
    }
}

/// Checks that [`Store::put_if_absent`] is really conditional here, by writing a probe twice. Some stores that speak
/// S3 ignore the condition; on them nothing would fence a zombie.
pub async fn probe_put_if_absent(store: &dyn Store) -> Result<(), StoreError> {
    let path = format!("probe/{}", uuid::Uuid::new_v4().simple());
    let result = probe(store, &path).await;
    let deleted = store.delete(&path).await;
    result.and(deleted)
}

async fn probe(store: &dyn Store, path: &str) -> Result<(), StoreError> {
    let wrong = |reason: &str| {
        Err(StoreError::fatal(
            "probe",
            path,
            reason,
            "the journal needs conditional puts (If-None-Match on S3, generation match on GCS): use a store that has them",
        ))
    };
    store.put_if_absent(path, Bytes::from_static(b"first")).await?;
    match store.put_if_absent(path, Bytes::from_static(b"second")).await? {
        PutOutcome::Exists => {}
        PutOutcome::Written => return wrong("put-if-absent overwrote an object that existed"),
    }
    match store.get(path).await? {
        Some(bytes) if bytes == "first" => Ok(()),
        Some(_) => wrong("put-if-absent said that the object existed, yet replaced it"),
        None => wrong("an object that was just written is not found"),
    }
}

/// Checks a relative path: parts of letters, digits and `_.-`, none of them empty, `.` or `..`.
pub(crate) fn check_path(operation: &'static str, path: &str) -> Result<(), StoreError> {
    let part_is_good =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(|c| c.is_ascii_graphic() && !"\\:*?\"<>|".contains(c));
    if path.len() <= 900 && path.split('/').all(part_is_good) {
        return Ok(());
    }
    Err(StoreError::fatal(
        operation,
        path,
        "not a valid path in a store",
        "use parts of visible ASCII characters divided by '/', none empty or starting with '.'",
    ))
}

/// Checks a prefix for [`Store::list`]: empty, or a folder with its '/'.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    match prefix.strip_suffix('/') {
        Some(folder) => check_path("list", folder),
        None if prefix.is_empty() => Ok(()),
        None => Err(StoreError::fatal("list", prefix, "a prefix must be a folder", "end it with '/'")),
    }
}

/// Ends a call after a time.
pub(crate) async fn within<T>(
    limit: Duration,
    operation: &'static str,
    path: &str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::transient(operation, path, format_args!("no answer within {limit:?}"))),
    }
}
