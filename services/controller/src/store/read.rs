//! Read-only queries for the API.

use std::collections::{HashMap, HashSet};

use penstock_operations::orders::{File, Order, OrderId, OrderTask, RunSide, Send};
use penstock_operations::state::{FileState, RequestState, RequestTally};
use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{AnyPool, Arguments, AssertSqlSafe, Row};

use super::submit::TransferPolicy;
use super::{BatchKind, outcomes};

/// A request as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredRequest {
    pub(crate) id: i64,
    pub(crate) client: String,
    pub(crate) key: Option<String>,
    pub(crate) class: String,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) priority: i64,
    pub(crate) deadline: Option<i64>,
    pub(crate) size_estimate: Option<i64>,
    pub(crate) state: RequestState,
    pub(crate) paused: bool,
    pub(crate) tally: RequestTally,
    pub(crate) bytes: i64,
    pub(crate) bytes_done: i64,
    pub(crate) sized: i64,
    pub(crate) submitted: i64,
    pub(crate) changed: i64,
    pub(crate) ended: Option<i64>,
    pub(crate) trouble: Option<String>,
}

fn request_columns() -> String {
    format!(
        "id, client, client_key, class, source, destination, from_path, to_path, priority, deadline,
         size_estimate, state, paused, bytes, bytes_done, sized, submitted, changed, ended, trouble, {}",
        outcomes::TALLY_COLUMNS
    )
}

fn request_of(row: &AnyRow) -> StoredRequest {
    StoredRequest {
        id: row.get(0),
        client: row.get(1),
        key: row.get(2),
        class: row.get(3),
        source: row.get(4),
        destination: row.get(5),
        from: row.get(6),
        to: row.get(7),
        priority: row.get(8),
        deadline: row.get(9),
        size_estimate: row.get(10),
        state: RequestState::ALL[row.get::<i64, _>(11).clamp(0, 6) as usize],
        paused: row.get::<i64, _>(12) > 0,
        bytes: row.get(13),
        bytes_done: row.get(14),
        sized: row.get(15),
        submitted: row.get(16),
        changed: row.get(17),
        ended: row.get(18),
        trouble: row.get(19),
        tally: outcomes::tally(row, 20),
    }
}

pub(crate) async fn request(pool: &AnyPool, id: i64) -> Result<Option<StoredRequest>, sqlx::Error> {
    let text = format!("SELECT {} FROM request WHERE id = $1", request_columns());
    let row = sqlx::query(AssertSqlSafe(text)).bind(id).fetch_optional(pool).await?;
    Ok(row.as_ref().map(request_of))
}

/// Conditions for a list of requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestFilter {
    /// Upper bound of ids, exclusive.
    pub(crate) before: Option<i64>,
    pub(crate) states: Vec<RequestState>,
    /// Classes visible to the client; none for all.
    pub(crate) classes: Option<Vec<String>>,
    pub(crate) class: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) client: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) limit: i64,
}

/// A SQL condition with its arguments.
struct Condition {
    text: String,
    arguments: AnyArguments,
}

impl Condition {
    fn new() -> Self {
        Self { text: "1 = 1".to_owned(), arguments: AnyArguments::default() }
    }

    fn text(&mut self, column: &str, value: &str) -> Result<(), sqlx::Error> {
        self.arguments.add(value.to_owned()).map_err(sqlx::Error::Encode)?;
        self.text += &format!(" AND {column} = ${}", self.arguments.len());
        Ok(())
    }

    fn number(&mut self, condition: &str, value: i64) -> Result<(), sqlx::Error> {
        self.arguments.add(value).map_err(sqlx::Error::Encode)?;
        self.text += &format!(" AND {condition} ${}", self.arguments.len());
        Ok(())
    }
}

