//! Third-party copy (WLCG HTTP-TPC): this server moves a file from or to another one while the client watches.
//!
//! The client sends `COPY` with the URL of the other file in `Source` (pull) or `Destination` (push). What can be
//! refused at once is; then the response begins with 202, carries a performance marker every five seconds, and ends with
//! `success: Created` or `failure: REASON`. A client that disconnects ends the copy, and nothing is left of it.
//!
//! Not for: a `COPY` whose ends are both on this server (`namespace`).

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use penstock_http::storage_client::{StorageClient, StorageError};
use penstock_http::{HttpError, ProblemDetails, Url};
use penstock_mover::{
    CopyError, FileUpload, GatewayRequest, GatewayTransfer, ResolvedPath, TransferDirection,
};
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_scopes::PathAccess;
use penstock_sys::fs::{self, Kind, Open, Stat, describe};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::account::admitted;
use crate::conditions::{Validators, check_pair, check_write, precondition_failed};
use crate::digest;
use crate::dispatch::{DavRequest, Gateway, WriteTarget, blocking};
use crate::error::{failed, refused};
use crate::namespace::{native, stat};
use crate::write::parent_problem;

mod marker;
mod mover_pull;
mod mover_push;
mod mover_session;
mod pull;
mod push;
mod range_queue;
mod remote;
mod request;

pub(crate) use marker::failure_line;
pub(crate) use mover_push::offer_for;
pub(crate) use mover_session::{MoverOffer, OFFER_HEADER, is_offered};
pub(crate) use request::{
    CopyDirection, CopyEnds, CopyRequest, check_overwrite, forwarded, single_header,
};

use marker::PerformanceMarker;
use mover_pull::{MoverPull, MoverTarget};
use mover_push::{MoverPush, MoverSource};
use mover_session::{FILE_BYTES_MIN, PROTOCOL_HEADER};
use pull::{HttpPull, PulledFile, SourceError, inspect, remote_digests};
use push::{HttpPush, PushAnswer};
use remote::problem;
use request::ChecksumVerification;

/// Time between two markers; clients expect less than 30 s.
const MARKER_INTERVAL: Duration = Duration::from_secs(5);

/// Messages for a client that reads slowly.
const MESSAGES_QUEUED_MAX: usize = 16;

/// Bytes for which a copy uses one more connection, unless the client asks for a number.
const BYTES_PER_STREAM: u64 = 256 << 20;

/// Most connections of a copy that this server chooses.
const STREAMS_CHOSEN_MAX: usize = 4;

/// Most connections of a copy.
const STREAMS_MAX: usize = 32;

/// Reason for which a copy ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyFailure {
    /// The other server, or the way to it.
    #[error(transparent)]
    Remote(#[from] StorageError),
    /// The connection broke within the file. FTS retries errors that contain `end-of-file`.
    #[error("end-of-file: the connection broke: {0}")]
    Broken(#[from] BrokenConnection),
    /// This server's file system.
    #[error("{}", describe(.0))]
    Local(io::Error),
    /// Digests of both ends differ.
    #[error("checksum mismatch: {algorithm} is {here} here and {there} there")]
    Checksum { algorithm: Algorithm, here: Digest, there: Digest },
    /// The received file has another digest than the source offers.
    #[error("checksum mismatch: {0}")]
    Upload(io::Error),
    /// The mover found different contents; the text is of the receiving agent.
    #[error("checksum mismatch: {0}")]
    Integrity(String),
    /// Neither a length nor a digest shows that the file is complete.
    #[error(
        "no checksum to compare: the source states no length of the file either, so that an early end would not show: let it send Content-Length, chunks or Digest"
    )]
    NoLength,
    /// The other server offers no digest of these algorithms.
    #[error("no checksum to compare: the other server offers none of {}", names(.0))]
    NoChecksum(Vec<Algorithm>),
    /// The other server confirmed a file that it had not received.
    #[error("the other server answered after {sent} of {bytes} bytes")]
    EarlyAnswer { sent: u64, bytes: u64 },
    /// The other server has not confirmed that it stored the file.
    #[error("it has accepted the file, and not stored it yet (202 Accepted): {0}")]
    Unconfirmed(Box<Self>),
    /// A copy within this server, with the text of its problem.
    #[error("{0}")]
    Within(String),
    /// An operator cancelled the transfer.
    #[error("an operator cancelled the transfer")]
    Cancelled,
}

