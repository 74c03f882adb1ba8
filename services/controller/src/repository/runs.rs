//! Table `run`: attempts at batches, with an order at each end.

use std::collections::{BTreeMap, HashMap};

use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::lost_hosts::{HostContact, MISSED_REPORTS_MAX, SuspectRun};
use penstock_control::orders::{
    AddressPair, Order, OrderId, OrderPhase, OrderSettings, OrderTask, RunSide, Send,
};
use penstock_control::run::{RunEvent, RunState};
use penstock_control::scheduler::{RunPlan, RunView};
use sqlx::AnyPool;
use sqlx::any::AnyRow;

use super::hosts::ReceiverAddress;
use super::requests::{OrderTerms, TransferPolicy};
use super::rows::{self, ColumnValue, JsonColumn, SqlValue, select, statement, typed_row};
use super::writer::TxContext;
use super::{batches, files};

const ACTIVE_STATE: i64 = RunState::Active.number();

const REVOKING_STATE: i64 = RunState::Revoking.number();

const LIST_KIND: i64 = BatchKind::List.number();

/// A run is live where `state < {ENDED_STATE}`, as the indexes of live runs say.
const ENDED_STATE: i64 = RunState::Ended.number();

const RUNNING_BATCH: i64 = BatchState::Running.number();

typed_row! {
    struct OrderRow {
        kind: BatchKind,
        request: i64,
        from_host: String,
        to_host: String,
        from_path: String,
        to_path: String,
        policy: JsonColumn<Option<TransferPolicy>>,
        ticket: String,
        addresses: JsonColumn<Vec<String>>,
        fingerprint: String,
    }
}

/// Returns an order if it is active at this host.
pub(crate) async fn order(
    pool: &AnyPool,
    host: &str,
    id: OrderId,
) -> Result<Option<Order>, sqlx::Error> {
    let text = format!(
        "SELECT kind, request, from_host, to_host, from_path, to_path, policy, ticket, addresses, fingerprint
         FROM run WHERE id = $1 AND state = {ACTIVE_STATE}"
    );
    let row: Option<OrderRow> = select(text).bind(id.run()).fetch_optional(pool).await?;
    let Some(row) = row else { return Ok(None) };
    let task = match (id.side(), row.kind) {
        (RunSide::Source, _) if row.from_host != host => return Ok(None),
        (RunSide::Destination, BatchKind::List) => return Ok(None),
        (RunSide::Destination, BatchKind::Copy) if row.to_host != host => return Ok(None),
        (RunSide::Destination, BatchKind::Copy) => {
            OrderTask::Receive { ticket: row.ticket, below: row.to_path }
        }
        (RunSide::Source, BatchKind::List) => OrderTask::List { path: row.from_path },
        (RunSide::Source, BatchKind::Copy) => {
            let Some(policy) = row.policy.0 else { return Ok(None) };
            OrderTask::Send(Box::new(Send {
                from: row.from_path,
                to: row.to_path,
                files: files::of_run(pool, id.run()).await?,
                addresses: row.addresses.0,
                fingerprint: row.fingerprint,
                ticket: row.ticket,
                batch: batches::root_of_run(pool, id.run()).await?.map(|root| format!("b{root}")),
                scitag: policy.scitag,
                overwrite: policy.overwrite,
                verify: policy.verify,
                encrypt: policy.encrypt,
            }))
        }
    };
    Ok(Some(Order { order: id, request: row.request.to_string(), task }))
}

