//! Which node goes to which region: as equal as can be, with few links between regions, and long ones.
//!
//! A host is with its (first) switch. Where some links are much shorter than others, what they join is not divided, as long
//! as there is enough left to divide.

use crate::network::Network;

/// No region may be this much above its share: one in so many.
const LOAD_SLACK_DIVISOR: u64 = 16;
/// Times that nodes are looked at, whether they are better elsewhere.
const REFINEMENT_PASSES_MAX: usize = 4;

/// The region of each node, of at most so many. `lookahead` says how long a port's link keeps a frame.
pub(super) fn partition(
    network: &Network,
    lookahead: impl Fn(u32) -> u64,
    regions: usize,
) -> Vec<u32> {
    let nodes = network.nodes.len();
    if regions <= 1 {
        return vec![0; nodes];
    }
    let hosts = Groups::with_hosts(network);
    let mut lengths: Vec<u32> =
        (0..network.ports.len() as u32).map(|port| length(&lookahead, port)).collect();
    lengths.sort_unstable();
    lengths.dedup();
    // Without links shorter than this one: the longest for which all regions can have a fair share.
    for least in lengths.iter().rev() {
        let mut groups = hosts.clone();
        for port in 0..network.ports.len() as u32 {
            if length(&lookahead, port) < *least {
                groups.join(network.ports[port as usize].node, network.across(port));
            }
        }
        let atoms = Atoms::new(network, &mut groups);
        let share = atoms.weights.iter().sum::<u64>() / regions as u64;
        let heaviest = atoms.weights.iter().max().copied().unwrap_or(0);
        let is_last = lengths.first() == Some(least);
        if is_last || atoms.weights.len() >= 2 * regions && heaviest <= share {
            let owners = numbered(&atoms.deal(regions.min(atoms.weights.len())));
            return atoms.of.iter().map(|atom| owners[*atom as usize]).collect();
        }
    }
    vec![0; nodes]
}

/// Lengths of the same power of two are alike.
fn length(lookahead: &impl Fn(u32) -> u64, port: u32) -> u32 {
    lookahead(port).max(1).ilog2()
}

/// The same without numbers that nothing has.
fn numbered(owners: &[u32]) -> Vec<u32> {
    let mut used = owners.to_vec();
    used.sort_unstable();
    used.dedup();
    owners.iter().map(|owner| used.partition_point(|before| before < owner) as u32).collect()
}

/// Nodes that are not divided.
#[derive(Debug, Clone)]
struct Groups(Vec<u32>);

impl Groups {
    fn with_hosts(network: &Network) -> Self {
        let mut groups = Self((0..network.nodes.len() as u32).collect());
        for host in network.hosts() {
            groups.join(host, network.across(network.nodes[host as usize].ports.start));
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

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.find(one), self.find(other));
        self.0[one.max(other) as usize] = one.min(other);
    }
}

/// Groups of nodes as a graph.
struct Atoms {
    /// Of each node.
    of: Vec<u32>,
    /// Ports, which is about what there is to do.
    weights: Vec<u64>,
    has_hosts: Vec<bool>,
    /// At the other ends of the links of each, as often as there are links.
    neighbours: Vec<Vec<u32>>,
}

impl Atoms {
    fn new(network: &Network, groups: &mut Groups) -> Self {
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
        let mut atoms = Self {
            of,
            weights: vec![0; count as usize],
            has_hosts: vec![false; count as usize],
            neighbours: vec![Vec::new(); count as usize],
        };
        for (node, own) in network.nodes.iter().enumerate() {
            let atom = atoms.of[node];
            atoms.has_hosts[atom as usize] |= own.is_host;
            for port in own.ports.clone() {
                atoms.weights[atom as usize] += 1;
                let other = atoms.of[network.across(port) as usize];
                if other != atom {
                    atoms.neighbours[atom as usize].push(other);
                }
            }
        }
        atoms
    }

