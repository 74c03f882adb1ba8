//! Index, name and packet sizes of one network device of this network namespace, by rtnetlink.
//!
//! Not from `/sys/class/net`, which shows the namespace it was mounted in.

use std::io;

use super::netlink::{IFINFOMSG_BYTES, attributes, put, truncated, u16_at, u32_at};
use super::netlink_socket::NetlinkSocket;

/// IFNAMSIZ less the terminating NUL.
const NAME_BYTES_MAX: usize = 15;

/// A network device: the attributes that marker and mover need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAttributes {
    /// Interface index, unique in the namespace.
    pub index: u32,
    /// Interface name, up to 15 bytes.
    pub name: String,
    /// True if its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// In bytes, without the Ethernet header.
    pub mtu: u32,
    /// Largest super-packet that the kernel hands to it (GSO), in bytes; above 65536 is BIG TCP.
    pub gso_max_size: u32,
}

impl LinkAttributes {
    /// Looks a device up by name.
    ///
    /// # Errors
    /// `NotFound` without such a device; else the socket's error.
    pub fn named(name: &str) -> io::Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['\0', '/']) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut attribute = Vec::new();
        put(&mut attribute, libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        request(0, &attribute)
    }

    /// Looks a device up by index.
    ///
    /// # Errors
    /// `NotFound` without such a device; else the socket's error.
    pub fn indexed(index: u32) -> io::Result<Self> {
        request(index, &[])
    }
}

fn request(index: u32, attribute: &[u8]) -> io::Result<LinkAttributes> {
    let mut body = vec![0; 4]; // family, type
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]); // flags, change
    body.extend(attribute);
    let answer = NetlinkSocket::open(None)?.request(libc::RTM_GETLINK, &body).map_err(|error| {
        let unknown = error.raw_os_error() == Some(libc::ENODEV);
        if unknown { io::ErrorKind::NotFound.into() } else { error }
    })?;
    read(&answer)
}

fn read(body: &[u8]) -> io::Result<LinkAttributes> {
    let hardware = u16_at(body, 2).ok_or_else(truncated)?;
    let mut link = LinkAttributes {
        index: u32_at(body, 4).ok_or_else(truncated)?,
        name: String::new(),
        ethernet: hardware == libc::ARPHRD_ETHER || hardware == libc::ARPHRD_LOOPBACK,
        mtu: 0,
        // The limit of kernels without IFLA_GSO_MAX_SIZE.
        gso_max_size: 65_536,
    };
    for (kind, value) in attributes(body.get(IFINFOMSG_BYTES..).unwrap_or_default()) {
        match kind {
            libc::IFLA_IFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                link.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            libc::IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
            libc::IFLA_GSO_MAX_SIZE => {
                link.gso_max_size = u32_at(value, 0).unwrap_or(link.gso_max_size)
            }
            _ => {}
        }
    }
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_both_keys() {
        let link = LinkAttributes::named("lo").unwrap();
        assert!(link.ethernet && link.mtu > 0 && link.gso_max_size > 0, "{link:?}");
        assert_eq!(LinkAttributes::indexed(link.index).unwrap(), link);
        for unknown in ["", "no-such-device", "a name that is much too long", "a/b"] {
            assert_eq!(LinkAttributes::named(unknown).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(
            LinkAttributes::indexed(0x7FFF_0000).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 255] {
                let _ = read(&vec![byte; length]);
            }
        }
    }
}
