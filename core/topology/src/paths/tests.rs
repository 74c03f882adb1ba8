//! Ways against all ways.

use proptest::prelude::*;

use super::*;

/// A network of switches with these links: ends, microseconds, risk groups.
fn network(nodes: usize, links: &[(usize, usize, u64, &[&str])]) -> Topology {
    let mut text = "name = \"test\"\n".to_owned();
    for node in 0..nodes {
        text += &format!("[[switch]]\nname = \"s{node}\"\n");
    }
    for (a, b, delay, risks) in links {
        text += &format!(
            "[[link]]\nends = [\"s{a}\", \"s{b}\"]\nrate = \"1G\"\ndelay = \"{delay}us\"\nrisk_groups = {risks:?}\n"
        );
    }
    Topology::read(&text).expect("it is good")
}

fn numbers(paths: &[Path]) -> Vec<Vec<usize>> {
    paths.iter().map(|path| path.nodes.iter().map(|node| node.0).collect()).collect()
}

#[test]
fn two_ways_cost_least_together_although_the_shortest_is_in_none() {
    // The trap of Suurballe: whoever takes the shortest first (0 1 2 3) has no second.
    let trap = network(
        6,
        &[
            (0, 1, 1, &[]),
            (1, 2, 1, &[]),
            (2, 3, 1, &[]),
            (0, 4, 5, &[]),
            (4, 2, 5, &[]),
            (1, 5, 5, &[]),
            (5, 3, 5, &[]),
        ],
    );
    let (from, to) = (NodeId(0), NodeId(3));
    let first = shortest(&trap, from, to, |_| true).expect("there is one");
    assert_eq!(numbers(std::slice::from_ref(&first)), [[0, 1, 2, 3]]);
    assert_eq!(first.delay(&trap), Duration::from_micros(3));
    for by in [Disjoint::Links, Disjoint::Nodes, Disjoint::Risks] {
        let two = disjoint(&trap, from, to, 3, by);
        assert_eq!(numbers(&two), [[0, 1, 5, 3], [0, 4, 2, 3]], "{by:?}");
    }
}

#[test]
fn ways_may_meet_at_a_switch_unless_that_is_asked() {
    let meet = network(
        6,
        &[
            (0, 1, 1, &[]),
            (0, 2, 1, &[]),
            (1, 3, 1, &[]),
            (2, 3, 1, &[]),
            (3, 4, 1, &[]),
            (3, 5, 1, &[]),
            (4, 5, 1, &[]),
            (1, 5, 9, &[]),
        ],
    );
    let by = |by| numbers(&disjoint(&meet, NodeId(0), NodeId(5), 2, by));
    assert_eq!(by(Disjoint::Links), [vec![0, 2, 3, 5], vec![0, 1, 3, 4, 5]]);
    assert_eq!(by(Disjoint::Nodes), [vec![0, 2, 3, 5], vec![0, 1, 5]]);
}

#[test]
fn ways_in_one_duct_are_one_risk() {
    let ducts = network(
        4,
        &[
            (0, 1, 1, &["duct-a"]),
            (1, 3, 1, &[]),
            (0, 2, 2, &["duct-a"]),
            (2, 3, 2, &[]),
            (0, 3, 9, &["sea"]),
        ],
    );
    let by = |by| numbers(&disjoint(&ducts, NodeId(0), NodeId(3), 3, by));
    assert_eq!(by(Disjoint::Links).len(), 3);
    assert_eq!(by(Disjoint::Risks), [vec![0, 1, 3], vec![0, 3]]);
}

