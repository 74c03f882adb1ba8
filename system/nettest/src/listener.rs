//! Listener: many clients on one port; each test has its own threads and limits.
//!
//! The listener is open to all clients, like iperf3. So every number that a client can influence is
//! limited, every wait has a deadline, and malformed input costs one event.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_protocol::preamble::{self, ConnectionKind, PREAMBLE_BYTES, PreambleError};
use penstock_rdma::RdmaAdapter;
use penstock_sys::net::connect::listen;
use penstock_sys::net::options;
use thiserror::Error;

use crate::NettestError;
use crate::datagram_port::DatagramPort;
use crate::iperf3::server::{self, IperfHost, IperfTests};
use crate::iperf3::wire::{COOKIE_BYTES, ControlState, Cookie};
use crate::message::{Message, StreamReport, StreamRole, write_message};
use crate::params::TestParams;
use crate::session::{self, CLIENT_SILENT_AFTER, ControlConnection, Peer, receive_until};
use crate::share::MemoryShare;
use crate::slot::{DataConnection, TestId, TestSlot, gather};

/// Interval of checks for a stop request.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time for running tests to report when the listener stops.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(5);
const ACCEPT_BACKLOG: i32 = 1024;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Limit of concurrent tests.
    pub tests: usize,
    /// Limit of connections that do not belong to a test yet. Another one evicts the oldest, so that
    /// idle ones do not block newcomers.
    pub handshakes: usize,
    /// Time limit for a connection's preamble, and for a test's data connections to arrive.
    pub handshake: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self { tests: 16, handshakes: 256, handshake: Duration::from_secs(10) }
    }
}

/// Event of a listener.
#[derive(Debug)]
pub enum ListenerEvent<'a> {
    /// A test has started.
    Started {
        /// Address of the client.
        peer: SocketAddr,
        /// Parameters of the test.
        params: &'a TestParams,
    },
    /// A test has ended.
    Finished {
        /// Address of the client.
        peer: SocketAddr,
        /// Bytes sent by this end.
        bytes_sent: u64,
        /// Bytes received by this end.
        bytes_received: u64,
        /// Duration of the test in seconds.
        seconds: f64,
    },
    /// A test failed or did not start.
    Failed {
        /// Address of the client.
        peer: SocketAddr,
        /// Reason for the failure.
        reason: String,
        /// Bytes sent by this end until then.
        bytes_sent: u64,
        /// Bytes received by this end until then.
        bytes_received: u64,
        /// Duration of the test in seconds; 0 if it did not start.
        seconds: f64,
    },
    /// A connection was dropped before it belonged to a test.
    Dropped {
        /// Address of the client.
        peer: SocketAddr,
        /// Reason for the drop.
        reason: String,
    },
}

