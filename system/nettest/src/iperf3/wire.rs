//! Octets of iperf3's control connection: cookie, state bytes, stream numbers, length of JSON. Pure.
//!
//! Source: `iperf_api.h`, `iperf_util.c` and `net.c` of esnet/iperf, checked against 3.12. Integers are
//! big-endian unless stated otherwise.

use thiserror::Error;

/// Size of a cookie: 36 characters and NUL.
pub const COOKIE_BYTES: usize = 37;
/// Size limit of the parameters, in bytes of JSON (`MAX_PARAMS_JSON_STRING`).
pub const PARAMS_BYTES_MAX: usize = 8 << 10;
/// Size limit of the results: 512 streams of 200 bytes, and the text of a server.
pub const RESULTS_BYTES_MAX: usize = 1 << 20;
/// Alphabet of cookies (`make_cookie`).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Cookie of a client, which opens its control connection and each of its data connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie([u8; COOKIE_BYTES]);

impl Cookie {
    /// Makes a cookie from random bytes.
    #[must_use]
    pub fn from_random(random: &[u8; COOKIE_BYTES - 1]) -> Self {
        let mut cookie = [0; COOKIE_BYTES];
        for (byte, random) in cookie.iter_mut().zip(random) {
            *byte = ALPHABET[usize::from(random % 32)];
        }
        Self(cookie)
    }

    /// Decodes the first bytes of a connection; `None` if they are no cookie.
    #[must_use]
    pub fn decode(bytes: &[u8; COOKIE_BYTES]) -> Option<Self> {
        let (text, end) = bytes.split_at(COOKIE_BYTES - 1);
        (Self::may_start_with(text) && end == [0]).then_some(Self(*bytes))
    }

    /// True if a cookie may start with these bytes.
    #[must_use]
    pub fn may_start_with(bytes: &[u8]) -> bool {
        bytes.len() < COOKIE_BYTES && bytes.iter().all(|byte| ALPHABET.contains(byte))
    }

    /// The cookie as sent, NUL included.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; COOKIE_BYTES] {
        &self.0
    }
}

/// State byte of the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ControlState {
    /// Server: the streams start.
    TestStart = 1,
    /// Server: the streams run.
    TestRunning = 2,
    /// Client: the streams end.
    TestEnd = 4,
    /// Server: send your parameters.
    ParamExchange = 9,
    /// Server: open the streams.
    CreateStreams = 10,
    /// Server: interrupted.
    ServerTerminate = 11,
    /// Client: interrupted.
    ClientTerminate = 12,
    /// Server: send your results.
    ExchangeResults = 13,
    /// Server: the results are complete.
    DisplayResults = 14,
    /// Client: finished.
    IperfDone = 16,
    /// Server: busy.
    AccessDenied = -1,
    /// Server: error; two numbers of four bytes follow ([`IperfError`], errno).
    ServerError = -2,
}

impl ControlState {
    /// Decodes a state byte; `None` if it is unknown.
    #[must_use]
    pub const fn decode(byte: u8) -> Option<Self> {
        Some(match byte.cast_signed() {
            1 => Self::TestStart,
            2 => Self::TestRunning,
            4 => Self::TestEnd,
            9 => Self::ParamExchange,
            10 => Self::CreateStreams,
            11 => Self::ServerTerminate,
            12 => Self::ClientTerminate,
            13 => Self::ExchangeResults,
            14 => Self::DisplayResults,
            16 => Self::IperfDone,
            -1 => Self::AccessDenied,
            -2 => Self::ServerError,
            _ => return None,
        })
    }

    /// The byte that stands for the state.
    #[must_use]
    pub const fn byte(self) -> u8 {
        (self as i8).cast_unsigned()
    }
}

/// Error number of iperf3 (`i_errno`), with the text that its client prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[repr(u32)]
pub enum IperfError {
    /// `IEDURATION`.
    #[error("the test's time is out of range")]
    Duration = 5,
    /// `IENUMSTREAMS`.
    #[error("the number of parallel streams is out of range")]
    Streams = 6,
    /// `IEBLOCKSIZE`.
    #[error("the block size is out of range")]
    BlockSize = 7,
    /// `IEBUFSIZE`.
    #[error("the socket buffer size is out of range")]
    Window = 8,
    /// `IEMSS`.
    #[error("the MSS is out of range")]
    Mss = 10,
    /// `IEOMIT`.
    #[error("the omitted start is out of range")]
    Omit = 12,
    /// `IENOSCTP`.
    #[error("SCTP is not supported")]
    Sctp = 18,
    /// `IEUDPBLOCKSIZE`.
    #[error("the datagram size is out of range")]
    DatagramSize = 20,
    /// `IEREVERSEBIDIR`.
    #[error("a test cannot be both reverse and bidirectional")]
    ReverseBidir = 25,
    /// `IERECVPARAMS`.
    #[error("the parameters are not a JSON object of at most 8 KiB")]
    Params = 114,
    /// `IERECVRESULTS`.
    #[error("the results are not those of this test")]
    Results = 117,
    /// `IESETCONGESTION`.
    #[error("the congestion control is not available")]
    Congestion = 134,
    /// `IESTREAMACCEPT`.
    #[error("the data streams did not arrive in time")]
    StreamAccept = 204,
}

