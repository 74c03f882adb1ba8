//! Results computed by hand, exact to the picosecond or byte.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, run, set, simulation};
use penstock_fabric::{
    FabricNetwork, FailureChange, FailurePart, FlowSpec, Parameters, RdmaOperation, Routes,
    RunProgress, Simulation, generate,
};

const PS_PER_MS: u64 = 1000 * PS_PER_US;
const PS_PER_SECOND: u64 = 1000 * PS_PER_MS;

/// One packet over one switch, computed by hand: links of 1 us and 100 Gb/s.
#[test]
fn packet_time_is_serialization_plus_delay() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    let mut simulation = run(&topology, &set(&[("cc", "none")]), vec![flow(0, 1, 1000)]);
    // 1000 + 62 + 16 + 20 bytes of 80 ps on two links, 62 + 4 + 20 bytes back, four times 1 us.
    let expected = 2 * 1098 * 80 + 2 * 86 * 80 + 4 * PS_PER_US;
    let result = simulation.flow_result(0);
    assert_eq!(result.finished_ps, Some(expected));
    assert_eq!(result.ideal_ps, expected);
    assert_eq!(simulation.counts().arrivals, 4);
    // Only the retransmission timer is pending, and it has no effect.
    assert_eq!(simulation.run_to_end(PS_PER_SECOND), RunProgress::Done);
}

/// The completion time of a lone flow equals the formula for every topology, wire format and operation.
#[test]
fn lone_flow_takes_ideal_time() {
    let shapes = [
        generate::star(3, 100 * GIGABIT_BPS, 1000),
        generate::dumbbell(0, GIGABIT_BPS, 10 * GIGABIT_BPS, 333),
        generate::dumbbell(2, 100 * GIGABIT_BPS, 40 * GIGABIT_BPS, 1500),
        generate::spine_leaf(2, 2, 2, 25 * GIGABIT_BPS, 100 * GIGABIT_BPS, 50),
        generate::fat_tree(4, 1.0, 400 * GIGABIT_BPS, 100),
    ];
    for topology in &shapes {
        for wire in ["ethernet", "ns3-hpcc"] {
            for operation in [RdmaOperation::Write, RdmaOperation::Send, RdmaOperation::Read] {
                for bytes in [1, 1000, 1024, 1025, 65_536, 1_000_000] {
                    let parameters = set(&[
                        ("cc", "none"),
                        ("wire", wire),
                        ("ack_every", "4096"),
                        ("nic_latency", "300ns"),
                    ]);
                    let mut one = flow(0, 1, bytes);
                    one.operation = operation;
                    let done = run(topology, &parameters, vec![one]);
                    let result = done.flow_result(0);
                    let (took, ideal) = (result.finished_ps.unwrap(), result.ideal_ps);
                    assert_eq!(took, ideal, "{} {wire} {operation:?} {bytes}", topology.name);
                    assert_eq!(result.delivered_bytes, bytes);
                }
            }
        }
    }
}

/// E1 of the reference: the ideal column of the HPCC simulator is 88 000 ns; the run takes the exact time computed by
/// hand, without the simplifications of that formula.
#[test]
fn e1_star_megabyte_with_hpcc_sizes() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    let parameters = set(&[("cc", "none"), ("wire", "ns3-hpcc"), ("mtu", "1000")]);
    let done = run(&topology, &parameters, vec![flow(0, 1, 1_000_000)]);
    let took = done.flow_result(0).finished_ps.unwrap();
    assert_eq!(took, 83_840_000 + 83_840 + 4 * PS_PER_US + 2 * 60 * 80);
    assert_eq!(
        penstock_fabric::hpcc::ideal_ns(done.network(), 0, 1, 1_000_000, 1000),
        Some(88_000)
    );
}

