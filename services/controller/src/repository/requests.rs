//! Table `request`: what clients asked for, with the counts from which its state follows.

use std::collections::BTreeMap;
use std::ops::Range;

use penstock_control::batch::BatchState;
use penstock_control::cancellation::REQUESTS_PER_TX_MAX;
use penstock_control::orders::{OrderTransport, Overwrite, TuningMode, Verify};
use penstock_control::quota::ClientUsage;
use penstock_control::request::{RequestDelta, RequestState, RequestTally};
use penstock_control::run::RunState;
use serde::{Deserialize, Serialize};
use sqlx::any::AnyArguments;
use sqlx::{AnyPool, Arguments};

use super::batches;
use super::rows::{IdRow, JsonColumn, TypedRow, table_row, typed_row, written_row};
use super::statement::{
    add_clause, capped_total, insert_rows, select, select_one, select_with, set_clause, statement,
    with_rows,
};
use super::writer::TxContext;

const RUNNING_BATCH: i64 = BatchState::Running.number();
const ACTIVE_RUN: i64 = RunState::Active.number();

table_row! {
    /// A request as stored.
    #[derive(Debug, Clone)]
    pub(crate) struct StoredRequest {
        pub(crate) id: i64,
        pub(crate) client: String,
        /// Idempotency key of the client.
        pub(crate) client_key: Option<String>,
        /// Hash of the request body.
        pub(crate) body: String,
        pub(crate) class: String,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) from_path: String,
        pub(crate) to_path: String,
        pub(crate) policy: JsonColumn<Option<TransferPolicy>>,
        pub(crate) lane: String,
        pub(crate) queue: i64,
        pub(crate) priority: i64,
        pub(crate) deadline: Option<i64>,
        pub(crate) size_estimate: Option<i64>,
        pub(crate) state: RequestState,
        pub(crate) paused: bool,
        pub(crate) cancel: bool,
        pub(crate) open: bool,
        pub(crate) broken: bool,
        pub(crate) files: u64,
        pub(crate) active: u64,
        pub(crate) done: u64,
        pub(crate) failed: u64,
        pub(crate) cancelled: u64,
        pub(crate) bytes: i64,
        pub(crate) bytes_done: i64,
        pub(crate) sized: i64,
        pub(crate) submitted: i64,
        pub(crate) changed: i64,
        pub(crate) ended: Option<i64>,
        pub(crate) trouble: Option<String>,
        pub(crate) transport: Option<String>,
        pub(crate) transport_reason: Option<String>,
    }
}

impl StoredRequest {
    /// Returns the number of its files that are not settled.
    pub(crate) fn unsettled_files(&self) -> u64 {
        self.files.saturating_sub(self.done + self.failed + self.cancelled)
    }
}

