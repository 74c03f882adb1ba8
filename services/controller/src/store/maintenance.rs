//! Periodic maintenance: requeues due batches, finishes cancelled requests, reclaims work of lost hosts, purges expired
//! rows.

use penstock_operations::state::FileState;
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row};

use super::outcomes::{self, RequestDelta, RequestDeltas, RunEnd};
use super::rows::{self, SqlValue};
use super::writer::TxContext;
use super::{BatchState, RunState, StoreWriter, dispatch, submit};
use crate::config::Config;
use crate::shared::{ControllerState, alive_ms};

/// Most batches that become due, and most files that are cancelled, in one transaction.
const TX_FILES_MAX: i64 = 10_000;

/// Most files and requests that are purged in one transaction; small enough not to delay other changes.
const PURGE_ROWS_PER_TX_MAX: i64 = 4_000;

/// Retention of rounds, and of events without a request.
const EVENT_RETENTION_MS: i64 = 7 * 86_400_000;

/// Retention of the audit log.
const AUDIT_RETENTION_MS: i64 = 90 * 86_400_000;

/// Runs maintenance once with the present settings, and again soon if work is left.
pub(crate) async fn run_maintenance(shared: &ControllerState) -> Result<(), String> {
    let settings = shared.settings();
    let config = &settings.config;
    if run_once(&shared.writer, SilenceLimits::new(config), config.keep.as_millis() as i64).await? {
        shared.scheduler_notify.notify_one();
    }
    Ok(())
}

/// Ages of a host's last report, in milliseconds, at which its state changes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SilenceLimits {
    /// The host no longer counts as up.
    pub(crate) down_ms: i64,
    /// The host is lost: its orders are withdrawn.
    pub(crate) lost_ms: i64,
    /// The host is gone: its withdrawn orders are over.
    pub(crate) gone_ms: i64,
}

impl SilenceLimits {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            down_ms: alive_ms(config),
            lost_ms: config.lost_after.as_millis() as i64,
            gone_ms: config.gone_after.as_millis() as i64,
        }
    }
}

/// Runs maintenance in one transaction. Requests expire `old` milliseconds after their end. Returns true if work is left.
pub(crate) async fn run_once(
    writer: &StoreWriter,
    limits: SilenceLimits,
    old: i64,
) -> Result<bool, String> {
    let has_more = writer.apply(move |cx| {
        Box::pin(async move {
            requeue_due_batches(cx).await?;
            let more = finish_cancelled(cx, limits.gone_ms).await?;
            reclaim_from_lost_hosts(cx, limits).await?;
            Ok(more | purge_expired(cx, old).await?)
        })
    });
    has_more.await.map_err(|error| error.to_string())
}

/// Queues the batches whose retry is due.
async fn requeue_due_batches(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE batch SET state = 1 WHERE id IN
            (SELECT id FROM batch WHERE state = 0 AND not_before <= $1 ORDER BY not_before LIMIT {TX_FILES_MAX})
         RETURNING queue, files, bytes"
    );
    let rows = sqlx::query(AssertSqlSafe(text)).bind(cx.now).fetch_all(&mut cx.tx).await?;
    let mut counts = std::collections::HashMap::new();
    for row in rows {
        let count: &mut (i64, i64, i64) = counts.entry(row.get::<i64, _>(0)).or_default();
        *count = (count.0 + 1, count.1 + row.get::<i64, _>(1), count.2 + row.get::<i64, _>(2));
    }
    submit::count_queues(cx, counts).await
}

/// Most batches of one request that are cancelled in one transaction.
const TX_BATCHES_MAX: usize = 500;

/// Condition for batches of withdrawn orders both of whose hosts have been silent so long that the orders count as
/// over.
const GONE_BATCHES: &str = "state = 2 AND run IN (SELECT r.id FROM run r
        LEFT JOIN host f ON f.name = r.from_host LEFT JOIN host t ON t.name = r.to_host
        WHERE r.state < 2 AND r.state = 1 AND r.kind = 0 AND COALESCE(f.seen, 0) < $2 AND COALESCE(t.seen, 0) < $2)";

