//! A session at an agent, as long as it runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use penstock_protocol::link::ControlLink;
use penstock_protocol::open::SessionId;

use super::{Caller, Transfer};
use crate::control::End;
use crate::delegate::Delegate;
use crate::granting::{self, AnyEnd};
use crate::memory::Hold;
use crate::session::{Ending, lock};
use crate::sink::JournalName;
use crate::transport::Transport;

/// A session at this agent.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) session: SessionId,
    pub(super) caller: Caller,
    pub(super) peer: String,
    pub(super) path: String,
    /// The name of its journal, where it has one.
    pub(super) journal: Option<JournalName>,
    pub(super) started: SystemTime,
    pub(super) end: AnyEnd,
    /// Where its files go to another agent, and its client only looks on.
    pub(super) delegate: Option<Delegate>,
    pub(super) link: Mutex<ControlLink>,
    pub(super) connection: Mutex<Option<Transport>>,
    pub(super) lost: Mutex<Option<Instant>>,
    pub(super) rate: Mutex<granting::RateMeter>,
    /// Its part of the agent's memory, until it is over.
    pub(super) memory: Mutex<Option<Hold>>,
    /// Streams that were let in and are not gone.
    pub(super) joined: AtomicUsize,
    /// Its client was not let in any more when that was looked at last.
    pub(super) refused: AtomicBool,
}

impl Running {
    /// Streams that it has, or may make where it makes them itself.
    pub(super) fn streams(&self) -> usize {
        match &self.delegate {
            Some(_) => usize::from(self.end.session().stream_count()),
            None => self.joined.load(Ordering::SeqCst),
        }
    }

    /// What the client's control connection carries.
    pub(super) fn control(&self) -> &dyn End {
        match &self.delegate {
            Some(delegate) => delegate,
            None => self.end.control(),
        }
    }

    pub(super) fn clock(&self) -> Instant {
        self.end.session().started
    }

    pub(super) fn show(&self) -> Transfer {
        let (session, tally) = (self.end.session(), self.end.tally());
        let state = match session.ending() {
            Some(Ending::Finished) if tally.failed > 0 && !tally.has_arrivals() => "failed",
            Some(Ending::Finished) => "done",
            Some(Ending::Cancelled(_)) => "cancelled",
            Some(Ending::Failed(_)) => "failed",
            None if lock(&self.lost).is_some() => "waiting",
            None => "running",
        };
        let mut rate = lock(&self.rate);
        rate.observe(&self.end);
        let (bits_per_second, bound_by) = match session.ending() {
            Some(_) => rate.of_all(&self.end),
            None => (rate.bits_per_second, rate.bound_by),
        };
        let (readers, writers) = self.end.threads();
        Transfer {
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
            streams: session.stream_count(),
            readers,
            writers,
            rate_bps: session.pace.rate_bps(),
            bits_per_second,
            bound_by: bound_by.to_owned(),
            engine: session.engine(),
            retransmits: self.end.retransmits(),
            scitag: session.options.mark.map(|mark| mark.scitag),
        }
    }
}
