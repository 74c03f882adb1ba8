//! Connecting side: opens a session, keeps its streams and control connection alive, and opens a new
//! session from the durable state when the other end has lost the old one.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use penstock_protocol::control::{Placed, Settings, Settled, TransferTally};
use penstock_protocol::link::ControlLink;
use penstock_protocol::open::{Mark, Opened, Request};
use penstock_protocol::proof::Nonces;
use penstock_sys::event::EventFd;
use penstock_tuner::TuningMode;

use super::auto_tuner::AutoTuner;
use super::stream_transports::StreamTransports;
use super::stream_tuning::{StreamTuning, TuningReport};
use super::streams;
use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::endpoint::end::Endpoint;
use crate::endpoint::rate_meter::RateMeter;
use crate::net::channel::Channel;
use crate::net::connector::{Backoff, CopyError, PeerConnector};
use crate::net::dial::DialedPair;
use crate::net::handshake::random;
use crate::net::transport::Transport;
use crate::session::control::{self, DriveEnd};
use crate::session::outcome::SessionOutcome;
use crate::session::state::Session;
use crate::session::totals::merge_tallies;
use crate::sink::work::SinkWork;

/// Creates the local endpoint for each session.
pub type MakeEnd = dyn Fn(&Opened) -> Result<Endpoint, CopyError> + Send + Sync;

/// Origin of a transfer's session.
#[derive(Debug, Clone)]
pub enum SessionOrigin {
    /// Request a session, and another one when the agent no longer knows it.
    Requested(Request),
    /// Use a session that another client opened.
    Adopted(Opened),
}

/// Configuration of a transfer.
pub struct TransferConfig {
    /// Connector to the remote agent.
    pub contact: PeerConnector,
    /// Origin of its session.
    pub begin: SessionOrigin,
    /// Creates the local endpoint.
    pub make_end: Box<MakeEnd>,
    /// Tuning of its streams.
    pub tuning: StreamTuning,
}

impl std::fmt::Debug for TransferConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("contact", &self.contact).finish_non_exhaustive()
    }
}

/// State of a running transfer.
#[derive(Debug, Clone, Default)]
pub struct TransferSnapshot {
    /// Counters over all sessions.
    pub tally: TransferTally,
    /// Number of streams now connected.
    pub streams: u16,
    /// Reader threads per device of this end; zero if it has none.
    pub readers: u16,
    /// Writer threads per device of this end; zero if it has none.
    pub writers: u16,
    /// Rate limit in bits per second; `None` if unlimited.
    pub rate_bps: Option<u64>,
    /// Peak number of connected streams.
    pub streams_peak: u16,
    /// Rate over about the last half second.
    pub bits_per_second: u64,
    /// Stage that limits the rate, such as `network` or `source storage`.
    pub bound_by: &'static str,
    /// Storage engines of both ends, local one first.
    pub engines: (String, String),
    /// TCP segments retransmitted over all sessions.
    pub retransmits: u64,
    /// Bytes on the network, including blocks sent twice.
    pub network_bytes: u64,
    /// Smallest round-trip time of the sender's streams.
    pub rtt: Option<Duration>,
    /// CPU time of both ends in microseconds, local one first.
    pub cpu_us: (u64, u64),
    /// Number of sessions: more than one if the other end was lost.
    pub sessions: u32,
    /// Number of lost streams.
    pub streams_lost: u64,
    /// Number of blocks sent again.
    pub repeated: u64,
    /// Scitag of the transfer.
    pub mark: Option<Mark>,
    /// Label method of the sending end's packets, or why there is none.
    pub label: String,
    /// Addresses no longer used after repeated failures.
    pub dropped: Vec<String>,
    /// Reason for which the other end delays the transfer, while it does.
    pub waiting: Option<String>,
    /// Transport of the data streams so far: `tcp`, `rdma` or `mixed`; empty before the first.
    pub transport: &'static str,
    /// Reason for that transport, where the caller left the choice or asked for RDMA; else empty.
    pub transport_reason: String,
}

