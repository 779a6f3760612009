use std::net::{IpAddr, Ipv4Addr};

/// The user that every broker with SASL knows.
pub const USER: &str = "semel";
/// The password of [`USER`].
pub const PASSWORD: &str = "once-and-only-once";

/// How clients reach the brokers. The tool that verifies uses a plaintext listener of its own in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Security {
    /// Neither encryption nor authentication.
    #[default]
    Plaintext,
    /// `SSL` with a private authority ([`Tls`](super::Tls)).
    Ssl,
    /// `SSL` where the client must show a certificate of the same authority.
    SslClientAuth,
    /// `SASL_PLAINTEXT` with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and unsecured OAUTHBEARER.
    SaslPlaintext,
    /// `SASL_SSL` with the same mechanisms.
    SaslSsl,
}

impl Security {
    /// Kafka's name of the protocol.
    pub fn protocol(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl | Self::SslClientAuth => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    /// True if clients speak TLS.
    pub fn tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SslClientAuth | Self::SaslSsl)
    }

    /// True if clients authenticate with SASL.
    pub fn sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

/// What to start. `KafkaOptions::default()` is one broker without security.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    /// 1, or 3 with replication factor 3 and `min.insync.replicas` 2.
    pub brokers: usize,
    /// Lines of `server.properties` that replace or add to the kit's.
    pub properties: Vec<(String, String)>,
    /// How clients connect.
    pub security: Security,
    /// `transaction.version` at format time; `None` keeps Kafka's default (2 in 4.3).
    pub transaction_version: Option<u16>,
    /// Advertise a [`Proxy`](crate::Proxy) per broker to clients, so that links can be stalled and cut.
    pub through_proxy: bool,
    /// The address on which clients are served; other than loopback only for a network namespace of the test.
    pub host: IpAddr,
    /// Heap of each broker in MiB.
    pub heap_mb: usize,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            brokers: 1,
            properties: Vec::new(),
            security: Security::Plaintext,
            transaction_version: None,
            through_proxy: false,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            heap_mb: 384,
        }
    }
}

impl KafkaOptions {
    /// Three brokers, replication factor 3, `min.insync.replicas` 2.
    pub fn three_brokers() -> Self {
        Self { brokers: 3, ..Self::default() }
    }

    /// Sets one line of `server.properties`.
    pub fn property(mut self, name: &str, value: impl ToString) -> Self {
        self.properties.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets how clients connect.
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// Puts a proxy in front of each broker.
    pub fn through_proxy(mut self) -> Self {
        self.through_proxy = true;
        self
    }
}
