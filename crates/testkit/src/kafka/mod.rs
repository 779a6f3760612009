//! A real Apache Kafka, one or three brokers in KRaft mode.

mod client;
mod config;
mod load;
mod node;
mod options;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

pub use client::{OpenProducer, PartitionInfo, PartitionOffsets, Record, TransactionInfo, WriteRow};
pub use load::Load;
use node::Node;
pub use options::{KafkaOptions, PASSWORD, Security, USER};
pub use tls::Tls;

use crate::guardian::Folder;
use crate::ports::reserve_port_on;
use crate::{Error, Proxy, Result, java, reserve_port};

/// A started broker answers within this time, also with three of them on two busy cores.
const START: Duration = Duration::from_secs(120);

/// A running cluster in a temporary folder. Dropping it kills the brokers and removes the folder.
///
/// Brokers are numbered from 1, as in Kafka's own answers. Replication, `min.insync.replicas`, and short session
/// timeouts are set so that a killed broker is replaced, and let in again, after about 4 s.
#[derive(Debug)]
pub struct Kafka {
    options: KafkaOptions,
    nodes: Mutex<Vec<Node>>,
    proxies: Vec<Proxy>,
    bootstrap: String,
    internal: String,
    tls: Option<Tls>,
    dir: Folder,
}

impl Kafka {
    /// One broker with default options.
    pub fn start() -> Result<Self> {
        Self::start_with(KafkaOptions::default())
    }

