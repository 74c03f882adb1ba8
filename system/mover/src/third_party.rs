//! A copy between two agents that this process asks for and looks on.
//!
//! It opens a session at the destination and hands it to the source (see
//! [`penstock_protocol::third_party`]). When either agent has forgotten its part, both are asked again, and
//! the destination's journal says what is left to send.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use penstock_protocol::control::{ERRORS_KEPT, EntryFailure, Placed, Settings};
use penstock_protocol::link::ControlLink;
use penstock_protocol::open::{Opened, Push, Request};
use penstock_protocol::third_party::{Ended, FromSource, Progress, ThirdParty, ToSource};
use penstock_protocol::wire;
use penstock_sys::event::Event;

use crate::bound;
use crate::channel::Channel;
use crate::client::Snapshot;
use crate::contact::{Backoff, Contact, CopyError};
use crate::control::{self, End, Stopped};
use crate::sending::spawn;
use crate::session::lock;
use crate::totals::together;

/// What a copy between two agents is made of.
pub struct Plan {
    /// The agent that sends.
    pub source: Contact,
    /// The agent that receives.
    pub destination: Contact,
    /// What is asked of the destination.
    pub push: Push,
    /// Makes what is asked of the source, for a session at the destination.
    pub request: Box<dyn Fn(Opened) -> ThirdParty + Send + Sync>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("source", &self.source)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

/// A copy between two agents, followed in a thread of its own.
#[derive(Debug)]
pub struct Transfer {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<Result<(), CopyError>>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    sessions: AtomicU32,
    news: Mutex<News>,
    wake: Event,
}

/// What the source said, and what is to be said to it.
#[derive(Debug, Default)]
struct News {
    progress: Progress,
    errors: Vec<EntryFailure>,
    warnings: Vec<EntryFailure>,
    waiting: Option<String>,
    placed: Vec<Placed>,
    /// What sessions before this one did.
    earlier: Progress,
    ended: Option<Ended>,
    /// What was changed since the start.
    settings: Settings,
    out: VecDeque<ToSource>,
    cancelled: Option<String>,
}

impl Transfer {
    /// Starts.
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn start(plan: Plan) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            plan,
            sessions: AtomicU32::new(0),
            news: Mutex::default(),
            wake: Event::new()?,
        });
        let thread = spawn("third party", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Source and destination, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        let Plan { source, destination, .. } = &self.shared.plan;
        format!("{} to {}", source.shown(), destination.shown())
    }

    /// How it is going; the engines and the CPU time are those of source and destination.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Changes it while it runs, and whatever session follows.
    pub fn change(&self, settings: Settings) {
        lock(&self.shared.news).settings.merge(&settings);
        self.shared.say(ToSource::Settings(settings));
    }

    /// Stops it, in a state from which the same command resumes.
    pub fn cancel(&self, reason: &str) {
        lock(&self.shared.news).cancelled = Some(reason.to_owned());
        self.shared.say(ToSource::Cancel(reason.to_owned()));
    }

    /// Files that came into place since the last call, if the source was asked to keep them.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        std::mem::take(&mut lock(&self.shared.news).placed)
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

impl Shared {
    fn say(&self, message: ToSource) {
        lock(&self.news).out.push_back(message);
        // It looks again after a while even if this fails.
        let _ = self.wake.signal();
    }

    fn snapshot(&self) -> Snapshot {
        let news = lock(&self.news);
        let (now, earlier) = (&news.progress, &news.earlier);
        let mut tally = now.tally.clone();
        tally.errors.clone_from(&news.errors);
        tally.warnings.clone_from(&news.warnings);
        let tally = together(&earlier.tally, tally);
        Snapshot {
            tally,
            streams: now.streams,
            streams_peak: now.streams_peak.max(earlier.streams_peak),
            bits_per_second: now.bits_per_second,
            bound_by: bound::named(&now.bound_by),
            engines: now.engines.clone(),
            retransmits: now.retransmits + earlier.retransmits,
            network_bytes: now.network_bytes + earlier.network_bytes,
            rtt: None,
            cpu_us: (now.cpu_us.0 + earlier.cpu_us.0, now.cpu_us.1 + earlier.cpu_us.1),
            sessions: self.sessions.load(Ordering::Relaxed),
            streams_lost: now.streams_lost + earlier.streams_lost,
            repeated: now.repeated + earlier.repeated,
            dropped: now.dropped.clone(),
            waiting: news.waiting.clone(),
            mark: now.mark,
            label: now.label.clone(),
            readers: now.readers,
            // Only the destination knows its own.
            writers: 0,
            rate_bps: now.rate_bps,
        }
    }

    fn cancelled(&self) -> Option<String> {
        lock(&self.news).cancelled.clone()
    }

