//! Circuits of reservations and their states. `crate::circuits` acts on them.

use std::collections::BTreeMap;

use penstock_operations::round::CircuitView;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::reserve::ReservedRoute;
use super::rows::{self, SqlValue};
use super::writer::TxContext;

/// State of a circuit; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CircuitState {
    /// Its start time has not come.
    Booked = 0,
    /// Established in the network.
    Up = 1,
    /// Failed or not yet established; retried.
    Broken = 2,
    /// Ended, and released in the network.
    Released = 3,
}

impl CircuitState {
    pub(crate) fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Booked,
            1 => Self::Up,
            2 => Self::Broken,
            _ => Self::Released,
        }
    }

    /// Returns the name in the API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Booked => "booked",
            Self::Up => "up",
            Self::Broken => "broken",
            Self::Released => "released",
        }
    }
}

/// A circuit with its reservation.
#[derive(Debug, Clone)]
pub(crate) struct BookedCircuit {
    pub(crate) id: i64,
    pub(crate) class: String,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) rate_bps: i64,
    /// Begin and end in Unix milliseconds.
    pub(crate) begins: i64,
    pub(crate) ends: i64,
    pub(crate) route: ReservedRoute,
    pub(crate) state: CircuitState,
    pub(crate) addresses: BTreeMap<String, String>,
    /// Unix milliseconds of the next attempt.
    pub(crate) again: i64,
    pub(crate) why: String,
    /// Unix milliseconds and bytes of the last reading of its counters.
    pub(crate) checked: Option<i64>,
    pub(crate) carried: i64,
    /// True if its counters show the rate of its orders; none if unknown.
    pub(crate) shows: Option<bool>,
}

fn booked(row: &AnyRow) -> BookedCircuit {
    let json = |at: usize| row.get::<String, _>(at);
    BookedCircuit {
        id: row.get(0),
        class: row.get::<Option<String>, _>(1).unwrap_or_default(),
        source: row.get(2),
        destination: row.get(3),
        rate_bps: row.get(4),
        begins: row.get(5),
        ends: row.get(6),
        route: serde_json::from_str(&json(7)).unwrap_or_default(),
        state: CircuitState::from_number(row.get(8)),
        addresses: serde_json::from_str(&json(9)).unwrap_or_default(),
        again: row.get(10),
        why: row.get(11),
        checked: row.get(12),
        carried: row.get(13),
        shows: row.get::<Option<i64>, _>(14).map(|shows| shows > 0),
    }
}

/// Returns the circuits that are not released.
pub(crate) async fn live(pool: &AnyPool) -> Result<Vec<BookedCircuit>, sqlx::Error> {
    let text = "SELECT r.id, r.class, r.source, r.destination, r.rate_bps, r.begins, r.ends, r.route, c.state, c.addresses,
            c.again, c.why, c.checked, c.carried, c.shows
        FROM circuit c CROSS JOIN reservation r
        WHERE r.id = c.reservation AND c.state < 3 ORDER BY c.reservation";
    Ok(sqlx::query(text).fetch_all(pool).await?.iter().map(booked).collect())
}

/// Returns the established circuits within their time, as a round uses them, by reservation.
pub(crate) async fn active(
    pool: &AnyPool,
    now: i64,
) -> Result<BTreeMap<i64, CircuitView>, sqlx::Error> {
    let all = live(pool).await?.into_iter();
    let up = all.filter(|one| one.state == CircuitState::Up && one.begins <= now && now < one.ends);
    Ok(up
        .map(|one| {
            let (resources, links) = one.route.into_iter().unzip();
            (one.id, CircuitView { id: one.id, resources, links, addresses: one.addresses })
        })
        .collect())
}

/// Books a circuit for a new reservation.
pub(super) async fn book(cx: &mut TxContext, id: i64) -> Result<(), sqlx::Error> {
    let row: [SqlValue; 8] = [
        id.into(),
        (CircuitState::Booked as i64).into(),
        "{}".into(),
        cx.now.into(),
        0.into(),
        0.into(),
        0.into(),
        "".into(),
    ];
    let into = "INSERT INTO circuit (reservation, state, addresses, since, again, carried, measured_bps, why)";
    rows::insert(&mut cx.tx, into, vec![row], "").await?;
    Ok(())
}

