//! SQLite tables, migrations and statements.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use futures_util::TryStreamExt;
use penstock_daemon::sqlite::SqliteFault;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection, Row as _, SqliteConnection};

use super::packed::{PackedSums, add, entries, pack};
use crate::minute::{Minute, ROWS_MAX};
use crate::row::{RowKind, SumCell, SumRow};

/// Retention of minutes.
const MINUTES_S: i64 = 7 * 86_400;

/// Retention of hours.
const HOURS_S: i64 = 366 * 86_400;

/// Most ids of stored minutes, by which duplicates are detected.
const APPLIED_IDS_MAX: i64 = 1_000;

/// Time for which a statement waits for another program's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const PAGE_BYTES: u64 = 4096;

/// A plot of a year adds millions of entries.
type BucketSums = HashMap<u32, SumCell, foldhash::fast::FixedState>;

/// The script at index i migrates a database to version i + 1 (`PRAGMA user_version`). Released
/// scripts never change; a change is a further script. [`migrate`] completes what SQL cannot
/// express.
const MIGRATIONS: [&str; 3] = ["
CREATE TABLE key (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind INTEGER NOT NULL, body TEXT NOT NULL, seen INTEGER NOT NULL,
    UNIQUE (kind, body));
CREATE TABLE minute (
    kind INTEGER, start INTEGER, key INTEGER, bytes REAL NOT NULL, error_squared REAL NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (kind, start, key)) WITHOUT ROWID;
CREATE TABLE hour (
    kind INTEGER, start INTEGER, key INTEGER, bytes REAL NOT NULL, error_squared REAL NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (kind, start, key)) WITHOUT ROWID;
CREATE TABLE minute_covered (start INTEGER PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE hour_covered (start INTEGER PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE applied (id INTEGER PRIMARY KEY, at INTEGER NOT NULL);
", "
CREATE TABLE minute_sums (kind INTEGER, start INTEGER, body BLOB NOT NULL, PRIMARY KEY (kind, start));
CREATE TABLE hour_sums (kind INTEGER, start INTEGER, body BLOB NOT NULL, PRIMARY KEY (kind, start));
ALTER TABLE key ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;
UPDATE key SET kept = coalesce((SELECT MAX(start) FROM hour WHERE hour.key = key.id), 0);
", "
CREATE TABLE event (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
"];

/// Version 2: packs single rows into one value per minute or hour.
async fn migrate(connection: &mut SqliteConnection, version: usize) -> Result<(), sqlx::Error> {
    if version != 2 {
        return Ok(());
    }
    for tier in [Tier::Minute, Tier::Hour] {
        for kind in RowKind::ALL {
            let text = format!("SELECT DISTINCT start FROM {} WHERE kind = ?", tier.table());
            let starts: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(text))
                .bind(kind as i64)
                .fetch_all(&mut *connection)
                .await?;
            for start in starts {
                let text = format!(
                    "SELECT key, bytes, error_squared, seconds FROM {} WHERE kind = ? AND start = ?",
                    tier.table()
                );
                let rows = sqlx::query(AssertSqlSafe(text))
                    .bind(kind as i64)
                    .bind(start)
                    .fetch_all(&mut *connection)
                    .await?;
                let mut sums = PackedSums::new();
                for row in rows {
                    let cell = SumCell {
                        bytes: row.get(1),
                        error_squared: row.get(2),
                        seconds: row.get(3),
                    };
                    sums.entry(number(row.get(0))?).or_default().add(cell);
                }
                put(connection, tier, kind, start, &sums).await?;
            }
        }
    }
    sqlx::raw_sql("DROP TABLE minute; DROP TABLE hour;").execute(connection).await?;
    Ok(())
}

/// Id of a key in packed form.
fn number(id: i64) -> Result<u32, sqlx::Error> {
    let text = "four thousand million keys were used: move the file away";
    u32::try_from(id).map_err(|_| sqlx::Error::Configuration(text.into()))
}

/// Stores the sums of a minute or hour, replacing earlier ones.
async fn put(
    connection: &mut SqliteConnection,
    tier: Tier,
    kind: RowKind,
    start_s: i64,
    sums: &PackedSums,
) -> Result<(), sqlx::Error> {
    let text = format!(
        "INSERT INTO {}_sums (kind, start, body) VALUES (?, ?, ?)
         ON CONFLICT DO UPDATE SET body = excluded.body",
        tier.table()
    );
    sqlx::query(AssertSqlSafe(text))
        .bind(kind as i64)
        .bind(start_s)
        .bind(pack(kind, sums))
        .execute(connection)
        .await?;
    Ok(())
}

/// Resolution of stored sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Minute,
    Hour,
}

impl Tier {
    pub(crate) fn table(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    pub(crate) fn step_s(self) -> i64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3600,
        }
    }
}

pub(super) async fn open(path: &Path, limit_bytes: u64) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("max_page_count", (limit_bytes / PAGE_BYTES).max(64).to_string());
    let pool = SqlitePoolOptions::new()
        .max_connections(3)
        .acquire_timeout(BUSY_TIMEOUT * 2)
        .connect_with(options)
        .await?;
    let mut connection = pool.acquire().await?;
    let version: i64 =
        sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *connection).await?;
    for (at, script) in MIGRATIONS.iter().enumerate().skip(usize::try_from(version).unwrap_or(0)) {
        let mut transaction = connection.begin().await?;
        sqlx::raw_sql(*script).execute(&mut *transaction).await?;
        migrate(&mut transaction, at + 1).await?;
        let set = format!("PRAGMA user_version = {}", at + 1);
        sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut *transaction).await?;
        transaction.commit().await?;
    }
    if version > MIGRATIONS.len() as i64 {
        let text = format!(
            "its format {version} is newer than {}: use the penstock that wrote it, or move the file away",
            MIGRATIONS.len()
        );
        return Err(sqlx::Error::Configuration(text.into()));
    }
    Ok(pool)
}

