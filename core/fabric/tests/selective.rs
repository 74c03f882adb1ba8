//! Selective repeat: what is lost is sent again and nothing else, for writes, sends and reads, so that a fabric without
//! pausing does not collapse.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, run, set, simulation};
use penstock_fabric::{Change, Operation, Part, Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;
const OPERATIONS: [Operation; 3] = [Operation::Write, Operation::Send, Operation::Read];

/// Without losses nothing is other than with go-back-N.
#[test]
fn lone_flow_takes_ideal_time() {
    let topology = generate::spine_leaf(2, 2, 2, 25 * GIGABIT_BPS, 100 * GIGABIT_BPS, 50);
    for operation in [Operation::Write, Operation::Send] {
        for bytes in [1, 1024, 65_536, 1_000_000] {
            let parameters = set(&[
                ("cc", "none"),
                ("recovery", "selective"),
                ("ack_every", "4096"),
                ("selective_window", "0"),
                ("selective_timeout_high", "1s"),
            ]);
            let one = penstock_fabric::Flow { operation, ..flow(0, 2, bytes) };
            let done = run(&topology, &parameters, vec![one]);
            let result = done.flow_result(0);
            assert_eq!(result.finished_ps, Some(result.ideal_ps), "{operation:?} {bytes}");
        }
    }
}

/// A line that is down for 1 us takes some dozen packets with it: these are sent again, one by one; go-back-N sends what
/// was under way behind them, too.
#[test]
fn only_lost_packets_are_resent() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    let cut = |recovery: &str, operation: Operation| {
        let parameters = set(&[
            ("cc", "none"),
            ("recovery", recovery),
            ("timeout_exponent", "8"),
            ("pfc", "false"),
        ]);
        let one = penstock_fabric::Flow { operation, ..flow(0, 1, 10_000_000) };
        let mut simulation = simulation(&topology, &parameters, vec![one]);
        let change = |at_ps, is_up| Change {
            at_ps,
            part: Part::Link(u32::from(operation != Operation::Read)),
            is_up,
        };
        simulation.change(&[change(200 * PS_PER_US, false), change(201 * PS_PER_US, true)]);
        simulation.run_to_end(1000 * PS_PER_MS);
        assert_eq!(simulation.audit(), Ok(()));
        let result = simulation.flow_result(0);
        assert_eq!(result.delivered_bytes, 10_000_000, "{recovery} {operation:?}");
        let data = result.packets_again;
        (data, simulation.counts().lost + simulation.counts().dropped, result.timeouts)
    };
    for operation in OPERATIONS {
        let (again, gone, timeouts) = cut("selective", operation);
        // Acknowledgements, or requests, on the line are lost, too.
        assert!(again > 5 && again <= gone, "{operation:?}: {again} again, {gone} lost");
        assert_eq!(timeouts, 0, "{operation:?}");
        let (all, ..) = cut("go-back-n", operation);
        assert!(all > again + 20, "{operation:?}: {all} and {again}");
    }
}

/// Seven hosts send to one over queues of 600 kB that drop.
fn incast(operation: Operation, more: &[(&str, &str)]) -> Simulation {
    let topology = generate::star(8, 100 * GIGABIT_BPS, 1000);
    let mut pairs = vec![
        ("pfc", "false"),
        ("queue_limit", "600k"),
        ("timeout_exponent", "8"),
        ("retries", "1000"),
    ];
    pairs.extend_from_slice(more);
    let flows = (1..8)
        .map(|host| {
            let (from, to) = if operation == Operation::Read { (0, host) } else { (host, 0) };
            penstock_fabric::Flow { operation, ..flow(from, to, 10_000_000) }
        })
        .collect();
    let mut simulation = simulation(&topology, &set(&pairs), flows);
    simulation.run_to_end(10_000 * PS_PER_MS);
    assert_eq!(simulation.audit(), Ok(()));
    simulation
}

fn finished_ps(simulation: &Simulation) -> u64 {
    (0..7).map(|f| simulation.flow_result(f).finished_ps.expect("it is done")).max().unwrap_or(0)
}

/// 70 MB take 6.05 ms of the line. With selective repeat an incast without pausing takes little more, with and without
/// congestion control; with go-back-N and DCQCN it collapses.
#[test]
fn incast_without_pfc_does_not_collapse() {
    let line = 7 * 10_000_000 * 1106 / 1024 * 80;
    for cc in ["none", "dcqcn"] {
        for operation in OPERATIONS {
            let few = incast(
                operation,
                &[("cc", cc), ("recovery", "selective"), ("selective_window", "0")],
            );
            let windowed = incast(operation, &[("cc", cc), ("recovery", "selective")]);
            let back = incast(operation, &[("cc", cc), ("recovery", "go-back-n")]);
            let times = [&few, &windowed, &back].map(finished_ps);
            assert!(few.counts().dropped > 0, "{cc} {operation:?}");
            assert!(
                times[0] < line * 12 / 10 && times[1] < line * 11 / 10,
                "{cc} {operation:?}: {times:?}"
            );
            if cc == "dcqcn" {
                assert!(times[2] > line * 3 / 2, "{operation:?}: {times:?}");
            }
        }
    }
}

/// Every congestion control ends an incast into small queues.
#[test]
fn every_control_completes_lossy_incast() {
    for cc in ["none", "dcqcn", "dcqcn-paper", "hpcc", "dctcp", "timely", "swift", "cubic", "bbr"] {
        let more = [("cc", cc), ("recovery", "selective"), ("queue_limit", "100k")];
        let done = incast(Operation::Write, &more);
        // TCP waits 200 ms where the end of a window is lost.
        let most = if ["cubic", "bbr"].contains(&cc) { 5000 * PS_PER_MS } else { 8 * PS_PER_MS };
        assert!(finished_ps(&done) < most, "{cc}: {} us", finished_ps(&done) / PS_PER_US);
        assert!(done.counts().dropped > 0, "{cc}");
    }
}
