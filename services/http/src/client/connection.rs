//! A connection of a client, with bodies of any length.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{CONNECT_TIMEOUT, HttpError, ServerTrust, Url};

/// Largest read buffer of a connection, in bytes.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// A connection to one server. Requests follow one another; a response must be read to its end before the next.
#[derive(Debug)]
pub struct ClientConnection {
    sender: SendRequest<Body>,
    socket: Option<std::net::TcpStream>,
}

impl ClientConnection {
    /// Connects to the first of `addresses` that accepts, and checks the certificate against the host of `url`.
    ///
    /// # Errors
    /// When no address accepts in time, or TLS does not trust the server.
    pub async fn open(
        url: &Url,
        addresses: &[SocketAddr],
        trust: &ServerTrust,
    ) -> Result<Self, HttpError> {
        let connect = async {
            let stream = prepare(TcpStream::connect(addresses).await, url)?;
            Self::begin(url, stream, || server_name(url), trust).await
        };
        timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or(Err(HttpError::ConnectTimeout(CONNECT_TIMEOUT)))
    }

    pub(super) async fn begin(
        url: &Url,
        stream: TcpStream,
        name: impl FnOnce() -> Result<ServerName<'static>, HttpError>,
        trust: &ServerTrust,
    ) -> Result<Self, HttpError> {
        let socket = stream.as_fd().try_clone_to_owned().ok().map(std::net::TcpStream::from);
        let sender = match url.is_encrypted() {
            true => handshake(connect_tls(stream, name()?, trust).await?).await?,
            false => handshake(stream).await?,
        };
        Ok(Self { sender, socket })
    }

    /// Sends a request, whose path and headers the caller makes, and returns the response with its body unread.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, HttpError> {
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Returns true if the connection cannot be used any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Address of the server.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.socket.as_ref().and_then(|socket| socket.peer_addr().ok())
    }

    /// TCP socket, for its options and counters.
    #[must_use]
    pub fn socket(&self) -> Option<&std::net::TcpStream> {
        self.socket.as_ref()
    }
}

/// Name in the certificate of the server at `url`.
pub(super) fn server_name(url: &Url) -> Result<ServerName<'static>, HttpError> {
    let (host, _) = url.host_and_port();
    ServerName::try_from(host.to_owned()).map_err(|_| HttpError::ServerName(host.to_owned()))
}

/// Returns a new TCP connection without Nagle's algorithm, which would delay the second segment of a request.
pub(super) fn prepare(
    stream: std::io::Result<TcpStream>,
    url: &Url,
) -> Result<TcpStream, HttpError> {
    let stream =
        stream.map_err(|source| HttpError::Connect { address: url.authority(), source })?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

pub(super) async fn connect_tls(
    stream: TcpStream,
    name: ServerName<'static>,
    trust: &ServerTrust,
) -> Result<TlsStream<TcpStream>, HttpError> {
    let connector = TlsConnector::from(trust.config()?);
    let connected = connector.connect(name, stream).await;
    connected.map_err(|error| match trust {
        ServerTrust::Authorities(None) => HttpError::UntrustedTls(error),
        _ => HttpError::Tls(error),
    })
}

async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Body>, HttpError> {
    let builder = {
        let mut builder = http1::Builder::new();
        // XRootD 5 knows the names of headers in this case only.
        builder.max_buf_size(BUFFER_BYTES_MAX).title_case_headers(true).preserve_header_case(true);
        builder
    };
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}
