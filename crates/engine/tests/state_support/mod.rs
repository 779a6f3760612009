//! A naive model of keyed state, and a subtask that does the same with the real one.
#![allow(clippy::unwrap_used, dead_code)]
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use bytes::Bytes;
use semel_checkpoint::{
    CheckpointId, Generation, JobUuid, OperatorSnapshot, OperatorUid, Part, PutOutcome, StateFile, Store, StoreError, StoreResult,
    StoredObject, open_store,
};
use semel_engine::state::*;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub const SLOTS: u32 = 256;

/// Namespace, text key, number key.
pub type Key = (i64, Option<String>, Option<i64>);
/// COUNT(*), SUM(v), MIN(t), LAST(v).
pub type Totals = (i64, Option<i64>, Option<String>, Option<i64>);
pub type Model = BTreeMap<Key, Totals>;

#[derive(Debug, Clone)]
pub struct Row {
    pub key: Key,
    pub value: Option<i64>,
    pub text: Option<String>,
}

pub fn add(model: &mut Model, row: &Row) {
    let totals = model.entry(row.key.clone()).or_default();
    totals.0 += 1;
    if let Some(value) = row.value {
        totals.1 = Some(totals.1.unwrap_or(0) + value);
        totals.3 = Some(value);
    }
    if let Some(text) = &row.text {
        totals.2 = Some(totals.2.take().map_or(text.clone(), |least| least.min(text.clone())));
    }
}

/// `texts`: whether the key is (text, number) or the number alone.
pub fn schema(texts: bool) -> Arc<StateSchema> {
    let mut keys = vec![("k".to_string(), DataType::Int64)];
    if texts {
        keys.insert(0, ("a".to_string(), DataType::Utf8));
    }
    let aggregates = vec![
        AggregateSpec::count(),
        AggregateSpec::new(AggregateKind::Sum, "v", 0, DataType::Int64),
        AggregateSpec::new(AggregateKind::Min, "t", 1, DataType::Utf8),
        AggregateSpec::new(AggregateKind::Last, "v", 0, DataType::Int64),
    ];
    let namespaces = Namespaces::Windows { size_ms: 3000, slide_ms: 3000, offset_ms: 0 };
    Arc::new(StateSchema { keys, aggregates, slots: SLOTS, namespaces })
}

pub fn key_columns<'a>(schema: &StateSchema, keys: impl Iterator<Item = &'a Key> + Clone) -> Vec<ArrayRef> {
    let mut columns: Vec<ArrayRef> = vec![Arc::new(keys.clone().map(|key| key.2).collect::<Int64Array>())];
    if schema.keys.len() == 2 {
        columns.insert(0, Arc::new(keys.map(|key| key.1.clone()).collect::<StringArray>()));
    }
    columns
}

pub fn slots_of_keys(schema: &StateSchema, keys: &[&Key]) -> Vec<u16> {
    let mut hashes = vec![];
    hash_columns(&key_columns(schema, keys.iter().copied()), &mut hashes).unwrap();
    hashes.iter().map(|hash| slot_of(*hash, SLOTS)).collect()
}

pub fn update(state: &mut KeyedState, rows: &[Row]) {
    let schema = state.schema().clone();
    let mut by_namespace: BTreeMap<i64, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|row| by_namespace.entry(row.key.0).or_default().push(row));
    for (namespace, rows) in by_namespace {
        let keys = key_columns(&schema, rows.iter().map(|row| &row.key));
        let inputs: Vec<ArrayRef> = vec![
            Arc::new(rows.iter().map(|row| row.value).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|row| row.text.clone()).collect::<StringArray>()),
        ];
        let mut hashes = vec![];
        hash_columns(&keys, &mut hashes).unwrap();
        state.update(namespace, &keys, &hashes, &inputs, &mut vec![]).unwrap();
    }
}

pub fn remove(state: &mut KeyedState, key: &Key) {
    let keys = key_columns(&state.schema().clone(), [key].into_iter());
    let (mut hashes, mut groups) = (vec![], vec![]);
    hash_columns(&keys, &mut hashes).unwrap();
    state.find(key.0, &keys, &hashes, &mut groups).unwrap();
    state.remove(key.0, &groups).unwrap();
}

pub fn contents(state: &KeyedState) -> Model {
    let mut model = Model::new();
    for namespace in state.namespaces() {
        let groups = state.groups(namespace);
        let (keys, results) = (state.keys(namespace, &groups).unwrap(), state.results(namespace, &groups).unwrap());
        let number = |column: &ArrayRef, i: usize| column.is_valid(i).then(|| column.as_primitive::<Int64Type>().value(i));
        let text = |column: &ArrayRef, i: usize| column.is_valid(i).then(|| column.as_string::<i32>().value(i).to_string());
        for i in 0..groups.len() {
            let key = match keys.as_slice() {
                [k] => (namespace, None, number(k, i)),
                [a, k] => (namespace, text(a, i), number(k, i)),
                _ => panic!("{} key columns", keys.len()),
            };
            let totals = (number(&results[0], i).unwrap(), number(&results[1], i), text(&results[2], i), number(&results[3], i));
            assert_eq!(model.insert(key, totals), None, "a group is there once");
        }
    }
    model
}

