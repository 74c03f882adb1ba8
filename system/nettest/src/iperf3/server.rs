//! Server side of iperf3 tests, on the port of a listener. Several clients may test at once.
//!
//! Each number of a client is within the limits of [`IperfParams`], each wait has a deadline.

use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_sys::net::options;

use super::control::{IperfControl, end_streams, results_of};
use super::params::IperfParams;
use super::results::IperfResults;
use super::wire::{ControlState, Cookie, IperfError, PARAMS_BYTES_MAX, RESULTS_BYTES_MAX};
use crate::NettestError;
use crate::datagram::CounterWidth;
use crate::datagram_port::DatagramPort;
use crate::listener::EndedTest;
use crate::message::StreamReport;
use crate::params::{SECONDS_MAX, TestParams};
use crate::report::role_of;
use crate::session::{Connection, DRAIN_TIMEOUT, RunningStreams};
use crate::share::MemoryShare;
use crate::stream::{DataSocket, StreamSettings};

/// Time without a byte of a test after which its client is given up (`--rcv-timeout` of iperf3).
const SILENT_AFTER: Duration = Duration::from_secs(120);
/// Time for a client to send its results and to finish.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks while a test runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Data connection with the number of its arrival.
type ArrivedConnection = (u64, TcpStream);

/// Tests that wait for data connections, by cookie.
#[derive(Debug, Default)]
pub(crate) struct IperfTests(Mutex<HashMap<Cookie, SyncSender<ArrivedConnection>>>);

/// Registration of a waiting test, removed on drop.
struct WaitingTest<'a> {
    tests: &'a IperfTests,
    cookie: Cookie,
    connections: Receiver<ArrivedConnection>,
}

impl IperfTests {
    /// True if a test waits for data connections with this cookie.
    pub(crate) fn expects(&self, cookie: &Cookie) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(cookie)
    }

    /// Passes a data connection to its test; false if it needs no more.
    pub(crate) fn offer(&self, cookie: &Cookie, arrival: u64, socket: TcpStream) -> bool {
        let tests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tests.get(cookie).is_some_and(|test| test.try_send((arrival, socket)).is_ok())
    }

    /// Registers a test; `None` if another one has the same cookie.
    fn expect(&self, cookie: Cookie, connections: u32) -> Option<WaitingTest<'_>> {
        let mut tests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tests.contains_key(&cookie) {
            return None;
        }
        let (sender, connections) = sync_channel(connections as usize);
        tests.insert(cookie, sender);
        drop(tests);
        Some(WaitingTest { tests: self, cookie, connections })
    }
}

impl Drop for WaitingTest<'_> {
    fn drop(&mut self) {
        self.tests.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.cookie);
    }
}

/// Parts of the listener that a test uses.
pub(crate) struct IperfHost<'a> {
    pub(crate) tests: &'a IperfTests,
    /// UDP port, or the reason why there is none.
    pub(crate) datagrams: Result<&'a DatagramPort, &'a str>,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) share: MemoryShare,
    /// Time limit for the parameters and for the streams to arrive.
    pub(crate) handshake: Duration,
}

