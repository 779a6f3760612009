//! Settings, with the names of Flink's filesystem connector. `build` checks them without any I/O.
use crate::sink::FileSink;
use semel_formats::Format;
use std::path::PathBuf;
use std::time::Duration;

/// A setting that cannot be used. Says which, what was found and what is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// When a part file is closed and the next one begun. Besides, a file never holds rows of two checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollingPolicy {
    /// `sink.rolling-policy.file-size`: at this many bytes. A file may be longer by one batch.
    pub file_size: u64,
    /// `sink.rolling-policy.rollover-interval`: after it has been open for so long.
    pub rollover_interval: Duration,
}

impl Default for RollingPolicy {
    /// Flink's defaults: 128 MiB, 30 minutes.
    fn default() -> Self {
        RollingPolicy { file_size: 128 << 20, rollover_interval: Duration::from_secs(30 * 60) }
    }
}

/// Checked settings of a [`FileSink`].
#[derive(Debug, Clone)]
pub struct FileSinkSettings {
    /// `path`: the folder that readers look into. Absolute.
    pub folder: PathBuf,
    /// `format`: how a row becomes a line. The sink adds the line feeds.
    pub format: Format,
    /// What visible file names begin with; Flink's `part`.
    pub prefix: String,
    /// What visible file names end with, e.g. `.json`.
    pub suffix: String,
    /// When a new file is begun.
    pub rolling: RollingPolicy,
    /// Deadline of one step on the file system: a network file system may hang.
    pub io_timeout: Duration,
}

/// Builds a [`FileSink`].
#[derive(Debug, Clone)]
pub struct FileSinkBuilder {
    settings: FileSinkSettings,
    wrong: Option<ConfigError>,
}

impl FileSinkBuilder {
    /// Files of this format in this folder, which is created if it does not exist.
    pub fn new(folder: impl Into<PathBuf>, format: Format) -> FileSinkBuilder {
        let suffix = match &format {
            Format::Json(_) => ".json",
            Format::Csv(_) => ".csv",
            Format::Raw => ".txt",
        };
        let settings = FileSinkSettings {
            folder: folder.into(),
            format,
            prefix: "part".into(),
            suffix: suffix.into(),
            rolling: RollingPolicy::default(),
            io_timeout: Duration::from_secs(60),
        };
        FileSinkBuilder { settings, wrong: None }
    }

    /// Both limits at once.
    pub fn rolling_policy(mut self, policy: RollingPolicy) -> Self {
        self.settings.rolling = policy;
        self
    }

    /// `sink.rolling-policy.file-size`, in bytes.
    pub fn file_size(mut self, bytes: u64) -> Self {
        self.settings.rolling.file_size = bytes;
        self
    }

    /// `sink.rolling-policy.rollover-interval`.
    pub fn rollover_interval(mut self, interval: Duration) -> Self {
        self.settings.rolling.rollover_interval = interval;
        self
    }

    /// What visible file names begin with; default `part`.
    pub fn part_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// What visible file names end with; default: the format's name.
    pub fn part_suffix(mut self, suffix: impl Into<String>) -> Self {
        self.settings.suffix = suffix.into();
        self
    }

    /// Deadline of one step on the file system; default 60 s.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.settings.io_timeout = timeout;
        self
    }

    /// Sets an option by Flink's name, with a value as Flink writes it (`128MB`, `30 min`).
    pub fn option(mut self, name: &str, value: &str) -> Self {
        let outcome = match name {
            "path" => {
                self.settings.folder = PathBuf::from(value.strip_prefix("file://").unwrap_or(value));
                Ok(())
            }
            "sink.rolling-policy.file-size" => bytes(value).map(|n| self.settings.rolling.file_size = n),
            "sink.rolling-policy.rollover-interval" => duration(value).map(|d| self.settings.rolling.rollover_interval = d),
            _ => Err("is not an option of the file sink; there are path, sink.rolling-policy.file-size and sink.rolling-policy.rollover-interval".into()),
        };
        if let Err(why) = outcome {
            self.wrong.get_or_insert(ConfigError(format!("{name} = {value:?}: {why}")));
        }
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Names the setting, what was found and what is needed.
    pub fn build(self) -> Result<FileSink, ConfigError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let mut settings = self.settings;
        if settings.folder.as_os_str().is_empty() {
            return Err(ConfigError("path is empty: name the folder that the files go to".into()));
        }
        settings.folder =
            std::path::absolute(&settings.folder).map_err(|e| ConfigError(format!("path {}: {e}", settings.folder.display())))?;
        if settings.folder.to_str().is_none() {
            return Err(ConfigError(format!("path {}: only names in UTF-8 can be kept in a checkpoint", settings.folder.display())));
        }
        if settings.rolling.file_size == 0 || settings.rolling.rollover_interval.is_zero() {
            return Err(ConfigError("sink.rolling-policy.file-size and sink.rolling-policy.rollover-interval must be above 0".into()));
        }
        for (what, text) in [("prefix", &settings.prefix), ("suffix", &settings.suffix)] {
            if text.len() > 40 || !text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
                return Err(ConfigError(format!(
                    "{what} of part files {text:?}: use at most 40 characters out of A-Z, a-z, 0-9, '_', '-' and '.'"
                )));
            }
        }
        if settings.prefix.is_empty() || settings.prefix.starts_with('.') {
            return Err(ConfigError(format!(
                "prefix of part files {:?}: must not be empty or begin with '.', which readers take for hidden",
                settings.prefix
            )));
        }
        Ok(FileSink::new(settings))
    }
}

