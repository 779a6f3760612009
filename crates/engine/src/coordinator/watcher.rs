//! Sees how far the sink writers are, for flow control, and that all sources have ended. It has inputs, so progress schedules
//! it; a probe would wake nobody.
use super::Shared;
use crate::time::{Time, low};
use crate::watermark::{END, NONE, Report, Watermark};
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

/// Builds the operator on every worker; it works on worker 0.
pub fn watcher<'s>(scope: Scope<'s, Time>, written: StreamVec<'s, Time, ()>, reports: Vec<StreamVec<'s, Time, Report>>, shared: Shared) {
    let here = scope.index() == 0;
    let mut watermark = Watermark::new(reports.len(), scope.peers() as u32, NONE);
    let mut b = OperatorBuilder::new("watcher".into(), scope);
    let mut written = b.new_input(written, Pipeline);
    let mut reports: Vec<_> = reports.into_iter().map(|r| b.new_input(r, Exchange::new(|r: &Report| r.to))).collect();
    b.build(move |_| {
        move |frontiers| {
            written.for_each(|_, _| {});
            for (source, input) in reports.iter_mut().enumerate() {
                input.for_each(|stamp, batch| {
                    if let Some(time) = stamp.least() {
                        watermark.report(source, *time, batch.drain(..));
                    }
                });
            }
            if !here {
                return;
            }
            let mut c = shared.borrow_mut();
            c.written = low(&frontiers[0]);
            let reported = frontiers[1..].iter().map(low).min().unwrap_or(0);
            while let Some(tick) = watermark.rise(reported) {
                if watermark.effective() == END {
                    c.ended = Some(tick);
                }
            }
            c.wake();
        }
    });
}