/// Reason for which a connection was dropped before it belonged to a test.
#[derive(Debug, Error)]
enum DropReason {
    /// The client's opening is not valid or has another version.
    #[error(transparent)]
    Preamble(#[from] PreambleError),
    /// The client asks for an encrypted test.
    #[error("it asks for TLS, which tests do not use")]
    Tls,
    /// The client is one of transfers.
    #[error("a transfer came: {TRANSFER_REFUSAL}")]
    Transfer,
    /// A data connection names a test that does not run.
    #[error("data connection for a test that is not here")]
    UnknownTest,
    /// The test of a data connection has all that it needs.
    #[error("its test has all its connections")]
    Surplus,
    /// The opening begins like that of an iperf3 client.
    #[error("its first 37 bytes are almost, but not quite, those of an iperf3 client")]
    Cookie,
    /// The client sent part of its opening only.
    #[error("{0} bytes and then silence until the handshake deadline")]
    Silence(usize),
    /// The client closed the connection within its opening.
    #[error("closed after {0} bytes")]
    Closed(usize),
    /// Newer connections replaced it.
    #[error("the oldest of {0} waiting connections, replaced by newer ones")]
    Evicted(usize),
    /// Error of the socket.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Refusal of a transfer, which names the remedy.
const TRANSFER_REFUSAL: &str = "this is a test listener; transfers need `penstock serve`";

/// Listener bound to a port, not serving yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// UDP socket of the same port, or the reason why there is none.
    datagrams: Result<Arc<DatagramPort>, Arc<str>>,
    address: SocketAddr,
    limits: ListenerLimits,
}

/// State shared by the connections of one listener.
struct ListenerState<F> {
    limits: ListenerLimits,
    /// Connections without a test, by arrival.
    waiting: Mutex<BTreeMap<u64, Arc<TcpStream>>>,
    arrivals: AtomicU64,
    tests: Mutex<HashMap<TestId, SyncSender<DataConnection>>>,
    concurrent: Concurrent,
    iperf_tests: IperfTests,
    datagrams: Result<Arc<DatagramPort>, Arc<str>>,
    stop: Arc<AtomicBool>,
    on_event: F,
}

impl Listener {
    /// Binds `address`; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn bind(address: SocketAddr, limits: ListenerLimits) -> io::Result<Self> {
        let socket = listen(address, ACCEPT_BACKLOG)?;
        let address = socket.local_addr()?;
        // Linux applies the receive timeout to accept too.
        options::set_receive_timeout(&socket, STOP_CHECK_INTERVAL)?;
        let datagrams = DatagramPort::bind(address, STOP_CHECK_INTERVAL)
            .map(Arc::new)
            .map_err(|error| format!("UDP port {}: {error}", address.port()).into());
        Ok(Self { socket, datagrams, address, limits })
    }

    /// Reason why the listener refuses tests with datagrams; `None` if it answers them.
    #[must_use]
    pub fn udp_unavailable(&self) -> Option<&str> {
        self.datagrams.as_ref().err().map(AsRef::as_ref)
    }

    /// Local address, with the port assigned by the kernel.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, which ends the running tests early. `on_event` is called from many threads.
    ///
    /// # Errors
    /// If accepting fails permanently.
    pub fn run<F>(&self, stop: &Arc<AtomicBool>, on_event: F) -> io::Result<()>
    where
        F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
    {
        let listener = Arc::new(ListenerState {
            limits: self.limits,
            waiting: Mutex::default(),
            arrivals: AtomicU64::new(0),
            tests: Mutex::default(),
            concurrent: Concurrent::default(),
            iperf_tests: IperfTests::default(),
            datagrams: self.datagrams.clone(),
            stop: stop.clone(),
            on_event,
        });
        if let Ok(port) = self.datagrams.clone() {
            let stop = stop.clone();
            thread::Builder::new().name("nettest-udp".into()).spawn(move || port.serve(&stop))?;
        }
        while !stop.load(Relaxed) {
            match self.socket.accept() {
                Ok((socket, peer)) => listener.admit(socket, peer),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted => {}
                    // Out of descriptors or memory: wait for a test to end.
                    _ if is_exhaustion(&error) => thread::sleep(STOP_CHECK_INTERVAL),
                    _ => return Err(error),
                },
            }
        }
        // The tests observe `stop` too and send their clients the results so far.
        let deadline = Instant::now() + LAST_REPORT_TIMEOUT;
        while !lock(&listener.tests).is_empty() && Instant::now() < deadline {
            thread::sleep(STOP_CHECK_INTERVAL / 10);
        }
        Ok(())
    }
}

