//! Storages of FTS3 jobs: their client, known collections, and errors of an attempt.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, Method};
use penstock_http::Url;
use penstock_http::client::{ServerTrust, ServerTrustError};
use penstock_http::storage_client::{
    StorageClient, StorageConnections, StorageError, StorageResponse, WANT_DIGEST,
};

use super::policy::FtsPolicy;
use super::token_key::TokenKeyError;

/// Longest wait for the head of a response: a storage may compute a checksum for it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Most collections that are remembered.
const COLLECTIONS_MAX: usize = 10_000;

/// Failure of an attempt to copy a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FtsCopyError {
    #[error("{0} is no URL of a storage")]
    Url(String),
    /// Of the object that the text names.
    #[error("{0}: {1}")]
    Storage(String, StorageError),
    #[error("token for {0}: {1}")]
    Token(String, io::Error),
    #[error(transparent)]
    Key(#[from] TokenKeyError),
    /// The flag is set if another attempt may succeed.
    #[error("{0}")]
    Copy(String, bool),
}

impl FtsCopyError {
    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Storage(_, error) => error.is_transient(),
            Self::Copy(_, is_transient) => *is_transient,
            Self::Url(_) | Self::Token(..) | Self::Key(_) => false,
        }
    }
}

/// Parses a URL of a job.
pub(crate) fn parse_url(text: &str) -> Result<Url, FtsCopyError> {
    Url::of_storage(text).map_err(|_| FtsCopyError::Url(text.to_owned()))
}

/// Client of the storages that a policy admits.
#[derive(Debug)]
pub(crate) struct FtsStorages {
    pub(crate) policy: FtsPolicy,
    client: StorageClient,
    connections: Arc<StorageConnections>,
    /// URLs of collections that exist.
    collections: Mutex<HashSet<String>>,
}

impl FtsStorages {
    /// Creates a client without connections.
    pub(crate) async fn new(policy: &FtsPolicy) -> Self {
        let trust = ServerTrust::Authorities(policy.authorities.clone());
        let connections = StorageConnections::new(trust).await;
        let admission = Arc::new(policy.clone());
        let (of_all, headers) = (Arc::clone(&connections), HeaderMap::new());
        let client = StorageClient::new(of_all, admission, headers, RESPONSE_TIMEOUT);
        Self { policy: policy.clone(), client, connections, collections: Mutex::default() }
    }

    /// Reads the certificates of the authorities that the policy names, unless they were read lately.
    pub(crate) async fn load_trust(&self) -> Result<(), ServerTrustError> {
        self.connections.trust().await.map(drop)
    }

    /// Returns true if a collection is known to exist.
    pub(crate) fn knows_collection(&self, url: &Url) -> bool {
        self.collections.lock().unwrap_or_else(PoisonError::into_inner).contains(&url.to_string())
    }

    /// Remembers that a collection exists.
    pub(crate) fn learn_collection(&self, url: &Url) {
        let mut known = self.collections.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= COLLECTIONS_MAX {
            known.clear();
        }
        known.insert(url.to_string());
    }

    /// Sends a request without a body and follows redirects; `what` names the object in errors.
    pub(crate) async fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        what: &str,
    ) -> Result<StorageResponse, FtsCopyError> {
        let sent = self.client.request(method, url, headers).await;
        sent.map_err(|error| FtsCopyError::Storage(format!("{what} {url}"), error))
    }

    /// Asks for properties of a file of `size` bytes.
    pub(crate) async fn send_head(
        &self,
        url: &Url,
        headers: &HeaderMap,
        what: &str,
        size: Option<i64>,
    ) -> Result<StorageResponse, FtsCopyError> {
        if !headers.contains_key(WANT_DIGEST) {
            return self.send(&Method::HEAD, url, headers, what).await;
        }
        let bytes = size.and_then(|size| u64::try_from(size).ok());
        let sent = self.client.request_digest(url, headers, bytes).await;
        sent.map_err(|error| FtsCopyError::Storage(format!("{what} {url}"), error))
    }
}

/// Reads the text of a refusal for an object.
pub(crate) async fn refusal(response: StorageResponse, what: &str, url: &Url) -> FtsCopyError {
    FtsCopyError::Storage(format!("{what} {url}"), response.into_error().await)
}
