//! The listener: many clients at once on one port, each test with its own threads and limits.
//!
//! It is open: anybody who reaches the port may test, as with iperf3. So every number a stranger
//! can influence has a limit, every wait a deadline, and garbage costs one event.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_marker::DEFAULT_PIN;
use penstock_protocol::preamble::{self, ConnectionKind, PREAMBLE_BYTES, PreambleError};
use penstock_sys::net::connect::listen;
use penstock_sys::net::options;

use super::NettestError;
use super::message::{Message, Role, write_message};
use super::params::TestParams;
use super::report::role_of;
use super::session::{
    self, CLIENT_SILENT_AFTER, Connection, Control, Event, Outcome, Peer, hear_until,
};
use super::share::MemoryShare;
use crate::labels::label_accepted;

/// How often a listener looks whether it should stop.
const TICK: Duration = Duration::from_millis(200);
/// Time for running tests to report when the listener stops.
const FAREWELL: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 1024;

/// What a listener allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tests at the same time.
    pub tests: usize,
    /// Connections that do not belong to a test yet. One more takes the place of the oldest, so
    /// that idle ones shut nobody out.
    pub handshakes: usize,
    /// Time for a connection to say what it is, and for a test's connections to arrive.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tests: 16, handshakes: 256, handshake: Duration::from_secs(10) }
    }
}

/// What a listener has to tell.
#[derive(Debug)]
pub enum ListenerEvent<'a> {
    /// A test begins.
    Started {
        /// The client.
        peer: SocketAddr,
        /// Its test.
        params: &'a TestParams,
    },
    /// A test is over.
    Finished {
        /// The client.
        peer: SocketAddr,
        /// Bytes this end sent.
        bytes_sent: u64,
        /// Bytes this end received.
        bytes_received: u64,
        /// How long it took.
        seconds: f64,
    },
    /// A test did not happen or broke.
    Failed {
        /// The client.
        peer: SocketAddr,
        /// Why.
        reason: String,
    },
    /// A connection was dropped before it belonged to a test.
    Dropped {
        /// Where it came from.
        peer: SocketAddr,
        /// Why.
        reason: String,
    },
}

type TestId = [u8; 16];
type DataConnection = (u32, TcpStream);

/// A bound port.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

/// What all connections of one listener share.
struct ListenerState<F> {
    limits: Limits,
    /// Connections without a test, in the order of their arrival.
    waiting: Mutex<BTreeMap<u64, Arc<TcpStream>>>,
    arrivals: AtomicU64,
    tests: Mutex<HashMap<TestId, SyncSender<DataConnection>>>,
    concurrent: Concurrent,
    stop: Arc<AtomicBool>,
    on_event: F,
}

impl Listener {
    /// Binds `address`; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn bind(address: SocketAddr, limits: Limits) -> io::Result<Self> {
        let socket = listen(address, BACKLOG)?;
        let address = socket.local_addr()?;
        // Linux applies the receive timeout to accept as well.
        options::set_receive_timeout(&socket, TICK)?;
        Ok(Self { socket, address, limits })
    }

    /// The address it got.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, which ends the running tests early. `on_event` is called from many threads.
    ///
    /// # Errors
    /// Accepting failed for good.
    pub fn run<F>(&self, stop: &Arc<AtomicBool>, on_event: F) -> io::Result<()>
    where
        F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
    {
        let desk = Arc::new(ListenerState {
            limits: self.limits,
            waiting: Mutex::default(),
            arrivals: AtomicU64::new(0),
            tests: Mutex::default(),
            concurrent: Concurrent::default(),
            stop: stop.clone(),
            on_event,
        });
        while !stop.load(Relaxed) {
            match self.socket.accept() {
                Ok((socket, peer)) => desk.admit(socket, peer),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted => {}
                    // Out of descriptors or memory: wait for some test to end.
                    _ if is_exhaustion(&error) => thread::sleep(TICK),
                    _ => return Err(error),
                },
            }
        }
        // The tests saw `stop` too: their clients get what there is so far.
        let deadline = Instant::now() + FAREWELL;
        while !lock(&desk.tests).is_empty() && Instant::now() < deadline {
            thread::sleep(TICK / 10);
        }
        Ok(())
    }
}

