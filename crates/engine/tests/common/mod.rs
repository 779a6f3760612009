//! A source whose rows are a function of (split, position), a sink in memory, and a way to run a graph in this process.
#![allow(clippy::unwrap_used, dead_code)]
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use semel_checkpoint::{CheckpointId, ClaimRequest, CommitPermit, JobIdentity, OperatorUid, SplitState, Store, claim, open_store};
use semel_engine::config::EngineConfig;
use semel_engine::graph::Graph;
use semel_engine::job::{Assignment, JobContext};
use semel_engine::sink::*;
use semel_engine::source::*;
use semel_engine::status::Status;
use semel_engine::worker::run_worker;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// key, value, time.
pub fn row(split: u64, position: i64, keys: u64) -> (i64, i64, i64) {
    let h = scramble(split << 40 | position as u64);
    (((h >> 8) % keys) as i64, ((h >> 32) % 1000) as i64, 1_000_000 + position - (h % 2000) as i64)
}

pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(["key", "value", "time"].map(|n| Field::new(n, DataType::Int64, false)).to_vec()))
}

/// A bounded source with splits `n-0`, `n-1`, ...
pub struct Numbers {
    pub splits: u64,
    pub rows: i64,
    pub keys: u64,
    /// Wait between two batches.
    pub pause: Duration,
}

pub struct NumbersReader {
    own: Vec<(u64, i64)>,
    rows: i64,
    keys: u64,
    pause: Duration,
    next: usize,
    said: bool,
}

impl Source for Numbers {
    type Reader = NumbersReader;
    fn schema(&self) -> SchemaRef {
        schema()
    }
    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid) -> Vec<Finding> {
        vec![]
    }
    async fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>) -> ConnectorResult<NumbersReader> {
        let position = |split: &str| restored.iter().flatten().find(|s| s.split == split).map_or(0, |s| s.position);
        let own = (0..self.splits)
            .map(|n| (n, format!("n-{n}")))
            .filter(|(_, name)| context.owns(name))
            .map(|(n, name)| (n, position(&name)))
            .collect();
        Ok(NumbersReader { own, rows: self.rows, keys: self.keys, pause: self.pause, next: 0, said: false })
    }
}

impl SourceReader for NumbersReader {
    fn splits(&mut self) -> Vec<SplitState> {
        self.own
            .iter()
            .map(|(n, position)| SplitState {
                split: format!("n-{n}"),
                position: *position,
                watermark: None,
                detail: serde_json::Value::Null,
            })
            .collect()
    }
    async fn next(&mut self) -> ConnectorResult<SourceEvent> {
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        if self.own.is_empty() {
            if !std::mem::replace(&mut self.said, true) {
                return Ok(SourceEvent::NoMoreSplits);
            }
            return std::future::pending().await;
        }
        self.next = (self.next + 1) % self.own.len();
        let (n, position) = self.own[self.next];
        let split = format!("n-{n}").into();
        if position >= self.rows {
            self.own.remove(self.next);
            self.next = 0;
            return Ok(SourceEvent::SplitFinished { split });
        }
        let end = self.rows.min(position + 500);
        self.own[self.next].1 = end;
        let rows: Vec<_> = (position..end).map(|p| row(n, p, self.keys)).collect();
        let column = |f: fn(&(i64, i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(f))) as ArrayRef;
        let rows = RecordBatch::try_new(schema(), vec![column(|r| r.0), column(|r| r.1), column(|r| r.2)]).unwrap();
        Ok(SourceEvent::Rows { split, rows, position: end, caught_up: end == self.rows })
    }
}

#[derive(Default)]
pub struct Tables {
    next: u64,
    open: BTreeMap<u64, Vec<RecordBatch>>,
    pub committed: Vec<RecordBatch>,
    /// Transactions in order of their commits: (subtask, checkpoint).
    pub commits: Vec<(u32, u64)>,
    pub largest_open_rows: usize,
}

/// A sink in memory. Clones share the table, as processes share a server.
#[derive(Clone, Default)]
pub struct Memory {
    pub tables: Arc<Mutex<Tables>>,
    /// Each `invoke` takes so long.
    pub slow: Duration,
}

impl Memory {
    /// All committed rows of `i64` and timestamp columns.
    pub fn rows(&self) -> Vec<Vec<i64>> {
        let tables = self.tables.lock().unwrap();
        let mut rows = vec![];
        for batch in &tables.committed {
            let columns: Vec<Int64Array> = batch
                .columns()
                .iter()
                .map(|c| arrow::compute::cast(c, &DataType::Int64).unwrap().as_primitive::<Int64Type>().clone())
                .collect();
            rows.extend((0..batch.num_rows()).map(|i| columns.iter().map(|c| c.value(i)).collect::<Vec<_>>()));
        }
        rows
    }
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    id: u64,
    subtask: u32,
    checkpoint: u64,
}

