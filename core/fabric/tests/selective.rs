//! Selective repeat: retransmits only lost packets of writes, sends and reads, and avoids congestion collapse without
//! PFC.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, run, set, simulation};
use penstock_fabric::{FailureChange, FailurePart, RdmaOperation, Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;
const OPERATIONS: [RdmaOperation; 3] =
    [RdmaOperation::Write, RdmaOperation::Send, RdmaOperation::Read];

/// Without loss, selective repeat takes the same time as go-back-N.
#[test]
fn lone_flow_takes_ideal_time() {
    let topology = generate::spine_leaf(2, 2, 2, 25 * GIGABIT_BPS, 100 * GIGABIT_BPS, 50);
    for operation in [RdmaOperation::Write, RdmaOperation::Send] {
        for bytes in [1, 1024, 65_536, 1_000_000] {
            let parameters = set(&[
                ("cc", "none"),
                ("recovery", "selective"),
                ("ack_every", "4096"),
                ("selective_window", "0"),
                ("selective_timeout_high", "1s"),
            ]);
            let one = penstock_fabric::FlowSpec { operation, ..flow(0, 2, bytes) };
            let done = run(&topology, &parameters, vec![one]);
            let result = done.flow_result(0);
            assert_eq!(result.finished_ps, Some(result.ideal_ps), "{operation:?} {bytes}");
        }
    }
}

/// A link failure of 1 us loses some dozen packets: selective repeat retransmits these, go-back-N also all later
/// packets in flight.
#[test]
fn only_lost_packets_are_resent() {
    let topology = generate::star(2, 100 * GIGABIT_BPS, 1000);
    let cut = |recovery: &str, operation: RdmaOperation| {
        let parameters = set(&[
            ("cc", "none"),
            ("recovery", recovery),
            ("timeout_exponent", "8"),
            ("pfc", "false"),
        ]);
        let one = penstock_fabric::FlowSpec { operation, ..flow(0, 1, 10_000_000) };
        let mut simulation = simulation(&topology, &parameters, vec![one]);
        let change = |at_ps, is_up| FailureChange {
            at_ps,
            part: FailurePart::Link(u32::from(operation != RdmaOperation::Read)),
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
        // Acknowledgements or read requests on the link are lost, too.
        assert!(again > 5 && again <= gone, "{operation:?}: {again} retransmitted, {gone} lost");
        assert_eq!(timeouts, 0, "{operation:?}");
        let (all, ..) = cut("go-back-n", operation);
        assert!(all > again + 20, "{operation:?}: {all} and {again}");
    }
}

/// Seven hosts send to one over a lossy queue of 600 kB.
fn incast(operation: RdmaOperation, more: &[(&str, &str)]) -> Simulation {
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
            let (from, to) = if operation == RdmaOperation::Read { (0, host) } else { (host, 0) };
            penstock_fabric::FlowSpec { operation, ..flow(from, to, 10_000_000) }
        })
        .collect();
    let mut simulation = simulation(&topology, &set(&pairs), flows);
    simulation.run_to_end(10_000 * PS_PER_MS);
    assert_eq!(simulation.audit(), Ok(()));
    simulation
}

fn finished_ps(simulation: &Simulation) -> u64 {
    (0..7)
        .map(|f| simulation.flow_result(f).finished_ps.expect("flow completed"))
        .max()
        .unwrap_or(0)
}

/// 70 MB take 6.05 ms at line rate. With selective repeat a lossy incast takes little more, with and without congestion
/// control; with go-back-N and DCQCN goodput collapses.
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

/// Every congestion control completes an incast into small lossy queues.
#[test]
fn every_control_completes_lossy_incast() {
    for cc in ["none", "dcqcn", "dcqcn-paper", "hpcc", "dctcp", "timely", "swift", "cubic", "bbr"] {
        let more = [("cc", cc), ("recovery", "selective"), ("queue_limit", "100k")];
        let done = incast(RdmaOperation::Write, &more);
        // TCP waits for an RTO of 200 ms if the tail of a window is lost.
        let most = if ["cubic", "bbr"].contains(&cc) { 5000 * PS_PER_MS } else { 8 * PS_PER_MS };
        assert!(finished_ps(&done) < most, "{cc}: {} us", finished_ps(&done) / PS_PER_US);
        assert!(done.counts().dropped > 0, "{cc}");
    }
}
