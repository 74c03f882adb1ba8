//! Measures how many flow samples per second one core decodes, labels and aggregates.
//!
//! `cargo run --release -p penstock-flows --example decode_speed [SECONDS [PART OF A NAME]]`. Rows of several threads
//! divide the datagrams by exporter, as the collector does, and merge the sums of each second. The samples are those of a
//! site: frames of 9018 bytes with a VLAN tag; 90 % are IPv6, of which a third has a flow label of a registered pair, a
//! third a Destination Options header and the rest a random label; 20,000 flows between 400 hosts; a switch record and
//! 128 bytes of header in each sample; datagrams of 1400 bytes from eight agents, from 64 in rows of several threads. Flow sizes are log-uniform (1 % of the
//! flows have half of the packets) or, as the worst case for CPU caches, equal. Measures the CPU time of its threads, and
//! for several threads the elapsed time, too.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_flows::aggregate::{AggregateLimits, Aggregator, Combine};
use penstock_flows::intake::Intake;
use penstock_flows::packet::{FirstHeader, Packet};
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::Trust;
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{ExtendedSwitch, HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{Encoder, FlowRecord, Sample, SflowDatagram, SflowInterface, Source};
use penstock_flows::shard::{ShardLimits, SteeringKind, exporter_address, shard_of};
use penstock_random::Random;
use penstock_scitags::{FlowLabel, Registry, option};

const RANDOM_SEED: u64 = 0x5EED;
const FLOW_COUNT: u64 = 20_000;
const SAMPLE_COUNT: u32 = 32_000;
const AGENT_COUNT: u32 = 8;
/// Agents of the rows of several threads: enough that their hashes divide them evenly.
const MANY_AGENTS: u32 = 64;

/// Rounds of one second at 2.5 million samples per second.
const ROUNDS_PER_SECOND: u32 = 78;

fn host(number: u64) -> Ipv6Addr {
    let site = (number % 8) as u16;
    Ipv6Addr::new(0x2001, 0xdb8, site, 0, 0, 0, 0, (number / 8) as u16 + 1)
}

fn header(flow: u64) -> [u8; 128] {
    let mut random = Random::new(flow);
    let (source, destination) = (random.next_bits() % 400, random.next_bits() % 400);
    let tags: Vec<_> = Registry::builtin().tags().collect();
    let tag = tags[random.next_bits() as usize % tags.len()];
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x0B, 0xB8];
    let ports = [(random.next_bits() as u16).to_be_bytes(), 5201_u16.to_be_bytes()].concat();
    if flow.is_multiple_of(10) {
        bytes.extend([0x08, 0, 0x45, 0, 0x23, 0x28, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([10, source as u8, 0, 1, 10, destination as u8, 0, 1]);
    } else {
        let (next, label) = match flow % 3 {
            0 => (6, FlowLabel::new(tag, flow as u8).unwrap().value()),
            1 => (60, random.next_bits() as u32 & 0xF_FFFF),
            _ => (6, random.next_bits() as u32 & 0xF_FFFF),
        };
        bytes.extend([0x86, 0xDD]);
        bytes.extend((6 << 28 | label).to_be_bytes());
        bytes.extend([0x22, 0xF8, next, 64]);
        bytes.extend(host(source).octets());
        bytes.extend(host(destination).octets());
        if next == 60 {
            bytes.extend(option::encode_header(6, tag).unwrap());
        }
    }
    bytes.extend(ports);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xFF, 0xFF, 0, 0, 0, 0]);
    bytes.resize(128, 0xA5);
    bytes.try_into().unwrap()
}

