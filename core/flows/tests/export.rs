//! NetFlow and IPFIX: exports of softflowd compared with their pcap and with netflow_parser, and malformed or forged
//! datagrams.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use netflow_parser::NetflowParser;
use penstock_flows::aggregate::{AggregateLimits, Aggregator};
use penstock_flows::export::EARLY_SETS_MAX;
use penstock_flows::exporter::Exporter;
use penstock_flows::intake::{Intake, IntakeCounts, Sink};
use penstock_flows::observe::Observation;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::{ScitagVerdict, Trust};
use penstock_scitags::Registry;
use proptest::prelude::*;

#[derive(Default)]
struct HostKey(Vec<Observation>);

impl Sink for HostKey {
    fn observation(&mut self, _: &Exporter, seen: &Observation, _: ScitagVerdict) {
        self.0.push(*seen);
    }
}

fn intake() -> Intake {
    let none = Prefixes::default;
    let trust = Trust::new(Registry::builtin().clone(), none(), none(), 1);
    Intake::new(trust, Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1), 1)
}

fn from() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 9], 40_000))
}

fn read(datagrams: &[Vec<u8>]) -> (Vec<Observation>, IntakeCounts) {
    let (mut intake, mut seen) = (intake(), HostKey::default());
    for datagram in datagrams {
        intake.export(Duration::ZERO, from(), datagram, &mut seen).unwrap();
    }
    (seen.0, intake.counts())
}

/// Packets, IP bytes and flow label by destination port.
fn by_port(seen: &[Observation]) -> BTreeMap<u16, (u64, u64, u32)> {
    let line = |seen: &Observation| {
        let ip = seen.packet.ip().unwrap();
        let bytes = seen.frame_bytes - 18 * seen.packets;
        (ip.flow().destination_port, (seen.packets, bytes, ip.flow_label))
    };
    seen.iter().map(line).collect()
}

#[test]
fn captured_flows_match_their_pcap() {
    for name in ["netflow5.export", "netflow9.export", "ipfix.export"] {
        let (seen, counts) = read(&common::datagrams(name));
        assert_eq!((counts.broken, counts.unknown), (0, 0), "{name}");
        let ports = by_port(&seen);
        assert_eq!(ports[&9999], (20, 20 * 528, 0), "{name}");
        assert_eq!((ports[&5201].0, ports[&5201].1), (11, 300_580), "{name}");
        assert!(seen.iter().all(|seen| seen.sampling_rate == 1));
        if name != "netflow5.export" {
            assert_eq!((ports[&5202].0, ports[&5202].1), (9, 200_656), "{name}");
            assert_eq!(
                ports[&5203].1,
                100_000 + 60 * ports[&5203].0 + 20 + 12 * (ports[&5203].0 - 1),
                "{name}"
            );
        }
    }
}

#[test]
fn options_sampling_rate_is_applied() {
    let (seen, counts) = read(&common::datagrams("netflow9-sampled.export"));
    assert_eq!((counts.broken, counts.unknown), (0, 0));
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.sampling_rate == 10), "{seen:?}");
    // The configured rate applies only if the exporter reports none.
    let mut intake = intake();
    intake.set_sampling_rates(Prefixes::new([(from().ip(), 32, 500)]).unwrap());
    let mut seen = HostKey::default();
    let v5 = &common::datagrams("netflow5.export")[0];
    intake.export(Duration::ZERO, from(), v5, &mut seen).unwrap();
    assert!(seen.0.iter().all(|seen| seen.sampling_rate == 500));
}

/// Counts the occurrences of each number in a text.
fn numbers(text: &str) -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    for word in text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()) {
        *numbers.entry(word.to_owned()).or_default() += 1;
    }
    numbers
}

