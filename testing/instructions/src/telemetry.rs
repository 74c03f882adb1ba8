//! Datagrams of sFlow, IPFIX and NetFlow, from bytes to sums.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use penstock_flows::aggregate::{AggregateLimits, Aggregator};
use penstock_flows::intake::Intake;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::Trust;
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{Encoder, FlowRecord, SflowInterface, Source};
use penstock_random::Random;
use penstock_scitags::{FlowLabel, Registry};

use crate::{HotPath, count};

pub(crate) const PATHS: &[HotPath] = &[
    ("sflow-intake", sflow),
    ("ipfix-intake", ipfix),
    ("netflow9-intake", netflow9),
    ("netflow5-intake", netflow5),
];

const SAMPLE_COUNT: u32 = 2000;
const FLOW_COUNT: u64 = 200;
/// Records in a datagram of IPFIX or NetFlow.
const RECORD_COUNT: u32 = 25;
const RANDOM_SEED: u64 = 1;

fn intake() -> Intake {
    let sites = (0..8_u16).map(|site| (host(site.into()).into(), 48, site));
    let trust = Trust::new(
        Registry::builtin().clone(),
        Prefixes::default(),
        Prefixes::default(),
        RANDOM_SEED,
    );
    let prefixes = Prefixes::new(sites).expect("distinct prefixes");
    Intake::new(
        trust,
        Aggregator::new(AggregateLimits::default(), prefixes, RANDOM_SEED),
        RANDOM_SEED,
    )
}

fn host(number: u64) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, (number % 8) as u16, 0, 0, 0, 0, (number / 8) as u16 + 1)
}

/// Passes `datagrams` to new intakes.
fn count_intake(
    datagrams: &[Vec<u8>],
    samples: u64,
    pass: impl Fn(&mut Intake, SocketAddr, &[u8]),
) {
    let from = SocketAddr::from(([192, 0, 2, 9], 40_000));
    let mut intakes = [intake(), intake()].into_iter();
    count(|| {
        let mut intake = intakes.next().expect("two intakes");
        datagrams.iter().for_each(|datagram| pass(&mut intake, from, datagram));
        assert_eq!((intake.counts().observations, intake.counts().broken), (samples, 0));
        intake
    });
}

