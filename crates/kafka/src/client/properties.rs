//! [`Properties`]: Kafka's flat properties, taken one by one so that what nobody takes is found.
use super::error::{ClientError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

/// Flat properties. Each part of a program takes what it knows; [`finish`](Properties::finish) refuses the rest.
#[derive(Clone)]
pub struct Properties {
    left: BTreeMap<String, String>,
    known: BTreeSet<&'static str>,
}

impl Properties {
    /// A copy of `properties`, nothing taken yet.
    pub fn new(properties: &BTreeMap<String, String>) -> Self {
        Properties { left: properties.clone(), known: BTreeSet::new() }
    }

    /// Takes the value of `key`.
    pub fn take(&mut self, key: &'static str) -> Option<String> {
        self.known.insert(key);
        self.left.remove(key)
    }

    /// Takes keys that have no meaning here but are no mistake either.
    pub fn ignore(&mut self, keys: &[&'static str]) {
        for key in keys {
            self.take(key);
        }
    }

    /// Takes a value and parses it; the error names the key and what was `expected`.
    pub fn parse<T: FromStr>(&mut self, key: &'static str, expected: &str) -> Result<Option<T>> {
        let Some(text) = self.take(key) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| ClientError::config(key, format!("'{text}' is not {expected}")))
    }

    /// Takes a time in whole milliseconds, more than 0.
    pub fn millis(&mut self, key: &'static str) -> Result<Option<Duration>> {
        match self.parse::<u64>(key, "a number of milliseconds")? {
            Some(0) => Err(ClientError::config(key, "must be more than 0")),
            other => Ok(other.map(Duration::from_millis)),
        }
    }

    /// Takes a boolean.
    pub fn boolean(&mut self, key: &'static str) -> Result<Option<bool>> {
        self.parse(key, "true or false")
    }

    /// Refuses what nobody took, with the nearest key that was asked for.
    pub fn finish(self) -> Result<()> {
        let Some(key) = self.left.keys().next() else { return Ok(()) };
        let near = self.known.iter().map(|k| (distance(k, key), *k)).min();
        let problem = match near {
            Some((d, k)) if d <= key.len().max(3) / 3 => format!("is not known; did you mean '{k}'?"),
            _ => "is not known".to_string(),
        };
        Err(ClientError::config(key.clone(), problem))
    }
}

/// Edit distance (Levenshtein), in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::config::*;
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let e = ClientConfig::from_properties(&map(&[("bootstrap.servers", "a:1"), ("sasl.mechanim", "PLAIN")])).unwrap_err().to_string();
        assert!(e.contains("sasl.mechanim") && e.contains("did you mean 'sasl.mechanism'"), "{e}");
        let e = ClientConfig::from_properties(&map(&[("bootstrap.servers", "a:1"), ("zzzz", "")])).unwrap_err().to_string();
        assert_eq!(e, "property 'zzzz': is not known");
    }

    #[test]
    fn scram_over_tls_is_read_from_kafkas_names() {
        let c = ClientConfig::from_properties(&map(&[
            ("bootstrap.servers", "a:1, b:2"),
            ("security.protocol", "SASL_SSL"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.jaas.config", "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"u\" password=\"p;\\\"w\";"),
            ("ssl.ca.location", "/x/ca.pem"),
            ("ssl.enabled.protocols", "TLSv1.1, TLSv1.3"),
            ("request.timeout.ms", "1500"),
        ]))
        .unwrap();
        assert_eq!(c.bootstrap, ["a:1", "b:2"]);
        assert_eq!(c.request_timeout, Duration::from_millis(1500));
        let sasl = c.security.sasl.clone().unwrap();
        assert_eq!(sasl.mechanism, SaslMechanism::ScramSha512);
        let SaslCredentials::Password { username, password } = sasl.credentials else { panic!() };
        assert_eq!((username.as_str(), password.reveal()), ("u", "p;\"w"));
        assert_eq!(c.security.tls.as_ref().unwrap().roots, TrustRoots::File("/x/ca.pem".into()));
        assert_eq!(c.security.tls.as_ref().unwrap().versions, TlsVersions::Only13);
        assert!(!format!("{c:?}").contains("p;"), "a password is shown by Debug");
    }

    #[test]
    fn wrong_values_say_what_is_right() {
        for (extra, part) in [
            (("security.protocol", "TLS"), "SASL_SSL"),
            (("request.timeout.ms", "soon"), "milliseconds"),
            (("security.protocol", "SASL_PLAINTEXT"), "sasl.mechanism"),
            (("ssl.truststore.type", "JKS"), "keytool"),
            (("ssl.enabled.protocols", "TLSv1.1"), "TLSv1.3"),
            (("bootstrap.servers", "host"), "host:port"),
        ] {
            let e = ClientConfig::from_properties(&map(&[("bootstrap.servers", "a:1"), extra])).unwrap_err().to_string();
            assert!(e.contains(part), "{extra:?}: {e}");
        }
    }
}
