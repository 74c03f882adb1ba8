//! Memory-to-memory tests of the network without disks, comparable to iperf3, whose clients a listener
//! answers too ([`iperf3`]).
//!
//! A [`Listener`] serves many clients on one port; [`run`] is the client, which tests against iperf3 servers
//! too ([`TestProtocol`]). Control and data connections share the port: the 16-byte preamble states the kind
//! ([`penstock_protocol::preamble`]), a control connection carries JSON messages ([`message`]), a data
//! connection sends its test id (16 bytes) and stream (4 bytes, big endian), then test data only. A UDP stream
//! begins with a hello that has both ([`datagram::StreamHello`]). A stream of RDMA has a data connection beside its queue
//! pair, which carries their parameters and the end. Each stream is one thread with blocking calls.
//! [`StreamSweep`] searches the smallest sufficient number of streams.
//!
//! Nothing is printed: results are values, progress goes to callbacks.

#![forbid(unsafe_code)]

mod block;
mod client;
pub mod datagram;
mod datagram_port;
pub mod iperf3;
mod listener;
pub mod message;
pub mod params;
mod rdma;
mod report;
mod session;
mod share;
mod slot;
mod source;
mod stream;
mod sweep;
mod udp;

use std::io;
use std::net::SocketAddr;

use penstock_units::display_count;
use thiserror::Error;

pub use client::{TestProgress, TestProtocol, TestTarget, run};
pub use listener::{Listener, ListenerEvent, ListenerLimits};
pub use params::{LabelBy, RdmaParams, RdmaVerb, SendPath, TestDirection, TestParams};
pub use report::{DatagramCounts, FlowReport, Interval, RdmaReport, Report, StreamResult};
pub use sweep::{StreamSweep, StreamSweepReport, SweepOptions, SweepPoint};

/// Refuses a test that reached an agent.
///
/// # Errors
/// Errors of the socket.
pub fn decline(socket: &mut (impl io::Read + io::Write)) -> io::Result<()> {
    // Read first: unread data at close makes the kernel reset the connection.
    let _ = message::read_message(socket)?;
    let reason = "an agent listens there, which answers no tests: \
                  run `penstock nettest --listen` on another port of that host and name the port";
    message::write_message(socket, &message::Message::Refused { reason: reason.to_owned() })?;
    Err(io::Error::other("a test came to an agent"))
}

/// Default TCP port of agents and listeners.
pub const DEFAULT_PORT: u16 = 8620;

fn connect_remedy(error: &io::Error, program: &str) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => {
            "no answer: the path is cut, a firewall drops the packets, or the host is down"
                .to_owned()
        }
        _ => format!("is `{program}` running there?"),
    }
}

/// Error of a test.
#[derive(Debug, Error)]
pub enum NettestError {
    /// The parameters are not valid.
    #[error(transparent)]
    Params(#[from] params::InvalidParams),
    /// The other end is not named as `HOST` or `HOST:PORT`.
    #[error("'{host}': {reason}")]
    Host {
        /// Host as given.
        host: String,
        /// Fault of its form.
        reason: String,
    },
    /// The name has no address of the requested family.
    #[error("{host}: {reason}")]
    Resolve {
        /// Host name as given.
        host: String,
        /// Error of the resolver.
        reason: String,
    },
    /// No listener answers at the address.
    #[error("{peer}: cannot connect: {source}; {}", connect_remedy(source, program))]
    Connect {
        /// Address of the listener.
        peer: SocketAddr,
        /// Program that answers tests.
        program: &'static str,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The listener refused the test.
    #[error("the listener refused: {0}")]
    Refused(String),
    /// The other end aborted the test.
    #[error("the other end failed: {0}")]
    PeerFailed(String),
    /// The control connection was lost.
    #[error("the control connection ended ({0}): the other end stopped, or the path to it")]
    ControlLost(#[source] io::Error),
    /// Another program answers at the address.
    #[error(
        "{0}, so that it is no penstock listener: name the port of `penstock nettest --listen` there \
         (an iperf3 server needs --iperf3)"
    )]
    Foreign(message::ForeignProtocol),
    /// The other end closed the connection before its first message.
    #[error(
        "it closed the connection without an answer ({0}): it was stopped, or is no penstock listener \
         (an iperf3 server needs --iperf3)"
    )]
    Unanswered(#[source] io::Error),
    /// The other end does not answer.
    #[error(
        "connected, and no answer for {0:.1} s: the other end hangs, or is no penstock listener of this release \
         (an iperf3 server needs --iperf3)"
    )]
    Silent(
        /// Silence in seconds.
        f64,
    ),
    /// The other end sends no more messages.
    #[error("no message for {0:.1} s: the other end hangs or was stopped")]
    Stalled(
        /// Silence in seconds.
        f64,
    ),
    /// The host of the other end acknowledges nothing.
    #[error(
        "no answer for {0:.1} s, and its host acknowledges nothing: the path is cut, a firewall drops the packets, \
         or the host is down"
    )]
    Unacknowledged(
        /// Silence in seconds.
        f64,
    ),
    /// The test ended early, after data had arrived.
    #[error("{error}")]
    Broken {
        /// Reason for the early end.
        error: Box<Self>,
        /// Results until then.
        report: Box<Report>,
    },
    /// The name has no address.
    #[error("no address to connect to")]
    NoAddress,
    /// The listener does not respond.
    #[error("{peer}: {error}")]
    Listener {
        /// Address of the listener.
        peer: SocketAddr,
        /// Missing response.
        error: Box<Self>,
    },
    /// The iperf3 server refused the test or broke its protocol.
    #[error("iperf3 server {peer}: {error}")]
    IperfServer {
        /// Address of the server.
        peer: SocketAddr,
        /// Failure of the server.
        error: iperf3::client::IperfServerError,
    },
    /// The listener refused the test of an iperf3 client.
    #[error("iperf3 test refused: {0}")]
    Iperf(#[from] iperf3::wire::IperfError),
    /// Unexpected message of the other end.
    #[error("the other end sent a message that does not belong here")]
    Unexpected,
    /// The test did not end in time.
    #[error("the test did not end a minute after its time")]
    Overdue,
    /// Data connections are missing.
    #[error("{missing} of {} did not arrive in time", display_count(*expected as u64, "data connection"))]
    Missing {
        /// Number of missing connections.
        missing: usize,
        /// Number of expected connections.
        expected: usize,
    },
    /// Streams of datagrams are missing.
    #[error(
        "the datagrams of {missing} of {} did not arrive in time; do the firewalls between pass UDP to port {port}?",
        display_count(*expected as u64, "stream")
    )]
    MissingDatagrams {
        /// Number of missing streams.
        missing: usize,
        /// Number of expected streams.
        expected: usize,
        /// UDP port of the listener.
        port: u16,
    },
    /// RDMA is not possible at this end.
    #[error("RDMA is not possible here: {0}")]
    Rdma(#[from] penstock_rdma::RdmaFailure),
    /// The listener is of a release without RDMA.
    #[error(
        "the listener is {0}, which has no tests with RDMA: use the same release there, or TCP"
    )]
    RdmaUnknown(String),
    /// A stream ended early.
    #[error("stream {index} failed: {reason}")]
    Stream {
        /// Number of the stream.
        index: u32,
        /// Reason for the early end.
        reason: String,
    },
    /// This machine lacks the source address or the congestion control.
    #[error(transparent)]
    Option(io::Error),
    /// Local error of the kernel.
    #[error(transparent)]
    Local(io::Error),
}
