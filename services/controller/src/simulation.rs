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
use penstock_operations::orders::{Instructions, Order, OrderId, Overwrite, Report, Verify};
use penstock_operations::state::{FileState, RequestState};
use sqlx::Row;
use sqlx::any::AnyRow;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::config::Config;
use crate::counters::ControllerCounters;
use crate::shared::{LiveSettings, SettingsCell, alive_ms};
use crate::store::change::{self, ChangeOutcome, Drain, RequestChange};
use crate::store::maintenance::{self, SilenceLimits};
use crate::store::submit::{NewFile, Submission, Submitted, TransferPolicy};
use crate::store::writer::{Audit, TxContext};
use crate::store::{Clock, Database, RunState, StoreWriter, dispatch, read};

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
    pub state: FileState,
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
    database: Database,
    writer: StoreWriter,
    clock: Arc<AtomicI64>,
    scheduler_notify: Arc<Notify>,
    runtime: Runtime,
}

impl SimulatedController {
    /// Opens an empty database in memory; `name` distinguishes databases of one process.
    ///
    /// # Errors
    /// With one line, if it cannot be opened.
    pub fn open(config: Config, name: &str) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let clock = Arc::new(AtomicI64::new(0));
        let current = Arc::new(SettingsCell::new(LiveSettings::of(config, "no client uses HTTP")?));
        let scheduler_notify = Arc::new(Notify::new());
        let (database, writer) = runtime.block_on(async {
            let database = Database::open_in_memory(name).await?;
            let writer = start_writer(&database, &current, &scheduler_notify, &clock);
            Ok::<_, String>((database, writer))
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
    pub fn submit(&self, asked: ClientRequest) -> Result<SubmitReply, String> {
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
            Submitted::Other(_) | Submitted::Taken { .. } => SubmitReply::Refused,
        })
    }

    /// Cancels a request as the API does.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn cancel(&self, request: i64) -> Result<(), String> {
        self.change(move |cx| {
            Box::pin(async move { change::cancel(cx, request, audit("cancel")).await })
        })
        .map(drop)
    }

    /// Pauses or resumes a request.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn pause(&self, request: i64, paused: bool) -> Result<(), String> {
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
    pub fn drain(&self, host: &str, kind: Option<DrainKind>) -> Result<(), String> {
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
                change::drain(cx, &host, &hosts, options.as_ref(), audit("drain")).await?;
                Ok(ChangeOutcome::Done)
            })
        })
        .map(drop)
    }

    /// Processes an agent's report and returns its instructions.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn report(&self, host: &str, report: Report) -> Result<Instructions, String> {
        self.wait(self.writer.report(host.to_owned(), report))
    }

    /// Returns an order that is active at a host.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn order(&self, host: &str, order: OrderId) -> Result<Option<Order>, String> {
        self.wait(read::order(&self.database.pool, host, order))
    }

    /// Runs maintenance and a round.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn round(&self) -> Result<(), String> {
        let settings = self.current.get();
        let config = &settings.config;
        self.runtime.block_on(async {
            let limits = SilenceLimits::new(config);
            if maintenance::run_once(&self.writer, limits, config.keep.as_millis() as i64).await? {
                self.scheduler_notify.notify_one();
            }
            let now = self.clock.load(Ordering::Relaxed);
            let pool = &self.database.pool;
            let is_site = |name: &str| config.is_site(name);
            let snapshot = dispatch::snapshot(pool, now, alive_ms(config), is_site).await;
            let snapshot = snapshot.map_err(|error| error.to_string())?;
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
                Box::pin(
                    async move { dispatch::write(cx, &decision, (now, "timer", 0, runs)).await },
                )
            });
            written.await.map(drop).map_err(|error| error.to_string())
        })
    }

    /// Returns all requests by ascending number.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn requests(&self) -> Result<Vec<RequestStatus>, String> {
        let text = "SELECT id, state, files, done, failed, cancelled, cancel, paused FROM request ORDER BY id";
        let status = |row: &AnyRow| RequestStatus {
            id: row.get(0),
            state: RequestState::ALL[row.get::<i64, _>(1) as usize],
            files: [row.get(2), row.get(3), row.get(4), row.get(5)],
            cancel: row.get::<i64, _>(6) > 0,
            paused: row.get::<i64, _>(7) > 0,
        };
        self.rows(text, status)
    }

    /// Returns the files of all requests.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn files(&self) -> Result<Vec<FileStatus>, String> {
        let text = "SELECT request, seq, path, state, fault FROM file ORDER BY request, seq";
        let status = |row: &AnyRow| FileStatus {
            request: row.get(0),
            seq: row.get(1),
            path: row.get(2),
            state: FileState::ALL[row.get::<i64, _>(3) as usize],
            fault: row.get(4),
        };
        self.rows(text, status)
    }

    /// Returns the runs that have not ended.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn runs(&self) -> Result<Vec<RunStatus>, String> {
        let text = "SELECT id, from_host, to_host, state, rate_bps, route FROM run WHERE state < 2 ORDER BY id";
        let status = |row: &AnyRow| RunStatus {
            id: row.get(0),
            from: row.get(1),
            to: row.get(2),
            active: row.get::<i64, _>(3) == RunState::Active as i64,
            rate_bps: row.get::<Option<i64>, _>(4).map(|rate| rate as u64),
            route: serde_json::from_str(&row.get::<String, _>(5)).unwrap_or_default(),
        };
        self.rows(text, status)
    }

    fn rows<T>(&self, text: &'static str, status: impl Fn(&AnyRow) -> T) -> Result<Vec<T>, String> {
        let rows = self.wait(sqlx::query(text).fetch_all(&self.database.pool))?;
        Ok(rows.iter().map(status).collect())
    }

    fn change<F>(&self, work: F) -> Result<ChangeOutcome, String>
    where
        F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<ChangeOutcome, sqlx::Error>>
            + Send
            + 'static,
    {
        self.wait(self.writer.apply(work))
    }

    fn wait<T, E: std::fmt::Display>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        self.runtime.block_on(future).map_err(|error| error.to_string())
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
