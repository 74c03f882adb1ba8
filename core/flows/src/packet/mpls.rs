//! An MPLS label stack (RFC 3032), and the guess at what is beneath it.
//!
//! Nothing in the stack tells. By RFC 4928 an IP packet begins with its version and a pseudowire that cares
//! begins with four zero bits (RFC 4385); anything else is left alone.

use super::{Ended, MPLS_LABELS_MAX, Step, Walk};

const BOTTOM: u32 = 0x100;

impl Walk<'_> {
    pub(super) fn mpls<'a>(&mut self, mut rest: &'a [u8]) -> Step<'a> {
        for depth in 1..=MPLS_LABELS_MAX {
            let Some((entry, behind)) = rest.split_first_chunk() else {
                return Step::End(Ended::Cut);
            };
            let entry = u32::from_be_bytes(*entry);
            if self.tunnels == 0 {
                self.packet.mpls_label.get_or_insert(entry >> 12);
                self.packet.mpls_depth = self.packet.mpls_depth.max(depth);
            }
            rest = behind;
            if entry & BOTTOM != 0 {
                return match rest.first().map(|byte| byte >> 4) {
                    Some(4 | 6) => Step::Ip(rest),
                    // The control word of a pseudowire; its first frame is Ethernet.
                    Some(0) => rest.get(4..).map_or(Step::End(Ended::Cut), Step::Ethernet),
                    Some(_) => Step::End(Ended::Unknown),
                    None => Step::End(Ended::Cut),
                };
            }
        }
        Step::End(Ended::TooDeep)
    }
}
