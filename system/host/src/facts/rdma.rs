//! Ports of RDMA devices: addresses of RoCE v2, priorities and counters, by sysfs and netlink.
//!
//! Not for the path MTU, which follows from the MTU of the network device, nor for settings of the firmware: no file
//! shows them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use penstock_sys::net::dcb_priorities;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Tree, nics};

/// Devices of the kernel.
const DEVICES: &str = "/sys/class/infiniband";
/// Most entries of the table of GIDs that are read.
const GIDS_MAX: usize = 1024;

/// A port of an RDMA device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RdmaPort {
    /// Name of the device, as `mlx5_0`.
    pub device: String,
    /// Number of the port, from 1 \[number\].
    pub port: u32,
    /// Name of the card's driver, as `mlx5_core`; left out for a software device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub driver: Option<String>,
    /// Link layer: `Ethernet` (RoCE, iWARP) or `InfiniBand`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub link_layer: Option<String>,
    /// Network device of the port, as in `nics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub net_device: Option<String>,
    /// IP addresses of the RoCE v2 GIDs, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub roce_v2_addresses: Option<Vec<String>>,
    /// Priorities with flow control (PFC); left out where the driver has no data centre bridging
    /// \[number\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pfc_priorities: Option<Vec<u8>>,
    /// Priority of each mapped DSCP; empty where the card trusts the VLAN's priority \[number\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub dscp_priorities: Option<BTreeMap<String, u8>>,
    /// Priorities with ECN of RoCE at both notification and reaction point; only NVIDIA's driver package shows them
    /// \[number\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ecn_priorities: Option<Vec<u8>>,
    /// Retransmissions by the adaptive timer since the device was made \[count\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub adaptive_retransmissions: Option<u64>,
    /// True where the adaptive timer is on, as `mlxreg --reg_name ROCE_ACCL` shows; never gathered, for facts files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub adaptive_timer: Option<bool>,
    /// True where the PCI function may use relaxed ordering; only root reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub relaxed_ordering: Option<bool>,
}

impl RdmaPort {
    /// Object of findings: the device, and the port unless it is the first.
    #[must_use]
    pub fn object(&self) -> String {
        match self.port {
            0 | 1 => self.device.clone(),
            port => format!("{}/{port}", self.device),
        }
    }

    /// True for RoCE and iWARP.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer.as_deref() != Some("InfiniBand")
    }

    /// True for a software device, such as that of `rdma link add … type rxe`.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.driver.is_none() && self.is_ethernet()
    }
}

/// Reads the ports of all devices.
#[must_use]
pub fn gather(tree: &Tree) -> Vec<RdmaPort> {
    let mut ports = Vec::new();
    for device in tree.names(DEVICES) {
        let place = format!("{DEVICES}/{device}");
        let numbers = tree.names(&format!("{place}/ports"));
        let numbers = numbers.iter().filter_map(|number| number.parse().ok());
        ports.extend(numbers.map(|number| read_port(tree, &place, &device, number)));
    }
    ports
}

fn read_port(tree: &Tree, place: &str, device: &str, port: u32) -> RdmaPort {
    let own = format!("{place}/ports/{port}");
    let indices = || (0..GIDS_MAX).take_while(|index| tree.exists(&format!("{own}/gids/{index}")));
    // The type and the device of an empty entry cannot be read.
    let net_device = indices()
        .find_map(|index| tree.text(&format!("{own}/gid_attrs/ndevs/{index}")))
        .or_else(|| tree.text(&format!("{place}/parent")));
    let addresses = indices().filter_map(|index| {
        let kind = tree.text(&format!("{own}/gid_attrs/types/{index}"))?;
        let gid = tree.text(&format!("{own}/gids/{index}"))?;
        (kind == "RoCE v2").then(|| address_of(&gid)).flatten()
    });
    let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
    let bridging =
        net_device.as_deref().filter(|_| tree.is_live()).and_then(|net| dcb_priorities(net).ok());
    let (pfc, dscp) = bridging.map(|found| (found.pfc, found.dscp)).unzip();
    RdmaPort {
        device: device.to_owned(),
        port,
        // Software RoCE names its network device, and may show the driver of that.
        driver: tree
            .link_name(&format!("{place}/device/driver"))
            .filter(|_| !tree.exists(&format!("{place}/parent"))),
        link_layer: tree.text(&format!("{own}/link_layer")),
        roce_v2_addresses: tree.exists(&format!("{own}/gid_attrs/types")).then_some(addresses),
        pfc_priorities: pfc,
        dscp_priorities: dscp.map(|map| {
            map.into_iter().map(|(dscp, priority)| (dscp.to_string(), priority)).collect()
        }),
        ecn_priorities: net_device.as_deref().and_then(|net| ecn_priorities(tree, net)),
        net_device,
        adaptive_retransmissions: tree.number(&format!("{own}/hw_counters/roce_adp_retrans")),
        adaptive_timer: None,
        relaxed_ordering: nics::relaxed_ordering(tree, &format!("{place}/device")),
    }
}