#[test]
fn netflow_parser_decodes_the_same() {
    for name in ["netflow5.export", "netflow9.export", "ipfix.export", "netflow9-sampled.export"] {
        let mut parser = NetflowParser::default();
        let datagrams = common::datagrams(name);
        let mut theirs = String::new();
        for datagram in &datagrams {
            let parsed = parser.parse_bytes(datagram);
            assert!(parsed.error.is_none(), "{name}: {:?}", parsed.error);
            theirs += &format!("{:?}", parsed.packets);
        }
        let theirs = numbers(&theirs);
        for seen in read(&datagrams).0 {
            let ip = seen.packet.ip().unwrap();
            let bytes = seen.frame_bytes - 18 * seen.packets;
            let flow = ip.flow();
            for number in
                [seen.packets, bytes, flow.source_port.into(), flow.destination_port.into()]
            {
                assert!(theirs.contains_key(&number.to_string()), "{name}: {number} of {seen:?}");
            }
        }
    }
}

fn half(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An IPFIX message of these sets.
fn message(number: u32, sets: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let body: Vec<u8> = sets
        .iter()
        .flat_map(|(id, set)| [&half(&[*id, set.len() as u16 + 4])[..], set].concat())
        .collect();
    let head = half(&[10, body.len() as u16 + 16]);
    [
        &head[..],
        &1_700_000_000_u32.to_be_bytes(),
        &number.to_be_bytes(),
        &7_u32.to_be_bytes(),
        &body,
    ]
    .concat()
}

#[test]
fn early_set_waits_for_template() {
    // IPv4 addresses, octets in 3 bytes, an enterprise field, a frame of variable length.
    let template = half(&[300, 5, 8, 4, 12, 4, 1, 3, 0x8000 | 99, 2, 0, 9, 315, 0xFFFF]);
    let frame = [
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xDD, 0x60, 3, 0, 0x38, 0, 0, 59, 64][..],
        &[0x20; 32],
    ]
    .concat();
    let record =
        [&[192, 0, 2, 1, 192, 0, 2, 2, 1, 0, 0, 0xAA, 0xBB, frame.len() as u8][..], &frame]
            .concat();
    let data = [&record[..], &record, &[0, 0]].concat();
    let (seen, counts) = read(&[message(0, &[(300, data.clone())])]);
    assert_eq!((seen.len(), counts.unknown), (0, 0));
    let (seen, counts) = read(&[
        message(0, &[(300, data.clone()), (2, template)]),
        message(2, &[(300, data.clone())]),
        // Ten records are lost.
        message(14, &[(300, data)]),
    ]);
    assert_eq!((seen.len(), counts.unknown, counts.broken), (6, 0, 0));
    let ip = seen[0].packet.ip().unwrap();
    assert_eq!((ip.flow_label, seen[0].frame_bytes), (0x30038, 65_536 + 18));
}

/// One record of these fields, each with its bytes, in a message with its template.
fn record(number: u32, fields: &[(u16, &[u8])]) -> Vec<u8> {
    let mut template = vec![300, fields.len() as u16];
    template.extend(fields.iter().flat_map(|(id, bytes)| [*id, bytes.len() as u16]));
    let data: Vec<u8> = fields.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
    message(number, &[(2, half(&template)), (300, data)])
}

const IPV4_PAIR: [u8; 8] = [192, 0, 2, 1, 192, 0, 2, 2];

