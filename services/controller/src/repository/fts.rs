//! Tables `fts_job` and `fts_file`: jobs of FTS3 clients and their transfers.

use penstock_control::fts::state::{FtsFileEvent, FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::request::RequestState;
use penstock_control::retention::PURGE_ROWS_PER_TX_MAX;
use serde_json::Value;
use sqlx::AnyPool;

use super::db;
use super::rows::{JsonColumn, TypedRow, table_row, typed_row, written_row};
use super::statement::{insert_rows, select, select_one, statement};
use super::writer::TxContext;

/// Most jobs that one transaction purges.
const PURGED_JOBS_MAX: i64 = 100;

/// First number of a state without work left; indexes of waiting work repeat the condition.
const STATE_FINAL_MIN: i64 = FtsFileState::Finished.number();

const STATE_SUBMITTED: i64 = FtsFileState::Submitted.number();

const STATE_READY: i64 = FtsFileState::Ready.number();

const STATE_ACTIVE: i64 = FtsFileState::Active.number();

const REQUEST_ACTIVE: i64 = RequestState::Active.number();

/// First number of a final state of a request.
const REQUEST_FINAL_MIN: i64 = RequestState::Done.number();

table_row! {
    /// A job of an FTS3 client.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsJobRow {
        pub(crate) id: i64,
        pub(crate) uuid: String,
        pub(crate) client: String,
        pub(crate) class: String,
        pub(crate) kind: FtsJobKind,
        pub(crate) state: FtsJobState,
        pub(crate) priority: i64,
        pub(crate) verify: String,
        pub(crate) overwrite: bool,
        pub(crate) retry: i64,
        pub(crate) retry_delay_s: i64,
        pub(crate) timeout_s: i64,
        pub(crate) metadata: JsonColumn<Value>,
        pub(crate) reason: Option<String>,
        /// Unix milliseconds, as all times.
        pub(crate) submitted: i64,
        /// Time at which files that have not begun fail.
        pub(crate) expires: Option<i64>,
        pub(crate) ended: Option<i64>,
    }
}

typed_row! {
    /// A transfer of a job.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsFileRow {
        pub(crate) id: i64,
        pub(crate) job: i64,
        pub(crate) state: FtsFileState,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) source_token: Option<String>,
        pub(crate) destination_token: Option<String>,
        pub(crate) checksum: Option<String>,
        pub(crate) size: Option<i64>,
        pub(crate) activity: Option<String>,
        /// Class of work of its request.
        pub(crate) class: String,
        pub(crate) metadata: JsonColumn<Value>,
        pub(crate) scitag: Option<i64>,
        /// True if a request of the controller moves it between agents.
        pub(crate) by_request: bool,
        /// Id of that request, once there is one.
        pub(crate) request: Option<i64>,
        pub(crate) attempt: i64,
        pub(crate) moved: i64,
        pub(crate) reason: Option<String>,
        pub(crate) started: Option<i64>,
        pub(crate) ended: Option<i64>,
    }
}

written_row! {
    /// A transfer as it is first stored; [`insert`] sets its id and job.
    #[derive(Debug, Clone)]
    pub(crate) struct NewFtsFile {
        pub(crate) id: i64,
        pub(crate) job: i64,
        pub(crate) state: FtsFileState,
        pub(crate) priority: i64,
        /// Storages of both ends, whose concurrency is limited.
        pub(crate) pair: String,
        pub(crate) not_before: i64,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) source_token: Option<String>,
        pub(crate) destination_token: Option<String>,
        pub(crate) checksum: Option<String>,
        pub(crate) size: Option<i64>,
        pub(crate) activity: Option<String>,
        pub(crate) class: String,
        pub(crate) metadata: String,
        pub(crate) scitag: Option<i64>,
        pub(crate) by_request: bool,
        pub(crate) attempt: i64,
        pub(crate) moved: i64,
    }
}

/// Filter of a list of jobs; absent parts match all.
#[derive(Debug, Clone, Default)]
pub(crate) struct FtsJobFilter {
    pub(crate) client: Option<String>,
    pub(crate) class: Option<String>,
    /// Prefixes of URLs of a file.
    pub(crate) source: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) states: Vec<FtsJobState>,
    pub(crate) viewer: Option<FtsJobViewer>,
    pub(crate) limit: i64,
}