/// Address of a GID in its text form; `None` for an empty entry.
fn address_of(gid: &str) -> Option<IpAddr> {
    let address: Ipv6Addr = gid.parse().ok()?;
    (!address.is_unspecified()).then(|| IpAddr::V6(address).to_canonical())
}

fn ecn_priorities(tree: &Tree, net_device: &str) -> Option<Vec<u8>> {
    let ends = ["roce_np", "roce_rp"];
    let place = |end: &str| format!("/sys/class/net/{net_device}/ecn/{end}/enable");
    if !ends.iter().all(|end| tree.exists(&place(end))) {
        return None;
    }
    let is_on = |end: &str, priority: u8| {
        tree.number::<u8>(&format!("{}/{priority}", place(end))) == Some(1)
    };
    Some((0..8).filter(|priority| ends.iter().all(|end| is_on(end, *priority))).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn ports_are_read_from_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join("sys/class").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let port = |name: &str| format!("infiniband/mlx5_0/ports/1/{name}");
        write(&port("link_layer"), "Ethernet\n");
        write(&port("hw_counters/roce_adp_retrans"), "17\n");
        for (index, gid, kind) in [
            (0, "fe80:0000:0000:0000:0200:00ff:fe00:0001", "IB/RoCE v1"),
            (1, "fe80:0000:0000:0000:0200:00ff:fe00:0001", "RoCE v2"),
            (2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        ] {
            write(&port(&format!("gids/{index}")), gid);
            write(&port(&format!("gid_attrs/types/{index}")), kind);
            write(&port(&format!("gid_attrs/ndevs/{index}")), "ens1\n");
        }
        write(&port("gids/3"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        for priority in 0..8 {
            for end in ["roce_np", "roce_rp"] {
                let on = u8::from(priority == 3 || end == "roce_np");
                write(&format!("net/ens1/ecn/{end}/enable/{priority}"), &on.to_string());
            }
        }
        let driver = folder.path().join("sys/class/infiniband/mlx5_0/device");
        fs::create_dir_all(&driver).unwrap();
        std::os::unix::fs::symlink("/drivers/mlx5_core", driver.join("driver")).unwrap();
        let found = gather(&Tree::below(folder.path()));
        let wanted = RdmaPort {
            device: "mlx5_0".to_owned(),
            port: 1,
            driver: Some("mlx5_core".to_owned()),
            link_layer: Some("Ethernet".to_owned()),
            net_device: Some("ens1".to_owned()),
            roce_v2_addresses: Some(vec!["fe80::200:ff:fe00:1".to_owned(), "10.0.0.1".to_owned()]),
            ecn_priorities: Some(vec![3]),
            adaptive_retransmissions: Some(17),
            ..RdmaPort::default()
        };
        assert_eq!(found, [wanted]);
        assert!(!found[0].is_software() && found[0].object() == "mlx5_0");
    }

    #[test]
    fn software_device_names_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("sys/class/infiniband/rxe0");
        fs::create_dir_all(place.join("ports/1")).unwrap();
        fs::write(place.join("parent"), "v0\n").unwrap();
        let found = gather(&Tree::below(folder.path()));
        assert_eq!(found[0].net_device.as_deref(), Some("v0"));
        assert!(found[0].is_software() && found[0].roce_v2_addresses.is_none());
    }
}