    /// One broker for all tests of this process, started at the first call and ended with the process.
    ///
    /// Tests that share it use topics of their own and do not kill it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Kafka> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        match SHARED.get() {
            Some(kafka) => Ok(kafka),
            None => {
                let kafka = Self::start()?;
                Ok(SHARED.get_or_init(|| kafka))
            }
        }
    }

    /// Formats, starts and waits until every broker is in the cluster and answers.
    pub fn start_with(options: KafkaOptions) -> Result<Self> {
        if options.brokers == 0 {
            return Err(Error::Setup("a cluster has at least one broker".into()));
        }
        let dir = Folder::new("kafka")?;
        let tls = match options.security.tls() {
            true => Some(Tls::generate(dir.path(), &[options.host.to_string(), "localhost".into()])?),
            false => None,
        };
        let mut leases = Vec::new();
        for _ in 0..options.brokers {
            leases.push((reserve_port_on(options.host)?, reserve_port()?, reserve_port()?));
        }
        let controller_ports: Vec<u16> = leases.iter().map(|(_, _, controller)| controller.port()).collect();
        let mut nodes = Vec::new();
        let mut proxies = Vec::new();
        let cluster = URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4());
        for (id, (client, internal, controller)) in (1..).zip(leases) {
            let home = dir.path().join(format!("broker-{id}"));
            std::fs::create_dir_all(&home).map_err(Error::io("making a broker's folder"))?;
            let mut advertised_port = client.port();
            if options.through_proxy {
                let proxy = Proxy::start_on(options.host, (options.host, client.port()).into())?;
                advertised_port = proxy.address().port();
                proxies.push(proxy);
            }
            let facts = config::NodeFacts {
                id,
                client_port: client.port(),
                advertised_port,
                internal_port: internal.port(),
                controller_ports: &controller_ports,
                data: &home.join("data"),
                tls: dir.path(),
            };
            let file = home.join("server.properties");
            std::fs::write(&file, config::server_properties(&options, &facts)).map_err(Error::io(format!("writing {}", file.display())))?;
            let args = config::format_arguments(&options, &cluster, &file);
            java::call("format", json!({ "args": args }), START)?;
            nodes.push(Node::new(id, home, options.heap_mb, advertised_port, vec![client, internal, controller]));
        }
        let list = |ports: Vec<(String, u16)>| ports.iter().map(|(host, port)| format!("{host}:{port}")).collect::<Vec<_>>().join(",");
        let bootstrap = list(nodes.iter().map(|node| (options.host.to_string(), node.advertised_port)).collect());
        let internal = list(nodes.iter().map(|node| ("127.0.0.1".into(), node.internal_port())).collect());
        let kafka = Self { options, nodes: Mutex::new(nodes), proxies, bootstrap, internal, tls, dir };
        kafka.start_all()?;
        Ok(kafka)
    }

    fn start_all(&self) -> Result<()> {
        for node in self.nodes().iter_mut() {
            node.start()?;
        }
        for id in 1..=self.options.brokers {
            self.wait_ready(id)?;
        }
        Ok(())
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node<T>(&self, id: usize, act: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
        let mut nodes = self.nodes();
        match id.checked_sub(1).and_then(|index| nodes.get_mut(index)) {
            Some(node) => act(node),
            None => Err(Error::Setup(format!("there is no broker {id}; they are numbered from 1"))),
        }
    }

    /// `host:port,...` for the clients under test (the proxies' addresses if there are proxies).
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// `host:port,...` of the plaintext listener that no proxy and no security is in front of.
    pub fn internal_bootstrap(&self) -> &str {
        &self.internal
    }

    /// The options it was started with.
    pub fn options(&self) -> &KafkaOptions {
        &self.options
    }

    /// The proxy in front of broker `id`; `None` without `through_proxy`.
    pub fn proxy(&self, id: usize) -> Option<&Proxy> {
        self.proxies.get(id.checked_sub(1)?)
    }

    /// The PEM files of a cluster with TLS.
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Settings with which a Java client reaches [`bootstrap`](Self::bootstrap) as this user.
    ///
    /// `mechanism` is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; it and the user matter with SASL only.
    pub fn client_properties(&self, mechanism: &str, user: &str, password: &str) -> Vec<(String, String)> {
        config::client_properties(self.options.security, self.dir.path(), mechanism, user, password)
    }

    /// The log of broker `id`.
    pub fn log(&self, id: usize) -> PathBuf {
        self.dir.path().join(format!("broker-{id}")).join("broker.log")
    }

    /// The folder of the cluster; gone when it is dropped.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id of broker `id`, if it runs.
    pub fn pid(&self, id: usize) -> Result<Option<u32>> {
        self.node(id, |node| Ok(node.pid()))
    }

    /// SIGKILL to broker `id`; returns when the process is gone.
    pub fn kill(&self, id: usize) -> Result<()> {
        self.node(id, Node::kill)
    }

    /// SIGTERM to broker `id` (a controlled shutdown: leaders move first); returns when the process is gone.
    pub fn stop(&self, id: usize) -> Result<()> {
        self.node(id, Node::stop)
    }

    /// Starts broker `id` again on its data and ports and waits until it answers.
    pub fn start_again(&self, id: usize) -> Result<()> {
        self.start_again_at_once(id)?;
        self.wait_ready(id)
    }

    /// As [`start_again`](Self::start_again), without waiting.
    pub fn start_again_at_once(&self, id: usize) -> Result<()> {
        self.node(id, Node::start)
    }

    /// SIGSTOP to broker `id`: connections stay open and nothing answers.
    pub fn pause(&self, id: usize) -> Result<()> {
        self.node(id, Node::pause)
    }

    /// SIGCONT to broker `id`.
    pub fn resume(&self, id: usize) -> Result<()> {
        self.node(id, Node::resume)
    }

    /// Kills all brokers, starts them again and waits until all answer.
    pub fn restart_all(&self) -> Result<()> {
        for node in self.nodes().iter_mut() {
            node.kill()?;
        }
        self.start_all()
    }

    /// Waits until broker `id` has answered a metadata request on its own listener and is a live member.
    pub fn wait_ready(&self, id: usize) -> Result<()> {
        let deadline = Instant::now() + START;
        let (address, log) = self.node(id, |node| Ok((format!("127.0.0.1:{}", node.internal_port()), node.log())))?;
        loop {
            self.node(id, Node::check_running)?;
            let request = json!({ "bootstrap": address });
            let last = match java::call("cluster", request, Duration::from_secs(2)) {
                Ok(reply) => {
                    let nodes = reply.ok["nodes"].as_array().cloned().unwrap_or_default();
                    if nodes.contains(&json!(id)) && reply.ok["controller"].as_i64().is_some_and(|c| c > 0) {
                        return Ok(());
                    }
                    reply.ok.to_string()
                }
                Err(e) => e.to_string(),
            };
            if Instant::now() > deadline {
                return Err(Error::Deadline {
                    what: format!("the start of Kafka broker {id}"),
                    after: START,
                    hint: format!("last answer: {last}; log {}: {}", log.display(), crate::error::tail(&log, 20)),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        for node in self.nodes().iter_mut() {
            let _ = node.kill();
        }
        let internal = self.nodes().iter().map(|node| format!("127.0.0.1:{}", node.internal_port())).collect::<Vec<_>>();
        for bootstrap in internal.iter().chain([&self.internal, &self.bootstrap]) {
            let _ = java::call("forget", json!({ "bootstrap": bootstrap }), Duration::from_secs(5));
        }
        if std::thread::panicking() {
            for id in 1..=self.options.brokers {
                eprintln!("Kafka broker {id}, end of its log:\n{}", crate::error::tail(&self.log(id), 15));
            }
        }
    }
}
