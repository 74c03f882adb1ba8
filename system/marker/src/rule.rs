//! Labelling rules: match and action, as plain values independent of the kernel's maps.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use penstock_scitags::tag::FirefliesOnly;
use penstock_scitags::{FlowLabel, Scitag};

/// Packet fields that carry the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Flow label of the IPv6 header.
    Label,
    /// IPv6 Destination Options header of 8 bytes.
    Destination,
    /// Flow label and Destination Options header.
    Both,
    /// Unlabelled, even if a less specific rule matches.
    None,
}

impl Method {
    /// Encodes as bits: 1 label, 2 destination option, 4 explicitly unlabelled.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::Label => 1,
            Self::Destination => 2,
            Self::Both => 3,
            Self::None => 4,
        }
    }

    /// Decodes the bits of [`Self::bits`].
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        [Self::Label, Self::Destination, Self::Both, Self::None]
            .into_iter()
            .find(|method| method.bits() == bits)
    }

    /// True if packets get a destination option.
    #[must_use]
    pub fn has_destination(self) -> bool {
        self.bits() & 2 != 0
    }

    /// Name: `label`, `destination`, `both` or `none`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Destination => "destination",
            Self::Both => "both",
            Self::None => "none",
        }
    }
}

/// A part of a rule that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleValueError {
    /// No name of a method.
    #[error("'{0}' is no way to label: use flow, destination, both or none")]
    Method(String),
    /// An IPv4 address.
    #[error("'{0}' is IPv4, which has no flow label: rules are for IPv6 addresses")]
    Ipv4(String),
    /// No address or prefix.
    #[error("'{0}' is no IPv6 address or prefix: write it like 2001:db8::/32")]
    Prefix(String),
    /// No length of a prefix.
    #[error("'{0}': a prefix has 0 to 128 bits")]
    PrefixLength(String),
    /// An address with bits behind the length of its prefix.
    #[error("'{text}' has bits beyond its length: write {prefix}")]
    HostBits {
        /// The prefix as given.
        text: String,
        /// The prefix without these bits.
        prefix: Prefix,
    },
    /// No name of a transport protocol.
    #[error("'{0}' is no protocol with ports: use tcp, udp or sctp")]
    Protocol(String),
}

/// Parses a name; `flow` is an alias of `label`.
impl FromStr for Method {
    type Err = RuleValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "label" | "flow" => Ok(Self::Label),
            "destination" => Ok(Self::Destination),
            "both" => Ok(Self::Both),
            "none" => Ok(Self::None),
            _ => Err(RuleValueError::Method(text.to_owned())),
        }
    }
}

/// A tag and the method by which packets carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelAction {
    tag: Scitag,
    method: Method,
}

impl LabelAction {
    /// Creates an action of a tag and a method.
    ///
    /// # Errors
    /// For owners that packets cannot carry.
    pub fn new(tag: Scitag, method: Method) -> Result<Self, FirefliesOnly> {
        tag.fits_on_packets()?;
        Ok(Self { tag, method })
    }

    /// Tag that the packets get.
    #[must_use]
    pub fn tag(self) -> Scitag {
        self.tag
    }

    /// Method by which packets carry the tag.
    #[must_use]
    pub fn method(self) -> Method {
        self.method
    }

    /// Flow label without entropy bits.
    pub(crate) fn base_label(self) -> u32 {
        FlowLabel::new(self.tag, 0).map_or(0, FlowLabel::value)
    }
}

/// A prefix of IPv6 addresses; the bits beyond its length are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    bits: u128,
    length: u8,
}

impl Prefix {
    /// Prefix of length 0, which contains all addresses.
    pub const ALL: Self = Self { bits: 0, length: 0 };

    /// Creates the prefix of `length` bits, at most 128, that contains `address`.
    #[must_use]
    pub fn new(address: Ipv6Addr, length: u8) -> Self {
        let length = length.min(128);
        Self { bits: address.to_bits() & mask(length), length }
    }