#[test]
fn hosts_are_ends_and_never_between() {
    let text = r#"
name = "hosts"
host = [{ name = "a" }, { name = "b", interface = [{ name = "e0" }, { name = "e1" }] }, { name = "c" }]
switch = [{ name = "s" }]
link = [
  { ends = ["a", "b:e0"], rate = "1G", delay = "1us" },
  { ends = ["b:e1", "c"], rate = "1G", delay = "1us" },
  { ends = ["a", "s"], rate = "2G", delay = "5us", loss = 0.5 },
  { ends = ["s", "c"], rate = "1G", delay = "5us", loss = 0.5 },
]
"#;
    let network = Topology::read(text).expect("it is good");
    let node = |name| network.node(name).expect("it is there");
    let way = shortest(&network, node("a"), node("c"), |_| true).expect("there is one");
    assert_eq!(way.nodes, [node("a"), node("s"), node("c")]);
    assert_eq!(way.rate(&network), Some(BitRate(1_000_000_000)));
    assert!((way.loss(&network) - 0.75).abs() < 1e-12);
    assert_eq!(disjoint(&network, node("a"), node("c"), 2, Disjoint::Links).len(), 1);
    assert!(shortest(&network, node("a"), node("c"), |link| link.0 != 3).is_none());
    assert_eq!(
        shortest(&network, node("a"), node("a"), |_| true).map(|way| way.links.len()),
        Some(0)
    );
}

/// Whether two ways may not go together.
type Conflict<'a> = &'a dyn Fn(&Path, &Path) -> bool;

/// Every simple way, by brute force.
fn every_way(topology: &Topology, at: NodeId, to: NodeId, way: &mut Path, all: &mut Vec<Path>) {
    if at == to {
        all.push(way.clone());
        return;
    }
    for (number, link) in topology.links.iter().enumerate() {
        let Some(next) = link.across(at).filter(|next| !way.nodes.contains(next)) else { continue };
        way.nodes.push(next);
        way.links.push(LinkId(number));
        every_way(topology, next, to, way, all);
        way.nodes.pop();
        way.links.pop();
    }
}

/// The least total of `count` ways of which no two conflict.
fn least(
    ways: &[Path],
    count: usize,
    conflict: Conflict<'_>,
    cost: &dyn Fn(&Path) -> u64,
) -> Option<u64> {
    if count == 0 {
        return Some(0);
    }
    let with = |(number, first): (usize, &Path)| {
        let rest: Vec<Path> =
            ways[number + 1..].iter().filter(|way| !conflict(first, way)).cloned().collect();
        least(&rest, count - 1, conflict, cost).map(|rest| rest + cost(first))
    };
    ways.iter().enumerate().filter_map(with).min()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against all combinations of all ways.
    #[test]
    fn none_is_better(links in prop::collection::vec((0..6usize, 0..6usize, 1..9u64, 0..4usize), 1..11)) {
        const RISKS: [&[&str]; 4] = [&[], &["x"], &["y"], &["z"]];
        let links: Vec<_> = links
            .into_iter()
            .filter(|(a, b, ..)| a != b)
            .map(|(a, b, delay, risk)| (a, b, delay, RISKS[risk]))
            .collect();
        let network = network(6, &links);
        let (from, to) = (NodeId(0), NodeId(5));
        let mut ways = Vec::new();
        every_way(&network, from, to, &mut Path { nodes: vec![from], links: Vec::new() }, &mut ways);
        let cost = |way: &Path| way.cost(&network);
        let found = shortest(&network, from, to, |_| true);
        prop_assert_eq!(found.as_ref().map(cost), ways.iter().map(cost).min());
        let link = |a: &Path, b: &Path| a.links.iter().any(|link| b.links.contains(link));
        let inside = |way: &Path| way.nodes[1..way.nodes.len() - 1].to_vec();
        let node = |a: &Path, b: &Path| link(a, b) || inside(a).iter().any(|n| inside(b).contains(n));
        let risk = |a: &Path, b: &Path| link(a, b) || !a.risks(&network).is_disjoint(&b.risks(&network));
        let kinds: [(Disjoint, Conflict<'_>); 3] =
            [(Disjoint::Links, &link), (Disjoint::Nodes, &node), (Disjoint::Risks, &risk)];
        for (by, conflict) in kinds {
            let found = disjoint(&network, from, to, 2, by);
            for (number, way) in found.iter().enumerate() {
                prop_assert!(ways.contains(way));
                prop_assert!(found[number + 1..].iter().all(|other| !conflict(way, other)));
            }
            let best = least(&ways, 2, conflict, &cost).or_else(|| least(&ways, 1, conflict, &cost));
            let total = found.iter().map(cost).reduce(|a, b| a + b);
            prop_assert_eq!(total, best, "{:?} {:?}", by, found);
        }
    }
}