/// A file that did not arrive as a whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenConnection {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{received} of {expected} bytes")]
    Short { received: u64, expected: u64 },
    /// A session of the mover failed.
    #[error(transparent)]
    Session(#[from] CopyError),
    #[error("the other agent sent no file")]
    NothingSent,
    #[error("the other agent took no file")]
    NothingTaken,
}

fn names(algorithms: &[Algorithm]) -> String {
    let names: Vec<String> = algorithms.iter().map(ToString::to_string).collect();
    names.join(", ")
}

impl CopyFailure {
    /// The failure with the object that it is of.
    fn of(&self, ends: &CopyPaths) -> String {
        match self {
            Self::Within(text) => text.clone(),
            Self::Remote(_)
            | Self::Broken(_)
            | Self::EarlyAnswer { .. }
            | Self::NoChecksum(_)
            | Self::Unconfirmed(_) => format!("{}: {self}", ends.remote),
            _ => format!("{}: {self}", ends.shown),
        }
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::Remote(error) => error.is_transient(),
            Self::Broken(_) => true,
            _ => false,
        }
    }
}

/// Both ends of a copy, as its errors name them.
pub(crate) struct CopyPaths {
    /// Path at this agent.
    shown: String,
    /// URL of the other end, without its query, which may hold a token.
    remote: String,
}

impl CopyPaths {
    /// Ends of a copy with another server.
    fn between(shown: &str, remote: &Url) -> Self {
        let url = remote.to_string();
        let remote = url.split('?').next().unwrap_or_default();
        Self { shown: shown.to_owned(), remote: remote.to_owned() }
    }

    /// Ends of a copy within this agent.
    pub(crate) fn within(shown: &str) -> Self {
        Self { shown: shown.to_owned(), remote: String::new() }
    }
}

/// A copy in progress, as its markers show it.
pub(crate) trait ObservedTransfer: Send + Sync {
    /// Number at the agent.
    fn id(&self) -> u64;
    /// Bytes moved so far.
    fn moved_bytes(&self) -> u64;
    /// True once an operator has cancelled it.
    fn is_cancelled(&self) -> bool;
    /// Addresses of the other server.
    fn connections(&self) -> Vec<SocketAddr>;
}

impl ObservedTransfer for GatewayTransfer {
    fn id(&self) -> u64 {
        Self::id(self)
    }

    fn moved_bytes(&self) -> u64 {
        Self::moved_bytes(self)
    }

    fn is_cancelled(&self) -> bool {
        Self::is_cancelled(self)
    }

    fn connections(&self) -> Vec<SocketAddr> {
        self.peer_address().into_iter().collect()
    }
}

/// A pull in progress, which knows its connections until it ends.
struct ObservedPull {
    transfer: Arc<GatewayTransfer>,
    pull: Weak<HttpPull>,
}

impl ObservedTransfer for ObservedPull {
    fn id(&self) -> u64 {
        self.transfer.id()
    }

    fn moved_bytes(&self) -> u64 {
        self.transfer.moved_bytes()
    }

    fn is_cancelled(&self) -> bool {
        self.transfer.is_cancelled()
    }