/// Returns a request by its id.
pub(crate) async fn find(pool: &AnyPool, id: i64) -> Result<Option<StoredRequest>, sqlx::Error> {
    select(format!("SELECT {} FROM request WHERE id = $1", StoredRequest::columns()))
        .bind(id)
        .fetch_optional(pool)
        .await
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
struct SqlCondition {
    text: String,
    arguments: AnyArguments,
}

impl SqlCondition {
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
pub(crate) async fn list(
    pool: &AnyPool,
    filter: &RequestFilter,
) -> Result<Vec<StoredRequest>, sqlx::Error> {
    let mut condition = SqlCondition::new();
    if let Some(before) = filter.before {
        condition.number("id <", before)?;
    }
    if !filter.states.is_empty() {
        let states: Vec<_> = filter.states.iter().map(|state| state.number().to_string()).collect();
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
        StoredRequest::columns(),
        condition.text,
        filter.limit
    );
    select_with(text, condition.arguments).fetch_all(pool).await
}

/// Returns the number of requests that have not ended.
pub(crate) async fn open_count(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    select_one("SELECT COUNT(*) FROM request WHERE ended IS NULL").fetch_one(pool).await
}

/// Returns the number of requests.
pub(crate) async fn count(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    select_one("SELECT COUNT(*) FROM request").fetch_one(pool).await
}

typed_row! {
    /// State and counts of a request, for the invariants of a simulation.
    #[derive(Debug, Clone)]
    pub(crate) struct RequestSummary {
        pub(crate) id: i64,
        pub(crate) state: RequestState,
        pub(crate) files: i64,
        pub(crate) done: i64,
        pub(crate) failed: i64,
        pub(crate) cancelled: i64,
        pub(crate) cancel: bool,
        pub(crate) paused: bool,
    }
}

/// Returns all requests by id.
pub(crate) async fn summaries(pool: &AnyPool) -> Result<Vec<RequestSummary>, sqlx::Error> {
    select(format!("SELECT {} FROM request ORDER BY id", RequestSummary::columns()))
        .fetch_all(pool)
        .await
}

/// Transfer options of a request's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferPolicy {
    pub(crate) verify: Verify,
    pub(crate) overwrite: Overwrite,
    pub(crate) encrypt: bool,
    pub(crate) attempts: u32,
    pub(crate) scitag: Option<u16>,
    /// Use of the tuner; absent in requests that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tune: Option<TuningMode>,
    /// Transport of the data; absent in requests that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<OrderTransport>,
}

/// Inserts requests; drops those whose idempotency key is in use. Returns the number inserted.
pub(crate) async fn insert(
    cx: &mut TxContext,
    requests: Vec<StoredRequest>,
) -> Result<u64, sqlx::Error> {
    insert_rows("request", requests).after("ON CONFLICT DO NOTHING").execute(&mut cx.tx).await
}

/// Returns the ids of stored requests in a range.
pub(crate) async fn ids_in(cx: &mut TxContext, ids: Range<i64>) -> Result<Vec<i64>, sqlx::Error> {
    let query = select_one("SELECT id FROM request WHERE id >= $1 AND id < $2");
    query.bind(ids.start).bind(ids.end).fetch_all(&mut cx.tx).await
}

written_row! {
    /// Transport of a run, as its source reports it first or anew.
    #[derive(Debug, Clone)]
    pub(crate) struct ReportedTransport {
        pub(crate) run: i64,
        pub(crate) transport: String,
        pub(crate) reason: String,
    }
}

/// Adds the transports of runs to those of their requests.
pub(crate) async fn add_transports(
    cx: &mut TxContext,
    runs: Vec<ReportedTransport>,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE request SET transport_reason = v.reason,
            transport = CASE WHEN COALESCE(request.transport, v.transport) = v.transport THEN v.transport ELSE 'mixed' END
         FROM v JOIN batch ON batch.run = v.run WHERE request.id = batch.request";
    with_rows(runs, text).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    /// A request that has an idempotency key.
    #[derive(Debug, Clone)]
    pub(crate) struct KeyedRequest {
        pub(crate) id: i64,
        /// Hash of the request body.
        pub(crate) body: String,
    }
}

/// Returns the request of a client with an idempotency key, which must be stored.
pub(crate) async fn by_key(
    cx: &mut TxContext,
    client: &str,
    key: Option<String>,
) -> Result<KeyedRequest, sqlx::Error> {
    find_by_key(cx, client, key).await?.ok_or(sqlx::Error::RowNotFound)
}

/// Returns the request of a client with an idempotency key; none if there is none.
pub(crate) async fn find_by_key(
    cx: &mut TxContext,
    client: &str,
    key: Option<String>,
) -> Result<Option<KeyedRequest>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM request WHERE client = $1 AND client_key = $2",
        KeyedRequest::columns()
    );
    select(text).bind(client.to_owned()).bind(key).fetch_optional(&mut cx.tx).await
}

typed_row! {
    /// Sums over the requests of a client that have not ended.
    #[derive(Debug, Clone)]
    struct UsageRow {
        requests: i64,
        bytes: i64,
    }
}