    fn run(&self) -> Result<(), CopyError> {
        let mut trying_since = Instant::now();
        let mut backoff = Backoff::default();
        let give_up_after = self.plan.source.give_up_after;
        loop {
            if let Some(reason) = self.cancelled() {
                return Err(CopyError::Cancelled(reason));
            }
            let moved_before = self.snapshot().network_bytes;
            let ended = self.session();
            let busy = ended.as_ref().err().filter(|error| error.is_busy());
            lock(&self.news).waiting = busy.map(ToString::to_string);
            let why = match ended {
                Ok(Ended::Finished(())) => return Ok(()),
                Ok(Ended::Cancelled(reason)) => return Err(CopyError::Cancelled(reason)),
                Ok(Ended::Failed(why)) => {
                    return Err(CopyError::Failed(format!("{}: {why}", self.plan.source.shown())));
                }
                Ok(Ended::Forgotten(why)) => {
                    tracing::info!("beginning anew: {why}");
                    CopyError::Failed(why)
                }
                // The first time, what cannot be reached is said at once.
                Err(error @ CopyError::Unreachable(..))
                    if self.sessions.load(Ordering::Relaxed) == 0 =>
                {
                    return Err(error);
                }
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(error),
            };
            if self.snapshot().network_bytes > moved_before {
                (trying_since, backoff) = (Instant::now(), Backoff::default());
            }
            if trying_since.elapsed() > give_up_after {
                return Err(why);
            }
            backoff.pause();
        }
    }

    /// One session at both agents, to its end.
    fn session(&self) -> Result<Ended, CopyError> {
        self.begin_news();
        // The source takes its place at the destination; until then this connection keeps it.
        let (_place, at_destination) =
            self.plan.destination.open(Request::Push(self.plan.push.clone()))?;
        let request = Request::ThirdParty(Box::new((self.plan.request)(at_destination)));
        let (mut channel, at_source) = self.plan.source.open(request)?;
        self.sessions.fetch_add(1, Ordering::Relaxed);
        let clock = Instant::now();
        let mut link = ControlLink::new(clock.elapsed());
        let mut received = 0;
        loop {
            let stopped = self.drive(&mut link, received, &mut channel, clock);
            link.disconnected();
            if let Some(ended) = lock(&self.news).ended.clone() {
                return Ok(ended);
            }
            let why = match stopped {
                Stopped::Over => "the source said nothing at the end".to_owned(),
                Stopped::Fault(why) => return Err(CopyError::Failed(why)),
                Stopped::Lost(why) => why,
            };
            tracing::info!("control connection lost ({why}), coming back");
            let is_over = || self.cancelled().is_some();
            match self.plan.source.come_back(&at_source, link.received(), is_over)? {
                Some((again, count)) => (channel, received) = (again, count),
                None => return Ok(Ended::Forgotten(why)),
            }
        }
    }

    fn begin_news(&self) {
        let mut news = lock(&self.news);
        let mut last = std::mem::take(&mut news.progress);
        last.tally.warnings = std::mem::take(&mut news.warnings);
        let earlier = &mut news.earlier;
        earlier.tally = together(&earlier.tally, last.tally);
        earlier.streams_peak = earlier.streams_peak.max(last.streams_peak);
        earlier.retransmits += last.retransmits;
        earlier.network_bytes += last.network_bytes;
        earlier.cpu_us.0 += last.cpu_us.0;
        earlier.cpu_us.1 += last.cpu_us.1;
        earlier.streams_lost += last.streams_lost;
        earlier.repeated += last.repeated;
        news.errors.clear();
        news.ended = None;
        news.out.clear();
        if news.settings != Settings::default() {
            let settings = news.settings.clone();
            news.out.push_back(ToSource::Settings(settings));
        }
        if let Some(reason) = news.cancelled.clone() {
            news.out.push_back(ToSource::Cancel(reason));
        }
    }

    fn drive(
        &self,
        link: &mut ControlLink,
        received: u64,
        channel: &mut Channel,
        clock: Instant,
    ) -> Stopped {
        match link.connected(received, clock.elapsed()) {
            Ok(()) => control::drive(self, link, channel, clock),
            Err(error) => Stopped::Fault(error.to_string()),
        }
    }
}

impl End for Shared {
    fn is_over(&self) -> bool {
        lock(&self.news).ended.is_some()
    }

    fn wake(&self) -> &Event {
        &self.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        lock(&self.news).out.pop_front().as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), String> {
        let mut news = lock(&self.news);
        match wire::decode(message).map_err(|error| error.to_string())? {
            FromSource::Progress(progress) => news.progress = *progress,
            FromSource::Errors(errors) => {
                let room = ERRORS_KEPT.saturating_sub(news.errors.len());
                news.errors.extend(errors.into_iter().take(room));
            }
            FromSource::Warnings(warnings) => {
                let room = ERRORS_KEPT.saturating_sub(news.warnings.len());
                news.warnings.extend(warnings.into_iter().take(room));
            }
            FromSource::Placed(placed) => news.placed.extend(placed),
            FromSource::Ended(ended) => news.ended = Some(ended),
        }
        Ok(())
    }

    fn tick(&self) {}
}