    fn connections(&self) -> Vec<SocketAddr> {
        let pull = self.pull.upgrade();
        pull.map(|pull| pull.connections.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .unwrap_or_default()
    }
}

/// Answers a `COPY` between this server and another one.
pub(crate) async fn copy(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    copy: CopyRequest,
) -> Result<Response, ProblemDetails> {
    let client = remote::client(gateway, request, copy.headers.clone()).await;
    let client = client.map_err(|error| {
        ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, format!("[gateway] {error}"))
    })?;
    match copy.direction {
        CopyDirection::Pull => pull_file(gateway, request, copy, client).await,
        CopyDirection::Push => push_file(gateway, request, copy, client).await,
    }
}

/// Begins a transfer with `peer` in the accounts of the agent, when it has room.
pub(crate) async fn begin(
    gateway: &Gateway,
    request: &DavRequest,
    (direction, peer): (TransferDirection, &str),
    shown: &str,
    bytes: Option<u64>,
) -> Result<RunningTransfer, ProblemDetails> {
    let mark = gateway.mark(request)?;
    let begun = admitted(|| {
        gateway.agent.begin_gateway_transfer(GatewayRequest {
            caller: request.caller.clone(),
            peer: peer.to_owned(),
            direction,
            protocol: "http",
            path: shown.to_owned(),
            mark,
            connection: None,
        })
    });
    let transfer = begun.await.map_err(refused)?;
    transfer.begin_file(shown, bytes);
    Ok(RunningTransfer { transfer, is_done: false })
}

/// A transfer of one copy. Dropped before [`RunningTransfer::finish`], it counts as failed.
pub(crate) struct RunningTransfer {
    pub(crate) transfer: Arc<GatewayTransfer>,
    is_done: bool,
}

impl RunningTransfer {
    /// Counts the files of the copy, and the sum of their sizes.
    pub(crate) fn finish(mut self, files: u64, bytes: u64) {
        self.transfer.finish_files(files, bytes);
        self.is_done = true;
    }
}

impl Drop for RunningTransfer {
    fn drop(&mut self) {
        if !self.is_done {
            self.transfer.fail_file();
        }
    }
}

