//! Schedules rounds, on events and periodically.
//!
//! Of several controllers on one database the leader, which holds the lease, runs them; another takes over once the
//! lease has expired ([`LEADER_LEASE`](penstock_control::lease::LEADER_LEASE)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_control::lease::LEADER_RENEWAL_INTERVAL;
use penstock_control::scheduler::RoundDecision;

use crate::repository::rounds::{self, RoundRecord};
use crate::repository::{StoreError, WriteError, now_ms};
use crate::shared::ControllerState;
use crate::use_cases::{maintenance, schedule};

/// Least time between two rounds.
const ROUND_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Interval of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which unchanged rounds are recorded.
const IDLE_ROUND_RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// Times of the last periodic actions.
#[derive(Debug, Default)]
struct LastRuns {
    lease_renewed: Option<Instant>,
    maintenance: Option<Instant>,
    recorded: Option<Instant>,
    /// Set if the last recorded round has no rates; none if unknown.
    idle: Option<bool>,
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= every)
}

/// Runs rounds until the controller stops.
pub(crate) async fn run(shared: Arc<ControllerState>) {
    let mut cause = "start";
    let mut last = LastRuns::default();
    let mut logged = false;
    while !shared.stopping.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match run_round(&shared, cause, &mut last).await {
            Ok(()) => logged = false,
            Err(error) => {
                if !logged {
                    tracing::error!("round failed: {error}: nodes keep their orders and rates");
                }
                logged = true;
            }
        }
        shared.rounds.notify_one();
        tokio::time::sleep(ROUND_INTERVAL_MIN.saturating_sub(begun.elapsed())).await;
        cause = tokio::select! {
            () = shared.scheduler_notify.notified() => "event",
            () = tokio::time::sleep(shared.settings().config.round) => "timer",
        };
    }
}

/// Takes or renews the lease. Returns false while another controller holds it.
async fn renew_lease(shared: &ControllerState) -> Result<bool, WriteError> {
    let owner = shared.owner.clone();
    let taken = shared.writer.apply(move |cx| {
        let owner = owner.clone();
        Box::pin(async move { rounds::renew_lease(cx, &owner).await })
    });
    taken.await
}

async fn run_round(
    shared: &ControllerState,
    cause: &'static str,
    last: &mut LastRuns,
) -> Result<(), StoreError> {
    if is_due(last.lease_renewed, LEADER_RENEWAL_INTERVAL) {
        last.lease_renewed = None;
        let asked = Instant::now();
        let leads = renew_lease(shared).await?;
        shared.leads.store(leads, Ordering::Relaxed);
        if !leads {
            return Ok(());
        }
        last.lease_renewed = Some(asked);
    }
    if is_due(last.maintenance, MAINTENANCE_INTERVAL) {
        maintenance::run_maintenance(shared).await?;
        last.maintenance = Some(Instant::now());
    }
    let now = now_ms();
    let alive = shared.alive_ms();
    let settings = shared.settings();
    let snapshot =
        schedule::snapshot(&shared.database.pool, now, alive, |name| settings.config.is_site(name));
    let snapshot = snapshot.await?;
    shared.latest_round.set(&snapshot);
    if snapshot.runs.is_empty() && snapshot.queues.is_empty() {
        if last.idle != Some(true) {
            record_idle(shared, cause, now).await?;
            last.idle = Some(true);
        }
        return Ok(());
    }
    let begun = Instant::now();
    let decision = settings.planner.plan(&snapshot);
    let took = begun.elapsed();
    shared.counters.round(took);
    let (micros, runs) = (took.as_micros() as i64, snapshot.runs.len() as i64);
    let nothing = decision.starts.is_empty()
        && decision.plans.is_empty()
        && decision.withdraw.is_empty()
        && decision.notes.is_empty();
    if nothing && !is_due(last.recorded, IDLE_ROUND_RECORD_INTERVAL) {
        return Ok(());
    }
    last.recorded = Some(Instant::now());
    last.idle = Some(false);
    let written = shared.writer.apply(move |cx| {
        let decision = decision.clone();
        let record = RoundRecord { at: now, cause, micros, runs };
        Box::pin(async move { schedule::write(cx, &decision, record).await })
    });
    written.await?;
    Ok(())
}

/// Records a round with zero rates once no work is left.
async fn record_idle(
    shared: &ControllerState,
    cause: &'static str,
    now: i64,
) -> Result<(), StoreError> {
    let classes = rounds::last_classes(&shared.database.pool).await?;
    if classes.iter().all(|class| class.allotted_bps == 0 && class.measured_bps == 0) {
        return Ok(());
    }
    let zeros = classes.into_iter().map(|class| (class.class, (0, 0)));
    let decision = RoundDecision { classes: zeros.collect(), ..RoundDecision::default() };
    let written = shared.writer.apply(move |cx| {
        let decision = decision.clone();
        let record = RoundRecord { at: now, cause, micros: 0, runs: 0 };
        Box::pin(async move { schedule::write(cx, &decision, record).await })
    });
    written.await?;
    Ok(())
}
