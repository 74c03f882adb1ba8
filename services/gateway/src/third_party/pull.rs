//! Pull: gets a file from the other server in closed ranges over several connections.
//!
//! ```text
//!             ┌ connection ─ range ─► writer ┐
//! RangeQueue ─┼ connection ─ range ─► writer ┼─► FileUpload ─► commit
//!             └ connection ─ range ─► writer ┘
//! ```
//!
//! A connection that breaks returns the rest of its range, which another one continues. Ranges are closed, as
//! XRootD 5.5.3 answers open ones with an empty body.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::body::Buf;
use penstock_http::client::Url;
use penstock_http::storage_client::{StorageClient, StorageError, StorageResponse, WANT_DIGEST};
use penstock_mover::{FileUpload, GatewayTransfer, JoinedUpload, RangeWriter, WrittenRange};
use penstock_protocol::digest::{Algorithm, Digest};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::mover_session::MoverOffer;
use super::range_queue::{RANGE_BYTES_MIN, RangeQueue};
use super::remote::range_value;
use super::{BrokenConnection, CopyFailure};
use crate::batch_writer::BatchWriter;
use crate::digest::{self, DigestField, MalformedDigest};
use crate::dispatch::blocking;
use crate::range::ByteRange;

/// Longest silence of the other server within a body.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Attempts without progress, one after another, before the copy fails.
const ATTEMPTS_MAX: u32 = 6;

/// Pause before the second attempt; it doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(250);

/// The file at the other server.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    pub(crate) url: Url,
    /// Size above 0; `None` if the answer to `HEAD` does not state one.
    pub(crate) bytes: Option<u64>,
    version: SourceVersion,
    /// Offer to send it by the mover's protocol.
    pub(crate) mover: Option<MoverOffer>,
}

impl RemoteFile {
    /// Time of its last change, as the server writes it.
    pub(crate) fn last_modified(&self) -> Option<&str> {
        self.version.last_modified.as_deref()
    }
}

/// Validators by which a change of the file shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SourceVersion {
    etag: Option<String>,
    last_modified: Option<String>,
}

impl SourceVersion {
    fn of(response: &StorageResponse) -> Self {
        let text = |name| response.header(name).map(str::to_owned);
        Self { etag: text("etag"), last_modified: text("last-modified") }
    }

    /// False if the other response is of another state; a server need not send validators each time.
    fn matches(&self, other: &Self) -> bool {
        let same = |a: &Option<String>, b: &Option<String>| match (a, b) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        same(&self.etag, &other.etag) && same(&self.last_modified, &other.last_modified)
    }
}

/// Length of a body as its server states it.
fn content_length(response: &StorageResponse) -> Option<u64> {
    response.header("content-length")?.parse().ok()
}

/// Reason why the other server has no file to pull.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Its server would send a listing.
    #[error("it is a directory: copy its files")]
    Directory,
}

/// Asks the other server for size and state of the file.
pub(crate) async fn inspect(client: &StorageClient, url: &Url) -> Result<RemoteFile, SourceError> {
    let response = client.request(&Method::HEAD, url, &HeaderMap::new()).await?;
    if !response.status.is_success() {
        return Err(response.into_error().await.into());
    }
    // Many servers answer HEAD with a length of 0 for any file; the response to GET has the real length.
    let bytes = content_length(&response).filter(|bytes| *bytes > 0);
    let version = SourceVersion::of(&response);
    let mover = MoverOffer::in_response(&response, url);
    let answered = response.url.clone();
    // The next request uses its connection.
    drop(response);
    // An agent offers files alone.
    if mover.is_none() && client.is_collection(url, &answered, &HeaderMap::new()).await {
        return Err(SourceError::Directory);
    }
    Ok(RemoteFile { url: url.clone(), bytes, version, mover })
}

