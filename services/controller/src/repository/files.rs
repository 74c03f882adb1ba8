//! Table `file`: the files of requests.
//!
//! A file's row is written on submission and when the file is settled; while it is part of a running batch, its row only
//! says that it is not settled.

use std::collections::BTreeMap;

use penstock_control::file::{RequestFileEvent, RequestFileState};
use penstock_control::orders::File;
use penstock_control::outcomes::{FileChange, UnsettledFile};
use sqlx::AnyPool;

use super::batches::{self, FileSpan, RunPart};
use super::destination_key::DestinationKeys;
use super::rows::{self, SqlValue, select, select_one, statement, typed_row};
use super::writer::TxContext;

/// Lowest number of the state of a settled file. A file is unsettled where `state < {SETTLED_STATE}`, as the index of
/// destinations says.
const SETTLED_STATE: i64 = RequestFileState::FINAL_MIN;

const CANCELLED_STATE: i64 = RequestFileState::Cancelled.number();

const _: () = assert!(matches!(
    RequestFileState::Queued.transition(RequestFileEvent::Cancelled),
    Some(RequestFileState::Cancelled)
));

/// A file as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredRequestFile {
    pub(crate) seq: i64,
    pub(crate) path: String,
    pub(crate) size: Option<i64>,
    pub(crate) digest: Option<String>,
    pub(crate) state: RequestFileState,
    pub(crate) attempt: i64,
    pub(crate) fault: Option<String>,
    pub(crate) changed: i64,
}

typed_row! {
    struct FileRow {
        seq: i64,
        path: String,
        size: Option<i64>,
        digest: Option<String>,
        state: RequestFileState,
        attempt: i64,
        fault: Option<String>,
        changed: i64,
    }
}

/// Returns files of a request after a sequence number, optionally in one state.
pub(crate) async fn list(
    pool: &AnyPool,
    request: i64,
    state: Option<RequestFileState>,
    mut after: i64,
    limit: i64,
) -> Result<Vec<StoredRequestFile>, sqlx::Error> {
    // A file is active while its batch runs; its row only says that it is not settled.
    let running = batches::running_spans(pool, request).await?;
    let condition = match state {
        None => "AND state >= $4".to_owned(),
        Some(RequestFileState::Queued | RequestFileState::Active) => {
            format!("AND state < {SETTLED_STATE} AND state >= $4")
        }
        Some(_) => "AND state = $4".to_owned(),
    };
    let text = format!(
        "SELECT seq, path, size, digest, state, attempt, fault, changed FROM file
         WHERE request = $1 AND seq > $2 {condition} ORDER BY seq LIMIT $3"
    );
    let stored = state.filter(|state| state.is_final()).map_or(0, RequestFileState::number);
    let mut files = Vec::new();
    loop {
        if state == Some(RequestFileState::Active) {
            // No active file precedes the next running batch.
            let next = running.iter().filter(|span| span.last > after);
            let Some(first) = next.map(|span| span.first).min() else { break };
            after = after.max(first - 1);
        }
        let query = select(text.clone()).bind(request).bind(after).bind(limit).bind(stored);
        let rows: Vec<FileRow> = query.fetch_all(pool).await?;
        let is_last = (rows.len() as i64) < limit;
        for row in rows {
            let file = StoredRequestFile {
                seq: row.seq,
                path: row.path,
                size: row.size,
                digest: row.digest,
                state: match row.state.is_final() {
                    true => row.state,
                    false if running.iter().any(|span| span.contains(row.seq)) => {
                        RequestFileState::Active
                    }
                    false => RequestFileState::Queued,
                },
                attempt: row.attempt,
                fault: row.fault,
                changed: row.changed,
            };
            after = file.seq;
            if state.is_none_or(|state| state == file.state) {
                files.push(file);
            }
            if files.len() as i64 == limit {
                return Ok(files);
            }
        }
        if is_last {
            break;
        }
    }
    Ok(files)
}

typed_row! {
    struct OrderFileRow {
        batch: i64,
        seq: i64,
        path: String,
        digest: Option<String>,
    }
}

