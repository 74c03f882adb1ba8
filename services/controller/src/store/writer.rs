//! The one task of a controller that writes.
//!
//! What comes while a transaction is on its way goes into the next one, so that a thousand a second cost a few dozen commits;
//! long lists of files take turns with what nodes report. When a transaction fails, each of its changes
//! is tried once more in one of its own, so that one that cannot be made takes no other with it. When the database is
//! away, changes wait for it as long as [`PATIENCE`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use penstock_operations::orders::{Instructions, Report};
use sqlx::{AnyConnection, Connection};
use tokio::sync::{Notify, mpsc, oneshot};

use super::db::{self, Database, Kind};
use super::report::{self, Contents};
use super::rows::{self, Value};
use super::submit::{self, Submission, Submitted};
use crate::counters::Counters;

/// Most changes in one transaction.
const GROUP: usize = 512;

/// Files of submissions in one transaction: whoever comes next waits for no more than that.
const GROUP_FILES: usize = 10_000;

/// The same where nodes report.
const GROUP_FILES_BESIDE: usize = 500;

/// Changes that wait; whoever brings more waits.
const WAITING: usize = 4096;

/// How long a change waits for a database that is away.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two attempts to reach it.
const AGAIN: Duration = Duration::from_millis(200);

/// Why something was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum WriteError {
    /// The database.
    #[error("the database failed: {0}")]
    Database(String),
    /// The controller ends.
    #[error("the controller is ending")]
    Ending,
}

/// Something that happened, for those who follow.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) request: Option<i64>,
    pub(crate) class: Option<String>,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// Who changed what.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    pub(crate) who: String,
    pub(crate) peer: String,
    pub(crate) what: &'static str,
    pub(crate) object: String,
    pub(crate) detail: String,
}

/// A transaction, and what belongs to it.
pub(crate) struct Context {
    pub(crate) tx: AnyConnection,
    pub(crate) kind: Kind,
    /// Milliseconds since 1970.
    pub(crate) now: i64,
    /// What runs consist of; it never changes.
    pub(crate) contents: Contents,
    /// Numbers of queues by class, source and destination; they never change.
    pub(crate) queues: HashMap<(String, String, String), i64>,
    pub(crate) config: Arc<crate::config::Config>,
    clock: Clock,
    events: Vec<Event>,
    audits: Vec<Audit>,
    wakes: bool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn event(
        &mut self,
        request: Option<i64>,
        class: Option<&str>,
        kind: &'static str,
        text: impl Into<String>,
    ) {
        let class = class.map(str::to_owned);
        self.events.push(Event { request, class, kind, text: text.into() });
    }

    pub(crate) fn audit(&mut self, audit: Audit) {
        self.audits.push(audit);
    }

    /// Something changed that the next round should know at once.
    pub(crate) fn wake(&mut self) {
        self.wakes = true;
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.events.clear();
        self.audits.clear();
        self.wakes = false;
        self.now = self.clock.now_ms();
        db::begin(&mut self.tx, self.kind).await
    }

