//! [`Connection`]: one socket to one broker.
//!
//! Requests are written in the order in which they are sent, and Kafka answers them in that order. One task writes, one
//! reads; a caller that goes away loses only its answer. A connection that fails once is closed for all.
use super::config::ClientConfig;
use super::deadline::Deadline;
use super::error::{ClientError, Result};
use super::sasl;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, Request, StrBytes};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;

/// Largest frame that is read, in bytes.
pub const MAX_FRAME: usize = 256 << 20;

/// How often it is looked whether an answer is overdue.
const WATCH: Duration = Duration::from_millis(250);

/// One socket to one broker, with requests in flight. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    /// Ends both tasks when the last clone is dropped.
    _tasks: Arc<Tasks>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("address", &self.shared.address).field("usable", &self.is_usable()).finish()
    }
}

struct Tasks(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// An answer that somebody waits for.
struct Pending {
    correlation: i32,
    /// Version of the answer's header.
    header: i16,
    /// Milliseconds after `Shared::began`.
    sent: u64,
    answer: oneshot::Sender<Result<Bytes>>,
}

struct Shared {
    address: String,
    client_id: StrBytes,
    request_timeout: Duration,
    /// Version ranges that the broker offers, by API.
    versions: OnceLock<HashMap<i16, (i16, i16)>>,
    features: OnceLock<HashMap<String, i16>>,
    /// When the login ends, if it does.
    valid_until: OnceLock<Instant>,
    correlation: AtomicI32,
    began: Instant,
    /// When something was last read, in milliseconds after `began`.
    heard: AtomicU64,
    state: Mutex<State>,
}

struct State {
    pending: VecDeque<Pending>,
    out: mpsc::UnboundedSender<Vec<Bytes>>,
    closed: Option<String>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn closed(&self, reason: &str) -> ClientError {
        ClientError::Closed { address: self.address.clone(), reason: reason.to_string() }
    }

    fn close(&self, reason: &str) {
        let pending = {
            let mut state = self.lock();
            if state.closed.is_none() {
                tracing::debug!(address = self.address, reason, "connection closed");
                state.closed = Some(reason.to_string());
            }
            std::mem::take(&mut state.pending)
        };
        for one in pending {
            _ = one.answer.send(Err(self.closed(reason)));
        }
    }

    /// Why the connection must be given up, if an answer is overdue. Bytes that arrive count as a sign of life.
    fn overdue(&self) -> bool {
        let oldest = self.lock().pending.front().map(|p| p.sent);
        oldest.is_some_and(|sent| {
            self.now().saturating_sub(sent.max(self.heard.load(Ordering::Relaxed))) > self.request_timeout.as_millis() as u64
        })
    }
}

/// An answer under way.
pub(crate) struct Answer(oneshot::Receiver<Result<Bytes>>);

impl Answer {
    /// Waits for the frame (behind its correlation id).
    pub(crate) async fn frame(self) -> Result<Bytes> {
        match self.0.await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Closed { address: "the broker".into(), reason: "the connection was given up".into() }),
        }
    }
}

impl Connection {
    /// Connects, with TLS and login as configured, and asks what the broker can do.
    pub(crate) async fn open(address: &str, config: &ClientConfig, tls: Option<&TlsConnector>, deadline: Deadline) -> Result<Connection> {
        let deadline = deadline.at_most(config.connect_timeout);
        let what = || format!("connecting to Kafka at {address}");
        deadline.run(what, Self::open_without_limit(address, config, tls, deadline)).await
    }