/// Most cancelled requests that are processed in one transaction.
const TX_CANCELLED_REQUESTS_MAX: i64 = 100;

/// Cancels the batches of cancelled requests. Returns true if work is left.
async fn finish_cancelled(cx: &mut TxContext, gone_ms: i64) -> Result<bool, sqlx::Error> {
    // Requests that only wait for their hosts are skipped, as they would starve the others.
    let text = format!(
        "SELECT id, open FROM request WHERE cancel = 1 AND ended IS NULL AND (open = 1 OR EXISTS (
            SELECT 1 FROM batch WHERE batch.request = request.id AND (state <> 2 OR {GONE_BATCHES}
                OR EXISTS (SELECT 1 FROM run n WHERE n.id = batch.run AND n.state = 0))))
         ORDER BY id LIMIT $1"
    );
    let since = cx.now - gone_ms;
    let query = sqlx::query(AssertSqlSafe(text)).bind(TX_CANCELLED_REQUESTS_MAX).bind(since);
    let mut left = TX_FILES_MAX;
    let mut more = false;
    for row in query.fetch_all(&mut cx.tx).await? {
        let request: i64 = row.get(0);
        let is_open = row.get::<i64, _>(1) > 0;
        more |= cancel_request(cx, request, is_open, since, &mut left).await?;
        if left <= 0 {
            return Ok(true);
        }
    }
    Ok(more)
}

async fn cancel_request(
    cx: &mut TxContext,
    request: i64,
    open: bool,
    since: i64,
    left: &mut i64,
) -> Result<bool, sqlx::Error> {
    // Withdraws orders with its files; other requests' files in them go into new orders.
    dispatch::withdraw(
        cx,
        "id IN (SELECT run FROM batch WHERE state = 2 AND request = $4)",
        SqlValue::Int(request),
        "a request in it was cancelled",
    )
    .await?;
    let mut delta = RequestDelta::default();
    let mut gone: Vec<i64> = Vec::new();
    let text = format!(
        "SELECT id, state, queue, first, last, seqs, files, bytes, run FROM batch
         WHERE request = $1 AND (state <> 2 OR {GONE_BATCHES}) ORDER BY id LIMIT {TX_BATCHES_MAX}"
    );
    let query = sqlx::query(AssertSqlSafe(text)).bind(request).bind(since);
    let waiting = query.fetch_all(&mut cx.tx).await?;
    let mut counts = std::collections::HashMap::new();
    let mut over: Vec<[SqlValue; 1]> = Vec::new();
    for row in &waiting {
        if *left <= 0 {
            break;
        }
        let files: i64 = row.get(6);
        if row.get::<i64, _>(1) == BatchState::Queued as i64 {
            let count: &mut (i64, i64, i64) = counts.entry(row.get::<i64, _>(2)).or_default();
            *count = (count.0 - 1, count.1 - files, count.2 - row.get::<i64, _>(7));
        }
        let cancelled = cancel_files(cx, request, row).await?;
        delta.cancelled += cancelled;
        if let Some(run) = row.get::<Option<i64>, _>(8) {
            delta.active -= cancelled;
            gone.push(run);
        }
        *left -= files.max(1);
        over.push([row.get::<i64, _>(0).into()]);
    }
    let more = over.len() < waiting.len() || waiting.len() == TX_BATCHES_MAX;
    let delete = "DELETE FROM batch WHERE id IN (SELECT i FROM v)";
    rows::query_values(&mut cx.tx, "i", over, delete).await?;
    submit::count_queues(cx, counts).await?;
    if open && !more {
        let text = "SELECT COUNT(*) FROM batch WHERE request = $1 AND state = 2 AND kind = 1";
        let listing: i64 = sqlx::query(text).bind(request).fetch_one(&mut cx.tx).await?.get(0);
        if listing == 0 {
            let close = "UPDATE request SET open = 0 WHERE id = $1";
            sqlx::query(close).bind(request).execute(&mut cx.tx).await?;
        }
    }
    outcomes::apply_deltas(cx, RequestDeltas::from([(request, delta)])).await?;
    for run in gone {
        cx.run_cache.remove(run);
        let text = "SELECT COUNT(*) FROM batch WHERE run = $1";
        let batches: i64 = sqlx::query(text).bind(run).fetch_one(&mut cx.tx).await?.get(0);
        if batches == 0 {
            let why = "its request is cancelled and both of its hosts are gone".to_owned();
            outcomes::end_run(cx, run, &RunEnd::Withdrawn(why)).await?;
        }
    }
    Ok(more)
}

