//! Arguments.
use crate::options::{OPTIONS, OptionError, Origin, Settings};
use clap::{Args, Parser, Subcommand};

/// An end-to-end exactly-once stream processing job.
#[derive(Debug, Parser)]
#[command(after_long_help = help())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub settings: SettingArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Job(JobCommand),
    /// Look at the job's checkpoints. With --checkpoint-dir it needs none of the program's parameters.
    Checkpoints {
        #[command(subcommand)]
        command: CheckpointsCommand,
    },
}

/// What needs the job, and so the program's parameters.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Run the job, from its newest checkpoint if there is one. SIGTERM takes a final checkpoint, commits it and ends.
    Run,
    /// Look at everything that the job needs (folders, brokers, timeouts, permissions) and start nothing.
    Check,
    /// Look at the transactions of the job's sinks, and end them by hand.
    Transactions {
        #[command(subcommand)]
        command: TransactionsCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointsCommand {
    /// The checkpoints that are kept (retained, or not yet committed), and all starts of the job.
    List,
    /// All that one checkpoint holds, as JSON.
    Inspect {
        /// Its id.
        id: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TransactionsCommand {
    /// What the journal holds as not yet committed, and what the external systems show as open.
    List,
    /// Commit what the journal holds and end what it does not hold, as a start would. Takes over from a job that still runs.
    Commit,
    /// Abort one open transaction: its rows will never appear. Refused for one that the journal holds. Takes over from a job that
    /// still runs, which then stops.
    Abort {
        /// Uid of the sink.
        #[arg(long)]
        sink: String,
        /// Its name in the external system, as `transactions list` shows it.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SettingArgs {
    /// The checkpoint folder: a path, s3://bucket/folder or gs://bucket/folder; each job needs one of its own [option execution.checkpointing.dir]
    #[arg(long, global = true, value_name = "URL")]
    checkpoint_dir: Option<String>,
    /// Subtasks of each operator, in all processes together [option parallelism.default]
    #[arg(long, short, global = true, value_name = "N")]
    parallelism: Option<String>,
    /// Worker processes [option semel.processes]
    #[arg(long, global = true, value_name = "N")]
    processes: Option<String>,
    /// Restore this retained checkpoint instead of the newest [option execution.state-recovery.path]
    #[arg(long, global = true, value_name = "ID")]
    from: Option<String>,
    /// With --from: allow it although rows after that checkpoint are committed and will come again
    #[arg(long, global = true)]
    accept_duplicates: bool,
    /// Start although rows of the newest checkpoint are lost at the target (exit code 79): they will never appear
    #[arg(long, global = true)]
    accept_losses: bool,
    /// Start although the checkpoint holds state of operators that the job no longer has
    #[arg(long, global = true)]
    allow_non_restored_state: bool,
    /// Any option; may be repeated
    #[arg(long, global = true, value_name = "OPTION=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// A parameter of the program itself; may be repeated; one that the program does not have is refused
    #[arg(long, global = true, value_name = "NAME=VALUE", value_parser = pair)]
    param: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is needed")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

impl SettingArgs {
    /// Takes environment and command line into the settings; answers with warnings of unknown `SEMEL_` variables.
    pub fn apply(&self, settings: &mut Settings) -> Result<Vec<String>, OptionError> {
        for (name, value) in &self.param {
            settings.set_parameter(name, value);
        }
        let warnings =
            settings.set_from_environment(std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))))?;
        let mut set = |name: &str, value: &str, flag: &str| settings.set(name, value, Origin::Flag(flag.to_owned()));
        for (name, value) in &self.set {
            set(name, value, "--set")?;
        }
        let texts = [
            ("execution.checkpointing.dir", &self.checkpoint_dir, "--checkpoint-dir"),
            ("parallelism.default", &self.parallelism, "--parallelism"),
            ("semel.processes", &self.processes, "--processes"),
            ("execution.state-recovery.path", &self.from, "--from"),
        ];
        for (name, value, flag) in texts {
            if let Some(value) = value {
                set(name, value, flag)?;
            }
        }
        let switches = [
            ("semel.state-recovery.accept-duplicates", self.accept_duplicates, "--accept-duplicates"),
            ("semel.state-recovery.accept-losses", self.accept_losses, "--accept-losses"),
            ("execution.state-recovery.ignore-unclaimed-state", self.allow_non_restored_state, "--allow-non-restored-state"),
        ];
        for (name, _, flag) in switches.into_iter().filter(|(_, on, _)| *on) {
            set(name, "true", flag)?;
        }
        Ok(warnings)
    }
}

fn help() -> String {
    let mut text =
        "Options (--set NAME=VALUE, or an environment variable: SEMEL_ and the name in upper case with _ for . and -):\n".to_owned();
    for option in OPTIONS {
        let default = option.default.map_or(String::new(), |d| format!(" [default: {d}]"));
        text.push_str(&format!("  {}{default}\n      {}\n", option.name, option.help));
    }
    text.push_str("\nAll processes of a job share a cluster secret: SEMEL_CLUSTER_SECRET, else a random one for each run.");
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent_and_help_names_every_option() {
        Cli::command().debug_assert();
        let help = Cli::command().render_long_help().to_string();
        assert!(OPTIONS.iter().all(|o| help.contains(o.name)));
    }

    #[test]
    fn flags_are_options() {
        let line =
            ["job", "run", "--parallelism", "4", "--set", "semel.tick=5ms", "--from=7", "--accept-duplicates", "--param", "brokers=a=b"];
        let mut settings = Settings::default();
        Cli::try_parse_from(line).unwrap().settings.apply(&mut settings).unwrap();
        assert_eq!(settings.text("parallelism.default"), Some("4"));
        assert_eq!(settings.text("semel.tick"), Some("5ms"));
        assert_eq!(settings.number("execution.state-recovery.path"), 7);
        assert!(settings.flag("semel.state-recovery.accept-duplicates"));
        assert_eq!(settings.parameter("brokers"), Some("a=b"));
        let wrong = Cli::try_parse_from(["job", "run", "--processes", "none"]).unwrap().settings.apply(&mut settings);
        assert!(wrong.unwrap_err().to_string().contains("--processes"));
    }
}