/// Returns the files of a run, in the order of its list.
///
/// A settled file has no path there, so that a node that has lost the order does not send it again: its destination may
/// be that of another request since. The node reports such a file as failed, which changes no settled file.
pub(crate) async fn of_run(pool: &AnyPool, run: i64) -> Result<Vec<File>, sqlx::Error> {
    let spans = batches::run_spans(pool, run).await?;
    // Sequence numbers ascend within a batch.
    let text = format!(
        "SELECT b.id AS batch, f.seq AS seq, CASE WHEN f.state < {SETTLED_STATE} THEN f.path ELSE '' END AS path,
            f.digest AS digest
         FROM batch b JOIN file f ON f.request = b.request AND f.seq >= b.first AND f.seq <= b.last
         WHERE b.run = $1 ORDER BY b.place, f.seq"
    );
    let rows: Vec<OrderFileRow> = select(text).bind(run).fetch_all(pool).await?;
    let is_wanted = |row: &OrderFileRow| {
        spans.get(&row.batch).is_some_and(|span: &FileSpan| span.contains(row.seq))
    };
    let wanted = rows.into_iter().filter(is_wanted);
    Ok(wanted.map(|row| File { path: row.path, digest: row.digest }).collect())
}

/// Returns the number of files.
pub(crate) async fn count(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    select_one("SELECT COUNT(*) FROM file").fetch_one(pool).await
}

typed_row! {
    /// State of a file, for the invariants of a simulation.
    #[derive(Debug, Clone)]
    pub(crate) struct FileSummary {
        pub(crate) request: i64,
        pub(crate) seq: i64,
        pub(crate) path: String,
        pub(crate) state: RequestFileState,
        pub(crate) fault: Option<String>,
    }
}

/// Returns the files of all requests, by request and sequence number.
pub(crate) async fn summaries(pool: &AnyPool) -> Result<Vec<FileSummary>, sqlx::Error> {
    let text = "SELECT request, seq, path, state, fault FROM file ORDER BY request, seq";
    select(text).fetch_all(pool).await
}

/// A file to transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewFile {
    /// Relative to both directories.
    pub(crate) path: String,
    pub(crate) size: Option<u64>,
    pub(crate) digest: Option<String>,
}

/// Destination of the files of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DestinationDirectory<'a> {
    pub(crate) site: &'a str,
    pub(crate) path: &'a str,
}

/// A row of a new file.
pub(crate) type NewFileRow = [SqlValue; 9];

/// Returns the rows of queued files, with sequence numbers from `first` on.
pub(crate) fn queued_rows<'a>(
    cx: &TxContext,
    request: i64,
    first: i64,
    to: DestinationDirectory<'_>,
    files: &'a [NewFile],
) -> impl Iterator<Item = NewFileRow> + use<'a> {
    let now = cx.now;
    let mut destinations = DestinationKeys::new(to.site, to.path);
    (first..).zip(files).map(move |(seq, file)| {
        [
            request.into(),
            seq.into(),
            file.path.clone().into(),
            file.size.map(|size| size as i64).into(),
            file.digest.clone().into(),
            RequestFileState::Queued.into(),
            None::<String>.into(),
            SqlValue::Bytes(Some(destinations.of(&file.path))),
            now.into(),
        ]
    })
}

/// Returns the rows of files that fail at once with a fault, with sequence numbers from `first` on.
pub(crate) fn failed_rows(
    cx: &TxContext,
    request: i64,
    first: i64,
    files: &[NewFile],
    fault: &str,
) -> Vec<NewFileRow> {
    let row = |(seq, file): (i64, &NewFile)| -> NewFileRow {
        [
            request.into(),
            seq.into(),
            file.path.clone().into(),
            file.size.map(|size| size as i64).into(),
            file.digest.clone().into(),
            RequestFileState::Failed.into(),
            fault.into(),
            SqlValue::Bytes(None),
            cx.now.into(),
        ]
    };
    (first..).zip(files).map(row).collect()
}

/// Inserts files; the unique index drops those whose destination is in use. Returns the number inserted.
pub(crate) async fn insert(cx: &mut TxContext, rows: Vec<NewFileRow>) -> Result<u64, sqlx::Error> {
    let into =
        "INSERT INTO file (request, seq, path, size, digest, state, fault, destination, changed)";
    rows::insert(&mut cx.tx, into, rows, "ON CONFLICT DO NOTHING").await
}

/// Returns the sequence numbers of a request's files from `first` on, ascending.
pub(crate) async fn seqs_from(
    cx: &mut TxContext,
    request: i64,
    first: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    let query = select_one("SELECT seq FROM file WHERE request = $1 AND seq >= $2 ORDER BY seq");
    query.bind(request).bind(first).fetch_all(&mut cx.tx).await
}

