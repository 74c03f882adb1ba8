//! One attempt of a third-party copy.
//!
//! The destination pulls. Where it refuses the method (400, 405, 501), the source pushes. Both ends get their own token:
//! the server that is asked by `Authorization`, the other by `TransferHeaderAuthorization`. `Credential: none` keeps
//! servers from asking for a delegated certificate.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use penstock_control::fts::checksum::{ChecksumMode, FtsChecksum};
use penstock_control::fts::progress::{CopyEnd, CopyReport};
use penstock_http::Url;
use penstock_http::storage_client::{StorageResponse, WANT_DIGEST};
use tokio::time::timeout;

use super::partial_copy::PartialCopy;
use super::same_file::{has_replaced_source, is_source};
use super::storage::{FtsCopyError, FtsStorages, parse_url, refusal};
use crate::repository::fts::{FtsFileRow, FtsJobRow};

/// Longest time without a byte of the report; servers send a marker every few seconds.
const MARKER_TIMEOUT: Duration = Duration::from_secs(180);

/// Longest time in which a copy moves no byte.
const STALL_TIMEOUT: Duration = Duration::from_secs(900);

/// Result of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyResult {
    pub(crate) bytes: Option<i64>,
}

/// State of a copy that may be cancelled, or take too long.
#[derive(Debug, Default)]
pub(crate) struct FtsCopyProgress {
    /// Bytes that the storage has reported: it has begun to write.
    moved: AtomicU64,
    source_size: OnceLock<i64>,
}

impl FtsCopyProgress {
    /// Leaves what is at the destination: the result of the copy is known.
    pub(crate) fn end(&self) {
        self.moved.store(0, Ordering::Relaxed);
    }
}

/// Properties of a file at a storage.
pub(super) struct StorageFile {
    /// URL that answered, to which redirects may have led.
    pub(super) answered: Url,
    pub(super) size: Option<i64>,
    pub(super) digest: Option<String>,
    pub(super) etag: Option<HeaderValue>,
    /// Time of its last change, as the storage writes it.
    pub(super) modified: Option<String>,
    /// Time since then, by the clock of the storage.
    pub(super) age: Option<Duration>,
}

fn header_value(text: &str, url: &Url) -> Result<HeaderValue, FtsCopyError> {
    HeaderValue::from_str(text).map_err(|_| FtsCopyError::Url(url.to_string()))
}

/// Returns the bearer token for a storage: that of the job, or the configured one.
fn token(
    client: &FtsStorages,
    given: Option<&String>,
    url: &Url,
) -> Result<Option<HeaderValue>, FtsCopyError> {
    let read = |file: &Path| {
        let text = std::fs::read_to_string(file);
        text.map_err(|error| FtsCopyError::Token(url.authority(), error))
    };
    let token = match (given, client.policy.token_file(url)) {
        (Some(token), _) => token.clone(),
        (None, Some(file)) => read(file)?,
        (None, None) => return Ok(None),
    };
    header_value(&format!("Bearer {}", token.trim()), url).map(Some)
}

pub(super) fn authorization(token: Option<&HeaderValue>) -> HeaderMap {
    token.map(|token| (header::AUTHORIZATION, token.clone())).into_iter().collect()
}

/// Asks a storage for size and checksum of a file.
pub(super) async fn facts(
    client: &FtsStorages,
    url: &Url,
    token: Option<&HeaderValue>,
    checksum: Option<&FtsChecksum>,
    what: &str,
    size: Option<i64>,
) -> Result<StorageFile, FtsCopyError> {
    let mut headers = authorization(token);
    if let Some(checksum) = checksum {
        let value = header_value(&checksum.algorithm, url)?;
        headers.insert(WANT_DIGEST, value);
    }
    let response = client.send_head(url, &headers, what, size).await?;
    if !response.status.is_success() {
        return Err(refusal(response, what, url).await);
    }
    let digest = response.header("digest").zip(checksum);
    let digest = digest.and_then(|(header, checksum)| checksum.find_in(header));
    let size = response.header("content-length").and_then(|text| text.parse().ok());
    let etag = response.headers.get(header::ETAG).cloned();
    let answered = response.url.clone();
    let modified = response.header("last-modified").map(str::to_owned);
    let time = |name| httpdate::parse_http_date(response.header(name)?).ok();
    let age = time("date").zip(time("last-modified"));
    let age = age.map(|(now, changed)| now.duration_since(changed).unwrap_or_default());
    Ok(StorageFile { answered, size, digest, etag, modified, age })
}

