//! Outcomes of files and runs, and the request states that follow from them.

use std::collections::{BTreeMap, HashMap};

use penstock_operations::orders::{FaultKind, OrderFault, OrderId, RunSide};
use penstock_operations::retry;
use penstock_operations::state::{FileState, RequestState, RequestTally};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::report::RunPart;
use super::rows::{self, SqlValue};
use super::submit::{self, NewBatch};
use super::writer::TxContext;
use super::{BatchKind, BatchState, RunState, state_number};

/// Outcome of a file in an order.
#[derive(Debug, Clone)]
pub(crate) struct FileOutcome {
    pub(crate) request: i64,
    pub(crate) seq: i64,
    pub(crate) bytes: Option<i64>,
    pub(crate) digest: Option<String>,
    /// Reason of failure; none on success.
    pub(crate) fault: Option<OrderFault>,
    /// Most attempts, from the request's policy.
    pub(crate) attempts: u32,
}

/// Changes of a request's counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestDelta {
    pub(crate) files: i64,
    pub(crate) active: i64,
    pub(crate) done: i64,
    pub(crate) failed: i64,
    pub(crate) cancelled: i64,
    pub(crate) bytes: i64,
    pub(crate) bytes_done: i64,
    pub(crate) sized: i64,
}

pub(crate) type RequestDeltas = BTreeMap<i64, RequestDelta>;

/// Stores the outcomes of files that are not settled. Returns the newly settled files, with true for success.
pub(crate) async fn store_file_outcomes(
    cx: &mut TxContext,
    outcomes: Vec<FileOutcome>,
    deltas: &mut RequestDeltas,
) -> Result<HashMap<(i64, i64), bool>, sqlx::Error> {
    let mut settled = HashMap::new();
    if outcomes.is_empty() {
        return Ok(settled);
    }
    let keys = outcomes.iter().map(|one| -> [SqlValue; 2] { [one.request.into(), one.seq.into()] });
    let found = rows::query_values(
        &mut cx.tx,
        "r, q",
        keys.collect(),
        "SELECT f.request, f.seq, f.size, f.attempt FROM v JOIN file f ON f.request = v.r AND f.seq = v.q
         WHERE f.state < 2",
    )
    .await?;
    let mut live: HashMap<(i64, i64), (Option<i64>, i64)> = found
        .iter()
        .map(|row| ((row.get(0), row.get(1)), (row.get::<Option<i64>, _>(2), row.get(3))))
        .collect();
    let mut changed: Vec<[SqlValue; 7]> = Vec::with_capacity(live.len());
    for one in outcomes {
        // Of two outcomes in one report the first counts.
        let Some((size, attempt)) = live.remove(&(one.request, one.seq)) else { continue };
        let attempt = attempt + 1;
        let delta = deltas.entry(one.request).or_default();
        let known = one.bytes.filter(|_| one.fault.is_none()).or(size);
        let state = match &one.fault {
            None => {
                delta.done += 1;
                delta.bytes_done += known.unwrap_or(0);
                FileState::Done
            }
            // It stays part of its order until that ends.
            Some(fault) if retry::is_retryable(fault.kind, attempt as u32, one.attempts) => {
                FileState::Queued
            }
            Some(_) => {
                delta.failed += 1;
                FileState::Failed
            }
        };
        if state.is_final() {
            delta.active -= 1;
            settled.insert((one.request, one.seq), state == FileState::Done);
        }
        if known != size {
            delta.bytes += known.unwrap_or(0) - size.unwrap_or(0);
            delta.sized += i64::from(size.is_none());
        }
        changed.push([
            one.request.into(),
            one.seq.into(),
            (state as i64).into(),
            known.into(),
            one.digest.into(),
            one.fault.map(|fault| fault.text).into(),
            attempt.into(),
        ]);
    }
    let now = cx.now;
    rows::query_values_with(
        &mut cx.tx,
        &[now],
        "r, q, s, z, d, f, a",
        changed,
        // Settled files release their destination.
        "UPDATE file SET state = v.s, size = v.z, digest = COALESCE(v.d, file.digest), fault = v.f, attempt = v.a,
            destination = CASE WHEN v.s < 2 THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q",
    )
    .await?;
    Ok(settled)
}

