//! The only clock of a job, and its only flow control.
//!
//! The grant is the frontier of the control stream, not a message: granting `(n + 1, 0)` is injecting barrier *n* at every
//! source at once. Messages carry only changes of what may be emitted.
use super::pace::Pace;
use super::{Coordinator, Shared, checkpoint_metrics, unix_ms};
use crate::ack::vec_output;
use crate::failure::{Failure, fail};
use crate::job::JobContext;
use crate::share::Share;
use crate::time::{Time, checkpoint_of, next};
use semel_checkpoint::CheckpointId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tracing::{info, trace, warn};

/// Ticker -> sources and sinks: what may be emitted. It holds for every tick after the one that it comes in.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Control {
    /// Index of the worker.
    pub to: u64,
    /// At most, per tick and source subtask.
    pub bytes_per_tick: u64,
    /// The job is to stop after this checkpoint. Sources emit nothing that would come after it, and sinks begin no transaction which
    /// nobody would end.
    pub last: Option<CheckpointId>,
}

/// Builds the operator on every worker; it works on worker 0.
pub fn ticker<'s>(scope: Scope<'s, Time>, shared: Shared, job: Arc<JobContext>) -> StreamVec<'s, Time, Control> {
    let (here, peers) = (scope.index() == 0, scope.peers() as u64);
    let mut b = OperatorBuilder::new("ticker".into(), scope);
    let (mut output, stream) = vec_output(&mut b);
    let info = b.operator_info();
    let activator = scope.activator_for(info.address.clone());
    if here {
        shared.borrow_mut().ticker = Some(scope.activator_for(info.address.clone()));
        job.status.wake_on_stop(scope.worker().sync_activator_for(info.address.to_vec()));
    }
    b.build_reschedule(move |mut capabilities| {
        // On the other workers the capability goes at once; until the last of them has been built, no grant gets through.
        let mut capability = capabilities.pop().filter(|_| here);
        let config = job.config();
        let mut pace = Pace::new(config.tick, config.ticks_in_flight, config.max_bytes_per_tick, Instant::now());
        let mut back_pressured = Share::new("backPressuredTimeMsPerSecond", None);
        let mut sent = None;
        let mut timer: Option<Instant> = None;
        let mut stop_at: Option<CheckpointId> = None;
        move |_| {
            let Some(held) = &mut capability else { return false };
            let mut c = shared.borrow_mut();
            if !c.ready {
                return false; // The completer wakes us.
            }
            let now = Instant::now();
            watch_checkpoints(&mut c, now);
            let current = checkpoint_of(pace.granted());
            if stop_at.is_none() && job.status.stop_requested() {
                stop_at = Some(current.max(job.first_checkpoint()));
                info!("stop requested: ending with a final checkpoint");
            }
            let last = c.ended.map(checkpoint_of).into_iter().chain(stop_at).min();
            if last.is_some_and(|last| c.checkpoints.committed() >= last) {
                info!(checkpoint = %c.checkpoints.committed(), "the job's last checkpoint is committed");
                capability = None;
                return false;
            }
            pace.written(c.written);
            let lagging = pace.lagging(now);
            back_pressured.observe(now, || pace.lagged(now));
            trace!(granted = pace.granted(), written = c.written, lagging, ended = ?c.ended, checkpoints = ?c.checkpoints, "ticker");
            // Before the grant: no source begins a tick that it does not know the rules of.
            if sent != Some((pace.bytes_per_tick(), stop_at)) {
                sent = Some((pace.bytes_per_tick(), stop_at));
                let copies = (0..peers).map(|to| Control { to, bytes_per_tick: pace.bytes_per_tick(), last: stop_at });
                output.activate().session_with_builder(&*held).give_iterator(copies);
            }
            if pace.due(now) && !lagging {
                let first = pace.granted() == 0;
                let urgent = last.is_some() || pace.out_of_ticks();
                let needed = last.is_none_or(|last| c.checkpoints.needed_to_end(current, last));
                let barrier = first || (needed && c.checkpoints.due(now, urgent));
                let checkpoint = barrier.then(|| if first { job.first_checkpoint() } else { next(current) });
                held.downgrade(&pace.grant(checkpoint, now));
                if barrier && !first {
                    c.checkpoints.injected(current, now, unix_ms());
                }
            }
            // One timer at a time, or every activation by another cause would add one. While lagging, the watcher wakes us, and
            // a slow timer lets checkpoints expire.
            let wake_at = if pace.lagging(now) { now + config_timer(&job) } else { pace.next_tick() };
            if wake_at <= now {
                activator.activate();
            } else if timer.is_none_or(|t| t <= now || t > wake_at) {
                timer = Some(wake_at);
                activator.activate_after(wake_at - now);
            }
            false
        }
    });
    stream
}

fn config_timer(job: &JobContext) -> std::time::Duration {
    (job.config().checkpoint.timeout / 4).min(std::time::Duration::from_secs(1))
}

fn watch_checkpoints(c: &mut Coordinator, now: Instant) {
    for checkpoint in c.checkpoints.expire(now) {
        warn!(%checkpoint, "checkpoint timed out (execution.checkpointing.timeout)");
        checkpoint_metrics::failed();
    }
    if let Some(n) = c.checkpoints.too_many_failed() {
        fail(Failure::Retryable(format!(
            "{n} checkpoints have failed in a row, more than execution.checkpointing.tolerable-failed-checkpoints allows"
        )));
    }
}
