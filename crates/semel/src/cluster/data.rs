//! Data links: each worker process listens, and the one with the higher index connects to the one with the lower. The listener
//! stays open after that, to turn stale processes away with an answer.
use super::auth::Secret;
use super::control::reachable;
use super::handshake::{Expected, HandshakeError, Hello, Purpose, Refusal, accept, connect, decide};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;

const MAX_HANDSHAKES: usize = 64;

/// A worker process' listener.
#[derive(Debug)]
pub struct DataListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl DataListener {
    /// At a free port of this address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(bind: IpAddr) -> io::Result<DataListener> {
        let listener = TcpListener::bind((bind, 0))?;
        let address = reachable(listener.local_addr()?);
        Ok(DataListener { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Who this process is among its peers.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// Of this process.
    pub index: usize,
    /// Where each process listens, by index; this one's own place included.
    pub peers: Vec<SocketAddr>,
    /// The generation of all of them.
    pub generation: u64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// The cluster secret.
    pub secret: Secret,
    /// A broken link is noticed after this time (TCP_USER_TIMEOUT, keepalive).
    pub link_timeout: Duration,
    /// All links must stand after this time.
    pub deadline: Duration,
}

/// Why the links do not stand.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// One of the peers is of a newer generation, or knows one.
    #[error("{0}")]
    Fenced(Refusal),
    /// A peer did not come, or could not be reached.
    #[error("link between worker processes {from} and {to}: {why}")]
    Peer {
        /// The process that tells.
        from: usize,
        /// The peer.
        to: usize,
        /// What happened.
        why: String,
    },
    /// The system refused a thread or a clone of a socket.
    #[error("links between worker processes: {0}")]
    Io(#[from] io::Error),
}

enum Arrival {
    Peer(usize, TcpStream),
    Newer(Refusal),
}

/// Connects to all peers. The answer has a stream per process, `None` in this one's own place; empty for a single process.
///
/// # Errors
/// A peer that does not come in time, or that knows a newer generation.
pub fn meet(listener: DataListener, mesh: &Mesh) -> Result<Vec<Option<TcpStream>>, MeshError> {
    if mesh.peers.len() < 2 {
        return Ok(vec![]);
    }
    let deadline = Instant::now() + mesh.deadline;
    let (arrivals, arrived) = channel();
    let missing: Arc<Mutex<Vec<bool>>> = Arc::new(Mutex::new((0..mesh.peers.len()).map(|peer| peer > mesh.index).collect()));
    let (own, listener) = (mesh.clone(), listener.listener);
    std::thread::Builder::new().name("data-listen".into()).spawn(move || listen(&listener, &own, &missing, &arrivals))?;

    let mut streams: Vec<Option<TcpStream>> = mesh.peers.iter().map(|_| None).collect();
    for (peer, stream) in streams.iter_mut().enumerate().take(mesh.index) {
        *stream = Some(reach(mesh, peer, deadline)?);
    }
    for _ in mesh.index + 1..mesh.peers.len() {
        match arrived.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Arrival::Peer(peer, stream)) => streams[peer] = Some(stream),
            Ok(Arrival::Newer(refusal)) => return Err(MeshError::Fenced(refusal)),
            Err(_) => {
                let to = (mesh.index + 1..mesh.peers.len()).find(|peer| streams[*peer].is_none()).unwrap_or_default();
                return Err(MeshError::Peer { from: mesh.index, to, why: format!("it did not connect within {:?}", mesh.deadline) });
            }
        }
    }
    Ok(streams)
}

fn reach(mesh: &Mesh, peer: usize, deadline: Instant) -> Result<TcpStream, MeshError> {
    let hello = Hello::new(Purpose::Data, mesh.generation, mesh.plan_hash.as_str(), mesh.index as u64);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(MeshError::Peer { from: mesh.index, to: peer, why: format!("it could not be reached within {:?}", mesh.deadline) });
        }
        let stream = TcpStream::connect_timeout(&mesh.peers[peer], left.min(Duration::from_secs(1)));
        match stream.map_err(HandshakeError::from).and_then(|s| connect(&s, &mesh.secret, &hello, mesh.link_timeout).map(|()| s)) {
            Ok(stream) => return Ok(stream),
            Err(HandshakeError::Refused(refusal @ Refusal::StaleGeneration { .. })) => {
                return Err(MeshError::Fenced(refusal));
            }
            // Somebody who lives is there and will not change its mind.
            Err(error @ (HandshakeError::Refused(_) | HandshakeError::Impostor)) => {
                return Err(MeshError::Peer { from: mesh.index, to: peer, why: error.to_string() });
            }
            // Its listener was bound before this process was told of it, so this is rare.
            Err(HandshakeError::Io(_)) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn listen(listener: &TcpListener, mesh: &Mesh, missing: &Arc<Mutex<Vec<bool>>>, arrivals: &Sender<Arrival>) {
    let under_way = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        if under_way.fetch_add(1, SeqCst) >= MAX_HANDSHAKES {
            under_way.fetch_sub(1, SeqCst);
            continue;
        }
        let (mesh, missing, arrivals, done) = (mesh.clone(), missing.clone(), arrivals.clone(), under_way.clone());
        let spawned = std::thread::Builder::new().name("data-link".into()).spawn(move || {
            greet(stream, &mesh, &missing, &arrivals);
            done.fetch_sub(1, SeqCst);
        });
        if spawned.is_err() {
            under_way.fetch_sub(1, SeqCst);
        }
    }
}

