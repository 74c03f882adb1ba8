//! Tables `batch` and `queue`: batches of files that wait, retry or run, and the counts of the queued ones.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_control::batch::{BatchEvent, BatchKind, BatchState};
use penstock_control::cancellation::{BATCHES_PER_TX_MAX, QueueDeltas};
use penstock_control::run::RunState;
use penstock_control::run_contents::{BatchSummary, FileSpan, RunPart};
use penstock_control::scheduler::QueueView;
use sqlx::AnyPool;

use super::db;
use super::requests::TransferPolicy;
use super::rows::{IdRow, JsonColumn, TypedRow, typed_row, written_row};
use super::statement::{
    add_clause, capped_total, insert_rows, select, select_one, statement, with_rows,
};
use super::writer::TxContext;

const WAITING_STATE: i64 = BatchState::Waiting.number();
const QUEUED_STATE: i64 = BatchState::Queued.number();
const RUNNING_STATE: i64 = BatchState::Running.number();
const PAUSED_STATE: i64 = BatchState::Paused.number();
const COPY_KIND: i64 = BatchKind::Copy.number();
const LIST_KIND: i64 = BatchKind::List.number();
const RUN_REVOKING: i64 = RunState::Revoking.number();
const RUN_ENDED: i64 = RunState::Ended.number();

typed_row! {
    struct BatchSpan {
        id: i64,
        first: i64,
        last: i64,
        seqs: JsonColumn<Option<Vec<i64>>>,
    }
}

impl BatchSpan {
    fn files(self) -> FileSpan {
        FileSpan { first: self.first, last: self.last, seqs: self.seqs.0 }
    }
}

/// Returns the files of the running batches of a request.
pub(crate) async fn running_spans(
    pool: &AnyPool,
    request: i64,
) -> Result<Vec<FileSpan>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM batch WHERE request = $1 AND state = {RUNNING_STATE}",
        BatchSpan::columns()
    );
    let rows: Vec<BatchSpan> = select(text).bind(request).fetch_all(pool).await?;
    Ok(rows.into_iter().map(BatchSpan::files).collect())
}

/// Returns the files of a run's batches, by batch.
pub(crate) async fn run_spans(
    pool: &AnyPool,
    run: i64,
) -> Result<HashMap<i64, FileSpan>, sqlx::Error> {
    let text = format!("SELECT {} FROM batch WHERE run = $1", BatchSpan::columns());
    let rows: Vec<BatchSpan> = select(text).bind(run).fetch_all(pool).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.files())).collect())
}

/// Returns the batch that first had the files of a run's first batch; orders of the same one resume each other's
/// partial files.
pub(crate) async fn root_of_run(pool: &AnyPool, run: i64) -> Result<Option<i64>, sqlx::Error> {
    let text = "SELECT root FROM batch WHERE run = $1 ORDER BY place LIMIT 1";
    select_one(text).bind(run).fetch_optional(pool).await
}

typed_row! {
    struct NextAttempt {
        due: Option<i64>,
        queued: Option<i64>,
    }
}

/// Returns when the next retry of a request is due in Unix milliseconds; none if a batch may start at once.
pub(crate) async fn next_attempt(pool: &AnyPool, request: i64) -> Result<Option<i64>, sqlx::Error> {
    let text = format!(
        "SELECT MIN(CASE WHEN state = {WAITING_STATE} THEN not_before END) AS due,
            MIN(CASE WHEN state = {QUEUED_STATE} THEN 1 END) AS queued
         FROM batch WHERE request = $1"
    );
    let row: NextAttempt = select(text).bind(request).fetch_one(pool).await?;
    Ok(row.due.filter(|_| row.queued.is_none()))
}

typed_row! {
    struct QueueRow {
        id: i64,
        class: String,
        source: String,
        destination: String,
        batches: u64,
        bytes: u64,
    }
}

/// Returns the queues with waiting work, by id.
pub(crate) async fn busy_queues(pool: &AnyPool) -> Result<Vec<QueueView>, sqlx::Error> {
    let text = format!("SELECT {} FROM queue WHERE batches > 0 ORDER BY id", QueueRow::columns());
    let rows: Vec<QueueRow> = select(text).fetch_all(pool).await?;
    let view = |row: QueueRow| QueueView {
        id: row.id,
        class: row.class,
        source: row.source,
        destination: row.destination,
        batches: row.batches,
        bytes: row.bytes,
    };
    Ok(rows.into_iter().map(view).collect())
}

