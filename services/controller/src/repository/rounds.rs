//! Tables `round` and `lease`: recorded scheduling rounds, and the leadership among controllers.

use penstock_control::lease::LEADER_LEASE;
use penstock_control::retention::{self, PURGE_LOG_ROWS_PER_TX_MAX, ROUND_RETENTION};
use serde::{Deserialize, Serialize};
use sqlx::AnyPool;
use utoipa::ToSchema;

use super::db;
use super::rows::{JsonColumn, TypedRow, table_row, typed_row};
use super::statement::{insert_rows, select, select_one, statement};
use super::writer::TxContext;

/// Rates of a class in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassRate {
    /// Name of the class.
    pub class: String,
    /// Sum of the allotted rates of its orders.
    pub allotted_bps: u64,
    /// Sum of the measured rates of its orders.
    pub measured_bps: u64,
}

table_row! {
    /// A round as stored, with the rates of its classes.
    #[derive(Debug, Clone)]
    pub(crate) struct RoundRow {
        pub(crate) id: i64,
        /// Time of the round, in Unix milliseconds.
        pub(crate) at: i64,
        pub(crate) cause: String,
        /// Microseconds that the decision took.
        pub(crate) micros: i64,
        pub(crate) runs: i64,
        pub(crate) started: i64,
        pub(crate) changed: i64,
        pub(crate) classes: JsonColumn<Vec<ClassRate>>,
        pub(crate) notes: JsonColumn<Vec<String>>,
    }
}

/// Returns rounds with smaller ids, newest first.
pub(crate) async fn list(
    pool: &AnyPool,
    before: i64,
    limit: i64,
) -> Result<Vec<RoundRow>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM round WHERE id < $1 ORDER BY id DESC LIMIT $2",
        RoundRow::columns()
    );
    select(text).bind(before).bind(limit).fetch_all(pool).await
}

typed_row! {
    struct RoundClasses {
        classes: JsonColumn<Vec<ClassRate>>,
    }
}

/// Returns the rates of the last recorded round.
pub(crate) async fn last_classes(pool: &AnyPool) -> Result<Vec<ClassRate>, sqlx::Error> {
    let text = "SELECT classes FROM round ORDER BY id DESC LIMIT 1";
    let row: Option<RoundClasses> = select(text).fetch_optional(pool).await?;
    Ok(row.map(|row| row.classes.0).unwrap_or_default())
}

/// A round to record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundRecord<'a> {
    /// Time of the round, in Unix milliseconds.
    pub(crate) at: i64,
    pub(crate) cause: &'a str,
    /// Microseconds that the decision took.
    pub(crate) micros: i64,
    pub(crate) runs: i64,
}

/// Records a round, given the number of runs that it started and of plans that it changed.
pub(crate) async fn insert(
    cx: &mut TxContext,
    record: RoundRecord<'_>,
    (started, changed): (i64, i64),
    classes: &[ClassRate],
    notes: &[String],
) -> Result<(), sqlx::Error> {
    let id = db::allocate_ids(&mut cx.tx, "round", 1).await?;
    let row = RoundRow {
        id,
        at: record.at,
        cause: record.cause.to_owned(),
        micros: record.micros,
        runs: record.runs,
        started,
        changed,
        classes: JsonColumn(classes.to_vec()),
        notes: JsonColumn(notes.to_vec()),
    };
    insert_rows("round", [row]).execute(&mut cx.tx).await.map(drop)
}

/// Deletes expired rounds, the oldest first; these have the smallest ids.
pub(crate) async fn purge(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let text = format!(
        "DELETE FROM round WHERE at < $1 AND id IN
            (SELECT id FROM round ORDER BY id LIMIT {PURGE_LOG_ROWS_PER_TX_MAX})"
    );
    let before = retention::expiry_ms(cx.now, ROUND_RETENTION);
    statement(text).bind(before).execute(&mut cx.tx).await.map(drop)
}

/// Takes or renews the lease of the leader. Returns false while another controller holds it.
pub(crate) async fn renew_lease(cx: &mut TxContext, owner: &str) -> Result<bool, sqlx::Error> {
    let until = cx.now + LEADER_LEASE.as_millis() as i64;
    let query = select_one::<String>(
        "INSERT INTO lease (name, owner, until) VALUES ('round', $1, $2)
         ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, until = excluded.until
         WHERE lease.owner = excluded.owner OR lease.until < $3 RETURNING owner",
    );
    let query = query.bind(owner.to_owned()).bind(until).bind(cx.now);
    let holder = query.fetch_optional(&mut cx.tx).await?;
    Ok(holder.is_some_and(|holder| !holder.is_empty()))
}
