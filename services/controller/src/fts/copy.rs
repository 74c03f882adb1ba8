//! One attempt of a third-party copy.
//!
//! The destination pulls. Where it refuses the method (400, 405, 501), the source pushes. Both ends get their own token:
//! the server that is asked by `Authorization`, the other by `TransferHeaderAuthorization`. `Credential: none` keeps
//! servers from asking for a delegated certificate.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use futures_util::StreamExt;
use penstock_control::fts::checksum::{ChecksumMode, FtsChecksum};
use penstock_control::fts::progress::{self, CopyEnd, CopyReport};
use penstock_http::Url;
use tokio::time::timeout;

use super::storage::{Headers, StorageClient, StorageError, parse_url};
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

/// Properties of a file at a storage.
struct StorageFile {
    size: Option<i64>,
    digest: Option<String>,
}

fn header_value(text: &str, url: &Url) -> Result<HeaderValue, StorageError> {
    HeaderValue::from_str(text).map_err(|_| StorageError::Url(url.to_string()))
}

/// Returns the bearer token for a storage: that of the job, or the configured one.
fn token(
    client: &StorageClient,
    given: Option<&String>,
    url: &Url,
) -> Result<Option<HeaderValue>, StorageError> {
    let read = |file: &Path| {
        let text = std::fs::read_to_string(file);
        text.map_err(|error| StorageError::Token(url.authority(), error))
    };
    let token = match (given, client.policy.token_file(url)) {
        (Some(token), _) => token.clone(),
        (None, Some(file)) => read(file)?,
        (None, None) => return Ok(None),
    };
    header_value(&format!("Bearer {}", token.trim()), url).map(Some)
}

/// Asks a storage for size and checksum of a file.
async fn facts(
    client: &StorageClient,
    url: &Url,
    token: Option<&HeaderValue>,
    checksum: Option<&FtsChecksum>,
    what: &str,
) -> Result<StorageFile, StorageError> {
    let mut headers: Headers =
        token.map(|token| (header::AUTHORIZATION, token.clone())).into_iter().collect();
    if let Some(checksum) = checksum {
        let value = header_value(&checksum.algorithm, url)?;
        headers.push((HeaderName::from_static("want-digest"), value));
    }
    let response = client.send(&Method::HEAD, url, &headers).await?;
    if !response.status.is_success() {
        return Err(response.into_error(&format!("{what} {url}")).await);
    }
    let digest = response.header("digest").zip(checksum);
    let digest = digest.and_then(|(header, checksum)| checksum.find_in(header));
    let size = response.header("content-length").and_then(|text| text.parse().ok());
    Ok(StorageFile { size, digest })
}

/// Copies a file and compares its size and checksum; `moved` takes the bytes moved so far.
pub(crate) async fn copy(
    client: &StorageClient,
    job: &FtsJobRow,
    file: &FtsFileRow,
    moved: impl Fn(u64),
) -> Result<CopyResult, StorageError> {
    let (source, destination) = (parse_url(&file.source)?, parse_url(&file.destination)?);
    let mode = ChecksumMode::from_word(&job.verify).unwrap_or(ChecksumMode::None);
    let expected = file.checksum.as_deref().and_then(FtsChecksum::parse);
    let both = FtsChecksum { algorithm: "adler32".to_owned(), value: None };
    let checksum = expected.or_else(|| (mode == ChecksumMode::Both).then_some(both));
    let checksum = checksum.as_ref().filter(|_| mode != ChecksumMode::None);
    let source_token = token(client, file.source_token.as_ref(), &source)?;
    let destination_token = token(client, file.destination_token.as_ref(), &destination)?;
    let asked = checksum.filter(|_| mode.reads_source());
    let at_source = facts(client, &source, source_token.as_ref(), asked, "source").await?;
    if let (Some(expected), Some(found)) = (file.size, at_source.size)
        && expected != found
    {
        let text = format!("source {source}: size mismatch: it has {found} bytes, not {expected}");
        return Err(StorageError::Copy(text, false));
    }
    if let Some(checksum) = asked {
        compare("source", checksum, checksum.value.as_deref(), at_source.digest.as_deref())?;
    }
    let ends = StoragePair { source: &source, destination: &destination };
    let pull =
        ends.headers(true, job, file, source_token.as_ref(), destination_token.as_ref(), mode)?;
    let copy = Method::from_bytes(b"COPY").expect("a method");
    // A token may have no right to the parent, which then exists or fails the copy.
    if let Err(error) = make_parents(client, &destination, destination_token.as_ref()).await {
        tracing::debug!(file = file.id, "cannot make the parents of a destination: {error}");
    }
    let begun = client.send(&copy, &destination, &pull).await?;
    let can_push = |status| {
        [StatusCode::BAD_REQUEST, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED]
            .contains(&status)
    };
    let begun = if can_push(begun.status) {
        let refusal = begun.into_error(&format!("pull by {destination}")).await;
        let push = ends.headers(
            false,
            job,
            file,
            source_token.as_ref(),
            destination_token.as_ref(),
            mode,
        )?;
        let begun = client.send(&copy, &source, &push).await?;
        if !begun.status.is_success() {
            let pushed = begun.into_error(&format!("push by {source}")).await;
            let is_transient = pushed.is_transient() || refusal.is_transient();
            return Err(StorageError::Copy(format!("{refusal}; {pushed}"), is_transient));
        }
        begun
    } else if begun.status.is_success() {
        begun
    } else {
        return Err(begun.into_error(&format!("destination {destination}")).await);
    };
    follow(begun, moved).await?;
    let asked = checksum.filter(|_| mode.reads_target());
    let at_target =
        facts(client, &destination, destination_token.as_ref(), asked, "destination").await?;
    if let (Some(sent), Some(received)) = (at_source.size, at_target.size)
        && sent != received
    {
        let text =
            format!("destination {destination}: size mismatch: {received} bytes, not {sent}");
        return Err(StorageError::Copy(text, true));
    }
    if let Some(checksum) = asked {
        let wanted = checksum.value.as_deref().or(at_source.digest.as_deref());
        compare("destination", checksum, wanted, at_target.digest.as_deref())?;
    }
    Ok(CopyResult { bytes: at_target.size })
}

