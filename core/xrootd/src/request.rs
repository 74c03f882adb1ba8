//! Handshake and requests of clients, checked against the limits of the server.

use crate::error::{XrdError, XrdErrorCode};
use crate::path::XrdPath;

/// Bytes of the first message of a client: 0, 0, 0, 4, 2012.
pub const HANDSHAKE_MESSAGE: [u8; HANDSHAKE_BYTES] =
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0x07, 0xdc];

/// Length of that message.
pub const HANDSHAKE_BYTES: usize = 20;

/// Length of a request without its body.
pub const REQUEST_HEAD_BYTES: usize = 24;

/// Longest body of a request that the server accepts.
pub const REQUEST_BODY_BYTES_MAX: usize = 16 << 10;

/// Most segments of a vector read (`readv_iov_max`).
pub const READV_SEGMENTS_MAX: usize = 1024;

/// Longest segment of a vector read (`readv_ior_max`), as of XRootD.
pub const READV_SEGMENT_BYTES_MAX: u32 = (2 << 20) - 16;

/// Longest token of a client.
pub const TOKEN_BYTES_MAX: usize = 4096;

/// Length of a segment in a vector read, and of its head in the response.
pub const READV_SEGMENT_HEAD_BYTES: usize = 16;

/// First protocol version that knows TLS.
const TLS_VERSION: u32 = 0x500;

/// Number of an open file, as the server gave it to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XrdFileHandle(pub u32);

/// Fixed part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// Number that the response repeats.
    pub stream_id: [u8; 2],
    /// Kind of the request.
    pub code: u16,
    /// Arguments of that kind.
    pub arguments: [u8; 16],
    /// Length of the body; a negative one is read as more than any limit.
    pub body_bytes: u32,
}