async fn pull_file(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    copy: CopyRequest,
    client: StorageClient,
) -> Result<Response, ProblemDetails> {
    if request.path.is_collection() {
        return Err(ProblemDetails::conflict("the destination of a copy is a file"));
    }
    let WriteTarget { place, keeps } = gateway.write_target(request, &request.path)?;
    let (shown, overwrites) = (place.shown.clone(), request.may_replace());
    let there = look(gateway, request).await?;
    let validators = there.as_ref().map(Validators::of);
    check_write(&request.headers, validators.as_ref())?;
    let there = there.is_some();
    if there && !overwrites {
        return Err(precondition_failed(&format!("{shown}: File exists (Overwrite: F)")));
    }
    let overwrites = overwrites && keeps.is_none();
    if there && let Some(refusal) = keeps {
        return Err(refusal);
    }
    let source = inspect(&client, &copy.remote).await;
    let source = source.map_err(|error| match error {
        SourceError::Storage(error) => problem(&error, &copy.remote),
        SourceError::Directory => ProblemDetails::conflict(format!("{}: {error}", copy.remote)),
    })?;
    let mut algorithms = gateway.config.digests.clone();
    if copy.verification == ChecksumVerification::Required
        && !algorithms.contains(&Algorithm::Adler32)
    {
        algorithms.push(Algorithm::Adler32);
    }
    if copy.verification != ChecksumVerification::Required
        && let Some(offer) = source.mover
    {
        let target = MoverTarget {
            caller: &request.caller,
            place: gateway.write_target(request, &request.path)?.place,
            mark: gateway.mark(request)?,
            overwrites,
            algorithm: block_algorithm(&algorithms),
        };
        let algorithm = target.algorithm;
        let opened = MoverPull::open(&gateway.agent, &client, &copy, offer, target).await;
        if let Some(pull) = opened.map_err(refused)? {
            let observed = pull.session.observed();
            let last_modified = source.last_modified().map(str::to_owned);
            let ends = CopyPaths::between(&shown, &copy.remote);
            let response = accepted(ends, pull.finish(algorithm, last_modified), observed);
            return Ok(([(PROTOCOL_HEADER, "penstock")], response).into_response());
        }
    }
    let bytes = source.bytes;
    let begun = {
        let (algorithms, names) = (algorithms.clone(), gateway.hidden_names.clone());
        let durability = gateway.config.durability;
        blocking(move || FileUpload::begin(&place, bytes, &algorithms, &names, durability)).await
    };
    let upload = begun.map_err(|error| parent_problem(&shown, &error))?;
    let from = copy.remote.authority();
    let running = begin(gateway, request, (TransferDirection::Receive, &from), &shown, bytes);
    let running = running.await?;
    let ends = CopyPaths::between(&shown, &copy.remote);
    let streams = copy.streams.unwrap_or_else(|| chosen_streams(bytes)).min(STREAMS_MAX);
    let transfer = Arc::clone(&running.transfer);
    let pull = Arc::new(HttpPull::new(source, upload, Arc::clone(&transfer), streams));
    let observed = Arc::new(ObservedPull { transfer, pull: Arc::downgrade(&pull) });
    let job = async move {
        let digests = async {
            match copy.verification {
                ChecksumVerification::Off => Ok(Vec::new()),
                _ => remote_digests(&client, &copy.remote, bytes, &algorithms).await,
            }
        };
        let (pulled, mut offered) = tokio::join!(pull.run(client.clone(), streams), digests);
        let PulledFile { upload, is_end_stated } = pulled?;
        if !is_end_stated && copy.verification == ChecksumVerification::Off {
            offered = remote_digests(&client, &copy.remote, bytes, &algorithms).await;
        }
        let expected = comparable(offered, copy.verification, &algorithms)?;
        if !is_end_stated && expected.is_empty() {
            return Err(CopyFailure::NoLength);
        }
        let bytes = upload.bytes();
        let committed = blocking(move || digest::commit(upload, &|_| true, overwrites, &expected));
        committed.await.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => CopyFailure::Upload(error),
            _ => CopyFailure::Local(error),
        })?;
        running.finish(1, bytes);
        Ok(())
    };
    Ok(accepted(ends, job, observed))
}

/// Digest of a copy by the mover's protocol: the first that its blocks can be combined to.
fn block_algorithm(algorithms: &[Algorithm]) -> Algorithm {
    let combines = |algorithm: &&Algorithm| algorithm.combines();
    algorithms.iter().find(combines).copied().unwrap_or(Algorithm::Crc32c)
}

/// Returns the metadata of the file at the path of the request, if there is one.
async fn look(gateway: &Gateway, request: &DavRequest) -> Result<Option<Stat>, ProblemDetails> {
    let place = gateway.writable(request, PathAccess::Create)?;
    let shown = place.shown.clone();
    let there = blocking(move || stat(&place)).await;
    let there = there.map_err(|error| parent_problem(&shown, &error))?;
    match there {
        Some(stat) if stat.kind == Kind::Directory => {
            Err(ProblemDetails::conflict(format!("{shown} is a directory")))
        }
        there => Ok(there),
    }
}

/// Digests of the other server that can be compared.
///
/// # Errors
/// If a comparison is required and there is none.
fn comparable(
    offered: Result<Vec<(Algorithm, Digest)>, StorageError>,
    verification: ChecksumVerification,
    algorithms: &[Algorithm],
) -> Result<Vec<(Algorithm, Digest)>, CopyFailure> {
    let is_required = verification == ChecksumVerification::Required;
    let mut digests = match offered {
        Ok(digests) => digests,
        // A malformed digest is an offer, which must hold.
        Err(error @ StorageError::Malformed(_)) => return Err(error.into()),
        Err(error) if is_required => return Err(error.into()),
        Err(_) => Vec::new(),
    };
    digests.retain(|(algorithm, _)| algorithms.contains(algorithm));
    if digests.is_empty() && is_required {
        return Err(CopyFailure::NoChecksum(algorithms.to_vec()));
    }
    Ok(digests)
}

