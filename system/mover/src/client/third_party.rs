//! Third-party copy between two agents, requested and observed by this process.
//!
//! Opens a session at the destination and hands it to the source (see
//! [`penstock_protocol::third_party`]). When either agent has lost its part, both get a new request,
//! and the destination's journal determines what is left to send.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use penstock_protocol::control::{ERRORS_KEPT, EntryFailure, Placed, Settings};
use penstock_protocol::link::ControlLink;
use penstock_protocol::open::{FEATURE_OBSERVE, Opened, Push, Request};
use penstock_protocol::third_party::{
    Ended, FromSource, Progress, ThirdParty, ToSource, TransportReport,
};
use penstock_protocol::wire;
use penstock_sys::event::EventFd;

use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::client::transfer::TransferSnapshot;
use crate::net::channel::Channel;
use crate::net::connector::{Backoff, CopyError, PeerConnector, TransportChoice};
use crate::session::bottleneck;
use crate::session::control::{self, ControlEndpoint, DriveEnd, ProtocolFault};
use crate::session::totals::merge_tallies;

/// Configuration of a third-party copy.
pub struct ThirdPartyConfig {
    /// Connector to the sending agent.
    pub source: PeerConnector,
    /// Connector to the receiving agent.
    pub destination: PeerConnector,
    /// Push request for the destination.
    pub push: Push,
    /// Creates the request for the source from a session at the destination.
    pub request: Box<dyn Fn(Opened) -> ThirdParty + Send + Sync>,
    /// Set to have the source's agent list what its tuner would change, where `push` names the streams.
    pub is_observed: bool,
}

impl std::fmt::Debug for ThirdPartyConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("source", &self.source)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

/// Third-party copy, observed in a thread of its own.
#[derive(Debug)]
pub struct ThirdPartyTransfer {
    shared: Arc<ThirdPartyObserver>,
    thread: Option<std::thread::JoinHandle<Result<(), CopyError>>>,
}

#[derive(Debug)]
struct ThirdPartyObserver {
    plan: ThirdPartyConfig,
    sessions: AtomicU32,
    state: Mutex<ObserverState>,
    wake: EventFd,
}

/// Reports of the source and messages queued for it.
#[derive(Debug, Default)]
struct ObserverState {
    progress: Progress,
    errors: Vec<EntryFailure>,
    warnings: Vec<EntryFailure>,
    waiting: Option<String>,
    placed: Vec<Placed>,
    /// Progress accumulated over earlier sessions.
    earlier: Progress,
    ended: Option<Ended>,
    /// Transport of the streams, as the source reports it.
    transport: TransportReport,
    /// Reason for which a copy that requires RDMA has failed.
    obstacle: Option<String>,
    /// Settings changed since the start.
    settings: Settings,
    out: VecDeque<ToSource>,
    cancelled: Option<String>,
}

impl ThirdPartyTransfer {
    /// Starts the copy in a new thread.
    ///
    /// # Errors
    /// If the process is out of file descriptors.
    pub fn start(plan: ThirdPartyConfig) -> io::Result<Self> {
        let shared = Arc::new(ThirdPartyObserver {
            plan,
            sessions: AtomicU32::new(0),
            state: Mutex::default(),
            wake: EventFd::new()?,
        });
        let thread = spawn("third party", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Display names of source and destination.
    #[must_use]
    pub fn shown(&self) -> String {
        let ThirdPartyConfig { source, destination, .. } = &self.shared.plan;
        format!("{} to {}", source.shown(), destination.shown())
    }

    /// Current state; engines and CPU times are those of source and destination.
    #[must_use]
    pub fn snapshot(&self) -> TransferSnapshot {
        self.shared.snapshot()
    }

    /// Changes the settings of this and later sessions.
    pub fn change(&self, settings: Settings) {
        lock(&self.shared.state).settings.merge(&settings);
        self.shared.queue(ToSource::Settings(settings));
    }

    /// Cancels it; the same command can resume.
    pub fn cancel(&self, reason: &str) {
        lock(&self.shared.state).cancelled = Some(reason.to_owned());
        self.shared.queue(ToSource::Cancel(reason.to_owned()));
    }

    /// Returns the files committed since the last call, if the source collects them.
    #[must_use]
    pub fn take_placed(&self) -> Vec<Placed> {
        std::mem::take(&mut lock(&self.shared.state).placed)
    }

    /// True once it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The reason of a failed or cancelled copy. Failed files are in the [`TransferSnapshot`].
    pub fn wait(&mut self) -> Result<TransferSnapshot, CopyError> {
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(CopyError::Panicked),
            Some(Ok(Ok(()))) | None => Ok(self.shared.snapshot()),
        }
    }
}

impl ThirdPartyObserver {
    fn queue(&self, message: ToSource) {
        lock(&self.state).out.push_back(message);
        // The thread polls again after a while even if this fails.
        let _ = self.wake.signal();
    }

