//! Netlink messages, attributes and a socket for single requests (netlink(7)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::options::set_int;

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
/// Size of `struct nlmsgerr`: an error number and the header of the request.
const NLMSGERR_BYTES: usize = 4 + NLMSGHDR_BYTES;
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

/// Sends one rtnetlink request on a new socket and returns the body of the answer.
///
/// # Errors
/// The kernel's error, or the socket's.
pub(super) fn request(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    Netlink::open(None)?.request(kind, body)
}

/// A netlink socket of the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket for `protocol`; `None` is NETLINK_ROUTE.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, protocol)?;
        // Linux 4.12 and newer: errors carry a text (NETLINK_EXT_ACK) and no copy of the request (NETLINK_CAP_ACK).
        // Older kernels send the number only.
        for option in [libc::NETLINK_CAP_ACK, libc::NETLINK_EXT_ACK] {
            let _ = set_option(&socket, option);
        }
        Ok(Self(socket))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a request and returns the body of its one answer.
    pub(super) fn request(&self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        send(&self.0, &message(kind, 0, body), SendFlags::empty())?;
        let answer = self.receive()?;
        body_of(&answer).map(<[u8]>::to_vec)
    }

    /// Sends a request to which the kernel may reply with an acknowledgement alone (`None`).
    pub(super) fn request_optional(&self, kind: u16, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        // Without NLM_F_ECHO some answers go to multicast groups only.
        send(&self.0, &message(kind, NLM_F_ACK | NLM_F_ECHO, body), SendFlags::empty())?;
        let answer = self.receive()?;
        match body_of(&answer) {
            Ok(body) => self.receive_ack().map(|()| Some(body.to_vec())),
            Err(error) if error.raw_os_error() == Some(0) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request that changes something, and returns when the kernel has acknowledged it.
    pub(super) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        send(&self.0, &message(kind, flags | NLM_F_ACK, body), SendFlags::empty())?;
        self.receive_ack()
    }

    /// Sends a transaction. The kernel acknowledges each message but the first and the last (NFNL_MSG_BATCH_BEGIN and
    /// NFNL_MSG_BATCH_END).
    pub(super) fn batch(&self, messages: &[Vec<u8>]) -> io::Result<()> {
        send(&self.0, &messages.concat(), SendFlags::empty())?;
        (2..messages.len()).try_for_each(|_| self.receive_ack())
    }

    /// Sends a message without waiting for an acknowledgement.
    pub(super) fn send(&self, kind: u16, body: &[u8]) -> io::Result<()> {
        send(&self.0, &message(kind, 0, body), SendFlags::empty())?;
        Ok(())
    }

    fn receive_ack(&self) -> io::Result<()> {
        match body_of(&self.receive()?) {
            // An acknowledgement is an error with number 0.
            Err(error) if error.raw_os_error() == Some(0) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(truncated()),
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; 256 << 10];
        let (received, _) = recv(&self.0, answer.as_mut_slice(), RecvFlags::empty())?;
        answer.truncate(received);
        Ok(answer)
    }
}

/// Turns on a boolean option of SOL_NETLINK.
pub(super) fn set_option(socket: impl AsFd, option: i32) -> io::Result<()> {
    set_int(&socket, libc::SOL_NETLINK, option, 1)
}

/// Encodes a message with its `struct nlmsghdr`.
pub(super) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(NLMSGHDR_BYTES + body.len());
    message.extend(u32::try_from(NLMSGHDR_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    message.extend(body);
    message
}

fn body_of(message: &[u8]) -> io::Result<&[u8]> {
    let kind = u16_at(message, 4).ok_or_else(truncated)?;
    let body = message.get(NLMSGHDR_BYTES..).ok_or_else(truncated)?;
    if kind != NLMSG_ERROR {
        return Ok(body);
    }
    let code = u32_at(body, 0).ok_or_else(truncated)?.cast_signed();
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    let mut found = attributes(body.get(NLMSGERR_BYTES..).unwrap_or_default());
    match found.find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG) {
        Some((_, text)) if code != 0 => {
            let text = String::from_utf8_lossy(text);
            Err(io::Error::new(error.kind(), format!("{error}: {}", text.trim_end_matches('\0'))))
        }
        _ => Err(error),
    }
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
                let _ = body_of(&bytes);
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
