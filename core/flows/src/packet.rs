//! From the first bytes of a packet to the flow that it belongs to.
//!
//! One walk goes through Ethernet, VLAN tags, MPLS, IPv4, IPv6 with its extension headers, GRE and VXLAN,
//! and notes the outermost and the innermost IP header. It reads what is there: a sample has the first 128
//! bytes of a packet or so, and where they end the walk ends ([`Ended::Cut`]), with all that it found.
//! It never panics, never allocates, and takes time in proportion to the bytes.
//!
//! Not for: reassembly, payload, or what a label means (`crate::scitag`).

mod ethernet;
mod ip;
mod mpls;
mod tunnel;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use penstock_scitags::option::Mark;

use crate::sflow::xdr::Mac;

/// Most VLAN tags that are walked through.
pub const VLANS_MAX: u8 = 8;

/// Most MPLS labels that are walked through.
pub const MPLS_LABELS_MAX: u8 = 16;

/// Most extension headers of one IPv6 header. RFC 8200 4.1 lists seven, one of them twice.
pub const EXTENSIONS_MAX: u8 = 12;

/// Most tunnels, one within another.
pub const TUNNELS_MAX: u8 = 4;

/// An address of either version as one number; IPv4 ones are mapped (RFC 4291 2.5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub u128);

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().into(),
            IpAddr::V6(ip) => ip.into(),
        })
    }
}

impl Address {
    /// As an address of its own version.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// With all but the first `bits` bits zero; for an IPv4 address those of its 32.
    #[must_use]
    pub fn prefix(self, bits: u8) -> Self {
        let bits = if self.ip().is_ipv4() { bits.min(32) + 96 } else { bits.min(128) };
        Self(self.0 & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

/// Version of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What tells flows apart. Ports are 0 where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// From here.
    pub source: Address,
    /// To there.
    pub destination: Address,
    /// From this port.
    pub source_port: u16,
    /// To that one.
    pub destination_port: u16,
    /// 6 is TCP, 17 UDP.
    pub protocol: u8,
}

/// In three words: this is done for every sample.
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
    /// The other direction.
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

/// Extension headers that an IPv6 packet had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Extensions(u8);

impl Extensions {
    /// Hop-by-Hop options (0).
    pub const HOP_BY_HOP: Self = Self(1);
    /// Destination options (60).
    pub const DESTINATION: Self = Self(2);
    /// Routing (43).
    pub const ROUTING: Self = Self(4);
    /// Fragment (44).
    pub const FRAGMENT: Self = Self(8);
    /// Authentication (51).
    pub const AUTHENTICATION: Self = Self(16);
    /// Mobility, HIP or Shim6 (135, 139, 140).
    pub const OTHER: Self = Self(32);

    /// Whether all of `these` were there.
    #[must_use]
    pub const fn has(self, these: Self) -> bool {
        self.0 & these.0 == these.0
    }

    const fn add(&mut self, these: Self) {
        self.0 |= these.0;
    }
}

/// An IP header and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ip {
    /// 4 or 6.
    pub version: Version,
    /// From here.
    pub source: Address,
    /// To there.
    pub destination: Address,
    /// What it carries, behind all extension headers.
    pub protocol: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// 20 bits; 0 in IPv4.
    pub flow_label: u32,
    /// Of the packet with its header; 0 where the header does not tell (super-packets of a host).
    pub length_bytes: u32,
    /// It is a part of a packet. Only the first part has ports.
    pub fragment: bool,
    /// Extension headers.
    pub extensions: Extensions,
    /// An option of Scitags in the Hop-by-Hop header.
    pub hop_by_hop_mark: Option<Mark>,
    /// An option of Scitags in a Destination Options header.
    pub destination_mark: Option<Mark>,
    /// Of TCP, UDP, SCTP, DCCP and UDP-Lite, where the bytes reach that far.
    pub ports: Option<(u16, u16)>,
    /// Of TCP.
    pub tcp_flags: u8,
}

impl Ip {
    /// The flow.
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

/// What a packet is wrapped in; of several the outermost.
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

/// Why the walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ended {
    /// At a transport header, or at another that is none of ours to look into.
    #[default]
    Upper,
    /// At the end of the bytes, within a header.
    Cut,
    /// At a part of a packet that is not the first.
    Fragment,
    /// At something encrypted (ESP).
    Encrypted,
    /// At an ethertype, a version or a header that is not known here.
    Unknown,
    /// At one of this module's limits.
    TooDeep,
}

/// What the walk found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// Source and destination of the outermost frame.
    pub macs: Option<(Mac, Mac)>,
    /// The outermost VLAN.
    pub vlan: Option<u16>,
    /// The VLAN within that one (QinQ).
    pub inner_vlan: Option<u16>,
    /// The outermost MPLS label.
    pub mpls_label: Option<u32>,
    /// How many labels the outer stack has.
    pub mpls_depth: u8,
    /// The outermost IP header.
    pub outer: Option<Ip>,
    /// The innermost IP header, where there is a tunnel and its inside is IP.
    pub inner: Option<Ip>,
    /// The outermost tunnel.
    pub tunnel: Option<Tunnel>,
    /// How many bytes there are before the payload of TCP or UDP, of the innermost where one is within another;
    /// `None` where the walk came to no such header, or not to its end.
    pub payload_at: Option<u16>,
    /// Why the walk ended.
    pub ended: Ended,
}

