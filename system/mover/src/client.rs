//! The side that begins a transfer: opens a session, keeps its streams and its control connection
//! alive, and begins anew with what is durable when the other end has forgotten it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use penstock_protocol::control::{Placed, Settings, Settled, TransferTally};
use penstock_protocol::link::ControlLink;
use penstock_protocol::open::{Mark, Opened, Request};
use penstock_protocol::proof::Nonces;
use penstock_sys::event::Event;

use crate::channel::Channel;
use crate::contact::{Backoff, Contact, CopyError};
use crate::control::{self, Stopped};
use crate::dial::Pair;
use crate::exchange::random;
use crate::granting::{AnyEnd, RateMeter};
use crate::sending::spawn;
use crate::session::{Ending, Session, lock};
use crate::sink::ReceiverEnd;
use crate::totals::together;
use crate::transport::Transport;

mod streams;

/// Makes this side's end of a session, anew for each.
pub type MakeEnd = dyn Fn(&Opened) -> Result<AnyEnd, CopyError> + Send + Sync;

/// How a transfer gets its session.
#[derive(Debug, Clone)]
pub enum Begin {
    /// By asking for one, and for another when the agent has forgotten it.
    Ask(Request),
    /// Somebody else has opened it there.
    Adopt(Opened),
}

/// What a transfer is made of.
pub struct Plan {
    /// The agent at the other end.
    pub contact: Contact,
    /// How its session is begun.
    pub begin: Begin,
    /// Makes this side's end.
    pub make_end: Box<MakeEnd>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("contact", &self.contact).finish_non_exhaustive()
    }
}

/// A transfer as seen while it runs.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What was done so far.
    pub tally: TransferTally,
    /// Streams now connected.
    pub streams: u16,
    /// Reader threads per device of this end; zero where it has none.
    pub readers: u16,
    /// Writer threads likewise.
    pub writers: u16,
    /// Its rate limit.
    pub rate_bps: Option<u64>,
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
    /// Smallest round-trip time that the sender's streams met.
    pub rtt: Option<Duration>,
    /// CPU time of both ends in microseconds, ours first.
    pub cpu_us: (u64, u64),
    /// Sessions begun: more than one when the other end was lost.
    pub sessions: u32,
    /// Streams that broke.
    pub streams_lost: u64,
    /// Blocks sent again.
    pub repeated: u64,
    /// Whose data it is.
    pub mark: Option<Mark>,
    /// How the packets of the sending end are labelled, or why they are not.
    pub label: String,
    /// Addresses that were given up.
    pub dropped: Vec<String>,
    /// Why the other end lets it wait, while it does.
    pub waiting: Option<String>,
}

/// A transfer that runs in threads of its own.
#[derive(Debug)]
pub struct Transfer {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    end: Mutex<Option<AnyEnd>>,
    rate: Mutex<RateMeter>,
    sessions: AtomicU32,
    /// What sessions before this one counted.
    earlier: Mutex<Snapshot>,
    /// The receiving end of the session before this one, as long as threads of it are at work.
    earlier_end: Mutex<Weak<ReceiverEnd>>,
    /// What they put in place and nobody has taken yet.
    placed: Mutex<Vec<Placed>>,
    /// What became of everything in them, likewise.
    settled: Mutex<Vec<Settled>>,
    stage: Mutex<Stage>,
    /// What was changed since the start.
    settings: Mutex<Settings>,
    /// How it ended.
    outcome: Mutex<Option<Result<(), CopyError>>>,
    /// Signalled when it has.
    over: Event,
    waiting: Mutex<Option<String>>,
    /// The control connection, to be broken when it is to take another way.
    control: Mutex<Option<Transport>>,
}

/// Whether a transfer has a session, and whether it was cancelled; both under one lock, so that a cancelled transfer
/// either has a session that is told, or never gets one that moves anything.
#[derive(Debug, Default)]
struct Stage {
    /// Why it was cancelled.
    cancelled: Option<String>,
    /// A session is open, or being opened by the answer that has just arrived.
    in_session: bool,
}

impl Transfer {
    /// Starts.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn start(plan: Plan) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(plan)?);
        let thread = spawn("transfer", {
            let shared = Arc::clone(&shared);
            move || {
                let outcome = shared.run();
                shared.finish(outcome);
            }
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), CopyError>> {
        lock(&self.shared.outcome).clone()
    }

    /// Becomes readable when it has ended, for whoever waits for descriptors.
    #[must_use]
    pub fn over(&self) -> &Event {
        &self.shared.over
    }

    /// The other end, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        self.shared.plan.contact.shown()
    }

