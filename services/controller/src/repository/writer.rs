//! The one task of a controller that writes to the database.
//!
//! Changes that arrive during a transaction form the next one, so that a thousand a second cost a few dozen commits;
//! long submissions alternate with reports. When a transaction fails, each of its changes is retried in its own, so
//! that an invalid change fails alone. While the database is unavailable, changes wait up to
//! [`UNAVAILABLE_DATABASE_WAIT_MAX`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use penstock_control::backoff::DATABASE_RETRY_INTERVAL;
use penstock_control::orders::{Instructions, Report};
use sqlx::{AnyConnection, Connection};
use tokio::sync::{Notify, mpsc, oneshot};

use super::audit::{self, Audit};
use super::db::{self, Database, DatabaseKind};
use super::events::{self, NewEvent};
use super::run_cache::RunCache;
use crate::counters::ControllerCounters;
use crate::shared::{LiveSettings, SettingsCell};
use crate::use_cases::report;
use crate::use_cases::submit::{self, Submission, Submitted};

/// Most changes in one transaction.
const CHANGES_PER_TX_MAX: usize = 512;

/// Most submitted files in one transaction, which bounds the delay of later changes.
const FILES_PER_TX_MAX: usize = 10_000;

/// Most submitted files in a transaction with reports.
const FILES_BESIDE_REPORTS_MAX: usize = 500;

/// Most queued changes; senders wait beyond that.
const QUEUED_CHANGES_MAX: usize = 4096;

/// Longest time for which a change waits for an unavailable database before it fails.
const UNAVAILABLE_DATABASE_WAIT_MAX: Duration = Duration::from_secs(20);

/// A change that was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum WriteError {
    /// The database rejected it or is unavailable.
    #[error("the database failed: {0}")]
    Database(#[source] Arc<sqlx::Error>),
    /// The controller is shutting down.
    #[error("the controller is shutting down")]
    Ending,
}

/// A query or a change that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Query(#[from] sqlx::Error),
    #[error(transparent)]
    Change(#[from] WriteError),
}

/// An open transaction with its caches and pending events.
pub(crate) struct TxContext {
    pub(crate) tx: AnyConnection,
    pub(crate) kind: DatabaseKind,
    /// Unix milliseconds at its start.
    pub(crate) now: i64,
    /// Unix milliseconds at the opening of the connection, from which on reports are stored.
    pub(crate) started_ms: i64,
    /// Contents of runs, which never change.
    pub(crate) run_cache: RunCache,
    /// Ids of queues by class, source and destination, which never change.
    pub(crate) queues: HashMap<(String, String, String), i64>,
    /// Settings at the start of the transaction.
    pub(crate) settings: Arc<LiveSettings>,
    clock: Clock,
    events: Vec<NewEvent>,
    audits: Vec<Audit>,
    needs_round: bool,
}

impl fmt::Debug for TxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl TxContext {
    pub(crate) fn event(
        &mut self,
        request: Option<i64>,
        class: Option<&str>,
        kind: &'static str,
        text: impl Into<String>,
    ) {
        let class = class.map(str::to_owned);
        self.events.push(NewEvent { request, class, kind, text: text.into() });
    }

    pub(crate) fn audit(&mut self, audit: Audit) {
        self.audits.push(audit);
    }

    /// Requests a round right after the commit.
    pub(crate) fn request_round(&mut self) {
        self.needs_round = true;
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.events.clear();
        self.audits.clear();
        self.needs_round = false;
        self.now = self.clock.now_ms();
        db::begin(&mut self.tx, self.kind).await
    }