    async fn open_without_limit(
        address: &str,
        config: &ClientConfig,
        tls: Option<&TlsConnector>,
        deadline: Deadline,
    ) -> Result<Connection> {
        let failed = |e: std::io::Error| ClientError::Connect { address: address.to_string(), reason: e.to_string() };
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let connection = match tls {
            None => {
                let (reader, writer) = stream.into_split();
                Self::on(address, config, reader, writer)
            }
            Some(tls) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
                let wrong = |e: String| ClientError::Tls { address: address.to_string(), reason: e };
                let name = rustls_pki_types::ServerName::try_from(host.to_string()).map_err(|e| wrong(e.to_string()))?;
                let stream = tls.connect(name, stream).await.map_err(|e| wrong(e.to_string()))?;
                let (reader, writer) = tokio::io::split(stream);
                Self::on(address, config, reader, writer)
            }
        };
        let explain = |e: ClientError| match e {
            // A TLS listener closes what does not begin with a handshake, and a plain one answers none.
            ClientError::Closed { reason, .. } | ClientError::Protocol { reason, .. } if tls.is_none() => ClientError::Connect {
                address: address.to_string(),
                reason: format!("{reason} (does this port need TLS? see security.protocol)"),
            },
            other => other,
        };
        connection.ask_versions(deadline).await.map_err(explain)?;
        if let Some(sasl) = &config.security.sasl {
            let lifetime = sasl::login(&connection, sasl, deadline).await?;
            if let Some(lifetime) = lifetime {
                // Kafka closes a connection whose login has ended; a new one is opened before.
                _ = connection.shared.valid_until.set(Instant::now() + lifetime.mul_f64(0.8));
            }
        }
        Ok(connection)
    }

    fn on(
        address: &str,
        config: &ClientConfig,
        reader: impl AsyncRead + Unpin + Send + 'static,
        writer: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Connection {
        let (out, outgoing) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            address: address.to_string(),
            client_id: StrBytes::from_string(config.client_id.clone()),
            request_timeout: config.request_timeout,
            versions: OnceLock::new(),
            features: OnceLock::new(),
            valid_until: OnceLock::new(),
            correlation: AtomicI32::new(0),
            began: Instant::now(),
            heard: AtomicU64::new(0),
            state: Mutex::new(State { pending: VecDeque::new(), out, closed: None }),
        });
        let tasks = vec![tokio::spawn(write_all(shared.clone(), writer, outgoing)), tokio::spawn(read_all(shared.clone(), reader))];
        Connection { shared, _tasks: Arc::new(Tasks(tasks)) }
    }

    async fn ask_versions(&self, deadline: Deadline) -> Result<()> {
        let request = ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str("semel"))
            .with_client_software_version(StrBytes::from_static_str(env!("CARGO_PKG_VERSION")));
        let mut frame = self.send(&request, 3)?.frame().await?;
        // A broker that does not know version 3 answers in version 0.
        let old = frame.get(..2).is_some_and(|code| code != [0, 0]);
        let answer = match old {
            false => ApiVersionsResponse::decode(&mut frame, 3).map_err(|e| self.not_understood("ApiVersions", &e))?,
            true => self.call(&ApiVersionsRequest::default(), 0, deadline).await?,
        };
        if answer.error_code != 0 {
            return Err(ClientError::broker(format!("ApiVersions at {}", self.address()), answer.error_code, None));
        }
        let versions = answer.api_keys.iter().map(|k| (k.api_key, (k.min_version, k.max_version))).collect();
        _ = self.shared.versions.set(versions);
        let features = answer.finalized_features.iter().map(|f| (f.name.to_string(), f.max_version_level)).collect();
        _ = self.shared.features.set(features);
        Ok(())
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Whether requests can still be sent: not closed, and the login is valid.
    pub fn is_usable(&self) -> bool {
        self.shared.valid_until.get().is_none_or(|until| Instant::now() < *until) && self.shared.lock().closed.is_none()
    }

    /// Finalized level of a feature, 0 when it is not known.
    pub(crate) fn feature(&self, name: &str) -> i16 {
        self.shared.features.get().and_then(|f| f.get(name)).copied().unwrap_or(0)
    }

    /// Highest version offered of an API, -1 for none.
    pub(crate) fn offered<R: Request>(&self) -> i16 {
        self.shared.versions.get().and_then(|v| v.get(&R::KEY)).map_or(-1, |(_, max)| *max)
    }

    /// The highest version between `min` and `max` that both sides speak.
    pub(crate) fn version<R: Request>(&self, min: i16, max: i16) -> Result<i16> {
        let offered = self.shared.versions.get().and_then(|v| v.get(&R::KEY)).copied();
        let (low, high) = offered.unwrap_or((0, -1));
        let best = max.min(high);
        if best >= min && best >= low {
            return Ok(best);
        }
        let api = ApiKey::try_from(R::KEY).map_or_else(|_| R::KEY.to_string(), |key| format!("{key:?}"));
        Err(ClientError::Unsupported {
            address: self.address().to_string(),
            api,
            need: format!("{min} to {max}"),
            offered: offered.map_or("none".into(), |(low, high)| format!("{low} to {high}")),
        })
    }

    fn not_understood(&self, api: &str, reason: &dyn fmt::Display) -> ClientError {
        ClientError::Protocol { address: self.address().to_string(), reason: format!("answer to {api}: {reason}") }
    }

    /// Sends a request and decodes its answer.
    pub(crate) async fn call<R: Request>(&self, request: &R, version: i16, deadline: Deadline) -> Result<R::Response> {
        let answer = self.send(request, version)?;
        let api = || ApiKey::try_from(R::KEY).map_or_else(|_| "an unknown API".to_string(), |key| format!("{key:?}"));
        let frame = deadline.run(|| format!("{} at Kafka {}", api(), self.address()), answer.frame()).await?;
        self.decode::<R>(frame, version)
    }

    /// Decodes a frame that answers `R`.
    pub(crate) fn decode<R: Request>(&self, mut frame: Bytes, version: i16) -> Result<R::Response> {
        let api = || ApiKey::try_from(R::KEY).map_or_else(|_| R::KEY.to_string(), |key| format!("{key:?}"));
        R::Response::decode(&mut frame, version).map_err(|e| self.not_understood(&api(), &e))
    }

    /// Sends a request; it is on its way when this returns.
    pub(crate) fn send<R: Request>(&self, request: &R, version: i16) -> Result<Answer> {
        let correlation = self.next_correlation();
        let mut frame = self.begin::<R>(version, correlation)?;
        request.encode(&mut frame, version).map_err(|e| ClientError::Usage(format!("a request cannot be encoded: {e}")))?;
        self.send_frame::<R>(vec![frame.freeze()], version, correlation)
    }

    /// A new correlation id.
    pub(crate) fn next_correlation(&self) -> i32 {
        self.shared.correlation.fetch_add(1, Ordering::Relaxed)
    }

    /// The frame's begin: a place for the length, and the header.
    pub(crate) fn begin<R: Request + Message>(&self, version: i16, correlation: i32) -> Result<BytesMut> {
        let mut frame = BytesMut::with_capacity(512);
        frame.put_i32(0);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(correlation)
            .with_client_id(Some(self.shared.client_id.clone()));
        header
            .encode(&mut frame, R::header_version(version))
            .map_err(|e| ClientError::Usage(format!("a request header cannot be encoded: {e}")))?;
        Ok(frame)
    }

    /// Sends a frame in pieces; the first begins with a place for the length, as made by [`begin`](Self::begin).
    pub(crate) fn send_frame<R: Request>(&self, mut pieces: Vec<Bytes>, version: i16, correlation: i32) -> Result<Answer> {
        set_length(&mut pieces)?;
        let (answer, receiver) = oneshot::channel();
        let header = <R::Response as HeaderVersion>::header_version(version);
        let pending = Pending { correlation, header, sent: self.shared.now(), answer };
        let mut state = self.shared.lock();
        if let Some(reason) = &state.closed {
            return Err(self.shared.closed(reason));
        }
        if state.out.send(pieces).is_err() {
            return Err(self.shared.closed("the writing task has ended"));
        }
        state.pending.push_back(pending);
        Ok(Answer(receiver))
    }

    /// Sends a request that the broker does not answer (Produce with `acks=0`).
    pub(crate) fn send_unanswered<R: Request>(&self, request: &R, version: i16) -> Result<()> {
        let correlation = self.next_correlation();
        let mut frame = self.begin::<R>(version, correlation)?;
        request.encode(&mut frame, version).map_err(|e| ClientError::Usage(format!("a request cannot be encoded: {e}")))?;
        let mut pieces = vec![frame.freeze()];
        set_length(&mut pieces)?;
        let state = self.shared.lock();
        match (&state.closed, state.out.send(pieces)) {
            (None, Ok(())) => Ok(()),
            (Some(reason), _) => Err(self.shared.closed(reason)),
            (None, Err(_)) => Err(self.shared.closed("the writing task has ended")),
        }
    }
}