/// Fault that an operator can mend.
pub(super) fn fault_of(error: &sqlx::Error) -> Option<SqliteFault> {
    SqliteFault::of_code(&error.as_database_error()?.code()?)
}

pub(super) async fn newest(pool: &SqlitePool) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT MAX(start) FROM minute_covered").fetch_one(pool).await
}

/// Stores a minute; does nothing if its id is stored.
pub(super) async fn write(
    pool: &SqlitePool,
    minute: &Minute,
    ids: &mut HashMap<SumRow, i64>,
) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let fresh = sqlx::query("INSERT OR IGNORE INTO applied (id, at) VALUES (?, ?)")
        .bind(minute.id)
        .bind(minute.start_s)
        .execute(&mut *transaction)
        .await?;
    if fresh.rows_affected() == 0 {
        return transaction.rollback().await;
    }
    sqlx::query(
        "INSERT INTO minute_covered (start, seconds) VALUES (?, ?)
         ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds",
    )
    .bind(minute.start_s)
    .bind(minute.seconds)
    .execute(&mut *transaction)
    .await?;
    let own = minute.rows.iter().map(|(row, cell)| (minute.start_s, row, cell));
    let counted = minute.counters.iter().map(|(start_s, row, cell)| (*start_s, row, cell));
    let mut all: BTreeMap<(RowKind, i64), PackedSums> = BTreeMap::new();
    for (start_s, row, cell) in own.chain(counted) {
        let id = number(id_of(&mut transaction, row, start_s, ids).await?)?;
        all.entry((row.kind(), start_s)).or_default().entry(id).or_default().add(*cell);
        // A counter's entry has its seconds in place of the error.
        if let SumRow::Counter { at, index, unsampled: false } = row
            && cell.error_squared > 0.0
        {
            let row = SumRow::CounterError { at: at.clone(), index: *index };
            let id = number(id_of(&mut transaction, &row, start_s, ids).await?)?;
            let error = SumCell { bytes: cell.error_squared, ..SumCell::default() };
            all.entry((row.kind(), start_s)).or_default().entry(id).or_default().add(error);
        }
    }
    for ((kind, start_s), mut sums) in all {
        // Counters arrive late, and after a step of the wall clock a minute occurs twice.
        let before: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT body FROM minute_sums WHERE kind = ? AND start = ?")
                .bind(kind as i64)
                .bind(start_s)
                .fetch_optional(&mut *transaction)
                .await?;
        add(kind, &mut sums, &before.unwrap_or_default());
        put(&mut transaction, Tier::Minute, kind, start_s, &sums).await?;
    }
    transaction.commit().await
}

