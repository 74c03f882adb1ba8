//! Scheduling rounds: reads their input, and stores their decision.

use penstock_control::cancellation::QueueDeltas;
use penstock_control::interface_rates::InterfaceRates;
use penstock_control::orders::{OrderId, RunSide};
use penstock_control::request::RequestDelta;
use penstock_control::run_contents::{BATCHES_PER_ORDER_MAX, RunContents};
use penstock_control::scheduler::{
    HostView, PlannedStart, ReservationView, RoundDecision, Snapshot,
};

use super::{outcomes, reserve};
use crate::repository::batches::QueuedBatch;
use crate::repository::requests::RequestDeltas;
use crate::repository::rounds::{ClassRate, RoundRecord};
use crate::repository::runs::{NewRun, RunSelection};
use crate::repository::writer::TxContext;
use crate::repository::{
    DatabaseError, ReadPool, batches, circuits, db, hosts, links, requests, reservations, rounds,
    runs,
};

/// Reads the input of a round. A host is alive if it reported within `alive_ms`.
pub(crate) async fn snapshot(
    pool: &ReadPool,
    now: i64,
    alive_ms: i64,
    is_site: impl Fn(&str) -> bool,
) -> Result<Snapshot, DatabaseError> {
    let mut snapshot = Snapshot { now_ms: now, ..Snapshot::default() };
    let drained = hosts::drained(pool).await?;
    snapshot.draining_sites = drained.iter().filter(|name| is_site(name)).cloned().collect();
    snapshot.hosts = hosts::list(pool)
        .await?
        .into_iter()
        .map(|host| HostView {
            alive: now - host.seen <= alive_ms,
            draining: drained.contains(&host.name),
            capacity: host.capacity.0,
            interfaces: host.interfaces.0.into_iter().map(InterfaceRates::view).collect(),
            name: host.name,
        })
        .collect();
    snapshot.down = links::down(pool).await?;
    let seen = links::telemetry(pool).await?.into_iter();
    snapshot.counts = seen.filter_map(|(link, seen)| Some((link, seen.count?))).collect();
    snapshot.runs = runs::planned(pool, now).await?;
    let mut circuits = circuits::active(pool, now).await?;
    for row in reservations::active(pool, now).await? {
        let links = row.route.0.into_iter().map(|(resource, _)| resource).collect();
        snapshot.reservations.push(ReservationView {
            resources: reserve::path_resources((&row.source, &row.destination), links),
            circuit: circuits.remove(&row.id),
            class: row.class,
            source: row.source,
            destination: row.destination,
            rate_bps: row.rate_bps,
        });
    }
    snapshot.queues = batches::busy_queues(pool).await?;
    Ok(snapshot)
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
    decision: &RoundDecision,
    record: RoundRecord<'_>,
) -> Result<RoundChanges, DatabaseError> {
    let mut written = RoundChanges::default();
    for start in &decision.starts {
        written.started += i64::from(start_run(cx, start).await?);
    }
    if written.started > 0 {
        // New runs get a rate, and may transfer, in the next round.
        cx.request_round();
    }
    written.changed = runs::store_plans(cx, &decision.plans).await?;
    for (run, why) in &decision.withdraw {
        runs::withdraw(cx, RunSelection::Id(*run), why).await?;
    }
    let classes = decision.classes.iter().map(|(class, (allotted_bps, measured_bps))| ClassRate {
        class: class.clone(),
        allotted_bps: *allotted_bps,
        measured_bps: *measured_bps,
    });
    let classes: Vec<ClassRate> = classes.collect();
    let done = (written.started, written.changed);
    rounds::insert(cx, record, done, &classes, &decision.notes).await?;
    Ok(written)
}

/// Returns a random secret of 256 bits that admits one node at another.
fn ticket() -> String {
    let mut bytes = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a run with batches from a queue. Returns false if the queue is empty.
async fn start_run(cx: &mut TxContext, start: &PlannedStart) -> Result<bool, DatabaseError> {
    let queued = batches::first_of_queue(cx, start.queue, BATCHES_PER_ORDER_MAX).await?;
    let Some(head) = queued.first() else { return Ok(false) };
    let RunContents { batches: chosen, files, bytes } =
        RunContents::choose(queued.iter().map(QueuedBatch::summary), cx.settings.config.batch);
    let chosen: Vec<_> = chosen.into_iter().map(|(at, place)| (&queued[at], place)).collect();
    let terms = requests::order_terms(cx, head.request).await?;
    let receiver = hosts::receiver_address(cx, &start.to).await?.unwrap_or_default();
    let run = db::allocate_ids(&mut cx.tx, "id", 1).await?;
    let started = chosen.iter().map(|(batch, place)| (batch.id, *place)).collect();
    batches::start(cx, run, started).await?;
    let mut counts = QueueDeltas::new();
    let mut deltas = RequestDeltas::new();
    for (batch, _) in &chosen {
        counts.entry(start.queue).or_default().remove(batch.files, batch.bytes);
        // Files count as active while their batch runs; their rows stay unchanged.
        let delta: &mut RequestDelta = deltas.entry(batch.request).or_default();
        delta.active += batch.files;
    }
    batches::count_queues(cx, counts).await?;
    outcomes::apply_deltas(cx, deltas).await?;
    let order = OrderId::of(run, RunSide::Source);
    let text = match start.to.as_str() {
        "" => format!("order {order}: {} lists {}", start.from, terms.from_path),
        host => format!("order {order}: {files} files from {} to {host}", start.from),
    };
    cx.event(Some(head.request), Some(&terms.class), "order", text);
    let run = NewRun {
        id: run,
        kind: head.kind,
        queue: start.queue,
        request: head.request,
        terms: &terms,
        from_host: &start.from,
        to_host: &start.to,
        ticket: ticket(),
        receiver,
        priority: head.priority,
        deadline: head.deadline,
        files,
        bytes,
    };
    runs::insert(cx, run).await?;
    Ok(true)
}
