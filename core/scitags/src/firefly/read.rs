//! Parser of the fireflies of this crate, XRootD, dCache, flowd and flowd-go.
//!
//! They differ: XRootD writes `-` for the time of the log line, flowd-go an empty one or no log line at
//! all, some have keys outside the schema, a start may carry an end time. The parser accepts all of that
//! and numbers as text. It requires state, addresses, ports, protocol and both ids. Texts are cut and
//! their control characters replaced.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::{DirectionCounts, TransportProtocol};
use crate::tag::{Scitag, TagError};
use crate::time::UtcTime;

/// Longest datagram that is parsed; flowd-go sends more TCP statistics than fit a frame.
pub const RECEIVED_BYTES_MAX: usize = 16 << 10;

/// Longest text that is kept, in characters.
const TEXT_CHARS_MAX: usize = 255;

/// Error of parsing a firefly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FireflyError {
    /// Longer than [`RECEIVED_BYTES_MAX`]; holds the length in bytes.
    #[error("{0} bytes are too many for a firefly: at most {RECEIVED_BYTES_MAX}")]
    TooLong(usize),
    /// Neither a log line with JSON nor JSON.
    #[error("neither a log line (<134>1 ...) with JSON nor JSON: is it a firefly?")]
    Line,
    /// The JSON is broken, or nested too deep (128).
    #[error("its JSON cannot be read: {0}")]
    Json(String),
    /// A required field is missing or malformed: its path, and the expected form.
    #[error("'{0}' is missing or not {1}")]
    Field(&'static str, &'static str),
}

/// State of the flow, as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowState {
    /// The flow started.
    Start,
    /// The flow continues.
    Ongoing,
    /// The flow ended.
    End,
}

impl FlowState {
    /// Returns the value in the schema.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Ongoing => "ongoing",
            Self::End => "end",
        }
    }
}

/// A parsed firefly. UDP authenticates none of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedFirefly {
    /// Time of the log line.
    pub logged: Option<UtcTime>,
    /// Host of the log line.
    pub host: Option<String>,
    /// Program of the log line.
    pub program: Option<String>,
    /// State of the flow.
    pub state: FlowState,
    /// Start of the flow.
    pub started: Option<UtcTime>,
    /// Time at which the sender wrote the firefly.
    pub now: Option<UtcTime>,
    /// End of the flow.
    pub ended: Option<UtcTime>,
    /// The end that supplies data, as the sender claims.
    pub source: SocketAddr,
    /// The end that receives data.
    pub destination: SocketAddr,
    /// Transport protocol of the flow.
    pub protocol: TransportProtocol,
    /// Owner as written, even if out of range.
    pub owner: u64,
    /// Activity as written, even if out of range.
    pub activity: u64,
    /// Name of the program that moves the data.
    pub application: Option<String>,
    /// Bytes in both directions.
    pub bytes: Option<DirectionCounts>,
    /// Packets in both directions; only Penstock sends them.
    pub packets: Option<DirectionCounts>,
    /// Round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
}

impl ReceivedFirefly {
    /// Returns owner and activity as a pair.
    ///
    /// # Errors
    /// When a number is out of range.
    pub fn tag(&self) -> Result<Scitag, TagError> {
        Scitag::new(self.owner, self.activity)
    }
}

