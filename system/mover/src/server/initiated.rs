//! Transfers that an agent initiates: it sends files on orders of a controller, and fetches a file from another
//! agent for a client of a gateway.
//!
//! Towards the other agent it is an ordinary client. At this agent it is one of the transfers: it takes
//! its share of memory, streams and rate, is listed with the others, and the operator can change and
//! cancel it. Results are taken once with [`InitiatedTransfer::take_settled`] by a sender and
//! [`InitiatedTransfer::take_placed`] by a receiver.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use penstock_host::placement::NumaPlacement;
use penstock_protocol::control::{Placed, Settings, Settled};
use penstock_protocol::digest::Digest;
use penstock_protocol::list::PathList;
use penstock_protocol::open::{Opened, Options, Pull, Push, Refusal, RefusalKind, Request};
use penstock_protocol::proof::SessionKey;
use penstock_protocol::wire::Bytes;
use penstock_scopes::PathAccess;
use penstock_sys::fs::{self, Dir};
use penstock_sys::net::interface_towards;
use penstock_tuner::TuningMode;

use super::agent::{Agent, AgentInner};
use super::ended_log::{EndedTransfer, StartConditions, dialed_host};
use super::limits::AgentLimits;
use super::listing::{ListedTransfer, TransferDirection, finished_state};
use super::memory::MemoryLease;
use crate::base::limits::STREAMS_DEFAULT;
use crate::base::lock::lock;
use crate::client::stream_tuning::{RECEIVES, StreamTuning, TuningReport};
use crate::client::transfer::{ClientTransfer, SessionOrigin, TransferConfig, TransferSnapshot};
use crate::endpoint::end::Endpoint;
use crate::endpoint::sender::{SenderControl, SenderEnd};
use crate::endpoint::session_setup::{SessionBuilder, check_options};
use crate::net::connector::{CopyError, PeerConnector};
use crate::net::dial::DialedPair;
use crate::net::handshake::random;
use crate::session::counters::AgentCounters;
use crate::session::gatekeeper::Caller;
use crate::session::state::Session;
use crate::sink::destination::{OpenTarget, TransferTarget};
use crate::source::scan::ScanRoot;

/// Request to send files.
#[derive(Debug)]
pub struct SendRequest {
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
    /// Most that the tuner may do; the agent's own mode bounds it, too.
    pub tune: TuningMode,
}

/// Request to send one file to another agent.
#[derive(Debug)]
pub struct SendFileRequest {
    /// Connector to the receiving agent.
    pub to: PeerConnector,
    /// Directory at this agent that has the file.
    pub directory: Dir,
    /// Name of the file in `directory`.
    pub name: OsString,
    /// Path of the file at this agent, as clients name it.
    pub shown: String,
    /// Push request for the receiving agent, with the scitag that the gatekeeper decided on.
    pub push: Push,
}

/// Request to fetch one file from another agent.
#[derive(Debug)]
pub struct FetchRequest {
    /// Connector to the sending agent.
    pub from: PeerConnector,
    /// Path of the file at the sending agent.
    pub source: Vec<u8>,
    /// Directory at this agent that gets the file.
    pub directory: Dir,
    /// Name of the file in `directory`.
    pub name: OsString,
    /// Path of the file at this agent, as clients name it.
    pub shown: String,
    /// Options of the copy, with the scitag that the gatekeeper decided on.
    pub options: Options,
}

/// Handle of a transfer in progress.
#[derive(Debug)]
pub struct InitiatedTransfer {
    id: u64,
    caller: Caller,
    direction: TransferDirection,
    path: String,
    started: SystemTime,
    conditions: StartConditions,
    clock: Instant,
    transfer: ClientTransfer,
    streams_max: u16,
    memory: Mutex<Option<Arc<MemoryLease>>>,
}

impl Agent {
    /// Sends files for `caller`, within its permissions and the agent's limits.
    /// [`InitiatedTransfer::take_settled`] returns the results.
    ///
    /// # Errors
    /// If the caller may not read them, or a limit is reached.
    pub fn send(
        &self,
        caller: Caller,
        sending: SendRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        self.0.send(caller, sending)
    }

