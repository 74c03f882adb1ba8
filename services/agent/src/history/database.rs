//! SQLite table, migrations and statements of the history.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_daemon::sqlite::SqliteFault;
use penstock_daemon::state::StateError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection, Row as _};

use super::row::{HistoryRow, ProtectionName, TransferVerdict};

/// Most rows of the history; the oldest are deleted beyond it. A row takes about 300 bytes.
pub const ROWS_MAX: i64 = 50_000;

/// Age at which a row is deleted, in seconds: 400 days.
pub const AGE_MAX_S: i64 = 400 * 86_400;

/// Time for which a statement waits for another program's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The script at index i migrates a database to version i + 1 (`PRAGMA user_version`). Released scripts never change.
const MIGRATIONS: [&str; 2] = ["
CREATE TABLE transfer (
    id INTEGER PRIMARY KEY AUTOINCREMENT, started REAL NOT NULL, source TEXT NOT NULL, destination TEXT NOT NULL,
    direction TEXT NOT NULL, protocol TEXT NOT NULL, protection TEXT, engine TEXT NOT NULL,
    announced_bytes INTEGER NOT NULL, resumed_bytes INTEGER NOT NULL, files INTEGER NOT NULL, block_bytes INTEGER,
    streams INTEGER NOT NULL, readers INTEGER NOT NULL, writers INTEGER NOT NULL, rate_limit_bps INTEGER, rtt_us INTEGER,
    other_transfers INTEGER NOT NULL, other_streams INTEGER NOT NULL, load_1min REAL, processors INTEGER NOT NULL,
    cpu_pressure_percent REAL, io_pressure_percent REAL, dirty_bytes INTEGER, seconds REAL NOT NULL,
    moved_bytes INTEGER NOT NULL, failed INTEGER NOT NULL, bound_by TEXT NOT NULL, verdict TEXT NOT NULL,
    retransmits INTEGER NOT NULL, synthetic INTEGER NOT NULL DEFAULT 0);
CREATE INDEX transfer_started ON transfer (started);
", "
ALTER TABLE transfer ADD COLUMN streams_settled INTEGER;
"];

/// Columns in the order of [`append`] and [`row_of`].
const COLUMNS: &str = "started, source, destination, direction, protocol, protection, engine, announced_bytes, \
    resumed_bytes, files, block_bytes, streams, readers, writers, rate_limit_bps, rtt_us, other_transfers, \
    other_streams, load_1min, processors, cpu_pressure_percent, io_pressure_percent, dirty_bytes, seconds, moved_bytes, \
    failed, bound_by, verdict, retransmits, synthetic, streams_settled";

/// Last of [`COLUMNS`], which files of version 1 lack.
const COLUMN_OF_VERSION_2: &str = "streams_settled";

/// A history that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("history {}: {source}", path.display())]
pub struct HistoryError {
    path: PathBuf,
    source: HistoryFault,
}

/// Fault of the file or of a statement.
#[derive(Debug, thiserror::Error)]
pub(super) enum HistoryFault {
    #[error("{0}: {remedy}", remedy = remedy(.0))]
    Database(#[from] sqlx::Error),
    #[error("{0}: {remedy}", remedy = remedy_of_reader(.0))]
    Read(sqlx::Error),
    #[error("damaged: {0}")]
    Damaged(String),
    #[error("{}", penstock_sys::fs::describe(.0))]
    Io(#[from] io::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("its format {0} is newer than {latest}: use the penstock that wrote it, or move the file away", latest = MIGRATIONS.len())]
    Newer(i64),
}

/// Remedy for a fault that the agent meets.
fn remedy(error: &sqlx::Error) -> &'static str {
    match fault_of(error) {
        Some(SqliteFault::Damaged) => RENAMED_BY_AGENT,
        Some(fault) => fault.remedy(),
        None => "stop the agent and move the file away to begin a new one",
    }
}

/// Remedy for a fault that another program meets.
fn remedy_of_reader(error: &sqlx::Error) -> &'static str {
    match fault_of(error) {
        Some(SqliteFault::Damaged) => RENAMED_BY_AGENT,
        Some(SqliteFault::NotWritable) => {
            "run this as the agent's user with PENSTOCK_STATE set to its state directory; from a directory that \
             cannot be written, copy history.db and history.db-wal to one that can"
        }
        Some(fault) => fault.remedy(),
        None => "it is no history of an agent: set PENSTOCK_STATE to its state directory",
    }
}

/// Treatment of a damaged file by the agent.
const RENAMED_BY_AGENT: &str = "the agent renames it and begins a new one when it next starts";

impl HistoryError {
    pub(super) fn new(path: &Path, source: HistoryFault) -> Self {
        Self { path: path.to_owned(), source }
    }
}

fn at<E: Into<HistoryFault>>(path: &Path) -> impl FnOnce(E) -> HistoryError {
    let path = path.to_owned();
    move |error| HistoryError { path, source: error.into() }
}

/// Opens the file for writing, with mode 0600. SQLite gives its other files the same mode.
pub(super) async fn open(path: &Path) -> Result<SqlitePool, HistoryError> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    drop(file.map_err(at(path))?);
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT);
    let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(BUSY_TIMEOUT * 2);
    let pool = pool.connect_with(options).await.map_err(at(path))?;
    match migrate(&pool).await {
        Ok(()) => Ok(pool),
        Err(fault) => {
            pool.close().await;
            Err(HistoryError::new(path, fault))
        }
    }
}

