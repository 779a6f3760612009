//! Runs the example `kill_job` as a user would, from orders to results, and compares what is committed with what was computed
//! from the orders one by one.
#![allow(clippy::unwrap_used, dead_code)]
use semel_testkit::orders::{self, Order};
use semel_testkit::{Kafka, Program, Running, TransactionInfo, Verdict, WriteRow, compare};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing here takes longer on any machine.
pub const LONG: Duration = Duration::from_secs(90);
/// Partitions of the topics.
pub const PARTITIONS: u32 = 4;
/// Windows of the job.
pub const WINDOW_MS: i64 = 1000;
/// Of the generated orders.
pub const SEED: u64 = 1;

/// The two jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Stateless.
    Filter,
    /// Keyed state and watermarks.
    Windows,
}

impl What {
    pub fn name(self) -> &'static str {
        match self {
            What::Filter => "filter",
            What::Windows => "windows",
        }
    }

    /// Compares committed values with what the first `n` orders give.
    pub fn compare(self, n: u64, values: impl Iterator<Item = Option<Vec<u8>>>) -> Verdict {
        match self {
            What::Filter => compare(orders::expect_filter(all(n)), values.map(|v| orders::parse_filter(&v).unwrap())),
            What::Windows => {
                compare(orders::expect_windows(all(n), WINDOW_MS, WINDOW_MS), values.map(|v| orders::parse_window(&v).unwrap()))
            }
        }
    }
}

/// The first `n` orders, as every test here generates them.
pub fn all(n: u64) -> impl Iterator<Item = Order> + Clone + Send {
    orders::orders(SEED, n)
}

/// They as rows for a topic. With the present time as timestamp: a restarted broker forgets the sequence numbers of a producer
/// whose rows seem older than `producer.id.expiration.ms`, and takes what the load's producer repeats for new rows.
pub fn rows(n: u64) -> impl Iterator<Item = WriteRow> + Send {
    orders::rows(all(n), PARTITIONS).map(|row| WriteRow { timestamp: None, ..row })
}

/// A new topic. Orders have times of long ago, which the broker would take as a reason to delete them.
pub fn topic(kafka: &Kafka, name: &str) -> String {
    kafka.create_topic_with(name, PARTITIONS, &[("retention.ms", "-1")]).unwrap()
}

/// Asserts that a topic holds each of the first `n` orders once: else what comes out of them shows nothing.
pub fn assert_input(kafka: &Kafka, topic: &str, n: u64) {
    let records = kafka.read_committed(topic).unwrap();
    let found = records.iter().map(|record| (orders::parse_filter(&record.value).unwrap().0, record.value_text().to_owned()));
    let verdict = compare(all(n).map(|order| (order.order_id, order.to_json())), found);
    assert!(verdict.is_exact(), "the load itself: {verdict}");
}

/// A topic that holds the first `n` orders.
pub fn input(kafka: &Kafka, n: u64) -> String {
    let topic = topic(kafka, "orders");
    // In small batches, which is what a reader gets at least at a time.
    let mut rows = rows(n).peekable();
    while rows.peek().is_some() {
        kafka.write(&topic, rows.by_ref().take(400)).unwrap();
    }
    topic
}

/// One job with its checkpoint folder. It is started again and again with whatever is changed in between.
pub struct Job {
    pub what: What,
    pub parallelism: usize,
    pub processes: usize,
    /// The output topic (its transactions have its name as prefix), or nothing for files.
    pub out: Option<String>,
    pub params: Vec<(String, String)>,
    pub settings: Vec<(String, String)>,
    pub env: Vec<(String, String)>,
    folder: TempDir,
}

