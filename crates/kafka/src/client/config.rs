//! [`ClientConfig`]: how the cluster is reached, in Kafka's own property names.
use super::error::{ClientError, Result};
use super::jaas;
use super::properties::Properties;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text, for the one place that must send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Makes a bearer token for each (re-)authentication.
pub type TokenProvider = Arc<dyn Fn() -> BoxFuture<'static, Result<Secret>> + Send + Sync>;

/// Mechanisms of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    /// User name and password as they are: only over TLS.
    Plain,
    /// Challenge and response on SHA-256.
    ScramSha256,
    /// Challenge and response on SHA-512.
    ScramSha512,
    /// A bearer token (KIP-255).
    OAuthBearer,
}

impl SaslMechanism {
    /// The mechanism's registered name.
    pub fn name(self) -> &'static str {
        match self {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
            SaslMechanism::OAuthBearer => "OAUTHBEARER",
        }
    }

    fn parse(name: &str) -> Result<Self> {
        [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512, SaslMechanism::OAuthBearer]
            .into_iter()
            .find(|m| m.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                ClientError::config(
                    "sasl.mechanism",
                    format!("'{name}' is not supported; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
                )
            })
    }
}

/// What is shown to the broker.
#[derive(Clone)]
pub enum SaslCredentials {
    /// For PLAIN and SCRAM.
    Password {
        /// User name.
        username: String,
        /// Password.
        password: Secret,
    },
    /// For OAUTHBEARER: one fixed token.
    Token(Secret),
    /// For OAUTHBEARER: a token made anew for each authentication.
    Provider(TokenProvider),
}

impl fmt::Debug for SaslCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaslCredentials::Password { username, password } => {
                f.debug_struct("Password").field("username", username).field("password", password).finish()
            }
            SaslCredentials::Token(_) => f.write_str("Token([hidden])"),
            SaslCredentials::Provider(_) => f.write_str("Provider"),
        }
    }
}

/// How to log in.
#[derive(Clone, Debug)]
pub struct Sasl {
    /// The mechanism.
    pub mechanism: SaslMechanism,
    /// The credentials, of the kind that the mechanism needs.
    pub credentials: SaslCredentials,
}

/// Certificates that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrustRoots {
    /// Those of the operating system.
    #[default]
    System,
    /// A file of PEM certificates.
    File(PathBuf),
    /// PEM certificates.
    Pem(String),
}

/// How the broker's certificate is checked. The chain is always checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVerify {
    /// Chain and host name (`ssl.endpoint.identification.algorithm=https`).
    #[default]
    ChainAndName,
    /// The chain alone (`ssl.endpoint.identification.algorithm=`).
    ChainOnly,
}

/// Versions of TLS that may be agreed on (`ssl.enabled.protocols`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersions {
    /// 1.2 and 1.3.
    #[default]
    Both,
    /// 1.2 only.
    Only12,
    /// 1.3 only.
    Only13,
}

impl TlsVersions {
    /// Older versions in the list, which are broken, are left out.
    fn parse(list: &str) -> Result<Self> {
        let has = |version: &str| list.split(',').any(|item| item.trim().eq_ignore_ascii_case(version));
        match (has("TLSv1.2"), has("TLSv1.3")) {
            (true, true) => Ok(TlsVersions::Both),
            (true, false) => Ok(TlsVersions::Only12),
            (false, true) => Ok(TlsVersions::Only13),
            (false, false) => Err(ClientError::config("ssl.enabled.protocols", format!("'{list}' has neither TLSv1.2 nor TLSv1.3"))),
        }
    }
}

/// TLS towards the brokers.
#[derive(Clone, Debug, Default)]
pub struct TlsConfig {
    /// Trusted certificates.
    pub roots: TrustRoots,
    /// Our certificate chain and key as PEM, for brokers that ask for one.
    pub identity: Option<(String, Secret)>,
    /// What is checked.
    pub verify: TlsVerify,
    /// Which versions may be agreed on.
    pub versions: TlsVersions,
}

/// Encryption and login.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// TLS, `None` for plain text.
    pub tls: Option<TlsConfig>,
    /// Login, `None` for none.
    pub sasl: Option<Sasl>,
}

/// How the cluster is reached.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of some brokers; the others are learnt from them.
    pub bootstrap: Vec<String>,
    /// Name that the broker logs.
    pub client_id: String,
    /// Encryption and login.
    pub security: Security,
    /// Longest time for one connection, with TLS and login.
    pub connect_timeout: Duration,
    /// Longest wait for one answer; a connection that is silent for longer is closed.
    pub request_timeout: Duration,
    /// Longest time for a call with its retries, where the caller gives no deadline.
    pub api_timeout: Duration,
    /// Age at which cached metadata is read again.
    pub metadata_max_age: Duration,
}

