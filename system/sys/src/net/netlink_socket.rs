//! The netlink socket of this crate: requests with sequence numbers, dumps, acknowledged changes and transactions, with
//! the kernel's error texts (netlink(7), `NETLINK_EXT_ACK`).
//!
//! Fails with the kernel's error, and its text where it sends one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::netlink::{
    NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLMSG_DONE,
    NLMSG_ERROR, NLMSGERR_ATTR_MSG, NLMSGHDR_BYTES, SEQUENCE_OFFSET, attributes, message,
    truncated, u16_at, u32_at,
};
use super::options::set_int;

/// Above the 32 KiB that the kernel puts into one answer.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// Bound on the messages of one dump.
const DUMP_MESSAGES_MAX: usize = 1 << 20;

/// Attempts at a dump that changes of the list interrupt.
const DUMP_ATTEMPTS_MAX: usize = 16;

/// A socket of the network namespace in which it was opened; one request at a time.
#[derive(Debug)]
pub(super) struct NetlinkSocket {
    socket: OwnedFd,
    /// Number of the last request; messages without a request have 0.
    sequence: AtomicU32,
}

impl NetlinkSocket {
    /// Opens a socket for `protocol`; `None` is NETLINK_ROUTE.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let netlink = Self { socket, sequence: AtomicU32::new(0) };
        // Linux 4.12 and newer: errors carry a text (NETLINK_EXT_ACK) and no copy of the request (NETLINK_CAP_ACK).
        // Older kernels send the number only.
        for option in [libc::NETLINK_CAP_ACK, libc::NETLINK_EXT_ACK] {
            let _ = netlink.set_option(option);
        }
        Ok(netlink)
    }

    /// Turns on a boolean option of SOL_NETLINK.
    pub(super) fn set_option(&self, option: i32) -> io::Result<()> {
        set_int(&self.socket, libc::SOL_NETLINK, option, 1)
    }

    /// Requests a dump and returns the bodies of its messages. Repeats it where the list changed meanwhile, so that
    /// entries may be missing or twice.
    pub(super) fn dump(&self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        until_complete(|| self.exchange(kind, NLM_F_DUMP, body))
    }

    /// Sends a request and returns the body of its answer.
    pub(super) fn request(&self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.exchange(kind, NLM_F_ACK, body)?.bodies.into_iter().next().ok_or_else(truncated)
    }

    /// Sends a request to which the kernel may reply with an acknowledgement alone (`None`).
    pub(super) fn request_optional(&self, kind: u16, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        // Without NLM_F_ECHO some answers go to multicast groups only.
        Ok(self.exchange(kind, NLM_F_ACK | NLM_F_ECHO, body)?.bodies.into_iter().next())
    }

    /// Sends a request that changes something, and returns when the kernel has acknowledged it; `flags` are added to
    /// NLM_F_REQUEST and NLM_F_ACK.
    pub(super) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.exchange(kind, NLM_F_ACK | flags, body).map(|_| ())
    }

    /// Sends a transaction. The kernel acknowledges each message but the first and the last (NFNL_MSG_BATCH_BEGIN and
    /// NFNL_MSG_BATCH_END).
    pub(super) fn batch(&self, mut messages: Vec<Vec<u8>>) -> io::Result<()> {
        let sequence = self.next_sequence();
        messages.iter_mut().for_each(|message| number(message, sequence));
        send(&self.socket, &messages.concat(), SendFlags::empty())?;
        (2..messages.len()).try_for_each(|_| self.receive(sequence).map(|_| ()))
    }

    /// Sends a message without waiting for an acknowledgement.
    pub(super) fn send(&self, kind: u16, body: &[u8]) -> io::Result<()> {
        send(&self.socket, &message(kind, 0, body), SendFlags::empty())?;
        Ok(())
    }

    fn exchange(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<NetlinkAnswer> {
        let sequence = self.next_sequence();
        let mut request = message(kind, flags, body);
        number(&mut request, sequence);
        send(&self.socket, &request, SendFlags::empty())?;
        self.receive(sequence)
    }

    fn next_sequence(&self) -> u32 {
        self.sequence.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Receives the bodies of the answers that come before the acknowledgement or the end of the dump.
    fn receive(&self, sequence: u32) -> io::Result<NetlinkAnswer> {
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let mut answer = NetlinkAnswer::default();
        loop {
            let (received, _) = match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let datagram = &buffer[..received.min(RECEIVE_BUFFER_BYTES)];
            if !answer.read(datagram, sequence)? {
                return Ok(answer);
            }
            if answer.bodies.len() > DUMP_MESSAGES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the kernel's dump exceeds the message limit",
                ));
            }
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets `nlmsg_seq` of an encoded message.
fn number(message: &mut [u8], sequence: u32) {
    if let Some(field) = message.get_mut(SEQUENCE_OFFSET..SEQUENCE_OFFSET + 4) {
        field.copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// Answers to one request.
#[derive(Debug, Default)]
struct NetlinkAnswer {
    bodies: Vec<Vec<u8>>,
    /// True for a dump during which the list changed (`NLM_F_DUMP_INTR`).
    is_interrupted: bool,
}

/// Repeats a dump until nothing interrupts it.
fn until_complete(mut dump: impl FnMut() -> io::Result<NetlinkAnswer>) -> io::Result<Vec<Vec<u8>>> {
    for _ in 0..DUMP_ATTEMPTS_MAX {
        let answer = dump()?;
        if !answer.is_interrupted {
            return Ok(answer.bodies);
        }
    }
    let text =
        format!("the kernel's list changed during each of {DUMP_ATTEMPTS_MAX} dumps: try again");
    Err(io::Error::new(io::ErrorKind::Interrupted, text))
}

impl NetlinkAnswer {
    /// Appends the bodies in one datagram; true if more datagrams follow.
    fn read(&mut self, mut datagram: &[u8], sequence: u32) -> io::Result<bool> {
        while !datagram.is_empty() {
            let length = u32_at(datagram, 0).ok_or_else(truncated)? as usize;
            let message = datagram
                .get(..length)
                .filter(|_| length >= NLMSGHDR_BYTES)
                .ok_or_else(truncated)?;
            let (kind, flags) = (
                u16_at(message, 4).ok_or_else(truncated)?,
                u16_at(message, 6).ok_or_else(truncated)?,
            );
            let body = &message[NLMSGHDR_BYTES..];
            datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
            // An answer to an earlier request that failed, or no answer: a packet of an NFQUEUE.
            if u32_at(message, SEQUENCE_OFFSET) != Some(sequence) {
                continue;
            }
            self.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
            match kind {
                NLMSG_ERROR => {
                    let code = u32_at(body, 0).ok_or_else(truncated)?.cast_signed();
                    return if code == 0 {
                        Ok(false)
                    } else {
                        Err(kernel_error(code, flags, body))
                    };
                }
                NLMSG_DONE => {
                    let code = u32_at(body, 0).map_or(0, u32::cast_signed);
                    return if code < 0 { Err(kernel_error(code, flags, body)) } else { Ok(false) };
                }
                _ => self.bodies.push(body.to_vec()),
            }
        }
        Ok(true)
    }
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
                let _ = NetlinkAnswer::default().read(&vec![byte; length], 1);
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
    fn other_sequence_numbers_are_skipped() {
        let mut data = message(20, 0, b"body");
        let mut answer = NetlinkAnswer::default();
        assert!(answer.read(&data, 3).unwrap() && answer.bodies.is_empty());
        number(&mut data, 3);
        let mut done = message(NLMSG_ERROR, 0, &[0; 20]);
        number(&mut done, 3);
        assert!(!answer.read(&[data, done].concat(), 3).unwrap());
        assert_eq!(answer.bodies, [b"body".to_vec()]);
    }

    /// A dump of one message, and its end.
    fn dumped(body: &[u8], flags: u16) -> io::Result<NetlinkAnswer> {
        let mut answer = NetlinkAnswer::default();
        let datagrams = [message(20, flags, body), message(NLMSG_DONE, 0, &[0; 4])];
        assert!(!answer.read(&datagrams.concat(), 0)?);
        Ok(answer)
    }

    #[test]
    fn interrupted_dump_is_repeated() {
        let mut flags =
            [NLM_F_DUMP_INTR, NLM_F_DUMP_INTR, 0].into_iter().zip([b"1...", b"2...", b"3..."]);
        let bodies = until_complete(|| {
            let (flags, body) = flags.next().unwrap();
            dumped(body, flags)
        });
        assert_eq!(bodies.unwrap(), [b"3...".to_vec()]);
        let mut attempts = 0;
        let error = until_complete(|| {
            attempts += 1;
            dumped(b"1...", NLM_F_DUMP_INTR)
        });
        assert!(error.unwrap_err().to_string().contains("changed during each of 16 dumps"));
        assert_eq!(attempts, DUMP_ATTEMPTS_MAX);
    }

    #[test]
    fn one_socket_serves_several_requests() {
        let socket = NetlinkSocket::open(None).unwrap();
        for _ in 0..2 {
            assert!(!socket.dump(libc::RTM_GETLINK, &[0; 16]).unwrap().is_empty());
            let mut unknown = vec![0; 16];
            unknown[4..8].copy_from_slice(&0x7FFF_0000_u32.to_ne_bytes());
            let error = socket.request(libc::RTM_GETLINK, &unknown).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        }
    }
}