async fn id_of(
    connection: &mut SqliteConnection,
    row: &SumRow,
    seen: i64,
    ids: &mut HashMap<SumRow, i64>,
) -> Result<i64, sqlx::Error> {
    if let Some(id) = ids.get(row) {
        return Ok(*id);
    }
    let body = serde_json::to_string(row).expect("a row is plain data");
    let id = sqlx::query_scalar(
        "INSERT INTO key (kind, body, seen) VALUES (?, ?, ?)
         ON CONFLICT DO UPDATE SET seen = MAX(seen, excluded.seen) RETURNING id",
    )
    .bind(row.kind() as i64)
    .bind(body)
    .bind(seen)
    .fetch_one(connection)
    .await?;
    ids.insert(row.clone(), id);
    Ok(id)
}

/// Sums complete hours, and deletes rows beyond their retention.
pub(super) async fn apply_retention(pool: &SqlitePool, now_s: i64) -> Result<(), sqlx::Error> {
    let hour = now_s.div_euclid(3600) * 3600;
    // Hours whose minutes cover more than was summed: new ones, and those to which the wall clock
    // was set back.
    let due: Vec<i64> = sqlx::query_scalar(
        "SELECT m.hour FROM
            (SELECT start / 3600 * 3600 AS hour, SUM(seconds) AS seconds FROM minute_covered WHERE start < ? GROUP BY 1) m
         LEFT JOIN hour_covered h ON h.start = m.hour
         WHERE h.seconds IS NULL OR ABS(h.seconds - m.seconds) > 0.001",
    )
    .bind(hour)
    .fetch_all(pool)
    .await?;
    for hour in due {
        sum_hour(pool, hour).await?;
    }
    // The rest runs once an hour.
    if now_s.rem_euclid(3600) >= 60 {
        return Ok(());
    }
    let mut transaction = pool.begin().await?;
    for kind in RowKind::ALL {
        for (table, keep) in [("minute_sums", MINUTES_S), ("hour_sums", HOURS_S)] {
            let text = format!("DELETE FROM {table} WHERE kind = ? AND start < ?");
            sqlx::query(AssertSqlSafe(text))
                .bind(kind as i64)
                .bind(now_s - keep)
                .execute(&mut *transaction)
                .await?;
        }
    }
    for (table, keep) in [("minute_covered", MINUTES_S), ("hour_covered", HOURS_S)] {
        let text = format!("DELETE FROM {table} WHERE start < ?");
        sqlx::query(AssertSqlSafe(text)).bind(now_s - keep).execute(&mut *transaction).await?;
    }
    sqlx::query(
        "DELETE FROM applied WHERE id NOT IN (SELECT id FROM applied ORDER BY at DESC LIMIT ?)",
    )
    .bind(APPLIED_IDS_MAX)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    if now_s.rem_euclid(86_400) < 60 {
        drop_keys(pool, now_s - MINUTES_S, now_s - HOURS_S).await?;
    }
    Ok(())
}