    /// Sends a file for `caller`, within the agent's limits and its share of them. The caller has checked the permission to
    /// read.
    ///
    /// # Errors
    /// If a limit is reached.
    pub fn send_file(
        &self,
        caller: Caller,
        sending: SendFileRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        let limits = lock(&self.0.limits).clone();
        self.0.check_share(&limits, &caller)?;
        let SendFileRequest { to, directory, name, shown, push } = sending;
        let source = ScanRoot { dir: Arc::new(directory), path: PathBuf::from(name) };
        self.0.push(caller, to, push, TuningMode::Auto, source, shown, |end| end)
    }

    /// Fetches a file for `caller`, within the agent's limits and its share of them. Nothing is left of a fetch that fails:
    /// there is no journal, and the caller repeats it as a whole. The caller has checked the permission to write.
    ///
    /// # Errors
    /// If a limit is reached.
    pub fn fetch(
        &self,
        caller: Caller,
        fetching: FetchRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        self.0.fetch(caller, fetching)
    }
}

impl AgentInner {
    fn send(
        self: &Arc<Self>,
        caller: Caller,
        sending: SendRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        let SendRequest { to, mut push, from, files, expected, tune } = sending;
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
        let source = ScanRoot { dir: Arc::new(dir.map_err(failed)?), path: PathBuf::new() };
        let path = place.shown;
        self.push(caller, to, push, tune, source, path, move |end| {
            end.listed_here(Arc::clone(&files)).expecting(expected.clone())
        })
    }

    /// Sends a source; `prepare` completes the end of each session.
    #[expect(clippy::too_many_arguments, reason = "each is a field of the transfer")]
    fn push(
        self: &Arc<Self>,
        caller: Caller,
        mut to: PeerConnector,
        mut push: Push,
        tune: TuningMode,
        source: ScanRoot,
        path: String,
        prepare: impl Fn(SenderEnd) -> SenderEnd + Send + Sync + 'static,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        let limits = self.check_start(&push.options)?;
        to.dscp.own = limits.dscp.own;
        let streams_max = self.streams_free(&limits, None);
        let is_named = push.options.settings.streams.is_some();
        limit_streams(&mut push.options, streams_max);
        let id = self.new_id();
        let tuning = self.tuning(id, &to, &push.options, &limits, tune, is_named);
        if let Some(streams) = tuning.streams_to_begin() {
            push.options.settings.streams = Some(streams);
        }
        let options = &mut push.options;
        if let Some(block_bytes) = tuning.block_to_begin(options.block_bytes, options.algorithm) {
            options.block_bytes = block_bytes;
        }
        let conditions = self.start_conditions(Some(&push.options));
        let memory = Arc::new(self.memory.acquire(push.options.block_bytes)?);
        let homes = self.homes_towards(&to);
        let make_end = {
            let (inner, memory, options) =
                (Arc::clone(self), Arc::clone(&memory), push.options.clone());
            Box::new(move |opened: &Opened| -> Result<Endpoint, CopyError> {
                let options = Options { mark: opened.mark, ..options.clone() };
                let pace = Some(Arc::clone(&inner.pace));
                let key = SessionKey(opened.key);
                let session = Session::new(opened.session, key, options, memory.bytes(), pace)
                    .map_err(CopyError::from)?
                    .with_collectors(&inner.config.collectors, &inner.fireflies)
                    .with_homes(homes.clone());
                memory.attach(session.pool.clone());
                let sources = vec![source.clone()];
                let end = prepare(SenderEnd::new(session, inner.engine, sources, false));
                end.keep_account();
                Ok(Endpoint::Send(SenderControl(Arc::new(end))))
            })
        };
        let plan = TransferConfig {
            contact: to,
            begin: SessionOrigin::Requested(Request::Push(push)),
            make_end,
            tuning,
        };
        let transfer = start(plan)?;
        let direction = TransferDirection::Send;
        Ok(self.register(id, caller, direction, path, transfer, conditions, streams_max, memory))
    }

