//! Shortest-path routing with ECMP: the next hops of a node towards a host are all ports on paths with the fewest
//! links, in the order of the node's ports; a hash of the queue pair selects one (RFC 2992). Hosts do not forward.
//!
//! Hosts attached to the same switches form one destination class, so the tables grow with the number of switches, not
//! hosts.

use std::collections::HashMap;

use crate::network::FabricNetwork;
use penstock_random::mix;

/// Class of a switch, which is no destination.
const CLASS_NONE: u32 = u32::MAX;

/// Next-hop set in `members`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NextHops {
    start: u32,
    /// Number of ports; 0 in [`Self::LOCAL`] and [`Self::NONE`].
    count: u32,
}

impl NextHops {
    /// The host is attached to the node itself.
    const LOCAL: Self = Self { start: 0, count: 0 };
    /// The host is unreachable.
    const NONE: Self = Self { start: 1, count: 0 };
}

/// Forwarding tables of all nodes.
#[derive(Debug, Clone)]
pub struct Routes {
    classes: usize,
    /// Destination class of each host; [`CLASS_NONE`] for switches.
    class_of: Vec<u32>,
    /// Next hops of each node towards each class.
    table: Vec<NextHops>,
    /// Ports of the next-hop sets.
    members: Vec<u32>,
    /// For each host: its ports whose links are up.
    attached: Vec<Vec<u32>>,
    /// For each host with one link: the adjacent node and that node's port.
    single: Vec<Option<(u32, u32)>>,
    salts: Vec<u32>,
}

impl Routes {
    /// Computes the routes. `is_up` returns true for a port whose link is usable; `salt` is the seed of a node's ECMP hash.
    #[must_use]
    pub fn new(
        network: &FabricNetwork,
        is_up: impl Fn(u32) -> bool,
        salt: impl Fn(u32) -> u32,
    ) -> Self {
        let nodes = network.nodes.len();
        let attached: Vec<Vec<u32>> = network
            .nodes
            .iter()
            .map(|node| {
                if node.is_host {
                    node.ports.clone().filter(|port| is_up(*port)).collect()
                } else {
                    Vec::new()
                }
            })
            .collect();
        let single = attached.iter().map(|ports| match ports[..] {
            [port] => Some((network.across(port), network.ports[port as usize].peer)),
            _ => None,
        });
        let single = single.collect();
        let mut class_of = vec![CLASS_NONE; nodes];
        let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut classes: Vec<Vec<u32>> = Vec::new();
        for host in network.hosts() {
            let mut adjacent: Vec<u32> =
                attached[host as usize].iter().map(|port| network.across(*port)).collect();
            adjacent.sort_unstable();
            adjacent.dedup();
            // Hosts that are linked directly are a class of their own.
            if adjacent.iter().any(|node| network.nodes[*node as usize].is_host) {
                adjacent.insert(0, host);
            }
            class_of[host as usize] = *known.entry(adjacent.clone()).or_insert_with(|| {
                classes.push(adjacent);
                classes.len() as u32 - 1
            });
        }
        let mut routes = Self {
            classes: classes.len(),
            class_of,
            table: vec![NextHops::NONE; nodes * classes.len()],
            members: Vec::new(),
            attached,
            single,
            salts: (0..nodes as u32).map(salt).collect(),
        };
        let mut sets = HashMap::new();
        for (class, adjacent) in classes.iter().enumerate() {
            routes.compute_class(network, class, adjacent, &is_up, &mut sets);
        }
        routes
    }

    /// Fills the tables for one class by breadth-first search from the nodes adjacent to its hosts.
    fn compute_class(
        &mut self,
        network: &FabricNetwork,
        class: usize,
        adjacent: &[u32],
        is_up: &impl Fn(u32) -> bool,
        sets: &mut HashMap<Vec<u32>, NextHops>,
    ) {
        let mut distance = vec![u32::MAX; network.nodes.len()];
        let mut reached: Vec<u32> = Vec::new();
        for node in adjacent {
            distance[*node as usize] = 1;
            self.table[*node as usize * self.classes + class] = NextHops::LOCAL;
            // Hosts do not forward.
            if !network.nodes[*node as usize].is_host {
                reached.push(*node);
            }
        }
        let mut at = 0;
        while at < reached.len() {
            let node = reached[at];
            at += 1;
            for port in network.nodes[node as usize].ports.clone() {
                let other = network.across(port);
                if is_up(port) && distance[other as usize] == u32::MAX {
                    distance[other as usize] = distance[node as usize] + 1;
                    if !network.nodes[other as usize].is_host {
                        reached.push(other);
                    }
                }
            }
        }
        for (node, own) in network.nodes.iter().enumerate() {
            if distance[node] == u32::MAX || distance[node] == 1 {
                continue;
            }
            let is_closer = |port: &u32| {
                let other = network.across(*port) as usize;
                is_up(*port)
                    && !network.nodes[other].is_host
                    && distance[other] == distance[node] - 1
            };
            let ports: Vec<u32> = own.ports.clone().filter(is_closer).collect();
            let members = &mut self.members;
            let add = |ports: &Vec<u32>| {
                let start = members.len() as u32;
                members.extend(ports);
                NextHops { start, count: ports.len() as u32 }
            };
            self.table[node * self.classes + class] = *sets.entry(ports).or_insert_with_key(add);
        }
    }

