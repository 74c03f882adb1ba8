//! The controller's store in a simulation: the same statements and transactions as in service, in virtual time.
//!
//! Only HTTP is omitted: requests and reports go to the writer, orders are read as for nodes, and each round runs
//! maintenance, reads the snapshot and stores the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::future::{join_all, try_join_all};
use penstock_control::backoff;
use penstock_control::lost_hosts::SilenceLimits;
use penstock_control::orders::{Instructions, OrderId, OrderTask, Overwrite, Report, Verify};
use penstock_control::scheduler::{RoundDecision, Snapshot};
use penstock_rehearsal::controller_api::{
    ControllerApi, ControllerFailure, NewRequest, OrderContent, OrderFile,
};
use penstock_tokens::IssuerRegistry;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::config::Config;
use crate::counters::ControllerCounters;
use crate::error::ControllerError;
use crate::repository::files::NewFile;
use crate::repository::requests::TransferPolicy;
use crate::repository::rounds::RoundRecord;
pub use crate::repository::size::StoreSize;
use crate::repository::{Audit, Clock, Database, StoreWriter, requests, runs, size};
use crate::shared::{LiveSettings, SettingsCell};
use crate::use_cases::submit::{Submission, Submitted};
use crate::use_cases::{maintenance, network, schedule};

#[cfg(test)]
mod tests;

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

impl StoreController {
    /// Opens the database at `url`, which should be empty.
    ///
    /// # Errors
    /// With one line, if it cannot be opened.
    pub fn open(config: Config, url: &str) -> Result<Self, ControllerError> {
        // Changes of one call reach the writing task together, so that a rehearsal repeats.
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ControllerError::Runtime)?;
        let clock = Arc::new(AtomicI64::new(0));
        let current = SettingsCell::new(LiveSettings::of(
            config,
            "no client uses HTTP",
            IssuerRegistry::default(),
        )?);
        let settings = current.get();
        let (database, writer) = runtime.block_on(async {
            let database = Database::open(url).await.map_err(ControllerError::database)?;
            let writer = StoreWriter::start(
                database.clone(),
                Arc::new(current),
                Arc::new(Notify::new()),
                Arc::new(Notify::new()),
                Arc::new(ControllerCounters::default()),
                Clock::Set(Arc::clone(&clock)),
            );
            Ok::<_, ControllerError>((database, writer))
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
                attempts: backoff::ATTEMPTS_DEFAULT,
                scitag,
                tune: None,
                transport: None,
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
    pub fn held(&self) -> Result<StoreSize, ControllerError> {
        self.runtime.block_on(size::measure(&self.database)).map_err(ControllerError::database)
    }

    fn at(&self, now_ms: i64) {
        self.clock.store(now_ms, Ordering::Relaxed);
    }
}

impl ControllerApi for StoreController {
    fn submit(&mut self, now_ms: i64, asked: Vec<NewRequest>) -> Result<(), ControllerFailure> {
        self.at(now_ms);
        let all: Vec<_> = asked.into_iter().map(|one| self.submission(one)).collect();
        let all = all.into_iter().map(|one| self.writer.submit(one));
        for submitted in self.runtime.block_on(join_all(all)) {
            match submitted.map_err(ControllerFailure::store)? {
                Submitted::New(_) => {}
                other => return Err(ControllerFailure::NotNew(format!("{other:?}"))),
            }
        }
        Ok(())
    }

    fn report(
        &mut self,
        now_ms: i64,
        reports: Vec<(String, Report)>,
    ) -> Result<Vec<Instructions>, ControllerFailure> {
        self.at(now_ms);
        let all = reports.into_iter().map(|(host, report)| self.writer.report(host, report));
        self.runtime.block_on(try_join_all(all)).map_err(ControllerFailure::store)
    }

    fn order(
        &mut self,
        host: &str,
        order: OrderId,
    ) -> Result<Option<OrderContent>, ControllerFailure> {
        let found = runs::order(&self.database.pool, host, order);
        let found = self.runtime.block_on(found).map_err(ControllerFailure::store)?;
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
        let work = |order: penstock_control::orders::Order| {
            Ok(match order.task {
                OrderTask::Send(send) => {
                    let files = send.files.iter().map(|file| file_of(&file.path).ok_or(&file.path));
                    match files.collect::<Result<_, _>>() {
                        Ok(files) => OrderContent::Send(files),
                        Err(path) => return Err(ControllerFailure::ForeignFile(path.clone())),
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
        decide: &mut dyn FnMut(&Snapshot) -> RoundDecision,
    ) -> Result<(), ControllerFailure> {
        self.at(now_ms);
        self.runtime.block_on(async {
            let config = &self.settings.config;
            let limits = SilenceLimits { gone_ms: i64::MAX / 2, ..config.silence_limits() };
            maintenance::run_once(&self.writer, limits, config.keep)
                .await
                .map_err(ControllerFailure::store)?;
            let is_site = |name: &str| self.settings.config.is_site(name);
            let pool = &self.database.pool;
            let snapshot = schedule::snapshot(
                pool,
                now_ms,
                self.settings.config.silence_limits().down_ms,
                is_site,
            )
            .await;
            let snapshot = snapshot.map_err(ControllerFailure::store)?;
            let decision = decide(&snapshot);
            let runs = snapshot.runs.len() as i64;
            let written = self.writer.apply(move |cx| {
                let decision = decision.clone();
                let record = RoundRecord { at: now_ms, cause: "timer", micros: 0, runs };
                Box::pin(async move { schedule::write(cx, &decision, record).await })
            });
            written.await.map(|_| ()).map_err(ControllerFailure::store)
        })
    }

    fn link(&mut self, now_ms: i64, name: &str, down: bool) -> Result<(), ControllerFailure> {
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
                network::set_link(cx, &name, down, "a rehearsal", audit).await
            })
        });
        self.runtime.block_on(changed).map_err(ControllerFailure::store)
    }

    fn open(&mut self) -> Result<u64, ControllerFailure> {
        let count = self.runtime.block_on(requests::open_count(&self.database.pool));
        let count = count.map_err(ControllerFailure::store)?;
        Ok(count as u64)
    }
}
