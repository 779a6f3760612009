//! The sink's calls in every order that a crash allows: rows are visible once, or not at all, and nobody's late call changes that.
#![allow(clippy::unwrap_used)]
use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use semel_checkpoint::{CheckpointId, CommitPermit, Generation, JobIdentity, JobUuid, OperatorUid};
use semel_engine::sink::{
    Committed, ConnectorError, JobNeeds, Pending, Severity, SinkCommitter, SinkContext, SinkWriter, TwoPhaseCommitSink,
};
use semel_files::writer::FileWriter;
use semel_files::{FileSink, FileTransaction, Format};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("text", DataType::Utf8, true)]))
}

fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let texts: StringArray = ids.clone().map(|i| (i % 3 != 0).then(|| format!("row, \"{i}\""))).collect();
    RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from_iter_values(ids)), Arc::new(texts)]).unwrap()
}

/// A job with its folder. The sink is built anew for each generation, as in another process.
struct Scene {
    temp: tempfile::TempDir,
    uuid: JobUuid,
}

impl Scene {
    fn new() -> Scene {
        Scene { temp: tempfile::tempdir().unwrap(), uuid: JobUuid::random() }
    }
    fn folder(&self) -> PathBuf {
        self.temp.path().join("out")
    }
    fn sink(&self) -> FileSink {
        FileSink::builder(self.folder(), Format::Json(Default::default())).build().unwrap()
    }
    fn job(&self, generation: u64) -> JobIdentity {
        JobIdentity { name: "orders".into(), uuid: self.uuid, generation: Generation(generation) }
    }
    fn context(&self, generation: u64, subtask: u32) -> SinkContext {
        SinkContext { job: self.job(generation), uid: uid(), subtask, parallelism: 2, schema: schema() }
    }
    fn permit(&self, checkpoint: u64, generation: u64) -> CommitPermit {
        CommitPermit::for_tests(self.uuid, CheckpointId(checkpoint), Generation(generation))
    }
    fn pending(&self, transaction: &FileTransaction, generation: u64) -> Pending<FileTransaction> {
        Pending {
            transaction: transaction.clone(),
            permit: self.permit(transaction.checkpoint.0, generation),
            subtask: transaction.subtask,
            checkpoint: transaction.checkpoint,
        }
    }
    /// A pre-committed transaction.
    async fn pre_committed(&self, generation: u64, subtask: u32, checkpoint: u64, ids: std::ops::Range<i64>) -> FileTransaction {
        let (mut writer, _) = self.sink().open(self.context(generation, subtask)).await.unwrap();
        write(&mut writer, checkpoint, ids, true).await
    }
    fn visible(&self) -> Vec<String> {
        let mut lines = vec![];
        for file in files(&self.folder()) {
            lines.extend(std::fs::read_to_string(file).unwrap().lines().map(str::to_owned));
        }
        lines.sort();
        lines
    }
    fn visible_ids(&self) -> Vec<i64> {
        let ids = self
            .visible()
            .iter()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["id"].as_i64().unwrap())
            .collect::<Vec<_>>();
        let mut ids = ids;
        ids.sort_unstable();
        ids
    }
    fn hidden(&self) -> usize {
        files(&self.folder().join(".semel-pending")).len()
    }
}

fn uid() -> OperatorUid {
    "out".parse().unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()).collect();
    files.sort();
    files
}

async fn write(writer: &mut FileWriter, checkpoint: u64, ids: std::ops::Range<i64>, pre_commit: bool) -> FileTransaction {
    let mut transaction = writer.begin_transaction(CheckpointId(checkpoint)).await.unwrap();
    writer.invoke(&mut transaction, rows(ids)).await.unwrap();
    if pre_commit {
        writer.pre_commit(&mut transaction).await.unwrap();
    }
    transaction
}

/// As it would come back from the journal.
fn stored(transaction: &FileTransaction) -> FileTransaction {
    serde_json::from_value(serde_json::to_value(transaction).unwrap()).unwrap()
}

