//! End to end: datagrams of agents through decoding, trust and counters to the sums.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use penstock_flows::aggregate::{
    AggregateLimits, Aggregates, Aggregator, Combine, HostDirection, ScitagLabel,
};
use penstock_flows::exporter::{EXPORTERS_MAX, Exporter, NEWCOMERS_MAX};
use penstock_flows::intake::{Intake, Sink};
use penstock_flows::interface::CounterInterval;
use penstock_flows::observe::{InterfaceDirection, Observation};
use penstock_flows::packet::{IpVersion, MappedAddress};
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::{
    DistrustReason, FIREFLY_LINGER, ScitagCarrier, ScitagVerdict, Trust, TrustReason,
};
use penstock_flows::sflow::counters::{CounterRecord, GenericInterface, PortName};
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{
    ExtendedRouter, ExtendedSwitch, HEADER_ETHERNET, SampledEthernet, SampledHeader, SampledIpv4,
    VLAN_UNKNOWN,
};
use penstock_flows::sflow::xdr::{Mac, Opaque, XdrReader};
use penstock_flows::sflow::{Encoder, FlowRecord, SflowInterface, Source};
use penstock_scitags::firefly::{Firefly, FireflyFlow, FlowPhase, TransportProtocol};
use penstock_scitags::time::UtcTime;
use penstock_scitags::{FlowLabel, Registry, Scitag, option};

const CERN: &str = "2001:db8:1::";
const FNAL: &str = "2001:db8:2::";
const ELSEWHERE: &str = "2001:db8:99::";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn host(site: &str, number: u16) -> Ipv6Addr {
    let mut segments = site.parse::<Ipv6Addr>().unwrap().segments();
    segments[7] = number;
    segments.into()
}

fn intake() -> Intake {
    let hosts = Prefixes::new([(ip(CERN), 48, ())]).unwrap();
    let relays = Prefixes::new([(ip("192.0.2.53"), 32, ())]).unwrap();
    let sites = Prefixes::new([(ip(CERN), 48, 1), (ip(FNAL), 48, 2)]).unwrap();
    let trust = Trust::new(Registry::builtin().clone(), hosts, relays, 1);
    Intake::new(trust, Aggregator::new(AggregateLimits::default(), sites, 1), 1)
}

fn agent(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn from() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 5], 6343))
}

fn cms() -> Scitag {
    Scitag::new(3, 14).unwrap()
}

fn atlas() -> Scitag {
    Scitag::new(2, 26).unwrap()
}

/// Fields of a test packet besides its addresses.
#[derive(Clone, Copy, Default)]
struct Marks {
    label: u32,
    option: Option<Scitag>,
    port: u16,
}

fn frame(source: Ipv6Addr, destination: Ipv6Addr, marks: Marks) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x0B, 0xB8, 0x86, 0xDD];
    frame.extend((6 << 28 | marks.label).to_be_bytes());
    frame.extend([0x22, 0xF8, if marks.option.is_some() { 60 } else { 6 }, 64]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    if let Some(tag) = marks.option {
        frame.extend(option::encode_header(6, tag).unwrap());
    }
    frame.extend((40_000 + marks.port).to_be_bytes());
    frame.extend(5201_u16.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xFF, 0xFF, 0, 0, 0, 0]);
    frame
}

fn label(tag: Scitag) -> u32 {
    FlowLabel::new(tag, 9).unwrap().value()
}

fn header(frame: &[u8]) -> FlowRecord<'_> {
    FlowRecord::Header(SampledHeader {
        protocol: HEADER_ETHERNET,
        frame_length: 9018,
        stripped: 4,
        header: Opaque(frame),
    })
}

/// An agent that samples packets received on interface 3.
struct Agent {
    encoder: Encoder,
    sequence: u32,
    rate: u32,
}

impl Agent {
    fn new(number: u8) -> Self {
        Self { encoder: Encoder::new(agent(number), 0, DATAGRAM_BYTES), sequence: 0, rate: 1000 }
    }

    fn head(&mut self) -> FlowHead {
        self.sequence += 1;
        FlowHead {
            sequence: self.sequence,
            source: Source::interface(3),
            sampling_rate: self.rate,
            sample_pool: self.sequence.wrapping_mul(self.rate),
            drops: 0,
            input: SflowInterface::Index(3),
            output: SflowInterface::Index(4),
        }
    }

