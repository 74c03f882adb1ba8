//! Transfers that an agent sends on its own, on orders of a controller.
//!
//! Towards the destination it is an ordinary client. At this agent it is one of the transfers: it takes
//! its share of memory, streams and rate, is listed with the others, and the operator can change and
//! cancel it. Results are taken once with [`OutgoingTransfer::take_settled`].

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::digest::Digest;
use penstock_protocol::list::PathList;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Opened, Options, Push, Refusal, RefusalKind, Request};
use penstock_protocol::proof::SessionKey;
use penstock_scopes::PathAccess;
use penstock_sys::fs;
use penstock_sys::net::interface_towards;

use super::agent::{Agent, AgentInner};
use super::listing::ListedTransfer;
use super::memory::MemoryLease;
use crate::base::limits::STREAMS_DEFAULT;
use crate::base::lock::lock;
use crate::client::transfer::{ClientTransfer, SessionOrigin, TransferConfig, TransferSnapshot};
use crate::endpoint::end::Endpoint;
use crate::endpoint::sender::{SenderControl, SenderEnd};
use crate::endpoint::session_setup::check_options;
use crate::net::connector::{CopyError, PeerConnector};
use crate::net::dial::DialedPair;
use crate::session::counters::AgentCounters;
use crate::session::gatekeeper::Caller;
use crate::session::state::Session;
use crate::source::scan::ScanRoot;

/// Request to send files.
#[derive(Debug)]
pub struct OutgoingRequest {
    /// Connector to the receiving agent.
    pub to: PeerConnector,
    /// Push request for the receiving agent.
    pub push: Push,
    /// Source directory, as clients name it.
    pub from: Vec<u8>,
    /// Paths of the files below `from`.
    pub files: Arc<PathList>,
    /// Required digests, by path.
    pub expected: HashMap<Vec<u8>, Digest>,
}

/// Handle of a transfer in progress.
#[derive(Debug)]
pub struct OutgoingTransfer {
    id: u64,
    caller: Caller,
    path: String,
    started: SystemTime,
    clock: Instant,
    transfer: ClientTransfer,
    streams_max: u16,
    memory: Mutex<Option<Arc<MemoryLease>>>,
}

impl Agent {
    /// Sends files for `caller`, within its permissions and the agent's limits.
    /// [`OutgoingTransfer::take_settled`] returns the results.
    ///
    /// # Errors
    /// If the caller may not read them, or a limit is reached.
    pub fn send(
        &self,
        caller: Caller,
        sending: OutgoingRequest,
    ) -> Result<Arc<OutgoingTransfer>, Refusal> {
        self.0.send(caller, sending)
    }
}

impl AgentInner {
    fn send(
        self: &Arc<Self>,
        caller: Caller,
        sending: OutgoingRequest,
    ) -> Result<Arc<OutgoingTransfer>, Refusal> {
        let OutgoingRequest { to, mut push, from, files, expected } = sending;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down"));
        }
        let limits = lock(&self.limits).clone();
        self.check_room(&limits, 0)?;
        check_options(&push.options)?;
        let keeper = &self.config.gatekeeper;
        let place = keeper.place(&caller, &from, PathAccess::Read)?;
        push.options.mark = keeper.mark(&caller, &from, push.options.mark)?;
        let failed = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => RefusalKind::NotFound,
                _ => RefusalKind::Request,
            };
            Refusal::new(kind, format!("{}: {}", place.shown, fs::describe(&error)))
        };
        let dir = match place.path.is_empty() {
            true => place.root.try_clone(),
            false => place.root.open_dir(OsStr::from_bytes(&place.path)),
        };
        let dir = Arc::new(dir.map_err(failed)?);
        let streams_max = self.streams_free(&limits);
        let streams = push.options.settings.streams.unwrap_or(STREAMS_DEFAULT).min(streams_max);
        push.options.settings.streams = Some(streams.max(1));
        let memory = Arc::new(self.memory.acquire(push.options.block_bytes)?);
        let homes = self.config.homes.as_ref().map(|homes| {
            let address = to.dial.destination();
            homes.via_interface(address.and_then(|address| interface_towards(&address.to_string())))
        });
        let make_end = {
            let (inner, memory, options) =
                (Arc::clone(self), Arc::clone(&memory), push.options.clone());
            Box::new(move |opened: &Opened| -> Result<Endpoint, CopyError> {
                let options = Options { mark: opened.mark, ..options.clone() };
                let pace = Some(Arc::clone(&inner.pace));
                let key = SessionKey(opened.key);
                let session = Session::new(opened.session, key, options, memory.bytes(), pace)
                    .map_err(|error| CopyError::Failed(fs::describe(&error)))?
                    .with_collectors(&inner.config.collectors, &inner.fireflies)
                    .with_homes(homes.clone());
                memory.attach(session.pool.clone());
                let source = ScanRoot { dir: Arc::clone(&dir), path: PathBuf::new() };
                let end = SenderEnd::new(session, inner.engine, vec![source], false)
                    .listed_here(Arc::clone(&files))
                    .expecting(expected.clone());
                end.keep_account();
                Ok(Endpoint::Send(SenderControl(Arc::new(end))))
            })
        };
        let plan = TransferConfig {
            contact: to,
            begin: SessionOrigin::Requested(Request::Push(push)),
            make_end,
        };
        let transfer = ClientTransfer::start(plan)
            .map_err(|error| Refusal::new(RefusalKind::Agent, fs::describe(&error)))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let path = display_path(place.shown.as_bytes());
        tracing::info!("transfer {id}: send {path} to {} for {}", transfer.shown(), caller.name);
        let outgoing = Arc::new(OutgoingTransfer {
            id,
            caller,
            path,
            started: SystemTime::now(),
            clock: Instant::now(),
            transfer,
            streams_max,
            memory: Mutex::new(Some(memory)),
        });
        lock(&self.outgoing).insert(id, Arc::clone(&outgoing));
        lock(&self.totals).transfers_started += 1;
        Ok(outgoing)
    }

    pub(super) fn outgoing(&self) -> Vec<Arc<OutgoingTransfer>> {
        lock(&self.outgoing).values().cloned().collect()
    }

    /// Number of streams of all outgoing transfers.
    pub(super) fn outgoing_streams(&self) -> usize {
        let streams =
            |one: &Arc<OutgoingTransfer>| usize::from(one.transfer.snapshot().streams).max(1);
        self.outgoing().iter().map(streams).sum()
    }

    /// Removes ended transfers from the list.
    pub(super) fn retire_outgoing(&self) {
        for one in self.outgoing().into_iter().filter(|one| one.outcome().is_some()) {
            if lock(&self.outgoing).remove(&one.id).is_some() {
                drop(lock(&one.memory).take());
                // A transfer without a session is retried by its controller and not listed.
                if one.snapshot().sessions > 0 {
                    self.record_ended(one.show(), |totals| one.count(totals));
                }
            }
        }
    }
}

