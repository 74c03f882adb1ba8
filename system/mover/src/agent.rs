//! The accepting side: one port, many clients, many sessions.
//!
//! A connection says in its first bytes what it is. Until it has proven itself it is one of a bounded
//! number that [`Waiting`] shares between addresses. A control
//! connection opens a session or comes back to one; a data connection joins one. A session whose client
//! has gone is kept for a while, then ended in a state from which the same command resumes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use penstock_host::placement::Homes;
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
use crate::control::{self, Stopped};
use crate::delegate::Delegate;
use crate::engine::Engine;
use crate::exchange::{self, Joined};
use crate::firefly::Sent;
use crate::granting::{self, AnyEnd};
use crate::identity::{Fingerprint, Identity};
use crate::labels::{Labelling, label_accepted};
use crate::memory::Memory;
use crate::nettest;
use crate::sending::spawn;
use crate::session::{DEAD_AFTER, Ending, Pace, lock};
use crate::sink::{self, FileLocks, ReleasePartial};
use crate::transport::Transport;
use crate::waiting::Waiting;

pub use limits::Limits;
pub use listing::{Counters, Transfer};

use limits::Entering;
use outgoing::Outgoing;
use running::Running;

mod admission;
mod limits;
mod listing;
pub mod outgoing;
mod running;

/// How long a connection may take to prove itself.
const PROOF_WITHIN: Duration = Duration::from_secs(10);

/// How long a session is kept without its client.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// How long a transfer to another agent goes on without whoever asked for it. One whose process was
/// killed cannot come back, and the destination takes no second session for the same files.
const DELEGATE_KEPT_FOR: Duration = Duration::from_secs(3);
/// How often it is looked at least for what abandoned transfers left.
const ABANDONED_EVERY: Duration = Duration::from_secs(600);

/// Ended transfers that are still listed.
const HISTORY_MAX: usize = 200;

/// An authenticated client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// By what it is known: the name of its token or certificate.
    pub name: String,
    /// The number of what it showed, where the gatekeeper gave something out for one purpose. Transfers of such
    /// callers never write one file at the same time.
    pub pass: Option<u64>,
    /// SHA-256 of the token that it showed; none for a certificate or a pass.
    pub token: Option<[u8; 32]>,
}

/// Something that a path of a client stands for.
#[derive(Debug)]
pub struct Place {
    /// The directory that nothing may leave.
    pub root: Dir,
    /// The path below it; empty for the directory itself.
    pub path: Vec<u8>,
    /// The path as the client knows it.
    pub shown: String,
}

/// Decides who may do what. The mover has no opinion.
pub trait Gatekeeper: Send + Sync {
    /// Who a client is.
    ///
    /// # Errors
    /// When it is nobody known; the refusal says what to do.
    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal>;

    /// Whether a client that was let in before still is: its token, certificate or order may have been withdrawn.
    fn still_admits(&self, _caller: &Caller) -> bool {
        true
    }

    /// What a path stands for, for reading or writing.
    ///
    /// # Errors
    /// When there is nothing of that name, or not for this client.
    fn place(&self, caller: &Caller, path: &[u8], write: bool) -> Result<Place, Refusal>;

    /// Whose data it is that a client sends to a path or gets from it, where the client says `asked`.
    ///
    /// # Errors
    /// When this client may not say so.
    fn mark(
        &self,
        _caller: &Caller,
        _path: &[u8],
        asked: Option<Mark>,
    ) -> Result<Option<Mark>, Refusal> {
        Ok(asked)
    }

    /// Whether this agent may send files to `to`, because a client asks for a copy between two agents.
    /// `from_here`: the client is on this host, or `to` is this very agent.
    ///
    /// # Errors
    /// When it may not.
    fn may_send_to(&self, _to: SocketAddr, _from_here: bool) -> Result<(), Refusal> {
        Ok(())
    }

    /// Whether clients act for the very user who runs this process, and so may choose owners.
    fn trusts_owners(&self) -> bool {
        false
    }
}

