//! One end of a running test: runs the stream threads, reads messages of the other end, reports
//! intervals and collects the results of both ends. Client and listener share this code.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::net::{PatternMemory, TcpInfo, options};

use crate::NettestError;
use crate::datagram::CounterWidth;
use crate::message::{Message, StreamReport, StreamRole, read_message, write_message};
use crate::params::{SECONDS_MAX, TestParams};
use crate::report::{DatagramCounts, Interval};
use crate::share::MemoryShare;
use crate::source::CONTENT_BYTES;
use crate::udp;

use crate::stream::{DataSocket, Stream, StreamSettings, StreamsShared};

/// Time for a test to drain after its duration before it fails.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Time without acknowledgement after which a stream ends.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);
/// Time within which the host of the other end acknowledges: round trips and a retransmission.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(2);
/// Time for the streams of a failed test to end, after their sockets are shut down.
const ABORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of keepalives of each end.
const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Silence after which a listener counts as hanging.
pub(crate) const LISTENER_SILENT_AFTER: Duration = Duration::from_millis(4500);
/// Silence after which a client is given up; long, since a pager or terminal may block its output.
pub(crate) const CLIENT_SILENT_AFTER: Duration = Duration::from_secs(60);
/// Limit of queued messages and reports: the producing thread waits, and a peer that sends too fast
/// finds its TCP window closed.
const EVENTS_MAX: usize = 16;

/// Event during a test.
pub(crate) enum ControlEvent {
    /// Message of the other end, or the end of its connection.
    Peer(io::Result<Message>),
    /// Report of an ended local stream.
    Stream(Box<StreamReport>),
}

/// Control connection with its reader thread.
pub(crate) struct ControlConnection {
    socket: TcpStream,
    events: Receiver<ControlEvent>,
    sender: SyncSender<ControlEvent>,
}

impl ControlConnection {
    pub(crate) fn new(socket: TcpStream) -> io::Result<Self> {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let mut reader = socket.try_clone()?;
        reader.set_read_timeout(None)?;
        socket.set_write_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
        options::set_keepalive(&socket, UNACKNOWLEDGED_TIMEOUT)?;
        let peer = sender.clone();
        thread::Builder::new().name("nettest-control".into()).spawn(move || {
            loop {
                let message = read_message(&mut reader);
                let ended = message.is_err();
                if peer.send(ControlEvent::Peer(message)).is_err() || ended {
                    return;
                }
            }
        })?;
        Ok(Self { socket, events, sender })
    }

    pub(crate) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<(), NettestError> {
        write_message(&mut self.socket, message).map_err(NettestError::ControlLost)
    }

    pub(crate) fn receive(&self, timeout: Duration) -> Option<ControlEvent> {
        // `self.sender` keeps the channel open, so no event always means a timeout.
        self.events.recv_timeout(timeout).ok()
    }

    /// Names the cause of a silence: the path or the host where the kernel there acknowledges nothing.
    pub(crate) fn cause(&self, error: NettestError) -> NettestError {
        match error {
            NettestError::Stalled(seconds) if self.is_unacknowledged() => {
                NettestError::Unacknowledged(seconds)
            }
            error => error,
        }
    }

    fn is_unacknowledged(&self) -> bool {
        TcpInfo::of(&self.socket).is_ok_and(|info| {
            let silence = Duration::from_millis(info.last_acknowledged_ms.into());
            info.unacked_segments > 0 && silence > ACKNOWLEDGED_WITHIN
        })
    }
}

