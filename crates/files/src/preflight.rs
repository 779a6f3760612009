//! What must hold before a start. Looks, and changes nothing.
use crate::config::FileSinkSettings;
use crate::io::blocking;
use crate::names::pending_folder;
use arrow::datatypes::SchemaRef;
use rustix::fs::{Access, access, stat, statvfs};
use semel_checkpoint::OperatorUid;
use semel_engine::sink::{ConnectorResult, Finding, JobNeeds, Severity};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Less free space than this is an error.
const LEAST_FREE: u64 = 64 << 20;
/// Less than this is a warning.
const LOW_FREE: u64 = 1 << 30;

/// What is seen of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) folder: PathBuf,
    /// The folder itself, or the nearest existing one above it.
    pub(crate) nearest: PathBuf,
    pub(crate) is_folder: bool,
    pub(crate) writable: Result<(), String>,
    /// Whether the folder of pending files, if it exists, is on the same file system.
    pub(crate) one_file_system: bool,
    pub(crate) free: Option<u64>,
}

/// Runs all checks.
pub(crate) async fn preflight(settings: &FileSinkSettings, _: &JobNeeds, _: &OperatorUid, schema: &SchemaRef) -> Vec<Finding> {
    let folder = settings.folder.clone();
    // A person waits for `check`: not the deadline of a commit.
    let timeout = settings.io_timeout.min(Duration::from_secs(15));
    let seen = blocking(timeout, format!("looking at {}", folder.display()), move || observe(&folder)).await;
    let mut findings = match seen {
        Ok(facts) => judge(&facts),
        Err(e) => {
            let remedy = format!("look at it: ls -ld '{}'", settings.folder.display());
            vec![Finding::new(Severity::Error, "folder", e.to_string(), "a folder that can be reached", remedy)]
        }
    };
    if let Err(why) = settings.format.serializer(schema.clone()) {
        findings.push(Finding::new(
            Severity::Error,
            "format against the rows' columns",
            why.to_string(),
            "columns that the format can write",
            "cast or leave out that column before the sink",
        ));
    }
    findings
}

fn observe(folder: &Path) -> ConnectorResult<Facts> {
    let failed = |path: &Path, e: rustix::io::Errno| crate::io::failed("looking at", path, io::Error::from(e));
    let mut nearest = folder;
    let found = loop {
        match stat(nearest) {
            Ok(found) => break found,
            Err(rustix::io::Errno::NOENT) => nearest = nearest.parent().unwrap_or(Path::new("/")),
            // A file in the middle of the path.
            Err(rustix::io::Errno::NOTDIR) => nearest = nearest.parent().unwrap_or(Path::new("/")),
            Err(e) => return Err(failed(nearest, e)),
        }
    };
    let is_folder = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
    let writable = access(nearest, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| io::Error::from(e).to_string());
    let pending = pending_folder(folder);
    let (one_file_system, writable) = match stat(&pending) {
        Ok(inner) if nearest == folder => {
            let inner_writable =
                access(&pending, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| format!("{}: {}", pending.display(), io::Error::from(e)));
            (inner.st_dev == found.st_dev, writable.and(inner_writable))
        }
        _ => (true, writable),
    };
    let free = statvfs(nearest).ok().map(|s| s.f_bavail.saturating_mul(s.f_frsize));
    Ok(Facts { folder: folder.into(), nearest: nearest.into(), is_folder, writable, one_file_system, free })
}

/// Facts in, findings out.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let Facts { folder, nearest, is_folder, writable, one_file_system, free } = facts;
    let (folder, nearest_text) = (folder.display(), nearest.display());
    if !is_folder {
        return vec![Finding::new(
            Severity::Error,
            "folder",
            format!("{nearest_text} is not a folder"),
            "a folder, or a name that is free",
            format!("set path to another folder: {nearest_text} is a file"),
        )];
    }
    let mut findings = vec![match writable {
        Ok(()) if *nearest == facts.folder => Finding::ok("folder writable", format!("{folder}"), "a folder that this user may write to"),
        Ok(()) => Finding::ok(
            "folder can be created",
            format!("{folder} does not exist; {nearest_text} is writable"),
            "a folder that can be created",
        ),
        Err(why) => Finding::new(
            Severity::Error,
            "folder writable",
            format!("{nearest_text}: {why}"),
            "a folder that this user may write to",
            format!("mkdir -p '{folder}' && chown -R $(whoami) '{folder}' as its owner or root"),
        ),
    }];
    if !one_file_system {
        findings.push(Finding::new(
            Severity::Error,
            "one file system",
            format!("{} is on another file system than {folder}", pending_folder(&facts.folder).display()),
            "both on one file system: a commit is a rename",
            format!("umount '{0}' or replace the link '{0}' by a folder", pending_folder(&facts.folder).display()),
        ));
    }
    if let Some(free) = free {
        let severity = match *free {
            n if n < LEAST_FREE => Severity::Error,
            n if n < LOW_FREE => Severity::Warning,
            _ => Severity::Ok,
        };
        findings.push(Finding::new(
            severity,
            "free space",
            format!("{} MiB", free >> 20),
            "at least 64 MiB, better 1 GiB",
            format!("free space on the file system: df -h '{nearest_text}'"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn good() -> Facts {
        Facts {
            folder: "/data/out".into(),
            nearest: "/data/out".into(),
            is_folder: true,
            writable: Ok(()),
            one_file_system: true,
            free: Some(5 << 30),
        }
    }

    fn worst(facts: &Facts) -> Severity {
        judge(facts).iter().map(|f| f.severity).max().unwrap()
    }

    #[test]
    fn each_wrong_setting_is_found() {
        assert_eq!(worst(&good()), Severity::Ok);
        assert_eq!(worst(&Facts { nearest: "/data".into(), ..good() }), Severity::Ok);
        for bad in [
            Facts { is_folder: false, ..good() },
            Facts { writable: Err("Read-only file system (os error 30)".into()), ..good() },
            Facts { one_file_system: false, ..good() },
            Facts { free: Some(1 << 20), ..good() },
        ] {
            let error = judge(&bad).into_iter().find(|f| f.severity == Severity::Error).unwrap();
            assert!(error.found.contains("/data/out") || error.check == "free space", "{error:?}");
            assert!(!error.remedy.is_empty() && !error.needed.is_empty());
        }
        assert_eq!(worst(&Facts { free: Some(100 << 20), ..good() }), Severity::Warning);
    }

    #[test]
    fn the_file_system_is_looked_at_and_not_changed() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("a/b");
        let facts = observe(&folder).unwrap();
        assert_eq!((facts.nearest.as_path(), facts.is_folder, facts.writable.is_ok()), (temp.path(), true, true));
        assert!(facts.free.unwrap() > 0);
        assert!(!folder.exists() && std::fs::read_dir(temp.path()).unwrap().next().is_none());
        std::fs::write(temp.path().join("a"), "a file").unwrap();
        let facts = observe(&folder).unwrap();
        assert_eq!((facts.nearest, facts.is_folder), (temp.path().join("a"), false));
    }
}
