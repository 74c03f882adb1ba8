//! Tables `host` and `drain`: hosts as of their last report, and hosts and sites that start no work.

use std::collections::HashSet;

use penstock_control::interface_rates::InterfaceRates;
use penstock_control::orders::Capacity;
use sqlx::AnyPool;

use super::rows::{JsonColumn, TypedRow, typed_row, written_row};
use super::statement::{excluded_clause, insert_rows, select, select_one, statement};
use super::writer::TxContext;

typed_row! {
    /// A host as of its last report.
    #[derive(Debug, Clone)]
    pub(crate) struct HostRow {
        pub(crate) name: String,
        /// Unix milliseconds of its last report.
        pub(crate) seen: i64,
        /// Unix milliseconds at which an operator declared it gone; 0 for never.
        pub(crate) gone_at: i64,
        pub(crate) version: String,
        /// Addresses with ports of its mover, best first.
        pub(crate) addresses: JsonColumn<Vec<String>>,
        pub(crate) capacity: JsonColumn<Capacity>,
        pub(crate) interfaces: JsonColumn<Vec<InterfaceRates>>,
    }
}

/// Returns all hosts that ever reported, by name.
pub(crate) async fn list(pool: &AnyPool) -> Result<Vec<HostRow>, sqlx::Error> {
    select(format!("SELECT {} FROM host ORDER BY name", HostRow::columns())).fetch_all(pool).await
}

/// Returns the hosts whose last report is later than `since` in Unix milliseconds.
pub(crate) async fn up_since(pool: &AnyPool, since: i64) -> Result<HashSet<String>, sqlx::Error> {
    let names = select_one("SELECT name FROM host WHERE seen > $1").bind(since).fetch_all(pool);
    Ok(names.await?.into_iter().collect())
}

typed_row! {
    /// Address of a host that receives files, as JSON, and its certificate.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct ReceiverAddress {
        pub(crate) addresses: String,
        pub(crate) fingerprint: String,
    }
}

/// Returns the address of a host; none if it never reported.
pub(crate) async fn receiver_address(
    cx: &mut TxContext,
    host: &str,
) -> Result<Option<ReceiverAddress>, sqlx::Error> {
    let text = format!("SELECT {} FROM host WHERE name = $1", ReceiverAddress::columns());
    select(text).bind(host.to_owned()).fetch_optional(&mut cx.tx).await
}

written_row! {
    /// A host as of its report.
    #[derive(Debug, Clone)]
    pub(crate) struct ReportedHostRow {
        pub(crate) name: String,
        pub(crate) start: String,
        pub(crate) version: String,
        pub(crate) addresses: JsonColumn<Vec<String>>,
        pub(crate) fingerprint: String,
        pub(crate) capacity: JsonColumn<Capacity>,
        pub(crate) interfaces: JsonColumn<Vec<InterfaceRates>>,
        pub(crate) seen: i64,
    }
}

/// Stores hosts that reported.
pub(crate) async fn store(
    cx: &mut TxContext,
    hosts: Vec<ReportedHostRow>,
) -> Result<(), sqlx::Error> {
    let on_conflict = format!(
        "ON CONFLICT (name) DO UPDATE SET {}",
        excluded_clause::<ReportedHostRow>(&["name"])
    );
    insert_rows("host", hosts).after(on_conflict).execute(&mut cx.tx).await.map(drop)
}

/// Declares a host gone since `at` in Unix milliseconds; 0 revokes that.
pub(crate) async fn set_gone(cx: &mut TxContext, host: &str, at: i64) -> Result<(), sqlx::Error> {
    let query = statement("UPDATE host SET gone_at = $1 WHERE name = $2").bind(at);
    query.bind(host.to_owned()).execute(&mut cx.tx).await.map(drop)
}

typed_row! {
    /// A host or site that starts no work.
    #[derive(Debug, Clone)]
    pub(crate) struct DrainRow {
        pub(crate) name: String,
        /// Name of the client's token.
        pub(crate) who: String,
        pub(crate) why: String,
    }
}

/// Returns the hosts and sites that start no work.
pub(crate) async fn drains(pool: &AnyPool) -> Result<Vec<DrainRow>, sqlx::Error> {
    select(format!("SELECT {} FROM drain", DrainRow::columns())).fetch_all(pool).await
}

/// Returns the names of hosts and sites that start no work.
pub(crate) async fn drained(pool: &AnyPool) -> Result<HashSet<String>, sqlx::Error> {
    Ok(drains(pool).await?.into_iter().map(|drain| drain.name).collect())
}

/// Stores that a host or site starts no work.
pub(crate) async fn drain(
    cx: &mut TxContext,
    name: &str,
    who: &str,
    why: &str,
) -> Result<(), sqlx::Error> {
    let query = statement(
        "INSERT INTO drain (name, since, who, why) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET why = excluded.why",
    );
    let query = query.bind(name.to_owned()).bind(cx.now).bind(who.to_owned()).bind(why.to_owned());
    query.execute(&mut cx.tx).await.map(drop)
}

/// Stores that a host or site starts work again.
pub(crate) async fn undrain(cx: &mut TxContext, name: &str) -> Result<(), sqlx::Error> {
    let query = statement("DELETE FROM drain WHERE name = $1").bind(name.to_owned());
    query.execute(&mut cx.tx).await.map(drop)
}