/// Writes the frame's length into its first piece.
fn set_length(pieces: &mut [Bytes]) -> Result<()> {
    let total = pieces.iter().map(Bytes::len).sum::<usize>().saturating_sub(4);
    let length = i32::try_from(total).map_err(|_| ClientError::Usage("a request of more than 2 GiB cannot be sent".into()))?;
    if let Some(first) = pieces.first_mut() {
        let mut head = BytesMut::from(std::mem::take(first));
        head[..4].copy_from_slice(&length.to_be_bytes());
        *first = head.freeze();
    }
    Ok(())
}

/// Pieces of a frame, one after the other.
struct Frame(VecDeque<Bytes>);

impl Buf for Frame {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [std::io::IoSlice<'a>]) -> usize {
        let mut n = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.0) {
            *slice = std::io::IoSlice::new(piece);
            n += 1;
        }
        n
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.0.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            self.0.pop_front();
        }
    }
}

async fn write_all(shared: Arc<Shared>, mut writer: impl AsyncWrite + Unpin, mut outgoing: mpsc::UnboundedReceiver<Vec<Bytes>>) {
    while let Some(pieces) = outgoing.recv().await {
        let mut frame = Frame(pieces.into_iter().filter(|piece| !piece.is_empty()).collect());
        let written = async {
            writer.write_all_buf(&mut frame).await?;
            writer.flush().await
        };
        if let Err(e) = written.await {
            return shared.close(&format!("writing failed: {e}"));
        }
    }
}