    async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let now = self.now;
        let (events, audits) = (std::mem::take(&mut self.events), std::mem::take(&mut self.audits));
        if events.len() + audits.len() > 0 {
            // Allocated last and locked until the commit, so events become visible in the order of their ids.
            let first =
                db::allocate_ids(&mut self.tx, "event", events.len() + audits.len()).await?;
            let next = first + events.len() as i64;
            events::insert(&mut self.tx, first, now, events).await?;
            audit::insert(&mut self.tx, next, now, audits).await?;
        }
        sqlx::raw_sql("COMMIT").execute(&mut self.tx).await?;
        Ok(())
    }

    async fn rollback(&mut self) {
        self.run_cache.clear();
        self.queues.clear();
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut self.tx).await;
    }
}

/// Returns the system time in Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// Source of time for a controller.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    System,
    /// Virtual time of a simulation, in Unix milliseconds.
    Set(Arc<AtomicI64>),
}

impl Clock {
    fn now_ms(&self) -> i64 {
        match self {
            Self::System => now_ms(),
            Self::Set(now) => now.load(Ordering::Relaxed),
        }
    }
}

/// A change inside a transaction, which may run several times until one is committed.
trait Job: Send {
    fn run<'a>(&'a mut self, cx: &'a mut TxContext) -> BoxFuture<'a, Result<(), sqlx::Error>>;
    fn finish(self: Box<Self>, failed: Option<WriteError>);
}

struct ClosureJob<T, F> {
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, WriteError>>,
}

impl<T, F> Job for ClosureJob<T, F>
where
    T: Send,
    F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<T, sqlx::Error>> + Send,
{
    fn run<'a>(&'a mut self, cx: &'a mut TxContext) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        let future = (self.work)(cx);
        let result = &mut self.result;
        Box::pin(async move {
            *result = Some(future.await?);
            Ok(())
        })
    }

    fn finish(self: Box<Self>, failed: Option<WriteError>) {
        let Self { result, reply, .. } = *self;
        let answer = match (failed, result) {
            (None, Some(result)) => Ok(result),
            (Some(error), _) => Err(error),
            (None, None) => Err(WriteError::Ending),
        };
        let _ = reply.send(answer);
    }
}

type ReplySender<T> = oneshot::Sender<Result<T, WriteError>>;

enum QueuedChange {
    Submit(Box<Submission>, ReplySender<Submitted>),
    Report(String, Box<Report>, ReplySender<Instructions>),
    Other(Box<dyn Job>),
}

impl QueuedChange {
    fn fail(self, error: WriteError) {
        match self {
            Self::Submit(_, reply) => drop(reply.send(Err(error))),
            Self::Report(_, _, reply) => drop(reply.send(Err(error))),
            Self::Other(job) => job.finish(Some(error)),
        }
    }
}

/// Changes that are not written yet.
#[derive(Debug, Default)]
struct Backlog {
    changes: VecDeque<QueuedChange>,
    /// Set when a submission was left for the next transaction.
    left: bool,
}

impl Backlog {
    /// Receives what has arrived, and waits if there is nothing. Returns false when the channel is closed.
    async fn fill(&mut self, waiting: &mut mpsc::Receiver<QueuedChange>) -> bool {
        if self.changes.is_empty() {
            match waiting.recv().await {
                Some(change) => self.changes.push_back(change),
                None => return false,
            }
        }
        while self.changes.len() < QUEUED_CHANGES_MAX
            && let Ok(change) = waiting.try_recv()
        {
            self.changes.push_back(change);
        }
        true
    }

    /// Removes and returns the changes of the next transaction.
    fn next(&mut self) -> Vec<QueuedChange> {
        let reports = self.changes.iter().any(|change| !matches!(change, QueuedChange::Submit(..)));
        let most = if reports && !self.left { FILES_BESIDE_REPORTS_MAX } else { FILES_PER_TX_MAX };
        let mut group = Vec::new();
        let mut later = VecDeque::new();
        let mut hosts = HashSet::new();
        let mut files = 0;
        self.left = false;
        for change in self.changes.drain(..) {
            let fits = group.len() < CHANGES_PER_TX_MAX
                && match &change {
                    // Two reports of one host in one transaction would overwrite each other.
                    QueuedChange::Report(host, ..) => hosts.insert(host.clone()),
                    QueuedChange::Submit(submission, _) => {
                        let brings = submission.files.len();
                        let fits =
                            files + brings <= most || (files == 0 && most == FILES_PER_TX_MAX);
                        let fits = fits && !self.left;
                        files += if fits { brings } else { 0 };
                        self.left |= !fits;
                        fits
                    }
                    QueuedChange::Other(_) => true,
                };
            if fits {
                group.push(change);
            } else {
                later.push_back(change);
            }
        }
        self.changes = later;
        group
    }
}