/// E2 and E3: base RTTs by the formulas of the HPCC simulator.
#[test]
fn e2_e3_published_round_trips() {
    let leaf_spine = generate::spine_leaf(8, 8, 16, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let network = FabricNetwork::new(&leaf_spine).unwrap();
    let longest = penstock_fabric::hpcc::longest(&network, 1000).unwrap();
    assert_eq!((longest.round_trip_ns, longest.bdp_bytes, longest.switches), (8_320, 104_000, 3));
    let fat = generate::pods(generate::Pods {
        pods: 5,
        edges: 4,
        hosts: 16,
        middles: 4,
        cores: 4,
        rate_bps: 100 * GIGABIT_BPS,
        fabric_bps: 400 * GIGABIT_BPS,
        delay_ns: 1000,
    });
    assert_eq!((fat.hosts().count(), fat.nodes.len() - 320, fat.links.len()), (320, 56, 480));
    let network = FabricNetwork::new(&fat).unwrap();
    let longest = penstock_fabric::hpcc::longest(&network, 1000).unwrap();
    assert_eq!((longest.round_trip_ns, longest.bdp_bytes, longest.switches), (12_240, 153_000, 5));
}

/// E4: goodput of one stream of 64 KiB writes.
#[test]
fn e4_goodput_matches_header_overhead() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    for (mtu, expected) in [("1024", 92.565), ("4096", 98.014)] {
        let mut one = flow(0, 1, 65_536);
        (one.messages, one.depth) = (3000, 128);
        let done = run(&topology, &set(&[("mtu", mtu)]), vec![one]);
        let seconds = done.flow_result(0).finished_ps.unwrap() as f64 / PS_PER_SECOND as f64;
        let gbps = 65_536.0 * 3000.0 * 8.0 / seconds / 1e9;
        assert!((gbps / expected - 1.0).abs() < 0.001, "{mtu}: {gbps}");
        let port = done.port_result(0);
        assert_eq!((port.pauses_sent, port.paused_ps, port.dropped), (0, 0, 0));
    }
}

fn incast(senders: u32, more: &[(&str, &str)]) -> Simulation {
    let topology = generate::star(senders as usize + 1, 100 * GIGABIT_BPS, 0);
    let mut pairs = vec![
        ("cc", "none"),
        ("wire", "ns3-hpcc"),
        ("mtu", "1000"),
        ("pfc_threshold", "static"),
        ("buffer", "64MB"),
        ("timeout_exponent", "0"),
    ];
    pairs.extend_from_slice(more);
    let flows = (1..=senders).map(|from| flow(from, 0, 1 << 40)).collect();
    simulation(&topology, &set(&pairs), flows)
}

/// E5: with PFC alone, each of N senders gets an N-th of the line and is paused for the rest of the time.
#[test]
fn e5_pfc_incast_is_fair_lossless() {
    for senders in [2_u32, 4, 8] {
        let mut simulation = incast(senders, &[("pfc_response", "2us")]);
        simulation.run_to_end(2 * PS_PER_MS);
        let before: Vec<u64> =
            (1..=senders).map(|host| simulation.port_result(host).paused_ps).collect();
        let delivered: Vec<u64> =
            (0..senders as usize).map(|f| simulation.flow_result(f).delivered_bytes).collect();
        simulation.run_to_end(12 * PS_PER_MS);
        let share = 1.0 - 1.0 / f64::from(senders);
        for (at, host) in (1..=senders).enumerate() {
            let paused = (simulation.port_result(host).paused_ps - before[at]) as f64
                / (10 * PS_PER_MS) as f64;
            assert!((paused / share - 1.0).abs() < 0.01, "{senders}: {paused}, expected {share}");
            let bytes = (simulation.flow_result(at).delivered_bytes - delivered[at]) as f64;
            let expected = 12.5e9 * 0.010 / f64::from(senders) * 1000.0 / 1048.0;
            assert!(
                (bytes / expected - 1.0).abs() < 0.01,
                "{senders}: {bytes}, expected {expected}"
            );
        }
        assert_eq!(simulation.counts().dropped, 0);
        assert_eq!(simulation.audit(), Ok(()));
    }
}

/// E6: the first pause is sent when the buffered bytes of a sender, which grow at its line rate less its share of the
/// egress link, reach 600 kB.
#[test]
fn e6_first_pause_at_static_threshold() {
    for (senders, expected_us) in [(2_u32, 96.0), (4, 64.0), (8, 54.857)] {
        let mut simulation = incast(senders, &[]);
        simulation.record_pauses();
        simulation.run_to_end(200 * PS_PER_US);
        let first = simulation.pause_records()[0];
        assert!(first.is_pause);
        let at_us = first.time_ps as f64 / PS_PER_US as f64;
        // Tolerance: packets of 84 ns, one until the first arrives and one per sender, and a PFC frame of 5 ns.
        assert!(
            (at_us - expected_us).abs() < 0.084 * (2.0 + f64::from(senders)),
            "{senders}: {at_us}"
        );
    }
}

