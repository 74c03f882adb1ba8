//! XRootD protocol, the server's side of reading: `root://` of ROOT, xrdcp, gfal2 and uproot.
//!
//! ```text
//! client   handshake ─ protocol ─ login ─ auth ─ stat, dirlist, open ─ read, readv ─ close
//! ```
//!
//! Requests have 24 bytes and a body, responses 8 bytes and a body; numbers are big-endian. A client may send further
//! requests before it has the responses, which carry the stream id of their request. The server announces protocol
//! 0x510, so that clients read without checksums of pages.
//!
//! | module | purpose |
//! |---|---|
//! | [`request`] | handshake and requests, checked against limits |
//! | [`response`] | frames of responses and their bodies |
//! | [`path`] | paths with their opaque part, and the tokens in it |
//! | [`error`] | error codes |
//!
//! Numbers are those of `XProtocol.hh` of XRootD 5.5.3; bodies are those that XrdCl 5.5.3 accepts.
//!
//! Not for: writing, checksums of pages, signed requests, more than one connection for a session.

#![forbid(unsafe_code)]

pub mod error;
pub mod path;
pub mod request;
pub mod response;

pub use error::{XrdError, XrdErrorCode};
pub use path::XrdPath;
pub use request::{RequestHead, XrdRequest};