pub struct MemoryWriter(Memory, u32);
pub struct MemoryCommitter(Memory);

impl TwoPhaseCommitSink for Memory {
    type Transaction = Handle;
    type Writer = MemoryWriter;
    type Committer = MemoryCommitter;
    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid, _: &SchemaRef) -> Vec<Finding> {
        vec![]
    }
    async fn recover(&self, _: &JobIdentity, _: &OperatorUid, pending: Vec<Pending<Handle>>) -> ConnectorResult<Swept> {
        for p in pending {
            MemoryCommitter(self.clone()).commit(&p.transaction, &p.permit).await?;
        }
        self.tables.lock().unwrap().open.clear();
        Ok(Swept::default())
    }
    async fn sweep(&self, _: &JobIdentity, _: &OperatorUid) -> ConnectorResult<Swept> {
        Ok(Swept::default())
    }
    async fn open(&self, context: SinkContext) -> ConnectorResult<(MemoryWriter, MemoryCommitter)> {
        Ok((MemoryWriter(self.clone(), context.subtask), MemoryCommitter(self.clone())))
    }
}

impl SinkWriter for MemoryWriter {
    type Transaction = Handle;
    async fn begin_transaction(&mut self, checkpoint: CheckpointId) -> ConnectorResult<Handle> {
        let mut t = self.0.tables.lock().unwrap();
        t.next += 1;
        Ok(Handle { id: t.next, subtask: self.1, checkpoint: checkpoint.0 })
    }
    async fn invoke(&mut self, transaction: &mut Handle, rows: RecordBatch) -> ConnectorResult<()> {
        if !self.0.slow.is_zero() {
            tokio::time::sleep(self.0.slow).await;
        }
        self.0.tables.lock().unwrap().open.entry(transaction.id).or_default().push(rows);
        Ok(())
    }
    async fn pre_commit(&mut self, _: &mut Handle) -> ConnectorResult<()> {
        Ok(())
    }
}

impl SinkCommitter for MemoryCommitter {
    type Transaction = Handle;
    async fn commit(&mut self, transaction: &Handle, _: &CommitPermit) -> ConnectorResult<Committed> {
        let mut t = self.0.tables.lock().unwrap();
        let Some(rows) = t.open.remove(&transaction.id) else { return Ok(Committed::Already) };
        t.committed.extend(rows);
        t.commits.push((transaction.subtask, transaction.checkpoint));
        Ok(Committed::Now)
    }
    async fn abort(&mut self, transaction: &Handle) -> ConnectorResult<()> {
        self.0.tables.lock().unwrap().open.remove(&transaction.id);
        Ok(())
    }
}

/// Settings for tests: checkpoints each 50 ms.
pub fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.checkpoint.interval = Duration::from_millis(50);
    config
}

/// Runs the graph in this process, from the newest checkpoint in the store, until it ends. `stop_after`: asks it to stop then.
pub fn run(graph: Graph, store: &Arc<dyn Store>, threads: usize, config: EngineConfig, stop_after: Option<Duration>) {
    graph.check().unwrap();
    _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let request = ClaimRequest {
        job_name: "test".into(),
        plan_hash: graph.hash(),
        parallelism: threads as u32,
        processes: 1,
        host: "here".into(),
        pid: 1,
        supervisor: uuid::Uuid::new_v4(),
        from: None,
    };
    let claimed = runtime.block_on(claim(store.clone(), request)).unwrap();
    for (uid, sink, _) in graph.sinks() {
        let pending = claimed.pending.iter().filter(|(_, c)| c.sink == *uid).cloned().collect();
        runtime.block_on(sink.recover(&claimed.identity, uid, pending)).unwrap();
    }
    let assignment = Assignment {
        identity: claimed.identity,
        first_checkpoint: claimed.next_checkpoint,
        committed: CheckpointId(claimed.next_checkpoint.0 - 1),
        restored: claimed.restored,
        retained: claimed.retained,
        appender: claimed.appender.into_state(),
        config,
        process: 0,
        processes: 1,
        threads,
    };
    let status = Arc::new(Status::default());
    let job = Arc::new(JobContext { assignment, store: store.clone(), runtime: runtime.handle().clone(), status: status.clone() });
    if let Some(after) = stop_after {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            status.request_stop();
        });
    }
    run_worker(Arc::new(graph), job, vec![]).unwrap();
}

/// A store in memory of its own.
pub fn memory_store(name: &str) -> Arc<dyn Store> {
    open_store(&format!("memory://{name}")).unwrap()
}