/// A client that sees its own jobs, and those of some classes.
#[derive(Debug, Clone)]
pub(crate) struct FtsJobViewer {
    pub(crate) client: String,
    pub(crate) classes: Vec<String>,
}

/// Stores a job, whose id is replaced. Returns false if one with its uuid exists.
pub(crate) async fn insert(
    cx: &mut TxContext,
    job: &FtsJobRow,
    files: &[NewFtsFile],
) -> Result<bool, sqlx::Error> {
    if job_of(cx, &job.uuid).await?.is_some() {
        return Ok(false);
    }
    let id = db::allocate_ids(&mut cx.tx, "id", files.len() + 1).await?;
    let row = FtsJobRow { id, submitted: cx.now, ..job.clone() };
    insert_rows("fts_job", [row]).execute(&mut cx.tx).await?;
    let rows = (id + 1..).zip(files).map(|(file_id, file)| NewFtsFile {
        id: file_id,
        job: id,
        ..file.clone()
    });
    insert_rows("fts_file", rows).execute(&mut cx.tx).await?;
    Ok(true)
}

fn job_text() -> String {
    let columns = FtsJobRow::columns();
    format!("SELECT {columns} FROM fts_job WHERE uuid = $1")
}

/// Returns the job with this uuid.
pub(crate) async fn job(pool: &AnyPool, uuid: &str) -> Result<Option<FtsJobRow>, sqlx::Error> {
    select(job_text()).bind(uuid.to_owned()).fetch_optional(pool).await
}

async fn job_of(cx: &mut TxContext, uuid: &str) -> Result<Option<FtsJobRow>, sqlx::Error> {
    select(job_text()).bind(uuid.to_owned()).fetch_optional(&mut cx.tx).await
}

/// Returns the job of a file.
pub(crate) async fn job_by_id(pool: &AnyPool, id: i64) -> Result<Option<FtsJobRow>, sqlx::Error> {
    let columns = FtsJobRow::columns();
    let text = format!("SELECT {columns} FROM fts_job WHERE id = $1");
    select(text).bind(id).fetch_optional(pool).await
}

fn files_text() -> String {
    let columns = FtsFileRow::columns();
    format!("SELECT {columns} FROM fts_file WHERE job = $1 ORDER BY id")
}

/// Returns the transfers of a job, by index.
pub(crate) async fn files(pool: &AnyPool, job: i64) -> Result<Vec<FtsFileRow>, sqlx::Error> {
    select(files_text()).bind(job).fetch_all(pool).await
}

async fn files_of(cx: &mut TxContext, job: i64) -> Result<Vec<FtsFileRow>, sqlx::Error> {
    select(files_text()).bind(job).fetch_all(&mut cx.tx).await
}

/// Returns jobs, newest first.
pub(crate) async fn list(
    pool: &AnyPool,
    filter: &FtsJobFilter,
) -> Result<Vec<FtsJobRow>, sqlx::Error> {
    let states: Vec<String> =
        filter.states.iter().map(|state| state.number().to_string()).collect();
    let states = match states.is_empty() {
        true => String::new(),
        false => format!(" AND state IN ({})", states.join(", ")),
    };
    let visible = filter.viewer.as_ref().map_or_else(String::new, |viewer| {
        let places = (7..).take(viewer.classes.len()).map(|number| format!(", ${number}"));
        format!(" AND (client = $6 OR class IN (NULL{}))", places.collect::<String>())
    });
    let columns = FtsJobRow::columns();
    let text = format!(
        "SELECT {columns} FROM fts_job WHERE (client = $1 OR $1 = '') AND (class = $2 OR $2 = '')
            AND ($3 = '' OR EXISTS (SELECT 1 FROM fts_file WHERE job = fts_job.id AND SUBSTR(source, 1, LENGTH($3)) = $3))
            AND ($4 = '' OR EXISTS (SELECT 1 FROM fts_file WHERE job = fts_job.id AND SUBSTR(destination, 1, LENGTH($4)) = $4))
            {states}{visible} ORDER BY id DESC LIMIT $5"
    );
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let mut query = select(text)
        .bind(part(&filter.client))
        .bind(part(&filter.class))
        .bind(part(&filter.source))
        .bind(part(&filter.destination))
        .bind(filter.limit);
    if let Some(FtsJobViewer { client, classes }) = &filter.viewer {
        query = query.bind(client.clone());
        for class in classes {
            query = query.bind(class.clone());
        }
    }
    query.fetch_all(pool).await
}

