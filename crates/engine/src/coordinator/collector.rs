//! The commits of checkpoint *n* are done when their reports have passed *n*: no counting. Ends the checkpoint.
use super::{Shared, checkpoint_metrics};
use crate::failure::{Failure, fail};
use crate::job::JobContext;
use crate::operators::sink_committer::CommitReport;
use crate::sink::Committed;
use crate::time::{CLOSED, Time, checkpoint_of, low, next};
use std::sync::Arc;
use std::time::Instant;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tracing::debug;

/// Builds the operator on every worker; it works on worker 0.
pub fn collector<'s>(scope: Scope<'s, Time>, reports: StreamVec<'s, Time, CommitReport>, shared: Shared, job: Arc<JobContext>) {
    let here = scope.index() == 0;
    let mut b = OperatorBuilder::new("collector".into(), scope);
    let mut input = b.new_input(reports, Exchange::new(|_: &CommitReport| 0));
    b.build(move |_| {
        let mut waited_for = job.first_checkpoint();
        move |frontiers| {
            input.for_each(|_, reports| {
                // Only a successor's recovery commits what we have not.
                if let Some(report) = reports.iter().find(|r| r.outcome == Committed::Already) {
                    fail(Failure::Fenced(format!("a transaction of sink {} had been committed by another generation", report.sink)));
                }
            });
            let frontier = low(&frontiers[0]);
            while here && frontier != CLOSED && waited_for < checkpoint_of(frontier) {
                crate::failpoint::passing("after_all_commits");
                let mut c = shared.borrow_mut();
                if let Some(d) = c.checkpoints.committed_up_to(waited_for, Instant::now()) {
                    checkpoint_metrics::committed(d.complete, d.committed);
                    debug!(checkpoint = %waited_for, complete_ms = d.complete.as_secs_f64() * 1e3, committed_ms = d.committed.as_secs_f64() * 1e3, "committed");
                }
                waited_for = next(waited_for);
                c.wake();
            }
        }
    });
}
