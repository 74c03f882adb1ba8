//! Third-party collectors: sfcapd of nfdump and sfacctd of pmacct, where installed.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::wait_until;
use crate::lab::{Lab, THERE, inside, possible, sh};
use crate::sampler::{Collector, Sampler, send};

const PACKET_COUNT: u64 = 20_000;
const TARGET_PORT: u16 = 7001;

/// A program in the lab's namespace; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn installed(test: &str, programs: &[&str]) -> bool {
    let found = |program: &&&str| Command::new(program).arg("-V").output().is_ok();
    match programs.iter().find(|program| !found(program)) {
        Some(program) => {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Program,
                &format!("{test}: no {program} (tools/setup.sh collectors installs it)"),
            );
            false
        }
        None => possible(test),
    }
}

fn begin(lab: &Lab, program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", lab.here)).arg(program).args(arguments);
    Running(
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(),
    )
}

/// A free loopback port.
fn port(lab: &Lab) -> u16 {
    inside(&lab.here, || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

/// Waits until a process listens at the port.
fn listening(lab: &Lab, port: u16) {
    wait_until("the collector listens", Duration::from_secs(20), || {
        let free = inside(&lab.here, || UdpSocket::bind(("0.0.0.0", port)).is_ok());
        (!free).then_some(())
    });
}

/// Samples one of ten packets of 500 bytes and sends the samples to port `to`.
fn sampled(lab: &Lab, to: u16) {
    let own = Collector::new(lab);
    let both = [own.address, SocketAddr::from(([127, 0, 0, 1], to))];
    let options = ["--rate", "10", "--egress", "--agent", "192.0.2.9"];
    let sampler = Sampler::start(lab, &both, &options);
    send(lab, TARGET_PORT, PACKET_COUNT as usize);
    let (ended, _) = sampler.end();
    assert_eq!((&ended["drops"], &ended["send_errors"]), (&0.into(), &0.into()), "{ended}");
}

/// Tolerance in packets: 5.3 standard deviations of 424, exceeded by 1 of 10 million runs.
const PACKET_COUNT_TOLERANCE: f64 = 5.3 * 424.0;

/// Asserts that a collector's estimate is within the tolerance.
fn within_chance(packets: u64) {
    let off = (packets as f64 - PACKET_COUNT as f64).abs();
    assert!(off < PACKET_COUNT_TOLERANCE, "{packets} packets of {PACKET_COUNT}");
}

#[test]
fn sfcapd_counts_the_packets() {
    if !installed("sfcapd", &["sfcapd", "nfdump"]) {
        return;
    }
    let lab = Lab::new();
    let (folder, port) = (lab.dir.path().join("nf"), port(&lab));
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let mut running =
        begin(&lab, "sfcapd", &["-p", &port.to_string(), "-w", folder, "-b", "127.0.0.1"]);
    listening(&lab, port);
    sampled(&lab, port);
    // sfcapd writes its file at SIGTERM, after reading the received datagrams.
    sh(&format!("kill -TERM {}", running.0.id()));
    running.0.wait().unwrap();
    let filter = format!("proto udp and dst port {TARGET_PORT} and ipv6");
    let output = Command::new("nfdump")
        .args(["-R", folder, "-q", "-N", "-o", "fmt:%pkt,%da", "-a", &filter])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let packets: u64 =
        text.lines().filter_map(|line| line.split(',').next()?.trim().parse::<u64>().ok()).sum();
    within_chance(packets);
    assert!(text.contains(THERE), "{text}");
}

#[test]
fn sfacctd_counts_the_packets() {
    if !installed("sfacctd", &["sfacctd"]) {
        return;
    }
    let lab = Lab::new();
    let port = port(&lab);
    let file = lab.dir.path().join("sfacctd.conf");
    let printed = lab.dir.path().join("flows.csv");
    let text = format!(
        "daemonize: false\nsfacctd_ip: 127.0.0.1\nsfacctd_port: {port}\nsfacctd_renormalize: true\nplugins: print\naggregate: dst_host, dst_port, proto, peer_src_ip\nprint_output: csv\nprint_output_file: {}\nprint_output_file_append: true\nprint_refresh_time: 1\n",
        printed.display()
    );
    std::fs::write(&file, text).unwrap();
    let _running = begin(&lab, "sfacctd", &["-f", file.to_str().unwrap()]);
    listening(&lab, port);
    sampled(&lab, port);
    // sfacctd prints the packets of each second: wait until the sum is high enough.
    let packets = wait_until("packets that sfacctd prints", Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&printed).ok()?;
        let ours = text.lines().filter(|line| line.contains(&format!(",{TARGET_PORT},")));
        let sum = ours
            .map(|line| {
                assert!(line.contains("192.0.2.9") && line.contains(THERE), "{line}");
                line.rsplit(',').nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
            })
            .sum::<u64>();
        (sum as f64 > PACKET_COUNT as f64 - PACKET_COUNT_TOLERANCE).then_some(sum)
    });
    within_chance(packets);
}
