//! Reservations: a rate between two sites for a time, admitted where links have room at every instant.

use std::sync::Arc;

use penstock_calendar::{Calendar, Reservation, ReserveError};
use penstock_operations::round::{Planner, RESERVABLE_PERCENT};
use penstock_units::BitRate;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::rows::{self, Value};
use super::writer::{Audit, Context};
use super::{circuit, db};

/// Reservations are kept so long after their end.
const KEEP_S: i64 = 7 * 86_400;

/// A reservation that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) client: String,
    pub(crate) class: Option<String>,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) rate_bps: i64,
    /// Seconds since 1970.
    pub(crate) begins: i64,
    pub(crate) ends: i64,
    /// It is to be a circuit.
    pub(crate) circuit: bool,
}

/// Links with what is taken of each: the name of the resource and that of the link.
pub(crate) type Route = Vec<(String, String)>;

/// The calendar as it is, in the order in which reservations were made, without one of them.
async fn calendar(
    cx: &mut Context,
    planner: &Planner,
    without: Option<i64>,
) -> Result<Calendar, sqlx::Error> {
    // A circuit is forgotten when it is released, not before.
    let old = "DELETE FROM reservation WHERE ends < $1
        AND NOT EXISTS (SELECT 1 FROM circuit WHERE circuit.reservation = reservation.id AND circuit.state < 3)";
    sqlx::query(old).bind(cx.now - KEEP_S * 1000).execute(&mut cx.tx).await?;
    let old = "DELETE FROM circuit WHERE reservation NOT IN (SELECT id FROM reservation)";
    sqlx::query(old).execute(&mut cx.tx).await?;
    let rows = sqlx::query(HELD).bind(cx.now).bind(without.unwrap_or(-1));
    Ok(filled(planner, &rows.fetch_all(&mut cx.tx).await?))
}

/// The calendar as it is, for a question.
pub(crate) async fn calendar_now(
    pool: &AnyPool,
    planner: &Planner,
    now: i64,
) -> Result<Calendar, sqlx::Error> {
    let rows = sqlx::query(HELD).bind(now).bind(-1_i64).fetch_all(pool).await?;
    Ok(filled(planner, &rows))
}

/// Reservations that are not over, without one of them.
const HELD: &str = "SELECT id, rate_bps, begins, ends, route, source, destination FROM reservation
    WHERE ends > $1 AND id <> $2 ORDER BY id";

/// A calendar of what the network has, with the rows of [`HELD`].
fn filled(planner: &Planner, rows: &[AnyRow]) -> Calendar {
    let mut calendar = Calendar::default();
    for (name, capacity) in planner.capacities() {
        let share =
            BitRate((capacity / 100 * RESERVABLE_PERCENT).min(penstock_calendar::RATE_MAX.0));
        // Shares are within what a calendar takes.
        let _ = calendar.set_reservable(&name, share);
    }
    for row in rows {
        let route: Route = serde_json::from_str(&row.get::<String, _>(4)).unwrap_or_default();
        let links = route.into_iter().map(|(resource, _)| resource).collect();
        let sites: [String; 2] = [row.get(5), row.get(6)];
        let reservation = Reservation {
            name: row.get::<i64, _>(0).to_string(),
            path: whole_path((&sites[0], &sites[1]), links),
            rate: BitRate(row.get::<i64, _>(1) as u64),
            seconds: (row.get::<i64, _>(2) / 1000) as u64..(row.get::<i64, _>(3) / 1000) as u64,
        };
        // What the topology has no longer, or has too little of, was promised all the same.
        if let Err(error) = calendar.reserve(reservation) {
            tracing::warn!("a reservation that was made does not fit any more: {error}");
        }
    }
    calendar
}

/// What a reservation between two sites takes from: its links, and the interfaces of their hosts.
pub(crate) fn whole_path(
    (source, destination): (&str, &str),
    mut links: Vec<String>,
) -> Vec<String> {
    links.extend(Planner::site_resources(source, destination));
    links
}

/// Makes a reservation on the first way that has room; refused with what would fit on the best one.
pub(crate) async fn reserve(
    cx: &mut Context,
    wanted: &Wanted,
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
            path: whole_path((&wanted.source, &wanted.destination), resources.clone()),
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
                cx.wake();
                return Ok(Ok(id));
            }
            Err(error) => refusal = Some(better(refusal, error)),
        }
    }
    Ok(Err(refusal.unwrap_or(ReserveError::Terms(
        "the topology has no way between hosts of these sites: it needs a host at each (two where both are one site) and links between them",
    ))))
}

/// The ways between two sites that have room for a reservation that was made, the one that it has first.
pub(crate) async fn ways(
    cx: &mut Context,
    (id, seconds): (i64, std::ops::Range<u64>),
    (source, destination, rate): (&str, &str, BitRate),
    now: &Route,
) -> Result<Vec<Route>, sqlx::Error> {
    let settings = Arc::clone(&cx.settings);
    let planner = &settings.planner;
    let mut calendar = calendar(cx, planner, Some(id)).await?;
    let mut found = Vec::new();
    for (resources, links) in planner.site_paths(source, destination, true) {
        let path = whole_path((source, destination), resources.clone());
        let name = "this".to_owned();
        let fits = calendar.reserve(Reservation { name, path, rate, seconds: seconds.clone() });
        calendar.cancel("this", 0);
        let route: Route = resources.into_iter().zip(links).collect();
        if route == *now {
            found.insert(0, route);
        } else if fits.is_ok() && !route.is_empty() {
            found.push(route);
        }
    }
    Ok(found)
}

/// The refusal that offers more.
fn better(one: Option<ReserveError>, other: ReserveError) -> ReserveError {
    match (one, other) {
        (Some(ReserveError::Shortage(one)), ReserveError::Shortage(other))
            if one.largest >= other.largest =>
        {
            ReserveError::Shortage(one)
        }
        (_, other) => other,
    }
}

async fn store(cx: &mut Context, wanted: &Wanted, route: Route) -> Result<i64, sqlx::Error> {
    let id = db::numbers(&mut cx.tx, "id", 1).await?;
    let row: [Value; 10] = [
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
    rows::execute(&mut cx.tx, into, vec![row], "").await?;
    Ok(id)
}

/// Gives a reservation back from now on.
pub(crate) async fn cancel(cx: &mut Context, id: i64, audit: Audit) -> Result<bool, sqlx::Error> {
    let text = "UPDATE reservation SET ends = $1 WHERE id = $2 AND ends > $1";
    let query = sqlx::query(text).bind(cx.now).bind(id);
    let done = query.execute(&mut cx.tx).await?.rows_affected() > 0;
    if done {
        cx.event(None, None, "reservation", format!("{id} is given back"));
        cx.audit(audit);
        cx.wake();
    }
    Ok(done)
}
