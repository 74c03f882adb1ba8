//! Client side of iperf3 tests, against `iperf3 -s`.
//!
//! The server leads: it asks for the parameters, the streams and the results by state bytes. Each wait has a
//! deadline, and whatever a server sends ends in a result or an [`IperfServerError`].

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::net::connect::ConnectOptions;
use penstock_sys::net::{TcpInfo, connect_datagrams};
use thiserror::Error;

use super::control::{IperfControl, end_streams, results_of};
use super::params::IperfParams;
use super::results::IperfResults;
use super::wire::{
    COOKIE_BYTES, ControlState, Cookie, RESULTS_BYTES_MAX, STREAM_HELLO, is_stream_reply,
    server_error_reason,
};
use crate::client::{TestProgress, TestTarget, connect_data, connect_to};
use crate::datagram::CounterWidth;
use crate::message::{StreamReport, StreamRole};
use crate::params::TestParams;
use crate::report::{Report, role_of};
use crate::session::{Connection, ControlEvent, RunningStreams, TestOutcome};
use crate::share::MemoryShare;
use crate::stream::{DRAIN_TIME_MAX, DataSocket, END_CHECK_INTERVAL, StreamSettings};
use crate::{NettestError, udp};

/// Time for a server to answer before the test.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which a server may refuse connections between two tests.
const PORT_CLOSED_TIME_MAX: Duration = Duration::from_millis(500);
/// Time for a server to end the streams and to send its results.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without a byte in either direction after which a server is given up.
const SILENT_AFTER: Duration = Duration::from_secs(30);
/// Time without a byte after which the caller learns of it.
const STALL_NOTICE_AFTER: Duration = Duration::from_secs(3);
/// Interval of the hellos of a UDP stream, which may be lost.
const HELLO_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks while a test runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checks while bytes limit a test.
const BYTES_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Time to find the reason for a broken stream on the control connection.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// Phase of a test, as an error names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IperfPhase {
    /// The server has the cookie and asks for the parameters.
    Parameters,
    /// The streams open.
    Streams,
    /// Data flows.
    Running,
    /// Both ends send their results.
    Results,
}

impl IperfPhase {
    const fn silence_reason(self) -> &'static str {
        match self {
            Self::Parameters | Self::Streams => {
                "it hangs, the path to it is cut, or it is no iperf3 server"
            }
            Self::Running | Self::Results => "it hangs, or the path to it is cut",
        }
    }
}

impl fmt::Display for IperfPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Parameters => "before the parameters",
            Self::Streams => "while the streams opened",
            Self::Running => "during the test",
            Self::Results => "before its results",
        })
    }
}

/// Failure of an iperf3 server.
#[derive(Debug, Error)]
pub enum IperfServerError {
    /// `ACCESS_DENIED`.
    #[error(
        "the server is busy running a test; iperf3 serves one client at a time, so try again later"
    )]
    Busy,
    /// `SERVER_ERROR`.
    #[error("the server refused: {} (iperf3 error {code}{})", server_error_reason(*code), os_reason(*errno))]
    Refused {
        /// Number of iperf3 (`i_errno`).
        code: u32,
        /// Number of its kernel; 0 without one.
        errno: u32,
    },
    /// `SERVER_TERMINATE`.
    #[error("the server was stopped {0}")]
    Terminated(IperfPhase),
    /// The control connection ended.
    #[error("it closed the connection {phase} ({source}): it was stopped, or is no iperf3 server")]
    Closed {
        /// Phase of the test.
        phase: IperfPhase,
        /// Error of the socket.
        source: io::Error,
    },
    /// No answer, or no data.
    #[error("silence {phase} for {seconds:.1} s: {}", phase.silence_reason())]
    Silent {
        /// Phase of the test.
        phase: IperfPhase,
        /// Length of the silence.
        seconds: f64,
    },
    /// No state byte.
    #[error(
        "it sent byte {byte:#04x} {phase}, which is no state of iperf3's protocol: is it an iperf3 server? \
         a penstock listener needs no --iperf3"
    )]
    NoState {
        /// Phase of the test.
        phase: IperfPhase,
        /// Byte instead of a state.
        byte: u8,
    },
    /// State byte that does not belong here.
    #[error("it sent state {state:?} {phase}, where {expected:?} belongs")]
    Order {
        /// Phase of the test.
        phase: IperfPhase,
        /// State that came.
        state: ControlState,
        /// State that belongs here.
        expected: ControlState,
    },
    /// Results that are too long, no JSON, or lack a key.
    #[error("its results are not those of iperf3: a JSON object of at most 1 MiB with each stream")]
    Results,
    /// No answer to the first datagram of a stream.
    #[error(
        "no answer to the first datagram of stream {index}: do the firewalls between pass UDP to port {port}?"
    )]
    NoDatagram {
        /// Number of the stream.
        index: u32,
        /// UDP port of the server.
        port: u16,
    },
}

