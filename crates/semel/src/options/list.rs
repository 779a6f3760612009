//! All options.
use super::ENVIRONMENT;
use super::parse::{parse_duration, parse_size};

/// What values an option has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `10s`, `500 ms`, `1 min`.
    Duration {
        /// Whether 0 is allowed.
        zero: bool,
    },
    /// A whole number.
    Integer {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// Bytes: `8mb`.
    Size,
    /// A number from `min` on.
    Float {
        /// The least.
        min: f64,
    },
    /// `true` or `false`.
    Bool,
    /// A TCP port; 0 takes a free one.
    Port,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Any text that is not empty.
    Text,
}

impl Kind {
    /// Checks a text. The error says what is needed.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let value = value.trim();
        let (good, needed) = match self {
            Kind::Duration { zero } => {
                let duration = parse_duration(value);
                let needed = "a duration is needed, such as 10s, 500 ms, 1 min";
                match duration {
                    Some(d) if d.is_zero() && !zero => {
                        (false, "a duration of more than 0 is needed, such as 10s, 500 ms, 1 min".to_owned())
                    }
                    found => (found.is_some(), needed.to_owned()),
                }
            }
            Kind::Integer { min, max } => {
                let needed = if *max == u64::MAX {
                    format!("a whole number of at least {min} is needed")
                } else {
                    format!("a whole number from {min} to {max} is needed")
                };
                (value.parse::<u64>().is_ok_and(|n| (min..=max).contains(&&n)), needed)
            }
            Kind::Size => (parse_size(value).is_some_and(|n| n > 0), "a size is needed, such as 8mb, 64 kb".to_owned()),
            Kind::Float { min } => {
                (value.parse::<f64>().is_ok_and(|n| n.is_finite() && n >= *min), format!("a number of at least {min} is needed"))
            }
            Kind::Bool => (value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false"), "true or false is needed".to_owned()),
            Kind::Port => (value.parse::<u16>().is_ok(), "a port from 0 to 65535 is needed; 0 takes a free one".to_owned()),
            Kind::Choice(words) => (words.contains(&value), format!("one of {} is needed", words.join(", "))),
            Kind::Text => (!value.is_empty(), "a text is needed".to_owned()),
        };
        if good { Ok(()) } else { Err(needed) }
    }
}

/// An option.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub kind: Kind,
    /// What holds if nobody sets it.
    pub default: Option<&'static str>,
    /// What it does, in one sentence.
    pub help: &'static str,
}

impl OptionSpec {
    /// Its environment variable.
    pub fn variable(&self) -> String {
        format!("{ENVIRONMENT}{}", self.name.to_ascii_uppercase().replace(['.', '-'], "_"))
    }
}

const fn o(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default: Some(default), help }
}
const fn unset(name: &'static str, kind: Kind, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default: None, help }
}
const TIME: Kind = Kind::Duration { zero: false };
const TIME_OR_ZERO: Kind = Kind::Duration { zero: true };
const COUNT: Kind = Kind::Integer { min: 1, max: 1 << 31 };
const COUNT_OR_ZERO: Kind = Kind::Integer { min: 0, max: 1 << 31 };

