//! Connections to the database, and the differences between SQLite and PostgreSQL.

use std::time::Duration;

use penstock_daemon::sqlite::SqliteFault;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::error::DatabaseError as _;
use sqlx::sqlite::SqliteError;
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, ConnectOptions, Connection, Row};
use tokio::sync::oneshot;

use super::schema;
use super::statement::select_one;

/// Connections for read-only queries.
pub(crate) type ReadPool = AnyPool;

/// A statement that failed, or a database that did not answer.
pub(crate) type DatabaseError = sqlx::Error;

/// Time that a statement waits for a lock of another process.
const LOCK_TIMEOUT_MS: u32 = 10_000;

/// Idle time after which PostgreSQL ends an open transaction.
const IDLE_TX_TIMEOUT_MS: u32 = 10_000;

/// WAL pages at which SQLite checkpoints within a commit; [`checkpoint_loop`] keeps the WAL far below.
const WAL_PAGES_MAX: i64 = 65_536;

/// Interval of checkpoints beside the writer.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Read-only connections.
const READ_CONNECTIONS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    Sqlite,
    Postgres,
}

/// A database with its connections.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pub(crate) kind: DatabaseKind,
    options: AnyConnectOptions,
    /// Connections for read-only queries.
    pub(crate) pool: AnyPool,
}

/// A database that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("database {database}: {fault}")]
pub(crate) struct OpenError {
    /// File, or URL without a password.
    database: String,
    fault: OpenFault,
}

/// Fault of a database, or of its URL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFault {
    #[error("it is no database: write sqlite://FILE or postgres://USER@HOST/NAME")]
    UnknownKind,
    #[error("{0}{remedy}", remedy = remedy(.0))]
    Connect(sqlx::Error),
    #[error("cannot create the tables: {0}{remedy}", remedy = remedy(.0))]
    Migrate(sqlx::Error),
    #[error(
        "the tables have format {version}, newer than {known}: use the penstock that made them, or another database"
    )]
    Newer { version: i64, known: usize },
    #[error("the tables were made before version 0.1.0: use another database")]
    Older,
}

/// Remedy for an error of SQLite.
fn remedy(error: &sqlx::Error) -> String {
    match sqlite_fault(error) {
        Some(fault @ SqliteFault::NotWritable) => format!(
            ": {}; database in [controller] names it, without which it is controller.db in the state directory",
            fault.remedy()
        ),
        Some(fault) => format!(": {}", fault.remedy()),
        None => String::new(),
    }
}

/// Fault of SQLite that an operator can mend. Codes of PostgreSQL are numbers, too.
pub(super) fn sqlite_fault(error: &sqlx::Error) -> Option<SqliteFault> {
    let error = error.as_database_error()?.try_downcast_ref::<SqliteError>()?;
    SqliteFault::of_code(&error.code()?)
}

/// A database as shown to operators: its file, or its URL without a password and parameters.
fn shown(url: &str) -> String {
    let url = url.split_once('?').map_or(url, |(url, _)| url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    if scheme == "sqlite" {
        return rest.to_owned();
    }
    match rest.rsplit_once('@') {
        Some((login, host)) => {
            let user = login.split_once(':').map_or(login, |(user, _)| user);
            format!("{scheme}://{user}@{host}")
        }
        None => url.to_owned(),
    }
}

/// Returns the database system of a URL.
pub(crate) fn kind(url: &str) -> Result<DatabaseKind, OpenFault> {
    match url.split_once(':') {
        Some(("sqlite", _)) => Ok(DatabaseKind::Sqlite),
        Some(("postgres" | "postgresql", _)) => Ok(DatabaseKind::Postgres),
        _ => Err(OpenFault::UnknownKind),
    }
}

impl Database {
    /// Opens the database and migrates its tables.
    pub(crate) async fn open(url: &str) -> Result<Self, OpenError> {
        let opened = Self::open_url(url).await;
        opened.map_err(|fault| OpenError { database: shown(url), fault })
    }

    async fn open_url(url: &str) -> Result<Self, OpenFault> {
        sqlx::any::install_default_drivers();
        let kind = kind(url)?;
        let failed = OpenFault::Connect;
        let options: AnyConnectOptions = url.parse().map_err(failed)?;
        // A test checks SQLite's plans of all logged statements.
        let options = match kind {
            DatabaseKind::Sqlite if cfg!(test) => options,
            _ => options.disable_statement_logging(),
        };
        let pool = AnyPoolOptions::new()
            .max_connections(READ_CONNECTIONS)
            .acquire_timeout(Duration::from_secs(10))
            .after_connect(move |connection, _| Box::pin(prepare(connection, kind)))
            .connect_lazy_with(options.clone());
        let database = Self { kind, options, pool };
        let mut connection = database.connect().await.map_err(failed)?;
        schema::migrate(&mut connection, kind).await?;
        connection.close().await.map_err(failed)?;
        Ok(database)
    }

    /// Opens an SQLite database in memory, which lasts as long as this value. `name` distinguishes such databases of one
    /// process. No change may run beside a query: connections to such a database lock tables, not snapshots.
    pub(crate) async fn open_in_memory(name: &str) -> Result<Self, OpenFault> {
        sqlx::any::install_default_drivers();
        let failed = OpenFault::Connect;
        let kind = DatabaseKind::Sqlite;
        // SQLite shares a database in memory between connections only where its name is a URI.
        let url = format!("sqlite:file:{name}?mode=memory");
        let options: AnyConnectOptions = url.parse().map_err(failed)?;
        let options = options.disable_statement_logging();
        // The one connection of the pool stays open: with its last connection the database ends.
        let pool = AnyPoolOptions::new()
            .max_connections(1)
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    prepare(connection, kind).await?;
                    let unlocked = "PRAGMA read_uncommitted = 1";
                    sqlx::raw_sql(unlocked).execute(connection).await.map(drop)
                })
            })
            .connect_with(options.clone())
            .await
            .map_err(failed)?;
        let database = Self { kind, options, pool };
        let mut connection = database.connect().await.map_err(failed)?;
        schema::migrate(&mut connection, kind).await?;
        connection.close().await.map_err(failed)?;
        Ok(database)
    }

    /// Opens a connection of its own.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, sqlx::Error> {
        let mut connection = self.options.connect().await?;
        prepare(&mut connection, self.kind).await?;
        Ok(connection)
    }
}