fn os_reason(errno: u32) -> String {
    match i32::try_from(errno) {
        Ok(errno @ 1..) => format!("; {}", io::Error::from_raw_os_error(errno)),
        _ => String::new(),
    }
}

/// Runs a test against an iperf3 server; see [`crate::run`].
pub(crate) fn run(
    target: &TestTarget,
    params: &TestParams,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut(TestProgress<'_>),
) -> Result<Report, NettestError> {
    params.validate_for_iperf3()?;
    let mut random = [0; COOKIE_BYTES - 1];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| NettestError::Local(io::Error::other("no random bytes")))?;
    let cookie = Cookie::from_random(&random);
    let deadline = Instant::now() + PORT_CLOSED_TIME_MAX;
    let mut client = loop {
        match IperfClient::connect(target, &cookie) {
            Err(error) if is_between_tests(&error) && Instant::now() < deadline => {
                thread::sleep(PORT_CLOSED_TIME_MAX / 10);
            }
            result => break result?,
        }
    };
    let params = TestParams {
        block_bytes: match params.udp {
            true => Some(udp::datagram_bytes(params, &client.control.socket)),
            false => params.block_bytes,
        },
        ..params.clone()
    };
    let sockets = client.open(&params, &cookie)?;
    on_progress(TestProgress::Started);
    let mut intervals = Vec::new();
    let on_progress = &mut |progress: TestProgress<'_>| {
        if let TestProgress::Interval(interval) = progress {
            intervals.push(interval.clone());
        }
        on_progress(progress);
    };
    let mut outcome = client.test(&params, sockets, stop, on_progress)?;
    let failure = outcome.failure.take();
    Report::new(client.peer.to_string(), &params, &outcome, intervals).unless(failure)
}

/// True for the failures of a server that closes its port for a moment between two tests.
fn is_between_tests(error: &NettestError) -> bool {
    match error {
        NettestError::Connect { source, .. } => source.kind() == io::ErrorKind::ConnectionRefused,
        NettestError::IperfServer { error, .. } => {
            matches!(error, IperfServerError::Closed { phase: IperfPhase::Parameters, .. })
        }
        _ => false,
    }
}

struct IperfClient<'a> {
    target: &'a TestTarget,
    peer: SocketAddr,
    control: IperfControl,
}

impl<'a> IperfClient<'a> {
    /// Connects; returns when the server asks for the parameters.
    fn connect(target: &'a TestTarget, cookie: &Cookie) -> Result<Self, NettestError> {
        let options = ConnectOptions { source: target.source, ..ConnectOptions::default() };
        let (peer, socket) = connect_to(target, &options)?;
        let mut client = Self { target, peer, control: IperfControl::new(socket)? };
        client.send(IperfPhase::Parameters, cookie.bytes())?;
        client.expect(ControlState::ParamExchange, IperfPhase::Parameters, ANSWER_TIMEOUT)?;
        Ok(client)
    }

    fn fail(&self, error: IperfServerError) -> NettestError {
        NettestError::IperfServer { peer: self.peer, error }
    }

