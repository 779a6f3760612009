//! Settings: names, values and where they come from.
//!
//! Later ones win: the program's code, the environment (`SEMEL_EXECUTION_CHECKPOINTING_INTERVAL`), the command line
//! (`--set execution.checkpointing.interval=10s`). Names, spellings and defaults are Flink's where Flink has the option.
mod list;
mod parse;

pub use list::{Kind, OPTIONS, OptionSpec};
pub use parse::{parse_duration, parse_size};

use semel_engine::config::{CheckpointConfig, EngineConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Where a value comes from. The greater one wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The program.
    Code,
    /// This environment variable.
    Environment(String),
    /// This flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Code => f.write_str("the program"),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("there is no option {name:?} ({origin}); did you mean {nearest:?}? `--help` lists all")]
    Unknown {
        /// What was written.
        name: String,
        /// The known option whose name is most like it.
        nearest: &'static str,
        /// Where.
        origin: Origin,
    },
    /// Not a value of this option.
    #[error("{name} = {value:?} ({origin}): {needed}")]
    Value {
        /// The option.
        name: &'static str,
        /// What was written.
        value: String,
        /// What can be written.
        needed: String,
        /// Where.
        origin: Origin,
    },
    /// Options that do not fit together.
    #[error("{0}")]
    Together(String),
}

/// Prefix of all environment variables.
pub const ENVIRONMENT: &str = "SEMEL_";

/// Variables with the prefix that are not options.
const OTHER_VARIABLES: [&str; 3] = ["SEMEL_FAILPOINT", "SEMEL_CLUSTER_SECRET", "SEMEL_WORKER_OF"];

/// The settings of a run, each checked against its option, with the parameters of the program itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    parameters: BTreeMap<String, String>,
}

impl Settings {
    /// Sets an option, unless a stronger origin has set it.
    ///
    /// # Errors
    /// An unknown name, or a text that is no value of the option.
    pub fn set(&mut self, name: &str, value: &str, origin: Origin) -> Result<(), OptionError> {
        let Some(spec) = OPTIONS.iter().find(|o| o.name == name) else {
            return Err(OptionError::Unknown { name: name.to_owned(), nearest: nearest(name), origin });
        };
        spec.kind.check(value).map_err(|needed| OptionError::Value {
            name: spec.name,
            value: value.to_owned(),
            needed,
            origin: origin.clone(),
        })?;
        match self.values.get(spec.name) {
            Some((_, stronger)) if *stronger > origin => {}
            _ => _ = self.values.insert(spec.name, (value.trim().to_owned(), origin)),
        }
        Ok(())
    }