pub fn uid() -> OperatorUid {
    OperatorUid::new("sums").unwrap()
}

pub struct Subtask {
    pub slots: RangeInclusive<u16>,
    pub state: KeyedState,
    pub snapshotter: Snapshotter,
}

#[derive(Clone)]
pub struct Job {
    pub store: Arc<dyn Store>,
    pub uuid: JobUuid,
    pub schema: Arc<StateSchema>,
    pub compression: Compression,
}

impl Job {
    pub fn new(store: Arc<dyn Store>, schema: Arc<StateSchema>) -> Job {
        Job { store, uuid: JobUuid::random(), schema, compression: Compression::default() }
    }

    pub async fn start(
        &self,
        generation: u64,
        subtask: usize,
        parallelism: usize,
        from: &OperatorSnapshot,
        keep: impl Fn(i64) -> bool + Send,
    ) -> Result<Subtask, StateError> {
        let slots = slot_range(subtask, SLOTS, parallelism);
        let (state, chain) = restore(self.store.clone(), &uid(), self.schema.clone(), Some(from), slots.clone(), keep).await?;
        let owner = SnapshotOwner { job: self.uuid, generation: Generation(generation), uid: uid(), subtask: subtask as u32 };
        let snapshotter = Snapshotter::new(self.store.clone(), owner, self.schema.clone(), chain, self.compression)?;
        Ok(Subtask { slots, state, snapshotter })
    }

    /// The only subtask, from nothing.
    pub async fn fresh(&self) -> Subtask {
        self.start(1, 0, 1, &OperatorSnapshot::default(), |_| true).await.unwrap()
    }

    /// What a restart from these files would hold.
    pub async fn restored(&self, files: &[StateFile]) -> Result<Model, StateError> {
        Ok(contents(&self.start(9, 0, 1, &snapshot(vec![files.to_vec()]), |_| true).await?.state))
    }
}

impl Subtask {
    pub async fn save(&mut self, checkpoint: u64) -> Saved {
        let frozen = self.state.freeze(None).unwrap();
        self.snapshotter.save(CheckpointId(checkpoint), frozen).await
    }

    /// Files and new bytes.
    pub async fn saved(&mut self, checkpoint: u64) -> (Vec<StateFile>, u64) {
        match self.save(checkpoint).await {
            Saved::Uploaded { files, new_bytes } => (files, new_bytes),
            Saved::Declined { reason } => panic!("{reason}"),
        }
    }
}

pub fn snapshot(files: Vec<Vec<StateFile>>) -> OperatorSnapshot {
    let parts = files.into_iter().enumerate().map(|(subtask, files)| Part { subtask: subtask as u32, files });
    OperatorSnapshot { parts: parts.collect(), ..OperatorSnapshot::default() }
}

/// Rows in a file, by its header.
pub async fn rows_in(store: &Arc<dyn Store>, file: &StateFile) -> u64 {
    let reader = SnapshotReader::open(store.clone(), file.clone()).await.unwrap();
    reader.header().batches.iter().map(|batch| batch.rows).sum()
}

pub fn memory() -> Arc<dyn Store> {
    open_store(&format!("memory://{}", JobUuid::random())).unwrap()
}

/// Counts what is read, and refuses to be read when told so.
#[derive(Debug)]
pub struct Watched {
    pub inner: Arc<dyn Store>,
    pub read: AtomicU64,
    pub refuse: AtomicBool,
}

impl Watched {
    pub fn new() -> Arc<Watched> {
        Arc::new(Watched { inner: memory(), read: AtomicU64::new(0), refuse: AtomicBool::new(false) })
    }
}

impl Store for Watched {
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome> {
        self.inner.put_if_absent(path, bytes)
    }
    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()> {
        self.inner.put(path, bytes)
    }
    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>> {
        self.inner.get(path)
    }
    fn get_range<'a>(&'a self, path: &'a str, range: Range<u64>) -> StoreResult<'a, Bytes> {
        if self.refuse.load(SeqCst) {
            let refused = StoreError::Transient { operation: "get_range", path: path.into(), reason: "refused by the test".into() };
            return Box::pin(async { Err(refused) });
        }
        self.read.fetch_add(range.end - range.start, SeqCst);
        self.inner.get_range(path, range)
    }
    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>> {
        self.inner.list(prefix)
    }
    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()> {
        self.inner.delete(path)
    }
}