    fn sample(&mut self, records: &[FlowRecord<'_>]) -> Vec<u8> {
        let head = self.head();
        self.encoder.flow(self.sequence, &head, records).unwrap();
        self.encoder.take(self.sequence).unwrap()
    }

    fn packet(&mut self, frame: &[u8]) -> Vec<u8> {
        self.sample(&[header(frame)])
    }
}

/// Swapped datagrams are counted, and change neither loss nor effective rate.
#[test]
fn swapped_datagrams_keep_effective_rate() {
    let sent = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    for swap in [1, 10] {
        let (mut intake, mut agent) = (intake(), Agent::new(1));
        let mut datagrams: Vec<_> = (0..40).map(|_| agent.packet(&sent)).collect();
        datagrams.chunks_exact_mut(2).step_by(swap).for_each(|pair| pair.swap(0, 1));
        for datagram in &datagrams {
            intake.sflow(Duration::ZERO, from(), datagram, &mut ()).unwrap();
        }
        assert_eq!(intake.counts().observations, 40);
        let exporter = intake.exporters().iter().next().unwrap();
        assert_eq!((exporter.sequence.lost, exporter.sequence.duplicates), (0, 0));
        let (_, _, source) = exporter.sources().next().unwrap();
        assert_eq!((source.sequence.lost, source.effective_rate()), (0, 1_000.0), "{swap}");
    }
}

#[test]
fn implausible_samples_are_not_counted() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let sent = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    intake.sflow(Duration::ZERO, from(), &agent.packet(&sent), &mut ()).unwrap();
    agent.rate = u32::MAX;
    intake.sflow(Duration::ZERO, from(), &agent.packet(&sent), &mut ()).unwrap();
    assert_eq!(intake.take().all.bytes, 9_018_000);
    assert_eq!(intake.exporters().iter().next().unwrap().implausible, 1);
}

#[derive(Default)]
struct HostKey {
    verdicts: Vec<ScitagVerdict>,
    observations: Vec<Observation>,
    intervals: Vec<(u32, CounterInterval)>,
}

impl Sink for HostKey {
    fn observation(&mut self, _: &Exporter, seen: &Observation, verdict: ScitagVerdict) {
        self.verdicts.push(verdict);
        self.observations.push(*seen);
    }

    fn interval(&mut self, _: &Exporter, index: u32, interval: &CounterInterval) {
        self.intervals.push((index, *interval));
    }
}

const RECEIVE_TIME: Duration = Duration::from_secs(1_000);

fn verdict(intake: &mut Intake, agent: &mut Agent, frame: &[u8], now: Duration) -> ScitagVerdict {
    let mut seen = HostKey::default();
    intake.sflow(now, from(), &agent.packet(frame), &mut seen).unwrap();
    assert_eq!(intake.counts().broken, 0);
    seen.verdicts[0]
}

fn firefly(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    port: u16,
    tag: Scitag,
    phase: FlowPhase,
) -> Vec<u8> {
    let time = UtcTime::new(1_700_000_000, 0);
    let ends =
        (SocketAddr::new(source.into(), 40_000 + port), SocketAddr::new(destination.into(), 5201));
    Firefly {
        phase,
        started: time,
        now: time,
        flow: FireflyFlow::new(ends.0, ends.1, TransportProtocol::Tcp).unwrap(),
        tag,
        application: "test".to_owned(),
        bytes: None,
        packets: None,
        tcp: None,
    }
    .datagram("dtn1.example.org", "penstock")
}

#[test]
fn contradictory_samples_are_not_summed() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let frame = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    let sampled = u32::try_from(frame.len()).unwrap();
    let lengths = |frame_length| {
        FlowRecord::Header(SampledHeader {
            protocol: HEADER_ETHERNET,
            frame_length,
            stripped: 4,
            header: Opaque(&frame),
        })
    };
    let mut contradictory = 0;
    for (rate, frame_length, is_plausible) in [
        (1000, sampled, true),
        (1000, 512 << 10, true),
        (1000, sampled - 1, false),
        (1000, 0, false),
        (1000, u32::MAX, false),
        (0, 9018, false),
    ] {
        agent.rate = rate;
        let datagram = agent.sample(&[lengths(frame_length)]);
        let mut seen = HostKey::default();
        intake.sflow(RECEIVE_TIME, from(), &datagram, &mut seen).unwrap();
        assert_eq!(seen.observations.len(), usize::from(is_plausible), "{rate} {frame_length}");
        contradictory += u64::from(!is_plausible);
        assert_eq!(intake.counts().broken, contradictory, "{rate} {frame_length}");
    }
    let exporter = intake.exporters().iter().next().unwrap();
    assert_eq!((exporter.broken, exporter.sampling_rate), (contradictory, 1000));
}