typed_row! {
    /// Queued work of a class.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct QueuedWork {
        pub(crate) class: String,
        pub(crate) files: i64,
        pub(crate) bytes: i64,
    }
}

/// Returns the queued work of each class.
pub(crate) async fn queued_by_class(pool: &AnyPool) -> Result<Vec<QueuedWork>, sqlx::Error> {
    let bytes = capped_total("bytes");
    let text = format!(
        "SELECT class, CAST(SUM(files) AS BIGINT) AS files, {bytes} AS bytes FROM queue GROUP BY class"
    );
    select(text).fetch_all(pool).await
}

/// A batch to store.
#[derive(Debug, Clone)]
pub(crate) struct NewBatch {
    /// Batch that first had these files, whose partial files are resumed; none for itself.
    pub(crate) root: Option<i64>,
    pub(crate) request: i64,
    pub(crate) queue: i64,
    pub(crate) kind: BatchKind,
    /// Sequence numbers of its first and last file in the request.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Sequence numbers of its files, if not contiguous.
    pub(crate) seqs: Option<Vec<i64>>,
    pub(crate) files: i64,
    pub(crate) bytes: i64,
    pub(crate) priority: i64,
    pub(crate) deadline: Option<i64>,
    /// Batches of the same lane may share an order.
    pub(crate) lane: String,
    pub(crate) attempt: i64,
    pub(crate) state: BatchState,
    pub(crate) not_before: i64,
}

written_row! {
    struct NewBatchRow {
        id: i64,
        root: i64,
        request: i64,
        queue: i64,
        kind: BatchKind,
        first: i64,
        last: i64,
        seqs: Option<String>,
        files: i64,
        bytes: i64,
        priority: i64,
        deadline: Option<i64>,
        lane: String,
        attempt: i64,
        state: BatchState,
        not_before: i64,
    }
}

/// Stores batches and counts the queued ones.
pub(crate) async fn insert(cx: &mut TxContext, batches: Vec<NewBatch>) -> Result<(), sqlx::Error> {
    if batches.is_empty() {
        return Ok(());
    }
    let first = db::allocate_ids(&mut cx.tx, "id", batches.len()).await?;
    let mut counts = QueueDeltas::new();
    let mut rows = Vec::with_capacity(batches.len());
    for (id, batch) in (first..).zip(batches) {
        if batch.state == BatchState::Queued {
            counts.entry(batch.queue).or_default().add(batch.files, batch.bytes);
        }
        let seqs = batch.seqs.map(|seqs| serde_json::to_string(&seqs).expect("plain data"));
        rows.push(NewBatchRow {
            id,
            root: batch.root.unwrap_or(id),
            request: batch.request,
            queue: batch.queue,
            kind: batch.kind,
            first: batch.first,
            last: batch.last,
            seqs,
            files: batch.files,
            bytes: batch.bytes,
            priority: batch.priority,
            deadline: batch.deadline,
            lane: batch.lane,
            attempt: batch.attempt,
            state: batch.state,
            not_before: batch.not_before,
        });
    }
    insert_rows("batch", rows).execute(&mut cx.tx).await?;
    count_queues(cx, counts).await?;
    cx.request_round();
    Ok(())
}

written_row! {
    struct QueueDeltaRow {
        id: i64,
        batches: i64,
        files: i64,
        bytes: i64,
    }
}

/// Adds to the counts of queues. All controllers lock queues in the order of their ids.
pub(crate) async fn count_queues(
    cx: &mut TxContext,
    counts: QueueDeltas,
) -> Result<(), sqlx::Error> {
    let rows = counts.into_iter().map(|(id, delta)| QueueDeltaRow {
        id,
        batches: delta.batches,
        files: delta.files,
        bytes: delta.bytes,
    });
    let text = format!(
        "UPDATE queue SET {} FROM v WHERE queue.id = v.id",
        add_clause::<QueueDeltaRow>("queue", &["id"])
    );
    with_rows(rows, text).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    struct QueueKey {
        id: i64,
        class: String,
        source: String,
        destination: String,
    }
}

