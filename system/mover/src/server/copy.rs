//! Copies between this agent and another that a client asks of this agent alone.
//!
//! Towards the other agent this one is an ordinary client. At this agent the rights are those of the client that asked, as
//! if it had copied by itself: the same builder makes the end, with the same journal, label and limits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_protocol::open::{Opened, Options, Pull, Push, Refusal, Request};
use penstock_protocol::proof::SessionKey;
use penstock_scopes::PathAccess;
use penstock_tuner::TuningMode;

use super::agent::{Agent, AgentInner};
use super::initiated::{InitiatedTransfer, limit_streams, start};
use super::listing::TransferDirection;
use crate::client::stream_tuning::{RECEIVES, StreamTuning};
use crate::client::transfer::{SessionOrigin, TransferConfig};
use crate::endpoint::end::Endpoint;
use crate::endpoint::session_setup::SessionBuilder;
use crate::net::connector::{CopyError, PeerConnector};
use crate::session::gatekeeper::Caller;

/// Request to copy between this agent and another.
#[derive(Debug)]
pub struct AgentCopyRequest {
    /// Number of the transfer, from [`Agent::reserve_id`]; repetitions of one copy may have the same.
    pub id: u64,
    /// Connector to the other agent.
    pub with: PeerConnector,
    /// Direction, as this agent sees it.
    pub direction: TransferDirection,
    /// Sources; those of this agent if it sends.
    pub pull: Pull,
    /// Target with the options of the copy; at this agent if it receives.
    pub push: Push,
    /// Reason to keep the streams of the request; none to tune them where this agent sends.
    pub keep_streams: Option<&'static str>,
    /// Most that the tuner may do; the agent's own mode bounds it, too.
    pub tune: TuningMode,
}

impl AgentCopyRequest {
    /// Path at this agent, with its use.
    fn own_path(&self) -> (&[u8], PathAccess) {
        match self.direction {
            TransferDirection::Send => {
                (self.pull.sources.first().map_or(&[], |path| &path.0), PathAccess::Read)
            }
            TransferDirection::Receive => (&self.push.target.0, PathAccess::Replace),
        }
    }
}

impl Agent {
    /// Takes a number for a transfer that starts later.
    #[must_use]
    pub fn reserve_id(&self) -> u64 {
        self.0.new_id()
    }

    /// Gives new transfers numbers above `last`.
    pub fn number_above(&self, last: u64) {
        self.0.next_id.fetch_max(last.saturating_add(1), Ordering::Relaxed);
    }

    /// Copies for `caller` between this agent and another, within the permissions of the caller and the agent's limits.
    ///
    /// # Errors
    /// If the caller may not use the path at this agent, or a limit is reached.
    pub fn copy(
        &self,
        caller: Caller,
        request: AgentCopyRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        self.0.copy(caller, request)
    }
}

impl AgentInner {
    fn copy(
        self: &Arc<Self>,
        caller: Caller,
        mut request: AgentCopyRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        let limits = self.check_start(&request.push.options)?;
        request.with.dscp.own = limits.dscp.decide(request.with.dscp.requested)?;
        let keeper = &self.config.gatekeeper;
        let (path, access) = request.own_path();
        let shown = keeper.place(&caller, path, access)?.shown;
        let mark = keeper.mark(&caller, path, request.push.options.mark)?;
        let streams_max = self.streams_free(&limits, None);
        request.push.options.mark = mark;
        limit_streams(&mut request.push.options, streams_max);
        let AgentCopyRequest { id, with, direction, mut pull, mut push, keep_streams, tune } =
            request;
        let tuning = match (direction, keep_streams) {
            (TransferDirection::Receive, _) => StreamTuning::Kept(RECEIVES),
            (TransferDirection::Send, Some(reason)) => StreamTuning::Kept(reason),
            (TransferDirection::Send, None) => {
                self.tuning(id, &with, &push.options, &limits, tune, false)
            }
        };
        if let Some(streams) = tuning.streams_to_begin() {
            push.options.settings.streams = Some(streams);
        }
        pull.options = push.options.clone();
        let conditions = self.start_conditions(Some(&push.options));
        let memory = Arc::new(self.memory.acquire(push.options.block_bytes)?);
        let homes = self.homes_towards(&with);
        let make_end = {
            let (inner, memory, caller) = (Arc::clone(self), Arc::clone(&memory), caller.clone());
            let (pull, push) = (pull.clone(), push.clone());
            Box::new(move |opened: &Opened| -> Result<Endpoint, CopyError> {
                let options = Options { mark: opened.mark, ..push.options.clone() };
                let builder = SessionBuilder {
                    keeper: inner.config.gatekeeper.as_ref(),
                    caller: &caller,
                    engine: inner.engine,
                    state: Some(&inner.config.state),
                    memory_bytes: memory.bytes(),
                    homes: homes.clone(),
                    pace: Some(Arc::clone(&inner.pace)),
                    collectors: &inner.config.collectors,
                    fireflies: &inner.fireflies,
                    locks: None,
                    release_partial: Some(inner.release_partials_of(&caller)),
                };
                let given = Some((opened.session, SessionKey(opened.key)));
                let built = match direction {
                    TransferDirection::Send => builder.send(&pull, &options, given),
                    TransferDirection::Receive => {
                        builder.receive(&push, &options, given, &|journal| {
                            inner.end_lost_sessions(|one| one.journal.as_ref() == Some(journal));
                            true
                        })
                    }
                };
                let end = built.map_err(CopyError::RefusedHere)?.end;
                memory.attach(end.session().pool.clone());
                Ok(end)
            })
        };
        let asked = match direction {
            TransferDirection::Send => Request::Push(push),
            TransferDirection::Receive => Request::Pull(pull),
        };
        let begin = SessionOrigin::Requested(asked);
        let transfer = start(TransferConfig { contact: with, begin, make_end, tuning })?;
        Ok(self.register(id, caller, direction, shown, transfer, conditions, streams_max, memory))
    }
}
