//! Network devices of this network namespace and their tunable attributes (rtnetlink(7)): MTU, queue length,
//! super-packet sizes, root queueing discipline.
//!
//! Not for creating devices or addresses. [`super::LinkAttributes`] is the small form that marker and mover need.
//!
//! Fails with the kernel's error and its text. Attributes that the kernel does not report are `None`.

use std::io;

use super::netlink::{
    IFINFOMSG_BYTES, IFLA_GRO_IPV4_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE, NLM_F_CREATE, NLM_F_REPLACE,
    TC_H_ROOT, TCMSG_BYTES, attributes, put, u16_at, u32_at,
};
use super::netlink_socket::NetlinkSocket;

/// pkt_sched.h: parent of an ingress queueing discipline.
const TC_H_INGRESS: u32 = 0xFFFF_FFF1;

/// Offset of `rx_missed_errors` in `struct rtnl_link_stats64`.
const RX_MISSED_ERRORS_OFFSET: usize = 15 * 8;

/// A network device as RTM_NEWLINK describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetDevice {
    /// Interface index, unique in the namespace.
    pub index: u32,
    /// Interface name, up to 15 bytes.
    pub name: String,
    /// Kind of software device (`veth`, `vlan`, `bond`); `None` for hardware.
    pub kind: Option<String>,
    /// Index of the device below it, or of a veth's peer (IFLA_LINK).
    pub lower: Option<u32>,
    /// Bus and address of the hardware: `pci`, `0000:17:00.0`.
    pub bus: Option<(String, String)>,
    /// True for the loopback device.
    pub loopback: bool,
    /// True while the device has a carrier.
    pub carrier: Option<bool>,
    /// In bytes, without the Ethernet header.
    pub mtu: Option<u32>,
    /// Largest MTU that the driver accepts, in bytes.
    pub mtu_max: Option<u32>,
    /// Queue length in packets (txqueuelen), for qdiscs that use it.
    pub tx_queue_packets: Option<u32>,
    /// Number of transmit queues.
    pub tx_queues: Option<u32>,
    /// Largest super-packet that the stack hands to it (GSO), in bytes.
    pub gso_max_bytes: Option<u32>,
    /// The same for IPv4.
    pub gso_ipv4_max_bytes: Option<u32>,
    /// Largest super-packet that the stack assembles on receive (GRO), in bytes.
    pub gro_max_bytes: Option<u32>,
    /// The same for IPv4.
    pub gro_ipv4_max_bytes: Option<u32>,
    /// Largest super-packet that the hardware segments (TSO), in bytes.
    pub tso_max_bytes: Option<u32>,
    /// Received packets dropped for lack of buffers (`rx_missed_errors`).
    pub rx_missed_packets: Option<u64>,
}

/// A numeric device attribute that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSetting {
    /// [`NetDevice::mtu`]
    Mtu,
    /// [`NetDevice::tx_queue_packets`]
    TxQueuePackets,
    /// [`NetDevice::gso_max_bytes`]
    GsoMaxBytes,
    /// [`NetDevice::gso_ipv4_max_bytes`]
    GsoIpv4MaxBytes,
    /// [`NetDevice::gro_max_bytes`]
    GroMaxBytes,
    /// [`NetDevice::gro_ipv4_max_bytes`]
    GroIpv4MaxBytes,
}

impl DeviceSetting {
    fn attribute(self) -> u16 {
        match self {
            Self::Mtu => libc::IFLA_MTU,
            Self::TxQueuePackets => libc::IFLA_TXQLEN,
            Self::GsoMaxBytes => libc::IFLA_GSO_MAX_SIZE,
            Self::GsoIpv4MaxBytes => IFLA_GSO_IPV4_MAX_SIZE,
            Self::GroMaxBytes => libc::IFLA_GRO_MAX_SIZE,
            Self::GroIpv4MaxBytes => IFLA_GRO_IPV4_MAX_SIZE,
        }
    }

    /// Reads the attribute of `device`.
    #[must_use]
    pub fn of(self, device: &NetDevice) -> Option<u32> {
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

/// A queueing discipline (qdisc) of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Interface index of its device.
    pub device: u32,
    /// Handle; 0 for a default that the kernel attached.
    pub handle: u32,
    /// Handle of the parent; `None` at the root.
    pub parent: Option<u32>,
    /// Kind, as `mq` or `fq`.
    pub kind: String,
}

/// Lists all devices of the namespace.
///
/// # Errors
/// The socket's error.
pub fn devices() -> io::Result<Vec<NetDevice>> {
    let answers = NetlinkSocket::open(None)?.dump(libc::RTM_GETLINK, &[0; IFINFOMSG_BYTES])?;
    Ok(answers.iter().filter_map(|body| read_device(body)).collect())
}

/// Lists all egress queueing disciplines of the namespace.
///
/// # Errors
/// The socket's error.
pub fn qdiscs() -> io::Result<Vec<Qdisc>> {
    let answers = NetlinkSocket::open(None)?.dump(libc::RTM_GETQDISC, &[0; TCMSG_BYTES])?;
    let all = answers.iter().filter_map(|body| read_qdisc(body));
    Ok(all.filter(|qdisc| qdisc.parent != Some(TC_H_INGRESS)).collect())
}

/// Sets one attribute of the device with this index.
///
/// # Errors
/// The kernel's error.
pub fn set_device(index: u32, setting: DeviceSetting, value: u32) -> io::Result<()> {
    let mut body = vec![0; 4]; // family, type
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]); // flags, change
    put(&mut body, setting.attribute(), &value.to_ne_bytes());
    NetlinkSocket::open(None)?.change(libc::RTM_NEWLINK, 0, &body)
}

