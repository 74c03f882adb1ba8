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
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use penstock_host::placement::NumaPlacement;
use penstock_protocol::control::Settings;
use penstock_protocol::link::ControlLink;
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{
    Answer, Join, Mark, Open, Opened, Protection, Reconnect, Refusal, RefusalKind, Request,
    SessionId,
};
use penstock_protocol::preamble::{ConnectionKind, Preamble};
use penstock_protocol::proof::{Nonces, SessionKey};
use penstock_sys::fs::Dir;
use penstock_sys::net::{interface_with, is_own_address};
use socket2::SockRef;

use crate::channel::Channel;
use crate::control::{self, DriveEnd};
use crate::delegate::Delegate;
use crate::engine::Engine;
use crate::firefly::FireflyCounters;
use crate::handshake::{self, Joined};
use crate::identity::{Fingerprint, Identity};
use crate::labels::{Labelling, label_accepted};
use crate::memory::BlockMemory;
use crate::nettest;
use crate::pending_connections::PendingConnections;
use crate::sender::spawn;
use crate::session::{PEER_TIMEOUT, SessionOutcome, SharedPacer, lock};
use crate::session_setup::{self, Endpoint};
use crate::sink::{FileLocks, ReleasePartial};
use crate::transport::Transport;

pub use limits::Limits;
pub use listing::{Counters, Transfer};

use active_session::ActiveSession;
use limits::PendingGrant;
use outgoing::OutgoingTransfer;

mod active_session;
mod admission;
mod janitor;
mod limits;
mod listing;
pub mod outgoing;

/// Time limit for authentication of a connection.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a session is kept without its client.
const SESSION_RETENTION: Duration = Duration::from_secs(60);

/// Time for which a transfer to another agent continues without its requester. A requester that was
/// killed cannot reconnect, and the destination rejects a second session for the same files.
const DELEGATE_RETENTION: Duration = Duration::from_secs(3);
/// Longest interval between checks for files of abandoned transfers.
const ABANDONED_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Number of ended transfers that are listed.
const HISTORY_MAX: usize = 200;

/// Authenticated client of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name of its token or certificate.
    pub name: String,
    /// Number of the pass that it presented, if the gatekeeper issued one for a single purpose.
    /// Transfers of such callers never write one file concurrently.
    pub pass: Option<u64>,
    /// SHA-256 of its token; `None` for a certificate or a pass.
    pub token: Option<[u8; 32]>,
}

/// Resolved path of a client.
#[derive(Debug)]
pub struct ResolvedPath {
    /// Directory that confines the client.
    pub root: Dir,
    /// Path below `root`; empty for the directory itself.
    pub path: Vec<u8>,
    /// Path as the client names it.
    pub shown: String,
}

/// Authorisation policy; the mover itself has none.
pub trait Gatekeeper: Send + Sync {
    /// Authenticates a client.
    ///
    /// # Errors
    /// If the client is unknown; the refusal states the remedy.
    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal>;

    /// True if an admitted client is still valid: its token, certificate or order may have been
    /// withdrawn.
    fn still_admits(&self, _caller: &Caller) -> bool {
        true
    }

    /// Resolves a path for reading or writing.
    ///
    /// # Errors
    /// If the path does not exist or this client may not use it.
    fn place(&self, caller: &Caller, path: &[u8], write: bool) -> Result<ResolvedPath, Refusal>;

    /// Returns the scitag of data that a client sends to or gets from a path; `asked` is the client's
    /// choice.
    ///
    /// # Errors
    /// If this client may not set it.
    fn mark(
        &self,
        _caller: &Caller,
        _path: &[u8],
        asked: Option<Mark>,
    ) -> Result<Option<Mark>, Refusal> {
        Ok(asked)
    }

    /// Authorises sending files to `to` for a third-party copy. `from_here` is set when the client is
    /// on this host or `to` is this agent.
    ///
    /// # Errors
    /// If it is not allowed.
    fn may_send_to(&self, _to: SocketAddr, _from_here: bool) -> Result<(), Refusal> {
        Ok(())
    }

    /// True if clients act for the user of this process and may therefore set owners.
    fn trusts_owners(&self) -> bool {
        false
    }
}

/// Configuration of an agent.
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Certificate and key of the agent.
    pub identity: Arc<Identity>,
    /// Policy that authenticates and authorises clients.
    pub gatekeeper: Arc<dyn Gatekeeper>,
    /// State directory for journals.
    pub state: PathBuf,
    /// Initial limits; see [`Agent::set_limits`].
    pub limits: Limits,
    /// Firefly collectors, in addition to the peers of data streams.
    pub collectors: Vec<SocketAddr>,
    /// Directory in which a marker on this host pins its maps.
    pub marker: PathBuf,
    /// Placement of threads; `None` for any processor.
    pub homes: Option<NumaPlacement>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Handle to a running agent; clones refer to the same one.
