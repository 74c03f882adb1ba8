//! Paths through a topology: the shortest, and sets of paths that share no link, no switch or no risk group.
//!
//! A path transits switches only; hosts are its ends. The shortest path has the least delay, then the fewest
//! links, then the earliest links in the file, so that results are deterministic.
//!
//! Link- and node-disjoint paths are optimal: a minimum-cost flow (Suurballe and Tarjan 1984 for two). Finding
//! risk-disjoint paths is NP-complete; they are optimal unless the bounded search of `risks` was cut short,
//! which the result says.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use penstock_units::BitRate;

use crate::{LinkId, NodeId, NodeKind, Topology};

mod risks;

/// Resource that disjoint paths do not share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disjoint {
    /// Links.
    Links,
    /// Switches, and so links.
    Nodes,
    /// Shared-risk groups, and links.
    Risks,
}

/// A path between two nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// Nodes from the source to the destination.
    pub nodes: Vec<NodeId>,
    /// Links in order, one fewer than nodes.
    pub links: Vec<LinkId>,
}

impl Path {
    /// One-way propagation delay.
    #[must_use]
    pub fn delay(&self, topology: &Topology) -> Duration {
        self.links.iter().map(|link| topology.links[link.0].delay).sum()
    }

    /// Rate of the slowest link; none for a path without links.
    #[must_use]
    pub fn rate(&self, topology: &Topology) -> Option<BitRate> {
        self.links.iter().map(|link| topology.links[link.0].rate).min()
    }

    /// Packet loss in one direction, 0 to 1.
    #[must_use]
    pub fn loss(&self, topology: &Topology) -> f64 {
        1.0 - self.links.iter().map(|link| 1.0 - topology.links[link.0].loss).product::<f64>()
    }

    /// Shared-risk groups of its links.
    #[must_use]
    pub fn risks<'a>(&self, topology: &'a Topology) -> BTreeSet<&'a str> {
        let links = self.links.iter().flat_map(|link| &topology.links[link.0].risk_groups);
        links.map(String::as_str).collect()
    }

    fn cost(&self, topology: &Topology) -> u64 {
        self.links.iter().map(|link| cost(topology, *link)).sum()
    }
}

/// Cost in units of 2^-16 ns: the delay, plus one per link so that fewer links win among equals.
pub(crate) fn cost(topology: &Topology, link: LinkId) -> u64 {
    let nanoseconds = u64::try_from(topology.links[link.0].delay.as_nanos()).unwrap_or(u64::MAX);
    (nanoseconds.min(1 << 40) << 16) + 1
}

/// The links of each node with the node across, in the order of the file.
pub(crate) fn neighbours(topology: &Topology) -> Vec<Vec<(LinkId, NodeId)>> {
    let mut all = vec![Vec::new(); topology.nodes.len()];
    for (number, link) in topology.links.iter().enumerate() {
        let [a, b] = link.ends.map(|end| end.node);
        all[a.0].push((LinkId(number), b));
        all[b.0].push((LinkId(number), a));
    }
    all
}

/// Finds the shortest path over the links that `may_use` accepts. The path of a node to itself has no links.
#[must_use]
pub fn shortest(
    topology: &Topology,
    from: NodeId,
    to: NodeId,
    may_use: impl Fn(LinkId) -> bool,
) -> Option<Path> {
    shortest_beside(topology, &neighbours(topology), from, to, may_use)
}

fn shortest_beside(
    topology: &Topology,
    neighbours: &[Vec<(LinkId, NodeId)>],
    from: NodeId,
    to: NodeId,
    may_use: impl Fn(LinkId) -> bool,
) -> Option<Path> {
    let mut best = vec![u64::MAX; topology.nodes.len()];
    let mut before: Vec<Option<(LinkId, NodeId)>> = vec![None; topology.nodes.len()];
    let mut heap = BinaryHeap::from([Reverse((0, from))]);
    best[from.0] = 0;
    while let Some(Reverse((so_far, node))) = heap.pop() {
        if node == to {
            break;
        }
        if so_far > best[node.0] || (node != from && topology.nodes[node.0].kind == NodeKind::Host)
        {
            continue;
        }
        for (link, next) in &neighbours[node.0] {
            let total = so_far + cost(topology, *link);
            if total < best[next.0] && may_use(*link) {
                best[next.0] = total;
                before[next.0] = Some((*link, node));
                heap.push(Reverse((total, *next)));
            }
        }
    }
    let mut path = Path { nodes: vec![to], links: Vec::new() };
    let mut at = to;
    while at != from {
        let (link, node) = before[at.0]?;
        path.links.push(link);
        path.nodes.push(node);
        at = node;
    }
    path.nodes.reverse();
    path.links.reverse();
    Some(path)
}

/// Finds up to `count` disjoint paths with the least total delay.
#[must_use]
pub fn disjoint(
    topology: &Topology,
    from: NodeId,
    to: NodeId,
    count: usize,
    by: Disjoint,
) -> Vec<Path> {
    best_disjoint(topology, from, to, count, by).0
}

