//! Messages of the control connection: JSON objects, each behind its length in four bytes, big endian,
//! of at most [`MESSAGE_BYTES_MAX`].
//!
//! Unknown fields are ignored and missing fields have defaults, so that releases interoperate like
//! iperf3's.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::params::TestParams;
use crate::rdma::RdmaStreamReport;

/// Size limit of a message, in bytes of JSON.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Message of either end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Client: proposes a test.
    Propose {
        /// Name and version of the program.
        software: String,
        /// Proposed parameters.
        params: TestParams,
    },
    /// Listener: accepted; data connections name this test.
    Accepted {
        /// Name and version of the program.
        software: String,
        /// Identifier of the test, 32 hexadecimal digits.
        test_id: String,
        /// True if the test uses RDMA; earlier releases ignore that parameter.
        #[serde(default)]
        rdma: bool,
    },
    /// Listener: refuses the test.
    Refused {
        /// Reason and remedy.
        reason: String,
    },
    /// Listener: all data connections are open; start.
    Start,
    /// Either: bytes of one interval at this end.
    Interval {
        /// Number of the interval, from 0.
        index: u32,
        /// Bytes passed to the kernel by its senders.
        bytes_sent: u64,
        /// Bytes read by its receivers.
        bytes_received: u64,
    },
    /// Either: keepalive, about twice a second.
    Alive,
    /// Either: end early and report.
    Stop,
    /// Either: one of its streams has ended.
    Stream(Box<StreamReport>),
    /// Either: the test has ended at this end; all streams are reported.
    Finished {
        /// CPU use of its stream threads in percent; 100 is one core.
        cpu_percent: f64,
        /// Peak number of other tests at the listener; 0 from a client.
        #[serde(default)]
        other_tests: u32,
    },
    /// Either: the test failed.
    Failed {
        /// Reason for the failure.
        reason: String,
    },
}

/// Protocol of bytes that begin no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ForeignProtocol {
    /// A response of HTTP.
    #[error("it speaks HTTP")]
    Http,
    /// An alert of TLS.
    #[error("it speaks TLS")]
    Tls,
    /// The version of an SSH server.
    #[error("it speaks SSH")]
    Ssh,
    /// Another one, read as the length of a message.
    #[error("a message of {0} bytes, the limit is {MESSAGE_BYTES_MAX}")]
    Unknown(u32),
}

impl ForeignProtocol {
    const fn of(first: [u8; 4]) -> Self {
        match first {
            [b'H', b'T', b'T', b'P'] => Self::Http,
            // RFC 8446 section 5.1: alert, any version.
            [21, 3, ..] => Self::Tls,
            [b'S', b'S', b'H', b'-'] => Self::Ssh,
            other => Self::Unknown(u32::from_be_bytes(other)),
        }
    }
}

/// Role of an end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamRole {
    /// End that sends the data.
    #[default]
    Sender,
    /// End that receives the data.
    Receiver,
}

