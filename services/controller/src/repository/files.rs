//! Table `file`: the files of requests.
//!
//! A file's row is written on submission and when the file is settled; while it is part of a running batch, its row only
//! says that it is not settled.

use std::collections::BTreeMap;

use penstock_control::file::{RequestFileEvent, RequestFileState};
use penstock_control::orders::File;
use penstock_control::outcomes::{FileChange, UnsettledFile};
use penstock_control::run_contents::{FileSpan, RunPart};
use sqlx::AnyPool;

use super::batches;
use super::destination_key::DestinationKeys;
use super::rows::{TypedRow, typed_row, written_row};
use super::statement::{insert_rows, select, select_one, set_clause, statement, with_rows};
use super::writer::TxContext;

/// Lowest number of the state of a settled file. A file is unsettled where `state < {SETTLED_STATE}`, as the index of
/// destinations says.
const SETTLED_STATE: i64 = RequestFileState::FINAL_MIN;

const CANCELLED_STATE: i64 = RequestFileState::Cancelled.number();

const _: () = assert!(matches!(
    RequestFileState::Queued.transition(RequestFileEvent::Cancelled),
    Some(RequestFileState::Cancelled)
));

typed_row! {
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
    let text = |condition: &str| {
        format!(
            "SELECT {} FROM file WHERE request = $1 AND seq > $2 AND {condition} ORDER BY seq LIMIT $3",
            StoredRequestFile::columns()
        )
    };
    let stored = state.filter(|state| state.is_final()).map_or(0, RequestFileState::number);
    let mut files = Vec::new();
    loop {
        if state == Some(RequestFileState::Active) {
            // No active file precedes the next running batch.
            let next = running.iter().filter(|span| span.last > after);
            let Some(first) = next.map(|span| span.first).min() else { break };
            after = after.max(first - 1);
        }
        let query = match state {
            None => select(text("state >= $4")),
            Some(RequestFileState::Queued | RequestFileState::Active) => {
                select(text(&format!("state < {SETTLED_STATE} AND state >= $4")))
            }
            Some(_) => select(text("state = $4")),
        };
        let query = query.bind(request).bind(after).bind(limit).bind(stored);
        let rows: Vec<StoredRequestFile> = query.fetch_all(pool).await?;
        let is_last = (rows.len() as i64) < limit;
        for mut file in rows {
            if !file.state.is_final() {
                let is_active = running.iter().any(|span| span.contains(file.seq));
                file.state = match is_active {
                    true => RequestFileState::Active,
                    false => RequestFileState::Queued,
                };
            }
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
    let text = format!("SELECT {} FROM file ORDER BY request, seq", FileSummary::columns());
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

written_row! {
    /// A file as inserted.
    #[derive(Debug, Clone)]
    pub(crate) struct NewFileRow {
        request: i64,
        seq: i64,
        path: String,
        size: Option<u64>,
        digest: Option<String>,
        state: RequestFileState,
        fault: Option<String>,
        /// Key of the destination, while the file is not settled.
        destination: Option<Vec<u8>>,
        changed: i64,
    }
}

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
    (first..).zip(files).map(move |(seq, file)| NewFileRow {
        request,
        seq,
        path: file.path.clone(),
        size: file.size,
        digest: file.digest.clone(),
        state: RequestFileState::Queued,
        fault: None,
        destination: Some(destinations.of(&file.path)),
        changed: now,
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
    let row = |(seq, file): (i64, &NewFile)| NewFileRow {
        request,
        seq,
        path: file.path.clone(),
        size: file.size,
        digest: file.digest.clone(),
        state: RequestFileState::Failed,
        fault: Some(fault.to_owned()),
        destination: None,
        changed: cx.now,
    };
    (first..).zip(files).map(row).collect()
}

/// Inserts files; the unique index drops those whose destination is in use. Returns the number inserted.
pub(crate) async fn insert(cx: &mut TxContext, rows: Vec<NewFileRow>) -> Result<u64, sqlx::Error> {
    insert_rows("file", rows).after("ON CONFLICT DO NOTHING").execute(&mut cx.tx).await
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

written_row! {
    struct WantedDestination {
        number: i64,
        destination: Option<Vec<u8>>,
    }
}

/// Returns the index of the first file whose destination another request is writing, with that request.
pub(crate) async fn first_conflict(
    cx: &mut TxContext,
    to: DestinationDirectory<'_>,
    files: &[NewFile],
) -> Result<Option<(usize, i64)>, sqlx::Error> {
    let mut destinations = DestinationKeys::new(to.site, to.path);
    let rows = files.iter().enumerate().map(|(at, file)| WantedDestination {
        number: at as i64,
        destination: Some(destinations.of(&file.path)),
    });
    let text = format!(
        "SELECT v.number AS number, f.request AS request FROM v JOIN file f ON f.destination = v.destination
         WHERE f.state < {SETTLED_STATE}"
    );
    let found: Vec<UsedDestination> = with_rows(rows, text).fetch_all(&mut cx.tx).await?;
    Ok(found.into_iter().map(|row| (row.number as usize, row.request)).min())
}

/// Returns the paths of a request's files from `first` on, in their order.
pub(crate) async fn paths_from(
    cx: &mut TxContext,
    request: i64,
    first: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let query = select_one("SELECT path FROM file WHERE request = $1 AND seq >= $2 ORDER BY seq");
    query.bind(request).bind(first).fetch_all(&mut cx.tx).await
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

written_row! {
    struct RequestFileKey {
        request: i64,
        seq: i64,
    }
}

/// Returns those of the given files, by request and sequence number, that are not settled.
pub(crate) async fn unsettled(
    cx: &mut TxContext,
    files: Vec<(i64, i64)>,
) -> Result<Vec<UnsettledFileRow>, sqlx::Error> {
    let keys = files.into_iter().map(|(request, seq)| RequestFileKey { request, seq });
    let text = format!(
        "SELECT {} FROM v JOIN file ON file.request = v.request AND file.seq = v.seq
         WHERE file.state < {SETTLED_STATE}",
        UnsettledFileRow::columns_of("file")
    );
    with_rows(keys, text).fetch_all(&mut cx.tx).await
}

written_row! {
    /// Outcome of a file as stored.
    #[derive(Debug, Clone)]
    pub(crate) struct FileUpdate {
        pub(crate) request: i64,
        pub(crate) seq: i64,
        pub(crate) state: RequestFileState,
        pub(crate) size: Option<i64>,
        /// None keeps the known digest.
        pub(crate) digest: Option<String>,
        pub(crate) fault: Option<String>,
        pub(crate) attempt: i64,
    }
}

/// Assigns the destination of a file after an update from `v`: a settled file releases it.
fn destination_clause() -> String {
    format!("destination = CASE WHEN v.state < {SETTLED_STATE} THEN file.destination END")
}

/// Stores the outcomes of files that are not settled. A settled file releases its destination.
pub(crate) async fn store_outcomes(
    cx: &mut TxContext,
    updates: Vec<FileUpdate>,
) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE file SET {}, digest = COALESCE(v.digest, file.digest), {}, changed = $1
         FROM v WHERE file.request = v.request AND file.seq = v.seq",
        set_clause::<FileUpdate>(&["request", "seq", "digest"]),
        destination_clause()
    );
    with_rows(updates, text).bind(cx.now).execute(&mut cx.tx).await.map(drop)
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

written_row! {
    struct PartSpan {
        part: i64,
        request: i64,
        first: i64,
        last: i64,
    }
}

/// Returns the unsettled files of a run by the index of their part.
pub(crate) async fn unsettled_of_parts(
    cx: &mut TxContext,
    parts: &[RunPart],
) -> Result<BTreeMap<usize, Vec<UnsettledFile>>, sqlx::Error> {
    let spans = parts.iter().enumerate().map(|(at, part)| PartSpan {
        part: at as i64,
        request: part.request,
        first: part.span.first,
        last: part.span.last,
    });
    let text = format!(
        "SELECT v.part AS part, f.seq AS seq, f.size AS size, f.attempt AS attempt, f.fault AS fault FROM v
         JOIN file f ON f.request = v.request AND f.seq >= v.first AND f.seq <= v.last
         WHERE f.state < {SETTLED_STATE} ORDER BY v.part, f.seq"
    );
    let found: Vec<UnsettledRow> = with_rows(spans, text).fetch_all(&mut cx.tx).await?;
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

written_row! {
    struct FileChangeRow {
        request: i64,
        seq: i64,
        state: RequestFileState,
        attempt: i64,
        fault: Option<String>,
    }
}

/// Stores what the end of a run changed of the files of requests.
pub(crate) async fn store_changes(
    cx: &mut TxContext,
    changes: Vec<(i64, FileChange)>,
) -> Result<(), sqlx::Error> {
    let rows = changes.into_iter().map(|(request, one)| FileChangeRow {
        request,
        seq: one.seq,
        state: one.state,
        attempt: one.attempt,
        fault: one.fault,
    });
    let text = format!(
        "UPDATE file SET {}, {}, changed = $1
         FROM v WHERE file.request = v.request AND file.seq = v.seq AND file.state < {SETTLED_STATE}",
        set_clause::<FileChangeRow>(&["request", "seq"]),
        destination_clause()
    );
    with_rows(rows, text).bind(cx.now).execute(&mut cx.tx).await.map(drop)
}

written_row! {
    struct FileSeq {
        seq: i64,
    }
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
    let Some(seqs) = &span.seqs else {
        let text = format!(
            "{set} WHERE request = $2 AND seq >= $3 AND seq <= $4 AND state < {SETTLED_STATE}"
        );
        let query = statement(text).bind(now).bind(request).bind(span.first).bind(span.last);
        return Ok(query.execute(&mut cx.tx).await?.rows_affected() as i64);
    };
    let seqs = seqs.iter().map(|seq| FileSeq { seq: *seq });
    let text = format!(
        "{set} FROM v WHERE file.request = $2 AND file.seq = v.seq AND file.state < {SETTLED_STATE}"
    );
    let changed = with_rows(seqs, text).bind(now).bind(request).execute(&mut cx.tx).await?;
    Ok(changed as i64)
}
