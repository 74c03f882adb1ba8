//! Link telemetry from the collector: link state and interface counters.

use std::collections::HashMap;

use penstock_operations::round::LinkCount;
use sqlx::{AnyPool, Row};

use super::rows::{self, SqlValue};
use super::writer::TxContext;

/// Latest telemetry of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LinkTelemetry {
    /// None if no interface reported a state.
    pub(crate) up: Option<bool>,
    /// Latest counted rates; none if not counted.
    pub(crate) count: Option<LinkCount>,
}

/// Returns the stored telemetry by link name.
pub(crate) async fn load(pool: &AnyPool) -> Result<HashMap<String, LinkTelemetry>, sqlx::Error> {
    let text = "SELECT link, at, up, forward_bps, back_bps, interval_ms FROM seen";
    let rows = sqlx::query(text).fetch_all(pool).await?;
    let seen = rows.iter().map(|row| {
        let bps = |at: usize| row.get::<Option<i64>, _>(at).map(|bps| bps.max(0) as u64);
        let count = row.get::<Option<i64>, _>(5).map(|interval_ms| LinkCount {
            at_ms: row.get(1),
            interval_ms,
            bps: [bps(3), bps(4)],
        });
        let up = row.get::<Option<i64>, _>(2).map(|up| up > 0);
        (row.get(0), LinkTelemetry { up, count })
    });
    Ok(seen.collect())
}

/// Stores changed telemetry. A change of state is logged and requests a round.
pub(crate) async fn store(
    cx: &mut TxContext,
    news: &[(String, LinkTelemetry)],
) -> Result<(), sqlx::Error> {
    let before: HashMap<String, Option<i64>> = {
        let rows = sqlx::query("SELECT link, up FROM seen").fetch_all(&mut cx.tx).await?;
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    };
    let mut changed: Vec<[SqlValue; 6]> = Vec::with_capacity(news.len());
    for (link, seen) in news {
        let was = before.get(link).copied().flatten().map(|up| up > 0);
        // Without a report the last state remains.
        let up = seen.up.or(was);
        if up != was && (up == Some(false) || was == Some(false)) {
            let state = if up == Some(true) { "up" } else { "down" };
            let text = format!("{link} is {state}, as its interfaces report");
            cx.event(None, None, "link", text);
            cx.request_round();
        }
        let count = seen.count.unwrap_or_default();
        let bps = |side: usize| count.bps[side].and_then(|bps| i64::try_from(bps).ok());
        changed.push([
            link.as_str().into(),
            count.at_ms.into(),
            up.map(i64::from).into(),
            bps(0).into(),
            bps(1).into(),
            seen.count.map(|count| count.interval_ms).into(),
        ]);
    }
    rows::insert(
        &mut cx.tx,
        "INSERT INTO seen (link, at, up, forward_bps, back_bps, interval_ms)",
        changed,
        "ON CONFLICT (link) DO UPDATE SET at = excluded.at, up = excluded.up, forward_bps = excluded.forward_bps,
            back_bps = excluded.back_bps, interval_ms = excluded.interval_ms",
    )
    .await?;
    Ok(())
}

/// Deletes all telemetry, as no collector is configured any more.
pub(crate) async fn clear(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let gone = sqlx::query("DELETE FROM seen").execute(&mut cx.tx).await?.rows_affected();
    if gone > 0 {
        cx.request_round();
    }
    Ok(())
}
