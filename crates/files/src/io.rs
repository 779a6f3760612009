//! The edge to the file system: blocking calls off the async threads, with a deadline, and errors that name the path.
use semel_engine::sink::{ConnectorError, ConnectorResult};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Runs file system work where it may block. `what` says what and where, for the error of an overrun deadline.
pub(crate) async fn blocking<T: Send + 'static>(
    timeout: Duration,
    what: String,
    work: impl FnOnce() -> ConnectorResult<T> + Send + 'static,
) -> ConnectorResult<T> {
    match tokio::time::timeout(timeout, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(result)) => result,
        Ok(Err(e)) => Err(ConnectorError::Retryable(format!("{what}: {e}"))),
        Err(_) => Err(ConnectorError::Retryable(format!("{what}: no answer from the file system within {timeout:?}"))),
    }
}

/// What an error means for the job, with what was done and where.
pub(crate) fn failed(doing: &str, path: &Path, error: io::Error) -> ConnectorError {
    let text = format!("{doing} {}: {error}", path.display());
    match needs_help(error.kind()) {
        true => ConnectorError::Fatal(text),
        false => ConnectorError::Retryable(text),
    }
}

/// Whether trying again later is pointless. A full disk (`StorageFull`, `QuotaExceeded`) is retried: space is freed by others too.
fn needs_help(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::*;
    matches!(
        kind,
        PermissionDenied
            | ReadOnlyFilesystem
            | NotADirectory
            | IsADirectory
            | InvalidFilename
            | InvalidInput
            | FileTooLarge
            | CrossesDevices
            | Unsupported
    )
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> ConnectorResult<()> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| failed("fsync of folder", folder, e))
}

/// Whether there is anything of this name (also a dangling link).
pub(crate) fn exists(path: &Path) -> ConnectorResult<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("looking at", path, e)),
    }
}

/// Removes a file. Answers whether it was there.
pub(crate) fn remove(path: &Path) -> ConnectorResult<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("removing", path, e)),
    }
}

/// Creates a folder with all above it, durably.
pub(crate) fn create_folder(folder: &Path) -> ConnectorResult<()> {
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(folder).map_err(|e| failed("creating folder", folder, e))?;
    // Which of the folders above are new is not known: sync all that may be.
    folder.ancestors().skip(1).try_for_each(|above| match sync_folder(above) {
        Err(_) if above != folder.parent().unwrap_or(above) => Ok(()), // Somebody else's folder that may not be opened.
        result => result,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_full_disk_is_retried_and_a_permission_is_not() {
        let error = |code| failed("writing", Path::new("/data/x"), io::Error::from_raw_os_error(code));
        for (code, fatal) in [(28, false), (122, false), (5, false), (116, false), (13, true), (30, true), (20, true), (1, true)] {
            let error = error(code);
            assert!(error.to_string().contains("/data/x"), "{error}");
            assert_eq!(matches!(error, ConnectorError::Fatal(_)), fatal, "{error}");
        }
    }

    #[tokio::test]
    async fn a_hanging_file_system_is_given_up() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let hung = blocking(Duration::from_millis(20), "writing /data/x".into(), move || Ok(_ = wait.recv()));
        let error = hung.await.unwrap_err();
        assert!(matches!(&error, ConnectorError::Retryable(text) if text.contains("/data/x") && text.contains("20ms")), "{error}");
        drop(release);
    }
}
