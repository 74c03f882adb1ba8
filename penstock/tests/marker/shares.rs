//! Share of packets that carry their tag, by case; prints the table.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::wait_until;
use crate::lab::{HERE, Lab, Packet, THERE, inside, labelled, possible, sh};

const CMS_INPUT_LABEL: u32 = 0x30038;
const OPTION: &str = "00030e";

pub(crate) fn rule(method: &str) -> String {
    format!(
        "[[rule]]\nscitag = \"cms/analysis-input\"\nlabel = \"{method}\"\nsource = \"{HERE}\"\nprotocol = \"tcp\"\n\
         [[rule]]\nscitag = \"cms/analysis-input\"\nlabel = \"{method}\"\nsource = \"{HERE}\"\nprotocol = \"udp\"\n"
    )
}

#[derive(Default)]
struct Case {
    name: &'static str,
    method: &'static str,
    mtu: u32,
    gso: bool,
    big: bool,
    ecn: bool,
    class: Option<u32>,
    iperf: &'static str,
}

const CASE: Case = Case {
    name: "",
    method: "flow",
    mtu: 1500,
    gso: true,
    big: false,
    ecn: false,
    class: None,
    iperf: "-n 24M",
};

/// Prints the row of a case; returns the number of packets and of labelled ones.
fn share(name: &str, method: &str, packets: &[Packet]) -> (usize, usize) {
    let ours: Vec<&Packet> =
        packets.iter().filter(|packet| packet.source == HERE && packet.source_port != 0).collect();
    let good = |packet: &&&Packet| {
        let label = method == "destination" || packet.has_label(CMS_INPUT_LABEL);
        let option = method == "flow" || packet.has_option(OPTION);
        label && option
    };
    let labelled = ours.iter().filter(good).count();
    println!(
        "| {name:<44} | {:>8} | {labelled:>8} | {:>6.2} % |",
        ours.len(),
        100.0 * labelled as f64 / ours.len().max(1) as f64
    );
    (ours.len(), labelled)
}

fn cases() -> Vec<Case> {
    vec![
        Case { name: "label, MTU 1500, GSO on", ..CASE },
        Case { name: "label, MTU 1500, GSO off", gso: false, ..CASE },
        Case { name: "label, MTU 9000, GSO on", mtu: 9000, ..CASE },
        Case { name: "label, MTU 9000, GSO off", mtu: 9000, gso: false, ..CASE },
        Case {
            name: "label, MTU 9000, BIG TCP",
            mtu: 9000,
            big: true,
            iperf: "-n 64M -l 1M",
            ..CASE
        },
        Case { name: "label, ECN", ecn: true, ..CASE },
        Case {
            name: "label, DSCP EF, ECN",
            ecn: true,
            class: Some(0xB8),
            iperf: "-n 24M --dscp ef",
            ..CASE
        },
        Case { name: "label, 32 connections", iperf: "-n 24M -P 32", ..CASE },
        Case { name: "label, reverse: acknowledgements", iperf: "-n 24M -R", ..CASE },
        Case { name: "label, UDP", iperf: "-u -b 1G -n 8M", ..CASE },
        Case { name: "destination, MTU 1500, GSO on", method: "destination", ..CASE },
        Case { name: "destination, MTU 1500, GSO off", method: "destination", gso: false, ..CASE },
        Case { name: "destination, MTU 9000, GSO on", method: "destination", mtu: 9000, ..CASE },
        Case {
            name: "destination, MTU 9000, GSO off",
            method: "destination",
            mtu: 9000,
            gso: false,
            ..CASE
        },
        Case {
            name: "destination, 32 connections",
            method: "destination",
            iperf: "-n 24M -P 32",
            ..CASE
        },
        Case { name: "destination, reverse", method: "destination", iperf: "-n 24M -R", ..CASE },
        Case {
            name: "both, ECN, DSCP EF",
            method: "both",
            ecn: true,
            class: Some(0xB8),
            iperf: "-n 24M --dscp ef",
            ..CASE
        },
    ]
}

/// A lab set up for a case.
fn prepared(case: &Case) -> Lab {
    let lab = Lab::new();
    lab.on_both(&format!("ip link set pm0 mtu {}", case.mtu));
    lab.on_both(&format!("sysctl -q -w net.ipv4.tcp_ecn={}", if case.ecn { 1 } else { 0 }));
    if !case.gso {
        lab.on_both("ethtool -K pm0 tso off gso off gro off");
    }
    if case.big {
        lab.on_both("ip link set pm0 gso_max_size 190000 gro_max_size 190000");
    }
    lab
}

