//! From the files of a checkpoint back to keyed state: the same path for a restart and for another parallelism.

use super::chain::{Chain, ChainFile, files_of};
use super::error::StateError;
use super::keyed_state::KeyedState;
use super::schema::StateSchema;
use super::snapshot_file::SnapshotReader;
use futures::stream::{StreamExt, TryStreamExt, iter};
use semel_checkpoint::{OperatorSnapshot, OperatorUid, Store};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Files that are opened ahead; small ones are then in memory whole.
const OPEN_AHEAD: usize = 8;
/// Batches that are fetched ahead.
const READ_AHEAD: usize = 4;

/// Loads the state of the subtask that owns `slots`, and the chain of files that it now consists of. No file is rewritten.
///
/// `keep_namespace` must decline every namespace that was dropped before the checkpoint, and may decline others that are dead by
/// now: dropped namespaces leave no trace in the files. Memory beyond the state: a few record batches.
///
/// # Errors
/// [`StateError::Incompatible`] if the state was written with another schema, [`StateError::Corrupt`] and [`StateError::Format`] if a
/// file is not what it should be, [`StateError::Store`] if the store cannot be read now.
pub async fn restore(
    store: Arc<dyn Store>,
    uid: &OperatorUid,
    schema: Arc<StateSchema>,
    snapshot: Option<&OperatorSnapshot>,
    slots: RangeInclusive<u16>,
    keep_namespace: impl Fn(i64) -> bool + Send,
) -> Result<(KeyedState, Chain), StateError> {
    let wanted = schema.stored()?;
    let mut state = KeyedState::new(schema)?;
    let mut chain = Chain::default();
    let files = files_of(snapshot.map_or(&[], |snapshot| &snapshot.parts), &slots);
    let opening: Vec<_> = files.into_iter().map(|file| SnapshotReader::open(store.clone(), file)).collect();
    let mut opened = iter(opening).buffered(OPEN_AHEAD);
    while let Some(reader) = opened.try_next().await? {
        let stored = &reader.header().schema;
        if !stored.fits(&wanted) {
            return Err(StateError::Incompatible { uid: uid.to_string(), stored: stored.to_string(), wanted: wanted.to_string() });
        }
        chain.0.push(ChainFile::opened(&reader));
        let reading: Vec<_> = reader.batches().into_iter().map(|i| reader.read(i)).collect();
        let mut batches = iter(reading).buffered(READ_AHEAD);
        while let Some(batch) = batches.try_next().await? {
            let path = || reader.file().path.clone();
            let restored = state.restore(&batch, &slots, &keep_namespace);
            restored.map_err(|error| StateError::Corrupt { path: path(), reason: error.to_string() })?;
        }
    }
    Ok((state, chain))
}
