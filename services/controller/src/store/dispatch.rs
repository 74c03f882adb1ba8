//! Reads the input of a round, and stores its decision.

use std::collections::HashSet;

use penstock_operations::orders::{Capacity, FILES_MAX, OrderId, OrderPhase, RunSide};
use penstock_operations::round::{
    Decision, HostView, InterfaceView, PlannedStart, QueueView, ReservationView, RunPlan, RunView,
    Snapshot,
};
use serde::{Deserialize, Serialize};
use sqlx::{AnyPool, AssertSqlSafe, Row};
use utoipa::ToSchema;

use super::db;
use super::outcomes::{self, RequestDelta, RequestDeltas};
use super::report::InterfaceRates;
use super::reserve::{self, ReservedRoute};
use super::rows::{self, SqlValue};
use super::submit;
use super::writer::TxContext;
use super::{BatchKind, RunState, circuit, link_telemetry, read};

/// Most small batches in one order.
const BATCHES_PER_ORDER_MAX: usize = 512;

/// Reads the input of a round. A host is alive if it reported within `alive_ms`.
pub(crate) async fn snapshot(
    pool: &AnyPool,
    now: i64,
    alive_ms: i64,
    is_site: impl Fn(&str) -> bool,
) -> Result<Snapshot, sqlx::Error> {
    let mut snapshot = Snapshot { now_ms: now, ..Snapshot::default() };
    let drained = sqlx::query("SELECT name FROM drain").fetch_all(pool).await?;
    let drained: HashSet<String> = drained.iter().map(|row| row.get(0)).collect();
    snapshot.draining_sites = drained.iter().filter(|name| is_site(name)).cloned().collect();
    let hosts = sqlx::query("SELECT name, seen, capacity, interfaces FROM host ORDER BY name");
    for row in hosts.fetch_all(pool).await? {
        let name: String = row.get(0);
        let capacity: Capacity = serde_json::from_str(&row.get::<String, _>(2)).unwrap_or_default();
        let interfaces: Vec<InterfaceRates> =
            serde_json::from_str(&row.get::<String, _>(3)).unwrap_or_default();
        snapshot.hosts.push(HostView {
            alive: now - row.get::<i64, _>(1) <= alive_ms,
            draining: drained.contains(&name),
            capacity,
            interfaces: interfaces
                .into_iter()
                .map(|one| InterfaceView {
                    name: one.name,
                    addresses: one.addresses,
                    sent_bps: one.sent_bps,
                })
                .collect(),
            name,
        });
    }
    snapshot.down = read::down_links(pool).await?;
    let seen = link_telemetry::load(pool).await?.into_iter();
    snapshot.counts = seen.filter_map(|(link, seen)| Some((link, seen.count?))).collect();
    let runs = sqlx::query(
        "SELECT n.id, n.queue, n.class, n.request, n.from_host, n.to_host, n.priority, n.deadline,
            CASE WHEN r.size_estimate > r.bytes THEN r.size_estimate ELSE r.bytes END - r.bytes_done, n.phase,
            n.measured_bps, n.applied_bps, n.bound_by, n.rate_bps, n.streams, n.path, n.route, n.reason, n.slow_since,
            n.off_path, n.settings_at, n.moved_at, n.off_since, n.moved, n.started
         FROM run n JOIN request r ON r.id = n.request WHERE n.state < 2 AND n.state = 0 ORDER BY n.id",
    );
    for row in runs.fetch_all(pool).await? {
        let left = u64::try_from(row.get::<i64, _>(8)).unwrap_or(0);
        let rate = |column: usize| row.get::<Option<i64>, _>(column).map(|rate| rate as u64);
        snapshot.runs.push(RunView {
            queue: row.get(1),
            class: row.get(2),
            request: row.get(3),
            from: row.get(4),
            to: row.get(5),
            priority: u8::try_from(row.get::<i64, _>(6)).unwrap_or(3),
            deadline: row.get::<Option<i64>, _>(7).map(|until| (until, left)),
            moving: row.get::<i64, _>(9) == OrderPhase::Running as i64,
            measured_bps: row.get::<i64, _>(10) as u64,
            mean_bps: {
                let (moved, started): (i64, i64) = (row.get(23), row.get(24));
                let elapsed = (now - started).max(1);
                let mean = u64::try_from(i128::from(moved) * 8000 / i128::from(elapsed));
                mean.ok().filter(|mean| *mean > 0)
            },
            applied_bps: rate(11),
            bound_by: row.get(12),
            plan: RunPlan {
                run: row.get(0),
                rate_bps: rate(13),
                streams: row.get::<Option<i64>, _>(14).and_then(|n| u16::try_from(n).ok()),
                path: serde_json::from_str(&row.get::<String, _>(15)).unwrap_or_default(),
                route: serde_json::from_str(&row.get::<String, _>(16)).unwrap_or_default(),
                reason: row.get(17),
                slow_since_ms: row.get(18),
                off_path: row.get::<i64, _>(19) > 0,
                moved_ms: row.get(21),
                off_since_ms: row.get(22),
            },
            plan_changed_ms: row.get(20),
        });
    }
    let mut circuits = circuit::active(pool, now).await?;
    let reservations = "SELECT class, source, destination, rate_bps, id, route FROM reservation WHERE begins <= $1 AND ends > $1 ORDER BY id";
    for row in sqlx::query(reservations).bind(now).fetch_all(pool).await? {
        snapshot.reservations.push(ReservationView {
            class: row.get(0),
            source: row.get(1),
            destination: row.get(2),
            rate_bps: row.get::<i64, _>(3) as u64,
            resources: {
                let route: ReservedRoute =
                    serde_json::from_str(&row.get::<String, _>(5)).unwrap_or_default();
                let links = route.into_iter().map(|(resource, _)| resource).collect();
                let sites: [String; 2] = [row.get(1), row.get(2)];
                reserve::path_resources((&sites[0], &sites[1]), links)
            },
            circuit: circuits.remove(&row.get::<i64, _>(4)),
        });
    }
    let queues = "SELECT id, class, source, destination, batches, bytes FROM queue WHERE batches > 0 ORDER BY id";
    for row in sqlx::query(queues).fetch_all(pool).await? {
        snapshot.queues.push(QueueView {
            id: row.get(0),
            class: row.get(1),
            source: row.get(2),
            destination: row.get(3),
            batches: row.get::<i64, _>(4) as u64,
            bytes: row.get::<i64, _>(5).max(0) as u64,
        });
    }
    Ok(snapshot)
}

