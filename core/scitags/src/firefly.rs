//! Fireflies: one UDP datagram about a flow when it starts, while it runs and when it ends.
//!
//! A datagram is an RFC 5424 line whose message is JSON:
//!
//! ```text
//! <134>1 2026-03-01T10:00:00.000000+00:00 dtn1.example.org penstock - firefly-json - {"version":1, ...}
//! ```
//!
//! Output passes the published schema (v1.0.0) and the reference collector, which drops all that
//! does not match its pattern: the time is always present, in UTC with microseconds; a host name
//! that the pattern refuses becomes `-`. The schema allows no further keys in `flow-lifecycle`,
//! `flow-id`, `usage` and `context`. So packet counts are in an object `packets` beside `usage`, and TCP
//! statistics in the extensible object `netlink`, with flowd's names.
//!
//! The source is the end that supplies data, no matter which end opened the connection. The port is
//! [`FIREFLY_PORT`], at the flow's destination and at collectors. [`read`](mod@read) parses the
//! fireflies of other programs.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::tag::Scitag;
use crate::time::UtcTime;

pub mod read;

pub use read::{FireflyError, ReceivedFirefly, read};

/// UDP port of firefly receivers.
pub const FIREFLY_PORT: u16 = 10514;

/// Longest datagram that is sent: a frame of 1500 bytes without the headers of IPv6 and UDP.
pub const DATAGRAM_BYTES_MAX: usize = 1500 - 40 - 8;

/// Longest program name in `context`; longer names are cut.
pub const APPLICATION_BYTES_MAX: usize = 64;

/// local0.info: 16 * 8 + 6.
const SYSLOG_PRIORITY: u8 = 134;

/// Phase of a flow that a firefly reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowPhase {
    /// The flow starts.
    Start,
    /// The flow continues.
    Ongoing,
    /// The flow ended at this time.
    End(UtcTime),
}

/// Transport protocol of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A flow from the end that supplies data to the other. Both addresses are of one family
/// (IPv4-mapped ones are IPv4), and no port is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FireflyFlow {
    source: SocketAddr,
    destination: SocketAddr,
    protocol: TransportProtocol,
}

/// Error of building a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// One address is IPv4 and the other IPv6.
    #[error("{0} and {1} are not of one family")]
    Families(IpAddr, IpAddr),
    /// A port is 0.
    #[error("port 0 is no port of a flow")]
    Port,
}

impl FireflyFlow {
    /// The flow from `source`, which supplies data, to `destination`.
    ///
    /// # Errors
    /// When the families differ or a port is zero.
    pub fn new(
        source: SocketAddr,
        destination: SocketAddr,
        protocol: TransportProtocol,
    ) -> Result<Self, FlowError> {
        // A firefly has no scope and no flow label.
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        let (source, destination) = (plain(source), plain(destination));
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(FlowError::Families(source.ip(), destination.ip()));
        }
        if source.port() == 0 || destination.port() == 0 {
            return Err(FlowError::Port);
        }
        Ok(Self { source, destination, protocol })
    }

    /// Returns the end that supplies data.
    #[must_use]
    pub fn source(self) -> SocketAddr {
        self.source
    }

    /// Returns the end that receives data.
    #[must_use]
    pub fn destination(self) -> SocketAddr {
        self.destination
    }

    /// Returns the transport protocol.
    #[must_use]
    pub fn protocol(self) -> TransportProtocol {
        self.protocol
    }
}

/// Bytes or packets in both directions, as the source counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DirectionCounts {
    /// Received by the source.
    pub received: u64,
    /// Sent by the source.
    pub sent: u64,
}

