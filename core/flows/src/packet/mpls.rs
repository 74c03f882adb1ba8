//! An MPLS label stack (RFC 3032), and the guess at its payload.
//!
//! The stack does not state it. By RFC 4928 an IP packet begins with its version, and a pseudowire
//! with a control word begins with four zero bits (RFC 4385); any other payload is skipped.

use super::{MPLS_LABELS_MAX, PacketParser, ParseEnd, ParseStep};

const MPLS_LS_S_MASK: u32 = 0x100;

impl PacketParser<'_> {
    pub(super) fn mpls<'a>(&mut self, mut rest: &'a [u8]) -> ParseStep<'a> {
        for depth in 1..=MPLS_LABELS_MAX {
            let Some((entry, behind)) = rest.split_first_chunk() else {
                return ParseStep::End(ParseEnd::Cut);
            };
            let entry = u32::from_be_bytes(*entry);
            if self.tunnels == 0 {
                self.packet.mpls_label.get_or_insert(entry >> 12);
                self.packet.mpls_depth = self.packet.mpls_depth.max(depth);
            }
            rest = behind;
            if entry & MPLS_LS_S_MASK != 0 {
                return match rest.first().map(|byte| byte >> 4) {
                    Some(4 | 6) => ParseStep::Ip(rest),
                    // The control word of a pseudowire; its first frame is Ethernet.
                    Some(0) => {
                        rest.get(4..).map_or(ParseStep::End(ParseEnd::Cut), ParseStep::Ethernet)
                    }
                    Some(_) => ParseStep::End(ParseEnd::Unknown),
                    None => ParseStep::End(ParseEnd::Cut),
                };
            }
        }
        ParseStep::End(ParseEnd::TooDeep)
    }
}
