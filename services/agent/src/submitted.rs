//! Copies that clients submit to this agent over HTTP, without a controller.
//!
//! For: accepting them ([`SubmittedTransfers::submit`]), carrying them out with the mover, one attempt after the other
//! until the copy has ended, and their events. The client may end meanwhile, and the agent restart: a record in the
//! state directory ([`record`]) lasts until the last of [`ENDED_KEPT_MAX`] later ones has ended.
//!
//! The rights are those of the client that submitted, at its submission and at each attempt; a transfer whose token was
//! withdrawn ends. Addresses of other agents are checked by the rules of third-party copies (`third_party.to`).
//!
//! Not for: native transfers, whose client is connected (the mover), nor orders of a controller ([`crate::orders`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use penstock_control::orders::FaultKind;
use penstock_daemon::state::{StateDir, StateError};
use penstock_http::tokens::hex;
use penstock_mover::{Agent, AgentLimits, Caller, CopyError, Gatekeeper};
use penstock_mover::{TcpDial, TransferDirection};
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use tokio::sync::watch;

pub use body::{RemoteCredentials, TransferBody};
pub use error::SubmitError;
pub use events::SubmittedEvent;
pub use record::FailedFile;
pub use state::TransferStatus;

use attempt::{AttemptError, CopyServices, StartedAttempt, reaction};
use body::{CopyPeer, CopyPlan};
use events::TransferEventLog;
use record::{RecordStore, TransferRecord};
use state::TransferEvent;

use crate::authorizer::Authorizer;
use crate::http::api::{SubmittedFacts, TransferFacts, unix_seconds};
use crate::orders::faults::FailureAction;

mod attempt;
mod body;
mod error;
mod events;
mod record;
mod state;

/// Ended transfers that are kept.
const ENDED_KEPT_MAX: usize = 1000;

/// Transfers of one client that have not ended.
const ACTIVE_PER_CALLER_MAX: usize = 1000;

/// Transfers of all clients that have not ended.
const ACTIVE_MAX: usize = 10_000;

/// Failed files that are named.
const FAILURES_MAX: usize = 20;

/// Interval of progress events, and of the check of clients' rights.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time without progress after which a transfer fails.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for stopped attempts to end; the other agent may not answer.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Back-off between attempts.
const RETRY_BACKOFF: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(10);

/// Reason for ending attempts at shutdown.
const STOP_REASON: &str = "the agent shuts down";

/// Transfers that clients submitted to this agent.
#[derive(Debug)]
pub struct SubmittedTransfers {
    services: CopyServices,
    limits: Arc<Mutex<AgentLimits>>,
    store: RecordStore,
    table: Mutex<TransferTable>,
    changed: Condvar,
    /// Number of the last event; closed at shutdown.
    followers: watch::Sender<u64>,
}

#[derive(Debug)]
struct TransferTable {
    transfers: BTreeMap<u64, SubmittedTransfer>,
    /// Numbers by client and idempotency key.
    keys: HashMap<(String, String), u64>,
    events: TransferEventLog,
    is_stopping: bool,
    /// Time of the stop.
    stopped: Option<Instant>,
}

/// A submitted transfer with its attempt.
#[derive(Debug)]
struct SubmittedTransfer {
    record: TransferRecord,
    caller: Caller,
    plan: Option<Arc<CopyPlan>>,
    attempt: AttemptState,
    /// Reason of a cancellation by the client.
    cancelled: Option<String>,
    /// Reason why its rights ended.
    withdrawn: Option<&'static str>,
    last_progress: Instant,
    /// Bytes moved by earlier attempts.
    moved_before: u64,
    /// State and bytes of the last event.
    shown: (TransferStatus, u64),
}

/// Attempt of a transfer.
#[derive(Debug)]
enum AttemptState {
    /// None; the next is due then, with the back-off before it.
    Due(Instant, Duration),
    /// The thread connects.
    Starting(Duration),
    /// The mover has it.
    Started(Arc<StartedAttempt>, Duration),
}

