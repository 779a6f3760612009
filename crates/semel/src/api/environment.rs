//! [`StreamExecutionEnvironment`]: where streams are built, with the settings of their job.
use super::plan::Work;
use super::stream::{Shared, Stream};
use super::{ApiError, WatermarkStrategy};
use crate::job::Job;
use crate::options::Settings;
use semel_engine::event_time::EventTime;
use semel_engine::operators::source::SourceOperator;
use semel_engine::source::Source;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// See the module. Options set here are defaults: environment variables and the command line override them.
///
/// The program is run anew in every process of its job, so it must build the same streams each time.
#[derive(Default)]
pub struct StreamExecutionEnvironment {
    shared: Rc<RefCell<Shared>>,
    settings: Settings,
}

impl fmt::Debug for StreamExecutionEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamExecutionEnvironment").field("options", &self.shared.borrow().plan.options).finish_non_exhaustive()
    }
}

impl StreamExecutionEnvironment {
    /// Without parameters, for jobs that are not run by [`super::execute`].
    pub fn new() -> Self {
        StreamExecutionEnvironment::default()
    }

    /// With the settings and parameters of the command line.
    pub fn from_settings(settings: &Settings) -> Self {
        StreamExecutionEnvironment { shared: Rc::default(), settings: settings.clone() }
    }

    /// A parameter of the program: `--param brokers=...` or `SEMEL_PARAM_BROKERS=...`. A `--param` that the program has not asked for
    /// when it is built is refused as a mistake: ask for all before branching.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.settings.parameter(name)
    }

    /// A parameter as a number or anything else that can be read from a text; `None` if it is not set.
    ///
    /// # Errors
    /// A value that cannot be read; the error names the parameter and the value.
    pub fn parse_parameter<T: std::str::FromStr<Err: fmt::Display>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let parse = |text: &str| text.parse().map_err(|e| ApiError::Operator(format!("--param {name}={text}: {e}")));
        self.parameter(name).map(parse).transpose()
    }

    /// A parameter, or what holds without it.
    pub fn parameter_or(&self, name: &str, default: &str) -> String {
        self.parameter(name).unwrap_or(default).to_owned()
    }

    /// Reads a source. `name` is also its uid, by which its positions are found after a restart, unless another is given.
    ///
    /// # Errors
    /// A name that is no uid or that of another operator; a watermark strategy whose column does not exist or is no time.
    pub fn from_source(&self, source: impl Source, watermark: WatermarkStrategy, name: &str) -> Result<Stream, ApiError> {
        let schema = source.schema();
        if let Some(strategy) = &watermark.0 {
            EventTime::of(&schema, &strategy.column)?;
        }
        let event_time = watermark.0.as_ref().map(|s| s.column.clone());
        let operator = SourceOperator { source: Arc::new(source), watermark: watermark.0 };
        let port = self.shared.borrow_mut().plan.add("source", Work::Operator(Arc::new(operator)), vec![]);
        Stream { shared: self.shared.clone(), port, schema, event_time }.uid(name)
    }

    /// `execution.checkpointing.interval`: exactly-once checkpoints are taken this often (default: each 10 s).
    pub fn enable_checkpointing(&self, interval: Duration) -> CheckpointSettings {
        self.checkpoint_config().set_interval(interval)
    }

    /// Settings of checkpoints.
    pub fn checkpoint_config(&self) -> CheckpointSettings {
        CheckpointSettings { shared: self.shared.clone() }
    }

    /// `parallelism.default`: subtasks of each operator, in all processes together.
    pub fn set_parallelism(&self, parallelism: u32) -> &Self {
        self.set_option("parallelism.default", parallelism)
    }

    /// `pipeline.max-parallelism`: key slots; fixed for the life of the job's state.
    pub fn set_max_parallelism(&self, slots: u32) -> &Self {
        self.set_option("pipeline.max-parallelism", slots)
    }

    /// Any option by its name (`--help` lists all). It is checked when the job starts.
    pub fn set_option(&self, name: &str, value: impl fmt::Display) -> &Self {
        self.shared.borrow_mut().plan.options.insert(name.to_owned(), value.to_string());
        self
    }

    /// The job of all streams built so far.
    ///
    /// # Errors
    /// No source or no sink; an explicit uid that is also the derived one of another operator.
    pub fn job(&self, name: &str) -> Result<Job, ApiError> {
        let shared = self.shared.borrow();
        let graph = shared.plan.graph()?;
        graph.check()?;
        let mut job = Job::new(name, graph);
        job.options.extend(shared.plan.options.clone());
        Ok(job)
    }
}

/// Settings of checkpoints, with the names of Flink's `CheckpointConfig`.
#[derive(Clone)]
pub struct CheckpointSettings {
    shared: Rc<RefCell<Shared>>,
}

impl fmt::Debug for CheckpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointSettings").finish_non_exhaustive()
    }
}

impl CheckpointSettings {
    fn set(self, name: &str, value: impl fmt::Display) -> Self {
        self.shared.borrow_mut().plan.options.insert(format!("execution.checkpointing.{name}"), value.to_string());
        self
    }
    fn set_duration(self, name: &str, value: Duration) -> Self {
        self.set(name, format_args!("{} us", value.as_micros()))
    }
    /// `execution.checkpointing.interval`: time between two barriers.
    pub fn set_interval(self, interval: Duration) -> Self {
        self.set_duration("interval", interval)
    }
    /// `execution.checkpointing.timeout`: a checkpoint that takes longer is given up.
    pub fn set_checkpoint_timeout(self, timeout: Duration) -> Self {
        self.set_duration("timeout", timeout)
    }
    /// `execution.checkpointing.min-pause`: least time between the end of one checkpoint and the barrier of the next.
    pub fn set_min_pause_between_checkpoints(self, pause: Duration) -> Self {
        self.set_duration("min-pause", pause)
    }
    /// `execution.checkpointing.tolerable-failed-checkpoints`: more than this many in a row restart the job.
    pub fn set_tolerable_checkpoint_failure_number(self, number: u32) -> Self {
        self.set("tolerable-failed-checkpoints", number)
    }
    /// `execution.checkpointing.max-concurrent-checkpoints`.
    pub fn set_max_concurrent_checkpoints(self, number: u32) -> Self {
        self.set("max-concurrent-checkpoints", number)
    }
    /// `execution.checkpointing.num-retained`.
    pub fn set_num_retained(self, number: u32) -> Self {
        self.set("num-retained", number)
    }
    /// `execution.checkpointing.dir`: a folder, `s3://...` or `gs://...`. Each job needs one of its own.
    pub fn set_checkpoint_storage(self, url: impl fmt::Display) -> Self {
        self.set("dir", url)
    }
}