/// Number of connections for a file of `bytes`.
fn chosen_streams(bytes: Option<u64>) -> usize {
    let streams = bytes.unwrap_or(0).div_ceil(BYTES_PER_STREAM);
    usize::try_from(streams).unwrap_or(usize::MAX).clamp(1, STREAMS_CHOSEN_MAX)
}

async fn push_file(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    copy: CopyRequest,
    client: StorageClient,
) -> Result<Response, ProblemDetails> {
    let place = gateway.place(request, PathAccess::Read)?;
    let place = place.ok_or_else(|| ProblemDetails::conflict("the source of a copy is a file"))?;
    let shown = place.shown.clone();
    let opened = blocking(move || open(&place)).await;
    let (file, bytes) = opened.map_err(|error| failed(&shown, &error))?;
    let overwrites = request.may_replace();
    let stat = fs::stat_file(&file).map_err(|error| failed(&shown, &error))?;
    check_pair(&request.headers, &Validators::of(&stat))?;
    client.resolve(&copy.remote).await.map_err(|error| problem(&error, &copy.remote))?;
    if !overwrites {
        let there = push::exists(&client, &copy.remote).await;
        if there.map_err(|error| problem(&error, &copy.remote))? {
            let text = format!("{}: File exists (Overwrite: F)", copy.remote);
            return Err(precondition_failed(&text));
        }
    }
    let algorithm = gateway.config.digests.first().copied().unwrap_or(Algorithm::Adler32);
    let ends = CopyPaths::between(&shown, &copy.remote);
    if bytes >= FILE_BYTES_MIN
        && let Some(offer) = mover_push::ask_offer(&client, &copy.remote).await
        && let Some(place) = gateway.place(request, PathAccess::Read)?
    {
        let source = MoverSource {
            caller: &request.caller,
            place,
            mark: gateway.mark(request)?,
            overwrites,
            algorithm: block_algorithm(&[algorithm]),
        };
        let opened = MoverPush::open(&gateway.agent, &client, &copy, offer, source).await;
        if let Some(push) = opened.map_err(refused)? {
            let observed = push.session.observed();
            let gateway = Arc::clone(gateway);
            let job = async move {
                push.finish().await?;
                match copy.verification {
                    // Both agents have compared the digest of what they read and wrote.
                    ChecksumVerification::IfOffered | ChecksumVerification::Off => Ok(()),
                    ChecksumVerification::Required => {
                        let file = (Arc::new(file), bytes);
                        compare(
                            &gateway,
                            &client,
                            &copy,
                            ChecksumVerification::Required,
                            file,
                            algorithm,
                        )
                        .await
                    }
                }
            };
            let response = accepted(ends, job, observed);
            return Ok(([(PROTOCOL_HEADER, "penstock")], response).into_response());
        }
    }
    let to = copy.remote.authority();
    let running = begin(gateway, request, (TransferDirection::Send, &to), &shown, Some(bytes));
    let running = running.await?;
    let transfer = Arc::clone(&running.transfer);
    let file = Arc::new(file);
    let push = HttpPush {
        file: Arc::clone(&file),
        buffers: gateway.buffers.clone(),
        bytes,
        url: copy.remote.clone(),
        transfer: Arc::clone(&transfer),
        overwrites,
    };
    let before = fs::stat_file(&file).map_err(|error| failed(&shown, &error))?;
    let gateway = Arc::clone(gateway);
    let job = async move {
        let answer = push.run(&client).await?;
        let after = fs::stat_file(&file).map_err(CopyFailure::Local)?;
        if (after.size, after.mtime) != (before.size, before.mtime) {
            return Err(CopyFailure::Local(io::Error::other("the source changed during the copy")));
        }
        let verification = match answer {
            PushAnswer::Stored => copy.verification,
            PushAnswer::Accepted => ChecksumVerification::Required,
        };
        if verification != ChecksumVerification::Off {
            let file = (file, bytes);
            let compared = compare(&gateway, &client, &copy, verification, file, algorithm).await;
            compared.map_err(|failure| match answer {
                PushAnswer::Stored => failure,
                PushAnswer::Accepted => CopyFailure::Unconfirmed(Box::new(failure)),
            })?;
        }
        running.finish(1, bytes);
        Ok(())
    };
    Ok(accepted(ends, job, transfer))
}