/// Deletes keys that are in no minute since `minutes_s` and no hour since `hours_s`. `seen` is
/// updated once an hour.
async fn drop_keys(pool: &SqlitePool, minutes_s: i64, hours_s: i64) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM key WHERE seen < ? AND kept < ?")
        .bind(minutes_s - 3600)
        .bind(hours_s)
        .execute(pool)
        .await?;
    Ok(())
}

/// Sums an hour from its minutes; the smallest sums become other.
async fn sum_hour(pool: &SqlitePool, hour: i64) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin().await?;
    let mut ids = HashMap::new();
    for kind in RowKind::ALL {
        let minutes: Vec<Vec<u8>> = sqlx::query_scalar(
            "SELECT body FROM minute_sums WHERE kind = ? AND start >= ? AND start < ?",
        )
        .bind(kind as i64)
        .bind(hour)
        .bind(hour + 3600)
        .fetch_all(&mut *transaction)
        .await?;
        let mut sums = PackedSums::new();
        minutes.iter().for_each(|body| add(kind, &mut sums, body));
        let mut kept: Vec<(u32, SumCell)> = sums.into_iter().collect();
        kept.sort_unstable_by(|a, b| b.1.bytes.total_cmp(&a.1.bytes).then(a.0.cmp(&b.0)));
        // Counters are bounded at their source, and none represents others.
        let most = if kind == RowKind::Counter { kept.len() } else { ROWS_MAX.min(kept.len()) };
        let dropped = kept.split_off(most);
        let mut sums: PackedSums = kept.into_iter().collect();
        let mut other = SumCell::default();
        // Groups stay in their stratum, so that its counter is not divided among the largest only.
        let mut remainders = HashMap::new();
        let dropped_ids: Vec<i64> = dropped.iter().map(|(id, _)| i64::from(*id)).collect();
        let known = match kind {
            RowKind::Group => rows_of(&mut transaction, &dropped_ids).await?,
            _ => Vec::new(),
        };
        let known: HashMap<i64, SumRow> = known.into_iter().collect();
        for (id, cell) in dropped {
            match known.get(&i64::from(id)).and_then(SumRow::remainder) {
                Some(row) if remainders.len() < ROWS_MAX || remainders.contains_key(&row) => {
                    remainders.entry(row).or_insert_with(SumCell::default).add(cell);
                }
                _ => other.add(cell),
            }
        }
        for (row, cell) in remainders {
            let id = number(id_of(&mut transaction, &row, hour, &mut ids).await?)?;
            sums.entry(id).or_default().add(cell);
        }
        if other.bytes > 0.0
            && let Some(row) = crate::live::other(kind)
        {
            // The row of other sums may be among the largest itself.
            let id = number(id_of(&mut transaction, &row, hour, &mut ids).await?)?;
            sums.entry(id).or_default().add(other);
        }
        put(&mut transaction, Tier::Hour, kind, hour, &sums).await?;
        let keys: Vec<String> = sums.keys().map(ToString::to_string).collect();
        let text = format!("UPDATE key SET kept = MAX(kept, ?) WHERE id IN ({})", keys.join(","));
        sqlx::query(AssertSqlSafe(text)).bind(hour).execute(&mut *transaction).await?;
    }
    sqlx::query(
        "INSERT INTO hour_covered (start, seconds)
         SELECT ?1, SUM(seconds) FROM minute_covered WHERE start >= ?1 AND start < ?1 + 3600
         ON CONFLICT DO UPDATE SET seconds = excluded.seconds",
    )
    .bind(hour)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// Deletes the oldest tenth of the minutes.