written_row! {
    /// A queue without batches.
    struct EmptyQueue {
        id: i64,
        class: String,
        source: String,
        destination: String,
        batches: i64,
        files: i64,
        bytes: i64,
    }
}

/// Loads the ids of queues, by class, source and destination, into the cache; creates missing queues.
pub(crate) async fn load_queues(
    cx: &mut TxContext,
    wanted: Vec<(String, String, String)>,
) -> Result<(), sqlx::Error> {
    let mut missing: Vec<_> =
        wanted.into_iter().filter(|queue| !cx.queues.contains_key(queue)).collect();
    missing.sort();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let first = db::allocate_ids(&mut cx.tx, "id", missing.len()).await?;
    let rows = (first..).zip(missing).map(|(id, (class, source, destination))| EmptyQueue {
        id,
        class,
        source,
        destination,
        batches: 0,
        files: 0,
        bytes: 0,
    });
    // The update of a stored queue changes nothing, but returns its row.
    let on_conflict = format!(
        "ON CONFLICT (class, source, destination) DO UPDATE SET batches = queue.batches RETURNING {}",
        QueueKey::columns()
    );
    let found: Vec<QueueKey> =
        insert_rows("queue", rows).after(on_conflict).fetch_all(&mut cx.tx).await?;
    for row in found {
        cx.queues.insert((row.class, row.source, row.destination), row.id);
    }
    Ok(())
}

typed_row! {
    /// A batch that waits in a queue.
    #[derive(Debug, Clone)]
    pub(crate) struct QueuedBatch {
        pub(crate) id: i64,
        pub(crate) request: i64,
        pub(crate) kind: BatchKind,
        pub(crate) files: i64,
        pub(crate) bytes: i64,
        pub(crate) priority: i64,
        pub(crate) deadline: Option<i64>,
        pub(crate) lane: String,
    }
}

impl QueuedBatch {
    /// Returns the batch for the choice of an order's contents.
    pub(crate) fn summary(&self) -> BatchSummary<'_> {
        BatchSummary { kind: self.kind, files: self.files, bytes: self.bytes, lane: &self.lane }
    }
}

/// Returns the first batches of a queue, without those of cancelled requests.
pub(crate) async fn first_of_queue(
    cx: &mut TxContext,
    queue: i64,
    limit: usize,
) -> Result<Vec<QueuedBatch>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM batch
         WHERE queue = $1 AND state = {QUEUED_STATE}
            AND NOT EXISTS (SELECT 1 FROM request WHERE request.id = batch.request AND request.cancel = 1)
         ORDER BY priority DESC, id LIMIT {limit}{}",
        QueuedBatch::columns(),
        db::skip_locked(cx.kind)
    );
    select(text).bind(queue).fetch_all(&mut cx.tx).await
}

const _: () = assert!(matches!(
    BatchState::Queued.transition(BatchEvent::Started),
    Some(BatchState::Running)
));

written_row! {
    struct BatchPlace {
        id: i64,
        place: i64,
    }
}

/// Stores that queued batches are part of a run, given the index of the first file of each in the order's list.
pub(crate) async fn start(
    cx: &mut TxContext,
    run: i64,
    batches: Vec<(i64, i64)>,
) -> Result<(), sqlx::Error> {
    let rows = batches.into_iter().map(|(id, place)| BatchPlace { id, place });
    let text = format!(
        "UPDATE batch SET state = {RUNNING_STATE}, run = $1, place = v.place FROM v WHERE batch.id = v.id"
    );
    with_rows(rows, text).bind(run).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    struct RunPartRow {
        id: i64,
        request: i64,
        place: Option<i64>,
        first: i64,
        last: i64,
        seqs: JsonColumn<Option<Vec<i64>>>,
        files: i64,
        policy: JsonColumn<Option<TransferPolicy>>,
    }
}

