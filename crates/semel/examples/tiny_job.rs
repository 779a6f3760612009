//! The smallest job: numbers to a text file, exactly once. For the tests of the process side: connectors written by hand on the
//! engine's traits, no external system.
//!
//! ```text
//! tiny_job run --checkpoint-dir /tmp/tiny --param out=/tmp/tiny.txt --param rows=100000
//! ```
//!
//! Parameters: `out` (folder of the output), `rows` (per split; 0: endless), `splits`, `pause` (ms between two batches), `fail`
//! (a position at which the source reports a failure; with `fail-once` naming a file, only if that file is not there yet), `panic` (one
//! at which it panics), `sink-uid`.
use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use semel::{Job, Settings};
use semel_checkpoint::{CheckpointId, CommitPermit, JobIdentity, OperatorUid, SplitState};
use semel_engine::graph::Graph;
use semel_engine::operators::sink_writer::SinkOperator;
use semel_engine::operators::source::SourceOperator;
use semel_engine::sink::*;
use semel_engine::source::*;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

fn main() -> ExitCode {
    semel::cli::main(build)
}

fn build(settings: &Settings) -> Result<Job, Box<dyn Error>> {
    let number = |name: &str, default: i64| settings.parameter(name).map_or(Ok(default), str::parse);
    let numbers = Numbers {
        splits: number("splits", 4)? as u64,
        rows: number("rows", 100_000)?,
        pause: Duration::from_millis(number("pause", 1)? as u64),
        fail: settings.parameter("fail").map(str::parse).transpose()?,
        fail_once: settings.parameter("fail-once").map(PathBuf::from),
        panic: settings.parameter("panic").map(str::parse).transpose()?,
    };
    let out = PathBuf::from(settings.parameter("out").ok_or("--param out=FOLDER is needed")?);
    let schema = Source::schema(&numbers);
    let mut graph = Graph::default();
    let source =
        graph.add(OperatorUid::new("numbers")?, Arc::new(SourceOperator { source: Arc::new(numbers), watermark: None }), vec![])?;
    let sink = SinkOperator { sink: Arc::new(Lines { out }), schema };
    graph.add(OperatorUid::new(settings.parameter("sink-uid").unwrap_or("lines"))?, Arc::new(sink), vec![source])?;
    Ok(Job::new("tiny", graph).option("execution.checkpointing.interval", "100 ms"))
}

struct Numbers {
    splits: u64,
    rows: i64,
    pause: Duration,
    fail: Option<i64>,
    fail_once: Option<PathBuf>,
    panic: Option<i64>,
}

struct NumbersReader {
    own: Vec<(u64, i64)>,
    next: usize,
    said: bool,
    rows: i64,
    pause: Duration,
    fail: Option<i64>,
    fail_once: Option<PathBuf>,
    panic: Option<i64>,
}

impl Source for Numbers {
    type Reader = NumbersReader;
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(["split", "position"].map(|n| Field::new(n, DataType::Int64, false)).to_vec()))
    }
    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid) -> Vec<Finding> {
        vec![]
    }
    async fn open(&self, context: SourceContext, restored: Option<Vec<SplitState>>) -> ConnectorResult<NumbersReader> {
        let position = |split: &str| restored.iter().flatten().find(|s| s.split == split).map_or(0, |s| s.position);
        let own = (0..self.splits).map(|n| (n, format!("n-{n}"))).filter(|(_, name)| context.owns(name));
        let own = own.map(|(n, name)| (n, position(&name))).collect();
        Ok(NumbersReader {
            own,
            next: 0,
            said: false,
            rows: self.rows,
            pause: self.pause,
            fail: self.fail,
            fail_once: self.fail_once.clone(),
            panic: self.panic,
        })
    }
}

impl SourceReader for NumbersReader {
    fn splits(&mut self) -> Vec<SplitState> {
        let state = |(n, position): &(u64, i64)| SplitState {
            split: format!("n-{n}"),
            position: *position,
            watermark: None,
            detail: serde_json::Value::Null,
        };
        self.own.iter().map(state).collect()
    }
    async fn next(&mut self) -> ConnectorResult<SourceEvent> {
        tokio::time::sleep(self.pause).await;
        if !std::mem::replace(&mut self.said, true) {
            return Ok(SourceEvent::NoMoreSplits);
        }
        if self.own.is_empty() {
            return std::future::pending().await;
        }
        self.next = (self.next + 1) % self.own.len();
        let (n, position) = self.own[self.next];
        let split = format!("n-{n}").into();
        if self.rows > 0 && position >= self.rows {
            self.own.remove(self.next);
            return Ok(SourceEvent::SplitFinished { split });
        }
        if self.fail.is_some_and(|at| position >= at) && self.fail_once.as_ref().is_none_or(|file| File::create_new(file).is_ok()) {
            return Err(ConnectorError::Retryable(format!("asked to fail at position {position}")));
        }
        assert!(self.panic.is_none_or(|at| position < at), "asked to panic at position {position}");
        let end = if self.rows > 0 { self.rows.min(position + 50) } else { position + 50 };
        self.own[self.next].1 = end;
        let numbers = Arc::new(Int64Array::from_iter_values(std::iter::repeat_n(n as i64, (end - position) as usize)));
        let positions = Arc::new(Int64Array::from_iter_values(position..end));
        let schema = Arc::new(Schema::new(["split", "position"].map(|n| Field::new(n, DataType::Int64, false)).to_vec()));
        let rows = RecordBatch::try_new(schema, vec![numbers, positions]).map_err(|e| ConnectorError::Fatal(e.to_string()))?;
        Ok(SourceEvent::Rows { split, rows, position: end, caught_up: false })
    }
}

