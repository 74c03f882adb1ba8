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
    let attempt = CopyAttempt::new(client, job, file)?;
    let at_source = attempt.check_source().await?;
    if attempt.has_earlier_copy(&at_source).await? {
        return Ok(CopyResult { bytes: at_source.size });
    }
    if let Some(size) = at_source.size {
        let _ = progress.source_size.set(size);
    }
    let begun = attempt.begin().await?;
    let moved = |bytes| {
        progress.moved.store(bytes, Ordering::Relaxed);
        moved(bytes);
    };
    if let Err(fault) = follow(begun, &attempt.destination, moved).await {
        return Err(attempt.partial_copy(at_source.size).delete_after(client, fault).await);
    }
    attempt.check_destination(&at_source).await
}

/// One attempt to copy a file: both ends with their tokens, and the checksum to compare.
struct CopyAttempt<'a> {
    client: &'a FtsStorages,
    job: &'a FtsJobRow,
    file: &'a FtsFileRow,
    source: Url,
    destination: Url,
    source_token: Option<HeaderValue>,
    destination_token: Option<HeaderValue>,
    mode: ChecksumMode,
    /// Algorithm and, where the job names it, value.
    checksum: Option<FtsChecksum>,
}

impl<'a> CopyAttempt<'a> {
    fn new(
        client: &'a FtsStorages,
        job: &'a FtsJobRow,
        file: &'a FtsFileRow,
    ) -> Result<Self, FtsCopyError> {
        let (source, destination) = (parse_url(&file.source)?, parse_url(&file.destination)?);
        let source_token = token(client, file.source_token.as_ref(), &source)?;
        let destination_token = token(client, file.destination_token.as_ref(), &destination)?;
        let mode = ChecksumMode::from_word(&job.verify).unwrap_or(ChecksumMode::None);
        let expected = file.checksum.as_deref().and_then(FtsChecksum::parse);
        let both = FtsChecksum { algorithm: "adler32".to_owned(), value: None };
        let checksum = expected.or_else(|| (mode == ChecksumMode::Both).then_some(both));
        let checksum = checksum.filter(|_| mode != ChecksumMode::None);
        Ok(Self {
            client,
            job,
            file,
            source,
            destination,
            source_token,
            destination_token,
            mode,
            checksum,
        })
    }

    fn source_end(&self) -> (&Url, Option<&HeaderValue>) {
        (&self.source, self.source_token.as_ref())
    }

    fn destination_end(&self) -> (&Url, Option<&HeaderValue>) {
        (&self.destination, self.destination_token.as_ref())
    }

    /// Looks at the source: a file of the size and checksum that the job names, and not the destination itself.
    async fn check_source(&self) -> Result<StorageFile, FtsCopyError> {
        let (client, (url, token)) = (self.client, self.source_end());
        let asked = self.checksum.as_ref().filter(|_| self.mode.reads_source());
        let found = facts(client, url, token, asked, "source", self.file.size).await?;
        // A storage computes digests of files alone.
        if found.digest.is_none()
            && client.is_directory(url, &found.answered, &authorization(token)).await
        {
            return Err(FtsCopyError::SourceDirectory(url.clone()));
        }
        if let (Some(wanted), Some(found)) = (self.file.size, found.size)
            && wanted != found
        {
            return Err(FtsCopyError::SourceSize { url: url.clone(), found, wanted });
        }
        if let Some(checksum) = asked {
            let end = format!("source {url}");
            compare(end, checksum, checksum.value.as_deref(), found.digest.as_deref())?;
        }
        let ends = [self.source_end(), self.destination_end()];
        if self.job.overwrite && is_source(client, ends, &found).await {
            return Err(FtsCopyError::SameFile);
        }
        Ok(found)
    }