/// Cancels the files of a batch, whose columns from 1 on are state, queue, first, last and seqs. Returns their count.
async fn cancel_files(
    cx: &mut TxContext,
    request: i64,
    batch: &AnyRow,
) -> Result<i64, sqlx::Error> {
    let now = cx.now;
    let cancelled = FileState::Cancelled as i64;
    let seqs: Option<Vec<i64>> =
        batch.get::<Option<String>, _>(5).and_then(|text| serde_json::from_str(&text).ok());
    let set = "UPDATE file SET state = $1, destination = NULL, changed = $2";
    let Some(seqs) = seqs else {
        let text = format!("{set} WHERE request = $3 AND seq >= $4 AND seq <= $5 AND state < 2");
        let query = sqlx::query(AssertSqlSafe(text)).bind(cancelled).bind(now).bind(request);
        let query = query.bind(batch.get::<i64, _>(3)).bind(batch.get::<i64, _>(4));
        return Ok(query.execute(&mut cx.tx).await?.rows_affected() as i64);
    };
    let seqs = seqs.into_iter().map(|seq| -> [SqlValue; 1] { [seq.into()] }).collect();
    let text = format!(
        "{set} FROM v WHERE file.request = $3 AND file.seq = v.q AND file.state < 2 RETURNING seq"
    );
    let changed =
        rows::query_values_with(&mut cx.tx, &[cancelled, now, request], "q", seqs, &text).await?;
    Ok(changed.len() as i64)
}

/// Withdraws orders of lost hosts, and requeues their work once the other host has stopped.
///
/// While both hosts of a transfer are silent its work stays with them, as they may still be transferring, unless an
/// operator declares both gone. A destination that has stopped accepts nothing of the order any more, so a withdrawn
/// order does not wait for a source that is down; a destination that is down may still be writing until it is lost.
async fn reclaim_from_lost_hosts(
    cx: &mut TxContext,
    limits: SilenceLimits,
) -> Result<(), sqlx::Error> {
    let since = cx.now - limits.lost_ms;
    let down_since = cx.now - limits.down_ms;
    let rows = sqlx::query(
        "SELECT r.id, r.state, r.kind, r.from_host, r.to_host, COALESCE(f.seen, 0), COALESCE(t.seen, 0), r.from_gone,
            r.to_gone, r.why, COALESCE(f.gone_at, 0), COALESCE(t.gone_at, 0)
         FROM run r LEFT JOIN host f ON f.name = r.from_host LEFT JOIN host t ON t.name = r.to_host
         WHERE r.state < 2 AND (COALESCE(f.seen, 0) < $1 OR COALESCE(t.seen, 0) < $1
            OR f.gone_at > f.seen OR t.gone_at > t.seen)",
    )
    .bind(down_since.max(since))
    .fetch_all(&mut cx.tx)
    .await?;
    for row in rows {
        let (id, state, kind): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let seen: [i64; 2] = [row.get(5), row.get(6)];
        // A report after the declaration revokes it.
        let over = [row.get::<i64, _>(10) > seen[0], row.get::<i64, _>(11) > seen[1]];
        let silent = [seen[0] < since || over[0], seen[1] < since || over[1]];
        let stopped = [row.get::<i64, _>(7) >= 2, row.get::<i64, _>(8) >= 2];
        let list = kind == super::BatchKind::List as i64;
        let lost = if silent[0] { 0 } else { 1 };
        let host: String = row.get(3 + lost);
        let why = match over[lost] {
            true => format!("{host} is gone"),
            false => format!("{host} has not reported for {} s", limits.lost_ms / 1000),
        };
        if list {
            if silent[0] {
                outcomes::end_run(cx, id, &RunEnd::Withdrawn(why)).await?;
            }
            continue;
        }
        let withdrawn = state == RunState::Revoking as i64;
        if withdrawn && stopped[1] && seen[0] < down_since {
            let why: Option<String> = row.get(9);
            outcomes::end_run(cx, id, &RunEnd::Withdrawn(why.unwrap_or_default())).await?;
            continue;
        }
        if !silent[0] && !silent[1] {
            continue;
        }
        if silent[0] && silent[1] {
            if over[0] && over[1] {
                outcomes::end_run(cx, id, &RunEnd::Withdrawn(why)).await?;
            }
            continue;
        }
        if state == RunState::Active as i64 {
            dispatch::withdraw(cx, "id = $4", SqlValue::Int(id), &why).await?;
            cx.event(None, None, "host_lost", why);
        } else if (stopped[0] || silent[0]) && (stopped[1] || silent[1]) {
            let why: Option<String> = row.get(9);
            outcomes::end_run(cx, id, &RunEnd::Withdrawn(why.unwrap_or_default())).await?;
        }
    }
    Ok(())
}

