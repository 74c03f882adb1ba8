//! A client that asks one server again and again over a connection that stays open.
//!
//! For: programs that talk to each other each second. Plain HTTP, or TLS as the caller's configuration says; where the
//! URL says `http` and leads off this machine the caller is to refuse it. A request on a connection that was idle and
//! turns out to be closed is sent once more over a new one: so ask only for what may be asked twice. Not for: public
//! documents ([`crate::fetch`]).
//!
//! Fails with a line; what the server answers with another status than success is an answer.

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

/// Time to connect, with a TLS handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A client of one server.
pub struct Client {
    url: Url,
    tls: Option<Arc<ClientConfig>>,
    token: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Client {
    /// Of the server at `url`, below whose path everything is asked, as the bearer of `token`; an empty one is not shown.
    #[must_use]
    pub fn new(url: Url, tls: Option<Arc<ClientConfig>>, token: String) -> Self {
        Self { url, tls, token, connection: None }
    }

    /// Asks for `path` below the URL and gives status and body, of at most `limit` bytes.
    ///
    /// # Errors
    /// One line, when there is no answer `within` this time, or a longer one.
    pub async fn ask(
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
            match self.once(&method, path, body.clone(), limit).await {
                Err(Failure::Gone(_)) if reused => {
                    self.connection = None;
                    self.once(&method, path, body, limit).await
                }
                other => other,
            }
        };
        let answer = timeout(within, exchange).await;
        let late = || Err(Failure::Gone(format!("no answer within {} s", within.as_secs())));
        answer.unwrap_or_else(|_| late()).map_err(|failure| {
            // Whatever is still under way on it would be taken for the next answer.
            self.connection = None;
            let (Failure::Gone(text) | Failure::Bad(text)) = failure;
            text
        })
    }

    async fn once(
        &mut self,
        method: &Method,
        path: &str,
        body: Bytes,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let bad = |error: &dyn std::fmt::Display| Failure::Bad(error.to_string());
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
                let sender = timeout(CONNECT_WITHIN, self.connect()).await;
                let late = || Err(format!("no connection within {} s", CONNECT_WITHIN.as_secs()));
                self.connection.insert(sender.unwrap_or_else(|_| late()).map_err(Failure::Bad)?)
            }
        };
        let gone = |error: hyper::Error| Failure::Gone(error.to_string());
        sender.ready().await.map_err(gone)?;
        let answer = sender.send_request(request).await.map_err(gone)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Failure::Bad(format!("its answer is longer than {limit} bytes"))
            } else {
                Failure::Bad(error.to_string())
            }
        })?;
        Ok((status, body.to_bytes()))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let (host, port) = self.url.host_and_port();
        let stream = TcpStream::connect((host, port)).await;
        let stream = stream
            .map_err(|error| format!("cannot connect to {}: {error}", self.url.authority()))?;
        // Without it a request of two segments waits for an acknowledgement.
        let _ = stream.set_nodelay(true);
        match (&self.tls, self.url.is_encrypted()) {
            (Some(tls), true) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|_| format!("'{host}' is no name that a certificate can have"))?;
                let connector = TlsConnector::from(Arc::clone(tls));
                let stream =
                    connector.connect(name, stream).await.map_err(|error| error.to_string())?;
                begin(stream).await
            }
            (None, true) => Err("no certificate of it is known".to_owned()),
            (_, false) => begin(stream).await,
        }
    }
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // It ends with the sender.
    tokio::spawn(connection);
    Ok(sender)
}

enum Failure {
    /// The connection is gone; another one may do.
    Gone(String),
    /// Another one does no better.
    Bad(String),
}
