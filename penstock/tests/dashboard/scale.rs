//! A network at the size of a federation: 24 sites, 200 links, 500 hosts, 50 labels, as real sFlow over loopback.
//!
//! Each host samples its egress and counts its interface; the router of each site counts its ports, which carry transit
//! traffic too. Injected problems: silent hosts, links down or above 80 % utilisation, lossy exporters.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_flows::sflow::counters::{GenericInterface, HostId, PortName};
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{CounterRecord, Encoder, FlowRecord, SflowInterface, Source};
use penstock_scitags::{FlowLabel, Registry, Scitag};

use crate::common::{Random, seeded};

const FRAME_BYTES: u32 = 9022;
/// Interval between datagrams of an exporter.
const SEND_INTERVAL: Duration = Duration::from_millis(250);
/// Samples of each flow per interval.
const SAMPLES_PER_FLOW: u32 = 2;
/// Interval between counter samples.
const COUNTER_INTERVAL: Duration = Duration::from_secs(4);

pub(crate) const LINK_COUNT: usize = 200;
pub(crate) const HOST_COUNT: usize = 500;
pub(crate) const LABEL_COUNT: usize = 50;
/// Hosts that stop sending after the first seconds.
const SILENT_HOSTS: usize = 4;
/// Hosts that lose one datagram of ten.
pub(crate) const LOSSY_HOSTS: usize = 6;
/// Links whose interfaces report down.
pub(crate) const LINKS_DOWN: usize = 3;

/// Alert rules of each state and severity.
pub(crate) const ALERTS: &str = "
[[collector.alert]]
name = \"cms above plan\"
kind = \"rate\"
by = \"owner\"
key = \"cms\"
above = \"10G\"
for = \"2s\"
severity = \"warning\"
[[collector.alert]]
name = \"transatlantic link is full\"
kind = \"share\"
by = \"link\"
key = \"cern-fnal-1\"
above = 0.01
for = \"5s\"
severity = \"critical\"
[[collector.alert]]
name = \"exporter is silent\"
kind = \"silence\"
above = \"20s\"
for = \"1h\"
severity = \"info\"
[[collector.alert]]
name = \"much unlabelled\"
kind = \"unlabelled\"
above = \"90%\"
[[collector.alert]]
name = \"datagrams lost\"
kind = \"loss\"
above = \"50%\"
";

/// Name, title, latitude, longitude.
const SITE_POSITIONS: [(&str, &str, f64, f64); 24] = [
    ("cern", "CERN, Geneva", 46.234, 6.053),
    ("fnal", "Fermilab, Batavia", 41.832, -88.252),
    ("bnl", "Brookhaven", 40.868, -72.878),
    ("triumf", "TRIUMF, Vancouver", 49.247, -123.231),
    ("kit", "KIT, Karlsruhe", 49.095, 8.436),
    ("in2p3", "CC-IN2P3, Lyon", 45.783, 4.866),
    ("ral", "RAL, Didcot", 51.572, -1.315),
    ("nikhef", "Nikhef, Amsterdam", 52.356, 4.951),
    ("sara", "SURF, Amsterdam", 52.357, 4.955),
    ("cnaf", "CNAF, Bologna", 44.499, 11.354),
    ("pic", "PIC, Barcelona", 41.501, 2.110),
    ("ndgf", "NDGF, Copenhagen", 55.676, 12.568),
    ("desy", "DESY, Hamburg", 53.576, 9.879),
    ("kek", "KEK, Tsukuba", 36.150, 140.076),
    ("kisti", "KISTI, Daejeon", 36.364, 127.361),
    ("ihep", "IHEP, Beijing", 39.914, 116.247),
    ("asgc", "ASGC, Taipei", 25.042, 121.614),
    ("tifr", "TIFR, Mumbai", 18.907, 72.806),
    ("caltech", "Caltech, Pasadena", 34.138, -118.125),
    ("ucsd", "UCSD, San Diego", 32.880, -117.234),
    ("starlight", "StarLight, Chicago", 41.897, -87.618),
    ("uerj", "UERJ, Rio de Janeiro", -22.911, -43.236),
    ("uvic", "University of Victoria", 48.463, -123.312),
    ("aarnet", "AARNet, Sydney", -33.890, 151.187),
];

/// A link between routers with the port numbers at both ends.
struct Link {
    name: String,
    ends: [usize; 2],
    ports: [u32; 2],
    capacity_bps: u64,
    /// Utilisation in both directions, 0 to 1.
    load: [f64; 2],
    down: bool,
}