/// Returns the names of all clients with jobs, one search of the index for each.
pub(crate) async fn clients(pool: &AnyPool) -> Result<Vec<String>, sqlx::Error> {
    let text = "WITH RECURSIVE name (client) AS (SELECT MIN(client) FROM fts_job
            UNION ALL SELECT (SELECT MIN(client) FROM fts_job WHERE client > name.client) FROM name WHERE client IS NOT NULL)
            SELECT client FROM name WHERE client IS NOT NULL";
    select_one(text).fetch_all(pool).await
}

/// Means that moves a file; the value is its number in the column `by_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FtsMover {
    /// A copy over HTTP that the controller drives.
    Copy = 0,
    /// A request of the controller.
    Request = 1,
}

/// Returns the pairs of storages with files that are due.
pub(crate) async fn due_pairs(
    pool: &AnyPool,
    mover: FtsMover,
    now: i64,
) -> Result<Vec<String>, sqlx::Error> {
    let mover = mover as i64;
    let text = format!(
        "SELECT DISTINCT pair FROM fts_file WHERE state < {STATE_FINAL_MIN} AND by_request = {mover}
            AND state = {STATE_SUBMITTED} AND not_before <= $1"
    );
    select_one(text).bind(now).fetch_all(pool).await
}

/// Returns the next due files of a pair, those of higher priority first.
pub(crate) async fn due(
    pool: &AnyPool,
    mover: FtsMover,
    pair: &str,
    now: i64,
    limit: i64,
) -> Result<Vec<FtsFileRow>, sqlx::Error> {
    let mover = mover as i64;
    let columns = FtsFileRow::columns();
    let text = format!(
        "SELECT {columns} FROM fts_file WHERE state < {STATE_FINAL_MIN} AND by_request = {mover}
            AND state = {STATE_SUBMITTED} AND pair = $1 AND not_before <= $2 ORDER BY priority DESC, id LIMIT $3"
    );
    select(text).bind(pair.to_owned()).bind(now).bind(limit).fetch_all(pool).await
}

/// Returns the ids of files that are copied over HTTP.
pub(crate) async fn active(pool: &AnyPool) -> Result<Vec<i64>, sqlx::Error> {
    let text = format!(
        "SELECT id FROM fts_file WHERE state < {STATE_FINAL_MIN} AND by_request = 0 AND state = {STATE_ACTIVE}"
    );
    select_one(text).fetch_all(pool).await
}

/// Returns the number of files that are copied, over HTTP or by requests.
pub(crate) async fn active_count(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    let text = format!(
        "SELECT COUNT(*) FROM fts_file WHERE state < {STATE_FINAL_MIN} AND by_request IN (0, 1)
            AND state = {STATE_ACTIVE}"
    );
    select_one(text).fetch_one(pool).await
}

typed_row! {
    /// A file whose request has gone on since the file was stored.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsRequestNews {
        /// Id of the file.
        pub(crate) id: i64,
        /// None if the request was purged.
        pub(crate) state: Option<RequestState>,
        pub(crate) bytes: Option<i64>,
        /// Size that the job gave.
        pub(crate) size: Option<i64>,
        pub(crate) fault: Option<String>,
    }
}

/// Returns files between agents whose request has begun or ended.
pub(crate) async fn request_news(
    pool: &AnyPool,
    limit: i64,
) -> Result<Vec<FtsRequestNews>, sqlx::Error> {
    let text = format!(
        "SELECT n.id AS id, r.state AS state, r.bytes_done AS bytes, n.size AS size, f.fault AS fault
            FROM fts_file n LEFT JOIN request r ON r.id = n.request LEFT JOIN file f ON f.request = r.id AND f.seq = 0
            WHERE n.state < {STATE_FINAL_MIN} AND n.by_request = 1 AND n.state IN ({STATE_READY}, {STATE_ACTIVE})
            AND (r.id IS NULL OR r.state >= {REQUEST_FINAL_MIN}
                OR (n.state = {STATE_READY} AND r.state = {REQUEST_ACTIVE})) LIMIT $1"
    );
    select(text).bind(limit).fetch_all(pool).await
}