impl IperfError {
    /// Bytes that report the error: state, number, errno.
    #[must_use]
    pub fn bytes(self, errno: u32) -> [u8; 9] {
        let mut bytes = [ControlState::ServerError.byte(); 9];
        bytes[1..5].copy_from_slice(&(self as u32).to_be_bytes());
        bytes[5..].copy_from_slice(&errno.to_be_bytes());
        bytes
    }
}

/// Text for the number of a server's error, with the remedy where there is one.
#[must_use]
pub const fn server_error_reason(code: u32) -> &'static str {
    match code {
        5 => "the time is out of its range",
        6 => "too many parallel streams",
        7 => "the block size is out of its range",
        8 | 124 => "the socket buffer size is out of its range; try a smaller --window",
        12 => "the omitted start is out of its range",
        20 => "the datagram size is out of its range",
        27 => "the rate exceeds the server's limit; lower --rate",
        114 => "it did not receive the parameters",
        117 => "it did not receive the results",
        121 => "access denied",
        130 => "it could not set the socket buffers; try a smaller --window",
        134 => "it lacks the congestion control",
        142 => "it needs a user's authentication, which is not supported here",
        203 | 204 => "it could not open a stream",
        205 | 206 => "a stream failed",
        _ => "an error without a text here",
    }
}

/// Identifier of the stream with this number from 0: 1, 3, 4, 5 and so on (`iperf_add_stream`).
#[must_use]
pub const fn stream_id(index: u32) -> u64 {
    if index == 0 { 1 } else { index as u64 + 2 }
}

/// Number of the stream with this identifier; `None` if no stream has it.
#[must_use]
pub fn stream_index(id: u64) -> Option<u32> {
    match id {
        1 => Some(0),
        3.. => u32::try_from(id - 2).ok(),
        _ => None,
    }
}

/// JSON behind its length.
#[must_use]
pub fn json_frame(json: &[u8]) -> Vec<u8> {
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], json].concat()
}

/// First datagram of a client's stream: "9876" (`UDP_CONNECT_MSG`, which is 0x36373839 in a
/// little-endian host) or 123456789 of releases before 3.8.
pub const STREAM_HELLO: [u8; 4] = *b"9876";
/// Answer of a server: "6789".
pub const STREAM_REPLY: [u8; 4] = *b"6789";
const LEGACY_HELLO: u32 = 123_456_789;
const LEGACY_REPLY: u32 = 987_654_321;

/// Answer to a datagram that opens a stream; `None` if it opens none. Legacy numbers are of the
/// client's byte order, so both are accepted and the answer is alike.
#[must_use]
pub fn reply_to(datagram: &[u8]) -> Option<[u8; 4]> {
    let bytes: [u8; 4] = datagram.try_into().ok()?;
    match bytes {
        STREAM_HELLO => Some(STREAM_REPLY),
        _ if bytes == LEGACY_HELLO.to_le_bytes() => Some(LEGACY_REPLY.to_le_bytes()),
        _ if bytes == LEGACY_HELLO.to_be_bytes() => Some(LEGACY_REPLY.to_be_bytes()),
        // A big-endian host of release 3.8 or later.
        _ if bytes == STREAM_REPLY => Some(STREAM_HELLO),
        _ => None,
    }
}

/// True if a server's datagram accepts a stream.
#[must_use]
pub fn is_stream_reply(datagram: &[u8]) -> bool {
    let Ok(bytes) = <[u8; 4]>::try_from(datagram) else { return false };
    bytes == STREAM_REPLY
        || bytes == LEGACY_REPLY.to_le_bytes()
        || bytes == LEGACY_REPLY.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_needs_alphabet_and_nul() {
        let cookie = Cookie::from_random(&[251; 36]);
        assert_eq!(Cookie::decode(cookie.bytes()), Some(cookie));
        let mut bytes = *cookie.bytes();
        bytes[36] = b'a';
        assert_eq!(Cookie::decode(&bytes), None);
        bytes[36] = 0;
        bytes[3] = b'1';
        assert_eq!(Cookie::decode(&bytes), None);
        assert!(!Cookie::may_start_with(b"PENSTOCK"));
    }

    #[test]
    fn states_round_trip() {
        let known: Vec<u8> =
            (0..=255).filter(|byte| ControlState::decode(*byte).is_some()).collect();
        assert_eq!(known, [1, 2, 4, 9, 10, 11, 12, 13, 14, 16, 254, 255]);
        for byte in known {
            assert_eq!(ControlState::decode(byte).map(ControlState::byte), Some(byte));
        }
        assert_eq!(IperfError::Sctp.bytes(2), [254, 0, 0, 0, 18, 0, 0, 0, 2]);
    }

    #[test]
    fn stream_ids_skip_two() {
        assert_eq!([0, 1, 2, 3].map(stream_id), [1, 3, 4, 5]);
        for index in 0..600 {
            assert_eq!(stream_index(stream_id(index)), Some(index));
        }
        assert_eq!([0, 2, u64::MAX].map(stream_index), [None; 3]);
    }

    #[test]
    fn legacy_hello_gets_legacy_reply() {
        assert_eq!(reply_to(b"9876"), Some(*b"6789"));
        for hello in [LEGACY_HELLO.to_le_bytes(), LEGACY_HELLO.to_be_bytes()] {
            assert!(is_stream_reply(&reply_to(&hello).unwrap()));
        }
        assert_eq!(reply_to(b"98765"), None);
        assert_eq!(reply_to(b"abcd"), None);
        assert!(!is_stream_reply(b"9876"));
    }
}