/// Statistics of a TCP connection (`struct tcp_info`), in the kernel's units. `None` for a value
/// that was not read: a firefly omits it, because 0 would be a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct TcpStats {
    pub rtt_us: Option<u32>,
    pub rttvar_us: Option<u32>,
    pub min_rtt_us: Option<u32>,
    pub snd_mss: Option<u32>,
    pub rcv_mss: Option<u32>,
    pub pmtu: Option<u32>,
    pub snd_cwnd: Option<u32>,
    pub snd_ssthresh: Option<u32>,
    pub retrans: Option<u32>,
    pub total_retrans: Option<u32>,
    pub lost: Option<u32>,
    pub reordering: Option<u32>,
    pub segs_in: Option<u32>,
    pub segs_out: Option<u32>,
    pub data_segs_in: Option<u32>,
    pub data_segs_out: Option<u32>,
    pub bytes_acked: Option<u64>,
    pub bytes_received: Option<u64>,
    /// Delivery rate in bytes per second.
    pub delivery_rate: Option<u64>,
    /// Pacing rate in bytes per second.
    pub pacing_rate: Option<u64>,
    pub busy_time_us: Option<u64>,
    pub rwnd_limited_us: Option<u64>,
    pub sndbuf_limited_us: Option<u64>,
}

/// Content of a firefly before it is serialised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firefly {
    /// Phase of the flow.
    pub phase: FlowPhase,
    /// Start of the flow.
    pub started: UtcTime,
    /// Time at which the firefly is sent.
    pub now: UtcTime,
    /// Addresses, ports and protocol.
    pub flow: FireflyFlow,
    /// Owner and activity of the flow.
    pub tag: Scitag,
    /// Name and version of the program that moves the data.
    pub application: String,
    /// Bytes, if known; collectors compute rates from those at the end.
    pub bytes: Option<DirectionCounts>,
    /// Packets in both directions, if known.
    pub packets: Option<DirectionCounts>,
    /// TCP statistics, if any.
    pub tcp: Option<TcpStats>,
}

#[derive(Serialize)]
struct FireflyObject<'a> {
    version: u8,
    #[serde(rename = "flow-lifecycle")]
    lifecycle: LifecycleObject,
    #[serde(rename = "flow-id")]
    flow: FlowIdObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<DirectionCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<DirectionCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    netlink: Option<NetlinkObject>,
    context: ContextObject<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct LifecycleObject {
    state: &'static str,
    start_time: UtcTime,
    current_time: UtcTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<UtcTime>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct FlowIdObject {
    afi: &'static str,
    src_ip: IpAddr,
    dst_ip: IpAddr,
    protocol: TransportProtocol,
    src_port: u16,
    dst_port: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct ContextObject<'a> {
    experiment_id: u16,
    activity_id: u8,
    application: &'a str,
}

/// Names and units of flowd: `rtt` and `rttvar` in milliseconds, `min_rtt` and the times that bound in
/// microseconds.
#[derive(Debug, Default, Serialize)]
struct NetlinkObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rttvar: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_rtt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snd_mss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rcv_mss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pmtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snd_cwnd: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snd_ssthresh: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retrans: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_retrans: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reordering: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segs_in: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segs_out: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_segs_in: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_segs_out: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_acked: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_received: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_rate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pacing_rate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rwnd_limited: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sndbuf_limited: Option<u64>,
}

impl Firefly {
    /// Serialises the datagram: `host` is this machine's name, `program` the name in the log line. At most
    /// [`DATAGRAM_BYTES_MAX`] bytes; of [`Self::tcp`] only the round-trip time is sent where all of it
    /// would not fit.
    #[must_use]
    pub fn datagram(&self, host: &str, program: &str) -> Vec<u8> {
        let full = self.line(host, program, true);
        if full.len() <= DATAGRAM_BYTES_MAX {
            return full.into_bytes();
        }
        self.line(host, program, false).into_bytes()
    }

    fn line(&self, host: &str, program: &str, all: bool) -> String {
        let json = serde_json::to_string(&self.document(all, &plain(&self.application)))
            .expect("plain data");
        let (now, host, program) = (self.now, host_field(host), program_field(program));
        format!("<{SYSLOG_PRIORITY}>1 {now} {host} {program} - firefly-json - {json}")
    }

