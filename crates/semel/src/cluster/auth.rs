//! The cluster secret, and proofs of knowing it.
use hmac::{Hmac, Mac};
use rand::Rng;
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;

/// The environment variable of the cluster secret.
pub const SECRET_VARIABLE: &str = "SEMEL_CLUSTER_SECRET";

/// Shared by all processes of a job. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which end of a connection proves itself. Part of what is signed, so that a proof cannot be sent back to its maker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that connects.
    Connector,
    /// The one that listens.
    Listener,
}

impl Secret {
    /// 32 random bytes.
    pub fn random() -> Secret {
        Secret(Arc::from(rand::rng().random::<[u8; 32]>()))
    }

    /// A given one, of any length.
    pub fn new(secret: &[u8]) -> Secret {
        Secret(Arc::from(secret))
    }

    /// `SEMEL_CLUSTER_SECRET`, else a random one.
    pub fn from_environment() -> Secret {
        match std::env::var(SECRET_VARIABLE) {
            Ok(secret) if !secret.is_empty() => Secret::new(secret.as_bytes()),
            _ => Secret::random(),
        }
    }

    /// For the pipe to a child process only.
    pub(crate) fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// See [`Secret::to_hex`].
    pub(crate) fn from_hex(text: &str) -> Option<Secret> {
        unhex(text).map(|bytes| Secret(Arc::from(bytes)))
    }

    fn mac(&self, side: Side, hello: &[u8], challenge: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(match side {
            Side::Connector => b"semel link, connector".as_slice(),
            Side::Listener => b"semel link, listener".as_slice(),
        });
        for part in [hello, challenge] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Some(mac)
    }

    /// HMAC-SHA256 over side, hello (with the connector's nonce) and challenge (the listener's nonce), as hexadecimal digits.
    pub fn prove(&self, side: Side, hello: &[u8], challenge: &[u8]) -> String {
        self.mac(side, hello, challenge).map(|mac| hex(&mac.finalize().into_bytes())).unwrap_or_default()
    }

    /// Whether the proof was made with this secret. In constant time.
    pub fn verify(&self, side: Side, hello: &[u8], challenge: &[u8], proof: &str) -> bool {
        match (self.mac(side, hello, challenge), unhex(proof)) {
            (Some(mac), Some(proof)) => mac.verify_slice(&proof).is_ok(),
            _ => false,
        }
    }
}

/// 32 random bytes as hexadecimal digits.
pub fn nonce() -> String {
    hex(&rand::rng().random::<[u8; 32]>())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_proof_holds_for_one_secret_side_hello_and_challenge() {
        let secret = Secret::new(b"right");
        let proof = secret.prove(Side::Connector, b"hello", b"nonce");
        assert!(secret.verify(Side::Connector, b"hello", b"nonce", &proof));
        assert!(!Secret::new(b"wrong").verify(Side::Connector, b"hello", b"nonce", &proof));
        assert!(!secret.verify(Side::Listener, b"hello", b"nonce", &proof), "sent back to its maker");
        assert!(!secret.verify(Side::Connector, b"hello2", b"nonce", &proof));
        assert!(!secret.verify(Side::Connector, b"hello", b"nonce2", &proof), "replayed");
        assert!(!secret.verify(Side::Connector, b"hellon", b"once", &proof), "moved between the parts");
        for bad in ["", "0", "zz", "ä", &proof[2..]] {
            assert!(!secret.verify(Side::Connector, b"hello", b"nonce", bad));
        }
    }

    #[test]
    fn a_secret_is_not_printed_and_survives_the_pipe() {
        let secret = Secret::random();
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(Secret::from_hex(&secret.to_hex()).unwrap(), secret);
        assert_ne!(Secret::random(), secret);
    }
}
