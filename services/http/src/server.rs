//! Connections of the HTTP API: accepted, bounded in number and time, encrypted unless they are
//! local.
//!
//! Over the limit of connections, one without valid credentials gives way, or else an idle one; where there is none, the
//! newcomer gets a 503 and is closed, so that the others go on. A connection of TLS ends with close_notify (RFC 8446
//! section 6.1), without which clients take its end for an attack.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connection_tracker::RequestGuard;
pub use crate::connection_tracker::{ConnectionProof, ConnectionSlot, ConnectionTracker};
use crate::lingering_stream::LingeringStream;
use crate::malformed::{ProblemStream, check_host};
use crate::problem::complete;
use crate::{HEAD_BYTES_MAX, HEADER_TIMEOUT, IDLE_TIMEOUT, ProblemDetails, SEND_TIMEOUT};

/// Connections that wait to be accepted.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Time for the last answers to leave after the agent began to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for the close_notify of a connection that ends early.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before the next attempt that a connection over the limit is asked for, in seconds.
const RETRY_AFTER_S: u16 = 10;

/// Address of the client, as an extension of the request.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

/// The connection of a request, as an extension of the request.
#[derive(Debug, Clone)]
pub struct HttpConnection(Arc<ConnectionInner>);

#[derive(Debug)]
struct ConnectionInner {
    peer: SocketAddr,
    proof: ConnectionProof,
    socket: io::Result<std::net::TcpStream>,
    state: OnceLock<Arc<dyn Any + Send + Sync>>,
    lingers: Arc<AtomicBool>,
    certificate: OnceLock<CertificateDer<'static>>,
}

impl HttpConnection {
    fn new(stream: &TcpStream, peer: SocketAddr, proof: ConnectionProof) -> Self {
        let socket = stream.as_fd().try_clone_to_owned().map(std::net::TcpStream::from);
        let (state, lingers, certificate) = (OnceLock::new(), Arc::default(), OnceLock::new());
        Self(Arc::new(ConnectionInner { peer, proof, socket, state, lingers, certificate }))
    }

    /// Address of the client.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Certificate that the client presented, if the server asks for one. Whose it is remains to be checked.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.0.certificate.get()
    }

    /// Records that the client has shown valid credentials.
    pub fn set_proven(&self) {
        self.0.proof.set();
    }

    /// Sets whether the client may still send the body of a request that is answered. The end of the connection then waits for
    /// the client, which would miss the answer otherwise.
    pub fn set_lingering(&self, lingers: bool) {
        self.0.lingers.store(lingers, Ordering::Relaxed);
    }

    /// A second handle to the socket, for its options and counters. Its data belongs to the server.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn socket(&self) -> io::Result<&std::net::TcpStream> {
        self.0.socket.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))
    }

    /// State that the handlers keep with the connection, and that ends with it. All handlers of a server use one type.
    ///
    /// # Panics
    /// If the state has another type.
    #[must_use]
    pub fn state<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let state = self.0.state.get_or_init(|| Arc::new(T::default()));
        Arc::clone(state).downcast().expect("one type of state for a server")
    }
}

/// A listening socket of a server.
#[derive(Debug)]
pub struct HttpListener {
    /// Socket that is bound and listens.
    pub socket: TcpListener,
    /// True if its connections use TLS.
    pub encrypted: bool,
}

/// Limits of a server's connections.
#[derive(Debug, Clone, Copy)]
pub struct ServeConfig {
    /// Largest read buffer of a connection, in bytes, which also bounds the head of a request.
    pub buffer_bytes: usize,
    /// Time for the last answers to leave after the server began to stop.
    pub shutdown: Duration,
    /// Time limit of the head of a request, from its first byte.
    pub head: Duration,
    /// Longest time without a request.
    pub idle: Duration,
    /// Answers requests whose head cannot be parsed with a problem document. Only for servers whose bodies clients
    /// cannot choose: a body that reads like an empty error would be replaced, too.
    pub explain_malformed: bool,
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            buffer_bytes: HEAD_BYTES_MAX,
            shutdown: SHUTDOWN_TIMEOUT,
            head: HEADER_TIMEOUT,
            idle: IDLE_TIMEOUT,
            explain_malformed: true,
        }
    }
}

/// Binds a listener to each of `addresses`, which `--http` gives. Those on loopback are not encrypted.
///
/// # Errors
/// With the address that cannot be bound.
pub async fn bind(addresses: &[SocketAddr]) -> io::Result<Vec<HttpListener>> {
    bind_with(addresses, "give another with --http ADDR:PORT").await
}

/// Binds as [`bind`] does; `remedy` says in an error where the addresses are set.
///
/// # Errors
/// With the address that cannot be bound.
pub async fn bind_with(addresses: &[SocketAddr], remedy: &str) -> io::Result<Vec<HttpListener>> {
    let bind_one = |address: &SocketAddr| {
        let socket = listen(*address).map_err(|error| {
            let text = format!("cannot listen on {address} for HTTP: {error}: {remedy}");
            io::Error::new(error.kind(), text)
        })?;
        Ok(HttpListener { socket, encrypted: !address.ip().is_loopback() })
    };
    addresses.iter().map(bind_one).collect()
}