typed_row! {
    /// A live run as shown by the API.
    #[derive(Debug, Clone)]
    pub(crate) struct StoredRun {
        pub(crate) id: i64,
        pub(crate) kind: BatchKind,
        pub(crate) class: String,
        pub(crate) from_host: String,
        pub(crate) to_host: String,
        pub(crate) files: i64,
        pub(crate) bytes: i64,
        pub(crate) state: RunState,
        pub(crate) phase: OrderPhase,
        pub(crate) rate_bps: Option<i64>,
        pub(crate) applied_bps: Option<i64>,
        pub(crate) measured_bps: i64,
        pub(crate) live_streams: i64,
        /// Names of the links of its path.
        pub(crate) route: JsonColumn<Vec<String>>,
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
}

/// Returns unfinished runs, of one request or all.
pub(crate) async fn list(
    pool: &AnyPool,
    request: Option<i64>,
    limit: i64,
) -> Result<Vec<StoredRun>, sqlx::Error> {
    let of = match request {
        Some(_) => format!(
            "AND id IN (SELECT run FROM batch WHERE request = $2 AND state = {RUNNING_BATCH})"
        ),
        None => String::new(),
    };
    let text = format!(
        "SELECT id, kind, class, from_host, to_host, files, bytes, state, phase, rate_bps, applied_bps, measured_bps,
            live_streams, route, reason, bound_by, label, waiting, off_path, settled_files, moved, started, seen, end_reason AS why
         FROM run WHERE state < {ENDED_STATE} {of} ORDER BY id LIMIT $1"
    );
    let query = select(text).bind(limit);
    let query = match request {
        Some(request) => query.bind(request),
        None => query,
    };
    query.fetch_all(pool).await
}

typed_row! {
    struct PlannedRun {
        id: i64,
        queue: i64,
        class: String,
        request: i64,
        from_host: String,
        to_host: String,
        priority: i64,
        deadline: Option<i64>,
        bytes_left: u64,
        phase: OrderPhase,
        measured_bps: u64,
        applied_bps: Option<u64>,
        bound_by: String,
        rate_bps: Option<u64>,
        streams: Option<i64>,
        path: JsonColumn<Vec<AddressPair>>,
        route: JsonColumn<Vec<String>>,
        reason: String,
        slow_since: Option<i64>,
        off_path: bool,
        settings_at: i64,
        moved_at: i64,
        off_since: Option<i64>,
        moved: i64,
        started: i64,
    }
}

/// Returns the active runs as a round sees them, by id.
pub(crate) async fn planned(pool: &AnyPool, now: i64) -> Result<Vec<RunView>, sqlx::Error> {
    let text = format!(
        "SELECT n.id AS id, n.queue AS queue, n.class AS class, n.request AS request, n.from_host AS from_host,
            n.to_host AS to_host, n.priority AS priority, n.deadline AS deadline,
            CASE WHEN r.size_estimate > r.bytes THEN r.size_estimate ELSE r.bytes END - r.bytes_done AS bytes_left,
            n.phase AS phase, n.measured_bps AS measured_bps, n.applied_bps AS applied_bps, n.bound_by AS bound_by,
            n.rate_bps AS rate_bps, n.streams AS streams, n.path AS path, n.route AS route, n.reason AS reason,
            n.slow_since AS slow_since, n.off_path AS off_path, n.settings_at AS settings_at, n.moved_at AS moved_at,
            n.off_since AS off_since, n.moved AS moved, n.started AS started
         FROM run n JOIN request r ON r.id = n.request
         WHERE n.state < {ENDED_STATE} AND n.state = {ACTIVE_STATE} ORDER BY n.id"
    );
    let rows: Vec<PlannedRun> = select(text).fetch_all(pool).await?;
    let view = |row: PlannedRun| RunView {
        queue: row.queue,
        class: row.class,
        request: row.request,
        from: row.from_host,
        to: row.to_host,
        priority: u8::try_from(row.priority).unwrap_or(3),
        deadline: row.deadline.map(|until| (until, row.bytes_left)),
        moving: row.phase == OrderPhase::Running,
        measured_bps: row.measured_bps,
        mean_bps: {
            let elapsed = (now - row.started).max(1);
            let mean = u64::try_from(i128::from(row.moved) * 8000 / i128::from(elapsed));
            mean.ok().filter(|mean| *mean > 0)
        },
        applied_bps: row.applied_bps,
        bound_by: row.bound_by,
        plan: RunPlan {
            run: row.id,
            rate_bps: row.rate_bps,
            streams: row.streams.and_then(|streams| u16::try_from(streams).ok()),
            path: row.path.0,
            route: row.route.0,
            reason: row.reason,
            slow_since_ms: row.slow_since,
            off_path: row.off_path,
            moved_ms: row.moved_at,
            off_since_ms: row.off_since,
        },
        plan_changed_ms: row.settings_at,
    };
    Ok(rows.into_iter().map(view).collect())
}

typed_row! {
    struct HostOrders {
        host: String,
        orders: i64,
    }
}

/// Returns the number of live orders at each host that has any.
pub(crate) async fn orders_by_host(pool: &AnyPool) -> Result<HashMap<String, i64>, sqlx::Error> {
    let mut orders: HashMap<String, i64> = HashMap::new();
    for column in ["from_host", "to_host"] {
        let text = format!(
            "SELECT {column} AS host, COUNT(*) AS orders FROM run WHERE state < {ENDED_STATE} GROUP BY {column}"
        );
        let rows: Vec<HostOrders> = select(text).fetch_all(pool).await?;
        for row in rows {
            *orders.entry(row.host).or_default() += row.orders;
        }
    }
    Ok(orders)
}

typed_row! {
    /// Rates of the live runs of a class.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct ClassRuns {
        pub(crate) class: String,
        pub(crate) allotted_bps: i64,
        pub(crate) measured_bps: i64,
        pub(crate) orders: i64,
    }
}

