//! A host or a switch of a running lab: its namespace and its network configuration.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::namespace::NetworkNamespace;
use penstock_sys::net::{Configurator, Diversion, NewDevice, UnicastRoute, divert};
use penstock_topology::NodeKind;

use crate::plan::{NodePlan, PlannedPort};

/// The kernel's limit (GSO_MAX_SIZE).
const SUPER_PACKET_BYTES_MAX: u32 = 8 * 65_535;
/// Time-out for a device to become operational.
const DEVICE_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// include/uapi/linux/ipv6_route.h.
const RTF_LOCAL: u32 = 0x8000_0000;
/// Policy rules by source address precede the main table; those of pinned paths precede both.
const PINNED_RULE_PRIORITY: u32 = 900;
const SOURCE_RULE_PRIORITY: u32 = 1000;

#[derive(Debug)]
pub(crate) struct RunningNode {
    kind: NodeKind,
    pub(crate) namespace: NetworkNamespace,
    pub(crate) network: Configurator,
    /// Diversions by the index of the receiving device.
    diverted: Mutex<BTreeMap<u32, Vec<Diversion>>>,
    pinned: Mutex<u32>,
}

impl RunningNode {
    /// Creates a namespace with loopback up; a switch forwards.
    pub(crate) fn new(kind: NodeKind) -> io::Result<Self> {
        let namespace = NetworkNamespace::new()?;
        let network = namespace.inside(|| {
            let network = Configurator::open()?;
            network.set_up(network.index_of("lo")?)?;
            set_sysctls(kind)?;
            Ok::<_, io::Error>(network)
        })??;
        Ok(Self { kind, namespace, network, diverted: Mutex::default(), pinned: Mutex::new(0) })
    }

    /// Index of the device of a port.
    pub(crate) fn device(&self, port: &PlannedPort) -> io::Result<u32> {
        self.network.index_of(&port.device)
    }

    /// Replaces the diversions of a device; the first matching one applies.
    pub(crate) fn divert(&self, device: u32, queues: Vec<Diversion>) -> io::Result<()> {
        let mut diverted = self.diverted.lock().unwrap_or_else(PoisonError::into_inner);
        diverted.insert(device, queues);
        let all: Vec<Diversion> = diverted.values().flatten().copied().collect();
        self.namespace.inside(|| divert(&all))?.map(|_| ())
    }

    /// Sets a port up with its addresses and its one neighbour.
    pub(crate) fn configure_port(
        &self,
        port: &PlannedPort,
        neighbour: &PlannedPort,
    ) -> io::Result<()> {
        let device = self.device(port)?;
        // BIG TCP super-packets of hosts cross switches whole.
        if self.kind == NodeKind::Switch
            && let Err(error) = self.network.set_super_packet_max(device, SUPER_PACKET_BYTES_MAX)
        {
            tracing::debug!("{}: super-packets above 64 KiB are segmented: {error}", port.device);
        }
        self.network.set_up(device)?;
        for ((mine, prefix), (other, _)) in
            port.addresses.each().into_iter().zip(neighbour.addresses.each())
        {
            self.network.add_address(device, mine, prefix)?;
            self.network.add_neighbour(device, other, neighbour.hardware)?;
        }
        Ok(())
    }

