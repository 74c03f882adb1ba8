//! Admission of transfers and streams within the limits, and sessions whose client lost its admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_protocol::open::{Refusal, RefusalKind};

use super::active_session::ActiveSession;
use super::agent::{Agent, AgentInner};
use super::limits::AgentLimits;
use crate::base::lock::lock;
use crate::session::gatekeeper::Caller;
use crate::session::outcome::SessionOutcome;

/// Transfers of an agent and their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentLoad {
    /// Number of running transfers.
    pub transfers: usize,
    /// Limit of concurrent transfers; 0 while the agent shuts down.
    pub limit: usize,
}

impl Agent {
    /// Number of running transfers, with the limit in force.
    #[must_use]
    pub fn load(&self) -> AgentLoad {
        let inner = &self.0;
        let limits = lock(&inner.limits).clone();
        let limit = match inner.stopping.load(Ordering::SeqCst) {
            true => 0,
            false => limits.transfers.min(limits.streams),
        };
        AgentLoad { transfers: inner.running(), limit }
    }
}

impl AgentInner {
    fn running(&self) -> usize {
        let sessions = lock(&self.sessions).len() + lock(&self.initiated).len();
        sessions + lock(&self.gateway).len()
    }

    /// Checks the limits of transfers and streams.
    pub(super) fn check_room(&self, limits: &AgentLimits, entering: usize) -> Result<(), Refusal> {
        let running = self.running() + entering;
        if running >= limits.transfers {
            let are = if running == 1 { "transfer is" } else { "transfers are" };
            let text = format!("{running} {are} running, which is the limit: try again");
            return Err(Refusal::new(RefusalKind::Busy, text));
        }
        if running >= limits.streams {
            let have = if running == 1 { "transfer has" } else { "transfers have" };
            let text = format!("{running} {have} all of its streams: try again");
            return Err(Refusal::new(RefusalKind::Busy, text));
        }
        Ok(())
    }

    /// Checks the limit of one caller's transfers over gateways and copies to and from other agents, so that none takes all
    /// of the agent's.
    pub(super) fn check_share(&self, limits: &AgentLimits, caller: &Caller) -> Result<(), Refusal> {
        let transfers = self.gateway_transfers();
        let own = transfers.iter().filter(|one| one.caller().name == caller.name).count();
        let own = own + self.initiated().iter().filter(|one| one.runs_for(caller)).count();
        if own < limits.transfers_per_caller {
            return Ok(());
        }
        let text = format!(
            "{own} transfers of {} are running, the limit of one client ([limits] transfers_per_caller): try again",
            caller.name
        );
        Err(Refusal::new(RefusalKind::Busy, text))
    }

    /// Limit of streams for a transfer to another agent, which connects them itself. `own`: its number, whose streams
    /// it may keep.
    pub(super) fn streams_free(&self, limits: &AgentLimits, own: Option<u64>) -> u16 {
        self.streams_left(limits, |id| Some(id) == own).min(limits.streams_per_transfer)
    }

    /// Streams that the limit of all transfers leaves to those that `is_own` names, at least one.
    pub(super) fn streams_left(&self, limits: &AgentLimits, is_own: impl Fn(u64) -> bool) -> u16 {
        let all: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let others = all.iter().filter(|one| !is_own(one.id));
        let taken = others.map(|one| one.streams().max(1)).sum::<usize>();
        let taken = taken + self.initiated_streams(is_own);
        let free = limits.streams.saturating_sub(taken).max(1);
        u16::try_from(free).unwrap_or(u16::MAX)
    }

    /// Admits one more stream of a transfer and counts it. Each transfer has a slot for its first
    /// stream; further streams share the free slots, and a transfer with more than one stream more than
    /// the requester loses one, so that the next attempt finds a slot.
    pub(super) fn admit_stream(&self, running: &ActiveSession) -> bool {
        let _joining = lock(&self.joining);
        let limits = lock(&self.limits).clone();
        let all: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let joined = ActiveSession::streams;
        let own = joined(running);
        if own >= usize::from(limits.streams_per_transfer) {
            return false;
        }
        // A transfer without a stream keeps its reserved slot.
        let others = all.iter().filter(|one| one.id != running.id);
        let taken = own + others.map(|one| joined(one).max(1)).sum::<usize>();
        let taken = taken + self.initiated_streams(|_| false);
        if taken < limits.streams {
            running.joined.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        if let Some(richest) = all.iter().max_by_key(|one| joined(one))
            && joined(richest) > own + 1
        {
            richest.end.session().break_newest_stream();
        }
        false
    }

    /// True if the client of a session is still admitted. A token file that is being rewritten may be
    /// empty for a moment, so a client counts as removed at the second check.
    pub(super) fn is_admitted(&self, running: &ActiveSession) -> bool {
        // The issuer of a pass ends its sessions itself.
        let admitted =
            running.caller.pass.is_some() || self.config.gatekeeper.still_admits(&running.caller);
        let refused_before = running.refused.swap(!admitted, Ordering::SeqCst);
        admitted || !refused_before
    }

    /// Ends a session; the same request can resume it.
    pub(super) fn end_now(&self, running: &Arc<ActiveSession>, reason: &str) {
        running.end.session().end(SessionOutcome::Failed(reason.to_owned()));
        if let Some(connection) = lock(&running.connection).take() {
            connection.shut_down();
        }
        self.retire(running);
    }
}
