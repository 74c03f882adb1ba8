//! The HTTP server shared by all roles of `penstock serve`, and HTTP clients.
//!
//! For: bounded connections ([`server`]), problem documents ([`ProblemDetails`]), reading without a token
//! ([`access`]), bearer tokens ([`tokens`]), the interface of a role ([`ServiceRole`]), metrics ([`metrics`]), and the client of all
//! programs ([`client`]), that of storages of other software ([`storage_client`]), and kinds of addresses ([`special_address`]). Not for: the endpoints of a role.

#![forbid(unsafe_code)]

pub mod access;
pub mod client;
mod connection_tracker;
mod crypto;
mod documented_responses;
pub mod documented_values;
mod head_scanner;
pub mod issued_tokens;
mod lingering_stream;
mod malformed;
pub mod metrics;
mod problem;
mod query_params;
mod revocable_body;
mod role;
pub mod server;
pub mod special_address;
pub mod storage_client;
pub mod tokens;

use std::time::Duration;

pub use access::ApiCaller;
pub use client::{HttpClient, HttpError, HttpRequest, HttpResponse, ServerTrust, Url, fetch};
pub use crypto::crypto_provider;
pub use documented_responses::{Refused, Unavailable};
pub use metrics::MetricWriter;
pub use problem::{FieldProblem, PROBLEM_JSON, ProblemDetails, error_text};
pub use query_params::{QueryParams, RawQuery};
pub use revocable_body::{RightsCheck, revocable};
pub use role::{RoleReloadError, ServiceRole};

/// Longest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Longest request line with headers, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Default limit of open connections.
pub const CONNECTIONS_MAX: usize = 256;

/// Time limit of a TLS handshake, and of the headers of a request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a connection without a request is closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Time limit of a request with its body, until its answer begins.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a client that reads nothing of an answer is dropped.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);
