//! Network devices of this network namespace with what decides their speed, and the changes a host is tuned by
//! (rtnetlink(7)): longest packet, queue length, super-packet sizes, the root queueing discipline.
//!
//! Not for making devices or addresses. [`super::Link`] is the small form that marker and mover need.
//!
//! Fails with the kernel's refusal, in its words where it has some; what a kernel does not tell is `None`.

use std::io;

use super::conversation::Conversation;
use super::netlink::{attributes, put, u16_at, u32_at};

const NEWLINK: u16 = 16;
const GETLINK: u16 = 18;
const NEWQDISC: u16 = 36;
const DELQDISC: u16 = 37;
const GETQDISC: u16 = 38;

const CREATE: u16 = 0x400;
const REPLACE: u16 = 0x100;

const LINK_INFO_BYTES: usize = 16;
const QDISC_INFO_BYTES: usize = 20;
const ROOT: u32 = 0xFFFF_FFFF;

/// if_link.h: attributes of a device.
mod link {
    pub(super) const IFNAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LOWER: u16 = 5;
    pub(super) const TXQLEN: u16 = 13;
    pub(super) const LINKINFO: u16 = 18;
    pub(super) const LINKINFO_KIND: u16 = 1;
    pub(super) const STATS64: u16 = 23;
    pub(super) const NUM_TX_QUEUES: u16 = 31;
    pub(super) const CARRIER: u16 = 33;
    pub(super) const GSO_MAX_SIZE: u16 = 41;
    pub(super) const MAX_MTU: u16 = 51;
    pub(super) const PARENT_DEV_NAME: u16 = 56;
    pub(super) const PARENT_BUS_NAME: u16 = 57;
    pub(super) const GRO_MAX_SIZE: u16 = 58;
    pub(super) const TSO_MAX_SIZE: u16 = 59;
    pub(super) const GSO_IPV4_MAX_SIZE: u16 = 63;
    pub(super) const GRO_IPV4_MAX_SIZE: u16 = 64;
}

const KIND: u16 = 1;

/// A network device as rtnetlink tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What software device it is (`veth`, `vlan`, `bond`); none for hardware.
    pub kind: Option<String>,
    /// Index of the device it is stacked on, or of a veth's peer.
    pub lower: Option<u32>,
    /// Bus and address of the hardware, as `pci` and `0000:17:00.0`.
    pub bus: Option<(String, String)>,
    /// Whether it is the loopback device.
    pub loopback: bool,
    /// Whether it has a carrier.
    pub carrier: Option<bool>,
    /// Longest packet, in bytes.
    pub mtu: Option<u32>,
    /// Longest packet that it can be set to, in bytes.
    pub mtu_max: Option<u32>,
    /// Packets that its queue may hold, where its discipline asks.
    pub tx_queue_packets: Option<u32>,
    /// Queues for sending.
    pub tx_queues: Option<u32>,
    /// Longest packet handed to it for segmentation, in bytes.
    pub gso_max_bytes: Option<u32>,
    /// The same for IPv4.
    pub gso_ipv4_max_bytes: Option<u32>,
    /// Longest packet that receiving puts together, in bytes.
    pub gro_max_bytes: Option<u32>,
    /// The same for IPv4.
    pub gro_ipv4_max_bytes: Option<u32>,
    /// Longest packet that its hardware segments, in bytes.
    pub tso_max_bytes: Option<u32>,
    /// Packets that it had no room for when they arrived.
    pub rx_missed_packets: Option<u64>,
}

/// What can be set on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSetting {
    /// [`Device::mtu`]
    Mtu,
    /// [`Device::tx_queue_packets`]
    TxQueuePackets,
    /// [`Device::gso_max_bytes`]
    GsoMaxBytes,
    /// [`Device::gso_ipv4_max_bytes`]
    GsoIpv4MaxBytes,
    /// [`Device::gro_max_bytes`]
    GroMaxBytes,
    /// [`Device::gro_ipv4_max_bytes`]
    GroIpv4MaxBytes,
}

impl DeviceSetting {
    fn attribute(self) -> u16 {
        match self {
            Self::Mtu => link::MTU,
            Self::TxQueuePackets => link::TXQLEN,
            Self::GsoMaxBytes => link::GSO_MAX_SIZE,
            Self::GsoIpv4MaxBytes => link::GSO_IPV4_MAX_SIZE,
            Self::GroMaxBytes => link::GRO_MAX_SIZE,
            Self::GroIpv4MaxBytes => link::GRO_IPV4_MAX_SIZE,
        }
    }

    /// The value on a device.
    #[must_use]
    pub fn of(self, device: &Device) -> Option<u32> {
        match self {
            Self::Mtu => device.mtu,
            Self::TxQueuePackets => device.tx_queue_packets,
            Self::GsoMaxBytes => device.gso_max_bytes,
            Self::GsoIpv4MaxBytes => device.gso_ipv4_max_bytes,
            Self::GroMaxBytes => device.gro_max_bytes,
            Self::GroIpv4MaxBytes => device.gro_ipv4_max_bytes,
        }
    }
}

/// A queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Index of its device.
    pub device: u32,
    /// Its own number; 0 where the kernel put it there itself.
    pub handle: u32,
    /// The number of that above it; none at the root.
    pub parent: Option<u32>,
    /// What it is, as `mq` or `fq`.
    pub kind: String,
}

/// All devices.
///
/// # Errors
/// Whatever the socket says.
pub fn devices() -> io::Result<Vec<Device>> {
    let answers = Conversation::open(None)?.list(GETLINK, &[0; LINK_INFO_BYTES])?;
    Ok(answers.iter().filter_map(|body| read_device(body)).collect())
}