/// Transfer running in threads of its own.
#[derive(Debug)]
pub struct ClientTransfer {
    shared: Arc<TransferState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct TransferState {
    pub(super) plan: TransferConfig,
    end: Mutex<Option<Endpoint>>,
    rate: Mutex<RateMeter>,
    sessions: AtomicU32,
    /// Most streams that the agent admits; 0 before the first session.
    streams_max: AtomicU16,
    /// State accumulated over earlier sessions.
    earlier: Mutex<TransferSnapshot>,
    /// Receiving end of the previous session, while its threads still run.
    earlier_end: Mutex<Weak<SinkWork>>,
    /// Files committed by earlier sessions and not taken yet.
    placed: Mutex<Vec<Placed>>,
    /// Final results of earlier sessions, likewise.
    settled: Mutex<Vec<Settled>>,
    stage: Mutex<Stage>,
    /// Settings changed since the start.
    settings: Mutex<Settings>,
    /// Tuner of its streams, if there is one. Locked before `settings` and `end`.
    tuner: Option<Mutex<AutoTuner>>,
    /// Result, once it has ended.
    outcome: Mutex<Option<Result<(), CopyError>>>,
    /// Signalled at the first session, and at the end.
    begun: EventFd,
    /// Signalled at the end.
    over: EventFd,
    waiting: Mutex<Option<String>>,
    /// Transports of its streams.
    pub(super) transports: StreamTransports,
    /// Control connection, shut down to move it to another path.
    pub(super) control: Mutex<Option<Transport>>,
}

/// Session and cancellation state under one lock, so that a cancelled transfer either notifies its
/// session or never gets one that moves data.
#[derive(Debug, Default)]
struct Stage {
    /// Reason of the cancellation.
    cancelled: Option<String>,
    /// Set when a session is open, or being opened by the answer just received.
    in_session: bool,
}

impl ClientTransfer {
    /// Starts the transfer in a new thread.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn start(plan: TransferConfig) -> io::Result<Self> {
        let shared = Arc::new(TransferState::new(plan)?);
        let thread = spawn("transfer", {
            let shared = Arc::clone(&shared);
            move || {
                let outcome = shared.run();
                shared.finish(outcome);
            }
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Result, once it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), CopyError>> {
        lock(&self.shared.outcome).clone()
    }

    /// Event that becomes readable at the end, for pollers.
    #[must_use]
    pub fn over(&self) -> &EventFd {
        &self.shared.over
    }

    /// Waits until a session is open or the transfer has ended; true if there was a session.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn wait_for_session(&self) -> io::Result<bool> {
        self.shared.begun.wait(None)?;
        Ok(self.shared.sessions.load(Ordering::Relaxed) > 0)
    }

    /// Address of the other end, while the control connection is open.
    #[must_use]
    pub fn peer_address(&self) -> Option<IpAddr> {
        lock(&self.shared.control).as_ref().and_then(Transport::peer_address)
    }

    /// Display name of the other end.
    #[must_use]
    pub fn shown(&self) -> String {
        self.shared.plan.contact.shown()
    }

    /// Current counters, rate and bottleneck.
    #[must_use]
    pub fn snapshot(&self) -> TransferSnapshot {
        self.shared.snapshot()
    }

    /// Changes the settings of this and later sessions. A changed number of streams ends their tuning.
    pub fn change(&self, settings: Settings) {
        self.shared.change(settings);
    }

    /// Applies the settings of an order. Its streams are those to begin with, which a tuner does not exceed; without a
    /// tuner they are the streams to have.
    pub fn allot(&self, mut settings: Settings) {
        let Some(tuner) = &self.shared.tuner else { return self.change(settings) };
        let mut tuner = lock(tuner);
        settings.streams = settings.streams.filter(|streams| !tuner.allot(*streams));
        self.shared.change(settings);
    }

    /// Lets its tuner do at most this from now on.
    ///
    /// # Errors
    /// The reason why its streams are not tuned.
    pub fn set_tuning(&self, mode: TuningMode) -> Result<(), &'static str> {
        match &self.shared.tuner {
            Some(tuner) => lock(tuner).ask(mode),
            None => Err(self.shared.plan.tuning.reason_to_keep()),
        }
    }

    /// Decisions about its streams, or the reason why there are none.
    #[must_use]
    pub fn tuning(&self) -> TuningReport {
        match &self.shared.tuner {
            Some(tuner) => lock(tuner).report(),
            None => TuningReport::kept(self.shared.plan.tuning.reason_to_keep()),
        }
    }

