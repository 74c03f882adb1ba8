//! Compares the searches with an exhaustive one.

use proptest::prelude::*;

use super::*;

/// A network of switches with these links: ends, delay in microseconds, risk groups.
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
    Topology::read(&text).expect("the topology is valid")
}

fn numbers(paths: &[Path]) -> Vec<Vec<usize>> {
    paths.iter().map(|path| path.nodes.iter().map(|node| node.0).collect()).collect()
}

#[test]
fn suurballe_trap_is_avoided() {
    // Suurballe's trap: the greedy choice of the shortest (0 1 2 3) leaves no second path.
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
    let first = shortest(&trap, from, to, |_| true).expect("a shortest path exists");
    assert_eq!(numbers(std::slice::from_ref(&first)), [[0, 1, 2, 3]]);
    assert_eq!(first.delay(&trap), Duration::from_micros(3));
    for by in [Disjoint::Links, Disjoint::Nodes, Disjoint::Risks] {
        let two = disjoint(&trap, from, to, 3, by);
        assert_eq!(numbers(&two), [[0, 1, 5, 3], [0, 4, 2, 3]], "{by:?}");
    }
}

#[test]
fn link_disjoint_paths_may_share_switches() {
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
fn shared_duct_is_one_risk() {
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
fn hosts_do_not_transit() {
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
    let network = Topology::read(text).expect("the topology is valid");
    let node = |name| network.node(name).expect("the node exists");
    let path = shortest(&network, node("a"), node("c"), |_| true).expect("a shortest path exists");
    assert_eq!(path.nodes, [node("a"), node("s"), node("c")]);
    assert_eq!(path.rate(&network), Some(BitRate(1_000_000_000)));
    assert!((path.loss(&network) - 0.75).abs() < 1e-12);
    assert_eq!(disjoint(&network, node("a"), node("c"), 2, Disjoint::Links).len(), 1);
    assert!(shortest(&network, node("a"), node("c"), |link| link.0 != 3).is_none());
    assert_eq!(
        shortest(&network, node("a"), node("a"), |_| true).map(|path| path.links.len()),
        Some(0)
    );
}

/// A ladder of `steps` steps, with its rails and rungs in random ducts.
fn ladder(steps: usize, ducts: u64) -> Topology {
    let names: Vec<String> = (0..ducts).map(|duct| format!("duct{duct}")).collect();
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        // Knuth's MMIX generator.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut links = Vec::new();
    for step in 0..steps {
        for (a, b) in [(0, 2), (1, 3), (0, 1), (0, 3), (1, 2)] {
            links.push((2 * step + a, 2 * step + b, 1 + random(50), random(ducts) as usize));
        }
    }
    let risks: Vec<[&str; 1]> = links.iter().map(|link| [names[link.3].as_str()]).collect();
    let links: Vec<_> = links
        .iter()
        .zip(&risks)
        .map(|((a, b, delay, _), risks)| (*a, *b, *delay, &risks[..]))
        .collect();
    network(2 * steps + 2, &links)
}

#[test]
fn risk_disjoint_search_is_bounded() {
    let small = ladder(8, 40);
    let (found, is_best) = best_disjoint(&small, NodeId(0), NodeId(17), 2, Disjoint::Risks);
    assert!(is_best && found.len() == 2, "{found:?}");
    // Too many combinations: the best found so far, not marked optimal.
    let large = ladder(200, 600);
    let (found, is_best) = best_disjoint(&large, NodeId(0), NodeId(401), 3, Disjoint::Risks);
    let risks: Vec<_> = found.iter().map(|path| path.risks(&large)).collect();
    assert!(!is_best && !found.is_empty());
    for (number, risks_of_one) in risks.iter().enumerate() {
        assert!(risks[number + 1..].iter().all(|other| risks_of_one.is_disjoint(other)));
    }
}

/// True if two paths may not be in one solution.
type Conflict<'a> = &'a dyn Fn(&Path, &Path) -> bool;

/// Every simple path, by brute force.
fn all_simple_paths(
    topology: &Topology,
    at: NodeId,
    to: NodeId,
    path: &mut Path,
    all: &mut Vec<Path>,
) {
    if at == to {
        all.push(path.clone());
        return;
    }
    for (number, link) in topology.links.iter().enumerate() {
        let Some(next) = link.across(at).filter(|next| !path.nodes.contains(next)) else {
            continue;
        };
        path.nodes.push(next);
        path.links.push(LinkId(number));
        all_simple_paths(topology, next, to, path, all);
        path.nodes.pop();
        path.links.pop();
    }
}

/// The least total cost of `count` paths of which no two conflict.
fn least(
    paths: &[Path],
    count: usize,
    conflict: Conflict<'_>,
    cost: &dyn Fn(&Path) -> u64,
) -> Option<u64> {
    if count == 0 {
        return Some(0);
    }
    let with = |(number, first): (usize, &Path)| {
        let rest: Vec<Path> =
            paths[number + 1..].iter().filter(|path| !conflict(first, path)).cloned().collect();
        least(&rest, count - 1, conflict, cost).map(|rest| rest + cost(first))
    };
    paths.iter().enumerate().filter_map(with).min()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..penstock_testkit::properties() })]

    /// Compares with all combinations of all simple paths.
    #[test]
    fn disjoint_paths_are_optimal(links in prop::collection::vec((0..6usize, 0..6usize, 1..9u64, 0..6usize), 1..12), count in 2..4usize) {
        const RISKS: [&[&str]; 6] = [&[], &["x"], &["y"], &["z"], &["x", "z"], &["y", "w"]];
        let links: Vec<_> = links
            .into_iter()
            .filter(|(a, b, ..)| a != b)
            .map(|(a, b, delay, risk)| (a, b, delay, RISKS[risk]))
            .collect();
        let network = network(6, &links);
        let (from, to) = (NodeId(0), NodeId(5));
        let mut paths = Vec::new();
        all_simple_paths(&network, from, to, &mut Path { nodes: vec![from], links: Vec::new() }, &mut paths);
        let cost = |path: &Path| path.cost(&network);
        let found = shortest(&network, from, to, |_| true);
        prop_assert_eq!(found.as_ref().map(cost), paths.iter().map(cost).min());
        let link = |a: &Path, b: &Path| a.links.iter().any(|link| b.links.contains(link));
        let inside = |path: &Path| path.nodes[1..path.nodes.len() - 1].to_vec();
        let node = |a: &Path, b: &Path| link(a, b) || inside(a).iter().any(|n| inside(b).contains(n));
        let risk = |a: &Path, b: &Path| link(a, b) || !a.risks(&network).is_disjoint(&b.risks(&network));
        let kinds: [(Disjoint, Conflict<'_>); 3] =
            [(Disjoint::Links, &link), (Disjoint::Nodes, &node), (Disjoint::Risks, &risk)];
        for (by, conflict) in kinds {
            let found = disjoint(&network, from, to, count, by);
            for (number, path) in found.iter().enumerate() {
                prop_assert!(paths.contains(path));
                prop_assert!(found[number + 1..].iter().all(|other| !conflict(path, other)));
            }
            let best = (1..=count).rev().find_map(|count| least(&paths, count, conflict, &cost));
            let total = found.iter().map(cost).reduce(|a, b| a + b);
            prop_assert_eq!(total, best, "{:?} {:?}", by, found);
        }
    }

    /// Two risk-disjoint paths in a network of backbone size, compared with every path and its best partner.
    #[test]
    fn backbone_risk_disjoint_pair_is_optimal(
        links in prop::collection::vec((0..14usize, 1..5usize, 1..99u64, 0..12usize, 0..12usize), 16..24),
    ) {
        let names: Vec<String> = (0..12).map(|group| format!("g{group}")).collect();
        let risks: Vec<Vec<&str>> =
            links.iter().map(|link| vec![names[link.3].as_str(), names[link.4].as_str()]).collect();
        let links: Vec<_> = links
            .iter()
            .zip(&risks)
            .map(|((a, step, delay, ..), risks)| (*a, (a + step) % 14, *delay, risks.as_slice()))
            .collect();
        let network = network(14, &links);
        let (from, to) = (NodeId(0), NodeId(7));
        let mut paths = Vec::new();
        all_simple_paths(&network, from, to, &mut Path { nodes: vec![from], links: Vec::new() }, &mut paths);
        let beside = |path: &Path| {
            let risks = path.risks(&network);
            let free = |link: LinkId| {
                let groups = &network.links[link.0].risk_groups;
                !path.links.contains(&link) && !groups.iter().any(|group| risks.contains(group.as_str()))
            };
            shortest(&network, from, to, free).map(|other| path.cost(&network) + other.cost(&network))
        };
        let best = paths.iter().filter_map(beside).min();
        let (found, is_best) = best_disjoint(&network, from, to, 2, Disjoint::Risks);
        prop_assert!(is_best);
        let total = (found.len() == 2).then(|| found.iter().map(|path| path.cost(&network)).sum());
        prop_assert_eq!(total, best);
        prop_assert_eq!(found.is_empty(), paths.is_empty());
    }
}
