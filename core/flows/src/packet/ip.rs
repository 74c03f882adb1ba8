//! IPv4 (RFC 791), IPv6 (RFC 8200) with its extension headers, and the ports behind them.
//!
//! Collectors that stop at the first Hop-by-Hop or Destination Options header lose the ports of
//! every packet that Scitags mark there; this parser follows the chain to its end. An
//! Authentication header counts its length in other units than the rest (RFC 4302 2.2), and a
//! protocol that is not an extension header is never parsed as one.

use penstock_scitags::option;
use std::net::Ipv4Addr;

use super::{
    EXTENSIONS_MAX, Extensions, IpHeader, IpVersion, MappedAddress, PacketParser, ParseEnd,
    ParseStep, Tunnel, be16, tunnel,
};

const IPPROTO_HOPOPTS: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_ESP: u8 = 50;
const IPPROTO_AH: u8 = 51;
const IPPROTO_NONE: u8 = 59;
const IPPROTO_DSTOPTS: u8 = 60;
const IPPROTO_MH: u8 = 135;
const IPPROTO_HIP: u8 = 139;
const IPPROTO_SHIM6: u8 = 140;

const IPPROTO_IPIP: u8 = 4;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_DCCP: u8 = 33;
const IPPROTO_IPV6: u8 = 41;
const IPPROTO_GRE: u8 = 47;
const IPPROTO_SCTP: u8 = 132;
const IPPROTO_UDPLITE: u8 = 136;
const IPPROTO_MPLS: u8 = 137;

impl PacketParser<'_> {
    pub(super) fn ip<'a>(&mut self, rest: &'a [u8]) -> ParseStep<'a> {
        match rest.first().map(|byte| byte >> 4) {
            Some(4) => self.ipv4(rest),
            Some(6) => self.ipv6(rest),
            Some(_) => ParseStep::End(ParseEnd::Unknown),
            None => ParseStep::End(ParseEnd::Cut),
        }
    }

    fn note(&mut self, ip: IpHeader) {
        if self.tunnels == 0 {
            self.packet.outer = Some(ip);
        } else {
            self.packet.inner = Some(ip);
        }
    }

    fn ipv4<'a>(&mut self, packet: &'a [u8]) -> ParseStep<'a> {
        let Some((head, _)) = packet.split_first_chunk::<20>() else {
            return ParseStep::End(ParseEnd::Cut);
        };
        let head_bytes = usize::from(head[0] & 0x0F) * 4;
        if head_bytes < 20 {
            return ParseStep::End(ParseEnd::Unknown);
        }
        let total = be16([head[2], head[3]]);
        let fragment = be16([head[6], head[7]]);
        let address =
            |a, b, c, d| MappedAddress::from(std::net::IpAddr::V4(Ipv4Addr::new(a, b, c, d)));
        self.note(IpHeader {
            version: IpVersion::V4,
            source: address(head[12], head[13], head[14], head[15]),
            destination: address(head[16], head[17], head[18], head[19]),
            protocol: head[9],
            traffic_class: head[1],
            hop_limit: head[8],
            flow_label: 0,
            length_bytes: total.into(),
            // More fragments, or an offset.
            fragment: fragment & 0x3FFF != 0,
            extensions: Extensions::default(),
            hop_by_hop_mark: None,
            destination_mark: None,
            ports: None,
            tcp_flags: 0,
        });
        let Some(rest) = packet.get(head_bytes..) else { return ParseStep::End(ParseEnd::Cut) };
        if fragment & 0x1FFF != 0 {
            return ParseStep::End(ParseEnd::Fragment);
        }
        // Short frames are padded; a super-packet of a host may say 0.
        let payload = usize::from(total).checked_sub(head_bytes).unwrap_or(rest.len());
        ParseStep::Upper(head[9], &rest[..payload.min(rest.len())])
    }

    fn ipv6<'a>(&mut self, packet: &'a [u8]) -> ParseStep<'a> {
        let Some((head, rest)) = packet.split_first_chunk::<40>() else {
            return ParseStep::End(ParseEnd::Cut);
        };
        let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let payload = be16([head[4], head[5]]);
        let address = |at: usize| {
            let bytes = head[at..].first_chunk().copied().unwrap_or_default();
            MappedAddress(u128::from_be_bytes(bytes))
        };
        let mut ip = IpHeader {
            version: IpVersion::V6,
            source: address(8),
            destination: address(24),
            protocol: head[6],
            traffic_class: (word >> 20) as u8,
            hop_limit: head[7],
            flow_label: word & 0xF_FFFF,
            length_bytes: if payload == 0 { 0 } else { u32::from(payload) + 40 },
            fragment: false,
            extensions: Extensions::default(),
            hop_by_hop_mark: None,
            destination_mark: None,
            ports: None,
            tcp_flags: 0,
        };
        // 0 is a jumbogram, or a super-packet of a host (RFC 2675).
        let payload = if payload == 0 { rest.len() } else { payload.into() };
        let rest = &rest[..payload.min(rest.len())];
        let step = extensions(&mut ip, rest);
        self.note(ip);
        step
    }

    pub(super) fn upper<'a>(&mut self, protocol: u8, rest: &'a [u8]) -> ParseStep<'a> {
        match protocol {
            IPPROTO_TCP | IPPROTO_UDP | IPPROTO_SCTP | IPPROTO_DCCP | IPPROTO_UDPLITE => {
                self.transport(protocol, rest)
            }
            IPPROTO_GRE => {
                let (kind, key, inside) = match tunnel::gre(rest) {
                    Ok(gre) => gre,
                    Err(ended) => return ParseStep::End(ended),
                };
                self.enter(Tunnel::Gre(key), ParseStep::EtherType(kind, inside))
            }
            IPPROTO_IPIP | IPPROTO_IPV6 => self.enter(Tunnel::Ip, ParseStep::Ip(rest)),
            IPPROTO_MPLS => self.enter(Tunnel::Mpls, ParseStep::Mpls(rest)),
            IPPROTO_ESP => ParseStep::End(ParseEnd::Encrypted),
            _ => ParseStep::End(ParseEnd::Upper),
        }
    }

    fn transport<'a>(&mut self, protocol: u8, rest: &'a [u8]) -> ParseStep<'a> {
        let Some(&[a, b, c, d]) = rest.first_chunk() else { return ParseStep::End(ParseEnd::Cut) };
        let ports = (be16([a, b]), be16([c, d]));
        if let Some(ip) = self.current() {
            ip.ports = Some(ports);
            if protocol == IPPROTO_TCP {
                ip.tcp_flags = rest.get(13).copied().unwrap_or(0);
            }
        }
        let head_bytes = match protocol {
            IPPROTO_TCP => rest.get(12).map(|byte| usize::from(byte >> 4) * 4),
            IPPROTO_UDP | IPPROTO_UDPLITE => Some(8),
            _ => None,
        };
        let at = rest.as_ptr().addr() - self.start;
        self.packet.payload_at = head_bytes.and_then(|bytes| u16::try_from(at + bytes).ok());
        match tunnel::vxlan(protocol, ports.1, rest) {
            Some((network, inside)) => {
                self.enter(Tunnel::Vxlan(network), ParseStep::Ethernet(inside))
            }
            None => ParseStep::End(ParseEnd::Upper),
        }
    }
}