    /// Number of connected streams.
    pub(crate) fn stream_count(&self) -> u16 {
        lock(&self.shared.end).as_ref().map_or(0, |end| end.session().stream_count())
    }

    /// Moves the streams to these address pairs, or to any if `path` is empty. Each stream gets a
    /// successor there and ends once its data has arrived; if that takes too long it is broken and its
    /// data sent again. The control connection moves last, and takes any path if these are dead.
    ///
    /// # Errors
    /// If the dialer cannot choose paths.
    pub fn use_path(&self, path: &[DialedPair]) -> io::Result<()> {
        self.shared.plan.contact.dial.choose(path)
    }

    /// Cancels it; the same command can resume. Without a session it ends at once, even if a connection
    /// attempt is still in progress, which then moves no data.
    pub fn cancel(&self, reason: &str) {
        let in_session = {
            let mut stage = lock(&self.shared.stage);
            stage.cancelled.get_or_insert_with(|| reason.to_owned());
            stage.in_session
        };
        if !in_session {
            self.shared.finish(Err(CopyError::Cancelled(reason.to_owned())));
        } else if let Some(end) = &*lock(&self.shared.end) {
            end.cancel(reason);
        }
    }

    /// Returns the files committed since the last call, if the local endpoint collects them.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        let mut placed = std::mem::take(&mut *lock(&self.shared.placed));
        if let Some(end) = &*lock(&self.shared.end) {
            placed.extend(end.take_placed());
        }
        placed
    }

    /// Returns the final results since the last call, if the local endpoint sends and collects them.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        let mut settled = std::mem::take(&mut *lock(&self.shared.settled));
        if let Some(end) = &*lock(&self.shared.end) {
            settled.extend(end.take_settled());
        }
        settled
    }

    /// True once it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The reason of a failed or cancelled transfer. Failed files are in the [`TransferSnapshot`].
    pub fn wait(&mut self) -> Result<TransferSnapshot, CopyError> {
        let joined = self.thread.take().map(std::thread::JoinHandle::join);
        if matches!(joined, Some(Err(_))) {
            return Err(CopyError::Panicked);
        }
        self.outcome().unwrap_or(Ok(()))?;
        Ok(self.shared.snapshot())
    }
}

/// Final state of a session for its client.
enum SessionEnd {
    Finished,
    /// The other end no longer knows the session: open a new one.
    Forgotten(String),
}

impl TransferState {
    fn new(plan: TransferConfig) -> io::Result<Self> {
        let tuner = match plan.tuning {
            StreamTuning::Kept(_) => None,
            StreamTuning::Tuned { start, known, ref shared, off, .. } => {
                let tuner = AutoTuner::new(start, known, shared.take());
                Some(Mutex::new(match off {
                    Some(reason) => tuner.switched_off(reason),
                    None => tuner,
                }))
            }
        };
        Ok(Self {
            transports: StreamTransports::new(&plan.contact),
            plan,
            end: Mutex::default(),
            rate: Mutex::default(),
            sessions: AtomicU32::new(0),
            streams_max: AtomicU16::new(0),
            earlier: Mutex::default(),
            earlier_end: Mutex::default(),
            placed: Mutex::default(),
            settled: Mutex::default(),
            stage: Mutex::default(),
            settings: Mutex::default(),
            tuner,
            waiting: Mutex::default(),
            control: Mutex::default(),
            outcome: Mutex::default(),
            begun: EventFd::new()?,
            over: EventFd::new()?,
        })
    }

    fn snapshot(&self) -> TransferSnapshot {
        // Both under one lock: a session is current or earlier, never both.
        let end = lock(&self.end);
        let earlier = lock(&self.earlier).clone();
        let end = (*end).clone();
        self.add(earlier, end.as_ref())
    }

    fn change(&self, settings: Settings) {
        lock(&self.settings).merge(&settings);
        if let Some(end) = &*lock(&self.end) {
            end.change(settings);
        }
    }

