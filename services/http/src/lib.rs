//! The HTTP server that all roles of `penstock serve` share, and the client for single documents.
//!
//! For: connections with their bounds ([`server`]), errors as they are answered ([`ApiError`]), who may read without
//! a token ([`access`]), what a role brings ([`Role`]), fetching or posting one document elsewhere ([`fetch`]), and asking
//! one server again and again ([`client`]).
//! Not for: what a role answers. [`tokens`] says whose a bearer token is.

#![forbid(unsafe_code)]

pub mod access;
pub mod client;
mod error;
pub mod fetch;
mod role;
pub mod server;
pub mod tokens;

use std::time::Duration;

pub use access::Caller;
pub use error::{ApiError, ErrorBody, PROBLEM_JSON, as_problem, error_text};
pub use role::Role;

/// Longest body of a request.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Longest request line with headers.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Most connections at once, where the operator does not say.
pub const CONNECTIONS_MAX: usize = 256;

/// Time for a TLS handshake, and for the headers of a request; an idle connection ends after it too.
pub const HEAD_TIME: Duration = Duration::from_secs(10);

/// Time for a request with its body, and for its answer to begin.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);

/// A client that takes nothing of an answer for so long is dropped.
pub const TAKE_TIME: Duration = Duration::from_secs(30);