    async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let now = self.now;
        let (events, audits) = (std::mem::take(&mut self.events), std::mem::take(&mut self.audits));
        if events.len() + audits.len() > 0 {
            // Taken last and held until the commit: events become visible in the order of their numbers.
            let first = db::numbers(&mut self.tx, "event", events.len() + audits.len()).await?;
            let numbered = (first..).zip(events);
            let rows = numbered.map(|(id, event)| -> [Value; 6] {
                [
                    id.into(),
                    now.into(),
                    event.request.into(),
                    event.class.into(),
                    event.kind.into(),
                    event.text.into(),
                ]
            });
            let rows: Vec<_> = rows.collect();
            let next = first + rows.len() as i64;
            let into = "INSERT INTO event (id, at, request, class, kind, text)";
            rows::execute(&mut self.tx, into, rows, "").await?;
            let rows = (next..).zip(audits).map(|(id, audit)| -> [Value; 7] {
                [
                    id.into(),
                    now.into(),
                    audit.who.into(),
                    audit.peer.into(),
                    audit.what.into(),
                    audit.object.into(),
                    audit.detail.into(),
                ]
            });
            let into = "INSERT INTO audit (id, at, who, peer, what, object, detail)";
            rows::execute(&mut self.tx, into, rows.collect(), "").await?;
        }
        sqlx::raw_sql("COMMIT").execute(&mut self.tx).await?;
        Ok(())
    }

    async fn rollback(&mut self) {
        self.contents.clear();
        self.queues.clear();
        let _ = sqlx::raw_sql("ROLLBACK").execute(&mut self.tx).await;
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// What time it is for a controller.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    /// The system's.
    System,
    /// What a rehearsal says, in milliseconds since 1970.
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

/// A change that is made inside a transaction, perhaps more than once until one is committed.
trait Job: Send {
    fn run<'a>(&'a mut self, cx: &'a mut Context) -> BoxFuture<'a, Result<(), sqlx::Error>>;
    fn finish(self: Box<Self>, failed: Option<WriteError>);
}

struct Work<T, F> {
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, WriteError>>,
}

impl<T, F> Job for Work<T, F>
where
    T: Send,
    F: for<'a> Fn(&'a mut Context) -> BoxFuture<'a, Result<T, sqlx::Error>> + Send,
{
    fn run<'a>(&'a mut self, cx: &'a mut Context) -> BoxFuture<'a, Result<(), sqlx::Error>> {
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

type Reply<T> = oneshot::Sender<Result<T, WriteError>>;

enum Change {
    Submit(Box<Submission>, Reply<Submitted>),
    Report(String, Box<Report>, Reply<Instructions>),
    Other(Box<dyn Job>),
}

impl Change {
    fn fail(self, error: WriteError) {
        match self {
            Self::Submit(_, reply) => drop(reply.send(Err(error))),
            Self::Report(_, _, reply) => drop(reply.send(Err(error))),
            Self::Other(job) => job.finish(Some(error)),
        }
    }
}

/// Changes that came and are not made.
#[derive(Debug, Default)]
struct Backlog {
    changes: VecDeque<Change>,
    /// A submission was left for the next transaction.
    left: bool,
}

impl Backlog {
    /// Takes what has come, and waits for it where there is nothing to do; false at the end.
    async fn fill(&mut self, waiting: &mut mpsc::Receiver<Change>) -> bool {
        if self.changes.is_empty() {
            match waiting.recv().await {
                Some(change) => self.changes.push_back(change),
                None => return false,
            }
        }
        while self.changes.len() < WAITING
            && let Ok(change) = waiting.try_recv()
        {
            self.changes.push_back(change);
        }
        true
    }

    /// The changes of the next transaction. Long lists of files take turns with what nodes report.
    fn next(&mut self) -> Vec<Change> {
        let reports = self.changes.iter().any(|change| !matches!(change, Change::Submit(..)));
        let most = if reports && !self.left { GROUP_FILES_BESIDE } else { GROUP_FILES };
        let mut part = Vec::new();
        let mut later = VecDeque::new();
        let mut hosts = HashSet::new();
        let mut files = 0;
        self.left = false;
        for change in self.changes.drain(..) {
            let fits = part.len() < GROUP
                && match &change {
                    // Two reports of one host in one transaction would overwrite each other.
                    Change::Report(host, ..) => hosts.insert(host.clone()),
                    Change::Submit(submission, _) => {
                        let brings = submission.files.len();
                        let fits = files + brings <= most || (files == 0 && most == GROUP_FILES);
                        let fits = fits && !self.left;
                        files += if fits { brings } else { 0 };
                        self.left |= !fits;
                        fits
                    }
                    Change::Other(_) => true,
                };
            if fits {
                part.push(change);
            } else {
                later.push_back(change);
            }
        }
        self.changes = later;
        part
    }
}

/// Where changes are handed in.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    changes: mpsc::Sender<Change>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}

impl Writer {
    /// Starts the task; `wake` is told when a round should look.
    pub(crate) fn start(
        database: Database,
        config: Arc<crate::config::Config>,
        wake: Arc<Notify>,
        followers: Arc<Notify>,
        counters: Arc<Counters>,
        clock: Clock,
    ) -> Self {
        let (changes, waiting) = mpsc::channel(WAITING);
        let (end, ended) = oneshot::channel();
        tokio::spawn(db::fold(database.clone(), ended));
        let task = Task { database, config, wake, followers, counters, clock, _end: end };
        tokio::spawn(task.run(waiting));
        Self { changes }
    }

    async fn send<T>(&self, make: impl FnOnce(Reply<T>) -> Change) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.changes.send(make(reply)).await.map_err(|_| WriteError::Ending)?;
        answer.await.unwrap_or(Err(WriteError::Ending))
    }

    pub(crate) async fn submit(&self, submission: Submission) -> Result<Submitted, WriteError> {
        self.send(|reply| Change::Submit(Box::new(submission), reply)).await
    }

    pub(crate) async fn report(
        &self,
        host: String,
        report: Report,
    ) -> Result<Instructions, WriteError> {
        self.send(|reply| Change::Report(host, Box::new(report), reply)).await
    }

    /// Makes any other change.
    pub(crate) async fn apply<T, F>(&self, work: F) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: for<'a> Fn(&'a mut Context) -> BoxFuture<'a, Result<T, sqlx::Error>> + Send + 'static,
    {
        self.send(|reply| Change::Other(Box::new(Work { work, result: None, reply }))).await
    }
}

