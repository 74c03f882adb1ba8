//! Network devices of this network namespace: settings of kernel and driver by netlink, slot and interrupts of the
//! hardware by sysfs.
//!
//! sysfs shows the devices of the namespace in which it was mounted: its values are used only if the hardware address
//! is the same.

use std::collections::BTreeMap;

use penstock_sys::net::device::{NetDevice, Qdisc, devices, qdiscs};
use penstock_sys::net::ethtool::{DriverSetting, Ethtool, SettingValue};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

/// Most interrupts of a device that are read.
const IRQS_MAX: usize = 4096;

/// A network device, its settings and its hardware.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Name of the device.
    pub name: String,
    /// Name of the driver, as `mlx5_core`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub driver: Option<String>,
    /// Kind of a software device (`veth`, `vlan`, `bond`); left out for hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub kind: Option<String>,
    /// Device that it is stacked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lower: Option<String>,
    /// Bus and address, as `pci 0000:17:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub bus: Option<String>,
    /// Maker and product of a PCI card, as `15b3:1021`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub device_id: Option<String>,
    /// True where the device has a carrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub carrier: Option<bool>,
    /// Rate of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub speed_mbps: Option<u32>,
    /// Largest IP packet (MTU) in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mtu_bytes: Option<u32>,
    /// Largest value of `mtu_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mtu_bytes_max: Option<u32>,
    /// Length of the transmit queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tx_queue_packets: Option<u32>,
    /// Number of transmit queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tx_queues: Option<u32>,
    /// Queueing disciplines at the root and below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub qdisc: Option<RootQdisc>,
    /// Largest packets of segmentation and reassembly offload.
    #[serde(default, skip_serializing_if = "Segments::is_unknown")]
    pub segments: Segments,
    /// Descriptors, channels, interrupt moderation and pause frames, by the words of `docs/host-rules.md`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Bounded>,
    /// Receive queues of receive-side scaling (RSS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rss_queues: Option<u32>,
    /// Offloads by the kernel's names: `on`, `off`, or either with ` fixed`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub features: BTreeMap<String, String>,
    /// NUMA node that it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub numa_node: Option<usize>,
    /// Processors near it, as `0-17,36-53`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub local_cpus: Option<String>,
    /// PCI Express link of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pcie: Option<Pcie>,
    /// Interrupts of the device and their CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub irqs: Vec<Irq>,
    /// Queues with receive packet steering, and with transmit packet steering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub steering: Option<Steering>,
    /// Reverse path filter of the device: 0 off, 1 strict, 2 loose. Of this and that of all devices
    /// (`net.ipv4.conf.all.rp_filter`) the larger holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rp_filter: Option<u8>,
    /// Packets that were dropped for lack of receive buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rx_missed_packets: Option<u64>,
}

/// Present and largest value of a setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bounded {
    /// Current value of the setting \[number\].
    pub value: u32,
    /// Largest value that the driver takes \[number\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max: Option<u32>,
}

/// The discipline at the root, and those below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RootQdisc {
    /// Discipline at the root, as `mq`.
    pub kind: String,
    /// True where the kernel made it itself.
    pub default: bool,
    /// Disciplines below it, each kind once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub below: Vec<String>,
}

/// Longest super-packets, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Segments {
    /// Largest packet sent, IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub gso_max_bytes: Option<u32>,
    /// Largest packet sent, IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub gso_ipv4_max_bytes: Option<u32>,
    /// Largest packet received, IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub gro_max_bytes: Option<u32>,
    /// Largest packet received, IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub gro_ipv4_max_bytes: Option<u32>,
    /// Largest packet that the hardware segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tso_max_bytes: Option<u32>,
}

impl Segments {
    fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// A PCI Express slot: transfers a second of a lane, in GT/s, and lanes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Present speed of a lane.
    pub speed_gts: f64,
    /// Present number of lanes.
    pub width: u32,
    /// Largest speed of a lane that card and slot support.
    pub speed_gts_max: f64,
    /// Largest number of lanes that card and slot support.
    pub width_max: u32,
    /// Largest read request of the card (MaxReadReq).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_read_request_bytes: Option<u32>,
    /// Largest payload of a packet of the card (MaxPayload).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_payload_bytes: Option<u32>,
    /// Largest payload that the card and the port above it support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub max_payload_bytes_max: Option<u32>,
}

impl Eq for Pcie {}

/// An interrupt and the processors it goes to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Irq {
    /// Number of the interrupt.
    pub number: u32,
    /// Processors that it may go to.
    pub cpus: String,
    /// Processors that it goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub effective_cpus: Option<String>,
}

