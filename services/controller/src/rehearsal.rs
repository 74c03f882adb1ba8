//! The controller's store in a simulation: the same statements and transactions as in service, in virtual time.
//!
//! Only HTTP is omitted: requests and reports go to the writer, orders are read as for nodes, and each round runs
//! maintenance, reads the snapshot and stores the decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::future::{join_all, try_join_all};
use penstock_operations::orders::{Instructions, OrderId, OrderTask, Overwrite, Report, Verify};
use penstock_operations::retry;
use penstock_operations::round::{Decision, Snapshot};
use penstock_rehearsal::controller_api::{ControllerApi, NewRequest, OrderContent, OrderFile};
use sqlx::Row;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::config::Config;
use crate::counters::ControllerCounters;
use crate::shared::{LiveSettings, SettingsCell, alive_ms};
use crate::store::db::DatabaseKind;
use crate::store::maintenance::{self, SilenceLimits};
use crate::store::submit::{NewFile, Submission, Submitted, TransferPolicy};
use crate::store::writer::Audit;
use crate::store::{Clock, Database, StoreWriter, change, dispatch, read};

/// A controller with a database, in virtual time.
#[derive(Debug)]
pub struct StoreController {
    settings: Arc<LiveSettings>,
    pub(crate) database: Database,
    pub(crate) writer: StoreWriter,
    clock: Arc<AtomicI64>,
    pub(crate) runtime: Runtime,
    /// Number of requests so far; each has its own directory.
    requests: u64,
}

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

impl StoreController {
    /// Opens the database at `url`, which should be empty.
    ///
    /// # Errors
    /// With one line, if it cannot be opened.
    pub fn open(config: Config, url: &str) -> Result<Self, String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let clock = Arc::new(AtomicI64::new(0));
        let current = SettingsCell::new(LiveSettings::of(config, "no client uses HTTP")?);
        let settings = current.get();
        let (database, writer) = runtime.block_on(async {
            let database = Database::open(url).await?;
            let writer = StoreWriter::start(
                database.clone(),
                Arc::new(current),
                Arc::new(Notify::new()),
                Arc::new(Notify::new()),
                Arc::new(ControllerCounters::default()),
                Clock::Set(Arc::clone(&clock)),
            );
            Ok::<_, String>((database, writer))
        })?;
        Ok(Self { settings, database, writer, clock, runtime, requests: 0 })
    }

    fn submission(&mut self, asked: NewRequest) -> Submission {
        self.requests += 1;
        let scitag = self.settings.config.class(&asked.class).and_then(|class| class.scitag);
        let number = self.requests;
        // 100 files per directory; nodes parse sizes from names.
        let name = |(at, size): (usize, u64)| NewFile {
            path: format!("run-{number:07}/{:03}/file-{at:06}-{size}.raw", at / 100),
            size: Some(size),
            digest: Some(format!("crc32c:{:08x}", size as u32)),
        };
        Submission {
            client: asked.class.clone(),
            peer: "::1".to_owned(),
            key: Some(format!("rehearsal-{number}")),
            body: format!("{number:032x}"),
            class: asked.class,
            source: asked.source,
            destination: asked.destination,
            from: "/store/data".to_owned(),
            to: "/store/data".to_owned(),
            policy: TransferPolicy {
                verify: Verify::Transfer,
                overwrite: Overwrite::Changed,
                encrypt: true,
                attempts: retry::ATTEMPTS_DEFAULT,
                scitag,
            },
            priority: 3,
            deadline: None,
            size_estimate: None,
            files: asked.files.into_iter().enumerate().map(name).collect(),
            directory: false,
            open: false,
        }
    }

    /// Returns the present size of the store.
    ///
    /// # Errors
    /// If the database does not answer.
    pub fn held(&self) -> Result<StoreSize, String> {
        self.runtime.block_on(self.ask()).map_err(|error| error.to_string())
    }

    async fn ask(&self) -> Result<StoreSize, sqlx::Error> {
        let pool = &self.database.pool;
        let mut held = StoreSize::default();
        for (count, text) in [
            (&mut held.requests, "SELECT COUNT(*) FROM request"),
            (&mut held.files, "SELECT COUNT(*) FROM file"),
        ] {
            *count = sqlx::query(text).fetch_one(pool).await?.get::<i64, _>(0) as u64;
        }
        let text = match self.database.kind {
            // SQLite names an index after its table; the name of a key's index contains that of the table.
            DatabaseKind::Sqlite => {
                "SELECT COALESCE(m.tbl_name, d.name), CAST(SUM(d.pgsize) AS BIGINT) FROM dbstat d
                 LEFT JOIN sqlite_schema m ON m.name = d.name GROUP BY 1"
            }
            DatabaseKind::Postgres => {
                "SELECT CAST(relname AS TEXT), CAST(pg_total_relation_size(oid) AS BIGINT) FROM pg_class
                 WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            }
        };
        for row in sqlx::query(text).fetch_all(pool).await? {
            held.tables.insert(row.get(0), row.get::<i64, _>(1) as u64);
        }
        held.bytes = held.tables.values().sum();
        Ok(held)
    }

    fn at(&self, now_ms: i64) {
        self.clock.store(now_ms, Ordering::Relaxed);
    }
}

