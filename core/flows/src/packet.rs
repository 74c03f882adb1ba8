//! Parser from the first bytes of a packet to its flow.
//!
//! One pass goes through Ethernet, VLAN tags, MPLS, IPv4, IPv6 with its extension headers, GRE and
//! VXLAN, and keeps the outermost and the innermost IP header. A sample has about the first 128
//! bytes of a packet; where they end the parser stops ([`ParseEnd::Cut`]) with all that it found.
//! It never panics, never allocates, and takes time proportional to the bytes.
//!
//! Not for: reassembly, payload, or the meaning of labels (`crate::scitag`).

mod ethernet;
mod ip;
mod mpls;
mod tunnel;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use penstock_scitags::option::PacketMark;

use crate::sflow::xdr::Mac;

/// Most VLAN tags that are parsed.
pub const VLANS_MAX: u8 = 8;

/// Most MPLS labels that are parsed.
pub const MPLS_LABELS_MAX: u8 = 16;

/// Most extension headers of one IPv6 header. RFC 8200 4.1 lists seven, one of them twice.
pub const EXTENSIONS_MAX: u8 = 12;

/// Most nested tunnels that are parsed.
pub const TUNNELS_MAX: u8 = 4;

/// An address of either version as one number; IPv4 addresses are mapped (RFC 4291 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MappedAddress(pub u128);

impl From<IpAddr> for MappedAddress {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
            IpAddr::V6(ip) => ip.into(),
        })
    }
}

impl MappedAddress {
    /// Address in its own version.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// Clears all but the first `bits` bits; for IPv4, of its 32.
    #[must_use]
    pub fn prefix(self, bits: u8) -> Self {
        let bits = if self.ip().is_ipv4() { bits.min(32) + 96 } else { bits.min(128) };
        Self(self.0 & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0))
    }
}

impl fmt::Display for MappedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for MappedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

/// IP version of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Five-tuple of a flow. Ports are 0 for protocols without ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// Address of the sender.
    pub source: MappedAddress,
    /// Address of the receiver.
    pub destination: MappedAddress,
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// IANA protocol number: 6 TCP, 17 UDP.
    pub protocol: u8,
}

/// Hashes three words for speed, because every sample is hashed.
impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.source.0);
        state.write_u128(self.destination.0);
        let ports = u64::from(self.source_port) << 16 | u64::from(self.destination_port);
        state.write_u64(ports << 8 | u64::from(self.protocol));
    }
}

impl FlowKey {
    /// Five-tuple of the reverse direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Set of IPv6 extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extensions(u8);

impl Extensions {
    /// Hop-by-Hop options, protocol number 0.
    pub const HOP_BY_HOP: Self = Self(1);
    /// Destination options, protocol number 60.
    pub const DESTINATION: Self = Self(2);
    /// Routing header, protocol number 43.
    pub const ROUTING: Self = Self(4);
    /// Fragment header, protocol number 44.
    pub const FRAGMENT: Self = Self(8);
    /// Authentication header, protocol number 51.
    pub const AUTHENTICATION: Self = Self(16);
    /// Mobility, HIP or Shim6 header, protocol numbers 135, 139 and 140.
    pub const OTHER: Self = Self(32);

    /// Returns true if all of `these` are present.
    #[must_use]
    pub const fn has(self, these: Self) -> bool {
        self.0 & these.0 == these.0
    }

    const fn add(&mut self, these: Self) {
        self.0 |= these.0;
    }
}

/// An IP header with the ports behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpHeader {
    /// IP version, 4 or 6.
    pub version: IpVersion,
    /// Address of the sender.
    pub source: MappedAddress,
    /// Address of the receiver.
    pub destination: MappedAddress,
    /// Protocol behind all extension headers.
    pub protocol: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// Flow label of 20 bits; 0 in IPv4.
    pub flow_label: u32,
    /// Packet length with header; 0 if the header has none (super-packets of a host).
    pub length_bytes: u32,
    /// True for fragments. Only the first one has ports.
    pub fragment: bool,
    /// Extension headers that were parsed.
    pub extensions: Extensions,
    /// Scitags option of the Hop-by-Hop header.
    pub hop_by_hop_mark: Option<PacketMark>,
    /// Scitags option of a Destination Options header.
    pub destination_mark: Option<PacketMark>,
    /// Ports of TCP, UDP, SCTP, DCCP and UDP-Lite, if the sample includes them.
    pub ports: Option<(u16, u16)>,
    /// TCP flags; 0 for other protocols.
    pub tcp_flags: u8,
}

impl IpHeader {
    /// Five-tuple of the packet.
    #[must_use]
    pub fn flow(&self) -> FlowKey {
        let (source_port, destination_port) = self.ports.unwrap_or_default();
        FlowKey {
            source: self.source,
            destination: self.destination,
            source_port,
            destination_port,
            protocol: self.protocol,
        }
    }
}

/// Outermost tunnel of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// IP in IP (protocols 4 and 41).
    Ip,
    /// GRE (RFC 2784, 2890), with its key.
    Gre(Option<u32>),
    /// VXLAN (RFC 7348), with its network.
    Vxlan(u32),
    /// MPLS in IP (RFC 4023).
    Mpls,
}