/// Parses the chain of extension headers to the protocol behind it.
fn extensions<'a>(ip: &mut IpHeader, mut rest: &'a [u8]) -> ParseStep<'a> {
    for _ in 0..=EXTENSIONS_MAX {
        let kind = ip.protocol;
        let which = match kind {
            IPPROTO_HOPOPTS => Extensions::HOP_BY_HOP,
            IPPROTO_DSTOPTS => Extensions::DESTINATION,
            IPPROTO_ROUTING => Extensions::ROUTING,
            IPPROTO_FRAGMENT => Extensions::FRAGMENT,
            IPPROTO_AH => Extensions::AUTHENTICATION,
            IPPROTO_MH | IPPROTO_HIP | IPPROTO_SHIM6 => Extensions::OTHER,
            IPPROTO_NONE => return ParseStep::End(ParseEnd::Upper),
            upper => return ParseStep::Upper(upper, rest),
        };
        let Some(&[next, length]) = rest.first_chunk() else {
            return ParseStep::End(ParseEnd::Cut);
        };
        ip.extensions.add(which);
        let bytes = match kind {
            IPPROTO_FRAGMENT => 8,
            IPPROTO_AH => (usize::from(length) + 2) * 4,
            _ => (usize::from(length) + 1) * 8,
        };
        if matches!(kind, IPPROTO_HOPOPTS | IPPROTO_DSTOPTS) {
            // Options count even if the sample ends within them.
            let options = rest.get(2..bytes).or(rest.get(2..)).unwrap_or_default();
            let mark = option::marks(options).find_map(Result::ok);
            let place = match kind {
                IPPROTO_HOPOPTS => &mut ip.hop_by_hop_mark,
                _ => &mut ip.destination_mark,
            };
            *place = place.or(mark);
        }
        ip.protocol = next;
        let Some((header, behind)) = rest.split_at_checked(bytes) else {
            return ParseStep::End(ParseEnd::Cut);
        };
        rest = behind;
        if let (IPPROTO_FRAGMENT, Some(&[_, _, a, b])) = (kind, header.first_chunk()) {
            let field = be16([a, b]);
            // Offset or more fragments; an atomic fragment (RFC 6946) is a whole packet.
            ip.fragment = field & 0xFFF9 != 0;
            if field & 0xFFF8 != 0 {
                return ParseStep::End(ParseEnd::Fragment);
            }
        }
    }
    ParseStep::End(ParseEnd::TooDeep)
}
