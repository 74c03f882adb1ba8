//! `root://`: the exports for ROOT, xrdcp, gfal2 and uproot, read-only.
//!
//! ```text
//! accept ── session (handshake; a loop of requests)
//!             ├── login   TLS, login, tokens
//!             ├── files   stat, dirlist, open
//!             ├── query   checksum, configuration, space
//!             ├── reads   read, readv: what their responses are made of
//!             └── data    chunks read ahead by one, paced and counted
//! ```
//!
//! Connections are tokio tasks, as analysis jobs keep thousands of idle ones; file operations run on its threads for
//! blocking calls, none of which waits for a client. A connection handles one request after the other, so that its memory is
//! bounded by two chunks.

mod data;
mod files;
mod login;
mod query;
mod reads;
mod session;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_http::SEND_TIMEOUT;
use penstock_http::server::{self, CLOSE_TIMEOUT, ConnectionSlot, ConnectionTracker};
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::dispatch::Gateway;
use session::{RootSession, SessionStep};

/// Files that all connections have open at once.
const OPEN_FILES_MAX: usize = 8192;

/// Time for a TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for running requests to end at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// State that the connections of `root://` share.
pub(crate) struct RootServer {
    gateway: Arc<Gateway>,
    tls: TlsAcceptor,
    tracker: Arc<ConnectionTracker>,
    /// Permits to keep a file open.
    open_files: Arc<Semaphore>,
}

/// Binds a listener to each of `addresses`.
///
/// # Errors
/// With the address that cannot be bound.
pub(crate) async fn bind(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = server::listen(*address).map_err(|error| {
            let text = format!(
                "cannot listen on {address} for root://: {error}: change root in [gateway]"
            );
            io::Error::new(error.kind(), text)
        })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

impl RootServer {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        tls: &ServerConfig,
        tracker: Arc<ConnectionTracker>,
    ) -> Self {
        let mut tls = tls.clone();
        tls.alpn_protocols.clear();
        let tls = TlsAcceptor::from(Arc::new(tls));
        Self { gateway, tls, tracker, open_files: Arc::new(Semaphore::new(OPEN_FILES_MAX)) }
    }

    /// Serves until `stop` becomes true.
    pub(crate) async fn serve(self, listeners: Vec<TcpListener>, stop: watch::Receiver<bool>) {
        let server = Arc::new(self);
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(accept(listener, Arc::clone(&server), stop.clone()));
        }
        while accepting.join_next().await.is_some() {}
    }
}

async fn accept(listener: TcpListener, server: Arc<RootServer>, stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut stopping = stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Over the limit, the connection is closed.
                let Some(slot) = server.tracker.admit(peer.ip()) else { continue };
                let (server, stop) = (Arc::clone(&server), stop.clone());
                connections.spawn(async move {
                    if let Err(error) = connection(&server, stream, (peer, &slot), stop).await {
                        tracing::debug!(%peer, "root:// connection ended: {error}");
                    }
                });
            }
            Err(error) => {
                // Most likely out of file descriptors: wait until some are closed.
                tracing::warn!("cannot accept a root:// connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(SHUTDOWN_TIMEOUT, rest).await;
}

async fn connection(
    server: &RootServer,
    mut stream: TcpStream,
    (peer, slot): (SocketAddr, &ConnectionSlot),
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
    // Also ends answers whose client stops reading.
    socket2::SockRef::from(&socket).set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
    let local = stream.local_addr()?;
    let mut session = RootSession::new(server, (peer, slot.proof()), local, socket, stop);
    if unless_evicted(slot, session.run(&mut stream)).await? == SessionStep::StartTls {
        // Nothing is buffered: bytes that were sent in the clear after this point are no TLS record.
        let accepted = timeout(TLS_TIMEOUT, server.tls.accept(stream));
        let accepted =
            async { accepted.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) };
        let mut stream = unless_evicted(slot, accepted).await?;
        let name = stream.get_ref().1.server_name().map(str::to_owned);
        session.encrypted_as(name);
        let ended = unless_evicted(slot, session.run(&mut stream)).await;
        // close_notify: RFC 8446 section 6.1.
        let _ = timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
        ended?;
    }
    Ok(())
}

/// Runs a step of a session until it ends or the connection gives way to another.
async fn unless_evicted<T>(
    slot: &ConnectionSlot,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        ended = step => ended,
        () = slot.evicted() => Err(io::Error::other("closed in favour of another connection")),
    }
}
