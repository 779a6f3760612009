//! [`execute`]: a whole program.
use super::StreamExecutionEnvironment;
use std::error::Error;
use std::process::ExitCode;

/// Runs the program's command line with the job that `build` makes: the `main` of a program. `name` is the job's name, fixed for
/// the life of its checkpoints (option `pipeline.name` overrides it).
///
/// A `--param` that `build` does not ask for is refused.
///
/// `build` is called anew in every process of the job, so it must build the same streams each time.
pub fn execute(name: &str, build: impl FnOnce(&StreamExecutionEnvironment) -> Result<(), Box<dyn Error>>) -> ExitCode {
    crate::cli::main(|settings| {
        let env = StreamExecutionEnvironment::from_settings(settings);
        build(&env)?;
        Ok::<_, Box<dyn Error>>(env.job(name)?)
    })
}
