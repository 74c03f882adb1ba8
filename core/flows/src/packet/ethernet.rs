//! Ethernet (IEEE 802.3), VLAN tags (802.1Q, 802.1ad) and the payload of each ethertype.

use super::{PacketParser, ParseEnd, ParseStep, VLANS_MAX, be16};
use crate::sflow::xdr::Mac;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86DD;
const ETH_P_MPLS_UC: u16 = 0x8847;
const ETH_P_MPLS_MC: u16 = 0x8848;
const ETH_P_PPP_SES: u16 = 0x8864;
/// Ethernet within GRE (RFC 1701).
const ETH_P_TEB: u16 = 0x6558;

/// Lowest ethertype; a lower value is a length, and LLC follows (802.3 3.2.6).
const ETHER_TYPE_MIN: u16 = 0x0600;

fn is_vlan(kind: u16) -> bool {
    // 802.1Q, 802.1ad, and the outer tags in use before 802.1ad.
    matches!(kind, 0x8100 | 0x88A8 | 0x9100 | 0x9200)
}

impl PacketParser<'_> {
    pub(super) fn ethernet<'a>(&mut self, frame: &'a [u8]) -> ParseStep<'a> {
        let Some((&[a, b, c, d, e, f, g, h, i, j, k, l, kind @ ..], rest)) =
            frame.split_first_chunk::<14>()
        else {
            return ParseStep::End(ParseEnd::Cut);
        };
        if self.tunnels == 0 && self.packet.macs.is_none() {
            self.packet.macs = Some((Mac([g, h, i, j, k, l]), Mac([a, b, c, d, e, f])));
        }
        ParseStep::EtherType(be16(kind), rest)
    }

    pub(super) fn ether_type<'a>(&mut self, kind: u16, rest: &'a [u8]) -> ParseStep<'a> {
        match kind {
            ETH_P_IP | ETH_P_IPV6 => ParseStep::Ip(rest),
            ETH_P_MPLS_UC | ETH_P_MPLS_MC => ParseStep::Mpls(rest),
            ETH_P_TEB => ParseStep::Ethernet(rest),
            ETH_P_PPP_SES => pppoe(rest),
            _ if is_vlan(kind) => self.vlans(rest),
            _ if kind < ETHER_TYPE_MIN => snap(rest),
            _ => ParseStep::End(ParseEnd::Unknown),
        }
    }

    /// Parses a stack of tags, behind the TPID of the first.
    fn vlans<'a>(&mut self, mut rest: &'a [u8]) -> ParseStep<'a> {
        for tags in 0..VLANS_MAX {
            let Some((&[a, b, kind @ ..], behind)) = rest.split_first_chunk::<4>() else {
                return ParseStep::End(ParseEnd::Cut);
            };
            if self.tunnels == 0 {
                let vlan = Some(be16([a, b]) & 0x0FFF);
                match tags {
                    0 if self.packet.vlan.is_none() => self.packet.vlan = vlan,
                    1 if self.packet.inner_vlan.is_none() => self.packet.inner_vlan = vlan,
                    _ => {}
                }
            }
            rest = behind;
            let kind = be16(kind);
            if !is_vlan(kind) {
                return ParseStep::EtherType(kind, rest);
            }
        }
        ParseStep::End(ParseEnd::TooDeep)
    }
}

/// LLC with SNAP and no organisation: an ethertype follows (RFC 1042).
fn snap(rest: &[u8]) -> ParseStep<'_> {
    match rest.split_first_chunk::<8>() {
        Some((&[0xAA, 0xAA, 3, 0, 0, 0, a, b], rest)) => match be16([a, b]) {
            kind if kind < ETHER_TYPE_MIN => ParseStep::End(ParseEnd::Unknown),
            kind => ParseStep::EtherType(kind, rest),
        },
        Some(_) => ParseStep::End(ParseEnd::Unknown),
        None => ParseStep::End(ParseEnd::Cut),
    }
}

/// RFC 2516: six bytes, then the two of PPP.
fn pppoe(rest: &[u8]) -> ParseStep<'_> {
    match rest.split_first_chunk::<8>() {
        Some((&[0x11, 0, _, _, _, _, 0, 0x21 | 0x57], rest)) => ParseStep::Ip(rest),
        Some(_) => ParseStep::End(ParseEnd::Unknown),
        None => ParseStep::End(ParseEnd::Cut),
    }
}