impl<F> ListenerState<F>
where
    F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
{
    /// Starts a thread for a new connection and adds it to those without a test.
    fn admit(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let place = UnclaimedConnection::new(self, socket);
        let listener = self.clone();
        let spawned = thread::Builder::new().name("nettest-accept".into()).spawn(move || {
            if let Err(reason) = listener.read_kind(place, peer) {
                let reason = reason.to_string();
                (listener.on_event)(&ListenerEvent::Dropped { peer, reason });
            }
        });
        if let Err(error) = spawned {
            let reason = format!("no thread for it: {error}");
            (self.on_event)(&ListenerEvent::Dropped { peer, reason });
        }
    }

    /// Reads the kind of a connection. The error states why it was dropped.
    fn read_kind(
        self: &Arc<Self>,
        place: UnclaimedConnection<F>,
        peer: SocketAddr,
    ) -> Result<(), DropReason> {
        let deadline = Instant::now() + self.limits.handshake;
        let head = self.read_head(&place.socket, deadline);
        match head.map_err(|reason| place.why(reason))? {
            Head::Control => {
                self.report(peer, self.run_test(place, peer));
                Ok(())
            }
            Head::Iperf(cookie) if self.iperf_tests.expects(&cookie) => {
                let arrival = place.number;
                let socket = place.leave()?;
                match self.iperf_tests.offer(&cookie, arrival, socket) {
                    true => Ok(()),
                    false => Err(DropReason::Surplus),
                }
            }
            Head::Iperf(cookie) => {
                self.report(peer, self.run_iperf(place, cookie, peer));
                Ok(())
            }
            Head::Data(id, index) => {
                let socket = place.leave()?;
                let tests = lock(&self.tests);
                let test = tests.get(&id).ok_or(DropReason::UnknownTest)?;
                test.try_send((index, socket)).map_err(|_| DropReason::Surplus)
            }
        }
    }

    fn read_head(&self, mut socket: &TcpStream, deadline: Instant) -> Result<Head, DropReason> {
        let mut bytes = [0; PREAMBLE_BYTES];
        read_until(socket, &mut bytes, deadline)?;
        if Cookie::may_start_with(&bytes) {
            let mut cookie = [0; COOKIE_BYTES];
            cookie[..PREAMBLE_BYTES].copy_from_slice(&bytes);
            read_until(socket, &mut cookie[PREAMBLE_BYTES..], deadline)?;
            return Cookie::decode(&cookie).map(Head::Iperf).ok_or(DropReason::Cookie);
        }
        let opening = preamble::decode(&bytes).inspect_err(|error| {
            if matches!(error, PreambleError::Version { .. }) {
                let refusal = Message::Refused { reason: error.to_string() };
                let _ = write_message(&mut socket, &refusal);
            }
        })?;
        match opening.kind {
            _ if opening.tls => Err(DropReason::Tls),
            ConnectionKind::NettestControl => Ok(Head::Control),
            ConnectionKind::NettestData => {
                let mut bytes = [0; 20];
                read_until(socket, &mut bytes, deadline)?;
                let mut id = [0; 16];
                id.copy_from_slice(&bytes[..16]);
                let index = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
                Ok(Head::Data(id, index))
            }
            ConnectionKind::Control | ConnectionKind::Data | ConnectionKind::RdmaData => {
                let refusal = Message::Refused { reason: TRANSFER_REFUSAL.to_owned() };
                let _ = write_message(&mut socket, &refusal);
                Err(DropReason::Transfer)
            }
        }
    }

    /// Reports the end of a test, or the reason why it did not start.
    fn report(&self, peer: SocketAddr, result: Result<EndedTest, NettestError>) {
        let (failure, ended) = match result {
            Ok(mut ended) => (ended.failure.take(), ended),
            Err(error) => (Some(error), EndedTest::default()),
        };
        let (bytes_sent, bytes_received) = totals(&ended.reports);
        let seconds = ended.elapsed.as_secs_f64();
        (self.on_event)(&match failure {
            None => ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds },
            Some(error) => {
                let reason = error.to_string();
                ListenerEvent::Failed { peer, reason, bytes_sent, bytes_received, seconds }
            }
        });
    }

    fn run_test(
        &self,
        place: UnclaimedConnection<F>,
        peer: SocketAddr,
    ) -> Result<EndedTest, NettestError> {
        let deadline = Instant::now() + self.limits.handshake;
        let socket = place.socket.try_clone().map_err(NettestError::Local)?;
        let mut control = ControlConnection::new(socket).map_err(NettestError::Local)?;
        let Message::Propose { params, .. } = receive_until(&control, deadline)? else {
            return Err(NettestError::Unexpected);
        };
        let refuse = |control: &mut ControlConnection, reason: String| {
            control.send(&Message::Refused { reason: reason.clone() })?;
            Err(NettestError::Refused(reason))
        };
        if let Err(error) = params.validate() {
            return refuse(&mut control, error.to_string());
        }
        if let Some(name) = &params.congestion
            && let Err(error) = options::set_congestion(control.socket(), name)
        {
            return refuse(&mut control, error.to_string());
        }
        let datagrams = match (params.udp, self.datagrams.as_deref()) {
            (false, _) => None,
            (true, Ok(_)) if params.block_bytes.is_none() => {
                return refuse(&mut control, "udp: the size of the datagrams is missing".into());
            }
            (true, Ok(port)) => Some(port),
            (true, Err(reason)) => {
                let reason = format!("tests with UDP are not possible there: {reason}");
                return refuse(&mut control, reason);
            }
        };
        if params.rdma.is_some() {
            let local = control.socket().local_addr().map_err(NettestError::Local)?;
            if let Err(failure) = RdmaAdapter::for_address(local) {
                return refuse(&mut control, format!("RDMA is not possible there: {failure}"));
            }
        }
        let Some(mut slot) = self.reserve_slot(params.connections()) else {
            let are = if self.limits.tests == 1 { "test is" } else { "tests are" };
            let reason = format!("{} {are} running, try again later", self.limits.tests);
            return refuse(&mut control, reason);
        };
        drop(place);
        let mut arrivals = slot.arrivals(&params, &control, datagrams)?;
        let software = concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned();
        let test_id = format!("{:032x}", u128::from_be_bytes(slot.id));
        control.send(&Message::Accepted { software, test_id, rdma: params.rdma.is_some() })?;
        let deadline = Instant::now() + self.limits.handshake;
        let sockets = match gather(&mut arrivals, &params, &control, deadline) {
            Ok(sockets) => sockets,
            Err(error) => {
                control.send(&Message::Failed { reason: error.to_string() })?;
                return Err(error);
            }
        };
        drop(arrivals);
        (self.on_event)(&ListenerEvent::Started { peer, params: &params });
        control.send(&Message::Start)?;
        let started = Instant::now();
        let place = self.concurrent.enter();
        let client = Peer { silent_after: CLIENT_SILENT_AFTER, other_tests: &place.other_tests };
        let share = slot.share;
        let outcome =
            session::run(&params, sockets, control, share, &client, &self.stop, &mut |_| {})?;
        let (reports, failure) = (outcome.local, outcome.failure);
        Ok(EndedTest { reports, elapsed: started.elapsed(), failure })
    }

    /// Runs the test of an iperf3 client.
    fn run_iperf(
        &self,
        place: UnclaimedConnection<F>,
        cookie: Cookie,
        peer: SocketAddr,
    ) -> Result<EndedTest, NettestError> {
        let Some(slot) = self.reserve_slot(1) else {
            let _ = (&*place.socket).write_all(&[ControlState::AccessDenied.byte()]);
            return Err(NettestError::Refused(format!("{} tests are running", self.limits.tests)));
        };
        let socket = place.socket.try_clone().map_err(NettestError::Local)?;
        drop(place);
        let host = IperfHost {
            tests: &self.iperf_tests,
            datagrams: self.datagrams.as_deref().map_err(AsRef::as_ref),
            stop: &self.stop,
            share: slot.share,
            handshake: self.limits.handshake,
        };
        let mut running = None;
        server::run(socket, cookie, &host, &mut |params| {
            running = Some(self.concurrent.enter());
            (self.on_event)(&ListenerEvent::Started { peer, params });
        })
    }

    /// Reserves a test slot, if one is free.
    fn reserve_slot(&self, connections: u32) -> Option<TestSlot<'_>> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        let mut tests = lock(&self.tests);
        if tests.len() >= self.limits.tests {
            return None;
        }
        let share = if tests.is_empty() { MemoryShare::ALONE } else { MemoryShare::CROWDED };
        let (sender, connections) = sync_channel(connections as usize);
        tests.insert(id, sender);
        Some(TestSlot { id, connections: Some(connections), share, tests: &self.tests })
    }
}