/// Returns what a client has in requests that have not ended. Bytes are those that are known, or the larger estimate.
pub(crate) async fn usage(cx: &mut TxContext, client: &str) -> Result<ClientUsage, sqlx::Error> {
    let left = "CASE WHEN size_estimate > bytes THEN size_estimate ELSE bytes END - bytes_done";
    let bytes = capped_total(&format!("CASE WHEN {left} > 0 THEN {left} ELSE 0 END"));
    let text = format!(
        "SELECT COUNT(*) AS requests, {bytes} AS bytes FROM request WHERE client = $1 AND ended IS NULL"
    );
    let UsageRow { requests, bytes } =
        select::<UsageRow>(text).bind(client.to_owned()).fetch_one(&mut cx.tx).await?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(ClientUsage { requests: count(requests), bytes: count(bytes) })
}

/// Deletes a request with its files.
pub(crate) async fn delete_with_files(cx: &mut TxContext, id: i64) -> Result<(), sqlx::Error> {
    let files = statement("DELETE FROM file WHERE request = $1").bind(id);
    files.execute(&mut cx.tx).await?;
    let request = statement("DELETE FROM request WHERE id = $1").bind(id);
    request.execute(&mut cx.tx).await.map(drop)
}

/// Deletes requests with their files and events.
pub(crate) async fn purge(cx: &mut TxContext, requests: &[i64]) -> Result<(), sqlx::Error> {
    for text in [
        "DELETE FROM file WHERE request IN (SELECT id FROM v)",
        "DELETE FROM event WHERE request IN (SELECT id FROM v)",
        "DELETE FROM request WHERE id IN (SELECT id FROM v)",
    ] {
        let ids = requests.iter().map(|id| IdRow { id: *id });
        with_rows(ids, text).execute(&mut cx.tx).await?;
    }
    Ok(())
}

typed_row! {
    /// A request that ended long ago.
    #[derive(Debug, Clone)]
    pub(crate) struct ExpiredRequest {
        pub(crate) id: i64,
        pub(crate) files: i64,
    }
}

/// Returns requests that ended before a time in Unix milliseconds, the oldest first.
pub(crate) async fn ended_before(
    cx: &mut TxContext,
    before: i64,
    limit: i64,
) -> Result<Vec<ExpiredRequest>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM request WHERE ended < $1 ORDER BY ended LIMIT {limit}",
        ExpiredRequest::columns()
    );
    select(text).bind(before).fetch_all(&mut cx.tx).await
}

typed_row! {
    /// State of a request that a client changes, with what new batches of it need.
    #[derive(Debug, Clone)]
    pub(crate) struct RequestTerms {
        pub(crate) state: RequestState,
        pub(crate) client: String,
        pub(crate) class: String,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) from_path: String,
        pub(crate) to_path: String,
        /// [`TransferPolicy`] as JSON.
        pub(crate) policy: String,
        pub(crate) files: i64,
        pub(crate) priority: i64,
        pub(crate) deadline: Option<i64>,
        pub(crate) lane: String,
        pub(crate) open: bool,
        pub(crate) paused: bool,
        pub(crate) cancel: bool,
    }
}

/// Returns the state and terms of a request.
pub(crate) async fn terms(
    cx: &mut TxContext,
    id: i64,
) -> Result<Option<RequestTerms>, sqlx::Error> {
    select(format!("SELECT {} FROM request WHERE id = $1", RequestTerms::columns()))
        .bind(id)
        .fetch_optional(&mut cx.tx)
        .await
}

/// Stores the priority of a request.
pub(crate) async fn set_priority(
    cx: &mut TxContext,
    id: i64,
    priority: i64,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE request SET priority = $1, changed = $2 WHERE id = $3");
    query.bind(priority).bind(cx.now).bind(id).execute(&mut cx.tx).await.map(drop)
}

/// Stores the deadline of a request, in Unix milliseconds.
pub(crate) async fn set_deadline(
    cx: &mut TxContext,
    id: i64,
    deadline: Option<i64>,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE request SET deadline = $1, changed = $2 WHERE id = $3");
    query.bind(deadline).bind(cx.now).bind(id).execute(&mut cx.tx).await.map(drop)
}

