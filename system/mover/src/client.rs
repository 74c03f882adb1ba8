//! The side that begins a transfer: opens a session, keeps its streams and its control connection
//! alive, and begins anew with what is durable when the other end has forgotten it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_protocol::control::{Placed, Settings, Tally};
use penstock_protocol::link::Link;
use penstock_protocol::open::{
    Answer, Join, Open, Opened, Protection, Refusal, RefusalKind, Request, Return,
};
use penstock_protocol::preamble::{ConnectionKind, Preamble, PreambleError};
use penstock_protocol::proof::{Nonces, SessionKey};
use rustls::ClientConfig;

use crate::agent::software;
use crate::channel::Channel;
use crate::control::{self, Stopped};
use crate::dial::Dial;
use crate::exchange::{self, Joined, random};
use crate::granting::{AnyEnd, RateMeter};
use crate::sending::spawn;
use crate::session::{DEAD_AFTER, Ending, Session, lock};
use crate::transport::Transport;

/// How long a first exchange may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Longest pause between attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Why a transfer did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    /// The other end says no.
    #[error("{0} refuses: {text}", text = .1.text)]
    Refused(String, Refusal),
    /// The other end cannot be reached, or not any more.
    #[error("cannot reach {0}: {1}")]
    Unreachable(String, String),
    /// The certificate is not the expected one.
    #[error(
        "{0} shows another certificate than expected: if it was renewed, run `penstock login` again"
    )]
    Certificate(String),
    /// Somebody stopped it.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// It cannot go on.
    #[error("{0}")]
    Failed(String),
}

/// Makes this side's end of a session, anew for each.
pub type MakeEnd = dyn Fn(&Opened) -> Result<AnyEnd, CopyError> + Send + Sync;

/// What a transfer is made of.
pub struct Plan {
    /// The way to the other end.
    pub dial: Arc<dyn Dial>,
    /// TLS that accepts the other end and nobody else.
    pub tls: Arc<ClientConfig>,
    /// Token for the other end.
    pub token: String,
    /// What is asked of it.
    pub request: Request,
    /// How data streams are protected.
    pub protection: Protection,
    /// How long to try without any success.
    pub give_up_after: Duration,
    /// Makes this side's end.
    pub make_end: Box<MakeEnd>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("to", &self.dial.shown()).finish_non_exhaustive()
    }
}

/// A transfer as seen while it runs.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What was done so far.
    pub tally: Tally,
    /// Streams now connected.
    pub streams: u16,
    /// Most streams that were connected at a time.
    pub streams_peak: u16,
    /// Rate over the last moments.
    pub bits_per_second: u64,
    /// What bounds it.
    pub bound_by: &'static str,
    /// Storage engines of both ends, ours first.
    pub engines: (String, String),
    /// TCP segments sent again.
    pub retransmits: u64,
    /// Bytes over the network, blocks sent twice included.
    pub network_bytes: u64,
    /// CPU time of both ends in microseconds, ours first.
    pub cpu_us: (u64, u64),
    /// Sessions begun: more than one when the other end was lost.
    pub sessions: u32,
    /// Streams that broke.
    pub streams_lost: u64,
    /// Blocks sent again.
    pub repeated: u64,
    /// Addresses that were given up.
    pub dropped: Vec<String>,
}

/// A transfer that runs in threads of its own.
#[derive(Debug)]
pub struct Transfer {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<Result<(), CopyError>>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    end: Mutex<Option<AnyEnd>>,
    rate: Mutex<RateMeter>,
    sessions: AtomicU32,
    /// What sessions before this one counted.
    earlier: Mutex<Snapshot>,
    /// What they put in place and nobody has taken yet.
    placed: Mutex<Vec<Placed>>,
    cancelled: Mutex<Option<String>>,
}

