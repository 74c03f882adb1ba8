//! A running collector, and sFlow exporters with known traffic sums.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use penstock_flows::sflow::counters::GenericInterface;
use penstock_flows::sflow::encode::{DATAGRAM_BYTES, FlowHead};
use penstock_flows::sflow::record::{HEADER_ETHERNET, SampledHeader};
use penstock_flows::sflow::xdr::{Opaque, XdrReader};
use penstock_flows::sflow::{CounterRecord, Encoder, FlowRecord, SflowInterface, Source};
use penstock_scitags::{FlowLabel, Scitag};
use penstock_testkit::http::TestRequest;
use serde_json::Value;

use crate::common::{Agent, penstock, wait_until};

/// Limit of each wait, generous for busy machines.
pub(crate) const POLL_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) const CONFIG: &str = "
roles = [\"collector\"]
[agent]
http = \"127.0.0.1:0\"
[collector]
sflow = [\"127.0.0.1:0\"]
ipfix = [\"127.0.0.1:0\"]
fireflies = [\"127.0.0.1:0\"]
threads = 2
marking = [\"2001:db8:1::/48\"]
[[collector.site]]
name = \"uvic\"
networks = [\"2001:db8:1::/48\"]
[[collector.site]]
name = \"cern\"
networks = [\"2001:db8:2::/48\"]
[[collector.exporter]]
address = \"192.0.2.1\"
name = \"dtn1\"
";

pub(crate) struct Collector {
    pub(crate) agent: Agent,
    pub(crate) telemetry: Value,
}

pub(crate) fn command(dir: &Path, config: &str) -> Command {
    let file = dir.join("penstock.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = penstock(&dir.join("state"));
    command.env_remove("PENSTOCK_ROLES").args(["serve", "--json", "--config"]).arg(file);
    command
}

impl Collector {
    pub(crate) fn start(dir: &Path, config: &str) -> Self {
        let mut agent = Agent::spawn(command(dir, config));
        let telemetry = agent.facts["telemetry"].take();
        Self { agent, telemetry }
    }

    pub(crate) fn socket(&self, format: &str) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.telemetry[format][0].as_str().unwrap()).unwrap();
        socket
    }

    /// Status and body of a request without a token.
    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        let response = TestRequest::new(&self.agent.http, "GET", path).send();
        (response.status, response.text())
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(path);
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Polls `path` until `good` returns a value.
    pub(crate) fn until<T>(&self, path: &str, mut good: impl FnMut(&Value) -> Option<T>) -> T {
        let begun = std::time::Instant::now();
        loop {
            let last = self.get(path);
            if let Some(got) = good(&last) {
                return got;
            }
            assert!(begun.elapsed() < POLL_TIMEOUT, "no result at {path}: {last}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Scitag of the sampled packets.
#[derive(Clone, Copy)]
pub(crate) enum Mark {
    None,
    Label(u64, u64),
}

/// An exporter at `agent`.
pub(crate) struct Exporter {
    encoder: Encoder,
    sequence: u32,
    counters: u32,
    pub(crate) rate: u32,
}

pub(crate) const FRAME_BYTES: u32 = 9_018;

/// A packet from site to site, `2001:db8:FROM::1` to `2001:db8:TO::1`.
pub(crate) fn packet(from: u16, to: u16, mark: Mark, vlan: u16) -> [u8; 128] {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0];
    bytes.extend(vlan.to_be_bytes());
    let label = match mark {
        Mark::None => 0,
        Mark::Label(owner, activity) => {
            FlowLabel::new(Scitag::new(owner, activity).unwrap(), 0).unwrap().value()
        }
    };
    bytes.extend([0x86, 0xDD]);
    bytes.extend((6 << 28 | label).to_be_bytes());
    bytes.extend([0x22, 0xF8, 6, 64]);
    bytes.extend(Ipv6Addr::new(0x2001, 0xdb8, from, 0, 0, 0, 0, 1).octets());
    bytes.extend(Ipv6Addr::new(0x2001, 0xdb8, to, 0, 0, 0, 0, 1).octets());
    bytes.extend([0x30, 0, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 255, 255, 0, 0, 0, 0]);
    bytes.resize(128, 0);
    bytes.try_into().unwrap()
}

impl Exporter {
    pub(crate) fn new(agent: u8, rate: u32) -> Self {
        let encoder = Encoder::new(IpAddr::from([192, 0, 2, agent]), 0, DATAGRAM_BYTES);
        Self { encoder, sequence: 0, counters: 0, rate }
    }

    /// Samples of packets received at interface 1.
    pub(crate) fn samples(&mut self, header: &[u8; 128], count: u32) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        for _ in 0..count {
            self.sequence += 1;
            let head = FlowHead {
                sequence: self.sequence,
                source: Source::interface(1),
                sampling_rate: self.rate,
                sample_pool: self.sequence * self.rate,
                drops: 0,
                input: SflowInterface::Index(1),
                output: SflowInterface::Index(2),
            };
            let record = FlowRecord::Header(SampledHeader {
                protocol: HEADER_ETHERNET,
                frame_length: FRAME_BYTES,
                stripped: 4,
                header: Opaque(header),
            });
            datagrams.extend(self.encoder.flow(self.sequence, &head, &[record]).unwrap());
        }
        datagrams.extend(self.encoder.take(self.sequence));
        datagrams
    }

    /// Counters of interface 1, which is up, after `uptime_ms`.
    pub(crate) fn counters(&mut self, uptime_ms: u32, in_octets: u64) -> Vec<u8> {
        self.state(1, 3, uptime_ms, in_octets)
    }

    /// Counters of an interface with `ifStatus` (sFlow 5): bit 0 admin status, bit 1 operational status.
    pub(crate) fn state(&mut self, index: u32, state: u32, uptime_ms: u32, octets: u64) -> Vec<u8> {
        self.counters += 1;
        let mut counters: GenericInterface = XdrReader::new(&[0; 88]).get().unwrap();
        (counters.index, counters.speed_bps, counters.status) = (index, 400_000_000_000, state);
        counters.in_octets = octets;
        counters.in_unicast = (octets / u64::from(FRAME_BYTES)) as u32;
        let record = CounterRecord::Interface(counters);
        let source = Source::interface(index);
        self.encoder.counters(uptime_ms, self.counters, source, &[record]).unwrap();
        self.encoder.take(uptime_ms).unwrap()
    }
}

/// Waits until the collector has counted `samples` samples.
pub(crate) fn taken(collector: &Collector, samples: u64) {
    collector.until("/api/v1/telemetry/status", |status| {
        (status["received"]["samples"].as_u64()? >= samples).then_some(())
    });
}

/// Waits until the second that contains the present is closed: on a busy machine earlier ones may still be open.
pub(crate) fn second_ended(collector: &Collector) {
    let present = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let closed = || collector.get("/api/v1/telemetry/status")["closed_until_s"].as_u64();
    wait_until("the end of this second", POLL_TIMEOUT, || {
        closed().is_some_and(|end_s| end_s > present.as_secs()).then_some(())
    });
}

pub(crate) fn test_dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