/// Stores that a circuit is established over a route.
pub(crate) async fn mark_up(
    cx: &mut TxContext,
    one: &BookedCircuit,
    route: &ReservedRoute,
    addresses: &BTreeMap<String, String>,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET state = 1, addresses = $1, since = $2, why = '', checked = NULL, carried = 0,
        measured_bps = 0, shows = NULL WHERE reservation = $3";
    let json = serde_json::to_string(addresses).expect("plain data");
    let query = sqlx::query(text).bind(json).bind(cx.now).bind(one.id);
    query.execute(&mut cx.tx).await?;
    let text = "UPDATE reservation SET route = $1 WHERE id = $2";
    let json = serde_json::to_string(route).expect("plain data");
    sqlx::query(text).bind(json).bind(one.id).execute(&mut cx.tx).await?;
    let links: Vec<&str> = route.iter().map(|(_, link)| link.as_str()).collect();
    let again = if one.state == CircuitState::Booked { "is made" } else { "is restored" };
    let text = format!("{} {again} over {}", one.id, links.join(", "));
    cx.event(None, Some(&one.class), "circuit", text);
    cx.request_round();
    Ok(())
}

/// Stores that a circuit is broken, and when to retry.
pub(crate) async fn mark_broken(
    cx: &mut TxContext,
    one: &BookedCircuit,
    why: &str,
    again: i64,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET state = 2, why = $1, again = $2, since = CASE WHEN state = 2 THEN since ELSE $3 END,
        measured_bps = 0, shows = NULL WHERE reservation = $4";
    let query = sqlx::query(text).bind(why.to_owned()).bind(again).bind(cx.now).bind(one.id);
    query.execute(&mut cx.tx).await?;
    // One event for each reason.
    if one.state != CircuitState::Broken || one.why != why {
        let text = format!("{} is broken: {why}", one.id);
        cx.event(None, Some(&one.class), "circuit", text);
        cx.request_round();
    }
    Ok(())
}

/// Stores that a circuit is released.
pub(crate) async fn mark_released(
    cx: &mut TxContext,
    one: &BookedCircuit,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET state = 3, since = $1, why = '', measured_bps = 0 WHERE reservation = $2";
    sqlx::query(text).bind(cx.now).bind(one.id).execute(&mut cx.tx).await?;
    cx.event(None, Some(&one.class), "circuit", format!("{} is released", one.id));
    cx.request_round();
    Ok(())
}

/// Stores the readings of its counters, and if they show the rate of its orders.
pub(crate) async fn store_counters(
    cx: &mut TxContext,
    one: &BookedCircuit,
    (carried, measured_bps): (i64, i64),
    shows: Option<bool>,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET checked = $1, carried = $2, measured_bps = $3, shows = $4
        WHERE reservation = $5 AND state = 1";
    let query = sqlx::query(text).bind(cx.now).bind(carried).bind(measured_bps);
    let query = query.bind(shows.map(i64::from)).bind(one.id);
    query.execute(&mut cx.tx).await?;
    let text = match (one.shows, shows) {
        (Some(true) | None, Some(false)) => {
            Some("its counters do not show the traffic of its orders, which takes another path")
        }
        (Some(false), Some(true)) => Some("its counters show the traffic of its orders again"),
        _ => None,
    };
    if let Some(text) = text {
        cx.event(None, Some(&one.class), "circuit", format!("{}: {text}", one.id));
    }
    Ok(())
}

/// Returns source addresses and measured bits per second of runs whose path is older than `since`.
pub(crate) async fn measured_rates(
    pool: &AnyPool,
    since: i64,
) -> Result<Vec<(Vec<String>, i64)>, sqlx::Error> {
    let text =
        "SELECT path, measured_bps FROM run WHERE state = 0 AND path <> '[]' AND settings_at <= $1";
    let rows = sqlx::query(text).bind(since).fetch_all(pool).await?;
    let told = rows.iter().map(|row| {
        let path: Vec<penstock_operations::orders::AddressPair> =
            serde_json::from_str(&row.get::<String, _>(0)).unwrap_or_default();
        (path.into_iter().map(|pair| pair.from).collect(), row.get(1))
    });
    Ok(told.collect())
}