#[test]
fn label_needs_reason_for_trust() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let (listed, stranger) = (host(CERN, 1), host(ELSEWHERE, 1));
    let to = host(FNAL, 1);
    let labelled = Marks { label: label(cms()), ..Marks::default() };
    let optioned = Marks { option: Some(atlas()), ..Marks::default() };
    let random = Marks { label: 0x12345, ..Marks::default() };
    let wild = Marks { option: Some(Scitag::new(500, 60).unwrap()), ..Marks::default() };
    let both = Marks { label: label(cms()), ..optioned };
    let mut judge =
        |source, marks| verdict(&mut intake, &mut agent, &frame(source, to, marks), RECEIVE_TIME);
    let (by_list, unknown) = (TrustReason::HostList, DistrustReason::UnknownHost);
    assert_eq!(judge(listed, Marks::default()), ScitagVerdict::Unlabelled);
    assert_eq!(judge(listed, random), ScitagVerdict::Unlabelled);
    assert_eq!(
        judge(listed, labelled),
        ScitagVerdict::Trusted(cms(), ScitagCarrier::FlowLabel, by_list)
    );
    assert_eq!(
        judge(listed, optioned),
        ScitagVerdict::Trusted(atlas(), ScitagCarrier::Destination, by_list)
    );
    assert_eq!(
        judge(listed, both),
        ScitagVerdict::Trusted(atlas(), ScitagCarrier::Destination, by_list)
    );
    assert_eq!(
        judge(stranger, labelled),
        ScitagVerdict::Untrusted(cms(), ScitagCarrier::FlowLabel, unknown)
    );
    assert_eq!(
        judge(stranger, optioned),
        ScitagVerdict::Untrusted(atlas(), ScitagCarrier::Destination, unknown)
    );
    let unregistered = Scitag::new(500, 60).unwrap();
    let expected = ScitagVerdict::Untrusted(
        unregistered,
        ScitagCarrier::Destination,
        DistrustReason::Unregistered,
    );
    assert_eq!(judge(listed, wild), expected);
}

