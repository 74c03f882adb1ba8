//! GRE (RFC 2784, 2890) and VXLAN (RFC 7348).

use super::{ParseEnd, be16};

/// UDP port of VXLAN.
const VXLAN_PORT: u16 = 4789;

const IPPROTO_UDP: u8 = 17;
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_ROUTING: u16 = 0x4000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_VERSION: u16 = 0x0007;

/// Ethertype, key and payload of a GRE header.
pub(super) fn gre(rest: &[u8]) -> Result<(u16, Option<u32>, &[u8]), ParseEnd> {
    let (&[a, b, kind @ ..], mut rest) = rest.split_first_chunk::<4>().ok_or(ParseEnd::Cut)?;
    let flags = be16([a, b]);
    // Version 1 is PPTP's; the routing field has a variable length and is deprecated (RFC 2784 2.3).
    if flags & (GRE_ROUTING | GRE_VERSION) != 0 {
        return Err(ParseEnd::Unknown);
    }
    let mut word = || -> Result<u32, ParseEnd> {
        let (word, behind) = rest.split_first_chunk().ok_or(ParseEnd::Cut)?;
        rest = behind;
        Ok(u32::from_be_bytes(*word))
    };
    if flags & GRE_CHECKSUM != 0 {
        word()?;
    }
    let key = if flags & GRE_KEY != 0 { Some(word()?) } else { None };
    if flags & GRE_SEQUENCE != 0 {
        word()?;
    }
    Ok((be16(kind), key, rest))
}

/// Network identifier and payload of a VXLAN header behind UDP, if it is one.
pub(super) fn vxlan(protocol: u8, port: u16, datagram: &[u8]) -> Option<(u32, &[u8])> {
    if protocol != IPPROTO_UDP || port != VXLAN_PORT {
        return None;
    }
    let (&[flags, _, _, _, a, b, c, _], inside) = datagram.get(8..)?.split_first_chunk::<8>()?;
    // The I flag says that there is a network (RFC 7348 5).
    (flags & 0x08 != 0).then_some((u32::from_be_bytes([0, a, b, c]), inside))
}