    /// How it is going.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Changes it while it runs, and whatever session follows.
    pub fn change(&self, settings: Settings) {
        lock(&self.shared.settings).merge(&settings);
        if let Some(end) = &*lock(&self.shared.end) {
            end.change(settings);
        }
    }

    /// Has its streams use these pairs of addresses from now on, or any where none is given. Each of its
    /// streams gets a successor there and ends once what it carries has arrived; where that takes long it is broken, and what
    /// it carried is sent again. The control connection moves last, and takes any way where these are dead.
    ///
    /// # Errors
    /// When its connections cannot be chosen.
    pub fn use_path(&self, path: &[Pair]) -> io::Result<()> {
        self.shared.plan.contact.dial.choose(path)
    }

    /// Stops it, in a state from which the same command resumes. Without a session it ends at once, though an attempt
    /// to connect may take its time: whatever comes of that moves nothing.
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

    /// Files that came into place since the last call, if this side's end keeps them.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        let mut placed = std::mem::take(&mut *lock(&self.shared.placed));
        if let Some(end) = &*lock(&self.shared.end) {
            placed.extend(end.take_placed());
        }
        placed
    }

    /// What became of everything since the last call, if this side's end sends and keeps an account.
    #[must_use]
    pub fn take_settled(&self) -> Vec<Settled> {
        let mut settled = std::mem::take(&mut *lock(&self.shared.settled));
        if let Some(end) = &*lock(&self.shared.end) {
            settled.extend(end.take_settled());
        }
        settled
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
        let joined = self.thread.take().map(std::thread::JoinHandle::join);
        if matches!(joined, Some(Err(_))) {
            return Err(CopyError::Failed("a thread of the transfer panicked".into()));
        }
        self.outcome().unwrap_or(Ok(()))?;
        Ok(self.shared.snapshot())
    }
}

/// How a session ended for its client.
enum Ended {
    Finished,
    /// The other end has forgotten it: begin anew.
    Forgotten(String),
}

impl Shared {
    fn new(plan: Plan) -> io::Result<Self> {
        Ok(Self {
            plan,
            end: Mutex::default(),
            rate: Mutex::default(),
            sessions: AtomicU32::new(0),
            earlier: Mutex::default(),
            earlier_end: Mutex::default(),
            placed: Mutex::default(),
            settled: Mutex::default(),
            stage: Mutex::default(),
            settings: Mutex::default(),
            waiting: Mutex::default(),
            control: Mutex::default(),
            outcome: Mutex::default(),
            over: Event::new()?,
        })
    }

    fn snapshot(&self) -> Snapshot {
        // Both under one lock: a session is the present one or an earlier one, never both.
        let end = lock(&self.end);
        let earlier = lock(&self.earlier).clone();
        let end = (*end).clone();
        self.add(earlier, end.as_ref())
    }

    /// The present session becomes an earlier one.
    fn put_behind(&self) {
        let mut end = lock(&self.end);
        let mut earlier = lock(&self.earlier);
        *earlier = self.add(std::mem::take(&mut *earlier), end.as_ref());
        drop(earlier);
        if let Some(end) = end.take() {
            if let AnyEnd::Receive(end) = &end {
                *lock(&self.earlier_end) = Arc::downgrade(&end.0);
            }
            lock(&self.placed).extend(end.take_placed());
            lock(&self.settled).extend(end.take_settled());
        }
    }

