//! Packets in all supported encapsulations, compared with tshark.

mod common;

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;

use penstock_flows::packet::{Extensions, FirstHeader, Packet, ParseEnd, Tunnel, VLANS_MAX};
use penstock_random::Random;
use penstock_scitags::option::{self, PacketMark};
use penstock_scitags::{FlowLabel, Scitag};
use proptest::prelude::*;

fn ethernet(kind: u16, inside: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind.to_be_bytes(), inside].concat()
}

fn vlan(kind: u16, id: u16, inside: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], &kind.to_be_bytes(), inside].concat()
}

fn ipv4(protocol: u8, number: u8, inside: &[u8]) -> Vec<u8> {
    let length = (20 + inside.len() as u16).to_be_bytes();
    let head = [0x45, 0, length[0], length[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
    [&head[..], &[192, 0, 2, number], &[198, 51, 100, number], inside].concat()
}

fn ipv6(next: u8, label: u32, number: u8, inside: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = label.to_be_bytes();
    let length = (inside.len() as u16).to_be_bytes();
    let head = [0x60, a & 0x0F, b, c, length[0], length[1], next, 64];
    let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).octets();
    let destination = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, number.into()).octets();
    [&head[..], &source, &destination, inside].concat()
}

fn tcp(number: u8) -> Vec<u8> {
    let mut header = vec![0x13, number, 0x14, 0x51];
    header.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    header.extend([0x55; 40]);
    header
}

fn udp(destination: u16, inside: &[u8]) -> Vec<u8> {
    let [a, b] = destination.to_be_bytes();
    let [c, d] = (8 + inside.len() as u16).to_be_bytes();
    [&[0xC0, 7, a, b, c, d, 0, 0][..], inside].concat()
}

fn tag() -> Scitag {
    Scitag::new(3, 14).unwrap()
}

/// An IP packet with a random version, chain of extension headers and transport. Returns its ethertype,
/// too.
fn ip(random: &mut Random, number: u8, protocol: u8, inside: Vec<u8>) -> (u16, u8, Vec<u8>) {
    if random.below(3) == 0 {
        return (0x0800, 4, ipv4(protocol, number, &inside));
    }
    let (mut next, mut inside) = (protocol, inside);
    // From the last header to the first, in the order of RFC 8200.
    for kind in [60, 51, 44, 43, 60, 0_u8] {
        if random.below(4) != 0 {
            continue;
        }
        let header: Vec<u8> = match kind {
            51 => [&[next, 4, 0, 0][..], &[0xEE; 20]].concat(),
            44 => vec![next, 0, 0, 0, 0, 0, 0, 9],
            43 => [&[next, 2, 4, 0][..], &[0; 20]].concat(),
            _ => option::encode_header(next, tag()).unwrap().to_vec(),
        };
        inside = [header, inside].concat();
        next = kind;
    }
    (0x86DD, 41, ipv6(next, random.below(1 << 20) as u32, number, &inside))
}

fn frame(random: &mut Random, number: u8) -> Vec<u8> {
    let (transport, protocol) = match random.below(2) {
        0 => (tcp(number), 6),
        _ => (udp(5201, &[number; 40]), 17),
    };
    let (mut kind, mut version, mut packet) = ip(random, number, protocol, transport);
    match random.below(5) {
        0 => (kind, version, packet) = ip(random, number, version, packet),
        1 => {
            let key = [0x20, 0, kind.to_be_bytes()[0], kind.to_be_bytes()[1], 0, 0, 0, 77];
            (kind, version, packet) = ip(random, number, 47, [&key[..], &packet].concat());
        }
        2 => {
            let inside = [&[8, 0, 0, 0, 0, 1, 2, 0][..], &ethernet(kind, &packet)].concat();
            (kind, version, packet) = ip(random, number, 17, udp(4789, &inside));
        }
        _ => {}
    }
    let _ = version;
    if random.below(4) == 0 {
        for depth in 0..=random.below(3) as u32 {
            let bottom = if depth == 0 { 0x100 } else { 0 };
            packet = [&((16 + depth) << 12 | bottom | 64).to_be_bytes()[..], &packet].concat();
        }
        kind = 0x8847;
    }
    match random.below(4) {
        0 => (kind, packet) = (0x8100, vlan(kind, 100, &packet)),
        1 => (kind, packet) = (0x88A8, vlan(0x8100, 88, &vlan(kind, 99, &packet))),
        _ => {}
    }
    ethernet(kind, &packet)
}

const FIELDS: [&str; 15] = [
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.flow",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.flags",
    "udp.srcport",
    "udp.dstport",
    "vlan.id",
    "mpls.label",
    "vxlan.vni",
    "ieee8021ad.id",
];

/// Fields as decoded by tshark: all values of each, outermost first.
fn tshark(frames: &[Vec<u8>]) -> Vec<HashMap<&'static str, Vec<String>>> {
    let path = std::env::temp_dir().join(format!("penstock-flows-{}.pcap", std::process::id()));
    fs::write(&path, common::capture(frames, 65_535)).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields", "-E", "occurrence=a", "-E", "separator=;"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark: tools/setup.sh test installs it");
    fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let values =
        |text: &str| text.split(',').filter(|v| !v.is_empty()).map(str::to_owned).collect();
    text.lines().map(|line| FIELDS.into_iter().zip(line.split(';').map(values)).collect()).collect()
}

