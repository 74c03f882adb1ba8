//! The controller in a simulation of the control plane: production statements and transactions on a database in memory,
//! in virtual time.
//!
//! For: crashes ([`SimulatedController::restart`] loses what a process loses), clients' calls, reports, orders, rounds,
//! and reading what is stored. Only HTTP and the leader's lease are omitted. Not for: a day of work at full scale
//! ([`crate::rehearsal`]).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use penstock_control::file::RequestFileState;
use penstock_control::orders::{Instructions, Order, OrderId, Overwrite, Report, Verify};
use penstock_control::request::RequestState;
use penstock_control::run::RunState;
use penstock_tokens::IssuerRegistry;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::config::Config;
use crate::counters::ControllerCounters;
use crate::error::ControllerError;
use crate::repository::files::NewFile;
use crate::repository::requests::TransferPolicy;
use crate::repository::rounds::RoundRecord;
use crate::repository::writer::TxContext;
use crate::repository::{
    Audit, Clock, Database, DatabaseError, StoreWriter, files, requests, runs,
};
use crate::shared::{LiveSettings, SettingsCell};
use crate::use_cases::change::{self, ChangeOutcome, RequestChange};
use crate::use_cases::network::{self, Drain};
use crate::use_cases::submit::{Submission, Submitted};
use crate::use_cases::{cancel, maintenance, schedule};

/// A request of a simulated client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRequest {
    /// Idempotency key of the submission.
    pub key: String,
    /// Name of the class of work.
    pub class: String,
    /// Site that has the files.
    pub source: String,
    /// Site that receives the files.
    pub destination: String,
    /// Directory at the source site.
    pub from: String,
    /// Directory at the destination site.
    pub to: String,
    /// Paths below both directories with sizes in bytes, if known; none to transfer the whole directory.
    pub files: Option<Vec<(String, Option<u64>)>>,
    /// Most attempts per file.
    pub attempts: u32,
}

/// Answer to a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitReply {
    /// Stored as this request.
    New(i64),
    /// A repetition of this request.
    Same(i64),
    /// Refused: the key or a destination belongs to another request.
    Refused,
}

/// Severity of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainKind {
    /// No new work starts.
    Idle,
    /// Running orders are withdrawn, too.
    Now,
    /// The host is declared gone for good.
    Gone,
}

/// A request as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestStatus {
    /// Id of the request.
    pub id: i64,
    /// State of the request.
    pub state: RequestState,
    /// Files known, done, failed and cancelled.
    pub files: [i64; 4],
    /// True if the client cancelled it.
    pub cancel: bool,
    /// True while it is paused.
    pub paused: bool,
}

/// A file as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStatus {
    /// Id of its request.
    pub request: i64,
    /// Number in its request.
    pub seq: i64,
    /// Path below the directories of the request.
    pub path: String,
    /// State of the file.
    pub state: RequestFileState,
    /// Reason of its last failure.
    pub fault: Option<String>,
}

/// A run whose orders are active or withdrawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStatus {
    /// Id of the run.
    pub id: i64,
    /// Name of the sending host.
    pub from: String,
    /// Receiving host; empty for a listing.
    pub to: String,
    /// True while its orders are active, false once they are withdrawn.
    pub active: bool,
    /// Allotted rate in bits per second.
    pub rate_bps: Option<u64>,
    /// Names of the links of its path.
    pub route: Vec<String>,
}

/// A controller in virtual time.
#[derive(Debug)]
pub struct SimulatedController {
    current: Arc<SettingsCell>,
    pub(crate) database: Database,
    pub(crate) writer: StoreWriter,
    clock: Arc<AtomicI64>,
    scheduler_notify: Arc<Notify>,
    pub(crate) runtime: Runtime,
}

