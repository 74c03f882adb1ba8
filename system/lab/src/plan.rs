//! Plan of a lab: devices, addresses and routes for a topology. Pure.
//!
//! Each link has its own networks: `fd70:6e73:LINK::/64` and `10.x.y.z/30`. A host's name resolves to the address of its
//! first interface, `HOST-INTERFACE` to that of one interface. Labs are isolated, so all use the same addresses, and a
//! topology always gets the same ones.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use penstock_topology::{LinkId, NodeId, NodeKind, Topology, next_links};

use crate::circuit::CIRCUITS_MAX;
use crate::line::Impairment;

/// Links per lab, each with a /30 in 10.0.0.0/8.
pub const LINKS_MAX: usize = 16_384;
/// Nodes per lab, each a namespace with about 200 KiB of kernel memory.
pub const NODES_MAX: usize = 2_048;

/// IFNAMSIZ, less the terminator.
const DEVICE_BYTES_MAX: usize = 15;
/// MTU of links between switches in a network without hosts.
const MTU_DEFAULT_BYTES: u32 = 1500;

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPort {
    /// Index of the link.
    pub link: LinkId,
    /// End of the link: 0 or 1.
    pub side: usize,
    /// Interface name, up to 15 bytes.
    pub device: String,
    /// Ethernet (MAC) address of the interface.
    pub hardware: [u8; 6],
    /// In bytes, without the Ethernet header.
    pub mtu: u32,
    /// VLAN id of its link.
    pub vlan: Option<u16>,
    /// IPv6 and IPv4 address.
    pub addresses: PortAddresses,
}

/// Addresses of a port, one per family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddresses {
    /// In `fd70:6e73:LINK::/64`.
    pub v6: Ipv6Addr,
    /// In 10.0.0.0/8.
    pub v4: Ipv4Addr,
}

impl PortAddresses {
    fn of(link: LinkId, side: usize) -> Self {
        let side = side as u16 + 1;
        let link16 = u16::try_from(link.0).unwrap_or(u16::MAX);
        Self {
            v6: Ipv6Addr::new(0xFD70, 0x6E73, link16, 0, 0, 0, 0, side),
            v4: Ipv4Addr::from_bits((10 << 24) + u32::from(link16) * 4 + u32::from(side)),
        }
    }

    /// Both addresses with their prefix lengths.
    #[must_use]
    pub fn each(self) -> [(IpAddr, u8); 2] {
        [(self.v6.into(), 64), (self.v4.into(), 30)]
    }

    /// Both networks with their prefix lengths.
    fn networks(self) -> [(IpAddr, u8); 2] {
        let v6 = Ipv6Addr::from_bits(self.v6.to_bits() & (u128::MAX << 64));
        let v4 = Ipv4Addr::from_bits(self.v4.to_bits() & (u32::MAX << 2));
        [(v6.into(), 64), (v4.into(), 30)]
    }
}

/// A static route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRoute {
    /// Destination network: address, prefix length in bits.
    pub to: (IpAddr, u8),
    /// Address of the next hop.
    pub via: IpAddr,
    /// Index of the outgoing port.
    pub port: usize,
    /// Routing table; `None` is the main table.
    pub table: Option<u32>,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// Name in the topology.
    pub name: String,
    /// Host or switch; only switches forward packets.
    pub kind: NodeKind,
    /// Ends of its links; those of a host in the order of its interfaces.
    pub ports: Vec<PlannedPort>,
    /// Routes beyond the directly connected networks.
    pub routes: Vec<PlannedRoute>,
    /// Routing tables by source address, for hosts with several interfaces: a socket bound to an address uses its interface.
    pub source_tables: Vec<(IpAddr, u32)>,
}

/// Plan of a whole lab.
#[derive(Debug, Clone, PartialEq)]
pub struct LabPlan {
    /// Topology from which the plan was made.
    pub topology: Topology,
    /// In the order of the topology's nodes.
    pub nodes: Vec<NodePlan>,
}

/// A name that the topology does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} {name:?}: there are {known}")]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    /// Some of the names that exist.
    known: String,
}

impl UnknownName {
    fn new<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        Self { kind, name: name.to_owned(), known: some_of(known) }
    }
}

