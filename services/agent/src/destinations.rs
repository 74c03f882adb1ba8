//! Destinations to which this agent sends in third-party copies: `third_party.to`.
//!
//! For: keeping clients from using the agent to reach hosts and ports that only the agent can reach. An
//! address is checked after name resolution, as it is connected to.
//!
//! Not for: read access of clients ([`crate::authorizer`]), nor copies through the client.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use penstock_daemon::config::values::ListenAddress;
use penstock_http::special_address::{inner_address, is_link_or_metadata};
use penstock_marker::Prefix;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_sys::net::is_own_address;

/// A set of addresses that files may be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DestinationRule {
    /// Any address, except link-local ones and those of cloud metadata.
    Any,
    /// Addresses that are not of this host, link-local, cloud metadata or multicast.
    Remote,
    /// Addresses of a prefix, IPv4 as IPv4-mapped, and optionally one port.
    Prefix(Prefix, Option<u16>),
    /// Addresses to which a name resolves at the time of the check, and optionally one port.
    Name(String, Option<u16>),
}

/// A text that is no rule of destinations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DestinationRuleError {
    /// `none` among other rules.
    #[error("'none' stands alone: write to = \"none\"")]
    NoneInList,
    /// No name, address or prefix.
    #[error(
        "'{0}' is no destination: write any, remote, a name, or an address or prefix like \
         10.0.0.0/8, each with or without a port ([2001:db8::/32]:8620)"
    )]
    Form(String),
    /// A prefix with an address within it.
    #[error("'{0}' has bits beyond the length of its prefix: drop them")]
    HostBits(String),
}

impl FromStr for DestinationRule {
    type Err = DestinationRuleError;

    fn from_str(text: &str) -> Result<Self, DestinationRuleError> {
        match text {
            "any" => return Ok(Self::Any),
            "remote" => return Ok(Self::Remote),
            "none" => return Err(DestinationRuleError::NoneInList),
            _ => {}
        }
        let bad = || DestinationRuleError::Form(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, rest)) => {
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                let (length, rest) = rest.split_at(digits);
                (format!("{address}{rest}"), Some(length.parse::<u8>().map_err(|_| bad())?))
            }
            None => (text.to_owned(), None),
        };
        let ListenAddress { host, port } = address.parse().map_err(|_| bad())?;
        let Ok(ip) = host.parse::<IpAddr>() else {
            return if length.is_none() { Ok(Self::Name(host, port)) } else { Err(bad()) };
        };
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        if length > most {
            return Err(bad());
        }
        let prefix = Prefix::new(mapped(ip), length + (128 - most));
        if prefix.address() != mapped(ip) {
            return Err(DestinationRuleError::HostBits(text.to_owned()));
        }
        Ok(Self::Prefix(prefix, port))
    }
}

