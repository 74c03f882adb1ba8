//! `penstock topology`.

use serde::Serialize;
use utoipa::ToSchema;

/// Files that were checked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TopologyCheckJson {
    /// Results, in the order of the arguments.
    pub(crate) files: Vec<CheckedFile>,
}

/// A file that was checked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CheckedFile {
    /// Name of the file as given.
    pub(crate) file: String,
    /// All faults of the file; none where it is good.
    pub(crate) faults: Vec<TopologyFaultJson>,
}

/// A fault of a topology file.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TopologyFaultJson {
    /// Line of the fault, from 1.
    pub(crate) line: usize,
    /// Column of that line, from 1.
    pub(crate) column: usize,
    /// Description of the fault.
    pub(crate) text: String,
}

/// Sites, nodes and links of a topology.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct NetworkJson {
    /// Name of the topology.
    pub(crate) name: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Origin of the facts.
    pub(crate) source: Option<String>,
    /// Sites of the network.
    pub(crate) sites: Vec<SiteJson>,
    /// Hosts and switches of the network.
    pub(crate) nodes: Vec<NodeJson>,
    /// Links of the network.
    pub(crate) links: Vec<LinkJson>,
}

/// Site with its geographic position.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SiteJson {
    /// Name of the site.
    pub(crate) name: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Latitude, north positive [degrees].
    pub(crate) latitude: Option<f64>,
    /// Longitude, east positive [degrees].
    pub(crate) longitude: Option<f64>,
}

/// A host or a switch.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct NodeJson {
    /// Name of the node.
    pub(crate) name: String,
    /// Kind of node: `host` or `switch`.
    pub(crate) kind: &'static str,
    /// Name of its site.
    pub(crate) site: Option<String>,
    /// Packet memory of a switch.
    pub(crate) buffer_bytes: Option<u64>,
    /// Interfaces of a host.
    pub(crate) interfaces: Vec<InterfaceJson>,
}

/// An interface of a host.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct InterfaceJson {
    /// Name of the interface.
    pub(crate) name: String,
    /// Line rate of the interface.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// Size of the largest IP packet.
    pub(crate) mtu_bytes: u32,
    /// NUMA node that it is attached to.
    pub(crate) numa_node: Option<u32>,
}

/// A link, alike in both directions.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LinkJson {
    /// Name of the link.
    pub(crate) name: String,
    /// Both ends, as `host:interface` or the name of a node.
    pub(crate) ends: [String; 2],
    /// Rate of each direction.
    pub(crate) rate_bits_per_second: u64,
    /// One-way delay, without queueing.
    pub(crate) delay_seconds: f64,
    /// Origin of the delay: `given`, `fibre` (from the length), `great_circle` (a lower bound) or `none` (0).
    pub(crate) delay_source: &'static str,
    /// Standard deviation of the delay.
    pub(crate) jitter_seconds: f64,
    /// Share of packets lost, 0 to 1.
    pub(crate) loss: f64,
    /// Mean number of packets lost together.
    pub(crate) loss_burst_packets: f64,
    /// Bytes that may wait at each end.
    pub(crate) queue_bytes: Option<u64>,
    /// Bytes waiting from which packets capable of ECN are marked.
    pub(crate) mark_bytes: Option<u64>,
    /// IEEE 802.1Q tag of its packets.
    pub(crate) vlan: Option<u16>,
    /// Names of the risks that it shares with other links.
    pub(crate) risk_groups: Vec<String>,
    /// Operator of the link.
    pub(crate) operator: Option<String>,
}

/// Paths between two nodes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PathsJson {
    /// Node where the paths begin.
    pub(crate) from: String,
    /// Node where the paths end.
    pub(crate) to: String,
    /// Disjoint paths with the least delay in all, the shortest first.
    pub(crate) paths: Vec<PathJson>,
    /// True where no better set of paths exists; false where the search was given up.
    pub(crate) best: bool,
}

/// Path between two nodes.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PathJson {
    /// Nodes from one end to the other.
    pub(crate) nodes: Vec<String>,
    /// Links between these nodes.
    pub(crate) links: Vec<String>,
    /// Rate of the slowest link.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// One-way delay, without queueing.
    pub(crate) delay_seconds: f64,
    /// Share of packets lost on the whole path, 0 to 1.
    pub(crate) loss: f64,
    /// Risks of all its links.
    pub(crate) risk_groups: Vec<String>,
}