/// Prints the same table for flowd-go, which marks everything; `PENSTOCK_FLOWD_GO` names its binary.
#[test]
fn flowd_go_beside_it() {
    let Some(binary) = std::env::var_os("PENSTOCK_FLOWD_GO") else {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "flowd-go: PENSTOCK_FLOWD_GO names no binary",
        );
        return;
    };
    if !possible("flowd-go") {
        return;
    }
    println!("| {:<44} | {:>8} | {:>8} | {:>8} |", "flowd-go", "packets", "labelled", "share");
    for case in cases().into_iter().filter(|case| case.method != "both") {
        let lab = prepared(&case);
        let strategy = if case.method == "flow" { "label" } else { "destination" };
        let dir = lab.dir.path().display();
        let text = format!(
            "pidPath: {dir}/pid\nworkDir: {dir}\nplugins:\n  perfsonar:\n    activityId: 14\n    experimentId: 3\nbackends:\n  marker:\n    targetInterfaces: [\"pm0\"]\n    markingStrategy: {strategy}\n    matchAll: true\n"
        );
        let file = lab.dir.path().join("conf.yaml");
        std::fs::write(&file, text).unwrap();
        let mut marker = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", lab.here))
            .arg(&binary)
            .args(["run", "--conf"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("its filter", Duration::from_secs(20), || {
            let shown =
                sh(&format!("nsenter --net=/run/netns/{} tc filter show dev pm0 egress", lab.here));
            shown.contains("bpf").then_some(())
        });
        let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} {}", case.iperf)));
        let (all, good) = share(case.name, case.method, &packets);
        let ours = || packets.iter().filter(|packet| packet.source == HERE && packet.length > 1000);
        if case.ecn && !ours().any(|packet| packet.class & 3 == 2) {
            println!("| {:<44} | ECN is gone", "");
        }
        if case.class.is_some_and(|class| !ours().any(|packet| packet.class & 0xFC == class)) {
            println!("| {:<44} | DSCP is gone", "");
        }
        assert!(good <= all);
        marker.kill().unwrap();
        marker.wait().unwrap();
    }
}

#[test]
fn every_packet_of_connection_is_labelled() {
    if !possible("shares of labelled packets") {
        return;
    }
    let cases = cases();
    println!("| {:<44} | {:>8} | {:>8} | {:>8} |", "case", "packets", "labelled", "share");
    let mut faults = Vec::new();
    for case in cases {
        let mut lab = prepared(&case);
        let here = lab.here.clone();
        let marker = lab.marker(&here, "m", &rule(case.method), &[]);
        let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} {}", case.iperf)));
        let (all, good) = share(case.name, case.method, &packets);
        let mut check = |good: bool, words: &str| {
            if !good {
                faults.push(format!("{}: {words}", case.name));
            }
        };
        check(good == all && all > 100, &format!("{good} of {all}"));
        let ours =
            || packets.iter().filter(|packet| packet.source == HERE && packet.source_port != 0);
        // The control connection of iperf3 has no class.
        let data = || ours().filter(|packet| packet.length > 1000);
        if let Some(class) = case.class {
            check(data().any(|packet| packet.class & 0xFC == class), "the class is gone");
        } else {
            check(ours().all(|packet| packet.class & 0xFC == 0), "a class has appeared");
        }
        if case.ecn {
            check(data().any(|packet| packet.class & 3 == 2), "ECT is gone");
            check(data().all(|packet| packet.class & 3 != 3), "congestion has appeared");
        } else {
            check(ours().all(|packet| packet.class & 3 == 0), "ECN has appeared");
        }
        check(data().all(|packet| packet.length <= case.mtu + 14 || case.gso), "beyond the MTU");
        if case.big {
            check(data().any(|packet| packet.length > 70_000), "no packet was BIG TCP's");
        }
        let runts = data().filter(|packet| packet.length < 1400).count();
        if !case.gso && case.method == "destination" {
            check(runts * 20 < all, &format!("{runts} runts"));
        }
        drop(marker);
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn kernel_counters_match_the_wire() {
    if !possible("counters") {
        return;
    }
    for method in ["flow", "destination"] {
        let mut lab = Lab::new();
        let here = lab.here.clone();
        // Without GRO and TSO the capture has the segments of the wire.
        lab.on_both("ethtool -K pm0 gro off");
        sh(&format!("nsenter --net=/run/netns/{here} ethtool -K pm0 tso off"));
        let marker = lab.marker(&here, "m", &rule(method), &[]);
        let packets = lab.capture_in(&here, || lab.iperf(&format!("-6 -c {THERE} -n 16M")));
        let ours: Vec<&Packet> = packets
            .iter()
            .filter(|packet| packet.source == HERE && packet.has_port(5201))
            .collect();
        let bytes: u64 = ours.iter().map(|packet| u64::from(packet.length)).sum();
        let status = lab.status("m");
        let counted = &status["labelled"][0];
        assert_eq!(counted["packets"], ours.len(), "{status}");
        assert_eq!(counted["bytes"], bytes, "{method}: {status}");
        marker.end();
    }
}

#[test]
fn short_connections_are_labelled_both_ways() {
    if !possible("short connections") {
        return;
    }
    let mut lab = Lab::new();
    let (here, there) = (lab.here.clone(), lab.there.clone());
    let one = lab.marker(&here, "one", &rule("flow"), &[]);
    let back = rule("flow").replace(HERE, THERE).replace("analysis-input", "cache");
    let other = lab.marker(&there, "other", &back, &[]);
    let packets = lab.capture(|| {
        let listener = inside(&there, || TcpListener::bind((THERE, 0)).unwrap());
        let port = listener.local_addr().unwrap().port();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut stream = listener.accept().unwrap().0;
                    let mut text = Vec::new();
                    stream.read_to_end(&mut text).unwrap();
                    stream.write_all(&text).unwrap();
                }
            });
            inside(&here, || {
                for _ in 0..200 {
                    let mut stream = TcpStream::connect((THERE, port)).unwrap();
                    stream.write_all(b"a short message").unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    stream.read_to_end(&mut Vec::new()).unwrap();
                }
            });
        });
    });
    let (all, good) = share("label, 200 short connections", "flow", &packets);
    assert!(all >= 200 * 4 && good == all, "{good} of {all}");
    let back: Vec<&Packet> =
        packets.iter().filter(|packet| packet.source == THERE && packet.source_port != 0).collect();
    let cache = 0x3000C;
    assert!(back.len() >= 200 * 3 && back.iter().all(|packet| packet.has_label(cache)));
    drop((one, other));
}

