//! Names, addresses and routes of small networks.

use super::*;

const TWO_HOMED: &str = r#"
    name = "n"
    [[host]]
    name = "a"
    interface = [{ name = "e0", mtu = 9000 }, { name = "e1", mtu = 9000 }]
    [[host]]
    name = "b"
    interface = [{ name = "e0", mtu = 9000 }, { name = "e1", mtu = 9000 }]
    [[switch]]
    name = "left-with-a-long-name"
    [[switch]]
    name = "right"
    [[link]]
    ends = ["a:e1", "left-with-a-long-name"]
    rate = "10G"
    [[link]]
    ends = ["a:e0", "left-with-a-long-name"]
    rate = "10G"
    [[link]]
    name = "one"
    ends = ["left-with-a-long-name", "right"]
    rate = "10G"
    delay = "1ms"
    [[link]]
    name = "two"
    ends = ["left-with-a-long-name", "right"]
    rate = "10G"
    delay = "2ms"
    [[link]]
    ends = ["right", "b:e0"]
    rate = "10G"
    [[link]]
    ends = ["right", "b:e1"]
    rate = "10G"
"#;

fn plan(text: &str) -> LabPlan {
    LabPlan::new(Topology::read(text).unwrap()).unwrap()
}

fn node<'a>(plan: &'a LabPlan, name: &str) -> &'a NodePlan {
    &plan.nodes[plan.topology.node(name).unwrap().0]
}

#[test]
fn device_names_are_valid_and_unique() {
    let plan = plan(TWO_HOMED);
    let names = |name: &str| -> Vec<String> {
        node(&plan, name).ports.iter().map(|port| port.device.clone()).collect()
    };
    assert_eq!(names("a"), ["e0", "e1"]);
    assert_eq!(names("right"), ["left-with-a-lon", "left-with-a-l-2", "b", "b-2"]);
    for node in &plan.nodes {
        for port in &node.ports {
            assert!(port.device.len() <= DEVICE_BYTES_MAX);
            assert_eq!(port.mtu, 9000);
        }
    }
}

#[test]
fn hosts_go_by_their_first_interface() {
    let plan = plan(TWO_HOMED);
    let text = plan.hosts_file();
    assert!(text.contains("fd70:6e73:1::1 a-e0 a\n10.0.0.5 a-e0 a\n"), "{text}");
    assert!(
        text.contains("fd70:6e73:0:0:0:0:0:1 a-e1\n") || text.contains("fd70:6e73::1 a-e1\n"),
        "{text}"
    );
    assert_eq!(plan.addresses(plan.topology.node("right").unwrap()), None);
}

#[test]
fn bound_address_selects_the_interface() {
    let plan = plan(TWO_HOMED);
    let a = node(&plan, "a");
    let by_table = |table| -> Vec<usize> {
        a.routes.iter().filter(|route| route.table == table).map(|route| route.port).collect()
    };
    // Routes to both networks of b, for both address families.
    assert_eq!(by_table(None).len(), 4);
    for port in 0..2 {
        let of_table = by_table(Some(source_table(port)));
        assert!(of_table.len() >= 4 && of_table.iter().all(|one| *one == port), "{of_table:?}");
    }
    assert_eq!(a.source_tables.len(), 4);
    let right = node(&plan, "right");
    assert!(right.source_tables.is_empty());
    // Uses the shorter of two links.
    let one = plan.topology.link("one").unwrap();
    assert!(right.routes.iter().all(|route| right.ports[route.port].link == one));
}

#[test]
fn pinned_path_applies_both_directions() {
    let plan = plan(TWO_HOMED);
    let topology = &plan.topology;
    let (a, b) = (topology.node("a").unwrap(), topology.node("b").unwrap());
    let link = |name: &str| topology.link(name).unwrap();
    let first = topology.links.iter().position(|link| link.ends[0].node == a).map(LinkId).unwrap();
    let last = LinkId(topology.links.len() - 1);
    let pins = plan.pin(a.into(), b.into(), &[first, link("two"), last]).unwrap();
    // Three hops, two directions, four pairs of interfaces, two address families.
    assert_eq!(pins.len(), 48);
    let one = plan.party_named("b-e1").unwrap();
    assert_eq!(plan.pin(a.into(), one, &[first, link("two"), last]).unwrap().len(), 24);
    assert!(plan.party_named("b-e2").unwrap_err().to_string().contains("there are a, b,"));
    let addresses = |node: NodeId| {
        let ports = plan.nodes[node.0].ports.iter();
        ports.flat_map(|port| port.addresses.each()).map(|(address, _)| address)
    };
    for (from, to) in addresses(a).flat_map(|from| addresses(b).map(move |to| (from, to))) {
        let by = pins.iter().filter(|pin| (pin.from, pin.to) == (from, to)).count();
        assert_eq!(by, if from.is_ipv4() == to.is_ipv4() { 3 } else { 0 });
    }
    let wrong = plan.pin(a.into(), b.into(), &[link("two"), last]).unwrap_err().to_string();
    assert!(wrong.contains("does not touch a"), "{wrong}");
    let short = plan.pin(a.into(), b.into(), &[first, link("two")]).unwrap_err().to_string();
    assert!(short.contains("ends at right, not at b"), "{short}");
    let again = [first, link("two"), link("one"), last];
    let again = plan.pin(a.into(), b.into(), &again).unwrap_err().to_string();
    assert!(again.contains("twice"), "{again}");
    let right = topology.node("right").unwrap();
    let switch = plan.pin(a.into(), right.into(), &[first, link("two")]).unwrap_err().to_string();
    assert!(switch.contains("right is a switch"), "{switch}");
}

#[test]
fn every_published_topology_has_a_plan() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/topologies");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let plan = plan(&std::fs::read_to_string(&path).unwrap());
        let mut seen = std::collections::BTreeSet::new();
        for port in plan.nodes.iter().flat_map(|node| &node.ports) {
            assert!(seen.insert(port.addresses.v4), "{path:?}");
        }
    }
}