/// Rates of a class in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassRate {
    /// Name of the class.
    pub class: String,
    /// Sum of the allotted rates of its orders.
    pub allotted_bps: u64,
    /// Sum of the measured rates of its orders.
    pub measured_bps: u64,
}

/// Number of runs that a round started, and of plans that it changed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundChanges {
    pub(crate) started: i64,
    pub(crate) changed: i64,
}

/// Stores the decision of a round.
pub(crate) async fn write(
    cx: &mut TxContext,
    decision: &Decision,
    (at, cause, micros, runs): (i64, &str, i64, i64),
) -> Result<RoundChanges, sqlx::Error> {
    let mut written = RoundChanges::default();
    for start in &decision.starts {
        written.started += i64::from(start_run(cx, start).await?);
    }
    if written.started > 0 {
        // New runs get a rate, and may transfer, in the next round.
        cx.request_round();
    }
    written.changed = store_plans(cx, &decision.plans).await?;
    for (run, why) in &decision.withdraw {
        withdraw(cx, "id = $4", SqlValue::Int(*run), why).await?;
    }
    let id = db::allocate_ids(&mut cx.tx, "round", 1).await?;
    let notes = serde_json::to_string(&decision.notes).expect("plain data");
    let classes = decision.classes.iter().map(|(class, (allotted_bps, measured_bps))| ClassRate {
        class: class.clone(),
        allotted_bps: *allotted_bps,
        measured_bps: *measured_bps,
    });
    let classes: Vec<ClassRate> = classes.collect();
    let rows: Vec<[SqlValue; 9]> = vec![[
        id.into(),
        at.into(),
        cause.into(),
        micros.into(),
        runs.into(),
        written.started.into(),
        written.changed.into(),
        serde_json::to_string(&classes).expect("plain data").into(),
        notes.into(),
    ]];
    let into = "INSERT INTO round (id, at, cause, micros, runs, started, changed, classes, notes)";
    rows::insert(&mut cx.tx, into, rows, "").await?;
    Ok(written)
}

