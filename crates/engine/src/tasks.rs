//! Asynchronous work of an operator: a task with a mailbox that schedules the operator whenever it has an answer. No operator
//! ever blocks its worker thread.
use crate::failure::PLACE;
use std::future::Future;
use std::sync::mpsc;
use timely::scheduling::SyncActivator;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The operator's end.
pub struct Mailbox<Q, A> {
    requests: UnboundedSender<Q>,
    answers: mpsc::Receiver<A>,
}

/// The task's end: where answers go.
pub struct Answers<A> {
    answers: mpsc::Sender<A>,
    activator: SyncActivator,
}

impl<A> Answers<A> {
    /// Sends an answer and schedules the operator, also when its worker thread is parked. `false`: the operator is gone.
    pub fn send(&self, answer: A) -> bool {
        self.answers.send(answer).is_ok() && self.wake()
    }
    /// Schedules the operator.
    pub fn wake(&self) -> bool {
        self.activator.activate().is_ok()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Mailbox<Q, A> {
    /// Starts the task. It ends by itself when the operator drops the mailbox. `place`: what a panic in it is reported with.
    ///
    /// `activator`: `scope.worker().sync_activator_for(builder.operator_info().address.to_vec())`.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(
        runtime: &Handle,
        place: String,
        activator: SyncActivator,
        task: impl FnOnce(UnboundedReceiver<Q>, Answers<A>) -> F,
    ) -> Self {
        let (requests, todo) = unbounded_channel();
        let (done, answers) = mpsc::channel();
        runtime.spawn(PLACE.scope(place, task(todo, Answers { answers: done, activator })));
        Mailbox { requests, answers }
    }
    /// Sends a request. A task that has ended has failed, and then the process is about to end.
    pub fn send(&self, request: Q) {
        _ = self.requests.send(request);
    }
    /// The next answer, if there is one.
    pub fn answer(&self) -> Option<A> {
        self.answers.try_recv().ok()
    }
}