/// Frame of TCP over IPv6 in a VLAN, with the flow label of a registered tag.
fn frame(flow: u64) -> [u8; 128] {
    let mut random = Random::new(flow);
    let tags: Vec<_> =
        Registry::builtin().tags().filter(|tag| tag.fits_on_packets().is_ok()).collect();
    let tag = tags[random.below(tags.len() as u64) as usize];
    let label = FlowLabel::new(tag, flow as u8).expect("the tag fits").value();
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x0B, 0xB8, 0x86, 0xDD];
    bytes.extend((6 << 28 | label).to_be_bytes());
    bytes.extend([0x22, 0xF8, 6, 64]);
    bytes.extend(host(random.below(400)).octets());
    bytes.extend(host(random.below(400)).octets());
    bytes.extend((flow as u16).to_be_bytes());
    bytes.extend([0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    bytes.resize(128, 0xA5);
    bytes.try_into().expect("128 bytes")
}

fn sflow() {
    let frames: Vec<_> = (0..FLOW_COUNT).map(frame).collect();
    let mut encoder = Encoder::new(IpAddr::from([192, 0, 2, 1]), 0, DATAGRAM_BYTES);
    let mut random = Random::new(RANDOM_SEED);
    let mut datagrams = Vec::new();
    for sequence in 1..=SAMPLE_COUNT {
        let head = FlowHead {
            sequence,
            source: Source::interface(sequence % 32 + 1),
            sampling_rate: 10_000,
            sample_pool: sequence * 10_000,
            drops: 0,
            input: SflowInterface::Index(sequence % 32 + 1),
            output: SflowInterface::Index(40),
        };
        let record = FlowRecord::Header(SampledHeader {
            protocol: HEADER_ETHERNET,
            frame_length: 9_018,
            stripped: 4,
            header: Opaque(&frames[random.below(FLOW_COUNT) as usize]),
        });
        datagrams.extend(encoder.flow(sequence, &head, &[record]).expect("the sample fits"));
    }
    datagrams.extend(encoder.take(SAMPLE_COUNT));
    count_intake(&datagrams, SAMPLE_COUNT.into(), |intake, from, bytes| {
        intake.sflow(Duration::ZERO, from, bytes, &mut ()).expect("a valid datagram");
    });
}

fn words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A set with its head.
fn set(id: u16, content: &[u8]) -> Vec<u8> {
    [&words(&[id, content.len() as u16 + 4])[..], content].concat()
}

/// Addresses, ports, protocol, flow label, packets and bytes.
const TEMPLATE_FIELDS: [[u16; 2]; 8] =
    [[27, 16], [28, 16], [7, 2], [11, 2], [4, 1], [31, 4], [2, 8], [1, 8]];

/// Template and records for its fields.
fn template_and_records(number: u32) -> [Vec<u8>; 2] {
    let template =
        [&[300, TEMPLATE_FIELDS.len() as u16][..], TEMPLATE_FIELDS.as_flattened()].concat();
    let mut records = Vec::new();
    for record in 0..RECORD_COUNT {
        let flow = u64::from(number * RECORD_COUNT + record) % FLOW_COUNT;
        records.extend(host(flow).octets());
        records.extend(host(flow + 7).octets());
        records.extend((flow as u16).to_be_bytes());
        records.extend(5201_u16.to_be_bytes());
        records.push(6);
        records.extend(0x3_0038_u32.to_be_bytes());
        records.extend(10_u64.to_be_bytes());
        records.extend(90_000_u64.to_be_bytes());
    }
    [words(&template), records]
}

fn ipfix() {
    let message = |number: u32| {
        let [template, records] = template_and_records(number);
        let body = [set(2, &template), set(300, &records)].concat();
        let mut message = words(&[10, body.len() as u16 + 16]);
        for word in [1_700_000_000, number * RECORD_COUNT, 7] {
            message.extend(word.to_be_bytes());
        }
        message.extend(body);
        message
    };
    export((0..SAMPLE_COUNT / RECORD_COUNT).map(message).collect());
}

fn netflow9() {
    let message = |number: u32| {
        let [template, records] = template_and_records(number);
        let mut message = words(&[9, RECORD_COUNT as u16 + 1]);
        for word in [60_000, 1_700_000_000, number, 7] {
            message.extend(word.to_be_bytes());
        }
        message.extend([set(0, &template), set(300, &records)].concat());
        message
    };
    export((0..SAMPLE_COUNT / RECORD_COUNT).map(message).collect());
}

fn netflow5() {
    let message = |number: u32| {
        let mut message = words(&[5, RECORD_COUNT as u16]);
        for word in [60_000, 1_700_000_000, 0, number * RECORD_COUNT, 0] {
            message.extend(word.to_be_bytes());
        }
        for record in 0..RECORD_COUNT {
            let flow = (number * RECORD_COUNT + record) as u8;
            message.extend([10, 0, 0, flow, 10, 1, 0, flow, 10, 2, 0, 1, 0, 1, 0, 2]);
            // Packets, bytes, times of the first and the last packet.
            for word in [10_u32, 90_000, 50_000, 59_000] {
                message.extend(word.to_be_bytes());
            }
            message.extend([0, flow, 0x14, 0x51, 0, 0x18, 6, 0, 0, 0, 0, 0, 24, 24, 0, 0]);
        }
        message
    };
    export((0..SAMPLE_COUNT / RECORD_COUNT).map(message).collect());
}

fn export(datagrams: Vec<Vec<u8>>) {
    count_intake(&datagrams, SAMPLE_COUNT.into(), |intake, from, bytes| {
        intake.export(Duration::ZERO, from, bytes, &mut ()).expect("a valid datagram");
    });
}
