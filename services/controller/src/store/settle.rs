//! What becomes of files, of the requests that they belong to, and of runs that end.

use std::collections::{BTreeMap, HashMap};

use penstock_operations::orders::{FaultKind, OrderFault};
use penstock_operations::retry;
use penstock_operations::state::{FileState, RequestState, RequestTally};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::report::Part;
use super::rows::{self, Value};
use super::submit::{self, NewBatch};
use super::writer::Context;
use super::{BatchKind, BatchState, RunState, state_number};

/// What happened to a file in an order.
#[derive(Debug, Clone)]
pub(crate) struct Happened {
    pub(crate) request: i64,
    pub(crate) seq: i64,
    pub(crate) bytes: Option<i64>,
    pub(crate) digest: Option<String>,
    /// None where it is in place.
    pub(crate) fault: Option<OrderFault>,
    /// How often it may be tried.
    pub(crate) attempts: u32,
}

/// How the counts of a request change.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delta {
    pub(crate) files: i64,
    pub(crate) active: i64,
    pub(crate) done: i64,
    pub(crate) failed: i64,
    pub(crate) cancelled: i64,
    pub(crate) bytes: i64,
    pub(crate) bytes_done: i64,
    pub(crate) sized: i64,
}

pub(crate) type Deltas = BTreeMap<i64, Delta>;

