//! Table `reservation`: a rate between two sites for a time, with the circuit that carries it, if any.

use std::collections::BTreeMap;

use penstock_control::circuit::CircuitState;
use penstock_control::retention::{self, RESERVATION_RETENTION};
use sqlx::AnyPool;

use super::db;
use super::rows::{JsonColumn, TypedRow, typed_row, written_row};
use super::statement::{insert_rows, select, statement};
use super::writer::TxContext;

/// Number of the state of a circuit that has ended.
const RELEASED_STATE: i64 = CircuitState::Released.number();

/// Resource name and link name of each link of a path.
pub(crate) type ReservedRoute = Vec<(String, String)>;

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

typed_row! {
    /// A reservation that has not ended.
    #[derive(Debug, Clone)]
    pub(crate) struct ReservationRow {
        pub(crate) id: i64,
        pub(crate) class: Option<String>,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) rate_bps: u64,
        /// Begin and end in Unix milliseconds.
        pub(crate) begins: i64,
        pub(crate) ends: i64,
        pub(crate) route: JsonColumn<ReservedRoute>,
    }
}

/// Returns the text that selects the reservations that have not ended at `$1`, and a condition, by id. The list of their
/// ids makes SQLite search the index of ends; by id alone it would read all.
fn current_text(condition: &str) -> String {
    let columns = ReservationRow::columns();
    format!(
        "SELECT {columns} FROM reservation WHERE id IN (SELECT id FROM reservation WHERE ends > $1) AND {condition}
         ORDER BY id"
    )
}

/// Returns the reservations that have not ended, without one, by id.
pub(crate) async fn current_without(
    cx: &mut TxContext,
    without: Option<i64>,
) -> Result<Vec<ReservationRow>, sqlx::Error> {
    let query = select(current_text("id <> $2")).bind(cx.now).bind(without.unwrap_or(-1));
    query.fetch_all(&mut cx.tx).await
}

/// Returns the reservations that have not ended, by id.
pub(crate) async fn current(pool: &AnyPool, now: i64) -> Result<Vec<ReservationRow>, sqlx::Error> {
    select(current_text("id <> $2")).bind(now).bind(-1_i64).fetch_all(pool).await
}

/// Returns the reservations that have begun and not ended, by id.
pub(crate) async fn active(pool: &AnyPool, now: i64) -> Result<Vec<ReservationRow>, sqlx::Error> {
    select(current_text("begins <= $1")).bind(now).fetch_all(pool).await
}

typed_row! {
    /// A reservation with the state of its circuit, if it has one.
    #[derive(Debug, Clone)]
    pub(crate) struct ListedReservation {
        pub(crate) id: i64,
        pub(crate) client: String,
        pub(crate) class: Option<String>,
        pub(crate) source: String,
        pub(crate) destination: String,
        pub(crate) rate_bps: i64,
        /// Begin and end in Unix milliseconds.
        pub(crate) begins: i64,
        pub(crate) ends: i64,
        pub(crate) route: JsonColumn<ReservedRoute>,
        pub(crate) state: Option<CircuitState>,
        pub(crate) since: Option<i64>,
        pub(crate) why: Option<String>,
        pub(crate) addresses: JsonColumn<BTreeMap<String, String>>,
        pub(crate) measured_bps: Option<i64>,
        pub(crate) checked: Option<i64>,
        pub(crate) shows: Option<bool>,
    }
}

/// Returns the reservations that have not ended, or one of them, by begin. One with a circuit is listed until that is
/// released.
pub(crate) async fn list(
    pool: &AnyPool,
    now: i64,
    id: Option<i64>,
) -> Result<Vec<ListedReservation>, sqlx::Error> {
    let query = match id {
        Some(id) => {
            select(listing(&format!("s.id = $2 AND (s.ends > $1 OR c.state < {RELEASED_STATE})")))
                .bind(now)
                .bind(id)
        }
        None => select(listing(&format!(
            "s.id IN (SELECT id FROM reservation WHERE ends > $1
                UNION ALL SELECT reservation FROM circuit WHERE state < {RELEASED_STATE})"
        )))
        .bind(now),
    };
    query.fetch_all(pool).await
}

/// Returns the text that selects the reservations `s` of a condition with their circuits `c`, by begin.
fn listing(condition: &str) -> String {
    format!(
        "SELECT s.id AS id, s.client AS client, s.class AS class, s.source AS source, s.destination AS destination,
            s.rate_bps AS rate_bps, s.begins AS begins, s.ends AS ends, s.route AS route, c.state AS state,
            c.since AS since, c.why AS why, c.addresses AS addresses, c.measured_bps AS measured_bps,
            c.checked AS checked, c.shows AS shows
         FROM reservation s LEFT JOIN circuit c ON c.reservation = s.id
         WHERE {condition} ORDER BY s.begins, s.id"
    )
}

written_row! {
    struct AdmittedReservation {
        id: i64,
        client: String,
        class: Option<String>,
        source: String,
        destination: String,
        rate_bps: i64,
        begins: i64,
        ends: i64,
        route: JsonColumn<ReservedRoute>,
        made: i64,
    }
}

/// Stores a reservation on a route. Returns its id.
pub(crate) async fn insert(
    cx: &mut TxContext,
    wanted: &ReservationRequest,
    route: &ReservedRoute,
) -> Result<i64, sqlx::Error> {
    let id = db::allocate_ids(&mut cx.tx, "id", 1).await?;
    let row = AdmittedReservation {
        id,
        client: wanted.client.clone(),
        class: wanted.class.clone(),
        source: wanted.source.clone(),
        destination: wanted.destination.clone(),
        rate_bps: wanted.rate_bps,
        begins: wanted.begins * 1000,
        ends: wanted.ends * 1000,
        route: JsonColumn(route.clone()),
        made: cx.now,
    };
    insert_rows("reservation", [row]).execute(&mut cx.tx).await?;
    Ok(id)
}

/// Ends a reservation now. Returns false if it has ended already.
pub(crate) async fn end(cx: &mut TxContext, id: i64) -> Result<bool, sqlx::Error> {
    let query = statement("UPDATE reservation SET ends = $1 WHERE id = $2 AND ends > $1");
    Ok(query.bind(cx.now).bind(id).execute(&mut cx.tx).await?.rows_affected() > 0)
}

/// Stores the route of a reservation.
pub(crate) async fn set_route(
    cx: &mut TxContext,
    id: i64,
    route: &ReservedRoute,
) -> Result<(), sqlx::Error> {
    let json = serde_json::to_string(route).expect("plain data");
    let query = statement("UPDATE reservation SET route = $1 WHERE id = $2").bind(json).bind(id);
    query.execute(&mut cx.tx).await.map(drop)
}

/// Returns the end in Unix milliseconds before which reservations expire.
pub(super) fn expiry_ms(cx: &TxContext) -> i64 {
    retention::expiry_ms(cx.now, RESERVATION_RETENTION)
}

/// Deletes expired reservations; one with a circuit only after the circuit's release.
pub(crate) async fn purge(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let text = format!(
        "DELETE FROM reservation WHERE ends < $1
            AND NOT EXISTS (SELECT 1 FROM circuit WHERE circuit.reservation = reservation.id AND circuit.state < {RELEASED_STATE})"
    );
    statement(text).bind(expiry_ms(cx)).execute(&mut cx.tx).await.map(drop)
}