/// Source, destination and octets, with more fields.
fn flow<'a>(octets: &'a [u8], more: &[(u16, &'a [u8])]) -> Vec<(u16, &'a [u8])> {
    let mut fields = vec![(8, &IPV4_PAIR[..4]), (12, &IPV4_PAIR[4..])];
    if !octets.is_empty() {
        fields.push((1, octets));
    }
    fields.extend(more);
    fields
}

/// One template for both versions, as of IOS-XR, MX, ipt_NETFLOW and pmacct: the fields of the other one are zeros.
#[test]
fn fields_of_both_versions_keep_addresses() {
    let (v6, none4, none6) = ([[0x20; 16], [0x30; 16]], [0; 4], [0; 16]);
    let octets = 1_000_u32.to_be_bytes();
    let (four, six) = ([4], [6]);
    let v4: [(u16, &[u8]); 4] =
        [(8, &IPV4_PAIR[..4]), (12, &IPV4_PAIR[4..]), (9, &[24]), (13, &[25])];
    let zero6: [(u16, &[u8]); 4] = [(27, &none6), (28, &none6), (29, &[0]), (30, &[0])];
    let six_full: [(u16, &[u8]); 4] = [(27, &v6[0]), (28, &v6[1]), (29, &[48]), (30, &[64])];
    let zero4: [(u16, &[u8]); 4] = [(8, &none4), (12, &none4), (9, &[0]), (13, &[0])];
    for (first, second, version, expected) in [
        (&v4, &zero6, None, (4, Some(24), Some(25))),
        (&zero6, &v4, None, (4, Some(24), Some(25))),
        (&six_full, &zero4, None, (6, Some(48), Some(64))),
        (&zero4, &six_full, None, (6, Some(48), Some(64))),
        // The fields of the other version are not zero: ipVersion decides.
        (&v4, &six_full, Some(&four), (4, Some(24), Some(25))),
        (&v4, &six_full, Some(&six), (6, Some(48), Some(64))),
    ] {
        let mut fields: Vec<(u16, &[u8])> = first.iter().chain(second).copied().collect();
        fields.push((1, &octets));
        fields.extend(version.map(|version| (60, &version[..])));
        let (seen, _) = read(&[record(0, &fields)]);
        let ip = seen[0].packet.ip().unwrap();
        let source =
            if expected.0 == 4 { "192.0.2.1" } else { "2020:2020:2020:2020:2020:2020:2020:2020" };
        assert_eq!(ip.source.to_string(), source, "{fields:?}");
        assert_eq!(
            (seen[0].source_mask_bits, seen[0].destination_mask_bits),
            (expected.1, expected.2)
        );
    }
    // The same field twice, once empty.
    let twice = flow(&octets, &[(8, &none4), (12, &none4)]);
    let (seen, _) = read(&[record(0, &twice)]);
    assert_eq!(seen[0].packet.ip().unwrap().source.to_string(), "192.0.2.1");
}

#[test]
fn events_without_counts_are_no_traffic() {
    // RFC 8158: a NAT session with its addresses after translation.
    let nat = flow(&[], &[(230, &[4]), (225, &[198, 51, 100, 1]), (7, &[1, 2]), (227, &[3, 4])]);
    let denied = flow(&[], &[(233, &[3]), (231, &[0, 0, 1, 0]), (232, &[0, 0, 0, 0])]);
    let created = flow(&[], &[(233, &[1]), (231, &[0, 0, 0, 0]), (232, &[0, 0, 0, 0])]);
    for fields in [nat, denied, created] {
        assert_eq!(read(&[record(0, &fields)]).0, []);
    }
    // NSEL counts both directions in one record.
    let octets = (1_000_000_u32.to_be_bytes(), 2_000_u32.to_be_bytes());
    let update = flow(
        &[],
        &[
            (233, &[5]),
            (231, &octets.0),
            (232, &octets.1),
            (10, &[0, 3]),
            (14, &[0, 4]),
            (7, &[0, 80]),
        ],
    );
    let (seen, _) = read(&[record(0, &update)]);
    let counted: Vec<_> = seen
        .iter()
        .map(|seen| {
            let flow = seen.packet.ip().unwrap().flow();
            let bytes = seen.frame_bytes - 18 * seen.packets;
            (flow.source.to_string(), flow.source_port, seen.input.index(), bytes)
        })
        .collect();
    assert_eq!(
        counted,
        [
            ("192.0.2.1".to_owned(), 80, Some(3), 1_000_000),
            ("192.0.2.2".to_owned(), 0, Some(4), 2_000)
        ]
    );
}

#[test]
fn post_middlebox_counts_are_not_added() {
    let (octets, packets) = (3_000_u32.to_be_bytes(), 2_u32.to_be_bytes());
    for fields in [
        flow(&octets, &[(2, &packets)]),
        flow(&[], &[(23, &octets), (24, &packets)]),
        flow(&octets, &[(2, &packets), (23, &octets), (24, &packets)]),
        flow(&octets, &[(2, &packets), (85, &[0xFF; 4]), (86, &[0xFF; 4])]),
    ] {
        let (seen, _) = read(&[record(0, &fields)]);
        let counts: Vec<_> = seen.iter().map(|seen| (seen.packets, seen.frame_bytes)).collect();
        assert_eq!(counts, [(2, 3_036)], "{fields:?}");
    }
}

#[test]
fn totals_count_their_growth() {
    let (mut intake, mut seen) = (intake(), HostKey::default());
    let start = 1_699_999_940_000_u64.to_be_bytes();
    let mut send_total = |at_s: u64, number, octets: u32, packets: u32, port: u8, times: bool| {
        let (octets, packets) = (octets.to_be_bytes(), packets.to_be_bytes());
        let end = 1_700_000_000_000_u64.to_be_bytes();
        let ports = [0, port];
        let mut fields = flow(&[], &[(85, &octets), (86, &packets), (7, &ports)]);
        if times {
            fields.extend([(152, &start[..]), (153, &end[..])]);
        }
        let from = from();
        intake
            .export(Duration::from_secs(at_s), from, &record(number, &fields), &mut seen)
            .unwrap();
    };
    // Without times the first total is a baseline, as the exporter is new; a lower total is another flow.
    send_total(1, 0, 1_000, 1, 1, false);
    send_total(61, 1, 5_000, 3, 1, false);
    send_total(121, 2, 5_000, 3, 1, false);
    send_total(181, 3, 700, 1, 1, false);
    // The flow is a minute old and the exporter's first datagram 30 s: a baseline.
    send_total(31, 4, 9_000, 9, 2, true);
    send_total(91, 5, 9_500, 10, 2, true);
    // The exporter's datagrams cover the whole flow.
    send_total(200, 6, 400, 1, 3, true);
    // Without times, when each older flow was reported before.
    send_total(400, 7, 300, 1, 4, false);
    let counts: Vec<_> =
        seen.0.iter().map(|s| (s.packets, s.frame_bytes - 18 * s.packets)).collect();
    assert_eq!(counts, [(2, 4_000), (1, 700), (1, 500), (1, 400), (1, 300)]);
}

#[test]
fn totals_of_older_flows_are_bases() {
    let (start_s, start_ms) =
        (1_699_996_400_u32.to_be_bytes(), 1_699_996_400_000_u64.to_be_bytes());
    let starts: [&[(u16, &[u8])]; 3] = [&[(150, &start_s)], &[(152, &start_ms)], &[]];
    for start in starts {
        let datagrams: Vec<_> = (0..5_u64)
            .map(|k| {
                let octets = (1_000_000_000_000 + 15_000 * k).to_be_bytes();
                let packets = (1_000_000_000 + 10 * k).to_be_bytes();
                let totals: [(u16, &[u8]); 2] = [(85, &octets), (86, &packets)];
                record(k as u32, &flow(&[], &[&totals[..], start].concat()))
            })
            .collect();
        let bytes: u64 = read(&datagrams).0.iter().map(|seen| seen.frame_bytes).sum();
        assert_eq!(bytes, 4 * 15_180, "{start:?}");
    }
}

/// Estimated bytes of all observations.
fn estimated(seen: &[Observation]) -> u64 {
    seen.iter().map(|seen| seen.frame_bytes * u64::from(seen.sampling_rate)).sum()
}

/// A datagram of NetFlow version 9 with these sets.
fn netflow9(number: u32, sets: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let ipfix = message(number, sets);
    let words = [100_000, 1_700_000_000, number, 7_u32].map(u32::to_be_bytes).concat();
    [&half(&[9, sets.len() as u16])[..], &words, &ipfix[16..]].concat()
}

#[test]
fn sampling_rates_are_per_interface() {
    let template = half(&[256, 4, 8, 4, 12, 4, 1, 4, 10, 4]);
    let of_interface =
        |index: u32| [&IPV4_PAIR[..], &1_482_u32.to_be_bytes(), &index.to_be_bytes()].concat();
    let data = [of_interface(1), of_interface(2)].concat();
    let rates = [[1_u32, 100], [2, 10]].map(|rate| rate.map(u32::to_be_bytes).concat());
    let scope9 = half(&[257, 4, 4, 2, 4, 34, 4]);
    let scope10 = half(&[257, 2, 1, 10, 4, 34, 4]);
    for order in [[0, 1], [1, 0]] {
        let options = order.map(|at| rates[at].clone()).concat();
        let sets9 = [
            (1, scope9.clone()),
            (0, template.clone()),
            (257, options.clone()),
            (256, data.clone()),
        ];
        let sets10 =
            [(3, scope10.clone()), (2, template.clone()), (257, options), (256, data.clone())];
        for datagram in [netflow9(0, &sets9), message(0, &sets10)] {
            assert_eq!(estimated(&read(&[datagram]).0), 1_500 * 110);
        }
    }
    // A rate without a scope is that of the interfaces without their own.
    let sets = [
        (3, [scope10, half(&[258, 2, 1, 149, 4, 34, 4])].concat()),
        (2, template),
        (257, rates[1].clone()),
        (258, [7_u32, 1_000].map(u32::to_be_bytes).concat()),
        (256, data),
    ];
    assert_eq!(estimated(&read(&[message(0, &sets)]).0), 1_500 * 1_010);
}

#[test]
fn selector_sampling_rates_are_applied() {
    let template = half(&[256, 4, 8, 4, 12, 4, 1, 4, 302, 4]);
    let data = [&IPV4_PAIR[..], &1_482_u32.to_be_bytes(), &7_u32.to_be_bytes()].concat();
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    for (fields, value) in [
        (vec![305, 4, 306, 4], words(&[1, 99])),
        (vec![309, 4, 310, 4], words(&[1, 100])),
        (vec![309, 4, 310, 4], words(&[3, 300])),
        (vec![311, 8], 0.01_f64.to_be_bytes().to_vec()),
        (vec![311, 4], 0.01_f32.to_be_bytes().to_vec()),
    ] {
        let count = fields.len() as u16 / 2;
        let options = [half(&[257, 2 + count, 1, 302, 4, 304, 2]), half(&fields)].concat();
        let record = [words(&[7]), vec![0, 3], value].concat();
        let sets = [(3, options), (2, template.clone()), (257, record), (256, data.clone())];
        assert_eq!(estimated(&read(&[message(0, &sets)]).0), 1_500 * 100, "{fields:?}");
    }
    // Nonsense is no rate.
    for probability in [0.0, -1.0, 7.0, f64::NAN, 1e-300] {
        let options = half(&[257, 2, 1, 302, 4, 311, 8]);
        let record = [words(&[7]), probability.to_be_bytes().to_vec()].concat();
        let sets = [(3, options), (2, template.clone()), (257, record), (256, data.clone())];
        assert_eq!(estimated(&read(&[message(0, &sets)]).0), 1_500, "{probability}");
    }
}

/// A datagram of NetFlow version 5 with one record of 1482 octets.
fn netflow5(number: u32) -> Vec<u8> {
    let head = [100_000 + number, 1_700_000_000, 0, number, 0].map(u32::to_be_bytes).concat();
    let mut record = [&IPV4_PAIR[..], &[0; 40]].concat();
    record[19] = 1;
    record[20..24].copy_from_slice(&1_482_u32.to_be_bytes());
    [half(&[5, 1]), head, record].concat()
}

#[test]
fn duplicates_and_reordering_lose_nothing() {
    let octets = 1_482_u32.to_be_bytes();
    let ipfix = |number: u32| record(number, &flow(&octets, &[]));
    let kinds: [&dyn Fn(u32) -> Vec<u8>; 2] = [&ipfix, &netflow5];
    for datagram in kinds {
        // Number 105 three times.
        let numbers = (100..110).chain([105, 105]);
        let (seen, counts) = read(&numbers.map(datagram).collect::<Vec<_>>());
        assert_eq!((estimated(&seen), counts.duplicates), (15_000, 2));
        let (mut intake, mut seen) = (intake(), HostKey::default());
        // Each pair is swapped.
        for number in (0..20_u32).map(|k| 100 + (k ^ 1)) {
            intake.export(Duration::ZERO, from(), &datagram(number), &mut seen).unwrap();
        }
        let exporter = intake.exporters().iter().next().unwrap();
        assert_eq!((estimated(&seen.0), exporter.records_lost()), (30_000, 0));
        assert_eq!((exporter.sequence.received, exporter.sequence.duplicates), (20, 0));
    }
}

#[test]
fn implausible_octets_are_not_counted() {
    let octets = 1_482_u64.to_be_bytes();
    let hour =
        [(152, 1_699_996_400_000_u64.to_be_bytes()), (153, 1_700_000_000_000_u64.to_be_bytes())];
    let times = hour.each_ref().map(|(id, bytes)| (*id, &bytes[..]));
    // 10 Tb/s for an hour, and a little more.
    let (line, beyond) =
        (4_400_000_000_000_000_u64.to_be_bytes(), 4_510_000_000_000_000_u64.to_be_bytes());
    let mut intake = intake();
    let mut seen = HostKey::default();
    for (number, fields) in [
        flow(&octets, &[]),
        flow(&[0xFF; 8], &[]),
        flow(&octets, &[(2, &[0xFF; 8])]),
        flow(&octets, &[(34, &[0xFF; 4])]),
        flow(&line, &times),
        flow(&beyond, &times),
    ]
    .iter()
    .enumerate()
    {
        let datagram = record(number as u32, fields);
        intake.export(Duration::ZERO, from(), &datagram, &mut seen).unwrap();
    }
    assert_eq!(seen.0.len(), 2);
    let exporter = intake.exporters().iter().next().unwrap();
    assert_eq!((exporter.implausible, intake.counts().implausible), (4, 4));
}

#[test]
fn records_of_refused_templates_count() {
    // An established exporter, so that its own limit of templates applies.
    let (mut intake, mut seen) = (intake(), HostKey::default());
    let mut send = |number, sets: &[(u16, Vec<u8>)]| {
        intake.export(Duration::ZERO, from(), &message(number, sets), &mut seen).unwrap();
    };
    (0..20).for_each(|number| send(number, &[(2, half(&[256, 1, 1, 4]))]));
    let data = [&IPV4_PAIR[..], &1_482_u32.to_be_bytes()].concat();
    for k in 0..300 {
        let template = half(&[256 + k, 3, 8, 4, 12, 4, 1, 4]);
        send(20 + u32::from(k), &[(2, template), (256 + k, data.clone())]);
    }
    let unknown = intake.counts().unknown;
    let exporter = intake.exporters().iter().next().unwrap();
    assert_eq!((seen.0.len(), unknown, exporter.unknown), (256, 44, 44));
    assert!(exporter.untracked >= 44);
}

#[test]
fn physical_interfaces_and_inner_vlans_count() {
    let octets = 100_u32.to_be_bytes();
    let physical: [(u16, &[u8]); 2] = [(252, &[0, 0, 0, 7]), (253, &[0, 0, 0, 8])];
    let (seen, _) = read(&[record(0, &flow(&octets, &physical))]);
    assert_eq!((seen[0].input.index(), seen[0].output.index()), (Some(7), Some(8)));
    let logical = [&[(10_u16, &[0_u8, 3][..]), (14, &[0, 0])][..], &physical].concat();
    let (seen, _) = read(&[record(0, &flow(&octets, &logical))]);
    assert_eq!((seen[0].input.index(), seen[0].output.index()), (Some(3), Some(8)));

    let pair = |more: &[(u16, &[u8])]| {
        let (seen, _) = read(&[record(0, &flow(&octets, more))]);
        (seen[0].vlan, seen[0].inner_vlan)
    };
    let outer: (u16, &[u8]) = (243, &[0, 100]);
    let inner: (u16, &[u8]) = (245, &[0, 200]);
    assert_eq!(pair(&[outer, inner]), (Some(100), Some(200)));
    assert_eq!(pair(&[(58, &[0, 100]), inner]), (Some(100), Some(200)));
    assert_eq!(pair(&[(243, &[0, 0]), inner]), (Some(200), None));
    let after: [(u16, &[u8]); 3] = [(254, &[0, 101]), (255, &[0, 201]), (61, &[1])];
    assert_eq!(pair(&[&[outer, inner][..], &after].concat()), (Some(101), Some(201)));
    // A frame with both tags.
    let frame = [
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xA8, 0, 100, 0x81, 0, 0, 200, 0x86, 0xDD][..],
        &[0x60, 3, 0, 0x38, 0, 0, 59, 64],
        &[0x20; 32],
    ]
    .concat();
    let (seen, _) = read(&[record(0, &[(315, &frame)])]);
    assert_eq!((seen[0].vlan, seen[0].inner_vlan), (Some(100), Some(200)));
}

