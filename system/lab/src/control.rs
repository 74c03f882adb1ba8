//! Control protocol of a running lab: one line of JSON per request and per reply, over a Unix socket in the lab's directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::backend::Backend;
use crate::calibrate::Calibration;
use crate::direction::DirectionCounters;
use crate::lab::DirectionStatus;

/// Longest request or reply in bytes.
pub(crate) const LINE_BYTES_MAX: u64 = 16 << 20;
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

/// Directions of a link to which a request applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Both directions.
    #[default]
    Both,
    /// From its first end to its second.
    Forward,
    /// From its second end to its first.
    Back,
}

impl Directions {
    /// Selection of the first and the second direction.
    #[must_use]
    pub const fn each(self) -> [bool; 2] {
        [!matches!(self, Self::Back), !matches!(self, Self::Forward)]
    }
}

/// A request to a running lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum LabRequest {
    /// Returns [`RunningLab`].
    Status,
    /// Changes settings of a link.
    Set {
        /// The link.
        link: String,
        /// Settings as `delay=30ms`.
        settings: Vec<String>,
        /// Directions to change.
        directions: Directions,
    },
    /// Cuts a link: it drops all packets.
    Cut {
        /// The link.
        link: String,
        /// Directions to cut.
        directions: Directions,
    },
    /// Restores a link that was cut.
    Mend {
        /// The link.
        link: String,
    },
    /// Pins traffic between two hosts to these links.
    Route {
        /// A host, or one of its interfaces as `HOST-INTERFACE`.
        from: String,
        /// The other host or interface.
        to: String,
        /// Path from the first to the second.
        links: Vec<String>,
    },
    /// Creates a circuit over these links; returns [`CircuitReport`].
    Circuit {
        /// Name of the circuit.
        name: String,
        /// Bits per second on the wire.
        rate_bps: u64,
        /// Hosts at its start.
        from: Vec<String>,
        /// Hosts at its end.
        to: Vec<String>,
        /// Path from the first hosts' switch to the others'.
        links: Vec<String>,
    },
    /// Releases a circuit.
    Release {
        /// Its name.
        name: String,
    },
    /// Returns all circuits: a list of [`CircuitReport`].
    Circuits,
    /// Measures links; returns a list of [`MeasuredLink`].
    Calibrate {
        /// Names; empty for all.
        links: Vec<String>,
    },
    /// Resets the timing error statistics.
    Forgive,
    /// Stops the lab and all programs in it; returns [`ShutdownReport`].
    Down,
}

/// State of a running lab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunningLab {
    /// Name of the lab.
    pub name: String,
    /// Name of the topology.
    pub topology: String,
    /// Emulation of the links: `nfqueue`, `tap` or `netem`.
    pub backend: Backend,
    /// Seed of losses and jitter.
    pub seed: u64,
    /// Process that holds the lab.
    pub pid: u32,
    /// File of the lab's user namespace; null where it has none of its own.
    #[schema(value_type = Option<String>)]
    pub user_namespace: Option<PathBuf>,
    /// Features that the links lack on this machine.
    pub notes: Vec<String>,
    /// Hosts and switches of the topology.
    pub nodes: Vec<NodeStatus>,
    /// Links of the topology.
    pub links: Vec<LinkReport>,
    /// Circuits that exist now.
    #[serde(default)]
    #[schema(required)]
    pub circuits: Vec<CircuitReport>,
}

/// Counts of what a stopped lab had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownReport {
    /// Hosts that it had.
    pub hosts: usize,
    /// Switches that it had.
    pub switches: usize,
    /// Links that it had.
    pub links: usize,
    /// Processes that were killed in it.
    pub processes: usize,
}

/// State of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitReport {
    /// Name of the circuit.
    pub name: String,
    /// Rate on the wire that the circuit has on each link.
    pub rate_bps: u64,
    /// IPv6 address of each host at its ends that leads over the circuit.
    #[schema(value_type = BTreeMap<String, String>)]
    pub addresses: BTreeMap<String, std::net::Ipv6Addr>,
    /// Links of the circuit, from its first end on.
    pub links: Vec<CircuitLink>,
}

/// A link of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitLink {
    /// Name of the link.
    pub link: String,
    /// True where the link is cut.
    pub is_cut: bool,
    /// Packets of the circuit from its first end to its second.
    pub forward: DirectionCounters,
    /// Packets of the circuit back.
    pub back: DirectionCounters,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Name of the node.
    pub name: String,
    /// True for a host, false for a switch.
    pub host: bool,
    /// File of its network namespace.
    #[schema(value_type = String)]
    pub namespace: PathBuf,
    /// Network devices of the node.
    pub interfaces: Vec<InterfaceStatus>,
}

