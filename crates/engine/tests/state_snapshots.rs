//! What is in the files of a checkpoint, and what happens when they cannot be written or read.
#![allow(clippy::unwrap_used)]
mod state_support;
use arrow::datatypes::DataType;
use arrow::ipc::reader::FileReader;
use semel_checkpoint::testing::{Fault, FaultyStore};
use semel_checkpoint::{CheckpointId, SnapshotPath, StateFile};
use semel_engine::state::*;
use state_support::*;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn row(key: i64, value: i64) -> Row {
    Row { key: (0, None, Some(key)), value: Some(value), text: Some("t".into()) }
}

/// Puts one row of each key into the state and a model.
fn put(subtask: &mut Subtask, model: &mut Model, keys: impl Iterator<Item = i64>, value: i64) {
    let rows: Vec<Row> = keys.map(|key| row(key, value)).collect();
    rows.iter().for_each(|row| add(model, row));
    update(&mut subtask.state, &rows);
}

#[tokio::test]
async fn a_snapshot_holds_what_changed_and_nothing_else() {
    let faulty = FaultyStore::new(memory());
    let job = Job::new(Arc::new(faulty.clone()), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..10_000, 1);
    let (files, base_bytes) = subtask.saved(1).await;
    assert_eq!((files.len(), files[0].bytes, rows_in(&job.store, &files[0]).await), (1, base_bytes, 10_000));
    put(&mut subtask, &mut model, 5..12, 2);
    for key in [100, 101, 102] {
        remove(&mut subtask.state, &(0, None, Some(key)));
        model.remove(&(0, None, Some(key)));
    }
    put(&mut subtask, &mut model, 102..103, 3);
    let (files, bytes) = subtask.saved(2).await;
    assert_eq!(rows_in(&job.store, &files[1]).await, 7 + 3 + 1, "changed, removed, made again");
    assert!(files.len() == 2 && bytes < base_bytes / 10, "{bytes} of {base_bytes}");
    let writes = faulty.writes();
    assert_eq!(subtask.saved(3).await, (files.clone(), 0), "without a change the chain stays");
    assert_eq!(faulty.writes(), writes, "and nothing is written");
    assert!(job.restored(&files).await.unwrap() == model);
}

#[tokio::test]
async fn a_file_is_an_arrow_file_sorted_by_slot_with_a_header() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mut job = Job::new(memory(), schema(true));
        job.compression = compression;
        let (mut subtask, mut model) = (job.fresh().await, Model::new());
        put(&mut subtask, &mut model, 0..150_000, 1);
        let (files, _) = subtask.saved(4).await;
        let path: SnapshotPath = files[0].path.parse().unwrap();
        assert_eq!((path.checkpoint, path.uid, path.subtask, path.generation.0, path.job), (CheckpointId(4), uid(), 0, 1, job.uuid));
        let bytes = job.store.get(&files[0].path).await.unwrap().unwrap();
        let reader = FileReader::try_new(Cursor::new(bytes), None).unwrap();
        let header: FileHeader = serde_json::from_str(&reader.custom_metadata()[HEADER_KEY]).unwrap();
        assert_eq!((header.format, header.uid.as_str(), header.base, header.max_namespace), (FILE_FORMAT, "sums", true, 0));
        assert_eq!(header.schema, job.schema.stored().unwrap());
        assert_eq!(header.slots(), files[0].slots);
        let names: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["__namespace", "__slot", "__deleted", "key0", "key1", "state0_0", "state1_0", "state2_0", "state3_0"]);
        let (mut last, mut rows) = (0, 0);
        for (batch, described) in reader.map(Result::unwrap).zip(&header.batches) {
            use arrow::array::AsArray;
            let slots = batch.column(1).as_primitive::<arrow::datatypes::UInt16Type>().values().to_vec();
            assert!(slots.len() <= 65_536 && slots.is_sorted() && slots[0] >= last);
            last = *slots.last().unwrap();
            assert_eq!((described.first_slot, described.last_slot, described.rows), (slots[0], last, slots.len() as u64));
            rows += slots.len();
        }
        assert!(rows == 150_000 && header.batches.len() > 2);
        assert!(job.restored(&files).await.unwrap() == model);
    }
}

