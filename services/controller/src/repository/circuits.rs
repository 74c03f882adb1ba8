//! Table `circuit`: circuits of reservations and their states. `crate::circuits` acts on them.

use std::collections::BTreeMap;

use penstock_control::circuit::{CircuitEvent, CircuitState};
use penstock_control::scheduler::CircuitView;
use sqlx::AnyPool;
use sqlx::any::AnyRow;

use super::reservations::{self, ReservedRoute};
use super::rows::{ColumnValue, JsonColumn, written_row};
use super::statement::{insert_rows, select, statement};
use super::writer::TxContext;

const UP_STATE: i64 = CircuitState::Up.number();
const BROKEN_STATE: i64 = CircuitState::Broken.number();
const RELEASED_STATE: i64 = CircuitState::Released.number();

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
    pub(crate) retry_at: i64,
    pub(crate) why: String,
    /// Unix milliseconds and bytes of the last reading of its counters.
    pub(crate) checked: Option<i64>,
    pub(crate) carried: i64,
    /// True if its counters show the rate of its orders; none if unknown.
    pub(crate) shows: Option<bool>,
}

impl sqlx::FromRow<'_, AnyRow> for BookedCircuit {
    fn from_row(row: &AnyRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: ColumnValue::read(row, "id")?,
            class: <Option<String>>::read(row, "class")?.unwrap_or_default(),
            source: ColumnValue::read(row, "source")?,
            destination: ColumnValue::read(row, "destination")?,
            rate_bps: ColumnValue::read(row, "rate_bps")?,
            begins: ColumnValue::read(row, "begins")?,
            ends: ColumnValue::read(row, "ends")?,
            route: JsonColumn::read(row, "route")?.0,
            state: ColumnValue::read(row, "state")?,
            addresses: JsonColumn::read(row, "addresses")?.0,
            retry_at: ColumnValue::read(row, "retry_at")?,
            why: ColumnValue::read(row, "why")?,
            checked: ColumnValue::read(row, "checked")?,
            carried: ColumnValue::read(row, "carried")?,
            shows: ColumnValue::read(row, "shows")?,
        })
    }
}

/// Returns the circuits that are not released.
pub(crate) async fn live(pool: &AnyPool) -> Result<Vec<BookedCircuit>, sqlx::Error> {
    let text = format!(
        "SELECT r.id AS id, r.class AS class, r.source AS source, r.destination AS destination,
            r.rate_bps AS rate_bps, r.begins AS begins, r.ends AS ends, r.route AS route, c.state AS state,
            c.addresses AS addresses, c.retry_at AS retry_at, c.why AS why, c.checked AS checked, c.carried AS carried,
            c.shows AS shows
         FROM circuit c CROSS JOIN reservation r
         WHERE r.id = c.reservation AND c.state < {RELEASED_STATE} ORDER BY c.reservation"
    );
    select(text).fetch_all(pool).await
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

written_row! {
    struct NewCircuit {
        reservation: i64,
        state: CircuitState,
        addresses: JsonColumn<BTreeMap<String, String>>,
        since: i64,
        retry_at: i64,
        carried: i64,
        measured_bps: i64,
        why: &'static str,
    }
}

/// Books a circuit for a new reservation.
pub(crate) async fn book(cx: &mut TxContext, id: i64) -> Result<(), sqlx::Error> {
    let row = NewCircuit {
        reservation: id,
        state: CircuitState::Booked,
        addresses: JsonColumn::default(),
        since: cx.now,
        retry_at: 0,
        carried: 0,
        measured_bps: 0,
        why: "",
    };
    insert_rows("circuit", [row]).execute(&mut cx.tx).await.map(drop)
}

/// True if an event is possible in the state of a circuit; logs a bug otherwise.
fn allows(one: &BookedCircuit, event: CircuitEvent) -> bool {
    let is_possible = one.state.transition(event).is_some();
    if !is_possible {
        tracing::error!("circuit {} is {} at {event:?}: a bug", one.id, one.state.as_str());
    }
    is_possible
}

/// Stores that a circuit is established over a route.
pub(crate) async fn mark_up(
    cx: &mut TxContext,
    one: &BookedCircuit,
    route: &ReservedRoute,
    addresses: &BTreeMap<String, String>,
) -> Result<(), sqlx::Error> {
    if !allows(one, CircuitEvent::Established) {
        return Ok(());
    }
    let text = format!(
        "UPDATE circuit SET state = {UP_STATE}, addresses = $1, since = $2, why = '', checked = NULL, carried = 0,
            measured_bps = 0, shows = NULL WHERE reservation = $3"
    );
    let json = serde_json::to_string(addresses).expect("plain data");
    statement(text).bind(json).bind(cx.now).bind(one.id).execute(&mut cx.tx).await?;
    reservations::set_route(cx, one.id, route).await?;
    let links: Vec<&str> = route.iter().map(|(_, link)| link.as_str()).collect();
    let again = if one.state == CircuitState::Booked { "is made" } else { "is restored" };
    let text = format!("{} {again} over {}", one.id, links.join(", "));
    cx.event(None, Some(&one.class), "circuit", text);
    cx.request_round();
    Ok(())
}

/// Stores that a circuit is broken, and when to retry in Unix milliseconds.
pub(crate) async fn mark_broken(
    cx: &mut TxContext,
    one: &BookedCircuit,
    why: &str,
    retry_at: i64,
) -> Result<(), sqlx::Error> {
    if !allows(one, CircuitEvent::Failed) {
        return Ok(());
    }
    let text = format!(
        "UPDATE circuit SET state = {BROKEN_STATE}, why = $1, retry_at = $2,
            since = CASE WHEN state = {BROKEN_STATE} THEN since ELSE $3 END, measured_bps = 0, shows = NULL
         WHERE reservation = $4"
    );
    let query = statement(text).bind(why.to_owned()).bind(retry_at).bind(cx.now).bind(one.id);
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
    if !allows(one, CircuitEvent::Released) {
        return Ok(());
    }
    let text = format!(
        "UPDATE circuit SET state = {RELEASED_STATE}, since = $1, why = '', measured_bps = 0 WHERE reservation = $2"
    );
    statement(text).bind(cx.now).bind(one.id).execute(&mut cx.tx).await?;
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
    let text = format!(
        "UPDATE circuit SET checked = $1, carried = $2, measured_bps = $3, shows = $4
         WHERE reservation = $5 AND state = {UP_STATE}"
    );
    let query = statement(text).bind(cx.now).bind(carried).bind(measured_bps);
    query.bind(shows.map(i64::from)).bind(one.id).execute(&mut cx.tx).await?;
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

/// Deletes the released circuits of expired reservations, before [`reservations::purge`] deletes these.
pub(crate) async fn purge(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let text = format!(
        "DELETE FROM circuit WHERE state = {RELEASED_STATE}
            AND reservation IN (SELECT id FROM reservation WHERE ends < $1)"
    );
    statement(text).bind(reservations::expiry_ms(cx)).execute(&mut cx.tx).await.map(drop)
}