fn hex(text: Option<&String>) -> Option<u32> {
    u32::from_str_radix(text?.trim_start_matches("0x"), 16).ok()
}

#[test]
fn tshark_sees_the_same() {
    let mut random = Random::new(11);
    let frames: Vec<_> = (0..1000).map(|number| frame(&mut random, (number % 200) as u8)).collect();
    let seen = tshark(&frames);
    assert_eq!(seen.len(), frames.len());
    let (mut tunnels, mut labelled, mut marked, mut transports) = (0, 0, 0, 0);
    for (at, (frame, seen)) in frames.iter().zip(&seen).enumerate() {
        let packet = Packet::read(FirstHeader::Ethernet, frame);
        let first = |field: &str| seen[field].first();
        let last = |field: &str| seen[field].last();
        let ip = packet.ip().unwrap_or_else(|| panic!("packet {at}: {packet:?}"));
        assert_eq!(packet.ended, ParseEnd::Upper, "packet {at}");
        let (source, destination) = match ip.source.ip() {
            IpAddr::V4(_) => ("ip.src", "ip.dst"),
            IpAddr::V6(_) => ("ipv6.src", "ipv6.dst"),
        };
        assert_eq!(last(source), Some(&ip.source.to_string()), "packet {at}");
        assert_eq!(last(destination), Some(&ip.destination.to_string()), "packet {at}");
        if ip.source.ip().is_ipv6() {
            assert_eq!(hex(last("ipv6.flow")), Some(ip.flow_label), "packet {at}");
            labelled += 1;
        }
        let names = if ip.protocol == 6 {
            ("tcp.srcport", "tcp.dstport")
        } else {
            ("udp.srcport", "udp.dstport")
        };
        let ports = last(names.0).zip(last(names.1));
        let ours =
            ip.ports.map(|(source, destination)| (source.to_string(), destination.to_string()));
        assert_eq!(ports, ours.as_ref().map(|(a, b)| (a, b)), "packet {at}");
        transports += u32::from(ports.is_some());
        if ip.protocol == 6 {
            assert_eq!(hex(last("tcp.flags")), Some(ip.tcp_flags.into()), "packet {at}");
        }
        let tags = [packet.vlan, packet.inner_vlan].map(|id| id.map(|id| id.to_string()));
        let theirs: Vec<_> = first("ieee8021ad.id").into_iter().chain(&seen["vlan.id"]).collect();
        assert_eq!(theirs, tags.iter().flatten().collect::<Vec<_>>(), "packet {at}");
        assert_eq!(first("mpls.label"), packet.mpls_label.map(|id| id.to_string()).as_ref());
        let network = match packet.tunnel {
            Some(Tunnel::Vxlan(network)) => Some(network.to_string()),
            _ => None,
        };
        assert_eq!(last("vxlan.vni"), network.as_ref(), "packet {at}");
        tunnels += u32::from(packet.tunnel.is_some());
        marked += u32::from(ip.hop_by_hop_mark.or(ip.destination_mark).is_some());
    }
    // Each kind was covered.
    assert!(tunnels > 400 && labelled > 500 && marked > 200, "{tunnels} {labelled} {marked}");
    assert_eq!(transports, 1000);
}