/// Deletes a request's files from `first` on.
pub(crate) async fn delete_from(
    cx: &mut TxContext,
    request: i64,
    first: i64,
) -> Result<(), sqlx::Error> {
    let query = statement("DELETE FROM file WHERE request = $1 AND seq >= $2");
    query.bind(request).bind(first).execute(&mut cx.tx).await.map(drop)
}

/// Deletes the first files of a request. Returns their number.
pub(crate) async fn delete_first(
    cx: &mut TxContext,
    request: i64,
    limit: i64,
) -> Result<i64, sqlx::Error> {
    let text = "DELETE FROM file WHERE request = $1 AND seq IN (SELECT seq FROM file WHERE request = $1 ORDER BY seq LIMIT $2)";
    let query = statement(text).bind(request).bind(limit);
    Ok(query.execute(&mut cx.tx).await?.rows_affected() as i64)
}

/// Returns the request that is writing a destination.
pub(crate) async fn destination_holder(
    cx: &mut TxContext,
    to: DestinationDirectory<'_>,
    path: &str,
) -> Result<Option<i64>, sqlx::Error> {
    let text =
        format!("SELECT request FROM file WHERE destination = $1 AND state < {SETTLED_STATE}");
    let key = DestinationKeys::new(to.site, to.path).of(path);
    select_one(text).bind(key).fetch_optional(&mut cx.tx).await
}

typed_row! {
    struct UsedDestination {
        number: i64,
        request: i64,
    }
}

/// Returns the index of the first file whose destination another request is writing, with that request.
pub(crate) async fn first_conflict(
    cx: &mut TxContext,
    to: DestinationDirectory<'_>,
    files: &[NewFile],
) -> Result<Option<(usize, i64)>, sqlx::Error> {
    let mut destinations = DestinationKeys::new(to.site, to.path);
    let rows = files.iter().enumerate().map(|(at, file)| -> [SqlValue; 2] {
        [(at as i64).into(), SqlValue::Bytes(Some(destinations.of(&file.path)))]
    });
    let text = format!(
        "SELECT v.n AS number, f.request AS request FROM v JOIN file f ON f.destination = v.h
         WHERE f.state < {SETTLED_STATE}"
    );
    let found: Vec<UsedDestination> =
        rows::query_values(&mut cx.tx, &[], "n, h", rows.collect(), &text).await?;
    Ok(found.into_iter().map(|row| (row.number as usize, row.request)).min())
}

/// Returns the paths of a request's files.
pub(crate) async fn paths(cx: &mut TxContext, request: i64) -> Result<Vec<String>, sqlx::Error> {
    let query = select_one("SELECT path FROM file WHERE request = $1").bind(request);
    query.fetch_all(&mut cx.tx).await
}

typed_row! {
    /// A file that is not settled, by request and sequence number.
    #[derive(Debug, Clone)]
    pub(crate) struct UnsettledFileRow {
        pub(crate) request: i64,
        pub(crate) seq: i64,
        pub(crate) size: Option<i64>,
        pub(crate) attempt: i64,
    }
}

/// Returns those of the given files, by request and sequence number, that are not settled.
pub(crate) async fn unsettled(
    cx: &mut TxContext,
    files: Vec<(i64, i64)>,
) -> Result<Vec<UnsettledFileRow>, sqlx::Error> {
    let keys =
        files.into_iter().map(|(request, seq)| -> [SqlValue; 2] { [request.into(), seq.into()] });
    let text = format!(
        "SELECT f.request AS request, f.seq AS seq, f.size AS size, f.attempt AS attempt
         FROM v JOIN file f ON f.request = v.r AND f.seq = v.q WHERE f.state < {SETTLED_STATE}"
    );
    rows::query_values(&mut cx.tx, &[], "r, q", keys.collect(), &text).await
}

/// Outcome of a file as stored.
#[derive(Debug, Clone)]
pub(crate) struct FileUpdate {
    pub(crate) request: i64,
    pub(crate) seq: i64,
    pub(crate) state: RequestFileState,
    pub(crate) size: Option<i64>,
    pub(crate) digest: Option<String>,
    pub(crate) fault: Option<String>,
    pub(crate) attempt: i64,
}

