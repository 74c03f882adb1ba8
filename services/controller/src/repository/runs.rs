//! Table `run`: attempts at batches, with an order at each end.

use std::collections::{BTreeMap, HashMap};

use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::live_run::LiveRun;
use penstock_control::lost_hosts::{HostContact, MISSED_REPORTS_MAX, SuspectRun};
use penstock_control::orders::{
    AddressPair, Order, OrderId, OrderPhase, OrderSettings, OrderTask, PathForecast, RunSide, Send,
};
use penstock_control::run::{RunEvent, RunState};
use penstock_control::scheduler::{RunPlan, RunView};
use sqlx::AnyPool;
use sqlx::any::AnyRow;

use super::hosts::ReceiverAddress;
use super::requests::{OrderTerms, TransferPolicy};
use super::rows::{ColumnValue, IdRow, JsonColumn, TypedRow, typed_row, written_row};
use super::statement::{insert_rows, select, set_clause, statement, with_rows};
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
    let text =
        format!("SELECT {} FROM run WHERE id = $1 AND state = {ACTIVE_STATE}", OrderRow::columns());
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
                tune: policy.tune,
                transport: policy.transport,
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
        /// Rates of earlier transfers on its path, where they are known.
        pub(crate) path_forecast: JsonColumn<Option<PathForecast>>,
        /// Names of the links of its path.
        pub(crate) route: JsonColumn<Vec<String>>,
        pub(crate) reason: String,
        pub(crate) bound_by: String,
        pub(crate) label: String,
        pub(crate) transport: Option<String>,
        pub(crate) transport_reason: Option<String>,
        pub(crate) waiting: Option<String>,
        pub(crate) off_path: bool,
        pub(crate) settled_files: i64,
        pub(crate) moved: i64,
        pub(crate) started: i64,
        pub(crate) seen: i64,
        pub(crate) end_reason: Option<String>,
    }
}