impl SubmittedTransfer {
    fn new(record: TransferRecord, caller: Caller, plan: Option<CopyPlan>) -> Self {
        Self {
            shown: (record.state, 0),
            record,
            caller,
            plan: plan.map(Arc::new),
            attempt: AttemptState::Due(Instant::now(), Duration::ZERO),
            cancelled: None,
            withdrawn: None,
            last_progress: Instant::now(),
            moved_before: 0,
        }
    }

    fn is_active(&self) -> bool {
        !matches!(self.attempt, AttemptState::Due(..))
    }

    fn on(&mut self, event: TransferEvent) {
        self.record.state = self.record.state.transition(event);
    }

    /// Cancels the present attempt; one that is starting ends itself.
    fn stop_attempt(&self, reason: &str) {
        if let AttemptState::Started(attempt, _) = &self.attempt {
            attempt.transfer.cancel(reason);
        }
    }

    /// Reads progress and state of the attempt.
    fn observe(&mut self, now: Instant) {
        let AttemptState::Started(attempt, _) = &self.attempt else { return };
        let snapshot = attempt.transfer.snapshot();
        let is_waiting = snapshot.sessions == 0 || snapshot.waiting.is_some();
        self.record.error = snapshot.waiting;
        let moved = self.moved_before + snapshot.tally.moved_bytes;
        if moved > self.shown.1 {
            self.last_progress = now;
        }
        self.on(if is_waiting { TransferEvent::Interrupted } else { TransferEvent::Begun });
    }

    fn facts(&self) -> TransferFacts {
        let record = &self.record;
        let started = match &self.attempt {
            AttemptState::Started(attempt, _) => Some(attempt.transfer.show().into()),
            _ => record.last.clone(),
        };
        let mut facts = started.unwrap_or_else(|| self.unstarted());
        (facts.id, facts.state) = (record.id, record.state);
        facts.moved_bytes += self.moved_before;
        facts.submitted = Some(SubmittedFacts {
            source: record.body.source.clone(),
            destination: record.body.destination.clone(),
            key: record.body.key.clone(),
            submitted_unix_seconds: record.submitted_unix_seconds,
            ended_unix_seconds: record.ended_unix_seconds,
            attempts: record.attempts,
            error: record.error.clone(),
            failures: record.failures.clone(),
        });
        facts
    }

    fn unstarted(&self) -> TransferFacts {
        let record = &self.record;
        let (direction, path, peer) = match self.plan.as_deref() {
            Some(plan) => {
                let peer = match &plan.peer {
                    CopyPeer::Own => String::new(),
                    CopyPeer::Other { host, port, .. } => format!("{host}:{port}"),
                };
                (plan.direction, plan.path.clone(), peer)
            }
            None => (TransferDirection::Send, record.body.source.clone(), String::new()),
        };
        TransferFacts {
            id: record.id,
            caller: record.caller.clone(),
            peer,
            direction: direction.verb().to_owned(),
            path,
            state: record.state,
            started_unix_seconds: record.submitted_unix_seconds,
            seconds: 0.0,
            bytes: 0,
            moved_bytes: 0,
            resumed_bytes: 0,
            announced_bytes: 0,
            files: 0,
            failed: 0,
            streams: 0,
            readers: 0,
            writers: 0,
            rate_bps: record.body.rate_bps.map(u64::from),
            bits_per_second: 0,
            bound_by: "-".to_owned(),
            engine: String::new(),
            retransmits: 0,
            scitag: record.body.scitag,
            owner: None,
            activity: None,
            submitted: None,
        }
    }
}

impl TransferTable {
    fn emit(&mut self, id: u64) {
        let Some(one) = self.transfers.get_mut(&id) else { return };
        let facts = one.facts();
        let now = (facts.state, facts.moved_bytes);
        if now == one.shown && !facts.state.is_ended() {
            return;
        }
        let is_change = now.0 != one.shown.0;
        one.shown = now;
        self.events.push(is_change, facts);
    }