    /// Digest that the copy must have, if one is compared and known.
    fn wanted_digest<'b>(
        &'b self,
        at_source: &'b StorageFile,
    ) -> Option<(&'b FtsChecksum, &'b str)> {
        let checksum = self.checksum.as_ref()?;
        let digest = checksum.value.as_deref().or(at_source.digest.as_deref())?;
        Some((checksum, digest))
    }

    /// Part that this attempt, or an earlier one, may have left.
    fn partial_copy(&self, source_size: Option<i64>) -> PartialCopy<'_> {
        PartialCopy {
            at: self.destination_end(),
            source: self.source_end(),
            size: source_size.filter(|_| !self.job.overwrite),
            submitted: self.job.submitted,
        }
    }

    /// True if an earlier attempt has copied the file: the controller stopped within it, or ended it, and the storage went on.
    async fn has_earlier_copy(&self, at_source: &StorageFile) -> Result<bool, FtsCopyError> {
        if self.file.attempt == 0 {
            return Ok(false);
        }
        let part = self.partial_copy(at_source.size);
        part.is_complete(self.client, self.wanted_digest(at_source), self.file.moved > 0).await
    }

    /// Starts the copy: the destination pulls or, where it cannot, the source pushes.
    async fn begin(&self) -> Result<StorageResponse, FtsCopyError> {
        const PULL_UNKNOWN: [StatusCode; 3] =
            [StatusCode::BAD_REQUEST, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
        let client = self.client;
        let copy = Method::from_bytes(b"COPY").expect("a method");
        let (destination, token) = self.destination_end();
        let pull = self.headers(true)?;
        // A token may have no right to the parent, which then exists or fails the copy.
        if let Err(error) = make_parents(client, destination, token).await {
            tracing::debug!(
                file = self.file.id,
                "cannot make the parents of a destination: {error}"
            );
        }
        let begun = client.send(&copy, destination, &pull, "pull by").await?;
        if begun.status.is_success() {
            return Ok(begun);
        }
        if !PULL_UNKNOWN.contains(&begun.status) {
            return Err(refusal(begun, "destination", destination).await);
        }
        let pulled = refusal(begun, "pull by", destination).await;
        let begun = client.send(&copy, &self.source, &self.headers(false)?, "push by").await?;
        if begun.status.is_success() {
            return Ok(begun);
        }
        let pushed = refusal(begun, "push by", &self.source).await;
        Err(FtsCopyError::BothRefuse { pulled: Box::new(pulled), pushed: Box::new(pushed) })
    }

    /// Headers of `COPY`, pulled by the destination or pushed by the source.
    fn headers(&self, is_pull: bool) -> Result<HeaderMap, FtsCopyError> {
        let (name, other, own, remote) = match is_pull {
            true => ("source", &self.source, &self.destination_token, &self.source_token),
            false => {
                ("destination", &self.destination, &self.source_token, &self.destination_token)
            }
        };
        let mut headers = authorization(own.as_ref());
        headers.insert(name, header_value(&other.to_string(), other)?);
        headers.insert("credential", HeaderValue::from_static("none"));
        let overwrite = if self.job.overwrite { "T" } else { "F" };
        headers.insert("overwrite", HeaderValue::from_static(overwrite));
        let is_compared = if self.mode == ChecksumMode::Both { "true" } else { "false" };
        headers.insert("requirechecksumverification", HeaderValue::from_static(is_compared));
        if let Some(token) = remote {
            headers.insert("transferheaderauthorization", token.clone());
        }
        if let Some(scitag) = self.file.scitag {
            headers.insert("scitag", header_value(&scitag.to_string(), other)?);
        }
        Ok(headers)
    }

    /// Compares what is at the destination, and deletes it if it differs.
    async fn check_destination(&self, at_source: &StorageFile) -> Result<CopyResult, FtsCopyError> {
        let (url, token) = self.destination_end();
        let asked = self.checksum.as_ref().filter(|_| self.mode.reads_target());
        let found = facts(self.client, url, token, asked, "destination", at_source.size).await?;
        let compared = if let (Some(wanted), Some(found)) = (at_source.size, found.size)
            && wanted != found
        {
            Err(FtsCopyError::DestinationSize { url: url.clone(), found, wanted })
        } else if let Some(checksum) = asked {
            let wanted = self.wanted_digest(at_source).map(|(_, digest)| digest);
            compare(format!("destination {url}"), checksum, wanted, found.digest.as_deref())
        } else {
            Ok(())
        };
        match compared {
            Ok(()) => Ok(CopyResult { bytes: found.size }),
            // A copy that cannot be compared may be right.
            Err(fault @ FtsCopyError::NoChecksum { .. }) => Err(fault),
            Err(fault) => Err(self.delete_wrong(at_source, &found, Box::new(fault)).await),
        }
    }

    /// Deletes a copy that is wrong, unless it may be the only one.
    async fn delete_wrong(
        &self,
        at_source: &StorageFile,
        found: &StorageFile,
        fault: Box<FtsCopyError>,
    ) -> FtsCopyError {
        let (client, (url, token)) = (self.client, self.source_end());
        let now = facts(client, url, token, None, "source", self.file.size).await;
        let (url, token) = self.destination_end();
        let deleted = match now.map(|now| has_replaced_source(at_source, &now, found)) {
            Ok(false) => delete_copy(client, url, token, found.etag.as_ref()).await,
            Ok(true) => Err(FtsCopyError::SameFile),
            // What is at the destination may be all that is left.
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => FtsCopyError::DeletedCopy { fault, has_replaced: self.job.overwrite },
            Err(error) => FtsCopyError::WrongCopy { fault, error: Box::new(error) },
        }
    }
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
    CopyAttempt::new(client, job, file)?.partial_copy(Some(*size)).delete(client).await
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
