//! Routes towards an interface: the next link at every node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::paths::{cost, neighbours};
use crate::{LinkId, NodeId, NodeKind, Topology};

/// For every node the egress link towards `to` when its link `last` is the final hop; none at `to` itself and
/// where no path exists. Paths are the shortest, as of [`crate::paths::shortest`].
#[must_use]
pub fn next_links(
    topology: &Topology,
    to: NodeId,
    last: LinkId,
    may_use: impl Fn(LinkId) -> bool,
) -> Vec<Option<LinkId>> {
    let neighbours = neighbours(topology);
    let mut best = vec![u64::MAX; topology.nodes.len()];
    let mut next = vec![None; topology.nodes.len()];
    let mut queue = BinaryHeap::new();
    best[to.0] = 0;
    if let Some(before) = topology.links[last.0].across(to).filter(|_| may_use(last)) {
        best[before.0] = cost(topology, last);
        next[before.0] = Some(last);
        queue.push(Reverse((best[before.0], before)));
    }
    while let Some(Reverse((sum, node))) = queue.pop() {
        if sum > best[node.0] || topology.nodes[node.0].kind == NodeKind::Host {
            continue;
        }
        for &(link, neighbour) in &neighbours[node.0] {
            let through = sum.saturating_add(cost(topology, link));
            if may_use(link) && through < best[neighbour.0] {
                best[neighbour.0] = through;
                next[neighbour.0] = Some(link);
                queue.push(Reverse((through, neighbour)));
            }
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths;

    const TEXT: &str = r#"
        name = "n"
        [[host]]
        name = "a"
        interface = [{ name = "e0" }, { name = "e1" }]
        [[host]]
        name = "b"
        [[switch]]
        name = "s"
        [[switch]]
        name = "t"
        [[switch]]
        name = "u"
        [[link]]
        name = "as"
        ends = ["a:e0", "s"]
        rate = "10G"
        [[link]]
        name = "at"
        ends = ["a:e1", "t"]
        rate = "10G"
        [[link]]
        name = "su"
        ends = ["s", "u"]
        rate = "10G"
        delay = "5ms"
        [[link]]
        name = "tu"
        ends = ["t", "u"]
        rate = "10G"
        delay = "3ms"
        [[link]]
        name = "st"
        ends = ["s", "t"]
        rate = "10G"
        delay = "1ms"
        [[link]]
        name = "ub"
        ends = ["u", "b"]
        rate = "10G"
    "#;

    #[test]
    fn next_links_avoid_hosts() {
        let topology = Topology::read(TEXT).unwrap();
        let node = |name: &str| topology.node(name).unwrap();
        let link = |name: &str| topology.link(name).unwrap();
        let next = next_links(&topology, node("b"), link("ub"), |_| true);
        let name =
            |from: &'static str| next[node(from).0].map(|id| topology.links[id.0].name.as_str());
        assert_eq!(name("u"), Some("ub"));
        assert_eq!(name("s"), Some("st"));
        assert_eq!(name("t"), Some("tu"));
        assert_eq!(name("a"), Some("at"));
        assert_eq!(name("b"), None);
        // The host does not forward between its interfaces.
        let next = next_links(&topology, node("a"), link("as"), |_| true);
        assert_eq!(next[node("t").0], Some(link("st")));
        // Links that may not be used are avoided.
        let next = next_links(&topology, node("b"), link("ub"), |id| id != link("tu"));
        assert_eq!(next[node("t").0], Some(link("st")));
        let next = next_links(&topology, node("b"), link("ub"), |id| id != link("ub"));
        assert!(next.iter().all(Option::is_none));
    }

    #[test]
    fn routes_follow_shortest_paths() {
        let topology = Topology::read(TEXT).unwrap();
        let b = topology.node("b").unwrap();
        let next = next_links(&topology, b, topology.link("ub").unwrap(), |_| true);
        for from in ["a", "s", "t", "u"] {
            let mut at = topology.node(from).unwrap();
            let shortest = paths::shortest(&topology, at, b, |_| true).unwrap();
            let mut links = Vec::new();
            while let Some(link) = next[at.0] {
                links.push(link);
                at = topology.links[link.0].across(at).unwrap();
            }
            assert_eq!(links, shortest.links, "{from}");
        }
    }
}