#[tokio::test]
async fn rows_are_hidden_until_the_commit_and_a_commit_may_be_repeated() {
    let scene = Scene::new();
    let (mut writer, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let first = write(&mut writer, 1, 0..4, true).await;
    // Rows of the next checkpoint are written before the commit of this one.
    let second = write(&mut writer, 2, 4..6, true).await;
    assert_eq!(scene.visible(), Vec::<String>::new());
    assert_eq!(committer.commit(&first, &scene.permit(1, 1)).await.unwrap(), Committed::Now);
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3]);
    assert_eq!(scene.visible()[1], r#"{"id":1,"text":"row, \"1\""}"#);
    assert_eq!(committer.commit(&first, &scene.permit(1, 1)).await.unwrap(), Committed::Already);
    let (_, mut another) = scene.sink().open(scene.context(2, 1)).await.unwrap();
    assert_eq!(another.commit(&stored(&first), &scene.permit(1, 2)).await.unwrap(), Committed::Already);
    assert_eq!(another.commit(&stored(&second), &scene.permit(2, 2)).await.unwrap(), Committed::Now);
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3, 4, 5]);
    let name = files(&scene.folder())[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(name, format!("part-{}-out-0-1-0.json", scene.uuid.short()));
}

#[tokio::test]
async fn dropping_a_writer_commits_nothing() {
    let scene = Scene::new();
    let (mut writer, committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    write(&mut writer, 1, 0..4, false).await;
    drop(writer);
    drop(committer);
    assert!(scene.visible().is_empty());
    let swept = scene.sink().recover(&scene.job(2), &uid(), vec![]).await.unwrap();
    assert_eq!(swept.aborted.len(), 1);
    assert_eq!((scene.hidden(), scene.visible().len()), (0, 0));
}

#[tokio::test]
async fn recovery_commits_what_is_pending_and_removes_the_rest() {
    let scene = Scene::new();
    let three = scene.pre_committed(1, 0, 3, 0..2).await;
    let three_b = scene.pre_committed(1, 1, 3, 2..4).await;
    let four = scene.pre_committed(2, 0, 4, 4..6).await;
    let orphan = scene.pre_committed(2, 1, 5, 100..102).await; // Pre-committed, but its entry was never written.
    let pending = vec![scene.pending(&four, 3), scene.pending(&three_b, 3), scene.pending(&three, 3)];
    let swept = scene.sink().recover(&scene.job(3), &uid(), pending.clone()).await.unwrap();
    assert_eq!(swept.aborted, [orphan.pending(0).file_name().unwrap().to_str().unwrap()]);
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3, 4, 5]);
    // It crashes before the journal says so: the next generation does all of it again.
    assert!(scene.sink().recover(&scene.job(4), &uid(), pending).await.unwrap().aborted.is_empty());
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_crash_between_the_parts_of_one_transaction_is_completed() {
    let scene = Scene::new();
    let sink = FileSink::builder(scene.folder(), Format::Json(Default::default())).file_size(1).build().unwrap();
    let (mut writer, mut committer) = sink.open(scene.context(1, 0)).await.unwrap();
    let mut transaction = writer.begin_transaction(CheckpointId(1)).await.unwrap();
    for i in 0..3 {
        writer.invoke(&mut transaction, rows(i * 2..i * 2 + 2)).await.unwrap();
    }
    writer.pre_commit(&mut transaction).await.unwrap();
    assert_eq!(transaction.parts.len(), 3, "rolled by size");
    std::fs::rename(transaction.pending(0), transaction.visible(0)).unwrap(); // The commit that died got so far.
    assert_eq!(committer.commit(&transaction, &scene.permit(1, 1)).await.unwrap(), Committed::Now);
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(files(&scene.folder()).len(), 3);
}

#[tokio::test]
async fn files_roll_by_time() {
    let scene = Scene::new();
    let sink =
        FileSink::builder(scene.folder(), Format::Json(Default::default())).rollover_interval(Duration::from_millis(30)).build().unwrap();
    let (mut writer, _) = sink.open(scene.context(1, 0)).await.unwrap();
    let mut transaction = writer.begin_transaction(CheckpointId(1)).await.unwrap();
    writer.invoke(&mut transaction, rows(0..2)).await.unwrap();
    writer.invoke(&mut transaction, rows(2..4)).await.unwrap();
    let before = transaction.parts.len();
    tokio::time::sleep(Duration::from_millis(40)).await;
    writer.invoke(&mut transaction, rows(4..6)).await.unwrap();
    assert!(transaction.parts.len() > before, "{transaction:?}");
    let sizes: Vec<u64> = transaction.part_numbers().map(|p| std::fs::metadata(transaction.pending(p)).unwrap().len()).collect();
    assert_eq!(sizes, transaction.parts, "the handle knows the sizes");
}