impl Transfer {
    /// Starts.
    #[must_use]
    pub fn start(plan: Plan) -> Self {
        let shared = Arc::new(Shared {
            plan,
            end: Mutex::default(),
            rate: Mutex::default(),
            sessions: AtomicU32::new(0),
            earlier: Mutex::default(),
            placed: Mutex::default(),
            cancelled: Mutex::default(),
        });
        let thread = spawn("transfer", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Self { shared, thread: Some(thread) }
    }

    /// How it is going.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Changes it while it runs.
    pub fn change(&self, settings: Settings) {
        if let Some(end) = &*lock(&self.shared.end) {
            end.change(settings);
        }
    }

    /// Stops it, in a state from which the same command resumes.
    pub fn cancel(&self, reason: &str) {
        *lock(&self.shared.cancelled) = Some(reason.to_owned());
        if let Some(end) = &*lock(&self.shared.end) {
            end.cancel(reason);
        }
    }

    /// Files that came into place since the last call, if this side's end keeps them.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        let mut placed = std::mem::take(&mut *lock(&self.shared.placed));
        if let Some(end) = &*lock(&self.shared.end) {
            placed.extend(end.take_placed());
        }
        placed
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Why it did not get that far. Files that failed are in the [`Snapshot`].
    pub fn wait(&mut self) -> Result<Snapshot, CopyError> {
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(CopyError::Failed("a thread of the transfer panicked".into())),
            Some(Ok(Ok(()))) | None => Ok(self.shared.snapshot()),
        }
    }
}

/// How a session ended for its client.
enum Ended {
    Finished,
    /// The other end has forgotten it: begin anew.
    Forgotten(String),
}

