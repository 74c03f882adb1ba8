//! Several intakes, each with the datagrams of its exporters, give what one intake gives.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use penstock_flows::aggregate::{AggregateLimits, Aggregates, Aggregator, TallyTable};
use penstock_flows::exporter::ExporterKey;
use penstock_flows::intake::{Intake, IntakeCounts};
use penstock_flows::prefixes::Prefixes;
use penstock_flows::rates::{Estimate, SampleTally};
use penstock_flows::scitag::Trust;
use penstock_flows::sflow::counters::{CounterRecord, GenericInterface};
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::{Opaque, XdrReader};
use penstock_flows::sflow::{Encoder, FlowRecord, SflowInterface, Source};
use penstock_flows::shard::{ShardLimits, SteeringKind, exporter_address, shard_of};
use penstock_random::Random;
use penstock_scitags::firefly::{Firefly, FireflyFlow, FlowPhase, TransportProtocol};
use penstock_scitags::time::UtcTime;
use penstock_scitags::{FlowLabel, Registry, Scitag};
use proptest::prelude::*;

mod common;

const SECOND_COUNT: u64 = 4;

/// Input of a collector: `kind` is `None` for fireflies.
struct Input {
    at: Duration,
    kind: Option<SteeringKind>,
    from: SocketAddr,
    bytes: Vec<u8>,
}

fn host(number: u64) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, (number % 3) as u16, 0, 0, 0, 0, number as u16 + 1)
}

fn tag() -> Scitag {
    Scitag::new(3, 14).unwrap()
}

fn frame(random: &mut Random) -> Vec<u8> {
    let label = FlowLabel::new(tag(), random.next_bits() as u8).unwrap().value();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xDD];
    frame.extend((6 << 28 | if random.one_in(2) { label } else { 0 }).to_be_bytes());
    frame.extend([0x22, 0xF8, 6, 64]);
    frame.extend(host(random.next_bits() % 12).octets());
    frame.extend(host(random.next_bits() % 12).octets());
    frame.extend((40_000 + random.next_bits() as u16 % 8).to_be_bytes());
    frame.extend([0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    frame
}

/// Datagrams of one agent of sFlow.
fn agent(random: &mut Random, number: u8, address: IpAddr) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(address, u32::from(number % 2), DATAGRAM_BYTES);
    let mut datagrams = Vec::new();
    for sequence in 1..40 {
        let (bytes, port) = (frame(random), 1 + random.next_bits() as u32 % 3);
        let head = FlowHead {
            sequence,
            source: Source::interface(port),
            sampling_rate: 1_000,
            sample_pool: sequence * 1_000,
            drops: 0,
            input: SflowInterface::Index(port),
            output: SflowInterface::Index(9),
        };
        let record = FlowRecord::Header(SampledHeader {
            protocol: HEADER_ETHERNET,
            frame_length: 200 + random.next_bits() as u32 % 9_000,
            stripped: 4,
            header: Opaque(&bytes),
        });
        datagrams.extend(encoder.flow(sequence, &head, &[record]).unwrap());
        if sequence % 10 == 0 {
            let mut counters: GenericInterface = XdrReader::new(&[0; 88]).get().unwrap();
            (counters.index, counters.in_octets) = (port, u64::from(sequence) * 1_000_000);
            let records = [CounterRecord::Interface(counters)];
            datagrams.extend(encoder.counters(sequence, sequence, head.source, &records).unwrap());
        }
    }
    datagrams.extend(encoder.take(40));
    datagrams
}

