//! Session of an agent.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use penstock_protocol::link::ControlLink;
use penstock_protocol::open::SessionId;
use penstock_units::Dscp;

use super::delegate::Delegate;
use super::ended_log::StartConditions;
use super::listing::{ListedTransfer, finished_state};
use super::memory::MemoryLease;
use crate::base::lock::lock;
use crate::endpoint::end::Endpoint;
use crate::endpoint::rate_meter::RateMeter;
use crate::net::rdma::transport_name;
use crate::net::transport::Transport;
use crate::session::control::ControlEndpoint;
use crate::session::gatekeeper::Caller;
use crate::session::outcome::SessionOutcome;
use crate::sink::resume_journal::JournalName;

/// Session of this agent until it is retired.
#[derive(Debug)]
pub(super) struct ActiveSession {
    pub(super) id: u64,
    pub(super) session: SessionId,
    pub(super) caller: Caller,
    pub(super) peer: String,
    pub(super) path: String,
    /// Name of its journal; `None` for sending sessions.
    pub(super) journal: Option<JournalName>,
    pub(super) started: SystemTime,
    pub(super) conditions: StartConditions,
    /// DSCP of the packets of its streams.
    pub(super) dscp: Dscp,
    pub(super) end: Endpoint,
    /// Set if the files go to another agent and the client only observes.
    pub(super) delegate: Option<Delegate>,
    pub(super) link: Mutex<ControlLink>,
    pub(super) connection: Mutex<Option<Transport>>,
    pub(super) lost: Mutex<Option<Instant>>,
    pub(super) rate: Mutex<RateMeter>,
    /// Its share of the agent's memory, until it ends.
    pub(super) memory: Mutex<Option<MemoryLease>>,
    /// Number of admitted streams.
    pub(super) joined: AtomicUsize,
    /// Set once a stream by RDMA has joined.
    pub(super) by_rdma: AtomicBool,
    /// Set once a stream by TCP has joined.
    pub(super) by_tcp: AtomicBool,
    /// Set when the last check did not admit its client.
    pub(super) refused: AtomicBool,
}

impl ActiveSession {
    /// Number of streams: those admitted, or those connected by a delegate.
    pub(super) fn streams(&self) -> usize {
        match &self.delegate {
            Some(_) => usize::from(self.end.session().stream_count()),
            None => self.joined.load(Ordering::SeqCst),
        }
    }

    /// Endpoint of the client's control connection.
    pub(super) fn control(&self) -> &dyn ControlEndpoint {
        match &self.delegate {
            Some(delegate) => delegate,
            None => self.end.control(),
        }
    }

    pub(super) fn clock(&self) -> Instant {
        self.end.session().started
    }

    pub(super) fn show(&self) -> ListedTransfer {
        let (session, tally) = (self.end.session(), self.end.tally());
        let state = match session.ending() {
            Some(SessionOutcome::Finished) => finished_state(tally.failed, tally.has_arrivals()),
            Some(SessionOutcome::Cancelled(_)) => "cancelled",
            Some(SessionOutcome::Failed(_)) => "failed",
            None if lock(&self.lost).is_some() => "waiting",
            None => "running",
        };
        let mut rate = lock(&self.rate);
        rate.observe(&self.end);
        let (bits_per_second, bound_by) = match session.ending() {
            Some(_) => rate.overall(&self.end),
            None if state == "waiting" => (0, "-"),
            None => (rate.bits_per_second, rate.bound_by),
        };
        // Which streams are left at the end says nothing.
        let streams = match (session.ending(), &self.delegate) {
            (None, _) => session.stream_count(),
            (Some(_), None) => session.streams_peak(),
            (Some(_), Some(delegate)) => delegate.snapshot().streams_peak,
        };
        let (readers, writers) = self.end.threads();
        let (transport, transport_reason) = self.transport();
        ListedTransfer {
            id: self.id,
            caller: self.caller.name.clone(),
            peer: self.peer.clone(),
            direction: self.end.direction(),
            path: self.path.clone(),
            state,
            started: self.started,
            seconds: session.started.elapsed().as_secs_f64(),
            bytes: tally.bytes,
            moved_bytes: tally.moved_bytes,
            resumed_bytes: tally.resumed_bytes,
            announced_bytes: tally.announced_bytes,
            files: tally.files,
            failed: tally.failed,
            streams,
            readers,
            writers,
            rate_bps: session.pace.rate_bps(),
            bits_per_second,
            bound_by: bound_by.to_owned(),
            engine: session.engine(),
            retransmits: self.end.retransmits(),
            scitag: session.options.mark.map(|mark| mark.scitag),
            transport,
            transport_reason,
        }
    }

    /// Transport of its streams, and the reason that a delegate has for it.
    fn transport(&self) -> (&'static str, String) {
        let joined = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        match &self.delegate {
            Some(delegate) => {
                let snapshot = delegate.snapshot();
                (snapshot.transport, snapshot.transport_reason)
            }
            None => (transport_name(joined(&self.by_rdma), joined(&self.by_tcp)), String::new()),
        }
    }
}
