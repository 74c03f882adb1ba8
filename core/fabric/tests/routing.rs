//! Multipath routing: use of the fabric and packet order with ECMP, spraying, flowlets and adaptive routing.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::{FlowSpec, Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// Each of eight hosts of a leaf sends to one host of the other leaf, over eight spines at the rate of the hosts.
fn between_leaves(routing: &str, more: &[(&str, &str)]) -> Simulation {
    let topology = generate::spine_leaf(8, 2, 8, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let mut pairs = vec![
        ("cc", "none"),
        ("routing", routing),
        ("recovery", "selective"),
        ("selective_reorder", "1000"),
    ];
    pairs.extend_from_slice(more);
    let flows = (0..8).map(|host| flow(host, host + 8, 1 << 40)).collect();
    simulation(&topology, &set(&pairs), flows)
}

/// Returns the total goodput in Gb/s and the retransmitted packets.
fn measure(simulation: &mut Simulation) -> (f64, u64) {
    let sum = |s: &Simulation| -> u64 { (0..8).map(|f| s.flow_result(f).delivered_bytes).sum() };
    simulation.run_to_end(PS_PER_MS);
    let before = sum(simulation);
    simulation.run_to_end(4 * PS_PER_MS);
    assert_eq!(simulation.audit(), Ok(()));
    let gbps = (sum(simulation) - before) as f64 * 8.0 / 3e-3 / 1e9;
    (gbps, (0..8).map(|f| simulation.flow_result(f).packets_again).sum())
}

#[test]
fn spraying_and_adaptive_beat_ecmp() {
    let full = 8.0 * 100.0 * 1024.0 / 1106.0;
    let of = |routing: &str| measure(&mut between_leaves(routing, &[]));
    let (hashed, sprayed, adaptive) = (of("ecmp"), of("spray"), of("adaptive"));
    assert!(hashed.0 < 0.9 * full, "{hashed:?}");
    assert!(sprayed.0 > 0.95 * full && adaptive.0 > 0.99 * full, "{sprayed:?} {adaptive:?} {full}");
    assert_eq!((sprayed.1, adaptive.1, hashed.1), (0, 0, 0));
}

/// With adaptive routing no uplink of the leaf queues more than a few packets; with spraying some queues grow.
#[test]
fn adaptive_queues_shorter_than_spraying() {
    let longest = |routing: &str| {
        let mut simulation = between_leaves(routing, &[]);
        measure(&mut simulation);
        let network = simulation.network();
        (0..network.ports.len() as u32)
            .filter(|port| network.show_port(*port).starts_with("leaf0>spine"))
            .map(|port| simulation.port_result(port).queue_bytes_max)
            .max()
    };
    let (adaptive, sprayed) = (longest("adaptive").unwrap(), longest("spray").unwrap());
    assert!(adaptive <= 4 * 1106 && sprayed > 3 * adaptive, "{adaptive} and {sprayed}");
}

/// Spraying reorders packets: go-back-N, or selective repeat with a low reorder threshold, takes reordering for loss.
#[test]
fn spraying_requires_reorder_tolerance() {
    let again = |more: &[(&str, &str)]| measure(&mut between_leaves("spray", more)).1;
    let back = again(&[("recovery", "go-back-n")]);
    let eager = again(&[("selective_reorder", "1")]);
    assert!(back > 100_000 && eager > 1000 && eager < back, "{back} and {eager}");
}

/// Bursts with gaps longer than `flowlet_gap` change paths and stay in order; without such gaps a flow stays on one
/// path.
#[test]
fn flowlets_change_paths_without_reordering() {
    let topology = generate::spine_leaf(8, 2, 1, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let used = |routing: &str, gap: &str| {
        // Each message is posted when the previous one completes, an RTT of 8 us later.
        let one = FlowSpec { messages: 64, ..flow(0, 1, 65_536) };
        let parameters = set(&[("cc", "none"), ("routing", routing), ("flowlet_gap", gap)]);
        let mut simulation = simulation(&topology, &parameters, vec![one]);
        simulation.run_to_end(100 * PS_PER_MS);
        let result = simulation.flow_result(0);
        assert_eq!((result.completed, result.packets_again), (64, 0), "{routing} {gap}");
        let network = simulation.network();
        (0..network.ports.len() as u32)
            .filter(|port| network.show_port(*port).starts_with("leaf0>spine"))
            .filter(|port| simulation.port_result(*port).sent_packets > 0)
            .count()
    };
    assert!(used("flowlet", "5us") >= 6);
    assert_eq!((used("flowlet", "20us"), used("ecmp", "5us")), (1, 1));
}