/// Datagrams of many exporters of all protocols, interleaved, with losses and duplicates.
fn inputs(seed: u64) -> Vec<Input> {
    let mut random = Random::new(seed);
    let mut streams: Vec<(Option<SteeringKind>, IpAddr, Vec<Vec<u8>>)> = Vec::new();
    for number in 0..10_u8 {
        let address: IpAddr = match number % 3 {
            0 => [192, 0, 2, number].into(),
            1 => Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, number.into()).into(),
            _ => std::net::Ipv4Addr::new(192, 0, 2, number).to_ipv6_mapped().into(),
        };
        let datagrams = agent(&mut random, number, address);
        // All through one relay: the agent's address counts.
        streams.push((Some(SteeringKind::Agent), [10, 0, 0, 1].into(), datagrams));
    }
    for (number, name) in ["ipfix", "netflow9", "netflow9-sampled", "netflow5"].iter().enumerate() {
        for exporter in 0..2 {
            let from = [198, 51, 100, number as u8 * 2 + exporter].into();
            let datagrams = common::datagrams(&format!("{name}.export"));
            streams.push((Some(SteeringKind::Source), from, datagrams));
        }
    }
    let flow = |port: u16| {
        let ends = [(host(0), 40_000 + port), (host(1), 5201)];
        let [source, destination] = ends.map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let flow = FireflyFlow::new(source, destination, TransportProtocol::Tcp).unwrap();
        let time = UtcTime::new(1_700_000_000, 0);
        let firefly = Firefly {
            phase: FlowPhase::Start,
            started: time,
            now: time,
            flow,
            tag: tag(),
            application: "test".to_owned(),
            bytes: None,
            packets: None,
            tcp: None,
        };
        firefly.datagram("dtn1.example.org", "penstock")
    };
    streams.push((None, host(0).into(), (0..8).map(flow).collect()));
    let count: usize = streams.iter().map(|stream| stream.2.len()).sum();
    let (mut inputs, mut next) = (Vec::new(), vec![0; streams.len()]);
    for at in 0..count {
        let ready: Vec<_> = (0..streams.len()).filter(|s| next[*s] < streams[*s].2.len()).collect();
        let stream = random.pick(&ready);
        let (kind, from, datagrams) = &streams[stream];
        let bytes = datagrams[next[stream]].clone();
        next[stream] += 1;
        // A port for each exporter of NetFlow: several at one address are several exporters.
        let from = SocketAddr::new(*from, 2_000 + (random.next_bits() % 2) as u16);
        let at = Duration::from_secs_f64(SECOND_COUNT as f64 * at as f64 / count as f64);
        let copies = if random.one_in(5) { 2 } else { u64::from(!random.one_in(10)) };
        for _ in 0..copies {
            inputs.push(Input { at, kind: *kind, from, bytes: bytes.clone() });
        }
    }
    inputs
}

/// Sums of each second, counts and exporters.
struct Outcome {
    seconds: Vec<Aggregates>,
    counts: IntakeCounts,
    exporters: BTreeMap<u32, (ExporterKey, String)>,
}

fn run(inputs: &[Input], shards: usize, limits: AggregateLimits) -> Outcome {
    let shared = Arc::new(ShardLimits::new(shards));
    let sites = Prefixes::new((0..3).map(|site| (host(site).into(), 48, site as u16))).unwrap();
    let marking = Prefixes::new([(host(0).into(), 48, ())]).unwrap();
    let intake = |_| {
        let trust =
            Trust::new(Registry::builtin().clone(), marking.clone(), Prefixes::default(), 1);
        let aggregator = Aggregator::sharing(Arc::clone(&shared), limits, sites.clone(), 1);
        Intake::new(trust, aggregator, 1)
    };
    let mut intakes: Vec<_> = (0..shards).map(intake).collect();
    for input in inputs {
        let Input { at, kind, from, bytes } = input;
        let Some(kind) = kind else {
            let (first, others) = intakes.split_first_mut().unwrap();
            first.firefly(*at, *from, bytes, &mut ()).unwrap();
            let firefly = penstock_scitags::firefly::read(bytes).unwrap();
            for other in others {
                other.trust.receive_firefly(*at, from.ip(), &firefly).unwrap();
            }
            continue;
        };
        let address = exporter_address(*kind, from.ip(), bytes).unwrap();
        let intake = &mut intakes[shard_of(address, shards)];
        intake.aggregator.select(at.as_secs());
        match kind {
            SteeringKind::Agent => intake.sflow(*at, *from, bytes, &mut ()).unwrap(),
            SteeringKind::Source => intake.export(*at, *from, bytes, &mut ()).unwrap(),
        }
    }
    let second = |number| {
        let parts = intakes.iter_mut().map(|intake| intake.aggregator.take_interval(number));
        parts.reduce(|mut sums, part| {
            sums.merge(part);
            sums
        })
    };
    let seconds = (0..SECOND_COUNT).map(second).map(Option::unwrap).collect();
    let mut counts = IntakeCounts::default();
    intakes.iter().for_each(|intake| counts.merge(&intake.counts()));
    let exporters = intakes.iter().flat_map(|intake| intake.exporters().iter()).map(|exporter| {
        let mut interfaces: Vec<_> = exporter.interfaces().collect();
        interfaces.sort_by_key(|(index, _)| *index);
        let state = format!(
            "{:?} {} {} {} {} {interfaces:?}",
            exporter.sequence,
            exporter.is_established(),
            exporter.unknown,
            exporter.records_lost(),
            exporter.sampling_rate
        );
        (exporter.id, (exporter.key, state))
    });
    Outcome { seconds, counts, exporters: exporters.collect() }
}

