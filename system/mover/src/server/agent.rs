//! Accepting side: one port for many clients and sessions.
//!
//! The preamble states the kind of a connection. Until it has authenticated, it is one of a bounded
//! number of [`PendingConnections`]. A control connection opens a session or reconnects to one; a data connection
//! joins one. A session that has lost its client is kept for a while, then ended in a state from which
//! the same command resumes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use penstock_host::load::HostLoad;
use penstock_host::placement::NumaPlacement;
use penstock_identity::{Fingerprint, Identity};
use penstock_protocol::control::Settings;
use penstock_protocol::open::SessionId;
use socket2::SockRef;

use super::active_session::ActiveSession;
use super::delegate::Delegate;
use super::ended_log::{EndedTransfer, EndedTransferLog, host_of};
use super::gateway::GatewayTransfer;
use super::initiated::InitiatedTransfer;
use super::limits::AgentLimits;
use super::listing::ListedTransfer;
use super::memory::BlockMemory;
use super::pending_connections::PendingConnections;
use crate::base::engine::Engine;
use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::client::host_searches::HostSearches;
use crate::client::stream_tuning::TuningReport;
use crate::net::firefly::FireflyCounters;
use crate::net::transport::Transport;
use crate::session::counters::AgentCounters;
use crate::session::gatekeeper::Gatekeeper;
use crate::session::outcome::SessionOutcome;
use crate::session::rate_limit::SharedPacer;
use crate::sink::file_locks::FileLocks;

/// Number of ended transfers that are listed.
const HISTORY_MAX: usize = 200;

/// A transfer that ended recently, for lists.
#[derive(Debug)]
pub(super) struct RecentTransfer {
    pub(super) listed: ListedTransfer,
    /// False for one of a gateway.
    pub(super) is_native: bool,
    /// Decisions about its streams; none of one whose client chose them.
    pub(super) tuning: Option<TuningReport>,
}

/// Configuration of an agent.
pub struct AgentConfig {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Certificate and key of the agent.
    pub identity: Arc<Identity>,
    /// Policy that authenticates and authorises clients.
    pub gatekeeper: Arc<dyn Gatekeeper>,
    /// State directory for journals.
    pub state: PathBuf,
    /// Initial limits; see [`Agent::set_limits`].
    pub limits: AgentLimits,
    /// Firefly collectors, in addition to the peers of data streams.
    pub collectors: Vec<SocketAddr>,
    /// Directory in which a marker on this host pins its maps.
    pub marker: PathBuf,
    /// Placement of threads; `None` for any processor.
    pub homes: Option<NumaPlacement>,
    /// Receiver of each ended transfer.
    pub ended_log: Option<Arc<dyn EndedTransferLog>>,
    /// Answers a network test that reached the agent's port; its preamble has been read.
    pub decline_nettest: fn(&mut Transport) -> io::Result<()>,
}

impl std::fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentConfig").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Error of a request about a transfer that does not run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no transfer {0} is running: `penstock transfers` lists them")]
pub struct UnknownTransfer(pub u64);

/// Handle to a running agent; clones refer to the same one.
#[derive(Debug, Clone)]
pub struct Agent(pub(super) Arc<AgentInner>);

#[derive(Debug)]
pub(super) struct AgentInner {
    pub(super) config: AgentConfig,
    pub(super) engine: Engine,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) pending: PendingConnections,
    pub(super) pace: Arc<SharedPacer>,
    pub(super) limits: Mutex<AgentLimits>,
    pub(super) memory: BlockMemory,
    /// Held while a stream is admitted, so that two do not take one slot.
    pub(super) joining: Mutex<()>,
    pub(super) sessions: Mutex<HashMap<SessionId, Arc<ActiveSession>>>,
    /// Transfers that this agent initiated.
    pub(super) initiated: Mutex<BTreeMap<u64, Arc<InitiatedTransfer>>>,
    /// Transfers over other protocols.
    pub(super) gateway: Mutex<BTreeMap<u64, Weak<GatewayTransfer>>>,
    pub(super) history: Mutex<VecDeque<RecentTransfer>>,
    /// Searches for the streams of transfers that this agent sends.
    pub(super) searches: Arc<HostSearches>,
    /// The latest reading of the host's load.
    pub(super) load: Mutex<Option<(Instant, HostLoad)>>,
    pub(super) totals: Mutex<AgentCounters>,
    pub(super) fireflies: Arc<FireflyCounters>,
    pub(super) locks: FileLocks,
    pub(super) next_id: AtomicU64,
    /// Number of requests being granted.
    pub(super) entering: AtomicUsize,
    pub(super) stopping: AtomicBool,
}

