use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Error, Result};

/// How a proxy ends connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// In good order (FIN).
    Close,
    /// With a reset (RST).
    Reset,
}

/// Which way of a connection is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Both.
    Both,
    /// Requests: the server does not get them.
    ToServer,
    /// Answers: the server acts, and the client is not told.
    ToClient,
}

impl Direction {
    fn covers(self, way: Self) -> bool {
        self == Self::Both || self == way
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Flow,
    Stall(Direction),
    /// Wait before each piece of at most `PIECE` bytes is passed on.
    Slow(Duration),
    Cut(Cut),
}

/// What tasks watch: the mode, and a number that grows when present connections must end.
#[derive(Debug, Clone, Copy)]
struct Order {
    mode: Mode,
    drops: u64,
    how: Cut,
}

const PIECE: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

/// A TCP proxy on a free port whose connections the test stalls, slows and cuts at will.
///
/// Stalled connections stay open and nothing passes: to both ends this is a network that swallows packets, until
/// buffers are full. New connections are accepted meanwhile, and stall too.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    upstream: Arc<Mutex<SocketAddr>>,
    order: watch::Sender<Order>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    RUNTIME
        .get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("proxy").enable_all().build())
        .as_ref()
        .map_err(|e| Error::Setup(format!("starting the proxies' threads: {e}")))
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `upstream`.
    pub fn start(upstream: SocketAddr) -> Result<Self> {
        Self::start_on(IpAddr::V4(Ipv4Addr::LOCALHOST), upstream)
    }

    /// As [`start`](Self::start), on another address of this machine.
    pub fn start_on(host: IpAddr, upstream: SocketAddr) -> Result<Self> {
        let listener = std::net::TcpListener::bind((host, 0)).map_err(Error::io("binding a proxy"))?;
        listener.set_nonblocking(true).map_err(Error::io("setting up a proxy"))?;
        let address = listener.local_addr().map_err(Error::io("reading a proxy's address"))?;
        let (order, watched) = watch::channel(Order { mode: Mode::Flow, drops: 0, how: Cut::Reset });
        let upstream = Arc::new(Mutex::new(upstream));
        let counters = Arc::new(Counters::default());
        let (to, count) = (Arc::clone(&upstream), Arc::clone(&counters));
        let task = runtime()?.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((client, _)) = listener.accept().await {
                let to = *to.lock().unwrap_or_else(PoisonError::into_inner);
                count.accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(client, to, watched.clone(), Arc::clone(&count)));
            }
        });
        Ok(Self { address, upstream, order, counters, task })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends later connections somewhere else.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    fn set(&self, mode: Mode) {
        self.order.send_modify(|order| order.mode = mode);
    }

    /// Passes nothing on, either way, and closes nothing.
    pub fn stall(&self) {
        self.set(Mode::Stall(Direction::Both));
    }

    /// Stalls one way only. `ToClient` is a lost answer: the server has done what the client does not know.
    pub fn stall_only(&self, direction: Direction) {
        self.set(Mode::Stall(direction));
    }

    /// Passes on at most this many bytes per second in each way of each connection.
    pub fn slow(&self, bytes_per_second: u64) {
        let pause = Duration::from_secs_f64(PIECE as f64 / bytes_per_second.max(1) as f64);
        self.set(Mode::Slow(pause));
    }

    /// Ends all connections and, until [`resume`](Self::resume), every new one.
    pub fn cut(&self, how: Cut) {
        self.set(Mode::Cut(how));
    }

    /// Ends all present connections; new ones work.
    pub fn drop_connections(&self, how: Cut) {
        self.order.send_modify(|order| {
            order.drops += 1;
            order.how = how;
        });
    }

    /// Back to normal. What was held back by a stall is passed on.
    pub fn resume(&self) {
        self.set(Mode::Flow);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        self.counters.open.load(Ordering::Relaxed)
    }

    /// Bytes passed on (to the server, to the client).
    pub fn passed(&self) -> (u64, u64) {
        (self.counters.to_server.load(Ordering::Relaxed), self.counters.to_client.load(Ordering::Relaxed))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.set(Mode::Cut(Cut::Reset));
    }
}

async fn serve(mut client: TcpStream, to: SocketAddr, watched: watch::Receiver<Order>, count: Arc<Counters>) {
    count.open.fetch_add(1, Ordering::Relaxed);
    let since = watched.borrow().drops;
    let ended = ended(watched.clone(), since);
    tokio::pin!(ended);
    let connected = tokio::select! {
        how = &mut ended => Err(how),
        server = TcpStream::connect(to) => server.map_err(|_| Cut::Reset),
    };
    match connected {
        Err(how) => close(&client, how),
        Ok(mut server) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let how = {
                let (client_read, client_write) = client.split();
                let (server_read, server_write) = server.split();
                let up = pump(client_read, server_write, Direction::ToServer, watched.clone(), &count.to_server);
                let down = pump(server_read, client_write, Direction::ToClient, watched.clone(), &count.to_client);
                tokio::select! {
                    how = &mut ended => how,
                    // A reset of one side is a reset of the other; an orderly end is passed on by each way itself.
                    result = async { tokio::try_join!(up, down) } => if result.is_ok() { Cut::Close } else { Cut::Reset },
                }
            };
            close(&client, how);
            close(&server, how);
        }
    }
    count.open.fetch_sub(1, Ordering::Relaxed);
}

fn close(stream: &TcpStream, how: Cut) {
    if how == Cut::Reset {
        let _ = stream.set_zero_linger();
    }
}

/// Resolves when a connection that began at `since` must end.
async fn ended(mut watched: watch::Receiver<Order>, since: u64) -> Cut {
    let found = watched.wait_for(|order| order.drops != since || matches!(order.mode, Mode::Cut(_))).await;
    match found.map(|order| *order) {
        Ok(Order { mode: Mode::Cut(how), .. }) => how,
        Ok(order) => order.how,
        Err(_) => Cut::Reset,
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    way: Direction,
    mut watched: watch::Receiver<Order>,
    count: &AtomicU64,
) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        passing(&mut watched, way).await?;
        let n = from.read(&mut buffer).await?;
        // The stall may have begun while the read was waiting: an end is held back as the bytes are.
        passing(&mut watched, way).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..n]).await?;
        count.fetch_add(n as u64, Ordering::Relaxed);
        let mode = watched.borrow().mode;
        if let Mode::Slow(pause) = mode {
            tokio::time::sleep(pause.mul_f64(n as f64 / PIECE as f64)).await;
        }
    }
}

async fn passing(watched: &mut watch::Receiver<Order>, way: Direction) -> std::io::Result<()> {
    let stalled = |order: &Order| matches!(order.mode, Mode::Stall(direction) if direction.covers(way));
    watched.wait_for(|order| !stalled(order)).await.map(drop).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
}