/// Returns matching requests, newest first.
pub(crate) async fn requests(
    pool: &AnyPool,
    filter: &RequestFilter,
) -> Result<Vec<StoredRequest>, sqlx::Error> {
    let mut condition = Condition::new();
    if let Some(before) = filter.before {
        condition.number("id <", before)?;
    }
    if !filter.states.is_empty() {
        let states: Vec<_> =
            filter.states.iter().map(|state| (*state as i64).to_string()).collect();
        condition.text += &format!(" AND state IN ({})", states.join(", "));
    }
    for (column, value) in [
        ("class", &filter.class),
        ("source", &filter.source),
        ("destination", &filter.destination),
        ("client", &filter.client),
        ("client_key", &filter.key),
    ] {
        if let Some(value) = value {
            condition.text(column, value)?;
        }
    }
    if let Some(classes) = &filter.classes {
        let mut places = Vec::new();
        for class in classes {
            condition.arguments.add(class.clone()).map_err(sqlx::Error::Encode)?;
            places.push(format!("${}", condition.arguments.len()));
        }
        let list = if places.is_empty() { "NULL".to_owned() } else { places.join(", ") };
        condition.text += &format!(" AND class IN ({list})");
    }
    let text = format!(
        "SELECT {} FROM request WHERE {} ORDER BY id DESC LIMIT {}",
        request_columns(),
        condition.text,
        filter.limit
    );
    let query = sqlx::query_with(AssertSqlSafe(text), condition.arguments);
    Ok(query.fetch_all(pool).await?.iter().map(request_of).collect())
}

/// A file as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredRequestFile {
    pub(crate) seq: i64,
    pub(crate) path: String,
    pub(crate) size: Option<i64>,
    pub(crate) digest: Option<String>,
    pub(crate) state: FileState,
    pub(crate) attempt: i64,
    pub(crate) fault: Option<String>,
    pub(crate) changed: i64,
}

/// Sequence numbers of the files of a batch.
struct FileSpan {
    first: i64,
    last: i64,
    /// Sorted numbers, if not contiguous.
    seqs: Option<Vec<i64>>,
}

impl FileSpan {
    /// Reads three columns from `at` on: first, last, seqs.
    fn of(row: &AnyRow, at: usize) -> Self {
        let seqs: Option<String> = row.get(at + 2);
        Self {
            first: row.get(at),
            last: row.get(at + 1),
            seqs: seqs.and_then(|seqs| serde_json::from_str(&seqs).ok()),
        }
    }

    fn has(&self, seq: i64) -> bool {
        (self.first..=self.last).contains(&seq)
            && self.seqs.as_ref().is_none_or(|seqs| seqs.binary_search(&seq).is_ok())
    }
}

/// Returns files of a request after a sequence number, optionally in one state.
pub(crate) async fn files(
    pool: &AnyPool,
    request: i64,
    state: Option<FileState>,
    mut after: i64,
    limit: i64,
) -> Result<Vec<StoredRequestFile>, sqlx::Error> {
    // A file is active while its batch runs; its row only says that it is not settled.
    let running = "SELECT first, last, seqs FROM batch WHERE request = $1 AND state = 2";
    let running = sqlx::query(running).bind(request).fetch_all(pool).await?;
    let running: Vec<FileSpan> = running.iter().map(|row| FileSpan::of(row, 0)).collect();
    let text = match state {
        None => "AND state >= $4",
        Some(FileState::Queued | FileState::Active) => "AND state < 2 AND state >= $4",
        Some(_) => "AND state = $4",
    };
    let text = format!(
        "SELECT seq, path, size, digest, state, attempt, fault, changed FROM file
         WHERE request = $1 AND seq > $2 {text} ORDER BY seq LIMIT $3"
    );
    let stored = state.filter(|state| state.is_final()).map_or(0, |state| state as i64);
    let mut files = Vec::new();
    loop {
        if state == Some(FileState::Active) {
            // No active file precedes the next running batch.
            let next = running.iter().filter(|span| span.last > after);
            let Some(first) = next.map(|span| span.first).min() else { break };
            after = after.max(first - 1);
        }
        let query = sqlx::query(AssertSqlSafe(text.clone())).bind(request).bind(after);
        let rows = query.bind(limit).bind(stored).fetch_all(pool).await?;
        for row in &rows {
            let seq: i64 = row.get(0);
            let settled = FileState::ALL[row.get::<i64, _>(4).clamp(0, 4) as usize];
            let file = StoredRequestFile {
                seq,
                path: row.get(1),
                size: row.get(2),
                digest: row.get(3),
                state: match settled.is_final() {
                    true => settled,
                    false if running.iter().any(|span| span.has(seq)) => FileState::Active,
                    false => FileState::Queued,
                },
                attempt: row.get(5),
                fault: row.get(6),
                changed: row.get(7),
            };
            after = seq;
            if state.is_none_or(|state| state == file.state) {
                files.push(file);
            }
            if files.len() as i64 == limit {
                return Ok(files);
            }
        }
        if (rows.len() as i64) < limit {
            break;
        }
    }
    Ok(files)
}