    /// Transfers of a client that have not ended.
    fn active_of(&self, caller: &str) -> usize {
        let is_its =
            |one: &&SubmittedTransfer| one.record.caller == caller && !one.record.state.is_ended();
        self.transfers.values().filter(is_its).count()
    }
}

/// A submission with its result.
#[derive(Debug, Clone, PartialEq)]
pub enum SubmissionResult {
    /// A new transfer.
    New(Box<TransferFacts>),
    /// The transfer that the same body and key made before.
    Same(Box<TransferFacts>),
}

/// A submitted transfer that cannot be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// It has ended.
    #[error("transfer {0} has ended: {1}")]
    Ended(u64, TransferStatus),
    /// Not a submitted one.
    #[error("no transfer {0} was submitted here")]
    Unknown(u64),
}

impl SubmittedTransfers {
    /// Reads the records of earlier processes; their transfers go on once [`Self::run`] runs.
    ///
    /// # Errors
    /// When the state directory cannot be used.
    pub fn open(
        mover: Agent,
        authorizer: Arc<Authorizer>,
        state: &StateDir,
        limits: Arc<Mutex<AgentLimits>>,
    ) -> Result<Self, StateError> {
        let (store, records) = RecordStore::open(state)?;
        if let Some(last) = records.last() {
            mover.number_above(last.id);
        }
        let mut table = TransferTable {
            transfers: BTreeMap::new(),
            keys: HashMap::new(),
            events: TransferEventLog::new(),
            is_stopping: false,
            stopped: None,
        };
        for record in records {
            if let Some(key) = &record.body.key {
                table.keys.insert((record.caller.clone(), key.clone()), record.id);
            }
            let known = record.caller(&authorizer);
            let nobody =
                || Caller { name: record.caller.clone(), pass: None, token: None, grant: None };
            let caller = known.clone().unwrap_or_else(nobody);
            let plan = record.body.plan().ok();
            let mut one = SubmittedTransfer::new(record, caller, plan);
            if known.is_none() {
                one.withdrawn = Some(
                    "after a restart of the agent the token that submitted it is no longer valid, or was one with claims: submit it again under another key",
                );
            }
            table.transfers.insert(one.record.id, one);
        }
        let (followers, _) = watch::channel(table.events.last());
        Ok(Self {
            services: CopyServices { mover, authorizer },
            limits,
            store,
            table: Mutex::new(table),
            changed: Condvar::new(),
            followers,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TransferTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a copy for `caller`. Blocks for name resolution and storage.
    ///
    /// # Errors
    /// When the body has a fault, the client may not do this, or has too many transfers.
    pub fn submit(
        &self,
        caller: Caller,
        body: TransferBody,
        from_here: bool,
    ) -> Result<SubmissionResult, SubmitError> {
        let plan = body.plan()?;
        let text = serde_json::to_vec(&body).expect("plain data");
        let body_sha256 = hex(digest(&SHA256, &text).as_ref());
        let key = body.key.clone().map(|key| (caller.name.clone(), key));
        if let Some(same) = self.same(key.as_ref(), &body_sha256)? {
            return Ok(same);
        }
        self.check_rights(&caller, &plan, from_here)?;
        let mut table = self.lock();
        // Another request with the key may have come meanwhile.
        if let Some(same) = Self::find_same(&table, key.as_ref(), &body_sha256)? {
            return Ok(same);
        }
        if table.is_stopping {
            return Err(SubmitError::Stopping);
        }
        let active = table.active_of(&caller.name);
        let of_all = table.transfers.values().filter(|one| !one.record.state.is_ended()).count();
        if active >= ACTIVE_PER_CALLER_MAX || of_all >= ACTIVE_MAX {
            return Err(SubmitError::TooMany(active));
        }
        let id = self.services.mover.reserve_id();
        let record = TransferRecord {
            id,
            caller: caller.name.clone(),
            token_sha256: TransferRecord::token_of(&caller),
            // A derived token has the hash of its parent, and fewer rights.
            is_resumable: caller.token.is_some_and(|sha256| {
                self.services.authorizer.caller_of_hash(&sha256).as_ref() == Some(&caller)
            }),
            from_here,
            body,
            body_sha256,
            submitted_unix_seconds: unix_seconds(SystemTime::now()),
            state: TransferStatus::Waiting,
            attempts: 0,
            ended_unix_seconds: None,
            error: None,
            failures: Vec::new(),
            last: None,
        };
        self.store.write(&record)?;
        let (source, destination) = (&record.body.source, &record.body.destination);
        tracing::info!("transfer {id}: {source} to {destination} submitted by {}", caller.name);
        let one = SubmittedTransfer::new(record, caller, Some(plan));
        let facts = one.facts();
        table.transfers.insert(id, one);
        table.keys.extend(key.map(|key| (key, id)));
        table.events.push(true, facts.clone());
        self.notify(&table);
        Ok(SubmissionResult::New(Box::new(facts)))
    }

    fn same(
        &self,
        key: Option<&(String, String)>,
        body_sha256: &str,
    ) -> Result<Option<SubmissionResult>, SubmitError> {
        Self::find_same(&self.lock(), key, body_sha256)
    }

    fn find_same(
        table: &TransferTable,
        key: Option<&(String, String)>,
        body_sha256: &str,
    ) -> Result<Option<SubmissionResult>, SubmitError> {
        let id = key.and_then(|key| table.keys.get(key));
        match id.and_then(|id| table.transfers.get(id)) {
            None => Ok(None),
            Some(one) if one.record.body_sha256 == body_sha256 => {
                Ok(Some(SubmissionResult::Same(Box::new(one.facts()))))
            }
            Some(one) => Err(SubmitError::KeyInUse(one.record.id)),
        }
    }

    /// Checks the path at this agent and the address of the other one, as each attempt does again.
    fn check_rights(
        &self,
        caller: &Caller,
        plan: &CopyPlan,
        from_here: bool,
    ) -> Result<(), SubmitError> {
        let refused = SubmitError::Refused;
        let authorizer = &self.services.authorizer;
        let place = |path: &[u8], access| authorizer.place(caller, path, access).map_err(refused);
        if plan.direction == TransferDirection::Send
            && let Some(source) = plan.pull.sources.first()
        {
            let found = place(&source.0, PathAccess::Read)?;
            if !found.path.is_empty()
                && let Err(error) = found.root.stat(OsStr::from_bytes(&found.path))
            {
                let text = format!("{}: {}", found.shown, penstock_sys::fs::describe(&error));
                return Err(refused(Refusal::new(RefusalKind::NotFound, text)));
            }
        }
        if plan.direction == TransferDirection::Receive || plan.peer == CopyPeer::Own {
            place(&plan.push.target.0, PathAccess::Replace)?;
        }
        // A name that does not resolve now may later.
        if let CopyPeer::Other { host, port, .. } = &plan.peer
            && let Ok(dial) = TcpDial::new(host, *port, &[], &[], None)
        {
            dial.only_to(|to| self.services.may_reach(to, from_here)).map_err(refused)?;
        }
        Ok(())
    }

    fn notify(&self, table: &TransferTable) {
        self.followers.send_replace(table.events.last());
        self.changed.notify_all();
    }

    /// All transfers by number.
    #[must_use]
    pub fn list(&self) -> Vec<TransferFacts> {
        self.lock().transfers.values().map(SubmittedTransfer::facts).collect()
    }

    /// The submitted transfer with this number.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<TransferFacts> {
        self.lock().transfers.get(&id).map(SubmittedTransfer::facts)
    }

    /// Cancels a transfer. What is durable stays, and a later copy of the same source and destination resumes from it.
    ///
    /// # Errors
    /// When it has ended, or none has this number.
    pub fn cancel(&self, id: u64, reason: &str) -> Result<TransferFacts, CancelError> {
        let mut table = self.lock();
        let one = table.transfers.get_mut(&id).ok_or(CancelError::Unknown(id))?;
        if one.record.state.is_ended() {
            return Err(CancelError::Ended(id, one.record.state));
        }
        one.cancelled.get_or_insert_with(|| reason.to_owned());
        one.stop_attempt(reason);
        if !one.is_active() {
            self.end(&mut table, id, TransferEvent::Cancelled, Some(reason.to_owned()));
        }
        self.changed.notify_all();
        table.transfers.get(&id).map(SubmittedTransfer::facts).ok_or(CancelError::Unknown(id))
    }

    /// Receiver that changes with each event, and is closed at shutdown.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.followers.subscribe()
    }

    /// Events after `number`; `None` where some of them are not kept any more.
    #[must_use]
    pub fn events_after(&self, number: u64) -> Option<Vec<SubmittedEvent>> {
        self.lock().events.after(number)
    }

    /// True once no more events follow.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Runs the transfers until [`Self::stop`] and the end of their attempts.
    pub fn run(self: &Arc<Self>) {
        let mut table = self.lock();
        loop {
            let now = Instant::now();
            let pause = self.advance(&mut table, now);
            let is_at_rest = !table.transfers.values().any(SubmittedTransfer::is_active);
            let is_overdue = table.stopped.is_some_and(|at| now.duration_since(at) > STOP_TIMEOUT);
            if table.is_stopping && (is_at_rest || is_overdue) {
                return;
            }
            self.followers.send_replace(table.events.last());
            let waited = self.changed.wait_timeout(table, pause);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the attempts; the transfers go on after the next start.
    pub fn stop(&self) {
        let mut table = self.lock();
        table.is_stopping = true;
        table.stopped.get_or_insert_with(Instant::now);
        table.transfers.values().for_each(|one| one.stop_attempt(STOP_REASON));
        self.notify(&table);
    }

    /// Starts due attempts and observes the running ones; returns the time until the next call.
    fn advance(self: &Arc<Self>, table: &mut TransferTable, now: Instant) -> Duration {
        let per_caller = {
            let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
            limits.transfers_per_caller
        };
        let mut running: HashMap<String, usize> = HashMap::new();
        for one in table.transfers.values().filter(|one| one.is_active()) {
            *running.entry(one.record.caller.clone()).or_default() += 1;
        }
        let mut pause =
            if running.is_empty() { Duration::from_secs(3600) } else { OBSERVE_INTERVAL };
        let open: Vec<u64> = table
            .transfers
            .iter()
            .filter(|(_, one)| !one.record.state.is_ended())
            .map(|(id, _)| *id)
            .collect();
        for id in open {
            let Some(one) = table.transfers.get_mut(&id) else { continue };
            if one.withdrawn.is_none() && !self.services.authorizer.still_admits(&one.caller) {
                one.withdrawn = Some("the token that submitted it is no longer valid");
            }
            if let Some(why) = one.withdrawn {
                one.stop_attempt(why);
                if !one.is_active() {
                    self.end(table, id, TransferEvent::Refused, Some(why.to_owned()));
                }
                continue;
            }
            match one.attempt {
                AttemptState::Due(..) if table.is_stopping => {}
                AttemptState::Due(at, _) if at > now => {
                    pause =
                        pause.min(at.saturating_duration_since(now)).max(Duration::from_millis(1));
                }
                AttemptState::Due(_, backoff) => {
                    let count = running.entry(one.record.caller.clone()).or_default();
                    let own_max = self.services.authorizer.transfers_max(&one.caller);
                    if *count >= per_caller.min(own_max.unwrap_or(usize::MAX)) {
                        one.record.error = Some(format!(
                            "{count} transfers of this token run, as many as its quota or [limits] transfers_per_caller allows"
                        ));
                        continue;
                    }
                    *count += 1;
                    pause = pause.min(OBSERVE_INTERVAL);
                    self.begin(one, backoff);
                }
                AttemptState::Starting(_) => {}
                AttemptState::Started(..) => {
                    one.observe(now);
                    table.emit(id);
                }
            }
        }
        pause
    }

    /// Starts the thread of an attempt.
    fn begin(self: &Arc<Self>, one: &mut SubmittedTransfer, backoff: Duration) {
        let Some(plan) = one.plan.clone() else {
            one.withdrawn =
                Some("its record is of another version: submit it again under another key");
            return;
        };
        let (id, caller, from_here) = (one.record.id, one.caller.clone(), one.record.from_here);
        let this = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("submitted {id}"));
        let spawned = thread.spawn(move || this.attempt(id, &plan, &caller, from_here));
        match spawned {
            Ok(_) => {
                if one.record.attempts == 0 {
                    one.last_progress = Instant::now();
                }
                one.record.attempts += 1;
                one.attempt = AttemptState::Starting(backoff);
                if let Err(error) = self.store.write(&one.record) {
                    tracing::warn!("transfer {id}: {error}");
                }
            }
            Err(error) => {
                one.record.error = Some(format!("cannot start a thread (raise TasksMax): {error}"));
                one.attempt = AttemptState::Due(Instant::now() + *RETRY_BACKOFF.end(), backoff);
            }
        }
    }

    /// Carries out one attempt to its end.
    fn attempt(&self, id: u64, plan: &CopyPlan, caller: &Caller, from_here: bool) {
        let started = match self.services.start(id, plan, caller, from_here) {
            Ok(started) => Arc::new(started),
            Err(failure) => {
                let mut table = self.lock();
                let action = match failure {
                    AttemptError::Busy(reason) => {
                        // It waits for its turn, however long.
                        if let Some(one) = table.transfers.get_mut(&id) {
                            one.last_progress = Instant::now();
                        }
                        FailureAction::Wait(reason)
                    }
                    AttemptError::Failed(action) => action,
                };
                self.on_failure(&mut table, id, action);
                self.notify(&table);
                return;
            }
        };
        let mut table = self.lock();
        let is_stopping = table.is_stopping;
        if let Some(one) = table.transfers.get_mut(&id) {
            let AttemptState::Starting(backoff) = one.attempt else { return };
            one.attempt = AttemptState::Started(Arc::clone(&started), backoff);
            let withdrawn = one.withdrawn.map(str::to_owned);
            let stopping = is_stopping.then(|| STOP_REASON.to_owned());
            if let Some(reason) = one.cancelled.clone().or(withdrawn).or(stopping) {
                one.stop_attempt(&reason);
            }
        }
        drop(table);
        if let Err(error) = started.transfer.wait_for_end() {
            started.transfer.cancel(&error.to_string());
        }
        let outcome = started.transfer.outcome().unwrap_or(Err(CopyError::Panicked));
        let mut table = self.lock();
        self.on_outcome(&mut table, id, outcome);
        self.notify(&table);
    }

    /// Records the outcome of an attempt.
    fn on_outcome(&self, table: &mut TransferTable, id: u64, outcome: Result<(), CopyError>) {
        let is_stopping = table.is_stopping;
        let Some(one) = table.transfers.get_mut(&id) else { return };
        one.observe(Instant::now());
        let AttemptState::Started(attempt, _) = &one.attempt else { return };
        let tally = attempt.transfer.snapshot().tally;
        let failures = tally.errors.iter().take(FAILURES_MAX);
        one.record.failures = failures
            .map(|failed| FailedFile {
                path: failed.path.clone(),
                error: failed.failure.text.clone(),
            })
            .collect();
        one.record.last = Some(attempt.transfer.show().into());
        match outcome {
            Ok(()) => {
                let error =
                    one.record.failures.first().map(|one| format!("{}: {}", one.path, one.error));
                let event = TransferEvent::Ended {
                    has_failures: tally.failed > 0,
                    has_arrivals: tally.has_arrivals(),
                };
                self.end(table, id, event, error);
            }
            Err(CopyError::Cancelled(reason)) => {
                if let Some(why) = one.withdrawn {
                    self.end(table, id, TransferEvent::Refused, Some(why.to_owned()));
                } else if is_stopping && one.cancelled.is_none() {
                    one.attempt = AttemptState::Due(Instant::now(), Duration::ZERO);
                    one.on(TransferEvent::Interrupted);
                } else {
                    self.end(table, id, TransferEvent::Cancelled, Some(reason));
                }
            }
            Err(error) => self.on_failure(table, id, reaction(&error)),
        }
    }

    /// Schedules another attempt after a failure, or ends the transfer.
    fn on_failure(&self, table: &mut TransferTable, id: u64, action: FailureAction) {
        let Some(one) = table.transfers.get_mut(&id) else { return };
        let reason = match action {
            FailureAction::Wait(reason) => reason,
            FailureAction::End(fault) => {
                let event = match fault.kind {
                    FaultKind::Cancelled => TransferEvent::Cancelled,
                    _ => TransferEvent::Refused,
                };
                return self.end(table, id, event, Some(fault.text));
            }
        };
        if let Some(why) = one.cancelled.clone() {
            return self.end(table, id, TransferEvent::Cancelled, Some(why));
        }
        let now = Instant::now();
        if now.duration_since(one.last_progress) > NO_PROGRESS_TIMEOUT {
            return self.end(table, id, TransferEvent::Refused, Some(reason));
        }
        let (AttemptState::Due(_, backoff)
        | AttemptState::Starting(backoff)
        | AttemptState::Started(_, backoff)) = &one.attempt;
        let backoff = (*backoff * 2).clamp(*RETRY_BACKOFF.start(), *RETRY_BACKOFF.end());
        if let AttemptState::Started(attempt, _) = &one.attempt {
            one.moved_before += attempt.transfer.snapshot().tally.moved_bytes;
        }
        one.record.last = None;
        one.attempt = AttemptState::Due(now + backoff, backoff);
        one.record.error = Some(reason);
        one.on(TransferEvent::Interrupted);
        table.emit(id);
    }

    /// Ends a transfer: its record forgets the token of the other agent, and the oldest records go.
    fn end(&self, table: &mut TransferTable, id: u64, event: TransferEvent, error: Option<String>) {
        let Some(one) = table.transfers.get_mut(&id) else { return };
        one.on(event);
        one.attempt = AttemptState::Due(Instant::now(), Duration::ZERO);
        one.record.error = error;
        one.record.body.remote = None;
        one.record.ended_unix_seconds = Some(unix_seconds(SystemTime::now()));
        if let Err(error) = self.store.write(&one.record) {
            tracing::error!("transfer {id}: {error}: it starts again after a restart");
        }
        let why = one.record.error.as_deref().map(|why| format!(": {why}"));
        tracing::info!("transfer {id}: {}{}", one.record.state, why.unwrap_or_default());
        table.emit(id);
        let ended = table.transfers.values().filter(|one| one.record.state.is_ended());
        let mut ended: Vec<(f64, u64)> = ended
            .map(|one| (one.record.ended_unix_seconds.unwrap_or_default(), one.record.id))
            .collect();
        ended.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, old) in ended.iter().take(ended.len().saturating_sub(ENDED_KEPT_MAX)) {
            if let Some(old) = table.transfers.remove(old) {
                self.store.remove(old.record.id);
                if let Some(key) = old.record.body.key {
                    table.keys.remove(&(old.record.caller, key));
                }
            }
        }
    }
}
