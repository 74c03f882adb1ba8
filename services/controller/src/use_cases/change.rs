//! Changes of requests by clients: priority, deadline, pause and resumption.

use penstock_control::quota::QuotaExcess;
use penstock_control::request::RequestState;

use crate::repository::runs::RunSelection;
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, batches, requests, runs};

/// Result of a change of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeOutcome {
    Done,
    Missing,
    /// The request is in this final state.
    Over(String),
    /// The request has this number of files, not the given one.
    OffsetMismatch(i64),
    /// The request is sealed.
    Sealed,
    /// The client would exceed its quota.
    OverQuota(QuotaExcess),
    /// Another request is writing the destination of a file.
    Taken {
        /// Index of the file in the call.
        file: usize,
        /// Id of the other request, if it still exists.
        by: Option<i64>,
    },
}

/// Changes of a request; none leaves a value as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestChange {
    pub(crate) priority: Option<i64>,
    /// `Some(None)` removes the deadline.
    pub(crate) deadline: Option<Option<i64>>,
    pub(crate) paused: Option<bool>,
}

/// Returns the outcome of a change of a request that has ended; none if it has not.
pub(super) fn ended(state: RequestState) -> Option<ChangeOutcome> {
    state.is_final().then(|| ChangeOutcome::Over(state.as_str().to_owned()))
}

/// Changes priority or deadline, pauses or resumes.
pub(crate) async fn change(
    cx: &mut TxContext,
    id: i64,
    wanted: &RequestChange,
    audit: Audit,
) -> Result<ChangeOutcome, DatabaseError> {
    let Some(terms) = requests::terms(cx, id).await? else {
        return Ok(ChangeOutcome::Missing);
    };
    if let Some(ended) = ended(terms.state) {
        return Ok(ended);
    }
    if let Some(priority) = wanted.priority {
        requests::set_priority(cx, id, priority).await?;
        batches::set_priority(cx, id, priority).await?;
        runs::set_priority(cx, id, priority).await?;
    }
    if let Some(deadline) = wanted.deadline {
        requests::set_deadline(cx, id, deadline).await?;
        batches::set_deadline(cx, id, deadline).await?;
        runs::set_deadline(cx, id, deadline).await?;
    }
    if let Some(paused) = wanted.paused.filter(|paused| *paused != terms.paused) {
        requests::set_paused(cx, id, paused).await?;
        let (kind, text) = match paused {
            true => {
                // Also batches that wait for a retry. Running ones are withdrawn and resume from their partial files.
                batches::pause(cx, id).await?;
                let why = "a request in it was paused";
                runs::withdraw(cx, RunSelection::OfRequest(id), why).await?;
                ("paused", "it waits")
            }
            false => {
                batches::resume(cx, id).await?;
                ("resumed", "it continues")
            }
        };
        cx.event(Some(id), Some(&terms.class), kind, text);
    }
    if wanted.priority.is_some() || wanted.deadline.is_some() {
        cx.event(Some(id), Some(&terms.class), "changed", audit.detail.clone());
    }
    cx.audit(audit);
    cx.request_round();
    Ok(ChangeOutcome::Done)
}