/// Reads a request's counts from the columns [`TALLY_COLUMNS`] at `at`.
pub(crate) fn tally(row: &AnyRow, at: usize) -> RequestTally {
    let count = |column: usize| row.get::<i64, _>(at + column).max(0) as u64;
    RequestTally {
        files: count(0),
        active: count(1),
        done: count(2),
        failed: count(3),
        cancelled: count(4),
        open: count(5) > 0,
        cancel: count(6) > 0,
        broken: count(7) > 0,
    }
}

/// Columns that [`tally`] reads.
pub(crate) const TALLY_COLUMNS: &str =
    "files, active, done, failed, cancelled, open, cancel, broken";

/// Adds to the counts of requests, and updates their states.
pub(crate) async fn apply_deltas(
    cx: &mut TxContext,
    deltas: RequestDeltas,
) -> Result<(), sqlx::Error> {
    let rows: Vec<[SqlValue; 9]> = deltas
        .into_iter()
        .map(|(id, delta)| {
            [
                id.into(),
                delta.files.into(),
                delta.active.into(),
                delta.done.into(),
                delta.failed.into(),
                delta.cancelled.into(),
                delta.bytes.into(),
                delta.bytes_done.into(),
                delta.sized.into(),
            ]
        })
        .collect();
    let now = cx.now;
    let found = rows::query_values_with(
        &mut cx.tx,
        &[now],
        "i, n, a, d, f, c, b, e, z",
        rows,
        &format!(
            "UPDATE request SET files = files + v.n, active = active + v.a, done = done + v.d, failed = failed + v.f,
                cancelled = cancelled + v.c, bytes = bytes + v.b, bytes_done = bytes_done + v.e, sized = sized + v.z,
                changed = $1 FROM v WHERE request.id = v.i RETURNING id, state, class, {TALLY_COLUMNS}"
        ),
    )
    .await?;
    recompute_request_states(cx, found).await
}

/// Updates the state of one request.
pub(crate) async fn refresh_request_state(cx: &mut TxContext, id: i64) -> Result<(), sqlx::Error> {
    let text = "SELECT id, state, class, files, active, done, failed, cancelled, open, cancel, broken FROM request WHERE id = $1";
    let found = sqlx::query(text).bind(id).fetch_all(&mut cx.tx).await?;
    recompute_request_states(cx, found).await
}

