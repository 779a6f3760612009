//! `server.properties` of each broker, as text.

use std::collections::BTreeMap;
use std::path::Path;

use super::options::{KafkaOptions, PASSWORD, Security, USER};

/// What one broker's file depends on besides the options.
pub(super) struct NodeFacts<'a> {
    /// From 1.
    pub id: i32,
    /// Bound for clients.
    pub client_port: u16,
    /// Told to clients: a proxy's port or `client_port`.
    pub advertised_port: u16,
    /// For the brokers among themselves and the verifying tool.
    pub internal_port: u16,
    /// Controller ports of all nodes, in order of their ids.
    pub controller_ports: &'a [u16],
    /// Where the broker's data is.
    pub data: &'a Path,
    /// Folder of the PEM files.
    pub tls: &'a Path,
}

const MECHANISMS: [&str; 4] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];

/// The file's text; properties of the options win over the kit's.
pub(super) fn server_properties(options: &KafkaOptions, node: &NodeFacts<'_>) -> String {
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        map.insert(name.to_owned(), value);
    };
    let host = options.host;
    let controller = node.controller_ports[usize::try_from(node.id - 1).unwrap_or(0)];
    let voters: Vec<String> = node.controller_ports.iter().enumerate().map(|(i, port)| format!("{}@127.0.0.1:{port}", i + 1)).collect();
    set("process.roles", "broker,controller".into());
    set("node.id", node.id.to_string());
    set("controller.quorum.voters", voters.join(","));
    set("controller.listener.names", "CONTROLLER".into());
    set("inter.broker.listener.name", "INTERNAL".into());
    set("listener.security.protocol.map", format!("CLIENT:{},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT", options.security.protocol()));
    set(
        "listeners",
        format!("CLIENT://{host}:{},INTERNAL://127.0.0.1:{},CONTROLLER://127.0.0.1:{controller}", node.client_port, node.internal_port),
    );
    set("advertised.listeners", format!("CLIENT://{host}:{},INTERNAL://127.0.0.1:{}", node.advertised_port, node.internal_port));
    set("log.dirs", node.data.display().to_string());
    let three = options.brokers >= 3;
    let (factor, isr) = if three { (3, 2) } else { (1, 1) };
    set("default.replication.factor", factor.to_string());
    set("min.insync.replicas", isr.to_string());
    set("offsets.topic.replication.factor", factor.to_string());
    set("transaction.state.log.replication.factor", factor.to_string());
    set("transaction.state.log.min.isr", isr.to_string());
    set("share.coordinator.state.topic.replication.factor", factor.to_string());
    set("share.coordinator.state.topic.min.isr", isr.to_string());
    for (name, value) in [
        ("num.partitions", "4"),
        ("offsets.topic.num.partitions", "4"),
        ("transaction.state.log.num.partitions", "4"),
        ("group.initial.rebalance.delay.ms", "0"),
        ("auto.create.topics.enable", "false"),
        ("auto.leader.rebalance.enable", "false"),
        ("log.segment.delete.delay.ms", "1000"),
        // A small machine: few threads, and a cleaner that does not take a third of the heap.
        ("num.network.threads", "2"),
        ("num.io.threads", "4"),
        ("background.threads", "2"),
        ("log.cleaner.dedupe.buffer.size", "8388608"),
        ("log.index.size.max.bytes", "2097152"),
        // A broker that was killed is let in again when its old session has ended (9 s by default).
        ("broker.session.timeout.ms", "4000"),
        ("broker.heartbeat.interval.ms", "500"),
        ("replica.lag.time.max.ms", "6000"),
    ] {
        set(name, value.into());
    }
    if options.security.tls() {
        let file = |name: &str| node.tls.join(name).display().to_string();
        set("listener.name.client.ssl.keystore.type", "PEM".into());
        set("listener.name.client.ssl.keystore.location", file("server.pem"));
        set("listener.name.client.ssl.truststore.type", "PEM".into());
        set("listener.name.client.ssl.truststore.location", file("ca.pem"));
        let auth = if options.security == Security::SslClientAuth { "required" } else { "none" };
        set("listener.name.client.ssl.client.auth", auth.into());
    }
    if options.security.sasl() {
        let common = "org.apache.kafka.common.security";
        set("listener.name.client.sasl.enabled.mechanisms", MECHANISMS.join(","));
        for (mechanism, jaas) in [
            ("plain", format!("{common}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";")),
            ("scram-sha-256", format!("{common}.scram.ScramLoginModule required;")),
            ("scram-sha-512", format!("{common}.scram.ScramLoginModule required;")),
            ("oauthbearer", format!("{common}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"{USER}\";")),
        ] {
            set(&format!("listener.name.client.{mechanism}.sasl.jaas.config"), jaas);
        }
    }
    for (name, value) in &options.properties {
        map.insert(name.clone(), value.clone());
    }
    map.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

/// Arguments of Kafka's `storage format`, after the word `format`.
pub(super) fn format_arguments(options: &KafkaOptions, cluster: &str, file: &Path) -> Vec<String> {
    // In one word: a random id may begin with `-`.
    let mut args = vec![format!("--cluster-id={cluster}"), "-c".into(), file.display().to_string()];
    if let Some(version) = options.transaction_version {
        args.extend(["--feature".into(), format!("transaction.version={version}")]);
    }
    if options.security.sasl() {
        for hash in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            args.extend(["--add-scram".into(), format!("{hash}=[name={USER},password={PASSWORD}]")]);
        }
    }
    args
}

/// Settings of a Java client for the clients' listener.
pub(super) fn client_properties(security: Security, tls: &Path, mechanism: &str, user: &str, password: &str) -> Vec<(String, String)> {
    let mut set = vec![("security.protocol".to_owned(), security.protocol().to_owned())];
    if security.tls() {
        set.push(("ssl.truststore.type".into(), "PEM".into()));
        set.push(("ssl.truststore.location".into(), tls.join("ca.pem").display().to_string()));
    }
    if security == Security::SslClientAuth {
        set.push(("ssl.keystore.type".into(), "PEM".into()));
        set.push(("ssl.keystore.location".into(), tls.join("client.pem").display().to_string()));
    }
    if security.sasl() {
        let module = match mechanism {
            "PLAIN" => "plain.PlainLoginModule",
            "OAUTHBEARER" => "oauthbearer.OAuthBearerLoginModule",
            _ => "scram.ScramLoginModule",
        };
        let login = match mechanism {
            "OAUTHBEARER" => format!("unsecuredLoginStringClaim_sub=\"{user}\""),
            _ => format!("username=\"{user}\" password=\"{password}\""),
        };
        set.push(("sasl.mechanism".into(), mechanism.into()));
        let jaas = format!("org.apache.kafka.common.security.{module} required {login};");
        set.push(("sasl.jaas.config".into(), jaas));
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_properties_win_and_clients_are_told_the_proxy() {
        let options = KafkaOptions::three_brokers().property("num.partitions", 9);
        let node = NodeFacts {
            id: 2,
            client_port: 5,
            advertised_port: 77,
            internal_port: 6,
            controller_ports: &[1, 2, 3],
            data: Path::new("/d"),
            tls: Path::new("/t"),
        };
        let text = server_properties(&options, &node);
        for line in [
            "num.partitions=9",
            "advertised.listeners=CLIENT://127.0.0.1:77,INTERNAL://127.0.0.1:6",
            "listeners=CLIENT://127.0.0.1:5,INTERNAL://127.0.0.1:6,CONTROLLER://127.0.0.1:2",
            "controller.quorum.voters=1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
            "transaction.state.log.min.isr=2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
    }
}