#[derive(Debug, Clone)]
pub struct Agent(Arc<AgentInner>);

#[derive(Debug)]
struct AgentInner {
    config: Config,
    engine: Engine,
    listeners: Vec<TcpListener>,
    pending: PendingConnections,
    pace: Arc<SharedPacer>,
    limits: Mutex<Limits>,
    memory: BlockMemory,
    /// Held while a stream is admitted, so that two do not take one slot.
    joining: Mutex<()>,
    sessions: Mutex<HashMap<SessionId, Arc<ActiveSession>>>,
    /// Transfers that this agent sends on its own.
    outgoing: Mutex<BTreeMap<u64, Arc<OutgoingTransfer>>>,
    history: Mutex<VecDeque<Transfer>>,
    totals: Mutex<Counters>,
    fireflies: Arc<FireflyCounters>,
    locks: FileLocks,
    next_id: AtomicU64,
    /// Number of requests being granted.
    entering: AtomicUsize,
    stopping: AtomicBool,
}

impl Agent {
    /// Starts to listen and serve, until [`Agent::shut_down`].
    ///
    /// # Errors
    /// If listening on an address fails.
    pub fn start(config: Config) -> io::Result<Self> {
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
            outgoing: Mutex::default(),
            history: Mutex::default(),
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

    /// Local addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Running transfers and the last ended ones, by id.
    #[must_use]
    pub fn transfers(&self) -> Vec<Transfer> {
        let mut all: Vec<_> = lock(&self.0.history).iter().cloned().collect();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        all.extend(running.iter().map(|running| running.show()));
        all.extend(self.0.outgoing().iter().map(|one| one.show()));
        all.sort_by_key(|transfer| transfer.id);
        all
    }

    fn find(&self, id: u64) -> Result<Arc<ActiveSession>, String> {
        lock(&self.0.sessions)
            .values()
            .find(|running| running.id == id)
            .cloned()
            .ok_or_else(|| format!("no transfer {id} is running: `penstock transfers` lists them"))
    }

    /// Changes the settings of a running transfer at both ends.
    ///
    /// # Errors
    /// If no such transfer runs.
    pub fn set(&self, id: u64, settings: Settings) -> Result<(), String> {
        if let Some(one) = lock(&self.0.outgoing).get(&id) {
            one.change(settings);
            return Ok(());
        }
        self.find(id)?.end.change(settings);
        Ok(())
    }

    /// Cancels a running transfer at both ends.
    ///
    /// # Errors
    /// If no such transfer runs.
    pub fn cancel(&self, id: u64, reason: &str) -> Result<(), String> {
        if let Some(one) = lock(&self.0.outgoing).get(&id) {
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
    pub fn set_limits(&self, limits: Limits) {
        self.0.pace.set(limits.rate_bps);
        self.0.memory.set_limit(limits.memory_bytes);
        *lock(&self.0.limits) = limits;
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = lock(&self.0.totals).clone();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        running.iter().for_each(|running| running.end.count(&mut counters));
        self.0.outgoing().iter().for_each(|one| one.count(&mut counters));
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
        let runs = || !lock(&self.0.sessions).is_empty() || !self.0.outgoing().is_empty();
        while start.elapsed() < grace && runs() {
            std::thread::sleep(Duration::from_millis(20));
            self.0.retire_outgoing();
        }
        self.0.outgoing().iter().for_each(|one| one.cancel("the agent shuts down"));
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
    fn accept(self: &Arc<Self>, number: usize) {
        while !self.stopping.load(Ordering::SeqCst) {
            let transport = match self.listeners[number].accept() {
                Ok((tcp, _)) => Transport::Tcp(tcp),
                Err(error) => {
                    // Most likely out of file descriptors: the janitor closes some.
                    if !self.stopping.load(Ordering::SeqCst) {
                        tracing::warn!("cannot accept: {}", penstock_sys::fs::describe(&error));
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    continue;
                }
            };
            lock(&self.totals).connections += 1;
            while self.pending.is_full() && !self.stopping.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let Ok(pending) = self.pending.add(&transport) else { continue };
            let inner = Arc::clone(self);
            let serve = move || {
                let peer = transport.peer();
                if let Err(error) = inner.serve(transport, pending) {
                    lock(&inner.totals).refused += 1;
                    tracing::debug!("{peer}: {error}");
                }
            };
            if std::thread::Builder::new().name("serve".into()).spawn(serve).is_err() {
                self.pending.remove(pending);
                tracing::warn!("cannot start a thread for a connection (raise TasksMax)");
            }
        }
    }

    fn serve(self: &Arc<Self>, mut transport: Transport, pending: u64) -> io::Result<()> {
        let result = self.read_preamble(&mut transport).and_then(|preamble| {
            if let Transport::Tcp(tcp) = &transport {
                tcp.set_nodelay(true)?;
            }
            if preamble.kind == ConnectionKind::NettestControl && !preamble.tls {
                return nettest::decline(&mut transport);
            }
            let channel = if preamble.tls {
                Channel::accept_tls(transport, self.config.identity.tls_server_config())?
            } else {
                Channel::clear(transport)
            };
            match preamble.kind {
                ConnectionKind::Control if preamble.tls => self.control(channel, pending),
                ConnectionKind::Data => self.data(channel, pending),
                _ => Err(io::Error::other("this kind of connection is not served here")),
            }
        });
        self.pending.remove(pending);
        result
    }

    fn read_preamble(&self, transport: &mut Transport) -> io::Result<Preamble> {
        transport.set_timeouts(Some(AUTHENTICATION_TIMEOUT))?;
        handshake::read_preamble(transport).inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                tracing::info!("{}: {error}", transport.peer());
                // A peer with another version learns ours from our preamble.
                let ours = Preamble { kind: ConnectionKind::Control, tls: false };
                let _ = handshake::send_preamble(transport, ours);
            }
        })
    }

    fn data(&self, mut channel: Channel, pending: u64) -> io::Result<()> {
        let (nonce, join) = handshake::challenge(&mut channel)?;
        let running = lock(&self.sessions).get(&join.session).cloned();
        let answer = self.check_join(&join, running.as_deref(), nonce, channel.is_tls());
        let ready = handshake::send_join_answer(&mut channel, answer).and_then(|()| {
            channel.transport().set_timeouts(None)?;
            channel.transport().notice_death(PEER_TIMEOUT)
        });
        let Some(running) = running.filter(|_| answer == Joined::Yes) else {
            return Err(io::Error::other(format!("a data connection is refused: {answer:?}")));
        };
        if let Err(error) = ready {
            running.joined.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        self.pending.remove(pending);
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        if let Endpoint::Send(_) = running.end {
            let session = running.end.session();
            let mark = session.options.mark;
            let pin = &self.config.marker;
            session.set_label(match channel.transport() {
                Transport::Tcp(tcp) => label_accepted(mark, tcp, pin),
                Transport::Local(_) => Labelling::inside(mark).description,
            });
        }
        // The session has already recorded the end of its stream.
        let _ = running.end.run_stream(join.stream, channel, &nonces);
        running.joined.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn check_join(
        &self,
        join: &Join,
        running: Option<&ActiveSession>,
        nonce: [u8; 32],
        tls: bool,
    ) -> Joined {
        let Some(running) = running else { return Joined::UnknownSession };
        let session = running.end.session();
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        let proven = session.key().verify_join(&join.session, join.stream, &nonces, &join.proof);
        let protected = tls == (session.options.protection == Protection::Full);
        match () {
            () if !proven || !protected || running.delegate.is_some() => Joined::Refused,
            () if !self.admit_stream(running) => Joined::TooMany,
            () => Joined::Yes,
        }
    }

    /// True if this agent listens on an address.
    fn listens_on(&self, address: SocketAddr) -> bool {
        let own = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        own.filter(|own| own.port() == address.port()).any(|own| {
            let ip = address.ip().to_canonical();
            own.ip().to_canonical() == ip || own.ip().is_unspecified() && is_own_address(ip)
        })
    }

    /// Limit of streams for a transfer to another agent, which connects them itself.
    fn streams_free(&self, limits: &Limits) -> u16 {
        let all: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let taken = all.iter().map(|one| one.streams().max(1)).sum::<usize>();
        let taken = taken + self.outgoing_streams();
        let free = limits.streams.saturating_sub(taken).max(1);
        u16::try_from(free).unwrap_or(u16::MAX).min(limits.streams_per_transfer)
    }

    /// Admits one more stream of a transfer and counts it. Each transfer has a slot for its first
    /// stream; further streams share the free slots, and a transfer with more than one stream more than
    /// the requester loses one, so that the next attempt finds a slot.
    fn admit_stream(&self, running: &ActiveSession) -> bool {
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
        let taken = taken + self.outgoing_streams();
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

    fn control(self: &Arc<Self>, mut channel: Channel, pending: u64) -> io::Result<()> {
        let open = handshake::read_request(&mut channel)?;
        // Before anything is granted: later failures belong to a session.
        channel.transport().notice_death(PEER_TIMEOUT)?;
        let handle = channel.transport().try_clone()?;
        if open.request == Request::Check(()) {
            return self.check(&open, channel);
        }
        let granted = match open.request {
            Request::Reconnect(ref back) => self.reconnect(back),
            _ => self.grant(&open, &channel),
        };
        let (running, answer) = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                tracing::info!("{}: refused: {}", channel.transport().peer(), refusal.text);
                handshake::send_answer(&mut channel, &Answer::Refused(refusal.clone()))?;
                return Err(io::Error::other(refusal.text));
            }
        };
        self.pending.remove(pending);
        if let Some(earlier) = lock(&running.connection).replace(handle) {
            earlier.shut_down();
        }
        // The driver of an earlier connection releases the link when that connection is shut down.
        let mut link = lock(&running.link);
        *lock(&running.lost) = None;
        let peer_received = match &open.request {
            Request::Reconnect(back) => back.received,
            _ => 0,
        };
        let answer = match answer {
            Answer::Reconnected(_) => Answer::Reconnected(link.received()),
            other => other,
        };
        let clock = running.clock();
        let stopped = match handshake::send_answer(&mut channel, &answer) {
            Ok(()) => match link.connected(peer_received, clock.elapsed()) {
                Ok(()) => control::drive(running.control(), &mut link, &mut channel, clock),
                Err(error) => DriveEnd::Fault(error.to_string()),
            },
            // The client disconnected before the answer: the session waits for it like any other.
            Err(error) => DriveEnd::Lost(error.to_string()),
        };
        link.disconnected();
        // With the link still held, so that a client that is already back does not count as lost.
        self.stopped(&running, stopped);
        drop(link);
        Ok(())
    }

    fn stopped(&self, running: &Arc<ActiveSession>, stopped: DriveEnd) {
        let session = running.end.session();
        match stopped {
            DriveEnd::Lost(why) if !session.is_over() => {
                tracing::info!("transfer {}: client lost ({why}), waiting for it", running.id);
                *lock(&running.lost) = Some(Instant::now());
            }
            DriveEnd::Fault(why) => {
                session.end(SessionOutcome::Failed(why));
                self.retire(running);
            }
            DriveEnd::Over | DriveEnd::Lost(_) => self.retire(running),
        }
    }

    /// Answers an authentication check.
    fn check(&self, open: &Open, mut channel: Channel) -> io::Result<()> {
        let (peer, certificate) = (channel.transport().peer(), channel.peer_fingerprint());
        let keeper = &self.config.gatekeeper;
        let answer = match keeper.authenticate(&open.token, certificate.as_ref(), &peer) {
            Ok(caller) => Answer::Known(caller.name),
            Err(refusal) => Answer::Refused(refusal),
        };
        handshake::send_answer(&mut channel, &answer)?;
        channel.finish_writing();
        Ok(())
    }

    fn reconnect(&self, back: &Reconnect) -> Result<(Arc<ActiveSession>, Answer), Refusal> {
        let running = lock(&self.sessions).get(&back.session).cloned();
        let running =
            running.filter(|running| *running.end.session().key() == SessionKey(back.key));
        match running {
            Some(running) => Ok((running, Answer::Reconnected(0))),
            None => Err(Refusal::new(RefusalKind::UnknownSession, "no such session")),
        }
    }

    fn grant(
        self: &Arc<Self>,
        open: &Open,
        channel: &Channel,
    ) -> Result<(Arc<ActiveSession>, Answer), Refusal> {
        let peer = channel.transport().peer();
        let keeper = &self.config.gatekeeper;
        let caller =
            keeper.authenticate(&open.token, channel.peer_fingerprint().as_ref(), &peer)?;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down: try again"));
        }
        let limits = lock(&self.limits).clone();
        // Counts towards the limit from here on, until it is a session or refused.
        let entering = PendingGrant::new(&self.entering);
        self.check_room(&limits, entering.others)?;
        let memory = self.memory.acquire(session_setup::block_bytes(&open.request))?;
        let grant = session_setup::SessionBuilder {
            keeper: keeper.as_ref(),
            caller: &caller,
            engine: self.engine,
            state: Some(&self.config.state),
            memory_bytes: memory.bytes(),
            homes: self.config.homes.as_ref().map(|homes| {
                let address = channel.transport().own_address();
                homes.via_interface(address.and_then(interface_with))
            }),
            pace: Some(Arc::clone(&self.pace)),
            collectors: &self.config.collectors,
            fireflies: &self.fireflies,
            locks: Some(&self.locks),
            release_partial: Some(self.release_partials_of(&caller)),
        };
        let granted = grant.build(&open.request, &|journal| {
            self.end_lost_sessions(|running| running.journal.as_ref() == Some(journal));
            channel.check_open().is_ok()
        })?;
        let session = granted.end.session();
        let (delegate, name) = match &open.request {
            // The session has its identifier at the other agent, which may be this one too.
            Request::ThirdParty(request) => {
                let free = self.streams_free(&limits);
                let from_here = channel.transport().peer_address().is_none_or(is_own_address);
                let allowed = |to| keeper.may_send_to(to, from_here || self.listens_on(to));
                let delegate = Delegate::start(request, granted.end.clone(), free, &allowed)?;
                (Some(delegate), handshake::random())
            }
            _ => (None, session.id),
        };
        memory.attach(session.pool.clone());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let opened = Opened {
            session: name,
            key: session.key().0,
            software: software(),
            features: Vec::new(),
            streams_max: limits.streams_per_transfer,
            transfer: id,
            mark: session.options.mark,
        };
        let running = Arc::new(ActiveSession {
            id,
            session: name,
            caller,
            peer,
            path: display_path(granted.path.as_bytes()),
            journal: granted.journal,
            started: SystemTime::now(),
            link: Mutex::new(ControlLink::new(Duration::ZERO)),
            connection: Mutex::default(),
            lost: Mutex::default(),
            rate: Mutex::default(),
            memory: Mutex::new(Some(memory)),
            joined: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            end: granted.end,
            delegate,
        });
        tracing::info!(
            "transfer {id}: {} {} for {}",
            running.end.direction(),
            running.path,
            running.caller.name
        );
        lock(&self.sessions).insert(running.session, Arc::clone(&running));
        lock(&self.totals).transfers_started += 1;
        // A withdrawn pass ends only the transfers that are listed; one listed later ends itself.
        if !keeper.still_admits(&running.caller) {
            let why = "what let it in was withdrawn meanwhile";
            running.end.session().end(SessionOutcome::Failed(why.to_owned()));
            self.retire(&running);
            return Err(Refusal::new(RefusalKind::Permission, why));
        }
        if running.delegate.is_none() {
            running.end.start();
        }
        Ok((running, Answer::Opened(opened)))
    }

    /// Checks the limits of transfers and streams.
    fn check_room(&self, limits: &Limits, entering: usize) -> Result<(), Refusal> {
        let running = lock(&self.sessions).len() + lock(&self.outgoing).len() + entering;
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

    /// Ends matching sessions that have lost their client, so that their successors can start.
    fn end_lost_sessions(&self, is_meant: impl Fn(&ActiveSession) -> bool) {
        let running: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for running in running {
            if lock(&running.lost).is_some() && is_meant(&running) {
                running
                    .end
                    .session()
                    .end(SessionOutcome::Failed("its client began anew".to_owned()));
                self.retire(&running);
            }
        }
    }

    /// Returns a callback that ends sessions of `caller` that have lost their client and hold a partial
    /// file that another session of the same caller continues.
    fn release_partials_of(self: &Arc<Self>, caller: &Caller) -> Arc<ReleasePartial> {
        let (agent, caller) = (Arc::downgrade(self), caller.name.clone());
        Arc::new(move |partial| {
            let Some(agent) = agent.upgrade() else { return };
            agent.end_lost_sessions(|running| {
                running.caller.name == caller && running.end.has_partial(partial)
            });
        })
    }

    fn retire(&self, running: &Arc<ActiveSession>) {
        if lock(&self.sessions).remove(&running.session).is_none() {
            return;
        }
        drop(lock(&running.memory).take());
        self.record_ended(running.show(), |totals| running.end.count(totals));
    }

    /// Records an ended transfer.
    fn record_ended(&self, shown: Transfer, count: impl FnOnce(&mut Counters)) {
        let mut totals = lock(&self.totals);
        count(&mut totals);
        totals.transfers_failed += u64::from(shown.state == "failed");
        drop(totals);
        tracing::info!("transfer {}: {} after {:.1} s", shown.id, shown.state, shown.seconds);
        let mut history = lock(&self.history);
        if history.len() == HISTORY_MAX {
            history.pop_front();
        }
        history.push_back(shown);
    }
}

/// Name and version of this software, as sent to peers.
#[must_use]
pub fn software() -> String {
    concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned()
}