impl RequestHead {
    /// Parses the first bytes of a request.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_HEAD_BYTES]) -> Self {
        let mut arguments = [0; 16];
        arguments.copy_from_slice(&bytes[4..20]);
        Self {
            stream_id: [bytes[0], bytes[1]],
            code: u16::from_be_bytes([bytes[2], bytes[3]]),
            arguments,
            body_bytes: u32_at(bytes, 20),
        }
    }

    /// Length of the body.
    ///
    /// # Errors
    /// If it is longer than the server accepts; the connection cannot be used further.
    pub fn body_len(&self) -> Result<usize, XrdError> {
        let bytes = usize::try_from(self.body_bytes).unwrap_or(usize::MAX);
        if bytes <= REQUEST_BODY_BYTES_MAX {
            return Ok(bytes);
        }
        if let Some(name) = write_request(self.code) {
            return Err(read_only(name));
        }
        let text = format!(
            "request {} has a body of {bytes} bytes: the server accepts {REQUEST_BODY_BYTES_MAX}",
            self.code
        );
        Err(XrdError::new(XrdErrorCode::ArgTooLong, text))
    }
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XrdRequest<'a> {
    /// Version of the client, and its capabilities.
    Protocol {
        /// True if the client can change to TLS.
        able_tls: bool,
        /// True if the client wants it (`roots://`).
        want_tls: bool,
    },
    /// Begin of a session.
    Login {
        /// Name of the user at the client, unverified.
        user: String,
    },
    /// Bearer token of the client (security protocol `ztn`).
    Auth {
        /// Token, text without control characters.
        token: &'a str,
    },
    /// Sign of life.
    Ping,
    /// Metadata of a path.
    Stat {
        /// Path.
        path: XrdPath<'a>,
        /// True for the metadata of its file system instead.
        file_system: bool,
    },
    /// Metadata of an open file.
    StatHandle(XrdFileHandle),
    /// Names in a directory.
    Dirlist {
        /// Path.
        path: XrdPath<'a>,
        /// True if metadata belongs to each name.
        with_stat: bool,
    },
    /// Opens a file for reading.
    Open {
        /// Path.
        path: XrdPath<'a>,
        /// True if the response has its metadata.
        with_stat: bool,
    },
    /// Reads a part of a file.
    Read {
        /// Number of the open file.
        handle: XrdFileHandle,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, below 2 GiB.
        bytes: u32,
    },
    /// Reads several parts of files.
    ReadVector(Vec<ReadSegment>),
    /// Closes a file.
    Close(XrdFileHandle),
    /// Servers of a path; `None` for any server.
    Locate {
        /// Path.
        path: XrdPath<'a>,
        /// True if the path need not exist.
        any_server: bool,
    },
    /// Checksum of a file.
    Checksum(XrdPath<'a>),
    /// Values of configuration names.
    Configuration(Vec<&'a str>),
    /// Space of the file system of a path.
    Space(XrdPath<'a>),
    /// End of a session.
    EndSession {
        /// Its id.
        session: [u8; 16],
    },
    /// Information of the client about itself.
    Set,
}

/// One part of a vector read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSegment {
    /// Number of the open file.
    pub handle: XrdFileHandle,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes, at most [`READV_SEGMENT_BYTES_MAX`].
    pub bytes: u32,
}

impl<'a> XrdRequest<'a> {
    /// Parses a request with its whole body.
    ///
    /// # Errors
    /// For requests that write, that the server does not know, and that are damaged or beyond a limit.
    pub fn parse(head: &RequestHead, body: &'a [u8]) -> Result<Self, XrdError> {
        let arguments = &head.arguments;
        if let Some(name) = write_request(head.code) {
            return Err(read_only(name));
        }
        Ok(match head.code {
            3000 => Self::Auth { token: ztn_token(&arguments[12..16], body)? },
            3001 => return Self::query(arguments, body),
            3003 => Self::Close(handle(&arguments[..4])),
            3004 => {
                let with_stat = arguments[15] & DIRLIST_WITH_STAT != 0;
                Self::Dirlist { path: XrdPath::parse(body)?, with_stat }
            }
            3006 => {
                let flags = arguments[4];
                let knows = u32_at(arguments, 0) >= TLS_VERSION;
                Self::Protocol {
                    able_tls: knows && flags & (PROTOCOL_ABLE_TLS | PROTOCOL_WANT_TLS) != 0,
                    want_tls: knows && flags & PROTOCOL_WANT_TLS != 0,
                }
            }
            3007 => {
                let name = arguments[4..12].split(|byte| *byte == 0).next().unwrap_or_default();
                Self::Login { user: name.escape_ascii().to_string() }
            }
            3010 => {
                let options = u16::from_be_bytes([arguments[2], arguments[3]]);
                if options & OPEN_WRITES != 0 {
                    return Err(read_only("open for writing"));
                }
                Self::Open { path: XrdPath::parse(body)?, with_stat: options & OPEN_RETSTAT != 0 }
            }
            3011 => Self::Ping,
            3013 => Self::Read {
                handle: handle(&arguments[..4]),
                offset: offset(&arguments[4..12])?,
                bytes: length(u32_at(arguments, 12))?,
            },
            3017 if body.is_empty() => Self::StatHandle(handle(&arguments[12..16])),
            3017 => {
                let file_system = arguments[0] & STAT_FILE_SYSTEM != 0;
                Self::Stat { path: XrdPath::parse(body)?, file_system }
            }
            3018 => Self::Set,
            3023 => Self::EndSession { session: *arguments },
            3025 => Self::ReadVector(segments(body)?),
            3027 => {
                // `*` asks for all servers, `*/path` for those that could have a path.
                let path = body.strip_prefix(b"*");
                let any_server = path.is_some();
                let path = path.unwrap_or(body);
                let names_any = path.iter().all(|byte| *byte == 0) && any_server;
                let path = if names_any { b"/" } else { path };
                Self::Locate { path: XrdPath::parse(path)?, any_server }
            }
            3024 => {
                let text = "a session has one connection here";
                return Err(XrdError::new(XrdErrorCode::Unsupported, text));
            }
            code => {
                let text = format!("request {code} is not supported by this read-only server");
                return Err(XrdError::new(XrdErrorCode::Unsupported, text));
            }
        })
    }

    fn query(arguments: &[u8; 16], body: &'a [u8]) -> Result<Self, XrdError> {
        match u16::from_be_bytes([arguments[0], arguments[1]]) {
            3 => Ok(Self::Checksum(XrdPath::parse(body)?)),
            5 => Ok(Self::Space(XrdPath::parse(body)?)),
            7 => {
                let text = std::str::from_utf8(body).map_err(|_| {
                    XrdError::new(XrdErrorCode::ArgInvalid, "the names of a query are no text")
                })?;
                let names = text.split(|c: char| c.is_whitespace() || c == '\0');
                Ok(Self::Configuration(names.filter(|name| !name.is_empty()).collect()))
            }
            kind => {
                let text = format!(
                    "query {kind} is not supported: use those for checksum, config and space"
                );
                Err(XrdError::new(XrdErrorCode::Unsupported, text))
            }
        }
    }
}

const DIRLIST_WITH_STAT: u8 = 0x02 | 0x04;
const STAT_FILE_SYSTEM: u8 = 0x01;
const PROTOCOL_ABLE_TLS: u8 = 0x02;
const PROTOCOL_WANT_TLS: u8 = 0x04;
const OPEN_RETSTAT: u16 = 0x0400;

/// Options of `open` that create or change files: delete, new, update, append, write-only.
const OPEN_WRITES: u16 = 0x0002 | 0x0008 | 0x0020 | 0x0200 | 0x8000;

/// Name of a request that changes files.
fn write_request(code: u16) -> Option<&'static str> {
    Some(match code {
        3002 => "chmod",
        3008 => "mkdir",
        3009 => "mv",
        3012 => "chkpoint",
        3014 => "rm",
        3015 => "rmdir",
        3016 => "sync",
        3019 => "write",
        3026 => "pgwrite",
        3028 => "truncate",
        3031 => "writev",
        _ => return None,
    })
}

