//! Client: connects, proposes a test, opens its data connections and runs it.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use penstock_mover::Labelling;
use penstock_protocol::preamble::{self, ConnectionKind, PREAMBLE_BYTES, Preamble};
use penstock_rdma::{RdmaAdapter, RdmaFailure};
use penstock_sys::net::connect::{ConnectOptions, connect};
use penstock_sys::net::connect_datagrams;
use thiserror::Error;

use crate::datagram::StreamHello;
use crate::iperf3;
use crate::message::{ForeignProtocol, Message, StreamRole};
use crate::params::TestParams;
use crate::report::{Interval, Report, role_of};
use crate::session::{
    self, Connection, ControlConnection, LISTENER_SILENT_AFTER, Peer, TestOutcome, receive_until,
};
use crate::share::MemoryShare;
use crate::stream::DataSocket;
use crate::{DEFAULT_PORT, NettestError, udp};

/// Time limit for the kernel of the listener's host to accept a connection. The listener answers within
/// [`LISTENER_SILENT_AFTER`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the hellos of a UDP stream, which may be lost.
const HELLO_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for the listener to receive them, above its own, so that its reason arrives.
const DATAGRAMS_ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
/// Time limit for the listener's answer to a test of RDMA: it loads the library and opens the devices first.
const RDMA_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Default port of iperf3 servers.
const IPERF_PORT: u16 = 5201;

/// Listener to test against, and local options.
#[derive(Clone, Debug, Default)]
pub struct TestTarget {
    /// `HOST`, `HOST:PORT`, an address, or `[ADDRESS]:PORT`.
    pub host: String,
    /// Port for a host without one; [`DEFAULT_PORT`] or iperf3's without either.
    pub port: Option<u16>,
    /// Local address to connect from; any if `None`.
    pub source: Option<IpAddr>,
    /// Only IPv4 (`Some(true)`) or only IPv6 (`Some(false)`).
    pub ipv4: Option<bool>,
    /// Protocol of the other end.
    pub protocol: TestProtocol,
}

/// Protocol of the other end of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TestProtocol {
    /// Listener of this program.
    #[default]
    Penstock,
    /// Server of iperf3, of one client at a time.
    Iperf3,
}

impl TestProtocol {
    const fn default_port(self) -> u16 {
        match self {
            Self::Penstock => DEFAULT_PORT,
            Self::Iperf3 => IPERF_PORT,
        }
    }

    /// Command that answers tests.
    const fn program(self) -> &'static str {
        match self {
            Self::Penstock => "penstock nettest --listen",
            Self::Iperf3 => "iperf3 -s",
        }
    }
}

impl TestTarget {
    /// Resolves the addresses to try, in the resolver's order.
    fn addresses(&self) -> Result<Vec<SocketAddr>, NettestError> {
        let fail = |reason: String| NettestError::Resolve { host: self.host.clone(), reason };
        let malformed = |reason: String| NettestError::Host { host: self.host.clone(), reason };
        let (host, port) = split_host(&self.host).map_err(|error| malformed(error.to_string()))?;
        if let (Some(one), Some(other)) = (port, self.port.filter(|_| port != self.port)) {
            let reason = format!("port {one}, and {other} as an option: give one of them");
            return Err(malformed(reason));
        }
        let port = port.or(self.port).unwrap_or_else(|| self.protocol.default_port());
        let found: Vec<SocketAddr> = (host, port)
            .to_socket_addrs()
            .map_err(|error| fail(format!("no such host: {error}")))?
            .filter(|address| self.ipv4.is_none_or(|ipv4| address.is_ipv4() == ipv4))
            .filter(|address| self.source.is_none_or(|ip| address.is_ipv4() == ip.is_ipv4()))
            .collect();
        if found.is_empty() {
            return Err(fail("no address of the family asked for (-4, -6, --bind)".into()));
        }
        Ok(found)
    }
}

/// Error in the syntax of `HOST[:PORT]`.
#[derive(Debug, PartialEq, Eq, Error)]
enum HostSyntaxError {
    #[error("'{0}' is not a port")]
    Port(String),
    #[error("'[' without ']'")]
    OpenBracket,
    #[error("'{0}' after ']'")]
    AfterBracket(String),
    #[error("no host: write HOST, HOST:PORT or [ADDRESS]:PORT")]
    Empty,
}

