//! Blocking client of the agent's HTTP API.
//!
//! Plain HTTP to loopback addresses, TLS with a pinned certificate to others. For the commands. Not for:
//! moving files.
//!
//! An error tells apart an unreachable agent, a wrong certificate and a refusal.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::{Method, StatusCode};
use penstock_http::client::ServerTrustError;
use penstock_http::{HttpClient, HttpError, HttpRequest, HttpResponse, ServerTrust, Url};
use penstock_identity::{
    Fingerprint, IdentityError, peer_fingerprint, tls_client_config, tls_client_config_of_any,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};

use crate::http::api::{AgentFacts, TransferChange, TransferFacts, Transfers};
use crate::http::disks::{DiskConnectionBody, DiskConnectionFacts};
use crate::http::tuning::TuningFacts;

/// Time limit of connecting, request and response together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest response body, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A request without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No agent answers: the name does not resolve, or nothing listens.
    #[error(
        "no agent answers at {address}: {source}: start one (penstock serve) or give its address with --http ADDR:PORT"
    )]
    Unreachable {
        /// Address as host:port.
        address: String,
        /// Error of the name resolution or of the connection.
        source: UnreachableAgent,
    },
    /// Something else answers: wrong certificate or protocol.
    #[error("{address} is not the agent that it should be: {source}")]
    Stranger {
        /// Address as host:port.
        address: String,
        /// Difference from the agent.
        source: StrangerAgent,
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

/// Reason why no agent answers at an address.
#[derive(Debug, thiserror::Error)]
pub enum UnreachableAgent {
    /// The name does not resolve, or nothing listens.
    #[error(transparent)]
    Connect(#[from] io::Error),
    /// The connection or its response ends early.
    #[error(transparent)]
    Exchange(HttpError),
}

/// Reason why a server is not the agent that the client knows.
#[derive(Debug, thiserror::Error)]
pub enum StrangerAgent {
    /// A response of another API.
    #[error("its response is not of this API ({0}): check the port")]
    Response(#[from] serde_json::Error),
    /// The client knows no certificate of it.
    #[error(
        "its fingerprint is not known: log in first (penstock login HOST --token ... --fingerprint ...)"
    )]
    UnknownFingerprint,
    /// TLS cannot be set up for the known certificate.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Another certificate than the known one, or no TLS.
    #[error("{0}: if the agent has a new certificate, log in again")]
    Handshake(#[source] io::Error),
    /// A response that is not valid HTTP.
    #[error(transparent)]
    Http(HttpError),
}

/// A client of one agent.
#[derive(Debug)]
pub struct AgentClient {
    address: String,
    token: String,
    fingerprint: Option<Fingerprint>,
    /// Client with its connection, from the first request on.
    client: Mutex<Option<HttpClient>>,
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
        let (address, token) = (address.to_owned(), token.to_owned());
        Ok(Self { address, token, fingerprint, client: Mutex::default(), runtime })
    }

    /// Reads version, addresses, exports and limits of the agent.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn agent(&self) -> Result<AgentFacts, ClientError> {
        self.call(HttpRequest::new(Method::GET, "/api/v1/agent"))
    }

    /// Lists the agent's transfers.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn transfers(&self) -> Result<Transfers, ClientError> {
        self.call(HttpRequest::new(Method::GET, "/api/v1/transfers"))
    }

    /// Shows a running transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn transfer(&self, id: u64) -> Result<TransferFacts, ClientError> {
        self.call(HttpRequest::new(Method::GET, format!("/api/v1/transfers/{id}")))
    }

    /// Reads the decisions about the streams of a transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn tuning(&self, id: u64) -> Result<TuningFacts, ClientError> {
        self.call(HttpRequest::new(Method::GET, format!("/api/v1/transfers/{id}/tuning")))
    }

    /// Changes a running transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn change(&self, id: u64, change: &TransferChange) -> Result<TransferFacts, ClientError> {
        let path = format!("/api/v1/transfers/{id}");
        self.call(HttpRequest::new(Method::PATCH, path).json(json(change)).once())
    }

    /// Cancels a running transfer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn cancel(&self, id: u64) -> Result<TransferFacts, ClientError> {
        self.call(HttpRequest::new(Method::DELETE, format!("/api/v1/transfers/{id}")).once())
    }

    /// Reads what the host `host_nqn` needs to connect to a disk that the agent exports.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn disk_connection(
        &self,
        name: &str,
        host_nqn: &str,
    ) -> Result<DiskConnectionFacts, ClientError> {
        let body = DiskConnectionBody { host_nqn: host_nqn.to_owned() };
        self.ask("POST", &format!("/api/v1/disks/{name}/connection"), Some(&body))
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
        let method: Method = method.parse().expect("a method of HTTP");
        let is_safe = method.is_safe();
        let mut request = HttpRequest::new(method, path);
        if let Some(body) = body {
            request = request.json(json(body));
        }
        self.call(if is_safe { request } else { request.once() })
    }

    fn call<T: DeserializeOwned>(&self, request: HttpRequest) -> Result<T, ClientError> {
        let response = self.exchange(request)?;
        let address = || self.address.clone();
        if response.status.is_success() {
            return serde_json::from_slice(&response.body).map_err(|error| ClientError::Stranger {
                address: address(),
                source: error.into(),
            });
        }
        let status = response.status.as_u16();
        let text = response.problem().unwrap_or_else(|| format!("answered {}", response.status));
        Err(match response.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                ClientError::Refused { address: address(), status, text }
            }
            _ => ClientError::Failed { address: address(), status, text },
        })
    }

    fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, ClientError> {
        let request = request.bytes_max(RESPONSE_BYTES_MAX).timeout(REQUEST_TIMEOUT);
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &mut *kept {
            Some(client) => client,
            None => kept.insert(self.connect()?),
        };
        self.runtime.block_on(client.send(request)).map_err(|error| self.failure(error))
    }

    /// Resolves the address and creates a client: loopback speaks plain HTTP, others TLS with a pinned certificate.
    fn connect(&self) -> Result<HttpClient, ClientError> {
        let unreachable = |error: io::Error| ClientError::Unreachable {
            address: self.address.clone(),
            source: error.into(),
        };
        let addresses: Vec<SocketAddr> =
            self.address.to_socket_addrs().map_err(unreachable)?.collect();
        let plain = addresses.iter().all(|address| address.ip().is_loopback());
        let trust = match self.fingerprint {
            None => ServerTrust::Unknown,
            Some(fingerprint) => {
                ServerTrust::Config(tls_client_config(fingerprint, None).map_err(|error| {
                    ClientError::Stranger { address: self.address.clone(), source: error.into() }
                })?)
            }
        };
        let url = url(&self.address, !plain);
        Ok(HttpClient::new(url).addresses(addresses).trust(trust).token(self.token.as_str()))
    }

    fn failure(&self, error: HttpError) -> ClientError {
        let address = self.address.clone();
        match error {
            HttpError::Connect { source, .. } => {
                ClientError::Unreachable { address, source: source.into() }
            }
            error if error.is_unreachable() || error.is_broken_off() => {
                ClientError::Unreachable { address, source: UnreachableAgent::Exchange(error) }
            }
            error => ClientError::Stranger {
                address,
                source: match error {
                    HttpError::Trust(ServerTrustError::Unknown) => {
                        StrangerAgent::UnknownFingerprint
                    }
                    HttpError::Tls(error) => StrangerAgent::Handshake(error),
                    error => StrangerAgent::Http(error),
                },
            },
        }
    }
}

/// Returns the URL of the API at `address` (host:port).
fn url(address: &str, encrypted: bool) -> Url {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Url::of_host(encrypted, host, port.parse().unwrap_or_default())
}

/// Connects to the HTTP API at `address` (host:port) and returns which of the known certificates it presents;
/// `None` on loopback, where it speaks plain HTTP.
///
/// # Errors
/// When the connection fails or the certificate is not among `known`.
pub fn certificate_of(address: &str, known: Vec<Fingerprint>) -> io::Result<Option<Fingerprint>> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    if addresses.iter().all(|address| address.ip().is_loopback()) {
        return Ok(None);
    }
    let trust = ServerTrust::Config(tls_client_config_of_any(known).map_err(io::Error::other)?);
    let client = HttpClient::new(url(address, true)).addresses(addresses).trust(trust);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(client.inspect_tls(peer_fingerprint)).map_err(io::Error::other)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data")
}