impl SimulatedController {
    /// Opens an empty database in memory; `name` distinguishes databases of one process.
    ///
    /// # Errors
    /// With one line, if it cannot be opened.
    pub fn open(config: Config, name: &str) -> Result<Self, ControllerError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ControllerError::Runtime)?;
        let clock = Arc::new(AtomicI64::new(0));
        let current = Arc::new(SettingsCell::new(LiveSettings::of(
            config,
            "no client uses HTTP",
            IssuerRegistry::default(),
        )?));
        let scheduler_notify = Arc::new(Notify::new());
        let (database, writer) = runtime.block_on(async {
            let database =
                Database::open_in_memory(name).await.map_err(ControllerError::database)?;
            let writer = start_writer(&database, &current, &scheduler_notify, &clock);
            Ok::<_, ControllerError>((database, writer))
        })?;
        Ok(Self { current, database, writer, clock, scheduler_notify, runtime })
    }

    /// Restarts the controller: what it held in memory is lost.
    pub fn restart(&mut self) {
        let (database, current) = (&self.database, &self.current);
        self.scheduler_notify = Arc::new(Notify::new());
        let notify = &self.scheduler_notify;
        let clock = &self.clock;
        self.writer =
            self.runtime.block_on(async { start_writer(database, current, notify, clock) });
    }

    /// Sets its clock, in Unix milliseconds.
    pub fn set_time(&self, now_ms: i64) {
        self.clock.store(now_ms, Ordering::Relaxed);
    }

    /// Returns true, once, if a change has requested a round.
    #[must_use]
    pub fn take_round_request(&self) -> bool {
        self.scheduler_notify.notified().now_or_never().is_some()
    }

    /// Stores a request as the API does.
    ///
    /// # Errors
    /// When the database fails.
    pub fn submit(&self, asked: ClientRequest) -> Result<SubmitReply, ControllerError> {
        let directory = asked.files.is_none();
        let file = |(path, size)| NewFile { path, size, digest: None };
        let submission = Submission {
            client: "client".to_owned(),
            peer: "::1".to_owned(),
            body: format!("{asked:?}"),
            key: Some(asked.key),
            class: asked.class,
            source: asked.source,
            destination: asked.destination,
            from: asked.from,
            to: asked.to,
            policy: TransferPolicy {
                verify: Verify::Transfer,
                overwrite: Overwrite::Changed,
                encrypt: true,
                attempts: asked.attempts,
                scitag: None,
                tune: None,
                transport: None,
            },
            priority: 3,
            deadline: None,
            size_estimate: None,
            files: asked.files.unwrap_or_default().into_iter().map(file).collect(),
            directory,
            open: false,
        };
        let submitted = self.wait(self.writer.submit(submission))?;
        Ok(match submitted {
            Submitted::New(stored) => SubmitReply::New(stored.id),
            Submitted::Same(id) => SubmitReply::Same(id),
            Submitted::Other(_) | Submitted::OverQuota(_) | Submitted::Taken { .. } => {
                SubmitReply::Refused
            }
        })
    }

    /// Cancels a request as the API does.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn cancel(&self, request: i64) -> Result<(), ControllerError> {
        self.change(move |cx| {
            Box::pin(async move { cancel::cancel(cx, request, audit("cancel")).await })
        })
        .map(drop)
    }

    /// Pauses or resumes a request.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn pause(&self, request: i64, paused: bool) -> Result<(), ControllerError> {
        let wanted = RequestChange { paused: Some(paused), ..RequestChange::default() };
        self.change(move |cx| {
            let wanted = wanted.clone();
            Box::pin(async move { change::change(cx, request, &wanted, audit("change")).await })
        })
        .map(drop)
    }

    /// Drains a host, or lets it take work again.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn drain(&self, host: &str, kind: Option<DrainKind>) -> Result<(), ControllerError> {
        let host = host.to_owned();
        let options = kind.map(|kind| Drain {
            reason: "simulation".to_owned(),
            now: kind == DrainKind::Now,
            gone: kind == DrainKind::Gone,
        });
        self.change(move |cx| {
            let (host, options) = (host.clone(), options.clone());
            Box::pin(async move {
                let hosts = [host.clone()];
                network::drain(cx, &host, &hosts, options.as_ref(), audit("drain")).await?;
                Ok(ChangeOutcome::Done)
            })
        })
        .map(drop)
    }

    /// Processes an agent's report and returns its instructions.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn report(&self, host: &str, report: Report) -> Result<Instructions, ControllerError> {
        self.wait(self.writer.report(host.to_owned(), report))
    }

    /// Returns an order that is active at a host.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn order(&self, host: &str, order: OrderId) -> Result<Option<Order>, ControllerError> {
        self.wait(runs::order(&self.database.pool, host, order))
    }

    /// Runs maintenance and a round.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn round(&self) -> Result<(), ControllerError> {
        let settings = self.current.get();
        let config = &settings.config;
        self.runtime.block_on(async {
            let limits = config.silence_limits();
            let has_more = maintenance::run_once(&self.writer, limits, config.keep).await;
            if has_more.map_err(ControllerError::database)? {
                self.scheduler_notify.notify_one();
            }
            let now = self.clock.load(Ordering::Relaxed);
            let pool = &self.database.pool;
            let is_site = |name: &str| config.is_site(name);
            let snapshot = schedule::snapshot(pool, now, limits.down_ms, is_site).await;
            let snapshot = snapshot.map_err(ControllerError::database)?;
            if snapshot.runs.is_empty() && snapshot.queues.is_empty() {
                return Ok(());
            }
            let decision = settings.planner.plan(&snapshot);
            if decision.starts.is_empty()
                && decision.plans.is_empty()
                && decision.withdraw.is_empty()
                && decision.notes.is_empty()
            {
                return Ok(());
            }
            let runs = snapshot.runs.len() as i64;
            let written = self.writer.apply(move |cx| {
                let decision = decision.clone();
                let record = RoundRecord { at: now, cause: "timer", micros: 0, runs };
                Box::pin(async move { schedule::write(cx, &decision, record).await })
            });
            written.await.map(drop).map_err(ControllerError::database)
        })
    }

    /// Returns all requests by ascending number.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn requests(&self) -> Result<Vec<RequestStatus>, ControllerError> {
        let rows = self.wait(requests::summaries(&self.database.pool))?;
        let status = |row: requests::RequestSummary| RequestStatus {
            id: row.id,
            state: row.state,
            files: [row.files, row.done, row.failed, row.cancelled],
            cancel: row.cancel,
            paused: row.paused,
        };
        Ok(rows.into_iter().map(status).collect())
    }

    /// Returns the files of all requests.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn files(&self) -> Result<Vec<FileStatus>, ControllerError> {
        let rows = self.wait(files::summaries(&self.database.pool))?;
        let status = |row: files::FileSummary| FileStatus {
            request: row.request,
            seq: row.seq,
            path: row.path,
            state: row.state,
            fault: row.fault,
        };
        Ok(rows.into_iter().map(status).collect())
    }

    /// Returns the runs that have not ended.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn runs(&self) -> Result<Vec<RunStatus>, ControllerError> {
        let rows = self.wait(runs::summaries(&self.database.pool))?;
        let status = |row: runs::RunSummary| RunStatus {
            id: row.id,
            from: row.from_host,
            to: row.to_host,
            active: row.state == RunState::Active,
            rate_bps: row.rate_bps,
            route: row.route.0,
        };
        Ok(rows.into_iter().map(status).collect())
    }

    fn change<F>(&self, work: F) -> Result<ChangeOutcome, ControllerError>
    where
        F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<ChangeOutcome, DatabaseError>>
            + Send
            + 'static,
    {
        self.wait(self.writer.apply(work))
    }

    fn wait<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, ControllerError> {
        self.runtime.block_on(future).map_err(ControllerError::database)
    }
}

fn start_writer(
    database: &Database,
    current: &Arc<SettingsCell>,
    scheduler_notify: &Arc<Notify>,
    clock: &Arc<AtomicI64>,
) -> StoreWriter {
    StoreWriter::start(
        database.clone(),
        Arc::clone(current),
        Arc::clone(scheduler_notify),
        Arc::new(Notify::new()),
        Arc::new(ControllerCounters::default()),
        Clock::Set(Arc::clone(clock)),
    )
}

fn audit(what: &'static str) -> Audit {
    Audit {
        who: "simulation".to_owned(),
        peer: "::1".to_owned(),
        what,
        object: String::new(),
        detail: String::new(),
    }
}