/// Tests running at a listener; each records the peak number of others.
#[derive(Debug, Default)]
struct Concurrent(Mutex<Vec<Arc<AtomicU32>>>);

/// Running test, deregistered on drop.
#[derive(Debug)]
struct RunningTest<'a> {
    concurrent: &'a Concurrent,
    /// Peak number of other tests so far.
    other_tests: Arc<AtomicU32>,
}

impl Concurrent {
    /// Registers a running test.
    fn enter(&self) -> RunningTest<'_> {
        let mut running = lock(&self.0);
        let others = u32::try_from(running.len()).unwrap_or(u32::MAX);
        running.push(Arc::new(AtomicU32::new(others)));
        for test in running.iter() {
            test.fetch_max(others, Relaxed);
        }
        let other_tests = Arc::clone(running.last().expect("one was added"));
        RunningTest { concurrent: self, other_tests }
    }
}

impl Drop for RunningTest<'_> {
    fn drop(&mut self) {
        lock(&self.concurrent.0).retain(|test| !Arc::ptr_eq(test, &self.other_tests));
    }
}

/// Test that has run.
#[derive(Default)]
pub(crate) struct EndedTest {
    /// Reports of this end's streams.
    pub(crate) reports: Vec<StreamReport>,
    pub(crate) elapsed: Duration,
    /// Reason for an early end.
    pub(crate) failure: Option<NettestError>,
}

