//! Ways through a network: the shortest one, and several that share no link, no switch or no risk.
//!
//! A way goes through switches; hosts are its ends and never between. Shortest is the least delay, then
//! the fewest links, then the order of the file, so that the same file gives the same ways.
//!
//! Ways that share no link or no switch are the best there are: a flow of least cost (Suurballe and
//! Tarjan 1984 for two). Ways that share no risk group are a hard problem; they are the best there are
//! where a bounded search ends, and says when it did not (`risks`).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use penstock_units::BitRate;

use crate::{Kind, LinkId, NodeId, Topology};

mod risks;

/// Where each link and node may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disjoint {
    /// No link twice.
    Links,
    /// No switch twice, and so no link.
    Nodes,
    /// No risk group twice, and no link.
    Risks,
}

/// A way from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// From the first to the last.
    pub nodes: Vec<NodeId>,
    /// One fewer.
    pub links: Vec<LinkId>,
}

impl Path {
    /// One way, without queues.
    #[must_use]
    pub fn delay(&self, topology: &Topology) -> Duration {
        self.links.iter().map(|link| topology.links[link.0].delay).sum()
    }

    /// Rate of the slowest link.
    #[must_use]
    pub fn rate(&self, topology: &Topology) -> Option<BitRate> {
        self.links.iter().map(|link| topology.links[link.0].rate).min()
    }

    /// Share of packets that is lost in one direction.
    #[must_use]
    pub fn loss(&self, topology: &Topology) -> f64 {
        1.0 - self.links.iter().map(|link| 1.0 - topology.links[link.0].loss).product::<f64>()
    }

    /// Its risk groups.
    #[must_use]
    pub fn risks<'a>(&self, topology: &'a Topology) -> BTreeSet<&'a str> {
        let links = self.links.iter().flat_map(|link| &topology.links[link.0].risk_groups);
        links.map(String::as_str).collect()
    }

    fn cost(&self, topology: &Topology) -> u64 {
        self.links.iter().map(|link| cost(topology, *link)).sum()
    }
}

/// Nanoseconds, and one for the link itself in the low bits: fewer links win among equals.
pub(crate) fn cost(topology: &Topology, link: LinkId) -> u64 {
    let nanoseconds = u64::try_from(topology.links[link.0].delay.as_nanos()).unwrap_or(u64::MAX);
    (nanoseconds.min(1 << 40) << 16) + 1
}

/// The links of each node, in the order of the file.
pub(crate) fn neighbours(topology: &Topology) -> Vec<Vec<(LinkId, NodeId)>> {
    let mut all = vec![Vec::new(); topology.nodes.len()];
    for (number, link) in topology.links.iter().enumerate() {
        let [a, b] = link.ends.map(|end| end.node);
        all[a.0].push((LinkId(number), b));
        all[b.0].push((LinkId(number), a));
    }
    all
}

/// The shortest way, over links that may be used; none where there is none. A node to itself is a way
/// without links.
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
        if so_far > best[node.0] || (node != from && topology.nodes[node.0].kind == Kind::Host) {
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

/// Up to `count` ways that share nothing, with the least total delay; fewer where there are fewer.
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

/// [`disjoint`], and whether it is certain that there are none better. It always is for links and nodes;
/// for risks, unless the search was given up.
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
    // Often the best ways without a common link have no common risk either; more than these there are not.
    let of = if by == Disjoint::Risks { Disjoint::Links } else { by };
    let mut paths = Flow::new(topology, from, to, of).paths(count);
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

/// A flow of least cost with one unit for each way, found by augmenting along shortest ways with
/// potentials (Edmonds and Karp 1972). Each node is two: what comes in, and what goes out.
struct Flow {
    arcs: Vec<Arc>,
    /// Arcs that leave each vertex. The reverse of arc `n` is `n ^ 1`.
    leaving: Vec<Vec<usize>>,
    from: usize,
    to: usize,
}

struct Arc {
    to: usize,
    room: u32,
    cost: i64,
    /// None for the arc inside a node.
    link: Option<LinkId>,
}

const fn inward(node: NodeId) -> usize {
    node.0 * 2
}

const fn outward(node: NodeId) -> usize {
    node.0 * 2 + 1
}

impl Flow {
    fn new(topology: &Topology, from: NodeId, to: NodeId, by: Disjoint) -> Self {
        let leaving = vec![Vec::new(); topology.nodes.len() * 2];
        let mut flow = Self { arcs: Vec::new(), leaving, from: outward(from), to: inward(to) };
        for (number, node) in topology.nodes.iter().enumerate() {
            let room = match (node.kind, by) {
                (Kind::Host, _) => 0,
                (Kind::Switch, Disjoint::Nodes) => 1,
                (Kind::Switch, _) => u32::MAX,
            };
            flow.add(inward(NodeId(number)), outward(NodeId(number)), room, 0, None);
        }
        for (number, link) in topology.links.iter().enumerate() {
            let [a, b] = link.ends.map(|end| end.node);
            let (link, cost) = (LinkId(number), cost(topology, LinkId(number)) as i64);
            // Both directions at once would cost more than neither, so it never happens.
            flow.add(outward(a), inward(b), 1, cost, Some(link));
            flow.add(outward(b), inward(a), 1, cost, Some(link));
        }
        flow
    }

    fn add(&mut self, from: usize, to: usize, room: u32, cost: i64, link: Option<LinkId>) {
        self.leaving[from].push(self.arcs.len());
        self.arcs.push(Arc { to, room, cost, link });
        self.leaving[to].push(self.arcs.len());
        self.arcs.push(Arc { to: from, room: 0, cost: -cost, link });
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
                if arc.room > 0 && total < best[arc.to] {
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
            // What cannot be reached now cannot be reached later either.
            *potential += if *best == i64::MAX { 0 } else { *best };
        }
        let mut at = self.to;
        while at != self.from {
            let number = before[at];
            self.arcs[number].room -= 1;
            self.arcs[number ^ 1].room += 1;
            at = self.arcs[number ^ 1].to;
        }
        true
    }

    /// Takes one way out of the flow.
    fn walk(&mut self) -> Option<Path> {
        let mut path = Path { nodes: vec![NodeId(self.from / 2)], links: Vec::new() };
        let mut at = self.from;
        while at != self.to {
            // Forward arcs have even numbers; what they carry is the room of their reverse.
            let carries =
                |number: &&usize| number.is_multiple_of(2) && self.arcs[**number ^ 1].room > 0;
            let number = *self.leaving[at].iter().find(carries)?;
            self.arcs[number ^ 1].room -= 1;
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