/// Returns the parts of a run, in the order of its file list.
pub(crate) async fn run_parts(
    cx: &mut TxContext,
    run: i64,
) -> Result<Arc<Vec<RunPart>>, sqlx::Error> {
    if let Some(parts) = cx.run_cache.parts(run) {
        return Ok(parts);
    }
    let text = "SELECT b.id AS id, b.request AS request, b.place AS place, b.first AS first, b.last AS last,
            b.seqs AS seqs, b.files AS files, r.policy AS policy
         FROM batch b JOIN request r ON r.id = b.request WHERE b.run = $1 ORDER BY b.place";
    let rows: Vec<RunPartRow> = select(text).bind(run).fetch_all(&mut cx.tx).await?;
    let part = |row: RunPartRow| RunPart {
        batch: row.id,
        request: row.request,
        place: row.place.unwrap_or(0),
        span: FileSpan { first: row.first, last: row.last, seqs: row.seqs.0 },
        files: row.files,
        attempts: row.policy.0.map_or(1, |policy| policy.attempts),
    };
    let parts: Arc<Vec<RunPart>> = Arc::new(rows.into_iter().map(part).collect());
    cx.run_cache.insert_parts(run, Arc::clone(&parts));
    Ok(parts)
}

typed_row! {
    /// A batch of a run that ends, with the flags of its request.
    #[derive(Debug, Clone)]
    pub(crate) struct EndingBatch {
        pub(crate) id: i64,
        pub(crate) root: i64,
        pub(crate) request: i64,
        pub(crate) queue: i64,
        pub(crate) priority: i64,
        pub(crate) deadline: Option<i64>,
        pub(crate) lane: String,
        pub(crate) attempt: i64,
        pub(crate) cancel: bool,
        pub(crate) paused: bool,
    }
}

/// Returns the batches of a run.
pub(crate) async fn of_run(cx: &mut TxContext, run: i64) -> Result<Vec<EndingBatch>, sqlx::Error> {
    let text = "SELECT b.id AS id, b.root AS root, b.request AS request, b.queue AS queue, b.priority AS priority,
            b.deadline AS deadline, b.lane AS lane, b.attempt AS attempt, r.cancel AS cancel, r.paused AS paused
         FROM batch b JOIN request r ON r.id = b.request WHERE b.run = $1";
    select(text).bind(run).fetch_all(&mut cx.tx).await
}

/// Returns the number of batches of a run.
pub(crate) async fn count_of_run(cx: &mut TxContext, run: i64) -> Result<i64, sqlx::Error> {
    let query = select_one("SELECT COUNT(*) FROM batch WHERE run = $1").bind(run);
    query.fetch_one(&mut cx.tx).await
}

/// Deletes the batches of a run.
pub(crate) async fn delete_of_run(cx: &mut TxContext, run: i64) -> Result<(), sqlx::Error> {
    let query = statement("DELETE FROM batch WHERE run = $1").bind(run);
    query.execute(&mut cx.tx).await.map(drop)
}

/// Deletes batches by their ids.
pub(crate) async fn delete(cx: &mut TxContext, batches: &[i64]) -> Result<(), sqlx::Error> {
    let ids = batches.iter().map(|id| IdRow { id: *id });
    let text = "DELETE FROM batch WHERE id IN (SELECT id FROM v)";
    with_rows(ids, text).execute(&mut cx.tx).await.map(drop)
}

/// Stores the priority of a request's batches.
pub(crate) async fn set_priority(
    cx: &mut TxContext,
    request: i64,
    priority: i64,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE batch SET priority = $1 WHERE request = $2");
    query.bind(priority).bind(request).execute(&mut cx.tx).await.map(drop)
}

/// Stores the deadline of a request's batches, in Unix milliseconds.
pub(crate) async fn set_deadline(
    cx: &mut TxContext,
    request: i64,
    deadline: Option<i64>,
) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE batch SET deadline = $1 WHERE request = $2");
    query.bind(deadline).bind(request).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    struct MovedBatch {
        queue: i64,
        files: i64,
        bytes: i64,
    }
}

const _: () = assert!(
    matches!(BatchState::Queued.transition(BatchEvent::Paused), Some(BatchState::Paused))
        && matches!(BatchState::Waiting.transition(BatchEvent::Paused), Some(BatchState::Paused))
        && matches!(BatchState::Paused.transition(BatchEvent::Resumed), Some(BatchState::Queued))
        && matches!(BatchState::Waiting.transition(BatchEvent::Due), Some(BatchState::Queued))
);

