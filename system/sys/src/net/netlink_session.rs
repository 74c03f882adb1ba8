//! A netlink socket for several requests with sequence numbers: dumps, acknowledged changes, and the kernel's error
//! texts (netlink(7), `NETLINK_EXT_ACK`).
//!
//! For [`super::device`], [`super::ethtool`] and [`super::statistics`]; [`super::netlink`] is for single requests.
//!
//! Fails with the kernel's error, and its text where it sends one.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::netlink::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    NLMSGERR_ATTR_MSG, NLMSGHDR_BYTES, attributes, set_option, truncated, u16_at, u32_at,
};

/// Above the 32 KiB that the kernel puts into one answer.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Bound on the messages of one dump.
const DUMP_MESSAGES_MAX: usize = 1 << 20;

pub(super) struct NetlinkSession {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSession {
    /// Opens a socket for `protocol`; `None` is NETLINK_ROUTE.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // Optional: kernels before 4.12 send no error texts.
        let _ = set_option(&socket, libc::NETLINK_EXT_ACK);
        Ok(Self { socket, sequence: 0, buffer: vec![0; RECEIVE_BUFFER_BYTES] })
    }

    /// Requests a dump and returns the bodies of its messages.
    pub(super) fn dump(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.exchange(kind, NLM_F_DUMP, body)
    }

    /// Sends a request and returns the bodies of the answers that come before the acknowledgement.
    pub(super) fn request(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.exchange(kind, NLM_F_ACK, body)
    }

    /// Sends a request that changes something; `flags` are added to NLM_F_REQUEST and NLM_F_ACK.
    pub(super) fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.exchange(kind, NLM_F_ACK | flags, body).map(|_| ())
    }

    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(NLMSGHDR_BYTES + body.len());
        request.extend(u32::try_from(NLMSGHDR_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]); // port
        request.extend(body);
        send(&self.socket, &request, SendFlags::empty())?;
        let mut bodies = Vec::new();
        loop {
            let (received, _) = match recv(&self.socket, &mut *self.buffer, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let more = read(
                &self.buffer[..received.min(RECEIVE_BUFFER_BYTES)],
                self.sequence,
                &mut bodies,
            );
            if !more? {
                return Ok(bodies);
            }
            if bodies.len() > DUMP_MESSAGES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the kernel's dump exceeds the message limit",
                ));
            }
        }
    }
}

/// Appends the bodies in one datagram to `bodies`; true if more datagrams follow.
fn read(mut datagram: &[u8], sequence: u32, bodies: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let length = u32_at(datagram, 0).ok_or_else(truncated)? as usize;
        let message =
            datagram.get(..length).filter(|_| length >= NLMSGHDR_BYTES).ok_or_else(truncated)?;
        let (kind, flags) =
            (u16_at(message, 4).ok_or_else(truncated)?, u16_at(message, 6).ok_or_else(truncated)?);
        let body = &message[NLMSGHDR_BYTES..];
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        // An answer to an earlier request that failed.
        if u32_at(message, 8) != Some(sequence) {
            continue;
        }
        match kind {
            NLMSG_ERROR => {
                let code = u32_at(body, 0).ok_or_else(truncated)?.cast_signed();
                return if code == 0 { Ok(false) } else { Err(kernel_error(code, flags, body)) };
            }
            NLMSG_DONE => {
                let code = u32_at(body, 0).map_or(0, u32::cast_signed);
                return if code < 0 { Err(kernel_error(code, flags, body)) } else { Ok(false) };
            }
            _ => bodies.push(body.to_vec()),
        }
    }
    Ok(true)
}

fn kernel_error(code: i32, flags: u16, body: &[u8]) -> io::Error {
    let plain = io::Error::from_raw_os_error(code.saturating_neg());
    let asked = if flags & NLM_F_CAPPED == 0 { u32_at(body, 4).unwrap_or(16) as usize } else { 16 };
    let rest = body.get(4 + asked..).filter(|_| flags & NLM_F_ACK_TLVS != 0).unwrap_or_default();
    let text = attributes(rest).find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG);
    let text =
        text.map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
    match text.filter(|text| !text.is_empty()) {
        // Callers recognise a missing device by ENODEV.
        Some(_) if plain.raw_os_error() == Some(libc::ENODEV) => plain,
        Some(text) => io::Error::new(plain.kind(), format!("{text} ({plain})")),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..96 {
            for byte in [0, 1, 2, 4, 16, 20, 255] {
                let _ = read(&vec![byte; length], 1, &mut Vec::new());
                let _ = kernel_error(-22, NLM_F_ACK_TLVS, &vec![byte; length]);
            }
        }
    }

    #[test]
    fn error_contains_the_kernels_text() {
        let mut body = (-22_i32).to_ne_bytes().to_vec();
        body.extend(16_u32.to_ne_bytes());
        body.extend([0; 12]);
        super::super::netlink::put(
            &mut body,
            NLMSGERR_ATTR_MSG,
            b"mtu greater than device maximum\0",
        );
        let error = kernel_error(-22, NLM_F_ACK_TLVS, &body);
        assert!(error.to_string().contains("mtu greater than device maximum ("), "{error}");
        assert_eq!(kernel_error(-1, 0, &body).raw_os_error(), Some(1));
    }

    #[test]
    fn one_session_serves_several_requests() {
        let mut session = NetlinkSession::open(None).unwrap();
        for _ in 0..2 {
            assert!(!session.dump(libc::RTM_GETLINK, &[0; 16]).unwrap().is_empty());
            let mut unknown = vec![0; 16];
            unknown[4..8].copy_from_slice(&0x7FFF_0000_u32.to_ne_bytes());
            let error = session.request(libc::RTM_GETLINK, &unknown).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        }
    }
}
