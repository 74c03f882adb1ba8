//! Minutes in ClickHouse, for sites beyond one machine: several collectors write to one database,
//! each under its name.
//!
//! A task packs minutes into batches, writes each to a spool on disk and inserts it from there,
//! oldest first, until the server confirms it. After a lost answer it queries the server for the
//! batch before it inserts it again, so that no batch is missing or stored twice. Live figures do
//! not depend on it.
//!
//! The server sums hours (a materialized view) and applies retention (deploy/clickhouse).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_scitags::Registry;
use tokio::sync::mpsc;

use crate::config::ClickHouse as Config;
use crate::error::DirectoryError;
use crate::minute::{Minute, draw_id};
use crate::query::Query;
use crate::query_executor::{StoredRows, TimeBuckets};
use crate::receive::LOG_INTERVAL;
use crate::row::RowKind;
use crate::store::Tier;

mod server;
mod spool;
mod wire;

use server::{ClickHouseClient, ClickHouseError};
use spool::Dropped;
pub(crate) use spool::Spool;

/// Default directory of the spool, in the state directory.
const SPOOL: &str = "clickhouse";

/// Time between a failure and the retry.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Counters and errors of the database.
#[derive(Debug, Default)]
pub(crate) struct ClickHouseHealth {
    /// Batches confirmed by the server.
    pub(crate) batches: AtomicU64,
    /// Rows of these batches.
    pub(crate) rows: AtomicU64,
    /// Failed inserts and queries.
    pub(crate) errors: AtomicU64,
    /// Batches dropped from the spool.
    pub(crate) batches_dropped: AtomicU64,
    /// Rows of these batches.
    pub(crate) rows_dropped: AtomicU64,
    /// Batches in the spool.
    pub(crate) waiting: AtomicU64,
    /// Bytes of these batches.
    pub(crate) waiting_bytes: AtomicU64,
    /// Start of the newest stored minute.
    pub(crate) newest_s: AtomicI64,
    /// Set when the server has answered since the start.
    reached: AtomicBool,
    /// Current error.
    trouble: Mutex<Option<String>>,
}

/// The database with its spool and state.
#[derive(Debug)]
pub(crate) struct ClickHouseStore {
    pub(crate) config: Arc<Config>,
    pub(crate) spool: PathBuf,
    pub(crate) health: ClickHouseHealth,
    server: ClickHouseClient,
    registry: Registry,
}

/// Time of the last log line about one cause, to limit their rate.
#[derive(Debug, Default)]
struct LogLimiter(Option<Instant>);

impl LogLimiter {
    fn log(&mut self, line: &str) {
        if self.0.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            tracing::error!("{line}");
            self.0 = Some(Instant::now());
        }
    }
}

/// State of the inserting task.
#[derive(Debug)]
struct InsertQueue {
    spool: Spool,
    pending: Vec<Arc<Minute>>,
    /// Time of the first pending minute.
    since: Instant,
    prepared: bool,
    trouble: LogLimiter,
    full: LogLimiter,
}

