//! Ethernet (IEEE 802.3), VLAN tags (802.1Q, 802.1ad) and what an ethertype leads to.

use super::{Ended, Step, VLANS_MAX, Walk, be16};
use crate::sflow::xdr::Mac;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86DD;
const MPLS_UNICAST: u16 = 0x8847;
const MPLS_MULTICAST: u16 = 0x8848;
const PPPOE_SESSION: u16 = 0x8864;
/// Ethernet within GRE (RFC 1701).
const BRIDGED: u16 = 0x6558;

/// Below this it is a length and LLC follows (802.3 3.2.6).
const ETHER_TYPE_MIN: u16 = 0x0600;

fn is_vlan(kind: u16) -> bool {
    // 802.1Q, 802.1ad, and what stood for the outer tag before 802.1ad.
    matches!(kind, 0x8100 | 0x88A8 | 0x9100 | 0x9200)
}

impl Walk<'_> {
    pub(super) fn ethernet<'a>(&mut self, frame: &'a [u8]) -> Step<'a> {
        let Some((&[a, b, c, d, e, f, g, h, i, j, k, l, kind @ ..], rest)) =
            frame.split_first_chunk::<14>()
        else {
            return Step::End(Ended::Cut);
        };
        if self.tunnels == 0 && self.packet.macs.is_none() {
            self.packet.macs = Some((Mac([g, h, i, j, k, l]), Mac([a, b, c, d, e, f])));
        }
        Step::EtherType(be16(kind), rest)
    }

    pub(super) fn ether_type<'a>(&mut self, kind: u16, rest: &'a [u8]) -> Step<'a> {
        match kind {
            IPV4 | IPV6 => Step::Ip(rest),
            MPLS_UNICAST | MPLS_MULTICAST => Step::Mpls(rest),
            BRIDGED => Step::Ethernet(rest),
            PPPOE_SESSION => pppoe(rest),
            _ if is_vlan(kind) => self.vlans(rest),
            _ if kind < ETHER_TYPE_MIN => snap(rest),
            _ => Step::End(Ended::Unknown),
        }
    }

    /// Tags, the first of which begins here behind its TPID.
    fn vlans<'a>(&mut self, mut rest: &'a [u8]) -> Step<'a> {
        for tags in 0..VLANS_MAX {
            let Some((&[a, b, kind @ ..], behind)) = rest.split_first_chunk::<4>() else {
                return Step::End(Ended::Cut);
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
                return Step::EtherType(kind, rest);
            }
        }
        Step::End(Ended::TooDeep)
    }
}

/// LLC with SNAP and no organisation: an ethertype follows (RFC 1042).
fn snap(rest: &[u8]) -> Step<'_> {
    match rest.split_first_chunk::<8>() {
        Some((&[0xAA, 0xAA, 3, 0, 0, 0, a, b], rest)) => match be16([a, b]) {
            kind if kind < ETHER_TYPE_MIN => Step::End(Ended::Unknown),
            kind => Step::EtherType(kind, rest),
        },
        Some(_) => Step::End(Ended::Unknown),
        None => Step::End(Ended::Cut),
    }
}

/// RFC 2516: six bytes, then the two of PPP.
fn pppoe(rest: &[u8]) -> Step<'_> {
    match rest.split_first_chunk::<8>() {
        Some((&[0x11, 0, _, _, _, _, 0, 0x21 | 0x57], rest)) => Step::Ip(rest),
        Some(_) => Step::End(Ended::Unknown),
        None => Step::End(Ended::Cut),
    }
}