impl<F> ListenerState<F>
where
    F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
{
    /// Gives a new connection a thread, and a place among those that wait.
    fn admit(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let place = UnclaimedConnection::new(self, socket);
        let desk = self.clone();
        let spawned = thread::Builder::new().name("nettest-accept".into()).spawn(move || {
            if let Err(reason) = desk.greet(place, peer) {
                (desk.on_event)(&ListenerEvent::Dropped { peer, reason });
            }
        });
        if let Err(error) = spawned {
            let reason = format!("no thread for it: {error}");
            (self.on_event)(&ListenerEvent::Dropped { peer, reason });
        }
    }

    /// Finds out what a connection is for. The error is why it was dropped.
    fn greet(
        self: &Arc<Self>,
        place: UnclaimedConnection<F>,
        peer: SocketAddr,
    ) -> Result<(), String> {
        let deadline = Instant::now() + self.limits.handshake;
        let head = self.read_head(&place.socket, deadline);
        match head.map_err(|reason| place.why(reason))? {
            Head::Control => self.serve_test(place, peer),
            Head::Data(id, index) => {
                let socket = place.leave().map_err(|error| error.to_string())?;
                let tests = lock(&self.tests);
                let test = tests.get(&id).ok_or("data connection for a test that is not here")?;
                test.try_send((index, socket))
                    .map_err(|_| "its test has all its connections".to_owned())
            }
        }
    }

    fn read_head(&self, mut socket: &TcpStream, deadline: Instant) -> Result<Head, String> {
        let mut bytes = [0; PREAMBLE_BYTES];
        read_until(socket, &mut bytes, deadline)?;
        let opening = preamble::decode(&bytes).map_err(|error| {
            if matches!(error, PreambleError::Version { .. }) {
                let refusal = Message::Refused { reason: error.to_string() };
                let _ = write_message(&mut socket, &refusal);
            }
            error.to_string()
        })?;
        match opening.kind {
            _ if opening.tls => Err("it asks for TLS, which tests do not use".to_owned()),
            ConnectionKind::NettestControl => Ok(Head::Control),
            ConnectionKind::NettestData => {
                let mut bytes = [0; 20];
                read_until(socket, &mut bytes, deadline)?;
                let mut id = [0; 16];
                id.copy_from_slice(&bytes[..16]);
                let index = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
                Ok(Head::Data(id, index))
            }
            ConnectionKind::Control | ConnectionKind::Data => {
                let reason = "this is a test listener; transfers need `penstock serve`";
                let refusal = Message::Refused { reason: reason.into() };
                let _ = write_message(&mut socket, &refusal);
                Err(format!("a transfer came: {reason}"))
            }
        }
    }

    fn serve_test(
        self: &Arc<Self>,
        place: UnclaimedConnection<F>,
        peer: SocketAddr,
    ) -> Result<(), String> {
        if let Err(error) = self.run_test(place, peer) {
            (self.on_event)(&ListenerEvent::Failed { peer, reason: error.to_string() });
        }
        Ok(())
    }

    fn run_test(
        &self,
        place: UnclaimedConnection<F>,
        peer: SocketAddr,
    ) -> Result<(), NettestError> {
        let deadline = Instant::now() + self.limits.handshake;
        let socket = place.socket.try_clone().map_err(NettestError::Local)?;
        let mut control = Control::new(socket).map_err(NettestError::Local)?;
        let Message::Propose { params, .. } = hear_until(&control, deadline)? else {
            return Err(NettestError::Unexpected);
        };
        let refuse = |control: &mut Control, reason: String| {
            control.say(&Message::Refused { reason: reason.clone() })?;
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
        let Some(mut booking) = self.book(params.connections()) else {
            let are = if self.limits.tests == 1 { "test is" } else { "tests are" };
            let reason = format!("{} {are} running, try again later", self.limits.tests);
            return refuse(&mut control, reason);
        };
        drop(place);
        let software = concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned();
        let test_id = format!("{:032x}", u128::from_be_bytes(booking.id));
        control.say(&Message::Accepted { software, test_id })?;
        let deadline = Instant::now() + self.limits.handshake;
        let sockets = match booking.gather(&params, &control, deadline) {
            Ok(sockets) => sockets,
            Err(error) => {
                control.say(&Message::Failed { reason: error.to_string() })?;
                return Err(error);
            }
        };
        (self.on_event)(&ListenerEvent::Started { peer, params: &params });
        control.say(&Message::Start)?;
        let started = Instant::now();
        let place = self.concurrent.enter();
        let client = Peer { silent_after: CLIENT_SILENT_AFTER, other_tests: &place.other_tests };
        let share = booking.share;
        let outcome =
            session::run(&params, sockets, control, share, &client, &self.stop, &mut |_| {})?;
        let (bytes_sent, bytes_received) = totals(&outcome);
        let seconds = started.elapsed().as_secs_f64();
        (self.on_event)(&ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds });
        Ok(())
    }

    /// Takes a place among the tests, if there is one.
    fn book(&self, connections: u32) -> Option<Booking<'_>> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        let mut tests = lock(&self.tests);
        if tests.len() >= self.limits.tests {
            return None;
        }
        let share = if tests.is_empty() { MemoryShare::ALONE } else { MemoryShare::CROWDED };
        let (sender, connections) = sync_channel(connections as usize);
        tests.insert(id, sender);
        Some(Booking { id, connections: Some(connections), share, tests: &self.tests })
    }
}

