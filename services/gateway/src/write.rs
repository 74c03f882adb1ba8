//! `PUT`: a file appears whole, checked and, unless the configuration says otherwise, durable, or not at all.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use penstock_http::ProblemDetails;
use penstock_mover::{
    CommittedUpload, FileUpload, JoinedUpload, RangeWriter, ResolvedPath, TransferDirection,
};
use penstock_protocol::digest::{Algorithm, Digest};
use penstock_sys::fs::{Kind, Stat};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::account::{ConnectionAccount, FileInTransfer, FileRequest};
use crate::batch_writer::{BatchWriter, ReceivedRange};
use crate::conditions::{self, Validators, precondition_failed};
use crate::digest::{self, DigestField, WantedDigest};
use crate::dispatch::{DavRequest, Gateway, WriteTarget, blocking, drain};
use crate::error::{failed, refused};
use crate::namespace::stat_name;

/// Least mean rate of a body over `upload_timeout` of waiting for its client, in bytes per second.
const BODY_RATE_MIN: u64 = 1024;

/// Answers `PUT`: 201 for a new file, 204 for one that was replaced.
pub(crate) async fn put(
    gateway: &Arc<Gateway>,
    request: &DavRequest,
    body: &mut Option<Body>,
) -> Result<Response, ProblemDetails> {
    if request.headers.contains_key(header::CONTENT_RANGE) {
        return Err(ProblemDetails::bad_request("PUT of a part of a file is not supported"));
    }
    if request.path.is_collection() {
        return Err(ProblemDetails::conflict(
            "PUT creates files: write the path without a slash at its end",
        ));
    }
    let WriteTarget { place, keeps } = gateway.write_target(request, &request.path)?;
    check_body(request)?;
    let shown = place.shown.clone();
    let put = PutRequest {
        headers: request.headers.clone(),
        bytes: request.header(header::CONTENT_LENGTH).and_then(|text| text.parse().ok()),
        overwrites: request.overwrites(),
        keeps,
        expected: expected_digests(request)?,
        wanted: digest::wanted_by(&request.headers),
    };
    let (put, upload) = put.begin(gateway, place).await?;
    let account = ConnectionAccount::begin(
        &request.connection,
        &gateway.agent,
        &FileRequest {
            caller: &request.caller,
            direction: TransferDirection::Receive,
            shown: &shown,
            bytes: put.bytes,
            mark: gateway.mark(request)?,
        },
    )
    .await
    .map_err(refused)?;
    // Until here `body` is left to the caller, which reads the rest of a refused one.
    let mut chunks = body.take().unwrap_or_default().into_data_stream();
    let received = receive(&mut chunks, upload, &account, gateway.config.upload_timeout).await;
    let received = received.map_err(|error| receive_problem(&shown, &account, &error))?;
    let wanted = put.wanted;
    let committed = put.commit(received, &shown).await?;
    account.finish(committed.stat.size);
    Ok(put_response(&committed, wanted))
}

/// Refuses a body that cannot be stored as it is sent, or whose end is not known.
fn check_body(request: &DavRequest) -> Result<(), ProblemDetails> {
    let mut encodings = request.headers.get_all(header::CONTENT_ENCODING).iter();
    if !encodings.all(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ProblemDetails::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "Content-Encoding: files are stored as they are sent: decode them before",
        ));
    }
    if request.version < Version::HTTP_11 && !request.headers.contains_key(header::CONTENT_LENGTH) {
        // The end of its connection would be the end of the file, whole or not.
        let text = "PUT over HTTP/1.0 needs Content-Length: send it, or use HTTP/1.1";
        return Err(ProblemDetails::new(StatusCode::LENGTH_REQUIRED, text));
    }
    Ok(())
}

/// Conditions of a `PUT`, and what it asks for.
#[derive(Debug)]
struct PutRequest {
    headers: HeaderMap,
    /// Length of the body, if announced.
    bytes: Option<u64>,
    /// Set unless the client sent `Overwrite: F`.
    overwrites: bool,
    /// Refusal to replace what exists; `None` for a client that may.
    keeps: Option<ProblemDetails>,
    /// Digests that the client sent.
    expected: Vec<(Algorithm, Digest)>,
    /// Digest that it asks for.
    wanted: Option<WantedDigest>,
}

impl PutRequest {
    /// Digests to compute: those of the configuration, and those that the request names.
    fn algorithms(&self, configured: &[Algorithm]) -> Vec<Algorithm> {
        let mut all = configured.to_vec();
        all.extend(self.expected.iter().map(|(algorithm, _)| *algorithm));
        all.extend(self.wanted.map(|wanted| wanted.algorithm));
        all.sort_by_key(ToString::to_string);
        all.dedup();
        all
    }