    /// What `earlier` sessions and the present one did together.
    fn add(&self, mut snapshot: Snapshot, end: Option<&AnyEnd>) -> Snapshot {
        snapshot.dropped = self.plan.contact.dial.dropped();
        snapshot.waiting = lock(&self.waiting).clone();
        snapshot.sessions = self.sessions.load(Ordering::Relaxed);
        let Some(end) = end else { return snapshot };
        let (session, report) = (end.session(), end.session().report());
        let peer = session.peer();
        let mut rate = lock(&self.rate);
        rate.observe(end);
        let meter = &session.meter;
        snapshot.tally = together(&snapshot.tally, end.tally());
        snapshot.streams = report.streams;
        (snapshot.readers, snapshot.writers) = end.threads();
        snapshot.rate_bps = session.pace.rate_bps();
        snapshot.streams_peak = snapshot.streams_peak.max(session.streams_peak());
        snapshot.bits_per_second = rate.bits_per_second;
        snapshot.bound_by = rate.bound_by;
        snapshot.mark = session.options.mark;
        let sender = match end {
            AnyEnd::Send(_) => &report,
            AnyEnd::Receive(_) => &peer,
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

    /// Notes how it ended, once.
    fn finish(&self, outcome: Result<(), CopyError>) {
        lock(&self.outcome).get_or_insert(outcome);
        let _ = self.over.signal();
    }

    fn cancelled(&self) -> Option<String> {
        lock(&self.stage).cancelled.clone()
    }

    /// Runs sessions until the transfer is complete. Of a cancelled one no other error is worth telling.
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
            self.await_earlier_end()?;
            let opened = self.open();
            lock(&self.stage).in_session = matches!(opened, Ok(Some(_)));
            let busy = opened.as_ref().err().filter(|error| error.is_busy());
            *lock(&self.waiting) = busy.map(ToString::to_string);
            let why = match opened {
                Ok(Some((channel, received, opened))) => {
                    self.sessions.fetch_add(1, Ordering::Relaxed);
                    backoff = Backoff::default();
                    let moved_before = self.snapshot().network_bytes;
                    match self.session(channel, received, &opened)? {
                        Ended::Finished => return Ok(()),
                        Ended::Forgotten(why) => {
                            tracing::info!("beginning anew: {why}");
                            if self.snapshot().network_bytes > moved_before {
                                trying_since = Instant::now();
                            }
                            self.put_behind();
                            lock(&self.stage).in_session = false;
                            CopyError::Failed(why)
                        }
                    }
                }
                Ok(None) => CopyError::Forgotten(self.plan.contact.shown()),
                // The first time, what cannot be reached is said at once.
                Err(error @ CopyError::Unreachable(..))
                    if self.sessions.load(Ordering::Relaxed) == 0 =>
                {
                    return Err(error);
                }
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(error),
            };
            if matches!(self.plan.begin, Begin::Adopt(_)) {
                return Err(CopyError::Forgotten(self.plan.contact.shown()));
            }
            if trying_since.elapsed() > self.plan.contact.give_up_after {
                return Err(why);
            }
            backoff.pause();
        }
    }

    /// Waits until the threads of the session before have let go of their files and of the journal, which
    /// the next session takes over. A thread that writes to slow storage notices the end when its write returns.
    fn await_earlier_end(&self) -> Result<(), CopyError> {
        const TOLD_AFTER: Duration = Duration::from_secs(1);
        const LOOK_EVERY: Duration = Duration::from_millis(10);
        let start = Instant::now();
        while lock(&self.earlier_end).strong_count() > 0 {
            if let Some(reason) = self.cancelled() {
                return Err(CopyError::Cancelled(reason));
            }
            if start.elapsed() > self.plan.contact.give_up_after {
                let text = "the storage here has not finished the writes of the session before";
                return Err(CopyError::Failed(text.to_owned()));
            }
            if start.elapsed() > TOLD_AFTER {
                let text = "the storage here finishes the writes of the session before";
                *lock(&self.waiting) = Some(text.to_owned());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// This side's end. Where another process holds what it needs it waits, as for a busy agent; the session at
    /// the agent waits for us meanwhile.
    fn make_end(&self, opened: &Opened) -> Result<AnyEnd, CopyError> {
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

    /// A session with its control connection and how many messages of this side were received there.
    /// `None` when an adopted one is forgotten.
    fn open(&self) -> Result<Option<(Channel, u64, Opened)>, CopyError> {
        match &self.plan.begin {
            Begin::Ask(request) => {
                let (channel, opened) = self.plan.contact.open(request.clone())?;
                Ok(Some((channel, 0, opened)))
            }
            Begin::Adopt(opened) => {
                let back = self.plan.contact.return_to(opened, 0)?;
                Ok(back.map(|(channel, received)| (channel, received, opened.clone())))
            }
        }
    }

    fn session(
        self: &Arc<Self>,
        mut channel: Channel,
        mut peer_received: u64,
        opened: &Opened,
    ) -> Result<Ended, CopyError> {
        let end = self.make_end(opened)?;
        *lock(&self.end) = Some(end.clone());
        // What was asked for before there was an end is done now. A cancelled session is closed at both ends, and its
        // threads are not even started.
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
                Err(error) => Stopped::Fault(error.to_string()),
            };
            link.disconnected();
            match stopped {
                Stopped::Over => break self.verdict(end.session()),
                Stopped::Fault(why) => break Err(CopyError::Failed(why)),
                Stopped::Lost(_) if end.session().is_over() => break self.verdict(end.session()),
                Stopped::Lost(why) => {
                    tracing::info!("control connection lost ({why}), coming back");
                    let is_over = || end.session().is_over();
                    match self.plan.contact.come_back(opened, link.received(), is_over) {
                        Ok(Some((again, received))) => (channel, peer_received) = (again, received),
                        Ok(None) if is_over() => break self.verdict(end.session()),
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
            let mut link = ControlLink::new(clock.elapsed());
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
