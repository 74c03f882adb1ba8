//! The other server of a third-party copy.
//!
//! Every address is checked against `third_party.to` of the agent before it is connected to, also after redirects, so
//! that clients cannot reach through the agent what they could not reach by themselves.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
};
use futures_util::StreamExt;
use hyper::body::Incoming;
use penstock_http::ProblemDetails;
use penstock_http::client::{ClientConnection, HttpError, ServerTrust, Url};
use penstock_protocol::open::Refusal;
use tokio::time::timeout;

/// Longest wait for the head of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// Most redirects of one request.
const REDIRECTS_MAX: usize = 5;

/// Bytes of an error's body that are shown.
const ERROR_BYTES_MAX: usize = 2 << 10;

/// Name of this program in requests.
const USER_AGENT: &str = concat!("penstock/", env!("CARGO_PKG_VERSION"));

/// Check of an address before it is connected to.
pub(crate) type AddressCheck = dyn Fn(SocketAddr) -> Result<(), Refusal> + Send + Sync;

/// An error of the other server, or on the way to it.
#[derive(Debug)]
pub(crate) enum RemoteError {
    /// The configuration of this agent forbids the address.
    Forbidden(Refusal),
    /// The host has no address.
    Resolve(String, io::Error),
    /// No connection, or it broke.
    Http(HttpError),
    /// The server answered with an error, and this text.
    Status(StatusCode, String),
    /// The server sent nothing for this time.
    Silent(Duration),
    /// A response that contradicts the request or an earlier response.
    Malformed(String),
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forbidden(refusal) => f.write_str(&refusal.text),
            Self::Resolve(host, error) => write!(f, "cannot resolve {host}: {error}"),
            Self::Http(error) => write!(f, "{error}"),
            Self::Status(status, text) => {
                // Words by which FTS distinguishes permanent errors from those that it retries.
                let words = match *status {
                    StatusCode::NOT_FOUND => "No such file: ",
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Permission denied: ",
                    _ => "",
                };
                write!(f, "{words}it answers {status}")?;
                if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
            }
            Self::Silent(time) => {
                write!(f, "Connection timed out: it sent nothing for {} s", time.as_secs())
            }
            Self::Malformed(text) => f.write_str(text),
        }
    }
}

impl RemoteError {
    /// True if another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Http(error) => matches!(error, HttpError::Transport(_)) || error.is_unreachable(),
            Self::Silent(_) => true,
            Self::Status(status, _) => {
                status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED
                    || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::Forbidden(_) | Self::Resolve(..) | Self::Malformed(_) => false,
        }
    }

    /// The problem with which a copy is refused before it begins.
    pub(crate) fn problem(&self, url: &Url) -> ProblemDetails {
        let status = match self {
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Status(StatusCode::NOT_FOUND, _) => StatusCode::NOT_FOUND,
            Self::Status(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                StatusCode::FORBIDDEN
            }
            Self::Silent(_) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        ProblemDetails::new(status, format!("{url}: {self}"))
    }
}

/// A client of one file at the other server. Clones have connections of their own.
pub(crate) struct RemoteClient {
    trust: ServerTrust,
    check: Arc<AddressCheck>,
    /// Headers of every request.
    headers: HeaderMap,
    /// Connection for the next request, with the scheme and the authority that it is for.
    idle: Option<((bool, String), ClientConnection)>,
}

impl Clone for RemoteClient {
    fn clone(&self) -> Self {
        let (trust, headers) = (self.trust.clone(), self.headers.clone());
        Self { trust, check: Arc::clone(&self.check), headers, idle: None }
    }
}

/// A response, and the connection that its body comes from.
pub(crate) struct RemoteResponse {
    pub(crate) response: Response<Incoming>,
    key: (bool, String),
    pub(crate) connection: ClientConnection,
}

impl RemoteClient {
    /// Creates a client that sends `headers` with every request, and connects to addresses that pass `check`.
    pub(crate) fn new(trust: ServerTrust, check: Arc<AddressCheck>, headers: HeaderMap) -> Self {
        Self { trust, check, headers, idle: None }
    }

    /// Sends a request without a body, and follows redirects.
    ///
    /// # Errors
    /// When there is no response in time.
    pub(crate) async fn request(
        &mut self,
        url: &Url,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<RemoteResponse, RemoteError> {
        let mut at = url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let head = || self.head(url, &at, method, headers, Body::empty());
            let (first, again) = (head()?, head()?);
            let mut answered = self.exchange(&at, first).await;
            if matches!(answered, Err((true, _))) {
                // The server closed an idle connection.
                answered = self.exchange(&at, again).await;
            }
            let response = answered.map_err(|(_, error)| error)?;
            match location(&response.response) {
                Some(location) => at = at.redirected(&location).map_err(RemoteError::Http)?,
                None => return Ok(response),
            }
        }
        Err(RemoteError::Http(HttpError::Redirects(REDIRECTS_MAX)))
    }

