//! Memory-to-memory TCP tests: the network without disks, as iperf3 measures it.
//!
//! A [`Listener`] answers many clients at once on one port; [`run`] is the client. Control and
//! data share the port: the first 16 bytes say what a connection is for ([`penstock_protocol::preamble`]), a control
//! connection carries JSON messages ([`message`]), a data connection names its test (16 bytes) and
//! stream (4 bytes, big endian) and then carries nothing but content. Each stream is one thread
//! with blocking calls. [`Sweep`] looks for the number of streams that is enough.
//!
//! Nothing here prints: results are values, progress goes to callbacks.

mod block;
mod client;
mod listener;
pub mod message;
pub mod params;
mod report;
mod session;
mod share;
mod source;
mod stream;
mod sweep;

use std::io;
use std::net::SocketAddr;

use penstock_units::display_count;
use thiserror::Error;

pub use client::{Progress, Target, run};
pub use listener::{Limits, Listener, ListenerEvent};
pub use params::{Direction, LabelBy, SendPath, TestParams};
pub use report::{Flow, Interval, Report, StreamResult};
pub use sweep::{Sweep, SweepOptions, SweepPoint, SweepReport};

/// Says no to a test that came to an agent.
///
/// # Errors
/// The socket's.
pub fn decline(socket: &mut (impl io::Read + io::Write)) -> io::Result<()> {
    // Read first: what is left unread when a socket closes makes the kernel reset it.
    let _ = message::read_message(socket)?;
    let reason = "an agent listens there, which answers no tests: \
                  run `penstock nettest --listen` on another port of that host and name the port";
    message::write_message(socket, &message::Message::Refused { reason: reason.to_owned() })?;
    Err(io::Error::other("a test came to an agent"))
}

/// The mover's port.
pub const DEFAULT_PORT: u16 = 8620;

/// Why a test did not happen or did not end well.
#[derive(Debug, Error)]
pub enum NettestError {
    /// The test asks for what cannot be.
    #[error(transparent)]
    Params(#[from] params::InvalidParams),
    /// The name has no address of the family asked for.
    #[error("{host}: {reason}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        reason: String,
    },
    /// Nobody answers there.
    #[error("{peer}: cannot connect: {source}; is `penstock nettest --listen` running there?")]
    Connect {
        /// The address.
        peer: SocketAddr,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The listener declined.
    #[error("the listener refused: {0}")]
    Refused(String),
    /// The other end gave up.
    #[error("the other end failed: {0}")]
    PeerFailed(String),
    /// The control connection ended.
    #[error("the control connection ended: {0}")]
    ControlLost(#[source] io::Error),
    /// The other end says nothing.
    #[error(
        "connected, and no answer for {0:.1} s: the other end hangs, or is no penstock listener of this release"
    )]
    Silent(
        /// For how many seconds.
        f64,
    ),
    /// A name has no address.
    #[error("no address to connect to")]
    NoAddress,
    /// The listener hangs.
    #[error("{peer}: {error}")]
    Listener {
        /// Its address.
        peer: SocketAddr,
        /// What it does not do.
        error: Box<Self>,
    },
    /// The other end said what does not belong here.
    #[error("the other end sent a message that does not belong here")]
    Unexpected,
    /// The test did not end.
    #[error("the test did not end a minute after its time")]
    Overdue,
    /// Data connections did not arrive.
    #[error("{missing} of {} did not arrive in time", display_count(*expected as u64, "data connection"))]
    Missing {
        /// How many are missing.
        missing: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A stream ended early.
    #[error("stream {index} failed: {reason}")]
    Stream {
        /// Its number.
        index: u32,
        /// Why.
        reason: String,
    },
    /// The source address or the congestion control is none of this machine's.
    #[error(transparent)]
    Option(io::Error),
    /// This machine's kernel refused something.
    #[error(transparent)]
    Local(io::Error),
}