impl ClickHouseStore {
    pub(crate) fn new(config: Config, registry: Registry, state: &Path) -> Self {
        let spool = config.spool.clone().unwrap_or_else(|| state.join(SPOOL));
        let config = Arc::new(config);
        let server = ClickHouseClient::new(Arc::clone(&config));
        let health =
            ClickHouseHealth { newest_s: AtomicI64::new(i64::MIN), ..ClickHouseHealth::default() };
        Self { config, spool, health, server, registry }
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Opens the spool; its batches are sent first.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub(crate) fn open_spool(&self) -> Result<Spool, DirectoryError> {
        Spool::open(&self.spool, self.config.spool_bytes_max).map_err(|source| DirectoryError {
            directory: self.spool.clone(),
            key: "[collector.clickhouse] spool",
            source,
        })
    }

    /// Stores minutes until the channel closes.
    pub(crate) async fn run(
        &self,
        spool: Spool,
        mut minutes: mpsc::UnboundedReceiver<Arc<Minute>>,
    ) {
        let (pending, since) = (Vec::new(), Instant::now());
        let (trouble, full) = (LogLimiter::default(), LogLimiter::default());
        let mut queue = InsertQueue { spool, pending, since, prepared: false, trouble, full };
        self.send(&mut queue).await;
        let mut open = true;
        while open {
            let pause = match (queue.spool.len(), queue.pending.is_empty()) {
                (1.., _) => RETRY_INTERVAL,
                (0, true) if queue.prepared => Duration::from_secs(3600),
                (0, true) => RETRY_INTERVAL,
                (0, false) => self.config.interval.saturating_sub(queue.since.elapsed()),
            };
            tokio::select! {
                minute = minutes.recv() => match minute {
                    Some(minute) => {
                        if queue.pending.is_empty() {
                            queue.since = Instant::now();
                        }
                        queue.pending.push(minute);
                    }
                    None => open = false,
                },
                () = tokio::time::sleep(pause) => {}
            }
            let rows = |minute: &Arc<Minute>| 1 + minute.rows.len() + minute.counters.len();
            let waiting: usize = queue.pending.iter().map(rows).sum();
            let late = queue.since.elapsed() >= self.config.interval;
            if !queue.pending.is_empty()
                && (late || !open || waiting as u64 >= self.config.batch_rows)
            {
                tokio::task::block_in_place(|| self.put(&mut queue));
            }
            self.send(&mut queue).await;
        }
        let lost = queue.spool.discard();
        self.dropped(&lost);
    }

    /// Packs pending minutes into batches in the spool.
    fn put(&self, queue: &mut InsertQueue) {
        let minutes = std::mem::take(&mut queue.pending);
        let mut draw = draw_id;
        let (name, rows_max) = (&self.config.name, self.config.batch_rows);
        for (number, lines) in wire::lines(&minutes, name, &self.registry, rows_max, &mut draw) {
            let times = (lines.from_s, lines.to_s);
            let (dropped, written) = queue.spool.put(number, times, lines.rows, lines.bytes);
            self.dropped(&dropped);
            if dropped.batches > 0 {
                queue.full.log(&format!(
                    "spool {} is full: {} batches of {} rows were dropped since the start: mend the database or raise spool_bytes_max",
                    self.spool.display(),
                    self.health.batches_dropped.load(Ordering::Relaxed),
                    self.health.rows_dropped.load(Ordering::Relaxed),
                ));
            }
            if let Err(error) = written {
                self.failed(
                    queue,
                    &format!(
                        "cannot write to the spool {}: {error}: a few minutes wait in memory",
                        self.spool.display()
                    ),
                );
            }
        }
    }

    fn dropped(&self, dropped: &Dropped) {
        self.health.batches_dropped.fetch_add(dropped.batches, Ordering::Relaxed);
        self.health.rows_dropped.fetch_add(dropped.rows, Ordering::Relaxed);
    }

    /// Inserts the batches of the spool until one fails.
    async fn send(&self, queue: &mut InsertQueue) {
        match self.send_all(queue).await {
            Ok(()) => self.set_trouble(None),
            Err(error) => {
                let line = format!(
                    "ClickHouse at {}: {error}: minutes wait in {}",
                    self.config.url,
                    self.spool.display()
                );
                self.failed(queue, &line);
            }
        }
        self.health.waiting.store(queue.spool.len() as u64, Ordering::Relaxed);
        self.health.waiting_bytes.store(queue.spool.bytes(), Ordering::Relaxed);
    }

    async fn send_all(&self, queue: &mut InsertQueue) -> Result<(), ClickHouseError> {
        if !queue.prepared {
            self.server.prepare().await?;
            let newest = self.server.newest().await?;
            self.health.newest_s.fetch_max(newest.unwrap_or(i64::MIN), Ordering::Relaxed);
            queue.prepared = true;
            self.health.reached.store(true, Ordering::Relaxed);
        }
        loop {
            let lines = tokio::task::block_in_place(|| queue.spool.lines());
            let Some(batch) = queue.spool.front() else { return Ok(()) };
            match lines {
                Ok(lines) => {
                    let inserted = self.server.insert(batch, &lines).await;
                    batch.tried = true;
                    inserted?;
                    self.health.batches.fetch_add(1, Ordering::Relaxed);
                    self.health.rows.fetch_add(batch.rows, Ordering::Relaxed);
                    self.health.newest_s.fetch_max(batch.to_s, Ordering::Relaxed);
                }
                // It is missing or unreadable, which no retry would change.
                Err(error) => {
                    let dropped = Dropped { batches: 1, rows: batch.rows };
                    self.dropped(&dropped);
                    let line = format!("a batch in {} is lost: {error}", self.spool.display());
                    self.failed(queue, &line);
                }
            }
            queue.spool.pop();
        }
    }

    fn failed(&self, queue: &mut InsertQueue, line: &str) {
        self.health.errors.fetch_add(1, Ordering::Relaxed);
        queue.trouble.log(line);
        self.set_trouble(Some(line.to_owned()));
    }

    /// Loads the stored part of a query before `until_s`; later minutes are in memory.
    ///
    /// # Errors
    /// When a statement fails.
    pub(crate) async fn past(
        &self,
        query: &Query,
        span: TimeBuckets,
        tier: Tier,
        until_s: i64,
    ) -> Result<StoredRows, ClickHouseError> {
        // Until the first answer the end of the stored minutes is unknown.
        if !self.health.reached.load(Ordering::Relaxed) {
            return Err(match self.trouble() {
                Some(last_failure) => ClickHouseError::NeverSucceeded { last_failure },
                None => ClickHouseError::NotReached { url: self.config.url.clone() },
            });
        }
        let (from_s, to_s) = (span.start_s, span.end_s().min(until_s));
        let mut parts = vec![(Tier::Minute, (from_s, to_s))];
        if tier == Tier::Hour {
            // In the current hour other collectors may have stored more.
            let whole = (until_s.div_euclid(3600) * 3600).clamp(from_s, to_s.max(from_s));
            parts = vec![(Tier::Hour, (from_s, whole)), (Tier::Minute, (whole, to_s))];
        }
        parts.retain(|(_, (from_s, to_s))| from_s < to_s);
        let buckets = (span.start_s, span.step_s);
        let mut past = StoredRows::default();
        let answered = async {
            for (tier, range) in parts {
                past.covered.extend(self.server.covered(tier, range, buckets).await?);
                let rows = self.server.read(tier, query.kind(), query, range, buckets);
                past.rows.extend(rows.await?);
                if query.kind() == RowKind::Group {
                    let rows = self.server.read(tier, RowKind::Counter, query, range, buckets);
                    past.counters.extend(rows.await?);
                }
            }
            Ok(past)
        };
        answered.await.map_err(|error: ClickHouseError| {
            self.health.errors.fetch_add(1, Ordering::Relaxed);
            ClickHouseError::Query { url: self.config.url.clone(), source: Box::new(error) }
        })
    }

    /// End of the stored minutes.
    pub(crate) fn stored_until_s(&self) -> i64 {
        self.health.newest_s.load(Ordering::Relaxed).saturating_add(60)
    }
}
