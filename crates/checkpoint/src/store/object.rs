//! S3, GCS and memory, through crate `object_store`.

use super::{ATTEMPT_DEADLINE, PutOutcome, Store, StoreError, StoreResult, StoredObject, TOTAL_DEADLINE, check_path, check_prefix, within};
use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

static MEMORY: LazyLock<Mutex<HashMap<String, Arc<InMemory>>>> = LazyLock::new(Default::default);

/// An object store and a folder in it. The client's own retries are off: a conditional put that was repeated behind
/// the caller's back could take the place of an entry that was collected meanwhile.
#[derive(Debug)]
pub struct ObjectStoreBackend {
    inner: Arc<dyn ObjectStore>,
    folder: String,
}

impl ObjectStoreBackend {
    /// Any object store; `folder` may be empty.
    pub fn new(inner: Arc<dyn ObjectStore>, folder: &str) -> ObjectStoreBackend {
        ObjectStoreBackend { inner, folder: folder.trim_matches('/').to_owned() }
    }

    /// The store of this name in this process.
    pub fn memory(name: &str) -> ObjectStoreBackend {
        let mut stores = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        ObjectStoreBackend::new(stores.entry(name.to_owned()).or_default().clone(), "")
    }

    /// `bucket/folder` on S3, or on what `AWS_ENDPOINT_URL` names.
    pub fn s3(place: &str) -> Result<ObjectStoreBackend, StoreError> {
        let (bucket, folder) = place.split_once('/').unwrap_or((place, ""));
        let plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].map(|name| std::env::var(name).ok());
        let endpoint = plain.into_iter().flatten().find(|url| !url.is_empty());
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(no_retries());
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let http = endpoint.is_some_and(|url| url.starts_with("http://"));
        let built = builder.with_client_options(client_options(http)).build();
        let inner = built.map_err(|error| {
            let hint = "set the bucket, AWS_REGION and AWS_ACCESS_KEY_ID / AWS_SECRET_ACCESS_KEY (or a role)";
            StoreError::fatal("open", &format!("s3://{place}"), error, hint)
        })?;
        Ok(ObjectStoreBackend::new(Arc::new(inner), folder))
    }

    /// `bucket/folder` on Google Cloud Storage.
    pub fn gcs(place: &str) -> Result<ObjectStoreBackend, StoreError> {
        let (bucket, folder) = place.split_once('/').unwrap_or((place, ""));
        let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(no_retries());
        let emulator = std::env::var("STORAGE_EMULATOR_HOST").ok().filter(|host| !host.is_empty());
        if let Some(host) = &emulator {
            let url = if host.contains("://") { host.clone() } else { format!("http://{host}") };
            builder = builder.with_base_url(&url).with_skip_signature(true);
        }
        let built = builder.with_client_options(client_options(emulator.is_some())).build();
        let inner = built.map_err(|error| {
            let hint = "set the bucket and GOOGLE_APPLICATION_CREDENTIALS (or run where a service account is attached)";
            StoreError::fatal("open", &format!("gs://{place}"), error, hint)
        })?;
        Ok(ObjectStoreBackend::new(Arc::new(inner), folder))
    }

    fn path(&self, path: &str) -> Path {
        if self.folder.is_empty() { Path::from(path) } else { Path::from(format!("{}/{path}", self.folder)) }
    }

    /// What there is of the range. Object stores answer with an error to a range that begins or ends behind the object's end,
    /// which repeating would never mend.
    async fn range_or_less(&self, name: &Path, range: Range<u64>) -> object_store::Result<Bytes> {
        let error = match self.inner.get_range(name, range.clone()).await {
            Err(error) if !matches!(error, Error::NotFound { .. }) => error,
            done => return done,
        };
        match self.inner.head(name).await?.size {
            size if size >= range.end => Err(error),
            size if size <= range.start => Ok(Bytes::new()),
            size => self.inner.get_range(name, range.start..size).await,
        }
    }

    /// Repeats an idempotent call while its error is transient, until the total deadline.
    async fn retried<T, F>(&self, operation: &'static str, path: &str, call: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let attempt = || within(ATTEMPT_DEADLINE, operation, path, async { call().await.map_err(|e| map(operation, path, e)) });
        let backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(5))
            .with_jitter()
            .without_max_times();
        let retried = attempt.retry(backoff).when(StoreError::is_transient);
        let retried = retried.notify(|error, delay| tracing::warn!(%error, ?delay, "store: will be tried again"));
        within(TOTAL_DEADLINE, operation, path, retried).await
    }
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client_options(allow_http: bool) -> ClientOptions {
    // Connections that were idle for long are not used again: whether a request on one arrived would be unknown.
    ClientOptions::new()
        .with_allow_http(allow_http)
        .with_timeout(ATTEMPT_DEADLINE)
        .with_connect_timeout(Duration::from_secs(5))
        .with_pool_idle_timeout(Duration::from_secs(30))
}