/// All options, with Flink's names and defaults unless the text says otherwise; those that Flink does not have start with `semel.`,
/// `metrics.` or `log.`.
pub static OPTIONS: &[OptionSpec] = &[
    unset("pipeline.name", Kind::Text, "The job's name; fixed for the life of its checkpoints."),
    unset(
        "parallelism.default",
        Kind::Integer { min: 1, max: 4096 },
        "Subtasks of each operator, in all processes together (default: one per core).",
    ),
    o("semel.processes", Kind::Integer { min: 1, max: 256 }, "1", "Worker processes; the subtasks are spread evenly over them."),
    o(
        "pipeline.max-parallelism",
        Kind::Integer { min: 1, max: 32768 },
        "256",
        "Number of key slots; fixed for the life of the job's state.",
    ),
    unset("execution.checkpointing.dir", Kind::Text, "The checkpoint folder: a path, s3://, gs://. Each job needs one of its own."),
    o("execution.checkpointing.interval", TIME, "10s", "Time between two checkpoints."),
    o("execution.checkpointing.timeout", TIME, "10 min", "A checkpoint that takes longer is given up; the next one contains it."),
    o("execution.checkpointing.min-pause", TIME_OR_ZERO, "0", "Least time between the end of one checkpoint and the start of the next."),
    o(
        "execution.checkpointing.tolerable-failed-checkpoints",
        COUNT_OR_ZERO,
        "0",
        "More failed checkpoints than this in a row restart the job.",
    ),
    o("execution.checkpointing.max-concurrent-checkpoints", COUNT, "1", "Checkpoints that may be under way at once."),
    o("execution.checkpointing.num-retained", COUNT, "1", "Completed checkpoints that are kept."),
    unset(
        "execution.state-recovery.path",
        Kind::Integer { min: 1, max: u64::MAX },
        "Restore this retained checkpoint (its id) instead of the newest.",
    ),
    o(
        "semel.state-recovery.accept-duplicates",
        Kind::Bool,
        "false",
        "Allow it although rows after that checkpoint are committed and will come again.",
    ),
    o(
        "semel.state-recovery.accept-losses",
        Kind::Bool,
        "false",
        "Start although rows that the journal holds are proven lost: they will never appear.",
    ),
    o(
        "execution.state-recovery.ignore-unclaimed-state",
        Kind::Bool,
        "false",
        "Start although the checkpoint holds state of operators that the job no longer has.",
    ),
    o(
        "restart-strategy.type",
        Kind::Choice(&["none", "fixed-delay", "exponential-delay", "failure-rate"]),
        "exponential-delay",
        "What happens after a failure that may go away.",
    ),
    o("restart-strategy.fixed-delay.attempts", COUNT, "1", "Restarts before the job fails."),
    o("restart-strategy.fixed-delay.delay", TIME_OR_ZERO, "1 s", "Pause before each restart."),
    o(
        "restart-strategy.exponential-delay.initial-backoff",
        TIME,
        "100 ms",
        "Pause before the first restart (Flink: 1 s; a restart takes well under a second here).",
    ),
    o("restart-strategy.exponential-delay.max-backoff", TIME, "1 min", "The longest pause."),
    o(
        "restart-strategy.exponential-delay.backoff-multiplier",
        Kind::Float { min: 1.0 },
        "1.5",
        "Each pause is this much longer than the one before.",
    ),
    o(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        TIME,
        "30 s",
        "After running this long without a failure the pause is the initial one again (Flink: 1 h).",
    ),
    o("restart-strategy.exponential-delay.jitter-factor", Kind::Float { min: 0.0 }, "0.1", "Random part of a pause."),
    unset(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        COUNT,
        "Restarts before the job fails, unless the pause was reset (default: without end).",
    ),
    o("restart-strategy.failure-rate.max-failures-per-interval", COUNT, "1", "Failures within the interval before the job fails."),
    o("restart-strategy.failure-rate.failure-rate-interval", TIME, "1 min", "The interval."),
    o("restart-strategy.failure-rate.delay", TIME_OR_ZERO, "1 s", "Pause before each restart."),
    o("heartbeat.interval", TIME, "500 ms", "Time between two signs of life of a worker process (Flink: 10 s)."),
    o("heartbeat.timeout", TIME, "10 s", "A worker process without one, or without progress, for so long is killed (Flink: 50 s)."),
    o("semel.start-timeout", TIME, "1 min", "A worker process that is not ready after this long is killed."),
    o("semel.shutdown-timeout", TIME, "20 s", "Time for the final checkpoint after SIGTERM; then the job is killed."),
    o("semel.recovery-timeout", TIME, "5 min", "Time for the sinks to commit what is pending at a start."),
    o("semel.cluster.bind-address", Kind::Text, "127.0.0.1", "Address for the links between the job's own processes."),
    o("semel.tick", TIME, "10 ms", "Length of a tick: the granularity of barriers and watermarks."),
    o("semel.ticks-in-flight", COUNT, "4", "Ticks that sources may be ahead of the sink writers: bounds memory."),
    o("semel.source.max-bytes-per-tick", Kind::Size, "4mb", "Bytes that one source subtask may emit in a tick."),
    o("semel.sink.buffer-size", Kind::Size, "4mb", "Bytes that one sink subtask buffers before it pushes back."),
    o(
        "semel.sink.commit-timeout",
        TIME,
        "1 min",
        "Deadline of one pre-commit or commit. Keep it above the decision timeout of Kafka sinks (50 s).",
    ),
    o("semel.sink.sweep-interval", TIME, "10 s", "Time between two sweeps for transactions of earlier generations."),
    o("metrics.port", Kind::Port, "0", "Port of /metrics and /health; 0 takes a free one and logs it."),
    o("metrics.bind-address", Kind::Text, "127.0.0.1", "Its address."),
    o("metrics.enabled", Kind::Bool, "true", "Whether there is one."),
    o("log.format", Kind::Choice(&["human", "json"]), "human", "Log lines for people or as JSON; always on stderr."),
    o("log.level", Kind::Text, "info", "error, warn, info, debug, trace, or per module: semel_kafka=debug,info."),
];
