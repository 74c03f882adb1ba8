//! What is said between a lab that runs and those who use it: one line of JSON each way, over a socket in the lab's
//! directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::calibrate::Calibration;
use crate::direction::Counters;
use crate::lab::LinkStatus;

/// The longest line that is read.
pub(crate) const LINE_BYTES_MAX: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(600);

/// Which directions of a link are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Both.
    #[default]
    Both,
    /// From its first end to its second.
    Forward,
    /// From its second end to its first.
    Back,
}

impl Directions {
    /// Whether the first and the second direction are meant.
    #[must_use]
    pub const fn each(self) -> [bool; 2] {
        [!matches!(self, Self::Back), !matches!(self, Self::Forward)]
    }
}

/// What is asked of a lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Request {
    /// How it is: [`Status`].
    Status,
    /// Other settings of a link.
    Set {
        /// The link.
        link: String,
        /// As `delay=30ms`.
        settings: Vec<String>,
        /// Of which directions.
        directions: Directions,
    },
    /// Nothing passes a link any more.
    Cut {
        /// The link.
        link: String,
        /// In which directions.
        directions: Directions,
    },
    /// It passes again.
    Mend {
        /// The link.
        link: String,
    },
    /// Traffic between two hosts goes over these links.
    Route {
        /// A host, or one interface of it as `HOST-INTERFACE`.
        from: String,
        /// Another.
        to: String,
        /// From the first to the second.
        links: Vec<String>,
    },
    /// A part of these links for a circuit: [`CircuitReport`].
    Circuit {
        /// Its name.
        name: String,
        /// Bits per second on the wire.
        rate_bps: u64,
        /// Hosts at its begin.
        from: Vec<String>,
        /// Hosts at its end.
        to: Vec<String>,
        /// From the switch of the first to that of the others.
        links: Vec<String>,
    },
    /// A circuit ends.
    Release {
        /// Its name.
        name: String,
    },
    /// All circuits: a list of [`CircuitReport`].
    Circuits,
    /// Measures links: a list of [`Measured`].
    Calibrate {
        /// Which; none is all.
        links: Vec<String>,
    },
    /// How late packets were is counted anew.
    Forgive,
    /// Ends it, with all that runs in it: [`Ended`].
    Down,
}

/// A lab that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Of its topology.
    pub topology: String,
    /// By what its links do what they do.
    pub backend: Backend,
    /// Of its random numbers.
    pub seed: u64,
    /// The process that holds it.
    pub pid: u32,
    /// The user namespace that it is in, where that is one of its own.
    pub user_namespace: Option<PathBuf>,
    /// What its links cannot do here.
    pub notes: Vec<String>,
    /// Hosts and switches.
    pub nodes: Vec<NodeStatus>,
    /// Links.
    pub links: Vec<LinkReport>,
    /// Circuits.
    #[serde(default)]
    pub circuits: Vec<CircuitReport>,
}

/// A lab that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Hosts that it had.
    pub hosts: usize,
    /// Switches that it had.
    pub switches: usize,
    /// Links that it had.
    pub links: usize,
    /// Processes that still ran in it.
    pub processes: usize,
}

/// A circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitReport {
    /// Its name.
    pub name: String,
    /// Bits per second on the wire that it has of each link.
    pub rate_bps: u64,
    /// By host, the address that is for it alone.
    pub addresses: BTreeMap<String, std::net::Ipv6Addr>,
    /// Links, from its begin on.
    pub links: Vec<CircuitLink>,
}

/// A link of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitLink {
    /// Its name.
    pub link: String,
    /// Whether it is cut.
    pub is_cut: bool,
    /// What of the circuit's packets went along it.
    pub forward: Counters,
    /// And back.
    pub back: Counters,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Whether it is a host.
    pub host: bool,
    /// The file that stands for its network namespace.
    pub namespace: PathBuf,
    /// Its devices.
    pub interfaces: Vec<InterfaceStatus>,
}

/// A device of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub device: String,
    /// The link that it is at.
    pub link: String,
    /// Its IPv6 address.
    pub ipv6: std::net::Ipv6Addr,
    /// Its IPv4 address.
    pub ipv4: std::net::Ipv4Addr,
    /// Its longest packet.
    pub mtu: u32,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub name: String,
    /// Its directions.
    pub directions: [DirectionReport; 2],
}