/// Asks the other server for a digest of the file; empty if it offers none that is known.
///
/// # Errors
/// Also if one of a known algorithm is malformed.
pub(crate) async fn remote_digests(
    client: &StorageClient,
    url: &Url,
    bytes: Option<u64>,
    algorithms: &[Algorithm],
) -> Result<Vec<(Algorithm, Digest)>, StorageError> {
    let mut headers = HeaderMap::new();
    let names: Vec<String> = algorithms.iter().map(ToString::to_string).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(",")) {
        headers.insert(WANT_DIGEST, value);
    }
    let response = client.request_digest(url, &headers, bytes).await?;
    if !response.status.is_success() {
        return Err(response.into_error().await);
    }
    // An offer that cannot be compared is no offer that was kept.
    let malformed = |error: MalformedDigest| {
        StorageError::Malformed(format!("the checksum of the source cannot be compared: {error}"))
    };
    let mut all = Vec::new();
    if let Some(text) = response.header("digest") {
        all.extend(digest::sent(text, DigestField::Digest).map_err(malformed)?);
    }
    if let Some(text) = response.header("repr-digest") {
        all.extend(digest::sent(text, DigestField::ReprDigest).map_err(malformed)?);
    }
    Ok(all)
}

/// A file that was pulled, before it has its name.
pub(crate) struct PulledFile {
    pub(crate) upload: JoinedUpload,
    /// False if the source stated no length and sent no chunks, so that an early end looks like the end of the file.
    pub(crate) is_end_stated: bool,
}

/// A pull in progress, shared by its connections.
pub(crate) struct HttpPull {
    source: RemoteFile,
    upload: Arc<FileUpload>,
    transfer: Arc<GatewayTransfer>,
    queue: Mutex<RangeQueue>,
    written: Mutex<Vec<WrittenRange>>,
    /// Attempts since the last progress.
    attempts: AtomicU32,
    /// Bytes that attempts to fetch the whole file have counted.
    counted: AtomicU64,
    /// True if only the end of its connection ends the file, which may be early.
    ends_by_close: AtomicBool,
    /// Addresses of the open connections.
    pub(crate) connections: Mutex<Vec<SocketAddr>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpPull {
    /// Creates a pull of `source` into `upload` over `streams` connections.
    pub(crate) fn new(
        source: RemoteFile,
        upload: FileUpload,
        transfer: Arc<GatewayTransfer>,
        streams: usize,
    ) -> Self {
        let queue = RangeQueue::new(source.bytes.unwrap_or(0), streams);
        Self {
            source,
            upload: Arc::new(upload),
            transfer,
            queue: Mutex::new(queue),
            written: Mutex::default(),
            attempts: AtomicU32::new(0),
            counted: AtomicU64::new(0),
            ends_by_close: AtomicBool::new(false),
            connections: Mutex::default(),
        }
    }

    /// Moves the whole file, and returns the upload with its content.
    pub(crate) async fn run(
        self: Arc<Self>,
        client: StorageClient,
        streams: usize,
    ) -> Result<PulledFile, CopyFailure> {
        match self.source.bytes {
            Some(bytes) if bytes <= RANGE_BYTES_MIN || self.has_ranges(&client).await? => {
                self.run_ranges(client, streams).await?;
            }
            _ => self.retry(client).await?,
        }
        let ranges = std::mem::take(&mut *lock(&self.written));
        let end = ranges.iter().map(WrittenRange::end).max().unwrap_or(0);
        let bytes = self.source.bytes.unwrap_or(end);
        let this = Arc::into_inner(self).ok_or_else(still_used)?;
        let is_end_stated = !this.ends_by_close.into_inner();
        let upload = Arc::into_inner(this.upload).ok_or_else(still_used)?;
        let joined = tokio::task::spawn_blocking(move || upload.join(ranges, bytes));
        let joined = joined.await.map_err(|error| CopyFailure::Local(io::Error::other(error)))?;
        let upload = joined.map_err(CopyFailure::Local)?;
        Ok(PulledFile { upload, is_end_stated })
    }

    /// Asks for the first byte alone.
    async fn has_ranges(&self, client: &StorageClient) -> Result<bool, CopyFailure> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, range_value(ByteRange { start: 0, bytes: 1 }));
        let response = match client.request(&Method::GET, &self.source.url, &headers).await {
            Ok(response) => response,
            Err(error) if error.is_transient() => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let has = response.status == StatusCode::PARTIAL_CONTENT;
        if has {
            read_short(response).await;
        }
        Ok(has)
    }