/// Pauses the queued and waiting batches of a request.
pub(crate) async fn pause(cx: &mut TxContext, request: i64) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE batch SET state = {PAUSED_STATE} WHERE request = $1 AND state = {QUEUED_STATE} RETURNING {}",
        MovedBatch::columns()
    );
    let moved: Vec<MovedBatch> = select(text).bind(request).fetch_all(&mut cx.tx).await?;
    let mut counts = QueueDeltas::new();
    for batch in moved {
        counts.entry(batch.queue).or_default().remove(batch.files, batch.bytes);
    }
    count_queues(cx, counts).await?;
    let text = format!(
        "UPDATE batch SET state = {PAUSED_STATE} WHERE request = $1 AND state = {WAITING_STATE}"
    );
    statement(text).bind(request).execute(&mut cx.tx).await.map(drop)
}

async fn count_queued(cx: &mut TxContext, batches: Vec<MovedBatch>) -> Result<(), sqlx::Error> {
    let mut counts = QueueDeltas::new();
    for batch in batches {
        counts.entry(batch.queue).or_default().add(batch.files, batch.bytes);
    }
    count_queues(cx, counts).await
}

/// Queues the paused batches of a request.
pub(crate) async fn resume(cx: &mut TxContext, request: i64) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE batch SET state = {QUEUED_STATE} WHERE request = $1 AND state = {PAUSED_STATE} RETURNING {}",
        MovedBatch::columns()
    );
    let moved: Vec<MovedBatch> = select(text).bind(request).fetch_all(&mut cx.tx).await?;
    count_queued(cx, moved).await
}

/// Queues the batches whose retry is due, at most `limit`.
pub(crate) async fn requeue_due(cx: &mut TxContext, limit: i64) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE batch SET state = {QUEUED_STATE} WHERE id IN
            (SELECT id FROM batch WHERE state = {WAITING_STATE} AND not_before <= $1 ORDER BY not_before LIMIT {limit})
         RETURNING {}",
        MovedBatch::columns()
    );
    let moved: Vec<MovedBatch> = select(text).bind(cx.now).fetch_all(&mut cx.tx).await?;
    count_queued(cx, moved).await
}

/// Condition for batches of withdrawn orders both of whose hosts have been silent since `$2`, so that the orders count as
/// over.
pub(super) fn gone_condition() -> String {
    format!(
        "state = {RUNNING_STATE} AND run IN (SELECT r.id FROM run r
            LEFT JOIN host f ON f.name = r.from_host LEFT JOIN host t ON t.name = r.to_host
            WHERE r.state < {RUN_ENDED} AND r.state = {RUN_REVOKING} AND r.kind = {COPY_KIND}
                AND COALESCE(f.seen, 0) < $2 AND COALESCE(t.seen, 0) < $2)"
    )
}

typed_row! {
    /// A batch of a cancelled request that runs at no node: it waits, or the hosts of its run are gone.
    #[derive(Debug, Clone)]
    pub(crate) struct CancelledBatch {
        pub(crate) id: i64,
        pub(crate) state: BatchState,
        pub(crate) queue: i64,
        pub(crate) first: i64,
        pub(crate) last: i64,
        pub(crate) seqs: JsonColumn<Option<Vec<i64>>>,
        pub(crate) files: i64,
        pub(crate) bytes: i64,
        pub(crate) run: Option<i64>,
    }
}

/// Returns the first batches of a cancelled request that run at no node; hosts silent since `since` are gone.
pub(crate) async fn cancellable(
    cx: &mut TxContext,
    request: i64,
    since: i64,
) -> Result<Vec<CancelledBatch>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM batch
         WHERE request = $1 AND (state <> {RUNNING_STATE} OR {}) ORDER BY id LIMIT {BATCHES_PER_TX_MAX}",
        CancelledBatch::columns(),
        gone_condition()
    );
    select(text).bind(request).bind(since).fetch_all(&mut cx.tx).await
}

/// Returns the number of running listings of a request.
pub(crate) async fn running_listings(cx: &mut TxContext, request: i64) -> Result<i64, sqlx::Error> {
    let text = format!(
        "SELECT COUNT(*) FROM batch WHERE request = $1 AND state = {RUNNING_STATE} AND kind = {LIST_KIND}"
    );
    select_one(text).bind(request).fetch_one(&mut cx.tx).await
}