/// Copies a file and compares its size and checksum; `moved` takes the bytes moved so far.
pub(crate) async fn copy(
    client: &FtsStorages,
    job: &FtsJobRow,
    file: &FtsFileRow,
    progress: &FtsCopyProgress,
    moved: impl Fn(u64),
) -> Result<CopyResult, FtsCopyError> {
    let (source, destination) = (parse_url(&file.source)?, parse_url(&file.destination)?);
    let mode = ChecksumMode::from_word(&job.verify).unwrap_or(ChecksumMode::None);
    let expected = file.checksum.as_deref().and_then(FtsChecksum::parse);
    let both = FtsChecksum { algorithm: "adler32".to_owned(), value: None };
    let checksum = expected.or_else(|| (mode == ChecksumMode::Both).then_some(both));
    let checksum = checksum.as_ref().filter(|_| mode != ChecksumMode::None);
    let source_token = token(client, file.source_token.as_ref(), &source)?;
    let destination_token = token(client, file.destination_token.as_ref(), &destination)?;
    let asked = checksum.filter(|_| mode.reads_source());
    let at_source =
        facts(client, &source, source_token.as_ref(), asked, "source", file.size).await?;
    // A storage computes digests of files alone.
    if at_source.digest.is_none() {
        let headers = authorization(source_token.as_ref());
        if client.is_directory(&source, &at_source.answered, &headers).await {
            return Err(FtsCopyError::SourceDirectory(source));
        }
    }
    if let (Some(wanted), Some(found)) = (file.size, at_source.size)
        && wanted != found
    {
        return Err(FtsCopyError::SourceSize { url: source, found, wanted });
    }
    if let Some(checksum) = asked {
        let end = format!("source {source}");
        compare(end, checksum, checksum.value.as_deref(), at_source.digest.as_deref())?;
    }
    let ends = [(&source, source_token.as_ref()), (&destination, destination_token.as_ref())];
    if job.overwrite && is_source(client, ends, &at_source).await {
        return Err(FtsCopyError::SameFile);
    }
    let part = PartialCopy {
        at: (&destination, destination_token.as_ref()),
        source: (&source, source_token.as_ref()),
        size: at_source.size.filter(|_| !job.overwrite),
        submitted: job.submitted,
    };
    if file.attempt > 0 {
        // The controller stopped within the last attempt, or ended it: the storage may have gone on.
        let wanted = checksum.and_then(|one| one.value.as_deref().or(at_source.digest.as_deref()));
        let wanted = checksum.zip(wanted);
        if part.is_complete(client, wanted, file.moved > 0).await? {
            return Ok(CopyResult { bytes: at_source.size });
        }
    }
    if let Some(size) = at_source.size {
        let _ = progress.source_size.set(size);
    }
    let ends = StoragePair { source: &source, destination: &destination };
    let pull =
        ends.headers(true, job, file, source_token.as_ref(), destination_token.as_ref(), mode)?;
    let copy = Method::from_bytes(b"COPY").expect("a method");
    // A token may have no right to the parent, which then exists or fails the copy.
    if let Err(error) = make_parents(client, &destination, destination_token.as_ref()).await {
        tracing::debug!(file = file.id, "cannot make the parents of a destination: {error}");
    }
    let begun = client.send(&copy, &destination, &pull, "pull by").await?;
    let can_push = |status| {
        [StatusCode::BAD_REQUEST, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED]
            .contains(&status)
    };
    let begun = if can_push(begun.status) {
        let pulled = refusal(begun, "pull by", &destination).await;
        let push = ends.headers(
            false,
            job,
            file,
            source_token.as_ref(),
            destination_token.as_ref(),
            mode,
        )?;
        let begun = client.send(&copy, &source, &push, "push by").await?;
        if !begun.status.is_success() {
            let pushed = refusal(begun, "push by", &source).await;
            let (pulled, pushed) = (Box::new(pulled), Box::new(pushed));
            return Err(FtsCopyError::BothRefuse { pulled, pushed });
        }
        begun
    } else if begun.status.is_success() {
        begun
    } else {
        return Err(refusal(begun, "destination", &destination).await);
    };
    let moved = |bytes| {
        progress.moved.store(bytes, Ordering::Relaxed);
        moved(bytes);
    };
    if let Err(fault) = follow(begun, &destination, moved).await {
        return Err(part.delete_after(client, fault).await);
    }
    let asked = checksum.filter(|_| mode.reads_target());
    let at_target = facts(
        client,
        &destination,
        destination_token.as_ref(),
        asked,
        "destination",
        at_source.size,
    )
    .await?;
    let compared = if let (Some(wanted), Some(found)) = (at_source.size, at_target.size)
        && wanted != found
    {
        Err(FtsCopyError::DestinationSize { url: destination.clone(), found, wanted })
    } else if let Some(checksum) = asked {
        let wanted = checksum.value.as_deref().or(at_source.digest.as_deref());
        compare(format!("destination {destination}"), checksum, wanted, at_target.digest.as_deref())
    } else {
        Ok(())
    };
    let fault = match compared {
        Ok(()) => return Ok(CopyResult { bytes: at_target.size }),
        // A copy that cannot be compared may be right.
        Err(fault @ FtsCopyError::NoChecksum { .. }) => return Err(fault),
        Err(fault) => Box::new(fault),
    };
    let token = destination_token.as_ref();
    let now = facts(client, &source, source_token.as_ref(), None, "source", file.size).await;
    let deleted = match now.map(|now| has_replaced_source(&at_source, &now, &at_target)) {
        Ok(false) => delete_copy(client, &destination, token, at_target.etag.as_ref()).await,
        Ok(true) => Err(FtsCopyError::SameFile),
        // What is at the destination may be all that is left.
        Err(error) => Err(error),
    };
    Err(match deleted {
        Ok(()) => FtsCopyError::DeletedCopy { fault, has_replaced: job.overwrite },
        Err(error) => FtsCopyError::WrongCopy { fault, error: Box::new(error) },
    })
}