/// Returns unfinished runs, of one request or all.
pub(crate) async fn list(
    pool: &AnyPool,
    request: Option<i64>,
    limit: i64,
) -> Result<Vec<StoredRun>, sqlx::Error> {
    let columns = StoredRun::columns();
    let query = match request {
        Some(request) => select(format!(
            "SELECT {columns} FROM run WHERE state < {ENDED_STATE}
                AND id IN (SELECT run FROM batch WHERE request = $2 AND state = {RUNNING_BATCH})
             ORDER BY id LIMIT $1"
        ))
        .bind(limit)
        .bind(request),
        None => select(format!(
            "SELECT {columns} FROM run WHERE state < {ENDED_STATE} ORDER BY id LIMIT $1"
        ))
        .bind(limit),
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
        moved: u64,
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
        mean_bps: RunView::mean_bps_of(row.moved, now - row.started),
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
        "SELECT {} FROM run
         WHERE state < {ENDED_STATE} AND state = {ACTIVE_STATE} AND path <> '[]' AND settings_at <= $1",
        SettledPath::columns()
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
        "SELECT {} FROM run WHERE state < {ENDED_STATE} ORDER BY id",
        RunSummary::columns()
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

written_row! {
    /// A run that has just started.
    struct StartedRun {
        id: i64,
        kind: BatchKind,
        queue: i64,
        request: i64,
        class: String,
        from_host: String,
        to_host: String,
        from_path: String,
        to_path: String,
        policy: String,
        ticket: String,
        addresses: String,
        fingerprint: String,
        priority: i64,
        deadline: Option<i64>,
        files: i64,
        bytes: i64,
        state: RunState,
        receiver_notified: bool,
        source_stop_acks: i64,
        destination_stop_acks: i64,
        path: JsonColumn<Vec<AddressPair>>,
        route: JsonColumn<Vec<String>>,
        reason: &'static str,
        settings_at: i64,
        outcomes: i64,
        entries: i64,
        phase: OrderPhase,
        moved: i64,
        settled_bytes: i64,
        settled_files: i64,
        measured_bps: i64,
        live_streams: i64,
        retransmits: i64,
        bound_by: &'static str,
        label: &'static str,
        off_path: bool,
        started: i64,
        seen: i64,
    }
}

/// Stores a run that its hosts have yet to start.
pub(crate) async fn insert(cx: &mut TxContext, run: NewRun<'_>) -> Result<(), sqlx::Error> {
    let row = StartedRun {
        id: run.id,
        kind: run.kind,
        queue: run.queue,
        request: run.request,
        class: run.terms.class.clone(),
        from_host: run.from_host.to_owned(),
        to_host: run.to_host.to_owned(),
        from_path: run.terms.from_path.clone(),
        to_path: run.terms.to_path.clone(),
        policy: run.terms.policy.clone(),
        ticket: run.ticket,
        addresses: run.receiver.addresses,
        fingerprint: run.receiver.fingerprint,
        priority: run.priority,
        deadline: run.deadline,
        files: run.files,
        bytes: run.bytes,
        state: RunState::Active,
        receiver_notified: false,
        source_stop_acks: 0,
        destination_stop_acks: 0,
        path: JsonColumn::default(),
        route: JsonColumn::default(),
        reason: "it has just begun",
        settings_at: cx.now,
        outcomes: 0,
        entries: 0,
        phase: OrderPhase::Waiting,
        moved: 0,
        settled_bytes: 0,
        settled_files: 0,
        measured_bps: 0,
        live_streams: 0,
        retransmits: 0,
        bound_by: "",
        label: "",
        off_path: false,
        started: cx.now,
        seen: cx.now,
    };
    insert_rows("run", [row]).execute(&mut cx.tx).await.map(drop)
}

written_row! {
    struct RunPlanRow {
        id: i64,
        rate_bps: Option<u64>,
        streams: Option<i64>,
        path: JsonColumn<Vec<AddressPair>>,
        route: JsonColumn<Vec<String>>,
        reason: String,
        slow_since: Option<i64>,
        off_path: bool,
        moved_at: i64,
        off_since: Option<i64>,
    }
}

/// Stores the plans of active runs. Returns the number of runs updated.
pub(crate) async fn store_plans(cx: &mut TxContext, plans: &[RunPlan]) -> Result<i64, sqlx::Error> {
    let rows = plans.iter().map(|one| RunPlanRow {
        id: one.run,
        rate_bps: one.rate_bps,
        streams: one.streams.map(i64::from),
        path: JsonColumn(one.path.clone()),
        route: JsonColumn(one.route.clone()),
        reason: one.reason.clone(),
        slow_since: one.slow_since_ms,
        off_path: one.off_path,
        moved_at: one.moved_ms,
        off_since: one.off_since_ms,
    });
    let text = format!(
        "UPDATE run SET {}, settings_at = CASE
            WHEN COALESCE(run.rate_bps, -1) <> COALESCE(v.rate_bps, -1) OR run.path <> v.path THEN $1
            ELSE run.settings_at END
         FROM v WHERE run.id = v.id AND run.state = {ACTIVE_STATE}",
        set_clause::<RunPlanRow>(&["id"])
    );
    let changed = with_rows(rows, text).bind(cx.now).execute(&mut cx.tx).await?;
    Ok(changed as i64)
}

/// Selection of the runs to withdraw.
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
    let of_request =
        format!("id IN (SELECT run FROM batch WHERE state = {RUNNING_BATCH} AND request = $2)");
    let query = match which {
        RunSelection::Id(id) => statement(withdrawal("id = $2")).bind(why.to_owned()).bind(id),
        RunSelection::OfRequest(id) => {
            statement(withdrawal(&of_request)).bind(why.to_owned()).bind(id)
        }
        RunSelection::FromHost(host) => {
            statement(withdrawal("from_host = $2")).bind(why.to_owned()).bind(host.to_owned())
        }
        RunSelection::ToHost(host) => {
            statement(withdrawal("to_host = $2")).bind(why.to_owned()).bind(host.to_owned())
        }
    };
    query.execute(&mut cx.tx).await.map(drop)
}

/// Returns the text that withdraws the active runs of a condition.
fn withdrawal(condition: &str) -> String {
    format!(
        "UPDATE run SET state = {REVOKING_STATE}, end_reason = $1, source_stop_acks = 0,
            destination_stop_acks = CASE WHEN kind = {LIST_KIND} THEN {MISSED_REPORTS_MAX} ELSE 0 END
         WHERE state < {ENDED_STATE} AND state = {ACTIVE_STATE} AND {condition}"
    )
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
         RETURNING {}",
        EndedRun::columns()
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

typed_row! {
    struct LiveRunRow {
        id: i64,
        kind: BatchKind,
        state: RunState,
        from_host: String,
        to_host: String,
        request: i64,
        receiver_notified: bool,
        source_stop_acks: i64,
        destination_stop_acks: i64,
        agent_run: Option<i64>,
        outcomes: u64,
        entries: u64,
        settled_bytes: i64,
        settled_files: i64,
        rate_bps: Option<u64>,
        streams: Option<i64>,
        path: JsonColumn<Vec<AddressPair>>,
        end_reason: Option<String>,
        phase: OrderPhase,
        transport: Option<String>,
    }
}

/// A live run as reports read and change it.
#[derive(Debug, Clone)]
pub(crate) struct ReportedRun {
    pub(crate) live: LiveRun,
    pub(crate) request: i64,
    pub(crate) settled_bytes: i64,
    pub(crate) settled_files: i64,
    /// Transport that its source reported last.
    pub(crate) transport: Option<String>,
}

impl From<LiveRunRow> for ReportedRun {
    fn from(row: LiveRunRow) -> Self {
        let live = LiveRun {
            id: row.id,
            kind: row.kind,
            state: row.state,
            hosts: [row.from_host, row.to_host],
            receiver_notified: row.receiver_notified,
            missed_reports: [row.source_stop_acks, row.destination_stop_acks],
            agent_run: row.agent_run.map(i64::cast_unsigned),
            outcomes: row.outcomes,
            entries: row.entries,
            phase: row.phase,
            settings: OrderSettings {
                rate_bps: row.rate_bps,
                streams: row.streams.map(|streams| streams as u16),
                path: row.path.0,
            },
            end_reason: row.end_reason,
        };
        Self {
            live,
            request: row.request,
            settled_bytes: row.settled_bytes,
            settled_files: row.settled_files,
            transport: row.transport,
        }
    }
}

written_row! {
    struct HostName {
        name: String,
    }
}

/// Returns the live runs at these hosts, by id.
pub(crate) async fn at_hosts(
    cx: &mut TxContext,
    hosts: &[&str],
) -> Result<BTreeMap<i64, ReportedRun>, sqlx::Error> {
    let mut runs = BTreeMap::new();
    for column in ["from_host", "to_host"] {
        let names = hosts.iter().map(|host| HostName { name: (*host).to_owned() });
        let text = format!(
            "SELECT {} FROM run WHERE state < {ENDED_STATE} AND {column} IN (SELECT name FROM v)",
            LiveRunRow::columns()
        );
        let found: Vec<LiveRunRow> = with_rows(names, text).fetch_all(&mut cx.tx).await?;
        runs.extend(found.into_iter().map(|run| (run.id, run.into())));
    }
    Ok(runs)
}

written_row! {
    /// Progress of a run as its source reports it.
    #[derive(Debug, Clone)]
    pub(crate) struct ReportedProgress {
        pub(crate) id: i64,
        pub(crate) agent_run: i64,
        pub(crate) outcomes: i64,
        pub(crate) entries: i64,
        pub(crate) phase: OrderPhase,
        pub(crate) moved: i64,
        pub(crate) measured_bps: i64,
        pub(crate) applied_bps: Option<i64>,
        pub(crate) live_streams: i64,
        pub(crate) path_forecast: JsonColumn<Option<PathForecast>>,
        pub(crate) retransmits: i64,
        pub(crate) bound_by: String,
        pub(crate) label: String,
        pub(crate) transport: Option<String>,
        pub(crate) transport_reason: Option<String>,
        pub(crate) waiting: Option<String>,
        pub(crate) settled_bytes: i64,
        pub(crate) settled_files: i64,
    }
}

/// Stores the progress of runs.
pub(crate) async fn store_progress(
    cx: &mut TxContext,
    progress: Vec<ReportedProgress>,
) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE run SET {}, seen = $1 FROM v WHERE run.id = v.id",
        set_clause::<ReportedProgress>(&["id"])
    );
    with_rows(progress, text).bind(cx.now).execute(&mut cx.tx).await.map(drop)
}

