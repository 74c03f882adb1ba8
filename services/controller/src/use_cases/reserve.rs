//! Reservations of a rate between two sites, admitted if links have capacity throughout.

use std::sync::Arc;

use penstock_calendar::{Calendar, Reservation, ReserveError};
use penstock_control::scheduler::{Planner, RESERVABLE_PERCENT};
use penstock_units::BitRate;

use crate::repository::reservations::{self, ReservationRequest, ReservationRow, ReservedRoute};
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, ReadPool, circuits};

/// Returns the calendar of all current reservations except one, in the order of their ids; purges expired ones.
async fn calendar(
    cx: &mut TxContext,
    planner: &Planner,
    without: Option<i64>,
) -> Result<Calendar, DatabaseError> {
    circuits::purge(cx).await?;
    reservations::purge(cx).await?;
    Ok(build_calendar(planner, reservations::current_without(cx, without).await?))
}

/// Returns the calendar of all current reservations, read-only.
pub(crate) async fn calendar_now(
    pool: &ReadPool,
    planner: &Planner,
    now: i64,
) -> Result<Calendar, DatabaseError> {
    Ok(build_calendar(planner, reservations::current(pool, now).await?))
}

/// Builds a calendar from the network's capacities and reservations.
fn build_calendar(planner: &Planner, reservations: Vec<ReservationRow>) -> Calendar {
    let mut calendar = Calendar::default();
    for (name, capacity) in planner.capacities() {
        let share =
            BitRate((capacity / 100 * RESERVABLE_PERCENT).min(penstock_calendar::RATE_MAX.0));
        // Cannot fail: the share is within RATE_MAX.
        let _ = calendar.set_reservable(&name, share);
    }
    for row in reservations {
        let links = row.route.0.into_iter().map(|(resource, _)| resource).collect();
        let reservation = Reservation {
            name: row.id.to_string(),
            path: path_resources((&row.source, &row.destination), links),
            rate: BitRate(row.rate_bps),
            seconds: (row.begins / 1000) as u64..(row.ends / 1000) as u64,
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
) -> Result<Result<i64, ReserveError>, DatabaseError> {
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
                let route = resources.into_iter().zip(links).collect();
                let id = reservations::insert(cx, wanted, &route).await?;
                if wanted.circuit {
                    circuits::book(cx, id).await?;
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
) -> Result<Vec<ReservedRoute>, DatabaseError> {
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

/// Ends a reservation now. Returns false if it has ended already.
pub(crate) async fn cancel(
    cx: &mut TxContext,
    id: i64,
    audit: Audit,
) -> Result<bool, DatabaseError> {
    let done = reservations::end(cx, id).await?;
    if done {
        cx.event(None, None, "reservation", format!("{id} is given back"));
        cx.audit(audit);
        cx.request_round();
    }
    Ok(done)
}