/// Numbers of queues that steer packets to processors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Steering {
    /// Number of receive queues.
    pub rx_queues: u32,
    /// Receive queues with receive packet steering.
    pub rps_queues: u32,
    /// Number of transmit queues.
    pub tx_queues: u32,
    /// Transmit queues with transmit packet steering.
    pub xps_queues: u32,
}

impl Nic {
    /// True for hardware rather than a software device.
    #[must_use]
    pub fn is_hardware(&self) -> bool {
        self.bus.is_some() && self.kind.is_none()
    }

    /// Value of a driver setting by its name.
    #[must_use]
    pub fn setting(&self, word: &str) -> Option<Bounded> {
        self.settings.get(word).copied()
    }

    /// State of an offload: on, fixed; `None` where unknown.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<(bool, bool)> {
        let text = self.features.get(name)?;
        Some((text.starts_with("on"), text.ends_with("fixed")))
    }
}

/// Name of a driver setting in facts, plans and journals.
#[must_use]
pub fn setting_name(setting: DriverSetting) -> &'static str {
    match setting {
        DriverSetting::RxRing => "rx-ring",
        DriverSetting::TxRing => "tx-ring",
        DriverSetting::RxChannels => "rx-channels",
        DriverSetting::TxChannels => "tx-channels",
        DriverSetting::CombinedChannels => "combined-channels",
        DriverSetting::RxMicroseconds => "rx-usecs",
        DriverSetting::RxFrames => "rx-frames",
        DriverSetting::TxMicroseconds => "tx-usecs",
        DriverSetting::TxFrames => "tx-frames",
        DriverSetting::AdaptiveRx => "adaptive-rx",
        DriverSetting::AdaptiveTx => "adaptive-tx",
        DriverSetting::PauseAutoneg => "pause-autoneg",
        DriverSetting::PauseRx => "pause-rx",
        DriverSetting::PauseTx => "pause-tx",
    }
}

/// Driver setting with this name.
#[must_use]
pub fn setting_named(of: &str) -> Option<DriverSetting> {
    DriverSetting::ALL.into_iter().find(|setting| setting_name(*setting) == of)
}

/// Reads all devices but loopback; by netlink, so only where the tree is this machine.
#[must_use]
pub fn gather(tree: &Tree) -> Vec<Nic> {
    if !tree.is_live() {
        return Vec::new();
    }
    let devices = devices().unwrap_or_default();
    let qdiscs = qdiscs().unwrap_or_default();
    let mut ethtool = Ethtool::open().ok();
    let mut nics: Vec<Nic> = devices
        .iter()
        .filter(|device| !device.loopback)
        .map(|device| {
            let mut nic = from_device(device, &devices, &qdiscs);
            if let Some(ethtool) = &mut ethtool {
                read_driver(&mut nic, ethtool);
            }
            read_hardware(&mut nic, device, tree);
            nic.rp_filter = tree.number(&format!("/proc/sys/net/ipv4/conf/{}/rp_filter", nic.name));
            nic
        })
        .collect();
    nics.sort_by(|a, b| a.name.cmp(&b.name));
    nics
}

fn from_device(device: &NetDevice, all: &[NetDevice], qdiscs: &[Qdisc]) -> Nic {
    // The lower device of one end of a veth is the other, often in another namespace.
    let stacked = device.kind.as_deref() != Some("veth");
    let lower = device
        .lower
        .filter(|_| stacked)
        .and_then(|index| all.iter().find(|other| other.index == index && index != device.index));
    Nic {
        name: device.name.clone(),
        kind: device.kind.clone(),
        lower: lower.map(|lower| lower.name.clone()),
        bus: device.bus.as_ref().map(|(bus, address)| format!("{bus} {address}")),
        carrier: device.carrier,
        mtu_bytes: device.mtu,
        mtu_bytes_max: device.mtu_max,
        tx_queue_packets: device.tx_queue_packets,
        tx_queues: device.tx_queues,
        qdisc: root_qdisc(device.index, qdiscs),
        segments: Segments {
            gso_max_bytes: device.gso_max_bytes,
            gso_ipv4_max_bytes: device.gso_ipv4_max_bytes,
            gro_max_bytes: device.gro_max_bytes,
            gro_ipv4_max_bytes: device.gro_ipv4_max_bytes,
            tso_max_bytes: device.tso_max_bytes,
        },
        rx_missed_packets: device.rx_missed_packets,
        ..Nic::default()
    }
}

