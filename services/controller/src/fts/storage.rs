//! Client of one storage: checks its address, follows redirects, bounds time and size.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use futures_util::StreamExt;
use hyper::body::Incoming;
use penstock_http::Url;
use penstock_http::client::{
    ClientConnection, HeaderCase, HttpError, ServerTrust, ServerTrustError,
};
use tokio::time::timeout;

use super::policy::FtsPolicy;

/// Longest wait for the head of a response: a storage may compute a checksum for it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Most redirects of one request.
const REDIRECTS_MAX: usize = 5;

/// Bytes of an error's body that are shown.
const ERROR_BYTES_MAX: usize = 1 << 10;

/// Age at which the files of authorities are read again.
const TRUST_AGE_MAX: Duration = Duration::from_secs(300);

/// Names of headers that XRootD 5 knows in this case only.
const HEADER_NAMES: [&str; 3] =
    ["TransferHeaderAuthorization", "RequireChecksumVerification", "SciTag"];

/// Most collections that are remembered.
const COLLECTIONS_MAX: usize = 10_000;

/// Name of this program in requests.
const USER_AGENT: &str = concat!("penstock/", env!("CARGO_PKG_VERSION"));

/// Failure of a request to a storage.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StorageError {
    #[error("{0} is no URL of a storage")]
    Url(String),
    #[error("{0} is not among storages of [controller.fts]")]
    NotListed(String),
    #[error(
        "{0} has the address {1}, which is not public: name it in storages of [controller.fts]"
    )]
    PrivateAddress(String, SocketAddr),
    #[error("cannot resolve {0}: {1}")]
    Resolve(String, io::Error),
    #[error("{0}: {1}")]
    Http(String, HttpError),
    #[error("{0}: Connection timed out: no answer within {1} s")]
    Silent(String, u64),
    #[error("token for {0}: {1}")]
    Token(String, io::Error),
    #[error("{0}")]
    Status(String, StatusCode),
    #[error("{0}")]
    Copy(String, bool),
}

impl StorageError {
    /// Returns true if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Http(_, error) => {
                matches!(error, HttpError::Transport(_)) || error.is_unreachable()
            }
            Self::Silent(..) | Self::Resolve(..) => true,
            Self::Status(_, status) => {
                (status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED)
                    || [StatusCode::TOO_MANY_REQUESTS, StatusCode::LOCKED].contains(status)
            }
            Self::Copy(_, is_transient) => *is_transient,
            Self::Url(_) | Self::NotListed(_) | Self::PrivateAddress(..) | Self::Token(..) => false,
        }
    }
}

/// Parses a URL of a job; `davs` and `dav` are other names of `https` and `http`.
pub(crate) fn parse_url(text: &str) -> Result<Url, StorageError> {
    let http = match text.split_once("://") {
        Some(("davs", rest)) => format!("https://{rest}"),
        Some(("dav", rest)) => format!("http://{rest}"),
        _ => text.to_owned(),
    };
    http.parse().map_err(|_| StorageError::Url(text.to_owned()))
}

/// Headers of a request.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

/// A response whose body is unread, and its connection, which must live as long as the body is read.
pub(crate) struct StorageResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Incoming,
    pub(crate) connection: ClientConnection,
}

/// Client of storages, with the check of their addresses.
#[derive(Debug)]
pub(crate) struct StorageClient {
    pub(crate) policy: FtsPolicy,
    trust: ServerTrust,
    case: HeaderCase,
    loaded: tokio::time::Instant,
    /// URLs of collections that exist.
    collections: Mutex<HashSet<String>>,
}

