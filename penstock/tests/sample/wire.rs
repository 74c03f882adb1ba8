//! Content of samples, sampling rate, and counted losses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use penstock_flows::packet::IpVersion;
use penstock_flows::sflow::{SflowInterface, Source};
use penstock_sys::net::LinkAttributes;

use crate::lab::{Lab, PAYLOAD_MASK, THERE, inside, possible, sh};
use crate::sampler::{Collector, Received, Sampled, Sampler, send};

const TARGET_PORT: u16 = 7001;

fn index(lab: &Lab) -> u32 {
    inside(&lab.here, || LinkAttributes::named("pm0").unwrap().index)
}

/// Samples of the test's own packets, without the kernel's (neighbour discovery, ICMP).
fn ours(received: &Received) -> Vec<&Sampled> {
    received.packets.iter().filter(|one| one.is_to(TARGET_PORT)).collect()
}

fn contiguous(numbers: impl Iterator<Item = u32>) {
    for (number, expected) in numbers.zip(1..) {
        assert_eq!(number, expected);
    }
}

#[test]
fn sample_has_packet_header_and_label() {
    if !possible("samples of labelled packets") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let rules = format!(
        "[[rule]]\nscitag = \"cms/analysis-input\"\ndestination_port = {TARGET_PORT}\nprotocol = \"udp\"\n"
    );
    let to = Collector::new(&lab);
    let options = [
        "--rate",
        "1",
        "--agent",
        "2001:db8::9",
        "--sub-agent",
        "3",
        "--polling",
        "1s",
        "--egress",
    ];
    let mut sampler = Sampler::start(&lab, &[to.address], &options);
    assert_eq!(sampler.started["agent"], "2001:db8::9");
    assert_eq!(sampler.started["attached"][0]["direction"], "egress");
    // Attached after the sampler, and yet ahead of it in the packet's path.
    let marker = lab.marker(&here, "m", &rules, &[]);
    send(&lab, TARGET_PORT, 50);
    // One at the start, one a second later.
    sampler.next("status");
    sampler.next("status");
    let (ended, _) = sampler.end();
    drop(marker);
    let received = to.receive(&ended["datagrams"]);
    assert!(received.agents.iter().all(|(agent, sub)| agent == "2001:db8::9" && *sub == 3));
    contiguous(received.sequences.iter().copied());
    contiguous(received.packets.iter().map(|one| one.sequence));
    let index = index(&lab);
    let packets = ours(&received);
    assert_eq!(packets.len(), 50);
    for one in &packets {
        assert_eq!((one.source, one.rate, one.drops), (Source::interface(index), 1, 0));
        assert_eq!(
            (one.input, one.output),
            (SflowInterface::Unknown, SflowInterface::Index(index))
        );
        // Ethernet, IPv6, UDP, payload, check sequence.
        assert_eq!((one.frame_length, one.stripped), (14 + 40 + 8 + 500 + 4, 4));
        assert_eq!(one.header.len(), 160);
        let ip = one.packet.ip().unwrap();
        assert_eq!((ip.version, ip.flow_label & PAYLOAD_MASK), (IpVersion::V6, 0x30038));
        assert!(one.pool >= one.sequence, "{one:?}");
    }
    assert_eq!(ended["packets"], ended["samples"]);
    assert_eq!(ended["samples"].as_u64().unwrap(), received.packets.len() as u64);
    // Counters: at the start and a second later, of the interface and of the machine.
    let of_machine = Source { class: 2, index: 1 };
    for (source, formats) in [
        (Source::interface(index), &[1, 2, 1005][..]),
        (of_machine, &[2000, 2001, 2003, 2004, 2005, 2006]),
    ] {
        let found = received.counters.iter().filter(|(of, _)| *of == source);
        let found: Vec<_> = found.map(|(_, formats)| formats.as_slice()).collect();
        assert!(found.len() >= 2 && found.iter().all(|one| *one == formats), "{found:?}");
    }
    let (first, last) = (&received.interfaces[0], received.interfaces.last().unwrap());
    assert!(first.0 == "pm0" && last.1 >= first.1 + 50 * 566, "{first:?} {last:?}");
    tshark_agrees(&lab, &received);
}