fn root_qdisc(device: u32, qdiscs: &[Qdisc]) -> Option<RootQdisc> {
    let own = || qdiscs.iter().filter(|qdisc| qdisc.device == device);
    let root = own().find(|qdisc| qdisc.parent.is_none())?;
    let mut below: Vec<String> =
        own().filter(|qdisc| qdisc.parent.is_some()).map(|qdisc| qdisc.kind.clone()).collect();
    below.sort();
    below.dedup();
    Some(RootQdisc { kind: root.kind.clone(), default: root.handle == 0, below })
}

fn read_driver(nic: &mut Nic, ethtool: &mut Ethtool) {
    nic.speed_mbps = ethtool.speed_mbps(&nic.name).ok().flatten();
    let queues = ethtool.rss_queues(&nic.name).ok();
    nic.rss_queues = queues.and_then(|queues| u32::try_from(queues.len()).ok());
    let settings = ethtool.settings(&nic.name);
    let bounded = |setting: SettingValue| Bounded { value: setting.value, max: setting.max };
    nic.settings = settings
        .into_iter()
        .map(|(setting, at)| (setting_name(setting).to_owned(), bounded(at)))
        .collect();
    let features = ethtool.features(&nic.name).unwrap_or_default();
    nic.features = features
        .into_iter()
        .map(|(name, feature)| {
            let state = if feature.on { "on" } else { "off" };
            (name, format!("{state}{}", if feature.fixed { " fixed" } else { "" }))
        })
        // Omits the offloads that are fixed to off, about sixty.
        .filter(|(_, state)| state != "off fixed")
        .collect();
}

fn read_hardware(nic: &mut Nic, device: &NetDevice, tree: &Tree) {
    let place = format!("/sys/class/net/{}", nic.name);
    let index = tree.number::<u32>(&format!("{place}/ifindex"));
    let Some((bus, address)) = device.bus.as_ref().filter(|_| index == Some(device.index)) else {
        return;
    };
    let own = format!("/sys/bus/{bus}/devices/{address}");
    nic.driver = tree.link_name(&format!("{own}/driver"));
    // Before Linux 5.6 there is no ethtool netlink; -1 is unknown.
    nic.speed_mbps = nic.speed_mbps.or_else(|| tree.number(&format!("{place}/speed")));
    // A virtual device's queue is a child of the PCI function that has slot, node and interrupts.
    let slot = match bus.as_str() {
        "virtio" => format!("{place}/device/.."),
        _ => own,
    };
    nic.numa_node = tree.number(&format!("{slot}/numa_node"));
    nic.local_cpus = tree.text(&format!("{slot}/local_cpulist"));
    nic.pcie = pcie_link(tree, &slot);
    nic.device_id = device_id(tree, &slot).filter(|_| bus == "pci");
    nic.irqs = tree
        .names(&format!("{slot}/msi_irqs"))
        .into_iter()
        .take(IRQS_MAX)
        .filter_map(|number| {
            let file = |name: &str| tree.text(&format!("/proc/irq/{number}/{name}"));
            Some(Irq {
                cpus: file("smp_affinity_list")?,
                effective_cpus: file("effective_affinity_list"),
                number: number.parse().ok()?,
            })
        })
        .collect();
    nic.irqs.sort_by_key(|irq| irq.number);
    nic.steering = Some(steering(tree, &place));
}

/// Link of the PCI function in the directory `slot`.
pub(super) fn pcie_link(tree: &Tree, slot: &str) -> Option<Pcie> {
    // "16.0 GT/s PCIe", or "Unknown".
    let speed = |file: &str| -> Option<f64> {
        tree.text(&format!("{slot}/{file}"))?.split_whitespace().next()?.parse().ok()
    };
    let transfers = |at: &str| transfers(&tree.bytes(&format!("{at}/config"))?);
    // The fields of a virtual function are zero: uses those of its physical function.
    let own = Some(slot).filter(|slot| !tree.exists(&format!("{slot}/physfn")));
    let (card, port) = (own.and_then(transfers), transfers(&format!("{slot}/..")));
    let could = card
        .map(|card| port.map_or(card.payload_max, |port| card.payload_max.min(port.payload_max)));
    Some(Pcie {
        speed_gts: speed("current_link_speed")?,
        width: tree.number(&format!("{slot}/current_link_width"))?,
        speed_gts_max: speed("max_link_speed")?,
        width_max: tree.number(&format!("{slot}/max_link_width"))?,
        max_read_request_bytes: card.map(|card| card.read_request),
        max_payload_bytes: card.map(|card| card.payload),
        max_payload_bytes_max: could,
    })
}

/// True where the PCI function in the directory `slot` may use relaxed ordering; `None` for a virtual function, whose
/// field is zero, and where it cannot be read.
pub(super) fn relaxed_ordering(tree: &Tree, slot: &str) -> Option<bool> {
    if tree.exists(&format!("{slot}/physfn")) {
        return None;
    }
    Some(transfers(&tree.bytes(&format!("{slot}/config"))?)?.relaxed_ordering)
}

