//! Tables `link` and `link_telemetry`: links as set by operators and monitors, and their telemetry from the collector.

use std::collections::{HashMap, HashSet};

use penstock_control::scheduler::LinkCount;
use sqlx::AnyPool;

use super::rows::{TypedRow, table_row, typed_row};
use super::statement::{excluded_clause, insert_rows, select, select_one, statement};
use super::writer::TxContext;

table_row! {
    /// A link as set by an operator or monitor.
    #[derive(Debug, Clone)]
    pub(crate) struct LinkRow {
        pub(crate) name: String,
        pub(crate) down: bool,
        /// Unix milliseconds of the last change.
        pub(crate) since: i64,
        pub(crate) why: String,
    }
}

/// Returns the links that an operator or monitor has set.
pub(crate) async fn list(pool: &AnyPool) -> Result<Vec<LinkRow>, sqlx::Error> {
    select(format!("SELECT {} FROM link", LinkRow::columns())).fetch_all(pool).await
}

/// Stores that an operator or monitor has set a link down or up.
pub(crate) async fn set(
    cx: &mut TxContext,
    name: &str,
    down: bool,
    why: &str,
) -> Result<(), sqlx::Error> {
    let row = LinkRow { name: name.to_owned(), down, since: cx.now, why: why.to_owned() };
    let on_conflict = format!(
        "ON CONFLICT (name) DO UPDATE SET {} WHERE link.down <> excluded.down OR link.why <> excluded.why",
        excluded_clause::<LinkRow>(&["name"])
    );
    insert_rows("link", [row]).after(on_conflict).execute(&mut cx.tx).await.map(drop)
}

/// Returns the names of links that are down, as set by an operator or monitor or as reported by the collector.
pub(crate) async fn down(pool: &AnyPool) -> Result<HashSet<String>, sqlx::Error> {
    let text =
        "SELECT name FROM link WHERE down = 1 UNION SELECT link FROM link_telemetry WHERE up = 0";
    Ok(select_one(text).fetch_all(pool).await?.into_iter().collect())
}

/// Latest telemetry of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LinkTelemetry {
    /// None if no interface reported a state.
    pub(crate) up: Option<bool>,
    /// Latest counted rates; none if not counted.
    pub(crate) count: Option<LinkCount>,
}

table_row! {
    struct TelemetryRow {
        link: String,
        at: i64,
        up: Option<bool>,
        forward_bps: Option<u64>,
        back_bps: Option<u64>,
        interval_ms: Option<i64>,
    }
}

/// Returns the stored telemetry by link name.
pub(crate) async fn telemetry(
    pool: &AnyPool,
) -> Result<HashMap<String, LinkTelemetry>, sqlx::Error> {
    let text = format!("SELECT {} FROM link_telemetry", TelemetryRow::columns());
    let rows: Vec<TelemetryRow> = select(text).fetch_all(pool).await?;
    let telemetry = rows.into_iter().map(|row| {
        let count = row.interval_ms.map(|interval_ms| LinkCount {
            at_ms: row.at,
            interval_ms,
            bps: [row.forward_bps, row.back_bps],
        });
        (row.link, LinkTelemetry { up: row.up, count })
    });
    Ok(telemetry.collect())
}

typed_row! {
    struct ReportedState {
        link: String,
        up: Option<bool>,
    }
}

/// Stores changed telemetry. A change of state is logged and requests a round.
pub(crate) async fn store_telemetry(
    cx: &mut TxContext,
    news: &[(String, LinkTelemetry)],
) -> Result<(), sqlx::Error> {
    let before: Vec<ReportedState> =
        select(format!("SELECT {} FROM link_telemetry", ReportedState::columns()))
            .fetch_all(&mut cx.tx)
            .await?;
    let before: HashMap<String, Option<bool>> =
        before.into_iter().map(|row| (row.link, row.up)).collect();
    let mut changed = Vec::with_capacity(news.len());
    for (link, seen) in news {
        let was = before.get(link).copied().flatten();
        // Without a report the last state remains.
        let up = seen.up.or(was);
        if up != was && (up == Some(false) || was == Some(false)) {
            let state = if up == Some(true) { "up" } else { "down" };
            let text = format!("{link} is {state}, as its interfaces report");
            cx.event(None, None, "link", text);
            cx.request_round();
        }
        let count = seen.count.unwrap_or_default();
        changed.push(TelemetryRow {
            link: link.clone(),
            at: count.at_ms,
            up,
            forward_bps: count.bps[0],
            back_bps: count.bps[1],
            interval_ms: seen.count.map(|count| count.interval_ms),
        });
    }
    let on_conflict =
        format!("ON CONFLICT (link) DO UPDATE SET {}", excluded_clause::<TelemetryRow>(&["link"]));
    insert_rows("link_telemetry", changed).after(on_conflict).execute(&mut cx.tx).await.map(drop)
}

/// Deletes all telemetry, as no collector is configured any more.
pub(crate) async fn clear_telemetry(cx: &mut TxContext) -> Result<(), sqlx::Error> {
    let gone = statement("DELETE FROM link_telemetry").execute(&mut cx.tx).await?.rows_affected();
    if gone > 0 {
        cx.request_round();
    }
    Ok(())
}