/// Parses the syslog message of one datagram.
///
/// # Errors
/// When it is too long, not a firefly, or lacks a required field.
pub fn read(datagram: &[u8]) -> Result<ReceivedFirefly, FireflyError> {
    if datagram.len() > RECEIVED_BYTES_MAX {
        return Err(FireflyError::TooLong(datagram.len()));
    }
    let start = datagram.iter().position(|byte| *byte == b'{').ok_or(FireflyError::Line)?;
    let (header, json) = datagram.split_at(start);
    let header = header.trim_ascii();
    if !header.is_empty() && !is_log_line(header) {
        return Err(FireflyError::Line);
    }
    let end = json.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let json: Value =
        serde_json::from_slice(&json[..end]).map_err(|e| FireflyError::Json(e.to_string()))?;
    let (logged, host, program) = header_fields(header);
    let (lifecycle, flow, context) = (&json["flow-lifecycle"], &json["flow-id"], &json["context"]);

    let state = match lifecycle["state"].as_str() {
        Some("start") => FlowState::Start,
        Some("ongoing") => FlowState::Ongoing,
        Some("end") => FlowState::End,
        _ => return Err(FireflyError::Field("flow-lifecycle.state", "start, ongoing or end")),
    };
    let protocol = match flow["protocol"].as_str().map(str::to_ascii_lowercase).as_deref() {
        Some("tcp") => TransportProtocol::Tcp,
        Some("udp") => TransportProtocol::Udp,
        _ => return Err(FireflyError::Field("flow-id.protocol", "tcp or udp")),
    };
    let end_of = |ip_key, port_key| -> Result<SocketAddr, FireflyError> {
        let (ip_name, port_name) = match ip_key {
            "src-ip" => ("flow-id.src-ip", "flow-id.src-port"),
            _ => ("flow-id.dst-ip", "flow-id.dst-port"),
        };
        let ip = address(&flow[ip_key]).ok_or(FireflyError::Field(ip_name, "an address"))?;
        let port = number(&flow[port_key]).and_then(|port| u16::try_from(port).ok());
        Ok(SocketAddr::new(ip, port.ok_or(FireflyError::Field(port_name, "a port"))?))
    };
    let id = |key, name| number(&context[key]).ok_or(FireflyError::Field(name, "a number"));
    Ok(ReceivedFirefly {
        logged,
        host,
        program,
        state,
        started: time(&lifecycle["start-time"]),
        now: time(&lifecycle["current-time"]),
        ended: time(&lifecycle["end-time"]),
        source: end_of("src-ip", "src-port")?,
        destination: end_of("dst-ip", "dst-port")?,
        protocol,
        owner: id("experiment-id", "context.experiment-id")?,
        activity: id("activity-id", "context.activity-id")?,
        application: context["application"].as_str().map(tidy).filter(|text| !text.is_empty()),
        bytes: count(&json["usage"]),
        packets: count(&json["packets"]),
        rtt_ms: round_trip(&json),
    })
}

/// Returns true for `<PRI>VERSION` and anything after it.
fn is_log_line(header: &[u8]) -> bool {
    let Some(rest) = header.strip_prefix(b"<") else { return false };
    let Some(end) = rest.iter().position(|byte| *byte == b'>') else { return false };
    (1..=3).contains(&end) && rest[..end].iter().all(u8::is_ascii_digit)
}

/// Time, host and program of a log line, each if present.
fn header_fields(header: &[u8]) -> (Option<UtcTime>, Option<String>, Option<String>) {
    let text = String::from_utf8_lossy(header);
    // One blank each: an empty time leaves an empty word.
    let mut words = text.split(' ').skip(1);
    let logged = words.next().and_then(|word| word.parse().ok());
    let mut word = || words.next().map(tidy).filter(|word| !word.is_empty() && word != "-");
    (logged, word(), word())
}

fn time(value: &Value) -> Option<UtcTime> {
    value.as_str()?.parse().ok()
}

fn address(value: &Value) -> Option<IpAddr> {
    let text = value.as_str()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

fn number(value: &Value) -> Option<u64> {
    let whole = |number: f64| {
        ((0.0..9e15).contains(&number) && number.fract() == 0.0).then_some(number as u64)
    };
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(whole)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Round-trip time in milliseconds; flowd-go reports the kernel's microseconds in a separate object.
fn round_trip(json: &Value) -> Option<f64> {
    let kernel = |place: &str| json[place]["tcpInfo"]["rtt"].as_f64().map(|micros| micros / 1000.0);
    let rtt = json["netlink"]["rtt"].as_f64();
    rtt.or_else(|| kernel("netlink")).or_else(|| kernel("skOps")).filter(|rtt| *rtt >= 0.0)
}

fn count(value: &Value) -> Option<DirectionCounts> {
    let (received, sent) = (number(&value["received"]), number(&value["sent"]));
    if received.is_none() && sent.is_none() {
        return None;
    }
    Some(DirectionCounts { received: received.unwrap_or(0), sent: sent.unwrap_or(0) })
}

fn tidy(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}