/// Reason why the parser stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParseEnd {
    /// It reached a transport header, or another one that it does not parse.
    #[default]
    Upper,
    /// The bytes end within a header.
    Cut,
    /// It reached a fragment other than the first.
    Fragment,
    /// It reached an encrypted payload (ESP).
    Encrypted,
    /// It reached an unknown ethertype, version or header.
    Unknown,
    /// It reached one of this module's limits.
    TooDeep,
}

/// Headers found in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// Source and destination MAC of the outermost frame.
    pub macs: Option<(Mac, Mac)>,
    /// VLAN id of the outermost tag.
    pub vlan: Option<u16>,
    /// Inner VLAN of two tags (QinQ).
    pub inner_vlan: Option<u16>,
    /// Outermost MPLS label, 20 bits.
    pub mpls_label: Option<u32>,
    /// Depth of the outer MPLS stack.
    pub mpls_depth: u8,
    /// Outermost IP header, if any.
    pub outer: Option<IpHeader>,
    /// Innermost IP header, if a tunnel contains one.
    pub inner: Option<IpHeader>,
    /// Outermost tunnel, if any.
    pub tunnel: Option<Tunnel>,
    /// Offset of the payload of the innermost TCP or UDP header in bytes; `None` if the parser
    /// found no such header or not its end.
    pub payload_at: Option<u16>,
    /// Reason why the parser stopped.
    pub ended: ParseEnd,
}

/// First header of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstHeader {
    /// Ethernet, from the destination address on.
    Ethernet,
    /// IPv4 or IPv6, by the first four bits.
    Ip,
    /// MPLS label stack.
    Mpls,
}

impl FirstHeader {
    /// Maps the header protocol of sFlow; `None` for unsupported ones.
    #[must_use]
    pub const fn of_sflow(protocol: u32) -> Option<Self> {
        use crate::sflow::record::{HEADER_ETHERNET, HEADER_IPV4, HEADER_IPV6, HEADER_MPLS};
        match protocol {
            HEADER_ETHERNET => Some(Self::Ethernet),
            HEADER_IPV4 | HEADER_IPV6 => Some(Self::Ip),
            HEADER_MPLS => Some(Self::Mpls),
            _ => None,
        }
    }
}

impl Packet {
    /// Parses `bytes`, which begin with `start`.
    #[must_use]
    pub fn read(start: FirstHeader, bytes: &[u8]) -> Self {
        let mut packet = Self::default();
        packet.walk(start, bytes);
        packet
    }

    /// Parses `bytes` and fills the fields that are still empty.
    pub fn walk(&mut self, start: FirstHeader, bytes: &[u8]) {
        let mut walk = PacketParser { packet: self, tunnels: 0, start: bytes.as_ptr().addr() };
        let mut step = match start {
            FirstHeader::Ethernet => ParseStep::Ethernet(bytes),
            FirstHeader::Ip => ParseStep::Ip(bytes),
            FirstHeader::Mpls => ParseStep::Mpls(bytes),
        };
        // Each step leaves fewer bytes, so the loop ends.
        walk.packet.ended = loop {
            step = match step {
                ParseStep::Ethernet(rest) => walk.ethernet(rest),
                ParseStep::EtherType(kind, rest) => walk.ether_type(kind, rest),
                ParseStep::Mpls(rest) => walk.mpls(rest),
                ParseStep::Ip(rest) => walk.ip(rest),
                ParseStep::Upper(protocol, rest) => walk.upper(protocol, rest),
                ParseStep::End(ended) => break ended,
            };
        };
    }

    /// Header whose flow the packet counts for: the innermost.
    #[must_use]
    pub fn ip(&self) -> Option<&IpHeader> {
        self.inner.as_ref().or(self.outer.as_ref())
    }
}

/// Next header, with the bytes from there on.
enum ParseStep<'a> {
    Ethernet(&'a [u8]),
    EtherType(u16, &'a [u8]),
    Mpls(&'a [u8]),
    Ip(&'a [u8]),
    Upper(u8, &'a [u8]),
    End(ParseEnd),
}

struct PacketParser<'p> {
    packet: &'p mut Packet,
    tunnels: u8,
    /// Address of the first byte.
    start: usize,
}

impl PacketParser<'_> {
    /// IP header that is being parsed.
    fn current(&mut self) -> Option<&mut IpHeader> {
        if self.packet.inner.is_some() {
            self.packet.inner.as_mut()
        } else {
            self.packet.outer.as_mut()
        }
    }

    /// Records a tunnel; `inside` is the step into it.
    fn enter<'a>(&mut self, tunnel: Tunnel, inside: ParseStep<'a>) -> ParseStep<'a> {
        if self.tunnels == TUNNELS_MAX {
            return ParseStep::End(ParseEnd::TooDeep);
        }
        self.tunnels += 1;
        self.packet.tunnel.get_or_insert(tunnel);
        inside
    }
}

fn be16(bytes: [u8; 2]) -> u16 {
    u16::from_be_bytes(bytes)
}