/// Flow of a host.
struct Flow {
    to: Ipv6Addr,
    tag: Option<Scitag>,
    vlan: u16,
    bps: f64,
    port: u16,
}

struct Host {
    name: String,
    site: usize,
    address: Ipv6Addr,
    speed_bps: u64,
    flows: Vec<Flow>,
}

/// Network of the federation: sites, links, hosts and their flows.
pub(crate) struct Scale {
    links: Vec<Link>,
    hosts: Vec<Host>,
}

fn host_address(site: usize, number: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, site as u16 + 1, 0, 0, 0, 0, number as u16 + 1)
}

fn router_address(site: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, site as u16 + 1, 0, 0, 0, 1)
}

impl Scale {
    /// Generates the network; equal seeds give equal networks.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = seeded(seed);
        let labels: Vec<Scitag> = Registry::builtin().tags().step_by(2).take(LABEL_COUNT).collect();
        let sites = SITE_POSITIONS.len();
        let mut ports = vec![0_u32; sites];
        let mut links: Vec<Link> = Vec::new();
        while links.len() < LINK_COUNT {
            let at = links.len();
            // A ring, then chords; many are parallel, as on transatlantic routes.
            let (a, b) = match at {
                0..24 => (at, (at + 1) % sites),
                24..44 => (0, 1),
                44..56 => (0, 20),
                56..66 => (7, 2),
                _ => (random.between(0, 24) as usize, random.between(0, 24) as usize),
            };
            if a == b {
                continue;
            }
            let number = links.iter().filter(|l| l.ends == [a, b] || l.ends == [b, a]).count() + 1;
            for end in [a, b] {
                ports[end] += 1;
            }
            let capacity_bps = [100, 400, 400, 800][random.between(0, 4) as usize] * 1_000_000_000;
            let share = |random: &mut Random| random.between(0, 1000) as f64 / 1000.0;
            let full = at % 23 == 7;
            let load = [0, 1].map(|_| {
                let share = share(&mut random);
                if full { 0.82 + 0.14 * share } else { 0.7 * share * share }
            });
            links.push(Link {
                name: format!("{}-{}-{number}", SITE_POSITIONS[a].0, SITE_POSITIONS[b].0),
                ends: [a, b],
                ports: [ports[a], ports[b]],
                capacity_bps,
                load,
                down: at % 61 == 30,
            });
        }
        let mut hosts: Vec<Host> = (0..HOST_COUNT)
            .map(|at| {
                let site = at % sites;
                Host {
                    name: format!(
                        "dtn{:02}.{}.example.org",
                        at / sites + 1,
                        SITE_POSITIONS[site].0
                    ),
                    site,
                    address: host_address(site, at / sites),
                    speed_bps: [100, 200, 400][random.between(0, 3) as usize] * 1_000_000_000,
                    flows: Vec::new(),
                }
            })
            .collect();
        let addresses: Vec<_> = hosts.iter().map(|host| (host.site, host.address)).collect();
        for (at, host) in hosts.iter_mut().enumerate() {
            let site = host.site;
            for number in 0..random.between(1, 4) {
                let (other, to) = addresses[random.between(0, HOST_COUNT as u64) as usize];
                if other == site {
                    continue;
                }
                // Few labels have most of the traffic.
                let low = random
                    .between(0, LABEL_COUNT as u64)
                    .min(random.between(0, LABEL_COUNT as u64));
                let tag = (!random.one_in(9)).then(|| labels[low as usize]);
                let most = host.speed_bps as f64 * 0.3;
                let bps = most * (0.02 + random.between(0, 1000) as f64 / 1000.0).powi(3);
                let vlan = 3000 + random.between(0, 12) as u16;
                let port = 40_000 + (at as u16) * 4 + number as u16;
                host.flows.push(Flow { to, tag, vlan, bps, port });
            }
        }
        Self { links, hosts }
    }

    /// Topology file of the network (TOML).
    pub(crate) fn topology(&self) -> String {
        let mut text = "name = \"federation\"\ntitle = \"A federation of 24 sites\"\n".to_owned();
        for (name, title, latitude, longitude) in SITE_POSITIONS {
            let _ = write!(
                text,
                "[[site]]\nname = \"{name}\"\ntitle = \"{title}\"\nlatitude = {latitude}\nlongitude = {longitude}\n\
                 [[switch]]\nname = \"rt-{name}\"\nsite = \"{name}\"\n"
            );
        }
        for host in &self.hosts {
            let _ = write!(
                text,
                "[[host]]\nname = \"{}\"\nsite = \"{}\"\ninterface = [{{ name = \"eth0\", rate = \"{}G\" }}]\n",
                host.name,
                SITE_POSITIONS[host.site].0,
                host.speed_bps / 1_000_000_000
            );
        }
        for link in &self.links {
            let _ = write!(
                text,
                "[[link]]\nname = \"{}\"\nends = [\"rt-{}\", \"rt-{}\"]\nrate = \"{}G\"\ndelay = \"10ms\"\n",
                link.name,
                SITE_POSITIONS[link.ends[0]].0,
                SITE_POSITIONS[link.ends[1]].0,
                link.capacity_bps / 1_000_000_000
            );
        }
        text
    }

    /// Sites, exporters and marking hosts for the table `[collector]`.
    pub(crate) fn config(&self) -> String {
        let mut text = String::new();
        for (site, (name, ..)) in SITE_POSITIONS.iter().enumerate() {
            let network = host_address(site, 0);
            let network = format!("{}/48", Ipv6Addr::from(u128::from(network) >> 80 << 80));
            let _ =
                write!(text, "[[collector.site]]\nname = \"{name}\"\nnetworks = [\"{network}\"]\n");
            let links = self.links.iter().flat_map(|link| {
                let ends = link.ends.iter().zip(link.ports);
                ends.filter(|(end, _)| **end == site)
                    .map(|(_, port)| format!("{port} = \"{}\"", link.name))
            });
            let links: Vec<_> = links.collect();
            let _ = write!(
                text,
                "[[collector.exporter]]\naddress = \"{}\"\nname = \"rt-{name}\"\nlinks = {{ {} }}\n",
                router_address(site),
                links.join(", ")
            );
        }
        text
    }
}

