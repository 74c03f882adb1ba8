//! Client of storages of other software, such as XRootD, dCache and StoRM.
//!
//! For: requests without a body over persistent connections ([`StorageClient`]), the check of every address before it is
//! connected to, also after redirects ([`StorageAdmission`]), and connections for uploads ([`StorageClient::connect`]).
//! Not for: the programs of this project, which use [`crate::HttpClient`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Frame, Incoming};
use hyper::header::{
    AUTHORIZATION, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, LOCATION,
    USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;

use crate::client::{AGENT_NAME, ClientConnection, HttpError, Url};

mod connections;
mod error;
mod properties;

pub use connections::StorageConnections;
pub use error::{AdmissionError, StorageError};

/// Most redirects of one request.
pub const REDIRECTS_MAX: usize = 5;

/// Bytes of an error's body that are shown.
const ERROR_BYTES_MAX: usize = 2 << 10;

/// Time limit of reading an error's body.
const ERROR_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of the properties of a file.
const PROPERTIES_BYTES_MAX: usize = 64 << 10;

/// Time limit of the question for them.
const PROPERTIES_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a first request for a digest, and its part per MiB of the file.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(10);
const DIGEST_TIMEOUT_PER_MIB: Duration = Duration::from_millis(50);

/// Requests for a digest with such a limit, before one that waits for as long as any.
const DIGEST_REPEATS_MAX: usize = 2;

/// Header that asks for a digest.
pub const WANT_DIGEST: HeaderName = HeaderName::from_static("want-digest");

/// Policy of the storages that may be connected to.
pub trait StorageAdmission: Send + Sync {
    /// Checks a URL before its host is resolved.
    ///
    /// # Errors
    /// If the policy refuses the storage.
    fn check_url(&self, _url: &Url) -> Result<(), AdmissionError> {
        Ok(())
    }

    /// Checks an address of the host of a URL. May block, to resolve names of the policy.
    ///
    /// # Errors
    /// If the policy refuses the address.
    fn check_address(&self, url: &Url, address: SocketAddr) -> Result<(), AdmissionError>;
}

/// Client of storages that an admission policy allows. Clones share their idle connections.
#[derive(Clone)]
pub struct StorageClient {
    connections: Arc<StorageConnections>,
    admission: Arc<dyn StorageAdmission>,
    /// Headers of every request.
    headers: HeaderMap,
    response_timeout: Duration,
}

impl std::fmt::Debug for StorageClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageClient").finish_non_exhaustive()
    }
}

/// A response whose body is unread. Its connection is used again if the body was read to its end.
#[derive(Debug)]
pub struct StorageResponse {
    /// Status, which may be one of failure.
    pub status: StatusCode,
    /// Headers of the response.
    pub headers: HeaderMap,
    /// URL that answered, to which redirects may have led.
    pub url: Url,
    body: ResponseBody,
    /// Present until the response is dropped.
    connection: Option<ClientConnection>,
    is_kept: bool,
    connections: Arc<StorageConnections>,
}

impl StorageClient {
    /// Creates a client that sends `headers` with every request, and waits for the head of a response until
    /// `response_timeout`.
    #[must_use]
    pub fn new(
        connections: Arc<StorageConnections>,
        admission: Arc<dyn StorageAdmission>,
        headers: HeaderMap,
        response_timeout: Duration,
    ) -> Self {
        Self { connections, admission, headers, response_timeout }
    }

