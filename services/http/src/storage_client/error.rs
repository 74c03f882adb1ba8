//! Errors of storages, in the words by which FTS3 and its clients tell them apart.

use std::io;
use std::time::Duration;

use hyper::StatusCode;

use crate::client::HttpError;

/// Refusal of a storage by the policy of the client, which gives the reason.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AdmissionError(Box<dyn std::error::Error + Send + Sync>);

impl AdmissionError {
    /// Creates a refusal for this reason.
    pub fn new(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}

/// Error of a storage, or on the way to it. The caller names the URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The policy forbids the storage or its address.
    #[error(transparent)]
    Forbidden(#[from] AdmissionError),
    /// The host has no address.
    #[error("cannot resolve {0}: {1}")]
    Resolve(String, io::Error),
    /// No connection, or it broke.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server answered with a status of failure, and this text.
    #[error("{words}it answers {0}{colon}{1}", words = permanence(.0), colon = if .1.is_empty() { "" } else { ": " })]
    Status(StatusCode, String),
    /// The server sent nothing for this time.
    #[error("Connection timed out: it sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// The response contradicts the request or an earlier response.
    #[error("{0}")]
    Malformed(String),
}

/// Words by which FTS3 distinguishes permanent errors from those that it retries.
fn permanence(status: &StatusCode) -> &'static str {
    match *status {
        StatusCode::NOT_FOUND => "No such file: ",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Permission denied: ",
        StatusCode::PRECONDITION_FAILED => "Destination file exists and overwrite is not enabled: ",
        _ => "",
    }
}

impl StorageError {
    /// Returns true if another attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // A server that ends within the handshake.
            Self::Http(HttpError::Tls(error) | HttpError::UntrustedTls(error)) => {
                error.kind() != io::ErrorKind::InvalidData
            }
            Self::Http(error) => matches!(error, HttpError::Transport(_)) || error.is_unreachable(),
            Self::Silent(_) | Self::Resolve(..) => true,
            Self::Status(status, _) => {
                (status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED)
                    || [StatusCode::TOO_MANY_REQUESTS, StatusCode::LOCKED].contains(status)
            }
            Self::Forbidden(_) | Self::Malformed(_) => false,
        }
    }
}