#[tokio::test]
async fn a_zombie_that_wakes_changes_nothing() {
    let scene = Scene::new();
    let (mut zombie, mut zombies_committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let held = write(&mut zombie, 1, 0..2, true).await; // Its entry is durable; the zombie has the permit.
    let torn = write(&mut zombie, 2, 100..102, false).await; // Not pre-committed when it was stopped.
    // The successor commits what the entry holds, sweeps, and does checkpoint 2 itself.
    scene.sink().recover(&scene.job(2), &uid(), vec![scene.pending(&held, 2)]).await.unwrap();
    assert_eq!(scene.hidden(), 1, "the marker of the commit");
    let own = scene.pre_committed(2, 0, 2, 2..4).await;
    // It wakes: commits late, finds its open file gone, opens another one.
    assert_eq!(zombies_committer.commit(&held, &scene.permit(1, 1)).await.unwrap(), Committed::Already);
    let error = zombie.pre_commit(&mut torn.clone()).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fenced(text) if text.contains("generation")), "{error}");
    let late = write(&mut zombie, 3, 200..202, true).await;
    assert!(late.pending(0).exists());
    let swept = scene.sink().sweep(&scene.job(2), &uid()).await.unwrap();
    assert_eq!(swept.aborted, [late.pending(0).file_name().unwrap().to_str().unwrap()]);
    assert!(own.pending(0).exists(), "a generation never removes its own");
    let (_, mut committer) = scene.sink().open(scene.context(2, 0)).await.unwrap();
    assert_eq!(committer.commit(&own, &scene.permit(2, 2)).await.unwrap(), Committed::Now);
    assert_eq!(scene.visible_ids(), [0, 1, 2, 3]);
    // A zombie sweeps only what is below its own generation: nothing of its successor.
    scene.pre_committed(2, 0, 4, 4..6).await;
    assert!(scene.sink().sweep(&scene.job(1), &uid()).await.unwrap().aborted.is_empty());
}

