//! Parts that broken copies leave at their destination, and their difference from files of other clients.

use std::time::Duration;

use axum::http::{HeaderValue, Method, header};
use penstock_control::fts::checksum::FtsChecksum;
use penstock_http::Url;
use tokio::time::timeout;

use super::copy::{StorageFile, authorization, delete_copy, facts};
use super::storage::{FtsCopyError, FtsStorages};
use crate::repository::now_ms;

/// Bytes at the end of a part that are compared with the source.
const COMPARED_BYTES_MAX: i64 = 4096;

/// Time of reading them from one end.
const COMPARISON_TIMEOUT: Duration = Duration::from_secs(30);

/// Step of the times in headers of HTTP.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// Part that a copy which broke off may have left at its destination. Storages that keep it (XRootD) would refuse the next
/// attempt, as the file exists.
pub(super) struct PartialCopy<'a> {
    /// URL and token of the destination.
    pub(super) at: (&'a Url, Option<&'a HeaderValue>),
    /// URL and token of the source.
    pub(super) source: (&'a Url, Option<&'a HeaderValue>),
    /// Size of the source; none where it is not known, or where the copy replaces files: then nothing is deleted.
    pub(super) size: Option<i64>,
    /// Time of the job in Unix milliseconds: a part is younger.
    pub(super) submitted: i64,
}

impl PartialCopy<'_> {
    /// Looks for what an earlier attempt left. Returns true for the whole file: of the size of the source, and with the
    /// `wanted` checksum; without one, if the attempt `has_moved` bytes. Deletes a part.
    pub(super) async fn is_complete(
        &self,
        client: &FtsStorages,
        wanted: Option<(&FtsChecksum, &str)>,
        has_moved: bool,
    ) -> Result<bool, FtsCopyError> {
        let Some(size) = self.size else { return Ok(false) };
        let checksum = wanted.map(|(checksum, _)| checksum);
        let there = facts(client, self.at.0, self.at.1, checksum, "destination", self.size).await;
        match there {
            // Most storages leave nothing.
            Err(_) => Ok(false),
            Ok(there) if there.size == Some(size) => Ok(match wanted {
                Some((_, digest)) => there.digest.as_deref() == Some(digest),
                None => has_moved,
            }),
            Ok(there) => self.delete_part(client, &there).await.map(|()| false),
        }
    }

    /// Returns true for a file that was made since the job is there, is shorter than the source, and ends with the bytes that the
    /// source has there. Another client's file is none.
    async fn is_part(&self, client: &FtsStorages, there: &StorageFile) -> bool {
        let Some((wanted, size)) = self.size.zip(there.size) else { return false };
        let waited = u64::try_from(now_ms() - self.submitted).unwrap_or(0);
        let is_young = there.age.map(|age| age <= Duration::from_millis(waited) + CLOCK_STEP);
        match size {
            _ if size >= wanted => false,
            0 => is_young == Some(true),
            _ => is_young != Some(false) && self.has_bytes_of_source(client, size).await,
        }
    }

    async fn has_bytes_of_source(&self, client: &FtsStorages, size: i64) -> bool {
        let start = (size - COMPARED_BYTES_MAX).max(0);
        let there = read_range(client, self.at, start, size).await;
        there.is_some() && there == read_range(client, self.source, start, size).await
    }

    /// Deletes what is there if it is a part.
    pub(super) async fn delete(&self, client: &FtsStorages) -> Result<(), FtsCopyError> {
        let there = facts(client, self.at.0, self.at.1, None, "destination", self.size).await;
        match there {
            Ok(there) => self.delete_part(client, &there).await,
            Err(_) => Ok(()),
        }
    }

    async fn delete_part(
        &self,
        client: &FtsStorages,
        there: &StorageFile,
    ) -> Result<(), FtsCopyError> {
        if !self.is_part(client, there).await {
            return Ok(());
        }
        let headers = authorization(self.at.1);
        if client.is_directory(self.at.0, &there.answered, &headers).await {
            return Ok(());
        }
        delete_copy(client, self.at.0, self.at.1, there.etag.as_ref()).await
    }

    /// Deletes it after a fault, which is returned.
    pub(super) async fn delete_after(
        &self,
        client: &FtsStorages,
        fault: FtsCopyError,
    ) -> FtsCopyError {
        if fault.is_of_existing_file() {
            return fault;
        }
        match self.delete(client).await {
            Ok(()) => fault,
            Err(error) => {
                FtsCopyError::WrongCopy { fault: Box::new(fault), error: Box::new(error) }
            }
        }
    }
}

/// Reads the bytes from `start` to `end` of a file; none if the storage sends something else.
async fn read_range(
    client: &FtsStorages,
    (url, token): (&Url, Option<&HeaderValue>),
    start: i64,
    end: i64,
) -> Option<Vec<u8>> {
    let mut headers = authorization(token);
    let range = format!("bytes={start}-{}", end - 1);
    headers.insert(header::RANGE, HeaderValue::from_str(&range).ok()?);
    let expected = usize::try_from(end - start).ok()?;
    let read = async {
        let mut response = client.send(&Method::GET, url, &headers, "part").await.ok()?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await {
            bytes.extend(chunk.ok()?);
            if bytes.len() > expected {
                return None;
            }
        }
        Some(bytes).filter(|bytes| response.status.is_success() && bytes.len() == expected)
    };
    timeout(COMPARISON_TIMEOUT, read).await.ok().flatten()
}