fn greet(stream: TcpStream, mesh: &Mesh, missing: &Mutex<Vec<bool>>, arrivals: &Sender<Arrival>) {
    let expected = Expected { purpose: Purpose::Data, generation: mesh.generation, plan_hash: mesh.plan_hash.clone() };
    let take = |index: u64| {
        let mut missing = missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.get_mut(index as usize).is_some_and(std::mem::take)
    };
    match accept(&stream, &mesh.secret, mesh.link_timeout, |hello| decide(hello, &expected, take)) {
        Ok(hello) => _ = arrivals.send(Arrival::Peer(hello.index as usize, stream)),
        Err(error) => {
            warn!(peer = %stream.peer_addr().map_or("unknown".into(), |a| a.to_string()), "data link: {error}");
            if let HandshakeError::Refused(refusal @ Refusal::NewerGeneration { .. }) = error {
                _ = arrivals.send(Arrival::Newer(refusal));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    fn listeners(n: usize) -> (Vec<DataListener>, Vec<SocketAddr>) {
        let listeners: Vec<_> = (0..n).map(|_| DataListener::bind(Ipv4Addr::LOCALHOST.into()).unwrap()).collect();
        let peers = listeners.iter().map(DataListener::address).collect();
        (listeners, peers)
    }

    fn mesh(index: usize, peers: &[SocketAddr], generation: u64) -> Mesh {
        Mesh {
            index,
            peers: peers.to_vec(),
            generation,
            plan_hash: "p".into(),
            secret: Secret::new(b"s"),
            link_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(2),
        }
    }

    #[test]
    fn three_processes_meet_and_each_link_is_the_right_one() {
        let (listeners, peers) = listeners(3);
        let threads: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|(index, listener)| {
                let mesh = mesh(index, &peers, 4);
                std::thread::spawn(move || {
                    let streams = meet(listener, &mesh).unwrap();
                    assert!(streams[index].is_none() && streams.iter().flatten().count() == 2);
                    for stream in streams.iter().flatten() {
                        (&mut &*stream).write_all(&[index as u8]).unwrap();
                    }
                    for (peer, stream) in streams.iter().enumerate().filter_map(|(p, s)| Some((p, s.as_ref()?))) {
                        let mut byte = [9];
                        (&mut &*stream).read_exact(&mut byte).unwrap();
                        assert_eq!(usize::from(byte[0]), peer);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn after_the_links_stand_a_stale_process_is_told_the_generation() {
        let (mut listeners, peers) = listeners(2);
        let second = listeners.pop().unwrap();
        let first = listeners.pop().unwrap();
        let (a, b) = (mesh(0, &peers, 4), mesh(1, &peers, 4));
        let other = std::thread::spawn(move || meet(second, &b).unwrap());
        let _streams = (meet(first, &a).unwrap(), other.join().unwrap());
        let stale = reach(&mesh(1, &peers, 3), 0, Instant::now() + Duration::from_secs(2)).unwrap_err();
        assert!(matches!(&stale, MeshError::Fenced(refusal) if refusal.to_string().contains("current generation is 4")), "{stale}");
        let twice = reach(&mesh(1, &peers, 4), 0, Instant::now() + Duration::from_secs(2)).unwrap_err();
        assert!(twice.to_string().contains("not expected"), "{twice}");
    }

    #[test]
    fn a_peer_that_does_not_come_is_named_in_time() {
        let (mut listeners, peers) = listeners(2);
        let start = Instant::now();
        let error = meet(listeners.remove(0), &mesh(0, &peers, 1)).unwrap_err();
        assert!(error.to_string().contains("processes 0 and 1"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn a_process_that_meets_a_newer_generation_is_fenced() {
        let (mut listeners, peers) = listeners(2);
        let mut newer = mesh(1, &peers, 9);
        newer.deadline = Duration::from_millis(500);
        let old = mesh(0, &peers, 8);
        let listener = listeners.remove(0);
        let waiting = std::thread::spawn(move || meet(listener, &old));
        assert!(reach(&newer, 0, Instant::now() + newer.deadline).is_err());
        assert!(matches!(waiting.join().unwrap(), Err(MeshError::Fenced(_))));
    }
}