fn device_id(tree: &Tree, slot: &str) -> Option<String> {
    let part = |file: &str| {
        let text = tree.text(&format!("{slot}/{file}"))?;
        Some(text.trim_start_matches("0x").to_owned())
    };
    Some(format!("{}:{}", part("vendor")?, part("device")?))
}

/// Transfer sizes of a PCI Express function, in bytes, and whether its writes may be reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PcieTransferSizes {
    read_request: u32,
    payload: u32,
    payload_max: u32,
    relaxed_ordering: bool,
}

/// Reads them from configuration space, of which only root can read more than 64 bytes (PCI Express Base Specification
/// 5.0, 7.5.3).
fn transfers(config: &[u8]) -> Option<PcieTransferSizes> {
    const PCI_CAP_ID_EXP: u8 = 0x10;
    const CAPABILITIES_MAX: usize = 48;
    let byte = |at: usize| config.get(at).copied();
    let word = |at: usize| Some(u16::from_le_bytes([byte(at)?, byte(at + 1)?]));
    // Bit 4 of the status register: the capability list exists.
    let mut at =
        usize::from(byte(0x34).filter(|_| word(6).is_some_and(|status| status & 16 != 0))?);
    for _ in 0..CAPABILITIES_MAX {
        at &= !3;
        if at == 0 {
            return None;
        }
        if byte(at)? == PCI_CAP_ID_EXP {
            let (could, control) = (word(at + 4)?, word(at + 8)?);
            let bytes = |code: u16| 128 << (code & 7);
            return Some(PcieTransferSizes {
                read_request: bytes(control >> 12),
                payload: bytes(control >> 5),
                payload_max: bytes(could),
                relaxed_ordering: control & 1 << 4 != 0,
            });
        }
        at = usize::from(byte(at + 1)?);
    }
    None
}

fn steering(tree: &Tree, place: &str) -> Steering {
    let mut found = Steering::default();
    for queue in tree.names(&format!("{place}/queues")) {
        let steered = |file: &str| {
            let mask = tree.text(&format!("{place}/queues/{queue}/{file}"));
            mask.is_some_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
        };
        if queue.starts_with("rx-") {
            found.rx_queues += 1;
            found.rps_queues += u32::from(steered("rps_cpus"));
        } else {
            found.tx_queues += 1;
            found.xps_queues += u32::from(steered("xps_cpus"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of capabilities: power management, MSI-X, PCI Express.
    #[test]
    fn sizes_of_transfers_from_configuration_space() {
        let mut config = [0u8; 256];
        let mut set = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        set(6, &[0x10]);
        set(0x34, &[0x40]);
        set(0x40, &[0x01, 0x9c]);
        set(0x9c, &[0x11, 0x60]);
        set(0x60, &[0x10, 0x00]);
        // Supports 512 bytes (2), uses 256 (1), read requests of 4096 (5).
        set(0x64, &[0x02, 0x80]);
        set(0x68, &[0x30, 0x58]);
        let found = PcieTransferSizes {
            read_request: 4096,
            payload: 256,
            payload_max: 512,
            relaxed_ordering: true,
        };
        assert_eq!(transfers(&config), Some(found));
        assert_eq!(transfers(&config[..64]), None, "unprivileged reads are truncated");
        // A cyclic list ends.
        config[0x60] = 0x05;
        config[0x61] = 0x40;
        assert_eq!(transfers(&config), None);
        assert_eq!(transfers(&[0xff; 256]), None);
    }

    #[test]
    fn every_setting_has_a_name() {
        for one in DriverSetting::ALL {
            assert_eq!(setting_named(setting_name(one)), Some(one));
        }
        assert_eq!(setting_named("rings"), None);
    }

    #[test]
    fn qdisc_without_handle_is_default() {
        let qdisc = |device, handle, parent, kind: &str| Qdisc {
            device,
            handle,
            parent,
            kind: kind.to_owned(),
        };
        let all = [
            qdisc(2, 0, None, "mq"),
            qdisc(2, 0, Some(1), "fq_codel"),
            qdisc(2, 0, Some(2), "fq_codel"),
            qdisc(3, 0x8001_0000, None, "htb"),
        ];
        let root = root_qdisc(2, &all).unwrap();
        assert_eq!((root.kind.as_str(), root.default, root.below.len()), ("mq", true, 1));
        assert!(!root_qdisc(3, &all).unwrap().default);
        assert_eq!(root_qdisc(4, &all), None);
    }
}