fn read_only(name: &str) -> XrdError {
    let text = format!("{name}: root:// is read-only here: write by https:// (davs://)");
    XrdError::new(XrdErrorCode::FsReadOnly, text)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(number)
}

fn handle(bytes: &[u8]) -> XrdFileHandle {
    XrdFileHandle(u32_at(bytes, 0))
}

fn offset(bytes: &[u8]) -> Result<u64, XrdError> {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    u64::try_from(i64::from_be_bytes(number))
        .map_err(|_| XrdError::new(XrdErrorCode::ArgInvalid, "the offset is negative"))
}

fn length(bytes: u32) -> Result<u32, XrdError> {
    match i32::try_from(bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(XrdError::new(XrdErrorCode::ArgInvalid, "the length is negative")),
    }
}

/// Parses the segments of a vector read.
fn segments(body: &[u8]) -> Result<Vec<ReadSegment>, XrdError> {
    let (segments, rest) = body.as_chunks::<READV_SEGMENT_HEAD_BYTES>();
    if segments.is_empty() || !rest.is_empty() {
        let text = "a vector read has segments of 16 bytes";
        return Err(XrdError::new(XrdErrorCode::ArgInvalid, text));
    }
    if segments.len() > READV_SEGMENTS_MAX {
        let text = format!("a vector read has at most {READV_SEGMENTS_MAX} segments");
        return Err(XrdError::new(XrdErrorCode::ArgTooLong, text));
    }
    let one = |bytes: &[u8; READV_SEGMENT_HEAD_BYTES]| {
        let segment = ReadSegment {
            handle: handle(&bytes[..4]),
            offset: offset(&bytes[8..16])?,
            bytes: length(u32_at(bytes, 4))?,
        };
        if segment.bytes > READV_SEGMENT_BYTES_MAX {
            let text = format!("a segment has at most {READV_SEGMENT_BYTES_MAX} bytes");
            return Err(XrdError::new(XrdErrorCode::ArgTooLong, text));
        }
        Ok(segment)
    };
    segments.iter().map(one).collect()
}

/// Returns the token of a credential of the security protocol `ztn`: `ztn` NUL, version 0, `T`, 2 bytes, its length with
/// the NUL at its end, the token.
fn ztn_token<'a>(kind: &[u8], body: &'a [u8]) -> Result<&'a str, XrdError> {
    let failed = |text: &str| XrdError::new(XrdErrorCode::AuthFailed, text);
    if kind != b"ztn\0" {
        return Err(failed("only bearer tokens (ztn) are accepted"));
    }
    let damaged = || failed("the ztn credential is damaged");
    let (head, rest) = body.split_first_chunk::<10>().ok_or_else(damaged)?;
    if &head[..4] != b"ztn\0" || head[4] != 0 || head[5] != b'T' {
        return Err(damaged());
    }
    let bytes = usize::from(u16::from_be_bytes([head[8], head[9]]));
    let token =
        rest.get(..bytes).and_then(|token| token.strip_suffix(b"\0")).ok_or_else(damaged)?;
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(damaged());
    }
    let token = std::str::from_utf8(token).map_err(|_| damaged())?;
    if token.chars().any(char::is_control) {
        return Err(damaged());
    }
    Ok(token)
}
