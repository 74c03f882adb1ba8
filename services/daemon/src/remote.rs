//! HTTP clients of other daemons, as a role's table of the configuration describes them.

use std::path::Path;

use penstock_http::tokens::{TokenError, read_token};
use penstock_http::{HttpClient, ServerTrust, Url};
use penstock_identity::{Fingerprint, IdentityError, tls_client_config};

/// Another daemon: its address, and the credentials of both sides.
#[derive(Debug, Clone, Copy)]
pub struct RemoteDaemon<'a> {
    /// Base URL of its HTTP API.
    pub url: &'a Url,
    /// File of the token to send, if any.
    pub token: Option<&'a Path>,
    /// Its certificate, if pinned.
    pub fingerprint: Option<Fingerprint>,
    /// PEM file of trusted authorities, without a pinned certificate; none for those of the system.
    pub authorities: Option<&'a Path>,
}

/// Credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteDaemonError {
    /// The file of the token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The pinned certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl RemoteDaemon<'_> {
    /// Reads the token and returns a client that is not yet connected.
    ///
    /// # Errors
    /// When the token cannot be read or TLS cannot be configured.
    pub fn client(&self) -> Result<HttpClient, RemoteDaemonError> {
        let token = self.token.map(read_token).transpose()?.unwrap_or_default();
        let trust = match self.fingerprint {
            Some(fingerprint) => ServerTrust::Config(tls_client_config(fingerprint, None)?),
            None => ServerTrust::Authorities(self.authorities.map(Path::to_owned)),
        };
        Ok(HttpClient::new(self.url.clone()).trust(trust).token(token))
    }
}
