//! Storage of minutes and hours: SQLite in the state directory.
//!
//! A task receives minutes from the thread that collects them, and writes each in one transaction
//! with its id, so that a minute is stored once or not at all. Failed writes are retried for up to
//! [`WAITING_MAX`] minutes while the collector continues. A damaged file is set aside and a new one
//! created.
//!
//! Minutes are stored for a week. Each complete hour is summed from its minutes, with the same
//! result each time, and stored for a year.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_daemon::sqlite::SqliteFault;
use sqlx::sqlite::SqlitePool;
use tokio::sync::mpsc;

use crate::event::TelemetryEvent;
use crate::minute::Minute;
use crate::receive::LOG_INTERVAL;
use crate::row::{RowKind, SumCell, SumRow};

mod database;
mod events;
mod packed;
#[cfg(test)]
mod tests;

pub(crate) use database::Tier;

/// File in the state directory.
pub(crate) const FILE: &str = "telemetry.db";

/// Most minutes that wait to be written; the oldest are lost beyond it.
pub(crate) const WAITING_MAX: usize = 60;

/// Time between a failed write and its retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Most rows whose ids are cached.
const KNOWN_MAX: usize = 100_000;

/// Counters and errors of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    /// Count of stored minutes.
    pub(crate) minutes: AtomicU64,
    /// Count of stored rows.
    pub(crate) rows: AtomicU64,
    /// Count of failed writes.
    pub(crate) errors: AtomicU64,
    /// Minutes lost because too many waited.
    pub(crate) lost: AtomicU64,
    /// Minutes that wait to be written.
    pub(crate) waiting: AtomicU64,
    /// Start of the newest stored minute.
    pub(crate) newest_s: AtomicI64,
    /// Damaged files that were set aside.
    pub(crate) damaged: AtomicU64,
    /// Current error of the store.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// The SQLite store of minutes, hours and events.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    limit_bytes: u64,
    pub(crate) health: StoreHealth,
    pool: Mutex<Option<SqlitePool>>,
    known: Mutex<HashMap<i64, Arc<SumRow>>>,
}

/// Sums by bucket and row.
pub(crate) type Stored = Vec<(i64, Arc<SumRow>, SumCell)>;