/// Stores the plans of runs. Returns the number of runs updated.
async fn store_plans(cx: &mut TxContext, plans: &[RunPlan]) -> Result<i64, sqlx::Error> {
    let rows: Vec<[SqlValue; 10]> = plans
        .iter()
        .map(|one| {
            [
                one.run.into(),
                one.rate_bps.map(|rate| rate as i64).into(),
                one.streams.map(i64::from).into(),
                serde_json::to_string(&one.path).expect("plain data").into(),
                serde_json::to_string(&one.route).expect("plain data").into(),
                one.reason.clone().into(),
                one.slow_since_ms.into(),
                i64::from(one.off_path).into(),
                one.moved_ms.into(),
                one.off_since_ms.into(),
            ]
        })
        .collect();
    let now = cx.now;
    let changed = rows::query_values_with(
        &mut cx.tx,
        &[now],
        "i, r, s, p, u, w, l, o, m, f",
        rows,
        "UPDATE run SET rate_bps = v.r, streams = v.s, path = v.p, route = v.u, reason = v.w, slow_since = v.l,
            off_path = v.o, moved_at = v.m, off_since = v.f,
            settings_at = CASE WHEN COALESCE(run.rate_bps, -1) <> COALESCE(v.r, -1) OR run.path <> v.p THEN $1
                ELSE run.settings_at END
         FROM v WHERE run.id = v.i AND run.state = 0 RETURNING id",
    )
    .await?;
    Ok(changed.len() as i64)
}

/// Withdraws the orders of runs, which end once the nodes have stopped.
pub(crate) async fn withdraw(
    cx: &mut TxContext,
    which: &'static str,
    value: SqlValue,
    why: &str,
) -> Result<u64, sqlx::Error> {
    let text = format!(
        "UPDATE run SET state = $1, why = $2, from_gone = 0, to_gone = CASE WHEN kind = 1 THEN 2 ELSE 0 END
         WHERE state < 2 AND state = $3 AND {which}"
    );
    let query = sqlx::query(AssertSqlSafe(text))
        .bind(RunState::Revoking as i64)
        .bind(why.to_owned())
        .bind(RunState::Active as i64);
    let query = match value {
        SqlValue::Int(value) => query.bind(value),
        SqlValue::Text(value) => query.bind(value),
        _ => query,
    };
    Ok(query.execute(&mut cx.tx).await?.rows_affected())
}

