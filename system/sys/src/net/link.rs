//! Facts about a network device of this network namespace, asked from the kernel by netlink.
//!
//! Not from `/sys/class/net`, which shows the namespace it was mounted in.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// rtnetlink(7): kinds of messages and attributes.
const GETLINK: u16 = 18;
const ERROR: u16 = 2;
const IFNAME: u16 = 3;
const MTU: u16 = 4;
const GSO_MAX_SIZE: u16 = 41;
const REQUEST: u16 = 1;

/// if_arp(7): devices whose frames begin with an Ethernet header.
const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;

const HEADER_BYTES: usize = 16;
const INFO_BYTES: usize = 16;
const NAME_BYTES_MAX: usize = 15;

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Longest packet that the kernel hands to it for segmentation, in bytes: more than 65536 is BIG TCP.
    pub gso_max_size: u32,
}

impl Link {
    /// The device with this name.
    ///
    /// # Errors
    /// `NotFound` where there is none; else whatever the socket says.
    pub fn named(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['\0', '/']) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut attribute = Vec::new();
        let length = 4 + name.len() + 1;
        attribute.extend(u16::try_from(length).unwrap_or(0).to_ne_bytes());
        attribute.extend(IFNAME.to_ne_bytes());
        attribute.extend(name.as_bytes());
        attribute.resize(length.next_multiple_of(4), 0);
        ask(0, &attribute)
    }

    /// The device with this index.
    ///
    /// # Errors
    /// `NotFound` where there is none; else whatever the socket says.
    pub fn indexed(index: u32) -> io::Result<Self> {
        ask(index, &[])
    }
}

fn ask(index: u32, attribute: &[u8]) -> io::Result<Link> {
    // No protocol is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut request = Vec::new();
    let length = u32::try_from(HEADER_BYTES + INFO_BYTES + attribute.len()).unwrap_or(0);
    request.extend(length.to_ne_bytes());
    request.extend(GETLINK.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]); // sequence and port
    request.extend([0; 4]); // family, type
    request.extend(index.to_ne_bytes());
    request.extend([0; 8]); // flags, change
    request.extend(attribute);
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0; 256 << 10];
    let (received, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    read(&answer[..received.min(answer.len())])
}

fn read(message: &[u8]) -> io::Result<Link> {
    let cut = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off");
    let kind = u16_at(message, 4).ok_or_else(cut)?;
    if kind == ERROR {
        let code = u32_at(message, HEADER_BYTES).ok_or_else(cut)?.cast_signed();
        let error = io::Error::from_raw_os_error(-code);
        // ENODEV is what an unknown device gives.
        let unknown = error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error());
        return Err(if unknown { io::ErrorKind::NotFound.into() } else { error });
    }
    let hardware = u16_at(message, HEADER_BYTES + 2).ok_or_else(cut)?;
    let mut link = Link {
        index: u32_at(message, HEADER_BYTES + 4).ok_or_else(cut)?,
        name: String::new(),
        ethernet: hardware == ETHERNET || hardware == LOOPBACK,
        mtu: 0,
        // Before IFLA_GSO_MAX_SIZE there was no more than this.
        gso_max_size: 65_536,
    };
    let mut at = HEADER_BYTES + INFO_BYTES;
    while let (Some(length), Some(kind)) = (u16_at(message, at), u16_at(message, at + 2)) {
        let length = usize::from(length);
        let Some(value) = message.get(at + 4..at + length) else { break };
        match kind {
            IFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                link.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
            GSO_MAX_SIZE => link.gso_max_size = u32_at(value, 0).unwrap_or(link.gso_max_size),
            _ => {}
        }
        at += length.next_multiple_of(4);
    }
    Ok(link)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_by_name_and_by_index() {
        let link = Link::named("lo").unwrap();
        assert!(link.ethernet && link.mtu > 0 && link.gso_max_size > 0, "{link:?}");
        assert_eq!(Link::indexed(link.index).unwrap(), link);
        for unknown in ["", "no-such-device", "a name that is much too long", "a/b"] {
            assert_eq!(Link::named(unknown).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(Link::indexed(0x7FFF_0000).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 255] {
                let _ = read(&vec![byte; length]);
            }
        }
    }
}