/// Makes the collections above a file where they are missing, as FTS3 does.
async fn make_parents(
    client: &StorageClient,
    url: &Url,
    token: Option<&HeaderValue>,
) -> Result<(), StorageError> {
    let headers: Headers =
        token.map(|token| (header::AUTHORIZATION, token.clone())).into_iter().collect();
    let mkcol = Method::from_bytes(b"MKCOL").expect("a method");
    let path = url.path().split('?').next().unwrap_or_default();
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let failed = |error| StorageError::Http(url.to_string(), error);
    let parent =
        |depth: usize| url.redirected(&format!("/{}/", names[..depth].join("/"))).map_err(failed);
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
        let response = client.send(&mkcol, &at, &headers).await?;
        match response.status {
            StatusCode::CONFLICT | StatusCode::NOT_FOUND if is_upwards => depth -= 1,
            // 405: it exists.
            status if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED => {
                client.learn_collection(&at);
                is_upwards = false;
                depth += 1;
            }
            _ => return Err(response.into_error(&format!("directory {at}")).await),
        }
    }
    Ok(())
}

/// Reads the report of a copy to its end.
async fn follow(
    begun: super::storage::StorageResponse,
    moved: impl Fn(u64),
) -> Result<(), StorageError> {
    let mut report = CopyReport::default();
    let super::storage::StorageResponse { body, connection: _connection, .. } = begun;
    let mut chunks = Body::new(body).into_data_stream();
    let mut last = (0, tokio::time::Instant::now());
    loop {
        let next = timeout(MARKER_TIMEOUT, chunks.next()).await;
        let next = next.map_err(|_| {
            let text =
                format!("Connection timed out: no marker for {} s", MARKER_TIMEOUT.as_secs());
            StorageError::Copy(text, true)
        })?;
        match next {
            Some(Ok(chunk)) => report.feed(&chunk),
            Some(Err(error)) => {
                return Err(StorageError::Copy(
                    format!("the report of the copy broke off: {error}"),
                    true,
                ));
            }
            None => break,
        }
        if report.bytes() != last.0 {
            last = (report.bytes(), tokio::time::Instant::now());
            moved(report.bytes());
        } else if last.1.elapsed() > STALL_TIMEOUT {
            let text = format!("Connection timed out: no byte for {} s", STALL_TIMEOUT.as_secs());
            return Err(StorageError::Copy(text, true));
        }
    }
    match report.finish() {
        Some(CopyEnd::Success) => Ok(()),
        Some(CopyEnd::Failure(text)) => {
            let is_transient = progress::is_transient(&text);
            Err(StorageError::Copy(format!("copy failed: {text}"), is_transient))
        }
        Some(CopyEnd::Aborted(text)) => {
            Err(StorageError::Copy(format!("copy aborted: {text}"), true))
        }
        None => {
            Err(StorageError::Copy("the report of the copy has no final line".to_owned(), true))
        }
    }
}

/// Compares a digest with the wanted one. A storage that has none fails the comparison.
fn compare(
    end: &str,
    checksum: &FtsChecksum,
    wanted: Option<&str>,
    found: Option<&str>,
) -> Result<(), StorageError> {
    let algorithm = &checksum.algorithm;
    match (wanted, found) {
        (None, _) => Ok(()),
        (Some(wanted), Some(found)) if wanted == found => Ok(()),
        (Some(wanted), Some(found)) => {
            let text = format!("{end} checksum mismatch: {algorithm} {found}, not {wanted}");
            Err(StorageError::Copy(text, false))
        }
        (Some(_), None) => {
            let text = format!("{end} checksum missing: the storage sends no {algorithm}");
            Err(StorageError::Copy(text, false))
        }
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
    ) -> Result<Headers, StorageError> {
        let (name, other, own, remote) = match is_pull {
            true => ("source", self.source, destination_token, source_token),
            false => ("destination", self.destination, source_token, destination_token),
        };
        let flag = |on| HeaderValue::from_static(if on { "true" } else { "false" });
        let text = HeaderName::from_static;
        let mut headers: Headers = vec![
            (text(name), header_value(&other.to_string(), other)?),
            (text("credential"), HeaderValue::from_static("none")),
            (text("overwrite"), HeaderValue::from_static(if job.overwrite { "T" } else { "F" })),
            (text("requirechecksumverification"), flag(mode == ChecksumMode::Both)),
        ];
        if let Some(token) = own {
            headers.push((header::AUTHORIZATION, token.clone()));
        }
        if let Some(token) = remote {
            headers.push((text("transferheaderauthorization"), token.clone()));
        }
        if let Some(scitag) = file.scitag {
            headers.push((text("scitag"), header_value(&scitag.to_string(), other)?));
        }
        Ok(headers)
    }
}
