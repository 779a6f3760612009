//! Settings: names, values and where they come from.
//!
//! Later ones win: the program's code, the environment (`SEMEL_EXECUTION_CHECKPOINTING_INTERVAL`), the command line
//! (`--set execution.checkpointing.interval=10s`). Names, spellings and defaults are Flink's where Flink has the option.
mod list;
mod parameters;
mod parse;

pub use list::{Kind, OPTIONS, OptionSpec};
pub use parse::{parse_duration, parse_size};

use parameters::Parameters;
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
    /// The program has no such parameter.
    #[error("this program has no parameter {name:?} (--param){hint}")]
    Parameter {
        /// What was written.
        name: String,
        /// The known name that is most like it, and all known ones.
        hint: String,
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
const OTHER_VARIABLES: [&str; 4] = ["SEMEL_CLUSTER_SECRET", "SEMEL_FAILPOINT", "SEMEL_FAILPOINT_GENERATION", "SEMEL_FAILPOINT_PROCESS"];

/// Variables with the prefix that somebody else reads: a worker process, and the tools and tests of this project.
fn is_not_ours(variable: &str) -> bool {
    ["SEMEL_WORKER_OF", "SEMEL_CACHE", "SEMEL_TARGET_DIR", "SEMEL_SEED"].contains(&variable) || variable.starts_with("SEMEL_TEST_")
}

/// The settings of a run, each checked against its option, with the parameters of the program itself.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Origin)>,
    parameters: Parameters,
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

    /// Takes options and parameters from environment variables. Answers with a warning for each variable that looks like an option
    /// but is none: something else may use it.
    ///
    /// # Errors
    /// A value that is not one of its option.
    pub fn set_from_environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<Vec<String>, OptionError> {
        let mut warnings = vec![];
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix(ENVIRONMENT) else {
                continue;
            };
            if let Some(parameter) = rest.strip_prefix(parameters::PREFIX) {
                let parameter = parameter.to_ascii_lowercase().replace('_', "-");
                self.parameters.give(parameter, value, Origin::Environment(variable));
            } else if let Some(spec) = OPTIONS.iter().find(|o| o.variable() == variable) {
                self.set(spec.name, &value, Origin::Environment(variable))?;
            } else if !OTHER_VARIABLES.contains(&variable.as_str()) && !is_not_ours(&variable) {
                let nearest = nearest_variable(&variable);
                warnings.push(format!("environment variable {variable} is no option of Semel and is ignored; did you mean {nearest}?"));
            }
        }
        Ok(warnings)
    }

    /// A parameter of the program itself: `--param brokers=...` or `SEMEL_PARAM_BROKERS=...`. Names are lower case with `-`.
    ///
    /// What a program never asks for is taken for a mistake ([`Settings::check_parameters`]): it should ask for all its parameters,
    /// also for those that do not matter this time.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name)
    }

    /// Sets a parameter, as `--param` does; see [`Settings::parameter`].
    pub fn set_parameter(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.parameters.give(name.into(), value.into(), Origin::Flag("--param".to_owned()));
    }

    /// Whether the program has asked for every parameter that it was given: to be called when it has built its job. Answers with a
    /// warning for each variable of the environment that it has not asked for (several programs may share an environment).
    ///
    /// # Errors
    /// A `--param` that it has not asked for.
    pub fn check_parameters(&self) -> Result<Vec<String>, OptionError> {
        self.parameters.check()
    }

    /// Of a program that could not build its job: the parameter whose name may be the cause, in words.
    pub(crate) fn misspelled_parameter(&self) -> Option<String> {
        self.parameters.misspelled()
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

/// The option whose name is most like this one.
fn nearest(name: &str) -> &'static str {
    most_like(name, OPTIONS.iter().map(|o| o.name)).unwrap_or_default()
}

/// The variable that somebody may have meant by this one.
fn nearest_variable(variable: &str) -> String {
    // Without what all have in common, and divided as the names of options are.
    let plain = |variable: &str| variable.trim_start_matches(ENVIRONMENT).to_ascii_lowercase().replace('_', ".");
    let known: Vec<String> = OPTIONS.iter().map(OptionSpec::variable).chain(OTHER_VARIABLES.map(str::to_owned)).collect();
    let plain_known: Vec<String> = known.iter().map(|v| plain(v)).collect();
    let nearest = most_like(&plain(variable), plain_known.iter().map(String::as_str));
    nearest.map_or_else(String::new, |nearest| known.into_iter().find(|v| plain(v) == nearest).unwrap_or_default())
}