impl Store {
    pub(crate) fn new(state: &Path, limit_bytes: u64) -> Self {
        Self {
            path: state.join(FILE),
            limit_bytes,
            health: StoreHealth::default(),
            pool: Mutex::default(),
            known: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of its files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        [self.path.as_os_str(), &wal]
            .into_iter()
            .filter_map(|path| std::fs::metadata(path).ok())
            .map(|facts| facts.len())
            .sum()
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn pool(&self) -> Option<SqlitePool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the database, opened on the first call.
    async fn open(&self) -> Result<SqlitePool, sqlx::Error> {
        if let Some(pool) = self.pool() {
            return Ok(pool);
        }
        let pool = match database::open(&self.path, self.limit_bytes).await {
            Err(error) if database::fault_of(&error) == Some(SqliteFault::Damaged) => {
                self.set_aside(&error);
                database::open(&self.path, self.limit_bytes).await?
            }
            opened => opened?,
        };
        let newest = database::newest(&pool).await?;
        self.health.newest_s.fetch_max(newest.unwrap_or(i64::MIN), Ordering::Relaxed);
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = Some(pool.clone());
        Ok(pool)
    }

    /// Renames a damaged file, so that an operator can repair it.
    fn set_aside(&self, error: &sqlx::Error) {
        self.health.damaged.fetch_add(1, Ordering::Relaxed);
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let path = self.path.display();
        match penstock_daemon::sqlite::set_aside(&self.path) {
            Ok(aside) => tracing::error!(
                "{path} is damaged ({error}): renamed to {}, a new one is created",
                aside.display()
            ),
            Err(refused) => tracing::error!("{path} is damaged ({error}): {refused}"),
        }
    }

    /// Writes minutes and events until their channels close.
    pub(crate) async fn run(
        &self,
        mut minutes: mpsc::UnboundedReceiver<Arc<Minute>>,
        mut events: mpsc::UnboundedReceiver<TelemetryEvent>,
    ) {
        let mut waiting: VecDeque<Arc<Minute>> = VecDeque::new();
        let mut ids = HashMap::new();
        let mut last_log: Option<Instant> = None;
        let mut open = true;
        if let Err(error) = self.open().await {
            self.failed(&error, &mut last_log).await;
        }
        while open || !waiting.is_empty() {
            let pause = if waiting.is_empty() { Duration::from_secs(3600) } else { RETRY_INTERVAL };
            tokio::select! {
                minute = minutes.recv(), if open => match minute {
                    Some(minute) => waiting.push_back(minute),
                    None => open = false,
                },
                event = events.recv(), if !events.is_closed() || !events.is_empty() => {
                    if let Some(event) = event
                        && let Err(error) = self.write_event(&event).await
                    {
                        self.failed(&error, &mut last_log).await;
                    }
                }
                () = tokio::time::sleep(pause), if open => {}
            }
            while waiting.len() > WAITING_MAX {
                waiting.pop_front();
                self.health.lost.fetch_add(1, Ordering::Relaxed);
            }
            while let Some(minute) = waiting.front() {
                match self.write(minute, &mut ids).await {
                    Ok(()) => {
                        waiting.pop_front();
                        self.set_trouble(None);
                    }
                    Err(error) => {
                        ids.clear();
                        self.failed(&error, &mut last_log).await;
                        break;
                    }
                }
            }
            self.health.waiting.store(waiting.len() as u64, Ordering::Relaxed);
            // At the end there is no later retry.
            if !open {
                events.close();
                while let Some(event) = events.recv().await {
                    if let Err(error) = self.write_event(&event).await {
                        self.failed(&error, &mut last_log).await;
                    }
                }
                self.health.lost.fetch_add(waiting.len() as u64, Ordering::Relaxed);
                break;
            }
        }
        if let Some(pool) = self.pool() {
            pool.close().await;
        }
    }

    async fn write(
        &self,
        minute: &Minute,
        ids: &mut HashMap<SumRow, i64>,
    ) -> Result<(), sqlx::Error> {
        let pool = self.open().await?;
        if ids.len() > KNOWN_MAX {
            ids.clear();
        }
        database::write(&pool, minute, ids).await?;
        self.health.minutes.fetch_add(1, Ordering::Relaxed);
        let rows = (minute.rows.len() + minute.counters.len()) as u64;
        self.health.rows.fetch_add(rows, Ordering::Relaxed);
        self.health.newest_s.fetch_max(minute.start_s, Ordering::Relaxed);
        // Cached ids of removed rows must expire; retention runs once an hour.
        if minute.start_s.rem_euclid(3600) < 60 {
            ids.clear();
        }
        // Hourly sums and retention may wait for the next minute.
        database::apply_retention(&pool, minute.start_s).await
    }

    async fn write_event(&self, event: &TelemetryEvent) -> Result<(), sqlx::Error> {
        events::write(&self.open().await?, event).await
    }

    async fn failed(&self, error: &sqlx::Error, last_log: &mut Option<Instant>) {
        self.health.errors.fetch_add(1, Ordering::Relaxed);
        let fault = database::fault_of(error);
        let remedy = match fault {
            Some(SqliteFault::Damaged) => "it is renamed, and a new one is created",
            Some(fault) => fault.remedy(),
            None => "repair the file, or move it away to begin a new one",
        };
        let line = format!(
            "cannot store telemetry in {}: {error}: live figures continue; {remedy}",
            self.path.display()
        );
        if last_log.is_none_or(|last_log| last_log.elapsed() >= LOG_INTERVAL) {
            tracing::error!("{line}");
            *last_log = Some(Instant::now());
        }
        self.set_trouble(Some(line));
        if fault == Some(SqliteFault::Damaged) {
            if let Some(pool) = self.pool() {
                pool.close().await;
            }
            self.set_aside(error);
        } else if fault == Some(SqliteFault::Full)
            && let Some(pool) = self.pool()
        {
            // At the configured limit the oldest rows are removed. A full disk needs its operator.
            let _ = database::drop_oldest(&pool).await;
        }
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// End of the hours that are summed: later ones are read from minutes.
    pub(crate) async fn summed_until(&self) -> Result<i64, sqlx::Error> {
        database::summed_until(&self.open().await?).await
    }

    /// Reads sums of `tier` from `from_s` until `to_s`, in buckets of `step_s` from `start_s`.
    pub(crate) async fn read(
        &self,
        tier: Tier,
        kind: RowKind,
        (from_s, to_s): (i64, i64),
        (start_s, step_s): (i64, i64),
    ) -> Result<Stored, sqlx::Error> {
        let pool = self.open().await?;
        let cells = database::read(&pool, tier, kind, (from_s, to_s), (start_s, step_s)).await?;
        let missing: Vec<i64> = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() > KNOWN_MAX {
                known.clear();
            }
            let mut missing: Vec<i64> = cells.iter().map(|(_, id, _)| *id).collect();
            missing.sort_unstable();
            missing.dedup();
            missing.retain(|id| !known.contains_key(id));
            missing
        };
        let found = database::rows(&pool, &missing).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(found.into_iter().map(|(id, row)| (id, Arc::new(row))));
        let named = |(bucket, id, cell)| Some((bucket, Arc::clone(known.get(&id)?), cell));
        Ok(cells.into_iter().filter_map(named).collect())
    }

    /// Measured seconds by bucket.
    pub(crate) async fn covered(
        &self,
        tier: Tier,
        range: (i64, i64),
        buckets: (i64, i64),
    ) -> Result<Vec<(i64, f64)>, sqlx::Error> {
        database::covered(&self.open().await?, tier, range, buckets).await
    }

    /// Fills the store up to a year from 1970 on with this many groups in each minute and hour.
    #[cfg(test)]
    pub(crate) async fn fill(&self, groups: u32, minutes: i64, hours: i64) {
        let pool = self.open().await.unwrap();
        database::fill(&pool, groups, minutes, hours).await.unwrap();
    }
}