pub(super) async fn drop_oldest(pool: &SqlitePool) -> Result<(), sqlx::Error> {
    let bounds =
        sqlx::query("SELECT MIN(start), MAX(start) FROM minute_covered").fetch_one(pool).await?;
    let (Some(first), Some(last)) =
        (bounds.get::<Option<i64>, _>(0), bounds.get::<Option<i64>, _>(1))
    else {
        return Ok(());
    };
    let before = first + ((last - first) / 10).max(60);
    let mut transaction = pool.begin().await?;
    for kind in RowKind::ALL {
        sqlx::query("DELETE FROM minute_sums WHERE kind = ? AND start < ?")
            .bind(kind as i64)
            .bind(before)
            .execute(&mut *transaction)
            .await?;
    }
    sqlx::query("DELETE FROM minute_covered WHERE start < ?")
        .bind(before)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    let hours: Option<i64> =
        sqlx::query_scalar("SELECT MIN(start) FROM hour_covered").fetch_one(pool).await?;
    drop_keys(pool, before, hours.unwrap_or(before)).await
}

pub(super) async fn summed_until(pool: &SqlitePool) -> Result<i64, sqlx::Error> {
    let last: Option<i64> =
        sqlx::query_scalar("SELECT MAX(start) FROM hour_covered").fetch_one(pool).await?;
    Ok(last.map_or(i64::MIN, |last| last + 3600))
}

pub(super) async fn read(
    pool: &SqlitePool,
    tier: Tier,
    kind: RowKind,
    (from_s, to_s): (i64, i64),
    (start_s, step_s): (i64, i64),
) -> Result<Vec<(i64, i64, SumCell)>, sqlx::Error> {
    let text = format!(
        "SELECT start, body FROM {}_sums WHERE kind = ? AND start >= ? AND start < ? ORDER BY start",
        tier.table()
    );
    let mut values =
        sqlx::query(AssertSqlSafe(text)).bind(kind as i64).bind(from_s).bind(to_s).fetch(pool);
    let mut all = Vec::new();
    // Values are in order: one bucket is summed at a time.
    let (mut open, mut sums): (Option<i64>, BucketSums) = (None, BucketSums::default());
    let mut close = |bucket: Option<i64>, sums: &mut BucketSums| {
        let Some(bucket) = bucket else { return };
        all.extend(sums.drain().map(|(key, cell)| (bucket, i64::from(key), cell)));
    };
    while let Some(value) = values.try_next().await? {
        let bucket = (value.get::<i64, _>(0) - start_s).div_euclid(step_s);
        if open != Some(bucket) {
            close(open, &mut sums);
            open = Some(bucket);
        }
        for (key, cell) in entries(kind, value.get(1)) {
            sums.entry(key).or_default().add(cell);
        }
    }
    close(open, &mut sums);
    Ok(all)
}

pub(super) async fn covered(
    pool: &SqlitePool,
    tier: Tier,
    (from_s, to_s): (i64, i64),
    (start_s, step_s): (i64, i64),
) -> Result<Vec<(i64, f64)>, sqlx::Error> {
    let text = format!(
        "SELECT (start - ?) / ?, SUM(seconds) FROM {}_covered WHERE start >= ? AND start < ? GROUP BY 1",
        tier.table()
    );
    let rows = sqlx::query(AssertSqlSafe(text))
        .bind(start_s)
        .bind(step_s)
        .bind(from_s)
        .bind(to_s)
        .fetch_all(pool)
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Loads the rows with these ids. Skips rows that cannot be parsed.
pub(super) async fn rows(
    pool: &SqlitePool,
    ids: &[i64],
) -> Result<Vec<(i64, SumRow)>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    rows_of(&mut *pool.acquire().await?, ids).await
}

async fn rows_of(
    connection: &mut SqliteConnection,
    ids: &[i64],
) -> Result<Vec<(i64, SumRow)>, sqlx::Error> {
    let mut found = Vec::new();
    for some in ids.chunks(500) {
        let list: Vec<String> = some.iter().map(ToString::to_string).collect();
        let text = format!("SELECT id, body FROM key WHERE id IN ({})", list.join(","));
        for row in sqlx::query(AssertSqlSafe(text)).fetch_all(&mut *connection).await? {
            let body: String = row.get(1);
            if let Ok(value) = serde_json::from_str(&body) {
                found.push((row.get(0), value));
            }
        }
    }
    Ok(found)
}

