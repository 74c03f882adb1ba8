//! Facts about a network device of this network namespace, asked from the kernel by netlink.
//!
//! Not from `/sys/class/net`, which shows the namespace it was mounted in.

use std::io;

use super::netlink::{attributes, cut, put, u16_at, u32_at};

/// rtnetlink(7): kinds of messages and attributes.
const GETLINK: u16 = 18;
const IFNAME: u16 = 3;
const MTU: u16 = 4;
const GSO_MAX_SIZE: u16 = 41;

/// if_arp(7): devices whose frames begin with an Ethernet header.
const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;

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
        put(&mut attribute, IFNAME, &[name.as_bytes(), &[0]].concat());
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
    let mut body = vec![0; 4]; // family, type
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]); // flags, change
    body.extend(attribute);
    let answer = super::netlink::ask(GETLINK, &body).map_err(|error| {
        // ENODEV is what an unknown device gives.
        let unknown = error.raw_os_error() == Some(libc::ENODEV);
        if unknown { io::ErrorKind::NotFound.into() } else { error }
    })?;
    read(&answer)
}

fn read(body: &[u8]) -> io::Result<Link> {
    let hardware = u16_at(body, 2).ok_or_else(cut)?;
    let mut link = Link {
        index: u32_at(body, 4).ok_or_else(cut)?,
        name: String::new(),
        ethernet: hardware == ETHERNET || hardware == LOOPBACK,
        mtu: 0,
        // Before IFLA_GSO_MAX_SIZE there was no more than this.
        gso_max_size: 65_536,
    };
    for (kind, value) in attributes(body.get(INFO_BYTES..).unwrap_or_default()) {
        match kind {
            IFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                link.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
            GSO_MAX_SIZE => link.gso_max_size = u32_at(value, 0).unwrap_or(link.gso_max_size),
            _ => {}
        }
    }
    Ok(link)
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