/// A topology that cannot be emulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A name that the topology does not have.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// More than [`LINKS_MAX`] links.
    #[error("{0} links are more than a lab has: at most {LINKS_MAX}")]
    Links(usize),
    /// More than [`NODES_MAX`] nodes.
    #[error("{0} hosts and switches are more than a lab has: at most {NODES_MAX}")]
    Nodes(usize),
    /// Links that are not a path.
    #[error(transparent)]
    Path(#[from] LabPathError),
}

/// Links that are not a path between two hosts, or that no circuit can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabPathError {
    /// An end that is no host.
    #[error("{0} is a switch: a way is between two hosts")]
    Switch(String),
    /// A link that does not touch the node before it.
    #[error("the links are not a path: link {link} does not touch {node}")]
    Apart {
        /// Name of the link.
        link: String,
        /// Name of the node.
        node: String,
    },
    /// A link of a circuit that does not continue from the node before it to a new one.
    #[error(
        "the links are not a path: link {link} does not continue from {node}; name them in their order from the first end to the second"
    )]
    Discontinued {
        /// Name of the link.
        link: String,
        /// Name of the node.
        node: String,
    },
    /// A node that the links reach twice.
    #[error("the way comes to {0} twice: a path passes each node once")]
    Loop(String),
    /// Links that do not reach the other host.
    #[error("the way ends at {at}, not at {to}")]
    Short {
        /// Name of the node that the links reach.
        at: String,
        /// Name of the other host.
        to: String,
    },
    /// A circuit without rate, links or hosts.
    #[error("a circuit has a rate above 0, one or more links, and one or more hosts at either end")]
    CircuitTerms,
    /// Hosts that reach the end of a circuit over its own links only.
    #[error(
        "{hosts}: none reaches {end} by other links than the circuit's: name hosts behind {end}, or links that end before"
    )]
    Unreached {
        /// Names of the hosts.
        hosts: String,
        /// Name of the node at the end of the circuit.
        end: String,
    },
    /// More circuits than a lab has.
    #[error("a lab has at most {CIRCUITS_MAX} circuits: release one")]
    CircuitsFull,
    /// A link of a circuit that is cut.
    #[error("link {0} is cut: mend it, or name other links")]
    Cut(String),
}

impl LabPlan {
    /// Plans a lab for a topology.
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

    /// Adds routes along shortest paths to each interface of each host.
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