#[tokio::test]
async fn a_reader_may_take_files_away_at_once() {
    let scene = Scene::new();
    let transaction = scene.pre_committed(1, 0, 1, 0..2).await;
    let (_, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    committer.commit(&transaction, &scene.permit(1, 1)).await.unwrap();
    std::fs::remove_file(transaction.visible(0)).unwrap();
    // The same commit again, after a crash: neither lost nor doubled.
    let again = scene.sink().recover(&scene.job(2), &uid(), vec![scene.pending(&transaction, 2)]).await;
    assert!(again.is_ok(), "{again:?}");
    assert!(scene.visible().is_empty());
    let (_, mut committer) = scene.sink().open(scene.context(2, 0)).await.unwrap();
    committer.released(CheckpointId(0)).await.unwrap();
    assert_eq!(scene.hidden(), 1, "not released yet");
    committer.released(CheckpointId(1)).await.unwrap();
    assert_eq!(scene.hidden(), 0);
}

#[tokio::test]
async fn a_pending_file_that_vanished_is_lost() {
    let scene = Scene::new();
    let transaction = scene.pre_committed(1, 0, 7, 0..2).await;
    std::fs::remove_dir_all(scene.folder().join(".semel-pending")).unwrap();
    let (_, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let error = committer.commit(&transaction, &scene.permit(7, 1)).await.unwrap_err();
    assert!(
        matches!(&error, ConnectorError::Lost(text) if text.contains("checkpoint 7") && text.contains(transaction.visible(0).to_str().unwrap())),
        "{error}"
    );
    let error = scene.sink().recover(&scene.job(2), &uid(), vec![scene.pending(&transaction, 2)]).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_pending_folder_that_was_removed_after_the_commit_is_made_again() {
    let scene = Scene::new();
    let committed = scene.pre_committed(1, 0, 1, 0..2).await;
    let open = scene.pre_committed(1, 0, 2, 2..4).await;
    let (_, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    committer.commit(&committed, &scene.permit(1, 1)).await.unwrap();
    let hidden = scene.folder().join(".semel-pending");
    std::fs::remove_dir_all(&hidden).unwrap();
    // Nothing has opened the sink since: the recovery is first.
    let recovered = scene.sink().recover(&scene.job(2), &uid(), vec![scene.pending(&committed, 2)]).await;
    assert!(recovered.is_ok(), "{recovered:?}");
    assert!(hidden.is_dir());
    assert_eq!(scene.visible_ids(), [0, 1]);
    std::fs::remove_dir_all(&hidden).unwrap();
    assert_eq!(committer.commit(&committed, &scene.permit(1, 1)).await.unwrap(), Committed::Already);
    // What was neither pending nor visible is lost all the same, also beside a commit that is whole; an abort has nothing to do.
    std::fs::remove_dir_all(&hidden).unwrap();
    let both = vec![scene.pending(&committed, 2), scene.pending(&open, 2)];
    let error = scene.sink().recover(&scene.job(2), &uid(), both).await.unwrap_err();
    assert!(matches!(error, ConnectorError::Lost(_)), "{error}");
    std::fs::remove_dir_all(&hidden).unwrap();
    committer.abort(&open).await.unwrap();
}

#[tokio::test]
async fn a_foreign_file_is_not_overwritten() {
    let scene = Scene::new();
    let transaction = scene.pre_committed(1, 0, 1, 0..2).await;
    std::fs::write(transaction.visible(0), "precious").unwrap();
    let (_, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let error = committer.commit(&transaction, &scene.permit(1, 1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains("another file has that name")), "{error}");
    assert_eq!(std::fs::read_to_string(transaction.visible(0)).unwrap(), "precious");
}

#[tokio::test]
async fn an_abort_is_idempotent_and_leaves_what_is_visible() {
    let scene = Scene::new();
    let (mut writer, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let first = write(&mut writer, 1, 0..2, true).await;
    committer.commit(&first, &scene.permit(1, 1)).await.unwrap();
    let second = write(&mut writer, 2, 2..4, true).await;
    for transaction in [&second, &second, &first] {
        committer.abort(transaction).await.unwrap();
    }
    assert_eq!((scene.visible_ids(), scene.hidden()), (vec![0, 1], 0));
    assert!(matches!(committer.commit(&second, &scene.permit(2, 1)).await.unwrap_err(), ConnectorError::Lost(_)));
}

#[tokio::test]
async fn a_permit_of_another_job_or_checkpoint_commits_nothing() {
    let scene = Scene::new();
    let transaction = scene.pre_committed(1, 0, 5, 0..2).await;
    let (_, mut committer) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    let foreign = CommitPermit::for_tests(JobUuid::random(), CheckpointId(5), Generation(1));
    for permit in [scene.permit(4, 1), foreign] {
        assert!(matches!(committer.commit(&transaction, &permit).await.unwrap_err(), ConnectorError::Fatal(_)));
    }
    assert!(scene.visible().is_empty());
    // An entry also holds the transactions of declined checkpoints before it.
    assert_eq!(committer.commit(&transaction, &scene.permit(6, 1)).await.unwrap(), Committed::Now);
}

#[tokio::test]
async fn jobs_and_sinks_that_share_a_folder_leave_each_other_alone() {
    let scene = Scene::new();
    scene.pre_committed(1, 0, 1, 0..2).await;
    let stranger = JobIdentity { uuid: JobUuid::random(), ..scene.job(9) };
    assert!(scene.sink().recover(&stranger, &uid(), vec![]).await.unwrap().aborted.is_empty());
    assert!(scene.sink().recover(&scene.job(9), &"out2".parse().unwrap(), vec![]).await.unwrap().aborted.is_empty());
    std::fs::write(scene.folder().join(".semel-pending/notes.txt"), "mine").unwrap();
    assert_eq!(scene.sink().recover(&scene.job(9), &uid(), vec![]).await.unwrap().aborted.len(), 1);
    assert_eq!(scene.hidden(), 1, "somebody's notes");
}

#[tokio::test]
async fn a_transaction_is_committed_where_it_was_written() {
    let scene = Scene::new();
    let transaction = scene.pre_committed(1, 0, 1, 0..2).await;
    let moved = FileSink::builder(scene.temp.path().join("elsewhere"), Format::Json(Default::default())).build().unwrap();
    moved.recover(&scene.job(2), &uid(), vec![scene.pending(&stored(&transaction), 2)]).await.unwrap();
    assert_eq!(scene.visible_ids(), [0, 1]);
}

#[tokio::test]
async fn csv_files_each_begin_with_the_header() {
    let scene = Scene::new();
    let options = semel_formats::csv::CsvOptions { header: true, ..Default::default() };
    let sink = FileSink::builder(scene.folder(), Format::Csv(options)).file_size(1).build().unwrap();
    let (mut writer, mut committer) = sink.open(scene.context(1, 0)).await.unwrap();
    let mut transaction = writer.begin_transaction(CheckpointId(1)).await.unwrap();
    writer.invoke(&mut transaction, rows(0..2)).await.unwrap();
    writer.invoke(&mut transaction, rows(2..3)).await.unwrap();
    writer.pre_commit(&mut transaction).await.unwrap();
    committer.commit(&transaction, &scene.permit(1, 1)).await.unwrap();
    let texts: Vec<String> = files(&scene.folder()).iter().map(|f| std::fs::read_to_string(f).unwrap()).collect();
    assert_eq!(texts, ["id,text\n0,\n1,\"row, \"\"1\"\"\"\n", "id,text\n2,\"row, \"\"2\"\"\"\n"]);
    assert!(files(&scene.folder()).iter().all(|f| f.extension().unwrap() == "csv"));
}

#[tokio::test]
async fn write_errors_name_the_path() {
    let scene = Scene::new();
    let (mut writer, _) = scene.sink().open(scene.context(1, 0)).await.unwrap();
    std::fs::remove_dir_all(scene.folder()).unwrap();
    std::fs::write(scene.folder(), "now a file").unwrap();
    let mut transaction = writer.begin_transaction(CheckpointId(1)).await.unwrap();
    let error = writer.invoke(&mut transaction, rows(0..1)).await.unwrap_err();
    assert!(matches!(&error, ConnectorError::Fatal(text) if text.contains(scene.folder().to_str().unwrap())), "{error}");
    let error = scene.sink().open(scene.context(1, 0)).await.err().unwrap();
    assert!(error.to_string().contains(scene.folder().to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn preflight_finds_what_is_wrong_and_creates_nothing() {
    let scene = Scene::new();
    let needs = JobNeeds {
        job_name: "orders".into(),
        job_uuid: None,
        parallelism: 2,
        checkpoint_interval: Duration::from_secs(1),
        checkpoint_timeout: Duration::from_secs(60),
        max_concurrent_checkpoints: 1,
        commit_timeout: Duration::from_secs(60),
        longest_restart: Duration::from_secs(60),
    };
    let findings = scene.sink().preflight(&needs, &uid(), &schema()).await;
    assert!(findings.iter().all(|f| f.severity < Severity::Error), "{findings:?}");
    assert!(!scene.folder().exists());
    let nested = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false), Field::new("id", DataType::Int64, false)]));
    let findings = scene.sink().preflight(&needs, &uid(), &nested).await;
    assert!(findings.iter().any(|f| f.severity == Severity::Error && f.check.contains("format")), "{findings:?}");
    std::fs::write(scene.folder(), "in the way").unwrap();
    let findings = scene.sink().preflight(&needs, &uid(), &schema()).await;
    assert!(findings.iter().any(|f| f.severity == Severity::Error && f.found.contains("is not a folder")), "{findings:?}");
}

#[tokio::test]
async fn what_is_pending_is_committed_where_it_was_written() {
    let scene = Scene::new();
    let pending = scene.pre_committed(1, 0, 1, 0..5).await;
    let moved = FileSink::json(scene.temp.path().join("new")).build().unwrap();
    let told = moved.elsewhere(&pending).unwrap();
    assert!(told.contains(&format!("{}; the sink now writes into", scene.folder().display())), "{told}");
    assert_eq!(scene.sink().elsewhere(&pending), None);
    moved.recover(&scene.job(2), &uid(), vec![scene.pending(&pending, 2)]).await.unwrap();
    assert!(pending.visible(0).starts_with(scene.folder()) && pending.visible(0).exists());
    assert!(!scene.temp.path().join("new").exists(), "nothing is in the new folder");
}