async fn prepare(connection: &mut AnyConnection, kind: DatabaseKind) -> Result<(), sqlx::Error> {
    let script = match kind {
        // FULL, so that accepted requests survive a power failure.
        DatabaseKind::Sqlite => format!(
            "PRAGMA busy_timeout = {LOCK_TIMEOUT_MS}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}"
        ),
        DatabaseKind::Postgres => format!(
            "SET idle_in_transaction_session_timeout = {IDLE_TX_TIMEOUT_MS}; SET lock_timeout = {LOCK_TIMEOUT_MS};
             SET client_min_messages = warning"
        ),
    };
    sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await?;
    Ok(())
}

/// Begins a transaction and takes the write lock until it ends.
pub(crate) async fn begin(tx: &mut AnyConnection, kind: DatabaseKind) -> Result<(), sqlx::Error> {
    let begin = match kind {
        DatabaseKind::Sqlite => "BEGIN IMMEDIATE",
        DatabaseKind::Postgres => "BEGIN; SELECT next FROM sequence WHERE name = 'lock' FOR UPDATE",
    };
    sqlx::raw_sql(begin).execute(tx).await?;
    Ok(())
}

/// Checkpoints SQLite's WAL on its own connection until the other end of `ended` is dropped, so that no transaction has
/// to.
pub(crate) async fn checkpoint_loop(database: Database, mut ended: oneshot::Receiver<()>) {
    if database.kind != DatabaseKind::Sqlite {
        return;
    }
    let mut connection: Option<AnyConnection> = None;
    loop {
        tokio::select! {
            _ = &mut ended => return,
            () = tokio::time::sleep(CHECKPOINT_INTERVAL) => {}
        }
        if connection.is_none() {
            connection = database.connect().await.ok();
        }
        let Some(open) = &mut connection else { continue };
        if let Err(error) = checkpoint(open).await {
            tracing::debug!("cannot checkpoint the database's WAL: {error}");
            connection = None;
        }
    }
}

async fn checkpoint(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    // The WAL restarts once it is fully copied; few pages arrive meanwhile.
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

/// Returns the locking clause of a SELECT that competes with other controllers.
pub(crate) fn skip_locked(kind: DatabaseKind) -> &'static str {
    match kind {
        DatabaseKind::Sqlite => "",
        DatabaseKind::Postgres => " FOR UPDATE SKIP LOCKED",
    }
}

/// Allocates `count` consecutive ids and returns the first.
pub(crate) async fn allocate_ids(
    tx: &mut AnyConnection,
    name: &'static str,
    count: usize,
) -> Result<i64, sqlx::Error> {
    let count = count as i64;
    let text = "UPDATE sequence SET next = next + $1 WHERE name = $2 RETURNING next";
    let next: i64 = select_one(text).bind(count).bind(name).fetch_one(tx).await?;
    Ok(next - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_error(path: &std::path::Path) -> String {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = format!("sqlite://{}?mode=rwc", path.display());
        runtime.block_on(Database::open(&url)).unwrap_err().to_string()
    }

    #[test]
    fn missing_directory_names_the_remedy() {
        let error = open_error("/proc/none/c.db".as_ref());
        assert!(error.starts_with("database /proc/none/c.db: "), "{error}");
        assert!(error.contains("its directory must exist"), "{error}");
    }

    #[test]
    fn damaged_file_names_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.db");
        std::fs::write(&path, "no database, and longer than a header".repeat(8)).unwrap();
        let error = open_error(&path);
        assert!(error.contains("restore it from a copy"), "{error}");
    }

    #[test]
    fn shown_url_has_no_password() {
        for (url, text) in [
            ("sqlite:///var/lib/penstock/c.db?mode=rwc", "/var/lib/penstock/c.db"),
            (
                "postgres://u:s3@cr:t@db.example.org/penstock?sslmode=require",
                "postgres://u@db.example.org/penstock",
            ),
            ("postgres://u@db/penstock", "postgres://u@db/penstock"),
            ("postgres:///penstock?user=u&password=p", "postgres:///penstock"),
            ("none", "none"),
        ] {
            assert_eq!(shown(url), text, "{url}");
        }
    }
}