fn open(place: &ResolvedPath) -> io::Result<(std::fs::File, u64)> {
    if place.path.is_empty() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let file =
        place.root.open_file(native(&place.path), &Open { follow: true, ..Open::reading() })?;
    let bytes = fs::stat_file(&file)?.size;
    Ok((file, bytes))
}

/// Compares the digest of the file with that of the other server.
async fn compare(
    gateway: &Gateway,
    client: &StorageClient,
    copy: &CopyRequest,
    verification: ChecksumVerification,
    (file, bytes): (Arc<std::fs::File>, u64),
    algorithm: Algorithm,
) -> Result<(), CopyFailure> {
    let offered = remote_digests(client, &copy.remote, Some(bytes), &[algorithm]).await;
    let offered = comparable(offered, verification, &[algorithm])?;
    let Some((_, there)) = offered.into_iter().next() else { return Ok(()) };
    let here = gateway.digest(file, algorithm).await.map_err(CopyFailure::Local)?;
    match here {
        Some(here) if here != there => Err(CopyFailure::Checksum { algorithm, here, there }),
        _ => Ok(()),
    }
}

/// Answers with the markers of a copy that goes on in a task of its own.
pub(crate) fn accepted(
    ends: CopyPaths,
    job: impl Future<Output = Result<(), CopyFailure>> + Send + 'static,
    transfer: Arc<dyn ObservedTransfer>,
) -> Response {
    let (sender, receiver) = mpsc::channel(MESSAGES_QUEUED_MAX);
    tokio::spawn(report(ends, job, transfer, sender));
    let body = Body::from_stream(stream::unfold(receiver, async |mut receiver| {
        let text: String = receiver.recv().await?;
        Some((io::Result::Ok(Bytes::from(text)), receiver))
    }));
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    (StatusCode::ACCEPTED, headers, body).into_response()
}

/// Runs a copy, and sends its markers until it ends or the client disconnects.
async fn report(
    ends: CopyPaths,
    job: impl Future<Output = Result<(), CopyFailure>>,
    transfer: Arc<dyn ObservedTransfer>,
    sender: mpsc::Sender<String>,
) {
    let marker = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let connections = transfer.connections();
        let bytes = transfer.moved_bytes();
        PerformanceMarker { timestamp: since.as_secs(), bytes, connections: &connections }.lines()
    };
    let mut ticks = interval(MARKER_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut job = pin!(job);
    let result = loop {
        tokio::select! {
            result = &mut job => break result,
            // The first tick is at once. A client that does not read misses markers.
            _ = ticks.tick() => match transfer.is_cancelled() {
                // Also where the other server is silent.
                true => break Err(CopyFailure::Cancelled),
                false => drop(sender.try_send(marker())),
            },
            () = sender.closed() => {
                tracing::info!("transfer {}: the client disconnected", transfer.id());
                return;
            }
        }
    };
    let _ = sender.send(marker()).await;
    let last = match result {
        Ok(()) => "success: Created\n".to_owned(),
        Err(failure) => {
            let text = failure.of(&ends);
            tracing::info!("transfer {}: {text}", transfer.id());
            failure_line(&text)
        }
    };
    let _ = sender.send(last).await;
}