/// The kernel keeps the tag of a VLAN device in the skb, outside of the packet.
#[test]
fn vlan_device_packets_are_labelled() {
    if !possible("VLAN devices") {
        return;
    }
    for method in ["flow", "destination", "both"] {
        let mut lab = Lab::new();
        let here = lab.here.clone();
        for (ns, last) in [(&lab.here, 1), (&lab.there, 2)] {
            let add = format!("-n {ns} link add link pm0 name pm0.7 type vlan id 7");
            if !Command::new("ip").args(add.split(' ')).output().unwrap().status.success() {
                penstock_testkit::skip(
                    penstock_testkit::Requirement::Kernel,
                    "VLAN devices: this kernel has none (module 8021q)",
                );
                return;
            }
            sh(&format!("ip -n {ns} addr add fd00:78::{last}/64 dev pm0.7 nodad"));
            sh(&format!("ip -n {ns} link set pm0.7 up"));
        }
        let vlan = |text: &str| text.replace("fd00:77::", "fd00:78::");
        for device in ["pm0", "pm0.7"] {
            let rules = vlan(&rule(method));
            let pin = device.replace('.', "-");
            let marker = lab.marker_on(device, &here, &pin, &rules, &[]);
            let packets = lab.capture(|| lab.iperf("-6 -c fd00:78::2 -n 8M"));
            let packets: Vec<Packet> = packets
                .into_iter()
                .filter(|packet| packet.source.starts_with("fd00:78::"))
                .map(|packet| Packet { source: packet.source.replace("78", "77"), ..packet })
                .collect();
            let (all, good) = share(&format!("{method}, VLAN, at {device}"), method, &packets);
            assert!(all > 50 && good == all, "{device}, {method}: {good} of {all}");
            marker.end();
            let stopped = lab.tag(&here).args(["stop", "--pin"]).arg(lab.pin(&pin)).output();
            assert!(stopped.unwrap().status.success());
        }
    }
}