#[test]
fn firefly_confirms_or_supplies_the_label() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let (a, b) = (host(ELSEWHERE, 1), host(FNAL, 1));
    let relay = SocketAddr::from(([192, 0, 2, 53], 10514));
    let start = firefly(a, b, 7, cms(), FlowPhase::Start);
    // A firefly of an unlisted sender is refused.
    let refused = intake.firefly(RECEIVE_TIME, from(), &start, &mut ()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "203.0.113.5 is neither a host that marks nor a relay: list it, if its fireflies are to count"
    );
    assert!(intake.firefly(RECEIVE_TIME, relay, b"{}", &mut ()).is_err());
    let plain = frame(a, b, Marks { port: 7, ..Marks::default() });
    assert_eq!(verdict(&mut intake, &mut agent, &plain, RECEIVE_TIME), ScitagVerdict::Unlabelled);
    intake.firefly(RECEIVE_TIME, relay, &start, &mut ()).unwrap();
    let by_firefly = ScitagVerdict::Trusted(cms(), ScitagCarrier::Firefly, TrustReason::Firefly);
    assert_eq!(verdict(&mut intake, &mut agent, &plain, RECEIVE_TIME), by_firefly);
    let marked = |marks: Marks| frame(a, b, Marks { port: 7, ..marks });
    // The packet has the same pair, another pair by chance, and another pair by an option.
    let same = marked(Marks { label: label(cms()), ..Marks::default() });
    let expected = ScitagVerdict::Trusted(cms(), ScitagCarrier::FlowLabel, TrustReason::Firefly);
    assert_eq!(verdict(&mut intake, &mut agent, &same, RECEIVE_TIME), expected);
    let chance = marked(Marks { label: label(atlas()), ..Marks::default() });
    assert_eq!(verdict(&mut intake, &mut agent, &chance, RECEIVE_TIME), by_firefly);
    let purpose = marked(Marks { option: Some(atlas()), ..Marks::default() });
    let expected =
        ScitagVerdict::Untrusted(atlas(), ScitagCarrier::Destination, DistrustReason::Contradicted);
    assert_eq!(verdict(&mut intake, &mut agent, &purpose, RECEIVE_TIME), expected);
    // Acknowledgements belong to the flow, other ports do not.
    let other = frame(a, b, Marks { port: 8, ..Marks::default() });
    assert_eq!(verdict(&mut intake, &mut agent, &other, RECEIVE_TIME), ScitagVerdict::Unlabelled);
    let mut back = frame(b, a, Marks::default());
    let ports = back.len() - 20;
    back[ports..ports + 4].copy_from_slice(&[0x14, 0x51, 0x9C, 0x47]);
    assert_eq!(verdict(&mut intake, &mut agent, &back, RECEIVE_TIME), by_firefly);
    // An ended flow is stored for FIREFLY_LINGER.
    let end = firefly(a, b, 7, cms(), FlowPhase::End(UtcTime::new(1_700_000_001, 0)));
    intake.firefly(RECEIVE_TIME, relay, &end, &mut ()).unwrap();
    let later = RECEIVE_TIME + FIREFLY_LINGER;
    assert_eq!(
        verdict(&mut intake, &mut agent, &plain, later - Duration::from_secs(1)),
        by_firefly
    );
    assert_eq!(verdict(&mut intake, &mut agent, &plain, later), ScitagVerdict::Unlabelled);
    assert_eq!((intake.counts().fireflies, intake.counts().fireflies_refused), (2, 2));
}

#[test]
fn labels_decode_every_published_pair() {
    // Owner, activity, label without entropy bits and with all of them, as published by Scitags and CMS.
    let table = [
        (1, 1, 0x20004, 0xE0107),
        (2, 4, 0x10010, 0xD0113),
        (2, 26, 0x10068, 0xD016B),
        (3, 14, 0x30038, 0xF013B),
        (3, 23, 0x3005C, 0xF015F),
        (3, 24, 0x30060, 0xF0163),
        (5, 10, 0x28028, 0xE812B),
        (7, 4, 0x38010, 0xF8113),
        (8, 4, 0x04010, 0xC4113),
        (14, 1, 0x1C004, 0xDC107),
    ];
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let mut read = |frame: &[u8]| verdict(&mut intake, &mut agent, frame, RECEIVE_TIME);
    for (owner, activity, bare, full) in table {
        let tag = Scitag::new(owner, activity).unwrap();
        let trusted = |carrier| ScitagVerdict::Trusted(tag, carrier, TrustReason::HostList);
        for label in [bare, full] {
            let marks = Marks { label, ..Marks::default() };
            let frame = frame(host(CERN, 1), host(FNAL, 1), marks);
            assert_eq!(read(&frame), trusted(ScitagCarrier::FlowLabel), "{tag} {label:05x}");
        }
        let marks = Marks { option: Some(tag), ..Marks::default() };
        let mut frame = frame(host(CERN, 1), host(FNAL, 1), marks);
        assert_eq!(read(&frame), trusted(ScitagCarrier::Destination), "{tag}");
        // The option as flowd-go wrote it in its first releases: a label in option 0x1F.
        let [_, a, b, c] = u32::to_be_bytes(full);
        let option = 18 + 40 + 2;
        frame[option..option + 6].copy_from_slice(&[0x1F, 4, a, b, c, 0]);
        assert_eq!(read(&frame), trusted(ScitagCarrier::Destination), "{tag}");
    }
}

/// A hundred samples of each of three kinds, by two agents that see the same traffic.
fn sums() -> Aggregates {
    let mut intake = intake();
    for number in 1..=2 {
        let mut agent = Agent::new(number);
        for at in 0..100 {
            let marks = |label| Marks { label, port: at % 10, ..Marks::default() };
            for (source, label) in [
                (host(CERN, at % 5), label(cms())),
                (host(ELSEWHERE, 1), label(cms())),
                (host(CERN, 1), 0),
            ] {
                let bytes = agent.packet(&frame(source, host(FNAL, 9), marks(label)));
                intake.sflow(RECEIVE_TIME, from(), &bytes, &mut ()).unwrap();
            }
        }
    }
    intake.take()
}

