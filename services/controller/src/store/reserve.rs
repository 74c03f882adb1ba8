//! Reservations of a rate between two sites, admitted if links have capacity throughout.

use std::sync::Arc;

use penstock_calendar::{Calendar, Reservation, ReserveError};
use penstock_operations::round::{Planner, RESERVABLE_PERCENT};
use penstock_units::BitRate;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::rows::{self, SqlValue};
use super::writer::{Audit, TxContext};
use super::{circuit, db};

/// Retention of reservations after their end, in seconds.
const RESERVATION_RETENTION_S: i64 = 7 * 86_400;

/// A reservation to admit.
#[derive(Debug, Clone)]
pub(crate) struct ReservationRequest {
    pub(crate) client: String,
    pub(crate) class: Option<String>,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) rate_bps: i64,
    /// Begin and end in Unix seconds.
    pub(crate) begins: i64,
    pub(crate) ends: i64,
    /// Set to carry it over a circuit.
    pub(crate) circuit: bool,
}

/// Resource name and link name of each link of a path.
pub(crate) type ReservedRoute = Vec<(String, String)>;

/// Returns the calendar of all current reservations except one, in the order of their ids; purges expired ones.
async fn calendar(
    cx: &mut TxContext,
    planner: &Planner,
    without: Option<i64>,
) -> Result<Calendar, sqlx::Error> {
    // A circuit is purged after its release only.
    let old = "DELETE FROM reservation WHERE ends < $1
        AND NOT EXISTS (SELECT 1 FROM circuit WHERE circuit.reservation = reservation.id AND circuit.state < 3)";
    sqlx::query(old).bind(cx.now - RESERVATION_RETENTION_S * 1000).execute(&mut cx.tx).await?;
    let old = "DELETE FROM circuit WHERE reservation NOT IN (SELECT id FROM reservation)";
    sqlx::query(old).execute(&mut cx.tx).await?;
    let rows = sqlx::query(CURRENT_RESERVATIONS).bind(cx.now).bind(without.unwrap_or(-1));
    Ok(build_calendar(planner, &rows.fetch_all(&mut cx.tx).await?))
}

/// Returns the calendar of all current reservations, read-only.
pub(crate) async fn calendar_now(
    pool: &AnyPool,
    planner: &Planner,
    now: i64,
) -> Result<Calendar, sqlx::Error> {
    let rows = sqlx::query(CURRENT_RESERVATIONS).bind(now).bind(-1_i64).fetch_all(pool).await?;
    Ok(build_calendar(planner, &rows))
}

/// Query for current reservations except one.
const CURRENT_RESERVATIONS: &str =
    "SELECT id, rate_bps, begins, ends, route, source, destination FROM reservation
    WHERE ends > $1 AND id <> $2 ORDER BY id";

/// Builds a calendar from the network's capacities and rows of [`CURRENT_RESERVATIONS`].
fn build_calendar(planner: &Planner, rows: &[AnyRow]) -> Calendar {
    let mut calendar = Calendar::default();
    for (name, capacity) in planner.capacities() {
        let share =
            BitRate((capacity / 100 * RESERVABLE_PERCENT).min(penstock_calendar::RATE_MAX.0));
        // Cannot fail: the share is within RATE_MAX.
        let _ = calendar.set_reservable(&name, share);
    }
    for row in rows {
        let route: ReservedRoute =
            serde_json::from_str(&row.get::<String, _>(4)).unwrap_or_default();
        let links = route.into_iter().map(|(resource, _)| resource).collect();
        let sites: [String; 2] = [row.get(5), row.get(6)];
        let reservation = Reservation {
            name: row.get::<i64, _>(0).to_string(),
            path: path_resources((&sites[0], &sites[1]), links),
            rate: BitRate(row.get::<i64, _>(1) as u64),
            seconds: (row.get::<i64, _>(2) / 1000) as u64..(row.get::<i64, _>(3) / 1000) as u64,
        };
        // A reservation stays valid if a later topology lacks its links or capacity.
        if let Err(error) = calendar.reserve(reservation) {
            tracing::warn!("an admitted reservation no longer fits: {error}");
        }
    }
    calendar
}

/// Returns the resources of a reservation between two sites: its links, and the interfaces of the sites' hosts.
pub(crate) fn path_resources(
    (source, destination): (&str, &str),
    mut links: Vec<String>,
) -> Vec<String> {
    links.extend(Planner::site_resources(source, destination));
    links
}