/// Stores the outcomes of files that are not settled. A settled file releases its destination.
pub(crate) async fn store_outcomes(
    cx: &mut TxContext,
    updates: Vec<FileUpdate>,
) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let rows = updates.into_iter().map(|one| -> [SqlValue; 7] {
        [
            one.request.into(),
            one.seq.into(),
            one.state.into(),
            one.size.into(),
            one.digest.into(),
            one.fault.into(),
            one.attempt.into(),
        ]
    });
    let text = format!(
        "UPDATE file SET state = v.s, size = v.z, digest = COALESCE(v.d, file.digest), fault = v.f, attempt = v.a,
            destination = CASE WHEN v.s < {SETTLED_STATE} THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q"
    );
    rows::execute_values(&mut cx.tx, &[now], "r, q, s, z, d, f, a", rows.collect(), &text)
        .await
        .map(drop)
}

typed_row! {
    struct UnsettledRow {
        part: i64,
        seq: i64,
        size: Option<i64>,
        attempt: i64,
        fault: Option<String>,
    }
}

/// Returns the unsettled files of a run by the index of their part.
pub(crate) async fn unsettled_of_parts(
    cx: &mut TxContext,
    parts: &[RunPart],
) -> Result<BTreeMap<usize, Vec<UnsettledFile>>, sqlx::Error> {
    let spans = parts.iter().enumerate().map(|(at, part)| -> [SqlValue; 4] {
        [(at as i64).into(), part.request.into(), part.span.first.into(), part.span.last.into()]
    });
    let text = format!(
        "SELECT v.n AS part, f.seq AS seq, f.size AS size, f.attempt AS attempt, f.fault AS fault FROM v
         JOIN file f ON f.request = v.r AND f.seq >= v.a AND f.seq <= v.z
         WHERE f.state < {SETTLED_STATE} ORDER BY v.n, f.seq"
    );
    let found: Vec<UnsettledRow> =
        rows::query_values(&mut cx.tx, &[], "n, r, a, z", spans.collect(), &text).await?;
    let mut unsettled: BTreeMap<usize, Vec<UnsettledFile>> = BTreeMap::new();
    for row in found {
        let at = row.part as usize;
        if parts.get(at).is_some_and(|part| part.span.contains(row.seq)) {
            let (seq, size, attempt, fault) = (row.seq, row.size, row.attempt, row.fault);
            unsettled.entry(at).or_default().push(UnsettledFile { seq, size, attempt, fault });
        }
    }
    Ok(unsettled)
}

/// Stores what the end of a run changed of the files of requests.
pub(crate) async fn store_changes(
    cx: &mut TxContext,
    changes: Vec<(i64, FileChange)>,
) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let rows = changes.into_iter().map(|(request, one)| -> [SqlValue; 5] {
        [request.into(), one.seq.into(), one.state.into(), one.attempt.into(), one.fault.into()]
    });
    let text = format!(
        "UPDATE file SET state = v.s, attempt = v.a, fault = v.f,
            destination = CASE WHEN v.s < {SETTLED_STATE} THEN file.destination END, changed = $1
         FROM v WHERE file.request = v.r AND file.seq = v.q AND file.state < {SETTLED_STATE}"
    );
    rows::execute_values(&mut cx.tx, &[now], "r, q, s, a, f", rows.collect(), &text).await.map(drop)
}

/// Cancels the unsettled files of a request's batch. Returns their count.
pub(crate) async fn cancel(
    cx: &mut TxContext,
    request: i64,
    span: &FileSpan,
) -> Result<i64, sqlx::Error> {
    let now = cx.now;
    let set =
        format!("UPDATE file SET state = {CANCELLED_STATE}, destination = NULL, changed = $1");
    let Some(seqs) = &span.seqs.0 else {
        let text = format!(
            "{set} WHERE request = $2 AND seq >= $3 AND seq <= $4 AND state < {SETTLED_STATE}"
        );
        let query = statement(text).bind(now).bind(request).bind(span.first).bind(span.last);
        return Ok(query.execute(&mut cx.tx).await?.rows_affected() as i64);
    };
    let seqs = seqs.iter().map(|seq| -> [SqlValue; 1] { [(*seq).into()] }).collect();
    let text = format!(
        "{set} FROM v WHERE file.request = $2 AND file.seq = v.q AND file.state < {SETTLED_STATE}"
    );
    let changed = rows::execute_values(&mut cx.tx, &[now, request], "q", seqs, &text).await?;
    Ok(changed as i64)
}