/// Splits `HOST[:PORT]`; a bare IPv6 address has no port.
fn split_host(text: &str) -> Result<(&str, Option<u16>), HostSyntaxError> {
    let port =
        |text: &str| text.parse().map(Some).map_err(|_| HostSyntaxError::Port(text.to_owned()));
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(HostSyntaxError::OpenBracket)?;
        return match rest.strip_prefix(':') {
            Some(digits) => Ok((host, port(digits)?)),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(HostSyntaxError::AfterBracket(rest.to_owned())),
        };
    }
    if text.is_empty() || text.starts_with(':') && !text.starts_with("::") {
        return Err(HostSyntaxError::Empty);
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, digits)) => Ok((host, port(digits)?)),
        None => Ok((text, None)),
    }
}

/// Progress event of a running test.
#[derive(Clone, Copy, Debug)]
pub enum TestProgress<'a> {
    /// All connections are open and data flows: from now on `stop` leaves a report.
    Started,
    /// An interval has ended.
    Interval(&'a Interval),
    /// Nothing arrives.
    Stalled {
        /// Silence so far.
        silence: Duration,
        /// Silence at which the test fails.
        limit: Duration,
    },
}

/// Runs a test. `stop` ends it early with the results so far; `on_progress` is called during the test.
///
/// # Errors
/// See [`NettestError`]; each names the object and the remedy.
pub fn run(
    target: &TestTarget,
    params: &TestParams,
    stop: &AtomicBool,
    on_progress: &mut dyn FnMut(TestProgress<'_>),
) -> Result<Report, NettestError> {
    params.validate()?;
    if target.protocol == TestProtocol::Iperf3 {
        return iperf3::client::run(target, params, stop, on_progress);
    }
    let options = ConnectOptions {
        source: target.source,
        congestion: params.congestion.clone(),
        window_bytes: params.window_bytes,
        ..ConnectOptions::default()
    };
    let (peer, mut socket) = connect_to(target, &options)?;
    socket
        .write_all(&first_bytes(ConnectionKind::NettestControl))
        .map_err(NettestError::ControlLost)?;
    let mut control = ControlConnection::new(socket).map_err(NettestError::Local)?;
    let software = concat!("penstock ", env!("CARGO_PKG_VERSION")).to_owned();
    let params = &TestParams {
        // Both ends have to know the size of datagrams.
        block_bytes: match params.udp {
            true => Some(udp::datagram_bytes(params, control.socket())),
            false => params.block_bytes,
        },
        ..params.clone()
    };
    if params.rdma.is_some() {
        // Before the listener reserves anything for the test.
        let local = control.socket().local_addr().map_err(NettestError::Local)?;
        RdmaAdapter::for_address(local)?;
    }
    // Another program may have answered and closed by now: its answer says more than an error here.
    let _ = control.send(&Message::Propose { software, params: params.clone() });
    let at_peer = |error| match error {
        error @ (NettestError::Foreign(_)
        | NettestError::Unanswered(_)
        | NettestError::Silent(_)
        | NettestError::Stalled(_)
        | NettestError::Unacknowledged(_)
        | NettestError::ControlLost(_)) => NettestError::Listener { peer, error: error.into() },
        error => error,
    };
    let unanswered = |control: &ControlConnection, error| match control.cause(error) {
        NettestError::Stalled(seconds) => at_peer(NettestError::Silent(seconds)),
        error => at_peer(error),
    };
    let answer_timeout = match params.rdma {
        Some(_) => RDMA_ANSWER_TIMEOUT,
        None => LISTENER_SILENT_AFTER,
    };
    let receive = |control: &ControlConnection| {
        receive_until(control, Instant::now() + answer_timeout)
            .map_err(|error| unanswered(control, error))
    };
    let first = receive_until(&control, Instant::now() + answer_timeout)
        .map_err(|error| unanswered(&control, of_first_answer(error)));
    let test_id = match first? {
        Message::Accepted { software, rdma: false, .. } if params.rdma.is_some() => {
            return Err(NettestError::RdmaUnknown(software));
        }
        Message::Accepted { test_id, .. } => parse_test_id(&test_id)?,
        Message::Refused { reason } => return Err(NettestError::Refused(reason)),
        _ => return Err(NettestError::Unexpected),
    };
    // Reported before the last connection, which starts the listener's part.
    on_progress(TestProgress::Started);
    let (sockets, answer) = if params.udp {
        let sockets = open_datagrams(params, peer, control.socket())?;
        let answer =
            greet(&sockets, &test_id, &control).map_err(|error| unanswered(&control, error))?;
        (sockets, answer)
    } else {
        let sockets = open_connections(target, params, &options, (peer, &test_id))?;
        (sockets, receive(&control)?)
    };
    match answer {
        Message::Start => {}
        Message::Refused { reason } => return Err(NettestError::Refused(reason)),
        Message::Failed { reason } => return Err(NettestError::PeerFailed(reason)),
        _ => return Err(NettestError::Unexpected),
    }
    let mut intervals = Vec::new();
    let listener = Peer { silent_after: LISTENER_SILENT_AFTER, other_tests: &AtomicU32::default() };
    let on_interval = &mut |interval: &Interval| {
        on_progress(TestProgress::Interval(interval));
        intervals.push(interval.clone());
    };
    let share = MemoryShare::ALONE;
    let mut outcome = session::run(params, sockets, control, share, &listener, stop, on_interval)?;
    let failure = outcome.failure.take().map(at_peer).or_else(|| stream_failure(&outcome));
    Report::new(peer.to_string(), params, &outcome, intervals).unless(failure)
}

/// Names a program that is no listener where its first answer shows that.
fn of_first_answer(error: NettestError) -> NettestError {
    let NettestError::ControlLost(error) = error else { return error };
    let protocol = error.get_ref().and_then(|inner| inner.downcast_ref::<ForeignProtocol>());
    match protocol {
        Some(protocol) => NettestError::Foreign(*protocol),
        None if error.kind() == io::ErrorKind::InvalidData => NettestError::ControlLost(error),
        None => NettestError::Unanswered(error),
    }
}

/// Failure of a stream, as the end that failed first reports it.
fn stream_failure(outcome: &TestOutcome) -> Option<NettestError> {
    // An end that failed closes the connections, so the other end only reports that.
    let closed = RdmaFailure::PeerClosed.to_string();
    let failed = outcome.local.iter().chain(&outcome.remote).filter(|one| one.error.is_some());
    let stream = failed.min_by_key(|one| one.error.as_ref() == Some(&closed))?;
    let reason = stream.error.clone().unwrap_or_default();
    Some(NettestError::Stream { index: stream.index, reason })
}

/// Connects to the first address of the target that accepts.
pub(crate) fn connect_to(
    target: &TestTarget,
    options: &ConnectOptions,
) -> Result<(SocketAddr, TcpStream), NettestError> {
    let mut failure = NettestError::NoAddress;
    for peer in target.addresses()? {
        match connect(peer, options, CONNECT_TIMEOUT) {
            Ok(socket) => return Ok((peer, socket)),
            // A wrong source address or congestion control is a local error.
            Err(error) if error.raw_os_error().is_none() && error.get_ref().is_some() => {
                failure = NettestError::Option(error);
            }
            Err(source) => {
                let program = target.protocol.program();
                failure = NettestError::Connect { peer, program, source };
            }
        }
    }
    Err(failure)
}

/// Opens the TCP connections of a test.
fn open_connections(
    target: &TestTarget,
    params: &TestParams,
    options: &ConnectOptions,
    (peer, test_id): (SocketAddr, &[u8; 16]),
) -> Result<Vec<Connection>, NettestError> {
    let mut sockets = Vec::new();
    for index in 0..params.connections() {
        let mut head = first_bytes(ConnectionKind::NettestData).to_vec();
        head.extend_from_slice(test_id);
        head.extend_from_slice(&index.to_be_bytes());
        sockets.push(connect_data(target, params, options, (peer, index), &head)?);
    }
    Ok(sockets)
}

/// Opens the UDP sockets of a test, from the address of its control connection.
fn open_datagrams(
    params: &TestParams,
    peer: SocketAddr,
    control: &TcpStream,
) -> Result<Vec<Connection>, NettestError> {
    let source = control.local_addr().map_err(NettestError::Local)?.ip();
    (0..params.connections())
        .map(|index| {
            let socket = connect_datagrams(peer, Some(source)).map_err(NettestError::Local)?;
            let role = role_of(params, index, true);
            Ok(Connection { index, role, socket: DataSocket::Udp(socket), label: String::new() })
        })
        .collect()
}

/// Sends the hello of each stream until the listener answers on the control connection.
fn greet(
    sockets: &[Connection],
    test_id: &[u8; 16],
    control: &ControlConnection,
) -> Result<Message, NettestError> {
    let deadline = Instant::now() + DATAGRAMS_ANSWER_TIMEOUT;
    loop {
        for Connection { index, socket, .. } in sockets {
            if let DataSocket::Udp(socket) = socket {
                let hello = StreamHello { test_id: *test_id, index: *index };
                // An ICMP error of an earlier one; the next may pass.
                let _ = socket.send(&hello.encode());
            }
        }
        match receive_until(control, deadline.min(Instant::now() + HELLO_INTERVAL)) {
            Err(NettestError::Stalled(_)) if Instant::now() < deadline => {}
            Err(NettestError::Stalled(_)) => {
                return Err(NettestError::Stalled(DATAGRAMS_ANSWER_TIMEOUT.as_secs_f64()));
            }
            answer => return answer,
        }
    }
}

/// Connects one data connection and sends its first bytes.
pub(crate) fn connect_data(
    target: &TestTarget,
    params: &TestParams,
    options: &ConnectOptions,
    (peer, index): (SocketAddr, u32),
    head: &[u8],
) -> Result<Connection, NettestError> {
    let role = role_of(params, index, true);
    let mark = params.mark().filter(|_| role == StreamRole::Sender);
    let Labelling { flow_label, destination_option, description: label } =
        Labelling::connecting(mark, index, peer, target.source);
    let options = ConnectOptions { flow_label, destination_option, ..options.clone() };
    let program = target.protocol.program();
    let fail = |source| NettestError::Connect { peer, program, source };
    let mut socket = connect(peer, &options, CONNECT_TIMEOUT).map_err(|error| match error {
        // A wrong source address or congestion control is a local error.
        _ if error.raw_os_error().is_none() && error.get_ref().is_some() => {
            NettestError::Option(error)
        }
        error => fail(error),
    })?;
    socket.write_all(head).map_err(fail)?;
    Ok(Connection { index, role, socket: DataSocket::Tcp(socket), label })
}

fn first_bytes(kind: ConnectionKind) -> [u8; PREAMBLE_BYTES] {
    preamble::encode(Preamble { kind, tls: false })
}

fn parse_test_id(text: &str) -> Result<[u8; 16], NettestError> {
    u128::from_str_radix(text, 16)
        .ok()
        .filter(|_| text.len() == 32)
        .map(u128::to_be_bytes)
        .ok_or(NettestError::Unexpected)
}

#[cfg(test)]
mod tests {
    use super::{HostSyntaxError, split_host};

    #[test]
    fn hosts_come_with_and_without_port() {
        assert_eq!(split_host("dtn1"), Ok(("dtn1", None)));
        assert_eq!(split_host("dtn1:90"), Ok(("dtn1", Some(90))));
        assert_eq!(split_host("fe80::1"), Ok(("fe80::1", None)));
        assert_eq!(split_host("[::1]:90"), Ok(("::1", Some(90))));
        assert_eq!(split_host("[::1]"), Ok(("::1", None)));
        assert!(split_host("dtn1:http").unwrap_err().to_string().contains("'http'"));
        assert_eq!(split_host("::1"), Ok(("::1", None)));
        for empty in ["", ":90"] {
            assert_eq!(split_host(empty), Err(HostSyntaxError::Empty));
        }
        assert!(split_host("[::1").is_err());
        assert!(split_host("[::1]9").is_err());
    }
}