/// As [`disjoint`], with true if the result is known to be optimal. That is certain for links and nodes; for
/// risk groups, unless the search was cut short.
#[must_use]
pub fn best_disjoint(
    topology: &Topology,
    from: NodeId,
    to: NodeId,
    count: usize,
    by: Disjoint,
) -> (Vec<Path>, bool) {
    if from == to || count == 0 {
        return (Vec::new(), true);
    }
    // Often the best link-disjoint paths are risk-disjoint too; their count is an upper bound.
    let of = if by == Disjoint::Risks { Disjoint::Links } else { by };
    let mut paths = MinCostFlow::new(topology, from, to, of).paths(count);
    let mut are_best = true;
    if by == Disjoint::Risks && !share_no_risk(topology, &paths) {
        (paths, are_best) = risks::disjoint(topology, [from, to], paths.len());
    }
    paths.sort_by_key(|path| (path.cost(topology), path.links.clone()));
    (paths, are_best)
}

fn share_no_risk(topology: &Topology, paths: &[Path]) -> bool {
    let mut seen = BTreeSet::new();
    paths.iter().all(|path| path.risks(topology).into_iter().all(|group| seen.insert(group)))
}

/// A minimum-cost flow with one unit per path, by augmentation along shortest paths with potentials (Edmonds
/// and Karp 1972). Each node is split into an inward and an outward vertex.
struct MinCostFlow {
    arcs: Vec<Arc>,
    /// Indices of the arcs that leave each vertex. The reverse of arc `n` is `n ^ 1`.
    leaving: Vec<Vec<usize>>,
    from: usize,
    to: usize,
}

struct Arc {
    to: usize,
    capacity: u32,
    cost: i64,
    /// Link of the arc; none for the arc inside a node.
    link: Option<LinkId>,
}

const fn inward(node: NodeId) -> usize {
    node.0 * 2
}

const fn outward(node: NodeId) -> usize {
    node.0 * 2 + 1
}

impl MinCostFlow {
    fn new(topology: &Topology, from: NodeId, to: NodeId, by: Disjoint) -> Self {
        let leaving = vec![Vec::new(); topology.nodes.len() * 2];
        let mut flow = Self { arcs: Vec::new(), leaving, from: outward(from), to: inward(to) };
        for (number, node) in topology.nodes.iter().enumerate() {
            let capacity = match (node.kind, by) {
                (NodeKind::Host, _) => 0,
                (NodeKind::Switch, Disjoint::Nodes) => 1,
                (NodeKind::Switch, _) => u32::MAX,
            };
            flow.add(inward(NodeId(number)), outward(NodeId(number)), capacity, 0, None);
        }
        for (number, link) in topology.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| end.node);
            let (link, cost) = (LinkId(number), cost(topology, LinkId(number)) as i64);
            // An optimal flow never uses both directions: that costs more than neither.
            flow.add(outward(a), inward(b), 1, cost, Some(link));
            flow.add(outward(b), inward(a), 1, cost, Some(link));
        }
        flow
    }

    fn add(&mut self, from: usize, to: usize, capacity: u32, cost: i64, link: Option<LinkId>) {
        self.leaving[from].push(self.arcs.len());
        self.arcs.push(Arc { to, capacity, cost, link });
        self.leaving[to].push(self.arcs.len());
        self.arcs.push(Arc { to: from, capacity: 0, cost: -cost, link });
    }

    fn paths(mut self, count: usize) -> Vec<Path> {
        let mut potential = vec![0; self.leaving.len()];
        let mut found = 0;
        while found < count && self.augment(&mut potential) {
            found += 1;
        }
        (0..found).filter_map(|_| self.walk()).collect()
    }

    fn augment(&mut self, potential: &mut [i64]) -> bool {
        let mut best = vec![i64::MAX; self.leaving.len()];
        let mut before = vec![usize::MAX; self.leaving.len()];
        let mut heap = BinaryHeap::from([Reverse((0, self.from))]);
        best[self.from] = 0;
        while let Some(Reverse((so_far, at))) = heap.pop() {
            if so_far > best[at] {
                continue;
            }
            for number in &self.leaving[at] {
                let arc = &self.arcs[*number];
                let total = so_far + arc.cost + potential[at] - potential[arc.to];
                if arc.capacity > 0 && total < best[arc.to] {
                    best[arc.to] = total;
                    before[arc.to] = *number;
                    heap.push(Reverse((total, arc.to)));
                }
            }
        }
        if best[self.to] == i64::MAX {
            return false;
        }
        for (potential, best) in potential.iter_mut().zip(&best) {
            // A vertex that is unreachable now stays unreachable.
            *potential += if *best == i64::MAX { 0 } else { *best };
        }
        let mut at = self.to;
        while at != self.from {
            let number = before[at];
            self.arcs[number].capacity -= 1;
            self.arcs[number ^ 1].capacity += 1;
            at = self.arcs[number ^ 1].to;
        }
        true
    }

    /// Removes one path from the flow.
    fn walk(&mut self) -> Option<Path> {
        let mut path = Path { nodes: vec![NodeId(self.from / 2)], links: Vec::new() };
        let mut at = self.from;
        while at != self.to {
            // Forward arcs have even numbers; their flow is the capacity of the reverse arc.
            let carries =
                |number: &&usize| number.is_multiple_of(2) && self.arcs[**number ^ 1].capacity > 0;
            let number = *self.leaving[at].iter().find(carries)?;
            self.arcs[number ^ 1].capacity -= 1;
            at = self.arcs[number].to;
            if let Some(link) = self.arcs[number].link {
                path.links.push(link);
                path.nodes.push(NodeId(at / 2));
            }
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests;
