//! Responses of the server.

use crate::error::XrdError;
use crate::request::{READV_SEGMENT_HEAD_BYTES, ReadSegment, TOKEN_BYTES_MAX, XrdFileHandle};

/// Length of a response without its body.
pub const RESPONSE_HEAD_BYTES: usize = 8;

/// Protocol version that the server announces.
pub const PROTOCOL_VERSION: u32 = 0x510;

/// Longest text of an error, in bytes.
const ERROR_TEXT_BYTES_MAX: usize = 1024;

const STATUS_OK: u16 = 0;
const STATUS_OK_SO_FAR: u16 = 4000;
const STATUS_ERROR: u16 = 4003;
const STATUS_REDIRECT: u16 = 4004;
/// Port of a redirect that names a URL instead of a host. Other negative ports are URLs with flags.
const REDIRECT_TO_URL: u32 = u32::MAX;
const STATUS_WAIT: u16 = 4005;

const IS_DATA_SERVER: u32 = 1;
const HAVE_TLS: u32 = 0x8000_0000;
const GOTO_TLS: u32 = 0x4000_0000;
const TLS_DATA: u32 = 0x0100_0000;
const TLS_LOGIN: u32 = 0x0400_0000;
const TLS_SESSION: u32 = 0x0800_0000;

/// Status of a response with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataStatus {
    /// Further responses to the same request follow.
    Partial,
    /// Last response to the request.
    Final,
}

/// Encryption of a connection, as the server demands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsDemand {
    /// The connection stays as it is, and TLS is not needed.
    Optional,
    /// The connection uses TLS.
    InUse,
    /// The connection changes to TLS after this response.
    Start,
}

/// Kind of a path in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Something else.
    Other,
}

/// Metadata of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XrdStat {
    /// Number that distinguishes files.
    pub id: u64,
    /// Length of the file in bytes.
    pub size: u64,
    /// File, directory or neither.
    pub kind: ListedKind,
    /// Modification time in seconds since 1970.
    pub mtime_s: i64,
    /// Change time in seconds since 1970.
    pub ctime_s: i64,
    /// Permission bits of the file system; clients see none for writing.
    pub mode: u32,
    /// Owner and group of the file system.
    pub owner: (u32, u32),
}

impl XrdStat {
    /// Metadata of a directory above the exports.
    pub const VIRTUAL_DIRECTORY: Self = Self {
        id: 0,
        size: 0,
        kind: ListedKind::Directory,
        mtime_s: 0,
        ctime_s: 0,
        mode: 0o555,
        owner: (0, 0),
    };

    /// Text of the metadata: id, size, flags, times of modification, change and access, mode, owner, group. File systems
    /// rarely keep the time of access: that of the modification stands for it.
    #[must_use]
    pub fn text(&self) -> String {
        const EXECUTABLE_FLAG: u32 = 1;
        const DIRECTORY_FLAG: u32 = 2;
        const OTHER_FLAG: u32 = 4;
        const READABLE_FLAG: u32 = 16;
        let flags = READABLE_FLAG
            | match self.kind {
                ListedKind::File if self.mode & 0o111 != 0 => EXECUTABLE_FLAG,
                ListedKind::File => 0,
                ListedKind::Directory => EXECUTABLE_FLAG | DIRECTORY_FLAG,
                ListedKind::Other => OTHER_FLAG,
            };
        format!(
            "{} {} {flags} {} {} {} {:04o} {} {}",
            self.id,
            self.size,
            self.mtime_s,
            self.ctime_s,
            self.mtime_s,
            self.mode & 0o555,
            self.owner.0,
            self.owner.1
        )
    }
}

/// Appends the head of a response.
fn write_head(out: &mut Vec<u8>, stream_id: [u8; 2], status: u16, body_bytes: u32) {
    out.extend_from_slice(&stream_id);
    out.extend_from_slice(&status.to_be_bytes());
    out.extend_from_slice(&body_bytes.to_be_bytes());
}

fn response(stream_id: [u8; 2], status: u16, body: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(body.len()).expect("responses in memory are short");
    let mut out = Vec::with_capacity(RESPONSE_HEAD_BYTES + body.len());
    write_head(&mut out, stream_id, status, bytes);
    out.extend_from_slice(body);
    out
}

/// Response to the handshake.
#[must_use]
pub fn handshake() -> Vec<u8> {
    let body = [PROTOCOL_VERSION.to_be_bytes(), IS_DATA_SERVER.to_be_bytes()].concat();
    response([0, 0], STATUS_OK, &body)
}

/// Response with a whole body.
#[must_use]
pub fn ok(stream_id: [u8; 2], body: &[u8]) -> Vec<u8> {
    response(stream_id, STATUS_OK, body)
}

/// Response with a part of a body, which others follow.
#[must_use]
pub fn partial(stream_id: [u8; 2], body: &[u8]) -> Vec<u8> {
    response(stream_id, STATUS_OK_SO_FAR, body)
}

/// Response with a text, which ends with a NUL byte.
#[must_use]
pub fn text(stream_id: [u8; 2], text: &str) -> Vec<u8> {
    ok(stream_id, &[text.as_bytes(), b"\0"].concat())
}