/// A network of `rdma.unencrypted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleartextNetwork(pub Prefix);

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CleartextNetworkError {
    /// No address with a length.
    #[error("'{0}' is no network: write an address or prefix like 10.0.0.0/8 or 2001:db8::/32")]
    Form(String),
    /// A prefix with an address within it.
    #[error(transparent)]
    Prefix(#[from] DestinationRuleError),
}

impl FromStr for CleartextNetwork {
    type Err = CleartextNetworkError;

    fn from_str(text: &str) -> Result<Self, CleartextNetworkError> {
        match text.parse() {
            Ok(DestinationRule::Prefix(prefix, None)) => Ok(Self(prefix)),
            Err(error @ DestinationRuleError::HostBits(_)) => Err(error.into()),
            _ => Err(CleartextNetworkError::Form(text.to_owned())),
        }
    }
}

fn mapped(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// True for addresses of this host, link-local, broadcast and multicast ones, also within an IPv6 address.
fn is_near(ip: IpAddr) -> bool {
    let ip = inner_address(ip);
    let on_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    on_link || ip.is_unspecified() || ip.is_multicast() || is_own_address(ip)
}

impl DestinationRule {
    fn matches(&self, to: SocketAddr, from_here: bool) -> bool {
        let is_port = |port: &Option<u16>| port.is_none_or(|port| port == to.port());
        match self {
            // Even for clients of this host: a service of it may pass on requests of others.
            Self::Any | Self::Remote if is_link_or_metadata(to.ip()) => false,
            Self::Any => true,
            Self::Remote => from_here || !is_near(to.ip()),
            Self::Prefix(prefix, port) => is_port(port) && prefix.contains(to.ip()),
            Self::Name(name, port) => {
                let has = |mut all: std::vec::IntoIter<SocketAddr>| {
                    all.any(|one| one.ip().to_canonical() == to.ip().to_canonical())
                };
                is_port(port) && (name.as_str(), to.port()).to_socket_addrs().is_ok_and(has)
            }
        }
    }
}

/// Value of `third_party.to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRules(pub Vec<DestinationRule>);

impl Default for DestinationRules {
    fn default() -> Self {
        Self(vec![DestinationRule::Remote])
    }
}

impl DestinationRules {
    /// Checks the destination `to`. `from_here` is set where the requester is on this host, and could connect
    /// by itself, or `to` is this agent.
    ///
    /// # Errors
    /// A refusal that names the address, the rule and the remedy.
    pub fn check(&self, to: SocketAddr, from_here: bool) -> Result<(), Refusal> {
        if self.0.iter().any(|one| one.matches(to, from_here)) {
            return Ok(());
        }
        let why = match self.0.as_slice() {
            _ if is_link_or_metadata(to.ip()) => {
                "third_party.to does not name this address of its link or of cloud metadata"
            }
            [] => "third_party.to = \"none\", so it copies with no other server",
            list if list.contains(&DestinationRule::Remote) => {
                "third_party.to has \"remote\", which leaves out addresses of its own host and links"
            }
            _ => "third_party.to does not have it",
        };
        let text = format!(
            "the agent makes no connections to {} for copies: {why}: ask its operator to add \"{0}\" there",
            CanonicalAddress(to)
        );
        Err(Refusal::new(RefusalKind::Permission, text))
    }
}

/// Formats an address with IPv4-mapped ones as IPv4.
struct CanonicalAddress(SocketAddr);

impl fmt::Display for CanonicalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.0.ip().to_canonical(), self.0.port()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> DestinationRules {
        DestinationRules(words.iter().map(|word| word.parse().expect(word)).collect())
    }

    #[track_caller]
    fn check(list: &DestinationRules, to: &str, from_here: bool, allowed: bool) {
        let answer = list.check(to.parse().expect(to), from_here);
        assert_eq!(answer.is_ok(), allowed, "{list:?} {to}: {answer:?}");
    }

    #[test]
    fn default_refuses_local_destinations() {
        let default = DestinationRules::default();
        for far in ["192.0.2.7:8620", "10.1.2.3:22", "[2001:db8::1]:8620", "[::ffff:192.0.2.7]:1"] {
            check(&default, far, false, true);
        }
        for near in [
            "127.0.0.1:8620",
            "127.9.9.9:22",
            "0.0.0.0:22",
            "0.1.2.3:22",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "[::1]:22",
            "[::]:22",
            "[ff02::1]:22",
            "[::ffff:127.0.0.1]:22",
            "[::127.0.0.1]:22",
            "[64:ff9b::7f00:1]:22",
            "[2002:7f00:1::]:22",
        ] {
            check(&default, near, false, false);
            check(&default, near, true, true);
        }
    }

    #[test]
    fn metadata_is_named_or_refused() {
        for to in [
            "169.254.169.254:80",
            "[::ffff:169.254.169.254]:80",
            "[64:ff9b::a9fe:a9fe]:80",
            "[fe80::1]:22",
            "[fd00:ec2::254]:80",
        ] {
            for from_here in [false, true] {
                check(&DestinationRules::default(), to, from_here, false);
                check(&list(&["any"]), to, from_here, false);
            }
        }
        let named = list(&["any", "169.254.0.0/16:80", "fe80::/10"]);
        check(&named, "169.254.169.254:80", false, true);
        check(&named, "[fe80::1]:22", false, true);
    }

    #[test]
    fn only_listed_destinations_are_allowed() {
        let some =
            list(&["10.0.0.0/8:8620", "2001:db8::/32", "[fd00::/8]:1", "192.0.2.7", "localhost:9"]);
        for (to, allowed) in [
            ("10.1.2.3:8620", true),
            ("10.1.2.3:22", false),
            ("[::ffff:10.1.2.3]:8620", true),
            ("11.1.2.3:8620", false),
            ("[2001:db8::5]:22", true),
            ("[2001:db9::5]:22", false),
            ("[fd12::1]:1", true),
            ("[fd12::1]:2", false),
            ("192.0.2.7:1", true),
            ("192.0.2.8:1", false),
            ("127.0.0.1:9", true),
            ("127.0.0.1:10", false),
        ] {
            // A local requester does not widen an explicit list.
            check(&some, to, true, allowed);
        }
        check(&list(&["any"]), "127.0.0.1:22", false, true);
        check(&list(&["remote", "127.0.0.1:22"]), "127.0.0.1:22", false, true);
        let refusal = list(&[]).check("[::ffff:10.0.0.1]:22".parse().unwrap(), true).unwrap_err();
        for words in ["10.0.0.1:22", "third_party.to = \"none\"", "ask its operator to add"] {
            assert!(refusal.text.contains(words), "{}", refusal.text);
        }
    }

    #[test]
    fn invalid_destinations_are_refused() {
        for text in
            ["10.0.0.0/33", "10.0.0.1/8", "dtn/8", "a b", "10.0.0.0/", "dtn:port", "none", ""]
        {
            assert!(text.parse::<DestinationRule>().is_err(), "{text}");
        }
    }
}
