//! Size of the database.

use std::collections::BTreeMap;

use super::db::{Database, DatabaseKind};
use super::rows::typed_row;
use super::statement::select;
use super::{files, requests};

/// Size of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// Number of stored requests.
    pub requests: u64,
    /// Number of stored files.
    pub files: u64,
    /// Size of the whole database in bytes.
    pub bytes: u64,
    /// Size of each table with its indexes in bytes.
    pub tables: BTreeMap<String, u64>,
}

typed_row! {
    struct TableSize {
        name: String,
        bytes: u64,
    }
}

/// Returns the present size of a database.
pub(crate) async fn measure(database: &Database) -> Result<StoreSize, sqlx::Error> {
    let query = match database.kind {
        // SQLite names an index after its table; the name of a key's index contains that of the table.
        DatabaseKind::Sqlite => select(
            "SELECT COALESCE(m.tbl_name, d.name) AS name, CAST(SUM(d.pgsize) AS BIGINT) AS bytes FROM dbstat d
             LEFT JOIN sqlite_schema m ON m.name = d.name GROUP BY 1",
        ),
        DatabaseKind::Postgres => select(
            "SELECT CAST(relname AS TEXT) AS name, CAST(pg_total_relation_size(oid) AS BIGINT) AS bytes FROM pg_class
             WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace",
        ),
    };
    let tables: Vec<TableSize> = query.fetch_all(&database.pool).await?;
    Ok(StoreSize {
        requests: requests::count(&database.pool).await? as u64,
        files: files::count(&database.pool).await? as u64,
        bytes: tables.iter().map(|table| table.bytes).sum(),
        tables: tables.into_iter().map(|table| (table.name, table.bytes)).collect(),
    })
}
