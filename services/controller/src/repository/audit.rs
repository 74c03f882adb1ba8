//! Table `audit`: changes by clients and operators.

use penstock_control::retention::{self, AUDIT_RETENTION, PURGE_LOG_ROWS_PER_TX_MAX};
use sqlx::{AnyConnection, AnyPool};

use super::rows::{self, SqlValue, select, statement, typed_row};
use super::writer::TxContext;

/// An entry of the audit log.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    pub(crate) who: String,
    pub(crate) peer: String,
    pub(crate) what: &'static str,
    pub(crate) object: String,
    pub(crate) detail: String,
}

typed_row! {
    /// An entry of the audit log as stored.
    #[derive(Debug, Clone)]
    pub(crate) struct AuditRow {
        pub(crate) id: i64,
        /// Unix milliseconds.
        pub(crate) at: i64,
        pub(crate) who: String,
        pub(crate) peer: String,
        pub(crate) what: String,
        pub(crate) object: String,
        pub(crate) detail: String,
    }
}

/// Returns entries with smaller ids, newest first.
pub(crate) async fn list(
    pool: &AnyPool,
    before: i64,
    limit: i64,
) -> Result<Vec<AuditRow>, sqlx::Error> {
    let text = "SELECT id, at, who, peer, what, object, detail FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2";
    select(text).bind(before).bind(limit).fetch_all(pool).await
}

/// Stores entries of one time, with ascending ids from `first` on.
pub(super) async fn insert(
    tx: &mut AnyConnection,
    first: i64,
    at: i64,
    audits: Vec<Audit>,
) -> Result<(), sqlx::Error> {
    let rows = (first..).zip(audits).map(|(id, audit)| -> [SqlValue; 7] {
        [
            id.into(),
            at.into(),
            audit.who.into(),
            audit.peer.into(),
            audit.what.into(),
            audit.object.into(),
            audit.detail.into(),
        ]
    });
    let into = "INSERT INTO audit (id, at, who, peer, what, object, detail)";
    rows::insert(tx, into, rows.collect(), "").await.map(drop)
}

/// Deletes expired entries, the oldest first; these have the smallest ids.
pub(crate) async fn purge(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let text = format!(
        "DELETE FROM audit WHERE at < $1 AND id IN
            (SELECT id FROM audit ORDER BY id LIMIT {PURGE_LOG_ROWS_PER_TX_MAX})"
    );
    let before = retention::expiry_ms(cx.now, AUDIT_RETENTION);
    statement(text).bind(before).execute(&mut cx.tx).await.map(drop)
}