    /// Fetches ranges over `streams` connections.
    async fn run_ranges(
        self: &Arc<Self>,
        client: StorageClient,
        streams: usize,
    ) -> Result<(), CopyFailure> {
        let mut tasks = JoinSet::new();
        for _ in 0..streams {
            tasks.spawn(Arc::clone(self).work(client.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| CopyFailure::Local(io::Error::other(error)))??;
        }
        Ok(())
    }

    /// Fetches ranges until none is left.
    async fn work(self: Arc<Self>, client: StorageClient) -> Result<(), CopyFailure> {
        loop {
            let Some(range) = lock(&self.queue).take() else { return Ok(()) };
            if let Err(failure) = self.fetch(&client, range).await {
                self.pause_after(failure).await?;
            }
        }
    }

    /// Waits before the next attempt, or returns the failure if it is final.
    async fn pause_after(&self, failure: CopyFailure) -> Result<(), CopyFailure> {
        let attempts = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        if !failure.is_transient() || attempts >= ATTEMPTS_MAX {
            return Err(failure);
        }
        tracing::info!("{}: {failure}: attempt {} follows", self.source.url, attempts + 1);
        tokio::time::sleep(BACKOFF_MIN * 2_u32.pow(attempts - 1)).await;
        Ok(())
    }

    async fn retry(&self, client: StorageClient) -> Result<(), CopyFailure> {
        loop {
            match self.fetch_whole(&client).await {
                Ok(()) => return Ok(()),
                Err(failure) => self.pause_after(failure).await?,
            }
        }
    }

    /// Fetches one range; what was written of it counts, and the rest goes back to the queue.
    async fn fetch(&self, client: &StorageClient, range: ByteRange) -> Result<(), CopyFailure> {
        let total = self.source.bytes.unwrap_or(0);
        let mut done = 0;
        let result = async {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, range_value(range));
            let response = client.request(&Method::GET, &self.source.url, &headers).await?;
            let status = response.status;
            if !status.is_success() {
                return Err(response.into_error().await.into());
            }
            self.check_version(&response)?;
            let mut skipped = 0;
            if status == StatusCode::PARTIAL_CONTENT {
                let expected = range.content_range(total);
                let sent = response.header("content-range").unwrap_or("none");
                if sent != expected {
                    let text = format!("Content-Range is '{sent}' in place of '{expected}'");
                    return Err(StorageError::Malformed(text).into());
                }
            } else {
                // A server without ranges, whose connection broke: it sends again what is there.
                skipped = range.start;
            }
            let writer = self.upload.range(range.start, range.bytes);
            let expected = skipped + range.bytes;
            let received = self.receive(response, writer, skipped, Some(expected), None).await?;
            done = received.range.bytes();
            if done > 0 {
                self.attempts.store(0, Ordering::Relaxed);
            }
            lock(&self.written).push(received.range);
            received.result
        };
        let result = result.await;
        lock(&self.queue).put_back(range, done);
        result
    }

    /// Fetches a file of unknown size, or from a server without ranges, in one piece.
    async fn fetch_whole(&self, client: &StorageClient) -> Result<(), CopyFailure> {
        let response = client.request(&Method::GET, &self.source.url, &HeaderMap::new()).await?;
        if response.status != StatusCode::OK {
            return Err(response.into_error().await.into());
        }
        self.check_version(&response)?;
        let bytes = self.source.bytes.or_else(|| content_length(&response));
        // The HTTP library reports a chunked body without its last chunk as broken.
        let coding = response.header("transfer-encoding").unwrap_or_default();
        let is_chunked = coding.to_ascii_lowercase().trim_end().ends_with("chunked");
        self.ends_by_close.store(bytes.is_none() && !is_chunked, Ordering::Relaxed);
        let writer = self.upload.whole();
        let counted = Some(&self.counted);
        let received = self.receive(response, writer, 0, bytes, counted).await?;
        received.result?;
        lock(&self.written).push(received.range);
        Ok(())
    }