/// Stores that a request is paused or not.
pub(crate) async fn set_paused(
    cx: &mut TxContext,
    id: i64,
    paused: bool,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE request SET paused = $1, changed = $2 WHERE id = $3");
    query.bind(i64::from(paused)).bind(cx.now).bind(id).execute(&mut cx.tx).await.map(drop)
}

/// Stores that a client cancelled a request. Returns false if that is stored already.
pub(crate) async fn set_cancelled(cx: &mut TxContext, id: i64) -> Result<bool, sqlx::Error> {
    let query =
        statement("UPDATE request SET cancel = 1, changed = $1 WHERE id = $2 AND cancel = 0");
    Ok(query.bind(cx.now).bind(id).execute(&mut cx.tx).await?.rows_affected() > 0)
}

/// Stores that no more files are appended to a request.
pub(crate) async fn seal(cx: &mut TxContext, id: i64) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE request SET open = 0, changed = $1 WHERE id = $2");
    query.bind(cx.now).bind(id).execute(&mut cx.tx).await.map(drop)
}

/// Stores that a listed path is a file: the request's path is its directory, and no more files follow.
pub(crate) async fn set_single_file(
    cx: &mut TxContext,
    id: i64,
    directory: &str,
    lane: &str,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE request SET from_path = $1, lane = $2, open = 0 WHERE id = $3");
    let query = query.bind(directory.to_owned()).bind(lane.to_owned()).bind(id);
    query.execute(&mut cx.tx).await.map(drop)
}

/// Stores that a listing has ended; `trouble` is the reason why the directory cannot be listed.
pub(crate) async fn end_listing(
    cx: &mut TxContext,
    id: i64,
    trouble: Option<String>,
) -> Result<(), sqlx::Error> {
    let query = statement(
        "UPDATE request SET open = 0, broken = $1, trouble = COALESCE($2, trouble), changed = $3 WHERE id = $4",
    );
    let query = query.bind(i64::from(trouble.is_some())).bind(trouble).bind(cx.now).bind(id);
    query.execute(&mut cx.tx).await.map(drop)
}

/// True if files may be added to a request.
pub(crate) async fn is_open(cx: &mut TxContext, id: i64) -> Result<bool, sqlx::Error> {
    let query = select_one::<i64>("SELECT open FROM request WHERE id = $1").bind(id);
    Ok(query.fetch_one(&mut cx.tx).await? > 0)
}

written_row! {
    struct RequestTrouble {
        id: i64,
        trouble: String,
    }
}

/// Stores the last faults of requests.
pub(crate) async fn set_troubles(
    cx: &mut TxContext,
    troubles: Vec<(i64, String)>,
) -> Result<(), sqlx::Error> {
    let rows = troubles.into_iter().map(|(id, trouble)| RequestTrouble { id, trouble });
    let text = "UPDATE request SET trouble = v.trouble FROM v WHERE request.id = v.id";
    with_rows(rows, text).execute(&mut cx.tx).await.map(drop)
}

/// Changes of the counts of requests, by id.
pub(crate) type RequestDeltas = BTreeMap<i64, RequestDelta>;

typed_row! {
    /// State, class and counts of a request.
    #[derive(Debug, Clone)]
    pub(crate) struct TallyRow {
        pub(crate) id: i64,
        pub(crate) state: RequestState,
        pub(crate) class: String,
        files: u64,
        active: u64,
        done: u64,
        failed: u64,
        cancelled: u64,
        open: bool,
        cancel: bool,
        broken: bool,
    }
}

impl TallyRow {
    /// Returns its counts of files.
    pub(crate) fn tally(&self) -> RequestTally {
        RequestTally {
            files: self.files,
            active: self.active,
            done: self.done,
            failed: self.failed,
            cancelled: self.cancelled,
            open: self.open,
            cancel: self.cancel,
            broken: self.broken,
        }
    }
}