impl StorageClient {
    /// Reads the certificates of the authorities that the policy names.
    pub(crate) async fn load(policy: &FtsPolicy) -> Result<Self, ServerTrustError> {
        let trust = ServerTrust::Authorities(policy.authorities.clone());
        let trust = tokio::task::spawn_blocking(move || trust.load()).await;
        let trust = trust.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        let case = HeaderCase::of(&HEADER_NAMES).await;
        let (loaded, collections) = (tokio::time::Instant::now(), Mutex::default());
        Ok(Self { policy: policy.clone(), trust, case, loaded, collections })
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

    /// Returns true if it has this policy, and certificates that are not old.
    pub(crate) fn is_current(&self, policy: &FtsPolicy) -> bool {
        self.policy == *policy && self.loaded.elapsed() < TRUST_AGE_MAX
    }

    /// Sends a request without a body and follows redirects; another server gets no credentials of this one.
    pub(crate) async fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &Headers,
    ) -> Result<StorageResponse, StorageError> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let is_same = at.host_and_port() == url.host_and_port()
                && at.is_encrypted() == url.is_encrypted();
            let mut request = Request::builder()
                .method(method)
                .uri(at.path())
                .header(header::HOST, at.authority())
                .header(header::USER_AGENT, USER_AGENT);
            for (name, value) in headers {
                if is_same || name != header::AUTHORIZATION {
                    request = request.header(name, value);
                }
            }
            let failed = |error: HttpError| StorageError::Http(at.to_string(), error);
            let mut request = request.body(Body::empty()).map_err(|error| failed(error.into()))?;
            self.case.apply(&mut request);
            let mut connection = self.connect(&at).await?;
            let sent = timeout(RESPONSE_TIMEOUT, connection.send(request)).await;
            let response = sent
                .map_err(|_| StorageError::Silent(at.to_string(), RESPONSE_TIMEOUT.as_secs()))?
                .map_err(failed)?;
            let (head, body) = response.into_parts();
            let location = head.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            match location {
                Some(location) if head.status.is_redirection() => {
                    at = at.redirected(location).map_err(failed)?;
                }
                _ => {
                    let (status, headers) = (head.status, head.headers);
                    return Ok(StorageResponse { status, headers, body, connection });
                }
            }
        }
        Err(StorageError::Http(at.to_string(), HttpError::Redirects(REDIRECTS_MAX)))
    }

    /// Connects to a storage that the policy admits; an address is checked after it is resolved.
    async fn connect(&self, url: &Url) -> Result<ClientConnection, StorageError> {
        if !self.policy.admits(url) {
            return Err(StorageError::NotListed(url.authority()));
        }
        let (host, port) = url.host_and_port();
        let failed = |error| StorageError::Resolve(host.to_owned(), error);
        let all: Vec<SocketAddr> =
            tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
        let first = *all.first().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let admitted: Vec<SocketAddr> =
            all.into_iter().filter(|one| self.policy.admits_address(url, one.ip())).collect();
        if admitted.is_empty() {
            return Err(StorageError::PrivateAddress(url.authority(), first));
        }
        let opened = ClientConnection::open(url, &admitted, &self.trust).await;
        opened.map_err(|error| StorageError::Http(url.to_string(), error))
    }
}

impl StorageResponse {
    /// Returns a header that is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the text of a refusal. The words are those by which FTS3 and its clients tell errors apart.
    pub(crate) async fn into_error(self, what: &str) -> StorageError {
        let mut chunks = Body::new(self.body).into_data_stream();
        let mut body = Vec::new();
        let read = async {
            while let Some(Ok(chunk)) = chunks.next().await {
                body.extend_from_slice(&chunk);
                if body.len() >= ERROR_BYTES_MAX {
                    break;
                }
            }
        };
        let _ = timeout(Duration::from_secs(5), read).await;
        body.truncate(ERROR_BYTES_MAX);
        let text = penstock_http::error_text(&body)
            .unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        // Pages of web servers say no more than the status.
        let text = if text.trim_start().starts_with('<') { String::new() } else { text };
        let text: Vec<&str> = text.split_whitespace().collect();
        let words = match self.status {
            StatusCode::NOT_FOUND => "No such file: ",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Permission denied: ",
            StatusCode::PRECONDITION_FAILED => {
                "Destination file exists and overwrite is not enabled: "
            }
            _ => "",
        };
        let text = format!("{what}: {words}{}: {}", self.status, text.join(" "));
        StorageError::Status(text.trim_end_matches([' ', ':']).to_owned(), self.status)
    }
}
