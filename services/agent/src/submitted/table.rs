//! Table of submitted transfers: each with its record, its attempt and what its client was shown.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_mover::{Caller, ListedTransfer, TransferDirection};

use super::attempt::StartedAttempt;
use super::body::{CopyPeer, CopyPlan};
use super::events::TransferEventLog;
use super::record::TransferRecord;
use super::state::{TransferEvent, TransferStatus};
use crate::http::api::{SubmittedFacts, TransferFacts};

/// Transfers by number, with their events.
#[derive(Debug)]
pub(super) struct TransferTable {
    pub(super) transfers: BTreeMap<u64, SubmittedTransfer>,
    /// Numbers by client and idempotency key.
    pub(super) keys: HashMap<(String, String), u64>,
    pub(super) events: TransferEventLog,
    /// State and bytes of the last event of each transfer that was not submitted.
    pub(super) native: BTreeMap<u64, (TransferStatus, u64)>,
    pub(super) is_stopping: bool,
    /// Time of the stop.
    pub(super) stopped: Option<Instant>,
}

/// A submitted transfer with its attempt.
#[derive(Debug)]
pub(super) struct SubmittedTransfer {
    pub(super) record: TransferRecord,
    pub(super) caller: Caller,
    pub(super) plan: Option<Arc<CopyPlan>>,
    pub(super) attempt: AttemptState,
    /// Reason of a cancellation by the client.
    pub(super) cancelled: Option<String>,
    /// Reason why its rights ended.
    pub(super) withdrawn: Option<&'static str>,
    pub(super) last_progress: Instant,
    /// Bytes moved by earlier attempts.
    pub(super) moved_before: u64,
    /// Bytes that had arrived by the end of the last attempt.
    pub(super) arrived_before: u64,
    /// State and bytes of the last event.
    pub(super) shown: (TransferStatus, u64),
}

/// Attempt of a transfer.
#[derive(Debug)]
pub(super) enum AttemptState {
    /// None; the next is due then, with the back-off before it.
    Due(Instant, Duration),
    /// The thread connects.
    Starting(Duration),
    /// The mover has it.
    Started(Arc<StartedAttempt>, Duration),
}

impl SubmittedTransfer {
    pub(super) fn new(record: TransferRecord, caller: Caller, plan: Option<CopyPlan>) -> Self {
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
            arrived_before: 0,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        !matches!(self.attempt, AttemptState::Due(..))
    }

    pub(super) fn on(&mut self, event: TransferEvent) {
        self.record.state = self.record.state.transition(event);
    }

    /// Cancels the present attempt; one that is starting ends itself.
    pub(super) fn stop_attempt(&self, reason: &str) {
        if let AttemptState::Started(attempt, _) = &self.attempt {
            attempt.transfer.cancel(reason);
        }
    }

    /// Reads progress and state of the attempt.
    pub(super) fn observe(&mut self, now: Instant) {
        let AttemptState::Started(attempt, _) = &self.attempt else { return };
        let snapshot = attempt.transfer.snapshot();
        let is_waiting = snapshot.sessions == 0 || snapshot.waiting.is_some();
        self.record.error = snapshot.waiting;
        self.record.size_bytes = self.record.size_bytes.max(snapshot.tally.announced_bytes);
        let moved = self.moved_before + snapshot.tally.moved_bytes;
        if moved > self.shown.1 {
            self.last_progress = now;
        }
        self.on(if is_waiting { TransferEvent::Interrupted } else { TransferEvent::Begun });
    }

    /// Bytes of the files that have not arrived, as far as they are known; 0 after the end.
    pub(super) fn missing_bytes(&self) -> u64 {
        if self.record.state.is_ended() {
            return 0;
        }
        let (announced, arrived) = match &self.attempt {
            AttemptState::Started(attempt, _) => {
                let tally = attempt.transfer.snapshot().tally;
                (tally.announced_bytes, tally.moved_bytes + tally.resumed_bytes)
            }
            _ => (0, 0),
        };
        let size = self.record.size_bytes.max(announced);
        size.saturating_sub(arrived.max(self.arrived_before))
    }

    pub(super) fn facts(&self) -> TransferFacts {
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
            transport: None,
            transport_reason: None,
            scitag: record.body.scitag,
            owner: None,
            activity: None,
            submitted: None,
        }
    }
}

impl TransferTable {
    pub(super) fn emit(&mut self, id: u64) {
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

    /// Adds events of the transfers in the mover's list that were not submitted. One that began and ended since the last
    /// call has its end alone.
    pub(super) fn observe_native(&mut self, listed: Vec<ListedTransfer>) {
        let mut native = BTreeMap::new();
        for one in listed.into_iter().filter(|one| !self.transfers.contains_key(&one.id)) {
            let facts = TransferFacts::from(one);
            let now = (facts.state, facts.moved_bytes);
            let before = self.native.get(&facts.id).copied();
            native.insert(facts.id, now);
            let has_ended = before.is_some_and(|before| before.0.is_ended());
            if before != Some(now) && !has_ended {
                self.events.push(before.is_none_or(|before| before.0 != now.0), facts);
            }
        }
        self.native = native;
    }

    /// Bytes of a client's transfers that have not ended and not arrived.
    pub(super) fn missing_bytes_of(&self, caller: &str) -> u64 {
        let its = self.transfers.values().filter(|one| one.record.caller == caller);
        its.map(SubmittedTransfer::missing_bytes).fold(0, u64::saturating_add)
    }

    /// Transfers of a client that have not ended.
    pub(super) fn active_of(&self, caller: &str) -> usize {
        let is_its =
            |one: &&SubmittedTransfer| one.record.caller == caller && !one.record.state.is_ended();
        self.transfers.values().filter(is_its).count()
    }
}