impl ControllerApi for StoreController {
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), String> {
        self.at(now_ms);
        let all: Vec<_> = asked.into_iter().map(|one| self.submission(one)).collect();
        let all = all.into_iter().map(|one| self.writer.submit(one));
        for submitted in self.runtime.block_on(join_all(all)) {
            match submitted.map_err(|error| error.to_string())? {
                Submitted::New(_) => {}
                other => return Err(format!("a new request came to {other:?}")),
            }
        }
        Ok(())
    }

    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, String> {
        self.at(now_ms);
        let all = reports.into_iter().map(|(host, report)| self.writer.report(host, report));
        self.runtime.block_on(try_join_all(all)).map_err(|error| error.to_string())
    }

    fn order(&mut self, host: &str, order: OrderId) -> Result<Option<OrderContent>, String> {
        let found = read::order(&self.database.pool, host, order);
        let found = self.runtime.block_on(found).map_err(|error| error.to_string())?;
        // The names that `submission` gives: request, file and size.
        let file_of = |path: &str| {
            if path.is_empty() {
                // It is settled.
                return Some(OrderFile { id: 0, bytes: 0 });
            }
            let (folders, name) = path.rsplit_once('/')?;
            let request = folders.strip_prefix("run-")?.split('/').next()?.parse::<u64>().ok()?;
            let (number, size) =
                name.strip_prefix("file-")?.strip_suffix(".raw")?.split_once('-')?;
            let number = number.parse::<u64>().ok()?;
            Some(OrderFile { id: request << 32 | number, bytes: size.parse().ok()? })
        };
        let work = |order: penstock_operations::orders::Order| {
            Ok(match order.task {
                OrderTask::Send(send) => {
                    let files = send.files.iter().map(|file| file_of(&file.path).ok_or(&file.path));
                    match files.collect::<Result<_, _>>() {
                        Ok(files) => OrderContent::Send(files),
                        Err(path) => return Err(format!("{path} is not a file of a simulation")),
                    }
                }
                OrderTask::Receive { .. } | OrderTask::List { .. } => OrderContent::Receive,
            })
        };
        found.map(work).transpose()
    }

    fn round(
        &mut self,
        now_ms: i64,
        decide: &mut dyn FnMut(&Snapshot) -> Decision,
    ) -> Result<(), String> {
        self.at(now_ms);
        self.runtime.block_on(async {
            let config = &self.settings.config;
            let limits = SilenceLimits { gone_ms: i64::MAX / 2, ..SilenceLimits::new(config) };
            maintenance::run_once(&self.writer, limits, config.keep.as_millis() as i64).await?;
            let is_site = |name: &str| self.settings.config.is_site(name);
            let pool = &self.database.pool;
            let snapshot =
                dispatch::snapshot(pool, now_ms, alive_ms(&self.settings.config), is_site).await;
            let snapshot = snapshot.map_err(|error| error.to_string())?;
            let decision = decide(&snapshot);
            let runs = snapshot.runs.len() as i64;
            let written = self.writer.apply(move |cx| {
                let decision = decision.clone();
                Box::pin(
                    async move { dispatch::write(cx, &decision, (now_ms, "timer", 0, runs)).await },
                )
            });
            written.await.map(|_| ()).map_err(|error| error.to_string())
        })
    }

    fn link(&mut self, now_ms: i64, name: &str, down: bool) -> Result<(), String> {
        self.at(now_ms);
        let name = name.to_owned();
        let changed = self.writer.apply(move |cx| {
            let name = name.clone();
            Box::pin(async move {
                let audit = Audit {
                    who: "rehearsal".to_owned(),
                    peer: "::1".to_owned(),
                    what: "link",
                    object: name.clone(),
                    detail: String::new(),
                };
                change::link(cx, &name, down, "a rehearsal", audit).await
            })
        });
        self.runtime.block_on(changed).map_err(|error| error.to_string())
    }

    fn open(&mut self) -> Result<u64, String> {
        let text = "SELECT COUNT(*) FROM request WHERE ended IS NULL";
        let count = sqlx::query(text).fetch_one(&self.database.pool);
        let row = self.runtime.block_on(count).map_err(|error| error.to_string())?;
        Ok(row.get::<i64, _>(0) as u64)
    }
}
