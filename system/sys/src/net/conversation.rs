//! A netlink socket over which several questions are asked: lists, changes that the kernel confirms, and its own
//! words for a refusal (netlink(7), `NETLINK_EXT_ACK`).
//!
//! For [`super::device`], [`super::ethtool`] and [`super::statistics`]; [`super::netlink`] asks one question on a socket of its own.
//!
//! Fails with the kernel's error; where the kernel says in words what is wrong, they are the error's text.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::netlink::{attributes, cut, set_option, u16_at, u32_at};

const ERROR: u16 = 2;
const DONE: u16 = 3;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;

/// Marks an error message whose question is not repeated in it, and one that has attributes.
const CAPPED: u16 = 0x100;
const ACK_TLVS: u16 = 0x200;
const ERROR_TEXT: u16 = 1;

const HEADER_BYTES: usize = 16;
/// More than any one answer of the kernel: it fills its own buffers of 32 KiB.
const BUFFER_BYTES: usize = 256 << 10;
/// Messages of one list: a machine with more devices, queues and disciplines than this is not ours.
const MESSAGES_MAX: usize = 1 << 20;

pub(super) struct Conversation {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Conversation {
    /// With the kernel's part for `protocol`; none is rtnetlink.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // Words are welcome, not needed: before Linux 4.12 there are none.
        let _ = set_option(&socket, libc::NETLINK_EXT_ACK);
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// The bodies of a list.
    pub(super) fn list(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.exchange(kind, DUMP, body)
    }

    /// The bodies of an answer to a question that the kernel confirms.
    pub(super) fn ask(&mut self, kind: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.exchange(kind, ACK, body)
    }

    /// Has the kernel do something; `flags` beside those of every request.
    pub(super) fn order(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.exchange(kind, ACK | flags, body).map(|_| ())
    }

    fn exchange(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
        request.extend(u32::try_from(HEADER_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((REQUEST | flags).to_ne_bytes());
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
            let more = read(&self.buffer[..received.min(BUFFER_BYTES)], self.sequence, &mut bodies);
            if !more? {
                return Ok(bodies);
            }
            if bodies.len() > MESSAGES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the kernel's list has no end",
                ));
            }
        }
    }
}

/// Takes what one datagram says; whether there is more to come.
fn read(mut datagram: &[u8], sequence: u32, bodies: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let length = u32_at(datagram, 0).ok_or_else(cut)? as usize;
        let message = datagram.get(..length).filter(|_| length >= HEADER_BYTES).ok_or_else(cut)?;
        let (kind, flags) =
            (u16_at(message, 4).ok_or_else(cut)?, u16_at(message, 6).ok_or_else(cut)?);
        let body = &message[HEADER_BYTES..];
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        // An answer to a question that was given up.
        if u32_at(message, 8) != Some(sequence) {
            continue;
        }
        match kind {
            ERROR => {
                let code = u32_at(body, 0).ok_or_else(cut)?.cast_signed();
                return if code == 0 { Ok(false) } else { Err(refusal(code, flags, body)) };
            }
            DONE => {
                let code = u32_at(body, 0).map_or(0, u32::cast_signed);
                return if code < 0 { Err(refusal(code, flags, body)) } else { Ok(false) };
            }
            _ => bodies.push(body.to_vec()),
        }
    }
    Ok(true)
}

fn refusal(code: i32, flags: u16, body: &[u8]) -> io::Error {
    let plain = io::Error::from_raw_os_error(code.saturating_neg());
    let asked = if flags & CAPPED == 0 { u32_at(body, 4).unwrap_or(16) as usize } else { 16 };
    let rest = body.get(4 + asked..).filter(|_| flags & ACK_TLVS != 0).unwrap_or_default();
    let words = attributes(rest).find(|(kind, _)| *kind == ERROR_TEXT);
    let words =
        words.map(|(_, text)| String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
    match words.filter(|words| !words.is_empty()) {
        // Whoever asks for a device tells by the number that there is none.
        Some(_) if plain.raw_os_error() == Some(libc::ENODEV) => plain,
        Some(words) => io::Error::new(plain.kind(), format!("{words} ({plain})")),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_arrives_is_no_panic() {
        for length in 0..96 {
            for byte in [0, 1, 2, 4, 16, 20, 255] {
                let _ = read(&vec![byte; length], 1, &mut Vec::new());
                let _ = refusal(-22, ACK_TLVS, &vec![byte; length]);
            }
        }
    }

    #[test]
    fn a_refusal_carries_the_words_of_the_kernel() {
        let mut body = (-22_i32).to_ne_bytes().to_vec();
        body.extend(16_u32.to_ne_bytes());
        body.extend([0; 12]);
        super::super::netlink::put(&mut body, ERROR_TEXT, b"mtu greater than device maximum\0");
        let error = refusal(-22, ACK_TLVS, &body);
        assert!(error.to_string().contains("mtu greater than device maximum ("), "{error}");
        assert_eq!(refusal(-1, 0, &body).raw_os_error(), Some(1));
    }

    #[test]
    fn several_questions_go_over_one_socket() {
        const GETLINK: u16 = 18;
        let mut conversation = Conversation::open(None).unwrap();
        for _ in 0..2 {
            assert!(!conversation.list(GETLINK, &[0; 16]).unwrap().is_empty());
            let mut unknown = vec![0; 16];
            unknown[4..8].copy_from_slice(&0x7FFF_0000_u32.to_ne_bytes());
            let error = conversation.ask(GETLINK, &unknown).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
        }
    }
}