impl OutgoingTransfer {
    /// Number at this agent.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Result, once it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), CopyError>> {
        self.transfer.outcome()
    }

    /// Current counters, rate and bottleneck.
    #[must_use]
    pub fn snapshot(&self) -> TransferSnapshot {
        self.transfer.snapshot()
    }

    /// Final results of files since the last call.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        self.transfer.take_settled()
    }

    /// Changes its settings, within the agent's limits.
    pub fn change(&self, mut settings: Settings) {
        settings.streams = settings.streams.map(|streams| streams.min(self.streams_max).max(1));
        self.transfer.change(settings);
    }

    /// Uses these address pairs; any if `path` is empty.
    ///
    /// # Errors
    /// If no connection can use them.
    pub fn use_path(&self, path: &[DialedPair]) -> io::Result<()> {
        self.transfer.use_path(path)
    }

    /// Cancels it; the same request can resume it.
    pub fn cancel(&self, reason: &str) {
        self.transfer.cancel(reason);
    }

    pub(super) fn count(&self, counters: &mut AgentCounters) {
        let snapshot = self.transfer.snapshot();
        counters.sent_bytes += snapshot.network_bytes;
        counters.blocks_repeated += snapshot.repeated;
        counters.streams_lost += snapshot.streams_lost;
    }

    pub(super) fn show(&self) -> ListedTransfer {
        let snapshot = self.transfer.snapshot();
        let outcome = self.transfer.outcome();
        let state = match &outcome {
            None if snapshot.waiting.is_some() || snapshot.sessions == 0 => "waiting",
            None => "running",
            Some(Ok(())) if snapshot.tally.failed > 0 && !snapshot.tally.has_arrivals() => "failed",
            Some(Ok(())) => "done",
            Some(Err(CopyError::Cancelled(_))) => "cancelled",
            Some(Err(_)) => "failed",
        };
        let seconds = self.clock.elapsed().as_secs_f64();
        let mean = (snapshot.network_bytes as f64 * 8.0 / seconds.max(1e-6)) as u64;
        let tally = snapshot.tally;
        ListedTransfer {
            id: self.id,
            caller: self.caller.name.clone(),
            peer: self.transfer.shown(),
            direction: "send",
            path: self.path.clone(),
            state,
            started: self.started,
            seconds,
            bytes: tally.bytes,
            moved_bytes: tally.moved_bytes,
            resumed_bytes: tally.resumed_bytes,
            announced_bytes: tally.announced_bytes,
            files: tally.files,
            failed: tally.failed,
            streams: snapshot.streams,
            readers: snapshot.readers,
            writers: 0,
            rate_bps: snapshot.rate_bps,
            bits_per_second: if outcome.is_some() { mean } else { snapshot.bits_per_second },
            bound_by: snapshot.bound_by.to_owned(),
            engine: snapshot.engines.0,
            retransmits: snapshot.retransmits,
            scitag: snapshot.mark.map(|mark| mark.scitag),
        }
    }
}
