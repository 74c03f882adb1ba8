//! Identity of an agent: a self-signed certificate, known to its clients by fingerprint.
//!
//! No certificate authority is involved. A client learns the fingerprint from the agent's state
//! directory, from `penstock login` or over ssh, and accepts that certificate only. Clients may have a
//! certificate too; the agent's gatekeeper knows them by fingerprint. Only TLS 1.3 is used, AES-128-GCM
//! first: it is the fastest cipher on processors with AES instructions.
//!
//! [`Identity::generate`] makes an identity and [`Identity::from_pem`] reads one; [`Identity::renew`] replaces it in running
//! servers, as [`ServerCertificate`] does that of a gateway.
//! [`Identity::tls_server_config`] and [`tls_client_config`] configure the two sides of a connection.
//!
//! Not here: connections. The mover has its own record layer, services use `tokio-rustls`.

#![forbid(unsafe_code)]

mod fingerprint;
mod identity;
mod server_certificate;
mod tls_config;
mod verifier;

pub use fingerprint::Fingerprint;
pub use identity::{Identity, IdentityError};
pub use server_certificate::ServerCertificate;
pub use tls_config::{
    certificate_fingerprint, optional_client_certificates, peer_fingerprint, tls_client_config,
    tls_client_config_of_any,
};
