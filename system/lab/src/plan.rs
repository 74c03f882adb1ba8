//! What a topology becomes: namespaces with devices, addresses and routes. Pure; nothing is made here.
//!
//! Every link is a network of its own: `fd70:6e73:LINK::/64` and `10.x.y.z/30`. A host goes by the address of its
//! first interface; each of its interfaces is `HOST-INTERFACE`. Labs do not see each other, so all use the same
//! addresses, and the same topology always has the same.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use penstock_topology::{LinkId, NodeId, NodeKind, Topology, next_links};

use crate::line::Impairment;

/// IPv4 has networks of four addresses for this many links in 10.0.0.0/8; IPv6 for 65536.
pub const LINKS_MAX: usize = 16_384;
/// Each is a namespace, which costs the kernel about 200 KiB.
pub const NODES_MAX: usize = 2_048;

/// IFNAMSIZ, less the terminator.
const DEVICE_BYTES_MAX: usize = 15;
/// Of switches' devices between switches, where no host says what the network can do.
const MTU_USUAL: u32 = 1500;

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The link.
    pub link: LinkId,
    /// Which of its two ends.
    pub side: usize,
    /// Name of the device.
    pub device: String,
    /// Its Ethernet address.
    pub hardware: [u8; 6],
    /// Its longest packet.
    pub mtu: u32,
    /// The VLAN of its link.
    pub vlan: Option<u16>,
    /// Its addresses.
    pub addresses: Addresses,
}

/// One of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// In `fd70:6e73:LINK::/64`.
    pub v6: Ipv6Addr,
    /// In 10.0.0.0/8.
    pub v4: Ipv4Addr,
}

impl Addresses {
    fn of(link: LinkId, side: usize) -> Self {
        let side = side as u16 + 1;
        let link16 = u16::try_from(link.0).unwrap_or(u16::MAX);
        Self {
            v6: Ipv6Addr::new(0xFD70, 0x6E73, link16, 0, 0, 0, 0, side),
            v4: Ipv4Addr::from_bits((10 << 24) + u32::from(link16) * 4 + u32::from(side)),
        }
    }

    /// With the length of the prefix of their network.
    #[must_use]
    pub fn each(self) -> [(IpAddr, u8); 2] {
        [(self.v6.into(), 64), (self.v4.into(), 30)]
    }

    /// The networks they are in.
    fn networks(self) -> [(IpAddr, u8); 2] {
        let v6 = Ipv6Addr::from_bits(self.v6.to_bits() & (u128::MAX << 64));
        let v4 = Ipv4Addr::from_bits(self.v4.to_bits() & (u32::MAX << 2));
        [(v6.into(), 64), (v4.into(), 30)]
    }
}

/// A route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRoute {
    /// The network that it leads to.
    pub to: (IpAddr, u8),
    /// The next hop.
    pub via: IpAddr,
    /// Which port of the node.
    pub port: usize,
    /// The table; none is the main one.
    pub table: Option<u32>,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// Its name.
    pub name: String,
    /// Host or switch.
    pub kind: NodeKind,
    /// Its ends of links; those of a host in the order of its interfaces.
    pub ports: Vec<Port>,
    /// Its routes but those to the networks it is in.
    pub routes: Vec<PlannedRoute>,
    /// Tables by source address, of hosts with several interfaces: who binds to an address leaves by its interface.
    pub source_tables: Vec<(IpAddr, u32)>,
}

/// What the lab is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The network as it was read.
    pub topology: Topology,
    /// As the topology's nodes.
    pub nodes: Vec<NodePlan>,
}

/// A topology that no lab can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too many links.
    #[error("{0} links are more than a lab has: at most {LINKS_MAX}")]
    Links(usize),
    /// Too many nodes.
    #[error("{0} hosts and switches are more than a lab has: at most {NODES_MAX}")]
    Nodes(usize),
    /// A way that is none.
    #[error("{0}")]
    Way(String),
}