/// Returns the rates of each class with live runs; measured ones since `recent` in Unix milliseconds.
pub(crate) async fn by_class(pool: &AnyPool, recent: i64) -> Result<Vec<ClassRuns>, sqlx::Error> {
    let text = format!(
        "SELECT class, CAST(COALESCE(SUM(rate_bps), 0) AS BIGINT) AS allotted_bps,
            CAST(SUM(CASE WHEN seen >= $1 THEN measured_bps ELSE 0 END) AS BIGINT) AS measured_bps, COUNT(*) AS orders
         FROM run WHERE state < {ENDED_STATE} GROUP BY class"
    );
    select(text).bind(recent).fetch_all(pool).await
}

typed_row! {
    /// Links of a live run, and its rates.
    #[derive(Debug, Clone)]
    pub(crate) struct RunRoute {
        pub(crate) route: JsonColumn<Vec<String>>,
        pub(crate) allotted_bps: i64,
        pub(crate) measured_bps: i64,
    }
}

/// Returns the routes of live runs; measured rates since `recent` in Unix milliseconds.
pub(crate) async fn routes(pool: &AnyPool, recent: i64) -> Result<Vec<RunRoute>, sqlx::Error> {
    let text = format!(
        "SELECT route, COALESCE(rate_bps, 0) AS allotted_bps,
            CASE WHEN seen >= $1 THEN measured_bps ELSE 0 END AS measured_bps
         FROM run WHERE state < {ENDED_STATE}"
    );
    select(text).bind(recent).fetch_all(pool).await
}

typed_row! {
    /// Address pairs of an active run, and its rate.
    #[derive(Debug, Clone)]
    pub(crate) struct SettledPath {
        pub(crate) path: JsonColumn<Vec<AddressPair>>,
        pub(crate) measured_bps: i64,
    }
}

/// Returns the paths of active runs that have not changed since a time in Unix milliseconds.
pub(crate) async fn settled_paths(
    pool: &AnyPool,
    since: i64,
) -> Result<Vec<SettledPath>, sqlx::Error> {
    let text = format!(
        "SELECT path, measured_bps FROM run
         WHERE state < {ENDED_STATE} AND state = {ACTIVE_STATE} AND path <> '[]' AND settings_at <= $1"
    );
    select(text).bind(since).fetch_all(pool).await
}

typed_row! {
    /// Hosts and rate of a live run, for the invariants of a simulation.
    #[derive(Debug, Clone)]
    pub(crate) struct RunSummary {
        pub(crate) id: i64,
        pub(crate) from_host: String,
        pub(crate) to_host: String,
        pub(crate) state: RunState,
        pub(crate) rate_bps: Option<u64>,
        pub(crate) route: JsonColumn<Vec<String>>,
    }
}

/// Returns the live runs, by id.
pub(crate) async fn summaries(pool: &AnyPool) -> Result<Vec<RunSummary>, sqlx::Error> {
    let text = format!(
        "SELECT id, from_host, to_host, state, rate_bps, route FROM run WHERE state < {ENDED_STATE} ORDER BY id"
    );
    select(text).fetch_all(pool).await
}

