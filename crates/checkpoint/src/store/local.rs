//! A local folder (or a network file system with hard links). What was written survives power loss.

use super::{ATTEMPT_DEADLINE, PutOutcome, Store, StoreError, StoreResult, StoredObject, check_path, check_prefix, within};
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Unfinished writes live here until they get their name. Left-overs of a crash are removed after a day.
const SCRATCH: &str = ".scratch";
const SCRATCH_AGE: Duration = Duration::from_secs(24 * 3600);

/// Objects are files: written to a scratch file, fsynced, then linked (`put_if_absent`) or renamed (`put`) to their
/// name, then their folder is fsynced. `hard_link` fails if the name exists, atomically, where `rename` replaces.
#[derive(Clone, Debug)]
pub struct LocalStore {
    root: PathBuf,
}

impl LocalStore {
    /// Opens a folder; makes it if there is none.
    pub fn open(root: impl Into<PathBuf>) -> Result<LocalStore, StoreError> {
        let root: PathBuf = root.into();
        let failed = |error| io_error("open", &root.display().to_string(), error);
        if root.as_os_str().is_empty() {
            return Err(StoreError::fatal("open", "", "the path is empty", "name a folder"));
        }
        let root = std::path::absolute(&root).map_err(failed)?;
        make_folder(&root.join(SCRATCH)).map_err(failed)?;
        remove_old_scratch(&root.join(SCRATCH));
        Ok(LocalStore { root })
    }

    fn scratch(&self) -> PathBuf {
        self.root.join(SCRATCH).join(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Runs blocking work on its own thread, with a deadline. (A thread stuck in a hung file system stays behind.)
    fn run<'a, T: Send + 'static>(
        &self,
        operation: &'static str,
        path: &'a str,
        work: impl FnOnce(LocalStore, PathBuf) -> io::Result<T> + Send + 'static,
    ) -> StoreResult<'a, T> {
        let checked = if operation == "list" { check_prefix(path) } else { check_path(operation, path) };
        let (store, file) = (self.clone(), self.root.join(path));
        Box::pin(async move {
            checked?;
            within(ATTEMPT_DEADLINE, operation, path, async {
                match tokio::task::spawn_blocking(move || work(store, file)).await {
                    Ok(result) => result.map_err(|error| io_error(operation, path, error)),
                    Err(error) => Err(StoreError::transient(operation, path, error)),
                }
            })
            .await
        })
    }
}

impl Store for LocalStore {
    fn put_if_absent<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, PutOutcome> {
        self.run("put_if_absent", path, move |store, file| {
            let folder = file.parent().unwrap_or(&store.root);
            make_folder(folder)?;
            let scratch = store.scratch();
            write_synced(&scratch, &bytes)?;
            let linked = fs::hard_link(&scratch, &file);
            // Also when it exists: its writer may have died before its own fsync of the folder.
            let synced = sync_folder(folder);
            let _ = fs::remove_file(&scratch);
            match linked {
                Ok(()) => synced.map(|()| PutOutcome::Written),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => synced.map(|()| PutOutcome::Exists),
                Err(error) => Err(error),
            }
        })
    }

    fn put<'a>(&'a self, path: &'a str, bytes: Bytes) -> StoreResult<'a, ()> {
        self.run("put", path, move |store, file| {
            let folder = file.parent().unwrap_or(&store.root);
            make_folder(folder)?;
            let scratch = store.scratch();
            write_synced(&scratch, &bytes)?;
            // The folder may have been emptied and removed by a collection in between.
            if fs::rename(&scratch, &file).is_err() {
                make_folder(folder)?;
                fs::rename(&scratch, &file)?;
            }
            sync_folder(folder)
        })
    }

    fn get<'a>(&'a self, path: &'a str) -> StoreResult<'a, Option<Bytes>> {
        self.run("get", path, |_, file| match fs::read(file) {
            Ok(bytes) => Ok(Some(Bytes::from(bytes))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn get_range<'a>(&'a self, path: &'a str, range: Range<u64>) -> StoreResult<'a, Bytes> {
        self.run("get_range", path, move |_, file| {
            let mut file = File::open(file)?;
            file.seek(SeekFrom::Start(range.start))?;
            let wanted = range.end.saturating_sub(range.start);
            let mut bytes = Vec::new();
            file.take(wanted).read_to_end(&mut bytes)?;
            Ok(Bytes::from(bytes))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> StoreResult<'a, Vec<StoredObject>> {
        self.run("list", prefix, |store, folder| {
            let mut found = Vec::new();
            list_folder(&store.root, &folder, &mut found)?;
            found.sort();
            Ok(found)
        })
    }

    fn delete<'a>(&'a self, path: &'a str) -> StoreResult<'a, ()> {
        self.run("delete", path, |store, file| {
            match fs::remove_file(&file) {
                Ok(()) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(error),
            }
            // A folder of one checkpoint goes with its last file; the removal of a filled folder fails.
            if let Some(folder) = file.parent().filter(|folder| folder.parent() != Some(store.root.as_path()))
                && folder != store.root
            {
                let _ = fs::remove_dir(folder);
            }
            Ok(())
        })
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes a folder so that it survives power loss: each new name is fsynced in its parent.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(folder);
    if parent != folder {
        make_folder(parent)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_folder(parent)
}

fn list_folder(root: &Path, folder: &Path, found: &mut Vec<StoredObject>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let hidden = entry.file_name().to_str().is_none_or(|name| name.starts_with('.'));
        if hidden {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => list_folder(root, &entry.path(), found)?,
            Ok(metadata) => {
                if let Some(path) = entry.path().strip_prefix(root).ok().and_then(Path::to_str) {
                    found.push(StoredObject { path: path.to_owned(), bytes: metadata.len() });
                }
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remove_old_scratch(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > SCRATCH_AGE) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn io_error(operation: &'static str, path: &str, error: io::Error) -> StoreError {
    let hint = match error.kind() {
        ErrorKind::NotFound if operation == "get_range" => {
            return StoreError::NotFound { path: path.to_owned() };
        }
        ErrorKind::PermissionDenied => "give the user of this process the right to read and write this folder",
        ErrorKind::ReadOnlyFilesystem => "the file system is mounted read-only: remount it or use another folder",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on this file system or raise the quota",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => "a file stands where a folder is needed: choose another folder",
        ErrorKind::Unsupported | ErrorKind::CrossesDevices | ErrorKind::TooManyLinks => {
            "the file system must support hard links: use another one"
        }
        _ => return StoreError::transient(operation, path, error),
    };
    StoreError::fatal(operation, path, error, hint)
}
