//! Opening a session: request, grant or refusal, and reconnection.
//!
//! One request and one answer, each behind a four-byte length, inside TLS on a control connection.
//! After a grant the connection carries the session's [`crate::link`].

use penstock_units::Dscp;

use crate::control::Settings;
use crate::digest::Algorithm;
use crate::proof::KEY_BYTES;
use crate::third_party::ThirdParty;
use crate::wire::{Bytes, WireError, WireFormat, WireReader, wire_enum, wire_struct};

/// Size limit of a request or an answer.
pub const OPEN_BYTES_MAX: usize = 256 * 1024;

/// Feature of both ends: data connections may be of kind [`crate::preamble::ConnectionKind::RdmaData`].
pub const FEATURE_RDMA: &str = "rdma";

/// Wish of the requester of a third-party copy that names its streams: the source's agent lists what its tuner would change.
pub const FEATURE_OBSERVE: &str = "observe";

/// Feature of a third-party copy: the source's agent may carry the data by RDMA, and reports which transport it uses.
pub const FEATURE_TRANSPORT_AUTO: &str = "transport-auto";

/// Feature of a third-party copy: as [`FEATURE_TRANSPORT_AUTO`], but the copy fails where RDMA is not possible.
pub const FEATURE_TRANSPORT_RDMA: &str = "transport-rdma";

/// Prefix of the feature by which the requester of a session asks for a DSCP, followed by its number.
const FEATURE_DSCP_PREFIX: &str = "dscp-";

/// Feature of a session: packets of its data streams carry `dscp` in both directions. An agent that sets it grants it.
#[must_use]
pub fn dscp_feature(dscp: Dscp) -> String {
    format!("{FEATURE_DSCP_PREFIX}{}", dscp.number())
}

/// DSCP that features ask for or grant; the first where there are several.
#[must_use]
pub fn dscp_of_features(features: &[String]) -> Option<Dscp> {
    let numbers = features.iter().filter_map(|name| name.strip_prefix(FEATURE_DSCP_PREFIX));
    numbers.filter_map(|number| Dscp::new(number.parse().ok()?)).next()
}

/// Random identifier of a session.
pub type SessionId = [u8; 16];

/// Protection of data streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// TLS 1.3: encrypted and authenticated.
    Full,
    /// Authenticated with AES-GMAC, not encrypted.
    Integrity,
}

impl WireFormat for Protection {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Full),
            1 => Ok(Self::Integrity),
            _ => Err(WireError::Invalid("protection")),
        }
    }
}

/// Field of a packet that carries the scitag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PacketLabel {
    /// Not in packets; only fireflies report the scitag.
    None,
    /// In the IPv6 flow label.
    #[default]
    Flow,
    /// In an IPv6 destination option.
    Destination,
}

impl WireFormat for PacketLabel {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Flow),
            2 => Ok(Self::Destination),
            _ => Err(WireError::Invalid("label")),
        }
    }
}

wire_struct! {
    /// Scitag of a transfer and where its packets carry it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mark {
        /// Scitag number: experiment and activity.
        pub scitag: u16,
        /// Place of the scitag in packets.
        pub label: PacketLabel,
    }
}

impl WireFormat for Algorithm {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Crc32c),
            2 => Ok(Self::Adler32),
            3 => Ok(Self::Blake3),
            4 => Ok(Self::Sha256),
            5 => Ok(Self::Md5),
            _ => Err(WireError::Invalid("checksum algorithm")),
        }
    }
}

/// Policy for files that exist at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// Skip identical files, replace different ones.
    #[default]
    Replace,
    /// Skip identical files, fail on different ones.
    Keep,
}

impl WireFormat for Existing {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Replace),
            1 => Ok(Self::Keep),
            _ => Err(WireError::Invalid("existing")),
        }
    }
}

wire_struct! {
    /// Options of a copy; both ends hold the same.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Options {
        /// Block size in bytes, a power of two.
        pub block_bytes: u32,
        /// Digest algorithm of whole files.
        pub algorithm: Algorithm,
        /// Protection of data streams.
        pub protection: Protection,
        /// Write under the final name directly, without a temporary file.
        pub inplace: bool,
        /// Copy extended attributes of entries.
        pub xattrs: bool,
        /// Compare digests of files with equal size and time before skipping them.
        pub compare_digest: bool,
        /// Read files back from the device and verify them before commit.
        pub readback: bool,
        /// Policy for existing files.
        pub existing: Existing,
        /// Scitag, if the client sets one.
        pub mark: Option<Mark>,
        /// Initial rate limit, streams, readers and writers.
        pub settings: Settings,
    }
}

wire_struct! {
    /// Request to write below `target`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Push {
        /// Path of the target at the agent.
        pub target: Bytes,
        /// Set when the target is a directory, even if it does not exist yet. Otherwise a single file
        /// takes the target's name unless a directory of that name exists.
        pub into_directory: bool,
        /// Equal for repetitions of one command; names the journal from which a repetition resumes.
        pub transfer_key: [u8; 16],
        /// Options of the copy.
        pub options: Options,
    }
}

wire_struct! {
    /// Request to read `sources`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Pull {
        /// Paths of the sources at the agent.
        pub sources: Vec<Bytes>,
        /// Set when directories are copied with their contents.
        pub recursive: bool,
        /// Set when the one source is a directory and a list of paths below it follows.
        pub listed: bool,
        /// Options of the copy.
        pub options: Options,
    }
}

wire_struct! {
    /// Request to reconnect to a session whose control connection was lost.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Reconnect {
        /// Identifier of the session.
        pub session: SessionId,
        /// Key of the session, which authenticates the client.
        pub key: [u8; KEY_BYTES],
        /// Number of control messages received so far.
        pub received: u64,
    }
}