/// A run of a transfer or listing that a round starts.
#[derive(Debug)]
pub(crate) struct NewRun<'a> {
    pub(crate) id: i64,
    pub(crate) kind: BatchKind,
    pub(crate) queue: i64,
    pub(crate) request: i64,
    pub(crate) terms: &'a OrderTerms,
    pub(crate) from_host: &'a str,
    pub(crate) to_host: &'a str,
    /// Secret that admits the sender at the receiver.
    pub(crate) ticket: String,
    pub(crate) receiver: ReceiverAddress,
    pub(crate) priority: i64,
    pub(crate) deadline: Option<i64>,
    pub(crate) files: i64,
    pub(crate) bytes: i64,
}

/// Stores a run.
pub(crate) async fn insert(cx: &mut TxContext, run: NewRun<'_>) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let row: [SqlValue; 40] = [
        run.id.into(),
        run.kind.into(),
        run.queue.into(),
        run.request.into(),
        run.terms.class.as_str().into(),
        run.from_host.into(),
        run.to_host.into(),
        run.terms.from_path.as_str().into(),
        run.terms.to_path.as_str().into(),
        run.terms.policy.as_str().into(),
        run.ticket.into(),
        run.receiver.addresses.into(),
        run.receiver.fingerprint.into(),
        run.priority.into(),
        run.deadline.into(),
        run.files.into(),
        run.bytes.into(),
        RunState::Active.into(),
        0.into(),
        0.into(),
        0.into(),
        "[]".into(),
        "[]".into(),
        "it has just begun".into(),
        now.into(),
        0.into(),
        0.into(),
        OrderPhase::Waiting.into(),
        0.into(),
        0.into(),
        0.into(),
        0.into(),
        0.into(),
        0.into(),
        "".into(),
        "".into(),
        0.into(),
        now.into(),
        now.into(),
        None::<i64>.into(),
    ];
    rows::insert(
        &mut cx.tx,
        "INSERT INTO run (id, kind, queue, request, class, from_host, to_host, from_path, to_path, policy, ticket,
            addresses, fingerprint, priority, deadline, files, bytes, state, receiver_notified, source_stop_acks, destination_stop_acks, path, route,
            reason, settings_at, outcomes, entries, phase, moved, settled_bytes, settled_files, measured_bps,
            live_streams, retransmits, bound_by, label, off_path, started, seen, ended)",
        vec![row],
        "",
    )
    .await
    .map(drop)
}

/// Stores the plans of active runs. Returns the number of runs updated.
pub(crate) async fn store_plans(cx: &mut TxContext, plans: &[RunPlan]) -> Result<i64, sqlx::Error> {
    let rows = plans.iter().map(|one| -> [SqlValue; 10] {
        [
            one.run.into(),
            one.rate_bps.map(|rate| rate as i64).into(),
            one.streams.map(i64::from).into(),
            serde_json::to_string(&one.path).expect("plain data").into(),
            serde_json::to_string(&one.route).expect("plain data").into(),
            one.reason.clone().into(),
            one.slow_since_ms.into(),
            one.off_path.into(),
            one.moved_ms.into(),
            one.off_since_ms.into(),
        ]
    });
    let now = cx.now;
    let text = format!(
        "UPDATE run SET rate_bps = v.r, streams = v.s, path = v.p, route = v.u, reason = v.w, slow_since = v.l,
            off_path = v.o, moved_at = v.m, off_since = v.f,
            settings_at = CASE WHEN COALESCE(run.rate_bps, -1) <> COALESCE(v.r, -1) OR run.path <> v.p THEN $1
                ELSE run.settings_at END
         FROM v WHERE run.id = v.i AND run.state = {ACTIVE_STATE}"
    );
    let columns = "i, r, s, p, u, w, l, o, m, f";
    let changed = rows::execute_values(&mut cx.tx, &[now], columns, rows.collect(), &text).await?;
    Ok(changed as i64)
}