/// Handle to the writing task.
#[derive(Debug, Clone)]
pub(crate) struct StoreWriter {
    changes: mpsc::Sender<QueuedChange>,
}

impl fmt::Debug for QueuedChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}

impl StoreWriter {
    /// Starts the task, which notifies `scheduler_notify` when a round is needed.
    pub(crate) fn start(
        database: Database,
        current: Arc<SettingsCell>,
        scheduler_notify: Arc<Notify>,
        followers: Arc<Notify>,
        counters: Arc<ControllerCounters>,
        clock: Clock,
    ) -> Self {
        let (changes, waiting) = mpsc::channel(QUEUED_CHANGES_MAX);
        let (end, ended) = oneshot::channel();
        tokio::spawn(db::checkpoint_loop(database.clone(), ended));
        let task = StoreWriterTask {
            database,
            current,
            scheduler_notify,
            followers,
            counters,
            clock,
            _end: end,
        };
        tokio::spawn(task.run(waiting));
        Self { changes }
    }

    async fn send<T>(
        &self,
        make: impl FnOnce(ReplySender<T>) -> QueuedChange,
    ) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.changes.send(make(reply)).await.map_err(|_| WriteError::Ending)?;
        answer.await.unwrap_or(Err(WriteError::Ending))
    }

    pub(crate) async fn submit(&self, submission: Submission) -> Result<Submitted, WriteError> {
        self.send(|reply| QueuedChange::Submit(Box::new(submission), reply)).await
    }

    pub(crate) async fn report(
        &self,
        host: String,
        report: Report,
    ) -> Result<Instructions, WriteError> {
        self.send(|reply| QueuedChange::Report(host, Box::new(report), reply)).await
    }

    /// Runs any other change in a transaction.
    pub(crate) async fn apply<T, F>(&self, work: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut TxContext) -> BoxFuture<'a, Result<T, sqlx::Error>> + Send + 'static,
    {
        self.send(|reply| QueuedChange::Other(Box::new(ClosureJob { work, result: None, reply })))
            .await
    }
}

struct StoreWriterTask {
    database: Database,
    current: Arc<SettingsCell>,
    scheduler_notify: Arc<Notify>,
    followers: Arc<Notify>,
    counters: Arc<ControllerCounters>,
    clock: Clock,
    /// Dropping it ends the checkpoint task.
    _end: oneshot::Sender<()>,
}

impl StoreWriterTask {
    async fn run(self, mut waiting: mpsc::Receiver<QueuedChange>) {
        let mut context: Option<TxContext> = None;
        let mut backlog = Backlog::default();
        while backlog.fill(&mut waiting).await {
            let begun = Instant::now();
            self.write_group(&mut context, backlog.next(), begun + UNAVAILABLE_DATABASE_WAIT_MAX)
                .await;
            self.counters.committed(begun.elapsed());
        }
        if let Some(context) = context {
            let _ = context.tx.close().await;
        }
    }