impl ClientConfig {
    /// A configuration for these brokers, plain text, with Kafka's default time limits.
    pub fn new(bootstrap: impl IntoIterator<Item = impl Into<String>>) -> Self {
        ClientConfig {
            bootstrap: bootstrap.into_iter().map(Into::into).collect(),
            client_id: "semel".into(),
            security: Security::default(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            api_timeout: Duration::from_secs(60),
            metadata_max_age: Duration::from_secs(300),
        }
    }

    /// Reads Kafka's properties. A property that is not known is an error that names the nearest known one.
    pub fn from_properties(properties: &BTreeMap<String, String>) -> Result<Self> {
        let mut properties = Properties::new(properties);
        let config = Self::take(&mut properties)?;
        properties.finish()?;
        Ok(config)
    }

    /// Takes the connection's properties out of `properties` and leaves the others, for a caller that has more of them.
    pub fn take(p: &mut Properties) -> Result<Self> {
        let servers = p.take("bootstrap.servers").ok_or_else(|| {
            ClientError::config("bootstrap.servers", "is missing; give host:port of one or more brokers, separated by commas")
        })?;
        let bootstrap: Vec<String> = servers.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_string).collect();
        for server in &bootstrap {
            let port = server.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten());
            if port.is_none() {
                return Err(ClientError::config("bootstrap.servers", format!("'{server}' is not host:port")));
            }
        }
        if bootstrap.is_empty() {
            return Err(ClientError::config("bootstrap.servers", "is empty; give host:port of one or more brokers"));
        }
        let mut config = ClientConfig::new(bootstrap);
        if let Some(id) = p.take("client.id") {
            config.client_id = id;
        }
        if let Some(t) = p.millis("request.timeout.ms")? {
            config.request_timeout = t;
        }
        if let Some(t) = p.millis("socket.connection.setup.timeout.ms")? {
            config.connect_timeout = t;
        }
        if let Some(t) = p.millis("default.api.timeout.ms")? {
            config.api_timeout = t;
        }
        if let Some(t) = p.millis("metadata.max.age.ms")? {
            config.metadata_max_age = t;
        }
        config.security = Self::take_security(p)?;
        Ok(config)
    }

    fn take_security(p: &mut Properties) -> Result<Security> {
        let protocol = p.take("security.protocol").unwrap_or_else(|| "PLAINTEXT".into()).to_ascii_uppercase();
        let (tls, sasl) = match protocol.as_str() {
            "PLAINTEXT" => (false, false),
            "SSL" => (true, false),
            "SASL_PLAINTEXT" => (false, true),
            "SASL_SSL" => (true, true),
            other => {
                return Err(ClientError::config(
                    "security.protocol",
                    format!("'{other}' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
                ));
            }
        };
        let settings = Self::take_tls(p)?;
        let login = jaas::take_sasl(p, SaslMechanism::parse)?;
        if sasl && login.is_none() {
            return Err(ClientError::config(
                "sasl.mechanism",
                format!("is missing, and security.protocol is {protocol}; use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
            ));
        }
        Ok(Security { tls: tls.then_some(settings), sasl: login.filter(|_| sasl) })
    }

    fn take_tls(p: &mut Properties) -> Result<TlsConfig> {
        for key in ["ssl.truststore.type", "ssl.keystore.type"] {
            let kind = p.take(key).unwrap_or_else(|| "PEM".into());
            if !kind.eq_ignore_ascii_case("PEM") {
                return Err(ClientError::config(
                    key,
                    format!(
                        "'{kind}' is not supported, only PEM; convert with: keytool -exportcert -rfc -keystore STORE -alias NAME -file ca.pem"
                    ),
                ));
            }
        }
        p.ignore(&["ssl.truststore.password", "ssl.protocol"]);
        let mut tls = TlsConfig::default();
        if let Some(list) = p.take("ssl.enabled.protocols") {
            tls.versions = TlsVersions::parse(&list)?;
        }
        if let Some(pem) = p.take("ssl.truststore.certificates").or_else(|| p.take("ssl.ca.pem")) {
            tls.roots = TrustRoots::Pem(pem);
        }
        if let Some(path) = p.take("ssl.truststore.location").or_else(|| p.take("ssl.ca.location")) {
            tls.roots = TrustRoots::File(path.into());
        }
        let read = |key: &str, path: String| {
            std::fs::read_to_string(&path).map_err(|e| ClientError::config(key, format!("cannot read {path}: {e}")))
        };
        let mut chain = p.take("ssl.keystore.certificate.chain").or_else(|| p.take("ssl.certificate.pem"));
        let mut key = p.take("ssl.keystore.key").or_else(|| p.take("ssl.key.pem"));
        if let Some(path) = p.take("ssl.certificate.location") {
            chain = Some(read("ssl.certificate.location", path)?);
        }
        if let Some(path) = p.take("ssl.key.location") {
            key = Some(read("ssl.key.location", path)?);
        }
        // Kafka's PEM key store: one file with the key and the chain.
        if let Some(path) = p.take("ssl.keystore.location") {
            let both = read("ssl.keystore.location", path)?;
            chain = Some(both.clone());
            key = Some(both);
        }
        for password in ["ssl.key.password", "ssl.keystore.password"] {
            if p.take(password).is_some_and(|v| !v.is_empty()) {
                return Err(ClientError::config(
                    password,
                    "encrypted keys are not supported; decrypt the key (openssl pkcs8 -in KEY -out key.pem) and protect the file by its permissions",
                ));
            }
        }
        tls.identity = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, Secret::new(key))),
            (None, None) => None,
            (Some(_), None) => return Err(ClientError::config("ssl.keystore.key", "is missing, but a client certificate is given")),
            (None, Some(_)) => return Err(ClientError::config("ssl.keystore.certificate.chain", "is missing, but a client key is given")),
        };
        if let Some(algorithm) = p.take("ssl.endpoint.identification.algorithm") {
            tls.verify = match algorithm.trim().to_ascii_lowercase().as_str() {
                "https" => TlsVerify::ChainAndName,
                "" | "none" => TlsVerify::ChainOnly,
                other => {
                    return Err(ClientError::config(
                        "ssl.endpoint.identification.algorithm",
                        format!("'{other}' is neither 'https' nor empty"),
                    ));
                }
            };
        }
        Ok(tls)
    }
}
