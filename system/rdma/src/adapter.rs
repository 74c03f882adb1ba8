//! Choice of device, port and GID by the local address of a TCP connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;

use penstock_sys::verbs::{
    GidEntry, GidKind, ProtectionDomain, RdmaContext, RdmaLimits, VerbsLibrary,
};

use crate::connection::RdmaFailure;

/// Device, port and GID of a local address.
#[derive(Debug, Clone)]
pub struct RdmaAdapter {
    context: RdmaContext,
    gid: GidEntry,
    mtu_bytes: u32,
    limits: RdmaLimits,
}

impl RdmaAdapter {
    /// Finds the device whose RoCE v2 GID is `address`, the local address of a connection.
    ///
    /// # Errors
    /// [`RdmaFailure`] with the remedy: no library, no device, no GID for the address, port down.
    pub fn for_address(address: SocketAddr) -> Result<Self, RdmaFailure> {
        let library = VerbsLibrary::open().map_err(RdmaFailure::Library)?;
        let contexts = library.open_devices().map_err(RdmaFailure::Devices)?;
        if contexts.is_empty() {
            return Err(missing_devices(Path::new("/sys/class/infiniband")));
        }
        let scope = match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        for context in &contexts {
            let step = |step, source| RdmaFailure::step(context.name(), step, source);
            let entries = context.gids().map_err(|error| step("read the GIDs", error))?;
            let Some(gid) = choose_gid(&entries, address.ip(), scope) else { continue };
            let port = context.port(gid.port).map_err(|error| step("read the port", error))?;
            if !port.active {
                return Err(RdmaFailure::PortDown(context.name().to_owned()));
            }
            let limits = context.limits().map_err(|error| step("read the limits", error))?;
            return Ok(Self { context: context.clone(), gid, mtu_bytes: port.mtu_bytes, limits });
        }
        let devices: Vec<&str> = contexts.iter().map(RdmaContext::name).collect();
        Err(RdmaFailure::NoGid { address: address.ip(), devices: devices.join(", ") })
    }

    /// Open device of the GID.
    #[must_use]
    pub const fn context(&self) -> &RdmaContext {
        &self.context
    }

    /// Allocates a protection domain of the device.
    pub(crate) fn domain(&self) -> Result<ProtectionDomain, RdmaFailure> {
        ProtectionDomain::new(&self.context).map_err(|source| {
            RdmaFailure::step(self.context.name(), "allocate a protection domain", source)
        })
    }

    /// GID of the address.
    #[must_use]
    pub const fn gid(&self) -> &GidEntry {
        &self.gid
    }

    /// Active path MTU of the port in bytes.
    #[must_use]
    pub const fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Limits of the device.
    #[must_use]
    pub const fn limits(&self) -> &RdmaLimits {
        &self.limits
    }
}

/// Failure of a process that sees no device, where the kernel lists its own in a directory.
fn missing_devices(listed: &Path) -> RdmaFailure {
    let entries = std::fs::read_dir(listed).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    match names.is_empty() {
        true => RdmaFailure::NoDevice,
        false => RdmaFailure::HiddenDevices(names.join(", ")),
    }
}

/// Finds the RoCE v2 entry of an address; `interface` is the index of a link-local address's interface, 0 for others.
/// The table of a device may have each address once for each version of RoCE.
#[must_use]
pub fn choose_gid(entries: &[GidEntry], address: IpAddr, interface: u32) -> Option<GidEntry> {
    let gid = gid_of(address);
    entries
        .iter()
        .find(|entry| {
            entry.kind == GidKind::RoCEv2
                && entry.gid == gid
                && (interface == 0 || entry.interface == interface)
        })
        .copied()
}

/// GID of an address: IPv6 as it is, IPv4 as `::ffff:a.b.c.d`.
fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Address of a GID in text.
#[must_use]
pub fn display_gid(gid: &[u8; 16]) -> String {
    let address = Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or_else(|| address.to_string(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, index: u32, kind: GidKind, interface: u32) -> GidEntry {
        let gid = gid_of(address.parse().unwrap());
        GidEntry { gid, index, port: 1, kind, interface }
    }

    #[test]
    fn gid_follows_address_and_version() {
        let entries = [
            entry("fe80::1", 0, GidKind::RoCEv1, 3),
            entry("fe80::1", 1, GidKind::RoCEv2, 3),
            entry("10.0.0.1", 2, GidKind::RoCEv1, 3),
            entry("10.0.0.1", 3, GidKind::RoCEv2, 3),
            entry("fe80::1", 4, GidKind::RoCEv2, 4),
        ];
        let index = |address: &str, interface| {
            choose_gid(&entries, address.parse().unwrap(), interface).map(|entry| entry.index)
        };
        assert_eq!(index("10.0.0.1", 0), Some(3));
        assert_eq!(index("::ffff:10.0.0.1", 0), Some(3));
        assert_eq!(index("fe80::1", 4), Some(4));
        assert_eq!(index("10.0.0.2", 0), None);
        assert_eq!(index("fe80::1", 5), None);
    }

    #[test]
    fn hidden_devices_are_named() {
        let listed = tempfile::tempdir().unwrap();
        assert!(matches!(missing_devices(listed.path()), RdmaFailure::NoDevice));
        assert!(matches!(missing_devices(&listed.path().join("none")), RdmaFailure::NoDevice));
        for name in ["rxe1", "mlx5_0"] {
            std::fs::create_dir(listed.path().join(name)).unwrap();
        }
        let text = missing_devices(listed.path()).to_string();
        assert!(text.contains("mlx5_0, rxe1") && text.contains("rdma.conf"), "{text}");
    }

    #[test]
    fn gids_display_as_addresses() {
        assert_eq!(display_gid(&gid_of("10.0.0.1".parse().unwrap())), "10.0.0.1");
        assert_eq!(display_gid(&gid_of("2001:db8::1".parse().unwrap())), "2001:db8::1");
    }
}
