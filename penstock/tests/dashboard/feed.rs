//! Four hosts that send a collector the sFlow samples and counters of a terabit per second of marked traffic.
//!
//! As at SC25 three hosts at one site and one at another send over three VLANs, each with its own scitag; one also sends
//! unlabelled traffic, and one sends labels without being a configured marking host.

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
use penstock_scitags::{FlowLabel, Scitag};

const FRAME_BYTES: u32 = 9022;
/// Interval between the datagrams of a host.
const SEND_INTERVAL: Duration = Duration::from_millis(100);
/// Samples of each flow per interval.
const SAMPLES_PER_SEND: u32 = 20;

/// Flow of one host.
pub(crate) struct Flow {
    pub(crate) host: u16,
    pub(crate) vlan: u16,
    /// Scitag as experiment and activity ids; none if unlabelled.
    pub(crate) tag: Option<(u16, u8)>,
    pub(crate) bps: f64,
}

/// The four hosts of the exhibition. 2001:db8:1::/48 is listed as marking, 2001:db8:9::/48 is not.
pub(crate) const FLOWS: [Flow; 6] = [
    Flow { host: 1, vlan: 2026, tag: Some((3, 4)), bps: 290e9 },
    Flow { host: 2, vlan: 2027, tag: Some((2, 16)), bps: 372e9 },
    Flow { host: 3, vlan: 2028, tag: Some((3, 15)), bps: 350e9 },
    Flow { host: 4, vlan: 2026, tag: Some((6, 4)), bps: 88e9 },
    Flow { host: 4, vlan: 2026, tag: None, bps: 9e9 },
    Flow { host: 9, vlan: 2028, tag: Some((4, 4)), bps: 21e9 },
];

/// Sends telemetry until it is dropped.
pub(crate) struct Feed {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Interval of counters in tests that wait for them.
pub(crate) const COUNTER_INTERVAL_SHORT: Duration = Duration::from_secs(2);

impl Feed {
    /// Sends to the sFlow port of a collector. `stranger` names a host that the topology lacks; `counters` is the
    /// interval of counter samples.
    pub(crate) fn start(to: SocketAddr, stranger: &'static str, counters: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || send(to, stranger, counters, &told));
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ethernet, VLAN, IPv6 and TCP.
fn header(flow: &Flow) -> Vec<u8> {
    let tag = flow.tag.map(|(owner, activity)| Scitag::new(owner.into(), activity.into()).unwrap());
    let label = tag.map_or(0, |tag| FlowLabel::new(tag, 0x15).unwrap().value());
    let site = if flow.host == 9 { 9 } else { 1 };
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0];
    bytes.extend(flow.vlan.to_be_bytes());
    bytes.extend([0x86, 0xDD]);
    bytes.extend((6_u32 << 28 | label).to_be_bytes());
    bytes.extend([0x23, 0x1A, 6, 64]);
    bytes.extend(Ipv6Addr::new(0x2001, 0xdb8, site, 0, 0, 0, 0, flow.host).octets());
    bytes.extend(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, flow.host).octets());
    bytes.extend([(40_000 + flow.host).to_be_bytes(), 5201_u16.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xFF, 0xFF, 0, 0, 0, 0]);
    bytes.resize(128, 0xA5);
    bytes
}

/// Sample sequence and octet counters of one host.
struct Host {
    encoder: Encoder,
    speed_bps: u64,
    sequence: u32,
    counters: u32,
    pool: u32,
    octets: f64,
    told: Instant,
}

fn send(to: SocketAddr, stranger: &str, counters: Duration, stop: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut hosts: Vec<_> = [1, 2, 3, 4, 9_u16]
        .map(|number| {
            let agent = IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, number));
            let host = Host {
                encoder: Encoder::new(agent, 0, DATAGRAM_BYTES),
                speed_bps: if number == 4 || number == 9 { 100 } else { 400 } * 1_000_000_000,
                sequence: 0,
                counters: 0,
                pool: 0,
                octets: 0.0,
                told: Instant::now(),
            };
            (number, host)
        })
        .into();
    let headers: Vec<_> = FLOWS.iter().map(header).collect();
    let begun = Instant::now();
    let mut last = begun;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SEND_INTERVAL);
        // Late samples are sent with the next ones: rates follow the clock, however slow the machine is.
        let passed = last.elapsed().as_secs_f64();
        last = Instant::now();
        let uptime = begun.elapsed().as_millis() as u32;
        // Rates vary by 5 %, so that plots move.
        let wave = 1.0 + 0.05 * (begun.elapsed().as_secs_f64() / 9.0).sin();
        for (number, host) in &mut hosts {
            let mut datagrams = Vec::new();
            for (flow, header) in
                FLOWS.iter().zip(&headers).filter(|(flow, _)| flow.host == *number)
            {
                let bytes = flow.bps * wave / 8.0 * passed;
                host.octets += bytes;
                let rate =
                    (bytes / f64::from(FRAME_BYTES * SAMPLES_PER_SEND)).round().max(1.0) as u32;
                for _ in 0..SAMPLES_PER_SEND {
                    host.sequence += 1;
                    host.pool = host.pool.wrapping_add(rate);
                    let head = FlowHead {
                        sequence: host.sequence,
                        source: Source::interface(2),
                        sampling_rate: rate,
                        sample_pool: host.pool,
                        drops: 0,
                        input: SflowInterface::Internal,
                        output: SflowInterface::Index(2),
                    };
                    let record = FlowRecord::Header(SampledHeader {
                        protocol: HEADER_ETHERNET,
                        frame_length: FRAME_BYTES,
                        stripped: 4,
                        header: Opaque(header),
                    });
                    datagrams.extend(host.encoder.flow(uptime, &head, &[record]).unwrap());
                }
            }
            if host.told.elapsed() < counters && host.counters > 0 {
                datagrams.extend(host.encoder.take(uptime));
                post(&socket, to, &datagrams);
                continue;
            }
            host.told = Instant::now();
            host.counters += 1;
            let counted = GenericInterface {
                index: 2,
                kind: 6,
                speed_bps: host.speed_bps,
                direction: 1,
                status: 3,
                in_octets: (host.octets / 90.0) as u64,
                out_octets: host.octets as u64,
                out_unicast: host.pool,
                in_unicast: host.pool / 90,
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
            };
            let records = [
                CounterRecord::Interface(counted),
                CounterRecord::PortName(PortName { name: Opaque(b"eth0") }),
            ];
            let counted =
                host.encoder.counters(uptime, host.counters, Source::interface(2), &records);
            datagrams.extend(counted.unwrap());
            let name = match *number {
                4 => "sfu1",
                9 => stranger,
                number => ["uvic1", "uvic2", "uvic3"][usize::from(number) - 1],
            };
            let itself = HostId {
                hostname: Opaque(name.as_bytes()),
                uuid: [*number as u8; 16],
                machine: 3,
                os: 2,
                os_release: Opaque(b"6.18"),
            };
            let source = Source { class: 2, index: 1 };
            let records = [CounterRecord::HostId(itself)];
            datagrams
                .extend(host.encoder.counters(uptime, host.counters, source, &records).unwrap());
            datagrams.extend(host.encoder.take(uptime));
            post(&socket, to, &datagrams);
        }
    }
}

fn post(socket: &UdpSocket, to: SocketAddr, datagrams: &[Vec<u8>]) {
    for datagram in datagrams {
        let _ = socket.send_to(datagram, to);
    }
}