    /// Lets the tuner, if there is one, take a sample that is due and change the settings of both ends.
    pub(super) fn tune(&self, end: &Endpoint) {
        let (Some(tuner), StreamTuning::Tuned { bounds, .. }) = (&self.tuner, &self.plan.tuning)
        else {
            return;
        };
        if !lock(tuner).is_due(end) {
            return;
        }
        // The source may look at other transfers: the tuner is not locked meanwhile.
        let mut bounds = bounds();
        let peer_max = self.streams_max.load(Ordering::Relaxed);
        bounds.streams_max = bounds.streams_max.min(peer_max);
        if let Some(sharing) = &mut bounds.sharing {
            sharing.streams_max = sharing.streams_max.min(peer_max);
        }
        let mut tuner = lock(tuner);
        if let Some(settings) = tuner.tick(end, bounds) {
            self.change(settings);
        }
    }

    /// Moves the current session to the earlier ones.
    fn archive_session(&self) {
        let mut end = lock(&self.end);
        let mut earlier = lock(&self.earlier);
        *earlier = self.add(std::mem::take(&mut *earlier), end.as_ref());
        drop(earlier);
        if let Some(end) = end.take() {
            if let Endpoint::Receive(end) = &end {
                *lock(&self.earlier_end) = Arc::downgrade(&end.0.work);
            }
            lock(&self.placed).extend(end.take_placed());
            lock(&self.settled).extend(end.take_settled());
        }
    }

    /// Adds the current session to the state of the earlier ones.
    fn add(&self, mut snapshot: TransferSnapshot, end: Option<&Endpoint>) -> TransferSnapshot {
        (snapshot.transport, snapshot.transport_reason) = self.transports.report();
        snapshot.dropped = self.plan.contact.dial.dropped();
        snapshot.waiting = lock(&self.waiting).clone();
        snapshot.sessions = self.sessions.load(Ordering::Relaxed);
        let Some(end) = end else { return snapshot };
        let (session, report) = (end.session(), end.session().report());
        let peer = session.peer();
        let mut rate = lock(&self.rate);
        // After its end a session waits for nothing: what bound it for most of the time counts.
        let has_ended = session.ending().is_some();
        if !has_ended {
            rate.observe(end);
        }
        let meter = &session.meter;
        snapshot.tally = merge_tallies(&snapshot.tally, end.tally());
        snapshot.streams = report.streams;
        (snapshot.readers, snapshot.writers) = end.threads();
        snapshot.rate_bps = session.pace.rate_bps();
        snapshot.streams_peak = snapshot.streams_peak.max(session.streams_peak());
        snapshot.bits_per_second = rate.bits_per_second;
        snapshot.bound_by = if has_ended { rate.overall(end).1 } else { rate.bound_by };
        snapshot.mark = session.options.mark;
        let sender = match end {
            Endpoint::Send(_) => &report,
            Endpoint::Receive(_) => &peer,
        };
        snapshot.label.clone_from(&sender.label);
        let rtt = Duration::from_micros(u64::from(sender.rtt_us));
        snapshot.rtt = (!rtt.is_zero()).then_some(rtt).or(snapshot.rtt);
        snapshot.engines = (report.engine, peer.engine);
        snapshot.retransmits += end.retransmits();
        snapshot.network_bytes += meter.network_bytes.load(Ordering::Relaxed);
        snapshot.cpu_us.0 += report.cpu_us;
        snapshot.cpu_us.1 += peer.cpu_us;
        snapshot.streams_lost += meter.streams_lost.load(Ordering::Relaxed);
        snapshot.repeated += meter.repeated.load(Ordering::Relaxed);
        snapshot
    }

    /// Records the result, once.
    fn finish(&self, outcome: Result<(), CopyError>) {
        lock(&self.outcome).get_or_insert(outcome);
        if let Some(tuner) = &self.tuner {
            lock(tuner).leave();
        }
        let _ = self.begun.signal();
        let _ = self.over.signal();
    }

    fn cancelled(&self) -> Option<String> {
        lock(&self.stage).cancelled.clone()
    }

    /// Runs sessions until the transfer is complete. Cancellation overrides any other error.
    fn run(self: &Arc<Self>) -> Result<(), CopyError> {
        self.run_sessions().map_err(|error| match self.cancelled() {
            Some(reason) => CopyError::Cancelled(reason),
            None => error,
        })
    }