    /// Returns the egress port of `node` towards `host` for an ECMP hash; none if the host is unreachable.
    #[must_use]
    #[inline]
    pub fn port(&self, network: &FabricNetwork, node: u32, host: u32, hash: u32) -> Option<u32> {
        let hops = self.next_hops(node, host);
        if hops.count > 0 {
            let member = hops.start + self.select_member(node, hash, hops.count);
            Some(self.members[member as usize])
        } else if hops == NextHops::LOCAL {
            self.attached_port(network, node, host, hash)
        } else {
            None
        }
    }

    /// Returns the equal-cost ports of a node towards a host; empty if the host is attached to the node or unreachable.
    #[must_use]
    pub fn candidates(&self, node: u32, host: u32) -> &[u32] {
        match self.next_hops(node, host) {
            NextHops { count: 0, .. } => &[],
            NextHops { start, count } => &self.members[start as usize..(start + count) as usize],
        }
    }

    fn next_hops(&self, node: u32, host: u32) -> NextHops {
        let class = self.class_of[host as usize];
        self.table[node as usize * self.classes + class as usize]
    }

    /// Selects the port of `node` that is attached to the host.
    fn attached_port(
        &self,
        network: &FabricNetwork,
        node: u32,
        host: u32,
        hash: u32,
    ) -> Option<u32> {
        if let Some((last, port)) = self.single[host as usize] {
            return (last == node).then_some(port);
        }
        let ports = &self.attached[host as usize];
        let peer = |port: &u32| network.ports[*port as usize].peer;
        let here =
            || ports.iter().map(peer).filter(|peer| network.ports[*peer as usize].node == node);
        let count = here().count() as u32;
        here().nth(self.select_member(node, hash, count.max(1)) as usize)
    }

    /// Selects one of `count` ports; a branch for a single one would often be predicted wrongly.
    fn select_member(&self, node: u32, hash: u32, count: u32) -> u32 {
        let mixed = mix(u64::from(self.salts[node as usize]) << 32 | u64::from(hash));
        ((u64::from(mixed as u32) * u64::from(count)) >> 32) as u32
    }

    /// Returns the egress ports on the path between two hosts; none if there is no path.
    #[must_use]
    pub fn find_path(
        &self,
        network: &FabricNetwork,
        from: u32,
        to: u32,
        hash: u32,
    ) -> Option<Vec<u32>> {
        let mut ports = Vec::new();
        let mut node = from;
        while node != to {
            let port = self.port(network, node, to, hash)?;
            ports.push(port);
            node = network.across(port);
        }
        Some(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    fn build_routes(topology: &penstock_topology::Topology) -> (FabricNetwork, Routes) {
        let network = FabricNetwork::new(topology).unwrap();
        let routes = Routes::new(&network, |_| true, |node| node);
        (network, routes)
    }

    #[test]
    fn fat_tree_paths_have_expected_length() {
        let (network, routes) = build_routes(&generate::fat_tree(4, 1.0, 100_000_000_000, 1_000));
        let hosts: Vec<u32> = network.hosts().collect();
        assert_eq!(hosts.len(), 16);
        for from in &hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                let path = routes.find_path(&network, *from, *to, from * 31 + to).unwrap();
                let expected = match (from / 2 == to / 2, from / 4 == to / 4) {
                    (true, _) => 2,
                    (_, true) => 4,
                    _ => 6,
                };
                assert_eq!(path.len(), expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn ecmp_avoids_failed_links() {
        let topology = generate::spine_leaf(4, 2, 1, 100_000_000_000, 100_000_000_000, 1_000);
        let (network, routes) = build_routes(&topology);
        let ups = |routes: &Routes| -> Vec<u32> {
            let mut ups: Vec<u32> =
                (0..64).map(|hash| routes.find_path(&network, 0, 1, hash).unwrap()[1]).collect();
            ups.sort_unstable();
            ups.dedup();
            ups
        };
        let all = ups(&routes);
        assert_eq!(all.len(), 4);
        let down = network.ports[all[1] as usize].link;
        let fewer =
            Routes::new(&network, |port| network.ports[port as usize].link != down, |node| node);
        assert_eq!(ups(&fewer), [all[0], all[2], all[3]]);
        let none = Routes::new(&network, |_| false, |node| node);
        assert_eq!(none.find_path(&network, 0, 1, 0), None);
    }

    #[test]
    fn two_hosts_need_no_switch() {
        let (network, routes) =
            build_routes(&generate::dumbbell(0, 1_000_000_000, 1_000_000_000, 1_000));
        assert_eq!(routes.find_path(&network, 0, 1, 0).map(|path| path.len()), Some(1));
        assert_eq!(routes.find_path(&network, 1, 0, 0).map(|path| path.len()), Some(1));
    }
}