impl Plan {
    /// For a whole topology.
    ///
    /// # Errors
    /// When it is too large.
    pub fn new(topology: Topology) -> Result<Self, PlanError> {
        if topology.links.len() > LINKS_MAX {
            return Err(PlanError::Links(topology.links.len()));
        }
        if topology.nodes.len() > NODES_MAX {
            return Err(PlanError::Nodes(topology.nodes.len()));
        }
        let mut nodes: Vec<NodePlan> = topology
            .nodes
            .iter()
            .map(|node| NodePlan {
                name: node.name.clone(),
                kind: node.kind,
                ports: Vec::new(),
                routes: Vec::new(),
                source_tables: Vec::new(),
            })
            .collect();
        for number in 0..topology.links.len() {
            for side in 0..2 {
                let port = port(&topology, LinkId(number), side);
                nodes[topology.links[number].ends[side].node.0].ports.push(port);
            }
        }
        for (node, plan) in topology.nodes.iter().zip(&mut nodes) {
            if node.kind == NodeKind::Host {
                plan.ports
                    .sort_by_key(|port| topology.links[port.link.0].ends[port.side].interface);
            }
            name_devices(&topology, plan);
        }
        let mut plan = Self { topology, nodes };
        plan.route();
        Ok(plan)
    }

    /// Adds the shortest ways to each interface of each host.
    fn route(&mut self) {
        let hosts: Vec<NodeId> = self.topology.hosts().map(|(id, _)| id).collect();
        for host in &hosts {
            for port in self.nodes[host.0].ports.clone() {
                let next = next_links(&self.topology, *host, port.link, |_| true);
                for from in 0..self.nodes.len() {
                    self.route_one(NodeId(from), &port, &next);
                }
            }
        }
        for host in hosts {
            let node = &mut self.nodes[host.0];
            if node.ports.len() > 1 {
                let tables = node.ports.iter().enumerate().flat_map(|(number, port)| {
                    port.addresses.each().map(|(address, _)| (address, source_table(number)))
                });
                node.source_tables = tables.collect();
            }
        }
    }

    /// How `from` reaches the network of a host's port, by the tables of next links towards it.
    fn route_one(&mut self, from: NodeId, to: &Port, next: &[Option<LinkId>]) {
        let topology = &self.topology;
        let several =
            topology.nodes[from.0].kind == NodeKind::Host && self.nodes[from.0].ports.len() > 1;
        let mut routes = Vec::new();
        for (number, port) in self.nodes[from.0].ports.iter().enumerate() {
            let neighbour = topology.links[port.link.0].across(from);
            // By this port it gets there if the neighbour, a switch, knows how to go on without coming back.
            let goes_on = neighbour.is_some_and(|neighbour| {
                topology.nodes[neighbour.0].kind == NodeKind::Switch
                    && next[neighbour.0].is_some_and(|link| link != port.link)
            });
            let best = next[from.0] == Some(port.link);
            let on_link = port.link == to.link;
            if on_link && best && !several {
                // The kernel has made that route with the address.
                continue;
            }
            let via = Addresses::of(port.link, 1 - port.side);
            for ((network, prefix), (gateway, _)) in
                to.addresses.networks().into_iter().zip(via.each())
            {
                let route =
                    PlannedRoute { to: (network, prefix), via: gateway, port: number, table: None };
                if best && !on_link {
                    routes.push(route);
                }
                if several && (goes_on || (on_link && best)) {
                    routes.push(PlannedRoute { table: Some(source_table(number)), ..route });
                }
            }
        }
        self.nodes[from.0].routes.extend(routes);
    }

    /// Every link.
    pub fn all_links(&self) -> impl Iterator<Item = LinkId> {
        (0..self.topology.links.len()).map(LinkId)
    }

    /// The link of a name that somebody wrote.
    ///
    /// # Errors
    /// Which there are.
    pub fn link_named(&self, name: &str) -> Result<LinkId, String> {
        let all = self.topology.links.iter().map(|link| link.name.as_str());
        let found = self.topology.link(name);
        found.ok_or_else(|| format!("there is no link {name:?}: there are {}", some_of(all)))
    }

    /// The host or switch of a name that somebody wrote.
    ///
    /// # Errors
    /// Which there are.
    pub fn node_named(&self, name: &str) -> Result<NodeId, String> {
        let all = self.topology.nodes.iter().map(|node| node.name.as_str());
        self.topology.node(name).ok_or_else(|| {
            format!("there is no host or switch {name:?}: there are {}", some_of(all))
        })
    }