#[test]
fn labels_are_found_in_all_encapsulations() {
    let marked = |next: u8, inside: &[u8]| {
        [&option::encode_header(next, tag()).unwrap()[..], inside].concat()
    };
    let label = FlowLabel::new(tag(), 5).unwrap().value();
    let both = ipv6(0, label, 1, &marked(60, &marked(6, &tcp(1))));
    let frames = [
        ethernet(0x86DD, &both),
        ethernet(0x8100, &vlan(0x86DD, 3000, &both)),
        ethernet(0x88A8, &vlan(0x8100, 88, &vlan(0x86DD, 99, &both))),
        ethernet(0x8847, &[&0x0001_0140_u32.to_be_bytes()[..], &both].concat()),
        // A pseudowire with its control word.
        ethernet(0x8847, &[&[0, 1, 1, 64, 0, 0, 0, 0][..], &ethernet(0x86DD, &both)].concat()),
        ethernet(0x0800, &ipv4(41, 1, &both)),
        ethernet(0x0800, &ipv4(47, 1, &[&[0, 0, 0x86, 0xDD][..], &both].concat())),
        // Ethernet in GRE with checksum, key and sequence number.
        ethernet(
            0x0800,
            &ipv4(
                47,
                1,
                &[
                    &[0xB0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1][..],
                    &ethernet(0x86DD, &both),
                ]
                .concat(),
            ),
        ),
        ethernet(
            0x86DD,
            &ipv6(
                17,
                1,
                2,
                &udp(4789, &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &ethernet(0x86DD, &both)].concat()),
            ),
        ),
        // LLC and SNAP.
        ethernet(128, &[&[0xAA, 0xAA, 3, 0, 0, 0, 0x86, 0xDD][..], &both].concat()),
    ];
    for (at, frame) in frames.iter().enumerate() {
        let packet = Packet::read(FirstHeader::Ethernet, frame);
        let ip = packet.ip().unwrap_or_else(|| panic!("frame {at}: {packet:?}"));
        assert_eq!(ip.flow_label, label, "frame {at}");
        assert_eq!(ip.hop_by_hop_mark, Some(PacketMark::Option([0, 3, 14])), "frame {at}");
        assert_eq!(ip.destination_mark, ip.hop_by_hop_mark, "frame {at}");
        assert_eq!(ip.ports, Some((0x1301, 5201)), "frame {at}");
        assert!(
            ip.extensions.has(Extensions::HOP_BY_HOP) && ip.extensions.has(Extensions::DESTINATION)
        );
        // All but the largest tunnel headers fit the 128 bytes that agents sample.
        let cut = Packet::read(FirstHeader::Ethernet, &frame[..frame.len().min(128)]);
        assert_eq!(cut.ip().map(|ip| ip.flow_label), Some(label), "frame {at}");
    }
    let gre = Packet::read(FirstHeader::Ethernet, &frames[7]);
    assert_eq!((gre.tunnel, gre.outer.unwrap().protocol), (Some(Tunnel::Gre(Some(7))), 47));
    // In the header protocols of sFlow that begin at IP or at MPLS.
    assert_eq!(Packet::read(FirstHeader::Ip, &both).ip().unwrap().ports, Some((0x1301, 5201)));
    assert_eq!(Packet::read(FirstHeader::Mpls, &frames[3][14..]).mpls_label, Some(16));
}

#[test]
fn parser_ends_at_expected_header() {
    let ended = |frame: &[u8]| Packet::read(FirstHeader::Ethernet, frame).ended;
    // A fragment other than the first has no ports.
    let part = [&[6, 0, 0, 8, 0, 0, 0, 9][..], &tcp(1)].concat();
    let packet = Packet::read(FirstHeader::Ip, &ipv6(44, 0, 1, &part));
    assert_eq!((packet.ended, packet.ip().unwrap().ports), (ParseEnd::Fragment, None));
    let mut part = ipv4(6, 1, &tcp(1));
    part[7] = 1;
    let packet = Packet::read(FirstHeader::Ip, &part);
    assert_eq!((packet.ended, packet.ip().unwrap().fragment), (ParseEnd::Fragment, true));
    // Other protocols are not parsed as extension headers (slackhq/nebula#1840).
    for protocol in [1, 58, 89, 99, 253] {
        let packet = Packet::read(
            FirstHeader::Ip,
            &ipv6(protocol, 0, 1, &[6, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]),
        );
        assert_eq!(
            (packet.ended, packet.ip().unwrap().ports),
            (ParseEnd::Upper, None),
            "{protocol}"
        );
    }
    assert_eq!(ended(&ethernet(0x86DD, &ipv6(50, 0, 1, &[0; 40]))), ParseEnd::Encrypted);
    assert_eq!(ended(&ethernet(0x0806, &[0; 28])), ParseEnd::Unknown);
    let many = (0..=VLANS_MAX).fold(vec![0; 60], |inside, _| vlan(0x8100, 1, &inside));
    assert_eq!(ended(&ethernet(0x8100, &many)), ParseEnd::TooDeep);
    let nested = (0..10).fold(ipv4(6, 1, &tcp(1)), |inside, _| ipv4(4, 1, &inside));
    assert_eq!(ended(&ethernet(0x0800, &nested)), ParseEnd::TooDeep);
    let chain =
        (0..50).fold(tcp(1), |inside, _| [&[60, 0, 1, 4, 0, 0, 0, 0][..], &inside].concat());
    assert_eq!(ended(&ethernet(0x86DD, &ipv6(60, 0, 1, &chain))), ParseEnd::TooDeep);
    // The padding of a short frame is not part of the packet.
    let padded = [ipv4(6, 1, &[]), vec![0x13, 1, 0x14, 0x51]].concat();
    assert_eq!(Packet::read(FirstHeader::Ip, &padded).ip().unwrap().ports, None);
    // A super-packet of a host has length 0.
    let mut large = ipv6(6, 0, 1, &tcp(1));
    large[4..6].fill(0);
    assert_eq!(Packet::read(FirstHeader::Ip, &large).ip().unwrap().ports, Some((0x1301, 5201)));
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn truncated_and_changed_packets_never_panic(seed: u64, keep: u16, at: u16, value: u8) {
        let mut frame = frame(&mut Random::new(seed), 1);
        let at = usize::from(at) % frame.len();
        frame[at] = value;
        frame.truncate(usize::from(keep) % (frame.len() + 1));
        for start in [FirstHeader::Ethernet, FirstHeader::Ip, FirstHeader::Mpls] {
            let _ = Packet::read(start, &frame);
        }
    }
}