impl Shared {
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = lock(&self.earlier).clone();
        snapshot.dropped = self.plan.dial.dropped();
        snapshot.sessions = self.sessions.load(Ordering::Relaxed);
        let end = lock(&self.end).clone();
        let Some(end) = end else { return snapshot };
        let (session, report) = (end.session(), end.session().report());
        let peer = session.peer();
        let mut rate = lock(&self.rate);
        rate.observe(&end);
        let meter = &session.meter;
        snapshot.tally = end.tally();
        snapshot.streams = report.streams;
        snapshot.streams_peak = snapshot.streams_peak.max(session.streams_peak());
        snapshot.bits_per_second = rate.bits_per_second;
        snapshot.bound_by = rate.bound_by;
        snapshot.engines = (report.engine, peer.engine);
        snapshot.retransmits += end.retransmits();
        snapshot.network_bytes += meter.network_bytes.load(Ordering::Relaxed);
        snapshot.cpu_us.0 += report.cpu_us;
        snapshot.cpu_us.1 += peer.cpu_us;
        snapshot.streams_lost += meter.streams_lost.load(Ordering::Relaxed);
        snapshot.repeated += meter.repeated.load(Ordering::Relaxed);
        snapshot
    }

    fn run(self: &Arc<Self>) -> Result<(), CopyError> {
        let mut trying_since = Instant::now();
        let mut pause = Duration::from_millis(50);
        loop {
            if let Some(reason) = lock(&self.cancelled).clone() {
                return Err(CopyError::Cancelled(reason));
            }
            let why = match self.open() {
                Ok((channel, opened)) => {
                    self.sessions.fetch_add(1, Ordering::Relaxed);
                    pause = Duration::from_millis(50);
                    let moved_before = self.snapshot().network_bytes;
                    match self.session(channel, &opened)? {
                        Ended::Finished => return Ok(()),
                        Ended::Forgotten(why) => {
                            tracing::info!("beginning anew: {why}");
                            if self.snapshot().network_bytes > moved_before {
                                trying_since = Instant::now();
                            }
                            *lock(&self.earlier) = self.snapshot();
                            if let Some(end) = lock(&self.end).take() {
                                lock(&self.placed).extend(end.take_placed());
                            }
                            CopyError::Failed(why)
                        }
                    }
                }
                Err(error) if self.sessions.load(Ordering::Relaxed) == 0 && !is_busy(&error) => {
                    // The first time, what cannot be reached is said at once.
                    return Err(error);
                }
                Err(error @ CopyError::Unreachable(..)) => error,
                Err(error) if is_busy(&error) => error,
                Err(error) => return Err(error),
            };
            if trying_since.elapsed() > self.plan.give_up_after {
                return Err(why);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn connect(&self, kind: ConnectionKind, number: u32) -> io::Result<Channel> {
        let tls = kind == ConnectionKind::Control || self.plan.protection == Protection::Full;
        let mut transport = self.plan.dial.dial(number)?;
        transport.set_timeouts(Some(ANSWER_WITHIN))?;
        exchange::send_preamble(&mut transport, Preamble { kind, tls })?;
        if tls {
            Channel::connect_tls(transport, Arc::clone(&self.plan.tls))
        } else {
            Ok(Channel::clear(transport))
        }
    }

    fn ask(&self, request: Request) -> Result<(Channel, Answer), CopyError> {
        let shown = self.plan.dial.shown();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => CopyError::Certificate(shown.clone()),
            io::ErrorKind::InvalidInput => CopyError::Failed(error.to_string()),
            io::ErrorKind::InvalidData if is_stranger(&error) => {
                // Worth another try once a session was there: a bit may have flipped on the way.
                CopyError::Unreachable(shown.clone(), error.to_string())
            }
            io::ErrorKind::InvalidData => {
                let text = "it does not speak this version of Penstock's protocol on that port";
                CopyError::Unreachable(shown.clone(), format!("{text} ({error})"))
            }
            _ => CopyError::Unreachable(shown.clone(), penstock_sys::fs::describe(&error)),
        };
        let mut channel = self.connect(ConnectionKind::Control, 0).map_err(failed)?;
        let open = Open {
            software: software(),
            token: self.plan.token.clone(),
            features: Vec::new(),
            request,
        };
        let answer = exchange::ask(&mut channel, &open).map_err(failed)?;
        channel.transport().notice_death(DEAD_AFTER).map_err(failed)?;
        Ok((channel, answer))
    }

    fn open(&self) -> Result<(Channel, Opened), CopyError> {
        match self.ask(self.plan.request.clone())? {
            (channel, Answer::Opened(opened)) => Ok((channel, opened)),
            (_, Answer::Refused(refusal)) => {
                Err(CopyError::Refused(self.plan.dial.shown(), refusal))
            }
            (_, Answer::Returned(_)) => {
                Err(CopyError::Failed("the agent answers what was not asked".into()))
            }
        }
    }

    fn session(
        self: &Arc<Self>,
        mut channel: Channel,
        opened: &Opened,
    ) -> Result<Ended, CopyError> {
        let end = (self.plan.make_end)(opened)?;
        *lock(&self.end) = Some(end.clone());
        end.start();
        let streams = spawn("streams", {
            let (shared, end, opened) = (Arc::clone(self), end.clone(), opened.clone());
            move || shared.keep_streams(&end, &opened)
        });
        let clock = Instant::now();
        let mut link = Link::new(clock.elapsed());
        let mut peer_received = 0;
        let ended = loop {
            let stopped = match link.connected(peer_received, clock.elapsed()) {
                Ok(()) => control::drive(end.control(), &mut link, &mut channel, clock),
                Err(error) => Stopped::Fault(error.to_string()),
            };
            link.disconnected();
            match stopped {
                Stopped::Over => break self.verdict(end.session()),
                Stopped::Fault(why) => break Err(CopyError::Failed(why)),
                Stopped::Lost(_) if end.session().is_over() => break self.verdict(end.session()),
                Stopped::Lost(why) => {
                    tracing::info!("control connection lost ({why}), coming back");
                    match self.come_back(&link, opened, &end) {
                        Ok(Some((again, received))) => (channel, peer_received) = (again, received),
                        Ok(None) => break Ok(Ended::Forgotten(why)),
                        Err(error) => break Err(error),
                    }
                }
            }
        };
        if !matches!(ended, Ok(Ended::Finished)) {
            end.session().end(Ending::Failed("its control connection is gone".to_owned()));
        }
        let _ = streams.join();
        ended
    }

    fn verdict(&self, session: &Session) -> Result<Ended, CopyError> {
        match session.ending() {
            Some(Ending::Finished) => Ok(Ended::Finished),
            Some(Ending::Cancelled(reason)) => Err(CopyError::Cancelled(reason)),
            Some(Ending::Failed(why)) => Err(CopyError::Failed(why)),
            None => Ok(Ended::Forgotten("the agent ended the session".to_owned())),
        }
    }

    /// Comes back to a session; `None` when the agent has forgotten it.
    fn come_back(
        &self,
        link: &Link,
        opened: &Opened,
        end: &AnyEnd,
    ) -> Result<Option<(Channel, u64)>, CopyError> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(20);
        loop {
            let back =
                Return { session: opened.session, key: opened.key, received: link.received() };
            match self.ask(Request::Return(back)) {
                Ok((channel, Answer::Returned(received))) => return Ok(Some((channel, received))),
                Ok((_, Answer::Refused(refusal)))
                    if refusal.kind == RefusalKind::UnknownSession =>
                {
                    return Ok(None);
                }
                Ok((_, Answer::Refused(refusal))) => {
                    return Err(CopyError::Refused(self.plan.dial.shown(), refusal));
                }
                Ok(_) => return Err(CopyError::Failed("the agent makes no sense".into())),
                Err(error) if start.elapsed() > self.plan.give_up_after => return Err(error),
                Err(_) => {}
            }
            if end.session().is_over() {
                return self.verdict(end.session()).map(|_| None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Keeps as many streams connected as are wanted, until the session is over.
    fn keep_streams(self: &Arc<Self>, end: &AnyEnd, opened: &Opened) {
        let next = Arc::new(AtomicU32::new(0));
        let mut slots: Vec<std::thread::JoinHandle<()>> = Vec::new();
        let mut alive = Instant::now();
        let session = end.session();
        while !session.is_over() {
            let wanted = session.wanted_streams.load(Ordering::SeqCst).min(opened.streams_max);
            slots.retain(|slot| !slot.is_finished());
            for slot in slots.len()..usize::from(wanted) {
                let (shared, end, opened) = (Arc::clone(self), end.clone(), opened.clone());
                let (next, slot) = (Arc::clone(&next), u16::try_from(slot).unwrap_or(u16::MAX));
                slots.push(spawn("stream", move || shared.keep_stream(&end, &opened, slot, &next)));
            }
            if session.stream_count() > 0 {
                alive = Instant::now();
            } else if alive.elapsed() > self.plan.give_up_after {
                let why = format!(
                    "no data stream to {} lived for {} s",
                    self.plan.dial.shown(),
                    self.plan.give_up_after.as_secs()
                );
                session.end(Ending::Failed(why));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for slot in slots {
            let _ = slot.join();
        }
    }

    fn keep_stream(&self, end: &AnyEnd, opened: &Opened, slot: u16, next: &AtomicU32) {
        let session = end.session();
        let wanted = || slot < session.wanted_streams.load(Ordering::SeqCst);
        let mut pause = Duration::from_millis(20);
        while !session.is_over() && wanted() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let start = Instant::now();
            let result = self.join(opened, number).and_then(|(channel, nonces)| {
                end.run_stream_while(number, channel, &nonces, wanted)
            });
            if session.is_over() {
                return;
            }
            if let Err(error) = result {
                tracing::debug!("stream {number}: {error}");
            }
            if start.elapsed() > Duration::from_secs(5) {
                pause = Duration::from_millis(20);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn join(&self, opened: &Opened, stream: u32) -> io::Result<(Channel, Nonces)> {
        let mut channel = self.connect(ConnectionKind::Data, stream)?;
        let nonces =
            Nonces { acceptor: exchange::receive_challenge(&mut channel)?, connector: random() };
        let key = SessionKey(opened.key);
        let join = Join {
            session: opened.session,
            stream,
            nonce: nonces.connector,
            proof: key.join_proof(&opened.session, stream, &nonces),
        };
        match exchange::join(&mut channel, &join)? {
            Joined::Yes => {}
            refused => return Err(io::Error::other(format!("stream refused: {refused:?}"))),
        }
        channel.transport().set_timeouts(None)?;
        channel.transport().notice_death(DEAD_AFTER)?;
        Ok((channel, nonces))
    }
}

/// Whether the peer is a penstock of another version, or no penstock.
fn is_stranger(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<PreambleError>())
}

fn is_busy(error: &CopyError) -> bool {
    matches!(error, CopyError::Refused(_, refusal) if refusal.kind == RefusalKind::Busy)
}

/// A hasher for transfer keys.
#[must_use]
pub fn key_hasher() -> blake3::Hasher {
    blake3::Hasher::new()
}

/// Runs both ends in this process, joined by sockets: a local copy.
///
/// # Errors
/// When sockets cannot be made.
pub fn join_locally(send: &AnyEnd, receive: &AnyEnd, streams: u16) -> io::Result<()> {
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
    let drive = |end: &AnyEnd, socket: UnixStream| {
        let end = end.clone();
        spawn("control", move || {
            let mut link = Link::new(clock.elapsed());
            let _ = link.connected(0, clock.elapsed());
            let mut channel = Channel::clear(Transport::Local(socket));
            if let Stopped::Fault(why) | Stopped::Lost(why) =
                control::drive(end.control(), &mut link, &mut channel, clock)
            {
                end.session().end(Ending::Failed(why));
            }
        })
    };
    drive(send, theirs);
    drive(receive, ours);
    Ok(())
}