/// What an agent is made of.
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Its certificate.
    pub identity: Arc<Identity>,
    /// Who may do what.
    pub gatekeeper: Arc<dyn Gatekeeper>,
    /// Where journals are kept.
    pub state: PathBuf,
    /// What it gives at most.
    pub limits: Limits,
    /// Where fireflies go, besides to the peers of what is sent.
    pub collectors: Vec<SocketAddr>,
    /// Where a marker on this host pins its maps.
    pub marker: PathBuf,
    /// Where threads run: any processor, if it is not said.
    pub homes: Option<Homes>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// A running agent; clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    engine: Engine,
    listeners: Vec<TcpListener>,
    waiting: Waiting,
    pace: Arc<Pace>,
    limits: Mutex<Limits>,
    memory: Memory,
    /// Held while a stream is let in, so that two do not take the same place.
    joining: Mutex<()>,
    sessions: Mutex<HashMap<SessionId, Arc<Running>>>,
    /// What this agent sends by itself.
    outgoing: Mutex<BTreeMap<u64, Arc<Outgoing>>>,
    history: Mutex<VecDeque<Transfer>>,
    totals: Mutex<Counters>,
    fireflies: Arc<Sent>,
    locks: FileLocks,
    next_id: AtomicU64,
    /// Requests that are being granted.
    entering: AtomicUsize,
    stopping: AtomicBool,
}

impl Agent {
    /// Listens and serves until it is shut down.
    ///
    /// # Errors
    /// When an address cannot be listened on.
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
        let agent = Self(Arc::new(Inner {
            engine: Engine::probe(),
            listeners,
            waiting: Waiting::default(),
            pace: Arc::new(Pace::new(config.limits.rate_bps)),
            limits: Mutex::new(config.limits.clone()),
            memory: Memory::new(config.limits.memory_bytes),
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
        spawn("janitor", move || inner.tidy_up());
        Ok(agent)
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// All transfers that run, and the last that ended.
    #[must_use]
    pub fn transfers(&self) -> Vec<Transfer> {
        let mut all: Vec<_> = lock(&self.0.history).iter().cloned().collect();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        all.extend(running.iter().map(|running| running.show()));
        all.extend(self.0.outgoing().iter().map(|one| one.show()));
        all.sort_by_key(|transfer| transfer.id);
        all
    }

    fn find(&self, id: u64) -> Result<Arc<Running>, String> {
        lock(&self.0.sessions)
            .values()
            .find(|running| running.id == id)
            .cloned()
            .ok_or_else(|| format!("no transfer {id} is running: `penstock transfers` lists them"))
    }

    /// Changes a running transfer, at both ends.
    ///
    /// # Errors
    /// When no such transfer runs.
    pub fn set(&self, id: u64, settings: Settings) -> Result<(), String> {
        if let Some(one) = lock(&self.0.outgoing).get(&id) {
            one.change(settings);
            return Ok(());
        }
        self.find(id)?.end.change(settings);
        Ok(())
    }

    /// Stops a running transfer, at both ends.
    ///
    /// # Errors
    /// When no such transfer runs.
    pub fn cancel(&self, id: u64, reason: &str) -> Result<(), String> {
        if let Some(one) = lock(&self.0.outgoing).get(&id) {
            one.cancel(reason);
            return Ok(());
        }
        self.find(id)?.end.cancel(reason);
        Ok(())
    }

    /// Ends running transfers of callers with this pass, so that the same requests resume.
    pub fn end_of(&self, pass: u64, reason: &str) {
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        for running in running.iter().filter(|running| running.caller.pass == Some(pass)) {
            self.0.end_now(running, reason);
        }
    }

    /// Changes what is given at most, for running transfers too where that is a rate or memory.
    pub fn set_limits(&self, limits: Limits) {
        self.0.pace.set(limits.rate_bps);
        self.0.memory.set_limit(limits.memory_bytes);
        *lock(&self.0.limits) = limits;
    }

    /// What was done since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = lock(&self.0.totals).clone();
        let running: Vec<_> = lock(&self.0.sessions).values().cloned().collect();
        running.iter().for_each(|running| running.end.count(&mut counters));
        self.0.outgoing().iter().for_each(|one| one.count(&mut counters));
        (counters.fireflies_sent, counters.fireflies_failed) = self.0.fireflies.counts();
        counters
    }

    /// Takes no more connections, gives running transfers `grace` to end, then ends them so that the
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
            running.end.session().end(Ending::Failed("the agent shuts down".to_owned()));
            if let Some(connection) = lock(&running.connection).take() {
                connection.shut_down();
            }
        }
    }
}