impl Job {
    fn new(what: What, out: Option<String>) -> Job {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("out")).unwrap();
        let settings = [
            ("execution.checkpointing.interval", "50ms"),
            ("restart-strategy.exponential-delay.initial-backoff", "10ms"),
            ("restart-strategy.exponential-delay.max-backoff", "200ms"),
            ("metrics.enabled", "false"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Job { what, parallelism: 2, processes: 1, out, params: vec![], settings, env: vec![], folder }
    }

    /// From generated orders into files.
    pub fn files(what: What, rows: u64, rate: u64) -> Job {
        Job::new(what, None).param("rows", rows).param("rate", rate)
    }

    /// From endless generated orders into a new topic; at a rate of 0 as fast as it goes.
    pub fn generated(what: What, kafka: &Kafka, rate: u64) -> Job {
        let out = topic(kafka, "results");
        let job = Job::new(what, Some(out.clone())).param("brokers", kafka.bootstrap()).param("out", &out).param("prefix", out);
        job.param("rows", u64::from(u32::MAX)).param("rate", rate)
    }

    /// From a topic into a new topic.
    pub fn kafka(what: What, kafka: &Kafka, input: &str) -> Job {
        let out = topic(kafka, "results");
        let job = Job::new(what, Some(out.clone())).param("brokers", kafka.bootstrap()).param("in", input);
        job.param("out", &out).param("prefix", out)
    }

    /// Sets a parameter of the program.
    pub fn param(mut self, name: &str, value: impl ToString) -> Job {
        self.set_param(name, value);
        self
    }
    pub fn set_param(&mut self, name: &str, value: impl ToString) {
        self.params.retain(|(n, _)| n != name);
        self.params.push((name.to_owned(), value.to_string()));
    }
    /// Sets an option.
    pub fn set(mut self, name: &str, value: impl ToString) -> Job {
        self.settings.retain(|(n, _)| n != name);
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }
    /// Reads its topic slowly, some hundred rows per 50 ms and subtask: a short topic lasts for many checkpoints.
    pub fn slowly(self) -> Job {
        self.param("fetch", 4096).set("semel.source.max-bytes-per-tick", "8kb").set("semel.tick", "50ms")
    }
    /// Sets the layout.
    pub fn layout(mut self, parallelism: usize, processes: usize) -> Job {
        (self.parallelism, self.processes) = (parallelism, processes);
        self
    }
    /// Sets a variable of the environment.
    pub fn env(mut self, name: &str, value: impl ToString) -> Job {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.to_string()));
        self
    }
    /// Ends or freezes (`<name>:<n>:stop`) a process of the first generation.
    pub fn failpoint(self, point: &str, process: usize) -> Job {
        self.env("SEMEL_FAILPOINT", point).env("SEMEL_FAILPOINT_PROCESS", process).env("SEMEL_FAILPOINT_GENERATION", 1)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn checkpoints(&self) -> PathBuf {
        self.path("checkpoints")
    }

    /// The command with which it is run.
    pub fn program(&self) -> Program {
        let program = self.command("run");
        program.args(["--parallelism", &self.parallelism.to_string(), "--processes", &self.processes.to_string()])
    }

    /// Any of its commands.
    pub fn command(&self, command: &str) -> Program {
        let mut program = Program::example("semel", "kill_job").unwrap().arg(command).arg("--checkpoint-dir").arg(self.checkpoints());
        program = program.args(["--param", &format!("job={}", self.what.name())]);
        if self.out.is_none() {
            program = program.args(["--param", &format!("folder={}", self.path("out").display())]);
        }
        for (name, value) in &self.params {
            program = program.args(["--param", &format!("{name}={value}")]);
        }
        for (name, value) in &self.settings {
            program = program.args(["--set", &format!("{name}={value}")]);
        }
        self.env.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// Starts it.
    pub fn start(&self) -> Running {
        self.program().start().unwrap()
    }

    /// Starts it without failpoints, to end at what the topic holds now, and waits for that.
    pub fn finish(&mut self) -> String {
        self.env.clear();
        self.set_param("bounded", "1");
        let mut running = self.start();
        running.wait_success(LONG).unwrap();
        running.stderr()
    }

    /// The same for generated orders into files: starts it, waits for its end, and compares.
    pub fn finish_files(&mut self, n: u64) {
        self.finish();
        self.file_verdict(n).assert_exactly_once();
    }

    /// Compares what is committed, as Apache's Java client reads it, with what the first `n` orders give.
    pub fn verdict(&self, kafka: &Kafka, n: u64) -> Verdict {
        let committed = kafka.read_committed(self.out.as_ref().unwrap()).unwrap();
        self.what.compare(n, committed.into_iter().map(|record| record.value))
    }

    /// The same for files: all that are visible.
    pub fn file_verdict(&self, n: u64) -> Verdict {
        let lines = committed_lines(&self.path("out"));
        self.what.compare(n, lines.into_iter().map(|line| Some(line.into_bytes())))
    }

    /// Its transactions that are open.
    pub fn open(&self, kafka: &Kafka) -> Vec<TransactionInfo> {
        kafka.open_transactions(self.out.as_ref().unwrap()).unwrap()
    }

    /// Asserts that every row is committed once, and that no transaction is left open.
    pub fn assert_exact(&self, kafka: &Kafka, n: u64) {
        // A decided end is carried out within moments.
        let soon = Duration::from_secs(15);
        wait_until("every transaction has ended", soon, || self.open(kafka).is_empty());
        // By the account of the partitions too, which is what readers wait for.
        kafka.wait_stable(self.out.as_ref().unwrap(), soon).unwrap();
        self.verdict(kafka, n).assert_exactly_once();
    }

    /// Number of committed rows.
    pub fn committed(&self, kafka: &Kafka) -> u64 {
        kafka.count_committed(self.out.as_ref().unwrap()).unwrap()
    }

    /// Waits until more than `rows` are committed.
    pub fn wait_committed(&self, kafka: &Kafka, rows: u64) {
        wait_until("more rows are committed", LONG, || self.committed(kafka) > rows);
    }
}

fn committed_lines(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let visible = files.filter(|path| path.is_file() && !path.file_name().unwrap().as_encoded_bytes().starts_with(b"."));
    visible.flat_map(|path| std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Waits until something holds.
#[track_caller]
pub fn wait_until(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The worker processes of a supervisor.
pub fn workers(job: &Running) -> Vec<u32> {
    job.children().into_iter().map(|p| p.pid).collect()
}

/// Waits until a process has frozen itself at a failpoint.
pub fn wait_frozen(job: &Running) -> u32 {
    let mut frozen = None;
    wait_until("a process freezes itself", LONG, || {
        frozen = job.children().into_iter().find(|p| p.state == 'T').map(|p| p.pid);
        frozen.is_some()
    });
    frozen.unwrap()
}

/// The generation that has opened a transaction of Semel's.
pub fn generation_of(transaction: &TransactionInfo) -> u64 {
    transaction.transactional_id.rsplit('-').nth(2).unwrap().parse().unwrap()
}

/// Waits until a generation runs.
pub fn wait_running(job: &mut Running, generation: u64) {
    job.wait_for_output(&format!("generation {generation} is running"), LONG).unwrap();
}

/// The newest generation that this supervisor has run.
pub fn generation(job: &Running) -> u64 {
    let log = job.stderr();
    let runs = log.match_indices(" is running:").filter_map(|(at, _)| log[..at].rsplit(' ').next()?.parse().ok());
    runs.max().unwrap_or(0)
}
