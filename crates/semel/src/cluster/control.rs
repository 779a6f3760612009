//! The supervisor's end of the control links.
use super::auth::Secret;
use super::frame::{LIMIT, read, write};
use super::handshake::{Expected, HandshakeError, Purpose, accept, decide};
use super::messages::{FromWorker, ToWorker};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

/// Handshakes under way at once; more connections than that are closed.
const MAX_HANDSHAKES: usize = 64;

/// What happened on a control link.
#[derive(Debug)]
pub enum ControlEvent {
    /// A launched process has connected and proven itself.
    Connected(Link),
    /// It said something.
    Message(FromWorker),
    /// The connection is closed; why.
    Closed(String),
}

/// Sends to one worker process. Dropping it closes the connection.
#[derive(Debug, Clone)]
pub struct Link {
    messages: Sender<ToWorker>,
    _close: Arc<CloseOnDrop>,
}

#[derive(Debug)]
struct CloseOnDrop(TcpStream);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Link {
    /// Sends a message; never waits. A link that is broken reports so by itself.
    pub fn send(&self, message: ToWorker) {
        _ = self.messages.send(message);
    }
}

/// Timing of a control link.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// `heartbeat.interval`: how often each end shows that it lives.
    pub interval: Duration,
    /// `heartbeat.timeout`.
    pub timeout: Duration,
}

struct Shared {
    secret: Secret,
    plan_hash: String,
    timing: Timing,
    expected: Mutex<HashSet<u64>>,
    events: UnboundedSender<(u64, ControlEvent)>,
    handshakes: AtomicUsize,
    closed: AtomicBool,
}

/// Listens for worker processes. Ends with its value.
pub struct ControlServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl ControlServer {
    /// Starts to listen at a free port of this address. Events carry the number under which the process was launched.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start(
        bind: IpAddr,
        secret: Secret,
        plan_hash: String,
        timing: Timing,
        events: UnboundedSender<(u64, ControlEvent)>,
    ) -> io::Result<ControlServer> {
        let listener = TcpListener::bind((bind, 0))?;
        let address = reachable(listener.local_addr()?);
        let shared = Arc::new(Shared {
            secret,
            plan_hash,
            timing,
            expected: Mutex::default(),
            events,
            handshakes: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let server = ControlServer { address, shared: shared.clone() };
        std::thread::Builder::new().name("control".into()).spawn(move || listen(&listener, &shared))?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A process is launched under this number; it may connect once.
    pub fn expect(&self, launch: u64) {
        lock(&self.shared.expected).insert(launch);
    }

    /// A process under this number will not come any more.
    pub fn forget(&self, launch: u64) {
        lock(&self.shared.expected).remove(&launch);
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.shared.closed.store(true, SeqCst);
        _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)); // Wakes the listener.
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address under which processes of this machine reach a listener.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    address
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.closed.load(SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(10)); // Out of file descriptors, most likely.
            continue;
        };
        if shared.handshakes.fetch_add(1, SeqCst) >= MAX_HANDSHAKES {
            shared.handshakes.fetch_sub(1, SeqCst);
            continue;
        }
        let own = shared.clone();
        let spawned = std::thread::Builder::new().name("control-link".into()).spawn(move || {
            let welcome = greet(&stream, &own);
            own.handshakes.fetch_sub(1, SeqCst);
            match welcome {
                Ok(launch) => serve(stream, launch, &own),
                Err(HandshakeError::Refused(refusal)) => {
                    warn!(peer = %peer(&stream), "worker refused: {refusal}")
                }
                Err(error) => warn!(peer = %peer(&stream), "connection refused: {error}"),
            }
        });
        if spawned.is_err() {
            shared.handshakes.fetch_sub(1, SeqCst);
        }
    }
}

fn peer(stream: &TcpStream) -> String {
    stream.peer_addr().map_or("unknown".to_owned(), |a| a.to_string())
}