    fn document<'a>(&self, all: bool, application: &'a str) -> FireflyObject<'a> {
        let (state, end_time) = match self.phase {
            FlowPhase::Start => ("start", None),
            FlowPhase::Ongoing => ("ongoing", None),
            FlowPhase::End(at) => ("end", Some(at)),
        };
        let (source, destination) = (self.flow.source, self.flow.destination);
        FireflyObject {
            version: 1,
            lifecycle: LifecycleObject {
                state,
                start_time: self.started,
                current_time: self.now,
                end_time,
            },
            flow: FlowIdObject {
                afi: if source.is_ipv4() { "ipv4" } else { "ipv6" },
                src_ip: source.ip(),
                dst_ip: destination.ip(),
                protocol: self.flow.protocol,
                src_port: source.port(),
                dst_port: destination.port(),
            },
            usage: self.bytes,
            packets: self.packets,
            netlink: self.tcp.and_then(|tcp| netlink(&tcp, all)),
            context: ContextObject {
                experiment_id: self.tag.owner(),
                activity_id: self.tag.activity(),
                application,
            },
        }
    }
}

/// Returns `None` if no value was read, to omit an empty object.
fn netlink(tcp: &TcpStats, all: bool) -> Option<NetlinkObject> {
    if *tcp == TcpStats::default() {
        return None;
    }
    let milliseconds = |micros: Option<u32>| micros.map(|micros| f64::from(micros) / 1000.0);
    let rtt = milliseconds(tcp.rtt_us);
    if !all {
        return rtt.map(|rtt| NetlinkObject { rtt: Some(rtt), ..NetlinkObject::default() });
    }
    Some(NetlinkObject {
        rtt,
        rttvar: milliseconds(tcp.rttvar_us),
        min_rtt: tcp.min_rtt_us,
        snd_mss: tcp.snd_mss,
        rcv_mss: tcp.rcv_mss,
        pmtu: tcp.pmtu,
        snd_cwnd: tcp.snd_cwnd,
        snd_ssthresh: tcp.snd_ssthresh,
        retrans: tcp.retrans,
        total_retrans: tcp.total_retrans,
        lost: tcp.lost,
        reordering: tcp.reordering,
        segs_in: tcp.segs_in,
        segs_out: tcp.segs_out,
        data_segs_in: tcp.data_segs_in,
        data_segs_out: tcp.data_segs_out,
        bytes_acked: tcp.bytes_acked,
        bytes_received: tcp.bytes_received,
        delivery_rate: tcp.delivery_rate,
        pacing_rate: tcp.pacing_rate,
        busy_time: tcp.busy_time_us,
        rwnd_limited: tcp.rwnd_limited_us,
        sndbuf_limited: tcp.sndbuf_limited_us,
    })
}

/// Replaces all but printable ASCII without quotes and backslashes, so that no byte needs escaping in JSON.
fn plain(text: &str) -> String {
    let good = |c: char| c == ' ' || c.is_ascii_graphic() && !"\"\\".contains(c);
    text.chars().take(APPLICATION_BYTES_MAX).map(|c| if good(c) { c } else { '?' }).collect()
}

/// Returns the name if the collector's pattern accepts it as a host, else `-`.
fn host_field(host: &str) -> &str {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    // RFC 5424 6: HOSTNAME has at most 255 characters.
    let name = host.len() <= 255 && host.split('.').all(label) && !host.ends_with('-');
    if name { host } else { "-" }
}

/// RFC 5424 6: APP-NAME is printable ASCII, at most 48 characters.
fn program_field(program: &str) -> &str {
    let good = (1..=48).contains(&program.len()) && program.bytes().all(|b| b.is_ascii_graphic());
    if good { program } else { "-" }
}

#[cfg(test)]
mod tests;
