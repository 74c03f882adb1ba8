//! Messages to the kernel's routing tables, devices and packet filters, and its answers (netlink).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use super::options::set_int;

/// include/uapi/linux/netlink.h.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const ECHO: u16 = 8;
const OPTION_CAP_ACK: i32 = 10;
const OPTION_EXT_ACK: i32 = 11;
const HEADER_BYTES: usize = 16;
/// nlmsgerr: the code and the header of what it answers.
const REFUSAL_BYTES: usize = 4 + HEADER_BYTES;
const REFUSAL_TEXT: u16 = 1;
/// Set on attributes that hold attributes.
pub(super) const NESTED: u16 = 0x8000;

/// Sends a message of this kind and gives the body of the answer.
///
/// # Errors
/// The kernel's refusal, or whatever the socket says.
pub(super) fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    Netlink::open(None)?.ask(kind, body)
}

/// A socket to one of the kernel's families, in the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// No protocol is NETLINK_ROUTE.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, protocol)?;
        // Refusals come with the kernel's own words, and without a copy of the request. Both since Linux 4.12;
        // without them an error has a number only.
        for option in [OPTION_CAP_ACK, OPTION_EXT_ACK] {
            let _ = set_option(&socket, option);
        }
        Ok(Self(socket))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// One question, one answer.
    pub(super) fn ask(&self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        send(&self.0, &message(kind, 0, body), SendFlags::empty())?;
        let answer = self.receive()?;
        body_of(&answer).map(<[u8]>::to_vec)
    }

    /// One question that the kernel may have nothing to say to.
    pub(super) fn ask_if_any(&self, kind: u16, body: &[u8]) -> io::Result<Option<Vec<u8>>> {
        // Without an echo some answers go to those alone who listen to all changes.
        send(&self.0, &message(kind, ACKNOWLEDGE | ECHO, body), SendFlags::empty())?;
        let answer = self.receive()?;
        match body_of(&answer) {
            Ok(body) => self.acknowledged().map(|()| Some(body.to_vec())),
            Err(error) if error.raw_os_error() == Some(0) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A change; returns when the kernel has made it.
    pub(super) fn change(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        send(&self.0, &message(kind, flags | ACKNOWLEDGE, body), SendFlags::empty())?;
        self.acknowledged()
    }

    /// Messages that count together or not at all; every one of `messages` but the first and the last, which only
    /// frame them, is acknowledged.
    pub(super) fn batch(&self, messages: &[Vec<u8>]) -> io::Result<()> {
        send(&self.0, &messages.concat(), SendFlags::empty())?;
        (2..messages.len()).try_for_each(|_| self.acknowledged())
    }

    /// A message that the kernel does not answer.
    pub(super) fn tell(&self, kind: u16, body: &[u8]) -> io::Result<()> {
        send(&self.0, &message(kind, 0, body), SendFlags::empty())?;
        Ok(())
    }

    fn acknowledged(&self) -> io::Result<()> {
        match body_of(&self.receive()?) {
            // A yes is an error of number 0.
            Err(error) if error.raw_os_error() == Some(0) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(cut()),
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; 256 << 10];
        let (received, _) = recv(&self.0, answer.as_mut_slice(), RecvFlags::empty())?;
        answer.truncate(received);
        Ok(answer)
    }
}

/// Sets a flag of SOL_NETLINK.
pub(super) fn set_option(socket: impl AsFd, option: i32) -> io::Result<()> {
    set_int(&socket, libc::SOL_NETLINK, option, 1)
}

/// A message with its header.
pub(super) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend(u32::try_from(HEADER_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((REQUEST | flags).to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    message.extend(body);
    message
}

fn body_of(message: &[u8]) -> io::Result<&[u8]> {
    let kind = u16_at(message, 4).ok_or_else(cut)?;
    let body = message.get(HEADER_BYTES..).ok_or_else(cut)?;
    if kind != ERROR {
        return Ok(body);
    }
    let code = u32_at(body, 0).ok_or_else(cut)?.cast_signed();
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    let mut told = attributes(body.get(REFUSAL_BYTES..).unwrap_or_default());
    match told.find(|(kind, _)| *kind == REFUSAL_TEXT) {
        Some((_, words)) if code != 0 => {
            let words = String::from_utf8_lossy(words);
            Err(io::Error::new(error.kind(), format!("{error}: {}", words.trim_end_matches('\0'))))
        }
        _ => Err(error),
    }
}

/// What an answer that ends too early is.
pub(super) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off")
}

/// Appends an attribute.
pub(super) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(u16::try_from(4 + value.len()).unwrap_or(0).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an attribute of attributes.
pub(super) fn nest(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    put(out, kind | NESTED, &inner);
}

/// The attributes in `bytes`, kind and value; ends with the first that is cut.
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
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 2, 4, 255] {
                let bytes = vec![byte; length];
                let _ = body_of(&bytes);
                assert!(attributes(&bytes).count() <= length);
            }
        }
    }

    #[test]
    fn attributes_go_there_and_back() {
        let mut bytes = Vec::new();
        put(&mut bytes, 3, b"eth0\0");
        put(&mut bytes, 4, &1500_u32.to_ne_bytes());
        assert_eq!(bytes.len(), 20);
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(3, &b"eth0\0"[..]), (4, &1500_u32.to_ne_bytes()[..])]);
    }
}
