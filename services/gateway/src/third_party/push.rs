//! Push: puts a file to the other server.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use futures_util::{StreamExt, stream};
use penstock_http::client::{HttpError, Url};
use penstock_http::storage_client::{
    REDIRECTS_MAX, StorageClient, StorageError, location, status_error,
};
use penstock_mover::GatewayTransfer;
use penstock_sys::buffer::BufferPool;
use penstock_sys::net::TcpInfo;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::CopyFailure;
use crate::range::ByteRange;
use crate::read::{BodyAccount, file_body};

/// Longest wait for `100 Continue`, as some servers never send it.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time without a byte sent, or until the response after the last one.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Last part of a file that XRootD gets by itself, in a TLS record of its own. A single byte fits into the rest of the
/// server's buffer wherever that ends.
const TAIL_BYTES: u64 = 1;

/// Interval in which the host of the server is asked whether it has everything before that part.
const TAIL_INTERVAL: Duration = Duration::from_millis(25);

/// Longest wait for that.
const TAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// Attempts of an upload whose connection breaks.
const ATTEMPTS_MAX: usize = 3;

/// Answer of the other server to the whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PushAnswer {
    Stored,
    /// 202: it may yet fail to store the file (RFC 9110 section 15.3.3).
    Accepted,
}

/// End of one request.
enum PushStep {
    End(PushAnswer),
    Redirect(String),
}

/// A file of this server that is put to another one.
pub(crate) struct HttpPush {
    pub(crate) file: Arc<File>,
    pub(crate) buffers: BufferPool,
    pub(crate) bytes: u64,
    pub(crate) url: Url,
    pub(crate) transfer: Arc<GatewayTransfer>,
    /// Replaces an existing file.
    pub(crate) overwrites: bool,
}

/// Returns true if the other server has a file at `url`.
pub(crate) async fn exists(client: &StorageClient, url: &Url) -> Result<bool, StorageError> {
    let response = client.request(&Method::HEAD, url, &HeaderMap::new()).await?;
    match response.status {
        StatusCode::NOT_FOUND => Ok(false),
        status if status.is_success() => Ok(true),
        _ => Err(response.into_error().await),
    }
}

/// Returns true if the server at `url` is XRootD. XRootD 5.5.3 waits for its socket while the last bytes of a body are
/// in its TLS library already: when a record ends beyond its buffer of 1 MiB.
async fn is_xrootd(client: &StorageClient, url: &Url) -> Result<bool, StorageError> {
    let response = client.request(&Method::HEAD, url, &HeaderMap::new()).await?;
    let server = response.header("server").unwrap_or_default();
    Ok(server.to_ascii_lowercase().contains("xrootd"))
}

/// Account of a body that is pushed; the answer of the other server ends its file.
#[derive(Debug)]
struct PushAccount {
    transfer: Arc<GatewayTransfer>,
    /// Bytes of this attempt that were handed to the connection.
    sent: Arc<AtomicU64>,
}

impl BodyAccount for PushAccount {
    fn count(&self, bytes: usize) -> io::Result<Duration> {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.transfer.is_cancelled() {
            true => Err(io::Error::other("an operator cancelled the transfer")),
            false => Ok(self.transfer.count_moved(bytes)),
        }
    }

    fn finish(self, _bytes: u64) {}
}

impl HttpPush {
    /// Sends the whole file; returns when the other server has answered.
    pub(crate) async fn run(&self, client: &StorageClient) -> Result<PushAnswer, CopyFailure> {
        let delays_tail = self.url.is_encrypted() && is_xrootd(client, &self.url).await?;
        for _ in 1..ATTEMPTS_MAX {
            match self.attempt(client, delays_tail).await {
                Err(failure) if failure.is_transient() => {
                    tracing::info!("{}: {failure}: it is sent again", self.url);
                }
                ended => return ended,
            }
        }
        self.attempt(client, delays_tail).await
    }

