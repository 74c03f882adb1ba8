//! A client of the agent's HTTP API: one request, one answer, one connection.
//!
//! Plain on loopback addresses, elsewhere TLS towards the one certificate that is known. For the verbs
//! of the command line, which wait for each answer. Not for: moving files.
//!
//! Fails with a line that says whether there is no agent, the wrong one, or one that refuses.

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

use crate::http::api::{AgentFacts, Change, Transfer, Transfers};
use penstock_http::error_text;

/// Time for a connection, and then for an answer.
const WAIT: Duration = Duration::from_secs(10);

/// Longest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The name leads nowhere, or nobody listens there.
    #[error(
        "no agent answers at {address}: {why}: start one (penstock serve) or give its address with --http ADDR:PORT"
    )]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
    /// Somebody listens there who is not that agent.
    #[error("{address} is not the agent that it should be: {why}")]
    Stranger {
        /// Where.
        address: String,
        /// Why.
        why: String,
    },
    /// The agent does not let us.
    #[error("the agent at {address} refuses: {text}")]
    Refused {
        /// Where.
        address: String,
        /// Its status: 401 for a token that it does not know, 403 for one that may not do this.
        status: u16,
        /// The agent's line.
        text: String,
    },
    /// The agent cannot.
    #[error("the agent at {address}: {text}")]
    Failed {
        /// Where.
        address: String,
        /// Its status.
        status: u16,
        /// The agent's line.
        text: String,
    },
}

/// A client of one agent.
#[derive(Debug)]
pub struct Client {
    address: String,
    token: String,
    fingerprint: Option<Fingerprint>,
    runtime: Runtime,
}

impl Client {
    /// A client of the agent whose HTTP API is at `address` (host:port). `fingerprint` is needed where
    /// the address is not loopback.
    ///
    /// # Errors
    /// When the process cannot have what a connection needs.
    pub fn new(address: &str, token: &str, fingerprint: Option<Fingerprint>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { address: address.to_owned(), token: token.to_owned(), fingerprint, runtime })
    }

    /// What the agent is and allows.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all the others.
    pub fn agent(&self) -> Result<AgentFacts, ClientError> {
        self.call(Method::GET, "/api/v1/agent", Bytes::new())
    }

    /// Its transfers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn transfers(&self) -> Result<Transfers, ClientError> {
        self.call(Method::GET, "/api/v1/transfers", Bytes::new())
    }

    /// Changes a transfer that runs.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn change(&self, id: u64, change: &Change) -> Result<Transfer, ClientError> {
        self.call(Method::PATCH, &format!("/api/v1/transfers/{id}"), json(change))
    }

    /// Cancels a transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn cancel(&self, id: u64) -> Result<Transfer, ClientError> {
        self.call(Method::DELETE, &format!("/api/v1/transfers/{id}"), Bytes::new())
    }

    /// Asks whatever role answers at `path`.
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
        let (status, answer) = self.runtime.block_on(self.exchange(method, path, body))?;
        let address = || self.address.clone();
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| ClientError::Stranger {
                address: address(),
                why: format!("its answer is not of this API ({error}): check the port"),
            });
        }
        let text = error_text(&answer).unwrap_or_else(|| format!("answered {status}"));
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
        let stranger = |why: String| ClientError::Stranger { address: self.address.clone(), why };
        let addresses = self.address.to_socket_addrs().map_err(|e| unreachable(e.to_string()))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let plain = addresses.iter().all(|address| address.ip().is_loopback());

        let stream = timeout(WAIT, TcpStream::connect(&*addresses)).await;
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
            .map_err(|error| stranger(error.to_string()))?;
        let answer = async {
            if plain {
                return send(stream, request).await;
            }
            let Some(fingerprint) = self.fingerprint else {
                return Err("its fingerprint is not known: log in first (penstock login HOST --token ... --fingerprint ...)".to_owned());
            };
            let tls = tls_client_config(fingerprint, None).map_err(|error| error.to_string())?;
            let tls = TlsConnector::from(tls);
            // The name is not looked at, and an address is none for SNI.
            let ip: IpAddr = addresses[0].ip();
            let stream = tls.connect(ServerName::from(ip), stream).await.map_err(|error| {
                format!("{error}: if the agent has a new certificate, log in again")
            })?;
            send(stream, request).await
        };
        match timeout(WAIT, answer).await {
            Ok(answer) => answer.map_err(stranger),
            Err(_) => Err(unreachable(format!("no answer within {}s", WAIT.as_secs()))),
        }
    }
}

/// Which of these certificates the HTTP API at `address` (host:port) shows; `None` on loopback, where it speaks in the
/// clear.
///
/// # Errors
/// When nobody answers, or with another certificate.
pub fn certificate_of(address: &str, known: Vec<Fingerprint>) -> io::Result<Option<Fingerprint>> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let Some(first) = addresses.iter().find(|address| !address.ip().is_loopback()) else {
        return Ok(None);
    };
    let name = ServerName::from(first.ip());
    let tls = TlsConnector::from(tls_client_config_of_any(known).map_err(io::Error::other)?);
    let shake_hands = async {
        let stream = TcpStream::connect(&*addresses).await?;
        let stream = tls.connect(name, stream).await?;
        Ok(peer_fingerprint(stream.get_ref().1))
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime
        .block_on(async { timeout(WAIT, shake_hands).await })
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
    connection.abort();
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("plain data").into()
}
