//! Netlink messages, attributes and constants (netlink(7)); [`super::netlink_socket`] sends them.

use std::io;

// libc declares these as `c_int`; `struct nlmsghdr` and `struct nlattr` have 16 bits for them.
pub(super) const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
pub(super) const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
pub(super) const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(super) const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;
pub(super) const NLM_F_ECHO: u16 = libc::NLM_F_ECHO as u16;
pub(super) const NLM_F_DUMP: u16 = libc::NLM_F_DUMP as u16;
pub(super) const NLM_F_REPLACE: u16 = libc::NLM_F_REPLACE as u16;
pub(super) const NLM_F_EXCL: u16 = libc::NLM_F_EXCL as u16;
pub(super) const NLM_F_CREATE: u16 = libc::NLM_F_CREATE as u16;
pub(super) const NLM_F_APPEND: u16 = libc::NLM_F_APPEND as u16;
/// Set in the messages of a dump during which the kernel's list changed.
pub(super) const NLM_F_DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;
/// Set in an NLMSG_ERROR that does not repeat the request's body.
pub(super) const NLM_F_CAPPED: u16 = libc::NLM_F_CAPPED as u16;
/// Set in an NLMSG_ERROR that has attributes.
pub(super) const NLM_F_ACK_TLVS: u16 = libc::NLM_F_ACK_TLVS as u16;
/// Set on attributes that hold attributes.
pub(super) const NLA_F_NESTED: u16 = libc::NLA_F_NESTED as u16;

/// include/uapi/linux/netlink.h; libc does not have it.
pub(super) const NLMSGERR_ATTR_MSG: u16 = 1;

/// Size of `struct nlmsghdr`.
pub(super) const NLMSGHDR_BYTES: usize = 16;
/// Offset of `nlmsg_seq` in `struct nlmsghdr`.
pub(super) const SEQUENCE_OFFSET: usize = 8;
/// Size of `struct ifinfomsg`.
pub(super) const IFINFOMSG_BYTES: usize = 16;
/// Size of `struct tcmsg`.
pub(super) const TCMSG_BYTES: usize = 20;

// libc declares these as `c_int`; `struct ifinfomsg` has 32 bits for flags, IFLA_OPERSTATE 8 for the state.
pub(super) const IFF_UP: u32 = libc::IFF_UP as u32;
pub(super) const IFF_LOWER_UP: u32 = libc::IFF_LOWER_UP as u32;
/// RFC 2863: the device is up, and so is its peer.
pub(super) const IF_OPER_UP: u8 = libc::IF_OPER_UP as u8;
/// Drivers without operational states, TAP for one: the carrier (IFF_LOWER_UP) decides.
pub(super) const IF_OPER_UNKNOWN: u8 = libc::IF_OPER_UNKNOWN as u8;

/// include/uapi/linux/if_link.h; libc has these for Android only.
pub(super) const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
pub(super) const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

/// include/uapi/linux/pkt_sched.h: parent of a root queueing discipline.
pub(super) const TC_H_ROOT: u32 = 0xFFFF_FFFF;

/// Encodes a message with its `struct nlmsghdr`; sequence number and port are 0.
pub(super) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(NLMSGHDR_BYTES + body.len());
    message.extend(u32::try_from(NLMSGHDR_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    message.extend(body);
    message
}

/// Error for an answer that is shorter than its structures.
pub(super) fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is truncated off")
}

/// Appends an attribute, padded to four bytes.
pub(super) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(u16::try_from(4 + value.len()).unwrap_or(0).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an attribute that holds the attributes which `fill` adds.
pub(super) fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    put(out, kind | NLA_F_NESTED, &inner);
}

/// Iterates over the attributes in `bytes` as type and value; ends at the first truncated one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, at)?), u16_at(bytes, at + 2)?);
        let value = bytes.get(at + 4..at + length)?;
        at += length.next_multiple_of(4);
        Some((kind, value))
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 2, 4, 255] {
                let bytes = vec![byte; length];
                assert!(attributes(&bytes).count() <= length);
            }
        }
    }

    #[test]
    fn attributes_round_trip() {
        let mut bytes = Vec::new();
        put(&mut bytes, 3, b"eth0\0");
        put(&mut bytes, 4, &1500_u32.to_ne_bytes());
        assert_eq!(bytes.len(), 20);
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (4, &1500_u32.to_ne_bytes()[..])]);
    }
}