/// Returns a random secret of 256 bits that admits one node at another.
fn ticket() -> String {
    let mut bytes = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a run with batches from a queue. Returns false if the queue is empty.
async fn start_run(cx: &mut TxContext, start: &PlannedStart) -> Result<bool, sqlx::Error> {
    let text = format!(
        "SELECT id, request, kind, files, bytes, priority, deadline, lane FROM batch
         WHERE queue = $1 AND state = 1
            AND NOT EXISTS (SELECT 1 FROM request WHERE request.id = batch.request AND request.cancel = 1)
         ORDER BY priority DESC, id LIMIT {BATCHES_PER_ORDER_MAX}{}",
        db::skip_locked(cx.kind)
    );
    let found = sqlx::query(AssertSqlSafe(text)).bind(start.queue).fetch_all(&mut cx.tx).await?;
    let Some(head) = found.first() else { return Ok(false) };
    let lane: String = head.get(7);
    let limits = cx.settings.config.batch;
    let (mut files, mut bytes) = (0_i64, 0_i64);
    let mut chosen = Vec::new();
    for row in &found {
        let (more, size): (i64, i64) = (row.get(3), row.get(4));
        let alike =
            row.get::<String, _>(7) == lane && row.get::<i64, _>(2) == head.get::<i64, _>(2);
        let fits = files + more <= limits.files.min(FILES_MAX) as i64
            && bytes.saturating_add(size) <= limits.bytes as i64;
        let list = row.get::<i64, _>(2) == BatchKind::List as i64;
        if !chosen.is_empty() && (!alike || !fits || list) {
            continue;
        }
        chosen.push((row, files));
        files += more;
        bytes += size;
    }
    let request: i64 = head.get(1);
    let row = sqlx::query("SELECT class, from_path, to_path, policy FROM request WHERE id = $1")
        .bind(request)
        .fetch_one(&mut cx.tx)
        .await?;
    let (class, from, to, policy): (String, String, String, String) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    let there = sqlx::query("SELECT addresses, fingerprint FROM host WHERE name = $1")
        .bind(start.to.clone())
        .fetch_optional(&mut cx.tx)
        .await?;
    let (addresses, fingerprint): (String, String) =
        there.map_or_else(Default::default, |row| (row.get(0), row.get(1)));
    let run = db::allocate_ids(&mut cx.tx, "id", 1).await?;
    let batches: Vec<[SqlValue; 2]> =
        chosen.iter().map(|(row, place)| [row.get::<i64, _>(0).into(), (*place).into()]).collect();
    rows::query_values_with(
        &mut cx.tx,
        &[run],
        "i, p",
        batches,
        "UPDATE batch SET state = 2, run = $1, place = v.p FROM v WHERE batch.id = v.i",
    )
    .await?;
    let taken = (-(chosen.len() as i64), -files, -bytes);
    submit::count_queues(cx, [(start.queue, taken)].into()).await?;
    let mut deltas = RequestDeltas::new();
    for (row, _) in &chosen {
        // Files count as active while their batch runs; their rows stay unchanged.
        let delta: &mut RequestDelta = deltas.entry(row.get(1)).or_default();
        delta.active += row.get::<i64, _>(3);
    }
    outcomes::apply_deltas(cx, deltas).await?;
    let order = OrderId::of(run, RunSide::Source);
    let text = match start.to.as_str() {
        "" => format!("order {order}: {} lists {from}", start.from),
        host => format!("order {order}: {files} files from {} to {host}", start.from),
    };
    cx.event(Some(request), Some(&class), "order", text);
    let now = cx.now;
    let row: [SqlValue; 40] = [
        run.into(),
        head.get::<i64, _>(2).into(),
        start.queue.into(),
        request.into(),
        class.into(),
        start.from.clone().into(),
        start.to.clone().into(),
        from.into(),
        to.into(),
        policy.into(),
        ticket().into(),
        addresses.into(),
        fingerprint.into(),
        head.get::<i64, _>(5).into(),
        head.get::<Option<i64>, _>(6).into(),
        files.into(),
        bytes.into(),
        (RunState::Active as i64).into(),
        0.into(),
        0.into(),
        0.into(),
        "[]".into(),
        "[]".into(),
        "it has just begun".into(),
        now.into(),
        0.into(),
        0.into(),
        (OrderPhase::Waiting as i64).into(),
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
            addresses, fingerprint, priority, deadline, files, bytes, state, told, from_gone, to_gone, path, route,
            reason, settings_at, outcomes, entries, phase, moved, settled_bytes, settled_files, measured_bps,
            live_streams, retransmits, bound_by, label, off_path, started, seen, ended)",
        vec![row],
        "",
    )
    .await?;
    Ok(true)
}