/// Deletes the part of a copy that was ended early. Its storage has moved bytes with `Overwrite: F`, so that it made the
/// file.
pub(crate) async fn delete_unfinished(
    client: &FtsStorages,
    job: &FtsJobRow,
    file: &FtsFileRow,
    progress: &FtsCopyProgress,
) -> Result<(), FtsCopyError> {
    let has_moved = progress.moved.load(Ordering::Relaxed) > 0;
    let Some(size) = progress.source_size.get().filter(|_| has_moved && !job.overwrite) else {
        return Ok(());
    };
    let (source, destination) = (parse_url(&file.source)?, parse_url(&file.destination)?);
    let source_token = token(client, file.source_token.as_ref(), &source)?;
    let destination_token = token(client, file.destination_token.as_ref(), &destination)?;
    let part = PartialCopy {
        at: (&destination, destination_token.as_ref()),
        source: (&source, source_token.as_ref()),
        size: Some(*size),
        submitted: job.submitted,
    };
    part.delete(client).await
}

/// Deletes a copy that is wrong, unless another client has replaced it since it was inspected.
pub(super) async fn delete_copy(
    client: &FtsStorages,
    url: &Url,
    token: Option<&HeaderValue>,
    etag: Option<&HeaderValue>,
) -> Result<(), FtsCopyError> {
    let mut headers = authorization(token);
    if let Some(etag) = etag {
        headers.insert(header::IF_MATCH, etag.clone());
    }
    let response = client.send(&Method::DELETE, url, &headers, "delete").await?;
    match response.status {
        status if status.is_success() || status == StatusCode::NOT_FOUND => Ok(()),
        _ => Err(refusal(response, "delete", url).await),
    }
}

/// Makes the collections above a file where they are missing, as FTS3 does.
async fn make_parents(
    client: &FtsStorages,
    url: &Url,
    token: Option<&HeaderValue>,
) -> Result<(), FtsCopyError> {
    let headers = authorization(token);
    let mkcol = Method::from_bytes(b"MKCOL").expect("a method");
    let path = url.path().split('?').next().unwrap_or_default();
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let parent = |depth: usize| {
        let parent = url.redirected(&format!("/{}/", names[..depth].join("/")));
        parent.map_err(|error| FtsCopyError::Storage(url.to_string(), error.into()))
    };
    let deepest = names.len().saturating_sub(1);
    // From the deepest upwards until one exists or could be made, then downwards.
    let mut depth = deepest;
    let mut is_upwards = true;
    while (1..=deepest).contains(&depth) {
        let at = parent(depth)?;
        if is_upwards && client.knows_collection(&at) {
            is_upwards = false;
            depth += 1;
            continue;
        }
        let response = client.send(&mkcol, &at, &headers, "directory").await?;
        match response.status {
            StatusCode::CONFLICT | StatusCode::NOT_FOUND if is_upwards => depth -= 1,
            // 405: it exists.
            status if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED => {
                client.learn_collection(&at);
                is_upwards = false;
                depth += 1;
            }
            _ => return Err(refusal(response, "directory", &at).await),
        }
    }
    Ok(())
}

