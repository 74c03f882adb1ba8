//! Partitioning of the network into regions of similar load, with few links between regions and long lookahead on
//! these.
//!
//! A host is in the region of its (first) switch. Nodes that are joined by links much shorter than others stay in one
//! region, as long as enough clusters remain to balance.

use crate::network::FabricNetwork;

/// A region may exceed the mean load by one part in this number.
const LOAD_SLACK_DIVISOR: u64 = 16;
/// Most passes of the refinement.
const REFINEMENT_PASSES_MAX: usize = 4;

/// Assigns each node to one of at most `regions` regions. `lookahead` returns the lookahead of a port in picoseconds.
pub(super) fn partition(
    network: &FabricNetwork,
    lookahead: impl Fn(u32) -> u64,
    regions: usize,
) -> Vec<u32> {
    let nodes = network.nodes.len();
    if regions <= 1 {
        return vec![0; nodes];
    }
    let hosts = DisjointSets::with_hosts(network);
    let mut lengths: Vec<u32> =
        (0..network.ports.len() as u32).map(|port| lookahead_log2(&lookahead, port)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    // Cut only links of at least this length: the greatest length that allows balanced regions.
    for least in lengths.iter().rev() {
        let mut groups = hosts.clone();
        for port in 0..network.ports.len() as u32 {
            if lookahead_log2(&lookahead, port) < *least {
                groups.union(network.ports[port as usize].node, network.across(port));
            }
        }
        let graph = ClusterGraph::new(network, &mut groups);
        let share = graph.weights.iter().sum::<u64>() / regions as u64;
        let heaviest = graph.weights.iter().max().copied().unwrap_or(0);
        let is_last = lengths.first() == Some(least);
        if is_last || graph.weights.len() >= 2 * regions && heaviest <= share {
            let owners = renumber(&graph.assign(regions.min(graph.weights.len())));
            return graph.of.iter().map(|cluster| owners[*cluster as usize]).collect();
        }
    }
    vec![0; nodes]
}

/// Returns the lookahead of a port as a power of two.
fn lookahead_log2(lookahead: &impl Fn(u32) -> u64, port: u32) -> u32 {
    lookahead(port).max(1).ilog2()
}

/// Renumbers regions without gaps.
fn renumber(owners: &[u32]) -> Vec<u32> {
    let mut used = owners.to_vec();
    used.sort_unstable();
    used.dedup();
    owners.iter().map(|owner| used.partition_point(|before| before < owner) as u32).collect()
}

/// Disjoint sets (union-find) of nodes that stay in one region.
#[derive(Debug, Clone)]
struct DisjointSets(Vec<u32>);

impl DisjointSets {
    fn with_hosts(network: &FabricNetwork) -> Self {
        let mut groups = Self((0..network.nodes.len() as u32).collect());
        for host in network.hosts() {
            groups.union(host, network.across(network.nodes[host as usize].ports.start));
        }
        groups
    }

    fn find(&mut self, mut node: u32) -> u32 {
        while self.0[node as usize] != node {
            let above = self.0[self.0[node as usize] as usize];
            self.0[node as usize] = above;
            node = above;
        }
        node
    }

    fn union(&mut self, one: u32, other: u32) {
        let (one, other) = (self.find(one), self.find(other));
        self.0[one.max(other) as usize] = one.min(other);
    }
}

/// Graph of clusters: sets of nodes that stay in one region.
struct ClusterGraph {
    /// Cluster of each node.
    of: Vec<u32>,
    /// Number of ports of each cluster, an estimate of its load.
    weights: Vec<u64>,
    has_hosts: Vec<bool>,
    /// Adjacent clusters of each cluster, one entry per link.
    neighbours: Vec<Vec<u32>>,
}

impl ClusterGraph {
    fn new(network: &FabricNetwork, groups: &mut DisjointSets) -> Self {
        let nodes = network.nodes.len() as u32;
        let mut numbers = vec![u32::MAX; nodes as usize];
        let mut count = 0;
        let mut of = Vec::with_capacity(nodes as usize);
        for node in 0..nodes {
            let number = &mut numbers[groups.find(node) as usize];
            if *number == u32::MAX {
                *number = count;
                count += 1;
            }
            of.push(*number);
        }
        let mut graph = Self {
            of,
            weights: vec![0; count as usize],
            has_hosts: vec![false; count as usize],
            neighbours: vec![Vec::new(); count as usize],
        };
        for (node, own) in network.nodes.iter().enumerate() {
            let cluster = graph.of[node];
            graph.has_hosts[cluster as usize] |= own.is_host;
            for port in own.ports.clone() {
                graph.weights[cluster as usize] += 1;
                let other = graph.of[network.across(port) as usize];
                if other != cluster {
                    graph.neighbours[cluster as usize].push(other);
                }
            }
        }
        graph
    }

    /// Assigns clusters to regions: clusters with hosts in their order, an equal share per region; then the others,
    /// each to the region of most of its links, or to the least loaded one without such a majority; then refines.
    fn assign(&self, regions: usize) -> Vec<u32> {
        const UNASSIGNED_REGION: u32 = u32::MAX;
        let count = self.weights.len();
        let mut owners = vec![UNASSIGNED_REGION; count];
        let mut loads = vec![0_u64; regions];
        let hosts: Vec<usize> = (0..count).filter(|cluster| self.has_hosts[*cluster]).collect();
        let all: u64 = hosts.iter().map(|cluster| self.weights[*cluster]).sum();
        let mut before = 0;
        for cluster in &hosts {
            let middle = before + self.weights[*cluster] / 2;
            let region = (middle * regions as u64 / all.max(1)).min(regions as u64 - 1);
            before += self.weights[*cluster];
            owners[*cluster] = region as u32;
            loads[region as usize] += self.weights[*cluster];
        }
        let mut left: Vec<usize> = (0..count).filter(|cluster| !self.has_hosts[*cluster]).collect();
        while !left.is_empty() {
            // Breadth first from the clusters with hosts; unconnected clusters come last.
            let is_beside = |cluster: &usize| {
                self.neighbours[*cluster]
                    .iter()
                    .any(|other| owners[*other as usize] != UNASSIGNED_REGION)
            };
            let (mut ring, rest): (Vec<_>, Vec<_>) =
                left.iter().partition(|cluster| is_beside(cluster));
            if ring.is_empty() {
                ring.clone_from(&left);
                left.clear();
            } else {
                left = rest;
            }
            let links: Vec<Vec<u64>> =
                ring.iter().map(|cluster| self.links(*cluster, &owners, regions)).collect();
            for (cluster, links) in ring.into_iter().zip(links) {
                let most = (0..regions).rev().max_by_key(|region| links[*region]).unwrap_or(0);
                let lightest = (0..regions).min_by_key(|region| loads[*region]).unwrap_or(0);
                let has_majority = 2 * links[most] > links.iter().sum();
                let region = if has_majority { most } else { lightest };
                owners[cluster] = region as u32;
                loads[region] += self.weights[cluster];
            }
        }
        self.refine(&mut owners, &mut loads);
        owners
    }

    /// Counts the links of a cluster into each region.
    fn links(&self, cluster: usize, owners: &[u32], regions: usize) -> Vec<u64> {
        let mut links = vec![0; regions];
        for other in &self.neighbours[cluster] {
            if let Some(links) = links.get_mut(owners[*other as usize] as usize) {
                *links += 1;
            }
        }
        links
    }

    /// Moves clusters to the region of most of their links, as long as the load stays balanced.
    fn refine(&self, owners: &mut [u32], loads: &mut [u64]) {
        let regions = loads.len();
        let mean = loads.iter().sum::<u64>() / regions as u64;
        for _ in 0..REFINEMENT_PASSES_MAX {
            let mut is_better = false;
            for cluster in 0..owners.len() {
                let (own, weight) = (owners[cluster] as usize, self.weights[cluster]);
                let links = self.links(cluster, owners, regions);
                let best = (0..regions).rev().max_by_key(|region| links[*region]).unwrap_or(own);
                let fits =
                    loads[best] + weight <= mean + mean / LOAD_SLACK_DIVISOR && loads[own] > weight;
                if links[best] > links[own] && fits {
                    owners[cluster] = best as u32;
                    loads[own] -= weight;
                    loads[best] += weight;
                    is_better = true;
                }
            }
            if !is_better {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    fn partitioned(
        topology: &penstock_topology::Topology,
        regions: usize,
    ) -> (FabricNetwork, Vec<u32>) {
        let network = FabricNetwork::new(topology).unwrap();
        let owners = partition(&network, |port| network.ports[port as usize].delay_ps + 1, regions);
        (network, owners)
    }

    /// Each half of a fat-tree has four whole pods and half of the core switches, so no link within a pod is cut.
    #[test]
    fn fat_tree_is_partitioned_by_pod() {
        let (network, owners) = partitioned(&generate::fat_tree(8, 1.0, 100_000_000_000, 1000), 2);
        let mut loads = [0_usize; 2];
        for (node, owner) in network.nodes.iter().zip(&owners) {
            loads[*owner as usize] += node.ports.len();
        }
        assert_eq!(loads[0], loads[1]);
        let cut = (0..network.ports.len() as u32).filter(|port| {
            let node = network.ports[*port as usize].node;
            owners[node as usize] != owners[network.across(*port) as usize]
        });
        for port in cut.clone() {
            assert!(network.show_port(port).contains("core"), "{}", network.show_port(port));
        }
        // Each of 16 core switches has 4 of 8 links into the other half; links have two ports.
        assert_eq!(cut.count(), 128);
    }

    #[test]
    fn hosts_share_region_with_switch() {
        for topology in [
            generate::star(9, 1_000_000_000, 10),
            generate::dumbbell(3, 1_000_000_000, 1_000_000_000, 10),
            generate::spine_leaf(3, 5, 4, 1_000_000_000, 1_000_000_000, 10),
            generate::fat_tree(4, 1.0, 1_000_000_000, 10),
        ] {
            for regions in 1..9 {
                let (network, owners) = partitioned(&topology, regions);
                let count = *owners.iter().max().unwrap() as usize + 1;
                assert!(count <= regions);
                for region in 0..count as u32 {
                    assert!(owners.contains(&region), "{} {regions}: {owners:?}", topology.name);
                }
                for host in network.hosts() {
                    let switch = network.across(network.nodes[host as usize].ports.start);
                    assert_eq!(owners[host as usize], owners[switch as usize]);
                }
            }
        }
    }

    /// Leaves are 10 ms from the spines and 1 ns from their hosts: only the long links are cut.
    #[test]
    fn partitions_cut_long_links() {
        let mut topology = generate::spine_leaf(2, 8, 2, 1_000_000_000, 1_000_000_000, 1);
        for link in &mut topology.links {
            if link.name.contains("spine") {
                link.delay = std::time::Duration::from_millis(10);
            }
        }
        let (network, owners) = partitioned(&topology, 2);
        for port in 0..network.ports.len() as u32 {
            let is_cut = owners[network.ports[port as usize].node as usize]
                != owners[network.across(port) as usize];
            assert!(!is_cut || network.ports[port as usize].delay_ps > 1_000_000_000);
        }
        assert!(owners.contains(&1));
    }
}
