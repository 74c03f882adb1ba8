//! Storages of FTS3 jobs: their client, known collections, and errors of an attempt.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, Method};
use penstock_control::fts::progress;
use penstock_http::client::{ServerTrust, ServerTrustError};
use penstock_http::storage_client::{
    StorageClient, StorageConnections, StorageError, StorageResponse, WANT_DIGEST,
};
use penstock_http::{HttpError, Url};

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
    /// Its server would send a listing in place of a file.
    #[error("source {0}: it is a directory: name its files in the job")]
    SourceDirectory(Url),
    #[error("source {url}: size mismatch: it has {found} bytes, not {wanted}")]
    SourceSize { url: Url, found: i64, wanted: i64 },
    #[error("destination {url}: size mismatch: {found} bytes, not {wanted}")]
    DestinationSize { url: Url, found: i64, wanted: i64 },
    /// Of the end that the text names.
    #[error("{end}: checksum mismatch: {algorithm} {found}, not {wanted}")]
    Checksum { end: String, algorithm: String, found: String, wanted: String },
    #[error("{end}: checksum missing: the storage sends no {algorithm}")]
    NoChecksum { end: String, algorithm: String },
    #[error(
        "{fault}: the copy is deleted{}",
        if *.has_replaced { ", and so is a file that it replaced" } else { "" }
    )]
    DeletedCopy { fault: Box<Self>, has_replaced: bool },
    #[error("{fault}: the copy stays at the destination: {error}")]
    WrongCopy { fault: Box<Self>, error: Box<Self> },
    #[error("source and destination are one file")]
    SameFile,
    /// Neither the destination nor the source makes the copy.
    #[error("{pulled}; {pushed}")]
    BothRefuse { pulled: Box<Self>, pushed: Box<Self> },
    /// Text of the storage that made the copy to this URL.
    #[error("copy to {0} failed: {1}")]
    Failed(String, String),
    #[error("copy to {0} aborted: {1}")]
    Aborted(String, String),
    #[error("copy to {0}: its report broke off: {1}")]
    Report(String, HttpError),
    #[error("copy to {0}: its report has no final line")]
    NoEnd(String),
    #[error("copy to {0}: Connection timed out: no marker for {s} s", s = .1.as_secs())]
    NoMarker(String, Duration),
    #[error("copy to {0}: Connection timed out: no byte for {s} s", s = .1.as_secs())]
    Stalled(String, Duration),
    #[error("copy to {0}: Connection timed out: it took longer than {1} s")]
    Overdue(String, u64),
}

impl FtsCopyError {
    /// Returns true if a storage refused to replace a file, which another client has made meanwhile.
    pub(crate) fn is_of_existing_file(&self) -> bool {
        matches!(self, Self::Failed(_, text) if progress::is_of_existing_file(text))
    }

    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Storage(_, error) => error.is_transient(),
            Self::DeletedCopy { fault, .. } => fault.is_transient(),
            Self::WrongCopy { fault, error } => {
                fault.is_transient() && !matches!(**error, Self::SameFile)
            }
            Self::BothRefuse { pulled, pushed } => pulled.is_transient() || pushed.is_transient(),
            Self::Failed(_, text) => progress::is_transient(text),
            Self::DestinationSize { .. }
            | Self::Aborted(..)
            | Self::Report(..)
            | Self::NoEnd(_)
            | Self::NoMarker(..)
            | Self::Stalled(..)
            | Self::Overdue(..) => true,
            Self::Url(_)
            | Self::Token(..)
            | Self::Key(_)
            | Self::SourceDirectory(_)
            | Self::SameFile
            | Self::SourceSize { .. }
            | Self::Checksum { .. }
            | Self::NoChecksum { .. } => false,
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

    /// Returns true if the source of a copy, whose `HEAD` was answered at `answered`, is a directory.
    pub(crate) async fn is_directory(
        &self,
        url: &Url,
        answered: &Url,
        headers: &HeaderMap,
    ) -> bool {
        self.client.is_collection(url, answered, headers).await
    }

    /// Returns the time of the last change of a file by `PROPFIND`, as the storage writes it.
    pub(crate) async fn last_modified(&self, url: &Url, headers: &HeaderMap) -> Option<String> {
        self.client.last_modified(url, headers).await
    }

    /// Returns the addresses of the server of a URL; none where its name is not known or not admitted.
    pub(crate) async fn addresses(&self, url: &Url) -> Vec<SocketAddr> {
        self.client.resolve(url).await.unwrap_or_default()
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
