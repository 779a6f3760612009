//! Login by SASL, inside Kafka's own requests (KIP-43, KIP-152).
use super::config::{Sasl, SaslCredentials, SaslMechanism};
use super::connection::Connection;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use bytes::Bytes;
use kafka_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::StrBytes;
use rsasl::prelude::{Mechname, SASLClient, SASLConfig, State};
use std::time::Duration;

/// Logs in on a fresh connection. Returns how long the login is valid, `None` for as long as the connection is.
pub(crate) async fn login(connection: &Connection, sasl: &Sasl, deadline: Deadline) -> Result<Option<Duration>> {
    let name = sasl.mechanism.name();
    let refused =
        |reason: String| ClientError::Authentication { address: connection.address().to_string(), mechanism: name.to_string(), reason };
    let request = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
    let version = connection.version::<SaslHandshakeRequest>(1, 1)?;
    let answer = connection.call(&request, version, deadline).await?;
    if answer.error_code != 0 {
        let offered: Vec<&str> = answer.mechanisms.iter().map(StrBytes::as_str).collect();
        return Err(refused(format!("{}; the broker offers {}", ErrorCode(answer.error_code), offered.join(", "))));
    }
    match (&sasl.credentials, sasl.mechanism) {
        (SaslCredentials::Password { username, password }, SaslMechanism::Plain) => {
            step(connection, name, format!("\0{username}\0{}", password.reveal()).into(), deadline).await.map(|(_, lifetime)| lifetime)
        }
        (SaslCredentials::Password { username, password }, SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512) => {
            let config =
                SASLConfig::with_credentials(None, username.clone(), password.reveal().to_string()).map_err(|e| refused(e.to_string()))?;
            let mechanism = Mechname::parse(name.as_bytes()).map_err(|e| refused(e.to_string()))?;
            let mut session = SASLClient::new(config).start_suggested(&[mechanism]).map_err(|e| refused(e.to_string()))?;
            let (mut input, mut lifetime) = (None::<Bytes>, None);
            loop {
                let mut out = Vec::new();
                // The last step checks the broker's own proof that it knows the password.
                let state = session.step(input.as_deref(), &mut out).map_err(|e| refused(e.to_string()))?;
                if !out.is_empty() {
                    let (bytes, valid) = step(connection, name, out.into(), deadline).await?;
                    (input, lifetime) = (Some(bytes), valid);
                }
                if matches!(state, State::Finished(_)) {
                    return Ok(lifetime);
                }
            }
        }
        (SaslCredentials::Token(token), SaslMechanism::OAuthBearer) => bearer(connection, token.reveal(), deadline).await,
        (SaslCredentials::Provider(provider), SaslMechanism::OAuthBearer) => bearer(connection, provider().await?.reveal(), deadline).await,
        _ => Err(ClientError::config("sasl.mechanism", format!("{name} does not fit the kind of credentials"))),
    }
}

/// RFC 7628, as Kafka takes it (KIP-255).
async fn bearer(connection: &Connection, token: &str, deadline: Deadline) -> Result<Option<Duration>> {
    let name = SaslMechanism::OAuthBearer.name();
    let (answer, lifetime) = step(connection, name, format!("n,,\x01auth=Bearer {token}\x01\x01").into(), deadline).await?;
    if answer.is_empty() {
        return Ok(lifetime);
    }
    // A refusal comes as JSON, and is to be acknowledged; the broker then answers with an error code.
    let reason = String::from_utf8_lossy(&answer).into_owned();
    step(connection, name, Bytes::from_static(b"\x01"), deadline).await?;
    Err(ClientError::Authentication { address: connection.address().to_string(), mechanism: name.to_string(), reason })
}

async fn step(connection: &Connection, mechanism: &str, bytes: Bytes, deadline: Deadline) -> Result<(Bytes, Option<Duration>)> {
    let request = SaslAuthenticateRequest::default().with_auth_bytes(bytes);
    let version = connection.version::<SaslAuthenticateRequest>(0, 2)?;
    let answer = connection.call(&request, version, deadline).await?;
    if answer.error_code != 0 {
        let reason = match &answer.error_message {
            Some(message) if !message.is_empty() => format!("{}: {}", ErrorCode(answer.error_code), message.as_str()),
            _ => ErrorCode(answer.error_code).to_string(),
        };
        return Err(ClientError::Authentication { address: connection.address().to_string(), mechanism: mechanism.to_string(), reason });
    }
    let lifetime = u64::try_from(answer.session_lifetime_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
    Ok((answer.auth_bytes, lifetime))
}
