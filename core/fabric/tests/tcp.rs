//! TCP over wide-area paths: exact slow start, link sharing of CUBIC, short queues and loss tolerance of BBR.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::report::jain;
use penstock_fabric::{Simulation, generate};
use penstock_topology::Topology;
use penstock_units::BitRate;

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// Dumbbell: `pairs` hosts at 10 Gb/s on either side of a link of 1 Gb/s and 20 ms.
fn build_wide_area(pairs: usize) -> Topology {
    let mut topology = generate::dumbbell(pairs, 10 * GIGABIT_BPS, GIGABIT_BPS, 1000);
    let middle = topology.links.last_mut().unwrap();
    middle.delay = std::time::Duration::from_millis(20);
    assert_eq!(middle.rate, BitRate(GIGABIT_BPS));
    topology
}

fn start_connections(pairs: usize, loss: f64, more: &[(&str, &str)]) -> Simulation {
    let mut topology = build_wide_area(pairs);
    topology.links.last_mut().unwrap().loss = loss;
    let mut settings = vec![("mtu", "1448"), ("buffer", "64MB"), ("queue_limit", "5MB")];
    settings.extend_from_slice(more);
    let flows = (0..pairs as u32).map(|host| flow(host, host + pairs as u32, 1 << 40)).collect();
    simulation(&topology, &set(&settings), flows)
}

/// Returns the goodput of each flow in Gb/s between two times.
fn goodputs(simulation: &mut Simulation, from_ps: u64, until_ps: u64) -> Vec<f64> {
    let delivered = |s: &Simulation| -> Vec<u64> {
        (0..s.flows().len()).map(|f| s.flow_result(f).delivered_bytes).collect()
    };
    simulation.run_to_end(from_ps);
    let before = delivered(simulation);
    simulation.run_to_end(until_ps);
    assert_eq!(simulation.audit(), Ok(()));
    let seconds = (until_ps - from_ps) as f64 / 1e12;
    let each = delivered(simulation).into_iter().zip(before);
    each.map(|(after, before)| (after - before) as f64 * 8.0 / seconds / 1e9).collect()
}

fn queue_max(simulation: &Simulation) -> u64 {
    let network = simulation.network();
    (0..network.ports.len() as u32)
        .filter(|port| network.show_port(*port) == "s0>s1")
        .map(|port| simulation.port_result(port).queue_bytes_max)
        .sum()
}

/// Ten segments in the first RTT, twice as many in each further one (RFC 5681, RFC 6928).
#[test]
fn slow_start_doubles_each_rtt() {
    let mut simulation = start_connections(1, 0.0, &[("cc", "cubic")]);
    for round in 0..6_u64 {
        // A segment arrives 20 ms and some microseconds after it was sent; its acknowledgement takes another 20 ms.
        simulation.run_to_end((20 + 40 * round) * PS_PER_MS + 15 * PS_PER_MS);
        let segments = simulation.flow_result(0).delivered_bytes / 1448;
        assert_eq!(segments, 10 * ((2 << round) - 1), "round {round}");
    }
}

#[test]
fn cubic_fills_and_shares_the_link() {
    let line = 1448.0 / 1538.0;
    let one = goodputs(
        &mut start_connections(1, 0.0, &[("cc", "cubic")]),
        2000 * PS_PER_MS,
        12_000 * PS_PER_MS,
    );
    assert!(one[0] > 0.97 * line, "{one:?}");
    let mut four = start_connections(4, 0.0, &[("cc", "cubic")]);
    let rates = goodputs(&mut four, 20_000 * PS_PER_MS, 60_000 * PS_PER_MS);
    assert!(rates.iter().sum::<f64>() > 0.97 * line, "{rates:?}");
    assert!(jain(&rates).unwrap() > 0.8, "{rates:?}");
    assert!(queue_max(&four) > 4_900_000, "CUBIC fills the queue");
}

/// With a BDP of 5 MB, BBR finds the bottleneck rate without a standing queue, and tolerates random losses that CUBIC
/// takes for congestion.
#[test]
fn bbr_finds_rate_despite_losses() {
    let line = 1448.0 / 1538.0;
    let mut plain = start_connections(1, 0.0, &[("cc", "bbr"), ("queue_limit", "30MB")]);
    plain.sample_queues(PS_PER_MS, 2000 * PS_PER_MS, 9000 * PS_PER_MS);
    let rate = goodputs(&mut plain, 2000 * PS_PER_MS, 9000 * PS_PER_MS)[0];
    assert!(rate > 0.95 * line, "{rate}");
    let port = (0..plain.network().ports.len() as u32)
        .find(|port| plain.network().show_port(*port) == "s0>s1")
        .unwrap();
    let median = plain.queue_quantile(port, 0.5).unwrap();
    assert!(median < 1_000_000 && plain.counts().dropped == 0, "{median}");
    let lossy = |cc: &str| {
        goodputs(
            &mut start_connections(1, 0.005, &[("cc", cc)]),
            2000 * PS_PER_MS,
            9000 * PS_PER_MS,
        )[0]
    };
    let (bbr, cubic) = (lossy("bbr"), lossy("cubic"));
    assert!(bbr > 0.85 * line && cubic < 0.1 * line, "{bbr} and {cubic}");
}

/// Without a lower RTT sample for the probe interval (1 s here), BBR keeps a minimum window for 200 ms.
#[test]
fn bbr_probes_minimum_rtt() {
    let mut simulation = start_connections(1, 0.0, &[("cc", "bbr"), ("bbr_probe_interval", "1s")]);
    let mut quiet = 0;
    for step in 0..400 {
        let rate = goodputs(
            &mut simulation,
            (2000 + 10 * step) * PS_PER_MS,
            (2010 + 10 * step) * PS_PER_MS,
        )[0];
        quiet += u32::from(rate < 0.05);
    }
    // Three probes of some 200 ms in four seconds, less an RTT each.
    assert!((30..=100).contains(&quiet), "{quiet}");
}