/// What a packet begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The destination address of an Ethernet frame.
    Ethernet,
    /// An IP header; its first four bits say which.
    Ip,
    /// An MPLS label stack.
    Mpls,
}

impl Start {
    /// By the header protocol of sFlow; `None` for those that are not walked.
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
    /// Walks through `bytes`.
    #[must_use]
    pub fn read(start: Start, bytes: &[u8]) -> Self {
        let mut packet = Self::default();
        packet.walk(start, bytes);
        packet
    }

    /// Walks through `bytes` and notes what it finds here, where nothing was noted yet.
    pub fn walk(&mut self, start: Start, bytes: &[u8]) {
        let mut walk = Walk { packet: self, tunnels: 0, start: bytes.as_ptr().addr() };
        let mut step = match start {
            Start::Ethernet => Step::Ethernet(bytes),
            Start::Ip => Step::Ip(bytes),
            Start::Mpls => Step::Mpls(bytes),
        };
        // Each step leaves fewer bytes, so this ends.
        walk.packet.ended = loop {
            step = match step {
                Step::Ethernet(rest) => walk.ethernet(rest),
                Step::EtherType(kind, rest) => walk.ether_type(kind, rest),
                Step::Mpls(rest) => walk.mpls(rest),
                Step::Ip(rest) => walk.ip(rest),
                Step::Upper(protocol, rest) => walk.upper(protocol, rest),
                Step::End(ended) => break ended,
            };
        };
    }

    /// The header whose flow this packet is counted to: the innermost.
    #[must_use]
    pub fn ip(&self) -> Option<&Ip> {
        self.inner.as_ref().or(self.outer.as_ref())
    }
}

/// What comes next, with the bytes from there on.
enum Step<'a> {
    Ethernet(&'a [u8]),
    EtherType(u16, &'a [u8]),
    Mpls(&'a [u8]),
    Ip(&'a [u8]),
    Upper(u8, &'a [u8]),
    End(Ended),
}

struct Walk<'p> {
    packet: &'p mut Packet,
    tunnels: u8,
    /// Address of the first byte.
    start: usize,
}

impl Walk<'_> {
    /// The header that the walk is in.
    fn current(&mut self) -> Option<&mut Ip> {
        if self.packet.inner.is_some() {
            self.packet.inner.as_mut()
        } else {
            self.packet.outer.as_mut()
        }
    }

    /// Notes a tunnel; `inside` is the step into it.
    fn enter<'a>(&mut self, tunnel: Tunnel, inside: Step<'a>) -> Step<'a> {
        if self.tunnels == TUNNELS_MAX {
            return Step::End(Ended::TooDeep);
        }
        self.tunnels += 1;
        self.packet.tunnel.get_or_insert(tunnel);
        inside
    }
}

fn be16(bytes: [u8; 2]) -> u16 {
    u16::from_be_bytes(bytes)
}
