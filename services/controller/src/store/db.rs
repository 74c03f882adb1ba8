//! Opening the database, and the few places where SQLite and PostgreSQL differ.

use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::sync::oneshot;

use super::schema;

/// How long a statement waits for another program that holds the file.
const BUSY_MS: u32 = 10_000;

/// A transaction of a controller that stands still is ended by PostgreSQL after so long.
const IDLE_MS: u32 = 10_000;

/// Pages in SQLite's log at which whoever commits copies them into the file itself; [`fold`] keeps them far below.
const LOG_PAGES_MAX: i64 = 65_536;

/// Between two times at which the log is copied beside the writer.
const FOLD: Duration = Duration::from_secs(1);

/// Connections that read.
const READERS: u32 = 4;

/// Which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// A database, with its connections.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) kind: Kind,
    options: AnyConnectOptions,
    /// For questions.
    pub(crate) pool: AnyPool,
}

/// The kind of database that an address names.
pub(crate) fn kind(url: &str) -> Result<Kind, String> {
    match url.split_once(':') {
        Some(("sqlite", _)) => Ok(Kind::Sqlite),
        Some(("postgres" | "postgresql", _)) => Ok(Kind::Postgres),
        _ => Err("it is no database: write sqlite://FILE or postgres://USER@HOST/NAME".to_owned()),
    }
}

impl Database {
    /// Opens it and brings its tables up to date.
    pub(crate) async fn open(url: &str) -> Result<Self, String> {
        sqlx::any::install_default_drivers();
        let kind = kind(url)?;
        let failed = |error: sqlx::Error| format!("cannot use the database: {error}");
        let options: AnyConnectOptions = url.parse().map_err(failed)?;
        // A test looks at the plans of all statements.
        let options = if cfg!(test) { options } else { options.disable_statement_logging() };
        let pool = AnyPoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(Duration::from_secs(10))
            .after_connect(move |connection, _| Box::pin(prepare(connection, kind)))
            .connect_lazy_with(options.clone());
        let database = Self { kind, options, pool };
        let mut connection = database.connect().await.map_err(failed)?;
        schema::migrate(&mut connection, kind).await?;
        connection.close().await.map_err(failed)?;
        Ok(database)
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        prepare(&mut connection, self.kind).await?;
        Ok(connection)
    }
}

async fn prepare(connection: &mut AnyConnection, kind: Kind) -> Result<(), sqlx::Error> {
    let script = match kind {
        // What was accepted survives a power failure, so FULL.
        Kind::Sqlite => format!(
            "PRAGMA busy_timeout = {BUSY_MS}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}"
        ),
        Kind::Postgres => format!(
            "SET idle_in_transaction_session_timeout = {IDLE_MS}; SET lock_timeout = {BUSY_MS};
             SET client_min_messages = warning"
        ),
    };
    sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await?;
    Ok(())
}

/// Begins a transaction and takes the right to write until it ends.
pub(crate) async fn begin(tx: &mut AnyConnection, kind: Kind) -> Result<(), sqlx::Error> {
    let begin = match kind {
        Kind::Sqlite => "BEGIN IMMEDIATE",
        Kind::Postgres => "BEGIN; SELECT next FROM sequence WHERE name = 'lock' FOR UPDATE",
    };
    sqlx::raw_sql(begin).execute(tx).await?;
    Ok(())
}

/// Copies what was written from SQLite's log into its file until the other end of `ended` is gone, on a connection of its
/// own: no transaction waits for it.
pub(crate) async fn fold(database: Database, mut ended: oneshot::Receiver<()>) {
    if database.kind != Kind::Sqlite {
        return;
    }
    let mut connection: Option<AnyConnection> = None;
    loop {
        tokio::select! {
            _ = &mut ended => return,
            () = tokio::time::sleep(FOLD) => {}
        }
        if connection.is_none() {
            connection = database.connect().await.ok();
        }
        let Some(open) = &mut connection else { continue };
        if let Err(error) = copy_log(open).await {
            tracing::debug!("the log of the database is not copied: {error}");
            connection = None;
        }
    }
}

async fn copy_log(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    // The log begins anew once all of it is copied; what was written meanwhile is little.
    for _ in 0..4 {
        let passive = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").fetch_one(&mut *connection);
        let row = passive.await?;
        let (log, copied): (i64, i64) = (row.get(1), row.get(2));
        if copied >= log {
            break;
        }
    }
    Ok(())
}

/// What follows a choice of rows that another controller may be choosing, too.
pub(crate) fn skip_locked(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => "",
        Kind::Postgres => " FOR UPDATE SKIP LOCKED",
    }
}

/// `count` numbers that nobody had before; the first of them.
pub(crate) async fn numbers(
    tx: &mut AnyConnection,
    name: &'static str,
    count: usize,
) -> Result<i64, sqlx::Error> {
    let count = count as i64;
    let row = sqlx::query("UPDATE sequence SET next = next + $1 WHERE name = $2 RETURNING next")
        .bind(count)
        .bind(name)
        .fetch_one(tx)
        .await?;
    Ok(row.get::<i64, _>(0) - count)
}