    /// Waits for a state; `None` after `wait`. States by which a server ends a test are errors.
    fn poll(
        &mut self,
        phase: IperfPhase,
        wait: Duration,
    ) -> Result<Option<ControlState>, NettestError> {
        let closed = |source| IperfServerError::Closed { phase, source };
        let byte = self.control.poll_byte(wait).map_err(|error| self.fail(closed(error)))?;
        let Some(byte) = byte else { return Ok(None) };
        let error = match ControlState::decode(byte) {
            None => IperfServerError::NoState { phase, byte },
            Some(ControlState::AccessDenied) => IperfServerError::Busy,
            Some(ControlState::ServerTerminate) => IperfServerError::Terminated(phase),
            Some(ControlState::ServerError) => {
                let (mut code, mut errno) = ([0; 4], [0; 4]);
                let deadline = Instant::now() + ANSWER_TIMEOUT;
                // A server that says less has no code.
                let _ = self.control.read_exact(&mut code, deadline);
                let _ = self.control.read_exact(&mut errno, deadline);
                let (code, errno) = (u32::from_be_bytes(code), u32::from_be_bytes(errno));
                IperfServerError::Refused { code, errno }
            }
            state => return Ok(state),
        };
        Err(self.fail(error))
    }

    /// Waits for `expected`.
    fn expect(
        &mut self,
        expected: ControlState,
        phase: IperfPhase,
        timeout: Duration,
    ) -> Result<(), NettestError> {
        match self.poll(phase, timeout)? {
            Some(state) if state == expected => Ok(()),
            Some(state) => Err(self.fail(IperfServerError::Order { phase, state, expected })),
            None => Err(self.silent(phase, timeout)),
        }
    }

