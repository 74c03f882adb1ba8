//! A client that sends its requests to one server over a persistent connection.
//!
//! For: programs that exchange messages each second. Plain HTTP, or TLS by the caller's configuration; the caller
//! refuses `http` URLs that lead off this machine. A request on an idle connection that turns out to be closed is
//! sent again over a new one: requests must be idempotent. Not for: public documents ([`crate::fetch`]).
//!
//! Errors are one line; a status other than success is no error.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::fetch::Url;

/// Time limit of connecting, TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one server, with at most one connection.
pub struct HttpClient {
    url: Url,
    tls: Option<Arc<ClientConfig>>,
    token: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").field("url", &self.url).finish_non_exhaustive()
    }
}

impl HttpClient {
    /// Creates a client of the server at `url`, whose path prefixes all requests. An empty `token` is not sent.
    #[must_use]
    pub fn new(url: Url, tls: Option<Arc<ClientConfig>>, token: String) -> Self {
        Self { url, tls, token, connection: None }
    }

    /// Sends a request for `path` below the URL and returns status and body, of at most `limit` bytes.
    ///
    /// # Errors
    /// One line, when there is no answer `within` this time or its body is too long.
    pub async fn request(
        &mut self,
        method: Method,
        path: &str,
        json: Vec<u8>,
        limit: usize,
        within: Duration,
    ) -> Result<(StatusCode, Bytes), String> {
        let body = Bytes::from(json);
        let reused = self.connection.as_ref().is_some_and(|sender| !sender.is_closed());
        let exchange = async {
            match self.try_request(&method, path, body.clone(), limit).await {
                Err(RequestFailure::Gone(_)) if reused => {
                    self.connection = None;
                    self.try_request(&method, path, body, limit).await
                }
                other => other,
            }
        };
        let answer = timeout(within, exchange).await;
        let late = || Err(RequestFailure::Gone(format!("no answer within {} s", within.as_secs())));
        answer.unwrap_or_else(|_| late()).map_err(|failure| {
            // A late answer on it would be taken for the next one.
            self.connection = None;
            let (RequestFailure::Gone(text) | RequestFailure::Bad(text)) = failure;
            text
        })
    }

    async fn try_request(
        &mut self,
        method: &Method,
        path: &str,
        body: Bytes,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), RequestFailure> {
        let bad = |error: &dyn std::fmt::Display| RequestFailure::Bad(error.to_string());
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url.path().trim_end_matches('/')))
            .header(HOST, self.url.authority())
            .header(USER_AGENT, concat!("penstock/", env!("CARGO_PKG_VERSION")));
        if !self.token.is_empty() {
            request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| bad(&error))?;
        let sender = match self.connection.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => self.connection.insert(sender),
            None => {
                let sender = timeout(CONNECT_TIMEOUT, self.connect()).await;
                let late = || Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()));
                self.connection
                    .insert(sender.unwrap_or_else(|_| late()).map_err(RequestFailure::Bad)?)
            }
        };
        let gone = |error: hyper::Error| RequestFailure::Gone(error.to_string());
        sender.ready().await.map_err(gone)?;
        let answer = sender.send_request(request).await.map_err(gone)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                RequestFailure::Bad(format!("its answer is longer than {limit} bytes"))
            } else {
                RequestFailure::Bad(error.to_string())
            }
        })?;
        Ok((status, body.to_bytes()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let (host, port) = self.url.host_and_port();
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream
            .map_err(|error| format!("cannot connect to {}: {error}", self.url.authority()))?;
        // Nagle's algorithm would delay the second segment of a request until an acknowledgement.
        let _ = stream.set_nodelay(true);
        match (&self.tls, self.url.is_encrypted()) {
            (Some(tls), true) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|_| format!("'{host}' is no name that a certificate can have"))?;
                let connector = TlsConnector::from(Arc::clone(tls));
                let stream =
                    connector.connect(name, stream).await.map_err(|error| error.to_string())?;
                handshake(stream).await
            }
            (None, true) => Err("no certificate of it is known".to_owned()),
            (_, false) => handshake(stream).await,
        }
    }
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

enum RequestFailure {
    /// The connection failed; a new one may succeed.
    Gone(String),
    /// A new connection would fail, too.
    Bad(String),
}