    /// Takes options and parameters from environment variables. Answers with the names of variables that look like options
    /// but are none: worth a warning, since something else may use them.
    ///
    /// # Errors
    /// A value that is not one of its option.
    pub fn set_from_environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<Vec<String>, OptionError> {
        let mut unknown = vec![];
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(ENVIRONMENT) else {
                continue;
            };
            if let Some(parameter) = rest.strip_prefix("PARAM_") {
                self.parameters.entry(parameter.to_ascii_lowercase().replace('_', "-")).or_insert(value);
            } else if let Some(spec) = OPTIONS.iter().find(|o| o.variable() == variable) {
                self.set(spec.name, &value, Origin::Environment(variable))?;
            } else if !OTHER_VARIABLES.iter().any(|known| variable.starts_with(known)) {
                unknown.push(variable);
            }
        }
        Ok(unknown)
    }

    /// A parameter of the program itself: `--param brokers=...` or `SEMEL_PARAM_BROKERS=...`. Names are lower case with `-`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// Sets a parameter; see [`Settings::parameter`].
    pub fn set_parameter(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.parameters.insert(name.into(), value.into());
    }

    /// The text of an option: as set, else its default. `None`: neither (or no such option).
    pub fn text(&self, name: &str) -> Option<&str> {
        let set = self.values.get(name).map(|(value, _)| value.as_str());
        set.or_else(|| OPTIONS.iter().find(|o| o.name == name).and_then(|o| o.default))
    }

    /// Who set an option.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.get(name).map(|(_, origin)| origin)
    }

    /// An option of kind [`Kind::Duration`]; zero if it has no value.
    pub fn duration(&self, name: &str) -> Duration {
        self.text(name).and_then(parse_duration).unwrap_or_default()
    }

    /// An option of kind [`Kind::Integer`], [`Kind::Size`] (bytes) or [`Kind::Port`]; zero if it has no value.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).and_then(parse_size).unwrap_or_default()
    }

    /// An option of kind [`Kind::Float`]; zero if it has no value.
    pub fn float(&self, name: &str) -> f64 {
        self.text(name).and_then(|v| v.parse().ok()).unwrap_or_default()
    }

    /// An option of kind [`Kind::Bool`].
    pub fn flag(&self, name: &str) -> bool {
        self.text(name).is_some_and(|v| v.eq_ignore_ascii_case("true"))
    }

    /// Worker processes, and subtasks of each operator in each of them.
    ///
    /// # Errors
    /// Numbers that do not fit together.
    pub fn layout(&self) -> Result<(usize, usize), OptionError> {
        let processes = self.number("semel.processes").max(1) as usize;
        let parallelism = match self.text("parallelism.default") {
            Some(_) => self.number("parallelism.default") as usize,
            None => std::thread::available_parallelism().map_or(1, usize::from).next_multiple_of(processes),
        };
        let slots = self.number("pipeline.max-parallelism") as usize;
        if !parallelism.is_multiple_of(processes) {
            return Err(OptionError::Together(format!(
                "parallelism.default = {parallelism} cannot be spread evenly over semel.processes = {processes}: use a multiple of {processes}"
            )));
        }
        if parallelism > slots {
            return Err(OptionError::Together(format!(
                "parallelism.default = {parallelism} is more than pipeline.max-parallelism = {slots}, the number of key slots: some subtasks would \
                 have no keys. (The number of slots is fixed once a job has state.)"
            )));
        }
        Ok((processes, parallelism / processes))
    }

    /// The checkpoint folder.
    ///
    /// # Errors
    /// None is set.
    pub fn checkpoint_dir(&self) -> Result<&str, OptionError> {
        self.text("execution.checkpointing.dir").ok_or_else(|| {
            OptionError::Together(
                "there is no checkpoint folder: set it with --checkpoint-dir (option execution.checkpointing.dir), for example \
                 --checkpoint-dir /var/lib/semel/my-job or --checkpoint-dir s3://bucket/my-job; each job needs one of its own"
                    .to_owned(),
            )
        })
    }

    /// What the engine needs of the settings.
    pub fn engine(&self) -> EngineConfig {
        let checkpoint = CheckpointConfig {
            interval: self.duration("execution.checkpointing.interval"),
            timeout: self.duration("execution.checkpointing.timeout"),
            min_pause: self.duration("execution.checkpointing.min-pause"),
            tolerable_failed_checkpoints: self.number("execution.checkpointing.tolerable-failed-checkpoints") as u32,
            max_concurrent_checkpoints: self.number("execution.checkpointing.max-concurrent-checkpoints") as u32,
            num_retained: self.number("execution.checkpointing.num-retained") as u32,
        };
        EngineConfig {
            checkpoint,
            max_parallelism: self.number("pipeline.max-parallelism") as u32,
            tick: self.duration("semel.tick"),
            ticks_in_flight: self.number("semel.ticks-in-flight") as usize,
            max_bytes_per_tick: self.number("semel.source.max-bytes-per-tick"),
            sink_buffer_bytes: self.number("semel.sink.buffer-size"),
            commit_timeout: self.duration("semel.sink.commit-timeout"),
            sweep_interval: self.duration("semel.sink.sweep-interval"),
            hang_timeout: self.duration("heartbeat.timeout"),
        }
    }
}

