//! Outcomes of files and ends of runs, and the request states that follow from them.

use std::collections::HashMap;

use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::orders::{OrderFault, OrderId, RunSide};
use penstock_control::outcomes::{self, ListingEnd, PartTerms, RunEnd};
use penstock_control::request::RequestState;
use penstock_control::run_contents::RunPart;

use crate::repository::batches::{EndingBatch, NewBatch};
use crate::repository::files::FileUpdate;
use crate::repository::requests::{RequestDeltas, TallyRow};
use crate::repository::writer::TxContext;
use crate::repository::{DatabaseError, batches, files, requests, runs};

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

/// Stores the outcomes of files that are not settled. Returns the newly settled files, with true for success.
pub(crate) async fn store_file_outcomes(
    cx: &mut TxContext,
    reported: Vec<FileOutcome>,
    deltas: &mut RequestDeltas,
) -> Result<HashMap<(i64, i64), bool>, DatabaseError> {
    let mut settled = HashMap::new();
    if reported.is_empty() {
        return Ok(settled);
    }
    let keys = reported.iter().map(|one| (one.request, one.seq)).collect();
    let mut live: HashMap<(i64, i64), (Option<i64>, i64)> = files::unsettled(cx, keys)
        .await?
        .into_iter()
        .map(|file| ((file.request, file.seq), (file.size, file.attempt)))
        .collect();
    let mut updates = Vec::with_capacity(live.len());
    for one in reported {
        // Of two outcomes in one report the first counts.
        let Some(known) = live.remove(&(one.request, one.seq)) else { continue };
        let delta = deltas.entry(one.request).or_default();
        let kind = one.fault.as_ref().map(|fault| fault.kind);
        let file = outcomes::settle_file(known, one.bytes, kind, one.attempts, delta);
        if file.state.is_final() {
            settled.insert((one.request, one.seq), one.fault.is_none());
        }
        updates.push(FileUpdate {
            request: one.request,
            seq: one.seq,
            state: file.state,
            size: file.size,
            digest: one.digest,
            fault: one.fault.map(|fault| fault.text),
            attempt: file.attempt,
        });
    }
    files::store_outcomes(cx, updates).await?;
    Ok(settled)
}

/// Adds to the counts of requests, and updates their states.
pub(crate) async fn apply_deltas(
    cx: &mut TxContext,
    deltas: RequestDeltas,
) -> Result<(), DatabaseError> {
    let counts = requests::add_to_counts(cx, deltas).await?;
    update_states(cx, counts).await
}

/// Updates the state of one request.
pub(crate) async fn refresh_request_state(
    cx: &mut TxContext,
    id: i64,
) -> Result<(), DatabaseError> {
    let counts = requests::counts(cx, id).await?;
    update_states(cx, counts).await
}

