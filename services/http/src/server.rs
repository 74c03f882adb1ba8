//! Connections of the HTTP API: accepted, bounded in number and time, encrypted where they leave the
//! machine.
//!
//! A connection beyond the limit is told so and closed at once: those that were there first go on.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::{CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_TIME, TAKE_TIME};

/// How long answers may take to leave after the agent was told to stop.
const STOP_TIME: Duration = Duration::from_secs(3);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 175\r\n\r\n{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections are open: try it again\",\"error\":\"too many connections are open: try it again\"}\n";

/// The other end of a connection, as a request's extension.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Counts of connections and answers, and how many connections there may be.
#[derive(Debug)]
pub struct Traffic {
    most: usize,
    open: AtomicUsize,
    refused: AtomicU64,
    answers: [AtomicU64; 3],
}

impl Default for Traffic {
    fn default() -> Self {
        Self::new(CONNECTIONS_MAX)
    }
}

impl Traffic {
    /// None yet, of at most so many at once.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            open: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            answers: Default::default(),
        }
    }

    /// Counts an answer.
    pub fn answered(&self, status: StatusCode) {
        let class = match status.as_u16() {
            ..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.answers[class].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers that went well, that told the client of its error, and of ours.
    #[must_use]
    pub fn answers(&self) -> [u64; 3] {
        self.answers.each_ref().map(|answers| answers.load(Ordering::Relaxed))
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections over the limit.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn enter(self: &Arc<Self>) -> Option<Entered> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Entered(Arc::clone(self)))
    }
}

/// A counted connection.
#[derive(Debug)]
struct Entered(Arc<Traffic>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens all `addresses`.
///
/// # Errors
/// With the address that cannot be had.
pub async fn bind(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen on {address} for HTTP: {error}: give another with --http ADDR:PORT"))
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Serves `router` on `listeners` until `stop` turns true and the last answers have left.
pub async fn serve(
    listeners: Vec<TcpListener>,
    router: Router,
    tls: &ServerConfig,
    traffic: Arc<Traffic>,
    stop: watch::Receiver<bool>,
) {
    let mut tls = tls.clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        let acceptor = (!local).then(|| acceptor.clone());
        accepting.spawn(accept(
            listener,
            router.clone(),
            acceptor,
            Arc::clone(&traffic),
            stop.clone(),
        ));
    }
    while accepting.join_next().await.is_some() {}
}

async fn accept(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    traffic: Arc<Traffic>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => match traffic.enter() {
                Some(entered) => {
                    let (router, tls, stop) = (router.clone(), tls.clone(), stop.clone());
                    connections.spawn(async move {
                        let _entered = entered;
                        connection(stream, peer, router, tls, stop).await;
                    });
                }
                None => refuse(&stream, tls.is_none()),
            },
            Err(error) => {
                // Out of file descriptors, most likely: those in use come back.
                tracing::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(STOP_TIME, rest).await;
}

fn refuse(stream: &TcpStream, plain: bool) {
    if plain {
        let _ = stream.try_write(FULL);
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    // Also ends answers without an end whose client does not read them.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(TAKE_TIME));
    match tls {
        None => requests(stream, peer, router, stop).await,
        Some(tls) => match timeout(HEAD_TIME, tls.accept(stream)).await {
            Ok(Ok(stream)) => requests(stream, peer, router, stop).await,
            Ok(Err(error)) => tracing::debug!(%peer, "TLS handshake failed: {error}"),
            Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
        },
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: SocketAddr,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let service = TowerToHyperService::new(router.layer(axum::Extension(Peer(peer))));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = stopped(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, "HTTP connection ended: {error}");
    }
}

/// Returns when `stop` is true, or its sender gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_answer_has_its_length() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(crate::error_text(body.as_bytes()).is_some());
    }
}
