//! Stub: an agent's certificate and private key.
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An identity that cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(String);

/// Certificate and private key.
#[derive(Debug)]
pub struct Identity {
    certificate: String,
    key: String,
    fingerprint: Fingerprint,
}

/// SHA-256 of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Identity {
    /// Makes one.
    pub fn generate() -> Result<Self, IdentityError> {
        let made = rcgen::generate_simple_self_signed(vec!["penstock".into()])
            .map_err(|e| IdentityError(e.to_string()))?;
        Self::from_pem(&made.cert.pem(), &made.signing_key.serialize_pem())
    }
    /// Reads one.
    pub fn from_pem(cert: &str, key: &str) -> Result<Self, IdentityError> {
        let der = CertificateDer::from_pem_slice(cert.as_bytes())
            .map_err(|e| IdentityError(e.to_string()))?;
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| IdentityError(e.to_string()))?;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der);
        let fingerprint = Fingerprint(digest.as_ref().try_into().expect("32 bytes"));
        Ok(Self { certificate: cert.into(), key: key.into(), fingerprint })
    }
    /// As PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }
    /// As PEM.
    pub fn key_pem(&self) -> &str {
        &self.key
    }
    /// Of the certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
    /// For servers.
    pub fn tls_server_config(&self) -> Arc<rustls::ServerConfig> {
        let chain = vec![CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("checked")];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("checked");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("checked");
        Arc::new(config)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SHA256:")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || IdentityError(format!("'{text}' is not a fingerprint: write SHA256: and 64 hexadecimal digits"));
        let hex = text.strip_prefix("SHA256:").ok_or_else(bad)?;
        if hex.len() != 64 || !hex.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}