/// Updates the states of requests, given their counts.
async fn update_states(cx: &mut TxContext, counts: Vec<TallyRow>) -> Result<(), DatabaseError> {
    let mut changed: Vec<(i64, RequestState)> = Vec::new();
    for row in counts {
        let (tally, TallyRow { id, state, class, .. }) = (row.tally(), row);
        let next = state.transition(tally.event()).unwrap_or_else(|| {
            let next = tally.state();
            tracing::error!("request {id} was {} and is {}: a bug", state.as_str(), next.as_str());
            next
        });
        if state == next {
            continue;
        }
        changed.push((id, next));
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
    requests::set_states(cx, changed).await
}

/// Ends a run: its unsettled files are requeued or fail.
pub(crate) async fn end_run(
    cx: &mut TxContext,
    run: i64,
    end: &RunEnd,
) -> Result<(), DatabaseError> {
    let parts = batches::run_parts(cx, run).await?;
    let why = end.reason().map(str::to_owned);
    let ended = runs::end(cx, run, why.clone()).await?;
    match ended.kind {
        BatchKind::List => end_listings(cx, run, &parts, end).await?,
        // If all files are settled there is nothing to look up.
        BatchKind::Copy if ended.settled_files >= ended.files => {}
        BatchKind::Copy => end_copies(cx, run, &parts, end).await?,
    }
    batches::delete_of_run(cx, run).await?;
    if let (Some(why), Some(part)) = (why, parts.first()) {
        let order = OrderId::of(run, RunSide::Source);
        cx.event(Some(part.request), None, "order_ended", format!("order {order}: {why}"));
    }
    cx.run_cache.remove(run);
    cx.request_round();
    Ok(())
}

/// Returns the batches of a run by id.
async fn ending_batches(
    cx: &mut TxContext,
    run: i64,
) -> Result<HashMap<i64, EndingBatch>, DatabaseError> {
    let found = batches::of_run(cx, run).await?;
    Ok(found.into_iter().map(|batch| (batch.id, batch)).collect())
}

/// Returns the terms under which the files of a part leave a run.
fn part_terms(batch: &EndingBatch, part: &RunPart, end: &RunEnd, seed: i64) -> PartTerms {
    PartTerms {
        is_cancelled: batch.cancel,
        is_paused: batch.paused,
        batch_attempt: end.attempts_after(batch.attempt),
        attempts_max: part.attempts,
        seed: seed as u64,
    }
}

/// Returns an empty batch of the same request as a batch of a run.
fn next_batch(batch: EndingBatch, kind: BatchKind, attempt: i64) -> NewBatch {
    NewBatch {
        root: Some(batch.root),
        request: batch.request,
        queue: batch.queue,
        kind,
        first: 0,
        last: -1,
        seqs: None,
        files: 0,
        bytes: 0,
        priority: batch.priority,
        deadline: batch.deadline,
        lane: batch.lane,
        attempt,
        state: BatchState::Queued,
        not_before: 0,
    }
}

async fn end_copies(
    cx: &mut TxContext,
    run: i64,
    parts: &[RunPart],
    end: &RunEnd,
) -> Result<(), DatabaseError> {
    let mut ending = ending_batches(cx, run).await?;
    let (mut changes, mut troubles, mut requeued) = (Vec::new(), Vec::new(), Vec::new());
    let mut deltas = RequestDeltas::new();
    for (at, unsettled) in files::unsettled_of_parts(cx, parts).await? {
        let part = &parts[at];
        let Some(batch) = ending.remove(&part.batch) else { continue };
        let terms = part_terms(&batch, part, end, run);
        let ended = outcomes::end_part(cx.now, end, terms, unsettled);
        deltas.entry(part.request).or_default().add(ended.delta);
        changes.extend(ended.files.into_iter().map(|file| (part.request, file)));
        troubles.extend(ended.trouble.map(|trouble| (part.request, trouble)));
        requeued.extend(ended.requeued.map(|files| NewBatch {
            first: files.first,
            last: files.last,
            seqs: files.seqs,
            files: files.files,
            bytes: files.bytes,
            state: files.state,
            not_before: files.not_before_ms,
            ..next_batch(batch, BatchKind::Copy, terms.batch_attempt)
        }));
    }
    files::store_changes(cx, changes).await?;
    requests::set_troubles(cx, troubles).await?;
    batches::insert(cx, requeued).await?;
    apply_deltas(cx, deltas).await
}

async fn end_listings(
    cx: &mut TxContext,
    run: i64,
    parts: &[RunPart],
    end: &RunEnd,
) -> Result<(), DatabaseError> {
    let mut ending = ending_batches(cx, run).await?;
    for part in parts {
        let Some(batch) = ending.remove(&part.batch) else { continue };
        if !requests::is_open(cx, part.request).await? && !batch.cancel {
            // The listing is complete.
            refresh_request_state(cx, part.request).await?;
            continue;
        }
        let terms = part_terms(&batch, part, end, part.batch);
        let trouble = match outcomes::end_listing(cx.now, end, terms) {
            ListingEnd::Retry { state, not_before_ms } => {
                let batch = next_batch(batch, BatchKind::List, terms.batch_attempt);
                let batch = NewBatch { state, not_before: not_before_ms, ..batch };
                batches::insert(cx, vec![batch]).await?;
                continue;
            }
            ListingEnd::Complete => None,
            ListingEnd::Broken(trouble) => Some(trouble),
        };
        requests::end_listing(cx, part.request, trouble).await?;
        refresh_request_state(cx, part.request).await?;
    }
    Ok(())
}