    /// Those with hosts in their order, so much to each region; the others by and by to where most of their links go, or
    /// where least is when they go everywhere; then each to where it is better.
    fn deal(&self, regions: usize) -> Vec<u32> {
        const UNASSIGNED_REGION: u32 = u32::MAX;
        let count = self.weights.len();
        let mut owners = vec![UNASSIGNED_REGION; count];
        let mut loads = vec![0_u64; regions];
        let hosts: Vec<usize> = (0..count).filter(|atom| self.has_hosts[*atom]).collect();
        let all: u64 = hosts.iter().map(|atom| self.weights[*atom]).sum();
        let mut before = 0;
        for atom in &hosts {
            let middle = before + self.weights[*atom] / 2;
            let region = (middle * regions as u64 / all.max(1)).min(regions as u64 - 1);
            before += self.weights[*atom];
            owners[*atom] = region as u32;
            loads[region as usize] += self.weights[*atom];
        }
        let mut left: Vec<usize> = (0..count).filter(|atom| !self.has_hosts[*atom]).collect();
        while !left.is_empty() {
            // A ring at a time, from the hosts on; what is not joined to them at all is the last.
            let is_beside = |atom: &usize| {
                self.neighbours[*atom]
                    .iter()
                    .any(|other| owners[*other as usize] != UNASSIGNED_REGION)
            };
            let (mut ring, rest): (Vec<_>, Vec<_>) = left.iter().partition(|atom| is_beside(atom));
            if ring.is_empty() {
                ring.clone_from(&left);
                left.clear();
            } else {
                left = rest;
            }
            let links: Vec<Vec<u64>> =
                ring.iter().map(|atom| self.links(*atom, &owners, regions)).collect();
            for (atom, links) in ring.into_iter().zip(links) {
                let most = (0..regions).rev().max_by_key(|region| links[*region]).unwrap_or(0);
                let lightest = (0..regions).min_by_key(|region| loads[*region]).unwrap_or(0);
                let is_there = 2 * links[most] > links.iter().sum();
                let region = if is_there { most } else { lightest };
                owners[atom] = region as u32;
                loads[region] += self.weights[atom];
            }
        }
        self.improve(&mut owners, &mut loads);
        owners
    }

    /// Links of an atom into each region.
    fn links(&self, atom: usize, owners: &[u32], regions: usize) -> Vec<u64> {
        let mut links = vec![0; regions];
        for other in &self.neighbours[atom] {
            if let Some(links) = links.get_mut(owners[*other as usize] as usize) {
                *links += 1;
            }
        }
        links
    }

    /// Moves atoms to where more of their links go, as long as regions stay about equal.
    fn improve(&self, owners: &mut [u32], loads: &mut [u64]) {
        let regions = loads.len();
        let mean = loads.iter().sum::<u64>() / regions as u64;
        for _ in 0..REFINEMENT_PASSES_MAX {
            let mut is_better = false;
            for atom in 0..owners.len() {
                let (own, weight) = (owners[atom] as usize, self.weights[atom]);
                let links = self.links(atom, owners, regions);
                let best = (0..regions).rev().max_by_key(|region| links[*region]).unwrap_or(own);
                let fits =
                    loads[best] + weight <= mean + mean / LOAD_SLACK_DIVISOR && loads[own] > weight;
                if links[best] > links[own] && fits {
                    owners[atom] = best as u32;
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

    fn divided(topology: &penstock_topology::Topology, regions: usize) -> (Network, Vec<u32>) {
        let network = Network::new(topology).unwrap();
        let owners = partition(&network, |port| network.ports[port as usize].delay_ps + 1, regions);
        (network, owners)
    }

    /// Halves of a fat-tree have four whole pods and half of the cores each, so that no link within a pod is cut.
    #[test]
    fn fat_tree_is_partitioned_by_pod() {
        let (network, owners) = divided(&generate::fat_tree(8, 1.0, 100_000_000_000, 1000), 2);
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
        // Each of 16 cores has 4 of 8 links into the other half, and links have two ends.
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
                let (network, owners) = divided(&topology, regions);
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

    /// Two sites 10 ms apart, each a switch with hosts and short links: the long link alone is cut.
    #[test]
    fn partitions_cut_long_links() {
        let mut topology = generate::spine_leaf(2, 8, 2, 1_000_000_000, 1_000_000_000, 1);
        for link in &mut topology.links {
            if link.name.contains("spine") {
                link.delay = std::time::Duration::from_millis(10);
            }
        }
        let (network, owners) = divided(&topology, 2);
        for port in 0..network.ports.len() as u32 {
            let is_cut = owners[network.ports[port as usize].node as usize]
                != owners[network.across(port) as usize];
            assert!(!is_cut || network.ports[port as usize].delay_ps > 1_000_000_000);
        }
        assert!(owners.contains(&1));
    }
}