/// Sends telemetry until it is dropped.
pub(crate) struct ScaleFeed {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ScaleFeed {
    /// Sends the network's telemetry to an sFlow port.
    pub(crate) fn start(scale: Scale, to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || send(&scale, to, &stopped));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for ScaleFeed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ethernet, VLAN, IPv6 and TCP.
fn header(from: Ipv6Addr, flow: &Flow) -> Vec<u8> {
    let label = flow.tag.map_or(0, |tag| FlowLabel::new(tag, 0x15).unwrap().value());
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0];
    bytes.extend(flow.vlan.to_be_bytes());
    bytes.extend([0x86, 0xDD]);
    bytes.extend((6_u32 << 28 | label).to_be_bytes());
    bytes.extend([0x23, 0x1A, 6, 64]);
    bytes.extend(from.octets());
    bytes.extend(flow.to.octets());
    bytes.extend([flow.port.to_be_bytes(), 1094_u16.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xFF, 0xFF, 0, 0, 0, 0]);
    bytes.resize(128, 0xA5);
    bytes
}

fn port(index: u32, speed_bps: u64, up: bool, octets: (f64, f64)) -> GenericInterface {
    GenericInterface {
        index,
        kind: 6,
        speed_bps,
        direction: 1,
        status: if up { 3 } else { 1 },
        in_octets: octets.0 as u64,
        out_octets: octets.1 as u64,
        out_unicast: (octets.1 / f64::from(FRAME_BYTES)) as u32,
        in_unicast: (octets.0 / f64::from(FRAME_BYTES)) as u32,
        in_multicast: 0,
        in_broadcast: 0,
        in_discards: 0,
        in_errors: 0,
        in_unknown_protocols: 0,
        out_multicast: 0,
        out_broadcast: 0,
        out_discards: 0,
        out_errors: 0,
        promiscuous: 0,
    }
}

/// An sFlow agent with sequence numbers.
struct Agent {
    encoder: Encoder,
    sequence: u32,
    pool: u32,
    counters: u32,
}

impl Agent {
    fn new(address: Ipv6Addr) -> Self {
        let encoder = Encoder::new(IpAddr::from(address), 0, DATAGRAM_BYTES);
        Self { encoder, sequence: 0, pool: 0, counters: 0 }
    }

