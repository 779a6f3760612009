//! How two processes of a job recognise each other before anything else is said. Both prove that they know the cluster secret;
//! then the listener compares generation, plan and index. The same on the control link and on data links.
//!
//! ```text
//! connector                                             listener
//!   Hello {purpose, generation, plan, index, nonce} ->
//!                                     <- Challenge {nonce, proof over Hello and nonce}
//!   Proof over Hello and nonce ->
//!                                     <- Answer: welcome, or why not
//! ```
use super::auth::{Secret, Side, nonce};
use super::frame::{UNPROVEN_LIMIT, read, read_bytes, tune, write, write_bytes};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The version of all that is said between processes. They are the same program, but it may have been replaced meanwhile.
pub const PROTOCOL: u32 = 1;
/// A handshake takes no longer.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Worker to supervisor.
    Control,
    /// Worker to worker: rows and progress.
    Data,
}

/// Who connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// What for.
    pub purpose: Purpose,
    /// On data links the connector's generation; on the control link 0: it has none before its assignment.
    pub generation: u64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// On data links the index of the connector's process; on the control link the number under which it was launched.
    pub index: u64,
    /// Random.
    pub nonce: String,
}

impl Hello {
    /// With a new nonce.
    pub fn new(purpose: Purpose, generation: u64, plan_hash: impl Into<String>, index: u64) -> Hello {
        Hello { protocol: PROTOCOL, purpose, generation, plan_hash: plan_hash.into(), index, nonce: nonce() }
    }
}

#[derive(Serialize, Deserialize)]
struct Challenge {
    nonce: String,
    proof: String,
}

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The proof is not one of this cluster's secret.
    #[error("wrong cluster secret: start all processes of the job with the same SEMEL_CLUSTER_SECRET")]
    Secret,
    /// Another version of the program.
    #[error("it speaks version {theirs} of the protocol between processes, this one version {ours}: run the same program everywhere")]
    Protocol {
        /// The connector's.
        theirs: u32,
        /// The listener's.
        ours: u32,
    },
    /// A data link where a control link is expected, or the reverse.
    #[error("this address is not for {0:?} links")]
    Purpose(Purpose),
    /// It was replaced.
    #[error("generation {theirs} was replaced; the current generation is {current}")]
    StaleGeneration {
        /// The connector's.
        theirs: u64,
        /// The listener's.
        current: u64,
    },
    /// The listener was replaced.
    #[error("generation {current} was replaced by generation {theirs}")]
    NewerGeneration {
        /// The connector's.
        theirs: u64,
        /// The listener's.
        current: u64,
    },
    /// Another job, or another version of it.
    #[error("it runs the plan {theirs}, this process the plan {ours}: run the same program with the same settings everywhere")]
    Plan {
        /// The connector's.
        theirs: String,
        /// The listener's.
        ours: String,
    },
    /// Nobody with this index is expected, or it is already here.
    #[error("a process with index {0} is not expected here")]
    Index(u64),
}

/// Whom a listener expects.
#[derive(Debug, Clone)]
pub struct Expected {
    /// What for.
    pub purpose: Purpose,
    /// The current generation; 0 on the control link.
    pub generation: u64,
    /// Hash of the plan.
    pub plan_hash: String,
}

/// Whether a connector that has proven itself is welcome; `index_is_expected` is asked last.
pub fn decide(hello: &Hello, expected: &Expected, index_is_expected: impl FnOnce(u64) -> bool) -> Result<(), Refusal> {
    if hello.protocol != PROTOCOL {
        return Err(Refusal::Protocol { theirs: hello.protocol, ours: PROTOCOL });
    }
    if hello.purpose != expected.purpose {
        return Err(Refusal::Purpose(hello.purpose));
    }
    let (theirs, current) = (hello.generation, expected.generation);
    if theirs < current {
        return Err(Refusal::StaleGeneration { theirs, current });
    }
    if theirs > current {
        return Err(Refusal::NewerGeneration { theirs, current });
    }
    if hello.plan_hash != expected.plan_hash {
        return Err(Refusal::Plan { theirs: hello.plan_hash.clone(), ours: expected.plan_hash.clone() });
    }
    if !index_is_expected(hello.index) {
        return Err(Refusal::Index(hello.index));
    }
    Ok(())
}

/// A handshake that did not lead to a connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection broke, or was too slow.
    #[error("handshake: {0}")]
    Io(#[from] io::Error),
    /// The other end said no, or this one did.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The listener does not know the secret: it is not one of the job's processes.
    #[error("the process that listens there does not know this job's cluster secret")]
    Impostor,
}