    fn snapshot(&self) -> TransferSnapshot {
        let state = lock(&self.state);
        let (now, earlier) = (&state.progress, &state.earlier);
        let mut tally = now.tally.clone();
        tally.errors.clone_from(&state.errors);
        tally.warnings.clone_from(&state.warnings);
        let tally = merge_tallies(&earlier.tally, tally);
        TransferSnapshot {
            tally,
            streams: now.streams,
            streams_peak: now.streams_peak.max(earlier.streams_peak),
            bits_per_second: now.bits_per_second,
            bound_by: bottleneck::parse_bottleneck(&now.bound_by),
            engines: now.engines.clone(),
            retransmits: now.retransmits + earlier.retransmits,
            network_bytes: now.network_bytes + earlier.network_bytes,
            rtt: None,
            cpu_us: (now.cpu_us.0 + earlier.cpu_us.0, now.cpu_us.1 + earlier.cpu_us.1),
            sessions: self.sessions.load(Ordering::Relaxed),
            streams_lost: now.streams_lost + earlier.streams_lost,
            repeated: now.repeated + earlier.repeated,
            dropped: now.dropped.clone(),
            waiting: state.waiting.clone(),
            mark: now.mark,
            label: now.label.clone(),
            readers: now.readers,
            // Known to the destination only.
            writers: 0,
            rate_bps: now.rate_bps,
            transport: match state.transport.name.as_str() {
                "rdma" => "rdma",
                "mixed" => "mixed",
                "tcp" => "tcp",
                _ if self.plan.source.transport == TransportChoice::Tcp => "tcp",
                _ => "",
            },
            transport_reason: state.transport.reason.clone(),
        }
    }