/// Runs to withdraw.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RunSelection<'a> {
    /// The run with this id.
    Id(i64),
    /// Runs with a batch of this request.
    OfRequest(i64),
    /// Runs with this source.
    FromHost(&'a str),
    /// Runs with this destination.
    ToHost(&'a str),
}

const _: () =
    assert!(matches!(RunState::Active.transition(RunEvent::Withdrawn), Some(RunState::Revoking)));

/// Withdraws the orders of active runs, which end once the nodes have stopped. A listing has no destination to wait for.
pub(crate) async fn withdraw(
    cx: &mut TxContext,
    which: RunSelection<'_>,
    why: &str,
) -> Result<(), sqlx::Error> {
    let condition = match which {
        RunSelection::Id(_) => "id = $2".to_owned(),
        RunSelection::OfRequest(_) => {
            format!("id IN (SELECT run FROM batch WHERE state = {RUNNING_BATCH} AND request = $2)")
        }
        RunSelection::FromHost(_) => "from_host = $2".to_owned(),
        RunSelection::ToHost(_) => "to_host = $2".to_owned(),
    };
    let text = format!(
        "UPDATE run SET state = {REVOKING_STATE}, end_reason = $1, source_stop_acks = 0,
            destination_stop_acks = CASE WHEN kind = {LIST_KIND} THEN {MISSED_REPORTS_MAX} ELSE 0 END
         WHERE state < {ENDED_STATE} AND state = {ACTIVE_STATE} AND {condition}"
    );
    let query = statement(text).bind(why.to_owned());
    let query = match which {
        RunSelection::Id(id) | RunSelection::OfRequest(id) => query.bind(id),
        RunSelection::FromHost(host) | RunSelection::ToHost(host) => query.bind(host.to_owned()),
    };
    query.execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    /// A run at its end.
    #[derive(Debug, Clone)]
    pub(crate) struct EndedRun {
        pub(crate) kind: BatchKind,
        pub(crate) files: i64,
        pub(crate) settled_files: i64,
    }
}

/// Stores the end of a run, with its reason if known.
pub(crate) async fn end(
    cx: &mut TxContext,
    run: i64,
    why: Option<String>,
) -> Result<EndedRun, sqlx::Error> {
    let text = format!(
        "UPDATE run SET state = {ENDED_STATE}, ended = $1, end_reason = COALESCE($2, end_reason), measured_bps = 0 WHERE id = $3
         RETURNING kind, files, settled_files"
    );
    select(text).bind(cx.now).bind(why).bind(run).fetch_one(&mut cx.tx).await
}

/// Stores the priority of the live runs with files of a request.
pub(crate) async fn set_priority(
    cx: &mut TxContext,
    request: i64,
    priority: i64,
) -> Result<(), sqlx::Error> {
    let text = format!("UPDATE run SET priority = $1 WHERE {}", of_request_condition());
    statement(text).bind(priority).bind(request).execute(&mut cx.tx).await.map(drop)
}

/// Stores the deadline of the live runs with files of a request, in Unix milliseconds.
pub(crate) async fn set_deadline(
    cx: &mut TxContext,
    request: i64,
    deadline: Option<i64>,
) -> Result<(), sqlx::Error> {
    let text = format!("UPDATE run SET deadline = $1 WHERE {}", of_request_condition());
    statement(text).bind(deadline).bind(request).execute(&mut cx.tx).await.map(drop)
}

/// Condition for live runs with files of the request `$2`.
fn of_request_condition() -> String {
    format!(
        "state < {ENDED_STATE} AND id IN (SELECT run FROM batch WHERE request = $2 AND state = {RUNNING_BATCH})"
    )
}

/// A live run as reports read and change it.
#[derive(Debug, Clone)]
pub(crate) struct ReportedRun {
    pub(crate) id: i64,
    pub(crate) kind: BatchKind,
    pub(crate) state: RunState,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) request: i64,
    /// Set once the receiver has the ticket.
    pub(crate) receiver_notified: bool,
    /// Consecutive reports of source and destination without the withdrawn order.
    pub(crate) missed_reports: [i64; 2],
    /// Number of the node's start of the order.
    pub(crate) agent_run: Option<i64>,
    /// Number of known outcomes and listed files.
    pub(crate) outcomes: i64,
    pub(crate) entries: i64,
    pub(crate) settled_bytes: i64,
    pub(crate) settled_files: i64,
    pub(crate) settings: OrderSettings,
    pub(crate) why: Option<String>,
    /// Phase that the sender reported last.
    pub(crate) phase: OrderPhase,
}