/// Runs the test of a client that has sent its cookie. `on_started` gets the parameters when data flows.
pub(crate) fn run(
    socket: TcpStream,
    cookie: Cookie,
    host: &IperfHost<'_>,
    on_started: &mut dyn FnMut(&TestParams),
) -> Result<EndedTest, NettestError> {
    let mut control = IperfControl::new(socket)?;
    let deadline = Instant::now() + host.handshake;
    control.send_state(ControlState::ParamExchange)?;
    let json = control.read_json(PARAMS_BYTES_MAX, deadline)?;
    let params = json.ok_or(IperfError::Params).and_then(|json| IperfParams::decode(&json));
    let params = params.or_else(|error| refuse(&mut control, error))?;
    if let Some(name) = &params.test.congestion
        && options::set_congestion(&control.socket, name).is_err()
    {
        return refuse(&mut control, IperfError::Congestion);
    }
    let sockets = match gather(&mut control, cookie, &params, host) {
        Err(error @ NettestError::Missing { .. }) => {
            let _ = control.send(&IperfError::StreamAccept.bytes(0));
            return Err(error);
        }
        sockets => sockets?,
    };
    on_started(&params.test);
    let settings = StreamSettings {
        control_ends: true,
        counters: match params.counters_64bit {
            true => CounterWidth::Bits64,
            false => CounterWidth::Bits32,
        },
        no_delay: params.no_delay,
        mss: params.mss,
        tos: params.tos,
        ..StreamSettings::of(&params.test, &control.socket)
    };
    // The client ends the test: a sender of this end goes on until then.
    let endless = TestParams { seconds: None, ..params.test.clone() };
    let (sender, events) = sync_channel(endless.connections() as usize);
    let streams = RunningStreams::start(&endless, settings, sockets, host.share, &sender)?;
    let started = Instant::now();
    control.send(&[ControlState::TestStart.byte(), ControlState::TestRunning.byte()])?;
    let mut reports = Vec::new();
    let ended = wait_for_end(&mut control, &params.test, &streams, host.stop);
    let elapsed = started.elapsed();
    let test_end = streams.shared.started.elapsed();
    if let Err(error) = ended {
        streams.abort(&events, &mut reports);
        return Ok(EndedTest { reports, elapsed, failure: Some(error) });
    }
    end_streams(&streams, &events, &mut reports)?;
    // A client may still wait for the rest of a block, and looks at its control connection only
    // after an end of stream.
    drop(streams);
    let mut results = results_of(&reports, params.test.udp, params.test.omit(), test_end);
    if params.server_output {
        results.server_text = Some(server_text(&params.test, &reports, elapsed));
    }
    let failure = exchange_results(&mut control, &results).err();
    Ok(EndedTest { reports, elapsed, failure })
}

fn refuse<T>(control: &mut IperfControl, error: IperfError) -> Result<T, NettestError> {
    control.send(&error.bytes(0))?;
    Err(NettestError::Iperf(error))
}

/// Opens the streams of a test, in the client's order.
fn gather(
    control: &mut IperfControl,
    cookie: Cookie,
    params: &IperfParams,
    host: &IperfHost<'_>,
) -> Result<Vec<Connection>, NettestError> {
    let expected = params.test.connections() as usize;
    let deadline = Instant::now() + host.handshake;
    let mut sockets = if params.test.udp {
        let port = host.datagrams.map_err(|reason| {
            let _ = control.send(&IperfError::StreamAccept.bytes(0));
            NettestError::Refused(reason.to_owned())
        })?;
        let local = control.socket.local_addr().map_err(NettestError::Local)?;
        let client = control.socket.peer_addr().map_err(NettestError::Local)?;
        let arrivals = port
            .expect((local, client), params.test.connections(), deadline)
            .ok_or(NettestError::Missing { missing: expected, expected })?;
        control.send_state(ControlState::CreateStreams)?;
        receive_all(control, &arrivals.streams, expected, host.handshake)?
            .into_iter()
            .map(|(index, socket)| (u64::from(index), DataSocket::Udp(socket)))
            .collect::<Vec<_>>()
    } else {
        let waiting =
            host.tests.expect(cookie, params.test.connections()).ok_or(NettestError::Unexpected)?;
        control.send_state(ControlState::CreateStreams)?;
        receive_all(control, &waiting.connections, expected, host.handshake)?
            .into_iter()
            .map(|(arrival, socket)| (arrival, DataSocket::Tcp(socket)))
            .collect()
    };
    sockets.sort_by_key(|(arrival, _)| *arrival);
    Ok((0..)
        .zip(sockets)
        .map(|(index, (_, socket))| {
            let role = role_of(&params.test, index, false);
            Connection { index, role, socket, label: String::new() }
        })
        .collect())
}

