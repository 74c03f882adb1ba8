//! A network that was read and checked: every name is known, every number within its bounds.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount};

use crate::Position;

/// Index of a [`Site`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub usize);

/// Index of a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// Index of a [`Link`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// A network.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// A short name.
    pub name: String,
    /// A longer one.
    pub title: Option<String>,
    /// Where its facts come from.
    pub source: Option<String>,
    /// Places.
    pub sites: Vec<Site>,
    /// Hosts and switches, as the file has them, hosts first.
    pub nodes: Vec<Node>,
    /// What joins them.
    pub links: Vec<Link>,
}

/// A place.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub title: Option<String>,
    /// Where it is.
    pub position: Option<Position>,
}

impl Site {
    /// Its name for people.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }
}

/// What a node does with traffic of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: traffic begins and ends here.
    Host,
    /// It forwards.
    Switch,
}

/// A host or a switch.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its name, one of its own among hosts and switches.
    pub name: String,
    /// Host or switch.
    pub kind: Kind,
    /// Where it stands.
    pub site: Option<SiteId>,
    /// Memory for packets of a switch.
    pub buffer: Option<ByteCount>,
    /// Of a host; those of a switch are made by its links.
    pub interfaces: Vec<Interface>,
}

/// A network interface of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, as Linux allows them.
    pub name: String,
    /// How fast it is; not given, as fast as its link.
    pub rate: Option<BitRate>,
    /// Largest packet in bytes, IP header included.
    pub mtu: u32,
    /// The NUMA node of its slot.
    pub numa_node: Option<u32>,
}

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct End {
    /// The node.
    pub node: NodeId,
    /// Which of a host's interfaces.
    pub interface: Option<usize>,
}

/// From where the delay of a link is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DelaySource {
    /// The file says it.
    Given,
    /// From a length of fibre that the file gives.
    Fibre,
    /// From the great circle between two sites: no fibre is shorter.
    GreatCircle,
    /// Nothing says anything, or both ends are in one place: none.
    None,
}

/// A link; alike in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// Its name: given, or its ends.
    pub name: String,
    /// What it joins.
    pub ends: [End; 2],
    /// Bits per second in each direction.
    pub rate: BitRate,
    /// One way.
    pub delay: Duration,
    /// How that is known.
    pub delay_source: DelaySource,
    /// Standard deviation of the delay, one way; at most the delay. Zero: it never varies.
    pub jitter: Duration,
    /// Share of packets that are lost in each direction, 0 to 1.
    pub loss: f64,
    /// Mean number of packets that are lost together, at least 1: each for itself.
    pub loss_burst: f64,
    /// Bytes that may wait at each end.
    pub queue: Option<ByteCount>,
    /// Bytes waiting from which on packets that are capable of ECN are marked (RFC 3168); at most
    /// the queue. None: nothing is marked.
    pub mark: Option<ByteCount>,
    /// IEEE 802.1Q tag of its packets.
    pub vlan: Option<u16>,
    /// Links with a common group may fail together (a duct, a cable, a building).
    pub risk_groups: Vec<String>,
    /// Who runs it.
    pub operator: Option<String>,
}

impl Link {
    /// The other end, seen from a node; none if the link does not touch it.
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
    /// A node by its name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).map(NodeId)
    }

    /// The host or switch of this name; else, of a site of this name, the first switch, or the first host where it has
    /// none.
    #[must_use]
    pub fn node_behind(&self, name: &str) -> Option<NodeId> {
        let nodes = self.nodes.iter().enumerate();
        let at_site =
            nodes.filter(|(_, node)| node.site.is_some_and(|id| self.sites[id.0].name == name));
        let first = at_site.min_by_key(|(_, node)| node.kind == Kind::Host);
        self.node(name).or_else(|| first.map(|(id, _)| NodeId(id)))
    }

    /// A link by its name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<LinkId> {
        self.links.iter().position(|link| link.name == name).map(LinkId)
    }

    /// Hosts, with their ids.
    pub fn hosts(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let all = self.nodes.iter().enumerate().map(|(id, node)| (NodeId(id), node));
        all.filter(|(_, node)| node.kind == Kind::Host)
    }

    /// An end as files name it: `host:interface`, or the node alone.
    #[must_use]
    pub fn show_end(&self, end: End) -> String {
        let node = &self.nodes[end.node.0];
        match end.interface {
            Some(interface) => format!("{}:{}", node.name, node.interfaces[interface].name),
            None => node.name.clone(),
        }
    }
}