#[tokio::test]
async fn a_subtask_reads_only_the_batches_of_its_slots() {
    let watched = Watched::new();
    let job = Job::new(watched.clone(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..400_000, 1);
    let (files, bytes) = subtask.saved(1).await;
    let mut all = Model::new();
    for part in 0..8 {
        watched.read.store(0, SeqCst);
        let restored = job.start(2, part, 8, &snapshot(vec![files.clone()]), |_| true).await.unwrap();
        assert!(watched.read.load(SeqCst) < bytes / 2, "{} of {bytes}", watched.read.load(SeqCst));
        assert_eq!(restored.snapshotter.chain().files()[0].path, files[0].path, "nothing is rewritten");
        all.extend(contents(&restored.state));
    }
    assert!(all == model);
}

#[tokio::test]
async fn what_was_declined_goes_into_the_next_file_under_a_new_name() {
    for fault in [Fault::Refuse, Fault::LoseAnswer, Fault::Hold] {
        let faulty = FaultyStore::new(memory());
        let job = Job::new(Arc::new(faulty.clone()), schema(false));
        let (mut subtask, mut model) = (job.fresh().await, Model::new());
        put(&mut subtask, &mut model, 0..100, 1);
        faulty.on_next_write(fault);
        let Saved::Declined { reason } = subtask.save(1).await else { panic!("{fault:?} was not noticed") };
        assert!(reason.contains("snapshots/1/sums-0-1-1-"), "{reason}");
        put(&mut subtask, &mut model, 50..120, 2);
        faulty.on_next_write(fault);
        assert!(matches!(subtask.save(2).await, Saved::Declined { .. }));
        put(&mut subtask, &mut model, 60..61, 3);
        let (files, _) = subtask.saved(3).await;
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].path.parse::<SnapshotPath>().unwrap().checkpoint, CheckpointId(3), "the first checkpoint that lists it");
        faulty.deliver().await.unwrap();
        let mut names = faulty.log();
        names.sort();
        names.dedup();
        assert_eq!(names.len() as u64, faulty.writes(), "a late write must not hit a file that is listed");
        assert!(job.restored(&files).await.unwrap() == model, "{fault:?}");
    }
}