/// An event as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredEvent {
    pub(crate) id: i64,
    pub(crate) at: i64,
    pub(crate) request: Option<i64>,
    pub(crate) class: Option<String>,
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// Returns events after an id, of one request or all.
pub(crate) async fn events(
    pool: &AnyPool,
    request: Option<i64>,
    after: i64,
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let of = if request.is_some() { "AND request = $3" } else { "" };
    let text = format!(
        "SELECT id, at, request, class, kind, text FROM event WHERE id > $1 {of} ORDER BY id LIMIT $2"
    );
    let query = sqlx::query(AssertSqlSafe(text)).bind(after).bind(limit);
    let query = match request {
        Some(request) => query.bind(request),
        None => query,
    };
    let rows = query.fetch_all(pool).await?;
    Ok(rows.iter().map(stored_event).collect())
}

fn stored_event(row: &AnyRow) -> StoredEvent {
    StoredEvent {
        id: row.get(0),
        at: row.get(1),
        request: row.get(2),
        class: row.get(3),
        kind: row.get(4),
        text: row.get(5),
    }
}

/// Returns events without a request (drains, links, lost hosts) between two Unix milliseconds, newest first.
pub(crate) async fn network_events(
    pool: &AnyPool,
    (from, to): (i64, i64),
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let text = "SELECT id, at, request, class, kind, text FROM event
        WHERE request IS NULL AND at >= $1 AND at <= $2 ORDER BY at DESC, id DESC LIMIT $3";
    let rows = sqlx::query(text).bind(from).bind(to).bind(limit).fetch_all(pool).await?;
    Ok(rows.iter().map(stored_event).collect())
}

/// Returns the id of the newest event.
pub(crate) async fn last_event(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    let text = "SELECT CAST(COALESCE(MAX(id), 0) AS BIGINT) FROM event";
    Ok(sqlx::query(text).fetch_one(pool).await?.get(0))
}

/// Returns an order if it is active at this host.
pub(crate) async fn order(
    pool: &AnyPool,
    host: &str,
    id: OrderId,
) -> Result<Option<Order>, sqlx::Error> {
    let run = id.run();
    let sends = id.side() == RunSide::Source;
    let row = sqlx::query(
        "SELECT kind, request, from_host, to_host, from_path, to_path, policy, ticket, addresses, fingerprint
         FROM run WHERE id = $1 AND state = 0",
    )
    .bind(run)
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let text = |column: usize| row.get::<String, _>(column);
    let list = row.get::<i64, _>(0) == BatchKind::List as i64;
    let mine = if sends { text(2) == host } else { text(3) == host && !list };
    if !mine {
        return Ok(None);
    }
    let task = match (sends, list) {
        (false, _) => OrderTask::Receive { ticket: text(7), below: text(5) },
        (true, true) => OrderTask::List { path: text(4) },
        (true, false) => {
            let Ok(policy) = serde_json::from_str::<TransferPolicy>(&text(6)) else {
                return Ok(None);
            };
            OrderTask::Send(Box::new(Send {
                from: text(4),
                to: text(5),
                files: order_files(pool, run).await?,
                addresses: serde_json::from_str(&text(8)).unwrap_or_default(),
                fingerprint: text(9),
                ticket: text(7),
                batch: batch_name(pool, run).await?,
                scitag: policy.scitag,
                overwrite: policy.overwrite,
                verify: policy.verify,
                encrypt: policy.encrypt,
            }))
        }
    };
    let request = row.get::<i64, _>(1).to_string();
    Ok(Some(Order { order: id, request, task }))
}

/// Returns the name under which orders of the same batch resume each other's partial files.
async fn batch_name(pool: &AnyPool, run: i64) -> Result<Option<String>, sqlx::Error> {
    let text = "SELECT root FROM batch WHERE run = $1 ORDER BY place LIMIT 1";
    let row = sqlx::query(text).bind(run).fetch_optional(pool).await?;
    Ok(row.map(|row| format!("b{}", row.get::<i64, _>(0))))
}

