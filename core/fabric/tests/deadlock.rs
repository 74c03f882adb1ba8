//! Detection of PFC deadlocks without false positives, and recovery by the PFC watchdog from deadlocks and pause
//! storms.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::{FailureChange, FailurePart, RunProgress, Simulation, generate};
use penstock_topology::{NodeId, Topology};

const PS_PER_MS: u64 = 1000 * PS_PER_US;
const PS_PER_SECOND: u64 = 1000 * PS_PER_MS;

/// Five switches in a ring with one host each; every host sends to the one two switches ahead, so every link of one
/// direction carries two flows.
fn ring(more: &[(&str, &str)]) -> (Topology, Simulation) {
    let mut topology = generate::dumbbell(2, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let like = topology.links[4].clone();
    topology.links.clear();
    let (host, switch) = (topology.nodes[0].clone(), topology.nodes[4].clone());
    topology.nodes.clear();
    for number in 0..10 {
        let mut node = if number < 5 { host.clone() } else { switch.clone() };
        node.name = if number < 5 { format!("h{number}") } else { format!("s{}", number - 5) };
        topology.nodes.push(node);
    }
    let mut link = |a: usize, b: usize| {
        let mut link = like.clone();
        (link.ends[0].node, link.ends[1].node) = (NodeId(a), NodeId(b));
        link.name = format!("{a}-{b}");
        topology.links.push(link);
    };
    (0..5).for_each(|number| link(number, 5 + number));
    (0..5).for_each(|number| link(5 + number, 5 + (number + 1) % 5));
    let mut pairs = vec![
        ("cc", "none"),
        ("pfc_threshold", "static"),
        ("pfc_xoff", "50k"),
        ("pfc_xon", "40k"),
        ("timeout_exponent", "8"),
        ("retries", "100000"),
    ];
    pairs.extend_from_slice(more);
    let flows = (0..5).map(|host| flow(host, (host + 2) % 5, 10_000_000)).collect();
    let simulation = simulation(&topology, &set(&pairs), flows);
    (topology, simulation)
}

#[test]
fn ring_deadlock_is_detected() {
    let (_, mut simulation) = ring(&[("timeout_exponent", "0")]);
    assert_eq!(simulation.run_to_end(PS_PER_SECOND), RunProgress::Stopped);
    let waits = simulation.cyclic_waits();
    assert_eq!(waits.len(), 1, "{waits:?}");
    let wait = &waits[0];
    assert_eq!((wait.priority, wait.ended_ps), (3, None));
    let mut ports: Vec<String> =
        wait.ports.iter().map(|port| simulation.network().show_port(*port)).collect();
    for (number, port) in ports.iter().enumerate() {
        let next = &ports[(number + 1) % ports.len()];
        assert_eq!(port.split('>').nth(1), next.split('>').next(), "{ports:?}");
    }
    ports.sort();
    assert_eq!(ports, ["s0>s1", "s1>s2", "s2>s3", "s3>s4", "s4>s0"]);
    // Deadlocked: no more payload arrives.
    let delivered =
        |s: &Simulation| -> u64 { (0..5).map(|f| s.flow_result(f).delivered_bytes).sum() };
    let before = delivered(&simulation);
    assert!(wait.found_ps < 2 * PS_PER_MS && before < 50_000_000);
    simulation.run_to_end(10 * PS_PER_SECOND);
    assert_eq!((delivered(&simulation), simulation.counts().dropped), (before, 0));
}

#[test]
fn watchdog_resolves_ring_deadlock() {
    let (_, mut simulation) = ring(&[
        ("watchdog_detect", "1ms"),
        ("watchdog_restore", "1ms"),
        ("watchdog_action", "drop"),
        ("recovery", "selective"),
        ("selective_window", "0"),
    ]);
    assert_eq!(simulation.run_to_end(10 * PS_PER_SECOND), RunProgress::Done);
    let waits = simulation.cyclic_waits();
    assert!(!waits.is_empty());
    assert!(
        waits[0].ended_ps.is_some_and(|end| end < waits[0].found_ps + 3 * PS_PER_MS),
        "{waits:?}"
    );
    assert!((0..5).all(|f| simulation.flow_result(f).finished_ps.is_some()));
    assert_eq!(simulation.audit(), Ok(()));
}

/// Pauses of an incast that spread through a tree form no cycle.
#[test]
fn acyclic_pauses_are_no_deadlock() {
    let topology = generate::spine_leaf(2, 4, 4, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let flows = (1..16).map(|from| flow(from, 0, 1_000_000)).collect();
    let parameters = set(&[
        ("cc", "none"),
        ("pfc_threshold", "static"),
        ("pfc_xoff", "50k"),
        ("pfc_xon", "40k"),
        ("deadlock_check", "1us"),
    ]);
    let mut simulation = simulation(&topology, &parameters, flows);
    assert_eq!(simulation.run_to_end(PS_PER_SECOND), RunProgress::Done);
    assert!((0..64).any(|port| simulation.port_result(port).pauses_sent > 0));
    assert_eq!(simulation.cyclic_waits(), []);
}

/// A host sends pauses for 25 s: packets for other hosts are blocked behind packets for it until the watchdog drops
/// these after 10 s. Without the watchdog they wait for the end of the storm.
#[test]
fn pause_storm_blocks_until_watchdog() {
    let topology = generate::spine_leaf(2, 2, 4, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let stormed = |detect: &str| {
        let parameters = set(&[
            ("cc", "none"),
            ("pfc_threshold", "static"),
            ("watchdog_detect", detect),
            ("watchdog_restore", "10s"),
            ("watchdog_action", "drop"),
            ("timeout_exponent", "20"),
            ("retries", "100"),
        ]);
        // Hosts 4 to 7 send to host 0, the source of the storm, and to hosts 1 to 3.
        let flows = (0..8)
            .map(|n| flow(4 + n % 4, if n < 4 { 0 } else { 1 + n % 3 }, 20_000_000))
            .collect();
        let mut simulation = simulation(&topology, &parameters, flows);
        let part = FailurePart::Host(0);
        simulation.change(&[
            FailureChange { at_ps: PS_PER_MS, part, is_up: false },
            FailureChange { at_ps: 25 * PS_PER_SECOND, part, is_up: true },
        ]);
        simulation.run_to_end(60 * PS_PER_SECOND);
        assert_eq!(simulation.audit(), Ok(()));
        assert_eq!(simulation.cyclic_waits(), [], "a pause storm is no deadlock");
        let others = (4..8).map(|f| simulation.flow_result(f).finished_ps).max().unwrap();
        others.map(|time| time / PS_PER_SECOND)
    };
    assert_eq!(stormed("0s"), Some(25));
    assert_eq!(stormed("10s"), Some(10));
}