/// Response with an error.
#[must_use]
pub fn error(stream_id: [u8; 2], error: &XrdError) -> Vec<u8> {
    let mut end = error.text.len().min(ERROR_TEXT_BYTES_MAX);
    while !error.text.is_char_boundary(end) {
        end -= 1;
    }
    let text = error.text[..end].replace('\0', " ");
    let code = (error.code as u32).to_be_bytes();
    response(stream_id, STATUS_ERROR, &[&code, text.as_bytes(), b"\0"].concat())
}

/// Response that asks the client to send the request again after a pause.
#[must_use]
pub fn wait(stream_id: [u8; 2], seconds: u32, reason: &str) -> Vec<u8> {
    let body = [&seconds.to_be_bytes(), reason.as_bytes(), b"\0"].concat();
    response(stream_id, STATUS_WAIT, &body)
}

/// Response that sends the client with this request to another server. `opaque` joins the opaque part of its path there, in
/// place of values of the same names. With `is_encrypted` the client uses TLS there: a negative port stands for a URL in
/// place of the host.
#[must_use]
pub fn redirect(
    stream_id: [u8; 2],
    (host, port): (&str, u16),
    opaque: &str,
    is_encrypted: bool,
) -> Vec<u8> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let (number, target) = if is_encrypted {
        (REDIRECT_TO_URL, format!("roots://{host}:{port}/?{opaque}"))
    } else {
        (port.into(), format!("{host}?{opaque}"))
    };
    response(stream_id, STATUS_REDIRECT, &[&number.to_be_bytes(), target.as_bytes()].concat())
}

/// Response to `protocol`, with the encryption that the server demands.
#[must_use]
pub fn protocol(stream_id: [u8; 2], tls: TlsDemand) -> Vec<u8> {
    let demanded = TLS_DATA | TLS_LOGIN | TLS_SESSION;
    let flags = IS_DATA_SERVER
        | HAVE_TLS
        | match tls {
            TlsDemand::Optional => 0,
            TlsDemand::InUse => demanded,
            TlsDemand::Start => GOTO_TLS | demanded,
        };
    ok(stream_id, &[PROTOCOL_VERSION.to_be_bytes(), flags.to_be_bytes()].concat())
}

/// Response to `login`. With `needs_token` the client authenticates by `ztn` next.
#[must_use]
pub fn login(stream_id: [u8; 2], session: &[u8; 16], needs_token: bool) -> Vec<u8> {
    let mut body = session.to_vec();
    if needs_token {
        // Version 0 and the longest token.
        body.extend_from_slice(format!("&P=ztn,0:{TOKEN_BYTES_MAX}:\0").as_bytes());
    }
    ok(stream_id, &body)
}

/// Response to `open`: handle, no compression, metadata if the client asked for it.
#[must_use]
pub fn open(stream_id: [u8; 2], handle: XrdFileHandle, stat: Option<&XrdStat>) -> Vec<u8> {
    let mut body = handle.0.to_be_bytes().to_vec();
    body.extend_from_slice(&[0; 8]);
    if let Some(stat) = stat {
        body.extend_from_slice(stat.text().as_bytes());
        body.push(0);
    }
    ok(stream_id, &body)
}

/// Appends the head of a response with `bytes` bytes of files.
pub fn write_data_head(out: &mut Vec<u8>, stream_id: [u8; 2], status: DataStatus, bytes: u32) {
    let status = match status {
        DataStatus::Partial => STATUS_OK_SO_FAR,
        DataStatus::Final => STATUS_OK,
    };
    write_head(out, stream_id, status, bytes);
}

/// Appends the head of a segment in the response to a vector read; its bytes follow.
pub fn write_segment_head(out: &mut Vec<u8>, segment: &ReadSegment) {
    out.reserve(READV_SEGMENT_HEAD_BYTES);
    out.extend_from_slice(&segment.handle.0.to_be_bytes());
    out.extend_from_slice(&segment.bytes.to_be_bytes());
    out.extend_from_slice(&segment.offset.to_be_bytes());
}

/// Body of a listing in parts: the first names the form, the last ends with NUL instead of a line feed.
#[derive(Debug)]
pub struct ListingBody {
    with_stat: bool,
    bytes: Vec<u8>,
}

impl ListingBody {
    /// Begins a listing, with or without metadata of its entries.
    #[must_use]
    pub fn new(with_stat: bool) -> Self {
        let bytes = if with_stat { b".\n0 0 0 0\n".to_vec() } else { Vec::new() };
        Self { with_stat, bytes }
    }

    /// Adds an entry; false for a name that a listing cannot hold.
    pub fn push(&mut self, name: &[u8], stat: &XrdStat) -> bool {
        if name.contains(&b'\n') || name.contains(&0) || name.is_empty() {
            return false;
        }
        self.bytes.extend_from_slice(name);
        self.bytes.push(b'\n');
        if self.with_stat {
            self.bytes.extend_from_slice(stat.text().as_bytes());
            self.bytes.push(b'\n');
        }
        true
    }

    /// Length of the present part.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the present part as a response.
    #[must_use]
    pub fn take(&mut self, stream_id: [u8; 2], status: DataStatus) -> Vec<u8> {
        let mut body = std::mem::take(&mut self.bytes);
        match status {
            DataStatus::Partial => partial(stream_id, &body),
            DataStatus::Final => {
                if let Some(last) = body.last_mut() {
                    *last = 0;
                }
                ok(stream_id, &body)
            }
        }
    }
}