    fn run_sessions(self: &Arc<Self>) -> Result<(), CopyError> {
        let mut trying_since = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            if let Some(reason) = self.cancelled() {
                return Err(CopyError::Cancelled(reason));
            }
            let earlier = lock(&self.earlier_end).clone();
            self.await_release(&earlier, 0)?;
            let opened = self.open();
            lock(&self.stage).in_session = matches!(opened, Ok(Some(_)));
            let busy = opened.as_ref().err().filter(|error| error.is_busy());
            *lock(&self.waiting) = busy.map(ToString::to_string);
            let why = match opened {
                Ok(Some((channel, received, opened))) => {
                    self.sessions.fetch_add(1, Ordering::Relaxed);
                    let _ = self.begun.signal();
                    backoff = Backoff::default();
                    let moved_before = self.snapshot().network_bytes;
                    match self.session(channel, received, &opened)? {
                        SessionEnd::Finished => return Ok(()),
                        SessionEnd::Forgotten(why) => {
                            if self.cancelled().is_none() {
                                tracing::info!("session lost, opening another: {why}");
                            }
                            if self.snapshot().network_bytes > moved_before {
                                trying_since = Instant::now();
                            }
                            lock(&self.stage).in_session = false;
                            self.await_last_writes()?;
                            self.archive_session();
                            CopyError::SessionLost(why)
                        }
                    }
                }
                Ok(None) => CopyError::Forgotten(self.plan.contact.shown()),
                // An unreachable peer is reported at once on the first attempt.
                Err(error @ CopyError::Unreachable(..))
                    if self.sessions.load(Ordering::Relaxed) == 0 =>
                {
                    return Err(error);
                }
                Err(error) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            if matches!(self.plan.begin, SessionOrigin::Adopted(_)) {
                return Err(CopyError::Forgotten(self.plan.contact.shown()));
            }
            if trying_since.elapsed() > self.plan.contact.give_up_after {
                return Err(why);
            }
            backoff.pause();
        }
    }

    /// Waits until the threads of the session that has ended are done, so that its totals have what they still wrote.
    fn await_last_writes(&self) -> Result<(), CopyError> {
        let work = match &*lock(&self.end) {
            Some(Endpoint::Receive(end)) => Arc::downgrade(&end.0.work),
            _ => return Ok(()),
        };
        self.await_release(&work, 1)
    }