impl sqlx::FromRow<'_, AnyRow> for ReportedRun {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: ColumnValue::read(row, "id")?,
            kind: ColumnValue::read(row, "kind")?,
            state: ColumnValue::read(row, "state")?,
            from: ColumnValue::read(row, "from_host")?,
            to: ColumnValue::read(row, "to_host")?,
            request: ColumnValue::read(row, "request")?,
            receiver_notified: ColumnValue::read(row, "receiver_notified")?,
            missed_reports: [
                ColumnValue::read(row, "source_stop_acks")?,
                ColumnValue::read(row, "destination_stop_acks")?,
            ],
            agent_run: ColumnValue::read(row, "agent_run")?,
            outcomes: ColumnValue::read(row, "outcomes")?,
            entries: ColumnValue::read(row, "entries")?,
            settled_bytes: ColumnValue::read(row, "settled_bytes")?,
            settled_files: ColumnValue::read(row, "settled_files")?,
            settings: OrderSettings {
                rate_bps: ColumnValue::read(row, "rate_bps")?,
                streams: <Option<i64>>::read(row, "streams")?.map(|streams| streams as u16),
                path: JsonColumn::read(row, "path")?.0,
            },
            why: ColumnValue::read(row, "why")?,
            phase: ColumnValue::read(row, "phase")?,
        })
    }
}

/// Returns the live runs at these hosts, by id.
pub(crate) async fn at_hosts(
    cx: &mut TxContext,
    hosts: &[&str],
) -> Result<BTreeMap<i64, ReportedRun>, sqlx::Error> {
    let mut runs = BTreeMap::new();
    for column in ["from_host", "to_host"] {
        let names = hosts.iter().map(|host| -> [SqlValue; 1] { [(*host).into()] }).collect();
        let text = format!(
            "SELECT id, kind, state, from_host, to_host, request, receiver_notified, source_stop_acks, destination_stop_acks, agent_run, outcomes,
                entries, settled_bytes, settled_files, rate_bps, streams, path, end_reason AS why, phase
             FROM run WHERE state < {ENDED_STATE} AND {column} IN (SELECT h FROM v)"
        );
        let found: Vec<ReportedRun> =
            rows::query_values(&mut cx.tx, &[], "h", names, &text).await?;
        runs.extend(found.into_iter().map(|run| (run.id, run)));
    }
    Ok(runs)
}

/// Progress of a run as its source reports it.
#[derive(Debug, Clone)]
pub(crate) struct ReportedProgress {
    pub(crate) run: i64,
    pub(crate) agent_run: i64,
    pub(crate) outcomes: i64,
    pub(crate) entries: i64,
    pub(crate) phase: OrderPhase,
    pub(crate) moved: i64,
    pub(crate) measured_bps: i64,
    pub(crate) applied_bps: Option<i64>,
    pub(crate) streams: i64,
    pub(crate) retransmits: i64,
    pub(crate) bound_by: String,
    pub(crate) label: String,
    pub(crate) waiting: Option<String>,
    pub(crate) settled_bytes: i64,
    pub(crate) settled_files: i64,
}

/// Stores the progress of runs.
pub(crate) async fn store_progress(
    cx: &mut TxContext,
    progress: Vec<ReportedProgress>,
) -> Result<(), sqlx::Error> {
    let now = cx.now;
    let rows = progress.into_iter().map(|one| -> [SqlValue; 15] {
        [
            one.run.into(),
            one.agent_run.into(),
            one.outcomes.into(),
            one.entries.into(),
            one.phase.into(),
            one.moved.into(),
            one.measured_bps.into(),
            one.applied_bps.into(),
            one.streams.into(),
            one.retransmits.into(),
            one.bound_by.into(),
            one.label.into(),
            one.waiting.into(),
            one.settled_bytes.into(),
            one.settled_files.into(),
        ]
    });
    rows::execute_values(
        &mut cx.tx,
        &[now],
        "i, r, o, e, p, m, b, a, s, t, y, l, w, z, f",
        rows.collect(),
        "UPDATE run SET agent_run = v.r, outcomes = v.o, entries = v.e, phase = v.p, moved = v.m, measured_bps = v.b,
            applied_bps = v.a, live_streams = v.s, retransmits = v.t, bound_by = v.y, label = v.l, waiting = v.w,
            seen = $1, settled_bytes = v.z, settled_files = v.f FROM v WHERE run.id = v.i",
    )
    .await
    .map(drop)
}