    /// True if the prefix has this address, IPv4 as IPv4-mapped.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self::new(address, self.length) == self
    }

    /// First address of the prefix.
    #[must_use]
    pub fn address(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.bits)
    }

    /// Prefix length in bits, 0..=128.
    #[must_use]
    pub fn length(self) -> u8 {
        self.length
    }
}

/// Mask of the first `length` bits.
pub(crate) fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

/// Parses `2001:db8::/32`, or an address without length.
impl FromStr for Prefix {
    type Err = RuleValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, length) = text.split_once('/').unwrap_or((text, "128"));
        let v4 = address.parse::<std::net::Ipv4Addr>().is_ok();
        let address: Ipv6Addr = address.parse().map_err(|_| {
            if v4 {
                RuleValueError::Ipv4(text.to_owned())
            } else {
                RuleValueError::Prefix(text.to_owned())
            }
        })?;
        let length: u8 = length
            .parse()
            .ok()
            .filter(|length| *length <= 128)
            .ok_or_else(|| RuleValueError::PrefixLength(text.to_owned()))?;
        let prefix = Self::new(address, length);
        if prefix.address() != address {
            return Err(RuleValueError::HostBits { text: text.to_owned(), prefix });
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length {
            128 => write!(f, "{}", self.address()),
            length => write!(f, "{}/{length}", self.address()),
        }
    }
}

/// Transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, protocol number 6.
    Tcp,
    /// UDP, protocol number 17.
    Udp,
    /// SCTP, protocol number 132.
    Sctp,
}

impl Protocol {
    /// Protocol number in the IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Returns the protocol of a number; `None` for others.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|one| one.number() == number)
    }

    /// Name: `tcp`, `udp` or `sctp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl FromStr for Protocol {
    type Err = RuleValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|one| one.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| RuleValueError::Protocol(text.to_owned()))
    }
}

/// Match of packets by addresses, ports and protocol; `None` matches any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressMatch {
    /// Prefix of the source address.
    pub source: Prefix,
    /// Prefix of the destination address.
    pub destination: Prefix,
    /// Transport source port; `None` matches any.
    pub source_port: Option<u16>,
    /// Transport destination port; `None` matches any.
    pub destination_port: Option<u16>,
    /// Transport protocol; `None` matches any protocol.
    pub protocol: Option<Protocol>,
}

impl AddressMatch {
    /// Matches every IPv6 packet.
    pub const ALL: Self = Self {
        source: Prefix::ALL,
        destination: Prefix::ALL,
        source_port: None,
        destination_port: None,
        protocol: None,
    };
}

impl fmt::Display for AddressMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = |port: Option<u16>| port.map_or("any".to_owned(), |port| port.to_string());
        let protocol = self.protocol.map_or("any", Protocol::as_str);
        write!(
            f,
            "{protocol} from {} port {} to {} port {}",
            self.source,
            port(self.source_port),
            self.destination,
            port(self.destination_port)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_read_and_print_alike() {
        for text in ["::/0", "2001:db8::/32", "2001:db8::1", "fe80::/10"] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("192.0.2.1", "is IPv4"),
            ("2001:db8::1/64", "write 2001:db8::/64"),
            ("2001:db8::/129", "0 to 128"),
            ("se1", "write it like"),
        ] {
            assert!(text.parse::<Prefix>().unwrap_err().to_string().contains(words), "{text}");
        }
        assert_eq!((mask(0), mask(1), mask(128)), (0, 1 << 127, u128::MAX));
    }

    #[test]
    fn methods_round_trip() {
        for method in [Method::Label, Method::Destination, Method::Both, Method::None] {
            assert_eq!(Method::from_bits(method.bits()), Some(method));
            assert_eq!(method.as_str().parse(), Ok(method));
        }
        assert_eq!("flow".parse(), Ok(Method::Label));
        assert_eq!(Method::from_bits(0), None);
    }

    #[test]
    fn owner_beyond_label_is_refused() {
        let tag = Scitag::new(600, 1).unwrap();
        assert!(LabelAction::new(tag, Method::Label).is_err());
    }
}