    fn check_version(&self, response: &StorageResponse) -> Result<(), CopyFailure> {
        match self.source.version.matches(&SourceVersion::of(response)) {
            true => Ok(()),
            false => {
                let text = "the source changed during the copy".to_owned();
                Err(StorageError::Malformed(text).into())
            }
        }
    }

    /// Writes a body of `expected` bytes as it arrives, without its first `skipped` bytes. Of a whole file, bytes up to `counted`
    /// have been counted as moved.
    ///
    /// # Errors
    /// When writing fails; then what was written does not count.
    async fn receive(
        &self,
        mut response: StorageResponse,
        writer: RangeWriter,
        skipped: u64,
        expected: Option<u64>,
        counted: Option<&AtomicU64>,
    ) -> Result<Received, CopyFailure> {
        let shown = response.peer_address();
        let _shown = shown.map(|address| ShownConnection::new(self, address));
        let mut writer = BatchWriter::new(writer);
        let mut received = 0_u64;
        let result = async {
            loop {
                let chunk = timeout(SILENCE_MAX, response.chunk())
                    .await
                    .map_err(|_| StorageError::Silent(SILENCE_MAX))?;
                let Some(chunk) = chunk else { break };
                let mut chunk = chunk.map_err(BrokenConnection::from)?;
                let unwanted = skipped.saturating_sub(received).min(chunk.len() as u64);
                received += chunk.len() as u64;
                chunk.advance(usize::try_from(unwanted).unwrap_or(usize::MAX));
                if expected.is_some_and(|expected| received > expected) {
                    let text = "it sends more bytes than it announced".to_owned();
                    return Err(StorageError::Malformed(text).into());
                }
                if self.transfer.is_cancelled() {
                    return Err(CopyFailure::Cancelled);
                }
                let before = counted
                    .map_or(0, |counted| counted.fetch_max(received, Ordering::Relaxed))
                    .saturating_sub(received - chunk.len() as u64);
                let repeated = usize::try_from(before).unwrap_or(usize::MAX).min(chunk.len());
                let delay = self.transfer.count_repeated(repeated);
                let delay = delay.max(self.transfer.count_moved(chunk.len() - repeated));
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                if !writer.push(chunk).await {
                    // Its end says why.
                    break;
                }
            }
            match expected {
                Some(expected) if received < expected => {
                    Err(BrokenConnection::Short { received, expected }.into())
                }
                _ => Ok(()),
            }
        }
        .await;
        let content = writer.end().await.map_err(CopyFailure::Local)?;
        let is_complete = result.is_ok();
        let finished = blocking(move || content.finish(is_complete)).await;
        let range = finished.map_err(CopyFailure::Local)?;
        Ok(Received { range, result })
    }
}

/// The body of one response, written.
struct Received {
    range: WrittenRange,
    /// The error that ended the body early.
    result: Result<(), CopyFailure>,
}

/// Reads a body of some bytes, so that its connection can be used again.
async fn read_short(mut response: StorageResponse) {
    let mut bytes = 0;
    while bytes < 64
        && let Ok(Some(Ok(chunk))) = timeout(SILENCE_MAX, response.chunk()).await
    {
        bytes += chunk.len();
    }
}

fn still_used() -> CopyFailure {
    CopyFailure::Local(io::Error::other("a connection still writes"))
}

/// A connection in the markers, for as long as it carries data.
struct ShownConnection<'a> {
    pull: &'a HttpPull,
    address: SocketAddr,
}

impl<'a> ShownConnection<'a> {
    fn new(pull: &'a HttpPull, address: SocketAddr) -> Self {
        let mut all = lock(&pull.connections);
        all.push(address);
        pull.transfer.set_streams(u16::try_from(all.len()).unwrap_or(u16::MAX));
        drop(all);
        Self { pull, address }
    }
}

impl Drop for ShownConnection<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.pull.connections);
        if let Some(at) = all.iter().position(|one| *one == self.address) {
            all.swap_remove(at);
        }
    }
}