/// Receives `expected` streams while the client is connected.
fn receive_all<T>(
    control: &mut IperfControl,
    arrivals: &Receiver<T>,
    expected: usize,
    timeout: Duration,
) -> Result<Vec<T>, NettestError> {
    let deadline = Instant::now() + timeout;
    let mut streams = Vec::with_capacity(expected);
    while streams.len() < expected {
        if Instant::now() >= deadline {
            return Err(NettestError::Missing { missing: expected - streams.len(), expected });
        }
        match arrivals.recv_timeout(CHECK_INTERVAL / 2) {
            Ok(stream) => streams.push(stream),
            Err(RecvTimeoutError::Disconnected) => return Err(NettestError::Unexpected),
            Err(RecvTimeoutError::Timeout) => match control.poll_state(Duration::from_millis(1))? {
                None => {}
                Some(ControlState::ClientTerminate) => return Err(interrupted()),
                Some(_) => return Err(NettestError::Unexpected),
            },
        }
    }
    Ok(streams)
}

fn interrupted() -> NettestError {
    NettestError::PeerFailed("the iperf3 client was interrupted".into())
}

/// Waits until the client ends the test.
fn wait_for_end(
    control: &mut IperfControl,
    params: &TestParams,
    streams: &RunningStreams,
    stop: &AtomicBool,
) -> Result<(), NettestError> {
    let started = Instant::now();
    let seconds = Duration::from_secs_f64(params.seconds.unwrap_or(SECONDS_MAX));
    let hard_end = seconds + params.omit() + DRAIN_TIMEOUT;
    let (mut bytes_before, mut progress) = (0, started);
    loop {
        match control.poll_state(CHECK_INTERVAL)? {
            Some(ControlState::TestEnd) => return Ok(()),
            Some(ControlState::ClientTerminate) => return Err(interrupted()),
            Some(_) => return Err(NettestError::Unexpected),
            None => {}
        }
        if stop.load(Relaxed) {
            control.send_state(ControlState::ServerTerminate)?;
            return Err(NettestError::PeerFailed("the listener was stopped".into()));
        }
        let bytes: u64 = streams.shared.passed.iter().map(|one| one.0.load(Relaxed)).sum();
        if bytes != bytes_before {
            (bytes_before, progress) = (bytes, Instant::now());
        }
        if progress.elapsed() > SILENT_AFTER {
            return Err(NettestError::Stalled(SILENT_AFTER.as_secs_f64()));
        }
        if started.elapsed() > hard_end {
            return Err(NettestError::Overdue);
        }
    }
}

/// Exchanges results; the client's come first.
fn exchange_results(
    control: &mut IperfControl,
    results: &IperfResults,
) -> Result<(), NettestError> {
    let deadline = Instant::now() + RESULTS_TIMEOUT;
    control.send_state(ControlState::ExchangeResults)?;
    let json = control.read_json(RESULTS_BYTES_MAX, deadline)?;
    let client = json.ok_or(IperfError::Results).and_then(|json| IperfResults::decode(&json));
    if let Err(error) = client {
        return refuse(control, error);
    }
    control.send_json(&results.encode())?;
    control.send_state(ControlState::DisplayResults)?;
    match control.read_state(deadline) {
        // A client that closes without its last byte has its results, too.
        Ok(ControlState::IperfDone) | Err(NettestError::ControlLost(_)) => Ok(()),
        Ok(ControlState::ClientTerminate) => Err(interrupted()),
        Ok(_) => Err(NettestError::Unexpected),
        Err(error) => Err(error),
    }
}

/// Text for `--get-server-output`.
fn server_text(params: &TestParams, reports: &[StreamReport], elapsed: Duration) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "penstock {} listener: {} test, {:.2} s\n",
        env!("CARGO_PKG_VERSION"),
        params.direction.name(),
        elapsed.as_secs_f64()
    );
    for report in reports {
        let _ = writeln!(
            text,
            "stream {}: {:?}, {} bytes by {}, retransmits {}, lost {} of {} datagrams",
            report.index,
            report.role,
            report.bytes,
            report.path,
            report.retransmits,
            report.lost,
            report.packets
        );
    }
    text
}
