//! Events in the store: one row each, as JSON, the newest [`EVENTS_MAX`].

use sqlx::{Row as _, SqlitePool};

use super::Store;
use crate::event::{EVENTS_MAX, TelemetryEvent};

/// Writes one event, and removes those beyond the limit.
pub(super) async fn write(pool: &SqlitePool, event: &TelemetryEvent) -> Result<(), sqlx::Error> {
    let body = serde_json::to_string(event).expect("an event is plain data");
    let id = i64::try_from(event.id).unwrap_or(i64::MAX);
    sqlx::query("INSERT OR REPLACE INTO event (id, body) VALUES (?, ?)")
        .bind(id)
        .bind(body)
        .execute(pool)
        .await?;
    sqlx::query("DELETE FROM event WHERE id <= ?")
        .bind(id.saturating_sub(EVENTS_MAX as i64))
        .execute(pool)
        .await?;
    Ok(())
}

impl Store {
    /// All stored events, oldest first. Skips rows of other versions that cannot be parsed.
    pub(crate) async fn events(&self) -> Result<Vec<TelemetryEvent>, sqlx::Error> {
        let pool = self.open().await?;
        let rows = sqlx::query("SELECT id, body FROM event ORDER BY id").fetch_all(&pool).await?;
        let read = |row: &sqlx::sqlite::SqliteRow| {
            let id = u64::try_from(row.get::<i64, _>(0)).ok()?;
            let event: TelemetryEvent = serde_json::from_str(&row.get::<String, _>(1)).ok()?;
            Some(TelemetryEvent { id, ..event })
        };
        Ok(rows.iter().filter_map(read).collect())
    }
}