/// A device of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterfaceStatus {
    /// Name of the device.
    pub device: String,
    /// Link that it belongs to.
    pub link: String,
    /// IPv6 address of the device.
    #[schema(value_type = String)]
    pub ipv6: std::net::Ipv6Addr,
    /// IPv4 address of the device.
    #[schema(value_type = String)]
    pub ipv4: std::net::Ipv4Addr,
    /// Largest IP packet \[B\].
    pub mtu: u32,
}

/// State of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkReport {
    /// Name of the link.
    pub name: String,
    /// Both directions, the first from the link's first end.
    pub directions: [DirectionReport; 2],
}

/// A direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DirectionReport {
    /// Name of the sending node.
    pub from: String,
    /// Name of the receiving node.
    pub to: String,
    /// Emulated rate; null where the machine is the limit.
    pub rate_bps: Option<u64>,
    /// One-way delay in seconds.
    pub delay_seconds: f64,
    /// Standard deviation of the delay.
    pub jitter_seconds: f64,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Mean number of packets lost together.
    pub loss_burst_packets: f64,
    /// Queue limit in bytes.
    pub queue_bytes: u64,
    /// Bytes waiting from which packets capable of ECN are marked; null for none.
    pub mark_bytes: Option<u64>,
    /// True where the direction is cut.
    pub is_cut: bool,
    /// Packet and byte counts.
    #[serde(flatten)]
    pub counters: DirectionCounters,
    /// Median lateness of packets against the emulated delay; null where none was measured.
    pub late_p50_seconds: Option<f64>,
    /// 99th percentile of the lateness.
    pub late_p99_seconds: Option<f64>,
    /// Maximum of the lateness.
    pub late_max_seconds: Option<f64>,
    /// True where packets were so late that measurements over this direction do not hold.
    pub disturbed: bool,
}

impl DirectionReport {
    pub(crate) fn new(from: &str, to: &str, status: &DirectionStatus) -> Self {
        let DirectionStatus { wanted, counters, late_p50, late_p99, late_max, disturbed } = status;
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

/// Measured values of a link against its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MeasuredLink {
    /// Name of the link.
    pub link: String,
    /// Emulated round-trip time.
    pub rtt_wanted_seconds: f64,
    /// Measured round-trip time: median of twenty; null where all were lost.
    pub rtt_seconds: Option<f64>,
    /// Measured 95th percentile of the round-trip time.
    pub rtt_p95_seconds: Option<f64>,
    /// Emulated rate; null where the machine is the limit.
    pub rate_wanted_bps: Option<u64>,
    /// Measured arrival rate of datagrams under overload.
    pub rate_bps: Option<u64>,
    /// True where the measurements agree with the emulated values.
    pub good: bool,
    /// True where the link is too slow to be measured.
    pub too_slow: bool,
}

impl MeasuredLink {
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

/// A reply: a value, or an error text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    Ok(serde_json::Value),
    Error(String),
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process serves the lab's socket.
    #[error("lab {0} is not up")]
    Down(String),
    /// The lab refused the request.
    #[error("{reply}")]
    Refused {
        /// Error text that the lab's process sent.
        reply: String,
    },
    /// The controller that asked ends before the reply.
    #[error("the controller ends")]
    Ending,
    /// The connection failed.
    #[error("lab {lab} does not answer: {reason}")]
    Lost {
        /// Name of the lab.
        lab: String,
        /// Error of the connection.
        reason: io::Error,
    },
}

/// Sends a request to the lab in a directory and returns its reply.
///
/// # Errors
/// When the lab is not up, refuses, or does not reply within ten minutes.
pub fn ask<T: DeserializeOwned>(directory: &Path, request: &LabRequest) -> Result<T, ControlError> {
    let name = || directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stream = connect(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::Down(name()),
        _ => ControlError::Lost { lab: name(), reason: error },
    })?;
    let answer =
        exchange(&stream, request).map_err(|reason| ControlError::Lost { lab: name(), reason })?;
    match answer {
        Reply::Ok(value) => serde_json::from_value(value)
            .map_err(|error| ControlError::Lost { lab: name(), reason: error.into() }),
        Reply::Error(reply) => Err(ControlError::Refused { reply }),
    }
}

/// Connects through the open directory: paths of sockets are limited to 107 bytes.
fn connect(directory: &Path) -> io::Result<UnixStream> {
    let directory = File::open(directory)?;
    UnixStream::connect(format!("/proc/self/fd/{}/control", directory.as_raw_fd()))
}

fn exchange(stream: &UnixStream, request: &LabRequest) -> io::Result<Reply> {
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    let mut writer = stream;
    writer.write_all(line.as_bytes())?;
    let mut line = String::new();
    let mut reader = BufReader::new(io::Read::take(stream, LINE_BYTES_MAX));
    if reader.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the lab closed the connection"));
    }
    Ok(serde_json::from_str(&line)?)
}
