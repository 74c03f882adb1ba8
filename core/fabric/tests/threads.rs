//! Parallel runs: results are bit-identical for any number of regions and threads.

mod common;

use common::case::{CONTROLS, Case, ROUTINGS, cases};
use common::{GIGABIT_BPS, PS_PER_US, flow, run_by, set};
use penstock_fabric::{
    FabricNetwork, FailureChange, FailurePart, RunProgress, Simulation, generate,
};
use penstock_random::Random;
use penstock_topology::Topology;
use proptest::prelude::*;

const PS_PER_MS: u64 = 1000 * PS_PER_US;
/// TCP with repeated losses backs off for minutes.
const RUN_END_PS: u64 = 3_600_000 * PS_PER_MS;

/// Formats everything that a caller can observe of a run.
fn observe(simulation: &Simulation) -> Vec<String> {
    let network = simulation.network();
    let mut seen = vec![
        format!("{:016x} at {}", simulation.digest(), simulation.now_ps()),
        format!("{:?} {}", simulation.counts(), simulation.active()),
        format!("{:?}", simulation.cyclic_waits()),
        format!("{:?}", simulation.pause_records()),
    ];
    seen.extend((0..simulation.flows().len()).map(|f| format!("{:?}", simulation.flow_result(f))));
    for port in 0..network.ports.len() as u32 {
        let waiting: Vec<u64> = (0..8).map(|p| simulation.ingress_bytes(port, p)).collect();
        let (result, queue) = (simulation.port_result(port), simulation.queue_bytes(port));
        let bins = simulation.queue_bins(port);
        seen.push(format!("{} {result:?} {queue} {waiting:?} {bins:?}", network.show_port(port)));
    }
    seen.extend(
        (0..network.nodes.len() as u32).map(|n| format!("{:?}", simulation.switch_result(n))),
    );
    seen
}

/// Failures and repairs of two links, a switch and a host.
fn changes(topology: &Topology, seed: u64) -> Vec<FailureChange> {
    let mut random = Random::stream(seed, "changes", 0);
    let hosts = topology.hosts().count() as u64;
    let switches = topology.nodes.len() as u64 - hosts;
    let links = topology.links.len() as u64;
    let parts = [
        FailurePart::Link(random.below(links) as u32),
        FailurePart::Link(random.below(links) as u32),
        FailurePart::Switch((hosts + random.below(switches)) as u32),
        FailurePart::Host(random.below(hosts) as u32),
    ];
    let mut changes = Vec::new();
    for part in parts {
        let at_ps = random.below(60 * PS_PER_US);
        changes.push(FailureChange { at_ps, part, is_up: false });
        changes.push(FailureChange {
            at_ps: at_ps + 1 + random.below(40 * PS_PER_US),
            part,
            is_up: true,
        });
    }
    changes
}

/// Runs a case on threads in regions, in steps of `step` events.
fn run(
    case: &Case,
    topology: &Topology,
    fails: bool,
    (regions, threads, step): (usize, usize, u64),
) -> (RunProgress, Vec<String>) {
    let mut simulation = case.divided(topology, regions);
    simulation.record_pauses();
    simulation.sample_queues(PS_PER_US / 2, 3 * PS_PER_US, 40 * PS_PER_US);
    if fails {
        simulation.change(&changes(topology, case.seed));
    }
    let mut progress = RunProgress::Running;
    while progress == RunProgress::Running {
        progress = run_by(threads, &mut simulation, RUN_END_PS, step);
        assert_eq!(simulation.audit(), Ok(()));
    }
    (progress, observe(&simulation))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..penstock_testkit::properties() })]

    #[test]
    fn results_are_independent_of_threads(
        mut case in cases(CONTROLS.len()),
        loss in 0_u32..20,
        fails: bool,
        has_pausing: bool,
        is_selective: bool,
        routing in 0..ROUTINGS.len(),
        quanta in 0_usize..3,
        watchdog: bool,
        latency in 0_u64..3,
        step in 500_u64..20_000,
    ) {
        case.settings = vec![
            ("pfc", has_pausing.to_string()),
            ("pfc_alpha", "0.002".to_owned()),
            ("pfc_quanta", [0, 1000, 65_535][quanta].to_string()),
            ("buffer", "64MiB".to_owned()),
            ("timeout_exponent", "8".to_owned()),
            ("retries", "50".to_owned()),
            ("recovery", if is_selective { "selective" } else { "go-back-n" }.to_owned()),
            ("routing", ROUTINGS[routing].to_owned()),
            ("flowlet_gap", "5us".to_owned()),
            ("reroute", "7us".to_owned()),
            ("switch_latency", format!("{latency}us")),
            ("deadlock_check", ["0", "1us", "100us"][quanta].to_owned()),
        ];
        if watchdog {
            case.settings.push(("watchdog_detect", "10us".to_owned()));
            case.settings.push(("watchdog_restore", "20us".to_owned()));
        }
        case.bytes_max = case.bytes_max.min(100_000);
        let mut topology = case.topology();
        for link in &mut topology.links {
            link.loss = f64::from(loss) / 1000.0;
        }
        let one = run(&case, &topology, fails, (1, 1, step));
        for (regions, threads) in [(2, 2), (3, 3), (4, 4), (9, 2), (5, 1)] {
            let other = run(&case, &topology, fails, (regions, threads, step));
            for (mine, others) in one.1.iter().zip(&other.1) {
                prop_assert_eq!(mine, others, "{} regions, {} threads", regions, threads);
            }
            prop_assert_eq!(&one, &other);
        }
    }
}

/// A run stopped at any time has the same state for any number of regions, and continues with the same results.
#[test]
fn run_stops_at_any_time() {
    let topology = generate::fat_tree(4, 1.0, 100 * GIGABIT_BPS, 1000);
    let result = |regions: usize, threads: usize| {
        let network = FabricNetwork::new(&topology).unwrap();
        let flows = (0..16).map(|host| flow(host, (host + 5) % 16, 300_000)).collect();
        let mut simulation =
            Simulation::divided(network, set(&[("cc", "hpcc")]), flows, regions).unwrap();
        assert_eq!(simulation.regions(), regions);
        let mut all = Vec::new();
        for step in 1..40 {
            run_by(threads, &mut simulation, step * 1_234_567, u64::MAX);
            assert_eq!(simulation.audit(), Ok(()));
            all.push(observe(&simulation));
        }
        all
    };
    let one = result(1, 1);
    assert!(one == result(2, 2) && one == result(4, 3) && one == result(7, 2));
}

/// A dropped worker does not leave the others waiting.
#[test]
fn worker_panics_when_another_is_missing() {
    let network = FabricNetwork::new(&generate::fat_tree(4, 1.0, GIGABIT_BPS, 1000)).unwrap();
    let flows = vec![flow(0, 15, 1_000_000)];
    let mut simulation = Simulation::divided(network, set(&[]), flows, 2).unwrap();
    let mut workers = simulation.workers(2, u64::MAX, u64::MAX);
    assert_eq!(workers.len(), 2);
    drop(workers.pop());
    let other = workers.pop().unwrap();
    assert!(std::thread::scope(|scope| scope.spawn(|| other.run()).join()).is_err());
}
