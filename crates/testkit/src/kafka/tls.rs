use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::{Error, Result};

/// PEM files of a private authority and of what it signed, for 127.0.0.1 and localhost.
#[derive(Debug, Clone)]
pub struct Tls {
    dir: PathBuf,
}

impl Tls {
    /// Makes an authority, a server and a client certificate in the folder.
    pub(super) fn generate(dir: &Path, hosts: &[String]) -> Result<Self> {
        let failed = |e: rcgen::Error| Error::Setup(format!("making certificates: {e}"));
        let write = |name: &str, text: String| std::fs::write(dir.join(name), text).map_err(Error::io(format!("writing {name}")));
        let ca_key = KeyPair::generate().map_err(failed)?;
        let mut ca = CertificateParams::new(Vec::new()).map_err(failed)?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "Semel tests");
        write("ca.pem", ca.self_signed(&ca_key).map_err(failed)?.pem())?;
        let issuer = Issuer::from_params(&ca, &ca_key);
        for (name, common) in [("server", "broker"), ("client", "client")] {
            let key = KeyPair::generate().map_err(failed)?;
            let mut params = CertificateParams::new(hosts.to_vec()).map_err(failed)?;
            params.distinguished_name.push(DnType::CommonName, common);
            let cert = params.signed_by(&key, &issuer).map_err(failed)?.pem();
            write(&format!("{name}.pem"), format!("{}{cert}", key.serialize_pem()))?;
            write(&format!("{name}.crt"), cert)?;
            write(&format!("{name}.key"), key.serialize_pem())?;
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The client's certificate chain.
    pub fn client_certificate(&self) -> PathBuf {
        self.dir.join("client.crt")
    }

    /// The client's key, PKCS #8.
    pub fn client_key(&self) -> PathBuf {
        self.dir.join("client.key")
    }
}