    /// A host, or one interface of it as `HOST-INTERFACE`, of a name that somebody wrote.
    ///
    /// # Errors
    /// Which hosts and switches there are.
    pub fn party_named(&self, name: &str) -> Result<Party, String> {
        let by_interface = self.nodes.iter().enumerate().find_map(|(number, node)| {
            let device = name.strip_prefix(&node.name)?.strip_prefix('-')?;
            let port = node.ports.iter().position(|port| port.device == device)?;
            Some(Party { node: NodeId(number), port: Some(port) })
        });
        match self.node_named(name) {
            Ok(node) => Ok(node.into()),
            Err(unknown) => by_interface.ok_or(unknown),
        }
    }

    /// The addresses by which a host goes; none for switches.
    #[must_use]
    pub fn addresses(&self, node: NodeId) -> Option<Addresses> {
        let node = &self.nodes[node.0];
        (node.kind == NodeKind::Host)
            .then(|| node.ports.first().map(|port| port.addresses))
            .flatten()
    }

    /// The text of `/etc/hosts` in every namespace, IPv6 first.
    #[must_use]
    pub fn hosts_file(&self) -> String {
        let mut text = String::from("::1 localhost\n127.0.0.1 localhost\n");
        for node in self.nodes.iter().filter(|node| node.kind == NodeKind::Host) {
            for (number, port) in node.ports.iter().enumerate() {
                for (address, _) in port.addresses.each() {
                    let _ = write!(text, "{address} {}-{}", node.name, port.device);
                    text +=
                        &if number == 0 { format!(" {}\n", node.name) } else { "\n".to_owned() };
                }
            }
        }
        text
    }

    /// What a direction of a link does as the topology has it; the first is from its first end.
    #[must_use]
    pub fn impairment(&self, link: LinkId) -> Impairment {
        let link = &self.topology.links[link.0];
        Impairment {
            rate: Some(link.rate),
            delay: link.delay,
            jitter: link.jitter,
            loss: link.loss,
            loss_burst: link.loss_burst,
            queue: link.queue,
            mark: link.mark,
            cut: false,
        }
    }

    /// Where the port of an end of a link is: node and number.
    #[must_use]
    pub fn port_of(&self, link: LinkId, side: usize) -> (NodeId, usize) {
        let node = self.topology.links[link.0].ends[side].node;
        let ports = &self.nodes[node.0].ports;
        let found = ports.iter().position(|port| port.link == link && port.side == side);
        (node, found.unwrap_or_default())
    }

    /// The routes that pin traffic between two hosts to these links, there and back: per node, addresses from and to,
    /// and the port by which it goes on.
    ///
    /// # Errors
    /// When the links are no way between the two.
    pub fn pin(&self, from: Party, to: Party, links: &[LinkId]) -> Result<Vec<Pin>, PlanError> {
        let parties = [from, to];
        let [from, to] = parties.map(|party| party.node);
        let name = |node: NodeId| &self.topology.nodes[node.0].name;
        for end in [from, to] {
            if self.nodes[end.0].kind != NodeKind::Host {
                let why = format!("{} is a switch: a way is between two hosts", name(end));
                return Err(PlanError::Way(why));
            }
        }
        let (mut at, mut steps) = (from, Vec::new());
        let mut seen = BTreeSet::from([from]);
        for link in links {
            let Some(next) = self.topology.links[link.0].across(at) else {
                let link = &self.topology.links[link.0].name;
                return Err(PlanError::Way(format!(
                    "the way does not hold together: link {link} does not touch {}",
                    name(at)
                )));
            };
            if !seen.insert(next) {
                let why = format!("the way comes to {} twice", name(next));
                return Err(PlanError::Way(why));
            }
            steps.push((at, *link, next));
            at = next;
        }
        if at != to || links.is_empty() {
            return Err(PlanError::Way(format!(
                "the way ends at {}, not at {}",
                name(at),
                name(to)
            )));
        }
        let end_of = |node: NodeId, link: LinkId| {
            let side = usize::from(self.topology.links[link.0].ends[1].node == node);
            let (_, port) = self.port_of(link, side);
            (port, Addresses::of(link, side))
        };
        let mut pins = Vec::new();
        for (here, link, there) in steps {
            let [from, to] = parties;
            for (node, neighbour, from, to) in [(here, there, from, to), (there, here, to, from)] {
                let (port, _) = end_of(node, link);
                let via = end_of(neighbour, link).1.each();
                for (from, to) in self.pairs(from, to) {
                    let via = via.iter().find(|(via, _)| via.is_ipv4() == from.is_ipv4());
                    pins.extend(via.map(|(via, _)| Pin { node, from, to, via: *via, port }));
                }
            }
        }
        Ok(pins)
    }

