//! Cancellation of requests.
//!
//! A client's call only marks a request. Maintenance withdraws its orders, and cancels its files in transactions of
//! bounded size.

use penstock_control::cancellation::{self, CancellableBatch, FILES_PER_TX_MAX};
use penstock_control::lost_hosts::SilenceLimits;
use penstock_control::outcomes::RunEnd;
use penstock_control::request::RequestDelta;
use penstock_control::run_contents::FileSpan;

use super::change::{ChangeOutcome, ended};
use super::outcomes;
use crate::repository::batches::CancelledBatch;
use crate::repository::requests::{CancelledRequest, RequestDeltas};
use crate::repository::runs::RunSelection;
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, batches, files, requests, runs};

/// Marks a request as cancelled.
pub(crate) async fn cancel(
    cx: &mut TxContext,
    id: i64,
    audit: Audit,
) -> Result<ChangeOutcome, DatabaseError> {
    let Some(terms) = requests::terms(cx, id).await? else {
        return Ok(ChangeOutcome::Missing);
    };
    if let Some(ended) = ended(terms.state) {
        return Ok(ended);
    }
    if requests::set_cancelled(cx, id).await? {
        cx.event(Some(id), Some(&terms.class), "cancelling", format!("by {}", audit.who));
        cx.audit(audit);
    }
    outcomes::refresh_request_state(cx, id).await?;
    cx.request_round();
    Ok(ChangeOutcome::Done)
}

/// Cancels the batches of cancelled requests. Returns true if work is left.
pub(crate) async fn finish_cancelled(
    cx: &mut TxContext,
    limits: SilenceLimits,
) -> Result<bool, DatabaseError> {
    // No host is gone, but by declaration, before the controller has listened for long enough.
    let since = limits.gone_before_ms(cx.now).unwrap_or(i64::MIN);
    let mut files_left = FILES_PER_TX_MAX;
    let mut has_more = false;
    for request in requests::cancelled(cx, since).await? {
        has_more |= cancel_batches(cx, &request, since, &mut files_left).await?;
        if files_left <= 0 {
            return Ok(true);
        }
    }
    Ok(has_more)
}

fn cancellable(batch: &CancelledBatch) -> CancellableBatch {
    CancellableBatch {
        state: batch.state,
        queue: batch.queue,
        files: batch.files,
        bytes: batch.bytes,
        run: batch.run,
    }
}

/// Cancels the first batches of a request. Returns true if it has more.
async fn cancel_batches(
    cx: &mut TxContext,
    request: &CancelledRequest,
    since: i64,
    files_left: &mut i64,
) -> Result<bool, DatabaseError> {
    let id = request.id;
    // Withdraws orders with its files; other requests' files in them go into new orders.
    let why = "a request in it was cancelled";
    runs::withdraw(cx, RunSelection::OfRequest(id), why).await?;
    let found = batches::cancellable(cx, id, since).await?;
    let all: Vec<CancellableBatch> = found.iter().map(cancellable).collect();
    let plan = cancellation::plan(&all, files_left);
    let mut delta = RequestDelta::default();
    for (row, batch) in found.iter().zip(&all).take(plan.batches) {
        let span = FileSpan { first: row.first, last: row.last, seqs: row.seqs.0.clone() };
        let files = files::cancel(cx, id, &span).await?;
        delta.add(cancellation::cancelled_files(batch, files));
    }
    let cancelled: Vec<i64> = found.iter().take(plan.batches).map(|batch| batch.id).collect();
    batches::delete(cx, &cancelled).await?;
    batches::count_queues(cx, plan.queues).await?;
    if request.open && !plan.has_more && batches::running_listings(cx, id).await? == 0 {
        requests::seal(cx, id).await?;
    }
    outcomes::apply_deltas(cx, RequestDeltas::from([(id, delta)])).await?;
    for run in plan.runs {
        cx.run_cache.remove(run);
        if batches::count_of_run(cx, run).await? == 0 {
            let why = "its request is cancelled and both of its hosts are gone".to_owned();
            outcomes::end_run(cx, run, &RunEnd::Withdrawn(why)).await?;
        }
    }
    Ok(plan.has_more)
}