fn datagrams(alike: bool, agents: u32) -> (Vec<Vec<u8>>, u64) {
    let per_agent = SAMPLE_COUNT / agents;
    let (mut random, mut datagrams, mut samples) = (Random::new(RANDOM_SEED), Vec::new(), 0);
    let headers: Vec<_> = (0..FLOW_COUNT + u64::from(agents)).map(header).collect();
    for agent in 0..agents {
        let mut encoder = Encoder::new(IpAddr::from([192, 0, 2, agent as u8]), 0, DATAGRAM_BYTES);
        for sequence in 1..=per_agent {
            let share = random.next_bits() as f64 / u64::MAX as f64;
            let skewed = (FLOW_COUNT as f64).powf(share) as u64;
            let flow = if alike { random.next_bits() } else { skewed };
            // Each flow is sampled by one agent.
            let flow =
                (flow % FLOW_COUNT / u64::from(agents) * u64::from(agents)) + u64::from(agent);
            let port = flow as u32 % 32 + 1;
            let head = FlowHead {
                sequence,
                source: Source::interface(port),
                sampling_rate: 10_000,
                sample_pool: sequence * 10_000,
                drops: 0,
                input: SflowInterface::Index(port),
                output: SflowInterface::Index(40),
            };
            let records = [
                FlowRecord::Header(SampledHeader {
                    protocol: HEADER_ETHERNET,
                    frame_length: 9_018,
                    stripped: 4,
                    header: Opaque(&headers[flow as usize]),
                }),
                FlowRecord::Switch(ExtendedSwitch {
                    source_vlan: 3000,
                    source_priority: 0,
                    destination_vlan: 3000,
                    destination_priority: 0,
                }),
            ];
            samples += 1;
            datagrams.extend(encoder.flow(sequence, &head, &records).unwrap());
        }
        datagrams.extend(encoder.take(per_agent));
    }
    // Interleaves the datagrams of the agents.
    let each = datagrams.len() / agents as usize;
    let turns = (0..datagrams.len()).map(|at| at % agents as usize * each + at / agents as usize);
    (turns.map(|at| datagrams[at].clone()).collect(), samples)
}

fn intake(shared: &Arc<ShardLimits>) -> Intake {
    let sites = (0..8_u16).map(|site| (host(site.into()).into(), 48, site));
    let hosts = (0..4_u64).map(|site| (host(site).into(), 48, ()));
    let trust = Trust::new(
        Registry::builtin().clone(),
        Prefixes::new(hosts).unwrap(),
        Prefixes::default(),
        RANDOM_SEED,
    );
    let (limits, sites) = (AggregateLimits::default(), Prefixes::new(sites).unwrap());
    let aggregator = Aggregator::sharing(Arc::clone(shared), limits, sites, RANDOM_SEED);
    Intake::new(trust, aggregator, RANDOM_SEED)
}

fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `round` repeatedly and prints samples per second, as mean and of the fastest round.
fn measure(name: &str, seconds: f64, samples: u64, mut round: impl FnMut()) {
    if !name.contains(&std::env::args().nth(2).unwrap_or_default()) {
        return;
    }
    let (begin, mut best, mut rounds) = (thread_seconds(), 0.0_f64, 0);
    while thread_seconds() - begin < seconds || rounds < 3 {
        let start = thread_seconds();
        round();
        best = best.max(samples as f64 / (thread_seconds() - start));
        rounds += 1;
    }
    let mean = (samples * rounds) as f64 / (thread_seconds() - begin);
    println!("{name:<28} {:>7.2} M samples/s, best round {:>7.2}", mean / 1e6, best / 1e6);
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let (bytes, samples) = datagrams(false, AGENT_COUNT);
    measure("decode only: records", seconds, samples, || {
        for datagram in &bytes {
            for sample in SflowDatagram::read(datagram).unwrap().samples().flatten() {
                let Sample::Flow(sample) = sample else { continue };
                std::hint::black_box(sample.records.flow().count());
            }
        }
    });
    measure("decode only: and packets", seconds, samples, || {
        for datagram in &bytes {
            for sample in SflowDatagram::read(datagram).unwrap().samples().flatten() {
                let Sample::Flow(sample) = sample else { continue };
                for record in sample.records.flow() {
                    let Ok(FlowRecord::Header(header)) = record else { continue };
                    std::hint::black_box(Packet::read(FirstHeader::Ethernet, header.header.0));
                }
            }
        }
    });
    all("all, flows of all sizes", seconds, bytes, samples);
    let (many, samples_of_many) = datagrams(false, MANY_AGENTS);
    for count in [1, 2, 4, 8, 16] {
        threads(count, seconds, &many, samples_of_many);
    }
    let (bytes, samples) = datagrams(true, AGENT_COUNT);
    all("all, flows alike", seconds, bytes, samples);
}

