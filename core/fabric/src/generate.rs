//! Generated topologies: star, dumbbell, spine-leaf, fat-tree. Hosts are named `h0`, `h1`, …; the hosts of one switch
//! have consecutive numbers.

use std::time::Duration;

use penstock_topology::{DelaySource, Link, LinkEnd, Node, NodeId, NodeKind, Topology};
use penstock_units::BitRate;

/// Topology under construction; all links have the same delay.
struct Builder {
    topology: Topology,
    delay: Duration,
}

impl Builder {
    fn new(name: String, delay_ns: u64) -> Self {
        Self {
            topology: Topology {
                name,
                title: None,
                source: None,
                sites: Vec::new(),
                nodes: Vec::new(),
                links: Vec::new(),
            },
            delay: Duration::from_nanos(delay_ns),
        }
    }

    fn nodes(&mut self, prefix: &str, kind: NodeKind, count: usize) -> Vec<NodeId> {
        let first = self.topology.nodes.len();
        let node = |number: usize| Node {
            name: format!("{prefix}{number}"),
            kind,
            site: None,
            buffer: None,
            interfaces: Vec::new(),
        };
        self.topology.nodes.extend((0..count).map(node));
        (first..first + count).map(NodeId).collect()
    }

    fn link(&mut self, a: NodeId, b: NodeId, rate_bps: u64) {
        let name = |node: NodeId| &self.topology.nodes[node.0].name;
        let link = Link {
            name: format!("{}-{}", name(a), name(b)),
            ends: [a, b].map(|node| LinkEnd { node, interface: None }),
            rate: BitRate(rate_bps),
            delay: self.delay,
            delay_source: DelaySource::Given,
            jitter: Duration::ZERO,
            loss: 0.0,
            loss_burst: 1.0,
            queue: None,
            mark: None,
            vlan: None,
            risk_groups: Vec::new(),
            operator: None,
        };
        self.topology.links.push(link);
    }
}

/// Builds a star: `hosts` hosts on one switch.
#[must_use]
pub fn star(hosts: usize, rate_bps: u64, delay_ns: u64) -> Topology {
    let mut builder = Builder::new(format!("star-{hosts}"), delay_ns);
    let all = builder.nodes("h", NodeKind::Host, hosts);
    let switch = builder.nodes("s", NodeKind::Switch, 1)[0];
    all.into_iter().for_each(|host| builder.link(host, switch, rate_bps));
    builder.topology
}

/// Builds a dumbbell: `pairs` hosts on either side of one link between two switches; 0 pairs give two hosts on one
/// link.
#[must_use]
pub fn dumbbell(pairs: usize, rate_bps: u64, middle_bps: u64, delay_ns: u64) -> Topology {
    let mut builder = Builder::new(format!("dumbbell-{pairs}"), delay_ns);
    if pairs == 0 {
        let hosts = builder.nodes("h", NodeKind::Host, 2);
        builder.link(hosts[0], hosts[1], middle_bps);
        return builder.topology;
    }
    let hosts = builder.nodes("h", NodeKind::Host, 2 * pairs);
    let switches = builder.nodes("s", NodeKind::Switch, 2);
    for (number, host) in hosts.into_iter().enumerate() {
        builder.link(host, switches[number / pairs], rate_bps);
    }
    builder.link(switches[0], switches[1], middle_bps);
    builder.topology
}

/// Builds a spine-leaf fabric: `hosts` hosts on each of `leaves` leaf switches, each with a link to each of `spines`.
#[must_use]
pub fn spine_leaf(
    spines: usize,
    leaves: usize,
    hosts: usize,
    rate_bps: u64,
    uplink_bps: u64,
    delay_ns: u64,
) -> Topology {
    let mut builder = Builder::new(format!("spine-leaf-{spines}-{leaves}-{hosts}"), delay_ns);
    let all = builder.nodes("h", NodeKind::Host, leaves * hosts);
    let below = builder.nodes("leaf", NodeKind::Switch, leaves);
    let above = builder.nodes("spine", NodeKind::Switch, spines);
    for (number, host) in all.into_iter().enumerate() {
        builder.link(host, below[number / hosts], rate_bps);
    }
    for leaf in &below {
        above.iter().for_each(|spine| builder.link(*leaf, *spine, uplink_bps));
    }
    builder.topology
}