typed_row! {
    /// A file whose request has moved more bytes.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsRequestBytes {
        pub(crate) id: i64,
        pub(crate) moved: i64,
    }
}

/// Returns files that are alone in a running order which has moved more bytes than is stored.
pub(crate) async fn request_bytes(
    pool: &AnyPool,
    limit: i64,
) -> Result<Vec<FtsRequestBytes>, sqlx::Error> {
    let text = format!(
        "SELECT n.id AS id, r.moved AS moved FROM fts_file n JOIN batch b ON b.request = n.request JOIN run r ON r.id = b.run
            WHERE n.state < {STATE_FINAL_MIN} AND n.by_request = 1 AND n.state = {STATE_ACTIVE}
            AND r.files = 1 AND r.moved > n.moved LIMIT $1"
    );
    select(text).bind(limit).fetch_all(pool).await
}

/// Stores the request that moves a file.
pub(crate) async fn set_request(
    cx: &mut TxContext,
    id: i64,
    request: i64,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE fts_file SET request = $1 WHERE id = $2").bind(request).bind(id);
    query.execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    /// A live file of a job and its request.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsLiveRequest {
        pub(crate) id: i64,
        pub(crate) state: FtsFileState,
        pub(crate) request: i64,
    }
}

/// Returns the live files of a job that requests move.
pub(crate) async fn live_requests(
    cx: &mut TxContext,
    job: i64,
) -> Result<Vec<FtsLiveRequest>, sqlx::Error> {
    let text = format!(
        "SELECT id, state, request FROM fts_file WHERE job = $1 AND state < {STATE_FINAL_MIN} AND request IS NOT NULL"
    );
    select(text).bind(job).fetch_all(&mut cx.tx).await
}

/// Returns jobs with files that have waited for too long.
pub(crate) async fn expired(pool: &AnyPool, now: i64) -> Result<Vec<i64>, sqlx::Error> {
    let text =
        "SELECT id FROM fts_job WHERE ended IS NULL AND expires <= $1 ORDER BY expires LIMIT 100";
    select_one(text).bind(now).fetch_all(pool).await
}

/// Change of a file by an event.
#[derive(Debug, Clone)]
pub(crate) struct FtsFileChange {
    pub(crate) event: FtsFileEvent,
    pub(crate) reason: Option<String>,
    /// Time of the next attempt, in Unix milliseconds.
    pub(crate) not_before: i64,
    pub(crate) moved: Option<i64>,
    pub(crate) size: Option<i64>,
}

impl FtsFileChange {
    pub(crate) fn new(event: FtsFileEvent) -> Self {
        Self { event, reason: None, not_before: 0, moved: None, size: None }
    }
}

/// Applies an event to a file and its job. Returns false if the event has no effect in the file's state.
pub(crate) async fn change(
    cx: &mut TxContext,
    id: i64,
    change: &FtsFileChange,
) -> Result<bool, sqlx::Error> {
    let columns = FtsFileRow::columns();
    let text = format!("SELECT {columns} FROM fts_file WHERE id = $1");
    let Some(file) = select::<FtsFileRow>(text).bind(id).fetch_optional(&mut cx.tx).await? else {
        return Ok(false);
    };
    let Some(state) = file.state.transition(change.event) else { return Ok(false) };
    write_file(cx, &file, state, change).await?;
    let columns = FtsJobRow::columns();
    let text = format!("SELECT {columns} FROM fts_job WHERE id = $1");
    let job = select::<FtsJobRow>(text).bind(file.job).fetch_one(&mut cx.tx).await?;
    if job.kind.promotes_after(state) {
        let files = files_of(cx, job.id).await?;
        if let Some(next) = files.iter().find(|one| one.state == FtsFileState::NotUsed) {
            let promoted = FtsFileChange::new(FtsFileEvent::Promoted);
            if let Some(state) = next.state.transition(promoted.event) {
                write_file(cx, next, state, &promoted).await?;
            }
        }
    }
    update_job(cx, &job, change.reason.as_ref()).await?;
    Ok(true)
}

