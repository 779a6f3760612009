//! A shell that outlives the test process by a moment: when the pipe to it closes, it kills the process groups and
//! removes the folders that are still registered. A panic, an abort and a SIGKILL of the tests all close the pipe.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{Error, Result};

const SCRIPT: &str = r#"
declare -A groups folders
while IFS=' ' read -r op x; do
  case $op in
  group) groups[$x]=1 ;;
  ended) unset "groups[$x]" ;;
  folder) folders[$x]=1 ;;
  removed) unset "folders[$x]" ;;
  esac
done
for g in "${!groups[@]}"; do kill -KILL -- "-$g"; done
sleep 0.3
for f in "${!folders[@]}"; do rm -rf -- "$f"; done
"#;

struct Guardian {
    pipe: ChildStdin,
    _child: Child,
}

fn guardian() -> Result<&'static Mutex<Guardian>> {
    static GUARDIAN: OnceLock<Mutex<Guardian>> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(guardian) = GUARDIAN.get() {
        return Ok(guardian);
    }
    let mut child = Command::new("bash")
        .args(["-c", SCRIPT, "semel-testkit-guardian"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()
        .map_err(Error::io("starting bash, which ends the servers of a test that crashes"))?;
    let pipe = child.stdin.take().ok_or_else(|| Error::Setup("bash has no stdin".into()))?;
    Ok(GUARDIAN.get_or_init(|| Mutex::new(Guardian { pipe, _child: child })))
}

fn tell(word: &str, what: &str) -> Result<()> {
    let mut guardian = guardian()?.lock().unwrap_or_else(PoisonError::into_inner);
    let line = format!("{word} {what}\n");
    guardian.pipe.write_all(line.as_bytes()).map_err(Error::io("telling the guardian of a process"))
}

/// Starts a command as leader of a process group of its own that does not outlive this process.
pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    guardian()?;
    let what = format!("starting {}", command.get_program().to_string_lossy());
    let child = command.process_group(0).spawn().map_err(Error::io(what))?;
    tell("group", &child.id().to_string())?;
    Ok(child)
}

/// The group is gone; its number may be used again by the system.
pub(crate) fn ended(leader: u32) {
    let _ = tell("ended", &leader.to_string());
}

/// A folder that is removed at the latest when this process ends.
#[derive(Debug)]
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new(prefix: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix(&format!("semel-{prefix}-")).tempdir().map_err(Error::io("making a temporary folder"))?;
        tell("folder", &dir.path().to_string_lossy())?;
        Ok(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Removing the same folder twice is harmless, so the guardian may be told before it is gone.
        let _ = tell("removed", &self.0.path().to_string_lossy());
    }
}