/// Reads the report of a copy to `url` to its end.
async fn follow(
    mut begun: StorageResponse,
    url: &Url,
    moved: impl Fn(u64),
) -> Result<(), FtsCopyError> {
    let to = || url.to_string();
    let mut report = CopyReport::default();
    let mut last = (0, tokio::time::Instant::now());
    loop {
        let next = timeout(MARKER_TIMEOUT, begun.chunk()).await;
        let next = next.map_err(|_| FtsCopyError::NoMarker(to(), MARKER_TIMEOUT))?;
        match next {
            Some(chunk) => {
                report.feed(&chunk.map_err(|error| FtsCopyError::Report(to(), error))?);
            }
            None => break,
        }
        if report.bytes() != last.0 {
            last = (report.bytes(), tokio::time::Instant::now());
            moved(report.bytes());
        } else if last.1.elapsed() > STALL_TIMEOUT {
            return Err(FtsCopyError::Stalled(to(), STALL_TIMEOUT));
        }
    }
    match report.finish() {
        Some(CopyEnd::Success) => Ok(()),
        Some(CopyEnd::Failure(text)) => Err(FtsCopyError::Failed(to(), text)),
        Some(CopyEnd::Aborted(text)) => Err(FtsCopyError::Aborted(to(), text)),
        None => Err(FtsCopyError::NoEnd(to())),
    }
}

/// Compares a digest with the wanted one. A storage that has none fails the comparison.
fn compare(
    end: String,
    checksum: &FtsChecksum,
    wanted: Option<&str>,
    found: Option<&str>,
) -> Result<(), FtsCopyError> {
    let algorithm = || checksum.algorithm.clone();
    match (wanted, found) {
        (None, _) => Ok(()),
        (Some(wanted), Some(found)) if wanted == found => Ok(()),
        (Some(wanted), Some(found)) => Err(FtsCopyError::Checksum {
            end,
            algorithm: algorithm(),
            found: checksum.padded(found),
            wanted: checksum.padded(wanted),
        }),
        (Some(_), None) => Err(FtsCopyError::NoChecksum { end, algorithm: algorithm() }),
    }
}

/// Both ends of a copy.
#[derive(Debug, Clone, Copy)]
struct StoragePair<'a> {
    source: &'a Url,
    destination: &'a Url,
}

impl StoragePair<'_> {
    /// Returns the headers of `COPY`, pulled by the destination or pushed by the source.
    fn headers(
        self,
        is_pull: bool,
        job: &FtsJobRow,
        file: &FtsFileRow,
        source_token: Option<&HeaderValue>,
        destination_token: Option<&HeaderValue>,
        mode: ChecksumMode,
    ) -> Result<HeaderMap, FtsCopyError> {
        let (name, other, own, remote) = match is_pull {
            true => ("source", self.source, destination_token, source_token),
            false => ("destination", self.destination, source_token, destination_token),
        };
        let mut headers = authorization(own);
        headers.insert(name, header_value(&other.to_string(), other)?);
        headers.insert("credential", HeaderValue::from_static("none"));
        let overwrite = if job.overwrite { "T" } else { "F" };
        headers.insert("overwrite", HeaderValue::from_static(overwrite));
        let is_compared = if mode == ChecksumMode::Both { "true" } else { "false" };
        headers.insert("requirechecksumverification", HeaderValue::from_static(is_compared));
        if let Some(token) = remote {
            headers.insert("transferheaderauthorization", token.clone());
        }
        if let Some(scitag) = file.scitag {
            headers.insert("scitag", header_value(&scitag.to_string(), other)?);
        }
        Ok(headers)
    }
}