/// Replaces a device's root qdisc by one of this kind with default parameters.
///
/// # Errors
/// `NotFound` where the kernel does not have this kind; else its error.
pub fn set_root_qdisc(index: u32, kind: &str) -> io::Result<()> {
    let mut body = root_qdisc_message(index);
    put(&mut body, libc::TCA_KIND, &[kind.as_bytes(), &[0]].concat());
    NetlinkSocket::open(None)?.change(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &body)
}

/// Removes a device's root qdisc; the kernel then attaches its default (`net.core.default_qdisc`).
///
/// # Errors
/// The kernel's error.
pub fn remove_root_qdisc(index: u32) -> io::Result<()> {
    NetlinkSocket::open(None)?.change(libc::RTM_DELQDISC, 0, &root_qdisc_message(index))
}

/// Encodes `struct tcmsg` of a device's root qdisc.
fn root_qdisc_message(index: u32) -> Vec<u8> {
    let mut body = vec![0; 4]; // family and padding
    body.extend(index.to_ne_bytes());
    body.extend(0_u32.to_ne_bytes()); // handle
    body.extend(TC_H_ROOT.to_ne_bytes());
    body.extend([0; 4]);
    body
}

fn read_device(body: &[u8]) -> Option<NetDevice> {
    let mut device = NetDevice {
        loopback: u16_at(body, 2)? == libc::ARPHRD_LOOPBACK,
        index: u32_at(body, 4)?,
        ..NetDevice::default()
    };
    let (mut bus, mut address) = (None, None);
    for (kind, value) in attributes(body.get(IFINFOMSG_BYTES..)?) {
        let number = u32_at(value, 0);
        match kind {
            libc::IFLA_IFNAME => device.name = text(value),
            libc::IFLA_MTU => device.mtu = number,
            libc::IFLA_LINK => device.lower = number,
            libc::IFLA_TXQLEN => device.tx_queue_packets = number,
            libc::IFLA_LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                device.kind = kind.map(|(_, value)| text(value));
            }
            libc::IFLA_STATS64 => {
                let missed = value.get(RX_MISSED_ERRORS_OFFSET..RX_MISSED_ERRORS_OFFSET + 8);
                device.rx_missed_packets =
                    missed.and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
            }
            libc::IFLA_NUM_TX_QUEUES => device.tx_queues = number,
            libc::IFLA_CARRIER => device.carrier = value.first().map(|on| *on != 0),
            libc::IFLA_GSO_MAX_SIZE => device.gso_max_bytes = number,
            // Zero: the driver reports no maximum.
            libc::IFLA_MAX_MTU => device.mtu_max = number.filter(|max| *max > 0),
            libc::IFLA_PARENT_DEV_NAME => address = Some(text(value)),
            libc::IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(value)),
            libc::IFLA_GRO_MAX_SIZE => device.gro_max_bytes = number,
            libc::IFLA_TSO_MAX_SIZE => device.tso_max_bytes = number,
            IFLA_GSO_IPV4_MAX_SIZE => device.gso_ipv4_max_bytes = number,
            IFLA_GRO_IPV4_MAX_SIZE => device.gro_ipv4_max_bytes = number,
            _ => {}
        }
    }
    device.bus = bus.zip(address);
    Some(device)
}

fn read_qdisc(body: &[u8]) -> Option<Qdisc> {
    let parent = u32_at(body, 12)?;
    let kind = attributes(body.get(TCMSG_BYTES..)?).find(|(kind, _)| *kind == libc::TCA_KIND)?;
    Some(Qdisc {
        device: u32_at(body, 4)?,
        handle: u32_at(body, 8)?,
        parent: (parent != TC_H_ROOT).then_some(parent),
        kind: text(kind.1),
    })
}

/// Decodes a NUL-terminated string attribute.
pub(super) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_its_qdisc_are_listed() {
        let all = devices().unwrap();
        let lo = all.iter().find(|device| device.name == "lo").unwrap();
        assert!(lo.loopback && lo.mtu > Some(1000) && lo.gso_max_bytes.is_some(), "{lo:?}");
        assert_eq!(super::super::LinkAttributes::named("lo").unwrap().index, lo.index);
        for qdisc in qdiscs().unwrap() {
            assert!(all.iter().any(|device| device.index == qdisc.device), "{qdisc:?}");
        }
    }

    #[test]
    fn setting_on_missing_device_fails() {
        for setting in [DeviceSetting::Mtu, DeviceSetting::GsoMaxBytes] {
            let error = set_device(0x7FFF_0000, setting, 1500).unwrap_err();
            // Without CAP_NET_ADMIN, EPERM comes first.
            assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EPERM)), "{error}");
        }
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 4, 255] {
                let _ = read_device(&vec![byte; length]);
                let _ = read_qdisc(&vec![byte; length]);
            }
        }
    }
}
