//! Certificate with its private key, and the TLS configuration of a server that has it.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fingerprint::Fingerprint;
use crate::server_certificate::ServerCertificate;
use crate::tls_config::crypto;
use crate::verifier::AnyClient;

/// Error of a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate could not be generated.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The text is not PEM or not a certificate with its key.
    #[error("not a PEM certificate with its private key: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// TLS rejects the certificate or key.
    #[error("TLS refuses the certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The text is not a fingerprint.
    #[error("'{0}' is not a fingerprint: write it like SHA256: and 64 hexadecimal digits")]
    Fingerprint(String),
}

/// A certificate and its private key.
pub struct Identity {
    pem: RwLock<PemPair>,
    certificate: Arc<ServerCertificate>,
    server: Arc<ServerConfig>,
}

/// Texts of a certificate with its chain, and of its key.
#[derive(Clone, PartialEq, Eq)]
struct PemPair {
    certificate: String,
    key: String,
}

impl PemPair {
    fn parse(&self) -> Result<ServerCertificate, IdentityError> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>()?;
        if chain.is_empty() {
            return Err(rustls::pki_types::pem::Error::NoItemsFound.into());
        }
        Ok(ServerCertificate::new(chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes())?)?)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint())
    }
}

/// True for a name that a certificate can have.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label) && name.parse::<std::net::IpAddr>().is_err()
}

impl Identity {
    /// Generates a self-signed certificate. Penstock's own clients know it by its fingerprint; its names are for others,
    /// which check them: `penstock`, the name of this host, `localhost` and the loopback addresses.
    ///
    /// # Errors
    /// If key generation fails.
    pub fn generate() -> Result<Self, IdentityError> {
        let mut names = vec!["penstock".to_owned()];
        let host = penstock_sys::machine::host_name();
        names.extend(Some(host).filter(|host| is_dns_name(host)));
        names.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
        let made = rcgen::generate_simple_self_signed(names)?;
        Self::from_pem(&made.cert.pem(), &made.signing_key.serialize_pem())
    }

    /// Reads a certificate, with the chain of its authorities where the text has one, and its key in PEM.
    ///
    /// # Errors
    /// If they are malformed or do not belong together.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        let pem = PemPair { certificate: certificate.to_owned(), key: key.to_owned() };
        let certificate = Arc::new(pem.parse()?);
        let mut server = ServerConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(AnyClient))
            .with_cert_resolver(Arc::clone(&certificate) as _);
        // Data streams are written in one direction only; tickets would travel against it.
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self { pem: RwLock::new(pem), certificate, server: Arc::new(server) })
    }

    /// Replaces certificate and key, which servers with this identity send from now on. Returns false if they are the
    /// present ones.
    ///
    /// # Errors
    /// If they are malformed or do not belong together; then the identity stays.
    pub fn renew(&self, certificate: &str, key: &str) -> Result<bool, IdentityError> {
        let renewed = PemPair { certificate: certificate.to_owned(), key: key.to_owned() };
        if *self.pem() == renewed {
            return Ok(false);
        }
        let parsed = renewed.parse()?;
        *self.pem.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        self.certificate.replace(&parsed);
        Ok(true)
    }

    /// The certificate, as TLS sends it.
    pub(crate) fn certificate(&self) -> &ServerCertificate {
        &self.certificate
    }

    fn pem(&self) -> RwLockReadGuard<'_, PemPair> {
        self.pem.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the certificate in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.pem().certificate.clone()
    }

    /// Private key in PEM; secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.pem().key.clone()
    }

    /// Fingerprint by which clients know it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate.end_entity())
    }

    /// TLS server configuration with this certificate; client certificates are optional.
    #[must_use]
    pub fn tls_server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_preserves_identity() {
        let made = Identity::generate().expect("randomness");
        let read =
            Identity::from_pem(&made.certificate_pem(), &made.key_pem()).expect("its own PEM");
        assert_eq!(read.fingerprint(), made.fingerprint());
        let text = made.fingerprint().to_string();
        assert_eq!(text.parse::<Fingerprint>().expect("its own text"), made.fingerprint());
        assert!("SHA256:12".parse::<Fingerprint>().is_err());
        assert!(Identity::from_pem("nonsense", "nonsense").is_err());
    }

    /// Clients that know a root alone need the certificates between it and that of the server.
    #[test]
    fn certificate_is_sent_with_chain() {
        let (made, above) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let chain = format!("{}{}", made.certificate_pem(), above.certificate_pem());
        let read = Identity::from_pem(&chain, &made.key_pem()).expect("a chain");
        assert_eq!(read.fingerprint(), made.fingerprint());
        assert_eq!(shown_certificates(&made, &read).unwrap(), 2);
    }

    #[test]
    fn renewed_identity_is_sent() {
        let (first, second) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let served = Identity::from_pem(&first.certificate_pem(), &first.key_pem()).unwrap();
        assert!(served.renew(&second.certificate_pem(), &first.key_pem()).is_err());
        assert_eq!(shown_certificates(&first, &served).unwrap(), 1);
        assert!(served.renew(&second.certificate_pem(), &second.key_pem()).unwrap());
        assert_eq!(served.fingerprint(), second.fingerprint());
        assert_eq!(shown_certificates(&second, &served).unwrap(), 1);
        shown_certificates(&first, &served).unwrap_err();
        assert!(!served.renew(&second.certificate_pem(), &second.key_pem()).unwrap());
    }

    /// Number of certificates that a server with `served` sends to a client that expects `known`.
    fn shown_certificates(known: &Identity, served: &Identity) -> Result<usize, rustls::Error> {
        let config = crate::tls_client_config(known.fingerprint(), None).unwrap();
        let name = "penstock".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(config, name)?;
        let mut server = rustls::ServerConnection::new(served.tls_server_config())?;
        while client.is_handshaking() || server.is_handshaking() {
            let (mut sent, mut answered) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets()?;
            }
            while server.wants_write() {
                server.write_tls(&mut answered).unwrap();
            }
            let mut rest = answered.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets()?;
            }
        }
        Ok(client.peer_certificates().map_or(0, <[_]>::len))
    }
}