async fn write_file(
    cx: &mut TxContext,
    file: &FtsFileRow,
    state: FtsFileState,
    change: &FtsFileChange,
) -> Result<(), sqlx::Error> {
    let has_started = change.event == FtsFileEvent::Started;
    // A request may begin and end between two looks at it.
    let has_run = has_started || change.event == FtsFileEvent::Succeeded;
    let started = file.started.or(has_run.then_some(cx.now));
    // A file waits for another attempt without the request of the last one.
    let request = file.request.filter(|_| change.event != FtsFileEvent::Deferred);
    let is_attempt = match file.by_request {
        true => change.event == FtsFileEvent::Queued,
        false => has_started,
    };
    let ended = (!state.is_live()).then_some(cx.now);
    // Tokens are kept no longer than they are needed.
    let kept = |token: &Option<String>| token.clone().filter(|_| state.is_live());
    let text = "UPDATE fts_file SET state = $1, reason = $2, not_before = $3, attempt = $4, started = $5, ended = $6, \
                source_token = $7, destination_token = $8, moved = $9, size = $10, request = $11 WHERE id = $12";
    statement(text)
        .bind(state.number())
        .bind(change.reason.clone())
        .bind(change.not_before)
        .bind(file.attempt + i64::from(is_attempt))
        .bind(started)
        .bind(ended)
        .bind(kept(&file.source_token))
        .bind(kept(&file.destination_token))
        .bind(change.moved.unwrap_or(file.moved))
        .bind(change.size.or(file.size))
        .bind(request)
        .bind(file.id)
        .execute(&mut cx.tx)
        .await
        .map(drop)
}

typed_row! {
    /// Number of files of a job in one state.
    #[derive(Debug, Clone)]
    struct FtsStateCount {
        state: FtsFileState,
        files: u64,
    }
}

/// Derives the state of a job from the states of its files; `reason` is that of the last change.
async fn update_job(
    cx: &mut TxContext,
    job: &FtsJobRow,
    reason: Option<&String>,
) -> Result<(), sqlx::Error> {
    let text = "SELECT state, COUNT(*) AS files FROM fts_file WHERE job = $1 GROUP BY state";
    let counts: Vec<FtsStateCount> = select(text).bind(job.id).fetch_all(&mut cx.tx).await?;
    let of_state = |one: &FtsStateCount| std::iter::repeat_n(one.state, one.files as usize);
    let states: Vec<FtsFileState> = counts.iter().flat_map(of_state).collect();
    let state = FtsJobState::of(job.kind, &states);
    let reason = reason.or(job.reason.as_ref()).filter(|_| state != FtsJobState::Finished);
    let ended = state.is_final().then_some(cx.now);
    let text = "UPDATE fts_job SET state = $1, reason = $2, ended = $3 WHERE id = $4";
    let query = statement(text).bind(state.number()).bind(reason.cloned()).bind(ended).bind(job.id);
    query.execute(&mut cx.tx).await.map(drop)
}

/// Ends the live files of a job, or those of them with these ids, by an event. Returns the number of them.
pub(crate) async fn end_files(
    cx: &mut TxContext,
    job: i64,
    ids: Option<&[i64]>,
    ending: &FtsFileChange,
) -> Result<usize, sqlx::Error> {
    let columns = FtsJobRow::columns();
    let text = format!("SELECT {columns} FROM fts_job WHERE id = $1");
    let Some(job) = select::<FtsJobRow>(text).bind(job).fetch_optional(&mut cx.tx).await? else {
        return Ok(0);
    };
    let mut count = 0;
    for file in files_of(cx, job.id).await? {
        let is_meant = ids.is_none_or(|ids| ids.contains(&file.id));
        let is_expiry = ending.event == FtsFileEvent::Failed;
        let waits = matches!(file.state, FtsFileState::Submitted | FtsFileState::Ready);
        if !is_meant || (is_expiry && !waits) {
            continue;
        }
        if let Some(state) = file.state.transition(ending.event) {
            write_file(cx, &file, state, ending).await?;
            count += 1;
        }
    }
    if count > 0 {
        update_job(cx, &job, ending.reason.as_ref()).await?;
    }
    Ok(count)
}

