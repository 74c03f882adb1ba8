//! A running sampler in a namespace, and a collector that stores its datagrams.

#![allow(unreachable_pub)]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_flows::packet::{FirstHeader, Packet};
use penstock_flows::sflow::{
    CounterRecord, FlowRecord, Sample, SflowDatagram, SflowInterface, Source,
};
use serde_json::Value;

use crate::common::{PENSTOCK, wait_until};
use crate::lab::{HERE, Lab, THERE, inside, sh};

/// Resolves neighbours on both ends: until then the kernel queues a few packets and drops the rest.
fn introduce(lab: &Lab) {
    let there = inside(&lab.there, || UdpSocket::bind((THERE, 0)).unwrap());
    let here = inside(&lab.here, || UdpSocket::bind((HERE, 0)).unwrap());
    there.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    wait_until("a packet that arrives", Duration::from_secs(20), || {
        here.send_to(b"hello", there.local_addr().unwrap()).ok()?;
        there.recv(&mut [0; 16]).ok()
    });
}

/// A loopback port, read continuously so that bursts are not dropped.
pub struct Collector {
    pub address: SocketAddr,
    datagrams: Receiver<Vec<u8>>,
}

impl Collector {
    /// Starts a collector in this lab and resolves the neighbours of both ends.
    pub fn new(lab: &Lab) -> Self {
        introduce(lab);
        let socket = inside(&lab.here, || UdpSocket::bind("127.0.0.1:0").unwrap());
        // SO_RCVBUFFORCE: root may exceed net.core.rmem_max.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        let address = socket.local_addr().unwrap();
        let (out, datagrams) = channel();
        // The thread ends with the process, or when the receiver is dropped.
        std::thread::spawn(move || {
            let mut room = vec![0; 65_536];
            while let Ok(length) = socket.recv(&mut room) {
                if out.send(room[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { address, datagrams }
    }

    /// Waits for this many datagrams and decodes them.
    pub fn receive(&self, datagrams: &Value) -> Received {
        let mut all = Received::default();
        for _ in 0..datagrams.as_u64().unwrap() {
            let datagram = self.datagrams.recv_timeout(Duration::from_secs(20));
            let datagram = datagram.expect("a datagram that left arrives");
            assert!(datagram.len() <= 1400, "a datagram of {} bytes", datagram.len());
            all.add(&datagram);
            all.raw.push(datagram);
        }
        all
    }
}

/// Sends packets of 500 bytes from `here` to `port` at `there`, at most 50 a millisecond: third-party collectors have
/// small buffers.
pub fn send(lab: &Lab, port: u16, packets: usize) {
    inside(&lab.here, || {
        let socket = UdpSocket::bind((HERE, 0)).unwrap();
        socket.connect((THERE, port)).unwrap();
        let begun = Instant::now();
        for number in 0..packets {
            while begun.elapsed() < Duration::from_micros(20 * number as u64) {
                std::hint::spin_loop();
            }
            // ECONNREFUSED reports an earlier packet: no process listens there.
            while socket.send(&[7; 500]).is_err() {}
        }
    });
}

/// `penstock sample`; killed when dropped.
pub struct Sampler {
    child: Child,
    lines: BufReader<ChildStdout>,
    log: JoinHandle<Vec<String>>,
    /// JSON object that the sampler printed when attached.
    pub started: Value,
}

impl Sampler {
    /// Samples the lab's device and sends to these collectors.
    pub fn start(lab: &Lab, to: &[SocketAddr], more: &[&str]) -> Self {
        let addresses: Vec<String> = to.iter().map(ToString::to_string).collect();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", lab.here)).arg(PENSTOCK);
        command.args(["sample", "--json", "--interface", "pm0"]);
        command.args(["--collector", &addresses.join(",")]).args(more);
        command.env_remove("JOURNAL_STREAM").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let log = std::thread::spawn(move || log.lines().map_while(Result::ok).collect());
        if line.is_empty() {
            panic!("it does not start: {:?}", log.join());
        }
        Self { child, lines, log, started: serde_json::from_str(&line).unwrap() }
    }

    pub fn signal(&self, name: &str) {
        sh(&format!("kill -{name} {}", self.child.id()));
    }

    /// Waits for the next line with this event.
    pub fn next(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no event {event}");
            let object: Value = serde_json::from_str(&line).unwrap();
            if object["event"] == event {
                return object;
            }
        }
    }

    /// Ends the sampler; returns its final object and its log lines.
    pub fn end(mut self) -> (Value, Vec<String>) {
        self.signal("INT");
        let last = self.next("ended");
        assert!(self.child.wait().unwrap().success());
        let log = std::mem::replace(&mut self.log, std::thread::spawn(Vec::new));
        (last, log.join().unwrap())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A decoded packet sample.
#[derive(Debug, Clone)]
pub struct Sampled {
    pub sequence: u32,
    pub source: Source,
    pub rate: u32,
    pub pool: u32,
    pub drops: u32,
    pub input: SflowInterface,
    pub output: SflowInterface,
    pub frame_length: u32,
    pub stripped: u32,
    pub header: Vec<u8>,
    pub packet: Packet,
}

impl Sampled {
    pub fn is_to(&self, port: u16) -> bool {
        self.packet.ip().and_then(|ip| ip.ports).is_some_and(|(_, to)| to == port)
    }
}

/// Datagrams at the collector, raw and decoded.
#[derive(Debug, Default)]
pub struct Received {
    pub raw: Vec<Vec<u8>>,
    pub agents: Vec<(String, u32)>,
    pub sequences: Vec<u32>,
    pub packets: Vec<Sampled>,
    /// Source and record formats of each counter sample.
    pub counters: Vec<(Source, Vec<u32>)>,
    /// Interface name and egress octets of each counter sample.
    pub interfaces: Vec<(String, u64)>,
}

impl Received {
    fn add(&mut self, bytes: &[u8]) {
        let datagram = SflowDatagram::read(bytes).unwrap();
        self.agents.push((datagram.agent.unwrap().to_string(), datagram.sub_agent));
        self.sequences.push(datagram.sequence);
        let samples: Vec<_> = datagram.samples().collect();
        assert_eq!(samples.len(), datagram.declared_samples as usize);
        for sample in samples {
            match sample.unwrap() {
                Sample::Flow(flow) => {
                    let records: Vec<_> = flow.records.flow().map(Result::unwrap).collect();
                    let [FlowRecord::Header(header)] = records.as_slice() else {
                        panic!("{records:?}")
                    };
                    let start = FirstHeader::of_sflow(header.protocol).unwrap();
                    self.packets.push(Sampled {
                        sequence: flow.sequence,
                        source: flow.source,
                        rate: flow.sampling_rate,
                        pool: flow.sample_pool,
                        drops: flow.drops,
                        input: flow.input,
                        output: flow.output,
                        frame_length: header.frame_length,
                        stripped: header.stripped,
                        header: header.header.0.to_vec(),
                        packet: Packet::read(start, header.header.0),
                    });
                }
                Sample::Counters(counters) => {
                    let records: Vec<_> = counters.records.counters().map(Result::unwrap).collect();
                    let formats = records.iter().map(|one| one.format().format()).collect();
                    self.counters.push((counters.source, formats));
                    if let [CounterRecord::Interface(of), _, CounterRecord::PortName(name)] =
                        records.as_slice()
                    {
                        self.interfaces.push((name.name.to_string(), of.out_octets));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
