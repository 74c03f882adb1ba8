//! Properties of random networks and traffic: no loss under PFC, consistent counters, equal results for equal seeds.

mod common;

use common::PS_PER_US;
use common::case::{CONTROLS, RDMA_CONTROLS, ROUTINGS, cases};
use penstock_fabric::{FabricNetwork, RunProgress, Simulation};
use proptest::prelude::*;

/// Runs to the end in steps, each audited.
fn finish(simulation: &mut Simulation) -> Result<(), TestCaseError> {
    for _ in 0..100_000 {
        // TCP with repeated losses backs off for minutes.
        let progress = simulation.run(36_000_000_000 * PS_PER_US, 20_000);
        prop_assert_eq!(simulation.audit(), Ok(()));
        if progress != RunProgress::Running {
            prop_assert_eq!(progress, RunProgress::Done);
            return Ok(());
        }
    }
    Err(TestCaseError::fail("the run does not end"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..penstock_testkit::properties() })]

    /// The computed headroom prevents loss for any threshold, response time and latency.
    #[test]
    fn nothing_is_lost_under_pausing(
        mut case in cases(RDMA_CONTROLS),
        is_static: bool,
        response in 0_u64..4,
        latency in 0_u64..3,
        quanta in 0_usize..3,
        mtu in 0_usize..3,
        reads_high: bool,
    ) {
        let mtu = [256, 1024, 4096][mtu];
        case.settings = vec![
            ("pfc_response", format!("{response}us")),
            ("switch_latency", format!("{latency}us")),
            ("pfc_quanta", [0, 1000, 65_535][quanta].to_string()),
            ("mtu", mtu.to_string()),
            ("timeout_exponent", "0".to_owned()),
            ("buffer", "64MiB".to_owned()),
        ];
        if is_static {
            case.settings.push(("pfc_threshold", "static".to_owned()));
            case.settings.push(("pfc_xoff", "20k".to_owned()));
            case.settings.push(("pfc_xon", "15k".to_owned()));
        } else {
            case.settings.push(("pfc_alpha", "0.002".to_owned()));
        }
        if reads_high {
            case.settings.push(("weights", "1:1:1:4:2:2:1:0".to_owned()));
        }
        let mut simulation = case.simulation();
        finish(&mut simulation)?;
        let counts = simulation.counts();
        prop_assert_eq!((counts.dropped, counts.lost), (0, 0));
        for (number, flow) in simulation.flows().iter().enumerate() {
            let result = simulation.flow_result(number);
            prop_assert!(result.finished_ps.is_some(), "flow {} {:?}", number, flow);
            prop_assert_eq!(result.delivered_bytes, flow.bytes());
            prop_assert_eq!((result.packets_again, result.timeouts), (0, 0));
            let took = result.finished_ps.unwrap() - flow.start_ps;
            // The formula is exact for one message only.
            if flow.messages == 1 {
                prop_assert!(took >= result.ideal_ps, "flow {}: {} below {}", number, took, result.ideal_ps);
            }
        }
    }

    /// Without PFC and with lossy links both recoveries deliver everything, and every packet is counted.
    #[test]
    fn lost_packets_are_retransmitted_and_counted(
        mut case in cases(CONTROLS.len()),
        loss in 0_u32..30,
        burst in 1_u32..4,
        is_selective: bool,
        routing in 0..ROUTINGS.len(),
    ) {
        case.settings = vec![
            ("pfc", "false".to_owned()),
            ("queue_limit", "60k".to_owned()),
            ("timeout_exponent", "8".to_owned()),
            ("retries", "1000".to_owned()),
            ("recovery", if is_selective { "selective" } else { "go-back-n" }.to_owned()),
            ("routing", ROUTINGS[routing].to_owned()),
            ("flowlet_gap", "5us".to_owned()),
        ];
        case.bytes_max = case.bytes_max.min(60_000);
        let mut topology = case.topology();
        for link in &mut topology.links {
            link.loss = f64::from(loss) / 1000.0;
            link.loss_burst = f64::from(burst);
        }
        let plain = case.simulation();
        let network = FabricNetwork::new(&topology).unwrap();
        let mut simulation =
            Simulation::new(network, plain.parameters().clone(), plain.flows().to_vec()).unwrap();
        finish(&mut simulation)?;
        for (number, flow) in simulation.flows().iter().enumerate() {
            let result = simulation.flow_result(number);
            prop_assert_eq!(result.delivered_bytes, flow.bytes(), "{}: {:?}: {:?}", number, flow, result);
            prop_assert!(result.finished_ps.is_some());
        }
    }

    /// The same seed gives the same digest, in one call or in steps; another seed gives another digest.
    #[test]
    fn same_seed_gives_same_results(
        mut case in cases(CONTROLS.len()),
        step in 1_u64..5000,
        routing in 0..ROUTINGS.len(),
    ) {
        case.settings = vec![
            ("routing", ROUTINGS[routing].to_owned()),
            ("recovery", "selective".to_owned()),
            ("flowlet_gap", "5us".to_owned()),
        ];
        let mut whole = case.simulation();
        whole.run_to_end(60_000_000 * PS_PER_US);
        let mut steps = case.simulation();
        while steps.run(60_000_000 * PS_PER_US, step) == RunProgress::Running {}
        prop_assert_eq!(whole.digest(), steps.digest());
        prop_assert_eq!(whole.counts(), steps.counts());
        let mut other = case.clone();
        other.seed = case.seed.wrapping_add(1);
        let mut other = other.simulation();
        other.run_to_end(60_000_000 * PS_PER_US);
        prop_assert_ne!(whole.digest(), other.digest());
    }
}