/// E7: sawtooth of the buffer with two senders and a PFC response time of 2 us.
#[test]
fn e7_sawtooth_has_period_and_amplitude() {
    let mut simulation = incast(2, &[("pfc_response", "2us")]);
    simulation.run_to_end(PS_PER_MS);
    let before = simulation.port_result(3).pauses_sent;
    let (mut least, mut most) = (u64::MAX, 0);
    for step in 1..=20_000 {
        simulation.run_to_end(PS_PER_MS + step * 240_000);
        let bytes = simulation.ingress_bytes(4, 3);
        (least, most) = (least.min(bytes), most.max(bytes));
    }
    // 4.8 ms is 200 periods of 24 us.
    let pauses: u64 = [4, 5].iter().map(|port| simulation.port_result(*port).pauses_sent).sum();
    assert_eq!(before, 0, "the receiver's link is never paused");
    let in_window = pauses as f64 / 2.0 * 4.8 / 5.8;
    assert!((in_window - 200.0).abs() < 4.0, "{in_window}");
    assert!(least.abs_diff(537_500) < 2_500 && most.abs_diff(612_500) < 2_500, "{least} to {most}");
    assert_eq!(simulation.counts().dropped, 0);
}

/// E8: an incast of sixty senders with 500 KB each takes the serialization time of all packets.
#[test]
fn e8_incast_takes_serialization_time() {
    let topology = generate::star(61, 100 * GIGABIT_BPS, 1000);
    let parameters = set(&[("cc", "none"), ("wire", "ns3-hpcc"), ("mtu", "1000")]);
    let flows = (1..=60).map(|from| flow(from, 0, 500_000)).collect();
    let done = run(&topology, &parameters, flows);
    let last = (0..60).map(|f| done.flow_result(f).finished_ps.unwrap()).max().unwrap();
    let line = 60 * 500 * 1048 * 80;
    assert!(last >= line && last < line + 10 * PS_PER_US, "{last}");
    assert_eq!(done.counts().dropped, 0);
}

/// E9: HPCC uses 95 % of the line rate, as counted by switches.
#[test]
fn e9_hpcc_keeps_target_headroom() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    for (telemetry, expected) in [("0", 89.58), ("26", 87.48)] {
        let parameters = set(&[("cc", "hpcc"), ("telemetry_bytes", telemetry), ("mtu", "1024")]);
        let mut one = flow(0, 1, 65_536);
        (one.messages, one.depth) = (10_000, 128);
        let mut simulation = simulation(&topology, &parameters, vec![one]);
        simulation.run_to_end(10 * PS_PER_MS);
        let before = simulation.flow_result(0).delivered_bytes;
        simulation.run_to_end(50 * PS_PER_MS);
        let gbps = (simulation.flow_result(0).delivered_bytes - before) as f64 * 8.0 / 40e-3 / 1e9;
        assert!((gbps - expected).abs() < 0.3, "{telemetry}: {gbps}");
    }
}