async fn read_all(shared: Arc<Shared>, mut reader: impl AsyncRead + Unpin) {
    let mut watch = tokio::time::interval(WATCH);
    loop {
        let frame = read_frame(&shared, &mut reader);
        tokio::pin!(frame);
        let frame = loop {
            tokio::select! {
                frame = &mut frame => break frame,
                _ = watch.tick() => {
                    if shared.overdue() {
                        return shared.close(&format!("no answer within {:?} (request.timeout.ms)", shared.request_timeout));
                    }
                }
            }
        };
        let mut frame = match frame {
            Ok(frame) => frame,
            Err(reason) => return shared.close(&reason),
        };
        let Some(pending) = shared.lock().pending.pop_front() else {
            return shared.close("the broker sent an answer that nobody asked for");
        };
        match ResponseHeader::decode(&mut frame, pending.header) {
            Ok(header) if header.correlation_id == pending.correlation => {}
            Ok(header) => {
                let reason = format!("answer {} came where {} was expected", header.correlation_id, pending.correlation);
                _ = pending.answer.send(Err(shared.closed(&reason)));
                return shared.close(&reason);
            }
            Err(e) => {
                let reason = format!("an answer's header cannot be read: {e}");
                _ = pending.answer.send(Err(shared.closed(&reason)));
                return shared.close(&reason);
            }
        }
        // Nobody may wait any more.
        _ = pending.answer.send(Ok(frame));
    }
}

/// Reads one frame (what is behind the length).
async fn read_frame(shared: &Shared, reader: &mut (impl AsyncRead + Unpin)) -> std::result::Result<Bytes, String> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => "the broker closed the connection".to_string(),
        _ => format!("reading failed: {e}"),
    };
    let mut length = [0; 4];
    reader.read_exact(&mut length).await.map_err(failed)?;
    let length = i32::from_be_bytes(length);
    let length = usize::try_from(length)
        .ok()
        .filter(|l| *l <= MAX_FRAME)
        .ok_or_else(|| format!("a frame of {length} bytes was announced: is this a Kafka port?"))?;
    let mut frame = BytesMut::with_capacity(length);
    while frame.len() < length {
        shared.heard.store(shared.now(), Ordering::Relaxed);
        let mut limited = {
            let left = length - frame.len();
            (&mut frame).limit(left)
        };
        if reader.read_buf(&mut limited).await.map_err(failed)? == 0 {
            return Err("the broker closed the connection".into());
        }
    }
    Ok(frame.freeze())
}