impl Inner {
    fn accept(self: &Arc<Self>, number: usize) {
        while !self.stopping.load(Ordering::SeqCst) {
            let transport = match self.listeners[number].accept() {
                Ok((tcp, _)) => Transport::Tcp(tcp),
                Err(error) => {
                    // Out of descriptors, most likely: the janitor closes some.
                    if !self.stopping.load(Ordering::SeqCst) {
                        tracing::warn!("cannot accept: {}", penstock_sys::fs::describe(&error));
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    continue;
                }
            };
            lock(&self.totals).connections += 1;
            while self.waiting.is_full() && !self.stopping.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let Ok(waiting) = self.waiting.enter(&transport) else { continue };
            let inner = Arc::clone(self);
            let serve = move || {
                let peer = transport.peer();
                if let Err(error) = inner.serve(transport, waiting) {
                    lock(&inner.totals).refused += 1;
                    tracing::debug!("{peer}: {error}");
                }
            };
            if std::thread::Builder::new().name("serve".into()).spawn(serve).is_err() {
                self.waiting.leave(waiting);
                tracing::warn!("cannot start a thread for a connection (raise TasksMax)");
            }
        }
    }

    fn serve(self: &Arc<Self>, mut transport: Transport, waiting: u64) -> io::Result<()> {
        let result = self.greet(&mut transport).and_then(|preamble| {
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
                ConnectionKind::Control if preamble.tls => self.control(channel, waiting),
                ConnectionKind::Data => self.data(channel, waiting),
                _ => Err(io::Error::other("this kind of connection is not served here")),
            }
        });
        self.waiting.leave(waiting);
        result
    }

    fn greet(&self, transport: &mut Transport) -> io::Result<Preamble> {
        transport.set_timeouts(Some(PROOF_WITHIN))?;
        exchange::receive_preamble(transport).inspect_err(|error| {
            if error.kind() == io::ErrorKind::InvalidData {
                tracing::info!("{}: {error}", transport.peer());
                // A Penstock of another version learns ours from our preamble.
                let ours = Preamble { kind: ConnectionKind::Control, tls: false };
                let _ = exchange::send_preamble(transport, ours);
            }
        })
    }

