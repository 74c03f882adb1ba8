//! Identity of an agent: a self-signed certificate, known to its clients by fingerprint.
//!
//! No certificate authority is involved. A client learns the fingerprint from the agent's state
//! directory, from `penstock login` or over ssh, and accepts that certificate only. Clients may have a
//! certificate too; the agent's gatekeeper knows them by fingerprint. Only TLS 1.3 is used, AES-128-GCM
//! first: it is the fastest cipher on processors with AES instructions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

/// Error of a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate could not be generated.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The text is not PEM or not a certificate with its key.
    #[error("not a PEM certificate with its private key: {0}")]
    Pem(String),
    /// TLS rejects the certificate or key.
    #[error("TLS refuses the certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The text is not a fingerprint.
    #[error("'{0}' is not a fingerprint: write it like SHA256: and 64 hexadecimal digits")]
    Fingerprint(String),
}

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(digest(&SHA256, certificate).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SHA256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let error = || IdentityError::Fingerprint(text.chars().take(80).collect());
        let hex = text.trim().strip_prefix("SHA256:").ok_or_else(error)?;
        let hex: String = hex.chars().filter(|c| *c != ':').collect();
        if hex.len() != 64 || !hex.is_ascii() {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self(bytes))
    }
}

/// A certificate and its private key.
pub struct Identity {
    certificate_pem: String,
    key_pem: String,
    certificate: CertificateDer<'static>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint())
    }
}

impl Identity {
    /// Generates a self-signed certificate.
    ///
    /// # Errors
    /// If key generation fails.
    pub fn generate() -> Result<Self, IdentityError> {
        let made = rcgen::generate_simple_self_signed(vec!["penstock".to_owned()])?;
        Self::from_pem(&made.cert.pem(), &made.signing_key.serialize_pem())
    }

    /// Reads a certificate and key in PEM.
    ///
    /// # Errors
    /// If they are malformed or do not belong together.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        let pem = |error: rustls::pki_types::pem::Error| IdentityError::Pem(error.to_string());
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(pem)?;
        let key_der = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(pem)?;
        let mut server = ServerConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(AnyClient))
            .with_single_cert(vec![der.clone()], key_der)?;
        // Data streams are written in one direction only; tickets would travel against it.
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self {
            certificate_pem: certificate.to_owned(),
            key_pem: key.to_owned(),
            certificate: der,
            server: Arc::new(server),
        })
    }

    /// Returns the certificate in PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Private key in PEM; secret.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Fingerprint by which clients know it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// TLS server configuration with this certificate; client certificates are optional.
    #[must_use]
    pub fn tls_server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// TLS client configuration for the agent with this fingerprint, with the certificate `own` if given.
///
/// # Errors
/// If `own` is not usable.
pub fn tls_client_config(
    fingerprint: Fingerprint,
    own: Option<&Identity>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    client_config(vec![fingerprint], own)
}

/// TLS client configuration for any agent with one of these fingerprints; [`peer_fingerprint`] returns
/// which.
///
/// # Errors
/// If TLS cannot be configured.
pub fn tls_client_config_of_any(
    fingerprints: Vec<Fingerprint>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    client_config(fingerprints, None)
}

fn client_config(
    fingerprints: Vec<Fingerprint>,
    own: Option<&Identity>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let builder = ClientConfig::builder_with_provider(crypto())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(fingerprints)));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes())
                .map_err(|error| IdentityError::Pem(error.to_string()))?;
            builder.with_client_auth_cert(vec![own.certificate.clone()], key)?
        }
    };
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Fingerprint of the certificate that the peer presented in a completed handshake.
#[must_use]
pub fn peer_fingerprint(connection: &rustls::CommonState) -> Option<Fingerprint> {
    connection.peer_certificates().and_then(|chain| chain.first()).map(Fingerprint::of)
}

fn crypto() -> Arc<CryptoProvider> {
    let mut crypto = provider::default_provider();
    crypto.cipher_suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(crypto)
}

fn verify(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let algorithms = provider::default_provider().signature_verification_algorithms;
    verify_tls13_signature(message, certificate, signature, &algorithms)
}

fn schemes() -> Vec<SignatureScheme> {
    provider::default_provider().signature_verification_algorithms.supported_schemes()
}

/// Verifier that accepts these server certificates only.
#[derive(Debug)]
struct Pinned(Vec<Fingerprint>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.0.contains(&Fingerprint::of(end_entity)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// Verifier that accepts any client certificate with proof of its key; the gatekeeper decides about it.
#[derive(Debug)]
struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_as_pem() {
        let made = Identity::generate().expect("randomness");
        let read = Identity::from_pem(made.certificate_pem(), made.key_pem()).expect("its own PEM");
        assert_eq!(read.fingerprint(), made.fingerprint());
        let text = made.fingerprint().to_string();
        assert_eq!(text.parse::<Fingerprint>().expect("its own text"), made.fingerprint());
        assert!("SHA256:12".parse::<Fingerprint>().is_err());
        assert!(Identity::from_pem("nonsense", "nonsense").is_err());
    }
}
