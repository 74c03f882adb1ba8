//! Rounds: one controller makes them, when something happened or a while has passed.
//!
//! Of several controllers on one database one holds the lease; when it is gone, another takes it after [`LEASE`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_operations::round::Decision;
use sqlx::Row;

use crate::shared::Shared;
use crate::store::dispatch;
use crate::store::house;
use crate::store::now_ms;

/// How long a controller that is gone keeps the others from making rounds.
const LEASE: Duration = Duration::from_secs(5);

/// Rounds are at least so far apart.
const PAUSE: Duration = Duration::from_millis(50);

/// Between two looks at what is due, lost, cancelled or old.
const HOUSE: Duration = Duration::from_millis(500);

/// A round that changes nothing is noted so often.
const NOTE: Duration = Duration::from_secs(1);

/// When things were done last.
#[derive(Debug, Default)]
struct Last {
    led: Option<Instant>,
    house: Option<Instant>,
    noted: Option<Instant>,
    /// The round that was noted last has no rates; none where that is not known.
    idle: Option<bool>,
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= every)
}

/// Makes rounds until the controller stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut cause = "start";
    let mut last = Last::default();
    let mut told = false;
    while !shared.stopping.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match turn(&shared, cause, &mut last).await {
            Ok(()) => told = false,
            Err(error) => {
                if !told {
                    tracing::error!("no round can be made: {error}: nodes go on as they were told");
                }
                told = true;
            }
        }
        shared.rounds.notify_one();
        tokio::time::sleep(PAUSE.saturating_sub(begun.elapsed())).await;
        cause = tokio::select! {
            () = shared.wake.notified() => "event",
            () = tokio::time::sleep(shared.settings().config.round) => "timer",
        };
    }
}

/// Takes the lease, or keeps it; false where another controller has it.
async fn lead(shared: &Shared) -> Result<bool, String> {
    let owner = shared.owner.clone();
    let taken = shared.writer.apply(move |cx| {
        let owner = owner.clone();
        Box::pin(async move {
            let until = cx.now + LEASE.as_millis() as i64;
            let row = sqlx::query(
                "INSERT INTO lease (name, owner, until) VALUES ('round', $1, $2)
                 ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
                 WHERE lease.owner = excluded.owner OR lease.until < $3 RETURNING owner",
            )
            .bind(owner)
            .bind(until)
            .bind(cx.now)
            .fetch_optional(&mut cx.tx)
            .await?;
            Ok(row.is_some_and(|row| !row.get::<String, _>(0).is_empty()))
        })
    });
    taken.await.map_err(|error| error.to_string())
}

async fn turn(shared: &Shared, cause: &'static str, last: &mut Last) -> Result<(), String> {
    if is_due(last.led, LEASE / 3) {
        last.led = None;
        let asked = Instant::now();
        let leads = lead(shared).await?;
        shared.leads.store(leads, Ordering::Relaxed);
        if !leads {
            return Ok(());
        }
        last.led = Some(asked);
    }
    if is_due(last.house, HOUSE) {
        house::keep(shared).await?;
        last.house = Some(Instant::now());
    }
    let now = now_ms();
    let alive = shared.alive_ms();
    let settings = shared.settings();
    let snapshot =
        dispatch::snapshot(&shared.database.pool, now, alive, |name| settings.config.is_site(name));
    let snapshot = snapshot.await.map_err(|error| error.to_string())?;
    if snapshot.runs.is_empty() && snapshot.queues.is_empty() {
        if last.idle != Some(true) {
            note_end(shared, cause, now).await?;
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
        && decision.settings.is_empty()
        && decision.withdraw.is_empty()
        && decision.notes.is_empty();
    if nothing && !is_due(last.noted, NOTE) {
        return Ok(());
    }
    last.noted = Some(Instant::now());
    last.idle = Some(false);
    let written = shared.writer.apply(move |cx| {
        let decision = decision.clone();
        Box::pin(async move { dispatch::write(cx, &decision, (now, cause, micros, runs)).await })
    });
    written.await.map_err(|error| error.to_string())?;
    Ok(())
}

/// Notes that work has ended: the classes of the round before have nothing now.
async fn note_end(shared: &Shared, cause: &'static str, now: i64) -> Result<(), String> {
    let text = "SELECT classes FROM round ORDER BY id DESC LIMIT 1";
    let row = sqlx::query(text).fetch_optional(&shared.database.pool).await;
    let row = row.map_err(|error| error.to_string())?;
    let classes: Vec<dispatch::ClassRate> =
        row.and_then(|row| serde_json::from_str(&row.get::<String, _>(0)).ok()).unwrap_or_default();
    if classes.iter().all(|class| class.allotted_bps == 0 && class.measured_bps == 0) {
        return Ok(());
    }
    let zeros = classes.into_iter().map(|class| (class.class, (0, 0)));
    let decision = Decision { classes: zeros.collect(), ..Decision::default() };
    let written = shared.writer.apply(move |cx| {
        let decision = decision.clone();
        Box::pin(async move { dispatch::write(cx, &decision, (now, cause, 0, 0)).await })
    });
    written.await.map_err(|error| error.to_string())?;
    Ok(())
}