    fn sample(
        &mut self,
        uptime: u32,
        source: u32,
        (input, output): (SflowInterface, SflowInterface),
        rate: u32,
        header: &[u8],
    ) -> Option<Vec<u8>> {
        self.sequence += 1;
        self.pool = self.pool.wrapping_add(rate);
        let head = FlowHead {
            sequence: self.sequence,
            source: Source::interface(source),
            sampling_rate: rate,
            sample_pool: self.pool,
            drops: 0,
            input,
            output,
        };
        let record = FlowRecord::Header(SampledHeader {
            protocol: HEADER_ETHERNET,
            frame_length: FRAME_BYTES,
            stripped: 4,
            header: Opaque(header),
        });
        self.encoder.flow(uptime, &head, &[record]).unwrap()
    }
}

fn rate_of(bytes: f64) -> u32 {
    (bytes / f64::from(FRAME_BYTES * SAMPLES_PER_FLOW)).round().max(1.0) as u32
}

fn send(scale: &Scale, to: SocketAddr, stop: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let post = |datagrams: &mut Vec<Vec<u8>>| {
        for datagram in datagrams.drain(..) {
            let _ = socket.send_to(&datagram, to);
        }
    };
    let mut hosts: Vec<_> = scale
        .hosts
        .iter()
        .map(|host| {
            let headers: Vec<_> =
                host.flows.iter().map(|flow| header(host.address, flow)).collect();
            (host, Agent::new(host.address), headers, 0.0_f64)
        })
        .collect();
    let ports = scale.links.len();
    let mut routers: Vec<_> =
        (0..SITE_POSITIONS.len()).map(|site| Agent::new(router_address(site))).collect();
    // Octets of each link in both directions.
    let mut octets = vec![[0.0_f64; 2]; ports];
    let begun = Instant::now();
    let (mut last, mut read) = (begun, begun - COUNTER_INTERVAL);
    let mut datagrams = Vec::new();
    let mut ticks = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SEND_INTERVAL);
        ticks += 1;
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        let age = begun.elapsed().as_secs_f64();
        let uptime = begun.elapsed().as_millis() as u32;
        let counts = read.elapsed() >= COUNTER_INTERVAL;
        if counts {
            read = Instant::now();
        }
        let wave = |at: usize| 1.0 + 0.15 * (age / (9.0 + at as f64 % 17.0) + at as f64).sin();
        for (at, (host, agent, headers, sent)) in hosts.iter_mut().enumerate() {
            if at < SILENT_HOSTS && age > 8.0 {
                continue;
            }
            for (flow, header) in host.flows.iter().zip(headers) {
                let bytes = flow.bps * wave(at) / 8.0 * passed;
                *sent += bytes;
                for _ in 0..SAMPLES_PER_FLOW {
                    let ends = (SflowInterface::Internal, SflowInterface::Index(2));
                    datagrams.extend(agent.sample(uptime, 2, ends, rate_of(bytes), header));
                }
            }
            if counts {
                agent.counters += 1;
                let records = [
                    CounterRecord::Interface(port(2, host.speed_bps, true, (*sent / 90.0, *sent))),
                    CounterRecord::PortName(PortName { name: Opaque(b"eth0") }),
                ];
                let counted =
                    agent.encoder.counters(uptime, agent.counters, Source::interface(2), &records);
                datagrams.extend(counted.unwrap());
                let records = [CounterRecord::HostId(HostId {
                    hostname: Opaque(host.name.as_bytes()),
                    uuid: [at as u8; 16],
                    machine: 3,
                    os: 2,
                    os_release: Opaque(b"6.18"),
                })];
                let source = Source { class: 2, index: 1 };
                datagrams.extend(
                    agent.encoder.counters(uptime, agent.counters, source, &records).unwrap(),
                );
            }
            datagrams.extend(agent.encoder.take(uptime));
            if at % (HOST_COUNT / LOSSY_HOSTS) == 7 && ticks % 10 == 3 {
                datagrams.clear();
            }
            post(&mut datagrams);
        }
        for (at, link) in scale.links.iter().enumerate() {
            for direction in [0, 1] {
                let load = if link.down { 0.0 } else { link.load[direction] * wave(at).min(1.05) };
                let bytes = load * link.capacity_bps as f64 / 8.0 * passed;
                octets[at][direction] += bytes;
            }
        }
        for (at, link) in scale.links.iter().enumerate().filter(|_| counts) {
            for end in [0, 1] {
                let agent = &mut routers[link.ends[end]];
                agent.counters += 1;
                let sums = (octets[at][1 - end], octets[at][end]);
                let up = !link.down || age < 12.0;
                let records =
                    [CounterRecord::Interface(port(link.ports[end], link.capacity_bps, up, sums))];
                let source = Source::interface(link.ports[end]);
                datagrams.extend(
                    agent.encoder.counters(uptime, agent.counters, source, &records).unwrap(),
                );
            }
            post(&mut datagrams);
        }
        for agent in &mut routers {
            datagrams.extend(agent.encoder.take(uptime));
        }
        post(&mut datagrams);
    }
}
