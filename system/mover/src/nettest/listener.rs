//! The listener: many clients at once on one port, each test with its own threads and limits.
//!
//! It is open: anybody who reaches the port may test, as with iperf3. So every number a stranger
//! can influence has a limit, every wait a deadline, and garbage costs one event.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::net::connect::listen;
use penstock_sys::net::options;

use super::NettestError;
use super::message::{Message, Role, write_message};
use super::params::TestParams;
use super::preamble::{self, Kind, PreambleError};
use super::report::role_of;
use super::session::{self, Control, Outcome, hear_until};

/// How often a listener looks whether it should stop.
const TICK: Duration = Duration::from_millis(200);
const BACKLOG: i32 = 1024;

/// What a listener allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tests at the same time.
    pub tests: usize,
    /// Connections that have not yet said what they are.
    pub handshakes: usize,
    /// Time for a connection to say what it is, and for a test's connections to arrive.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tests: 16, handshakes: 1024, handshake: Duration::from_secs(10) }
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
struct Desk<F> {
    limits: Limits,
    handshakes: AtomicUsize,
    tests: Mutex<HashMap<TestId, Sender<DataConnection>>>,
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

    /// Serves until `stop`. `on_event` is called from many threads.
    ///
    /// # Errors
    /// Accepting failed for good.
    pub fn run<F>(&self, stop: &Arc<AtomicBool>, on_event: F) -> io::Result<()>
    where
        F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
    {
        let desk = Arc::new(Desk {
            limits: self.limits,
            handshakes: AtomicUsize::new(0),
            tests: Mutex::default(),
            stop: stop.clone(),
            on_event,
        });
        while !stop.load(Relaxed) {
            match self.socket.accept() {
                Ok((socket, peer)) => desk.clone().admit(socket, peer),
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
        Ok(())
    }
}

impl<F> Desk<F>
where
    F: Fn(&ListenerEvent<'_>) + Send + Sync + 'static,
{
    /// Gives a new connection a thread, if there is room.
    fn admit(self: Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        if self.handshakes.fetch_add(1, Relaxed) >= self.limits.handshakes {
            self.handshakes.fetch_sub(1, Relaxed);
            let reason = format!("more than {} connections in handshake", self.limits.handshakes);
            (self.on_event)(&ListenerEvent::Dropped { peer, reason });
            return;
        }
        let desk = self.clone();
        let spawned = thread::Builder::new().name("nettest-accept".into()).spawn(move || {
            let outcome = desk.greet(socket, peer);
            if let Err(reason) = outcome {
                (desk.on_event)(&ListenerEvent::Dropped { peer, reason });
            }
        });
        if let Err(error) = spawned {
            self.handshakes.fetch_sub(1, Relaxed);
            let reason = format!("no thread for it: {error}");
            (self.on_event)(&ListenerEvent::Dropped { peer, reason });
        }
    }

    /// Finds out what a connection is for. The error is why it was dropped.
    fn greet(self: &Arc<Self>, mut socket: TcpStream, peer: SocketAddr) -> Result<(), String> {
        let deadline = Instant::now() + self.limits.handshake;
        let kind = self.read_head(&mut socket, deadline);
        self.handshakes.fetch_sub(1, Relaxed);
        match kind? {
            Head::Control => self.serve_test(socket, peer),
            Head::Data(id, index) => {
                let tests = self.tests.lock().unwrap_or_else(PoisonError::into_inner);
                let test = tests.get(&id).ok_or("data connection for a test that is not here")?;
                test.send((index, socket)).map_err(|_| "the test is over".to_owned())
            }
        }
    }

    fn read_head(&self, socket: &mut TcpStream, deadline: Instant) -> Result<Head, String> {
        let mut bytes = [0; preamble::LENGTH];
        read_until(socket, &mut bytes, deadline)?;
        let kind = preamble::decode(&bytes).map_err(|error| {
            if matches!(error, PreambleError::Version { .. }) {
                let refusal = Message::Refused { reason: error.to_string() };
                let _ = write_message(socket, &refusal);
            }
            error.to_string()
        })?;
        match kind {
            Kind::NettestControl => Ok(Head::Control),
            Kind::NettestData => {
                let mut bytes = [0; 20];
                read_until(socket, &mut bytes, deadline)?;
                let mut id = [0; 16];
                id.copy_from_slice(&bytes[..16]);
                let index = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
                Ok(Head::Data(id, index))
            }
            Kind::TransferControl | Kind::TransferData => {
                let reason = "this is a test listener; transfers need `penstock serve`";
                let refusal = Message::Refused { reason: reason.into() };
                let _ = write_message(socket, &refusal);
                Err(format!("a transfer came: {reason}"))
            }
        }
    }

    fn serve_test(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) -> Result<(), String> {
        let control = Control::new(socket).map_err(|error| error.to_string())?;
        if let Err(error) = self.run_test(control, peer) {
            (self.on_event)(&ListenerEvent::Failed { peer, reason: error.to_string() });
        }
        Ok(())
    }

    fn run_test(&self, mut control: Control, peer: SocketAddr) -> Result<(), NettestError> {
        let deadline = Instant::now() + self.limits.handshake;
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
        let Some(booking) = self.book() else {
            let reason = format!("{} tests are running, try again later", self.limits.tests);
            return refuse(&mut control, reason);
        };
        let software = concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned();
        let test_id = format!("{:032x}", u128::from_be_bytes(booking.id));
        control.say(&Message::Accepted { software, test_id })?;
        let deadline = Instant::now() + self.limits.handshake;
        let sockets = match gather(&params, &booking.connections, deadline) {
            Ok(sockets) => sockets,
            Err(error) => {
                control.say(&Message::Failed { reason: error.to_string() })?;
                return Err(error);
            }
        };
        (self.on_event)(&ListenerEvent::Started { peer, params: &params });
        control.say(&Message::Start)?;
        let started = Instant::now();
        let outcome = session::run(&params, sockets, control, &self.stop, &mut |_| {})?;
        let (bytes_sent, bytes_received) = totals(&outcome);
        let seconds = started.elapsed().as_secs_f64();
        (self.on_event)(&ListenerEvent::Finished { peer, bytes_sent, bytes_received, seconds });
        Ok(())
    }

    /// Takes a place among the tests, if there is one.
    fn book(&self) -> Option<Booking<'_>> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        let mut tests = self.tests.lock().unwrap_or_else(PoisonError::into_inner);
        if tests.len() >= self.limits.tests {
            return None;
        }
        let (sender, connections) = channel();
        tests.insert(id, sender);
        Some(Booking { id, connections, tests: &self.tests })
    }
}

/// A connection's first words.
enum Head {
    Control,
    Data(TestId, u32),
}

/// A test's place; dropping it frees the place.
struct Booking<'a> {
    id: TestId,
    connections: Receiver<DataConnection>,
    tests: &'a Mutex<HashMap<TestId, Sender<DataConnection>>>,
}

impl Drop for Booking<'_> {
    fn drop(&mut self) {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Waits for all data connections of a test.
fn gather(
    params: &TestParams,
    connections: &Receiver<DataConnection>,
    deadline: Instant,
) -> Result<Vec<(u32, Role, TcpStream)>, NettestError> {
    let expected = params.connections() as usize;
    let mut sockets: Vec<(u32, Role, TcpStream)> = Vec::with_capacity(expected);
    while sockets.len() < expected {
        let wait = deadline.saturating_duration_since(Instant::now());
        let Ok((index, socket)) = connections.recv_timeout(wait) else {
            return Err(NettestError::Missing { missing: expected - sockets.len(), expected });
        };
        if index as usize >= expected || sockets.iter().any(|(known, ..)| *known == index) {
            return Err(NettestError::Unexpected);
        }
        sockets.push((index, role_of(params, index, false), socket));
    }
    Ok(sockets)
}

fn totals(outcome: &Outcome) -> (u64, u64) {
    outcome.local.iter().fold((0, 0), |(sent, received), stream| match stream.role {
        Role::Sender => (sent + stream.bytes, received),
        Role::Receiver => (sent, received + stream.bytes),
    })
}

/// Reads all of `bytes` before `deadline`, however slowly they come.
fn read_until(socket: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> Result<(), String> {
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
