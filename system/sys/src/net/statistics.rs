//! Counters of all network devices of this network namespace, by rtnetlink.
//!
//! Not from `/sys/class/net`, which shows the namespace it was mounted in, nor from `/proc/net/dev`, which lacks counters.

use std::io;

use super::netlink::{
    IF_OPER_UNKNOWN, IF_OPER_UP, IFF_LOWER_UP, IFF_UP, IFINFOMSG_BYTES, attributes, truncated,
    u16_at, u32_at,
};
use super::netlink_socket::NetlinkSocket;

/// A network device with its state and counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedDevice {
    /// Interface index, unique in the namespace.
    pub index: u32,
    /// Interface name, up to 15 bytes.
    pub name: String,
    /// True if its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// True for an Ethernet device without IFLA_INFO_KIND: hardware, real or a virtual machine's, and not a VLAN, bridge,
    /// bond or veth.
    pub physical: bool,
    /// True if it is administratively up (IFF_UP).
    pub up: bool,
    /// Operationally up: it passes packets.
    pub running: bool,
    /// True in promiscuous mode.
    pub promiscuous: bool,
    /// Ethernet (MAC) address, if it has one.
    pub hardware: Option<[u8; 6]>,
    /// Counters since its creation.
    pub statistics: DeviceStatistics,
}

/// `struct rtnl_link_stats64`, counted from the creation of the device. Bytes include the Ethernet header, not the frame
/// check sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the kernel's own names")]
pub struct DeviceStatistics {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub multicast: u64,
    pub collisions: u64,
    pub rx_crc_errors: u64,
    pub rx_frame_errors: u64,
    pub tx_carrier_errors: u64,
}

impl CountedDevice {
    /// Lists all devices of the namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn all() -> io::Result<Vec<Self>> {
        let answers = NetlinkSocket::open(None)?.dump(libc::RTM_GETLINK, &[0; IFINFOMSG_BYTES])?;
        answers.iter().map(|answer| read(answer)).collect()
    }
}

fn read(body: &[u8]) -> io::Result<CountedDevice> {
    let hardware = u16_at(body, 2).ok_or_else(truncated)?;
    let flags = u32_at(body, 8).ok_or_else(truncated)?;
    let mut device = CountedDevice {
        index: u32_at(body, 4).ok_or_else(truncated)?,
        name: String::new(),
        ethernet: hardware == libc::ARPHRD_ETHER || hardware == libc::ARPHRD_LOOPBACK,
        physical: hardware == libc::ARPHRD_ETHER,
        up: flags & IFF_UP != 0,
        running: false,
        promiscuous: false,
        hardware: None,
        statistics: DeviceStatistics::default(),
    };
    for (kind, value) in attributes(body.get(IFINFOMSG_BYTES..).unwrap_or_default()) {
        match kind {
            libc::IFLA_IFNAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                device.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            libc::IFLA_ADDRESS if hardware == libc::ARPHRD_ETHER => {
                device.hardware = value.try_into().ok()
            }
            libc::IFLA_OPERSTATE => {
                device.running = value == [IF_OPER_UP]
                    || (value == [IF_OPER_UNKNOWN]
                        && flags & (IFF_UP | IFF_LOWER_UP) == (IFF_UP | IFF_LOWER_UP));
            }
            libc::IFLA_LINKINFO => {
                device.physical &= !attributes(value).any(|(kind, _)| kind == libc::IFLA_INFO_KIND)
            }
            libc::IFLA_PROMISCUITY => device.promiscuous = u32_at(value, 0) != Some(0),
            libc::IFLA_STATS64 => device.statistics = statistics(value),
            _ => {}
        }
    }
    Ok(device)
}

fn statistics(value: &[u8]) -> DeviceStatistics {
    let word = |at: usize| {
        let bytes = value.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    DeviceStatistics {
        rx_packets: word(0),
        tx_packets: word(1),
        rx_bytes: word(2),
        tx_bytes: word(3),
        rx_errors: word(4),
        tx_errors: word(5),
        rx_dropped: word(6),
        tx_dropped: word(7),
        multicast: word(8),
        collisions: word(9),
        rx_crc_errors: word(12),
        rx_frame_errors: word(13),
        tx_carrier_errors: word(17),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_and_counts() {
        let of_lo =
            || CountedDevice::all().unwrap().into_iter().find(|one| one.name == "lo").unwrap();
        let before = of_lo();
        assert!(before.ethernet && !before.physical && before.hardware.is_none(), "{before:?}");
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[7; 100], socket.local_addr().unwrap()).unwrap();
        let after = of_lo();
        assert!(after.up && after.running, "{after:?}");
        assert!(after.statistics.tx_packets > before.statistics.tx_packets);
        assert!(after.statistics.rx_bytes >= before.statistics.rx_bytes + 100);
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 18, 23, 255] {
                let _ = read(&vec![byte; length]);
            }
        }
    }
}