struct Task {
    database: Database,
    config: Arc<crate::config::Config>,
    wake: Arc<Notify>,
    followers: Arc<Notify>,
    counters: Arc<Counters>,
    clock: Clock,
    /// When it goes, so does the task that copies the log.
    _end: oneshot::Sender<()>,
}

impl Task {
    async fn run(self, mut waiting: mpsc::Receiver<Change>) {
        let mut context: Option<Context> = None;
        let mut backlog = Backlog::default();
        while backlog.fill(&mut waiting).await {
            let begun = Instant::now();
            self.settle(&mut context, backlog.next(), begun + PATIENCE).await;
            self.counters.committed(begun.elapsed());
        }
        if let Some(context) = context {
            let _ = context.tx.close().await;
        }
    }

    /// A connection, perhaps after some attempts.
    async fn context<'a>(
        &self,
        context: &'a mut Option<Context>,
        until: Instant,
    ) -> Result<&'a mut Context, sqlx::Error> {
        if context.is_none() {
            let tx = loop {
                match self.database.connect().await {
                    Ok(tx) => break tx,
                    Err(error) if Instant::now() >= until => return Err(error),
                    Err(error) => {
                        self.counters.failed();
                        tracing::debug!("the database is away: {error}");
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            };
            *context = Some(Context {
                tx,
                kind: self.database.kind,
                now: 0,
                contents: Contents::default(),
                queues: HashMap::new(),
                config: Arc::clone(&self.config),
                clock: self.clock.clone(),
                events: Vec::new(),
                audits: Vec::new(),
                wakes: false,
            });
        }
        Ok(context.as_mut().expect("it was made"))
    }

    async fn settle(&self, context: &mut Option<Context>, mut part: Vec<Change>, until: Instant) {
        loop {
            let error = match self.attempt(context, &mut part, until).await {
                Ok(answers) => return answers.send(part),
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
            match part.len() {
                _ if away && Instant::now() < until => {
                    tracing::warn!("the database is away ({error}): changes wait for it");
                    tokio::time::sleep(AGAIN).await;
                }
                1 => {
                    tracing::error!("a change cannot be stored: {error}");
                    let change = part.pop().expect("there is one");
                    change.fail(WriteError::Database(error.to_string()));
                    return;
                }
                _ => {
                    for change in part {
                        Box::pin(self.settle(context, vec![change], until)).await;
                    }
                    return;
                }
            }
        }
    }

    /// Makes all changes in one transaction.
    async fn attempt(
        &self,
        context: &mut Option<Context>,
        part: &mut [Change],
        until: Instant,
    ) -> Result<Answers, sqlx::Error> {
        let cx = self.context(context, until).await?;
        cx.begin().await?;
        let mut submissions = Vec::new();
        let mut reports = Vec::new();
        for change in part.iter_mut() {
            match change {
                Change::Submit(submission, _) => submissions.push(&**submission),
                Change::Report(host, report, _) => reports.push((host.as_str(), &**report)),
                Change::Other(job) => job.run(cx).await?,
            }
        }
        let submitted = submit::submit(cx, &submissions).await?;
        let instructions = report::take(cx, &reports).await?;
        let (count, wakes) = (cx.events.len(), cx.wakes);
        cx.commit().await?;
        if wakes {
            self.wake.notify_one();
        }
        if count > 0 {
            self.followers.notify_waiters();
        }
        Ok(Answers { submitted, instructions })
    }
}

/// What is answered once it is committed, in the order of the changes of each kind.
struct Answers {
    submitted: Vec<Submitted>,
    instructions: Vec<Instructions>,
}

impl Answers {
    fn send(self, changes: Vec<Change>) {
        let (mut submitted, mut instructions) =
            (self.submitted.into_iter(), self.instructions.into_iter());
        for change in changes {
            match change {
                Change::Submit(_, reply) => {
                    let _ = reply.send(submitted.next().ok_or(WriteError::Ending));
                }
                Change::Report(_, _, reply) => {
                    let _ = reply.send(instructions.next().ok_or(WriteError::Ending));
                }
                Change::Other(job) => job.finish(None),
            }
        }
    }
}

/// Whether the connection is of no more use.
fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            // PostgreSQL: class 57 is the operator's intervention, 08 connections, 25P03 idle too long.
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
