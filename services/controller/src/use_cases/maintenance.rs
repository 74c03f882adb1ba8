//! Periodic maintenance: requeues due batches, finishes cancelled requests, reclaims work of lost hosts, purges expired
//! rows.

use std::time::Duration;

use penstock_control::lost_hosts::{LostHostAction, SilenceLimits};
use penstock_control::outcomes::RunEnd;
use penstock_control::retention::{self, PURGE_ROWS_PER_TX_MAX, PurgeBudget, PurgeStep};

use super::{cancel, outcomes};
use crate::repository::runs::RunSelection;
use crate::repository::writer::TxContext;
use crate::repository::{
    DatabaseError, StoreWriter, WriteError, audit, batches, events, files, fts, requests, rounds,
    runs,
};
use crate::shared::ControllerState;

/// Most batches that become due in one transaction.
const DUE_BATCHES_PER_TX_MAX: i64 = 10_000;

/// Runs maintenance once with the present settings, and again soon if work is left.
pub(crate) async fn run_maintenance(shared: &ControllerState) -> Result<(), WriteError> {
    let settings = shared.settings();
    let config = &settings.config;
    if run_once(&shared.writer, config.silence_limits(), config.keep).await? {
        shared.scheduler_notify.notify_one();
    }
    Ok(())
}

/// Runs maintenance in one transaction. Requests expire `keep` after their end. Returns true if work is left.
pub(crate) async fn run_once(
    writer: &StoreWriter,
    limits: SilenceLimits,
    keep: Duration,
) -> Result<bool, WriteError> {
    let has_more = writer.apply(move |cx| {
        Box::pin(async move {
            let limits = SilenceLimits { listening_since_ms: cx.started_ms, ..limits };
            batches::requeue_due(cx, DUE_BATCHES_PER_TX_MAX).await?;
            let more = cancel::finish_cancelled(cx, limits).await?;
            reclaim_from_lost_hosts(cx, limits).await?;
            Ok(more | purge_expired(cx, keep).await?)
        })
    });
    has_more.await
}

/// Withdraws orders of lost hosts, and requeues their work once the other host has stopped.
async fn reclaim_from_lost_hosts(
    cx: &mut TxContext,
    limits: SilenceLimits,
) -> Result<(), DatabaseError> {
    let since = cx.now - limits.down_ms.min(limits.lost_ms);
    for suspect in runs::suspects(cx, since).await? {
        match suspect.run.decide(cx.now, limits) {
            LostHostAction::Keep => {}
            LostHostAction::Withdraw(why) => {
                runs::withdraw(cx, RunSelection::Id(suspect.id), &why).await?;
                cx.event(None, None, "host_lost", why);
            }
            LostHostAction::End(why) => {
                let why = why.or(suspect.end_reason).unwrap_or_default();
                outcomes::end_run(cx, suspect.id, &RunEnd::Withdrawn(why)).await?;
            }
        }
    }
    Ok(())
}

/// Purges expired rows. Returns true if work is left.
async fn purge_expired(cx: &mut TxContext, keep: Duration) -> Result<bool, DatabaseError> {
    let before = retention::expiry_ms(cx.now, keep);
    let mut budget = PurgeBudget::default();
    let mut expired: Vec<i64> = Vec::new();
    for request in requests::ended_before(cx, before, PURGE_ROWS_PER_TX_MAX).await? {
        match budget.next(request.files) {
            PurgeStep::Whole => expired.push(request.id),
            PurgeStep::Piece(files) => {
                let deleted = files::delete_first(cx, request.id, files).await?;
                if !budget.piece_deleted(deleted) {
                    break;
                }
                expired.push(request.id);
            }
            PurgeStep::Stop => break,
        }
    }
    requests::purge(cx, &expired).await?;
    runs::purge(cx, before).await?;
    let has_more_jobs = fts::purge(cx, before).await?;
    events::purge_of_network(cx).await?;
    rounds::purge(cx).await?;
    audit::purge(cx).await?;
    Ok(has_more_jobs || budget.is_spent())
}