/// `128MB`, `1 gb`, `4096`: as Flink's `MemorySize`, units are powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = lower.split_at(digits);
    let shift = match unit.trim() {
        "" | "b" | "bytes" => 0,
        "k" | "kb" | "kibibytes" => 10,
        "m" | "mb" | "mebibytes" => 20,
        "g" | "gb" | "gibibytes" => 30,
        "t" | "tb" | "tebibytes" => 40,
        _ => return Err("is not a size; write for example 128MB".into()),
    };
    let number: u64 = number.parse().map_err(|_| "is not a size; write for example 128MB".to_string())?;
    number.checked_mul(1 << shift).ok_or_else(|| "is too large".into())
}

/// `30 min`, `10s`: a number and a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    match text.parse::<u64>() {
        Ok(millis) => Ok(Duration::from_millis(millis)),
        Err(_) => humantime::parse_duration(text).map_err(|e| format!("is not a duration ({e}); write for example 30 min")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn builder() -> FileSinkBuilder {
        FileSinkBuilder::new("/tmp/x", Format::Json(Default::default()))
    }

    #[test]
    fn sizes_and_times_as_flink_writes_them() {
        for (text, expected) in [("128MB", 128 << 20), ("1 gb", 1 << 30), ("4096", 4096), ("2 kibibytes", 2048), (" 7b ", 7)] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
        for text in ["", "MB", "1.5MB", "-1", "3 apples", "99999999999999TB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(duration("30 min").unwrap(), Duration::from_secs(1800));
        assert_eq!(duration("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(duration("250").unwrap(), Duration::from_millis(250));
        assert!(duration("soon").is_err());
    }

    #[test]
    fn options_by_flinks_names() {
        let sink = builder()
            .option("path", "file:///data/out")
            .option("sink.rolling-policy.file-size", "1MB")
            .option("sink.rolling-policy.rollover-interval", "5 s")
            .build()
            .unwrap();
        assert_eq!(sink.settings().folder, PathBuf::from("/data/out"));
        assert_eq!(sink.settings().rolling, RollingPolicy { file_size: 1 << 20, rollover_interval: Duration::from_secs(5) });
        assert_eq!(
            builder().build().unwrap().settings().rolling,
            RollingPolicy { file_size: 134_217_728, rollover_interval: Duration::from_secs(1800) }
        );
    }

    #[test]
    fn wrong_settings_are_named() {
        let error = |b: FileSinkBuilder| b.build().err().unwrap().0;
        assert!(error(builder().option("sink.rolling-policy.file-size", "big")).contains("\"big\""));
        assert!(error(builder().option("sink.rolling-polcy.file-size", "1")).contains("sink.rolling-policy.file-size"));
        assert!(error(builder().file_size(0)).contains("above 0"));
        assert!(error(builder().part_prefix(".x")).contains("hidden"));
        assert!(error(builder().part_prefix("a/b")).contains("A-Z"));
        assert!(error(builder().part_suffix("/../x")).contains("A-Z"));
    }

    #[test]
    fn a_relative_folder_is_kept_as_an_absolute_one() {
        let sink = FileSinkBuilder::new("out", builder().settings.format).build().unwrap();
        assert!(sink.settings().folder.is_absolute(), "a handle must be usable from another working directory");
    }
}
