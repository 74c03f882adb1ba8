//! Requests that move files of FTS3 jobs between agents: submission, results, end by a client.

use penstock_control::fts::state::{FtsFileEvent, FtsFileState};
use penstock_control::request::RequestState;

use super::cancel;
use super::change::{self, RequestChange};
use super::quota_ledger::QuotaLedger;
use super::submit::{self, Submission, Submitted};
use crate::repository::fts::{self, FtsFileChange, FtsRequestNews};
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError};

/// Time until a file beyond the quota of its client is due again, in milliseconds.
const QUOTA_RETRY_MS: i64 = 10_000;

/// A due file with the request that moves it.
#[derive(Debug, Clone)]
pub(crate) struct FtsFileRequest {
    pub(crate) file: i64,
    /// Time of the next attempt if the destination is in use, in Unix milliseconds; none for no further attempt.
    pub(crate) retry_at: Option<i64>,
    pub(crate) submission: Submission,
}

/// Submits the requests of files that still wait.
pub(crate) async fn submit(
    cx: &mut TxContext,
    due: &[FtsFileRequest],
) -> Result<(), DatabaseError> {
    let mut waiting = Vec::new();
    let mut ledger = QuotaLedger::default();
    for one in due {
        if let Some(excess) = ledger.admit(cx, &one.submission).await? {
            // No attempt: it waits until others of the client have ended.
            let mut change = FtsFileChange::new(FtsFileEvent::Deferred);
            change.not_before = cx.now + QUOTA_RETRY_MS;
            change.reason = Some(excess.to_string());
            fts::change(cx, one.file, &change).await?;
            continue;
        }
        if fts::change(cx, one.file, &FtsFileChange::new(FtsFileEvent::Queued)).await? {
            waiting.push(one);
        }
    }
    let submissions: Vec<&Submission> = waiting.iter().map(|one| &one.submission).collect();
    let answers = submit::submit(cx, &submissions).await?;
    for (one, answer) in waiting.into_iter().zip(answers) {
        let reason = match answer {
            Submitted::New(stored) => {
                fts::set_request(cx, one.file, stored.id).await?;
                continue;
            }
            Submitted::Same(id) => {
                fts::set_request(cx, one.file, id).await?;
                continue;
            }
            Submitted::Other(id) => format!("request {id} has the key of this file"),
            Submitted::OverQuota(excess) => excess.to_string(),
            Submitted::Taken { by: Some(id), .. } => {
                format!("the destination is being written by request {id}")
            }
            Submitted::Taken { by: None, .. } => {
                "the destination is that of another file of the job".to_owned()
            }
        };
        let mut change = match one.retry_at {
            Some(at) => {
                FtsFileChange { not_before: at, ..FtsFileChange::new(FtsFileEvent::Deferred) }
            }
            None => FtsFileChange::new(FtsFileEvent::Failed),
        };
        change.reason = Some(reason);
        fts::change(cx, one.file, &change).await?;
    }
    cx.request_round();
    Ok(())
}

/// Returns the change of a file that follows from the state of its request; none if there is none.
pub(crate) fn change_of(news: &FtsRequestNews) -> Option<FtsFileChange> {
    let event = match news.state {
        Some(RequestState::Submitted | RequestState::Staged) => return None,
        Some(RequestState::Active) => FtsFileEvent::Started,
        Some(RequestState::Done) => FtsFileEvent::Succeeded,
        Some(RequestState::Cancelled) => FtsFileEvent::Cancelled,
        Some(RequestState::Failed | RequestState::Partial) | None => FtsFileEvent::Failed,
    };
    let mut change = FtsFileChange::new(event);
    match news.state {
        Some(RequestState::Done) => {
            (change.moved, change.size) = (news.bytes, news.bytes);
            if let (Some(expected), Some(found)) = (news.size, news.bytes)
                && expected != found
            {
                change.event = FtsFileEvent::Failed;
                let text = format!("source size mismatch: it has {found} bytes, not {expected}");
                change.reason = Some(text);
            }
        }
        Some(RequestState::Cancelled) => {
            change.reason = Some("the request of the file was cancelled".to_owned());
        }
        Some(RequestState::Failed | RequestState::Partial) => {
            let fault = news.fault.clone();
            let fault = fault.unwrap_or_else(|| "the request of the file failed".to_owned());
            change.reason = Some(reason_of(fault));
        }
        None => change.reason = Some("the request of the file was purged".to_owned()),
        _ => {}
    }
    Some(change)
}

