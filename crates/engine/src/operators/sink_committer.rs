//! Phase two of a sink: commits, strictly in the order of checkpoints, in a task of its own. The capability of a commit is held
//! until it is done: when the reports have passed *n*, all of *n* is committed.
use crate::ack::vec_output;
use crate::coordinator::completer::Commit;
use crate::ending::{Ending, LAST_ROUND};
use crate::erased::DynCommitter;
use crate::failure::{Failure, fail};
use crate::graph::{Builder, OpenedSink};
use crate::job::JobContext;
use crate::sink::{Committed, ConnectorError};
use crate::tasks::{Answers, Mailbox};
use crate::time::Time;
use crate::wire::Json;
use semel_checkpoint::{Committable, OperatorUid};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::Arc;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use tokio::sync::{mpsc::UnboundedReceiver, oneshot};
use tokio::time::timeout;
use tracing::warn;

/// Committer -> collector.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct CommitReport {
    /// Of the sink.
    pub sink: String,
    /// How it ended.
    pub outcome: Committed,
}

/// Builds a subtask of one sink's committer.
pub fn sink_committer<'s>(
    builder: &Builder<'s>,
    commits: StreamVec<'s, Time, Json<Commit>>,
    sink: OpenedSink,
    ending: Ending,
) -> StreamVec<'s, Time, CommitReport> {
    let (scope, job) = (builder.scope, builder.job.clone());
    let mut b = OperatorBuilder::new(format!("{} committer", sink.uid), scope);
    let mut input = b.new_input(commits, Exchange::new(|c: &Json<Commit>| c.0.to));
    let (mut output, stream) = vec_output(&mut b);
    let activator = scope.worker().sync_activator_for(b.operator_info().address.to_vec());
    let task = CommitterTask { uid: sink.uid.clone(), subtask: builder.subtask(), job: job.clone(), _ending: ending };
    let place = format!("committer of sink {} subtask {}", sink.uid, builder.subtask());
    let committer = Mailbox::spawn(&job.runtime, place, activator, move |requests, answers| task.run(sink.committer, requests, answers));
    b.build_reschedule(move |capabilities| {
        drop(capabilities);
        let mut running = VecDeque::new();
        move |_| {
            input.for_each(|stamp, commits| {
                for Json(commit) in commits.drain(..) {
                    if let Some(capability) = stamp.retain_least(0) {
                        running.push_back(capability);
                        committer.send(commit);
                    }
                }
            });
            while let Some(reports) = committer.answer() {
                if let Some(capability) = running.pop_front() {
                    output.activate().session_with_builder(&capability).give_iterator(reports.into_iter());
                }
            }
            false
        }
    });
    stream
}

struct CommitterTask {
    uid: OperatorUid,
    subtask: u32,
    job: Arc<JobContext>,
    /// The process waits for it.
    _ending: Ending,
}

impl CommitterTask {
    async fn run(
        self,
        committer: oneshot::Receiver<Box<dyn DynCommitter>>,
        mut requests: UnboundedReceiver<Commit>,
        answers: Answers<Vec<CommitReport>>,
    ) {
        let Ok(mut committer) = committer.await else { return };
        while let Some(commit) = requests.recv().await {
            let mut reports = vec![];
            for committable in commit.committables.iter().filter(|c| c.sink == self.uid) {
                crate::failpoint::passing("before_one_commit");
                let outcome = self.commit(&mut committer, committable, &commit).await.unwrap_or_else(|e| fail(e));
                crate::failpoint::passing("after_one_commit");
                reports.push(CommitReport { sink: self.uid.to_string(), outcome });
            }
            if let Err(e) = committer.released(commit.released).await {
                fail(Failure::from(e).within(format_args!("sink {} subtask {}", self.uid, self.subtask)));
            }
            if !answers.send(reports) {
                return;
            }
        }
        // The operator is gone, and all is committed: a failure would have ended the process.
        match timeout(LAST_ROUND, committer.finish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(sink = %self.uid, subtask = self.subtask, %error, "what was committed last is not looked after"),
            Err(_) => {} // The process has not waited for longer, and has said so.
        }
    }

    async fn commit(
        &self,
        committer: &mut Box<dyn DynCommitter>,
        committable: &Committable,
        commit: &Commit,
    ) -> Result<Committed, Failure> {
        let place = format!("sink {} subtask {}: commit of checkpoint {}", self.uid, self.subtask, committable.checkpoint);
        let deadline = self.job.config().commit_timeout;
        match timeout(deadline, committer.commit(committable, &commit.permit)).await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(ConnectorError::Lost(why))) => {
                let rows = committable.rows;
                Err(Failure::Lost(format!(
                    "{place}: {why}. Its {rows} rows are part of the results of these source ranges: {}",
                    commit.ranges
                )))
            }
            Ok(Err(e)) => Err(Failure::from(e).within(place)),
            Err(_) => Err(Failure::Retryable(format!("{place} took longer than {deadline:?}"))),
        }
    }
}
