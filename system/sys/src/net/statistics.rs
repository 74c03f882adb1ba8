//! All network devices of this network namespace with their counters, asked from the kernel by netlink.
//!
//! Not from `/sys/class/net` or `/proc/net/dev`: the one shows the namespace it was mounted in, the other has too few
//! counters.

use std::io;

use super::conversation::Conversation;
use super::netlink::{attributes, cut, u16_at, u32_at};

/// rtnetlink(7), include/uapi/linux/if_link.h.
const GETLINK: u16 = 18;
const HARDWARE: u16 = 1;
const NAME: u16 = 3;
const STATE: u16 = 16;
const INFO: u16 = 18;
const STATS64: u16 = 23;
const PROMISCUITY: u16 = 30;
const INFO_KIND: u16 = 1;
const UP: u32 = 1;
const LOWER_UP: u32 = 0x1_0000;
const STATE_UP: u8 = 6;
const STATE_UNKNOWN: u8 = 0;

/// if_arp(7).
const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;

const INFO_BYTES: usize = 16;

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedDevice {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// Whether it is hardware, real or a virtual machine's: of Ethernet, and of none of the kernel's own kinds (VLAN,
    /// bridge, bond, veth).
    pub physical: bool,
    /// Whether it was taken up.
    pub up: bool,
    /// Whether packets go through it.
    pub running: bool,
    /// Whether it takes frames to anybody.
    pub promiscuous: bool,
    /// Its Ethernet address.
    pub hardware: Option<[u8; 6]>,
    /// What went through it.
    pub statistics: DeviceStatistics,
}

/// What went through a device since it was made (`struct rtnl_link_stats64`). Bytes are those of Ethernet frames
/// without check sequence.
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
    /// All of them.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn all() -> io::Result<Vec<Self>> {
        let answers = Conversation::open(None)?.list(GETLINK, &[0; INFO_BYTES])?;
        answers.iter().map(|answer| read(answer)).collect()
    }
}

fn read(body: &[u8]) -> io::Result<CountedDevice> {
    let hardware = u16_at(body, 2).ok_or_else(cut)?;
    let flags = u32_at(body, 8).ok_or_else(cut)?;
    let mut device = CountedDevice {
        index: u32_at(body, 4).ok_or_else(cut)?,
        name: String::new(),
        ethernet: hardware == ETHERNET || hardware == LOOPBACK,
        physical: hardware == ETHERNET,
        up: flags & UP != 0,
        running: false,
        promiscuous: false,
        hardware: None,
        statistics: DeviceStatistics::default(),
    };
    for (kind, value) in attributes(body.get(INFO_BYTES..).unwrap_or_default()) {
        match kind {
            NAME => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                device.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            HARDWARE if hardware == ETHERNET => device.hardware = value.try_into().ok(),
            STATE => {
                device.running = value == [STATE_UP]
                    || (value == [STATE_UNKNOWN] && flags & (UP | LOWER_UP) == (UP | LOWER_UP));
            }
            INFO => device.physical &= !attributes(value).any(|(kind, _)| kind == INFO_KIND),
            PROMISCUITY => device.promiscuous = u32_at(value, 0) != Some(0),
            STATS64 => device.statistics = statistics(value),
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
    fn loopback_is_among_them_and_counts() {
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
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 18, 23, 255] {
                let _ = read(&vec![byte; length]);
            }
        }
    }
}