#[tokio::test]
async fn a_long_chain_is_merged_without_rewriting_its_base() {
    let job = Job::new(memory(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..50_000, 1);
    let base = subtask.saved(1).await.0.remove(0);
    let mut longest = 0;
    for checkpoint in 2..60 {
        let first = checkpoint as i64 * 100;
        put(&mut subtask, &mut model, first..first + 20, 2);
        remove(&mut subtask.state, &(0, None, Some(first - 90)));
        model.remove(&(0, None, Some(first - 90)));
        let (files, bytes) = subtask.saved(checkpoint).await;
        assert!(files[0] == base && bytes < base.bytes / 4, "{bytes}");
        longest = longest.max(files.len());
        if checkpoint % 7 == 0 {
            assert!(job.restored(&files).await.unwrap() == model, "checkpoint {checkpoint}");
        }
    }
    assert!((10..=13).contains(&longest), "{longest}");
}

#[tokio::test]
async fn a_base_that_is_outweighed_is_written_anew_with_live_rows_only() {
    let job = Job::new(memory(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..1000, 1);
    let mut before = subtask.saved(1).await.0;
    for checkpoint in 2.. {
        let known = model.clone();
        put(&mut subtask, &mut model, checkpoint * 100_000..checkpoint * 100_000 + 150_000, 2);
        for key in 0..100 {
            remove(&mut subtask.state, &(0, None, Some(checkpoint * 100_000 + key)));
            model.remove(&(0, None, Some(checkpoint * 100_000 + key)));
        }
        let (files, _) = subtask.saved(checkpoint as u64).await;
        if !files.contains(&before[0]) {
            assert!(before.len() > 1 && files.iter().all(|file| !before.contains(file)));
            let mut rows = 0;
            for file in &files {
                rows += rows_in(&job.store, file).await;
            }
            assert_eq!(rows, model.len() as u64);
            assert!(job.restored(&files).await.unwrap() == model);
            assert!(job.restored(&before).await.unwrap() == known, "the old files are untouched: other checkpoints list them");
            return;
        }
        assert!(checkpoint < 10, "no compaction");
        before = files;
    }
}

#[tokio::test]
async fn when_compaction_fails_the_checkpoint_does_not() {
    let watched = Watched::new();
    let job = Job::new(watched.clone(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    watched.refuse.store(true, SeqCst);
    let mut files = vec![];
    for checkpoint in 1..20 {
        put(&mut subtask, &mut model, 0..checkpoint, 1);
        files = subtask.saved(checkpoint as u64).await.0;
    }
    assert_eq!(files.len(), 19);
    watched.refuse.store(false, SeqCst);
    assert!(job.restored(&files).await.unwrap() == model);
    for checkpoint in 20..25 {
        put(&mut subtask, &mut model, 0..checkpoint, 1);
        files = subtask.saved(checkpoint as u64).await.0;
    }
    assert!(files.len() < 10, "{}", files.len());
    assert!(job.restored(&files).await.unwrap() == model);
}

#[tokio::test]
async fn files_of_dead_namespaces_leave_the_chain_and_dead_rows_do_not_come_back() {
    let job = Job::new(memory(), schema(false));
    let mut subtask = job.fresh().await;
    let mut longest = 0;
    for window in 0..40 {
        // Keys of the window before still come for a while.
        let keys = |namespace| (0..50).map(move |key| Row { key: (namespace, None, Some(key)), value: Some(1), text: None });
        update(&mut subtask.state, &keys(window).chain(keys(window + 1)).collect::<Vec<_>>());
        subtask.state.drop_namespace(window);
        let frozen = subtask.state.freeze(Some(window + 1)).unwrap();
        let Saved::Uploaded { files, .. } = subtask.snapshotter.save(CheckpointId(window as u64 + 1), frozen).await else { panic!() };
        longest = longest.max(files.len());
        let restored = job.start(2, 0, 1, &snapshot(vec![files]), |namespace| namespace > window).await.unwrap();
        assert!(contents(&restored.state) == contents(&subtask.state) && restored.state.len() == 50);
    }
    assert_eq!(longest, 1);
}

#[tokio::test]
async fn state_of_another_schema_is_refused_with_both_schemas() {
    let job = Job::new(memory(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..10, 1);
    let (files, _) = subtask.saved(1).await;
    let refused = async |change: fn(&mut StateSchema)| {
        let mut schema = StateSchema::clone(&job.schema);
        change(&mut schema);
        let other = Job { schema: Arc::new(schema), ..job.clone() };
        let error = other.restored(&files).await.unwrap_err();
        assert!(matches!(error, StateError::Incompatible { .. }), "{error}");
        error.to_string()
    };
    let text = refused(|schema| schema.aggregates[1] = AggregateSpec::new(AggregateKind::Sum, "v", 0, DataType::Float64)).await;
    assert!(
        text.contains("sums")
            && text.contains("SUM(v) BIGINT")
            && text.contains("SUM(v) DOUBLE")
            && text.contains("--allow-non-restored-state"),
        "{text}"
    );
    refused(|schema| schema.keys[0].1 = DataType::Int32).await;
    refused(|schema| schema.slots = 128).await;
    refused(|schema| _ = schema.aggregates.pop()).await;
    refused(|schema| schema.aggregates.swap(0, 1)).await;
    for (size_ms, slide_ms, offset_ms) in [(1000, 3000, 0), (3000, 1000, 0), (3000, 3000, 500)] {
        let mut schema = StateSchema::clone(&job.schema);
        schema.namespaces = Namespaces::Windows { size_ms, slide_ms, offset_ms };
        let error = Job { schema: Arc::new(schema), ..job.clone() }.restored(&files).await.unwrap_err();
        assert!(matches!(error, StateError::Incompatible { .. }), "{error}");
    }
    let text = refused(|schema| schema.namespaces = Namespaces::Windows { size_ms: 1000, slide_ms: 1000, offset_ms: 0 }).await;
    for part in ["operator sums", "tumbling windows of 3000 ms", "tumbling windows of 1000 ms", "another uid"] {
        assert!(text.contains(part), "{text}");
    }
    refused(|schema| schema.namespaces = Namespaces::All).await;
}

#[test]
fn a_schema_that_was_stored_without_windows_is_accepted() {
    let wanted = schema(true).stored().unwrap();
    let mut json = serde_json::to_value(&wanted).unwrap();
    assert!(json.as_object_mut().unwrap().remove("namespaces").is_some());
    let old: StoredSchema = serde_json::from_value(json).unwrap();
    assert!(old != wanted && old.fits(&wanted) && wanted.fits(&wanted));
    assert!(!StoredSchema { slots: 1, ..old }.fits(&wanted));
}

#[tokio::test]
async fn a_damaged_or_missing_file_is_never_taken_for_state() {
    let job = Job::new(memory(), schema(false));
    let (mut subtask, mut model) = (job.fresh().await, Model::new());
    put(&mut subtask, &mut model, 0..30_000, 1);
    let (files, _) = subtask.saved(1).await;
    let bytes = job.store.get(&files[0].path).await.unwrap().unwrap();
    for position in (0..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.to_vec();
        damaged[position] ^= 0x10;
        let path = format!("snapshots/damaged-{position}");
        job.store.put(&path, damaged.into()).await.unwrap();
        match job.restored(&[StateFile { path: path.clone(), ..files[0].clone() }]).await {
            Err(error) => assert!(matches!(error, StateError::Corrupt { .. }) && error.to_string().contains(&path), "{error}"),
            // A byte that nobody needs, such as the copy of the schema at the start.
            Ok(restored) => assert!(restored == model, "byte {position}"),
        }
    }
    for length in [0, 5, 100, bytes.len() - 1] {
        let path = format!("snapshots/cut-{length}");
        job.store.put(&path, bytes.slice(..length)).await.unwrap();
        for bytes in [length as u64, files[0].bytes] {
            assert!(job.restored(&[StateFile { path: path.clone(), bytes, ..files[0].clone() }]).await.is_err(), "{length}");
        }
    }
    job.store.delete(&files[0].path).await.unwrap();
    let error = job.restored(&files).await.unwrap_err();
    assert!(matches!(error, StateError::Corrupt { .. }) && error.to_string().contains("missing"), "{error}");
}