/// All queueing disciplines that handle what is sent.
///
/// # Errors
/// Whatever the socket says.
pub fn qdiscs() -> io::Result<Vec<Qdisc>> {
    const INGRESS: u32 = 0xFFFF_FFF1;
    let answers = Conversation::open(None)?.list(GETQDISC, &[0; QDISC_INFO_BYTES])?;
    let all = answers.iter().filter_map(|body| read_qdisc(body));
    Ok(all.filter(|qdisc| qdisc.parent != Some(INGRESS)).collect())
}

/// Sets something on the device with this index.
///
/// # Errors
/// The kernel's refusal.
pub fn set_device(index: u32, setting: DeviceSetting, value: u32) -> io::Result<()> {
    let mut body = vec![0; 4]; // family, type
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]); // flags, change
    put(&mut body, setting.attribute(), &value.to_ne_bytes());
    Conversation::open(None)?.order(NEWLINK, 0, &body)
}

/// Puts a queueing discipline with its defaults at a device's root.
///
/// # Errors
/// The kernel's refusal; `NotFound` where it does not have this kind.
pub fn set_root_qdisc(index: u32, kind: &str) -> io::Result<()> {
    let mut body = root_of(index);
    put(&mut body, KIND, &[kind.as_bytes(), &[0]].concat());
    Conversation::open(None)?.order(NEWQDISC, CREATE | REPLACE, &body)
}

/// Takes a device's root discipline away; the kernel then puts its default there, by `net.core.default_qdisc`.
///
/// # Errors
/// The kernel's refusal.
pub fn remove_root_qdisc(index: u32) -> io::Result<()> {
    Conversation::open(None)?.order(DELQDISC, 0, &root_of(index))
}

fn root_of(index: u32) -> Vec<u8> {
    let mut body = vec![0; 4]; // family and padding
    body.extend(index.to_ne_bytes());
    body.extend(0_u32.to_ne_bytes()); // handle
    body.extend(ROOT.to_ne_bytes());
    body.extend([0; 4]);
    body
}

fn read_device(body: &[u8]) -> Option<Device> {
    const LOOPBACK: u16 = 772;
    /// Where `rx_missed_errors` stands in `struct rtnl_link_stats64`.
    const MISSED_AT: usize = 15 * 8;
    let mut device = Device {
        loopback: u16_at(body, 2)? == LOOPBACK,
        index: u32_at(body, 4)?,
        ..Device::default()
    };
    let (mut bus, mut address) = (None, None);
    for (kind, value) in attributes(body.get(LINK_INFO_BYTES..)?) {
        let number = u32_at(value, 0);
        match kind {
            link::IFNAME => device.name = text(value),
            link::MTU => device.mtu = number,
            link::LOWER => device.lower = number,
            link::TXQLEN => device.tx_queue_packets = number,
            link::LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == link::LINKINFO_KIND);
                device.kind = kind.map(|(_, value)| text(value));
            }
            link::STATS64 => {
                let missed = value.get(MISSED_AT..MISSED_AT + 8);
                device.rx_missed_packets =
                    missed.and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
            }
            link::NUM_TX_QUEUES => device.tx_queues = number,
            link::CARRIER => device.carrier = value.first().map(|on| *on != 0),
            link::GSO_MAX_SIZE => device.gso_max_bytes = number,
            // A maximum of zero is none.
            link::MAX_MTU => device.mtu_max = number.filter(|max| *max > 0),
            link::PARENT_DEV_NAME => address = Some(text(value)),
            link::PARENT_BUS_NAME => bus = Some(text(value)),
            link::GRO_MAX_SIZE => device.gro_max_bytes = number,
            link::TSO_MAX_SIZE => device.tso_max_bytes = number,
            link::GSO_IPV4_MAX_SIZE => device.gso_ipv4_max_bytes = number,
            link::GRO_IPV4_MAX_SIZE => device.gro_ipv4_max_bytes = number,
            _ => {}
        }
    }
    device.bus = bus.zip(address);
    Some(device)
}

fn read_qdisc(body: &[u8]) -> Option<Qdisc> {
    let parent = u32_at(body, 12)?;
    let kind = attributes(body.get(QDISC_INFO_BYTES..)?).find(|(kind, _)| *kind == KIND)?;
    Some(Qdisc {
        device: u32_at(body, 4)?,
        handle: u32_at(body, 8)?,
        parent: (parent != ROOT).then_some(parent),
        kind: text(kind.1),
    })
}

/// A name of the kernel, which ends with a zero.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_among_the_devices_and_has_a_discipline() {
        let all = devices().unwrap();
        let lo = all.iter().find(|device| device.name == "lo").unwrap();
        assert!(lo.loopback && lo.mtu > Some(1000) && lo.gso_max_bytes.is_some(), "{lo:?}");
        assert_eq!(super::super::Link::named("lo").unwrap().index, lo.index);
        for qdisc in qdiscs().unwrap() {
            assert!(all.iter().any(|device| device.index == qdisc.device), "{qdisc:?}");
        }
    }

    #[test]
    fn nothing_is_set_on_a_device_that_is_not_there() {
        for setting in [DeviceSetting::Mtu, DeviceSetting::GsoMaxBytes] {
            let error = set_device(0x7FFF_0000, setting, 1500).unwrap_err();
            // Whoever may not set anything hears that first.
            assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
        }
    }

    #[test]
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 255] {
                let _ = read_device(&vec![byte; length]);
                let _ = read_qdisc(&vec![byte; length]);
            }
        }
    }
}