    fn fetch(
        self: &Arc<Self>,
        caller: Caller,
        fetching: FetchRequest,
    ) -> Result<Arc<InitiatedTransfer>, Refusal> {
        let FetchRequest { mut from, source, directory, name, shown, mut options } = fetching;
        let limits = self.check_start(&options)?;
        self.check_share(&limits, &caller)?;
        from.dscp.own = limits.dscp.own;
        let streams_max = self.streams_free(&limits, None);
        limit_streams(&mut options, streams_max);
        let conditions = self.start_conditions(Some(&options));
        let memory = Arc::new(self.memory.acquire(options.block_bytes)?);
        let homes = self.homes_towards(&from);
        let make_end = {
            let (inner, memory, caller) = (Arc::clone(self), Arc::clone(&memory), caller.clone());
            let options = options.clone();
            Box::new(move |opened: &Opened| -> Result<Endpoint, CopyError> {
                let options = Options { mark: opened.mark, ..options.clone() };
                let builder = SessionBuilder {
                    keeper: inner.config.gatekeeper.as_ref(),
                    caller: &caller,
                    engine: inner.engine,
                    state: None,
                    memory_bytes: memory.bytes(),
                    homes: homes.clone(),
                    pace: Some(Arc::clone(&inner.pace)),
                    collectors: &inner.config.collectors,
                    fireflies: &inner.fireflies,
                    locks: None,
                    release_partial: None,
                };
                let base = directory.try_clone()?;
                let at = OpenTarget { base, rename: Some(name.clone()), is_new: false };
                let target = TransferTarget::new(at, random(), false);
                let given = (opened.session, SessionKey(opened.key));
                let (end, _) = builder
                    .receiver(target, &options, Some(given), &|_| true)
                    .map_err(CopyError::RefusedHere)?;
                memory.attach(end.session().pool.clone());
                end.keep_placed(true);
                Ok(end)
            })
        };
        let pull = Pull { sources: vec![Bytes(source)], recursive: false, listed: false, options };
        let plan = TransferConfig {
            contact: from,
            begin: SessionOrigin::Requested(Request::Pull(pull)),
            make_end,
            tuning: StreamTuning::Kept(RECEIVES),
        };
        let transfer = start(plan)?;
        let direction = TransferDirection::Receive;
        Ok(self.register(
            self.new_id(),
            caller,
            direction,
            shown,
            transfer,
            conditions,
            streams_max,
            memory,
        ))
    }

    /// Checks the options and the room for a transfer; returns the limits.
    pub(super) fn check_start(&self, options: &Options) -> Result<AgentLimits, Refusal> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down"));
        }
        let limits = lock(&self.limits).clone();
        self.check_room(&limits, 0)?;
        check_options(options)?;
        Ok(limits)
    }

    /// Placement of threads near the interface that leads to `peer`.
    pub(super) fn homes_towards(&self, peer: &PeerConnector) -> Option<NumaPlacement> {
        let homes = self.config.homes.as_ref()?;
        let address = peer.dial.destination();
        let interface = address.and_then(|address| interface_towards(&address.to_string()));
        Some(homes.via_interface(interface))
    }

    /// Adds a started transfer to those of the agent.
    #[expect(clippy::too_many_arguments, reason = "each is a field of the transfer")]
    pub(super) fn register(
        &self,
        id: u64,
        caller: Caller,
        direction: TransferDirection,
        path: String,
        transfer: ClientTransfer,
        conditions: StartConditions,
        streams_max: u16,
        memory: Arc<MemoryLease>,
    ) -> Arc<InitiatedTransfer> {
        let way = match direction {
            TransferDirection::Send => "to",
            TransferDirection::Receive => "from",
        };
        let verb = direction.verb();
        let peer = transfer.shown();
        tracing::info!("transfer {id}: {verb} {path} {way} {peer} for {}", caller.name);
        let initiated = Arc::new(InitiatedTransfer {
            id,
            caller,
            direction,
            path,
            started: SystemTime::now(),
            conditions,
            clock: Instant::now(),
            transfer,
            streams_max,
            memory: Mutex::new(Some(memory)),
        });
        lock(&self.initiated).insert(id, Arc::clone(&initiated));
        lock(&self.totals).transfers_started += 1;
        initiated
    }

    pub(super) fn initiated(&self) -> Vec<Arc<InitiatedTransfer>> {
        lock(&self.initiated).values().cloned().collect()
    }

    /// Number of streams of all initiated transfers but those that `is_own` names.
    pub(super) fn initiated_streams(&self, is_own: impl Fn(u64) -> bool) -> usize {
        let others = self.initiated();
        let others = others.iter().filter(|one| !is_own(one.id));
        others.map(|one| usize::from(one.transfer.stream_count()).max(1)).sum()
    }

    /// Removes ended transfers from the list.
    pub(super) fn retire_initiated(&self) {
        for one in self.initiated().into_iter().filter(|one| one.outcome().is_some()) {
            let history = lock(&self.history);
            if lock(&self.initiated).remove(&one.id).is_some() {
                // A transfer without a session is retried by its controller and not listed.
                if one.snapshot().sessions > 0 {
                    let tuning = Some(one.tuning());
                    self.record_ended(history, one.ended(), tuning, |totals| one.count(totals));
                }
                drop(lock(&one.memory).take());
            }
        }
    }
}

