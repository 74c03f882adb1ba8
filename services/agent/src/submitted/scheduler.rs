//! Scheduler of submitted transfers: starts due attempts, observes the running ones, and ends or retries a transfer by the
//! outcome of its attempt.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use penstock_control::orders::FaultKind;
use penstock_mover::{Caller, CopyError, Gatekeeper};

use super::SubmittedTransfers;
use super::attempt::{AttemptError, reaction};
use super::body::CopyPlan;
use super::record::FailedFile;
use super::state::TransferEvent;
use super::table::{AttemptState, SubmittedTransfer, TransferTable};
use crate::http::api::unix_seconds;
use crate::orders::faults::FailureAction;

/// Ended transfers that are kept.
const ENDED_KEPT_MAX: usize = 1000;

/// Failed files that are named.
const FAILURES_MAX: usize = 20;

/// Interval of progress events, and of the check of clients' rights.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time until the next look where nothing is to do; a submission and a follower end it.
const REST_INTERVAL: Duration = Duration::from_secs(3600);

/// Time without progress after which a transfer fails.
const NO_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for stopped attempts to end; the other agent may not answer.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Back-off between attempts.
const RETRY_BACKOFF: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(200)..=Duration::from_secs(10);

/// Reason for ending attempts at shutdown.
const STOP_REASON: &str = "the agent shuts down";

impl SubmittedTransfers {
    /// Runs the transfers until [`Self::stop`] and the end of their attempts.
    pub fn run(self: &Arc<Self>) {
        let mut table = self.lock();
        loop {
            let now = Instant::now();
            let mut pause = self.advance(&mut table, now);
            if self.followers.receiver_count() > 0 {
                table.observe_native(self.services.mover.native_transfers());
                pause = pause.min(OBSERVE_INTERVAL);
            }
            let is_at_rest = !table.transfers.values().any(SubmittedTransfer::is_active);
            let is_overdue = table.stopped.is_some_and(|at| now.duration_since(at) > STOP_TIMEOUT);
            if table.is_stopping && (is_at_rest || is_overdue) {
                return;
            }
            let last = table.events.last();
            self.followers.send_if_modified(|shown| std::mem::replace(shown, last) != last);
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
        let open: Vec<u64> = table
            .transfers
            .iter()
            .filter(|(_, one)| !one.record.state.is_ended())
            .map(|(id, _)| *id)
            .collect();
        let mut pause = if open.is_empty() { REST_INTERVAL } else { OBSERVE_INTERVAL };
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
            let tally = attempt.transfer.snapshot().tally;
            one.moved_before += tally.moved_bytes;
            one.arrived_before = one.arrived_before.max(tally.moved_bytes + tally.resumed_bytes);
        }
        one.record.last = None;
        one.attempt = AttemptState::Due(now + backoff, backoff);
        one.record.error = Some(reason);
        one.on(TransferEvent::Interrupted);
        table.emit(id);
    }

    /// Ends a transfer: its record forgets the token of the other agent, and the oldest records go.
    pub(super) fn end(
        &self,
        table: &mut TransferTable,
        id: u64,
        event: TransferEvent,
        error: Option<String>,
    ) {
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