    /// Checks the conditions and makes room for the file.
    async fn begin(
        self,
        gateway: &Gateway,
        place: ResolvedPath,
    ) -> Result<(Self, FileUpload), ProblemDetails> {
        let shown = place.shown.clone();
        let algorithms = self.algorithms(&gateway.config.digests);
        let names = gateway.hidden_names.clone();
        let durability = gateway.config.durability;
        let begun = blocking(move || {
            if stat_name(&place)?.is_some_and(|there| there.kind == Kind::Symlink) {
                // Wherever it leads.
                let text = "it is a link, which is not replaced: remove it first";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            let there = crate::namespace::stat(&place)?;
            if let Err(problem) = self.check(there.as_ref()) {
                return Ok(Err(problem));
            }
            let upload = FileUpload::begin(&place, self.bytes, &algorithms, &names, durability)?;
            Ok(Ok((self, upload)))
        });
        begun.await.map_err(|error| parent_problem(&shown, &error))?
    }

    /// Compares the conditions with the file that is there.
    fn check(&self, there: Option<&Stat>) -> Result<(), ProblemDetails> {
        let validators = there.map(Validators::of);
        conditions::check_write(&self.headers, validators.as_ref())?;
        match (there, &self.keeps) {
            (Some(_), _) if !self.overwrites => {
                Err(precondition_failed("the file exists (Overwrite: F)"))
            }
            (Some(_), Some(refusal)) => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// Puts the received file in place, if its digests and the state of the name allow it.
    async fn commit(
        self,
        received: ReceivedUpload,
        shown: &str,
    ) -> Result<CommittedUpload, ProblemDetails> {
        let Self { headers, overwrites, keeps, expected, .. } = self;
        let replace = overwrites && keeps.is_none();
        let has_condition = conditions::has_any(&headers);
        let committed = blocking(move || {
            // The file may be in another state than when the upload began.
            let condition = |present: Option<&Stat>| {
                let present = present.map(Validators::of);
                conditions::check_write(&headers, present.as_ref()).is_ok()
            };
            digest::commit(received.join()?, &condition, replace, &expected)
        })
        .await;
        committed.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ProblemDetails::bad_request(format!("{shown}: {error}")),
            io::ErrorKind::AlreadyExists => match keeps {
                Some(refusal) if overwrites => refusal,
                _ if has_condition => precondition_failed(&format!(
                    "{shown} is in another state than the request names: another client wrote it during the upload"
                )),
                _ => precondition_failed(&format!("{shown} exists (Overwrite: F)")),
            },
            // The directory may have gone meanwhile.
            _ => parent_problem(shown, &error),
        })
    }
}

fn receive_problem(shown: &str, account: &FileInTransfer, error: &io::Error) -> ProblemDetails {
    match error.kind() {
        _ if account.is_cancelled() => ProblemDetails::conflict(format!(
            "{shown}: the transfer was cancelled, or the client's token or certificate was removed"
        )),
        io::ErrorKind::TimedOut => {
            ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, format!("{shown}: {error}"))
        }
        io::ErrorKind::ConnectionAborted => {
            ProblemDetails::bad_request(format!("{shown}: {error}"))
        }
        _ => failed(shown, error),
    }
}