impl Agent {
    /// Starts to listen and serve, until [`Agent::shut_down`].
    ///
    /// # Errors
    /// If listening on an address fails.
    pub fn start(config: AgentConfig) -> io::Result<Self> {
        let listeners = config
            .listen
            .iter()
            .map(|address| {
                penstock_sys::net::connect::listen(*address, 1024).map_err(|error| {
                    let why = penstock_sys::fs::describe(&error);
                    io::Error::new(error.kind(), format!("cannot listen on {address}: {why}"))
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let agent = Self(Arc::new(AgentInner {
            engine: Engine::probe(),
            listeners,
            pending: PendingConnections::default(),
            pace: Arc::new(SharedPacer::new(config.limits.rate_bps)),
            limits: Mutex::new(config.limits.clone()),
            memory: BlockMemory::new(config.limits.memory_bytes),
            joining: Mutex::default(),
            sessions: Mutex::default(),
            initiated: Mutex::default(),
            gateway: Mutex::default(),
            history: Mutex::default(),
            searches: Arc::default(),
            load: Mutex::default(),
            totals: Mutex::default(),
            fireflies: Arc::default(),
            locks: FileLocks::default(),
            next_id: AtomicU64::new(1),
            entering: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            config,
        }));
        for number in 0..agent.0.listeners.len() {
            let inner = Arc::clone(&agent.0);
            spawn("accept", move || inner.accept(number));
        }
        let inner = Arc::clone(&agent.0);
        spawn("janitor", move || inner.run_janitor());
        Ok(agent)
    }

    /// Fingerprint of the certificate that clients pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.0.config.identity.fingerprint()
    }

    /// Local addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Running transfers and the last ended ones, by id.
    #[must_use]
    pub fn transfers(&self) -> Vec<ListedTransfer> {
        self.list(|_| true, true)
    }

    /// As [`Self::transfers`], without those of gateways.
    #[must_use]
    pub fn native_transfers(&self) -> Vec<ListedTransfer> {
        self.list(|ended| ended.is_native, false)
    }

    /// The last ended transfers that `is_meant`, and the running ones, sorted by number.
    fn list(
        &self,
        is_meant: impl Fn(&RecentTransfer) -> bool,
        with_gateways: bool,
    ) -> Vec<ListedTransfer> {
        // Held until all are listed: no transfer ends meanwhile.
        let history = lock(&self.0.history);
        let ended = history.iter().filter(|ended| is_meant(ended));
        let mut all: Vec<_> = ended.map(|ended| ended.listed.clone()).collect();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        all.extend(running.iter().map(|running| running.show()));
        all.extend(self.0.initiated().iter().map(|one| one.show()));
        let gateways = if with_gateways { self.0.gateway_transfers() } else { Vec::new() };
        all.extend(gateways.iter().map(|one| one.show(false)));
        // Before `gateways`, whose last use ends a transfer.
        drop(history);
        all.sort_by_key(|transfer| transfer.id);
        all
    }

    pub(super) fn find(&self, id: u64) -> Result<Arc<ActiveSession>, UnknownTransfer> {
        lock(&self.0.sessions)
            .values()
            .find(|running| running.id == id)
            .cloned()
            .ok_or(UnknownTransfer(id))
    }

    /// Changes the settings of a running transfer at both ends.
    ///
    /// # Errors
    /// If no such transfer runs.
    pub fn set(&self, id: u64, settings: Settings) -> Result<(), UnknownTransfer> {
        if let Some(one) = lock(&self.0.initiated).get(&id) {
            one.change(settings);
            return Ok(());
        }
        if let Some(one) = self.0.gateway_transfer(id) {
            one.change(&settings);
            return Ok(());
        }
        self.find(id)?.end.change(settings);
        Ok(())
    }

    /// Cancels a running transfer at both ends.
    ///
    /// # Errors
    /// If no such transfer runs.
    pub fn cancel(&self, id: u64, reason: &str) -> Result<(), UnknownTransfer> {
        if let Some(one) = lock(&self.0.initiated).get(&id) {
            one.cancel(reason);
            return Ok(());
        }
        if let Some(one) = self.0.gateway_transfer(id) {
            one.cancel(reason);
            return Ok(());
        }
        self.find(id)?.end.cancel(reason);
        Ok(())
    }

    /// Ends running transfers of callers with this pass; the same requests can resume them.
    pub fn end_pass(&self, pass: u64, reason: &str) {
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        for running in running.iter().filter(|running| running.caller.pass == Some(pass)) {
            self.0.end_now(running, reason);
        }
    }

    /// Replaces the limits. Rate and memory also apply to running transfers.
    pub fn set_limits(&self, limits: AgentLimits) {
        self.0.pace.set(limits.rate_bps);
        self.0.memory.set_limit(limits.memory_bytes);
        *lock(&self.0.limits) = limits;
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> AgentCounters {
        // As for a list: a counter that falls looks like a restart.
        let history = lock(&self.0.history);
        let mut counters = lock(&self.0.totals).clone();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        running.iter().for_each(|running| running.end.count(&mut counters));
        self.0.initiated().iter().for_each(|one| one.count(&mut counters));
        let gateways = self.0.gateway_transfers();
        gateways.iter().for_each(|one| one.count(&mut counters));
        drop(history);
        (counters.fireflies_sent, counters.fireflies_failed) = self.0.fireflies.counts();
        counters
    }

    /// Stops accepting connections, gives running transfers `grace` to end, then ends them so that the
    /// same commands resume.
    pub fn shut_down(&self, grace: Duration) {
        self.0.stopping.store(true, Ordering::SeqCst);
        for listener in &self.0.listeners {
            let _ = SockRef::from(listener).shutdown(std::net::Shutdown::Both);
        }
        let start = Instant::now();
        let runs = || !lock(&self.0.sessions).is_empty() || !self.0.initiated().is_empty();
        while start.elapsed() < grace && runs() {
            std::thread::sleep(Duration::from_millis(20));
            self.0.retire_initiated();
        }
        self.0.initiated().iter().for_each(|one| one.cancel("the agent shuts down"));
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        for running in running {
            running.end.session().end(SessionOutcome::Failed("the agent shuts down".to_owned()));
            if let Some(connection) = lock(&running.connection).take() {
                connection.shut_down();
            }
        }
    }
}

impl AgentInner {
    /// Takes the number of a new transfer.
    pub(super) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn retire(&self, running: &Arc<ActiveSession>) {
        let history = lock(&self.history);
        if lock(&self.sessions).remove(&running.session).is_none() {
            return;
        }
        let tuning = running.delegate.as_ref().map(Delegate::tuning);
        let listed = running.show();
        let session = running.end.session();
        let observed = running.delegate.as_ref().map(Delegate::snapshot);
        let rtt_us = match running.end.direction() {
            "send" => session.report().rtt_us,
            _ => session.peer().rtt_us,
        };
        let ended = EndedTransfer {
            protocol: "penstock",
            other_host: match &running.delegate {
                Some(delegate) => delegate.peer_host(),
                None => host_of(&listed.peer),
            },
            streams_peak: observed.map_or(session.streams_peak(), |observed| observed.streams_peak),
            streams_settled: None,
            rtt_us: Some(rtt_us).filter(|rtt| *rtt > 0),
            start: running.conditions,
            samples: Arc::default(),
            listed,
        };
        self.record_ended(history, ended, tuning, |totals| running.end.count(totals));
        drop(lock(&running.memory).take());
    }

    /// Records an ended transfer. The caller has locked `history` since before it removed the transfer from the running ones,
    /// so that lists always have it.
    pub(super) fn record_ended(
        &self,
        mut history: MutexGuard<'_, VecDeque<RecentTransfer>>,
        mut ended: EndedTransfer,
        mut tuning: Option<TuningReport>,
        count: impl FnOnce(&mut AgentCounters),
    ) {
        let shown = ended.listed.clone();
        let is_native = ended.protocol == "penstock";
        if is_native {
            let peak = ended.streams_peak;
            let settled = tuning.as_ref().map(|report| report.settled_streams().unwrap_or(peak));
            ended.streams_settled = settled;
        }
        if let Some(report) = &mut tuning {
            ended.samples = std::mem::take(&mut report.samples);
        }
        let mut totals = lock(&self.totals);
        count(&mut totals);
        totals.transfers_failed += u64::from(shown.state == "failed");
        drop(totals);
        if history.len() == HISTORY_MAX {
            history.pop_front();
        }
        history.push_back(RecentTransfer { listed: shown.clone(), is_native, tuning });
        drop(history);
        tracing::info!("transfer {}: {} after {:.1} s", shown.id, shown.state, shown.seconds);
        if let Some(log) = &self.config.ended_log {
            log.record(ended);
        }
    }
}