    /// Returns the connection, opening it with retries.
    async fn context<'a>(
        &self,
        context: &'a mut Option<TxContext>,
        until: Instant,
    ) -> Result<&'a mut TxContext, sqlx::Error> {
        if context.is_none() {
            let tx = loop {
                match self.database.connect().await {
                    Ok(tx) => break tx,
                    Err(error) if Instant::now() >= until => return Err(error),
                    Err(error) => {
                        self.counters.failed();
                        tracing::debug!("the database is unavailable: {error}");
                        tokio::time::sleep(DATABASE_RETRY_INTERVAL).await;
                    }
                }
            };
            *context = Some(TxContext {
                tx,
                kind: self.database.kind,
                now: 0,
                started_ms: self.clock.now_ms(),
                run_cache: RunCache::default(),
                queues: HashMap::new(),
                settings: self.current.get(),
                clock: self.clock.clone(),
                events: Vec::new(),
                audits: Vec::new(),
                needs_round: false,
            });
        }
        Ok(context.as_mut().expect("it was made"))
    }

    async fn write_group(
        &self,
        context: &mut Option<TxContext>,
        mut group: Vec<QueuedChange>,
        until: Instant,
    ) {
        loop {
            let error = match self.attempt(context, &mut group, until).await {
                Ok(answers) => return answers.send(group),
                Err(error) => error,
            };
            self.counters.failed();
            if let Some(context) = context {
                context.rollback().await;
            }
            let away = is_away(&error);
            if away {
                *context = None;
            }
            match group.len() {
                _ if away && Instant::now() < until => {
                    tracing::warn!("the database is unavailable ({error}): changes wait");
                    tokio::time::sleep(DATABASE_RETRY_INTERVAL).await;
                }
                1 => {
                    tracing::error!("cannot store a change: {error}");
                    let change = group.pop().expect("there is one");
                    change.fail(WriteError::Database(Arc::new(error)));
                    return;
                }
                _ => {
                    for change in group {
                        Box::pin(self.write_group(context, vec![change], until)).await;
                    }
                    return;
                }
            }
        }
    }

    /// Runs all changes in one transaction.
    async fn attempt(
        &self,
        context: &mut Option<TxContext>,
        group: &mut [QueuedChange],
        until: Instant,
    ) -> Result<CommittedReplies, sqlx::Error> {
        let cx = self.context(context, until).await?;
        cx.settings = self.current.get();
        cx.begin().await?;
        let mut submissions = Vec::new();
        let mut reports = Vec::new();
        for change in group.iter_mut() {
            match change {
                QueuedChange::Submit(submission, _) => submissions.push(&**submission),
                QueuedChange::Report(host, report, _) => reports.push((host.as_str(), &**report)),
                QueuedChange::Other(job) => job.run(cx).await?,
            }
        }
        let submitted = submit::submit(cx, &submissions).await?;
        let instructions = report::process_reports(cx, &reports).await?;
        let (count, needs_round) = (cx.events.len(), cx.needs_round);
        cx.commit().await?;
        if needs_round {
            self.scheduler_notify.notify_one();
        }
        if count > 0 {
            self.followers.notify_waiters();
        }
        Ok(CommittedReplies { submitted, instructions })
    }
}

/// Responses to send after the commit, in the order of the changes of each kind.
struct CommittedReplies {
    submitted: Vec<Submitted>,
    instructions: Vec<Instructions>,
}

impl CommittedReplies {
    fn send(self, changes: Vec<QueuedChange>) {
        let (mut submitted, mut instructions) =
            (self.submitted.into_iter(), self.instructions.into_iter());
        for change in changes {
            match change {
                QueuedChange::Submit(_, reply) => {
                    let _ = reply.send(submitted.next().ok_or(WriteError::Ending));
                }
                QueuedChange::Report(_, _, reply) => {
                    let _ = reply.send(instructions.next().ok_or(WriteError::Ending));
                }
                QueuedChange::Other(job) => job.finish(None),
            }
        }
    }
}

/// True if the connection is unusable.
fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            // PostgreSQL: class 57 is operator intervention, 08 connection exceptions, 25P03 idle-in-transaction
            // timeout.
            let code = error.code().unwrap_or_default();
            code.starts_with("57") || code.starts_with("08") || code == "25P03"
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::PoolClosed
        | sqlx::Error::Tls(_) => true,
        _ => false,
    }
}
