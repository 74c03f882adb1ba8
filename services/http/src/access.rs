//! Access without a token.
//!
//! Any web page can make a browser on this machine send requests to its loopback address, under a name that the
//! page's owner points there (DNS rebinding). So the Host header of a request without a token must be an address or
//! a known name of this machine.

use std::net::IpAddr;
use std::str::FromStr;

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};

use crate::server::PeerAddress;

/// Longest part of a Host header that an error shows.
const HOST_CHARS_MAX: usize = 100;

/// Clients that may read without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadAccess {
    /// Clients of any address.
    Open,
    /// Programs on this machine.
    #[default]
    Loopback,
    /// No client.
    Token,
}

/// A text that is no [`ReadAccess`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' does not say who reads without a token: write open, loopback or token")]
pub struct ReadAccessError(String);

/// The Host header of a request without a token names another machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not known as a name of this machine: ask by its address, list the name in [http] names, or give a token (Authorization: Bearer TOKEN)"
)]
pub struct UnknownHostError(String);

impl FromStr for ReadAccess {
    type Err = ReadAccessError;

    fn from_str(text: &str) -> Result<Self, ReadAccessError> {
        match text {
            "open" => Ok(Self::Open),
            "loopback" => Ok(Self::Loopback),
            "token" => Ok(Self::Token),
            _ => Err(ReadAccessError(text.to_owned())),
        }
    }
}

/// Clients that may read without a token, and the names of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadPolicy {
    /// Clients by their address.
    pub read: ReadAccess,
    /// Names accepted in the Host header besides the host name.
    pub names: Vec<String>,
}

/// Identity of a client, as an extension of the request, for roles that check access themselves
/// ([`crate::ServiceRole::guards`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiCaller {
    /// The bearer of the node's own token.
    Owner,
    /// A client without a token that may read.
    Reader,
    /// The bearer of this token, which is not the node's own.
    Bearer(String),
    /// A client without a token that may not read, with the reason.
    Unauthorized(String),
}

/// Returns true if `request` comes from this machine.
fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<PeerAddress>();
    peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback())
}

impl ReadPolicy {
    /// Returns true if `request` needs no token.
    ///
    /// # Errors
    /// If only the name in the Host header is wrong.
    pub fn allows(&self, request: &Request) -> Result<bool, UnknownHostError> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let from_there = match self.read {
            ReadAccess::Open => true,
            ReadAccess::Loopback => is_local(request),
            ReadAccess::Token => false,
        };
        if !reads || !from_there {
            return Ok(false);
        }
        match self.knows(host(request.headers())) {
            true => Ok(true),
            false => {
                let name = host(request.headers()).chars().filter(|c| !c.is_control());
                Err(UnknownHostError(name.take(HOST_CHARS_MAX).collect()))
            }
        }
    }

    fn knows(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.parse::<IpAddr>().is_ok() || bare.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        !bare.is_empty()
            && (bare.eq_ignore_ascii_case(&own)
                || self.names.iter().any(|name| name.eq_ignore_ascii_case(bare)))
    }
}

/// Host header without its port.
fn host(headers: &HeaderMap) -> &str {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::Body;

    use super::*;

    fn request(method: Method, host: &str, peer: &str) -> Request {
        let mut request =
            Request::builder().method(method).header("host", host).body(Body::empty()).unwrap();
        let peer: SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(PeerAddress(peer));
        request
    }

    #[test]
    fn tokenless_reads_need_a_known_host() {
        let reading = |read| ReadPolicy { read, names: vec!["dtn1.example.org".into()] };
        let (here, there) = ("127.0.0.1:9", "192.0.2.1:9");
        let ask = |read, host, peer| reading(read).allows(&request(Method::GET, host, peer));
        for host in ["127.0.0.1:8621", "[::1]:8621", "localhost", "LOCALHOST:1", "DTN1.example.org"]
        {
            assert_eq!(ask(ReadAccess::Loopback, host, here), Ok(true), "{host}");
            assert_eq!(ask(ReadAccess::Open, host, there), Ok(true), "{host}");
            assert_eq!(ask(ReadAccess::Loopback, host, there), Ok(false));
            assert_eq!(ask(ReadAccess::Token, host, here), Ok(false));
        }
        for host in ["evil.example.com:8621", "", "localhost.evil.example", "127.0.0.1.evil:80"] {
            assert!(
                ask(ReadAccess::Loopback, host, here)
                    .unwrap_err()
                    .to_string()
                    .contains("[http] names"),
                "{host}"
            );
        }
        assert_eq!(ask(ReadAccess::Loopback, "[::1]:8621", "[::ffff:127.0.0.1]:1"), Ok(true));
        let change = request(Method::POST, "localhost", here);
        assert_eq!(reading(ReadAccess::Open).allows(&change), Ok(false));
    }
}