    /// Waits for `expected` after the test; reports a silence before it is one too long.
    fn expect_result(
        &mut self,
        expected: ControlState,
        on_progress: &mut dyn FnMut(TestProgress<'_>),
    ) -> Result<(), NettestError> {
        let phase = IperfPhase::Results;
        match self.poll(phase, STALL_NOTICE_AFTER)? {
            Some(state) if state == expected => Ok(()),
            Some(state) => Err(self.fail(IperfServerError::Order { phase, state, expected })),
            None => {
                let (silence, limit) = (STALL_NOTICE_AFTER, RESULTS_TIMEOUT);
                on_progress(TestProgress::Stalled { silence, limit });
                self.expect(expected, phase, RESULTS_TIMEOUT - STALL_NOTICE_AFTER)
            }
        }
    }

    fn silent(&self, phase: IperfPhase, time: Duration) -> NettestError {
        self.fail(IperfServerError::Silent { phase, seconds: time.as_secs_f64() })
    }

    /// Sends bytes. A server that closed may have sent the reason before.
    fn send(&mut self, phase: IperfPhase, bytes: &[u8]) -> Result<(), NettestError> {
        match self.control.send(bytes) {
            Err(NettestError::ControlLost(source)) => {
                self.poll(phase, REASON_TIMEOUT)?;
                Err(self.fail(IperfServerError::Closed { phase, source }))
            }
            result => result,
        }
    }

    /// Sends the parameters and opens the streams; they flow when it returns.
    fn open(
        &mut self,
        params: &TestParams,
        cookie: &Cookie,
    ) -> Result<Vec<Connection>, NettestError> {
        let request = IperfParams {
            test: params.clone(),
            blocks: None,
            counters_64bit: params.udp,
            mss: None,
            no_delay: false,
            tos: params.traffic_class(),
            server_output: false,
        };
        let phase = IperfPhase::Streams;
        self.send(phase, &super::wire::json_frame(&request.encode()))?;
        self.expect(ControlState::CreateStreams, phase, ANSWER_TIMEOUT)?;
        let options = ConnectOptions {
            source: self.target.source,
            congestion: params.congestion.clone(),
            window_bytes: params.window_bytes,
            ..ConnectOptions::default()
        };
        let mut sockets = Vec::new();
        let mut has_started = false;
        for index in 0..params.connections() {
            sockets.push(if params.udp {
                let is_last = index + 1 == params.connections();
                let (socket, state) = self.open_datagrams(index, is_last)?;
                has_started = state == Some(ControlState::TestStart);
                let socket = DataSocket::Udp(socket);
                let role = role_of(params, index, true);
                Connection { index, role, socket, label: String::new() }
            } else {
                let place = (self.peer, index);
                connect_data(self.target, params, &options, place, cookie.bytes())?
            });
        }
        if !has_started {
            self.expect(ControlState::TestStart, phase, ANSWER_TIMEOUT)?;
        }
        self.expect(ControlState::TestRunning, phase, ANSWER_TIMEOUT)?;
        Ok(sockets)
    }

    /// Opens a UDP stream. The server takes one after the other, and starts after the last: the state is there where the reply
    /// to that one is late or lost.
    fn open_datagrams(
        &mut self,
        index: u32,
        is_last: bool,
    ) -> Result<(UdpSocket, Option<ControlState>), NettestError> {
        let source = self.control.socket.local_addr().map_err(NettestError::Local)?.ip();
        let socket = connect_datagrams(self.peer, Some(source)).map_err(NettestError::Local)?;
        socket.set_read_timeout(Some(HELLO_INTERVAL)).map_err(NettestError::Local)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut bytes = [0; 64];
        while Instant::now() < deadline {
            // Errors are those of ICMP, for an earlier one.
            let _ = socket.send(&STREAM_HELLO);
            if let Ok(length) = socket.recv(&mut bytes)
                && is_stream_reply(&bytes[..length])
            {
                return Ok((socket, None));
            }
            if let Some(state) = self.poll(IperfPhase::Streams, Duration::from_millis(1))? {
                let (phase, expected) = (IperfPhase::Streams, ControlState::TestStart);
                if is_last && state == expected {
                    let _ = socket.recv(&mut bytes);
                    return Ok((socket, Some(state)));
                }
                return Err(self.fail(IperfServerError::Order { phase, state, expected }));
            }
        }
        Err(self.fail(IperfServerError::NoDatagram { index, port: self.peer.port() }))
    }

    /// Runs the streams and exchanges the results. A test that fails has an outcome, too, with what this end measured.
    fn test(
        &mut self,
        params: &TestParams,
        sockets: Vec<Connection>,
        stop: &AtomicBool,
        on_progress: &mut dyn FnMut(TestProgress<'_>),
    ) -> Result<TestOutcome, NettestError> {
        let settings = StreamSettings {
            control_ends: true,
            counters: CounterWidth::Bits64,
            ..StreamSettings::of(params, &self.control.socket)
        };
        let (sender, events) = sync_channel(sockets.len());
        let share = MemoryShare::ALONE;
        let mut streams = RunningStreams::start(params, settings, sockets, share, &sender)?;
        let mut outcome = TestOutcome { sender_counts: true, ..TestOutcome::default() };
        let progress = (stop, on_progress);
        if let Err(error) = self.measure(params, &mut streams, &events, &mut outcome, progress) {
            streams.abort(&events, &mut outcome.local);
            outcome.fail(error);
        }
        Ok(outcome)
    }

    /// Waits for the end of the streams and exchanges the results.
    fn measure(
        &mut self,
        params: &TestParams,
        streams: &mut RunningStreams,
        events: &Receiver<ControlEvent>,
        outcome: &mut TestOutcome,
        (stop, on_progress): (&AtomicBool, &mut dyn FnMut(TestProgress<'_>)),
    ) -> Result<(), NettestError> {
        let reports = &mut outcome.local;
        let running: &mut dyn FnMut(TestProgress<'_>) = &mut |progress| on_progress(progress);
        outcome.interrupted = self.run(params, streams, events, reports, (stop, running))?;
        streams.shared.stop.store(true, Relaxed);
        let test_end = streams.shared.started.elapsed();
        let idle = self.drain(params, streams, events, reports);
        self.send(IperfPhase::Results, &[ControlState::TestEnd.byte()])?;
        // Receivers go on until the server has ended its streams, or its writes would block.
        let phase = IperfPhase::Results;
        self.expect_result(ControlState::ExchangeResults, on_progress)?;
        end_streams(streams, events, reports)?;
        let remainder = streams.tick(streams.shared.started.elapsed());
        if remainder.seconds() > params.interval_seconds * 0.1 {
            on_progress(TestProgress::Interval(&remainder));
        }
        let ours = results_of(reports, params.udp, params.omit(), test_end);
        self.send(phase, &super::wire::json_frame(&ours.encode()))?;
        let theirs = self.read_results()?;
        self.expect(ControlState::DisplayResults, phase, RESULTS_TIMEOUT)?;
        // The results are complete: a server that has gone has lost nothing.
        let _ = self.control.send_state(ControlState::IperfDone);
        // Until the server closes, it is busy for the next client.
        let _ = self.control.poll_byte(ANSWER_TIMEOUT);
        outcome.remote = reports
            .iter()
            .map(|local| remote_report(params, local, &theirs, idle))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.fail(IperfServerError::Results))?;
        outcome.cpu_local_percent = ours.cpu_percent;
        outcome.cpu_remote_percent = theirs.cpu_percent;
        Ok(())
    }

    /// Waits for the end of the test; true if a user ended it.
    fn run(
        &mut self,
        params: &TestParams,
        streams: &mut RunningStreams,
        events: &Receiver<ControlEvent>,
        reports: &mut Vec<StreamReport>,
        (stop, on_progress): (&AtomicBool, &mut dyn FnMut(TestProgress<'_>)),
    ) -> Result<bool, NettestError> {
        let (phase, expected) = (IperfPhase::Running, ControlState::ExchangeResults);
        let (mut bytes_before, mut progress) = (0, Instant::now());
        let mut is_stalled = false;
        loop {
            while let Ok(ControlEvent::Stream(report)) = events.try_recv() {
                if let Some(reason) = &report.error {
                    // The server's own reason, if it has one.
                    self.poll(phase, REASON_TIMEOUT)?;
                    let (index, reason) = (report.index, reason.clone());
                    return Err(NettestError::Stream { index, reason });
                }
                reports.push(*report);
            }
            let now = streams.shared.started.elapsed();
            let interrupted = stop.load(Relaxed);
            if interrupted || self.is_complete(params, streams, reports, now) {
                return Ok(interrupted);
            }
            if now >= streams.next_tick {
                on_progress(TestProgress::Interval(&streams.tick(now)));
            }
            let bytes: u64 = streams.shared.passed.iter().map(|one| one.0.load(Relaxed)).sum();
            if bytes != bytes_before {
                (bytes_before, progress, is_stalled) = (bytes, Instant::now(), false);
            }
            let silence = progress.elapsed();
            if silence > STALL_NOTICE_AFTER && !is_stalled {
                is_stalled = true;
                on_progress(TestProgress::Stalled { silence, limit: SILENT_AFTER });
            }
            if silence > SILENT_AFTER {
                return Err(self.silent(phase, SILENT_AFTER));
            }
            let check = if params.bytes.is_some() { BYTES_CHECK_INTERVAL } else { CHECK_INTERVAL };
            let next = streams.next_tick.min(params.duration().unwrap_or(Duration::MAX));
            let wait = next.saturating_sub(now).clamp(Duration::from_millis(1), check);
            if let Some(state) = self.poll(phase, wait)? {
                return Err(self.fail(IperfServerError::Order { phase, state, expected }));
            }
        }
    }

    /// True if time or bytes end the test.
    fn is_complete(
        &self,
        params: &TestParams,
        streams: &RunningStreams,
        reports: &[StreamReport],
        now: Duration,
    ) -> bool {
        if let Some(end) = params.duration() {
            return now >= end;
        }
        let is_sender = |role| role == StreamRole::Sender;
        let senders = streams.sockets.iter().filter(|one| is_sender(one.role)).count();
        let ended = reports.iter().filter(|one| is_sender(one.role)).count();
        let received: u64 = streams
            .sockets
            .iter()
            .zip(&streams.shared.passed)
            .filter(|(one, _)| !is_sender(one.role))
            .map(|(_, passed)| passed.0.load(Relaxed))
            .sum();
        let receives = senders < streams.sockets.len();
        ended == senders && (!receives || received >= params.bytes.unwrap_or(0))
    }

    /// Waits until the server has what this end sent, because it reads nothing after the end of a test: with
    /// datagrams, and where bytes limit the test. Returns the time that it measures without data.
    fn drain(
        &self,
        params: &TestParams,
        streams: &RunningStreams,
        events: &Receiver<ControlEvent>,
        reports: &mut Vec<StreamReport>,
    ) -> Duration {
        let senders =
            streams.sockets.iter().filter(|one| one.role == StreamRole::Sender).collect::<Vec<_>>();
        if senders.is_empty() || (!params.udp && params.bytes.is_none()) {
            return Duration::ZERO;
        }
        let deadline = Instant::now() + DRAIN_TIME_MAX;
        let ended = |reports: &[StreamReport]| {
            reports.iter().filter(|one| one.role == StreamRole::Sender).count()
        };
        while ended(reports) < senders.len() {
            match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ControlEvent::Stream(report)) => reports.push(*report),
                Ok(ControlEvent::Peer(_)) => {}
                Err(_) => break,
            }
        }
        let is_unacked = |one: &&Connection| {
            one.socket
                .tcp()
                .and_then(|socket| TcpInfo::of(socket).ok())
                .is_some_and(|info| info.unacked_segments > 0 || info.notsent_bytes > 0)
        };
        while senders.iter().any(&is_unacked) && Instant::now() < deadline {
            thread::sleep(BYTES_CHECK_INTERVAL);
        }
        let rtt_us = TcpInfo::of(&self.control.socket).map_or(0, |info| info.rtt_us);
        let rtt = Duration::from_micros(rtt_us.into());
        thread::sleep((2 * rtt).clamp(END_CHECK_INTERVAL, DRAIN_TIME_MAX));
        let last_us = reports.iter().map(|report| report.last_us).max().unwrap_or(0);
        streams.shared.started.elapsed().saturating_sub(Duration::from_micros(last_us))
    }

    fn read_results(&mut self) -> Result<IperfResults, NettestError> {
        let phase = IperfPhase::Results;
        let deadline = Instant::now() + RESULTS_TIMEOUT;
        let json = match self.control.read_json(RESULTS_BYTES_MAX, deadline) {
            Err(NettestError::ControlLost(error)) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(self.silent(phase, RESULTS_TIMEOUT));
            }
            Err(NettestError::ControlLost(source)) => {
                return Err(self.fail(IperfServerError::Closed { phase, source }));
            }
            json => json?,
        };
        json.and_then(|json| IperfResults::decode(&json).ok())
            .ok_or_else(|| self.fail(IperfServerError::Results))
    }
}

/// Report of the server's end of a stream; `None` if its results lack it. `idle` at the end of its time is not of
/// the stream.
fn remote_report(
    params: &TestParams,
    local: &StreamReport,
    results: &IperfResults,
    idle: Duration,
) -> Option<StreamReport> {
    let stream = results.streams.iter().find(|stream| stream.index == local.index)?;
    let role = match local.role {
        StreamRole::Sender => StreamRole::Receiver,
        StreamRole::Receiver => StreamRole::Sender,
    };
    let seconds =
        stream.seconds - if role == StreamRole::Receiver { idle.as_secs_f64() } else { 0.0 };
    let micros = |seconds: f64| (seconds.max(0.0) * 1e6) as u64;
    let first_us = micros(params.omit_seconds);
    let share = results.cpu_percent / 100.0 / results.streams.len().max(1) as f64;
    Some(StreamReport {
        index: local.index,
        role,
        bytes: stream.bytes,
        first_us,
        last_us: first_us + micros(seconds),
        // The server is one thread, or reports the sum of its threads.
        cpu_us: micros(stream.seconds * share),
        retransmits: stream.retransmits.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX)),
        mss: local.mss,
        congestion: results.congestion.clone().unwrap_or_default(),
        path: "iperf3".to_owned(),
        packets: stream.packets,
        lost: stream.lost,
        omitted_packets: stream.omitted_packets,
        omitted_lost: stream.omitted_lost,
        jitter_ns: (stream.jitter_seconds * 1e9) as u64,
        ..StreamReport::default()
    })
}