/// Adds the words by which clients of FTS3 tell errors apart.
fn reason_of(fault: String) -> String {
    let lower = fault.to_ascii_lowercase();
    let is_any = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match () {
        () if is_any(&["no such file", "not found"]) => format!("No such file: {fault}"),
        () if is_any(&["digest"]) => format!("checksum mismatch: {fault}"),
        () if is_any(&["exists"]) => {
            format!("Destination file exists and overwrite is not enabled: {fault}")
        }
        () => fault,
    }
}

/// Ends the live files of a job, or those of them with these ids, and cancels their requests. Returns the number of
/// files.
pub(crate) async fn end_files(
    cx: &mut TxContext,
    job: i64,
    ids: Option<&[i64]>,
    ending: &FtsFileChange,
    audit: &Audit,
) -> Result<usize, DatabaseError> {
    let is_expiry = ending.event == FtsFileEvent::Failed;
    for live in fts::live_requests(cx, job).await? {
        let is_meant = ids.is_none_or(|ids| ids.contains(&live.id));
        if is_meant && !(is_expiry && live.state == FtsFileState::Active) {
            cancel::cancel(cx, live.request, audit.clone()).await?;
        }
    }
    fts::end_files(cx, job, ids, ending).await
}

/// Cancels the live files of a storage and their requests. Returns the uuids of their jobs.
pub(crate) async fn cancel_storage(
    cx: &mut TxContext,
    storage: &str,
    audit: &Audit,
) -> Result<Vec<String>, DatabaseError> {
    let mut jobs = Vec::new();
    for file in fts::live_of_storage(cx, storage).await? {
        if let Some(request) = file.request {
            cancel::cancel(cx, request, audit.clone()).await?;
        }
        let mut cancelled = FtsFileChange::new(FtsFileEvent::Cancelled);
        cancelled.reason = Some(format!("{storage} was banned"));
        fts::change(cx, file.id, &cancelled).await?;
        if !jobs.contains(&file.job) {
            jobs.push(file.job);
        }
    }
    let mut uuids = Vec::new();
    for job in jobs {
        uuids.push(fts::uuid(cx, job).await?);
    }
    Ok(uuids)
}

/// Sets the priority of a job, of its live files and of their requests.
pub(crate) async fn set_priority(
    cx: &mut TxContext,
    job: i64,
    priority: i64,
    audit: &Audit,
) -> Result<(), DatabaseError> {
    for live in fts::live_requests(cx, job).await? {
        let wanted = RequestChange { priority: Some(priority), ..RequestChange::default() };
        change::change(cx, live.request, &wanted, audit.clone()).await?;
    }
    fts::set_priority(cx, job, priority).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_states_become_file_events() {
        let news = |state| FtsRequestNews {
            id: 1,
            state,
            bytes: Some(7),
            size: Some(7),
            fault: Some("the digest differs".to_owned()),
        };
        for (state, event) in [
            (Some(RequestState::Active), FtsFileEvent::Started),
            (Some(RequestState::Done), FtsFileEvent::Succeeded),
            (Some(RequestState::Failed), FtsFileEvent::Failed),
            (Some(RequestState::Cancelled), FtsFileEvent::Cancelled),
            (None, FtsFileEvent::Failed),
        ] {
            assert_eq!(change_of(&news(state)).unwrap().event, event, "{state:?}");
        }
        assert!(change_of(&news(Some(RequestState::Staged))).is_none());
        let failed = change_of(&news(Some(RequestState::Failed))).unwrap();
        assert!(failed.reason.unwrap().starts_with("checksum mismatch"));
        let other = FtsRequestNews { size: Some(8), ..news(Some(RequestState::Done)) };
        assert_eq!(change_of(&other).unwrap().event, FtsFileEvent::Failed);
    }
}