/// Listens on `address` with room for bursts of new connections. Belongs to the current runtime.
///
/// # Errors
/// The kernel's error.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = penstock_sys::net::connect::listen(address, LISTEN_BACKLOG)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Serves `router`, whose errors become problem documents, on `listeners` until `stop` becomes true and the last answers have left.
pub async fn serve(
    listeners: Vec<HttpListener>,
    router: Router,
    tls: &ServerConfig,
    traffic: Arc<ConnectionTracker>,
    stop: watch::Receiver<bool>,
) {
    serve_with(listeners, router, tls, traffic, stop, ServeConfig::default()).await;
}

/// Serves as [`serve`] does, with other limits.
pub async fn serve_with(
    listeners: Vec<HttpListener>,
    router: Router,
    tls: &ServerConfig,
    traffic: Arc<ConnectionTracker>,
    stop: watch::Receiver<bool>,
    config: ServeConfig,
) {
    let router = router.layer(axum::middleware::from_fn(check_host));
    let router = router.layer(axum::middleware::from_fn(complete));
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let server = ConnectionServer {
            router: router.clone(),
            tls: listener.encrypted.then(|| acceptor.clone()),
            stop: stop.clone(),
            config,
        };
        accepting.spawn(accept(listener.socket, server, Arc::clone(&traffic)));
    }
    while accepting.join_next().await.is_some() {}
}

/// Settings that the connections of a listener share.
#[derive(Clone)]
struct ConnectionServer {
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
    config: ServeConfig,
}

async fn accept(listener: TcpListener, server: ConnectionServer, traffic: Arc<ConnectionTracker>) {
    let mut connections = JoinSet::new();
    let mut stop = server.stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => match traffic.admit(peer.ip()) {
                Some(slot) => {
                    let server = server.clone();
                    connections.spawn(async move {
                        connection(stream, peer, &slot, server).await;
                    });
                }
                None => refuse(&stream, server.tls.is_none()),
            },
            Err(error) => {
                // Most likely out of file descriptors: wait until some are closed.
                tracing::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(server.config.shutdown, rest).await;
}

fn refuse(stream: &TcpStream, plain: bool) {
    if plain {
        let text = "too many connections are open: try it again";
        let problem = ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, text);
        let _ = stream.try_write(&problem.retry_after(RETRY_AFTER_S).raw_response());
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    slot: &ConnectionSlot,
    server: ConnectionServer,
) {
    let _ = stream.set_nodelay(true);
    // Also ends endless answers whose client stops reading.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_TIMEOUT));
    let connection = HttpConnection::new(&stream, peer, slot.proof());
    match &server.tls {
        None => requests(stream, connection, slot, server).await,
        Some(tls) => match handshake(tls, stream, slot).await {
            Ok(stream) => {
                let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                if let Some(certificate) = presented {
                    let _ = connection.0.certificate.set(certificate.clone().into_owned());
                }
                requests(stream, connection, slot, server).await;
            }
            Err(error) => tracing::debug!(%peer, "TLS handshake failed: {error}"),
        },
    }
}

async fn handshake(
    tls: &TlsAcceptor,
    stream: TcpStream,
    slot: &ConnectionSlot,
) -> io::Result<TlsStream<TcpStream>> {
    tokio::select! {
        accepted = timeout(HEADER_TIMEOUT, tls.accept(stream)) => {
            accepted.unwrap_or_else(|_| Err(io::Error::other("it took too long")))
        }
        () = slot.evicted() => Err(io::Error::other("closed in favour of another connection")),
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    connection: HttpConnection,
    slot: &ConnectionSlot,
    server: ConnectionServer,
) {
    let ConnectionServer { router, mut stop, config, .. } = server;
    let peer = connection.peer();
    let stream = LingeringStream::new(stream, Arc::clone(&connection.0.lingers));
    let proof = slot.proof();
    let count = move |request: Request, next: Next| counted(proof.clone(), request, next);
    let router = router.layer(axum::Extension(PeerAddress(peer)));
    let router = router.layer(axum::Extension(connection));
    let router = router.layer(axum::middleware::from_fn(count));
    let stream = ProblemStream::new(stream, config.head, config.explain_malformed);
    let mut served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.idle)
        .max_buf_size(config.buffer_bytes)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let ended = tokio::select! {
        result = &mut served => Some(result),
        () = slot.evicted() => None,
        () = stopped(&mut stop) => {
            Pin::new(&mut served).graceful_shutdown();
            Some((&mut served).await)
        }
    };
    match &ended {
        Some(Ok(())) => return,
        Some(Err(error)) => tracing::debug!(%peer, "HTTP connection ended: {error}"),
        None => tracing::debug!(%peer, "closed in favour of another connection"),
    }
    // An answer that a handler breaks off has to look broken.
    if !ended.is_some_and(|result| result.is_err_and(|error| error.is_user())) {
        let mut stream = served.into_parts().io.into_inner().into_inner();
        let _ = timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
    }
}

/// Marks the connection as busy until the answer has left.
async fn counted(proof: ConnectionProof, request: Request, next: Next) -> Response {
    let guard = proof.begin_request();
    next.run(request).await.map(|body| Body::new(CountedBody { body, _guard: guard }))
}

/// Body of an answer that keeps its connection from being idle.
struct CountedBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns when `stop` is true or its sender is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

#[cfg(test)]
mod tests;
