//! Files appended to open requests, by clients and by listings.

use std::collections::HashSet;

use penstock_control::batch::{self, BatchKind, BatchLimits, BatchState};
use penstock_control::file::{FILE_BYTES_MAX, TOTAL_BYTES_MAX};
use penstock_control::orders::{LISTED_PATH, ListedFile};
use penstock_control::request::RequestDelta;

use super::change::{ChangeOutcome, ended};
use super::{outcomes, quota_ledger, submit};
use crate::repository::batches::NewBatch;
use crate::repository::files::{DestinationDirectory, NewFile};
use crate::repository::requests::{RequestDeltas, RequestTerms};
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, batches, files, requests};

/// Fault of a file whose destination is in use.
const DESTINATION_IN_USE: &str = "another request is writing this file";

/// Files that a client appends from an offset on.
#[derive(Debug, Clone)]
pub(crate) struct AppendedFiles {
    /// Number of files of the request before them.
    pub(crate) at: i64,
    pub(crate) files: Vec<NewFile>,
    /// Set if no more files follow.
    pub(crate) seal: bool,
}

/// Appends files to an open request, and seals it on demand.
pub(crate) async fn append(
    cx: &mut TxContext,
    id: i64,
    new: &AppendedFiles,
    audit: Audit,
) -> Result<ChangeOutcome, DatabaseError> {
    let AppendedFiles { at, files, seal } = new;
    let Some(terms) = requests::terms(cx, id).await? else {
        return Ok(ChangeOutcome::Missing);
    };
    let may_be_known = at + files.len() as i64 == terms.files && *at < terms.files;
    // A retry of a call whose response was lost; other files would be those of another client at the same offset.
    let is_known = may_be_known && {
        let stored = files::paths_from(cx, id, *at).await?;
        stored.iter().eq(files.iter().map(|file| &file.path))
    };
    if is_known && !(*seal && terms.open && !terms.cancel) {
        return Ok(ChangeOutcome::Done);
    }
    if let Some(ended) = ended(terms.state) {
        return Ok(ended);
    }
    if !terms.open || terms.cancel {
        let sealed_before = *seal && files.is_empty() && !terms.cancel;
        return Ok(if sealed_before { ChangeOutcome::Done } else { ChangeOutcome::Sealed });
    }
    if !is_known && *at != terms.files {
        return Ok(ChangeOutcome::OffsetMismatch(terms.files));
    }
    if !is_known && !files.is_empty() {
        let bytes = u64::try_from(sums(files).0).unwrap_or(0);
        if let Some(excess) = quota_ledger::excess_with(cx, &terms.client, bytes).await? {
            return Ok(ChangeOutcome::OverQuota(excess));
        }
        let base = base_batch(cx, id, &terms).await?;
        let to = DestinationDirectory { site: &terms.destination, path: &terms.to_path };
        if let Some((file, by)) = files::first_conflict(cx, to, files).await? {
            return Ok(ChangeOutcome::Taken { file, by: Some(by) });
        }
        add_files(cx, &base, terms.files, to, files.clone()).await?;
    }
    if *seal {
        requests::seal(cx, id).await?;
        let deltas = RequestDeltas::from([(id, RequestDelta::default())]);
        outcomes::apply_deltas(cx, deltas).await?;
    }
    cx.audit(audit);
    Ok(ChangeOutcome::Done)
}

/// Adds listed files to their request. `again` if an earlier run may have listed them.
pub(crate) async fn add_listed_files(
    cx: &mut TxContext,
    request: i64,
    entries: &[&ListedFile],
    again: bool,
) -> Result<(), DatabaseError> {
    let Some(mut terms) = requests::terms(cx, request).await? else { return Ok(()) };
    if terms.cancel || !terms.open {
        return Ok(());
    }
    let mut known: HashSet<String> = HashSet::new();
    if again && terms.files > 0 {
        known.extend(files::paths(cx, request).await?);
    }
    let mut files = Vec::with_capacity(entries.len());
    for entry in entries {
        let mut path = entry.path.clone();
        if path == LISTED_PATH {
            // The requested path is a file: it becomes that file of its directory, and the listing is complete.
            let (directory, name) =
                terms.from_path.rsplit_once('/').unwrap_or(("", &terms.from_path));
            let directory = if directory.is_empty() { "/" } else { directory };
            terms.lane = submit::lane_of(directory, &terms.to_path, &terms.policy);
            requests::set_single_file(cx, request, directory, &terms.lane).await?;
            path = name.to_owned();
        }
        if crate::paths::relative(&path).is_ok() && known.insert(path.clone()) {
            let size = Some(entry.bytes.min(FILE_BYTES_MAX));
            files.push(NewFile { path, size, digest: None });
        }
    }
    let base = base_batch(cx, request, &terms).await?;
    let to = DestinationDirectory { site: &terms.destination, path: &terms.to_path };
    add_files(cx, &base, terms.files, to, files).await
}

