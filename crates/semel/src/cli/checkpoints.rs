//! `checkpoints list|inspect`.
use semel_checkpoint::{CheckpointId, Entry, Store, read_journal};
use semel_engine::failure::Failure;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

async fn journal(store: Arc<dyn Store>) -> Result<semel_checkpoint::JournalView, Failure> {
    read_journal(store).await.map_err(|e| Failure::Fatal(format!("journal: {e}")))
}

pub(super) async fn list(store: Arc<dyn Store>) -> Result<ExitCode, Failure> {
    let view = journal(store).await?;
    let Some((uuid, name)) = view.job() else {
        println!("no job has started in this folder");
        return Ok(ExitCode::SUCCESS);
    };
    println!("job {name}, uuid {uuid}");
    let newest = view.newest_checkpoint();
    let retained = newest.map(|c| c.retained.as_slice()).unwrap_or_default();
    // The last checkpoint of a generation that has ended well.
    let last = |id: CheckpointId| view.entries.iter().any(|(_, e)| matches!(e, Entry::Committed(c) if c.ended && c.committed == id));
    for (_, entry) in &view.entries {
        match entry {
            Entry::Job { .. } => {}
            Entry::Committed(c) => println!(
                "{}  generation {} {}: everything up to checkpoint {} is committed",
                time(c.written_at_ms),
                c.generation,
                if c.ended { "has ended" } else { "has recovered" },
                c.committed
            ),
            Entry::Generation(g) => {
                let from = g.restored.map_or("from the beginning".to_owned(), |id| format!("from checkpoint {id}"));
                println!(
                    "{}  generation {} started {from} on {} (process {}), parallelism {}, {} processes",
                    time(g.started_at_ms),
                    g.generation,
                    g.host,
                    g.pid,
                    g.parallelism,
                    g.processes
                );
            }
            Entry::Checkpoint(c) => println!(
                "{}  checkpoint {} of generation {}: {} ms, state {} bytes ({} new), {} transactions, committed up to {}{}{}",
                time(c.completed_at_ms),
                c.id,
                c.generation,
                c.completed_at_ms - c.triggered_at_ms,
                c.state_bytes,
                c.new_bytes,
                c.committables.len(),
                c.committed,
                if retained.contains(&c.id) { ", retained" } else { "" },
                if c.finished || last(c.id) { ", final" } else { "" },
            ),
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn inspect(store: Arc<dyn Store>, id: u64) -> Result<ExitCode, Failure> {
    let view = journal(store).await?;
    let Some(found) = view.checkpoints().find(|c| c.id.0 == id) else {
        let known: Vec<u64> = view.checkpoints().map(|c| c.id.0).collect();
        return Err(Failure::Fatal(format!("there is no checkpoint {id} in this folder; there are {known:?}")));
    };
    let text = serde_json::to_string_pretty(found).map_err(|e| Failure::Fatal(format!("checkpoint {id}: {e}")))?;
    println!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn time(ms: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(ms.max(0) as u64);
    humantime::format_rfc3339_millis(time).to_string()
}
