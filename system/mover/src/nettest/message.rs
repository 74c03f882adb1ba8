//! What the two ends of a test say to each other on the control connection: JSON objects, each
//! behind its length in four bytes, big endian, at most [`MESSAGE_BYTES_MAX`].
//!
//! Fields that one end does not know are ignored and fields that the other end does not send have
//! defaults, so that releases interoperate as iperf3's do.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::params::TestParams;

/// Longest message, in bytes of JSON.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Client: the test it would like.
    Propose {
        /// Name and version of the program.
        software: String,
        /// The test.
        params: TestParams,
    },
    /// Listener: the data connections may come, each naming this test.
    Accepted {
        /// Name and version of the program.
        software: String,
        /// The test's number, 32 hexadecimal digits.
        test_id: String,
    },
    /// Listener: no.
    Refused {
        /// Why, and what to do about it.
        reason: String,
    },
    /// Listener: all data connections are there; begin.
    Start,
    /// Either: what passed at this end in one interval.
    Interval {
        /// Its number, from 0.
        index: u32,
        /// Bytes its senders handed over.
        bytes_sent: u64,
        /// Bytes its receivers took.
        bytes_received: u64,
    },
    /// Either, about twice a second: this end is there.
    Alive,
    /// Either: end before time and report.
    Stop,
    /// Either: one of its streams is over.
    Stream(StreamReport),
    /// Either: the test is over at this end; every stream was reported.
    Finished {
        /// CPU time of its stream threads over the time they ran: 100 is one core.
        cpu_percent: f64,
        /// Most other tests that a listener ran at the same time; 0 from a client.
        #[serde(default)]
        other_tests: u32,
    },
    /// Either: the test cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Which end of a stream this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It sent.
    #[default]
    Sender,
    /// It received.
    Receiver,
}

/// What one end saw of one stream, without the omitted start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamReport {
    /// The stream's number.
    pub index: u32,
    /// Which end this is.
    pub role: Role,
    /// Bytes that passed.
    pub bytes: u64,
    /// First byte counted, from this end's start.
    pub first_us: u64,
    /// Last byte counted, from this end's start.
    pub last_us: u64,
    /// CPU time of the stream's thread.
    pub cpu_us: u64,
    /// Segments sent again (sender).
    pub retransmits: u32,
    /// Smoothed round-trip time: the average of samples, one each interval (sender).
    pub rtt_us: u32,
    /// Smallest round-trip time (sender).
    pub rtt_min_us: u32,
    /// Time that TCP was held by the receiver's window (sender).
    pub window_us: u64,
    /// Time that TCP was held by its own send buffer (sender).
    pub buffer_us: u64,
    /// Largest segment.
    pub mss: u32,
    /// Congestion control in force.
    pub congestion: String,
    /// How the bytes were sent (sender) or taken (receiver).
    pub path: String,
    /// Why it was not a faster path.
    pub path_reason: Option<String>,
    /// How its packets are labelled, or why not; empty where nobody asked (sender).
    pub label: String,
    /// Why the stream ended early.
    pub error: Option<String>,
}

/// Writes one message.
///
/// # Errors
/// The socket's, or a message that is too long.
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

/// Reads one message.
///
/// # Errors
/// The socket's; `InvalidData` for a length or a text that is none of ours.
pub fn read_message(reader: &mut impl Read) -> io::Result<Message> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(invalid(format!(
            "a message of {length} bytes, the limit is {MESSAGE_BYTES_MAX}"
        )));
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
    fn messages_round_trip_and_leave_what_follows() {
        let mut wire = Vec::new();
        let finished = Message::Stream(StreamReport { bytes: u64::MAX, ..StreamReport::default() });
        write_message(&mut wire, &Message::Start).unwrap();
        write_message(&mut wire, &finished).unwrap();
        let mut reader = &wire[..];
        assert_eq!(read_message(&mut reader).unwrap(), Message::Start);
        assert_eq!(read_message(&mut reader).unwrap(), finished);
        assert!(reader.is_empty());
    }

    #[test]
    fn unknown_fields_are_ignored_and_lengths_are_limited() {
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
