//! A checked topology: every reference resolves and every number is within its bounds.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount};

use crate::Position;

/// Index into [`Topology::sites`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub usize);

/// Index into [`Topology::nodes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// Index into [`Topology::links`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// A network of sites, nodes and links.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Identifier: letters, digits and `-_.`, at most 63.
    pub name: String,
    /// Name in reports and drawings.
    pub title: Option<String>,
    /// Source of the data, such as a publication.
    pub source: Option<String>,
    /// Sites, in the order of the file.
    pub sites: Vec<Site>,
    /// Hosts and switches, hosts first, each in the order of the file.
    pub nodes: Vec<Node>,
    /// Links, in the order of the file.
    pub links: Vec<Link>,
}

/// A location that groups nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Identifier, unique among sites.
    pub name: String,
    /// Name in reports and drawings.
    pub title: Option<String>,
    /// Position on the map, if the file has one.
    pub position: Option<Position>,
}

impl Site {
    /// Name for display: the title, else the identifier.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }
}

/// Role of a node in forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// Source or destination of traffic; does not forward.
    Host,
    /// Forwards traffic.
    Switch,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Identifier, unique among hosts and switches.
    pub name: String,
    /// Role of the node in forwarding.
    pub kind: NodeKind,
    /// Site of the node, if it has one.
    pub site: Option<SiteId>,
    /// Packet memory of a switch.
    pub buffer: Option<ByteCount>,
    /// Interfaces of a host. A switch has none: each link is a port.
    pub interfaces: Vec<Interface>,
}

/// A network interface of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name, valid for Linux.
    pub name: String,
    /// Line rate; none means that of its link.
    pub rate: Option<BitRate>,
    /// MTU in bytes, IP header included.
    pub mtu: u32,
    /// NUMA node of the PCI slot.
    pub numa_node: Option<u32>,
}

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkEnd {
    /// Node at this end.
    pub node: NodeId,
    /// Index into the host's interfaces.
    pub interface: Option<usize>,
}

/// Origin of a link's delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelaySource {
    /// Given in the file.
    Given,
    /// Computed from a length of fibre in the file.
    Fibre,
    /// Computed from the great circle between two sites: a lower bound.
    GreatCircle,
    /// Unknown, or both ends are at one site: zero.
    None,
}

/// A full-duplex link with the same properties in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Name: given, or derived from its ends.
    pub name: String,
    /// The two nodes, with the interface at each host.
    pub ends: [LinkEnd; 2],
    /// Bits per second in each direction.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Origin of `delay`: given, or computed from a length.
    pub delay_source: DelaySource,
    /// Standard deviation of the one-way delay, at most the delay; zero for a constant delay.
    pub jitter: Duration,
    /// Packet loss in each direction, 0 to 1.
    pub loss: f64,
    /// Mean number of packets lost in a row; 1 for independent losses.
    pub loss_burst: f64,
    /// Capacity of the queue at each end.
    pub queue: Option<ByteCount>,
    /// Queue length from which ECN-capable packets are marked (RFC 3168), at most `queue`; none to mark
    /// nothing.
    pub mark: Option<ByteCount>,
    /// IEEE 802.1Q tag of the packets.
    pub vlan: Option<u16>,
    /// Shared-risk groups: links of one group may fail together (a duct, a cable, a building).
    pub risk_groups: Vec<String>,
    /// Name of the operator.
    pub operator: Option<String>,
}

impl Link {
    /// The node at the other end, or none where `from` is not an end of the link.
    #[must_use]
    pub fn across(&self, from: NodeId) -> Option<NodeId> {
        let [a, b] = self.ends;
        match from {
            _ if from == a.node => Some(b.node),
            _ if from == b.node => Some(a.node),
            _ => None,
        }
    }
}

impl Topology {
    /// Finds a node by its name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).map(NodeId)
    }

    /// Finds the node of this name, else the first switch of the site of this name, or its first host where it
    /// has no switch.
    #[must_use]
    pub fn node_behind(&self, name: &str) -> Option<NodeId> {
        let nodes = self.nodes.iter().enumerate();
        let at_site =
            nodes.filter(|(_, node)| node.site.is_some_and(|id| self.sites[id.0].name == name));
        let first = at_site.min_by_key(|(_, node)| node.kind == NodeKind::Host);
        self.node(name).or_else(|| first.map(|(id, _)| NodeId(id)))
    }

    /// Finds a link by its name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<LinkId> {
        self.links.iter().position(|link| link.name == name).map(LinkId)
    }

    /// Hosts with their indices.
    pub fn hosts(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let all = self.nodes.iter().enumerate().map(|(id, node)| (NodeId(id), node));
        all.filter(|(_, node)| node.kind == NodeKind::Host)
    }

    /// Formats an end as files write it: `host:interface`, or the node alone.
    #[must_use]
    pub fn show_end(&self, end: LinkEnd) -> String {
        let node = &self.nodes[end.node.0];
        match end.interface {
            Some(interface) => format!("{}:{}", node.name, node.interfaces[interface].name),
            None => node.name.clone(),
        }
    }
}