async fn version(pool: &SqlitePool) -> Result<i64, HistoryFault> {
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(pool).await?;
    match version > MIGRATIONS.len() as i64 {
        true => Err(HistoryFault::Newer(version)),
        false => Ok(version),
    }
}

async fn migrate(pool: &SqlitePool) -> Result<(), HistoryFault> {
    let from = usize::try_from(version(pool).await?).unwrap_or(0);
    let mut connection = pool.acquire().await?;
    for (at, script) in MIGRATIONS.iter().enumerate().skip(from) {
        let mut transaction = connection.begin().await?;
        sqlx::raw_sql(*script).execute(&mut *transaction).await?;
        let set = format!("PRAGMA user_version = {}", at + 1);
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *transaction).await?;
        transaction.commit().await?;
    }
    Ok(())
}

fn is_damaged(error: &HistoryError) -> bool {
    match &error.source {
        HistoryFault::Database(error) | HistoryFault::Read(error) => {
            fault_of(error) == Some(SqliteFault::Damaged)
        }
        HistoryFault::Damaged(_) => true,
        _ => false,
    }
}

fn fault_of(error: &sqlx::Error) -> Option<SqliteFault> {
    SqliteFault::of_code(&error.as_database_error()?.code()?)
}

/// Renames a damaged file, so that an operator can repair it.
fn set_aside(path: &Path) {
    let shown = path.display();
    match penstock_daemon::sqlite::set_aside(path) {
        Ok(aside) => tracing::error!(
            "history {shown} is damaged: renamed to {}, a new one is created",
            aside.display()
        ),
        Err(error) => tracing::error!(
            "history {shown} is damaged, and cannot be renamed: {}",
            penstock_sys::fs::describe(&error)
        ),
    }
}

/// Reads the latest `rows` for an agent that starts, oldest first. A damaged file is renamed at once: rows could be appended
/// to it, but nothing may ever read them. Another fault is logged.
pub(super) async fn read_at_start(path: &Path, rows: u32) -> Vec<HistoryRow> {
    let read = match check(path).await {
        Ok(()) => read(path, rows).await,
        Err(error) => Err(error),
    };
    read.unwrap_or_else(|error| {
        match is_damaged(&error) {
            true => set_aside(path),
            false => tracing::warn!("{error}: forecasts begin without earlier transfers"),
        }
        Vec::new()
    })
}

/// Checks all pages of the file.
async fn check(path: &Path) -> Result<(), HistoryError> {
    let pool = open_to_read(path).await?;
    let found = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_one(&pool).await;
    pool.close().await;
    let found: String =
        found.map_err(|error| HistoryError::new(path, HistoryFault::Read(error)))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(HistoryError::new(path, HistoryFault::Damaged(found))),
    }
}

/// Appends a row, and deletes those beyond [`ROWS_MAX`] and [`AGE_MAX_S`], in one transaction. Opens the file on the first
/// call, and again after it was damaged.
pub(super) async fn append(
    path: &Path,
    database: &mut Option<SqlitePool>,
    row: &HistoryRow,
) -> Result<(), HistoryError> {
    match append_once(path, database, row).await {
        Err(error) if is_damaged(&error) => {
            if let Some(pool) = database.take() {
                pool.close().await;
            }
            set_aside(path);
            append_once(path, database, row).await
        }
        appended => appended,
    }
}

async fn append_once(
    path: &Path,
    database: &mut Option<SqlitePool>,
    row: &HistoryRow,
) -> Result<(), HistoryError> {
    let pool = match database {
        Some(pool) => pool,
        None => database.insert(open(path).await?),
    };
    insert(pool, row, ROWS_MAX).await.map_err(at(path))
}

