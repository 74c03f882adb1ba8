//! Coverage of the API's 95 % intervals, measured end to end from datagrams to series.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use penstock_flows::sflow::counters::GenericInterface;
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::{Opaque, XdrReader};
use penstock_flows::sflow::{CounterRecord, Encoder, FlowRecord, SflowInterface, Source};
use serde_json::Value;

use crate::common::{Random, seeded, wait_until};
use crate::site::{CONFIG, Collector, Mark, POLL_TIMEOUT, packet, second_ended, taken, test_dir};

const EXPORTER_COUNT: u8 = 200;

fn unit(random: &mut Random) -> f64 {
    (random.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Number of sampled packets: each of `packets` independently with probability 1/`rate`.
fn sampled(random: &mut Random, packets: u64, rate: u32) -> u32 {
    let (mut at, mut count) = (0.0, 0);
    let per_gap = (1.0 - 1.0 / f64::from(rate)).ln();
    loop {
        at += (unit(random).max(1e-300).ln() / per_gap).floor() + 1.0;
        if at > packets as f64 {
            return count;
        }
        count += 1;
    }
}

/// An exporter with a mix of VLANs, and the true octets of each.
struct Mix {
    encoder: Encoder,
    sequence: u32,
    rate: u32,
    truth: Vec<u64>,
    /// VLAN, packet length and number of samples.
    samples: Vec<(u16, u32, u32)>,
}

impl Mix {
    fn new(agent: u8, random: &mut Random) -> Self {
        let encoder = Encoder::new([192, 0, 2, agent].into(), 0, DATAGRAM_BYTES);
        let rate = [100, 1_000, 20_000][random.next_bits() as usize % 3];
        let (mut truth, mut samples) = (Vec::new(), Vec::new());
        for vlan in 0..2 + (random.next_bits() % 5) as u16 {
            // Expected samples from 5 to 200.
            let expected = 5.0 * 40_f64.powf(unit(random));
            let short = [0.0, 0.1, 0.5][random.next_bits() as usize % 3];
            let mut octets = 0;
            for (share, bytes) in [(short, 90_u32), (1.0 - short, 1_518)] {
                let packets = (expected * share * f64::from(rate)) as u64;
                octets += packets * u64::from(bytes);
                samples.push((100 + vlan, bytes, sampled(random, packets, rate)));
            }
            truth.push(octets);
        }
        Self { encoder, sequence: 0, rate, truth, samples }
    }

    fn datagrams(&mut self) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        for (vlan, bytes, count) in self.samples.clone() {
            let header = packet(1, 2, Mark::None, vlan);
            for _ in 0..count {
                self.sequence += 1;
                let head = FlowHead {
                    sequence: self.sequence,
                    source: Source::interface(1),
                    sampling_rate: self.rate,
                    sample_pool: self.sequence.wrapping_mul(self.rate),
                    drops: 0,
                    input: SflowInterface::Index(1),
                    output: SflowInterface::Unknown,
                };
                let record = FlowRecord::Header(SampledHeader {
                    protocol: HEADER_ETHERNET,
                    frame_length: bytes,
                    stripped: 4,
                    header: Opaque(&header[..header.len().min(bytes as usize - 4)]),
                });
                datagrams.extend(self.encoder.flow(self.sequence, &head, &[record]).unwrap());
            }
        }
        datagrams.extend(self.encoder.take(self.sequence));
        datagrams
    }

    fn counters(&mut self, uptime_ms: u32, octets: u64) -> Vec<u8> {
        self.sequence += 1;
        let mut counters: GenericInterface = XdrReader::new(&[0; 88]).get().unwrap();
        (counters.index, counters.status, counters.in_octets) = (1, 3, octets);
        counters.out_octets = u64::MAX;
        let record = CounterRecord::Interface(counters);
        let source = Source::interface(1);
        self.encoder.counters(uptime_ms, self.sequence, source, &[record]).unwrap();
        self.encoder.take(uptime_ms).unwrap()
    }
}

#[test]
fn intervals_of_series_hold_the_truth() {
    let mut random = seeded(0xC0_4E4A);
    let dir = test_dir();
    let collector = Collector::start(dir.path(), CONFIG);
    let socket = collector.socket("sflow");
    let mut mixes: Vec<Mix> =
        (1..=EXPORTER_COUNT).map(|agent| Mix::new(agent, &mut random)).collect();
    // Half of the exporters send counters, before the first sample and after the last.
    second_ended(&collector);
    let begun = Instant::now();
    for mix in mixes.iter_mut().step_by(2) {
        socket.send(&mix.counters(1_000, 7)).unwrap();
    }
    second_ended(&collector);
    second_ended(&collector);
    let mut sent = 0;
    for mix in &mut mixes {
        sent += mix.samples.iter().map(|(_, _, count)| u64::from(*count)).sum::<u64>();
        for datagram in mix.datagrams() {
            socket.send(&datagram).unwrap();
        }
    }
    taken(&collector, sent);
    second_ended(&collector);
    second_ended(&collector);
    let uptime_ms = 1_000 + begun.elapsed().as_millis() as u32;
    for mix in mixes.iter_mut().step_by(2) {
        let octets = 7 + mix.truth.iter().sum::<u64>();
        socket.send(&mix.counters(uptime_ms, octets)).unwrap();
    }
    second_ended(&collector);
    second_ended(&collector);
    second_ended(&collector);
    // A point that covers all samples and ended a second ago. Points under a minute come from memory, where all counters
    // are known at once.
    let (start_s, step_s) = wait_until("a point that has just ended", POLL_TIMEOUT, || {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let step_s = (30..60).find(|step| (now_s - 1).is_multiple_of(*step))?;
        Some((now_s - 1 - step_s, step_s))
    });
    let (mut held, mut all) = ([0_u32; 2], [0_u32; 2]);
    for (number, mix) in mixes.iter().enumerate() {
        let counted = usize::from(number % 2 == 0);
        let path = format!(
            "/api/v1/telemetry/series?by=vlan&exporter=192.0.2.{}&from={start_s}&step={step_s}",
            number + 1
        );
        let answer = collector.get(&path);
        let measured_s = answer["measured_s"][0].as_f64().unwrap();
        let bytes = |value: &Value| value[0].as_f64().unwrap() * measured_s / 8.0;
        let total: u64 = mix.truth.iter().sum();
        if counted == 1 {
            let got = bytes(&answer["total"]["bps"]);
            assert!((got / total as f64 - 1.0).abs() < 0.001, "{got}, not {total}: {answer}");
            assert!(bytes(&answer["total"]["error_bps"]) <= 0.001 * got, "{answer}");
            assert!(answer["total"]["counted_share"][0].as_f64() > Some(0.999), "{answer}");
        }
        for line in answer["series"].as_array().unwrap() {
            let vlan: usize = line["key"].as_str().unwrap().parse().unwrap();
            let (got, error) = (bytes(&line["bps"]), bytes(&line["error_bps"]));
            held[counted] += u32::from((got - mix.truth[vlan - 100] as f64).abs() <= error);
            all[counted] += 1;
        }
    }
    for (name, at) in [("sampled", 0), ("counted", 1)] {
        let percent = 100.0 * f64::from(held[at]) / f64::from(all[at]);
        println!("{name}: {percent:.1} % of {}", all[at]);
    }
    let (held, all) = (held.iter().sum::<u32>(), all.iter().sum::<u32>());
    let percent = 100.0 * f64::from(held) / f64::from(all);
    assert!((93.0..=97.0).contains(&percent), "{percent:.1} % of {all}");
}