fn rows<K: Ord + Copy + Eq + std::hash::Hash>(table: &TallyTable<K>) -> BTreeMap<K, SampleTally> {
    table.iter().map(|(key, tally)| (*key, *tally)).collect()
}

/// Equal but for the order in which variances are added.
fn close(ours: &SampleTally, theirs: &SampleTally) -> bool {
    let near = |a: Estimate, b: Estimate| {
        a.value == b.value && (a.error_95 - b.error_95).abs() <= 1e-9 * a.error_95.abs()
    };
    ours.samples == theirs.samples
        && near(ours.packets(), theirs.packets())
        && near(ours.bytes(), theirs.bytes())
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn shards_give_sums_of_one(seed: u64, shards in 2_usize..9) {
        let inputs = inputs(seed);
        let one = run(&inputs, 1, AggregateLimits::default());
        let many = run(&inputs, shards, AggregateLimits::default());
        prop_assert_eq!(one.counts, many.counts);
        prop_assert_eq!(one.exporters, many.exporters);
        prop_assert!(one.counts.observations > 300 && one.counts.duplicates > 0);
        for (ours, theirs) in one.seconds.iter().zip(&many.seconds) {
            prop_assert!(close(&ours.all, &theirs.all), "{:?} {:?}", ours.all, theirs.all);
            prop_assert_eq!(rows(&ours.groups), rows(&theirs.groups));
            prop_assert_eq!(rows(&ours.hosts), rows(&theirs.hosts));
            prop_assert_eq!(rows(&ours.as_pairs), rows(&theirs.as_pairs));
            prop_assert_eq!(rows(&ours.prefixes), rows(&theirs.prefixes));
            prop_assert_eq!(ours.talkers(50), theirs.talkers(50));
            prop_assert_eq!(ours.talkers_error(), theirs.talkers_error());
        }
    }

    #[test]
    fn limits_hold_for_all_shards(seed: u64, shards in 2_usize..9) {
        let inputs = inputs(seed);
        let small = AggregateLimits {
            groups: 9,
            hosts: 7,
            as_pairs: 2,
            prefixes: 3,
            talkers: 16,
            ..AggregateLimits::default()
        };
        let one = run(&inputs, 1, small);
        let many = run(&inputs, shards, small);
        for (ours, theirs) in one.seconds.iter().zip(&many.seconds) {
            // Which keys are counted apart depends on the order; their number and sum do not.
            for (one, many) in [
                (sum(&ours.groups), sum(&theirs.groups)),
                (sum(&ours.as_pairs), sum(&theirs.as_pairs)),
            ] {
                prop_assert_eq!(one.0, many.0);
                prop_assert!(close(&one.1, &many.1), "{:?} {:?}", one.1, many.1);
            }
            prop_assert_eq!(ours.hosts.len(), theirs.hosts.len());
            prop_assert!(theirs.prefixes.len() <= small.prefixes);
            prop_assert!(theirs.talkers(usize::MAX).len() <= small.talkers);
        }
    }
}

/// Count of keys, and the sum of all with `other`.
fn sum<K: Eq + std::hash::Hash>(table: &TallyTable<K>) -> (usize, SampleTally) {
    let mut sum = table.other;
    table.iter().for_each(|(_, tally)| sum.merge(tally));
    (table.len(), sum)
}
