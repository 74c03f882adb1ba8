//! The HTTP client of all programs of the project.
//!
//! For: requests to one server over a persistent connection ([`HttpClient`]), and documents behind redirects
//! ([`fetch`]). Plain HTTP, or TLS that trusts authorities or a pinned certificate ([`ServerTrust`]). Time and the size of
//! a response are bounded. Callers refuse `http` URLs that lead off this machine where a request carries a secret.
//! Not for: proxies; behind one, download the document by other means.
//!
//! A status other than success is no error of [`HttpClient::send`].

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use hyper::{Method, Request, StatusCode};
use rustls::CommonState;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;

mod connection;
mod error;
pub mod fetch;
mod header_case;
mod trust;
mod url;

use connection::{connect_tls, prepare, server_name};

pub use connection::ClientConnection;
pub use error::HttpError;
pub use header_case::HeaderCase;
pub use trust::{CA_BUNDLES, ServerTrust, ServerTrustError};
pub use url::{Url, UrlError};

/// Time limit of connecting, TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time limit of a request: connecting, request, and the whole response.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Default limit of the body of a response, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Longest body of an error, in bytes; the rest is dropped.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Header with which every request names this program.
pub(crate) const AGENT_NAME: &str = concat!("penstock/", env!("CARGO_PKG_VERSION"));

/// A client of one server, with at most one connection.
///
/// A request on an idle connection that turns out to be closed is sent again over a new one, so that requests must be
/// idempotent unless they are marked ([`HttpRequest::once`]).
pub struct HttpClient {
    url: Url,
    addresses: Vec<SocketAddr>,
    trust: ServerTrust,
    token: String,
    connection: Option<ClientConnection>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A request with its limits.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    bytes_max: usize,
    timeout: Duration,
    once: bool,
}

impl HttpRequest {
    /// Creates a request for `path` below the client's URL; an empty `path` is the URL itself.
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
            bytes_max: RESPONSE_BYTES_MAX,
            timeout: RESPONSE_TIMEOUT,
            once: false,
        }
    }

    /// Adds a header; one of the same name stays.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets a body of any type.
    #[must_use]
    pub fn body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Sets a body of JSON.
    #[must_use]
    pub fn json(self, body: impl Into<Bytes>) -> Self {
        self.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(body)
    }

    /// Sets the longest body of a response, in bytes; a longer one is an error.
    #[must_use]
    pub fn bytes_max(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// Sets the time limit of connecting, request and response together.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Marks a request that must not be sent twice: it gets a new connection and no retry.
    #[must_use]
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }
}

/// A response of any status.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// Status, which may be one of failure.
    pub status: StatusCode,
    /// Headers of the response.
    pub headers: HeaderMap,
    /// Whole body; of an error at most 64 KiB.
    pub body: Bytes,
}

impl HttpResponse {
    /// Returns a header that is text.
    #[must_use]
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the line of a problem document (RFC 9457) in the body.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        crate::error_text(&self.body)
    }
}

impl HttpClient {
    /// Creates a client of the server at `url`, whose path prefixes all requests. TLS trusts the system's authorities.
    #[must_use]
    pub fn new(url: Url) -> Self {
        let (trust, token) = (ServerTrust::default(), String::new());
        Self { url, addresses: Vec::new(), trust, token, connection: None }
    }

    /// Sets the certificates that TLS trusts.
    #[must_use]
    pub fn trust(self, trust: ServerTrust) -> Self {
        Self { trust, ..self }
    }