#[test]
fn each_sum_counts_a_packet_once() {
    let sums = sums();
    let bytes = 100 * 1000 * 9018;
    assert_eq!(sums.all.bytes, 6 * bytes);
    let labels = sums.labels(Combine::Max);
    assert_eq!(labels[&ScitagLabel::Trusted(cms())].bytes, bytes);
    assert_eq!(labels[&ScitagLabel::Untrusted(cms())].bytes, bytes);
    assert_eq!(labels[&ScitagLabel::Unlabelled].bytes, bytes);
    assert_eq!(sums.labels(Combine::Sum)[&ScitagLabel::Unlabelled].bytes, 2 * bytes);
    let estimate = labels[&ScitagLabel::Unlabelled].bytes();
    assert!((estimate.relative_error_95() - 0.196).abs() < 0.001, "{estimate:?}");
    assert_eq!(sums.owners(Combine::Max)[&3].bytes, bytes);
    assert_eq!(sums.activities(Combine::Max)[&cms()].bytes, bytes);
    assert_eq!(sums.activities(Combine::Max).len(), 1);
    assert_eq!(sums.vlans(Combine::Max)[&3000].bytes, 3 * bytes);
    assert_eq!(sums.versions(Combine::Max)[&IpVersion::V6].bytes, 3 * bytes);
    let sites = sums.sites(Combine::Max);
    assert_eq!(sites[&(1, HostDirection::Sent)].bytes, 2 * bytes);
    assert_eq!(sites[&(2, HostDirection::Received)].bytes, 3 * bytes);
    assert_eq!(sites.len(), 2);
    let hosts = sums.hosts(Combine::Max);
    assert_eq!(
        hosts[&(MappedAddress::from(IpAddr::from(host(FNAL, 9))), HostDirection::Received)].bytes,
        3 * bytes
    );
    assert_eq!(hosts.len(), 7);
    let prefixes = sums.prefixes(Combine::Max);
    assert!(prefixes.keys().all(|(prefix, _)| prefix.bits == 64));
    assert_eq!(prefixes.len(), 3);
    // Interfaces are not merged: each agent has its own.
    let interfaces = sums.interfaces();
    assert_eq!(interfaces.len(), 4);
    assert_eq!(interfaces[&(0, 3, InterfaceDirection::Ingress)].bytes, 3 * bytes);
    assert_eq!(interfaces[&(1, 4, InterfaceDirection::Egress)].bytes, 3 * bytes);
    let talkers = sums.talkers(3);
    assert_eq!((talkers.len(), sums.talkers_error()), (3, 0));
    // Ten labelled and ten unlabelled samples.
    assert_eq!(talkers[0].least, 20 * 1000 * 9018);
}

#[test]
fn full_table_keeps_totals_complete() {
    let limits = AggregateLimits {
        groups: 3,
        hosts: 10,
        prefixes: 2,
        talkers: 16,
        ..AggregateLimits::default()
    };
    let hosts = Prefixes::default;
    let trust = Trust::new(Registry::builtin().clone(), hosts(), hosts(), 1);
    let mut intake = Intake::new(trust, Aggregator::new(limits, Prefixes::default(), 1), 1);
    let mut agent = Agent::new(1);
    for at in 0..1000 {
        let marks = Marks {
            label: label(Scitag::new(3, u64::from(at % 20) + 1).unwrap()),
            ..Marks::default()
        };
        let bytes = agent.packet(&frame(host(ELSEWHERE, at), host(FNAL, at / 2), marks));
        intake.sflow(RECEIVE_TIME, from(), &bytes, &mut ()).unwrap();
    }
    let sums = intake.take();
    assert_eq!((sums.groups.len(), sums.hosts.len(), sums.prefixes.len()), (3, 10, 2));
    let kept: u64 = sums.groups.iter().map(|(_, tally)| tally.samples).sum();
    assert_eq!((kept + sums.groups.other.samples, sums.all.samples), (1000, 1000));
    let kept: u64 = sums.hosts.iter().map(|(_, tally)| tally.samples).sum();
    assert_eq!(kept + sums.hosts.other.samples, 2000);
    // Hosts beyond the limit are counted by prefix.
    let prefixes = sums.prefixes(Combine::Sum);
    assert_eq!(prefixes.len(), 2);
    let kept: u64 = prefixes.values().map(|tally| tally.samples).sum();
    assert_eq!((kept, sums.prefixes.other.samples), (2000, 0));
    assert!(intake.take().groups.is_empty());
}