    /// Sends a request without a body, and follows redirects.
    ///
    /// # Errors
    /// If the policy refuses the storage, or when there is no response in time. A status of failure is no error.
    pub async fn request(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<StorageResponse, StorageError> {
        let mut at = url.clone();
        let is_kept = !headers.contains_key(WANT_DIGEST);
        for _ in 0..=REDIRECTS_MAX {
            let (response, connection) = self.exchange(url, &at, method, headers).await?;
            let location = location(&response);
            let (head, body) = response.into_parts();
            let (status, headers, connections) =
                (head.status, head.headers, Arc::clone(&self.connections));
            let response = StorageResponse {
                status,
                headers,
                url: at,
                body: body.into(),
                connection: Some(connection),
                is_kept,
                connections,
            };
            match location {
                Some(location) => at = response.url.redirected(&location)?,
                None => return Ok(response),
            }
        }
        Err(HttpError::Redirects(REDIRECTS_MAX).into())
    }

    /// Asks for properties of a file with a digest (RFC 3230), which the storage may compute from `bytes`.
    ///
    /// XRootD 5.5.3 leaves about one of 200 requests for a digest that it has to compute without an answer, so that the
    /// request is repeated; the digest is stored by then.
    ///
    /// # Errors
    /// As those of [`Self::request`].
    pub async fn request_digest(
        &self,
        url: &Url,
        headers: &HeaderMap,
        bytes: Option<u64>,
    ) -> Result<StorageResponse, StorageError> {
        let mib = u32::try_from(bytes.unwrap_or(0) >> 20).unwrap_or(u32::MAX);
        let limit = DIGEST_TIMEOUT + DIGEST_TIMEOUT_PER_MIB.saturating_mul(mib);
        self.repeat_head(url, headers, limit).await
    }

    /// Returns true if `url`, whose `HEAD` was answered at `answered`, names a collection.
    ///
    /// Its server says so by a redirect to the path with a final slash, or by WebDAV (RFC 4918 section 5.2). Where it
    /// does neither, a listing looks like a file.
    pub async fn is_collection(&self, url: &Url, answered: &Url, headers: &HeaderMap) -> bool {
        if [url, answered].into_iter().any(Url::has_final_slash) {
            return true;
        }
        let document = self.properties(url, headers).await;
        document.is_some_and(|document| properties::is_collection(&document))
    }

    /// Returns the time of the last change of a file by `PROPFIND`: XRootD leaves it out of answers to `HEAD`.
    pub async fn last_modified(&self, url: &Url, headers: &HeaderMap) -> Option<String> {
        let document = self.properties(url, headers).await?;
        properties::last_modified(&document)
    }

    /// Asks for the properties of a resource by WebDAV; none if its server knows none.
    async fn properties(&self, url: &Url, headers: &HeaderMap) -> Option<Vec<u8>> {
        let mut headers = headers.clone();
        headers.insert(HeaderName::from_static("depth"), HeaderValue::from_static("0"));
        let method = Method::from_bytes(b"PROPFIND").expect("a method");
        let asked = async {
            let mut response = self.request(&method, url, &headers).await?;
            if response.status != StatusCode::MULTI_STATUS {
                return Ok(None);
            }
            let mut body = Vec::new();
            response.body.read_into(&mut body, PROPERTIES_BYTES_MAX).await?;
            Ok::<_, StorageError>(Some(body))
        };
        match timeout(PROPERTIES_TIMEOUT, asked).await {
            Ok(Ok(document)) => document,
            // Servers of other protocols may do so.
            Ok(Err(error)) => {
                tracing::debug!("{url}: no answer to PROPFIND: {error}");
                None
            }
            Err(_) => {
                tracing::debug!("{url}: no answer to PROPFIND in time");
                None
            }
        }
    }

    async fn repeat_head(
        &self,
        url: &Url,
        headers: &HeaderMap,
        limit: Duration,
    ) -> Result<StorageResponse, StorageError> {
        for _ in 0..DIGEST_REPEATS_MAX {
            match timeout(limit, self.request(&Method::HEAD, url, headers)).await {
                Ok(answered) => return answered,
                Err(_) => tracing::debug!("{url}: no digest within {} s", limit.as_secs()),
            }
        }
        self.request(&Method::HEAD, url, headers).await
    }

    /// Makes a request for `at`, to which a redirect from `url` may have led. Another server gets no credentials.
    ///
    /// # Errors
    /// If a header is malformed.
    pub fn head(
        &self,
        url: &Url,
        at: &Url,
        method: &Method,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Request<Body>, StorageError> {
        let is_same = at.authority() == url.authority() && at.is_encrypted() == url.is_encrypted();
        let mut request = Request::builder()
            .method(method)
            .uri(at.path())
            .header(HOST, at.authority())
            .header(USER_AGENT, AGENT_NAME);
        for (name, value) in self.headers.iter().chain(headers) {
            let is_secret = name == AUTHORIZATION || name == COOKIE;
            if is_same || !is_secret {
                request = request.header(name, value);
            }
        }
        let mut request = request.body(body).map_err(HttpError::from)?;
        self.connections.header_case.apply(&mut request);
        Ok(request)
    }

    /// Resolves the host of a URL to the addresses that may be connected to.
    ///
    /// # Errors
    /// If there is none.
    pub async fn resolve(&self, url: &Url) -> Result<Vec<SocketAddr>, StorageError> {
        self.admission.check_url(url)?;
        let (host, port) = url.host_and_port();
        let failed = |error| StorageError::Resolve(host.to_owned(), error);
        let found = tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
        let admitted = self.admitted(url, found).await;
        admitted?.map_err(|refusal| match refusal {
            Some(refusal) => refusal.into(),
            None => failed(std::io::ErrorKind::NotFound.into()),
        })
    }

    /// Opens a connection to the storage of a URL, which is not used for other requests.
    ///
    /// # Errors
    /// If the policy refuses the storage, or it accepts no connection.
    pub async fn connect(&self, url: &Url) -> Result<ClientConnection, StorageError> {
        let addresses = self.resolve(url).await?;
        let trust = self.connections.trust().await.map_err(HttpError::from)?;
        Ok(ClientConnection::open(url, &addresses, &trust).await?)
    }

    /// Returns the addresses that the policy admits; without one, the last refusal.
    async fn admitted(
        &self,
        url: &Url,
        addresses: Vec<SocketAddr>,
    ) -> Result<Result<Vec<SocketAddr>, Option<AdmissionError>>, StorageError> {
        let (admission, url) = (Arc::clone(&self.admission), url.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let mut refused = None;
            let mut admitted = addresses;
            admitted.retain(|address| {
                let checked = admission.check_address(&url, *address);
                checked.map_err(|refusal| refused = Some(refusal)).is_ok()
            });
            if admitted.is_empty() { Err(refused) } else { Ok(admitted) }
        });
        checked.await.map_err(|error| StorageError::Malformed(error.to_string()))
    }

    /// Takes an idle connection whose address the policy still admits.
    async fn idle_connection(&self, url: &Url) -> Option<ClientConnection> {
        self.admission.check_url(url).ok()?;
        let connection = self.connections.take(url)?;
        let address = connection.peer_address()?;
        let admitted = self.admitted(url, vec![address]).await;
        matches!(admitted, Ok(Ok(_))).then_some(connection)
    }

    /// Sends one request over an idle connection or a new one.
    async fn exchange(
        &self,
        url: &Url,
        at: &Url,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(Response<Incoming>, ClientConnection), StorageError> {
        let head = || self.head(url, at, method, headers, Body::empty());
        let silent = |_| StorageError::Silent(self.response_timeout);
        // Certificates that are old end the idle connections.
        self.connections.trust().await.map_err(HttpError::from)?;
        if may_use_idle_connection(method, headers)
            && let Some(mut connection) = self.idle_connection(at).await
        {
            let sent = timeout(self.response_timeout, connection.send(head()?)).await;
            match sent.map_err(silent)? {
                // The server closed the connection meanwhile.
                Err(HttpError::Transport(_)) => {}
                response => return Ok((response?, connection)),
            }
        }
        let mut connection = self.connect(at).await?;
        let sent = timeout(self.response_timeout, connection.send(head()?)).await;
        Ok((sent.map_err(silent)??, connection))
    }
}

/// Returns true if a request may use an idle connection: it has the same effect when it is sent twice (RFC 9110 section
/// 9.2.2, RFC 4918 section 9.8), and asks for no digest. XRootD 5.5.3 takes answers for one another on a connection on
/// which it computes a digest.
fn may_use_idle_connection(method: &Method, headers: &HeaderMap) -> bool {
    let keeps = headers.get("overwrite").is_some_and(|value| value.as_bytes() == b"F");
    let is_alone = headers.contains_key(WANT_DIGEST) || headers.contains_key(IF_NONE_MATCH);
    *method != Method::POST && !keeps && !is_alone
}

impl StorageResponse {
    /// Returns a header that is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Address of the server.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.connection.as_ref().and_then(ClientConnection::peer_address)
    }

    /// Reads the next part of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        self.body.chunk().await
    }

