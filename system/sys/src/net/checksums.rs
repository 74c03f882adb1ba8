//! Checksum offloads of a device (`ethtool -k`), by SIOCETHTOOL.

use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// include/uapi/linux/ethtool.h; libc does not have it.
const ETHTOOL_GSTRINGS: u32 = 0x1B;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3A;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;

/// Bound on the kernel's answer.
const FEATURES_MAX: u32 = 1024;

/// Transmit checksum offloads of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checksums {
    /// Any packet (`tx-checksum-ip-generic`).
    pub generic: bool,
    /// TCP and UDP directly behind the IPv6 header (`tx-checksum-ipv6`).
    pub ipv6: bool,
}

impl Checksums {
    /// Reads the offloads of the device with this name.
    ///
    /// # Errors
    /// The driver's error.
    pub fn of(name: &str) -> io::Result<Self> {
        let device = EthtoolSocket::new(name)?;
        // struct ethtool_sset_info: command, reserved, mask (8), counts.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
        let [low, high] = halves(1 << ETH_SS_FEATURES);
        (info[2], info[3]) = (low, high);
        device.request(&mut info)?;
        let count = info[4];
        if count > FEATURES_MAX {
            return Err(io::Error::other(format!("the kernel says it has {count} features")));
        }
        // struct ethtool_gstrings: command, set, count, names.
        let mut names = vec![0_u32; 3 + count as usize * ETH_GSTRING_LEN / 4];
        (names[0], names[1], names[2]) = (ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count);
        device.request(&mut names)?;
        // struct ethtool_gfeatures: command, blocks; each available, requested, active, unchangeable.
        let blocks = count.div_ceil(32);
        let mut features = vec![0_u32; 2 + blocks as usize * 4];
        (features[0], features[1]) = (ETHTOOL_GFEATURES, blocks);
        device.request(&mut features)?;
        Ok(parse(&names[3..], &features[2..]))
    }
}

fn halves(mask: u64) -> [u32; 2] {
    let bytes = mask.to_ne_bytes();
    [&bytes[..4], &bytes[4..]].map(|half| u32::from_ne_bytes(half.try_into().expect("4 bytes")))
}

fn parse(names: &[u32], features: &[u32]) -> Checksums {
    let active = |wanted: &str| {
        let is_it = |words: &[u32]| {
            let mut bytes = words.iter().flat_map(|word| word.to_ne_bytes());
            wanted.bytes().all(|byte| bytes.next() == Some(byte)) && bytes.next() == Some(0)
        };
        let bit = names.chunks_exact(ETH_GSTRING_LEN / 4).position(is_it);
        let word = bit.and_then(|bit| Some(features.get(bit / 32 * 4 + 2)? >> (bit % 32) & 1));
        word == Some(1)
    };
    Checksums { generic: active("tx-checksum-ip-generic"), ipv6: active("tx-checksum-ipv6") }
}

/// A socket for SIOCETHTOOL requests about one device.
pub(super) struct EthtoolSocket {
    socket: Socket,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl EthtoolSocket {
    pub(super) fn new(name: &str) -> io::Result<Self> {
        if name.len() >= libc::IFNAMSIZ {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed() as libc::c_char;
        }
        Ok(Self { socket: Socket::new(Domain::IPV4, Type::DGRAM, None)?, name: bytes })
    }

    /// Sends a request. The answer overwrites `buffer`, which must have room for it.
    pub(super) fn request(&self, buffer: &mut [u32]) -> io::Result<()> {
        // SAFETY: ifreq is a C structure of integers and pointers, for all of which zero is a value.
        let mut request: libc::ifreq = unsafe { zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
        // SAFETY: the socket is open; the request points to `buffer`, which lives until the call returns
        // and has room for the answers that `Checksums::of` and `speed` ask for: the numbers of features and of
        // words of link modes are the kernel's own, and do not change while it runs.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u32> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(ETH_GSTRING_LEN, 0);
        bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn loopback_offloads_any_checksum() {
        let made = Checksums::of("lo").unwrap();
        assert_eq!(made, Checksums { generic: true, ipv6: false });
        assert!(Checksums::of("no-such-device").is_err());
        assert!(Checksums::of("a name that is much too long").is_err());
    }

    #[test]
    fn features_are_found_by_name() {
        let names =
            [name("tx-checksum-ipv4"), name("tx-checksum-ipv6"), name("tx-checksum-ip-generic")];
        let names = names.concat();
        let of = |active: u32| parse(&names, &[7, 7, active, 0]);
        assert_eq!(of(0b010), Checksums { generic: false, ipv6: true });
        assert_eq!(of(0b101), Checksums { generic: true, ipv6: false });
        assert_eq!(parse(&names, &[]), Checksums::default());
        assert_eq!(parse(&[], &[7, 7, 7, 0]), Checksums::default());
    }
}