/// The known name that is most like this one. `None`: no name is known.
fn most_like<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A name that was cut short or is Flink's older one has the same end.
    let likeness = |known: &str| {
        let end = known.ends_with(name.rsplit('.').next().unwrap_or(name)) as u8;
        strsim::normalized_damerau_levenshtein(known, name) + 0.2 * f64::from(end)
    };
    known.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
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

    fn environment(settings: &mut Settings, variables: &[(&str, &str)]) -> Vec<String> {
        settings.set_from_environment(variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))).unwrap()
    }

    #[test]
    fn environment_variables_that_are_no_options_are_named_with_the_nearest_and_parameters_are_kept() {
        let mut settings = Settings::default();
        let wrong = [("SEMEL_PARALELISM", "SEMEL_PARALLELISM_DEFAULT"), ("SEMEL_CLUSTER_SECRETS", "SEMEL_CLUSTER_SECRET")];
        let wrong = [&wrong[..], &[("SEMEL_METRICS_PRT", "SEMEL_METRICS_PORT"), ("SEMEL_FAILPOINTS", "SEMEL_FAILPOINT")]].concat();
        let warnings = environment(&mut settings, &wrong.iter().map(|(name, _)| (*name, "1")).collect::<Vec<_>>());
        assert_eq!(warnings.len(), wrong.len(), "{warnings:?}");
        for ((name, meant), warning) in wrong.iter().zip(warnings) {
            assert!(warning.contains(&format!("variable {name} ")) && warning.ends_with(&format!("did you mean {meant}?")), "{warning}");
        }
        let known = [("SEMEL_PARAM_GROUP_ID", "g"), ("SEMEL_FAILPOINT", "x:1"), ("SEMEL_FAILPOINT_PROCESS", "0"), ("HOME", "/")];
        assert_eq!(environment(&mut settings, &known), [""; 0]);
        let tools = ["SEMEL_CACHE", "SEMEL_TARGET_DIR", "SEMEL_SEED", "SEMEL_TEST_SCALE", "SEMEL_TEST_NO_BUILD"].map(|name| (name, "1"));
        assert_eq!(environment(&mut settings, &tools), [""; 0]);
        assert_eq!(settings.parameter("group-id"), Some("g"));
    }

    #[test]
    fn a_parameter_that_nobody_asks_for_is_a_mistake() {
        let mut settings = Settings::default();
        settings.set_parameter("nmae", "x");
        assert!(settings.check_parameters().unwrap_err().to_string().contains("no parameter \"nmae\" (--param); it has none"));
        // The program has a clone.
        let program = settings.clone();
        assert_eq!((program.parameter("name"), program.parameter("rows")), (None, None));
        assert!(settings.misspelled_parameter().unwrap().contains("\"nmae\" is given where \"name\" is asked for"));
        settings.set_parameter("checkpoints", "not yet asked for, and like nothing");
        settings.set_parameter("name", "x");
        assert_eq!(settings.misspelled_parameter(), None);
        program.parameter("checkpoints");
        let text = settings.check_parameters().unwrap_err().to_string();
        assert!(text.contains("did you mean \"name\"? It has: checkpoints, name, rows"), "{text}");
        program.parameter("nmae");
        assert_eq!(settings.check_parameters().unwrap(), [""; 0]);
        // An environment may be that of several programs; the command line wins over it.
        environment(&mut settings, &[("SEMEL_PARAM_ROSW", "1"), ("SEMEL_PARAM_NMAE", "y")]);
        let warnings = settings.check_parameters().unwrap();
        assert!(
            warnings.len() == 1 && warnings[0].contains("SEMEL_PARAM_ROSW") && warnings[0].ends_with("SEMEL_PARAM_ROWS?"),
            "{warnings:?}"
        );
        assert_eq!(settings.parameter("nmae"), Some("x"));
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
