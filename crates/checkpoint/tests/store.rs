//! What every store promises, on a local folder, in memory and behind S3's protocol.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use semel_checkpoint::testing::{Fault, FaultyStore};
use semel_checkpoint::*;
use std::sync::Arc;

fn stores() -> (tempfile::TempDir, Vec<Arc<dyn Store>>) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("a/b");
    let local = open_store(root.to_str().unwrap()).unwrap();
    let url = open_store(&format!("file://{}", folder.path().join("c").display())).unwrap();
    let memory = open_store(&format!("memory://{}", uuid::Uuid::new_v4())).unwrap();
    (folder, vec![local, url, memory])
}

#[tokio::test]
async fn every_store_keeps_the_contract() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(store.get("x/y").await.unwrap(), None);
        store.delete("x/y").await.unwrap();
        assert_eq!(store.put_if_absent("x/y", Bytes::from("one")).await.unwrap(), PutOutcome::Written);
        assert_eq!(store.put_if_absent("x/y", Bytes::from("two")).await.unwrap(), PutOutcome::Exists);
        assert_eq!(store.get("x/y").await.unwrap().unwrap(), "one");
        store.put("x/z/1", Bytes::from("0123456789")).await.unwrap();
        assert_eq!(store.get_range("x/z/1", 2..5).await.unwrap(), "234");
        assert_eq!(store.get_range("x/z/1", 8..5000).await.unwrap(), "89");
        assert_eq!(store.get_range("x/z/1", 5000..5001).await.unwrap(), "");
        assert!(matches!(store.get_range("x/z/2", 2..5).await, Err(StoreError::NotFound { .. })));
        let listed: Vec<_> = store.list("x/").await.unwrap().into_iter().map(|o| (o.path, o.bytes)).collect();
        assert_eq!(listed, [("x/y".to_owned(), 3), ("x/z/1".to_owned(), 10)]);
        assert_eq!(store.list("nothing/").await.unwrap(), []);
        store.delete("x/z/1").await.unwrap();
        assert_eq!(store.list("").await.unwrap().len(), 1);
        // The folder may have gone with its last file.
        store.put("x/z/3", Bytes::from("again")).await.unwrap();
        assert_eq!(store.get("x/z/3").await.unwrap().unwrap(), "again");
        probe_put_if_absent(store.as_ref()).await.unwrap();
        assert_eq!(store.list("probe/").await.unwrap(), []);
    }
}

#[tokio::test]
async fn paths_cannot_leave_the_root() {
    let (_folder, stores) = stores();
    for store in stores {
        for bad in ["../x", "x/../../y", "/etc/passwd", "", "x//y", ".scratch/x", "x/.", "a\\b"] {
            let error = store.put(bad, Bytes::new()).await.unwrap_err();
            assert!(matches!(error, StoreError::Final { .. }), "{bad}: {error}");
            assert!(store.get(bad).await.is_err(), "{bad}");
        }
        assert!(store.list("../").await.is_err());
    }
}

#[tokio::test]
async fn of_many_writers_of_a_name_one_wins() {
    let (_folder, stores) = stores();
    for store in stores {
        let writers = (0..16).map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.put_if_absent("j/1", Bytes::from(format!("{n}"))).await.unwrap() })
        });
        let outcomes = futures::future::join_all(writers.collect::<Vec<_>>()).await;
        let won: Vec<usize> = (0..16).filter(|n| *outcomes[*n].as_ref().unwrap() == PutOutcome::Written).collect();
        assert_eq!(won.len(), 1);
        assert_eq!(store.get("j/1").await.unwrap().unwrap(), won[0].to_string());
    }
}

#[tokio::test]
async fn a_writer_that_died_before_its_link_leaves_nothing_visible() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::open(folder.path()).unwrap();
    store.put("x/y", Bytes::from("1")).await.unwrap();
    std::fs::write(folder.path().join(".scratch/left"), "torn").unwrap();
    let all = store.list("").await.unwrap();
    assert_eq!(all.iter().map(|object| object.path.as_str()).collect::<Vec<_>>(), ["x/y"]);
    assert_eq!(std::fs::read_dir(folder.path().join(".scratch")).unwrap().count(), 1, "only the foreign one");
}

/// A store that ignores the condition, as some that speak S3 do.
#[derive(Debug)]
struct Unconditional(Arc<dyn Store>);

impl Store for Unconditional {
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome> {
        Box::pin(async move { self.0.put(path, bytes).await.map(|()| PutOutcome::Written) })
    }
    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()> {
        self.0.put(path, bytes)
    }
    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>> {
        self.0.get(path)
    }
    fn get_range<'a>(&'a self, path: &'a str, range: std::ops::Range<u64>) -> StoreResult<'a, Bytes> {
        self.0.get_range(path, range)
    }
    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>> {
        self.0.list(prefix)
    }
    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()> {
        self.0.delete(path)
    }
}

#[tokio::test]
async fn the_probe_finds_a_store_that_ignores_the_condition() {
    let inner = open_store("memory://unconditional").unwrap();
    let error = probe_put_if_absent(&Unconditional(inner.clone())).await.unwrap_err().to_string();
    assert!(error.contains("overwrote") && error.contains("use a store that has them"), "{error}");
    assert_eq!(inner.list("").await.unwrap(), [], "the probe cleans up");
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let error = open_store("ftp://x").unwrap_err().to_string();
    assert!(error.contains("s3://"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("journal"), "").unwrap();
    let store = LocalStore::open(folder.path()).unwrap();
    let error = store.put_if_absent("journal/1", Bytes::new()).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("a file stands where a folder is needed"), "{error}");
}

#[tokio::test]
async fn the_failing_store_does_what_it_says() {
    let inner = open_store("memory://failing").unwrap();
    let store = FaultyStore::new(inner.clone())
        .on_write(1, Fault::LoseAnswer)
        .on_write(2, Fault::Refuse)
        .on_write(3, Fault::Hold)
        .on_write(4, Fault::StopAfter);
    for path in ["a/1", "a/2", "a/3"] {
        assert!(store.put(path, Bytes::new()).await.unwrap_err().is_transient());
    }
    let paths = |objects: Vec<StoredObject>| objects.into_iter().map(|o| o.path).collect::<Vec<_>>();
    assert_eq!(paths(inner.list("").await.unwrap()), ["a/1"]);
    assert_eq!(store.deliver().await.unwrap(), 1);
    assert!(!store.put("a/4", Bytes::new()).await.unwrap_err().is_transient());
    assert_eq!(paths(inner.list("").await.unwrap()), ["a/1", "a/3", "a/4"]);
    assert!(store.stopped() && store.get("a/1").await.is_err());
}