/// Writes down what happened to files that are not settled yet; gives how many were settled, and their bytes.
pub(crate) async fn files(
    cx: &mut Context,
    happened: Vec<Happened>,
    deltas: &mut Deltas,
) -> Result<HashMap<(i64, i64), bool>, sqlx::Error> {
    let mut settled = HashMap::new();
    if happened.is_empty() {
        return Ok(settled);
    }
    let keys = happened.iter().map(|one| -> [Value; 2] { [one.request.into(), one.seq.into()] });
    let found = rows::with(
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
    let mut changed: Vec<[Value; 7]> = Vec::with_capacity(live.len());
    for one in happened {
        // Told twice in one report: the first counts.
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
    rows::with_numbers(
        &mut cx.tx,
        &[now],
        "r, q, s, z, d, f, a",
        changed,
        // What is settled holds its destination no longer.
        "UPDATE file SET state = v.s, size = v.z, digest = COALESCE(v.d, file.digest), fault = v.f, attempt = v.a,
            destination = CASE WHEN v.s < 2 THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q",
    )
    .await?;
    Ok(settled)
}

/// What the database counts of a request.
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

/// The columns of [`tally`].
pub(crate) const TALLY: &str = "files, active, done, failed, cancelled, open, cancel, broken";

/// Adds to the counts of requests, and gives each the state that follows from them.
pub(crate) async fn count(cx: &mut Context, deltas: Deltas) -> Result<(), sqlx::Error> {
    let rows: Vec<[Value; 9]> = deltas
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
    let found = rows::with_numbers(
        &mut cx.tx,
        &[now],
        "i, n, a, d, f, c, b, e, z",
        rows,
        &format!(
            "UPDATE request SET files = files + v.n, active = active + v.a, done = done + v.d, failed = failed + v.f,
                cancelled = cancelled + v.c, bytes = bytes + v.b, bytes_done = bytes_done + v.e, sized = sized + v.z,
                changed = $1 FROM v WHERE request.id = v.i RETURNING id, state, class, {TALLY}"
        ),
    )
    .await?;
    restate(cx, found).await
}

/// Looks at one request again.
pub(crate) async fn recount(cx: &mut Context, id: i64) -> Result<(), sqlx::Error> {
    let text = "SELECT id, state, class, files, active, done, failed, cancelled, open, cancel, broken FROM request WHERE id = $1";
    let found = sqlx::query(text).bind(id).fetch_all(&mut cx.tx).await?;
    restate(cx, found).await
}

/// Sets the states of requests that are another now: id, state, class and [`TALLY`] each.
async fn restate(cx: &mut Context, found: Vec<AnyRow>) -> Result<(), sqlx::Error> {
    let mut changed: Vec<[Value; 3]> = Vec::new();
    for row in found {
        let (id, old, class): (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
        let tally = tally(&row, 3);
        let next = tally.state();
        let before = RequestState::ALL.get(old as usize).copied();
        // What began has begun, though all its files wait for another attempt.
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
        cx.wake();
    }
    rows::with(
        &mut cx.tx,
        "i, s, e",
        changed,
        "UPDATE request SET state = v.s, ended = v.e FROM v WHERE request.id = v.i",
    )
    .await?;
    Ok(())
}

/// Why a run is over.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// The node says so: every file has its outcome, or this is why it went no further.
    Told(Option<OrderFault>),
    /// The controller took it back.
    Withdrawn(String),
}

/// Where a part of a run goes on: what its batch and its request say now.
struct Base {
    batch: NewBatch,
    cancelled: bool,
    paused: bool,
}

/// What changes when the parts of a run end.
#[derive(Default)]
struct Ending {
    files: Vec<[Value; 5]>,
    troubles: Vec<[Value; 2]>,
    batches: Vec<NewBatch>,
    deltas: Deltas,
}

/// A file of a run that is not settled.
struct Rest {
    seq: i64,
    size: Option<i64>,
    attempt: i64,
    fault: Option<String>,
}

/// Ends a run: what is not settled waits in another batch, or failed.
pub(crate) async fn end_run(cx: &mut Context, run: i64, end: &End) -> Result<(), sqlx::Error> {
    let parts = super::report::content(cx, run).await?;
    let why = match end {
        End::Told(None) => None,
        End::Told(Some(fault)) => Some(fault.text.clone()),
        End::Withdrawn(why) => Some(why.clone()),
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
    // Where every file is settled nothing is left to look for.
    if kind == BatchKind::List as i64 || settled < files {
        end_parts(cx, run, &parts, kind, end).await?;
    }
    let over = "DELETE FROM batch WHERE run = $1";
    sqlx::query(over).bind(run).execute(&mut cx.tx).await?;
    if let (Some(why), Some(part)) = (why, parts.first()) {
        cx.event(Some(part.request), None, "order_ended", format!("order {}: {why}", run * 2));
    }
    cx.contents.forget(run);
    cx.wake();
    Ok(())
}

async fn end_parts(
    cx: &mut Context,
    run: i64,
    parts: &[Part],
    kind: i64,
    end: &End,
) -> Result<(), sqlx::Error> {
    let mut bases = bases(cx, run, end).await?;
    if kind == BatchKind::List as i64 {
        for part in parts {
            let Some(base) = bases.remove(&part.batch) else { continue };
            let batch = NewBatch { kind: BatchKind::List, ..base.batch };
            end_listing(cx, part, end, batch, (base.cancelled, base.paused)).await?;
        }
        return Ok(());
    }
    let mut ending = Ending::default();
    for (at, rest) in rest(cx, parts).await? {
        let part = &parts[at];
        if let Some(base) = bases.remove(&part.batch) {
            ending.part(cx.now, run, part, base, rest, end);
        }
    }
    rows::with_numbers(
        &mut cx.tx,
        &[cx.now],
        "r, q, s, a, f",
        ending.files,
        "UPDATE file SET state = v.s, attempt = v.a, fault = v.f,
            destination = CASE WHEN v.s < 2 THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q AND file.state < 2",
    )
    .await?;
    let set = "UPDATE request SET trouble = v.t FROM v WHERE request.id = v.i";
    rows::with(&mut cx.tx, "i, t", ending.troubles, set).await?;
    submit::add_batches(cx, ending.batches).await?;
    count(cx, ending.deltas).await
}

/// What the batches of a run become, by their numbers.
async fn bases(cx: &mut Context, run: i64, end: &End) -> Result<HashMap<i64, Base>, sqlx::Error> {
    let found = sqlx::query(
        "SELECT b.id, b.request, b.queue, b.priority, b.deadline, b.lane, b.attempt, b.root, r.cancel, r.paused
         FROM batch b JOIN request r ON r.id = b.request WHERE b.run = $1",
    )
    .bind(run)
    .fetch_all(&mut cx.tx)
    .await?;
    let base = |row: &AnyRow| Base {
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
            attempt: row.get::<i64, _>(6) + i64::from(matches!(end, End::Told(_))),
            state: BatchState::Queued,
            not_before: 0,
        },
    };
    Ok(found.iter().map(|row| (row.get(0), base(row))).collect())
}

/// The files of a run that are not settled, by the place of their part.
async fn rest(cx: &mut Context, parts: &[Part]) -> Result<BTreeMap<usize, Vec<Rest>>, sqlx::Error> {
    let spans = parts.iter().enumerate().map(|(at, part)| -> [Value; 4] {
        [(at as i64).into(), part.request.into(), part.first.into(), part.last.into()]
    });
    let found = rows::with(
        &mut cx.tx,
        "n, r, a, z",
        spans.collect(),
        "SELECT v.n, f.seq, f.size, f.attempt, f.fault FROM v
         JOIN file f ON f.request = v.r AND f.seq >= v.a AND f.seq <= v.z
         WHERE f.state < 2 ORDER BY v.n, f.seq",
    )
    .await?;
    let mut rest: BTreeMap<usize, Vec<Rest>> = BTreeMap::new();
    for row in found {
        let (at, seq) = (row.get::<i64, _>(0) as usize, row.get(1));
        let seqs = parts.get(at).and_then(|part| part.seqs.as_ref());
        if seqs.is_none_or(|seqs| seqs.binary_search(&seq).is_ok()) {
            let file = Rest { seq, size: row.get(2), attempt: row.get(3), fault: row.get(4) };
            rest.entry(at).or_default().push(file);
        }
    }
    Ok(rest)
}

impl Ending {
    /// Ends a part of a run, of which these files are not settled.
    fn part(&mut self, now: i64, run: i64, part: &Part, base: Base, rest: Vec<Rest>, end: &End) {
        let Base { batch, cancelled, paused } = base;
        let delta = self.deltas.entry(part.request).or_default();
        delta.active -= rest.len() as i64;
        let mut again: Vec<(i64, Option<i64>, i64)> = Vec::new();
        let mut trouble = None;
        for file in rest {
            let (fault, attempt) = match end {
                _ if cancelled => (None, file.attempt),
                End::Withdrawn(_) => (None, file.attempt),
                // It had its outcome in this order, and may be tried again.
                End::Told(None) if file.attempt >= batch.attempt => (None, file.attempt),
                End::Told(fault) => {
                    let fault = fault.clone().unwrap_or_else(|| OrderFault {
                        kind: FaultKind::Transient,
                        text: "the order ended without a word about this file".to_owned(),
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
            let changes = state != FileState::Queued || fault.is_some();
            let text = fault.map(|fault| fault.text).or(file.fault);
            trouble = trouble.or_else(|| text.clone());
            if changes {
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
        let waits = matches!(end, End::Told(_)) && tried > 0;
        let wait = retry::backoff_delay(tried as u32, run as u64).as_millis() as i64;
        let files = again.len() as i64;
        self.batches.push(NewBatch {
            first,
            last,
            files,
            bytes: again.iter().filter_map(|(_, size, _)| *size).sum(),
            seqs: (files <= last - first).then(|| again.into_iter().map(|(seq, ..)| seq).collect()),
            state: match (paused, waits) {
                (true, _) => BatchState::Held,
                (false, true) => BatchState::Waiting,
                (false, false) => BatchState::Queued,
            },
            not_before: if waits { now + wait } else { 0 },
            ..batch
        });
    }
}

async fn end_listing(
    cx: &mut Context,
    part: &Part,
    end: &End,
    base: NewBatch,
    (cancelled, paused): (bool, bool),
) -> Result<(), sqlx::Error> {
    let text = "SELECT open FROM request WHERE id = $1";
    let open: i64 = sqlx::query(text).bind(part.request).fetch_one(&mut cx.tx).await?.get(0);
    if open == 0 && !cancelled {
        // All that there is to list is known.
        return recount(cx, part.request).await;
    }
    let again = match end {
        _ if cancelled => None,
        End::Withdrawn(_) => Some(0),
        End::Told(None) => None,
        End::Told(Some(fault)) => {
            let attempt = base.attempt as u32;
            retry::is_retryable(fault.kind, attempt, part.attempts)
                .then(|| retry::backoff_delay(attempt, part.batch as u64).as_millis() as i64)
        }
    };
    if let Some(wait) = again {
        let state = match paused {
            true => BatchState::Held,
            false if wait > 0 => BatchState::Waiting,
            false => BatchState::Queued,
        };
        let not_before = if wait > 0 { cx.now + wait } else { 0 };
        return submit::add_batches(cx, vec![NewBatch { state, not_before, ..base }]).await;
    }
    let trouble = match end {
        End::Told(Some(fault)) if !cancelled => {
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
    recount(cx, part.request).await
}
