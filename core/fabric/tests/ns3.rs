//! Comparison with ns-3 3.37 of Debian (`tools/setup.sh ns3`): packets over two links to the picosecond, and CUBIC on a
//! bottleneck with a short queue. Skipped if ns-3 or a compiler is not installed.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{GIGABIT_BPS, flow, run, set};
use penstock_fabric::{FlowSpec, RdmaOperation, generate};
use penstock_topology::Topology;
use penstock_units::BitRate;

const LIBRARIES: [&str; 6] =
    ["core", "network", "internet", "point-to-point", "applications", "traffic-control"];

/// Builds the ns-3 program; reports a skipped test and returns none if ns-3 or g++ is not installed.
fn build_peer() -> Option<PathBuf> {
    if !Path::new("/usr/include/ns3/core-module.h").exists() {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "ns-3 is not installed (tools/setup.sh ns3)",
        );
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/ns3/peer.cc");
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("peer-{}", std::process::id()));
    let built = Command::new("g++")
        .args(["-O1", "-std=c++17"])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(LIBRARIES.map(|library| format!("-lns3-{library}")))
        .output();
    match built {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Program,
                &format!("g++ does not start: {error}"),
            );
            None
        }
    }
}

/// Extracts a number from the JSON output of the program.
fn number(text: &str, name: &str) -> u64 {
    let (_, rest) = text.split_once(&format!("\"{name}\":")).expect(name);
    let end = rest.find([',', '}']).expect("end of the number");
    rest[..end].parse().expect("integer")
}

fn run_peer(peer: &Path, arguments: &[&str]) -> String {
    let output = Command::new(peer).args(arguments).output().expect("run the ns-3 program");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8 output")
}

/// Two hosts on a switch; the second has a link of rate `slower`.
fn build_bottleneck(rate: u64, slower: u64, delay_ns: u64) -> Topology {
    let mut topology = generate::star(2, rate, delay_ns);
    topology.links[1].rate = BitRate(slower);
    topology
}

#[test]
fn timing_and_tcp_match_ns3() {
    let Some(peer) = build_peer() else { return };

    // Frames of 1000 bytes, including preamble and inter-packet gap.
    for packets in [1_u64, 2, 1000] {
        let theirs = run_peer(&peer, &["udp", &packets.to_string()]);
        let parameters = set(&[
            ("cc", "none"),
            ("mtu", "918"),
            ("ack_every", "4096"),
            ("timeout_exponent", "0"),
        ]);
        let one = FlowSpec { operation: RdmaOperation::Send, ..flow(0, 1, 918 * packets) };
        let ours = run(
            &build_bottleneck(100 * GIGABIT_BPS, 100 * GIGABIT_BPS, 1000),
            &parameters,
            vec![one],
        );
        assert_eq!(ours.flow_result(0).arrived_ps, Some(number(&theirs, "last_ps")), "{packets}");
        assert_eq!(number(&theirs, "hops"), 2 * packets);
    }

    // The BDP is 162 packets. With a queue of a sixth of it ns-3 loses packets again in the burst at the end of its
    // recovery and, without the Reno-friendly region of RFC 9438, takes seconds to fill the line again.
    for queue in [400_u64, 150, 80, 50] {
        let segments = 40_000_u64;
        let theirs = run_peer(&peer, &["tcp", &segments.to_string(), &queue.to_string()]);
        let limit = (queue * 1518).to_string();
        let parameters =
            set(&[("cc", "cubic"), ("mtu", "1448"), ("queue_limit", &limit), ("buffer", "1GB")]);
        let all = vec![flow(0, 1, 1448 * segments)];
        let ours =
            run(&build_bottleneck(GIGABIT_BPS, GIGABIT_BPS / 10, 5_000_000), &parameters, all);
        let theirs_ps = number(&theirs, "last_ps") - number(&theirs, "first_ps");
        let ours_ps = ours.flow_result(0).arrived_ps.expect("flow arrived");
        assert!(ours.counts().dropped > 40, "slow start overflows the queue");
        let apart = (ours_ps as f64 / theirs_ps as f64 - 1.0).abs();
        assert!(apart < 0.005, "{queue} packets: {ours_ps} ps and ns-3 {theirs_ps} ps");
    }
    std::fs::remove_file(&peer).expect("remove the ns-3 program");
}