    /// Reads the text of an error.
    pub async fn into_error(mut self) -> StorageError {
        self.body.error(self.status).await
    }
}

impl Drop for StorageResponse {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && self.is_kept
            && self.body.is_ended()
        {
            self.connections.keep(&self.url, connection);
        }
    }
}

/// Returns the location of a redirect; `None` for another response.
#[must_use]
pub fn location(response: &Response<Incoming>) -> Option<String> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|_| is_redirect)?;
    location.to_str().ok().map(str::to_owned)
}

/// Body of a response.
#[derive(Debug)]
struct ResponseBody {
    body: Incoming,
    is_read: bool,
}

impl From<Incoming> for ResponseBody {
    fn from(body: Incoming) -> Self {
        Self { body, is_read: false }
    }
}

impl ResponseBody {
    async fn chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        while let Some(frame) = self.body.frame().await {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => return Some(Ok(data)),
                // Trailers.
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
        self.is_read = true;
        None
    }

    /// Returns true if no part of the body is left, which hyper does not know of chunked bodies.
    fn is_ended(&self) -> bool {
        self.is_read || self.body.is_end_stream()
    }

    /// Reads at most `bytes_max` bytes into `body`.
    async fn read_into(&mut self, body: &mut Vec<u8>, bytes_max: usize) -> Result<(), HttpError> {
        while let Some(chunk) = self.chunk().await {
            body.extend_from_slice(&chunk?);
            if body.len() > bytes_max {
                body.truncate(bytes_max);
                break;
            }
        }
        Ok(())
    }

    /// Reads the text of an error. The body of a success that is none to the caller is data, which is not shown.
    async fn error(&mut self, status: StatusCode) -> StorageError {
        if status.is_success() {
            return StorageError::Status(status, String::new());
        }
        let mut body = Vec::new();
        let _ = timeout(ERROR_TIMEOUT, self.read_into(&mut body, ERROR_BYTES_MAX)).await;
        let text = crate::error_text(&body).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&body).into_owned();
            // Pages of web servers say no more than the status.
            if text.trim_start().starts_with('<') { String::new() } else { text }
        });
        StorageError::Status(status, text.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// Reads the text of a response whose status is none of success.
pub async fn status_error(response: Response<Incoming>) -> StorageError {
    let status = response.status();
    ResponseBody::from(response.into_body()).error(status).await
}

#[cfg(test)]
mod tests;