/// The known name that is most like this one.
fn nearest(name: &str) -> &'static str {
    // A name that was cut short or is Flink's older one has the same end.
    let likeness = |known: &str| {
        let end = known.ends_with(name.rsplit('.').next().unwrap_or(name)) as u8;
        strsim::normalized_damerau_levenshtein(known, name) + 0.2 * f64::from(end)
    };
    let best = OPTIONS.iter().max_by(|a, b| likeness(a.name).total_cmp(&likeness(b.name)));
    best.map_or("", |o| o.name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn flag() -> Origin {
        Origin::Flag("--set".into())
    }

    #[test]
    fn flags_beat_the_environment_and_that_beats_the_program() {
        let interval = "execution.checkpointing.interval";
        let mut settings = Settings::default();
        assert_eq!(settings.duration(interval), Duration::from_secs(10), "the default");
        let environment = [("SEMEL_EXECUTION_CHECKPOINTING_INTERVAL".to_owned(), "2 s".to_owned())];
        settings.set_from_environment(environment).unwrap();
        settings.set(interval, "1s", Origin::Code).unwrap();
        assert_eq!(settings.duration(interval), Duration::from_secs(2));
        settings.set(interval, "3s", flag()).unwrap();
        settings.set(interval, "1s", Origin::Code).unwrap();
        assert_eq!(settings.engine().checkpoint.interval, Duration::from_secs(3));
    }

    #[test]
    fn an_unknown_option_names_the_nearest() {
        let unknown = |name: &str| Settings::default().set(name, "1", flag()).unwrap_err().to_string();
        let text = unknown("execution.checkpointing.intervall");
        assert!(text.contains("\"execution.checkpointing.interval\"") && text.contains("--set"), "{text}");
        assert!(unknown("state.checkpoints.num-retained").contains("execution.checkpointing.num-retained"));
        assert!(unknown("restart-strategy.fixed-delay.atempts").contains("restart-strategy.fixed-delay.attempts"));
        assert!(unknown("paralelism").contains("parallelism.default"));
    }

    #[test]
    fn a_wrong_value_says_what_is_needed_and_where_it_was() {
        let mut settings = Settings::default();
        let wrong = |settings: &mut Settings, name: &str, value: &str| settings.set(name, value, flag()).unwrap_err().to_string();
        assert!(wrong(&mut settings, "execution.checkpointing.interval", "10 parsecs").contains("10s, 500 ms, 1 min"));
        assert!(wrong(&mut settings, "execution.checkpointing.interval", "0").contains("more than 0"));
        assert!(wrong(&mut settings, "parallelism.default", "0").contains("1 to"));
        assert!(wrong(&mut settings, "restart-strategy.type", "sometimes").contains("exponential-delay"));
        assert!(wrong(&mut settings, "log.format", "xml").contains("json"));
        let variable = [("SEMEL_PARALLELISM_DEFAULT".to_owned(), "x".to_owned())];
        let text = settings.set_from_environment(variable).unwrap_err().to_string();
        assert!(text.contains("SEMEL_PARALLELISM_DEFAULT"), "{text}");
    }

    #[test]
    fn environment_variables_that_are_no_options_are_named_and_parameters_are_kept() {
        let mut settings = Settings::default();
        let variables = [("SEMEL_PARALELISM", "1"), ("SEMEL_PARAM_GROUP_ID", "g"), ("SEMEL_FAILPOINT", "x:1"), ("HOME", "/")];
        let unknown = settings.set_from_environment(variables.map(|(k, v)| (k.to_owned(), v.to_owned()))).unwrap();
        assert_eq!(unknown, ["SEMEL_PARALELISM"]);
        assert_eq!(settings.parameter("group-id"), Some("g"));
    }

    #[test]
    fn subtasks_are_spread_evenly_over_processes() {
        let layout = |parallelism: &str, processes: &str| {
            let mut settings = Settings::default();
            settings.set("parallelism.default", parallelism, flag()).unwrap();
            settings.set("semel.processes", processes, flag()).unwrap();
            settings.layout()
        };
        assert_eq!(layout("4", "2").unwrap(), (2, 2));
        assert!(layout("3", "2").unwrap_err().to_string().contains("multiple of 2"));
        assert!(layout("300", "1").unwrap_err().to_string().contains("pipeline.max-parallelism"));
        assert!(Settings::default().checkpoint_dir().unwrap_err().to_string().contains("--checkpoint-dir"));
    }

    #[test]
    fn every_default_is_a_value_of_its_option_and_the_engine_agrees() {
        for option in OPTIONS {
            if let Some(default) = option.default {
                option.kind.check(default).unwrap();
            }
        }
        assert_eq!(Settings::default().engine(), EngineConfig::default());
    }
}