written_row! {
    struct RequestDeltaRow {
        id: i64,
        files: i64,
        active: i64,
        done: i64,
        failed: i64,
        cancelled: i64,
        bytes: i64,
        bytes_done: i64,
        sized: i64,
    }
}

/// Adds to the counts of requests. Returns their new counts.
pub(crate) async fn add_to_counts(
    cx: &mut TxContext,
    deltas: RequestDeltas,
) -> Result<Vec<TallyRow>, sqlx::Error> {
    let rows = deltas.into_iter().map(|(id, delta)| RequestDeltaRow {
        id,
        files: delta.files,
        active: delta.active,
        done: delta.done,
        failed: delta.failed,
        cancelled: delta.cancelled,
        bytes: delta.bytes,
        bytes_done: delta.bytes_done,
        sized: delta.sized,
    });
    let text = format!(
        "UPDATE request SET {}, changed = $1 FROM v WHERE request.id = v.id RETURNING {}",
        add_clause::<RequestDeltaRow>("request", &["id"]),
        TallyRow::columns_of("request")
    );
    with_rows(rows, text).bind(cx.now).fetch_all(&mut cx.tx).await
}

/// Returns the counts of a request, if it is stored.
pub(crate) async fn counts(cx: &mut TxContext, id: i64) -> Result<Vec<TallyRow>, sqlx::Error> {
    let text = format!("SELECT {} FROM request WHERE id = $1", TallyRow::columns());
    select(text).bind(id).fetch_all(&mut cx.tx).await
}

written_row! {
    struct RequestStateRow {
        id: i64,
        state: RequestState,
        ended: Option<i64>,
    }
}

/// Stores the states of requests; those with a final state end now.
pub(crate) async fn set_states(
    cx: &mut TxContext,
    states: Vec<(i64, RequestState)>,
) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let rows = states.into_iter().map(|(id, state)| RequestStateRow {
        id,
        state,
        ended: state.is_final().then_some(now),
    });
    let text = format!(
        "UPDATE request SET {} FROM v WHERE request.id = v.id",
        set_clause::<RequestStateRow>(&["id"])
    );
    with_rows(rows, text).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    /// Columns of a request that the orders of a run use. The policy is JSON.
    #[derive(Debug, Clone)]
    pub(crate) struct OrderTerms {
        pub(crate) class: String,
        pub(crate) from_path: String,
        pub(crate) to_path: String,
        pub(crate) policy: String,
    }
}

/// Returns what a run needs of its request.
pub(crate) async fn order_terms(cx: &mut TxContext, id: i64) -> Result<OrderTerms, sqlx::Error> {
    let text = format!("SELECT {} FROM request WHERE id = $1", OrderTerms::columns());
    select(text).bind(id).fetch_one(&mut cx.tx).await
}

typed_row! {
    /// A request that a client cancelled and that has not ended.
    #[derive(Debug, Clone)]
    pub(crate) struct CancelledRequest {
        pub(crate) id: i64,
        pub(crate) open: bool,
    }
}

/// Returns cancelled requests that have not ended, without those that only wait for their hosts, as these would starve the
/// others. Hosts silent since `since` are gone.
pub(crate) async fn cancelled(
    cx: &mut TxContext,
    since: i64,
) -> Result<Vec<CancelledRequest>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM request WHERE cancel = 1 AND ended IS NULL AND (open = 1 OR EXISTS (
            SELECT 1 FROM batch WHERE batch.request = request.id AND (state <> {RUNNING_BATCH} OR {}
                OR EXISTS (SELECT 1 FROM run n WHERE n.id = batch.run AND n.state = {ACTIVE_RUN}))))
         ORDER BY id LIMIT $1",
        CancelledRequest::columns(),
        batches::gone_condition()
    );
    select(text).bind(REQUESTS_PER_TX_MAX).bind(since).fetch_all(&mut cx.tx).await
}
