//! Circuits of reservations: where each stands. What is done about it is `crate::circuits`.

use std::collections::BTreeMap;

use penstock_operations::round::CircuitView;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use super::reserve::Route;
use super::rows::{self, Value};
use super::writer::Context;

/// Where a circuit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CircuitState {
    /// Its time has not come.
    Booked = 0,
    /// It stands.
    Up = 1,
    /// It should stand and does not: it is tried again.
    Broken = 2,
    /// It is over.
    Released = 3,
}

impl CircuitState {
    pub(crate) fn of(number: i64) -> Self {
        match number {
            0 => Self::Booked,
            1 => Self::Up,
            2 => Self::Broken,
            _ => Self::Released,
        }
    }

    /// As the API writes it.
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
pub(crate) struct Booked {
    pub(crate) id: i64,
    pub(crate) class: String,
    pub(crate) source: String,
    pub(crate) destination: String,
    pub(crate) rate_bps: i64,
    /// Milliseconds since 1970.
    pub(crate) begins: i64,
    pub(crate) ends: i64,
    pub(crate) route: Route,
    pub(crate) state: CircuitState,
    pub(crate) addresses: BTreeMap<String, String>,
    /// When it is tried next.
    pub(crate) again: i64,
    pub(crate) why: String,
    /// When its counters were read last, and what it had carried then.
    pub(crate) checked: Option<i64>,
    pub(crate) carried: i64,
    /// What orders move shows on it; none where nothing has told yet.
    pub(crate) shows: Option<bool>,
}

fn booked(row: &AnyRow) -> Booked {
    let json = |at: usize| row.get::<String, _>(at);
    Booked {
        id: row.get(0),
        class: row.get::<Option<String>, _>(1).unwrap_or_default(),
        source: row.get(2),
        destination: row.get(3),
        rate_bps: row.get(4),
        begins: row.get(5),
        ends: row.get(6),
        route: serde_json::from_str(&json(7)).unwrap_or_default(),
        state: CircuitState::of(row.get(8)),
        addresses: serde_json::from_str(&json(9)).unwrap_or_default(),
        again: row.get(10),
        why: row.get(11),
        checked: row.get(12),
        carried: row.get(13),
        shows: row.get::<Option<i64>, _>(14).map(|shows| shows > 0),
    }
}

/// Circuits that are not over.
pub(crate) async fn live(pool: &AnyPool) -> Result<Vec<Booked>, sqlx::Error> {
    let text = "SELECT r.id, r.class, r.source, r.destination, r.rate_bps, r.begins, r.ends, r.route, c.state, c.addresses,
            c.again, c.why, c.checked, c.carried, c.shows
        FROM circuit c CROSS JOIN reservation r
        WHERE r.id = c.reservation AND c.state < 3 ORDER BY c.reservation";
    Ok(sqlx::query(text).fetch_all(pool).await?.iter().map(booked).collect())
}

/// Those that stand and hold, as a round sees them, by their reservations.
pub(crate) async fn standing(
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

/// A reservation that was just made is to be a circuit.
pub(super) async fn book(cx: &mut Context, id: i64) -> Result<(), sqlx::Error> {
    let row: [Value; 8] = [
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
    rows::execute(&mut cx.tx, into, vec![row], "").await?;
    Ok(())
}

/// It stands over these links.
pub(crate) async fn stands(
    cx: &mut Context,
    one: &Booked,
    route: &Route,
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
    cx.wake();
    Ok(())
}

/// It does not stand, and is tried again then.
pub(crate) async fn fails(
    cx: &mut Context,
    one: &Booked,
    why: &str,
    again: i64,
) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET state = 2, why = $1, again = $2, since = CASE WHEN state = 2 THEN since ELSE $3 END,
        measured_bps = 0, shows = NULL WHERE reservation = $4";
    let query = sqlx::query(text).bind(why.to_owned()).bind(again).bind(cx.now).bind(one.id);
    query.execute(&mut cx.tx).await?;
    // Once for each reason.
    if one.state != CircuitState::Broken || one.why != why {
        let text = format!("{} does not stand: {why}", one.id);
        cx.event(None, Some(&one.class), "circuit", text);
        cx.wake();
    }
    Ok(())
}

/// It is over.
pub(crate) async fn ends(cx: &mut Context, one: &Booked) -> Result<(), sqlx::Error> {
    let text = "UPDATE circuit SET state = 3, since = $1, why = '', measured_bps = 0 WHERE reservation = $2";
    sqlx::query(text).bind(cx.now).bind(one.id).execute(&mut cx.tx).await?;
    cx.event(None, Some(&one.class), "circuit", format!("{} is released", one.id));
    cx.wake();
    Ok(())
}

/// What its counters said, and whether what orders move shows in them.
pub(crate) async fn note(
    cx: &mut Context,
    one: &Booked,
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
            Some("what orders move does not show on it: they go another way")
        }
        (Some(false), Some(true)) => Some("what orders move shows on it again"),
        _ => None,
    };
    if let Some(text) = text {
        cx.event(None, Some(&one.class), "circuit", format!("{}: {text}", one.id));
    }
    Ok(())
}

/// What orders move that were told their path before `since`: the addresses that they leave from, and bits per second.
pub(crate) async fn moved(
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