    /// Sets the bearer token; an empty one is not sent.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self { token: token.into(), ..self }
    }

    /// Sets the addresses to connect to, in place of those of the URL's host. TLS then checks the first of them in
    /// place of a name.
    #[must_use]
    pub fn addresses(self, addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, ..self }
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sends a request and returns the whole response.
    ///
    /// # Errors
    /// When there is no response in time or its body is too long.
    pub async fn send(&mut self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.once {
            self.connection = None;
        }
        let reused = self.connection.as_ref().is_some_and(|sender| !sender.is_closed());
        let exchange = async {
            match self.exchange(&request).await {
                Err(HttpError::Transport(_)) if reused => {
                    self.connection = None;
                    self.exchange(&request).await
                }
                other => other,
            }
        };
        let response = timeout(request.timeout, exchange).await;
        let response = response.unwrap_or(Err(HttpError::ResponseTimeout(request.timeout)));
        if response.is_err() {
            // A late response on it would be taken for the next one.
            self.connection = None;
        }
        response
    }

    async fn exchange(&mut self, request: &HttpRequest) -> Result<HttpResponse, HttpError> {
        let head = self.head(request)?;
        let open = self.connection.take().filter(|connection| !connection.is_closed());
        let connection = match open {
            Some(connection) => self.connection.insert(connection),
            None => {
                let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
                let connection =
                    connected.unwrap_or(Err(HttpError::ConnectTimeout(CONNECT_TIMEOUT)))?;
                self.connection.insert(connection)
            }
        };
        let response = connection.send(head).await?;
        let (head, body) = response.into_parts();
        let body = if head.status.is_success() {
            let (body, whole) = read_at_most(body, request.bytes_max).await?;
            if !whole {
                return Err(HttpError::TooLong(request.bytes_max));
            }
            body
        } else {
            let (body, whole) = read_at_most(body, ERROR_BYTES_MAX).await?;
            if !whole {
                self.connection = None;
            }
            body
        };
        Ok(HttpResponse { status: head.status, headers: head.headers, body })
    }

    fn head(&self, request: &HttpRequest) -> Result<Request<Body>, HttpError> {
        let base = self.url.path();
        let path = match request.path.as_str() {
            "" => base.to_owned(),
            path => format!("{}{path}", base.trim_end_matches('/')),
        };
        let mut head = Request::builder()
            .method(&request.method)
            .uri(path)
            .header(HOST, self.url.authority())
            .header(USER_AGENT, AGENT_NAME);
        if !self.token.is_empty() {
            head = head.header(AUTHORIZATION, format!("Bearer {}", self.token));
        }
        for (name, value) in &request.headers {
            head = head.header(name, value);
        }
        Ok(head.body(Body::from(request.body.clone()))?)
    }

    async fn connect(&self) -> Result<ClientConnection, HttpError> {
        let stream = self.connect_tcp().await?;
        ClientConnection::begin(&self.url, stream, || self.server_name(), &self.trust).await
    }

    async fn connect_tcp(&self) -> Result<TcpStream, HttpError> {
        let stream = match self.addresses.as_slice() {
            [] => TcpStream::connect(self.url.host_and_port()).await,
            addresses => TcpStream::connect(addresses).await,
        };
        prepare(stream, &self.url)
    }

    fn server_name(&self) -> Result<ServerName<'static>, HttpError> {
        match self.addresses.first() {
            Some(address) => Ok(ServerName::from(address.ip())),
            None => server_name(&self.url),
        }
    }

    /// Connects over TLS and returns what `read` takes from the session, such as the server's certificate.
    ///
    /// # Errors
    /// When the connection fails, or the certificate is not trusted.
    pub async fn inspect_tls<T>(
        &self,
        read: impl FnOnce(&CommonState) -> T,
    ) -> Result<T, HttpError> {
        let connected = async {
            connect_tls(self.connect_tcp().await?, self.server_name()?, &self.trust).await
        };
        let connected = timeout(CONNECT_TIMEOUT, connected).await;
        let stream = connected.unwrap_or(Err(HttpError::ConnectTimeout(CONNECT_TIMEOUT)))?;
        Ok(read(stream.get_ref().1))
    }
}

/// Reads a body of at most `bytes_max` bytes; returns what was read, and true if that is all of it.
async fn read_at_most(mut body: Incoming, bytes_max: usize) -> Result<(Bytes, bool), HttpError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Ok((Bytes::new(), false));
    }
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let rest = bytes_max - read.len();
        read.extend_from_slice(&data[..data.len().min(rest)]);
        if data.len() > rest {
            return Ok((read.into(), false));
        }
    }
    Ok((read.into(), true))
}

/// Posts `json` to `url` and drops the response. Follows no redirect.
///
/// # Errors
/// When the request fails, or the status is none of success.
pub async fn post(url: &Url, json: Vec<u8>) -> Result<(), HttpError> {
    let request = HttpRequest::new(Method::POST, "").json(json);
    let response = HttpClient::new(url.clone()).send(request).await?;
    match response.status {
        status if status.is_success() => Ok(()),
        status if status.is_redirection() => {
            let location = response.header(hyper::header::LOCATION).unwrap_or_default();
            Err(HttpError::UnexpectedRedirect(excerpt(location)))
        }
        status => Err(HttpError::Status(status)),
    }
}

/// Returns the first characters of a text, control characters replaced.
fn excerpt(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests;