#[test]
fn options_fit_narrow_local_mtu() {
    if !possible("narrow ways") {
        return;
    }
    for (name, command) in [
        ("destination, MTU 1500 here, 9000 there", "ip link set pm0 mtu 1500"),
        ("destination, a route of MTU 1400", "ip -6 route replace fd00:77::/64 dev pm0 mtu 1400"),
    ] {
        let mut lab = Lab::new();
        let here = lab.here.clone();
        lab.on_both("ip link set pm0 mtu 9000");
        sh(&format!("nsenter --net=/run/netns/{here} {command}"));
        let marker = lab.marker(&here, "m", &rule("destination"), &[]);
        let packets = lab.capture(|| lab.iperf(&format!("-6 -c {THERE} -n 24M")));
        let (all, good) = share(name, "destination", &packets);
        assert!(all > 100 && good == all, "{name}: {good} of {all}: {}", lab.status("m"));
        drop(marker);
    }
}

#[test]
fn unlabelled_ipv4_is_counted() {
    if !possible("IPv4") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let marker = lab.marker(&here, "m", &rule("both"), &[]);
    let packets = lab.capture(|| lab.iperf("-4 -c 10.77.0.2 -n 4M"));
    assert!(packets.iter().any(|packet| packet.v4));
    let status = lab.status("m");
    assert!(labelled(&status).is_empty(), "{status}");
    assert!(status["not_labelled"]["ipv4"]["packets"].as_u64().unwrap() > 50, "{status}");
    drop(marker);
}

/// Runs a Python program, for packets that Rust's standard library cannot send.
fn python(ns: &str, program: &str) -> bool {
    let output = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{ns}"))
        .args(["python3", "-c", program])
        .output();
    match output {
        Err(_) => false,
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            true
        }
    }
}

#[test]
fn labels_with_extension_headers_and_fragments() {
    if !possible("extension headers") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let by_port = format!(
        "[[rule]]\nscitag = \"3/14\"\nlabel = \"both\"\ndestination = \"{THERE}\"\ndestination_port = 9999\n"
    );
    let marker = lab.marker(&here, "m", &by_port, &[]);
    let _there = inside(&lab.there, || UdpSocket::bind((THERE, 9999)).unwrap());
    let headers = format!(
        "import socket\n\
         for options in [[54], [59], [54, 59]]:\n\
         \x20 s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
         \x20 for option in options: s.setsockopt(41, option, bytes([0,0,1,4,0,0,0,0]))\n\
         \x20 s.sendto(b'x' * 100, ('{THERE}', 9999))\n\
         s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
         s.sendto(b'x' * 4000, ('{THERE}', 9999))\n"
    );
    let mut ran = true;
    let packets = lab.capture(|| ran = python(&here, &headers));
    if !ran {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "extension headers: no python3",
        );
        return;
    }
    let ours: Vec<&Packet> = packets.iter().filter(|packet| packet.source == HERE).collect();
    let whole: Vec<_> =
        ours.iter().filter(|packet| !packet.fragment && packet.has_port(9999)).collect();
    assert!(
        whole.len() == 3 && whole.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL)),
        "{packets:?}"
    );
    let fragments: Vec<_> = ours.iter().filter(|packet| packet.fragment).collect();
    assert_eq!(fragments.len(), 3, "{packets:?}");
    // Only the first fragment has ports.
    assert_eq!(
        fragments.iter().filter(|packet| packet.has_label(CMS_INPUT_LABEL)).count(),
        1,
        "{fragments:?}"
    );
    let status = lab.status("m");
    assert!(status["not_labelled"]["unsupported"]["packets"].as_u64().unwrap() >= 3, "{status}");

    // One and two VLAN tags in the frame.
    let frames = format!(
        "import socket, struct\n\
         s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
         s.bind(('pm0', 0))\n\
         a, b = (socket.inet_pton(socket.AF_INET6, x) for x in ('{HERE}', '{THERE}'))\n\
         udp = struct.pack('!HHHH', 5, 9999, 12, 0xFFFF) + b'data'\n\
         ip = struct.pack('!IHBB', 0x6B800000, len(udp), 17, 64) + a + b\n\
         for tags in ['81000064', '88a8000a81000064']:\n\
         \x20 s.send(b'\\xff' * 6 + b'\\x02' * 6 + bytes.fromhex(tags) + b'\\x86\\xdd' + ip + udp)\n"
    );
    let packets = lab.capture(|| ran = python(&here, &frames));
    let tagged: Vec<_> = packets.iter().filter(|packet| packet.has_port(9999)).collect();
    assert_eq!(tagged.len(), 2, "{packets:?}");
    assert!(
        tagged.iter().all(|packet| packet.has_label(CMS_INPUT_LABEL) && packet.class == 0xB8),
        "{tagged:?}"
    );
    drop(marker);
}