/// Stores that the receivers of runs have their tickets.
pub(crate) async fn set_receiver_notified(
    cx: &mut TxContext,
    runs: &[i64],
) -> Result<(), sqlx::Error> {
    let ids = runs.iter().map(|id| -> [SqlValue; 1] { [(*id).into()] }).collect();
    let text = "UPDATE run SET receiver_notified = 1 FROM v WHERE run.id = v.i";
    rows::execute_values(&mut cx.tx, &[], "i", ids, text).await.map(drop)
}

/// Stores the consecutive reports of source and destination without their withdrawn orders, by run.
pub(crate) async fn set_missed_reports(
    cx: &mut TxContext,
    missed: &[(i64, [i64; 2])],
) -> Result<(), sqlx::Error> {
    let rows = missed
        .iter()
        .map(|(id, [from, to])| -> [SqlValue; 3] { [(*id).into(), (*from).into(), (*to).into()] });
    let text = "UPDATE run SET source_stop_acks = v.a, destination_stop_acks = v.b FROM v WHERE run.id = v.i";
    rows::execute_values(&mut cx.tx, &[], "i, a, b", rows.collect(), text).await.map(drop)
}

/// A live run with a host that is down or declared gone.
#[derive(Debug, Clone)]
pub(crate) struct SuspectRow {
    pub(crate) id: i64,
    pub(crate) why: Option<String>,
    pub(crate) run: SuspectRun,
}

impl sqlx::FromRow<'_, AnyRow> for SuspectRow {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        let contact = |reported: &str, gone: &str| -> Result<HostContact, sqlx::Error> {
            Ok(HostContact {
                reported_ms: ColumnValue::read(row, reported)?,
                declared_gone_ms: ColumnValue::read(row, gone)?,
            })
        };
        Ok(Self {
            id: ColumnValue::read(row, "id")?,
            why: ColumnValue::read(row, "why")?,
            run: SuspectRun {
                state: ColumnValue::read(row, "state")?,
                is_listing: BatchKind::read(row, "kind")? == BatchKind::List,
                hosts: [ColumnValue::read(row, "from_host")?, ColumnValue::read(row, "to_host")?],
                contacts: [
                    contact("from_seen", "from_gone_at")?,
                    contact("to_seen", "to_gone_at")?,
                ],
                missed_reports: [
                    ColumnValue::read(row, "source_stop_acks")?,
                    ColumnValue::read(row, "destination_stop_acks")?,
                ],
            },
        })
    }
}

/// Returns the live runs with a host that has not reported since a time in Unix milliseconds, or is declared gone.
pub(crate) async fn suspects(
    cx: &mut TxContext,
    since: i64,
) -> Result<Vec<SuspectRow>, sqlx::Error> {
    let text = format!(
        "SELECT r.id AS id, r.state AS state, r.kind AS kind, r.from_host AS from_host, r.to_host AS to_host,
            COALESCE(f.seen, 0) AS from_seen, COALESCE(t.seen, 0) AS to_seen, r.source_stop_acks AS source_stop_acks,
            r.destination_stop_acks AS destination_stop_acks, r.end_reason AS why, COALESCE(f.gone_at, 0) AS from_gone_at,
            COALESCE(t.gone_at, 0) AS to_gone_at
         FROM run r LEFT JOIN host f ON f.name = r.from_host LEFT JOIN host t ON t.name = r.to_host
         WHERE r.state < {ENDED_STATE} AND (COALESCE(f.seen, 0) < $1 OR COALESCE(t.seen, 0) < $1
            OR f.gone_at > f.seen OR t.gone_at > t.seen)"
    );
    select(text).bind(since).fetch_all(&mut cx.tx).await
}

/// Deletes runs that ended before a time in Unix milliseconds and have no batch.
pub(crate) async fn purge(cx: &mut TxContext, before: i64) -> Result<(), sqlx::Error> {
    let query = statement(
        "DELETE FROM run WHERE ended < $1 AND NOT EXISTS (SELECT 1 FROM batch WHERE batch.run = run.id)",
    );
    query.bind(before).execute(&mut cx.tx).await.map(drop)
}
