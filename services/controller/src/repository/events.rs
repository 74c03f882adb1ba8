//! Table `event`: what happened, for clients that follow.

use penstock_control::retention::{self, EVENT_RETENTION};
use sqlx::{AnyConnection, AnyPool};

use super::rows::{TypedRow, typed_row, written_row};
use super::statement::{insert_rows, select, select_one, statement};
use super::writer::TxContext;

/// An event for API clients that follow.
#[derive(Debug, Clone)]
pub(crate) struct NewEvent {
    pub(crate) request: Option<i64>,
    pub(crate) class: Option<String>,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

typed_row! {
    /// An event as stored.
    #[derive(Debug, Clone)]
    pub(crate) struct StoredEvent {
        pub(crate) id: i64,
        pub(crate) at: i64,
        pub(crate) request: Option<i64>,
        pub(crate) class: Option<String>,
        pub(crate) kind: String,
        pub(crate) text: String,
    }
}

/// Returns events after an id, of one request or all.
pub(crate) async fn list(
    pool: &AnyPool,
    request: Option<i64>,
    after: i64,
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let columns = StoredEvent::columns();
    let query = match request {
        Some(request) => select(format!(
            "SELECT {columns} FROM event WHERE id > $1 AND request = $3 ORDER BY id LIMIT $2"
        ))
        .bind(after)
        .bind(limit)
        .bind(request),
        None => select(format!("SELECT {columns} FROM event WHERE id > $1 ORDER BY id LIMIT $2"))
            .bind(after)
            .bind(limit),
    };
    query.fetch_all(pool).await
}

/// Returns events without a request (drains, links, lost hosts) between two Unix milliseconds, newest first.
pub(crate) async fn of_network(
    pool: &AnyPool,
    (from, to): (i64, i64),
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let text = format!(
        "SELECT {} FROM event
         WHERE request IS NULL AND at >= $1 AND at <= $2 ORDER BY at DESC, id DESC LIMIT $3",
        StoredEvent::columns()
    );
    select(text).bind(from).bind(to).bind(limit).fetch_all(pool).await
}

/// Returns the id of the newest event.
pub(crate) async fn last_id(pool: &AnyPool) -> Result<i64, sqlx::Error> {
    select_one("SELECT CAST(COALESCE(MAX(id), 0) AS BIGINT) FROM event").fetch_one(pool).await
}

written_row! {
    struct NewEventRow {
        id: i64,
        at: i64,
        request: Option<i64>,
        class: Option<String>,
        kind: &'static str,
        text: String,
    }
}

/// Stores events of one time, with ascending ids from `first` on.
pub(super) async fn insert(
    tx: &mut AnyConnection,
    first: i64,
    at: i64,
    events: Vec<NewEvent>,
) -> Result<(), sqlx::Error> {
    let rows = (first..).zip(events).map(|(id, event)| NewEventRow {
        id,
        at,
        request: event.request,
        class: event.class,
        kind: event.kind,
        text: event.text,
    });
    insert_rows("event", rows).execute(tx).await.map(drop)
}

/// Deletes expired events without a request.
pub(crate) async fn purge_of_network(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let before = retention::expiry_ms(cx.now, EVENT_RETENTION);
    let query = statement("DELETE FROM event WHERE at < $1 AND request IS NULL").bind(before);
    query.execute(&mut cx.tx).await.map(drop)
}