/// Stores that the receivers of runs have their tickets.
pub(crate) async fn set_receiver_notified(
    cx: &mut TxContext,
    runs: &[i64],
) -> Result<(), sqlx::Error> {
    let ids = runs.iter().map(|id| IdRow { id: *id });
    let text = "UPDATE run SET receiver_notified = 1 FROM v WHERE run.id = v.id";
    with_rows(ids, text).execute(&mut cx.tx).await.map(drop)
}

written_row! {
    /// Consecutive reports of the source and the destination of a run without its withdrawn orders.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct MissedReports {
        pub(crate) id: i64,
        pub(crate) source_stop_acks: i64,
        pub(crate) destination_stop_acks: i64,
    }
}

/// Stores missed reports of withdrawn runs.
pub(crate) async fn set_missed_reports(
    cx: &mut TxContext,
    missed: Vec<MissedReports>,
) -> Result<(), sqlx::Error> {
    let text = format!(
        "UPDATE run SET {} FROM v WHERE run.id = v.id",
        set_clause::<MissedReports>(&["id"])
    );
    with_rows(missed, text).execute(&mut cx.tx).await.map(drop)
}

/// A live run with a host that is down or declared gone.
#[derive(Debug, Clone)]
pub(crate) struct SuspectRow {
    pub(crate) id: i64,
    pub(crate) end_reason: Option<String>,
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
            end_reason: ColumnValue::read(row, "end_reason")?,
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
            r.destination_stop_acks AS destination_stop_acks, r.end_reason AS end_reason, COALESCE(f.gone_at, 0) AS from_gone_at,
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