fn all(name: &str, seconds: f64, mut datagrams: Vec<Vec<u8>>, samples: u64) {
    let from = SocketAddr::from(([192, 0, 2, 200], 6343));
    let each = datagrams.len() as u32 / AGENT_COUNT;
    let (mut intake, mut round) = (intake(&Arc::new(ShardLimits::new(1))), 0_u32);
    let mut sums = None;
    measure(name, seconds, samples, || {
        let now = Duration::from_millis(u64::from(round) * 13);
        for datagram in &mut datagrams {
            number(datagram, each, round);
            intake.sflow(now, from, datagram, &mut ()).unwrap();
        }
        round += 1;
        if round.is_multiple_of(ROUNDS_PER_SECOND) {
            let taken = intake.take();
            std::hint::black_box(taken.labels(Combine::Max));
            sums = Some(taken);
        }
    });
    let Some(sums) = sums else { return };
    let counts = intake.counts();
    assert_eq!((counts.observations, counts.broken), (samples * u64::from(round), 0));
    println!(
        "  {} groups, {} hosts, {} prefixes, {} labels; error of talkers {:.4} %",
        sums.groups.len(),
        sums.hosts.len(),
        sums.prefixes(Combine::Max).len(),
        sums.labels(Combine::Max).len(),
        100.0 * sums.talkers_error() as f64 / sums.all.bytes as f64
    );
}

/// Numbers a datagram: sequence numbers continue over rounds, as those of agents.
fn number(datagram: &mut [u8], each: u32, round: u32) {
    let number = u32::from_be_bytes(datagram[16..20].try_into().unwrap());
    let number = (number - 1) % each + 1 + round * each;
    datagram[16..20].copy_from_slice(&number.to_be_bytes());
}

/// Intake on `count` threads, each with the datagrams of its exporters; the sums of a second are merged.
fn threads(count: usize, seconds: f64, datagrams: &[Vec<u8>], samples: u64) {
    let name = format!("intake, {count} threads");
    if !name.contains(&std::env::args().nth(2).unwrap_or_default()) {
        return;
    }
    let from = SocketAddr::from(([192, 0, 2, 200], 6343));
    let each = datagrams.len() as u32 / MANY_AGENTS;
    let shared = Arc::new(ShardLimits::new(count));
    let mut shards: Vec<_> = (0..count).map(|_| (intake(&shared), Vec::new())).collect();
    for datagram in datagrams {
        let address = exporter_address(SteeringKind::Agent, from.ip(), datagram).unwrap();
        shards[shard_of(address, count)].1.push(datagram.clone());
    }
    let (begun, mut cpu_s, mut second) = (Instant::now(), 0.0, 0_u32);
    while begun.elapsed().as_secs_f64() < seconds || second < 3 {
        let rounds = second * ROUNDS_PER_SECOND..(second + 1) * ROUNDS_PER_SECOND;
        let work = |(intake, datagrams): &mut (Intake, Vec<Vec<u8>>)| {
            for round in rounds.clone() {
                let now = Duration::from_millis(u64::from(round) * 13);
                for datagram in &mut *datagrams {
                    number(datagram, each, round);
                    intake.sflow(now, from, datagram, &mut ()).unwrap();
                }
            }
            (intake.take(), thread_seconds())
        };
        let begin = thread_seconds();
        let parts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                shards.iter_mut().map(|shard| scope.spawn(|| work(shard))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        cpu_s += parts.iter().map(|(_, cpu_s)| cpu_s).sum::<f64>();
        let sums = parts.into_iter().map(|(sums, _)| sums).reduce(|mut sums, part| {
            sums.merge(part);
            sums
        });
        std::hint::black_box(sums.unwrap().labels(Combine::Max));
        cpu_s += thread_seconds() - begin;
        second += 1;
    }
    let all = (samples * u64::from(second * ROUNDS_PER_SECOND)) as f64;
    println!(
        "{name:<28} {:>7.2} M samples per CPU second, {:>7.2} M samples/s",
        all / cpu_s / 1e6,
        all / begun.elapsed().as_secs_f64() / 1e6
    );
}