/// See [`super::Store::fill`].
#[cfg(test)]
pub(super) async fn fill(
    pool: &SqlitePool,
    groups: u32,
    minutes: i64,
    hours: i64,
) -> Result<(), sqlx::Error> {
    use crate::row::{RowDirection, RowLabel, RowVantage};
    let end_s = 366 * 86_400;
    let mut transaction = pool.begin().await?;
    let mut sums = PackedSums::new();
    for number in 0..groups {
        let exporter = format!("192.0.2.{}", number % 10).as_str().into();
        let row = SumRow::Group {
            at: RowVantage {
                exporter,
                host: number.is_multiple_of(2),
                direction: RowDirection::Out,
            },
            input: Some(number / 10),
            output: None,
            vlan: Some((number % 100) as u16),
            inner_vlan: None,
            version: Some(6),
            label: RowLabel::Trusted(((3 << 6) | (number % 63 + 1)) as u16),
            source: None,
            destination: None,
        };
        let id = id_of(&mut transaction, &row, end_s, &mut HashMap::new()).await?;
        let cell = SumCell { bytes: f64::from(number + 1), error_squared: 1.0, seconds: 0.0 };
        sums.insert(super::database::number(id)?, cell);
    }
    for (tier, count) in [(Tier::Minute, minutes), (Tier::Hour, hours)] {
        for number in 1..=count {
            let start_s = end_s - number * tier.step_s();
            put(&mut transaction, tier, RowKind::Group, start_s, &sums).await?;
            let text = format!("INSERT INTO {}_covered VALUES (?, ?)", tier.table());
            sqlx::query(AssertSqlSafe(text))
                .bind(start_s)
                .bind(tier.step_s() as f64)
                .execute(&mut *transaction)
                .await?;
        }
    }
    transaction.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{RowDirection, RowLabel, RowVantage};

    fn group(owner: u16) -> SumRow {
        SumRow::Group {
            at: RowVantage {
                exporter: "192.0.2.1".into(),
                host: true,
                direction: RowDirection::In,
            },
            input: Some(1),
            output: None,
            vlan: None,
            inner_vlan: None,
            version: Some(6),
            label: RowLabel::Trusted(owner),
            source: None,
            destination: None,
        }
    }

    fn minute(id: i64, start_s: i64, owner: u16, bytes: f64) -> Minute {
        let cell = SumCell { bytes, error_squared: 4.0, seconds: 0.0 };
        Minute { id, start_s, seconds: 60.0, rows: vec![(group(owner), cell)], counters: vec![] }
    }

    #[tokio::test]
    async fn minutes_and_hours_are_idempotent() {
        let dir = tempfile::tempdir().unwrap();
        let pool = open(&dir.path().join("t.db"), 1 << 30).await.unwrap();
        let mut ids = HashMap::new();
        for at in 0..61_i64 {
            let one = minute(at, at * 60, (at % 2) as u16, 10.0);
            write(&pool, &one, &mut ids).await.unwrap();
            // The outcome of a failed commit is unknown, so the write is retried.
            write(&pool, &one, &mut HashMap::new()).await.unwrap();
        }
        // The wall clock was set back: another minute with the same start.
        write(&pool, &minute(1000, 0, 0, 10.0), &mut ids).await.unwrap();
        for _ in 0..3 {
            apply_retention(&pool, 3600).await.unwrap();
        }
        let hours = read(&pool, Tier::Hour, RowKind::Group, (0, 7200), (0, 3600)).await.unwrap();
        let mut sums: Vec<_> = hours.iter().map(|(hour, _, cell)| (*hour, cell.bytes)).collect();
        sums.sort_by(|a, b| a.1.total_cmp(&b.1));
        assert_eq!(sums, [(0, 300.0), (0, 310.0)]);
        let covered = super::covered(&pool, Tier::Hour, (0, 7200), (0, 3600)).await.unwrap();
        assert_eq!(covered, [(0, 61.0 * 60.0)]);
        assert_eq!(summed_until(&pool).await.unwrap(), 3600);
        let ids: Vec<i64> = hours.iter().map(|(_, id, _)| *id).collect();
        let mut names: Vec<_> = rows(&pool, &ids).await.unwrap().into_iter().map(|r| r.1).collect();
        names.sort();
        assert_eq!(names, [group(0), group(1)]);
        // A week later the minutes are gone, a year later the hours.
        apply_retention(&pool, 3600 + MINUTES_S + 3600).await.unwrap();
        assert_eq!(newest(&pool).await.unwrap(), None);
        assert_eq!(
            read(&pool, Tier::Hour, RowKind::Group, (0, 7200), (0, 3600)).await.unwrap().len(),
            3
        );
        apply_retention(&pool, 7200 + HOURS_S).await.unwrap();
        assert_eq!(
            read(&pool, Tier::Hour, RowKind::Group, (0, 7200), (0, 3600)).await.unwrap(),
            []
        );
    }

    #[tokio::test]
    async fn single_rows_migrate_to_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut old = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql(MIGRATIONS[0]).execute(&mut old).await.unwrap();
        let body = serde_json::to_string(&group(7)).unwrap();
        sqlx::query("INSERT INTO key (id, kind, body, seen) VALUES (5, 0, ?, 60)")
            .bind(body)
            .execute(&mut old)
            .await
            .unwrap();
        sqlx::raw_sql(
            "INSERT INTO minute VALUES (0, 60, 5, 12.5, 4.0, 0.0), (0, 120, 5, 1.0, 1.0, 0.0), (3, 60, 5, 9.0, 0.0, 60.0);
             INSERT INTO hour VALUES (0, 0, 5, 13.5, 5.0, 0.0); PRAGMA user_version = 1",
        )
        .execute(&mut old)
        .await
        .unwrap();
        old.close().await.unwrap();
        let pool = open(&path, 1 << 30).await.unwrap();
        let all = |tier, kind| read(&pool, tier, kind, (0, 7200), (0, 60));
        let cell = |bytes, error_squared, seconds| SumCell { bytes, error_squared, seconds };
        assert_eq!(
            all(Tier::Minute, RowKind::Group).await.unwrap(),
            [(1, 5, cell(12.5, 4.0, 0.0)), (2, 5, cell(1.0, 1.0, 0.0))]
        );
        let counters = all(Tier::Minute, RowKind::Counter).await.unwrap();
        assert_eq!(counters, [(1, 5, cell(9.0, 0.0, 60.0))]);
        assert_eq!(all(Tier::Hour, RowKind::Group).await.unwrap(), [(0, 5, cell(13.5, 5.0, 0.0))]);
        assert_eq!(rows(&pool, &[5]).await.unwrap(), [(5, group(7))]);
        let kept: i64 = sqlx::query_scalar("SELECT kept FROM key").fetch_one(&pool).await.unwrap();
        assert_eq!(kept, 0);
    }

    #[tokio::test]
    async fn retention_size_limit_evicts_oldest_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let pool = open(&dir.path().join("t.db"), 80 * PAGE_BYTES).await.unwrap();
        let mut full = 0;
        let mut at = 0;
        while full < 3 {
            at += 1;
            let rows = (0..200).map(|owner| (group(owner), SumCell::default())).collect();
            let one = Minute { rows, ..minute(at, at * 60, 1, 1.0) };
            match write(&pool, &one, &mut HashMap::new()).await {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(fault_of(&error), Some(SqliteFault::Full), "{error}");
                    full += 1;
                    drop_oldest(&pool).await.unwrap();
                    write(&pool, &one, &mut HashMap::new()).await.unwrap();
                }
            }
            assert!(at < 1_000, "it never was full");
        }
        assert!(std::fs::metadata(dir.path().join("t.db")).unwrap().len() <= 80 * PAGE_BYTES);
    }
}