impl InitiatedTransfer {
    /// Number at this agent.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// True while it runs for this caller.
    pub(super) fn runs_for(&self, caller: &Caller) -> bool {
        self.caller.name == caller.name && self.outcome().is_none()
    }

    /// Result, once it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), CopyError>> {
        self.transfer.outcome()
    }

    /// Waits until the other agent has opened a session or the transfer has ended; true for a session.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn wait_for_session(&self) -> io::Result<bool> {
        self.transfer.wait_for_session()
    }

    /// Waits for the end of the transfer.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn wait_for_end(&self) -> io::Result<()> {
        self.transfer.over().wait(None).map(|_| ())
    }

    /// Address of the other agent, once it is known.
    #[must_use]
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.transfer.peer_address()
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

    /// Files that were committed at this agent since the last call.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        self.transfer.take_placed()
    }

    /// Changes its settings, within the agent's limits.
    pub fn change(&self, settings: Settings) {
        self.transfer.change(self.limited(settings));
    }

    /// Applies the settings of an order, within the agent's limits; a tuner uses at most its streams.
    pub fn allot(&self, settings: Settings) {
        self.transfer.allot(self.limited(settings));
    }

    fn limited(&self, mut settings: Settings) -> Settings {
        settings.streams = settings.streams.map(|streams| streams.min(self.streams_max).max(1));
        settings
    }

    /// Lets its tuner do at most this, within the mode of the operator.
    ///
    /// # Errors
    /// The reason why its streams are not tuned.
    pub fn set_tuning(&self, mode: TuningMode) -> Result<(), &'static str> {
        self.transfer.set_tuning(mode)
    }

    /// Decisions about its streams, or the reason why there are none.
    #[must_use]
    pub fn tuning(&self) -> TuningReport {
        self.transfer.tuning()
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
        match self.direction {
            TransferDirection::Send => counters.sent_bytes += snapshot.network_bytes,
            TransferDirection::Receive => counters.received_bytes += snapshot.network_bytes,
        }
        counters.blocks_repeated += snapshot.repeated;
        counters.streams_lost += snapshot.streams_lost;
    }

    fn ended(&self) -> EndedTransfer {
        let (listed, snapshot) = (self.show(), self.transfer.snapshot());
        EndedTransfer {
            protocol: "penstock",
            other_host: dialed_host(&listed.peer, self.peer_address()),
            streams_peak: snapshot.streams_peak,
            streams_settled: None,
            rtt_us: snapshot.rtt.and_then(|rtt| u32::try_from(rtt.as_micros()).ok()),
            start: self.conditions,
            samples: Arc::default(),
            listed,
        }
    }

    /// The transfer as listed for operators.
    #[must_use]
    pub fn show(&self) -> ListedTransfer {
        let snapshot = self.transfer.snapshot();
        let outcome = self.transfer.outcome();
        let state = match &outcome {
            None if snapshot.waiting.is_some() || snapshot.sessions == 0 => "waiting",
            None => "running",
            Some(Ok(())) => finished_state(snapshot.tally.failed, snapshot.tally.has_arrivals()),
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
            direction: self.direction.verb(),
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
            streams: if outcome.is_some() { snapshot.streams_peak } else { snapshot.streams },
            readers: snapshot.readers,
            writers: snapshot.writers,
            rate_bps: snapshot.rate_bps,
            bits_per_second: if outcome.is_some() { mean } else { snapshot.bits_per_second },
            bound_by: snapshot.bound_by.to_owned(),
            engine: snapshot.engines.0,
            retransmits: snapshot.retransmits,
            scitag: snapshot.mark.map(|mark| mark.scitag),
            transport: snapshot.transport,
            transport_reason: snapshot.transport_reason,
        }
    }
}

/// Limits the number of streams in `options`.
pub(super) fn limit_streams(options: &mut Options, streams_max: u16) {
    let streams = options.settings.streams.unwrap_or(STREAMS_DEFAULT).min(streams_max);
    options.settings.streams = Some(streams.max(1));
}

pub(super) fn start(plan: TransferConfig) -> Result<ClientTransfer, Refusal> {
    ClientTransfer::start(plan)
        .map_err(|error| Refusal::new(RefusalKind::Agent, fs::describe(&error)))
}