/// Stores the bytes that a copy has moved so far.
pub(crate) async fn set_moved(cx: &mut TxContext, id: i64, moved: i64) -> Result<(), sqlx::Error> {
    let text = format!("UPDATE fts_file SET moved = $1 WHERE id = $2 AND state = {STATE_ACTIVE}");
    statement(text).bind(moved).bind(id).execute(&mut cx.tx).await.map(drop)
}

/// Sets the priority of a job that has not ended, and of its live files and later hops.
pub(crate) async fn set_priority(
    cx: &mut TxContext,
    job: i64,
    priority: i64,
) -> Result<(), sqlx::Error> {
    for text in [
        "UPDATE fts_job SET priority = $1 WHERE id = $2 AND ended IS NULL",
        "UPDATE fts_file SET priority = $1 WHERE job = $2 AND ended IS NULL",
    ] {
        statement(text).bind(priority).bind(job).execute(&mut cx.tx).await?;
    }
    Ok(())
}

table_row! {
    /// A storage that takes part in no transfers.
    #[derive(Debug, Clone)]
    pub(crate) struct FtsBanRow {
        pub(crate) storage: String,
        pub(crate) client: String,
        pub(crate) since: i64,
        /// State of the storage's files: `WAIT` or `CANCEL`.
        pub(crate) status: String,
    }
}

/// Returns the banned storages.
pub(crate) async fn bans(pool: &AnyPool) -> Result<Vec<FtsBanRow>, sqlx::Error> {
    let text = format!("SELECT {} FROM fts_ban ORDER BY storage", FtsBanRow::columns());
    select(text).fetch_all(pool).await
}

/// Bans a storage for a client with a status, or lifts its ban.
pub(crate) async fn set_ban(
    cx: &mut TxContext,
    storage: &str,
    ban: Option<(&str, &str)>,
) -> Result<(), sqlx::Error> {
    let text = "DELETE FROM fts_ban WHERE storage = $1";
    statement(text).bind(storage.to_owned()).execute(&mut cx.tx).await?;
    if let Some((client, status)) = ban {
        let [storage, client, status] = [storage, client, status].map(str::to_owned);
        let row = FtsBanRow { storage, client, since: cx.now, status };
        insert_rows("fts_ban", [row]).execute(&mut cx.tx).await?;
    }
    Ok(())
}

/// Deletes jobs that ended before a time, at most a few thousand files of them. Returns true if work is left.
pub(crate) async fn purge(cx: &mut TxContext, before: i64) -> Result<bool, sqlx::Error> {
    let text = "SELECT id FROM fts_job WHERE ended < $1 ORDER BY ended LIMIT $2";
    let jobs = select_one(text).bind(before).bind(PURGED_JOBS_MAX);
    let jobs: Vec<i64> = jobs.fetch_all(&mut cx.tx).await?;
    let mut left = PURGE_ROWS_PER_TX_MAX;
    for job in &jobs {
        let text =
            "DELETE FROM fts_file WHERE id IN (SELECT id FROM fts_file WHERE job = $1 LIMIT $2)";
        let deleted = statement(text).bind(*job).bind(left).execute(&mut cx.tx).await?;
        left -= deleted.rows_affected() as i64;
        if left <= 0 {
            return Ok(true);
        }
        let query = statement("DELETE FROM fts_job WHERE id = $1").bind(*job);
        query.execute(&mut cx.tx).await?;
    }
    Ok(jobs.len() as i64 == PURGED_JOBS_MAX)
}

/// Returns the live files of a storage.
pub(crate) async fn live_of_storage(
    cx: &mut TxContext,
    storage: &str,
) -> Result<Vec<FtsFileRow>, sqlx::Error> {
    let columns = FtsFileRow::columns();
    let text = format!(
        "SELECT {columns} FROM fts_file WHERE state < {STATE_FINAL_MIN} AND by_request IN (0, 1) ORDER BY id"
    );
    let mut live: Vec<FtsFileRow> = select(text).fetch_all(&mut cx.tx).await?;
    live.retain(|file| {
        [&file.source, &file.destination].iter().any(|url| crate::fts::is_of_storage(url, storage))
    });
    Ok(live)
}

/// Returns the uuid of a job.
pub(crate) async fn uuid(cx: &mut TxContext, job: i64) -> Result<String, sqlx::Error> {
    select_one("SELECT uuid FROM fts_job WHERE id = $1").bind(job).fetch_one(&mut cx.tx).await
}