    /// The addresses by which two can talk.
    fn pairs(&self, from: Party, to: Party) -> Vec<(IpAddr, IpAddr)> {
        let all = |party: Party| {
            let ports = self.nodes[party.node.0].ports.iter().enumerate();
            ports
                .filter(move |(number, _)| party.port.is_none_or(|port| port == *number))
                .flat_map(|(_, port)| port.addresses.each())
                .map(|(address, _)| address)
        };
        let pairs = all(from).flat_map(|from| all(to).map(move |to| (from, to)));
        pairs.filter(|(from, to)| from.is_ipv4() == to.is_ipv4()).collect()
    }
}

/// Whose traffic takes a way: all of a host, or what has the addresses of one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// The host.
    pub node: NodeId,
    /// One of its ports; none is all.
    pub port: Option<usize>,
}

impl From<NodeId> for Party {
    fn from(node: NodeId) -> Self {
        Self { node, port: None }
    }
}

fn some_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.take(12).collect::<Vec<_>>().join(", ")
}

/// A step of a way that traffic between two addresses is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// The node that decides.
    pub node: NodeId,
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// The next hop.
    pub via: IpAddr,
    /// The port towards it.
    pub port: usize,
}

fn source_table(port: usize) -> u32 {
    1000 + u32::try_from(port).unwrap_or(0)
}

fn port(topology: &Topology, id: LinkId, side: usize) -> Port {
    let number = u16::try_from(id.0).unwrap_or(u16::MAX).to_be_bytes();
    Port {
        link: id,
        side,
        device: String::new(),
        // Locally administered.
        hardware: [0x02, 0x70, 0x6E, number[0], number[1], side as u8 + 1],
        mtu: mtu(topology, id),
        vlan: topology.links[id.0].vlan,
        addresses: Addresses::of(id, side),
    }
}

/// That of the hosts at the link; between switches, the longest that any host has.
fn mtu(topology: &Topology, id: LinkId) -> u32 {
    let link = &topology.links[id.0];
    let of_ends = link
        .ends
        .iter()
        .filter_map(|end| Some(topology.nodes[end.node.0].interfaces.get(end.interface?)?.mtu));
    let everywhere = topology.nodes.iter().flat_map(|node| &node.interfaces).map(|one| one.mtu);
    of_ends.min().or(everywhere.max()).unwrap_or(MTU_USUAL)
}

/// Devices of hosts are named as their interfaces, those of switches after the neighbour.
fn name_devices(topology: &Topology, plan: &mut NodePlan) {
    let mut taken: Vec<String> = vec!["lo".to_owned()];
    for (number, port) in plan.ports.iter_mut().enumerate() {
        let link = &topology.links[port.link.0];
        let end = link.ends[port.side];
        let wanted = match end.interface {
            Some(interface) => topology.nodes[end.node.0].interfaces[interface].name.clone(),
            None if plan.kind == NodeKind::Host => format!("eth{number}"),
            None => topology.nodes[link.ends[1 - port.side].node.0].name.clone(),
        };
        // Two links on one interface differ in their VLAN.
        let tagged =
            link.vlan.filter(|_| taken.contains(&wanted)).map(|vlan| format!("{wanted}.{vlan}"));
        let wanted = tagged.unwrap_or(wanted);
        let mut name = shortened(&wanted, "");
        for again in 2.. {
            if !taken.contains(&name) {
                break;
            }
            name = shortened(&wanted, &format!("-{again}"));
        }
        taken.push(name.clone());
        port.device = name;
    }
}

/// A name that Linux takes for a device, with this at its end.
fn shortened(name: &str, end: &str) -> String {
    let room = DEVICE_BYTES_MAX - end.len();
    let name: String = name.chars().take(room).collect();
    format!("{name}{end}")
}

#[cfg(test)]
mod tests;