    /// Waits until a port passes packets and its IPv6 address is routed: the kernel adds that route some time after the
    /// address.
    pub(crate) fn await_running(&self, port: &PlannedPort) -> io::Result<()> {
        let device = self.device(port)?;
        let since = Instant::now();
        while !(self.network.is_running(device)? && self.is_local(port.addresses.v6)?) {
            if since.elapsed() > DEVICE_UP_TIMEOUT {
                return Err(io::Error::other(format!("device {} does not come up", port.device)));
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// True if the node has a local route for an address.
    fn is_local(&self, address: Ipv6Addr) -> io::Result<bool> {
        let routes = self
            .namespace
            .inside(|| std::fs::read_to_string("/proc/thread-self/net/ipv6_route"))??;
        let wanted = format!("{:032x} 80 ", u128::from(address));
        let is_local = |line: &str| {
            let flags = line.split_whitespace().nth(8);
            let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
            flags.is_some_and(|flags| flags & RTF_LOCAL != 0)
        };
        Ok(routes.lines().any(|line| line.starts_with(&wanted) && is_local(line)))
    }

    /// Installs routes and the tables by source address.
    pub(crate) fn install_routes(&self, plan: &NodePlan) -> io::Result<()> {
        let devices: Vec<u32> =
            plan.ports.iter().map(|port| self.device(port)).collect::<io::Result<_>>()?;
        for route in &plan.routes {
            let port = &plan.ports[route.port];
            let mine = port.addresses.each().map(|(address, _)| address);
            let source = mine.into_iter().find(|address| address.is_ipv4() == route.via.is_ipv4());
            self.network.replace_route(&UnicastRoute {
                to: route.to,
                via: Some(route.via),
                device: devices[route.port],
                // Hosts send from the interface's address; switches from any.
                source: source.filter(|_| plan.kind == NodeKind::Host),
                table: route.table,
            })?;
        }
        for (address, table) in &plan.source_tables {
            let added = self.network.add_rule(Some(*address), None, SOURCE_RULE_PRIORITY, *table);
            ignore_existing(added)?;
        }
        Ok(())
    }

    /// Routes packets between two addresses by this port.
    pub(crate) fn pin(
        &self,
        from: IpAddr,
        to: IpAddr,
        via: IpAddr,
        port: &PlannedPort,
    ) -> io::Result<()> {
        let mut count = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        let table = 10_000 + *count;
        let to_all = if to.is_ipv4() { 32 } else { 128 };
        self.network.replace_route(&UnicastRoute {
            to: (to, to_all),
            via: Some(via),
            device: self.device(port)?,
            source: None,
            table: Some(table),
        })?;
        // The newest rule has precedence.
        let priority = PINNED_RULE_PRIORITY.saturating_sub(*count);
        self.network.add_rule(Some(from), Some(to), priority, table)
    }

    /// Adds (`on`) or removes a route to a network by this port.
    pub(crate) fn set_route(
        &self,
        to: (IpAddr, u8),
        via: IpAddr,
        port: &PlannedPort,
        on: bool,
    ) -> io::Result<()> {
        let route = UnicastRoute {
            to,
            via: Some(via),
            device: self.device(port)?,
            source: None,
            table: None,
        };
        match on {
            true => self.network.replace_route(&route),
            false => self.network.remove_route(&route),
        }
    }

    /// Adds (`on`) or removes a deprecated address, used only by sockets that bind it.
    pub(crate) fn set_deprecated_address(
        &self,
        address: Ipv6Addr,
        port: &PlannedPort,
        on: bool,
    ) -> io::Result<()> {
        let device = self.device(port)?;
        match on {
            true => self.network.add_deprecated_address(device, address.into(), 128),
            false => self.network.remove_address(device, address.into(), 128),
        }
    }

    /// Parameters of a port's device.
    pub(crate) fn new_device(port: &PlannedPort) -> NewDevice<'_> {
        NewDevice { name: &port.device, hardware: port.hardware, mtu: port.mtu }
    }
}

fn ignore_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Sets sysctls in the calling thread's namespace.
fn set_sysctls(kind: NodeKind) -> io::Result<()> {
    let forwards = if kind == NodeKind::Switch { "1" } else { "0" };
    let all = [
        ("ipv4/ip_forward", forwards),
        ("ipv6/conf/all/forwarding", forwards),
        // Paths of both directions may differ.
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // No link-local addresses: the kernel sends no packets of its own.
        ("ipv6/conf/default/addr_gen_mode", "1"),
        ("ipv6/conf/default/accept_ra", "0"),
    ];
    for (name, value) in all {
        let path = format!("/proc/sys/net/{name}");
        std::fs::write(&path, value)
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    }
    Ok(())
}
