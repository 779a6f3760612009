//! The file sink in the testkit's conformance kit.
#![allow(clippy::unwrap_used)]
use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use semel_files::{FileSink, Format};
use semel_testkit::conformance::{self, Target};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder. `file_size` 1 gives each batch a part file of its own, so that a transaction has several.
struct Folder {
    temp: tempfile::TempDir,
    format: Format,
    file_size: u64,
}

impl Folder {
    fn new(format: Format, file_size: u64) -> Folder {
        Folder { temp: tempfile::tempdir().unwrap(), format, file_size }
    }
    fn path(&self) -> PathBuf {
        self.temp.path().join("out")
    }
    fn csv_with_header() -> Format {
        Format::Csv(semel_formats::csv::CsvOptions { header: true, ..Default::default() })
    }
}

impl Target for Folder {
    type Sink = FileSink;

    fn sink(&self) -> FileSink {
        FileSink::builder(self.path(), self.format.clone()).file_size(self.file_size).build().unwrap()
    }

    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]))
    }

    fn rows(&self, ids: Range<u64>) -> RecordBatch {
        RecordBatch::try_new(self.schema(), vec![Arc::new(Int64Array::from_iter_values(ids.map(|id| id as i64)))]).unwrap()
    }

    /// What `cat out/*` shows.
    async fn visible(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(self.path()) else { return vec![] };
        let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        let texts = files.map(|file| std::fs::read_to_string(file).unwrap()).collect::<Vec<_>>();
        let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| *line != "id");
        lines.map(|line| line.trim_start_matches("{\"id\":").trim_end_matches('}').parse().unwrap()).collect()
    }

    /// Parts that are not visible. Markers without parts are the memory of commits.
    async fn open_transactions(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.path().join(".semel-pending")) else { return 0 };
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "part")).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_lines() {
    conformance::run(&Folder::new(Format::Json(Default::default()), 128 << 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_several_files() {
    conformance::run(&Folder::new(Format::Json(Default::default()), 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn csv_with_a_header_in_each_file() {
    conformance::run(&Folder::new(Folder::csv_with_header(), 1)).await;
}
