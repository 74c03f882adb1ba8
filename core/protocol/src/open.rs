//! How a session is asked for, granted or refused, and come back to.
//!
//! The exchange is one request and one answer, each behind a four-byte length, inside TLS on a control
//! connection. After a grant the same connection carries the session's [`crate::link`].

use crate::control::Settings;
use crate::digest::Algorithm;
use crate::proof::KEY_BYTES;
use crate::third_party::ThirdParty;
use crate::wire::{Bytes, Input, Wire, WireError, wire_enum, wire_struct};

/// Longest request or answer.
pub const OPEN_BYTES_MAX: usize = 256 * 1024;

/// Name of a session.
pub type SessionId = [u8; 16];

/// How data streams are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// TLS 1.3: nobody on the path reads or changes them.
    Full,
    /// Authenticated, not hidden: nobody on the path changes them.
    Integrity,
}

impl Wire for Protection {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Full),
            1 => Ok(Self::Integrity),
            _ => Err(WireError::Invalid("protection")),
        }
    }
}

/// How packets carry a scitag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Label {
    /// They do not: fireflies alone tell.
    None,
    /// In the flow label of IPv6.
    #[default]
    Flow,
    /// In a destination option of IPv6.
    Destination,
}

impl Wire for Label {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::None),
            1 => Ok(Self::Flow),
            2 => Ok(Self::Destination),
            _ => Err(WireError::Invalid("label")),
        }
    }
}

wire_struct! {
    /// Whose data it is, and how packets say so.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Mark {
        /// Owner and activity as a scitag number.
        pub scitag: u16,
        /// How packets carry it.
        pub label: Label,
    }
}

impl Wire for Algorithm {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
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

/// What is done with files of the same name at the destination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// Those that are the same stay, others are replaced.
    #[default]
    Replace,
    /// Those that are the same stay, others are a failure.
    Keep,
}

impl Wire for Existing {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(Self::Replace),
            1 => Ok(Self::Keep),
            _ => Err(WireError::Invalid("existing")),
        }
    }
}

wire_struct! {
    /// How files are copied; both ends hold the same options.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Options {
        /// Bytes in a block, a power of two.
        pub block_bytes: u32,
        /// Digest of whole files.
        pub algorithm: Algorithm,
        /// Protection of data streams.
        pub protection: Protection,
        /// Write under the final name at once, without a temporary one.
        pub inplace: bool,
        /// Copy extended attributes.
        pub xattrs: bool,
        /// Take files of equal size and time for the same only when their digests agree.
        pub compare_digest: bool,
        /// Read files back from the device before they get their name.
        pub readback: bool,
        /// What is done with files that are there.
        pub existing: Existing,
        /// Whose data it is, where somebody says so.
        pub mark: Option<Mark>,
        /// Rate, streams, readers and writers at the start.
        pub settings: Settings,
    }
}

wire_struct! {
    /// Asks to write below `target`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Push {
        /// Path at the agent.
        pub target: Bytes,
        /// Whether the target is a directory for what comes, even if it is not there yet. When it is
        /// not, a single file takes the target's name unless a directory is there.
        pub into_directory: bool,
        /// The same for the same command: names the journal that a repeated command resumes from.
        pub transfer_key: [u8; 16],
        /// How.
        pub options: Options,
    }
}

wire_struct! {
    /// Asks to read `sources`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Pull {
        /// Paths at the agent.
        pub sources: Vec<Bytes>,
        /// Whether directories are meant.
        pub recursive: bool,
        /// Whether the one source is a directory, and what is meant below it follows as a list.
        pub listed: bool,
        /// How.
        pub options: Options,
    }
}

wire_struct! {
    /// Comes back to a session whose control connection was lost.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Return {
        /// The session.
        pub session: SessionId,
        /// Its key.
        pub key: [u8; KEY_BYTES],
        /// Messages received so far.
        pub received: u64,
    }
}

wire_enum! {
    /// What a control connection is for.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Request {
        /// Send files to the agent.
        Push(Push) = 1,
        /// Get files from the agent.
        Pull(Pull) = 2,
        /// Go on with a session.
        Return(Return) = 3,
        /// Have the agent send files into a session at another.
        ThirdParty(Box<ThirdParty>) = 4,
        /// Say whether the client is known, and do nothing.
        Check(()) = 5,
    }
}

wire_struct! {
    /// The first message of a control connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Open {
        /// Name and version of the software, for logs.
        pub software: String,
        /// Bearer token; empty where the client proves itself by certificate.
        pub token: String,
        /// Features the client would use; unknown ones are ignored.
        pub features: Vec<String>,
        /// What it asks for.
        pub request: Request,
    }
}

/// Why a session is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// No valid token or certificate.
    Identity,
    /// A known client that may not do this.
    Permission,
    /// No such path.
    NotFound,
    /// The agent's limits are reached.
    Busy,
    /// No such session; a new one is to be opened.
    UnknownSession,
    /// The request makes no sense here.
    Request,
    /// The agent failed.
    Agent,
}

impl Wire for RefusalKind {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
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
    /// A refusal with its line.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Refusal {
        /// Its class.
        pub kind: RefusalKind,
        /// The reason and the remedy.
        pub text: String,
    }
}

impl Refusal {
    /// A refusal of `kind` with its line.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

wire_struct! {
    /// A session that was granted.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Opened {
        /// Its name.
        pub session: SessionId,
        /// Its key.
        pub key: [u8; KEY_BYTES],
        /// Name and version of the agent's software.
        pub software: String,
        /// Features that both ends have.
        pub features: Vec<String>,
        /// Most streams that the agent takes for the session.
        pub streams_max: u16,
        /// The session's number at the agent, by which its operator knows it.
        pub transfer: u64,
        /// Whose data the agent says it is: as asked for, or as its operator rules.
        pub mark: Option<Mark>,
    }
}

wire_enum! {
    /// The answer to [`Open`].
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Answer {
        /// Go on.
        Opened(Opened) = 1,
        /// Go on; the agent has received this many messages.
        Returned(u64) = 2,
        /// No.
        Refused(Refusal) = 3,
        /// The client is known by this name.
        Known(String) = 4,
    }
}

wire_struct! {
    /// What the acceptor of a data connection sends first.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Challenge {
        /// Its nonce.
        pub nonce: [u8; KEY_BYTES],
    }
}

wire_struct! {
    /// What the connector answers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Join {
        /// The session.
        pub session: SessionId,
        /// Number of the stream, not used before in the session.
        pub stream: u32,
        /// Its nonce.
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
            mark: Some(Mark { scitag: 206, label: Label::Flow }),
            settings: Settings {
                rate_bps: Some(5),
                streams: None,
                readers: None,
                writers: Some(2),
            },
        }
    }

    #[test]
    fn requests_survive() {
        let open = Open {
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

    proptest! {
        /// Whatever arrives is a message or an error, and a message is written as it was read.
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(open) = wire::decode::<Open>(&bytes) {
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