/// The connecting end. On success the stream has no deadlines and is tuned with `timeout`.
pub fn connect(stream: &TcpStream, secret: &Secret, hello: &Hello, timeout: Duration) -> Result<(), HandshakeError> {
    let deadline = Instant::now() + DEADLINE;
    tune(stream, timeout)?;
    let hello = serde_json::to_vec(hello).map_err(io::Error::from)?;
    write_bytes(stream, &hello, deadline)?;
    let challenge: Challenge = read(stream, UNPROVEN_LIMIT, deadline)?;
    if !secret.verify(Side::Listener, &hello, challenge.nonce.as_bytes(), &challenge.proof) {
        return Err(HandshakeError::Impostor);
    }
    write(stream, &secret.prove(Side::Connector, &hello, challenge.nonce.as_bytes()), deadline)?;
    let answer: Result<(), Refusal> = read(stream, UNPROVEN_LIMIT, deadline)?;
    answer?;
    free(stream)?;
    Ok(())
}

/// The listening end. `decide` is asked only about connectors that have proven themselves.
pub fn accept(
    stream: &TcpStream,
    secret: &Secret,
    timeout: Duration,
    decide: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<Hello, HandshakeError> {
    let deadline = Instant::now() + DEADLINE;
    tune(stream, timeout)?;
    let bytes = read_bytes(stream, UNPROVEN_LIMIT, deadline)?;
    let hello: Hello = serde_json::from_slice(&bytes).map_err(io::Error::from)?;
    let nonce = nonce();
    let proof = secret.prove(Side::Listener, &bytes, nonce.as_bytes());
    write(stream, &Challenge { nonce: nonce.clone(), proof }, deadline)?;
    let proof: String = read(stream, UNPROVEN_LIMIT, deadline)?;
    let proven = secret.verify(Side::Connector, &bytes, nonce.as_bytes(), &proof);
    let answer = if proven { decide(&hello) } else { Err(Refusal::Secret) };
    write(stream, &answer, deadline)?;
    answer?;
    free(stream)?;
    Ok(hello)
}

fn free(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn expected() -> Expected {
        Expected { purpose: Purpose::Data, generation: 5, plan_hash: "p".into() }
    }

    fn hello() -> Hello {
        Hello::new(Purpose::Data, 5, "p", 1)
    }

    #[test]
    fn only_the_expected_peer_is_welcome() {
        let refusal = |hello: Hello| decide(&hello, &expected(), |index| index == 1).unwrap_err();
        assert_eq!(decide(&hello(), &expected(), |index| index == 1), Ok(()));
        assert_eq!(refusal(Hello { generation: 4, ..hello() }), Refusal::StaleGeneration { theirs: 4, current: 5 });
        assert_eq!(refusal(Hello { generation: 6, ..hello() }), Refusal::NewerGeneration { theirs: 6, current: 5 });
        assert!(matches!(refusal(Hello { plan_hash: "q".into(), ..hello() }), Refusal::Plan { .. }));
        assert_eq!(refusal(Hello { index: 2, ..hello() }), Refusal::Index(2));
        assert_eq!(refusal(Hello { purpose: Purpose::Control, ..hello() }), Refusal::Purpose(Purpose::Control));
        assert!(matches!(refusal(Hello { protocol: 99, ..hello() }), Refusal::Protocol { .. }));
    }

    fn shake(ours: Secret, theirs: Secret, hello: Hello) -> (Result<(), HandshakeError>, Result<Hello, HandshakeError>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connector = std::thread::spawn(move || connect(&TcpStream::connect(address).unwrap(), &theirs, &hello, TIMEOUT));
        let stream = listener.accept().unwrap().0;
        let accepted = accept(&stream, &ours, TIMEOUT, |hello| decide(hello, &expected(), |_| true));
        drop(stream);
        (connector.join().unwrap(), accepted)
    }

    #[test]
    fn both_ends_agree() {
        let (connected, accepted) = shake(Secret::new(b"s"), Secret::new(b"s"), hello());
        connected.unwrap();
        assert_eq!(accepted.unwrap().index, 1);
    }

    #[test]
    fn without_the_secret_neither_end_goes_on() {
        let (connected, accepted) = shake(Secret::new(b"s"), Secret::new(b"other"), hello());
        assert!(matches!(connected, Err(HandshakeError::Impostor)), "the connector tells it first");
        assert!(accepted.is_err());
    }

    #[test]
    fn a_connector_that_ignores_it_is_refused_by_the_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connector = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).unwrap();
            let deadline = Instant::now() + DEADLINE;
            write(&stream, &hello(), deadline).unwrap();
            let _: Challenge = read(&stream, UNPROVEN_LIMIT, deadline).unwrap();
            write(&stream, &"00".repeat(32), deadline).unwrap();
            read::<Result<(), Refusal>>(&stream, UNPROVEN_LIMIT, deadline).unwrap()
        });
        let stream = listener.accept().unwrap().0;
        let accepted = accept(&stream, &Secret::new(b"s"), TIMEOUT, |_| Ok(()));
        assert!(matches!(accepted, Err(HandshakeError::Refused(Refusal::Secret))));
        assert_eq!(connector.join().unwrap(), Err(Refusal::Secret));
    }

    #[test]
    fn a_stale_process_learns_the_current_generation() {
        let (connected, _) = shake(Secret::new(b"s"), Secret::new(b"s"), Hello { generation: 3, ..hello() });
        let text = connected.unwrap_err().to_string();
        assert!(text.contains("current generation is 5"), "{text}");
    }
}