/// Purges expired rows. Returns true if work is left.
async fn purge_expired(cx: &mut TxContext, keep_ms: i64) -> Result<bool, sqlx::Error> {
    let before = cx.now - keep_ms;
    let text = format!(
        "SELECT id, files FROM request WHERE ended < $1 ORDER BY ended LIMIT {PURGE_ROWS_PER_TX_MAX}"
    );
    let old = sqlx::query(AssertSqlSafe(text)).bind(before).fetch_all(&mut cx.tx).await?;
    let mut left = PURGE_ROWS_PER_TX_MAX;
    let mut over: Vec<[SqlValue; 1]> = Vec::new();
    for row in &old {
        let (request, files): (i64, i64) = (row.get(0), row.get(1));
        if files > left {
            // A large request is removed in pieces; its last piece together with the following requests.
            let text = "DELETE FROM file WHERE request = $1 AND seq IN (SELECT seq FROM file WHERE request = $1 ORDER BY seq LIMIT $2)";
            let query = sqlx::query(text).bind(request).bind(left);
            if query.execute(&mut cx.tx).await?.rows_affected() as i64 == left {
                left = 0;
                break;
            }
        }
        left -= files.max(1);
        over.push([request.into()]);
        if left <= 0 {
            break;
        }
    }
    for text in [
        "DELETE FROM file WHERE request IN (SELECT i FROM v)",
        "DELETE FROM event WHERE request IN (SELECT i FROM v)",
        "DELETE FROM request WHERE id IN (SELECT i FROM v)",
    ] {
        rows::query_values(&mut cx.tx, "i", over.clone(), text).await?;
    }
    for (text, before) in [
        (
            "DELETE FROM run WHERE ended < $1 AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.run = run.id)",
            before,
        ),
        ("DELETE FROM event WHERE at < $1 AND request IS NULL", cx.now - EVENT_RETENTION_MS),
        // The oldest rows have the smallest ids.
        (
            "DELETE FROM round WHERE at < $1 AND id IN (SELECT id FROM round ORDER BY id LIMIT 1000)",
            cx.now - EVENT_RETENTION_MS,
        ),
        (
            "DELETE FROM audit WHERE at < $1 AND id IN (SELECT id FROM audit ORDER BY id LIMIT 1000)",
            cx.now - AUDIT_RETENTION_MS,
        ),
    ] {
        sqlx::query(text).bind(before).execute(&mut cx.tx).await?;
    }
    Ok(left <= 0)
}
