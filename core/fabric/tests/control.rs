//! Congestion control against published behaviour: bounds that follow from the papers.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::report::jain;
use penstock_fabric::{Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// Goodput of each flow in Gb/s between two times.
fn goodputs(simulation: &mut Simulation, from_ps: u64, until_ps: u64) -> Vec<f64> {
    let flows = simulation.flows().len();
    simulation.run_to_end(from_ps);
    let before: Vec<u64> = (0..flows).map(|f| simulation.flow_result(f).delivered_bytes).collect();
    simulation.run_to_end(until_ps);
    let seconds = (until_ps - from_ps) as f64 / 1e12;
    (0..flows)
        .map(|f| {
            (simulation.flow_result(f).delivered_bytes - before[f]) as f64 * 8.0 / seconds / 1e9
        })
        .collect()
}

fn incast(senders: u32, rate: u64, pairs: &[(&str, &str)]) -> Simulation {
    let topology = generate::star(senders as usize + 1, rate, 1000);
    let flows = (1..=senders).map(|from| flow(from, 0, 1 << 40)).collect();
    simulation(&topology, &set(pairs), flows)
}

/// Port of the receiver; its peer is the bottleneck port of the switch.
const EGRESS_PORT: u32 = 0;

fn egress_port(simulation: &Simulation) -> u32 {
    simulation.network().ports[EGRESS_PORT as usize].peer
}

/// S1: two flows of DCQCN as published share 40 Gb/s fairly, with the queue near the fixed point of the reference:
/// 23.5 KB with the parameters of the paper (Kmin 5 KB, Kmax 200 KB, Pmax 1 %).
#[test]
fn s1_dcqcn_fair_near_fixed_point() {
    let mut simulation = incast(
        2,
        40 * GIGABIT_BPS,
        &[
            ("cc", "dcqcn-paper"),
            ("mtu", "1000"),
            ("ecn_kmin", "5k"),
            ("ecn_kmax", "200k"),
            ("ecn_pmax", "0.01"),
        ],
    );
    simulation.sample_queues(PS_PER_US, 100 * PS_PER_MS, 200 * PS_PER_MS);
    let goodputs = goodputs(&mut simulation, 100 * PS_PER_MS, 200 * PS_PER_MS);
    assert!(jain(&goodputs).unwrap() >= 0.99, "{goodputs:?}");
    let port = egress_port(&simulation);
    let bins = simulation.queue_bins(port);
    let count: u64 = bins.iter().sum();
    let mean = bins.iter().enumerate().map(|(kb, n)| (kb as f64 + 0.5) * *n as f64).sum::<f64>()
        / count as f64;
    assert!((10.0..45.0).contains(&mean), "mean queue {mean} KB");
    assert_eq!(simulation.counts().dropped, 0);
}

/// S3: ECN marking avoids most pauses of an incast; without loss in both cases.
#[test]
fn s3_ecn_marking_replaces_pausing() {
    let pauses = |cc: &str| {
        let mut simulation = incast(
            3,
            100 * GIGABIT_BPS,
            &[("cc", cc), ("pfc_threshold", "static"), ("buffer", "32MB")],
        );
        simulation.run_to_end(5 * PS_PER_MS);
        let before: u64 = pauses_sent(&simulation);
        simulation.run_to_end(25 * PS_PER_MS);
        assert_eq!(simulation.counts().dropped, 0, "{cc}");
        pauses_sent(&simulation) - before
    };
    let (without, with) = (pauses("none"), pauses("dcqcn"));
    assert!(without > 100 && with * 20 < without, "{without} without, {with} with");
}

fn pauses_sent(simulation: &Simulation) -> u64 {
    (0..simulation.network().ports.len() as u32)
        .map(|port| simulation.port_result(port).pauses_sent)
        .sum()
}

/// S4: HPCC keeps queues far below those of DCQCN under the same incast, and both use the line.
#[test]
fn s4_hpcc_queues_shorter_than_dcqcn() {
    let run = |cc: &str| {
        let mut simulation = incast(8, 100 * GIGABIT_BPS, &[("cc", cc), ("mtu", "1000")]);
        simulation.sample_queues(PS_PER_US, 5 * PS_PER_MS, 25 * PS_PER_MS);
        let sum: f64 = goodputs(&mut simulation, 5 * PS_PER_MS, 25 * PS_PER_MS).iter().sum();
        (sum, simulation.queue_quantile(egress_port(&simulation), 0.99).unwrap())
    };
    let (dcqcn, hpcc) = (run("dcqcn"), run("hpcc"));
    assert!(hpcc.1 * 5 < dcqcn.1, "p99 of the queue: HPCC {} and DCQCN {}", hpcc.1, dcqcn.1);
    assert!(hpcc.1 < 60_000, "{}", hpcc.1);
    // 95 % of the line, less 42 bytes of telemetry on each packet.
    assert!(hpcc.0 > 80.0 && dcqcn.0 > 80.0, "{} and {}", hpcc.0, dcqcn.0);
}

/// S6: the queue of two DCTCP flows stays below the marking threshold (K = 300 kB at 100 Gb/s), and the line is full.
#[test]
fn s6_dctcp_queue_stays_near_threshold() {
    let mut simulation =
        incast(2, 100 * GIGABIT_BPS, &[("cc", "dctcp"), ("mtu", "1000"), ("base_rtt", "13us")]);
    simulation.sample_queues(PS_PER_US, 10 * PS_PER_MS, 40 * PS_PER_MS);
    let goodputs = goodputs(&mut simulation, 10 * PS_PER_MS, 40 * PS_PER_MS);
    let line = 100.0 * 1000.0 / 1082.0;
    let sum: f64 = goodputs.iter().sum();
    assert!(sum > 0.99 * line, "{sum} of {line}");
    assert!(jain(&goodputs).unwrap() > 0.95, "{goodputs:?}");
    // With windows of 13 us at line rate, two flows queue at most one window, which is below K.
    let most = simulation.queue_quantile(egress_port(&simulation), 1.0).unwrap();
    assert!(most <= 325_000, "{most}");
}

/// Swift keeps the delay near its target: 26 us for base and two hops; flow scaling adds little for eight flows.
#[test]
fn swift_delay_stays_near_target() {
    let mut simulation = incast(8, 100 * GIGABIT_BPS, &[("cc", "swift"), ("mtu", "1000")]);
    simulation.sample_queues(PS_PER_US, 10 * PS_PER_MS, 30 * PS_PER_MS);
    let goodputs = goodputs(&mut simulation, 10 * PS_PER_MS, 30 * PS_PER_MS);
    assert!(goodputs.iter().sum::<f64>() > 85.0, "{goodputs:?}");
    let median = simulation.queue_quantile(egress_port(&simulation), 0.5).unwrap();
    // A queueing delay of 22 us at 12.5 GB/s is 275 kB; flow scaling allows up to 100 us more.
    assert!((100_000..900_000).contains(&median), "{median}");
}

/// Every algorithm completes a large incast without loss.
#[test]
fn every_control_completes_incast() {
    for cc in ["none", "dcqcn", "dcqcn-paper", "hpcc", "dctcp", "timely", "swift"] {
        let topology = generate::star(33, 100 * GIGABIT_BPS, 1000);
        let flows = (1..=32).map(|from| flow(from, 0, 500_000)).collect();
        let mut done = simulation(&topology, &set(&[("cc", cc)]), flows);
        done.run_to_end(1000 * PS_PER_MS);
        let last = (0..32).map(|f| done.flow_result(f).finished_ps.expect(cc)).max().unwrap();
        assert!(last < 20 * PS_PER_MS, "{cc}: {} us", last / PS_PER_US);
        assert_eq!((done.counts().dropped, done.audit()), (0, Ok(())), "{cc}");
    }
}