    /// Keeps a connection whose response was read to its end.
    pub(crate) fn keep(&mut self, key: (bool, String), connection: ClientConnection) {
        self.idle = Some((key, connection));
    }

    /// Makes a request for `at`, to which a redirect from `url` may have led. Another host gets no credentials.
    pub(crate) fn head(
        &self,
        url: &Url,
        at: &Url,
        method: &Method,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Request<Body>, RemoteError> {
        let mut request = Request::builder()
            .method(method)
            .uri(at.path())
            .header(header::HOST, at.authority())
            .header(header::USER_AGENT, USER_AGENT);
        for (name, value) in self.headers.iter().chain(headers) {
            let is_secret = name == header::AUTHORIZATION || name == header::COOKIE;
            if !is_secret || at.host_and_port() == url.host_and_port() {
                request = request.header(name, value);
            }
        }
        request.body(body).map_err(|error| RemoteError::Http(error.into()))
    }

    /// Resolves the host of a URL to the addresses that may be connected to.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) async fn resolve(&self, url: &Url) -> Result<Vec<SocketAddr>, RemoteError> {
        let (host, port) = url.host_and_port();
        let failed = |error| RemoteError::Resolve(host.to_owned(), error);
        let all: Vec<SocketAddr> =
            tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
        let check = Arc::clone(&self.check);
        // A rule with a name resolves it.
        let checked = tokio::task::spawn_blocking(move || {
            let mut refused = None;
            let mut allowed = Vec::new();
            for address in all {
                match check(address) {
                    Ok(()) => allowed.push(address),
                    Err(refusal) => refused = Some(refusal),
                }
            }
            (allowed, refused)
        });
        match checked.await.map_err(|error| failed(io::Error::other(error)))? {
            (allowed, _) if !allowed.is_empty() => Ok(allowed),
            (_, Some(refusal)) => Err(RemoteError::Forbidden(refusal)),
            (_, None) => Err(failed(io::ErrorKind::NotFound.into())),
        }
    }

    /// Connects to the server of a URL.
    pub(crate) async fn connect(&self, url: &Url) -> Result<ClientConnection, RemoteError> {
        let addresses = self.resolve(url).await?;
        ClientConnection::open(url, &addresses, &self.trust).await.map_err(RemoteError::Http)
    }

    /// Sends one request. The error says if it came from a connection that was used before.
    async fn exchange(
        &mut self,
        url: &Url,
        request: Request<Body>,
    ) -> Result<RemoteResponse, (bool, RemoteError)> {
        let key = (url.is_encrypted(), url.authority());
        let idle = self.idle.take().filter(|(of, idle)| *of == key && !idle.is_closed());
        let was_used = idle.is_some();
        let mut connection = match idle {
            Some((_, connection)) => connection,
            None => self.connect(url).await.map_err(|error| (false, error))?,
        };
        let sent = timeout(RESPONSE_TIMEOUT, connection.send(request)).await;
        match sent {
            Err(_) => Err((false, RemoteError::Silent(RESPONSE_TIMEOUT))),
            Ok(Err(error)) => Err((was_used, RemoteError::Http(error))),
            Ok(Ok(response)) => Ok(RemoteResponse { response, key, connection }),
        }
    }
}

impl RemoteResponse {
    /// Returns a header that is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns true if the server of `url` sent it, without a redirect to another one.
    pub(crate) fn is_from(&self, url: &Url) -> bool {
        self.key == (url.is_encrypted(), url.authority())
    }

    /// Takes the response apart: what identifies the connection, the connection, and the body.
    pub(crate) fn into_parts(self) -> ((bool, String), ClientConnection, Incoming) {
        (self.key, self.connection, self.response.into_body())
    }

    /// Reads the text of an error.
    pub(crate) async fn into_error(self) -> RemoteError {
        status_error(self.response).await
    }
}

/// Location of a redirect; `None` for another response.
pub(crate) fn location(response: &Response<Incoming>) -> Option<String> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(header::LOCATION).filter(|_| is_redirect)?;
    location.to_str().ok().map(str::to_owned)
}

/// The error of a response whose status is none of success.
pub(crate) async fn status_error(response: Response<Incoming>) -> RemoteError {
    let status = response.status();
    let mut chunks = Body::new(response.into_body()).into_data_stream();
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
    let text = penstock_http::error_text(&body).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&body).into_owned();
        // Pages of web servers say no more than the status.
        if text.trim_start().starts_with('<') { String::new() } else { text }
    });
    RemoteError::Status(status, text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Value of `Range` for a part of a file.
pub(crate) fn range_value(range: crate::range::ByteRange) -> HeaderValue {
    let last = range.start + range.bytes - 1;
    let text = format!("bytes={}-{last}", range.start);
    HeaderValue::from_str(&text).expect("numbers make a header")
}