#[test]
fn lost_records_are_counted() {
    let template = half(&[300, 2, 1, 4, 8, 4]);
    let data = |count: usize| vec![7; 8 * count];
    let (mut intake, mut sink) = (intake(), ());
    for message in [
        message(0, &[(2, template)]),
        message(0, &[(300, data(3))]),
        message(3, &[(300, data(2))]),
        message(9, &[(300, data(1))]),
    ] {
        intake.export(Duration::ZERO, from(), &message, &mut sink).unwrap();
    }
    assert_eq!(intake.exporters().iter().next().unwrap().records_lost(), 4);
}

#[test]
fn malformed_exports_are_refused_or_bounded() {
    let mut intake = intake();
    let refusal = |intake: &mut Intake, bytes: &[u8]| {
        intake.export(Duration::ZERO, from(), bytes, &mut ()).map_err(|error| error.to_string())
    };
    assert!(refusal(&mut intake, &[0; 3]).unwrap_err().starts_with("3 bytes hold no header"));
    let other = refusal(&mut intake, &half(&[8, 1, 0, 0])).unwrap_err();
    assert!(other.starts_with("version 8 of NetFlow is not read"), "{other}");
    // A template with zero-length fields only, one with too many fields, a set that is too long.
    let empty = half(&[300, 2, 1, 0, 2, 0]);
    let wide = [half(&[301, 60_000]), vec![0; 1000]].concat();
    for sets in [
        vec![(2, empty), (300, vec![0; 100])],
        vec![(2, wide)],
        vec![(3, half(&[302, 3, 9, 1, 4]))],
    ] {
        refusal(&mut intake, &message(0, &sets)).unwrap();
    }
    let mut cut = message(0, &[(2, half(&[300, 1, 1, 4]))]);
    cut[18..20].copy_from_slice(&[0xFF, 0xFF]);
    refusal(&mut intake, &cut).unwrap();
    assert_eq!(intake.counts().broken, 3);
    // Unbounded templates: limited by the exporter's state budget.
    for id in 256..=u16::MAX {
        let wide: Vec<u16> = [id, 200].into_iter().chain((0..200).flat_map(|_| [1, 4])).collect();
        refusal(&mut intake, &message(0, &[(2, half(&wide))])).unwrap();
    }
    assert!(intake.exporters().states() <= penstock_flows::exporter::STATES_MAX);
    // Sets without templates are stored up to the limit.
    let mut flooded = self::intake();
    for number in 0..1_000 {
        refusal(&mut flooded, &message(number, &[(400, vec![7; 1_400])])).unwrap();
    }
    let exporter = flooded.exporters().iter().next().unwrap();
    assert!(exporter.unknown > 900, "{}", exporter.unknown);
    assert!(flooded.exporters().states() <= EARLY_SETS_MAX * 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..penstock_testkit::properties() })]

    #[test]
    fn arbitrary_bytes_never_panic(
        version in prop::sample::select(vec![5_u16, 9, 10]),
        words in prop::collection::vec(prop_oneof![0_u16..4, 256_u16..260, 1_u16..40, any::<u16>()], 0..200),
    ) {
        let body = half(&words);
        let head = half(&[version, if version == 10 { body.len() as u16 + 2 } else { 3 }]);
        let _ = intake().export(Duration::ZERO, from(), &[head, body].concat(), &mut ());
    }

    #[test]
    fn changed_datagrams_never_panic(
        name in prop::sample::select(vec!["netflow5.export", "netflow9.export", "ipfix.export"]),
        at: u16,
        value: u8,
        length: u16,
    ) {
        let mut bytes = common::datagrams(name).swap_remove(0);
        let at = usize::from(at) % bytes.len();
        bytes[at] = value;
        bytes.truncate(usize::from(length) % (bytes.len() + 1));
        let _ = intake().export(Duration::ZERO, from(), &bytes, &mut ());
    }
}
