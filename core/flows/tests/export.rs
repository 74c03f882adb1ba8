//! NetFlow and IPFIX: what softflowd exported of a capture, what netflow_parser reads of it, and what a
//! stranger may send.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use netflow_parser::NetflowParser;
use penstock_flows::aggregate::{Aggregator, Limits};
use penstock_flows::export::EARLY_SETS_MAX;
use penstock_flows::exporter::Exporter;
use penstock_flows::intake::{Counts, Intake, Sink};
use penstock_flows::observe::Observation;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::{Trust, Verdict};
use penstock_scitags::Registry;
use proptest::prelude::*;

#[derive(Default)]
struct Seen(Vec<Observation>);

impl Sink for Seen {
    fn observation(&mut self, _: &Exporter, seen: &Observation, _: Verdict) {
        self.0.push(*seen);
    }
}

fn intake() -> Intake {
    let none = Prefixes::default;
    let trust = Trust::new(Registry::builtin().clone(), none(), none(), 1);
    Intake::new(trust, Aggregator::new(Limits::default(), Prefixes::default(), 1), 1)
}

fn from() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 9], 40_000))
}

fn read(datagrams: &[Vec<u8>]) -> (Vec<Observation>, Counts) {
    let (mut intake, mut seen) = (intake(), Seen::default());
    for datagram in datagrams {
        intake.export(Duration::ZERO, from(), datagram, &mut seen).unwrap();
    }
    (seen.0, intake.counts())
}

/// Packets and IP bytes by destination port, and the label.
fn by_port(seen: &[Observation]) -> BTreeMap<u16, (u64, u64, u32)> {
    let line = |seen: &Observation| {
        let ip = seen.packet.ip().unwrap();
        let bytes = seen.frame_bytes - 18 * seen.packets;
        (ip.flow().destination_port, (seen.packets, bytes, ip.flow_label))
    };
    seen.iter().map(line).collect()
}

#[test]
fn flows_of_a_capture_are_those_that_were_captured() {
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
fn a_sampling_rate_that_is_told_in_options_counts() {
    let (seen, counts) = read(&common::datagrams("netflow9-sampled.export"));
    assert_eq!((counts.broken, counts.unknown), (0, 0));
    assert!(!seen.is_empty() && seen.iter().all(|seen| seen.sampling_rate == 10), "{seen:?}");
    // The operator's word counts only where the exporter tells nothing.
    let mut intake = intake();
    intake.set_sampling_rates(Prefixes::new([(from().ip(), 32, 500)]).unwrap());
    let mut seen = Seen::default();
    let v5 = &common::datagrams("netflow5.export")[0];
    intake.export(Duration::ZERO, from(), v5, &mut seen).unwrap();
    assert!(seen.0.iter().all(|seen| seen.sampling_rate == 500));
}

/// Every number that a text has, as often as it has it.
fn numbers(text: &str) -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    for word in text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()) {
        *numbers.entry(word.to_owned()).or_default() += 1;
    }
    numbers
}

#[test]
fn netflow_parser_reads_the_same() {
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
fn a_set_waits_for_its_template() {
    // IPv4 addresses, octets in 3 bytes, a field of an enterprise, a frame of any length.
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
        // Ten records got lost.
        message(14, &[(300, data)]),
    ]);
    assert_eq!((seen.len(), counts.unknown, counts.broken), (6, 0, 0));
    let ip = seen[0].packet.ip().unwrap();
    assert_eq!((ip.flow_label, seen[0].frame_bytes), (0x30038, 65_536 + 18));
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
    assert_eq!(intake.exporters().iter().next().unwrap().records_lost, 4);
}

#[test]
fn what_is_neither_is_refused_and_what_is_wild_is_bounded() {
    let mut intake = intake();
    let refusal = |intake: &mut Intake, bytes: &[u8]| {
        intake.export(Duration::ZERO, from(), bytes, &mut ()).map_err(|error| error.to_string())
    };
    assert!(refusal(&mut intake, &[0; 3]).unwrap_err().starts_with("3 bytes hold no header"));
    let other = refusal(&mut intake, &half(&[8, 1, 0, 0])).unwrap_err();
    assert!(other.starts_with("version 8 of NetFlow is not read"), "{other}");
    // A template of nothing but fields without length, one with too many, a set that is too long.
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
    // Templates without end: the exporter's share ends.
    for id in 256..=u16::MAX {
        let wide: Vec<u16> = [id, 200].into_iter().chain((0..200).flat_map(|_| [1, 4])).collect();
        refusal(&mut intake, &message(0, &[(2, half(&wide))])).unwrap();
    }
    assert!(intake.exporters().states() <= penstock_flows::exporter::STATES_MAX);
    // Sets without templates: some wait, and no more than they may.
    let mut stranger = self::intake();
    for number in 0..1_000 {
        refusal(&mut stranger, &message(number, &[(400, vec![7; 1_400])])).unwrap();
    }
    let exporter = stranger.exporters().iter().next().unwrap();
    assert!(exporter.unknown > 900, "{}", exporter.unknown);
    assert!(stranger.exporters().states() <= EARLY_SETS_MAX * 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn anything_reads_without_a_panic(
        version in prop::sample::select(vec![5_u16, 9, 10]),
        words in prop::collection::vec(prop_oneof![0_u16..4, 256_u16..260, 1_u16..40, any::<u16>()], 0..200),
    ) {
        let body = half(&words);
        let head = half(&[version, if version == 10 { body.len() as u16 + 2 } else { 3 }]);
        let _ = intake().export(Duration::ZERO, from(), &[head, body].concat(), &mut ());
    }

    #[test]
    fn real_datagrams_with_any_byte_changed_read_without_a_panic(
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