/// Admits a reservation on the first path with capacity; otherwise returns the best offer of all paths.
pub(crate) async fn reserve(
    cx: &mut TxContext,
    wanted: &ReservationRequest,
    audit: Audit,
) -> Result<Result<i64, ReserveError>, sqlx::Error> {
    let settings = Arc::clone(&cx.settings);
    let planner = &settings.planner;
    let mut calendar = calendar(cx, planner, None).await?;
    let mut refusal = None;
    for (resources, links) in
        planner.site_paths(&wanted.source, &wanted.destination, wanted.circuit)
    {
        if wanted.circuit && links.is_empty() {
            refusal =
                Some(ReserveError::Terms("a circuit needs a link between switches of its sites"));
            continue;
        }
        let reservation = Reservation {
            name: "new".to_owned(),
            path: path_resources((&wanted.source, &wanted.destination), resources.clone()),
            rate: BitRate(wanted.rate_bps as u64),
            seconds: wanted.begins as u64..wanted.ends as u64,
        };
        match calendar.reserve(reservation) {
            Ok(()) => {
                let id = store(cx, wanted, resources.into_iter().zip(links).collect()).await?;
                if wanted.circuit {
                    circuit::book(cx, id).await?;
                }
                cx.event(
                    None,
                    wanted.class.as_deref(),
                    "reservation",
                    format!("{id} is made: {}", audit.detail),
                );
                cx.audit(audit);
                cx.request_round();
                return Ok(Ok(id));
            }
            Err(error) => refusal = Some(larger_offer(refusal, error)),
        }
    }
    Ok(Err(refusal.unwrap_or(ReserveError::Terms(
        "the topology has no path between hosts of these sites: it needs a host at each (two where both are one site) and links between them",
    ))))
}

/// Returns the routes with capacity for an existing reservation, its present one first.
pub(crate) async fn candidate_routes(
    cx: &mut TxContext,
    (id, seconds): (i64, std::ops::Range<u64>),
    (source, destination, rate): (&str, &str, BitRate),
    now: &ReservedRoute,
) -> Result<Vec<ReservedRoute>, sqlx::Error> {
    let settings = Arc::clone(&cx.settings);
    let planner = &settings.planner;
    let mut calendar = calendar(cx, planner, Some(id)).await?;
    let mut found = Vec::new();
    for (resources, links) in planner.site_paths(source, destination, true) {
        let path = path_resources((source, destination), resources.clone());
        let name = "this".to_owned();
        let fits = calendar.reserve(Reservation { name, path, rate, seconds: seconds.clone() });
        calendar.cancel("this", 0);
        let route: ReservedRoute = resources.into_iter().zip(links).collect();
        if route == *now {
            found.insert(0, route);
        } else if fits.is_ok() && !route.is_empty() {
            found.push(route);
        }
    }
    Ok(found)
}

/// Returns the refusal with the larger offer.
fn larger_offer(one: Option<ReserveError>, other: ReserveError) -> ReserveError {
    match (one, other) {
        (Some(ReserveError::Shortage(one)), ReserveError::Shortage(other))
            if one.largest >= other.largest =>
        {
            ReserveError::Shortage(one)
        }
        (_, other) => other,
    }
}

async fn store(
    cx: &mut TxContext,
    wanted: &ReservationRequest,
    route: ReservedRoute,
) -> Result<i64, sqlx::Error> {
    let id = db::allocate_ids(&mut cx.tx, "id", 1).await?;
    let row: [SqlValue; 10] = [
        id.into(),
        wanted.client.clone().into(),
        wanted.class.clone().into(),
        wanted.source.clone().into(),
        wanted.destination.clone().into(),
        wanted.rate_bps.into(),
        (wanted.begins * 1000).into(),
        (wanted.ends * 1000).into(),
        serde_json::to_string(&route).expect("plain data").into(),
        cx.now.into(),
    ];
    let into = "INSERT INTO reservation (id, client, class, source, destination, rate_bps, begins, ends, route, made)";
    rows::insert(&mut cx.tx, into, vec![row], "").await?;
    Ok(id)
}

/// Ends a reservation now. Returns false if it has ended already.
pub(crate) async fn cancel(cx: &mut TxContext, id: i64, audit: Audit) -> Result<bool, sqlx::Error> {
    let text = "UPDATE reservation SET ends = $1 WHERE id = $2 AND ends > $1";
    let query = sqlx::query(text).bind(cx.now).bind(id);
    let done = query.execute(&mut cx.tx).await?.rows_affected() > 0;
    if done {
        cx.event(None, None, "reservation", format!("{id} is given back"));
        cx.audit(audit);
        cx.request_round();
    }
    Ok(done)
}