/// Updates the states of requests, given their id, state, class and [`TALLY_COLUMNS`].
async fn recompute_request_states(
    cx: &mut TxContext,
    found: Vec<AnyRow>,
) -> Result<(), sqlx::Error> {
    let mut changed: Vec<[SqlValue; 3]> = Vec::new();
    for row in found {
        let (id, old, class): (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
        let tally = tally(&row, 3);
        let next = tally.state();
        let before = RequestState::ALL.get(old as usize).copied();
        // A request that has begun stays active while all its files wait for a retry.
        let waits_again = before == Some(RequestState::Active) && !next.is_final();
        if before == Some(next) || waits_again {
            continue;
        }
        if let Some(before) = before.filter(|before| !before.may_become(next)) {
            tracing::error!("request {id} was {} and is {}: a bug", before.as_str(), next.as_str());
        }
        let ended = next.is_final().then_some(cx.now);
        changed.push([id.into(), state_number(next).into(), ended.into()]);
        let text = match next.is_final() {
            true => format!(
                "{} of {} files are in place, {} failed, {} were cancelled",
                tally.done, tally.files, tally.failed, tally.cancelled
            ),
            false => format!("{} files", tally.files),
        };
        cx.event(Some(id), Some(&class), next.as_str(), text);
        cx.request_round();
    }
    rows::query_values(
        &mut cx.tx,
        "i, s, e",
        changed,
        "UPDATE request SET state = v.s, ended = v.e FROM v WHERE request.id = v.i",
    )
    .await?;
    Ok(())
}

/// Reason why a run ended.
#[derive(Debug, Clone)]
pub(crate) enum RunEnd {
    /// The node reported its end: all files have outcomes, or the fault says why not.
    Reported(Option<OrderFault>),
    /// The controller withdrew it, for this reason.
    Withdrawn(String),
}

/// Batch in which the unsettled files of a run's part are requeued, and the state of their request.
struct BatchTemplate {
    batch: NewBatch,
    cancelled: bool,
    paused: bool,
}

/// Database changes that the end of a run causes.
#[derive(Default)]
struct RunEndChanges {
    files: Vec<[SqlValue; 5]>,
    troubles: Vec<[SqlValue; 2]>,
    batches: Vec<NewBatch>,
    deltas: RequestDeltas,
}

/// A file of a run without a final outcome.
struct UnsettledFile {
    seq: i64,
    size: Option<i64>,
    attempt: i64,
    fault: Option<String>,
}

/// Ends a run: its unsettled files are requeued or fail.
pub(crate) async fn end_run(cx: &mut TxContext, run: i64, end: &RunEnd) -> Result<(), sqlx::Error> {
    let parts = super::report::run_parts(cx, run).await?;
    let why = match end {
        RunEnd::Reported(None) => None,
        RunEnd::Reported(Some(fault)) => Some(fault.text.clone()),
        RunEnd::Withdrawn(why) => Some(why.clone()),
    };
    let row = sqlx::query(
        "UPDATE run SET state = $1, ended = $2, why = COALESCE($3, why), measured_bps = 0 WHERE id = $4
         RETURNING kind, files, settled_files",
    )
    .bind(RunState::Ended as i64)
    .bind(cx.now)
    .bind(why.clone())
    .bind(run)
    .fetch_one(&mut cx.tx)
    .await?;
    let (kind, files, settled): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    // If all files are settled there is nothing to look up.
    if kind == BatchKind::List as i64 || settled < files {
        end_parts(cx, run, &parts, kind, end).await?;
    }
    let over = "DELETE FROM batch WHERE run = $1";
    sqlx::query(over).bind(run).execute(&mut cx.tx).await?;
    if let (Some(why), Some(part)) = (why, parts.first()) {
        let order = OrderId::of(run, RunSide::Source);
        cx.event(Some(part.request), None, "order_ended", format!("order {order}: {why}"));
    }
    cx.run_cache.remove(run);
    cx.request_round();
    Ok(())
}

async fn end_parts(
    cx: &mut TxContext,
    run: i64,
    parts: &[RunPart],
    kind: i64,
    end: &RunEnd,
) -> Result<(), sqlx::Error> {
    let mut templates = batch_templates(cx, run, end).await?;
    if kind == BatchKind::List as i64 {
        for part in parts {
            let Some(base) = templates.remove(&part.batch) else { continue };
            let batch = NewBatch { kind: BatchKind::List, ..base.batch };
            end_listing(cx, part, end, batch, (base.cancelled, base.paused)).await?;
        }
        return Ok(());
    }
    let mut changes = RunEndChanges::default();
    for (at, rest) in unsettled_files(cx, parts).await? {
        let part = &parts[at];
        if let Some(base) = templates.remove(&part.batch) {
            changes.part(cx.now, run, part, base, rest, end);
        }
    }
    rows::query_values_with(
        &mut cx.tx,
        &[cx.now],
        "r, q, s, a, f",
        changes.files,
        "UPDATE file SET state = v.s, attempt = v.a, fault = v.f,
            destination = CASE WHEN v.s < 2 THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q AND file.state < 2",
    )
    .await?;
    let set = "UPDATE request SET trouble = v.t FROM v WHERE request.id = v.i";
    rows::query_values(&mut cx.tx, "i, t", changes.troubles, set).await?;
    submit::add_batches(cx, changes.batches).await?;
    apply_deltas(cx, changes.deltas).await
}

/// Returns the templates of a run's batches by batch id.
async fn batch_templates(
    cx: &mut TxContext,
    run: i64,
    end: &RunEnd,
) -> Result<HashMap<i64, BatchTemplate>, sqlx::Error> {
    let found = sqlx::query(
        "SELECT b.id, b.request, b.queue, b.priority, b.deadline, b.lane, b.attempt, b.root, r.cancel, r.paused
         FROM batch b JOIN request r ON r.id = b.request WHERE b.run = $1",
    )
    .bind(run)
    .fetch_all(&mut cx.tx)
    .await?;
    let base = |row: &AnyRow| BatchTemplate {
        cancelled: row.get::<i64, _>(8) > 0,
        paused: row.get::<i64, _>(9) > 0,
        batch: NewBatch {
            root: Some(row.get(7)),
            request: row.get(1),
            queue: row.get(2),
            kind: BatchKind::Copy,
            first: 0,
            last: -1,
            seqs: None,
            files: 0,
            bytes: 0,
            priority: row.get(3),
            deadline: row.get(4),
            lane: row.get(5),
            attempt: row.get::<i64, _>(6) + i64::from(matches!(end, RunEnd::Reported(_))),
            state: BatchState::Queued,
            not_before: 0,
        },
    };
    Ok(found.iter().map(|row| (row.get(0), base(row))).collect())
}

/// Returns the unsettled files of a run by the index of their part.
async fn unsettled_files(
    cx: &mut TxContext,
    parts: &[RunPart],
) -> Result<BTreeMap<usize, Vec<UnsettledFile>>, sqlx::Error> {
    let spans = parts.iter().enumerate().map(|(at, part)| -> [SqlValue; 4] {
        [(at as i64).into(), part.request.into(), part.first.into(), part.last.into()]
    });
    let found = rows::query_values(
        &mut cx.tx,
        "n, r, a, z",
        spans.collect(),
        "SELECT v.n, f.seq, f.size, f.attempt, f.fault FROM v
         JOIN file f ON f.request = v.r AND f.seq >= v.a AND f.seq <= v.z
         WHERE f.state < 2 ORDER BY v.n, f.seq",
    )
    .await?;
    let mut rest: BTreeMap<usize, Vec<UnsettledFile>> = BTreeMap::new();
    for row in found {
        let (at, seq) = (row.get::<i64, _>(0) as usize, row.get(1));
        let seqs = parts.get(at).and_then(|part| part.seqs.as_ref());
        if seqs.is_none_or(|seqs| seqs.binary_search(&seq).is_ok()) {
            let file =
                UnsettledFile { seq, size: row.get(2), attempt: row.get(3), fault: row.get(4) };
            rest.entry(at).or_default().push(file);
        }
    }
    Ok(rest)
}

impl RunEndChanges {
    /// Ends one part of a run, given its unsettled files.
    fn part(
        &mut self,
        now: i64,
        run: i64,
        part: &RunPart,
        base: BatchTemplate,
        rest: Vec<UnsettledFile>,
        end: &RunEnd,
    ) {
        let BatchTemplate { batch, cancelled, paused } = base;
        let delta = self.deltas.entry(part.request).or_default();
        delta.active -= rest.len() as i64;
        let mut again: Vec<(i64, Option<i64>, i64)> = Vec::new();
        let mut trouble = None;
        for file in rest {
            let (fault, attempt) = match end {
                _ if cancelled => (None, file.attempt),
                RunEnd::Withdrawn(_) => (None, file.attempt),
                // It had an outcome in this order, and may be retried.
                RunEnd::Reported(None) if file.attempt >= batch.attempt => (None, file.attempt),
                RunEnd::Reported(fault) => {
                    let fault = fault.clone().unwrap_or_else(|| OrderFault {
                        kind: FaultKind::Transient,
                        text: "the order ended without an outcome of this file".to_owned(),
                    });
                    (Some(fault), file.attempt + 1)
                }
            };
            let state = match &fault {
                _ if cancelled => FileState::Cancelled,
                Some(fault) if !retry::is_retryable(fault.kind, attempt as u32, part.attempts) => {
                    FileState::Failed
                }
                _ => FileState::Queued,
            };
            match state {
                FileState::Cancelled => delta.cancelled += 1,
                FileState::Failed => delta.failed += 1,
                _ => again.push((file.seq, file.size, attempt)),
            }
            let is_changed = state != FileState::Queued || fault.is_some();
            let text = fault.map(|fault| fault.text).or(file.fault);
            trouble = trouble.or_else(|| text.clone());
            if is_changed {
                self.files.push([
                    part.request.into(),
                    file.seq.into(),
                    (state as i64).into(),
                    attempt.into(),
                    text.into(),
                ]);
            }
        }
        if let Some(trouble) = trouble {
            self.troubles.push([part.request.into(), trouble.into()]);
        }
        let (Some(first), Some(last)) = (again.first(), again.last()) else { return };
        let (first, last) = (first.0, last.0);
        let tried = again.iter().map(|(_, _, attempt)| *attempt).max().unwrap_or(0);
        let waits = matches!(end, RunEnd::Reported(_)) && tried > 0;
        let wait = retry::backoff_delay(tried as u32, run as u64).as_millis() as i64;
        let files = again.len() as i64;
        self.batches.push(NewBatch {
            first,
            last,
            files,
            bytes: again.iter().filter_map(|(_, size, _)| *size).sum(),
            seqs: (files <= last - first).then(|| again.into_iter().map(|(seq, ..)| seq).collect()),
            state: match (paused, waits) {
                (true, _) => BatchState::Paused,
                (false, true) => BatchState::Waiting,
                (false, false) => BatchState::Queued,
            },
            not_before: if waits { now + wait } else { 0 },
            ..batch
        });
    }
}

async fn end_listing(
    cx: &mut TxContext,
    part: &RunPart,
    end: &RunEnd,
    base: NewBatch,
    (cancelled, paused): (bool, bool),
) -> Result<(), sqlx::Error> {
    let text = "SELECT open FROM request WHERE id = $1";
    let open: i64 = sqlx::query(text).bind(part.request).fetch_one(&mut cx.tx).await?.get(0);
    if open == 0 && !cancelled {
        // The listing is complete.
        return refresh_request_state(cx, part.request).await;
    }
    let again = match end {
        _ if cancelled => None,
        RunEnd::Withdrawn(_) => Some(0),
        RunEnd::Reported(None) => None,
        RunEnd::Reported(Some(fault)) => {
            let attempt = base.attempt as u32;
            retry::is_retryable(fault.kind, attempt, part.attempts)
                .then(|| retry::backoff_delay(attempt, part.batch as u64).as_millis() as i64)
        }
    };
    if let Some(wait) = again {
        let state = match paused {
            true => BatchState::Paused,
            false if wait > 0 => BatchState::Waiting,
            false => BatchState::Queued,
        };
        let not_before = if wait > 0 { cx.now + wait } else { 0 };
        return submit::add_batches(cx, vec![NewBatch { state, not_before, ..base }]).await;
    }
    let trouble = match end {
        RunEnd::Reported(Some(fault)) if !cancelled => {
            Some(format!("the directory cannot be listed: {}", fault.text))
        }
        _ => None,
    };
    sqlx::query("UPDATE request SET open = 0, broken = $1, trouble = COALESCE($2, trouble), changed = $3 WHERE id = $4")
        .bind(i64::from(trouble.is_some()))
        .bind(trouble)
        .bind(cx.now)
        .bind(part.request)
        .execute(&mut cx.tx)
        .await?;
    refresh_request_state(cx, part.request).await
}
