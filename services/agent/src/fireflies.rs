//! Where fireflies go, and whose data an operator says it is.

use std::net::{SocketAddr, ToSocketAddrs};

use penstock_protocol::open::{Mark, PacketLabel};
use penstock_scitags::Scitag;
use penstock_scitags::firefly::FIREFLY_PORT;

use crate::config::Listen;

/// The address of a collector, given as HOST or HOST:PORT.
///
/// # Errors
/// When it is no address, or the host has none.
pub fn resolve(place: &str) -> Result<SocketAddr, String> {
    let bad = || format!("'{place}' is no place of a collector: write HOST or HOST:PORT");
    let place: Listen = place.parse().map_err(|_| bad())?;
    address(&place)
}

/// The address of a collector.
///
/// # Errors
/// When the host has none.
pub fn address(place: &Listen) -> Result<SocketAddr, String> {
    let failed = |why: String| format!("cannot find host '{}' ({why}): check its name", place.host);
    (place.host.as_str(), place.port.unwrap_or(FIREFLY_PORT))
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?
        .next()
        .ok_or_else(|| failed("no address".to_owned()))
}

/// What an operator says of the data of an export, or of the bearer of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagRule {
    /// Whose it is and what for.
    pub tag: Scitag,
    /// Whatever the client says.
    pub force: bool,
}

/// The mark of a transfer: what is forced, else what the client asked for, else what is usual; of two
/// rules the token's goes first.
#[must_use]
pub fn decide(
    token: Option<TagRule>,
    export: Option<TagRule>,
    asked: Option<Mark>,
) -> Option<Mark> {
    let rules = || [token, export].into_iter().flatten();
    let label = asked.map_or(PacketLabel::Flow, |mark| mark.label);
    let mark =
        |rule: TagRule| u16::try_from(rule.tag.number()).ok().map(|scitag| Mark { scitag, label });
    match (rules().find(|rule| rule.force), asked) {
        (Some(forced), _) => mark(forced),
        (None, Some(asked)) => Some(asked),
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
    fn what_is_forced_goes_before_what_is_asked_and_that_before_what_is_usual() {
        let asked = Some(Mark { scitag: 9 << 6 | 1, label: PacketLabel::None });
        assert_eq!(owner(decide(None, None, None)), None);
        assert_eq!(owner(decide(rule(2, false), rule(3, false), None)), Some(2));
        assert_eq!(owner(decide(None, rule(3, false), None)), Some(3));
        assert_eq!(owner(decide(rule(2, false), rule(3, false), asked)), Some(9));
        assert_eq!(owner(decide(rule(2, false), rule(3, true), asked)), Some(3));
        assert_eq!(owner(decide(rule(2, true), rule(3, true), asked)), Some(2));
        // How packets say it stays the client's choice.
        assert_eq!(
            decide(rule(2, true), None, asked).map(|mark| mark.label),
            Some(PacketLabel::None)
        );
    }

    #[test]
    fn collectors_have_a_port_of_their_own() {
        assert_eq!(resolve("127.0.0.1"), Ok("127.0.0.1:10514".parse().unwrap()));
        assert_eq!(resolve("[::1]:99"), Ok("[::1]:99".parse().unwrap()));
        assert!(resolve("a b").unwrap_err().contains("HOST:PORT"));
    }
}
