//! One question to the kernel's routing tables and devices, and its answer (rtnetlink).

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;

/// Sends a message of this kind and gives the body of the answer.
///
/// # Errors
/// The kernel's refusal, or whatever the socket says.
pub(super) fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    // No protocol is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::new();
    request.extend(u32::try_from(HEADER_BYTES + body.len()).unwrap_or(0).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]); // sequence and port
    request.extend(body);
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0; 256 << 10];
    let (received, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    answer.truncate(received);
    body_of(&answer).map(<[u8]>::to_vec)
}

fn body_of(message: &[u8]) -> io::Result<&[u8]> {
    let kind = u16_at(message, 4).ok_or_else(cut)?;
    let body = message.get(HEADER_BYTES..).ok_or_else(cut)?;
    if kind == ERROR {
        let code = u32_at(body, 0).ok_or_else(cut)?.cast_signed();
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    Ok(body)
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