/// Three-tier Clos: `pods` pods of `edges` edge and `middles` aggregation switches. Each edge switch has `hosts`
/// hosts and a link to each aggregation switch of its pod; aggregation switch m of each pod has links to the m-th
/// group of `cores` core switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pods {
    /// Number of pods in the fat tree.
    pub pods: usize,
    /// Edge switches per pod.
    pub edges: usize,
    /// Hosts per edge switch.
    pub hosts: usize,
    /// Aggregation switches per pod.
    pub middles: usize,
    /// Core switches per aggregation switch of a pod.
    pub cores: usize,
    /// Rate of each host's link in bits per second.
    pub rate_bps: u64,
    /// Rate of each link between switches in bits per second.
    pub fabric_bps: u64,
    /// Propagation delay of each link in nanoseconds.
    pub delay_ns: u64,
}

/// Builds a three-tier Clos fabric.
#[must_use]
pub fn pods(shape: Pods) -> Topology {
    let mut builder = Builder::new(
        format!("pods-{}-{}-{}", shape.pods, shape.edges, shape.hosts),
        shape.delay_ns,
    );
    let hosts = builder.nodes("h", NodeKind::Host, shape.pods * shape.edges * shape.hosts);
    let edges = builder.nodes("edge", NodeKind::Switch, shape.pods * shape.edges);
    let middles = builder.nodes("middle", NodeKind::Switch, shape.pods * shape.middles);
    let cores = builder.nodes("core", NodeKind::Switch, shape.middles * shape.cores);
    for (number, host) in hosts.into_iter().enumerate() {
        builder.link(host, edges[number / shape.hosts], shape.rate_bps);
    }
    for (number, edge) in edges.into_iter().enumerate() {
        let pod = number / shape.edges;
        for middle in &middles[pod * shape.middles..(pod + 1) * shape.middles] {
            builder.link(edge, *middle, shape.fabric_bps);
        }
    }
    for (number, middle) in middles.into_iter().enumerate() {
        let group = number % shape.middles;
        for core in &cores[group * shape.cores..(group + 1) * shape.cores] {
            builder.link(middle, *core, shape.fabric_bps);
        }
    }
    builder.topology
}

/// Builds the fat-tree of k-port switches (Al-Fares, SIGCOMM 2008) for an even k; `oversubscription` multiplies the
/// hosts of each edge switch.
#[must_use]
pub fn fat_tree(k: usize, oversubscription: f64, rate_bps: u64, delay_ns: u64) -> Topology {
    let half = k / 2;
    let hosts = ((half as f64 * oversubscription).round() as usize).max(1);
    let mut topology = pods(Pods {
        pods: k,
        edges: half,
        hosts,
        middles: half,
        cores: half,
        rate_bps,
        fabric_bps: rate_bps,
        delay_ns,
    });
    topology.name = format!("fat-tree-{k}");
    topology
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_topologies_have_expected_counts() {
        let count = |topology: &Topology| {
            (topology.hosts().count(), topology.nodes.len(), topology.links.len())
        };
        assert_eq!(count(&star(5, 1, 0)), (5, 6, 5));
        assert_eq!(count(&dumbbell(3, 1, 1, 0)), (6, 8, 7));
        assert_eq!(count(&spine_leaf(2, 8, 4, 1, 1, 0)), (32, 42, 48));
        assert_eq!(count(&fat_tree(8, 1.0, 1, 0)), (128, 208, 384));
        assert_eq!(count(&fat_tree(4, 2.0, 1, 0)), (32, 52, 64));
    }
}