    /// Waits until at most `holders` use the files and the journal of a session, which the next session takes over. A
    /// thread that writes to slow storage notices the end when its write returns.
    fn await_release(&self, work: &Weak<SinkWork>, holders: usize) -> Result<(), CopyError> {
        const NOTICE_DELAY: Duration = Duration::from_secs(1);
        const POLL_INTERVAL: Duration = Duration::from_millis(10);
        let start = Instant::now();
        while work.strong_count() > holders {
            if let Some(reason) = self.cancelled() {
                return Err(CopyError::Cancelled(reason));
            }
            if start.elapsed() > self.plan.contact.give_up_after {
                return Err(CopyError::EarlierWrites);
            }
            if start.elapsed() > NOTICE_DELAY {
                let text = "the storage here finishes the writes of the session before";
                *lock(&self.waiting) = Some(text.to_owned());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Creates the local endpoint. Waits while another process holds a resource that it needs, as for a
    /// busy agent; the agent keeps the session meanwhile.
    fn make_end(&self, opened: &Opened) -> Result<Endpoint, CopyError> {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        loop {
            let made = (self.plan.make_end)(opened);
            let busy = made.as_ref().err().filter(|error| error.is_busy());
            *lock(&self.waiting) = busy.map(ToString::to_string);
            if busy.is_none() || start.elapsed() > self.plan.contact.give_up_after {
                return made;
            }
            if let Some(reason) = self.cancelled() {
                return Err(CopyError::Cancelled(reason));
            }
            backoff.pause();
        }
    }

    /// Opens a session; returns its control connection and the number of our messages received there.
    /// `None` if an adopted session is unknown.
    fn open(&self) -> Result<Option<(Channel, u64, Opened)>, CopyError> {
        match &self.plan.begin {
            SessionOrigin::Requested(request) => {
                let (channel, opened) = self.plan.contact.open(request.clone())?;
                Ok(Some((channel, 0, opened)))
            }
            SessionOrigin::Adopted(opened) => {
                let back = self.plan.contact.reconnect(opened, 0)?;
                Ok(back.map(|(channel, received)| (channel, received, opened.clone())))
            }
        }
    }

    fn session(
        self: &Arc<Self>,
        mut channel: Channel,
        mut peer_received: u64,
        opened: &Opened,
    ) -> Result<SessionEnd, CopyError> {
        let end = self.make_end(opened)?;
        self.streams_max.store(opened.streams_max, Ordering::Relaxed);
        *lock(&self.end) = Some(end.clone());
        // Apply requests made before the endpoint existed. A cancelled session is closed at both ends
        // without starting its threads.
        match self.cancelled() {
            Some(reason) => end.cancel(&reason),
            None => end.start(),
        }
        let settings = lock(&self.settings).clone();
        if settings != Settings::default() {
            end.change(settings);
        }
        let streams = spawn("streams", {
            let (shared, end, opened) = (Arc::clone(self), end.clone(), opened.clone());
            move || streams::keep(&shared, &end, &opened)
        });
        let clock = Instant::now();
        let mut link = ControlLink::new(clock.elapsed());
        let ended = loop {
            *lock(&self.control) = channel.transport().try_clone().ok();
            let stopped = match link.connected(peer_received, clock.elapsed()) {
                Ok(()) => control::drive(end.control(), &mut link, &mut channel, clock),
                Err(error) => DriveEnd::Fault(error.to_string()),
            };
            link.disconnected();
            match stopped {
                DriveEnd::Over => break self.verdict(end.session()),
                DriveEnd::Fault(why) => break Err(CopyError::Protocol(why)),
                DriveEnd::Lost(_) if end.session().is_over() => break self.verdict(end.session()),
                DriveEnd::Lost(why) => {
                    tracing::info!("control connection lost ({why}), coming back");
                    let is_over = || end.session().is_over();
                    match self.plan.contact.reconnect_until(opened, link.received(), is_over) {
                        Ok(Some((again, received))) => (channel, peer_received) = (again, received),
                        Ok(None) if is_over() => break self.verdict(end.session()),
                        Ok(None) => break Ok(SessionEnd::Forgotten(why)),
                        Err(error) => break Err(error),
                    }
                }
            }
        };
        if !matches!(ended, Ok(SessionEnd::Finished)) {
            end.session().end(SessionOutcome::Failed("its control connection is gone".to_owned()));
        }
        streams.thread().unpark();
        let _ = streams.join();
        ended
    }

    fn verdict(&self, session: &Session) -> Result<SessionEnd, CopyError> {
        match session.ending() {
            Some(SessionOutcome::Finished) => Ok(SessionEnd::Finished),
            Some(SessionOutcome::Cancelled(reason)) => Err(match self.transports.failure() {
                Some(obstacle) => CopyError::Rdma(obstacle),
                None => CopyError::Cancelled(reason),
            }),
            Some(SessionOutcome::Failed(why)) => Err(CopyError::Session(why)),
            None => Ok(SessionEnd::Forgotten("the agent ended the session".to_owned())),
        }
    }
}

/// Returns a hasher for transfer keys.
#[must_use]
pub fn key_hasher() -> blake3::Hasher {
    blake3::Hasher::new()
}

/// Runs both ends of a local copy in this process, joined by socket pairs.
///
/// # Errors
/// If sockets cannot be created.
pub fn join_locally(send: &Endpoint, receive: &Endpoint, streams: u16) -> io::Result<()> {
    use std::os::unix::net::UnixStream;
    let nonces = Nonces { acceptor: random(), connector: random() };
    let (theirs, ours) = UnixStream::pair()?;
    for end in [send, receive] {
        end.start();
    }
    for stream in 0..u32::from(streams) {
        let (from, to) = UnixStream::pair()?;
        for (end, socket) in [(send, from), (receive, to)] {
            let end = end.clone();
            let channel = Channel::clear(Transport::Local(socket));
            spawn("stream", move || end.run_stream(stream, channel, &nonces));
        }
    }
    let clock = Instant::now();
    let drive = |end: &Endpoint, socket: UnixStream| {
        let end = end.clone();
        spawn("control", move || {
            let mut link = ControlLink::new(clock.elapsed());
            let _ = link.connected(0, clock.elapsed());
            let mut channel = Channel::clear(Transport::Local(socket));
            if let DriveEnd::Fault(why) | DriveEnd::Lost(why) =
                control::drive(end.control(), &mut link, &mut channel, clock)
            {
                end.session().end(SessionOutcome::Failed(why));
            }
        })
    };
    drive(send, theirs);
    drive(receive, ours);
    Ok(())
}