impl Store for ObjectStoreBackend {
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome> {
        const OPERATION: &str = "put_if_absent";
        Box::pin(async move {
            check_path(OPERATION, path)?;
            within(ATTEMPT_DEADLINE, OPERATION, path, async {
                let options = PutOptions::from(PutMode::Create);
                match self.inner.put_opts(&self.path(path), PutPayload::from(bytes), options).await {
                    Ok(_) => Ok(PutOutcome::Written),
                    Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(PutOutcome::Exists),
                    Err(error) => Err(map(OPERATION, path, error)),
                }
            })
            .await
        })
    }

    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()> {
        Box::pin(async move {
            check_path("put", path)?;
            let name = self.path(path);
            let put = || async { self.inner.put(&name, PutPayload::from(bytes.clone())).await.map(drop) };
            self.retried("put", path, put).await
        })
    }

    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>> {
        Box::pin(async move {
            check_path("get", path)?;
            let name = self.path(path);
            let got = self.retried("get", path, || async { self.inner.get(&name).await?.bytes().await }).await;
            match got {
                Ok(bytes) => Ok(Some(bytes)),
                Err(StoreError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn get_range<'a>(&'a self, path: &'a str, range: Range<u64>) -> StoreResult<'a, Bytes> {
        Box::pin(async move {
            check_path("get_range", path)?;
            let name = self.path(path);
            self.retried("get_range", path, || self.range_or_less(&name, range.clone())).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>> {
        Box::pin(async move {
            check_prefix(prefix)?;
            let folder = self.path(prefix.trim_end_matches('/'));
            let list = || self.inner.list(Some(&folder)).try_collect::<Vec<_>>();
            let found = self.retried("list", prefix, list).await?;
            let skip = if self.folder.is_empty() { 0 } else { self.folder.len() + 1 };
            let object = |meta: object_store::ObjectMeta| {
                let path = meta.location.as_ref().get(skip..)?.to_owned();
                Some(StoredObject { path, bytes: meta.size })
            };
            let mut found: Vec<_> = found.into_iter().filter_map(object).collect();
            found.sort();
            Ok(found)
        })
    }

    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()> {
        Box::pin(async move {
            check_path("delete", path)?;
            let name = self.path(path);
            match self.retried("delete", path, || async { self.inner.delete(&name).await }).await {
                Err(StoreError::NotFound { .. }) => Ok(()),
                other => other,
            }
        })
    }
}

fn map(operation: &'static str, path: &str, error: Error) -> StoreError {
    let hint = match &error {
        Error::NotFound { .. } if operation.starts_with("get") || operation == "delete" => {
            return StoreError::NotFound { path: path.to_owned() };
        }
        Error::NotFound { .. } => "create the bucket, or correct its name in the URL",
        Error::PermissionDenied { .. } => "allow these credentials to list, read, write and delete under this prefix",
        Error::Unauthenticated { .. } => "check the credentials in the environment: they are missing, wrong or expired",
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => "check the URL and the store's settings",
        Error::NotImplemented { .. } | Error::NotSupported { .. } => "use a store with conditional puts",
        _ => return StoreError::transient(operation, path, error),
    };
    StoreError::fatal(operation, path, error, hint)
}