fn put_response(committed: &CommittedUpload, wanted: Option<WantedDigest>) -> Response {
    let status = if committed.created { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
    let mut response = status.into_response();
    let etag = Validators::of(&committed.stat).etag;
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    if let Some(wanted) = wanted
        && let Some((_, digest)) =
            committed.digests.iter().find(|(algorithm, _)| *algorithm == wanted.algorithm)
        && let Ok(value) = HeaderValue::from_str(&digest::header_value(wanted, digest))
    {
        let name = match wanted.field {
            DigestField::Digest => "digest",
            DigestField::ReprDigest => "repr-digest",
        };
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
    response
}

/// Digests that the client sent with the file.
fn expected_digests(request: &DavRequest) -> Result<Vec<(Algorithm, Digest)>, ProblemDetails> {
    let mut all = Vec::new();
    for (name, field, prefix) in [
        ("digest", DigestField::Digest, ""),
        ("repr-digest", DigestField::ReprDigest, ""),
        ("content-md5", DigestField::Digest, "md5="),
    ] {
        for value in request.headers.get_all(name) {
            let value = format!("{prefix}{}", String::from_utf8_lossy(value.as_bytes()));
            let digests = digest::sent(&value, field);
            let problem = |error| ProblemDetails::bad_request(format!("{name}: {error}"));
            all.extend(digests.map_err(problem)?);
        }
    }
    Ok(all)
}

/// 409 where the parent is missing, or is a file (RFC 4918 section 9.7.1).
pub(crate) fn parent_problem(shown: &str, error: &io::Error) -> ProblemDetails {
    match error.kind() {
        io::ErrorKind::NotADirectory => {
            ProblemDetails::conflict(format!("{shown}: a part of its path is not a directory"))
        }
        io::ErrorKind::NotFound => ProblemDetails::conflict(format!(
            "{shown}: its directory does not exist: make it with MKCOL"
        )),
        _ => failed(shown, error),
    }
}

/// Rate of a body while the gateway waits for it. Time that limits or the disk take does not count.
#[derive(Debug)]
struct BodyRate {
    /// Time of waiting over which the rate is judged.
    interval: Duration,
    waited: Duration,
    bytes: u64,
}

impl BodyRate {
    fn new(interval: Duration) -> Self {
        Self { interval, waited: Duration::ZERO, bytes: 0 }
    }

    /// Counts a chunk for which the gateway waited; false once the body is too slow.
    fn count(&mut self, waited: Duration, bytes: usize) -> bool {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < self.interval {
            return true;
        }
        let is_fast = self.bytes >= BODY_RATE_MIN * self.waited.as_secs();
        *self = Self::new(self.interval);
        is_fast
    }
}

/// An upload whose last byte has arrived.
#[derive(Debug)]
struct ReceivedUpload {
    upload: FileUpload,
    content: ReceivedRange,
}

impl ReceivedUpload {
    /// Writes what is not written yet; blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    fn join(self) -> io::Result<JoinedUpload> {
        let content = self.content.finish(true)?;
        let bytes = content.bytes();
        self.upload.join(vec![content], bytes)
    }
}

/// Receives the body. An error leaves nothing of the upload.
async fn receive(
    chunks: &mut BodyDataStream,
    upload: FileUpload,
    account: &FileInTransfer,
    limit: Duration,
) -> io::Result<ReceivedUpload> {
    match receive_content(chunks, upload.whole(), account, limit).await {
        Ok(content) => Ok(ReceivedUpload { upload, content }),
        Err(error) => {
            // Releasing the room of a large file takes a while.
            let _ = spawn_blocking(move || drop(upload)).await;
            Err(error)
        }
    }
}

/// Receives the body into `writer`; an error returns once nothing is being written.
async fn receive_content(
    chunks: &mut BodyDataStream,
    writer: RangeWriter,
    account: &FileInTransfer,
    limit: Duration,
) -> io::Result<ReceivedRange> {
    let mut writer = BatchWriter::new(writer);
    let mut rate = BodyRate::new(limit);
    loop {
        match next_chunk(chunks, &mut rate, account, limit).await {
            Ok(Some(chunk)) => {
                if !writer.push(chunk).await {
                    drain(chunks).await;
                    return writer.end().await;
                }
            }
            Ok(None) => return writer.end().await,
            Err(error) => {
                let _ = writer.end().await;
                return Err(error);
            }
        }
    }
}

/// Next chunk of a body, within the limits of its rate.
async fn next_chunk(
    chunks: &mut BodyDataStream,
    rate: &mut BodyRate,
    account: &FileInTransfer,
    limit: Duration,
) -> io::Result<Option<Bytes>> {
    let waiting = Instant::now();
    let next = timeout(limit, chunks.next()).await.map_err(|_| {
        let text = format!("the client sent nothing for {} s", limit.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, text)
    })?;
    let Some(chunk) = next.transpose().map_err(|error| {
        let text = format!("the upload broke off: {error}");
        io::Error::new(io::ErrorKind::ConnectionAborted, text)
    })?
    else {
        return Ok(None);
    };
    if !rate.count(waiting.elapsed(), chunk.len()) {
        let text = format!("the upload is slower than {BODY_RATE_MIN} bytes per second");
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    let delay = account.count(chunk.len())?;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    Ok(Some(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_body_is_noticed_after_interval() {
        let second = Duration::from_secs(1);
        let mut rate = BodyRate::new(60 * second);
        let slow_after = (1..200).find(|_| !rate.count(second, 1023));
        assert_eq!(slow_after, Some(60));
        let mut rate = BodyRate::new(60 * second);
        assert!((0..600).all(|_| rate.count(second, 1024)));
        // A burst after a pause is one mean rate.
        assert!(rate.count(Duration::from_secs(59), 1) && rate.count(second, 1 << 20));
    }
}