#[test]
fn record_precedence_ignores_record_order() {
    let frame = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    let ethernet = FlowRecord::Ethernet(SampledEthernet {
        length: 1500,
        source: Mac([2, 0, 0, 0, 0, 2]),
        destination: Mac([2, 0, 0, 0, 0, 1]),
        ether_type: 0x0800,
    });
    let ipv4 = FlowRecord::Ipv4(SampledIpv4 {
        length: 1400,
        protocol: 6,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        source_port: 1,
        destination_port: 2,
        tcp_flags: 0x10,
        tos: 0,
    });
    let switch = |source_vlan| {
        FlowRecord::Switch(ExtendedSwitch {
            source_vlan,
            source_priority: VLAN_UNKNOWN,
            destination_vlan: VLAN_UNKNOWN,
            destination_priority: VLAN_UNKNOWN,
        })
    };
    let router = FlowRecord::Router(ExtendedRouter {
        next_hop: None,
        source_mask_bits: 24,
        destination_mask_bits: 0,
    });
    let look = |records: &[FlowRecord<'_>]| {
        let mut seen = HostKey::default();
        intake().sflow(RECEIVE_TIME, from(), &Agent::new(1).sample(records), &mut seen).unwrap();
        let seen = seen.observations[0];
        (seen.frame_bytes, seen.vlan)
    };
    assert_eq!(look(&[ipv4, switch(7), ethernet, header(&frame)]), (9018, Some(3000)));
    assert_eq!(look(&[header(&frame), ethernet, ipv4]), (9018, Some(3000)));
    assert_eq!(look(&[ipv4, ethernet, switch(7)]), (1500, Some(7)));
    assert_eq!(look(&[switch(VLAN_UNKNOWN), router, ipv4]), (1418, None));
    assert_eq!(look(&[switch(4095)]), (0, None));
}

fn counters(in_octets: u64) -> CounterRecord<'static> {
    let mut counters: GenericInterface = XdrReader::new(&[0; 88]).get().unwrap();
    (counters.index, counters.speed_bps, counters.in_octets) = (3, 400_000_000_000, in_octets);
    counters.out_octets = u64::MAX;
    CounterRecord::Interface(counters)
}

#[test]
fn counters_give_totals_samples_give_shares() {
    let (mut intake, mut agent, mut seen) = (intake(), Agent::new(1), HostKey::default());
    let name = CounterRecord::PortName(PortName { name: Opaque(b"et-0/0/3\x1b[2J") });
    for round in 0..5_u32 {
        for at in 0..100 {
            let marks = Marks { label: if at < 25 { label(cms()) } else { 0 }, ..Marks::default() };
            let bytes = agent.packet(&frame(host(CERN, 1), host(FNAL, 1), marks));
            intake.sflow(RECEIVE_TIME, from(), &bytes, &mut seen).unwrap();
        }
        let octets = u64::from(round) * 950_000_000;
        let records = [counters(octets), name];
        agent.encoder.counters(round * 20_000, round + 1, Source::interface(3), &records).unwrap();
        let bytes = agent.encoder.take(round * 20_000 + 1_000).unwrap();
        let now = RECEIVE_TIME + Duration::from_secs(20) * round;
        intake.sflow(now, from(), &bytes, &mut seen).unwrap();
    }
    let (index, interval) = seen.intervals.last().unwrap();
    assert_eq!((*index, interval.length), (3, Duration::from_secs(20)));
    assert_eq!(interval.input_bps(), Some(380e6));
    let exporter = intake.exporters().iter().next().unwrap();
    let state = exporter.interface(3).unwrap();
    assert_eq!(state.name.as_deref(), Some("et-0/0/3?[2J"));
    // 100 samples of 1 in 1000 and 9018 bytes are 901.8 MB, 950 MB were counted: within the error.
    assert_eq!((state.sampled.0.samples, state.calibration_in.disagrees()), (100, false));
    assert_eq!(state.calibration_in.factor(), 1.0);
    let sums = intake.take();
    let share = sums.labels(Combine::Max)[&ScitagLabel::Trusted(cms())];
    let estimate = share.share(&sums.all, interval.input.octets.unwrap());
    assert_eq!(estimate.value, 237_500_000.0);
    // 1.96 sqrt(0.25 0.75 / 500) of the total.
    assert!((estimate.error_95 / 950e6 - 0.03796).abs() < 0.0001, "{estimate:?}");
}

