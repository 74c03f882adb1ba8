//! Collectors of fireflies, and the scitag of a transfer.

use std::net::{SocketAddr, ToSocketAddrs};

use penstock_daemon::config::values::ListenAddress;
use penstock_protocol::open::{Mark, PacketLabel};
use penstock_scitags::Scitag;
use penstock_scitags::firefly::FIREFLY_PORT;

/// An address of a collector that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectorAddressError {
    /// The text is no address.
    #[error("'{0}' is no address of a collector: write HOST or HOST:PORT")]
    Malformed(String),
    /// The host does not resolve.
    #[error("cannot find host '{host}' ({reason}): check its name")]
    Unresolved {
        /// Name of the host.
        host: String,
        /// Error of the resolver.
        reason: String,
    },
}

/// Resolves a collector given as HOST or HOST:PORT.
///
/// # Errors
/// When the text does not parse, or the host does not resolve.
pub fn resolve(text: &str) -> Result<SocketAddr, CollectorAddressError> {
    address(&text.parse().map_err(|_| CollectorAddressError::Malformed(text.to_owned()))?)
}

/// Resolves the address of a collector, as host and port.
///
/// # Errors
/// When the host does not resolve.
pub fn address(collector: &ListenAddress) -> Result<SocketAddr, CollectorAddressError> {
    let host = collector.host.as_str();
    let failed =
        |reason: String| CollectorAddressError::Unresolved { host: host.to_owned(), reason };
    (host, collector.port.unwrap_or(FIREFLY_PORT))
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?
        .next()
        .ok_or_else(|| failed("no address".to_owned()))
}

/// Scitag that the operator sets for the data of an export or of a token's bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagRule {
    /// Owner and activity of the flow.
    pub tag: Scitag,
    /// True if the scitag overrides that of the client.
    pub force: bool,
}

/// Mark of a transfer: the forced scitag, else the client's, else the default; of two rules the token's wins.
#[must_use]
pub fn decide(
    token: Option<TagRule>,
    export: Option<TagRule>,
    requested: Option<Mark>,
) -> Option<Mark> {
    let rules = || [token, export].into_iter().flatten();
    let label = requested.map_or(PacketLabel::Flow, |mark| mark.label);
    let mark =
        |rule: TagRule| u16::try_from(rule.tag.number()).ok().map(|scitag| Mark { scitag, label });
    match (rules().find(|rule| rule.force), requested) {
        (Some(forced), _) => mark(forced),
        (None, Some(requested)) => Some(requested),
        (None, None) => rules().next().and_then(mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(owner: u64, force: bool) -> Option<TagRule> {
        Some(TagRule { tag: Scitag::new(owner, 1).unwrap(), force })
    }

    fn owner(mark: Option<Mark>) -> Option<u16> {
        mark.map(|mark| mark.scitag >> 6)
    }

    #[test]
    fn forced_tag_precedes_requested_and_default() {
        let requested = Some(Mark { scitag: 9 << 6 | 1, label: PacketLabel::None });
        assert_eq!(owner(decide(None, None, None)), None);
        assert_eq!(owner(decide(rule(2, false), rule(3, false), None)), Some(2));
        assert_eq!(owner(decide(None, rule(3, false), None)), Some(3));
        assert_eq!(owner(decide(rule(2, false), rule(3, false), requested)), Some(9));
        assert_eq!(owner(decide(rule(2, false), rule(3, true), requested)), Some(3));
        assert_eq!(owner(decide(rule(2, true), rule(3, true), requested)), Some(2));
        // The client chooses how packets carry it.
        assert_eq!(
            decide(rule(2, true), None, requested).map(|mark| mark.label),
            Some(PacketLabel::None)
        );
    }

    #[test]
    fn collector_default_port_is_10514() {
        assert_eq!(resolve("127.0.0.1"), Ok("127.0.0.1:10514".parse().unwrap()));
        assert_eq!(resolve("[::1]:99"), Ok("[::1]:99".parse().unwrap()));
        assert!(resolve("a b").unwrap_err().to_string().contains("HOST:PORT"));
    }
}