/// Returns the files of a run, in the order of its list.
///
/// A settled file has no path there, so that a node that has lost the order does not send it again: its destination may
/// be that of another request since. The node reports such a file as failed, which changes no settled file.
async fn order_files(pool: &AnyPool, run: i64) -> Result<Vec<File>, sqlx::Error> {
    let text = "SELECT id, first, last, seqs FROM batch WHERE run = $1";
    let spans = sqlx::query(text).bind(run).fetch_all(pool).await?;
    let spans: HashMap<i64, FileSpan> =
        spans.iter().map(|row| (row.get(0), FileSpan::of(row, 1))).collect();
    // Sequence numbers ascend within a batch.
    let text = "SELECT b.id, f.seq, CASE WHEN f.state < 2 THEN f.path ELSE '' END, f.digest
         FROM batch b JOIN file f ON f.request = b.request AND f.seq >= b.first AND f.seq <= b.last
         WHERE b.run = $1 ORDER BY b.place, f.seq";
    let rows = sqlx::query(text).bind(run).fetch_all(pool).await?;
    let wanted = |row: &&AnyRow| spans.get(&row.get(0)).is_some_and(|span| span.has(row.get(1)));
    let file = |row: &AnyRow| File { path: row.get(2), digest: row.get(3) };
    Ok(rows.iter().filter(wanted).map(file).collect())
}

/// A run as shown by the API.
#[derive(Debug, Clone)]
pub(crate) struct StoredRun {
    pub(crate) id: i64,
    pub(crate) kind: i64,
    pub(crate) class: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) files: i64,
    pub(crate) bytes: i64,
    pub(crate) state: i64,
    pub(crate) phase: i64,
    pub(crate) rate_bps: Option<i64>,
    pub(crate) applied_bps: Option<i64>,
    pub(crate) measured_bps: i64,
    pub(crate) streams: i64,
    pub(crate) route: Vec<String>,
    pub(crate) reason: String,
    pub(crate) bound_by: String,
    pub(crate) label: String,
    pub(crate) waiting: Option<String>,
    pub(crate) off_path: bool,
    pub(crate) settled_files: i64,
    pub(crate) moved: i64,
    pub(crate) started: i64,
    pub(crate) seen: i64,
    pub(crate) why: Option<String>,
}

/// Returns unfinished runs, of one request or all.
pub(crate) async fn runs(
    pool: &AnyPool,
    request: Option<i64>,
    limit: i64,
) -> Result<Vec<StoredRun>, sqlx::Error> {
    let of = match request {
        Some(_) => "AND id IN (SELECT run FROM batch WHERE request = $2 AND state = 2)",
        None => "",
    };
    let text = format!(
        "SELECT id, kind, class, from_host, to_host, files, bytes, state, phase, rate_bps, applied_bps, measured_bps,
            live_streams, route, reason, bound_by, label, waiting, off_path, settled_files, moved, started, seen, why
         FROM run WHERE state < 2 {of} ORDER BY id LIMIT $1"
    );
    let query = sqlx::query(AssertSqlSafe(text)).bind(limit);
    let query = match request {
        Some(request) => query.bind(request),
        None => query,
    };
    let rows = query.fetch_all(pool).await?;
    let run = |row: &AnyRow| StoredRun {
        id: row.get(0),
        kind: row.get(1),
        class: row.get(2),
        from: row.get(3),
        to: row.get(4),
        files: row.get(5),
        bytes: row.get(6),
        state: row.get(7),
        phase: row.get(8),
        rate_bps: row.get(9),
        applied_bps: row.get(10),
        measured_bps: row.get(11),
        streams: row.get(12),
        route: serde_json::from_str(&row.get::<String, _>(13)).unwrap_or_default(),
        reason: row.get(14),
        bound_by: row.get(15),
        label: row.get(16),
        waiting: row.get(17),
        off_path: row.get::<i64, _>(18) > 0,
        settled_files: row.get(19),
        moved: row.get(20),
        started: row.get(21),
        seen: row.get(22),
        why: row.get(23),
    };
    Ok(rows.iter().map(run).collect())
}

/// Returns when the next retry of a request is due in Unix milliseconds; none if a batch may start at once.
pub(crate) async fn next_attempt(pool: &AnyPool, request: i64) -> Result<Option<i64>, sqlx::Error> {
    let text =
        "SELECT MIN(CASE WHEN state = 0 THEN not_before END), MIN(CASE WHEN state = 1 THEN 1 END)
        FROM batch WHERE request = $1";
    let row = sqlx::query(text).bind(request).fetch_one(pool).await?;
    let is_queued = row.get::<Option<i64>, _>(1).is_some();
    Ok(row.get::<Option<i64>, _>(0).filter(|_| !is_queued))
}

/// Returns the names of links that are down, as set by an operator or monitor or as reported by the collector.
pub(crate) async fn down_links(pool: &AnyPool) -> Result<HashSet<String>, sqlx::Error> {
    let text = "SELECT name FROM link WHERE down = 1 UNION SELECT link FROM seen WHERE up = 0";
    let rows = sqlx::query(text).fetch_all(pool).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
