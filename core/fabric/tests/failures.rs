//! Switch failures under load: lost packets are retransmitted, and routes avoid a failed switch until its repair.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::{FailureChange, FailurePart, Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// All hosts of a leaf send to those of the other over four spines, one of which fails from 1 ms to 5 ms.
fn prepare_spine_failure(more: &[(&str, &str)], bytes: u64) -> Simulation {
    let topology = generate::spine_leaf(4, 2, 8, 100 * GIGABIT_BPS, 200 * GIGABIT_BPS, 1000);
    let spine = topology.nodes.iter().position(|node| node.name == "spine1").unwrap() as u32;
    let mut pairs = vec![("reroute", "100us"), ("timeout_exponent", "8"), ("retries", "100")];
    pairs.extend_from_slice(more);
    let flows = (0..8).map(|host| flow(host, host + 8, bytes)).collect();
    let mut simulation = simulation(&topology, &set(&pairs), flows);
    let part = FailurePart::Switch(spine);
    simulation.change(&[
        FailureChange { at_ps: PS_PER_MS, part, is_up: false },
        FailureChange { at_ps: 5 * PS_PER_MS, part, is_up: true },
    ]);
    simulation
}

/// Returns the packets that the failing spine sent.
fn count_spine_packets(simulation: &Simulation) -> u64 {
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
        let mut simulation = prepare_spine_failure(&more, 100_000_000);
        simulation.run_to_end(PS_PER_MS);
        let before = count_spine_packets(&simulation);
        assert!(before > 1000, "{recovery} {routing}: the spine carries traffic");
        simulation.run_to_end(1100 * PS_PER_US);
        let meanwhile = count_spine_packets(&simulation);
        simulation.run_to_end(5 * PS_PER_MS);
        assert_eq!(
            count_spine_packets(&simulation),
            meanwhile,
            "{recovery} {routing}: a failed spine forwards nothing"
        );
        simulation.run_to_end(1000 * PS_PER_MS);
        assert!(count_spine_packets(&simulation) > meanwhile, "{recovery} {routing}: repaired");
        assert_eq!(simulation.audit(), Ok(()));
        assert!(simulation.counts().lost + simulation.counts().dropped > 0);
        for number in 0..8 {
            let result = simulation.flow_result(number);
            assert_eq!(result.delivered_bytes, 100_000_000, "{recovery} {routing}");
            // 100 us until rerouting, and at most a time-out of 1 ms.
            assert!(
                result.stalled_ps_max < 1500 * PS_PER_US,
                "{recovery} {routing}: {}",
                result.stalled_ps_max / PS_PER_US
            );
        }
    }
}

/// Selective repeat needs no time-out: after rerouting, 100 us later, packets on other paths reveal the gap.
#[test]
fn selective_repeat_recovers_after_reroute() {
    let mut simulation =
        prepare_spine_failure(&[("recovery", "selective"), ("cc", "none")], 50_000_000);
    simulation.run_to_end(1000 * PS_PER_MS);
    let stalled = (0..8).map(|f| simulation.flow_result(f).stalled_ps_max).max().unwrap();
    assert!((100 * PS_PER_US..600 * PS_PER_US).contains(&stalled), "{} us", stalled / PS_PER_US);
}

/// A failure of the only spine stops all delivery until its repair.
#[test]
fn single_spine_repair_resumes_delivery() {
    let topology = generate::spine_leaf(1, 2, 1, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let parameters = set(&[("reroute", "100us"), ("recovery", "selective"), ("retries", "1000")]);
    let mut simulation = simulation(&topology, &parameters, vec![flow(0, 1, 50_000_000)]);
    let part = FailurePart::Switch(4);
    assert_eq!(topology.nodes[4].name, "spine0");
    simulation.change(&[
        FailureChange { at_ps: PS_PER_MS, part, is_up: false },
        FailureChange { at_ps: 4 * PS_PER_MS, part, is_up: true },
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
