//! Simulated network: nodes and ports, two for each link, addressed by index.

use penstock_topology::{NodeKind, Topology};

use crate::time::{LineRate, PS_PER_NANOSECOND};

/// Reason why a topology cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Host without a link.
    #[error("host '{0}' has no link: give it one or take it out")]
    Unconnected(String),
    /// Link without a rate.
    #[error("link '{0}' has the rate 0: give it one")]
    NoRate(String),
    /// Topology with fewer than two hosts.
    #[error("there are fewer than two hosts")]
    Empty,
}

/// Host or switch of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricNode {
    /// Name in the topology.
    pub name: String,
    /// True for a host, which sends and receives traffic but forwards none.
    pub is_host: bool,
    /// Packet buffer of the switch, if the topology sets it.
    pub buffer_bytes: Option<u64>,
    /// Port numbers of the node, in the order of the topology's links.
    pub ports: std::ops::Range<u32>,
}

/// Thresholds of ECN marking: RED on the instantaneous queue length, as in DCQCN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Marking {
    /// Queue length up to which no packet is marked (Kmin).
    pub least_bytes: u64,
    /// Queue length above which every packet is marked (Kmax).
    pub most_bytes: u64,
    /// Marking probability just below `most_bytes` (Pmax).
    pub probability: f64,
}

/// One end of a link; its properties apply to the egress direction.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricPort {
    /// Number of the node that owns the port.
    pub node: u32,
    /// Port number at the other end of the link.
    pub peer: u32,
    /// Number of the link in the topology.
    pub link: u32,
    /// Rate of its bits on the line.
    pub line: LineRate,
    /// Propagation delay of the link in picoseconds.
    pub delay_ps: u64,
    /// Frame loss ratio of the link, 0 up to 1.
    pub loss: f64,
    /// Mean length of a loss burst in frames, at least 1.
    pub loss_burst: f64,
    /// ECN marking thresholds, if the topology sets them.
    pub marking: Option<Marking>,
    /// Queue limit of lossy priorities in bytes, if the topology sets it.
    pub queue_bytes: Option<u64>,
}

/// Nodes, ports and links of the simulated network.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricNetwork {
    /// Hosts and switches in the order of the topology.
    pub nodes: Vec<FabricNode>,
    /// Ports; those of one node are contiguous.
    pub ports: Vec<FabricPort>,
    /// Names of the topology's links.
    pub links: Vec<String>,
}

impl FabricNetwork {
    /// Builds the simulated network of a topology. Ignores jitter and the VLANs of single links.
    ///
    /// # Errors
    /// When a host has no link, a link has no rate, or there are fewer than two hosts.
    pub fn new(topology: &Topology) -> Result<Self, NetworkError> {
        let mut counts = vec![0_u32; topology.nodes.len()];
        for link in &topology.links {
            if link.rate.0 == 0 {
                return Err(NetworkError::NoRate(link.name.clone()));
            }
            link.ends.iter().for_each(|end| counts[end.node.0] += 1);
        }
        let mut first = 0;
        let mut nodes = Vec::with_capacity(counts.len());
        for (node, count) in topology.nodes.iter().zip(&counts) {
            let is_host = node.kind == NodeKind::Host;
            if is_host && *count == 0 {
                return Err(NetworkError::Unconnected(node.name.clone()));
            }
            nodes.push(FabricNode {
                name: node.name.clone(),
                is_host,
                buffer_bytes: node.buffer.map(|buffer| buffer.0),
                ports: first..first + count,
            });
            first += count;
        }
        if nodes.iter().filter(|node| node.is_host).count() < 2 {
            return Err(NetworkError::Empty);
        }
        let mut next: Vec<u32> = nodes.iter().map(|node| node.ports.start).collect();
        let mut ports = vec![None; first as usize];
        for (number, link) in topology.links.iter().enumerate() {
            let ids = link.ends.map(|end| {
                let id = next[end.node.0];
                next[end.node.0] += 1;
                id
            });
            for side in 0..2 {
                ports[ids[side] as usize] = Some(FabricPort {
                    node: link.ends[side].node.0 as u32,
                    peer: ids[1 - side],
                    link: number as u32,
                    line: LineRate::new(link.rate.0),
                    delay_ps: u64::try_from(link.delay.as_nanos())
                        .unwrap_or(u64::MAX / PS_PER_NANOSECOND)
                        * PS_PER_NANOSECOND,
                    loss: link.loss,
                    loss_burst: link.loss_burst.max(1.0),
                    marking: link.mark.map(|mark| Marking {
                        least_bytes: mark.0,
                        most_bytes: mark.0,
                        probability: 1.0,
                    }),
                    queue_bytes: link.queue.map(|queue| queue.0),
                });
            }
        }
        let links = topology.links.iter().map(|link| link.name.clone()).collect();
        Ok(Self { nodes, ports: ports.into_iter().flatten().collect(), links })
    }

    /// Iterates over the node numbers of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|node| self.nodes[*node as usize].is_host)
    }

    /// Returns the node at the other end of a port's link.
    #[must_use]
    pub fn across(&self, port: u32) -> u32 {
        self.ports[self.ports[port as usize].peer as usize].node
    }

    /// Formats a port as `node>peer`.
    #[must_use]
    pub fn show_port(&self, port: u32) -> String {
        let name = |node: u32| &self.nodes[node as usize].name;
        format!("{}>{}", name(self.ports[port as usize].node), name(self.across(port)))
    }
}
