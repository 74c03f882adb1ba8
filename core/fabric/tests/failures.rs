//! Switches that fail under load: what is lost is sent again, ways are found around them and, after repair, through them.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::{Change, Part, Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// All hosts of a leaf send to those of the other, over four spines of which one fails at 1 ms and is back at 5 ms.
fn with_a_dead_spine(more: &[(&str, &str)], bytes: u64) -> Simulation {
    let topology = generate::spine_leaf(4, 2, 8, 100 * GIGABIT_BPS, 200 * GIGABIT_BPS, 1000);
    let spine = topology.nodes.iter().position(|node| node.name == "spine1").unwrap() as u32;
    let mut pairs = vec![("reroute", "100us"), ("timeout_exponent", "8"), ("retries", "100")];
    pairs.extend_from_slice(more);
    let flows = (0..8).map(|host| flow(host, host + 8, bytes)).collect();
    let mut simulation = simulation(&topology, &set(&pairs), flows);
    let part = Part::Switch(spine);
    simulation.change(&[
        Change { at_ps: PS_PER_MS, part, is_up: false },
        Change { at_ps: 5 * PS_PER_MS, part, is_up: true },
    ]);
    simulation
}

/// Packets that the spine sent.
fn through_spine(simulation: &Simulation) -> u64 {
    let network = simulation.network();
    (0..network.ports.len() as u32)
        .filter(|port| network.show_port(*port).starts_with("spine1>"))
        .map(|port| simulation.port_result(port).sent_packets)
        .sum()
}

#[test]
fn spine_failure_loses_packets_briefly() {
    for (recovery, routing) in
        [("selective", "ecmp"), ("go-back-n", "ecmp"), ("selective", "adaptive")]
    {
        let more = [
            ("recovery", recovery),
            ("routing", routing),
            ("cc", "none"),
            ("selective_reorder", "1000"),
        ];
        let mut simulation = with_a_dead_spine(&more, 100_000_000);
        simulation.run_to_end(PS_PER_MS);
        let before = through_spine(&simulation);
        assert!(before > 1000, "{recovery} {routing}: it carries a part");
        simulation.run_to_end(1100 * PS_PER_US);
        let meanwhile = through_spine(&simulation);
        simulation.run_to_end(5 * PS_PER_MS);
        assert_eq!(
            through_spine(&simulation),
            meanwhile,
            "{recovery} {routing}: nothing passes it"
        );
        simulation.run_to_end(1000 * PS_PER_MS);
        assert!(through_spine(&simulation) > meanwhile, "{recovery} {routing}: it is back");
        assert_eq!(simulation.audit(), Ok(()));
        assert!(simulation.counts().lost + simulation.counts().dropped > 0);
        for number in 0..8 {
            let result = simulation.flow_result(number);
            assert_eq!(result.delivered_bytes, 100_000_000, "{recovery} {routing}");
            // 100 us until switches know, and at most a time-out of 1 ms.
            assert!(
                result.stalled_ps_max < 1500 * PS_PER_US,
                "{recovery} {routing}: {}",
                result.stalled_ps_max / PS_PER_US
            );
        }
    }
}

/// With selective repeat no time-out of the connection's length passes: other ways carry packets after 100 us, and these
/// tell of the gap.
#[test]
fn selective_repeat_recovers_after_reroute() {
    let mut simulation =
        with_a_dead_spine(&[("recovery", "selective"), ("cc", "none")], 50_000_000);
    simulation.run_to_end(1000 * PS_PER_MS);
    let stalled = (0..8).map(|f| simulation.flow_result(f).stalled_ps_max).max().unwrap();
    assert!((100 * PS_PER_US..600 * PS_PER_US).contains(&stalled), "{} us", stalled / PS_PER_US);
}

/// Without the only spine nothing arrives, and everything does after its repair.
#[test]
fn the_only_way_comes_back() {
    let topology = generate::spine_leaf(1, 2, 1, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let parameters = set(&[("reroute", "100us"), ("recovery", "selective"), ("retries", "1000")]);
    let mut simulation = simulation(&topology, &parameters, vec![flow(0, 1, 50_000_000)]);
    let part = Part::Switch(4);
    assert_eq!(topology.nodes[4].name, "spine0");
    simulation.change(&[
        Change { at_ps: PS_PER_MS, part, is_up: false },
        Change { at_ps: 4 * PS_PER_MS, part, is_up: true },
    ]);
    simulation.run_to_end(1200 * PS_PER_US);
    let delivered = simulation.flow_result(0).delivered_bytes;
    simulation.run_to_end(4 * PS_PER_MS);
    assert_eq!(simulation.flow_result(0).delivered_bytes, delivered);
    simulation.run_to_end(100 * PS_PER_MS);
    let result = simulation.flow_result(0);
    assert_eq!(result.delivered_bytes, 50_000_000);
    assert!(
        (3 * PS_PER_MS..4 * PS_PER_MS).contains(&result.stalled_ps_max),
        "{}",
        result.stalled_ps_max
    );
}