/// A direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// The node it comes from.
    pub from: String,
    /// The node it goes to.
    pub to: String,
    /// Bits per second; none is as fast as the machine.
    pub rate_bps: Option<u64>,
    /// One way.
    pub delay_seconds: f64,
    /// Standard deviation of that.
    pub jitter_seconds: f64,
    /// Share of packets lost.
    pub loss: f64,
    /// Packets lost together, in the mean.
    pub loss_burst_packets: f64,
    /// Bytes that may wait.
    pub queue_bytes: u64,
    /// Bytes waiting from which packets are marked.
    pub mark_bytes: Option<u64>,
    /// Whether it is cut.
    pub is_cut: bool,
    /// What became of packets.
    #[serde(flatten)]
    pub counters: Counters,
    /// How late packets were: half of them at most this.
    pub late_p50_seconds: Option<f64>,
    /// 99 of 100.
    pub late_p99_seconds: Option<f64>,
    /// All.
    pub late_max_seconds: Option<f64>,
    /// Whether what was measured over it does not hold.
    pub disturbed: bool,
}

impl DirectionReport {
    pub(crate) fn new(from: &str, to: &str, status: &LinkStatus) -> Self {
        let LinkStatus { wanted, counters, late_p50, late_p99, late_max, disturbed } = status;
        let seconds = |time: &Option<Duration>| time.map(|time| time.as_secs_f64());
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            rate_bps: wanted.rate.map(|rate| rate.0),
            delay_seconds: wanted.delay.as_secs_f64(),
            jitter_seconds: wanted.jitter.as_secs_f64(),
            loss: wanted.loss,
            loss_burst_packets: wanted.loss_burst,
            queue_bytes: wanted.queue_bytes(),
            mark_bytes: wanted.mark.map(|mark| mark.0),
            is_cut: wanted.cut,
            counters: *counters,
            late_p50_seconds: seconds(late_p50),
            late_p99_seconds: seconds(late_p99),
            late_max_seconds: seconds(late_max),
            disturbed: *disturbed,
        }
    }
}

/// What a link was measured to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The link.
    pub link: String,
    /// Its round trip as it should be.
    pub rtt_wanted_seconds: f64,
    /// The median of twenty; none when all were lost.
    pub rtt_seconds: Option<f64>,
    /// The slowest but one.
    pub rtt_p95_seconds: Option<f64>,
    /// Its rate as it should be; none is as fast as the machine.
    pub rate_wanted_bps: Option<u64>,
    /// That at which datagrams arrived.
    pub rate_bps: Option<u64>,
    /// Whether the two are near enough.
    pub good: bool,
    /// Whether it is too slow to be measured.
    pub too_slow: bool,
}

impl Measured {
    pub(crate) fn new(link: &str, found: &Calibration) -> Self {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        Self {
            link: link.to_owned(),
            rtt_wanted_seconds: found.rtt_wanted.as_secs_f64(),
            rtt_seconds: seconds(found.rtt),
            rtt_p95_seconds: seconds(found.rtt_p95),
            rate_wanted_bps: found.rate_wanted.map(|rate| rate.0),
            rate_bps: found.rate.map(|rate| rate.0),
            good: found.is_good(),
            too_slow: found.too_slow,
        }
    }
}

/// An answer: a value, or why not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// Why a lab did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody is there.
    #[error("lab {0} is not up")]
    Down(String),
    /// It says no.
    #[error("{0}")]
    Refused(String),
    /// The connection to it broke.
    #[error("lab {lab} does not answer: {reason}")]
    Lost {
        /// Its name.
        lab: String,
        /// What happened.
        reason: io::Error,
    },
}

/// Asks the lab in a directory.
///
/// # Errors
/// When it is not up, says no, or does not answer.
pub fn ask<T: DeserializeOwned>(directory: &Path, request: &Request) -> Result<T, ControlError> {
    let name = || directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stream = connect(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::Down(name()),
        _ => ControlError::Lost { lab: name(), reason: error },
    })?;
    let answer =
        exchange(&stream, request).map_err(|reason| ControlError::Lost { lab: name(), reason })?;
    match answer {
        Answer::Ok(value) => serde_json::from_value(value)
            .map_err(|error| ControlError::Lost { lab: name(), reason: error.into() }),
        Answer::Error(why) => Err(ControlError::Refused(why)),
    }
}

/// By the open directory: paths of sockets may not be long.
fn connect(directory: &Path) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    UnixStream::connect(format!("/proc/self/fd/{}/control", directory.as_raw_fd()))
}

fn exchange(stream: &UnixStream, request: &Request) -> io::Result<Answer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    let mut writer = stream;
    writer.write_all(line.as_bytes())?;
    let mut line = String::new();
    let mut reader = BufReader::new(io::Read::take(stream, LINE_BYTES_MAX));
    if reader.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
    }
    Ok(serde_json::from_str(&line)?)
}