/// E12: balanced flows use the full capacity of the uplinks.
#[test]
fn e12_spines_limit_throughput() {
    for spines in [1_usize, 2, 4, 8] {
        let topology =
            generate::spine_leaf(spines, 2, spines, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
        // One flow per spine: seeds are tried until the hashes are balanced.
        let network = FabricNetwork::new(&topology).unwrap();
        let parameters = find_balanced_seed(&network, spines, 1);
        let flows =
            (0..spines as u32).map(|host| flow(host, host + spines as u32, 1 << 40)).collect();
        let mut simulation = Simulation::new(network, parameters, flows).unwrap();
        simulation.run_to_end(PS_PER_MS);
        let delivered = |simulation: &Simulation| -> u64 {
            (0..spines).map(|f| simulation.flow_result(f).delivered_bytes).sum()
        };
        let before = delivered(&simulation);
        simulation.run_to_end(3 * PS_PER_MS);
        let gbps = (delivered(&simulation) - before) as f64 * 8.0 / 2e-3 / 1e9;
        let expected = 92.59 * spines as f64;
        assert!((gbps / expected - 1.0).abs() < 0.01, "{spines}: {gbps}, expected {expected}");
    }
}

/// E12: after the failure of a link between a leaf and one of two spines its flow shares the other spine.
#[test]
fn e12_link_failure_halves_leaf_pair() {
    let topology = generate::spine_leaf(2, 2, 2, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let network = FabricNetwork::new(&topology).unwrap();
    let seed = find_balanced_seed(&network, 2, 1).seed;
    let mut parameters = set(&[("cc", "none"), ("timeout_exponent", "8"), ("reroute", "100us")]);
    parameters.seed = seed;
    let flows = (0..2).map(|host| flow(host, host + 2, 1 << 40)).collect();
    let mut simulation = Simulation::new(network, parameters, flows).unwrap();
    let cut = topology.links.iter().position(|link| link.name == "leaf0-spine1").unwrap();
    let change = |at_ps, is_up| FailureChange { at_ps, part: FailurePart::Link(cut as u32), is_up };
    simulation.change(&[change(2 * PS_PER_MS, false), change(20 * PS_PER_MS, true)]);
    let mut rate = |from: u64, until: u64| {
        simulation.run_to_end(from);
        let sum =
            |s: &Simulation| -> u64 { (0..2).map(|f| s.flow_result(f).delivered_bytes).sum() };
        let before = sum(&simulation);
        simulation.run_to_end(until);
        assert_eq!(simulation.audit(), Ok(()));
        (sum(&simulation) - before) as f64 * 8.0 / ((until - from) as f64 / 1e12) / 1e9
    };
    assert!((rate(PS_PER_MS, 2 * PS_PER_MS) / 185.2 - 1.0).abs() < 0.01);
    // 100 us until rerouting, and a time-out of 1.05 ms.
    assert!((rate(4 * PS_PER_MS, 20 * PS_PER_MS) / 92.6 - 1.0).abs() < 0.01);
    assert!((rate(22 * PS_PER_MS, 24 * PS_PER_MS) / 185.2 - 1.0).abs() < 0.01);
    let timeouts: u64 = (0..2).map(|f| simulation.flow_result(f).timeouts).sum();
    // A NAK reports the gap once the other path carries packets, so a time-out is rarely needed.
    assert!(timeouts <= 1, "{timeouts}");
    assert!(simulation.counts().dropped + simulation.counts().lost > 0);
}

/// Finds a seed with which the flows from host n to host n + `spines` use one spine each.
fn find_balanced_seed(network: &FabricNetwork, spines: usize, from: u64) -> Parameters {
    for seed in from.. {
        let parameters = Parameters { seed, ..set(&[("cc", "none"), ("timeout_exponent", "0")]) };
        let flows: Vec<FlowSpec> =
            (0..spines as u32).map(|host| flow(host, host + spines as u32, 1024)).collect();
        let mut simulation = Simulation::new(network.clone(), parameters.clone(), flows).unwrap();
        simulation.run_to_end(PS_PER_MS);
        let used = (0..network.ports.len() as u32)
            .filter(|port| {
                let node = &network.nodes[network.ports[*port as usize].node as usize];
                node.name.starts_with("spine") && simulation.port_result(*port).sent_packets > 0
            })
            .count();
        if used >= 2 * spines {
            return parameters;
        }
    }
    unreachable!()
}

/// The same ECMP hash at every switch leaves paths unused that hashes seeded per switch use.
#[test]
fn polarised_ecmp_leaves_paths_unused() {
    let topology = generate::fat_tree(4, 1.0, 100 * GIGABIT_BPS, 100);
    let used = |routing: &str| {
        let parameters = set(&[("cc", "none"), ("routing", routing)]);
        let flows = (0..256).map(|number| flow(number % 8, 8 + number / 8 % 8, 2000)).collect();
        let done = run(&topology, &parameters, flows);
        let network = done.network();
        (0..network.ports.len() as u32)
            .filter(|port| {
                let from = &network.nodes[network.ports[*port as usize].node as usize].name;
                let to = &network.nodes[network.across(*port) as usize].name;
                from.starts_with("middle")
                    && to.starts_with("core")
                    && done.port_result(*port).sent_packets > 20
            })
            .count()
    };
    let (own, same) = (used("ecmp"), used("ecmp-polarised"));
    assert!(own > same, "{own} and {same}");
}

#[test]
fn star_path_has_two_links() {
    let network = FabricNetwork::new(&generate::star(3, GIGABIT_BPS, 10)).unwrap();
    let routes = Routes::new(&network, |_| true, |_| 0);
    assert_eq!(routes.find_path(&network, 0, 2, 7).map(|path| path.len()), Some(2));
}