impl Drop for ControlConnection {
    fn drop(&mut self) {
        // Wakes the reader thread.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// Results of both ends.
#[derive(Debug, Default)]
pub(crate) struct TestOutcome {
    pub(crate) local: Vec<StreamReport>,
    pub(crate) remote: Vec<StreamReport>,
    /// Set when a user of either end ended it early.
    pub(crate) interrupted: bool,
    pub(crate) cpu_local_percent: f64,
    pub(crate) cpu_remote_percent: f64,
    /// Peak number of other tests at the listener, as reported by it.
    pub(crate) other_tests: u32,
    /// True if the receivers ended after the senders, so that the senders' counts show loss.
    pub(crate) sender_counts: bool,
    /// Reason for an early end.
    pub(crate) failure: Option<NettestError>,
}

impl TestOutcome {
    /// Marks the test as failed. The counts of this end stand for those that the other end has not reported.
    pub(crate) fn fail(&mut self, error: NettestError) {
        let is_reported =
            |local: &&StreamReport| self.remote.iter().any(|one| one.index == local.index);
        let missing = self.local.iter().filter(|local| !is_reported(local));
        let missing: Vec<StreamReport> = missing.map(StreamReport::of_silent_peer).collect();
        self.remote.extend(missing);
        self.cpu_local_percent = cpu_percent(&self.local);
        self.sender_counts = false;
        self.failure = Some(error);
    }
}

/// Properties of the other end, known before the test.
pub(crate) struct Peer<'a> {
    /// Allowed silence of the other end.
    pub(crate) silent_after: Duration,
    /// Peak number of other tests at this end, if it is the listener.
    pub(crate) other_tests: &'a AtomicU32,
}

/// Data connection of a test.
pub(crate) struct Connection {
    /// Number of the stream in the test.
    pub(crate) index: u32,
    /// Role of this end.
    pub(crate) role: StreamRole,
    pub(crate) socket: DataSocket,
    /// Label of this end's packets, as in `Labelling::description`.
    pub(crate) label: String,
}

/// Runs one end to completion. `user_stop` ends it early and notifies the other end. A test that fails has an outcome,
/// too, with what this end measured.
pub(crate) fn run(
    params: &TestParams,
    sockets: Vec<Connection>,
    mut control: ControlConnection,
    share: MemoryShare,
    peer: &Peer<'_>,
    user_stop: &AtomicBool,
    on_interval: &mut dyn FnMut(&Interval),
) -> Result<TestOutcome, NettestError> {
    let settings = StreamSettings {
        counters: CounterWidth::Bits64,
        exact_size: true,
        ..StreamSettings::of(params, control.socket())
    };
    let mut streams = RunningStreams::start(params, settings, sockets, share, &control.sender)?;
    let mut outcome = TestOutcome { sender_counts: true, ..TestOutcome::default() };
    let stops = (user_stop, on_interval);
    if let Err(error) = exchange(params, &mut control, &mut streams, peer, stops, &mut outcome) {
        let error = control.cause(error);
        streams.abort(&control.events, &mut outcome.local);
        outcome.fail(error);
    }
    Ok(outcome)
}

/// Exchanges messages until both ends have finished.
fn exchange(
    params: &TestParams,
    control: &mut ControlConnection,
    streams: &mut RunningStreams,
    peer: &Peer<'_>,
    (user_stop, on_interval): (&AtomicBool, &mut dyn FnMut(&Interval)),
    outcome: &mut TestOutcome,
) -> Result<(), NettestError> {
    let mut silence = Duration::ZERO;
    let mut alive_sent = Instant::now();
    let mut remote_finished = false;
    let hard_end = params
        .duration()
        .unwrap_or(Duration::from_secs_f64(SECONDS_MAX))
        .saturating_add(DRAIN_TIMEOUT);
    while outcome.local.len() < streams.sockets.len() || !remote_finished {
        let now = streams.shared.started.elapsed();
        if now > hard_end {
            return Err(NettestError::Overdue);
        }
        if user_stop.load(Relaxed) && !outcome.interrupted {
            outcome.interrupted = true;
            streams.shared.stop.store(true, Relaxed);
            control.send(&Message::Stop)?;
        }
        if alive_sent.elapsed() >= KEEPALIVE_INTERVAL {
            alive_sent = Instant::now();
            control.send(&Message::Alive)?;
        }
        if now >= streams.next_tick && outcome.local.len() < streams.sockets.len() {
            let interval = streams.tick(now);
            control.send(&Message::Interval {
                index: interval.index,
                bytes_sent: interval.bytes_sent,
                bytes_received: interval.bytes_received,
            })?;
            on_interval(&interval);
        }
        let wait = streams.next_tick.saturating_sub(now);
        let wait = wait.clamp(Duration::from_millis(1), Duration::from_millis(100));
        let event = control.receive(wait);
        match &event {
            Some(ControlEvent::Peer(_)) => silence = Duration::ZERO,
            // The sum of waits: time in which this process itself was blocked or stopped is no silence.
            None if !remote_finished => silence += wait,
            _ => {}
        }
        if silence > peer.silent_after {
            return Err(NettestError::Stalled(peer.silent_after.as_secs_f64()));
        }
        match event {
            Some(ControlEvent::Stream(report)) => {
                let mut report = *report;
                streams.add_samples(&mut report);
                // A failed test has what was measured, too.
                outcome.local.push(report.clone());
                control.send(&Message::Stream(Box::new(report)))?;
                if outcome.local.len() == streams.sockets.len() {
                    let remainder = streams.tick(streams.shared.started.elapsed());
                    if remainder.seconds() > params.interval_seconds * 0.1 {
                        on_interval(&remainder);
                    }
                    outcome.cpu_local_percent = cpu_percent(&outcome.local);
                    let cpu_percent = outcome.cpu_local_percent;
                    let other_tests = peer.other_tests.load(Relaxed);
                    control.send(&Message::Finished { cpu_percent, other_tests })?;
                }
            }
            Some(ControlEvent::Peer(Ok(message))) => match message {
                Message::Stop => {
                    outcome.interrupted = true;
                    streams.shared.stop.store(true, Relaxed);
                }
                Message::Stream(report) if outcome.remote.len() < streams.sockets.len() => {
                    streams.sender_ended(&report);
                    outcome.remote.push(*report);
                }
                Message::Finished { cpu_percent, other_tests } => {
                    outcome.cpu_remote_percent = cpu_percent;
                    outcome.other_tests = other_tests;
                    remote_finished = true;
                }
                Message::Failed { reason } => return Err(NettestError::PeerFailed(reason)),
                Message::Interval { .. } | Message::Alive => {}
                _ => return Err(NettestError::Unexpected),
            },
            Some(ControlEvent::Peer(Err(error))) if !remote_finished => {
                return Err(NettestError::ControlLost(error));
            }
            Some(ControlEvent::Peer(Err(_))) | None => {}
        }
    }
    Ok(())
}

/// Stream threads of this end. Dropping it shuts down their sockets, which ends them.
pub(crate) struct RunningStreams {
    pub(crate) shared: Arc<StreamsShared>,
    pub(crate) sockets: Vec<Connection>,
    samples: Vec<(u64, u64)>,
    pub(crate) next_tick: Duration,
    tick_index: u32,
    last_tick: Duration,
    passed_before: Vec<u64>,
    datagrams_before: Vec<DatagramCounts>,
    retransmits_before: u64,
}

impl RunningStreams {
    pub(crate) fn start(
        params: &TestParams,
        settings: StreamSettings,
        sockets: Vec<Connection>,
        share: MemoryShare,
        events: &SyncSender<ControlEvent>,
    ) -> Result<Self, NettestError> {
        let senders = sockets.iter().filter(|one| one.role == StreamRole::Sender).count();
        let receive_bytes = share.receive_bytes(sockets.len() - senders);
        let memories = (0..senders.clamp(1, share.memories))
            .map(|_| PatternMemory::new(CONTENT_BYTES).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()
            .map_err(NettestError::Local)?;
        let shared = Arc::new(StreamsShared::new(params.clone(), settings, sockets.len()));
        let count = sockets.len();
        let running = Self {
            shared,
            sockets,
            samples: vec![(0, 0); count],
            next_tick: Duration::from_secs_f64(params.interval_seconds),
            tick_index: 0,
            last_tick: Duration::ZERO,
            passed_before: vec![0; count],
            datagrams_before: vec![DatagramCounts::default(); count],
            retransmits_before: 0,
        };
        for (slot, Connection { index, role, socket, label }) in running.sockets.iter().enumerate()
        {
            prepare(params, settings, socket).map_err(NettestError::Local)?;
            let stream = Stream {
                index: *index,
                slot,
                role: *role,
                label: label.clone(),
                socket: socket.try_clone().map_err(NettestError::Local)?,
                shared: running.shared.clone(),
                receive_bytes,
                memory: memories[slot % memories.len()].clone(),
            };
            let events = events.clone();
            thread::Builder::new()
                .name(format!("nettest-{index}"))
                .spawn(move || {
                    let report = stream.run();
                    let _ = events.send(ControlEvent::Stream(Box::new(report)));
                })
                .map_err(NettestError::Local)?;
        }
        Ok(running)
    }

    /// Bytes since the last tick, and a sample of every sender's connection.
    pub(crate) fn tick(&mut self, now: Duration) -> Interval {
        let mut interval = Interval {
            index: self.tick_index,
            start_seconds: self.last_tick.as_secs_f64(),
            end_seconds: now.as_secs_f64(),
            // By its middle: ticks are a little late.
            omitted: (self.last_tick + now).as_secs_f64() < 2.0 * self.shared.params.omit_seconds,
            ..Interval::default()
        };
        let mut rtt = (0_u64, 0_u64);
        let mut retransmits = 0;
        for (slot, Connection { role, socket, .. }) in self.sockets.iter().enumerate() {
            let passed = self.shared.passed[slot].0.load(Relaxed);
            let bytes = passed - self.passed_before[slot];
            self.passed_before[slot] = passed;
            match role {
                StreamRole::Receiver => interval.bytes_received += bytes,
                StreamRole::Sender => {
                    interval.bytes_sent += bytes;
                    let socket = socket.tcp().filter(|_| self.shared.params.rdma.is_none());
                    if let Some(Ok(info)) = socket.map(TcpInfo::of) {
                        retransmits += u64::from(info.retransmits);
                        rtt = (rtt.0 + u64::from(info.rtt_us), rtt.1 + 1);
                        let sample = &mut self.samples[slot];
                        *sample = (sample.0 + u64::from(info.rtt_us), sample.1 + 1);
                    }
                }
            }
        }
        interval.udp = self.shared.params.udp.then(|| self.datagrams_since_tick());
        interval.retransmits = retransmits.saturating_sub(self.retransmits_before);
        self.retransmits_before = retransmits.max(self.retransmits_before);
        interval.rtt_us = rtt.0.checked_div(rtt.1).and_then(|rtt| u32::try_from(rtt).ok());
        self.tick_index += 1;
        self.last_tick = now;
        let step = Duration::from_secs_f64(self.shared.params.interval_seconds);
        while self.next_tick <= now {
            self.next_tick += step;
        }
        interval
    }

    /// Datagrams since the last tick: those received here, or sent if none are.
    fn datagrams_since_tick(&mut self) -> DatagramCounts {
        let receives = self.sockets.iter().any(|one| one.role == StreamRole::Receiver);
        let counted = if receives { StreamRole::Receiver } else { StreamRole::Sender };
        let mut counts = Vec::new();
        for (slot, _) in self.sockets.iter().enumerate().filter(|(_, one)| one.role == counted) {
            let now = self.shared.datagrams[slot].counts();
            counts.push(now.since(&self.datagrams_before[slot]));
            self.datagrams_before[slot] = now;
        }
        DatagramCounts::sum(&counts)
    }

    /// Marks the end of a sender of the other end.
    fn sender_ended(&self, report: &StreamReport) {
        let slot = self.sockets.iter().position(|one| one.index == report.index);
        if let (StreamRole::Sender, Some(slot)) = (report.role, slot) {
            let end = &self.shared.ends[slot];
            end.packets.store(report.packets, Relaxed);
            end.ended.store(true, Relaxed);
        }
    }

    /// Replaces the last value by the mean of the samples, which is more meaningful.
    pub(crate) fn add_samples(&self, report: &mut StreamReport) {
        let slot = self.sockets.iter().position(|one| one.index == report.index);
        let (sum, count) = slot.map_or((0, 0), |slot| self.samples[slot]);
        if let Some(average) = sum.checked_div(count) {
            report.rtt_us = u32::try_from(average).unwrap_or(u32::MAX);
        }
    }
}

impl RunningStreams {
    fn shut_down(&self) {
        self.shared.end_all();
        for socket in self.sockets.iter().filter_map(|one| one.socket.tcp()) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Ends the streams of a failed test, and adds the reports of those that end in time.
    pub(crate) fn abort(&self, events: &Receiver<ControlEvent>, reports: &mut Vec<StreamReport>) {
        self.shut_down();
        self.collect(events, reports, ABORT_TIMEOUT);
    }

    /// Adds the missing reports of streams that end, in the order of their numbers; false if some are still missing
    /// after `timeout`.
    pub(crate) fn collect(
        &self,
        events: &Receiver<ControlEvent>,
        reports: &mut Vec<StreamReport>,
        timeout: Duration,
    ) -> bool {
        let deadline = Instant::now() + timeout;
        while reports.len() < self.sockets.len() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(ControlEvent::Stream(report)) = events.recv_timeout(left) {
                reports.push(*report);
            }
        }
        for report in reports.iter_mut() {
            self.add_samples(report);
        }
        reports.sort_by_key(|report| report.index);
        reports.len() == self.sockets.len()
    }
}

impl Drop for RunningStreams {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Sets the socket options of a stream, at both ends.
fn prepare(params: &TestParams, settings: StreamSettings, socket: &DataSocket) -> io::Result<()> {
    let socket = match socket {
        DataSocket::Tcp(socket) => socket,
        DataSocket::Udp(socket) => return udp::prepare(params, settings, socket),
    };
    socket.set_read_timeout(None)?;
    if settings.no_delay {
        socket.set_nodelay(true)?;
    }
    if let Some(tos) = settings.tos {
        options::set_tos(socket, tos)?;
    }
    if let Some(mss) = settings.mss {
        // The kernel refuses sizes below 88; the client's own MSS limits both directions.
        let _ = options::set_mss(socket, mss);
    }
    if let Some(name) = &params.congestion {
        options::set_congestion(socket, name)?;
    }
    if let Some(bytes) = params.window_bytes {
        options::set_window(socket, bytes)?;
    }
    if let Some(rate) = params.stream_bytes_per_second() {
        // 5 % above the limit, for headers; the token bucket holds the average.
        options::set_max_pacing_rate(socket, rate.saturating_add(rate / 20))?;
    }
    options::set_keepalive(socket, UNACKNOWLEDGED_TIMEOUT)?;
    options::set_user_timeout(socket, UNACKNOWLEDGED_TIMEOUT)
}

/// CPU use of these streams over their run time, in percent.
pub(crate) fn cpu_percent(streams: &[StreamReport]) -> f64 {
    let first = streams.iter().map(|stream| stream.first_us).min().unwrap_or(0);
    let last = streams.iter().map(|stream| stream.last_us).max().unwrap_or(0);
    let cpu: u64 = streams.iter().map(|stream| stream.cpu_us).sum();
    if last > first { cpu as f64 * 100.0 / (last - first) as f64 } else { 0.0 }
}

/// Reads the next message of the peer, until `deadline`.
pub(crate) fn receive_until(
    control: &ControlConnection,
    deadline: Instant,
) -> Result<Message, NettestError> {
    let begun = Instant::now();
    match control.receive(deadline.saturating_duration_since(Instant::now())) {
        Some(ControlEvent::Peer(Ok(message))) => Ok(message),
        Some(ControlEvent::Peer(Err(error))) => Err(NettestError::ControlLost(error)),
        Some(ControlEvent::Stream(_)) => Err(NettestError::Unexpected),
        None => Err(NettestError::Stalled(begun.elapsed().as_secs_f64())),
    }
}