    fn data(&self, mut channel: Channel, waiting: u64) -> io::Result<()> {
        let (nonce, join) = exchange::challenge(&mut channel)?;
        let running = lock(&self.sessions).get(&join.session).cloned();
        let answer = self.judge(&join, running.as_deref(), nonce, channel.is_tls());
        let ready = exchange::answer_join(&mut channel, answer).and_then(|()| {
            channel.transport().set_timeouts(None)?;
            channel.transport().notice_death(DEAD_AFTER)
        });
        let Some(running) = running.filter(|_| answer == Joined::Yes) else {
            return Err(io::Error::other(format!("a data connection is refused: {answer:?}")));
        };
        if let Err(error) = ready {
            running.joined.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
        self.waiting.leave(waiting);
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        if let AnyEnd::Send(_) = running.end {
            let session = running.end.session();
            let mark = session.options.mark;
            let pin = &self.config.marker;
            session.name_label(match channel.transport() {
                Transport::Tcp(tcp) => label_accepted(mark, tcp, pin),
                Transport::Local(_) => Labelling::inside(mark).told,
            });
        }
        // What ends a stream concerns its session alone, which has noticed.
        let _ = running.end.run_stream(join.stream, channel, &nonces);
        running.joined.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn judge(&self, join: &Join, running: Option<&Running>, nonce: [u8; 32], tls: bool) -> Joined {
        let Some(running) = running else { return Joined::UnknownSession };
        let session = running.end.session();
        let nonces = Nonces { acceptor: nonce, connector: join.nonce };
        let proven = session.key().verify_join(&join.session, join.stream, &nonces, &join.proof);
        let protected = tls == (session.options.protection == Protection::Full);
        match () {
            () if !proven || !protected || running.delegate.is_some() => Joined::Refused,
            () if !self.has_room(running) => Joined::TooMany,
            () => Joined::Yes,
        }
    }

    /// Whether this agent is reached at an address.
    fn listens_on(&self, address: SocketAddr) -> bool {
        let own = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        own.filter(|own| own.port() == address.port()).any(|own| {
            let ip = address.ip().to_canonical();
            own.ip().to_canonical() == ip || own.ip().is_unspecified() && is_own_address(ip)
        })
    }

    /// Streams that a transfer to another agent may have, which makes them itself.
    fn streams_free(&self, limits: &Limits) -> u16 {
        let all: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let taken = all.iter().map(|one| one.streams().max(1)).sum::<usize>();
        let taken = taken + self.outgoing_streams();
        let free = limits.streams.saturating_sub(taken).max(1);
        u16::try_from(free).unwrap_or(u16::MAX).min(limits.streams_per_transfer)
    }

    /// Whether one more stream of a transfer may come; it then counts. Every transfer has a place for
    /// its first one; of the others each takes what is free, and who has fewer than another by more
    /// than one has it break one of its own, so that the next attempt finds a place.
    fn has_room(&self, running: &Running) -> bool {
        let _joining = lock(&self.joining);
        let limits = lock(&self.limits).clone();
        let all: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let joined = Running::streams;
        let own = joined(running);
        if own >= usize::from(limits.streams_per_transfer) {
            return false;
        }
        // A transfer without a stream has a place that others leave to it.
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
            richest.end.session().break_a_stream();
        }
        false
    }

    fn control(self: &Arc<Self>, mut channel: Channel, waiting: u64) -> io::Result<()> {
        let open = exchange::hear(&mut channel)?;
        // Before anything is granted: whatever fails from there on belongs to a session.
        channel.transport().notice_death(DEAD_AFTER)?;
        let handle = channel.transport().try_clone()?;
        if open.request == Request::Check(()) {
            return self.check(&open, channel);
        }
        let granted = match open.request {
            Request::Reconnect(ref back) => self.take_back(back),
            _ => self.grant(&open, &channel),
        };
        let (running, answer) = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                tracing::info!("{}: refused: {}", channel.transport().peer(), refusal.text);
                exchange::answer(&mut channel, &Answer::Refused(refusal.clone()))?;
                return Err(io::Error::other(refusal.text));
            }
        };
        self.waiting.leave(waiting);
        if let Some(earlier) = lock(&running.connection).replace(handle) {
            earlier.shut_down();
        }
        // Whoever drove an earlier connection lets go of the link when that is shut.
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
        let stopped = match exchange::answer(&mut channel, &answer) {
            Ok(()) => match link.connected(peer_received, clock.elapsed()) {
                Ok(()) => control::drive(running.control(), &mut link, &mut channel, clock),
                Err(error) => Stopped::Fault(error.to_string()),
            },
            // It went before it heard: the session waits for it as for any other.
            Err(error) => Stopped::Lost(error.to_string()),
        };
        link.disconnected();
        // With the link still held, so that a client that is back already is not taken for lost.
        self.stopped(&running, stopped);
        drop(link);
        Ok(())
    }

    fn stopped(&self, running: &Arc<Running>, stopped: Stopped) {
        let session = running.end.session();
        match stopped {
            Stopped::Lost(why) if !session.is_over() => {
                tracing::info!("transfer {}: client lost ({why}), waiting for it", running.id);
                *lock(&running.lost) = Some(Instant::now());
            }
            Stopped::Fault(why) => {
                session.end(Ending::Failed(why));
                self.retire(running);
            }
            Stopped::Over | Stopped::Lost(_) => self.retire(running),
        }
    }

    /// Says whether a client is known.
    fn check(&self, open: &Open, mut channel: Channel) -> io::Result<()> {
        let (peer, certificate) = (channel.transport().peer(), channel.peer_fingerprint());
        let keeper = &self.config.gatekeeper;
        let answer = match keeper.authenticate(&open.token, certificate.as_ref(), &peer) {
            Ok(caller) => Answer::Known(caller.name),
            Err(refusal) => Answer::Refused(refusal),
        };
        exchange::answer(&mut channel, &answer)?;
        channel.finish_writing();
        Ok(())
    }

    fn take_back(&self, back: &Reconnect) -> Result<(Arc<Running>, Answer), Refusal> {
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
    ) -> Result<(Arc<Running>, Answer), Refusal> {
        let peer = channel.transport().peer();
        let keeper = &self.config.gatekeeper;
        let caller =
            keeper.authenticate(&open.token, channel.peer_fingerprint().as_ref(), &peer)?;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down: try again"));
        }
        let limits = lock(&self.limits).clone();
        // It counts from here on, until it is among the sessions or refused.
        let entering = Entering::new(&self.entering);
        self.check_room(&limits, entering.others)?;
        let memory = self.memory.enter(granting::block_bytes(&open.request))?;
        let grant = granting::Grant {
            keeper: keeper.as_ref(),
            caller: &caller,
            engine: self.engine,
            state: Some(&self.config.state),
            memory_bytes: memory.bytes(),
            homes: self.config.homes.as_ref().map(|homes| {
                let address = channel.transport().own_address();
                homes.by(address.and_then(interface_with))
            }),
            pace: Some(Arc::clone(&self.pace)),
            collectors: &self.config.collectors,
            fireflies: &self.fireflies,
            locks: Some(&self.locks),
            release_partial: Some(self.release_partials_of(&caller)),
        };
        let granted = grant.make(&open.request, &|journal| {
            self.end_forsaken(|running| running.journal.as_ref() == Some(journal));
            channel.check_open().is_ok()
        })?;
        let session = granted.end.session();
        let (delegate, name) = match &open.request {
            // The session has its name at the other agent, which may be this one too.
            Request::ThirdParty(request) => {
                let free = self.streams_free(&limits);
                let from_here = channel.transport().peer_address().is_none_or(is_own_address);
                let allowed = |to| keeper.may_send_to(to, from_here || self.listens_on(to));
                let delegate = Delegate::start(request, granted.end.clone(), free, &allowed)?;
                (Some(delegate), exchange::random())
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
        let running = Arc::new(Running {
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
        // Whoever withdraws a pass ends the transfers that are listed, so one that is listed after that ends itself.
        if !keeper.still_admits(&running.caller) {
            let why = "what let it in was withdrawn meanwhile";
            running.end.session().end(Ending::Failed(why.to_owned()));
            self.retire(&running);
            return Err(Refusal::new(RefusalKind::Permission, why));
        }
        if running.delegate.is_none() {
            running.end.start();
        }
        Ok((running, Answer::Opened(opened)))
    }

    /// Whether one more transfer may run.
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

    /// Ends sessions of a kind whose client is gone, so that their successors can begin.
    fn end_forsaken(&self, is_meant: impl Fn(&Running) -> bool) {
        let running: Vec<_> = lock(&self.sessions).values().cloned().collect();
        for running in running {
            if lock(&running.lost).is_some() && is_meant(&running) {
                running.end.session().end(Ending::Failed("its client began anew".to_owned()));
                self.retire(&running);
            }
        }
    }

    /// Ends sessions of `caller` that have lost their client and have a partial file that another session of the same
    /// caller continues.
    fn release_partials_of(self: &Arc<Self>, caller: &Caller) -> Arc<ReleasePartial> {
        let (agent, caller) = (Arc::downgrade(self), caller.name.clone());
        Arc::new(move |partial| {
            let Some(agent) = agent.upgrade() else { return };
            agent.end_forsaken(|running| {
                running.caller.name == caller && running.end.has_partial(partial)
            });
        })
    }

    fn retire(&self, running: &Arc<Running>) {
        if lock(&self.sessions).remove(&running.session).is_none() {
            return;
        }
        drop(lock(&running.memory).take());
        self.remember(running.show(), |totals| running.end.count(totals));
    }

    /// Keeps what an ended transfer did.
    fn remember(&self, shown: Transfer, count: impl FnOnce(&mut Counters)) {
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

    fn tidy_up(self: &Arc<Self>) {
        let mut looked: Option<Instant> = None;
        loop {
            let keep = lock(&self.limits).keep_unfinished.unwrap_or(ABANDONED_EVERY);
            if looked.is_none_or(|looked| looked.elapsed() > keep.min(ABANDONED_EVERY)) {
                looked = Some(Instant::now());
                sink::remove_after(&self.config.state, lock(&self.limits).keep_unfinished);
            }
            std::thread::sleep(Duration::from_secs(1));
            self.waiting.close_slow(PROOF_WITHIN);
            self.memory.share_out();
            self.retire_outgoing();
            let running: Vec<_> = lock(&self.sessions).values().cloned().collect();
            if self.stopping.load(Ordering::SeqCst) && running.is_empty() {
                return;
            }
            for running in running {
                lock(&running.rate).observe(&running.end);
                if !self.is_admitted(&running) {
                    let name = &running.caller.name;
                    tracing::info!("transfer {}: {name} was removed from the agent", running.id);
                    self.end_now(
                        &running,
                        &format!("the token or certificate of {name} was removed"),
                    );
                    continue;
                }
                let kept = if running.delegate.is_some() { DELEGATE_KEPT_FOR } else { KEPT_FOR };
                let gone = lock(&running.lost).is_some_and(|since| since.elapsed() > kept);
                if gone {
                    let why = "its client did not come back".to_owned();
                    running.end.session().end(Ending::Failed(why));
                    self.retire(&running);
                }
            }
        }
    }
}

/// Name and version of this software.
#[must_use]
pub fn software() -> String {
    concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned()
}