/// Measurements of one end of a stream, without the omitted start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReport {
    /// Number of the stream, from 0.
    pub index: u32,
    /// Role of this end.
    pub role: StreamRole,
    /// Bytes sent or received.
    pub bytes: u64,
    /// Time of the first counted byte, in microseconds from this end's start.
    pub first_us: u64,
    /// Time of the last counted byte, in microseconds from this end's start.
    pub last_us: u64,
    /// CPU time of the stream's thread in microseconds.
    pub cpu_us: u64,
    /// TCP segments retransmitted (sender).
    pub retransmits: u32,
    /// Smoothed round-trip time in microseconds: mean of one sample per interval (sender).
    pub rtt_us: u32,
    /// Smallest round-trip time in microseconds (sender).
    pub rtt_min_us: u32,
    /// Time limited by the receiver's window, in microseconds (sender).
    pub window_us: u64,
    /// Time limited by its own send buffer, in microseconds (sender).
    pub buffer_us: u64,
    /// Maximum segment size in bytes.
    pub mss: u32,
    /// Congestion control in force.
    pub congestion: String,
    /// System call that sent (sender) or received (receiver) the data.
    pub path: String,
    /// Reason why a faster path was not used.
    pub path_reason: Option<String>,
    /// Label of its packets with the reason, empty if none was requested (sender).
    pub label: String,
    /// Reason for an early end.
    pub error: Option<String>,
    /// Datagrams sent, or the highest counter received, with those of the omitted start.
    pub packets: u64,
    /// Lost datagrams, with those of the omitted start (receiver).
    pub lost: u64,
    /// Datagrams that arrived after later ones, with those of the omitted start (receiver); `None` if the end
    /// does not say (iperf3).
    pub out_of_order: Option<u64>,
    /// Datagrams that arrived once more, likewise.
    pub duplicates: Option<u64>,
    /// Datagrams of the omitted start.
    pub omitted_packets: u64,
    /// Lost datagrams of the omitted start (receiver).
    pub omitted_lost: u64,
    /// Interarrival jitter in nanoseconds (receiver).
    pub jitter_ns: u64,
    /// Queue pair of a test of RDMA.
    pub rdma: Option<RdmaStreamReport>,
}

impl StreamReport {
    /// Stands for the report of the other end of this stream, which did not come.
    pub(crate) fn of_silent_peer(&self) -> Self {
        let role = match self.role {
            StreamRole::Sender => StreamRole::Receiver,
            StreamRole::Receiver => StreamRole::Sender,
        };
        let (path, path_reason, label) = (String::new(), None, String::new());
        Self { role, path, path_reason, label, cpu_us: 0, error: None, rdma: None, ..self.clone() }
    }

    /// False if it stands for one that did not come.
    pub(crate) fn is_reported(&self) -> bool {
        !self.path.is_empty()
    }
}

/// Writes a message with its length.
///
/// # Errors
/// Errors of the socket, and if the message is too long.
pub fn write_message(writer: &mut impl Write, message: &Message) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= MESSAGE_BYTES_MAX)
        .ok_or_else(|| invalid(format!("a message of {} bytes is too long", json.len())))?;
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend_from_slice(&json);
    writer.write_all(&frame)?;
    writer.flush()
}

/// Reads a message; blocks until it is complete.
///
/// # Errors
/// Errors of the socket; `InvalidData` for a bad length or text.
pub fn read_message(reader: &mut impl Read) -> io::Result<Message> {
    let mut bytes = [0; 4];
    reader.read_exact(&mut bytes)?;
    let length = u32::from_be_bytes(bytes) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, ForeignProtocol::of(bytes)));
    }
    let mut json = vec![0; length];
    reader.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(|error| invalid(format!("not a message: {error}")))
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_without_overread() {
        let mut wire = Vec::new();
        let finished =
            Message::Stream(Box::new(StreamReport { bytes: u64::MAX, ..StreamReport::default() }));
        write_message(&mut wire, &Message::Start).unwrap();
        write_message(&mut wire, &finished).unwrap();
        let mut reader = &wire[..];
        assert_eq!(read_message(&mut reader).unwrap(), Message::Start);
        assert_eq!(read_message(&mut reader).unwrap(), finished);
        assert!(reader.is_empty());
    }

    #[test]
    fn unknown_fields_pass_long_messages_fail() {
        let json = br#"{"type":"interval","index":1,"bytes_sent":2,"bytes_received":3,"new":4}"#;
        let mut wire = (json.len() as u32).to_be_bytes().to_vec();
        wire.extend_from_slice(json);
        assert!(matches!(read_message(&mut &wire[..]), Ok(Message::Interval { index: 1, .. })));
        let error = read_message(&mut &[0xff; 20][..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = read_message(&mut &b"\0\0\0\x02[]"[..]).unwrap_err();
        assert!(error.to_string().contains("not a message"), "{error}");
    }
}