/// One text file per transaction, hidden (`.open`) until a rename commits it.
struct Lines {
    out: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Handle {
    name: String,
}

struct LinesWriter {
    out: PathBuf,
    context: SinkContext,
    file: Option<File>,
}

struct LinesCommitter {
    out: PathBuf,
}

fn io_error(e: io::Error) -> ConnectorError {
    ConnectorError::Retryable(format!("output folder: {e}"))
}

fn commit(out: &Path, name: &str) -> ConnectorResult<Committed> {
    match fs::rename(out.join(format!("{name}.open")), out.join(format!("{name}.txt"))) {
        Ok(()) => Ok(Committed::Now),
        Err(_) if out.join(format!("{name}.txt")).exists() => Ok(Committed::Already),
        Err(e) => Err(ConnectorError::Lost(format!("{name}: {e}"))),
    }
}

impl TwoPhaseCommitSink for Lines {
    type Transaction = Handle;
    type Writer = LinesWriter;
    type Committer = LinesCommitter;
    async fn preflight(&self, _: &JobNeeds, _: &OperatorUid, _: &SchemaRef) -> Vec<Finding> {
        let there = self.out.is_dir();
        vec![Finding {
            severity: if there { Severity::Ok } else { Severity::Error },
            check: "output folder".into(),
            found: format!("{} {}", self.out.display(), if there { "exists" } else { "does not exist" }),
            needed: "a folder".into(),
            remedy: format!("mkdir {}", self.out.display()),
        }]
    }
    async fn recover(&self, job: &JobIdentity, uid: &OperatorUid, pending: Vec<Pending<Handle>>) -> ConnectorResult<Swept> {
        for p in pending {
            commit(&self.out, &p.transaction.name)?;
        }
        self.sweep(job, uid).await
    }
    async fn sweep(&self, job: &JobIdentity, uid: &OperatorUid) -> ConnectorResult<Swept> {
        let mut swept = Swept::default();
        for file in fs::read_dir(&self.out).map_err(io_error)? {
            let name = file.map_err(io_error)?.file_name().to_string_lossy().into_owned();
            let Some(transaction) = name.strip_suffix(".open") else {
                continue;
            };
            // <uuid>_<sink>_<generation>_<checkpoint>_<subtask>
            let parts: Vec<&str> = transaction.split('_').collect();
            let own = parts.len() == 5 && parts[0] == job.uuid.to_string() && parts[1] == uid.as_str();
            if own && parts[2].parse::<u64>().is_ok_and(|generation| generation < job.generation.0) {
                fs::remove_file(self.out.join(&name)).map_err(io_error)?;
                swept.aborted.push(name);
            }
        }
        Ok(swept)
    }
    async fn open(&self, context: SinkContext) -> ConnectorResult<(LinesWriter, LinesCommitter)> {
        Ok((LinesWriter { out: self.out.clone(), context, file: None }, LinesCommitter { out: self.out.clone() }))
    }
}

impl SinkWriter for LinesWriter {
    type Transaction = Handle;
    async fn begin_transaction(&mut self, checkpoint: CheckpointId) -> ConnectorResult<Handle> {
        let c = &self.context;
        let name = format!("{}_{}_{}_{checkpoint}_{}", c.job.uuid, c.uid, c.job.generation, c.subtask);
        self.file = Some(File::create(self.out.join(format!("{name}.open"))).map_err(io_error)?);
        Ok(Handle { name })
    }
    async fn invoke(&mut self, _: &mut Handle, rows: RecordBatch) -> ConnectorResult<()> {
        let (splits, positions) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_primitive::<Int64Type>());
        let text: String = (0..rows.num_rows()).map(|i| format!("{} {}\n", splits.value(i), positions.value(i))).collect();
        match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()).map_err(io_error),
            None => Err(ConnectorError::Fatal("no transaction is open".into())),
        }
    }
    async fn pre_commit(&mut self, _: &mut Handle) -> ConnectorResult<()> {
        self.file.take().map_or(Ok(()), |file| file.sync_data()).map_err(io_error)
    }
}

impl SinkCommitter for LinesCommitter {
    type Transaction = Handle;
    async fn commit(&mut self, transaction: &Handle, _: &CommitPermit) -> ConnectorResult<Committed> {
        commit(&self.out, &transaction.name)
    }
    async fn abort(&mut self, transaction: &Handle) -> ConnectorResult<()> {
        fs::remove_file(self.out.join(format!("{}.open", transaction.name))).or(Ok(()))
    }
}