/// The tests that run at a listener now; each learns how many others ran at the same time at most.
#[derive(Debug, Default)]
struct Concurrent(Mutex<Vec<Arc<AtomicU32>>>);

/// A test among those that run; dropping it ends that.
#[derive(Debug)]
struct RunningTest<'a> {
    concurrent: &'a Concurrent,
    /// Most others that ran at the same time so far.
    other_tests: Arc<AtomicU32>,
}

impl Concurrent {
    /// One more test runs.
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

/// A connection's first words.
enum Head {
    Control,
    Data(TestId, u32),
}

/// A connection that belongs to no test yet; dropping it frees its place.
struct UnclaimedConnection<F> {
    desk: Arc<ListenerState<F>>,
    number: u64,
    socket: Arc<TcpStream>,
}

impl<F> UnclaimedConnection<F> {
    /// Takes a place, the oldest one's when there is no other.
    fn new(desk: &Arc<ListenerState<F>>, socket: TcpStream) -> Self {
        let number = desk.arrivals.fetch_add(1, Relaxed);
        let socket = Arc::new(socket);
        let mut waiting = lock(&desk.waiting);
        if waiting.len() >= desk.limits.handshakes
            && let Some((_, oldest)) = waiting.pop_first()
        {
            // Wakes the thread that waits for its first words.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        waiting.insert(number, socket.clone());
        Self { desk: desk.clone(), number, socket }
    }

    /// The connection, now that it belongs to a test.
    fn leave(self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// Why it ends: `reason`, unless it lost its place.
    fn why(&self, reason: String) -> String {
        if lock(&self.desk.waiting).contains_key(&self.number) {
            return reason;
        }
        format!("gave way, as the oldest of {} that wait", self.desk.limits.handshakes)
    }
}

impl<F> Drop for UnclaimedConnection<F> {
    fn drop(&mut self) {
        lock(&self.desk.waiting).remove(&self.number);
    }
}

/// A test's place; dropping it frees the place.
struct Booking<'a> {
    id: TestId,
    connections: Option<Receiver<DataConnection>>,
    share: MemoryShare,
    tests: &'a Mutex<HashMap<TestId, SyncSender<DataConnection>>>,
}

impl Drop for Booking<'_> {
    fn drop(&mut self) {
        lock(self.tests).remove(&self.id);
    }
}

impl Booking<'_> {
    /// Waits for all data connections of the test, as long as its client is there; takes none
    /// afterwards.
    fn gather(
        &mut self,
        params: &TestParams,
        control: &Control,
        deadline: Instant,
    ) -> Result<Vec<Connection>, NettestError> {
        let expected = params.connections() as usize;
        let connections = self.connections.take();
        let mut sockets: Vec<Connection> = Vec::with_capacity(expected);
        while sockets.len() < expected {
            match control.hear(Duration::ZERO) {
                Some(Event::Peer(Err(error))) => return Err(NettestError::ControlLost(error)),
                Some(_) => return Err(NettestError::Unexpected),
                None => {}
            }
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(NettestError::Missing { missing: expected - sockets.len(), expected });
            }
            let next = connections.as_ref().map(|arrived| arrived.recv_timeout(wait.min(TICK / 4)));
            let Some(Ok((index, socket))) = next else { continue };
            if index as usize >= expected || sockets.iter().any(|known| known.index == index) {
                return Err(NettestError::Unexpected);
            }
            let role = role_of(params, index, false);
            let label = match role {
                Role::Sender => label_accepted(params.mark(), &socket, Path::new(DEFAULT_PIN)),
                Role::Receiver => String::new(),
            };
            sockets.push(Connection { index, role, socket, label });
        }
        Ok(sockets)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn totals(outcome: &Outcome) -> (u64, u64) {
    outcome.local.iter().fold((0, 0), |(sent, received), stream| match stream.role {
        Role::Sender => (sent + stream.bytes, received),
        Role::Receiver => (sent, received + stream.bytes),
    })
}

/// Reads all of `bytes` before `deadline`, however slowly they come.
fn read_until(mut socket: &TcpStream, bytes: &mut [u8], deadline: Instant) -> Result<(), String> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("{filled} bytes and then silence until the handshake deadline"));
        }
        socket.set_read_timeout(Some(left)).map_err(|error| error.to_string())?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(format!("closed after {filled} bytes")),
            Ok(count) => filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Err(error.to_string()),
            },
        }
    }
    Ok(())
}

/// `ENFILE`, `EMFILE`, `ENOBUFS`, `ENOMEM`.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}