/// Returns an empty batch of a request.
async fn base_batch(
    cx: &mut TxContext,
    request: i64,
    terms: &RequestTerms,
) -> Result<NewBatch, DatabaseError> {
    let queue = (terms.class.clone(), terms.source.clone(), terms.destination.clone());
    batches::load_queues(cx, vec![queue.clone()]).await?;
    Ok(NewBatch {
        root: None,
        request,
        queue: cx.queues.get(&queue).copied().unwrap_or_default(),
        kind: BatchKind::Copy,
        first: 0,
        last: -1,
        seqs: None,
        files: 0,
        bytes: 0,
        priority: terms.priority,
        deadline: terms.deadline,
        lane: terms.lane.clone(),
        attempt: 0,
        state: BatchState::initial(terms.paused, false),
        not_before: 0,
    })
}

/// Returns the bytes, at most [`TOTAL_BYTES_MAX`], and the number of files of known size.
pub(super) fn sums(files: &[NewFile]) -> (i64, i64) {
    let sized = files.iter().filter_map(|file| file.size);
    let bytes = sized.clone().fold(0, u64::saturating_add);
    (
        i64::try_from(bytes).map_or(TOTAL_BYTES_MAX, |bytes| bytes.min(TOTAL_BYTES_MAX)),
        sized.count() as i64,
    )
}

/// Splits files into batches; the first file has sequence number `first`.
pub(super) fn split_into(
    base: &NewBatch,
    first: i64,
    files: &[NewFile],
    limits: BatchLimits,
) -> Vec<NewBatch> {
    let sizes: Vec<_> = files.iter().map(|file| file.size).collect();
    let batches = batch::split(&sizes, limits).into_iter().map(|range| NewBatch {
        first: first + range.start as i64,
        last: first + range.end as i64 - 1,
        files: range.len() as i64,
        bytes: sums(&files[range]).0,
        ..base.clone()
    });
    batches.collect()
}

/// Adds files to a request that has `first` files. Files whose destination is in use fail.
async fn add_files(
    cx: &mut TxContext,
    base: &NewBatch,
    first: i64,
    to: DestinationDirectory<'_>,
    mut new: Vec<NewFile>,
) -> Result<(), DatabaseError> {
    let request = base.request;
    let (mut start, mut failures) = (first, 0);
    loop {
        let rows: Vec<_> = files::queued_rows(cx, request, start, to, &new).collect();
        let expected = rows.len() as u64;
        if files::insert(cx, rows).await? == expected {
            break;
        }
        // Rare: remove the inserted rows, and insert again without the conflicting files.
        let there: HashSet<i64> = files::seqs_from(cx, request, start).await?.into_iter().collect();
        files::delete_from(cx, request, start).await?;
        let (kept, dropped) =
            (start..).zip(new).partition::<Vec<_>, _>(|(seq, _)| there.contains(seq));
        new = kept.into_iter().map(|(_, file)| file).collect();
        let dropped: Vec<NewFile> = dropped.into_iter().map(|(_, file)| file).collect();
        let failed = files::failed_rows(cx, request, start, &dropped, DESTINATION_IN_USE);
        start += failed.len() as i64;
        failures += failed.len() as i64;
        files::insert(cx, failed).await?;
    }
    let (bytes, sized) = sums(&new);
    let delta = RequestDelta {
        files: new.len() as i64 + failures,
        failed: failures,
        bytes,
        sized,
        ..RequestDelta::default()
    };
    let batches = split_into(base, start, &new, cx.settings.config.batch);
    batches::insert(cx, batches).await?;
    outcomes::apply_deltas(cx, RequestDeltas::from([(request, delta)])).await
}
