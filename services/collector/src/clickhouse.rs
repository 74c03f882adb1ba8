//! Minutes in ClickHouse, where one machine is too small: several collectors write to one database, each under its name.
//!
//! A task takes minutes, makes batches of them, puts each into a spool on disk and inserts it from there, oldest
//! first, until the server says that it has it. Whether a batch whose answer was lost is there is asked before it
//! is sent again, so that nothing is stored twice and nothing is missing. Figures go on live whatever happens here.
//!
//! Hours are made by the server (a materialized view), and it forgets what is too old (deploy/clickhouse).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_scitags::Registry;
use tokio::sync::mpsc;

use crate::answer::{Past, Span};
use crate::config::ClickHouse as Config;
use crate::minute::{Minute, draw_id};
use crate::query::Query;
use crate::receive::TELL_EVERY;
use crate::row::Kind;
use crate::store::Tier;

mod server;
mod spool;
mod wire;

use server::Server;
use spool::Dropped;
pub(crate) use spool::Spool;

/// In the state directory, where nothing else is said.
const SPOOL: &str = "clickhouse";

/// After something failed.
const AGAIN: Duration = Duration::from_secs(2);

/// How it is doing.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Batches that the server has.
    pub(crate) batches: AtomicU64,
    /// Their rows.
    pub(crate) rows: AtomicU64,
    /// Times that something could not be sent or read.
    pub(crate) errors: AtomicU64,
    /// Batches that had to leave the spool.
    pub(crate) batches_dropped: AtomicU64,
    /// Their rows.
    pub(crate) rows_dropped: AtomicU64,
    /// Batches that wait.
    pub(crate) waiting: AtomicU64,
    /// Their bytes.
    pub(crate) waiting_bytes: AtomicU64,
    /// Begin of the newest minute that is stored.
    pub(crate) newest_s: AtomicI64,
    /// The server has answered since the start.
    reached: AtomicBool,
    /// What is wrong now.
    trouble: Mutex<Option<String>>,
}

/// The database as others see it.
#[derive(Debug)]
pub(crate) struct ClickHouse {
    pub(crate) config: Arc<Config>,
    pub(crate) spool: PathBuf,
    pub(crate) health: Health,
    server: Server,
    registry: Registry,
}

/// What a line in the log was about, and when it was told.
#[derive(Debug, Default)]
struct Told(Option<Instant>);

impl Told {
    fn tell(&mut self, line: &str) {
        if self.0.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            tracing::error!("{line}");
            self.0 = Some(Instant::now());
        }
    }
}

/// What the task keeps.
#[derive(Debug)]
struct Queue {
    spool: Spool,
    pending: Vec<Arc<Minute>>,
    /// When the first of `pending` came.
    since: Instant,
    prepared: bool,
    trouble: Told,
    full: Told,
}

impl ClickHouse {
    pub(crate) fn new(config: Config, registry: Registry, state: &Path) -> Self {
        let spool = config.spool.clone().unwrap_or_else(|| state.join(SPOOL));
        let config = Arc::new(config);
        let server = Server::new(Arc::clone(&config));
        let health = Health { newest_s: AtomicI64::new(i64::MIN), ..Health::default() };
        Self { config, spool, health, server, registry }
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, trouble: Option<String>) {
        *self.health.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Opens the spool: what waited in it goes first.
    ///
    /// # Errors
    /// With one line: without a place to wait nothing is begun.
    pub(crate) fn open_spool(&self) -> Result<Spool, String> {
        Spool::open(&self.spool, self.config.spool_bytes_max).map_err(|error| {
            let dir = self.spool.display();
            format!("{dir}: {error}: give another directory in [collector.clickhouse] spool")
        })
    }

    /// Stores minutes as they come, until there will be none.
    pub(crate) async fn run(
        &self,
        spool: Spool,
        mut minutes: mpsc::UnboundedReceiver<Arc<Minute>>,
    ) {
        let (pending, since) = (Vec::new(), Instant::now());
        let (trouble, full) = (Told::default(), Told::default());
        let mut queue = Queue { spool, pending, since, prepared: false, trouble, full };
        self.send(&mut queue).await;
        let mut open = true;
        while open {
            let pause = match (queue.spool.len(), queue.pending.is_empty()) {
                (1.., _) => AGAIN,
                (0, true) if queue.prepared => Duration::from_secs(3600),
                (0, true) => AGAIN,
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
        let lost = queue.spool.forget();
        self.dropped(&lost);
    }

    /// Makes batches of what came, and puts them where they wait.
    fn put(&self, queue: &mut Queue) {
        let minutes = std::mem::take(&mut queue.pending);
        let mut draw = draw_id;
        let (name, rows_max) = (&self.config.name, self.config.batch_rows);
        for (number, lines) in wire::lines(&minutes, name, &self.registry, rows_max, &mut draw) {
            let times = (lines.from_s, lines.to_s);
            let (dropped, written) = queue.spool.put(number, times, lines.rows, lines.bytes);
            self.dropped(&dropped);
            if dropped.batches > 0 {
                queue.full.tell(&format!(
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

    /// Inserts what waits, until something fails.
    async fn send(&self, queue: &mut Queue) {
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

    async fn send_all(&self, queue: &mut Queue) -> Result<(), String> {
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
                // It is gone or cannot be read: nothing that is tried again would change it.
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

    fn failed(&self, queue: &mut Queue, line: &str) {
        self.health.errors.fetch_add(1, Ordering::Relaxed);
        queue.trouble.tell(line);
        self.set_trouble(Some(line.to_owned()));
    }

    /// What is stored of a question, before `until_s`: what came later is in memory.
    ///
    /// # Errors
    /// With one line, when the server does not answer.
    pub(crate) async fn past(
        &self,
        query: &Query,
        span: Span,
        tier: Tier,
        until_s: i64,
    ) -> Result<Past, String> {
        // Until it has answered nobody knows until when minutes are stored.
        if !self.health.reached.load(Ordering::Relaxed) {
            let line = || format!("ClickHouse at {} has not answered yet", self.config.url);
            return Err(self.trouble().unwrap_or_else(line));
        }
        let (from_s, to_s) = (span.start_s, span.end_s().min(until_s));
        let mut parts = vec![(Tier::Minute, (from_s, to_s))];
        if tier == Tier::Hour {
            // Of the hour that runs other collectors may have stored more.
            let whole = (until_s.div_euclid(3600) * 3600).clamp(from_s, to_s.max(from_s));
            parts = vec![(Tier::Hour, (from_s, whole)), (Tier::Minute, (whole, to_s))];
        }
        parts.retain(|(_, (from_s, to_s))| from_s < to_s);
        let buckets = (span.start_s, span.step_s);
        let mut past = Past::default();
        let answered = async {
            for (tier, range) in parts {
                past.covered.extend(self.server.covered(tier, range, buckets).await?);
                let rows = self.server.read(tier, query.kind(), query, range, buckets);
                past.rows.extend(rows.await?);
                if query.kind() == Kind::Group {
                    let rows = self.server.read(tier, Kind::Counter, query, range, buckets);
                    past.counters.extend(rows.await?);
                }
            }
            Ok(past)
        };
        answered.await.map_err(|error: String| {
            self.health.errors.fetch_add(1, Ordering::Relaxed);
            format!("ClickHouse at {}: {error}", self.config.url)
        })
    }

    /// Until when minutes are stored.
    pub(crate) fn stored_until_s(&self) -> i64 {
        self.health.newest_s.load(Ordering::Relaxed).saturating_add(60)
    }
}