    fn cancelled(&self) -> Option<String> {
        lock(&self.state).cancelled.clone()
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
            lock(&self.state).waiting = busy.map(ToString::to_string);
            let why = match ended {
                Ok(Ended::Finished(())) => return Ok(()),
                Ok(Ended::Cancelled(_) | Ended::Failed(_)) if self.obstacle().is_some() => {
                    return Err(CopyError::Rdma(self.obstacle().unwrap_or_default()));
                }
                Ok(Ended::Cancelled(reason)) => return Err(CopyError::Cancelled(reason)),
                Ok(Ended::Failed(why)) => {
                    let agent = self.plan.source.shown();
                    return Err(CopyError::Source { agent, reason: why });
                }
                Ok(Ended::Forgotten(why)) => {
                    if self.cancelled().is_none() {
                        tracing::info!("session lost, opening another: {why}");
                    }
                    CopyError::SessionLost(why)
                }
                // An unreachable peer is reported at once on the first attempt.
                Err(error @ CopyError::Unreachable(..))
                    if self.sessions.load(Ordering::Relaxed) == 0 =>
                {
                    return Err(error);
                }
                Err(error) if error.is_transient() => error,
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

    /// Runs one session at both agents to its end.
    fn session(&self) -> Result<Ended, CopyError> {
        self.reset_state();
        // The source takes over this connection's session; until then the connection keeps it.
        let (_place, at_destination) =
            self.plan.destination.open(Request::Push(self.plan.push.clone()))?;
        let request = Request::ThirdParty(Box::new((self.plan.request)(at_destination)));
        let observe = self.plan.is_observed.then_some(FEATURE_OBSERVE);
        let transport = self.plan.source.transport.feature();
        let features: Vec<_> = observe.into_iter().chain(transport).collect();
        let (mut channel, at_source) = self.plan.source.open_with(request, &features)?;
        self.check_transport(&at_source);
        self.sessions.fetch_add(1, Ordering::Relaxed);
        let clock = Instant::now();
        let mut link = ControlLink::new(clock.elapsed());
        let mut received = 0;
        loop {
            let stopped = self.drive(&mut link, received, &mut channel, clock);
            link.disconnected();
            if let Some(ended) = lock(&self.state).ended.clone() {
                return Ok(ended);
            }
            let why = match stopped {
                DriveEnd::Over => "the source said nothing at the end".to_owned(),
                DriveEnd::Fault(why) => return Err(CopyError::Protocol(why)),
                DriveEnd::Lost(why) => why,
            };
            tracing::info!("control connection lost ({why}), coming back");
            let is_over = || self.cancelled().is_some();
            match self.plan.source.reconnect_until(&at_source, link.received(), is_over)? {
                Some((again, count)) => (channel, received) = (again, count),
                None => return Ok(Ended::Forgotten(why)),
            }
        }
    }

    /// Reason for which a copy that requires RDMA has failed.
    fn obstacle(&self) -> Option<String> {
        lock(&self.state).obstacle.clone()
    }

    /// Cancels a copy that requires RDMA at a source that does not know of it.
    fn check_transport(&self, at_source: &Opened) {
        let choice = self.plan.source.transport;
        if choice == TransportChoice::of_features(&at_source.features) {
            return;
        }
        let reason = format!(
            "{} runs an earlier release, which sends to other agents by TCP",
            self.plan.source.shown()
        );
        let mut state = lock(&self.state);
        state.transport = TransportReport { name: "tcp".to_owned(), reason: reason.clone() };
        if choice == TransportChoice::Rdma {
            state.out.push_back(ToSource::Cancel(reason.clone()));
            state.obstacle = Some(reason);
        }
    }

    fn reset_state(&self) {
        let mut state = lock(&self.state);
        let mut last = std::mem::take(&mut state.progress);
        last.tally.warnings = std::mem::take(&mut state.warnings);
        let earlier = &mut state.earlier;
        earlier.tally = merge_tallies(&earlier.tally, last.tally);
        earlier.streams_peak = earlier.streams_peak.max(last.streams_peak);
        earlier.retransmits += last.retransmits;
        earlier.network_bytes += last.network_bytes;
        earlier.cpu_us.0 += last.cpu_us.0;
        earlier.cpu_us.1 += last.cpu_us.1;
        earlier.streams_lost += last.streams_lost;
        earlier.repeated += last.repeated;
        state.errors.clear();
        state.ended = None;
        state.out.clear();
        if state.settings != Settings::default() {
            let settings = state.settings.clone();
            state.out.push_back(ToSource::Settings(settings));
        }
        if let Some(reason) = state.cancelled.clone() {
            state.out.push_back(ToSource::Cancel(reason));
        }
    }

    fn drive(
        &self,
        link: &mut ControlLink,
        received: u64,
        channel: &mut Channel,
        clock: Instant,
    ) -> DriveEnd {
        match link.connected(received, clock.elapsed()) {
            Ok(()) => control::drive(self, link, channel, clock),
            Err(error) => DriveEnd::Fault(error.to_string()),
        }
    }
}

/// Name of the transports of all sessions from that of the earlier ones and that of the present one.
fn merge_transports(earlier: &str, present: String) -> String {
    match (earlier, present.as_str()) {
        ("tcp", "rdma") | ("rdma", "tcp") | ("mixed", _) => "mixed".to_owned(),
        (earlier, "") => earlier.to_owned(),
        _ => present,
    }
}

impl ControlEndpoint for ThirdPartyObserver {
    fn is_over(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    fn wake(&self) -> &EventFd {
        &self.wake
    }

    fn poll_message(&self) -> Option<Vec<u8>> {
        lock(&self.state).out.pop_front().as_ref().map(wire::encode)
    }

    fn on_message(&self, message: &[u8]) -> Result<(), ProtocolFault> {
        let mut state = lock(&self.state);
        match wire::decode(message)? {
            FromSource::Progress(progress) => state.progress = *progress,
            FromSource::Errors(errors) => {
                let room = ERRORS_KEPT.saturating_sub(state.errors.len());
                state.errors.extend(errors.into_iter().take(room));
            }
            FromSource::Warnings(warnings) => {
                let room = ERRORS_KEPT.saturating_sub(state.warnings.len());
                state.warnings.extend(warnings.into_iter().take(room));
            }
            FromSource::Placed(placed) => state.placed.extend(placed),
            FromSource::Transport(report) => {
                // "This host" is the source.
                let reason = match report.reason.as_str() {
                    "" => String::new(),
                    reason => format!("{}: {reason}", self.plan.source.shown()),
                };
                if self.plan.source.transport == TransportChoice::Rdma && report.name.is_empty() {
                    state.obstacle = Some(reason.clone()).filter(|reason| !reason.is_empty());
                }
                let name = merge_transports(&state.transport.name, report.name);
                state.transport = TransportReport { name, reason };
            }
            FromSource::Ended(ended) => state.ended = Some(ended),
        }
        Ok(())
    }

    fn tick(&self) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_identity::{Fingerprint, tls_client_config};
    use penstock_protocol::open::{Options, Protection};
    use penstock_protocol::wire::Bytes;

    use super::*;
    use crate::base::test_options::plain_options;
    use crate::net::cleartext_networks::CleartextNetworks;
    use crate::net::connector::StreamDscp;
    use crate::net::dial::TcpDial;

    fn observer(transport: TransportChoice) -> ThirdPartyObserver {
        let connector = || PeerConnector {
            dial: Arc::new(TcpDial::to_any(&["127.0.0.1:1".parse().unwrap()]).unwrap()),
            tls: tls_client_config(Fingerprint([0; 32]), None).unwrap(),
            token: String::new(),
            protection: Protection::Integrity,
            transport,
            cleartext: CleartextNetworks::default(),
            dscp: StreamDscp::default(),
            give_up_after: Duration::ZERO,
        };
        let options = Options { protection: Protection::Integrity, ..plain_options() };
        let target = Bytes(b"/in".to_vec());
        let push = Push { target, into_directory: true, transfer_key: [0; 16], options };
        let plan = ThirdPartyConfig {
            source: connector(),
            destination: connector(),
            push,
            request: Box::new(|_| unreachable!("no session is opened")),
            is_observed: false,
        };
        ThirdPartyObserver {
            plan,
            sessions: AtomicU32::new(0),
            state: Mutex::default(),
            wake: EventFd::new().unwrap(),
        }
    }

    fn report(observer: &ThirdPartyObserver, name: &str, reason: &str) {
        let report = TransportReport { name: name.to_owned(), reason: reason.to_owned() };
        observer.on_message(&wire::encode(&FromSource::Transport(report))).unwrap();
    }

    #[test]
    fn earlier_source_sends_by_tcp() {
        let earlier = Opened::default();
        let observer = observer(TransportChoice::Auto);
        observer.check_transport(&earlier);
        let snapshot = observer.snapshot();
        assert_eq!(snapshot.transport, "tcp");
        assert!(snapshot.transport_reason.contains("earlier release"), "{snapshot:?}");
        assert_eq!((observer.obstacle(), observer.poll_message()), (None, None));
    }

    #[test]
    fn required_rdma_cancels_earlier_source() {
        let observer = observer(TransportChoice::Rdma);
        observer.check_transport(&Opened::default());
        assert!(observer.obstacle().is_some_and(|why| why.contains("earlier release")));
        let sent = wire::decode(&observer.poll_message().unwrap()).unwrap();
        assert!(matches!(sent, ToSource::Cancel(_)), "{sent:?}");
    }

    #[test]
    fn source_states_transport_and_reason() {
        let observer = observer(TransportChoice::Rdma);
        let features = vec![TransportChoice::Rdma.feature().unwrap().to_owned()];
        observer.check_transport(&Opened { features, ..Opened::default() });
        assert_eq!(observer.snapshot().transport, "");
        report(&observer, "rdma", "rxe0 has the address");
        let snapshot = observer.snapshot();
        assert_eq!(snapshot.transport, "rdma");
        assert!(snapshot.transport_reason.ends_with(": rxe0 has the address"), "{snapshot:?}");
        // A later session.
        report(&observer, "", "");
        report(&observer, "tcp", "the path is closed");
        assert_eq!((observer.snapshot().transport, observer.obstacle()), ("mixed", None));
    }

    #[test]
    fn obstacle_before_streams_is_kept() {
        let observer = observer(TransportChoice::Rdma);
        report(&observer, "", "this host has no RDMA device");
        let obstacle = observer.obstacle().unwrap();
        assert!(obstacle.ends_with(": this host has no RDMA device"), "{obstacle}");
    }
}