/// Asserts that tshark decodes the same: agent, sequence numbers, rate, lengths and flow labels.
fn tshark_agrees(lab: &Lab, received: &Received) {
    let file = lab.dir.path().join("datagrams.pcap");
    let mut capture = Vec::new();
    // pcap of raw IPv4 packets (LINKTYPE_RAW).
    for word in [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        capture.extend(word.to_ne_bytes());
    }
    for datagram in &received.raw {
        let [a, b] = (datagram.len() as u16 + 8).to_be_bytes();
        let [c, d] = (datagram.len() as u16 + 28).to_be_bytes();
        let mut packet = vec![0x45, 0, c, d, 0, 0, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
        packet.extend([0x18, 0xC7, 0x18, 0xC7, a, b, 0, 0]);
        packet.extend(datagram);
        for word in [0, 0, packet.len() as u32, packet.len() as u32] {
            capture.extend(word.to_ne_bytes());
        }
        capture.extend(packet);
    }
    std::fs::write(&file, capture).unwrap();
    let fields = [
        "sflow_245.agent.v6",
        "sflow_245.sub_agent_id",
        "sflow_245.sequence_number",
        "sflow.flow_sample.sampling_rate",
        "sflow_245.header.frame_length",
        "ipv6.flow",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&file).args(["-T", "fields", "-E", "separator=;"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (mut labelled, mut lines) = (0, 0);
    for (line, sequence) in text.lines().zip(&received.sequences) {
        let words: Vec<&str> = line.split(';').collect();
        assert_eq!((words[0], words[1]), ("2001:db8::9", "3"), "{line}");
        assert_eq!(words[2], sequence.to_string(), "{line}");
        let values = |at: usize| words[at].split(',').filter(|word| !word.is_empty());
        assert!(values(3).all(|rate| rate == "1"), "{line}");
        labelled += values(5)
            .filter_map(|label| u32::from_str_radix(label.trim_start_matches("0x"), 16).ok())
            .filter(|label| label & PAYLOAD_MASK == 0x30038)
            .count();
        lines += 1;
    }
    assert_eq!((lines, labelled), (received.raw.len(), 50));
}

#[test]
fn sampling_rate_holds_within_chance() {
    if !possible("the share of packets that is sampled") {
        return;
    }
    const PACKET_COUNT: u64 = 20_000;
    let lab = Lab::new();
    let to = Collector::new(&lab);
    let sampler = Sampler::start(&lab, &[to.address], &["--rate", "10", "--egress"]);
    send(&lab, TARGET_PORT, PACKET_COUNT as usize);
    let (ended, _) = sampler.end();
    let received = to.receive(&ended["datagrams"]);
    assert_eq!(ended["drops"], 0);
    assert!(ended["packets"].as_u64().unwrap() >= PACKET_COUNT, "{ended}");
    // Binomial with p = 1/10: beyond 5.3 standard deviations of 42 lies 1 of 10 million runs.
    let (taken, expected) = (ours(&received).len() as f64, PACKET_COUNT as f64 / 10.0);
    let sigma = (PACKET_COUNT as f64 * 0.1 * 0.9).sqrt();
    assert!((taken - expected).abs() < 5.3 * sigma, "{taken} of {expected} samples");
    let last = received.packets.last().unwrap();
    // Each CPU reports its pool with its samples: packets after its last sample are missing.
    assert!(last.rate == 10 && u64::from(last.pool) >= PACKET_COUNT - 500, "{last:?}");
    assert!(u64::from(last.pool) <= ended["packets"].as_u64().unwrap(), "{last:?}");
}

#[test]
fn full_ring_drops_are_counted() {
    if !possible("losses of the ring") {
        return;
    }
    let lab = Lab::new();
    let to = Collector::new(&lab);
    let options = ["--rate", "1", "--egress", "--ring", "4KiB"];
    let mut sampler = Sampler::start(&lab, &[to.address], &options);
    sampler.next("status");
    sampler.signal("STOP");
    send(&lab, TARGET_PORT, 1000);
    sampler.signal("CONT");
    let (ended, _) = sampler.end();
    let received = to.receive(&ended["datagrams"]);
    let count = |name: &str| ended[name].as_u64().unwrap();
    // A page holds 18 records of 216 bytes and their heads of 8.
    assert!(count("drops") >= 1000 - 18, "{ended}");
    assert_eq!(count("packets"), count("samples") + count("drops"));
    assert_eq!(count("samples"), received.packets.len() as u64);
    let last = received.packets.last().unwrap();
    assert_eq!(u64::from(last.drops), count("drops"));
}

#[test]
fn super_packet_segments_are_counted_singly() {
    if !possible("super-packets") {
        return;
    }
    const STREAM_BYTES: usize = 3_000_000;
    const WRITE_BYTES: usize = 64 << 10;
    let lab = Lab::new();
    let to = Collector::new(&lab);
    let options = ["--rate", "1", "--egress", "--ring", "64MiB", "--polling", "1s"];
    let mut sampler = Sampler::start(&lab, &[to.address], &options);
    let listener = inside(&lab.there, || TcpListener::bind((THERE, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let mut client = inside(&lab.here, || TcpStream::connect(address).unwrap());
    let mut server = listener.accept().unwrap().0;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Slowly: the samples of each write fill ten datagrams.
            for (piece, number) in vec![7; STREAM_BYTES].chunks(WRITE_BYTES).zip(0..) {
                while begun.elapsed() < Duration::from_millis(5 * number) {
                    std::hint::spin_loop();
                }
                client.write_all(piece).unwrap();
            }
        });
        server.read_exact(&mut vec![0; STREAM_BYTES]).unwrap();
    });
    // Counters once more, after all bytes.
    sampler.next("status");
    sampler.next("status");
    let (ended, _) = sampler.end();
    assert_eq!((&ended["drops"], &ended["too_long"]), (&0.into(), &0.into()));
    let received = to.receive(&ended["datagrams"]);
    // The device counts the headers of a super-packet once; the sampler adds those of all segments.
    let (first, last) = (&received.interfaces[0], received.interfaces.last().unwrap());
    let sampled: u64 = received.packets.iter().map(|one| u64::from(one.frame_length)).sum();
    let counted = (last.1 - first.1) as f64;
    assert!((counted / sampled as f64 - 1.0).abs() < 0.005, "{counted} of {sampled}");
    let data: Vec<_> = received.packets.iter().filter(|one| one.is_to(address.port())).collect();
    let payload: usize = data
        .iter()
        .map(|one| one.frame_length as usize - 4 - usize::from(one.packet.payload_at.unwrap()))
        .sum();
    // Retransmissions are sampled, too.
    assert!(
        (STREAM_BYTES..STREAM_BYTES + STREAM_BYTES / 20).contains(&payload),
        "{payload} bytes in samples"
    );
    assert!(data.iter().all(|one| one.frame_length <= 1518));
    let is_super = |one: &&&Sampled| one.packet.ip().is_some_and(|ip| ip.length_bytes > 1500);
    assert!(data.iter().any(|one| is_super(&one)), "no super-packet");
    assert_eq!(ended["packets"].as_u64().unwrap(), received.packets.len() as u64);
}

#[test]
fn absent_collector_is_tolerated_programs_detach() {
    if !possible("an absent collector") {
        return;
    }
    let mut lab = Lab::new();
    let here = lab.here.clone();
    let rules = "[[rule]]\nscitag = \"cms/analysis-input\"\nprotocol = \"tcp\"\n";
    let marker = lab.marker(&here, "m", rules, &["--attach", "clsact"]);
    let to = Collector::new(&lab);
    let gone = inside(&lab.here, || UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let filters = || {
        let ns = format!("nsenter --net=/run/netns/{here}");
        let of = |way: &str| sh(&format!("{ns} tc filter show dev pm0 {way}"));
        (of("ingress") + &of("egress")).matches("direct-action").count()
    };
    assert_eq!(filters(), 2);
    let options = ["--rate", "1", "--polling", "1s", "--attach", "clsact"];
    let mut sampler = Sampler::start(&lab, &[to.address, gone], &options);
    assert_eq!(filters(), 4);
    for _ in 0..3 {
        send(&lab, TARGET_PORT, 20);
        sampler.next("status");
    }
    let (ended, log) = sampler.end();
    assert_eq!(filters(), 2, "the marker's own stay, and no others");
    drop(marker);
    let received = to.receive(&ended["datagrams"]);
    assert_eq!(ours(&received).len(), 60);
    assert!(ended["send_errors"].as_u64().unwrap() > 0, "{ended}");
    assert_eq!(ended["collectors"][0]["send_errors"], 0);
    let warning_count = log.iter().filter(|line| line.contains(&gone.to_string())).count();
    assert_eq!(warning_count, 1, "once a minute: {log:?}");
}
