//! Slot of a test at a listener, and the arrival of the test's streams.

use std::collections::HashMap;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_marker::DEFAULT_PIN;
use penstock_mover::label_accepted;

use crate::NettestError;
use crate::datagram_port::{DatagramPort, StreamArrivals};
use crate::message::StreamRole;
use crate::params::TestParams;
use crate::report::role_of;
use crate::session::{Connection, ControlConnection, ControlEvent};
use crate::share::MemoryShare;
use crate::stream::DataSocket;

/// Interval of checks of the control connection.
const CONTROL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) type TestId = [u8; 16];
/// Data connection with the number of its stream.
pub(crate) type DataConnection = (u32, TcpStream);

/// Slot of a test, freed on drop.
pub(crate) struct TestSlot<'a> {
    pub(crate) id: TestId,
    pub(crate) connections: Option<Receiver<DataConnection>>,
    pub(crate) share: MemoryShare,
    pub(crate) tests: &'a Mutex<HashMap<TestId, SyncSender<DataConnection>>>,
}

impl Drop for TestSlot<'_> {
    fn drop(&mut self) {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

impl TestSlot<'_> {
    /// Prepares for the streams of the test: with datagrams at `port`, otherwise TCP connections. No more are
    /// accepted once the result is dropped.
    pub(crate) fn arrivals<'a>(
        &mut self,
        params: &TestParams,
        control: &ControlConnection,
        port: Option<&'a DatagramPort>,
    ) -> Result<Arrivals<'a>, NettestError> {
        if let Some(port) = port {
            let local = control.socket().local_addr().map_err(NettestError::Local)?;
            let client = control.socket().peer_addr().map_err(NettestError::Local)?;
            let streams = port.expect_test(self.id, (local, client), params.connections());
            return Ok(Arrivals::Udp(streams, local.port()));
        }
        self.connections.take().map(Arrivals::Tcp).ok_or(NettestError::Unexpected)
    }
}

/// Streams of a test, as they arrive.
pub(crate) enum Arrivals<'a> {
    Tcp(Receiver<DataConnection>),
    /// With the port, for the reason of a failure.
    Udp(StreamArrivals<'a>, u16),
}

impl Arrivals<'_> {
    /// Next stream; `None` after `wait`.
    fn next(&self, wait: Duration) -> Option<(u32, DataSocket)> {
        match self {
            Self::Tcp(streams) => {
                let tcp = |(index, socket)| (index, DataSocket::Tcp(socket));
                streams.recv_timeout(wait).ok().map(tcp)
            }
            Self::Udp(arrivals, _) => {
                let udp = |(index, socket): (u32, UdpSocket)| (index, DataSocket::Udp(socket));
                arrivals.streams.recv_timeout(wait).ok().map(udp)
            }
        }
    }
}

/// Waits for all streams of the test while its client is connected.
pub(crate) fn gather(
    arrivals: &mut Arrivals<'_>,
    params: &TestParams,
    control: &ControlConnection,
    deadline: Instant,
) -> Result<Vec<Connection>, NettestError> {
    let expected = params.connections() as usize;
    let mut sockets: Vec<Connection> = Vec::with_capacity(expected);
    while sockets.len() < expected {
        match control.receive(Duration::ZERO) {
            Some(ControlEvent::Peer(Err(error))) => return Err(NettestError::ControlLost(error)),
            Some(_) => return Err(NettestError::Unexpected),
            None => {}
        }
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            let missing = expected - sockets.len();
            return Err(match arrivals {
                Arrivals::Tcp(_) => NettestError::Missing { missing, expected },
                Arrivals::Udp(_, port) => {
                    NettestError::MissingDatagrams { missing, expected, port: *port }
                }
            });
        }
        let Some((index, socket)) = arrivals.next(wait.min(CONTROL_CHECK_INTERVAL)) else {
            continue;
        };
        if index as usize >= expected || sockets.iter().any(|known| known.index == index) {
            return Err(NettestError::Unexpected);
        }
        let role = role_of(params, index, false);
        let label = match (role, &socket) {
            (StreamRole::Sender, DataSocket::Tcp(socket)) => {
                label_accepted(params.mark(), socket, Path::new(DEFAULT_PIN))
            }
            _ => String::new(),
        };
        sockets.push(Connection { index, role, socket, label });
    }
    Ok(sockets)
}