fn greet(stream: &TcpStream, shared: &Shared) -> Result<u64, HandshakeError> {
    let expected = Expected { purpose: Purpose::Control, generation: 0, plan_hash: shared.plan_hash.clone() };
    let hello = accept(stream, &shared.secret, shared.timing.timeout, |hello| {
        decide(hello, &expected, |launch| lock(&shared.expected).remove(&launch))
    })?;
    Ok(hello.index)
}

fn serve(stream: TcpStream, launch: u64, shared: &Shared) {
    let event = |event| shared.events.send((launch, event)).is_ok();
    let link = match open(&stream, shared.timing) {
        Ok(link) => link,
        Err(error) => {
            event(ControlEvent::Closed(error.to_string()));
            return;
        }
    };
    if !event(ControlEvent::Connected(link)) {
        return;
    }
    loop {
        // Silence is judged by the supervisor, which knows whether it was paused itself; this bounds only the thread's life.
        match read::<FromWorker>(&stream, LIMIT, Instant::now() + shared.timing.timeout * 3) {
            Ok(message) => {
                if !event(ControlEvent::Message(message)) {
                    return;
                }
            }
            Err(error) => {
                debug!(launch, %error, "control link closed");
                event(ControlEvent::Closed(error.to_string()));
                return;
            }
        }
    }
}

/// Starts the thread that writes: whatever the supervisor is busy with, it pings.
fn open(stream: &TcpStream, timing: Timing) -> io::Result<Link> {
    let writer = stream.try_clone()?;
    let close = Arc::new(CloseOnDrop(stream.try_clone()?));
    let (messages, queue) = channel();
    std::thread::Builder::new().name("control-send".into()).spawn(move || {
        loop {
            let message = match queue.recv_timeout(timing.interval) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => ToWorker::Ping,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if write(&writer, &message, Instant::now() + timing.timeout).is_err() {
                return; // The reading thread tells.
            }
        }
    })?;
    Ok(Link { messages, _close: close })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::handshake::{Hello, Refusal, connect};
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    const TIMING: Timing = Timing { interval: Duration::from_millis(50), timeout: Duration::from_secs(5) };

    fn dial(address: SocketAddr, secret: &Secret, plan: &str, launch: u64) -> Result<TcpStream, HandshakeError> {
        let stream = TcpStream::connect(address).unwrap();
        connect(&stream, secret, &Hello::new(Purpose::Control, 0, plan, launch), TIMING.timeout)?;
        Ok(stream)
    }

    #[test]
    fn a_launched_process_connects_once_and_others_never() {
        let (events, mut seen) = unbounded_channel();
        let secret = Secret::random();
        let server = ControlServer::start(Ipv4Addr::LOCALHOST.into(), secret.clone(), "p".into(), TIMING, events).unwrap();
        server.expect(7);
        assert!(matches!(dial(server.address(), &Secret::random(), "p", 7), Err(HandshakeError::Impostor)));
        let refused = |plan, launch| match dial(server.address(), &secret, plan, launch) {
            Err(HandshakeError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert!(matches!(refused("q", 7), Refusal::Plan { .. }));
        assert_eq!(refused("p", 8), Refusal::Index(8));
        let stream = dial(server.address(), &secret, "p", 7).unwrap();
        assert_eq!(refused("p", 7), Refusal::Index(7), "it is already here");

        let (7, ControlEvent::Connected(link)) = seen.blocking_recv().unwrap() else { panic!() };
        let soon = || Instant::now() + Duration::from_secs(5);
        assert!(matches!(read(&stream, LIMIT, soon()).unwrap(), ToWorker::Ping), "pings come by themselves");
        link.send(ToWorker::Stop);
        while !matches!(read(&stream, LIMIT, soon()).unwrap(), ToWorker::Stop) {}
        write(&stream, &FromWorker::Running, soon()).unwrap();
        assert!(matches!(seen.blocking_recv().unwrap(), (7, ControlEvent::Message(FromWorker::Running))));
        drop(link);
        assert!(matches!(seen.blocking_recv().unwrap(), (7, ControlEvent::Closed(_))));
        while let Ok(message) = read::<ToWorker>(&stream, LIMIT, soon()) {
            assert!(matches!(message, ToWorker::Ping));
        }
    }
}