    /// Adds routes of `from` to the network of a host's port, by the next links towards it.
    fn route_one(&mut self, from: NodeId, to: &PlannedPort, next: &[Option<LinkId>]) {
        let topology = &self.topology;
        let several =
            topology.nodes[from.0].kind == NodeKind::Host && self.nodes[from.0].ports.len() > 1;
        let mut routes = Vec::new();
        for (number, port) in self.nodes[from.0].ports.iter().enumerate() {
            let neighbour = topology.links[port.link.0].across(from);
            // A port leads there if its neighbour is a switch that does not route back.
            let goes_on = neighbour.is_some_and(|neighbour| {
                topology.nodes[neighbour.0].kind == NodeKind::Switch
                    && next[neighbour.0].is_some_and(|link| link != port.link)
            });
            let best = next[from.0] == Some(port.link);
            let on_link = port.link == to.link;
            if on_link && best && !several {
                // The kernel adds the connected route with the address.
                continue;
            }
            let via = PortAddresses::of(port.link, 1 - port.side);
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

    /// Iterates over all links.
    pub fn all_links(&self) -> impl Iterator<Item = LinkId> {
        (0..self.topology.links.len()).map(LinkId)
    }

    /// Looks a link up by name.
    ///
    /// # Errors
    /// Lists the existing links.
    pub fn link_named(&self, name: &str) -> Result<LinkId, UnknownName> {
        let all = self.topology.links.iter().map(|link| link.name.as_str());
        let found = self.topology.link(name);
        found.ok_or_else(|| UnknownName::new("link", name, all))
    }

    /// Looks a host or switch up by name.
    ///
    /// # Errors
    /// Lists the existing nodes.
    pub fn node_named(&self, name: &str) -> Result<NodeId, UnknownName> {
        let all = self.topology.nodes.iter().map(|node| node.name.as_str());
        self.topology.node(name).ok_or_else(|| UnknownName::new("host or switch", name, all))
    }

    /// Looks a host up by name, or one of its interfaces as `HOST-INTERFACE`.
    ///
    /// # Errors
    /// Lists the existing hosts and switches.
    pub fn party_named(&self, name: &str) -> Result<Party, UnknownName> {
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

    /// Addresses to which a host's name resolves; `None` for switches.
    #[must_use]
    pub fn addresses(&self, node: NodeId) -> Option<PortAddresses> {
        let node = &self.nodes[node.0];
        (node.kind == NodeKind::Host)
            .then(|| node.ports.first().map(|port| port.addresses))
            .flatten()
    }

    /// Text of `/etc/hosts` for all namespaces, IPv6 first.
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

    /// Impairment of a link in the topology, for both directions.
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

    /// Node and port index of an end of a link.
    #[must_use]
    pub fn port_of(&self, link: LinkId, side: usize) -> (NodeId, usize) {
        let node = self.topology.links[link.0].ends[side].node;
        let ports = &self.nodes[node.0].ports;
        let found = ports.iter().position(|port| port.link == link && port.side == side);
        (node, found.unwrap_or_default())
    }

    /// Plans the routes that pin traffic between two hosts to these links, in both directions.
    ///
    /// # Errors
    /// When the links are not a path between the two.
    pub fn pin(&self, from: Party, to: Party, links: &[LinkId]) -> Result<Vec<Pin>, PlanError> {
        let parties = [from, to];
        let [from, to] = parties.map(|party| party.node);
        let name = |node: NodeId| &self.topology.nodes[node.0].name;
        for end in [from, to] {
            if self.nodes[end.0].kind != NodeKind::Host {
                return Err(LabPathError::Switch(name(end).clone()).into());
            }
        }
        let (mut at, mut steps) = (from, Vec::new());
        let mut seen = BTreeSet::from([from]);
        for link in links {
            let Some(next) = self.topology.links[link.0].across(at) else {
                let link = self.topology.links[link.0].name.clone();
                return Err(LabPathError::Apart { link, node: name(at).clone() }.into());
            };
            if !seen.insert(next) {
                return Err(LabPathError::Loop(name(next).clone()).into());
            }
            steps.push((at, *link, next));
            at = next;
        }
        if at != to || links.is_empty() {
            let (at, to) = (name(at).clone(), name(to).clone());
            return Err(LabPathError::Short { at, to }.into());
        }
        let end_of = |node: NodeId, link: LinkId| {
            let side = usize::from(self.topology.links[link.0].ends[1].node == node);
            let (_, port) = self.port_of(link, side);
            (port, PortAddresses::of(link, side))
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

    /// Address pairs of two parties, per family.
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

/// Traffic to pin: that of a whole host, or of one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Index of the host.
    pub node: NodeId,
    /// Index of a port; `None` is all ports.
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

/// A route of one node for pinned traffic between two addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Node that gets the route.
    pub node: NodeId,
    /// Source address of the traffic.
    pub from: IpAddr,
    /// Destination address of the traffic.
    pub to: IpAddr,
    /// Address of the next hop.
    pub via: IpAddr,
    /// Index of the outgoing port.
    pub port: usize,
}

fn source_table(port: usize) -> u32 {
    1000 + u32::try_from(port).unwrap_or(0)
}

fn port(topology: &Topology, id: LinkId, side: usize) -> PlannedPort {
    let number = u16::try_from(id.0).unwrap_or(u16::MAX).to_be_bytes();
    PlannedPort {
        link: id,
        side,
        device: String::new(),
        // Locally administered.
        hardware: [0x02, 0x70, 0x6E, number[0], number[1], side as u8 + 1],
        mtu: mtu(topology, id),
        vlan: topology.links[id.0].vlan,
        addresses: PortAddresses::of(id, side),
    }
}

/// MTU of the hosts at the link; between switches, the largest of any host.
fn mtu(topology: &Topology, id: LinkId) -> u32 {
    let link = &topology.links[id.0];
    let of_ends = link
        .ends
        .iter()
        .filter_map(|end| Some(topology.nodes[end.node.0].interfaces.get(end.interface?)?.mtu));
    let everywhere = topology.nodes.iter().flat_map(|node| &node.interfaces).map(|one| one.mtu);
    of_ends.min().or(everywhere.max()).unwrap_or(MTU_DEFAULT_BYTES)
}

/// Names devices of hosts as their interfaces, those of switches after the neighbour.
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

/// Shortens a name to a valid interface name that ends with `end`.
fn shortened(name: &str, end: &str) -> String {
    let room = DEVICE_BYTES_MAX - end.len();
    let name: String = name.chars().take(room).collect();
    format!("{name}{end}")
}

#[cfg(test)]
mod tests;
