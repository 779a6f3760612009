//! TLS towards the brokers.
use super::config::{TlsConfig, TlsVerify, TlsVersions, TrustRoots};
use super::error::{ClientError, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::{CertificateError, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Prepares TLS by the configuration; reads the files that it names.
pub(crate) fn connector(config: &TlsConfig) -> Result<TlsConnector> {
    let roots = Arc::new(roots(&config.roots)?);
    let provider = Arc::new(ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(config.versions))
        .map_err(|e| ClientError::config("ssl.enabled.protocols", e.to_string()))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|e| ClientError::config("ssl.truststore.location", format!("no trust can be built on it: {e}")))?;
    let verifier: Arc<dyn ServerCertVerifier> = match config.verify {
        TlsVerify::ChainAndName => verifier,
        TlsVerify::ChainOnly => Arc::new(ChainOnly(verifier)),
    };
    // Called dangerous because a verifier of one's own can be careless; this one only leaves out the name where that is asked for.
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let tls = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(chain.as_bytes()).map_err(|e| ClientError::config("ssl.keystore.certificate.chain", e))?;
            let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes())
                .map_err(|e| ClientError::config("ssl.keystore.key", format!("holds no usable PEM key: {e}")))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| ClientError::config("ssl.keystore.key", format!("does not fit the certificate: {e}")))?
        }
    };
    Ok(TlsConnector::from(Arc::new(tls)))
}

static ONLY_12: [&rustls::SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
static ONLY_13: [&rustls::SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn versions(allowed: TlsVersions) -> &'static [&'static rustls::SupportedProtocolVersion] {
    match allowed {
        TlsVersions::Both => rustls::DEFAULT_VERSIONS,
        TlsVersions::Only12 => &ONLY_12,
        TlsVersions::Only13 => &ONLY_13,
    }
}

fn certificates(pem: &[u8]) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("holds no PEM certificate".into()),
        Ok(all) => Ok(all),
        Err(e) => Err(format!("is not readable as PEM: {e}")),
    }
}

fn roots(source: &TrustRoots) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let (key, found) = match source {
        TrustRoots::System => {
            let found = rustls_native_certs::load_native_certs();
            if found.certs.is_empty() {
                let reasons: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
                return Err(ClientError::config(
                    "ssl.truststore.location",
                    format!("is not set, and the system has no trusted certificates ({})", reasons.join("; ")),
                ));
            }
            store.add_parsable_certificates(found.certs);
            return Ok(store);
        }
        TrustRoots::File(path) => {
            let key = "ssl.truststore.location";
            let pem = std::fs::read(path).map_err(|e| ClientError::config(key, format!("cannot read {}: {e}", path.display())))?;
            (key, certificates(&pem))
        }
        TrustRoots::Pem(pem) => ("ssl.truststore.certificates", certificates(pem.as_bytes())),
    };
    for certificate in found.map_err(|e| ClientError::config(key, e))? {
        store.add(certificate).map_err(|e| ClientError::config(key, format!("holds a certificate that cannot be trusted: {e}")))?;
    }
    Ok(store)
}

/// Checks chain and time of validity, not the host's name.
#[derive(Debug)]
struct ChainOnly(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ChainOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, when the chain was found good.
            Err(TlsError::InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
