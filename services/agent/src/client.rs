//! Blocking client of the agent's HTTP API: one connection per request.
//!
//! Plain HTTP to loopback addresses, TLS with a pinned certificate to others. For the commands. Not for:
//! moving files.
//!
//! An error tells apart an unreachable agent, a wrong certificate and a refusal.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use penstock_mover::identity::{
    Fingerprint, peer_fingerprint, tls_client_config, tls_client_config_of_any,
};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::http::api::{AgentFacts, Transfer, TransferChange, Transfers};
use penstock_http::error_text;

/// Timeout of the connection, and again of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest response body.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A request without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent answers: the name does not resolve, or nothing listens.
    #[error(
        "no agent answers at {address}: {why}: start one (penstock serve) or give its address with --http ADDR:PORT"
    )]
    Unreachable {
        /// Address as host:port.
        address: String,
        /// Reason.
        why: String,
    },
    /// Something else answers: wrong certificate or protocol.
    #[error("{address} is not the agent that it should be: {why}")]
    Stranger {
        /// Address as host:port.
        address: String,
        /// Reason.
        why: String,
    },
    /// The agent refuses the token.
    #[error("the agent at {address} refuses: {text}")]
    Refused {
        /// Address as host:port.
        address: String,
        /// HTTP status: 401 for an unknown token, 403 for one that may not do this.
        status: u16,
        /// Message of the agent.
        text: String,
    },
    /// The agent reports an error.
    #[error("the agent at {address}: {text}")]
    Failed {
        /// Address as host:port.
        address: String,
        /// HTTP status.
        status: u16,
        /// Message of the agent.
        text: String,
    },
}

/// A client of one agent.
#[derive(Debug)]
pub struct AgentClient {
    address: String,
    token: String,
    fingerprint: Option<Fingerprint>,
    runtime: Runtime,
}

impl AgentClient {
    /// Creates a client of the HTTP API at `address` (host:port). Addresses other than loopback need a
    /// `fingerprint`.
    ///
    /// # Errors
    /// When the runtime cannot be created.
    pub fn new(address: &str, token: &str, fingerprint: Option<Fingerprint>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { address: address.to_owned(), token: token.to_owned(), fingerprint, runtime })
    }

    /// Reads version, addresses, exports and limits of the agent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn agent(&self) -> Result<AgentFacts, ClientError> {
        self.call(Method::GET, "/api/v1/agent", Bytes::new())
    }

    /// Lists the agent's transfers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn transfers(&self) -> Result<Transfers, ClientError> {
        self.call(Method::GET, "/api/v1/transfers", Bytes::new())
    }

    /// Changes a running transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn change(&self, id: u64, change: &TransferChange) -> Result<Transfer, ClientError> {
        self.call(Method::PATCH, &format!("/api/v1/transfers/{id}"), json(change))
    }

    /// Cancels a running transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn cancel(&self, id: u64) -> Result<Transfer, ClientError> {
        self.call(Method::DELETE, &format!("/api/v1/transfers/{id}"), Bytes::new())
    }

    /// Sends a request to any path, for other roles of the node.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let method = method.parse().expect("a method of HTTP");
        self.call(method, path, body.map(json).unwrap_or_default())
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let (status, response) = self.runtime.block_on(self.exchange(method, path, body))?;
        let address = || self.address.clone();
        if status.is_success() {
            return serde_json::from_slice(&response).map_err(|error| ClientError::Stranger {
                address: address(),
                why: format!("its response is not of this API ({error}): check the port"),
            });
        }
        let text = error_text(&response).unwrap_or_else(|| format!("answered {status}"));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ClientError::Refused { address: address(), status: status.as_u16(), text }
            }
            _ => ClientError::Failed { address: address(), status: status.as_u16(), text },
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let unreachable =
            |why: String| ClientError::Unreachable { address: self.address.clone(), why };
        let wrong_peer = |why: String| ClientError::Stranger { address: self.address.clone(), why };
        let addresses = self.address.to_socket_addrs().map_err(|e| unreachable(e.to_string()))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let plain = addresses.iter().all(|address| address.ip().is_loopback());

        let stream = timeout(REQUEST_TIMEOUT, TcpStream::connect(&*addresses)).await;
        let stream = stream
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| unreachable(error.to_string()))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.address)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| wrong_peer(error.to_string()))?;
        let response = async {
            if plain {
                return send(stream, request).await;
            }
            let Some(fingerprint) = self.fingerprint else {
                return Err("its fingerprint is not known: log in first (penstock login HOST --token ... --fingerprint ...)".to_owned());
            };
            let tls = tls_client_config(fingerprint, None).map_err(|error| error.to_string())?;
            let tls = TlsConnector::from(tls);
            // The certificate is pinned, so the name is not checked; SNI has no addresses.
            let ip: IpAddr = addresses[0].ip();
            let stream = tls.connect(ServerName::from(ip), stream).await.map_err(|error| {
                format!("{error}: if the agent has a new certificate, log in again")
            })?;
            send(stream, request).await
        };
        match timeout(REQUEST_TIMEOUT, response).await {
            Ok(response) => response.map_err(wrong_peer),
            Err(_) => Err(unreachable(format!("no answer within {}s", REQUEST_TIMEOUT.as_secs()))),
        }
    }
}

/// Connects to the HTTP API at `address` (host:port) and returns which of the known certificates it presents;
/// `None` on loopback, where it speaks plain HTTP.
///
/// # Errors
/// When the connection fails or the certificate is not among `known`.
pub fn certificate_of(address: &str, known: Vec<Fingerprint>) -> io::Result<Option<Fingerprint>> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let Some(first) = addresses.iter().find(|address| !address.ip().is_loopback()) else {
        return Ok(None);
    };
    let name = ServerName::from(first.ip());
    let tls = TlsConnector::from(tls_client_config_of_any(known).map_err(io::Error::other)?);
    let handshake = async {
        let stream = TcpStream::connect(&*addresses).await?;
        let stream = tls.connect(name, stream).await?;
        Ok(peer_fingerprint(stream.get_ref().1))
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime
        .block_on(async { timeout(REQUEST_TIMEOUT, handshake).await })
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
    connection.abort();
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("plain data").into()
}
