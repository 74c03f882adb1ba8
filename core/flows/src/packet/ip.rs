//! IPv4 (RFC 791), IPv6 (RFC 8200) with its extension headers, and the ports behind them.
//!
//! Collectors that stop at the first Hop-by-Hop or Destination Options header lose the ports of every
//! packet that Scitags mark there; here the chain is walked to its end. An Authentication header counts
//! its length in other units than the rest (RFC 4302 2.2), and a protocol that is no extension header is
//! never walked as if it were one.

use penstock_scitags::option;
use std::net::Ipv4Addr;

use super::{
    Address, EXTENSIONS_MAX, Ended, Extensions, Ip, Step, Tunnel, Version, Walk, be16, tunnel,
};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ESP: u8 = 50;
const AUTHENTICATION: u8 = 51;
const NO_NEXT: u8 = 59;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

const IPV4_IN: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const DCCP: u8 = 33;
const IPV6_IN: u8 = 41;
const GRE: u8 = 47;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
const MPLS_IN: u8 = 137;

impl Walk<'_> {
    pub(super) fn ip<'a>(&mut self, rest: &'a [u8]) -> Step<'a> {
        match rest.first().map(|byte| byte >> 4) {
            Some(4) => self.ipv4(rest),
            Some(6) => self.ipv6(rest),
            Some(_) => Step::End(Ended::Unknown),
            None => Step::End(Ended::Cut),
        }
    }

    fn note(&mut self, ip: Ip) {
        if self.tunnels == 0 {
            self.packet.outer = Some(ip);
        } else {
            self.packet.inner = Some(ip);
        }
    }

    fn ipv4<'a>(&mut self, packet: &'a [u8]) -> Step<'a> {
        let Some((head, _)) = packet.split_first_chunk::<20>() else {
            return Step::End(Ended::Cut);
        };
        let head_bytes = usize::from(head[0] & 0x0F) * 4;
        if head_bytes < 20 {
            return Step::End(Ended::Unknown);
        }
        let total = be16([head[2], head[3]]);
        let fragment = be16([head[6], head[7]]);
        let address = |a, b, c, d| Address::from(std::net::IpAddr::V4(Ipv4Addr::new(a, b, c, d)));
        self.note(Ip {
            version: Version::V4,
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
        let Some(rest) = packet.get(head_bytes..) else { return Step::End(Ended::Cut) };
        if fragment & 0x1FFF != 0 {
            return Step::End(Ended::Fragment);
        }
        // Short frames are padded; a super-packet of a host may say 0.
        let payload = usize::from(total).checked_sub(head_bytes).unwrap_or(rest.len());
        Step::Upper(head[9], &rest[..payload.min(rest.len())])
    }

    fn ipv6<'a>(&mut self, packet: &'a [u8]) -> Step<'a> {
        let Some((head, rest)) = packet.split_first_chunk::<40>() else {
            return Step::End(Ended::Cut);
        };
        let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let payload = be16([head[4], head[5]]);
        let address = |at: usize| {
            let bytes = head[at..].first_chunk().copied().unwrap_or_default();
            Address(u128::from_be_bytes(bytes))
        };
        let mut ip = Ip {
            version: Version::V6,
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

    pub(super) fn upper<'a>(&mut self, protocol: u8, rest: &'a [u8]) -> Step<'a> {
        match protocol {
            TCP | UDP | SCTP | DCCP | UDP_LITE => self.transport(protocol, rest),
            GRE => {
                let (kind, key, inside) = match tunnel::gre(rest) {
                    Ok(gre) => gre,
                    Err(ended) => return Step::End(ended),
                };
                self.enter(Tunnel::Gre(key), Step::EtherType(kind, inside))
            }
            IPV4_IN | IPV6_IN => self.enter(Tunnel::Ip, Step::Ip(rest)),
            MPLS_IN => self.enter(Tunnel::Mpls, Step::Mpls(rest)),
            ESP => Step::End(Ended::Encrypted),
            _ => Step::End(Ended::Upper),
        }
    }

    fn transport<'a>(&mut self, protocol: u8, rest: &'a [u8]) -> Step<'a> {
        let Some(&[a, b, c, d]) = rest.first_chunk() else { return Step::End(Ended::Cut) };
        let ports = (be16([a, b]), be16([c, d]));
        if let Some(ip) = self.current() {
            ip.ports = Some(ports);
            if protocol == TCP {
                ip.tcp_flags = rest.get(13).copied().unwrap_or(0);
            }
        }
        let head_bytes = match protocol {
            TCP => rest.get(12).map(|byte| usize::from(byte >> 4) * 4),
            UDP | UDP_LITE => Some(8),
            _ => None,
        };
        let at = rest.as_ptr().addr() - self.start;
        self.packet.payload_at = head_bytes.and_then(|bytes| u16::try_from(at + bytes).ok());
        match tunnel::vxlan(protocol, ports.1, rest) {
            Some((network, inside)) => self.enter(Tunnel::Vxlan(network), Step::Ethernet(inside)),
            None => Step::End(Ended::Upper),
        }
    }
}

/// The chain of extension headers, to the protocol behind it.
fn extensions<'a>(ip: &mut Ip, mut rest: &'a [u8]) -> Step<'a> {
    for _ in 0..=EXTENSIONS_MAX {
        let kind = ip.protocol;
        let which = match kind {
            HOP_BY_HOP => Extensions::HOP_BY_HOP,
            DESTINATION => Extensions::DESTINATION,
            ROUTING => Extensions::ROUTING,
            FRAGMENT => Extensions::FRAGMENT,
            AUTHENTICATION => Extensions::AUTHENTICATION,
            MOBILITY | HIP | SHIM6 => Extensions::OTHER,
            NO_NEXT => return Step::End(Ended::Upper),
            upper => return Step::Upper(upper, rest),
        };
        let Some(&[next, length]) = rest.first_chunk() else { return Step::End(Ended::Cut) };
        ip.extensions.add(which);
        let bytes = match kind {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            _ => (usize::from(length) + 1) * 8,
        };
        if matches!(kind, HOP_BY_HOP | DESTINATION) {
            // Options that the sample reaches count, also when it ends within them.
            let options = rest.get(2..bytes).or(rest.get(2..)).unwrap_or_default();
            let mark = option::marks(options).find_map(Result::ok);
            let place = match kind {
                HOP_BY_HOP => &mut ip.hop_by_hop_mark,
                _ => &mut ip.destination_mark,
            };
            *place = place.or(mark);
        }
        ip.protocol = next;
        let Some((header, behind)) = rest.split_at_checked(bytes) else {
            return Step::End(Ended::Cut);
        };
        rest = behind;
        if let (FRAGMENT, Some(&[_, _, a, b])) = (kind, header.first_chunk()) {
            let field = be16([a, b]);
            // Offset or more to come; an atomic fragment (RFC 6946) is a whole packet.
            ip.fragment = field & 0xFFF9 != 0;
            if field & 0xFFF8 != 0 {
                return Step::End(Ended::Fragment);
            }
        }
    }
    Step::End(Ended::TooDeep)
}
