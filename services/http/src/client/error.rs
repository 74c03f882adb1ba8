//! Errors of the HTTP client.

use std::io;
use std::time::Duration;

use hyper::StatusCode;

use super::{ServerTrustError, Url};

/// A request without a usable response. The caller names the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The name does not resolve, or no server accepts the connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Host and port of the URL.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// Connecting took longer than this.
    #[error("no connection within {} s", .0.as_secs())]
    ConnectTimeout(Duration),
    /// Request and response took longer than this.
    #[error("no answer within {} s", .0.as_secs())]
    ResponseTimeout(Duration),
    /// The URL's host cannot be in a certificate.
    #[error("'{0}' is no name that a certificate can have")]
    ServerName(String),
    /// The trusted authorities cannot be loaded.
    #[error(transparent)]
    Trust(#[from] ServerTrustError),
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(#[source] io::Error),
    /// The TLS handshake failed, and TLS trusts the authorities of the system.
    #[error("{0}: if the site has an authority of its own, name its file in SSL_CERT_FILE")]
    UntrustedTls(#[source] io::Error),
    /// Path or header of the request is malformed.
    #[error("{0}")]
    Request(#[from] hyper::http::Error),
    /// The connection broke, or the response is malformed.
    #[error("{0}")]
    Transport(#[from] hyper::Error),
    /// The body of the response exceeds this limit, in bytes.
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    /// The status is none of success.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// A redirect without a location.
    #[error("it answers {0} without saying where")]
    NoLocation(StatusCode),
    /// A redirect of a request that follows none.
    #[error("it redirects to '{0}'")]
    UnexpectedRedirect(String),
    /// A redirect to something that is no URL.
    #[error("it redirects to '{0}', which is no address")]
    RedirectAddress(String),
    /// A redirect from HTTPS to HTTP.
    #[error("it redirects to {0}, which is not encrypted")]
    RedirectDowngrade(Url),
    /// More redirects than this.
    #[error("more than {0} redirects")]
    Redirects(usize),
}

impl HttpError {
    /// Returns true if no server answered: it may do so later.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::ConnectTimeout(_) | Self::ResponseTimeout(_))
    }

    /// Returns true if the connection ended before the whole response, as that of a server that stops does.
    #[must_use]
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Transport(error) if !error.is_parse())
    }
}