/// Preamble and header of a connection.
enum Head {
    Control,
    Data(TestId, u32),
    Iperf(Cookie),
}

/// Connection that does not belong to a test yet; dropping it frees its slot.
struct UnclaimedConnection<F> {
    listener: Arc<ListenerState<F>>,
    number: u64,
    socket: Arc<TcpStream>,
}

impl<F> UnclaimedConnection<F> {
    /// Registers the connection; evicts the oldest if the limit is reached.
    fn new(listener: &Arc<ListenerState<F>>, socket: TcpStream) -> Self {
        let number = listener.arrivals.fetch_add(1, Relaxed);
        let socket = Arc::new(socket);
        let mut waiting = lock(&listener.waiting);
        if waiting.len() >= listener.limits.handshakes
            && let Some((_, oldest)) = waiting.pop_first()
        {
            // Wakes the thread that reads its preamble.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        waiting.insert(number, socket.clone());
        Self { listener: listener.clone(), number, socket }
    }

    /// Deregisters the connection, which now belongs to a test.
    fn leave(self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// Reason for its end: `reason`, unless it was evicted.
    fn why(&self, reason: DropReason) -> DropReason {
        if lock(&self.listener.waiting).contains_key(&self.number) {
            return reason;
        }
        DropReason::Evicted(self.listener.limits.handshakes)
    }
}

impl<F> Drop for UnclaimedConnection<F> {
    fn drop(&mut self) {
        lock(&self.listener.waiting).remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn totals(reports: &[StreamReport]) -> (u64, u64) {
    reports.iter().fold((0, 0), |(sent, received), stream| match stream.role {
        StreamRole::Sender => (sent + stream.bytes, received),
        StreamRole::Receiver => (sent, received + stream.bytes),
    })
}

/// Reads all of `bytes` before `deadline`, at any speed.
fn read_until(
    mut socket: &TcpStream,
    bytes: &mut [u8],
    deadline: Instant,
) -> Result<(), DropReason> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(DropReason::Silence(filled));
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(DropReason::Closed(filled)),
            Ok(count) => filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Err(error.into()),
            },
        }
    }
    Ok(())
}

/// `ENFILE`, `EMFILE`, `ENOBUFS`, `ENOMEM`.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}