/// Counts as integers of SQLite, which are signed.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) async fn insert(
    pool: &SqlitePool,
    row: &HistoryRow,
    rows_max: i64,
) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let marks = vec!["?"; COLUMNS.split(',').count()].join(", ");
    let text = format!("INSERT INTO transfer ({COLUMNS}) VALUES ({marks})");
    sqlx::query(AssertSqlSafe(text))
        .bind(row.started_unix_seconds)
        .bind(&row.source)
        .bind(&row.destination)
        .bind(&row.direction)
        .bind(&row.protocol)
        .bind(row.protection.map(ProtectionName::as_str))
        .bind(&row.engine)
        .bind(signed(row.announced_bytes))
        .bind(signed(row.resumed_bytes))
        .bind(signed(row.files))
        .bind(row.block_bytes)
        .bind(row.streams)
        .bind(row.readers)
        .bind(row.writers)
        .bind(row.rate_limit_bps.map(signed))
        .bind(row.rtt_us)
        .bind(row.other_transfers)
        .bind(row.other_streams)
        .bind(row.load_1min)
        .bind(row.processors)
        .bind(row.cpu_pressure_percent)
        .bind(row.io_pressure_percent)
        .bind(row.dirty_bytes.map(signed))
        .bind(row.seconds)
        .bind(signed(row.moved_bytes))
        .bind(signed(row.failed))
        .bind(&row.bound_by)
        .bind(row.verdict.as_str())
        .bind(signed(row.retransmits))
        .bind(row.synthetic)
        .bind(row.streams_settled)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM transfer WHERE id <= (SELECT MAX(id) FROM transfer) - ?")
        .bind(rows_max)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("DELETE FROM transfer WHERE started < ?")
        .bind(row.started_unix_seconds - AGE_MAX_S as f64)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

/// Reads the latest `rows`, oldest first.
pub(super) async fn read(path: &Path, rows: u32) -> Result<Vec<HistoryRow>, HistoryError> {
    let pool = open_to_read(path).await?;
    let found = select(&pool, rows).await;
    pool.close().await;
    found.map_err(|fault| match fault {
        HistoryFault::Database(error) => HistoryError::new(path, HistoryFault::Read(error)),
        other => HistoryError::new(path, other),
    })
}

async fn open_to_read(path: &Path) -> Result<SqlitePool, HistoryError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("query_only", "ON")
        // Readers print to a terminal, and a whole history takes seconds on a busy host.
        .disable_statement_logging();
    let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(BUSY_TIMEOUT * 2);
    let pool = pool.connect_with(options).await;
    pool.map_err(|error| HistoryError::new(path, HistoryFault::Read(error)))
}

async fn select(pool: &SqlitePool, rows: u32) -> Result<Vec<HistoryRow>, HistoryFault> {
    let columns = match version(pool).await? {
        0 => return Ok(Vec::new()),
        1 => COLUMNS.replace(COLUMN_OF_VERSION_2, "NULL"),
        _ => COLUMNS.to_owned(),
    };
    let text = format!("SELECT id, {columns} FROM transfer ORDER BY id DESC LIMIT ?");
    let found = sqlx::query(AssertSqlSafe(text)).bind(rows).fetch_all(pool).await?;
    let rows: Result<Vec<_>, sqlx::Error> = found.iter().rev().map(row_of).collect();
    Ok(rows?)
}

fn row_of(row: &SqliteRow) -> Result<HistoryRow, sqlx::Error> {
    // A file that another program wrote may hold anything.
    let count =
        |at: usize| row.try_get::<i64, _>(at).map(|count| u64::try_from(count).unwrap_or(0));
    let optional = |at: usize| {
        let count = row.try_get::<Option<i64>, _>(at)?;
        Ok::<_, sqlx::Error>(count.and_then(|count| u64::try_from(count).ok()))
    };
    let narrow = |at: usize| count(at).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let threads = |at: usize| count(at).map(|count| u16::try_from(count).unwrap_or(u16::MAX));
    let protection: Option<String> = row.try_get(6)?;
    Ok(HistoryRow {
        id: row.try_get(0)?,
        started_unix_seconds: row.try_get(1)?,
        source: row.try_get(2)?,
        destination: row.try_get(3)?,
        direction: row.try_get(4)?,
        protocol: row.try_get(5)?,
        protection: protection.as_deref().and_then(ProtectionName::of_name),
        engine: row.try_get(7)?,
        announced_bytes: count(8)?,
        resumed_bytes: count(9)?,
        files: count(10)?,
        block_bytes: optional(11)?.and_then(|bytes| u32::try_from(bytes).ok()),
        streams: threads(12)?,
        readers: threads(13)?,
        writers: threads(14)?,
        rate_limit_bps: optional(15)?,
        rtt_us: optional(16)?.and_then(|us| u32::try_from(us).ok()),
        other_transfers: narrow(17)?,
        other_streams: narrow(18)?,
        load_1min: row.try_get(19)?,
        processors: narrow(20)?,
        cpu_pressure_percent: row.try_get(21)?,
        io_pressure_percent: row.try_get(22)?,
        dirty_bytes: optional(23)?,
        seconds: row.try_get(24)?,
        moved_bytes: count(25)?,
        failed: count(26)?,
        bound_by: row.try_get(27)?,
        verdict: TransferVerdict::of_name(&row.try_get::<String, _>(28)?),
        retransmits: count(29)?,
        synthetic: row.try_get(30)?,
        streams_settled: optional(31)?.and_then(|streams| u16::try_from(streams).ok()),
    })
}
