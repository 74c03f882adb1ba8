//! A host or a switch that runs: its namespace, and what is set in it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::namespace::NetworkNamespace;
use penstock_sys::net::{Configurator, Diversion, NewDevice, Route, divert};
use penstock_topology::NodeKind;

use crate::plan::{NodePlan, Port};

/// The longest that the kernel knows (GSO_MAX_SIZE).
const SUPER_PACKET_BYTES_MAX: u32 = 8 * 65_535;
/// How long the kernel may take to say that a device runs.
const RUNNING_WITHIN: Duration = Duration::from_secs(10);
/// RTF_LOCAL of include/uapi/linux/ipv6_route.h.
const ROUTE_LOCAL: u32 = 0x8000_0000;
/// Rules that choose a table by source address come before those of the main table, those of pinned ways before both.
const PRIORITY_PINNED: u32 = 900;
const PRIORITY_BY_SOURCE: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Node {
    kind: NodeKind,
    pub(crate) namespace: NetworkNamespace,
    pub(crate) network: Configurator,
    /// Which packets wait in which queue, by the index of the device at which they arrive.
    diverted: Mutex<BTreeMap<u32, Vec<Diversion>>>,
    pinned: Mutex<u32>,
}

impl Node {
    /// A namespace with loopback up, forwarding if it is a switch.
    pub(crate) fn new(kind: NodeKind) -> io::Result<Self> {
        let namespace = NetworkNamespace::new()?;
        let network = namespace.inside(|| {
            let network = Configurator::open()?;
            network.set_up(network.index_of("lo")?)?;
            settings(kind)?;
            Ok::<_, io::Error>(network)
        })??;
        Ok(Self { kind, namespace, network, diverted: Mutex::default(), pinned: Mutex::new(0) })
    }

    /// Index of the device of a port.
    pub(crate) fn device(&self, port: &Port) -> io::Result<u32> {
        self.network.index_of(&port.device)
    }

    /// Packets that arrive on a device wait in these queues from now on: of its diversions the first that means them.
    pub(crate) fn divert(&self, device: u32, queues: Vec<Diversion>) -> io::Result<()> {
        let mut diverted = self.diverted.lock().unwrap_or_else(PoisonError::into_inner);
        diverted.insert(device, queues);
        let all: Vec<Diversion> = diverted.values().flatten().copied().collect();
        self.namespace.inside(|| divert(&all))?.map(|_| ())
    }

    /// Addresses of a port, and the one neighbour it has.
    pub(crate) fn settle(&self, port: &Port, neighbour: &Port) -> io::Result<()> {
        let device = self.device(port)?;
        // What hosts send as one packet (BIG TCP) crosses switches as one.
        if self.kind == NodeKind::Switch
            && let Err(error) = self.network.set_super_packet_max(device, SUPER_PACKET_BYTES_MAX)
        {
            tracing::debug!("{}: super-packets beyond 64 KiB are cut: {error}", port.device);
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

    /// Waits until packets go through a port, and those for its address come in: the kernel makes the route to an
    /// address of IPv6 some time after it has taken the address.
    pub(crate) fn await_running(&self, port: &Port) -> io::Result<()> {
        let device = self.device(port)?;
        let since = Instant::now();
        while !(self.network.is_running(device)? && self.is_local(port.addresses.v6)?) {
            if since.elapsed() > RUNNING_WITHIN {
                return Err(io::Error::other(format!("device {} does not come up", port.device)));
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Whether packets for an address are this node's.
    fn is_local(&self, address: Ipv6Addr) -> io::Result<bool> {
        let routes = self
            .namespace
            .inside(|| std::fs::read_to_string("/proc/thread-self/net/ipv6_route"))??;
        let wanted = format!("{:032x} 80 ", u128::from(address));
        let is_local = |line: &str| {
            let flags = line.split_whitespace().nth(8);
            let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
            flags.is_some_and(|flags| flags & ROUTE_LOCAL != 0)
        };
        Ok(routes.lines().any(|line| line.starts_with(&wanted) && is_local(line)))
    }

    /// Its routes, and its tables by source address.
    pub(crate) fn route(&self, plan: &NodePlan) -> io::Result<()> {
        let devices: Vec<u32> =
            plan.ports.iter().map(|port| self.device(port)).collect::<io::Result<_>>()?;
        for route in &plan.routes {
            let port = &plan.ports[route.port];
            let mine = port.addresses.each().map(|(address, _)| address);
            let source = mine.into_iter().find(|address| address.is_ipv4() == route.via.is_ipv4());
            self.network.replace_route(&Route {
                to: route.to,
                via: Some(route.via),
                device: devices[route.port],
                // Switches answer by whichever address; hosts by that of the interface.
                source: source.filter(|_| plan.kind == NodeKind::Host),
                table: route.table,
            })?;
        }
        for (address, table) in &plan.source_tables {
            let added = self.network.add_rule(Some(*address), None, PRIORITY_BY_SOURCE, *table);
            there_already(added)?;
        }
        Ok(())
    }

    /// Sends packets between two addresses by this port.
    pub(crate) fn pin(&self, from: IpAddr, to: IpAddr, via: IpAddr, port: &Port) -> io::Result<()> {
        let mut count = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        let table = 10_000 + *count;
        let to_all = if to.is_ipv4() { 32 } else { 128 };
        self.network.replace_route(&Route {
            to: (to, to_all),
            via: Some(via),
            device: self.device(port)?,
            source: None,
            table: Some(table),
        })?;
        // The latest is asked first.
        let priority = PRIORITY_PINNED.saturating_sub(*count);
        self.network.add_rule(Some(from), Some(to), priority, table)
    }

    /// Sends packets to a network by this port from now on, or no longer.
    pub(crate) fn lead(
        &self,
        to: (IpAddr, u8),
        via: IpAddr,
        port: &Port,
        on: bool,
    ) -> io::Result<()> {
        let route =
            Route { to, via: Some(via), device: self.device(port)?, source: None, table: None };
        match on {
            true => self.network.replace_route(&route),
            false => self.network.remove_route(&route),
        }
    }

    /// Has an address that is for those who bind it, or no longer.
    pub(crate) fn answer_to(&self, address: Ipv6Addr, port: &Port, on: bool) -> io::Result<()> {
        let device = self.device(port)?;
        match on {
            true => self.network.add_deprecated_address(device, address.into(), 128),
            false => self.network.remove_address(device, address.into(), 128),
        }
    }

    /// How a device is to be made.
    pub(crate) fn new_device(port: &Port) -> NewDevice<'_> {
        NewDevice { name: &port.device, hardware: port.hardware, mtu: port.mtu }
    }
}

fn there_already(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Of the namespace in which the calling thread is.
fn settings(kind: NodeKind) -> io::Result<()> {
    let forwards = if kind == NodeKind::Switch { "1" } else { "0" };
    let all = [
        ("ipv4/ip_forward", forwards),
        ("ipv6/conf/all/forwarding", forwards),
        // Ways there and back may differ.
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // No link-local addresses: nothing is sent but what hosts send.
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