wire_enum! {
    /// Request of a control connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Request {
        /// Send files to the agent.
        Push(Push) = 1,
        /// Get files from the agent.
        Pull(Pull) = 2,
        /// Reconnect to a session.
        Reconnect(Reconnect) = 3,
        /// Make the agent send files into a session at another agent.
        ThirdParty(Box<ThirdParty>) = 4,
        /// Authenticate the client and do nothing else.
        Check(()) = 5,
    }
}

wire_struct! {
    /// The first message of a control connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OpenRequest {
        /// Name and version of the software, for logs.
        pub software: String,
        /// Bearer token; empty where the client proves itself by certificate.
        pub token: String,
        /// Features that the client supports; the agent ignores unknown ones.
        pub features: Vec<String>,
        /// The request of the client.
        pub request: Request,
    }
}

/// Class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// No valid token or certificate.
    Identity,
    /// The authenticated client lacks the permission.
    Permission,
    /// The path does not exist.
    NotFound,
    /// A limit of the agent is reached.
    Busy,
    /// Unknown session; the client must open a new one.
    UnknownSession,
    /// The request is not valid here.
    Request,
    /// Internal error of the agent.
    Agent,
}

impl WireFormat for RefusalKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Identity),
            1 => Ok(Self::Permission),
            2 => Ok(Self::NotFound),
            3 => Ok(Self::Busy),
            4 => Ok(Self::UnknownSession),
            5 => Ok(Self::Request),
            6 => Ok(Self::Agent),
            _ => Err(WireError::Invalid("refusal kind")),
        }
    }
}

wire_struct! {
    /// Refusal of a request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Refusal {
        /// Class, which tells the client whether to retry.
        pub kind: RefusalKind,
        /// One line: the reason and the remedy.
        pub text: String,
    }
}

impl Refusal {
    /// Creates a refusal with its one-line text.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

wire_struct! {
    /// Grant of a session.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Opened {
        /// Identifier of the session.
        pub session: SessionId,
        /// Secret of the session; see [`crate::proof`].
        pub key: [u8; KEY_BYTES],
        /// Name and version of the agent's software.
        pub software: String,
        /// Features that both ends support.
        pub features: Vec<String>,
        /// Limit of data streams for this session.
        pub streams_max: u16,
        /// Number of the transfer at the agent, as its operator sees it.
        pub transfer: u64,
        /// Effective scitag: as requested, or as the agent's configuration sets it.
        pub mark: Option<Mark>,
    }
}

wire_enum! {
    /// The answer to [`OpenRequest`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Answer {
        /// The session is open.
        Opened(Opened) = 1,
        /// The session continues; the agent has received this many messages.
        Reconnected(u64) = 2,
        /// The request is refused.
        Refused(Refusal) = 3,
        /// Name of the authenticated client.
        Known(String) = 4,
    }
}

wire_struct! {
    /// First message of the acceptor of a data connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Challenge {
        /// Nonce of the acceptor.
        pub nonce: [u8; KEY_BYTES],
    }
}

wire_struct! {
    /// Answer of the connector of a data connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Join {
        /// Identifier of the session.
        pub session: SessionId,
        /// Number of the stream, unique within the session.
        pub stream: u32,
        /// Nonce of the connector.
        pub nonce: [u8; KEY_BYTES],
        /// HMAC over both nonces; see [`crate::proof`].
        pub proof: [u8; KEY_BYTES],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::{ToReceiver, ToSender};
    use crate::wire;

    fn options() -> Options {
        Options {
            block_bytes: 4 << 20,
            algorithm: Algorithm::Crc32c,
            protection: Protection::Full,
            inplace: false,
            xattrs: true,
            compare_digest: false,
            readback: false,
            existing: Existing::Keep,
            mark: Some(Mark { scitag: 206, label: PacketLabel::Flow }),
            settings: Settings {
                rate_bps: Some(5),
                streams: None,
                readers: None,
                writers: Some(2),
            },
        }
    }

    #[test]
    fn requests_round_trip() {
        let open = OpenRequest {
            software: "penstock 0.1.0".into(),
            token: "secret".into(),
            features: vec!["sparse".into()],
            request: Request::Push(Push {
                target: Bytes(b"/store/\xff".to_vec()),
                into_directory: true,
                transfer_key: [3; 16],
                options: options(),
            }),
        };
        assert_eq!(wire::decode(&wire::encode(&open)), Ok(open));
        let answer = Answer::Refused(Refusal::new(RefusalKind::Busy, "try later"));
        assert_eq!(wire::decode(&wire::encode(&answer)), Ok(answer));
    }

    #[test]
    fn dscp_is_a_feature() {
        let features =
            |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for number in 0..64 {
            let dscp = Dscp::new(number);
            let asked = [FEATURE_RDMA.to_owned(), dscp_feature(dscp.expect("below 64"))];
            assert_eq!(dscp_of_features(&asked), dscp);
        }
        for names in [&["dscp-64"], &["dscp-"], &["dscp-ef"], &["dscp--1"], &["rdma"]] {
            assert_eq!(dscp_of_features(&features(names)), None, "{names:?}");
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// Any bytes decode to a message or an error, and a message re-encodes to the same bytes.
        #[test]
        fn arbitrary_message_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(open) = wire::decode::<OpenRequest>(&bytes) {
                prop_assert_eq!(wire::encode(&open), &bytes[..]);
            }
            if let Ok(answer) = wire::decode::<Answer>(&bytes) {
                prop_assert_eq!(wire::encode(&answer), &bytes[..]);
            }
            if let Ok(message) = wire::decode::<ToReceiver>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
            if let Ok(message) = wire::decode::<ToSender>(&bytes) {
                prop_assert_eq!(wire::encode(&message), &bytes[..]);
            }
        }
    }
}