#[test]
fn loss_rate_changes_restarts_are_detected() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let frame = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    for at in 0..200 {
        let bytes = agent.packet(&frame);
        // One of ten is lost, one of ten is duplicated.
        if at % 10 != 9 {
            intake.sflow(RECEIVE_TIME, from(), &bytes, &mut ()).unwrap();
        }
        if at % 10 == 0 {
            intake.sflow(RECEIVE_TIME, from(), &bytes, &mut ()).unwrap();
        }
    }
    {
        let exporter = intake.exporters().iter().next().unwrap();
        assert_eq!((exporter.sequence.lost, exporter.sequence.duplicates), (19, 20));
        assert!((exporter.loss() - 0.0955).abs() < 0.001);
        let (_, _, source) = exporter.sources().next().unwrap();
        // The pool counts while samples are lost: 1 of 1000 was sampled, 1 of 1111 arrived.
        assert!((source.effective_rate() - 1111.0).abs() < 15.0, "{}", source.effective_rate());
    }
    assert_eq!((intake.counts().observations, intake.counts().duplicates), (180, 20));
    agent.rate = 4000;
    intake.sflow(RECEIVE_TIME, from(), &agent.packet(&frame), &mut ()).unwrap();
    assert_eq!(intake.take().all.packets, 180 * 1000 + 4000);
    // The agent restarts: sequence numbers and uptime begin again.
    let mut again = Agent::new(1);
    intake.sflow(RECEIVE_TIME, from(), &again.packet(&frame), &mut ()).unwrap();
    intake.sflow(RECEIVE_TIME, from(), &again.packet(&frame), &mut ()).unwrap();
    let exporter = intake.exporters().iter().next().unwrap();
    let (_, _, source) = exporter.sources().next().unwrap();
    assert_eq!((exporter.sequence.restarts, source.rate_changes), (1, 2));
    assert!(exporter.sequence.lost <= 20);
}

#[test]
fn forged_exporters_leave_real_one_alone() {
    let (mut intake, mut agent) = (intake(), Agent::new(1));
    let frame = frame(host(CERN, 1), host(FNAL, 1), Marks::default());
    for _ in 0..10 {
        intake.sflow(RECEIVE_TIME, from(), &agent.packet(&frame), &mut ()).unwrap();
    }
    for forged in 0..100_000_u32 {
        let [a, b, c, d] = forged.to_be_bytes();
        let mut bytes = Agent::new(1).packet(&frame);
        bytes[8..12].copy_from_slice(&[10 + a, b, c, d]);
        // Forged exporters report arbitrary uptimes.
        bytes[20..24].copy_from_slice(&forged.wrapping_mul(2_654_435_761).to_be_bytes());
        intake.sflow(RECEIVE_TIME, from(), &bytes, &mut ()).unwrap();
    }
    assert!(intake.exporters().len() <= NEWCOMERS_MAX + EXPORTERS_MAX);
    intake.sflow(RECEIVE_TIME, from(), &agent.packet(&frame), &mut ()).unwrap();
    let known = intake.exporters().iter().find(|exporter| exporter.is_established()).unwrap();
    assert_eq!((known.id, known.sequence.received, known.sequence.lost), (0, 11, 0));
    // Their groups fill the table up to its limit.
    assert!(intake.take().groups.len() <= AggregateLimits::default().groups);
}

#[test]
fn same_input_gives_same_output() {
    let print = |sums: &Aggregates| {
        format!(
            "{:?} {:?} {:?}",
            sums.labels(Combine::Max),
            sums.hosts(Combine::Sum),
            sums.talkers(50)
        )
    };
    assert_eq!(print(&sums()), print(&sums()));
}
