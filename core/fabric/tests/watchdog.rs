//! PFC watchdog: acts only on queues that are paused for longer than the detection time.

mod common;

use common::{GIGABIT_BPS, PS_PER_US, flow, set, simulation};
use penstock_fabric::{Simulation, generate};

const PS_PER_MS: u64 = 1000 * PS_PER_US;

/// Incast of seven hosts, six of them over a spine that the receiver's leaf pauses for some 12 us at a time.
fn start_incast(more: &[(&str, &str)]) -> Simulation {
    let topology = generate::spine_leaf(1, 4, 2, 100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000);
    let mut pairs = vec![
        ("cc", "none"),
        ("pfc_threshold", "static"),
        ("buffer", "64MB"),
        ("timeout_exponent", "8"),
        ("retries", "1000"),
    ];
    pairs.extend_from_slice(more);
    let flows = (1..8).map(|from| flow(from, 0, 3_000_000)).collect();
    simulation(&topology, &set(&pairs), flows)
}

/// Returns the number of watchdog actions and of frames dropped by them.
fn count_watchdog_actions(simulation: &Simulation) -> (u64, u64) {
    (0..simulation.network().ports.len() as u32)
        .map(|port| simulation.port_result(port))
        .fold((0, 0), |sum, port| (sum.0 + port.watchdog, sum.1 + port.watchdog_dropped))
}

#[test]
fn watchdog_acts_only_on_stuck_queues() {
    for (detect, action, helps, drops) in [
        ("0s", "forward", false, false),
        ("5us", "forward", true, false),
        ("5us", "drop", true, true),
        ("10s", "drop", false, false),
    ] {
        let mut simulation = start_incast(&[
            ("watchdog_detect", detect),
            ("watchdog_restore", "20us"),
            ("watchdog_action", action),
        ]);
        simulation.run_to_end(1000 * PS_PER_MS);
        let (times, frames) = count_watchdog_actions(&simulation);
        assert_eq!((times > 0, frames > 0), (helps, drops), "{detect} {action}: {times} {frames}");
        assert_eq!(simulation.audit(), Ok(()));
        for number in 0..7 {
            let result = simulation.flow_result(number);
            assert!(result.finished_ps.is_some(), "{detect} {action}: flow {number}");
        }
        if !helps {
            assert_eq!(simulation.counts().dropped, 0);
        }
    }
}