    async fn attempt(
        &self,
        client: &StorageClient,
        delays_tail: bool,
    ) -> Result<PushAnswer, CopyFailure> {
        let mut at = self.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            match self.put(client, &at, delays_tail).await? {
                PushStep::End(answer) => return Ok(answer),
                PushStep::Redirect(location) => {
                    at = at.redirected(&location).map_err(StorageError::from)?
                }
            }
        }
        Err(StorageError::Http(HttpError::Redirects(REDIRECTS_MAX)).into())
    }

    /// Sends the file to one server.
    async fn put(
        &self,
        client: &StorageClient,
        at: &Url,
        delays_tail: bool,
    ) -> Result<PushStep, CopyFailure> {
        let mut connection = client.connect(at).await?;
        let clone = || connection.socket().and_then(|socket| socket.try_clone().ok());
        let tail_socket = clone().filter(|_| delays_tail);
        if let Some(socket) = clone() {
            self.transfer.carry_over(socket);
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(self.bytes));
        // XRootD 5.5.3 never answers it for an empty file.
        if self.bytes > 0 {
            headers.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        }
        if !self.overwrites {
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            headers.insert(HeaderName::from_static("overwrite"), HeaderValue::from_static("F"));
        }
        let may_continue = Arc::new(Notify::new());
        let sent_bytes = Arc::new(AtomicU64::new(0));
        let body = self.body(Arc::clone(&may_continue), tail_socket, &sent_bytes);
        let mut request = client.head(&self.url, at, &Method::PUT, &headers, body)?;
        hyper::ext::on_informational(&mut request, move |_| may_continue.notify_one());
        let sent = connection.send(request);
        let response = tokio::select! {
            response = sent => response.map_err(StorageError::Http)?,
            () = self.stalled() => return Err(StorageError::Silent(STALL_TIMEOUT).into()),
        };
        if let Some(location) = location(&response) {
            return Ok(PushStep::Redirect(location));
        }
        if !response.status().is_success() {
            return Err(status_error(response).await.into());
        }
        let answer = match response.status() {
            StatusCode::ACCEPTED => PushAnswer::Accepted,
            _ => PushAnswer::Stored,
        };
        let sent = sent_bytes.load(Ordering::Relaxed);
        match sent == self.bytes {
            true => Ok(PushStep::End(answer)),
            false => Err(CopyFailure::EarlyAnswer { sent, bytes: self.bytes }),
        }
    }

    /// The file, once the server wants it. With `tail_socket`, the socket of the connection, its last part comes alone.
    fn body(
        &self,
        may_continue: Arc<Notify>,
        tail_socket: Option<TcpStream>,
        sent: &Arc<AtomicU64>,
    ) -> Body {
        if self.bytes == 0 {
            return Body::empty();
        }
        let tail = if tail_socket.is_some() { self.bytes.min(TAIL_BYTES) } else { 0 };
        let parts = [
            ByteRange { start: 0, bytes: self.bytes - tail },
            ByteRange { start: self.bytes - tail, bytes: tail },
        ];
        let [body, tail] = parts.map(|range| {
            let (file, buffers) = (Arc::clone(&self.file), self.buffers.clone());
            let (transfer, sent) = (Arc::clone(&self.transfer), Arc::clone(sent));
            let account = PushAccount { transfer, sent };
            move || file_body(file, buffers, range, account).into_data_stream()
        });
        let body = async move {
            let _ = timeout(CONTINUE_TIMEOUT, may_continue.notified()).await;
            body()
        };
        let tail = async move {
            if let Some(socket) = tail_socket {
                let _ = timeout(TAIL_TIMEOUT, acknowledged(&socket)).await;
            }
            tail()
        };
        Body::from_stream(stream::once(body).flatten().chain(stream::once(tail).flatten()))
    }

    /// Ends when no byte has been sent for a while.
    async fn stalled(&self) {
        let mut moved = self.transfer.moved_bytes();
        loop {
            tokio::time::sleep(STALL_TIMEOUT).await;
            let now = self.transfer.moved_bytes();
            if now == moved {
                return;
            }
            moved = now;
        }
    }
}

/// Ends once the other host has everything that was sent: what is sent then is in another TLS record.
async fn acknowledged(socket: &TcpStream) {
    loop {
        tokio::time::sleep(TAIL_INTERVAL).await;
        match TcpInfo::of(socket) {
            Ok(info) if info.notsent_bytes > 0 || info.unacked_segments > 0 => {}
            _ => return,
        }
    }
}
