//! Table `audit`: changes by clients and operators.

use penstock_control::retention::{self, AUDIT_RETENTION, PURGE_LOG_ROWS_PER_TX_MAX};
use sqlx::{AnyConnection, AnyPool};

use super::rows::{TypedRow, table_row};
use super::statement::{insert_rows, select, statement};
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

table_row! {
    /// An entry of the audit log as stored.
    #[derive(Debug, Clone)]
    pub(crate) struct AuditRow {
        pub(crate) id: i64,
        /// Time of the change, in Unix milliseconds.
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
    let text = format!(
        "SELECT {} FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2",
        AuditRow::columns()
    );
    select(text).bind(before).bind(limit).fetch_all(pool).await
}

/// Stores entries of one time, with ascending ids from `first` on.
pub(super) async fn insert(
    tx: &mut AnyConnection,
    first: i64,
    at: i64,
    audits: Vec<Audit>,
) -> Result<(), sqlx::Error> {
    let rows = (first..).zip(audits).map(|(id, audit)| AuditRow {
        id,
        at,
        who: audit.who,
        peer: audit.peer,
        what: audit.what.to_owned(),
        object: audit.object,
        detail: audit.detail,
    });
    insert_rows("audit", rows).execute(tx).await.map(drop)
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
