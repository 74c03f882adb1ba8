//! TLS configurations of clients, and the cipher suites of both sides.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;

use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityError};
use crate::verifier::{AnyClient, PinnedServer, is_readable};

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
        .with_custom_certificate_verifier(Arc::new(PinnedServer(fingerprints)));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::from_pem_slice(own.key_pem().as_bytes())?;
            builder.with_client_auth_cert(vec![own.certificate().end_entity()], key)?
        }
    };
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Fingerprint of the certificate that the peer presented in a completed handshake.
#[must_use]
pub fn peer_fingerprint(connection: &rustls::CommonState) -> Option<Fingerprint> {
    connection.peer_certificates()?.first().and_then(certificate_fingerprint)
}

/// Fingerprint of a certificate that a peer presented in a completed handshake; `None` for one whose key the handshake
/// cannot prove.
#[must_use]
pub fn certificate_fingerprint(certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
    is_readable(certificate).then(|| Fingerprint::of(certificate))
}

/// Verifier of a server that asks clients for a certificate, for [`certificate_fingerprint`]. Clients need none.
#[must_use]
pub fn optional_client_certificates() -> Arc<dyn ClientCertVerifier> {
    Arc::new(AnyClient)
}

/// Cipher suites of every connection, fastest first.
pub(crate) fn crypto() -> Arc<CryptoProvider> {
    let mut crypto = provider::default_provider();
    crypto.cipher_suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(crypto)
}
