//! Rehearsals in memory and in the store, second by second.

use penstock_control::batch::BatchLimits;
use penstock_control::class::WorkClass;
use penstock_control::orders::{FaultKind, OrderFault, OrderPhase};
use penstock_control::scheduler::Planner;
use penstock_rehearsal::in_memory::{InMemoryConfig, InMemoryController};
use penstock_rehearsal::nodes::{NodeSpec, Nodes};
use penstock_testkit::topologies::TWO_SITES;
use penstock_topology::Topology;

use super::*;

const REHEARSED_SECONDS: i64 = 240;

fn config() -> Config {
    let mut config =
        Config::new(Topology::read(TWO_SITES).unwrap(), vec![WorkClass::new("default")]);
    config.batch = BatchLimits { files: 20, bytes: 1 << 40 };
    config.lost_after = std::time::Duration::from_secs(10);
    config
}

fn asked(files: usize, bytes: u64) -> NewRequest {
    NewRequest {
        class: "default".to_owned(),
        source: "cern".to_owned(),
        destination: "caltech".to_owned(),
        files: vec![bytes; files],
    }
}

/// Plays requests, a first attempt of each file that fails, an outage of a host, and a refusal. Returns what every round
/// read, and what the hosts received before it.
fn play(controller: &mut dyn ControllerApi) -> Vec<(Snapshot, Vec<Instructions>)> {
    let config = config();
    let planner = Planner::new(config.topology.clone(), config.classes.clone(), config.rules);
    let node = |name: &str| NodeSpec {
        name: name.to_owned(),
        interface: "eth0".to_owned(),
        rate_bps: 100_000_000_000,
        transfers: 3,
    };
    let mut nodes = Nodes::new(["c1", "c2", "t1", "t2"].map(node).into(), 1000);
    let mut rounds = Vec::new();
    for second in 0..REHEARSED_SECONDS {
        let now_ms = 1_795_392_000_000 + second * 1000;
        if second < 40 {
            let files = usize::try_from(second).unwrap();
            let requests = vec![asked(1 + files % 3, 1 << 30), asked(1 + 7 * files % 50, 1 << 26)];
            controller.submit(now_ms, requests).unwrap();
        }
        nodes.set_down(if (20..50).contains(&second) { &["t1"] } else { &[] });
        nodes.advance(1000);
        let mut reports = nodes.reports();
        for (host, report) in &mut reports {
            // A receiver that cannot admit its sender.
            if second == 60 && host == "t2" {
                for order in &mut report.orders {
                    order.phase = OrderPhase::Ended;
                    order.fault = Some(OrderFault {
                        kind: FaultKind::Transient,
                        text: "no space".to_owned(),
                    });
                }
            }
        }
        let hosts: Vec<String> = reports.iter().map(|(host, _)| host.clone()).collect();
        let instructions = controller.report(now_ms, reports).unwrap();
        for (host, instructions) in hosts.iter().zip(&instructions) {
            nodes
                .apply_instructions(host, instructions, |host, order| controller.order(host, order))
                .unwrap();
        }
        let mut read = None;
        controller
            .round(now_ms, &mut |snapshot| {
                read = Some(snapshot.clone());
                planner.plan(snapshot)
            })
            .unwrap();
        rounds.push((read.expect("a round reads a snapshot"), instructions));
    }
    assert_eq!(controller.open().unwrap(), 0, "all requests have ended");
    rounds
}

#[test]
fn memory_decides_as_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/rehearsal.db?mode=rwc", directory.path().display());
    let config = config();
    let mut memory = InMemoryController::new(InMemoryConfig {
        batch: config.batch,
        silence: config.silence_limits(),
        lease_seconds: config.lease_seconds,
    });
    let mut store = StoreController::open(config, &url).unwrap();
    for (second, (memory, store)) in play(&mut memory).into_iter().zip(play(&mut store)).enumerate()
    {
        assert_eq!(memory.1, store.1, "instructions of second {second}");
        assert_eq!(memory.0, store.0, "snapshot of second {second}");
    }
}
