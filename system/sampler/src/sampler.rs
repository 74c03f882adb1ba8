//! Main loop: reads samples from the ring buffer, polls counters, sends datagrams to all collectors.
//!
//! A single thread, which sleeps until the program signals pending samples, or for 100 ms. A datagram is sent when it is
//! full, or 500 ms after its first sample.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_flows::sflow::counters::CounterRecord;
use penstock_flows::sflow::encode::FlowHead;
use penstock_flows::sflow::record::SampledHeader;
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{Encoder, FlowRecord, SflowInterface, Source, TooLong};
use penstock_hooks::Attach;
use penstock_sys::event::{EventFd, Interest, poll};
use penstock_sys::net::{CountedDevice, speed_bps};

use crate::collectors::{CollectorSocket, SendResult};
use crate::error::SamplerError;
use crate::host::{self, HostIdentity};
use crate::interface::{self, RATE_MAX, Uncounted, default_rate, low};
use crate::program::{AttachedSampler, DeviceCounts, PacketDirection, Programs};
use crate::record::{RingRecord, SampledSegments};

/// Longest time that samples stay in the ring buffer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Longest time that samples stay in an incomplete datagram.
const FLUSH_AFTER: Duration = Duration::from_millis(500);

/// Time limit for sending pending samples after the stop signal.
const STOP_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Samples encoded before other events are checked: some hundred datagrams.
const SAMPLES_PER_BATCH_MAX: usize = 1024;

/// sFlow data source of the machine itself (class 2, physical entity).
const MACHINE: Source = Source { class: 2, index: 1 };

/// Sampling configuration and collectors.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names of devices; empty for all physical devices that are up.
    pub interfaces: Vec<String>,
    /// Directions in which packets are sampled.
    pub directions: Vec<PacketDirection>,
    /// Sampling rate N (1 of N packets); `None` for the default by speed of each device.
    pub rate: Option<u32>,
    /// Addresses of the collectors.
    pub collectors: Vec<SocketAddr>,
    /// Address of the agent; `None` for the local address towards the first collector.
    pub agent: Option<IpAddr>,
    /// Sub-agent id, unique per process of one agent.
    pub sub_agent: u32,
    /// Interval of counter samples.
    pub polling: Duration,
    /// Size of the ring buffer in bytes, a power of two.
    pub ring_bytes: u32,
    /// Longest datagram in bytes.
    pub datagram_bytes: usize,
    /// Mechanism by which programs are attached to devices.
    pub attach: Attach,
}

/// State of a sampled device.
#[derive(Debug)]
struct Sampled {
    name: String,
    ethernet: bool,
    rate: u32,
    speed: Option<(u64, bool)>,
    gone: bool,
    flow_sequence: u32,
    counter_sequence: u32,
    counted: DeviceCounts,
    /// Sample pool: sum of the packets between samples, from the packet counts in the samples.
    pool: u64,
    /// Segments missing in the device's counters, received and sent.
    uncounted: [Uncounted; 2],
    /// Packet count of each CPU at its last sample, per direction.
    seen: HashMap<(PacketDirection, u32), u64>,
}

/// Event to report to the operator.
#[derive(Debug)]
pub enum Notice {
    /// Datagrams to a collector cannot be sent; reported at most once a minute. Sampling continues.
    Collector {
        /// Address of the collector.
        collector: SocketAddr,
        /// Datagrams that were not sent so far.
        failed: u64,
        /// Error of the last attempt.
        error: io::Error,
    },
    /// A device was removed, with the attached programs.
    Gone(String),
    /// The device counters could not be read.
    Counters(io::Error),
    /// Counters were sent; holds the current status.
    Counted(SamplerStatus),
}

/// Status of the sampler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerStatus {
    /// Time since the start.
    pub uptime: Duration,
    /// Status of each sampled device.
    pub interfaces: Vec<SampledInterface>,
    /// Status of each collector.
    pub collectors: Vec<CollectorStatus>,
    /// Datagrams that the sampler encoded.
    pub datagrams: u64,
    /// Samples that fit no datagram.
    pub too_long: u64,
}

/// Status of a sampled device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampledInterface {
    /// Name of the device.
    pub name: String,
    /// Interface index (ifIndex) of the device.
    pub index: u32,
    /// Sampling rate N: 1 of N packets.
    pub rate: u32,
    /// Packets that the program counted.
    pub packets: u64,
    /// Samples that the program took.
    pub samples: u64,
    /// Samples lost because the ring was full.
    pub drops: u64,
}

/// Status of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorStatus {
    /// Address of the collector.
    pub address: SocketAddr,
    /// Datagrams sent to the collector.
    pub datagrams: u64,
    /// Bytes of the sent datagrams.
    pub bytes: u64,
    /// Datagrams that could not be sent or were refused (ICMP port unreachable).
    pub errors: u64,
}

/// A running sampler; dropping it detaches its programs.
#[derive(Debug)]
pub struct Sampler {
    programs: Programs,
    attached: Vec<AttachedSampler>,
    sampled: BTreeMap<u32, Sampled>,
    out: Out,
    identity: HostIdentity,
    polling: Duration,
    machine_sequence: u32,
    batch: Vec<RingRecord>,
}

/// Encoder and sockets of the collectors.
#[derive(Debug)]
struct Out {
    begun: Instant,
    agent: IpAddr,
    encoder: Encoder,
    collectors: Vec<CollectorSocket>,
    datagrams: u64,
    too_long: u64,
    /// Time of the first sample in the incomplete datagram.
    waiting: Option<Instant>,
}

impl Sampler {
    /// Loads the programs and attaches them to the devices.
    ///
    /// # Errors
    /// The first failure; nothing stays attached then.
    pub fn start(config: &Config) -> Result<Self, SamplerError> {
        if config.rate.is_some_and(|rate| rate == 0 || rate > RATE_MAX) {
            return Err(SamplerError::Rate);
        }
        let devices = devices(&config.interfaces)?;
        let collectors: Vec<CollectorSocket> = config
            .collectors
            .iter()
            .map(|one| CollectorSocket::new(*one))
            .collect::<Result<_, _>>()?;
        let first = collectors.first().ok_or(SamplerError::NoCollector)?;
        let agent = match config.agent {
            Some(agent) => agent,
            None => first.own_address()?,
        };
        let mut programs = Programs::load(config.ring_bytes)?;
        let (mut attached, mut sampled) = (Vec::new(), BTreeMap::new());
        for device in devices {
            // Many devices report no speed.
            let speed = speed_bps(&device.name).ok().flatten();
            let rate = config.rate.unwrap_or_else(|| default_rate(speed.map(|(bps, _)| bps)));
            for direction in &config.directions {
                attached.push(programs.attach(
                    &device.name,
                    device.index,
                    *direction,
                    rate,
                    config.attach,
                )?);
            }
            sampled.insert(
                device.index,
                Sampled {
                    name: device.name,
                    ethernet: device.ethernet,
                    rate,
                    speed,
                    gone: false,
                    flow_sequence: 0,
                    counter_sequence: 0,
                    counted: DeviceCounts::default(),
                    pool: 0,
                    uncounted: Default::default(),
                    seen: HashMap::new(),
                },
            );
        }
        let out = Out {
            begun: Instant::now(),
            agent,
            encoder: Encoder::new(agent, config.sub_agent, config.datagram_bytes),
            collectors,
            datagrams: 0,
            too_long: 0,
            waiting: None,
        };
        let (identity, polling) = (HostIdentity::read(), config.polling);
        Ok(Self {
            programs,
            attached,
            sampled,
            out,
            identity,
            polling,
            machine_sequence: 0,
            batch: Vec::new(),
        })
    }

    /// Devices and directions with attached programs.
    #[must_use]
    pub fn attached(&self) -> &[AttachedSampler] {
        &self.attached
    }

    /// Address of the sFlow agent, in each datagram.
    #[must_use]
    pub fn agent(&self) -> IpAddr {
        self.out.agent
    }

    /// Returns the current status of devices and collectors.
    #[must_use]
    pub fn status(&self) -> SamplerStatus {
        let interfaces = self.sampled.iter().map(|(index, one)| {
            let counted = self.programs.counted(*index);
            SampledInterface {
                name: one.name.clone(),
                index: *index,
                rate: one.rate,
                packets: counted.packets,
                samples: counted.samples,
                drops: counted.drops,
            }
        });
        let collectors = self.out.collectors.iter().map(|one| CollectorStatus {
            address: one.address,
            datagrams: one.sent,
            bytes: one.sent_bytes,
            errors: one.failed,
        });
        SamplerStatus {
            uptime: self.out.begun.elapsed(),
            interfaces: interfaces.collect(),
            collectors: collectors.collect(),
            datagrams: self.out.datagrams,
            too_long: self.out.too_long,
        }
    }

    /// Runs until `stop` is signalled, then sends pending samples.
    ///
    /// # Errors
    /// When waiting for samples fails.
    pub fn run(&mut self, stop: &EventFd, notify: &mut dyn FnMut(Notice)) -> io::Result<()> {
        let mut counters_due = Instant::now();
        loop {
            let now = Instant::now();
            let more = self.take_samples(now, notify);
            if now >= counters_due {
                self.send_counters(now, notify);
                // After a suspend of the machine, missed intervals are skipped.
                counters_due = now.max(counters_due + self.polling);
                notify(Notice::Counted(self.status()));
            }
            if self.out.waiting.is_some_and(|since| now.duration_since(since) >= FLUSH_AFTER) {
                self.out.flush(now, notify);
            }
            let due = counters_due.saturating_duration_since(now);
            let timeout = if more { Duration::ZERO } else { POLL_INTERVAL.min(due) };
            let wanted =
                [(stop.as_fd(), Interest::READ), (self.programs.ring_fd(), Interest::READ)];
            let ready = stopped_within(&wanted, timeout)?;
            if ready {
                // Sends pending samples, but limits the time, because new ones arrive.
                let now = Instant::now();
                while self.take_samples(now, notify) && now.elapsed() < STOP_FLUSH_TIMEOUT {}
                self.out.flush(now, notify);
                return Ok(());
            }
        }
    }

    /// Encodes pending samples up to a limit; returns true if more may be pending.
    fn take_samples(&mut self, now: Instant, notify: &mut dyn FnMut(Notice)) -> bool {
        let Self { programs, sampled, out, batch, .. } = self;
        batch.clear();
        while batch.len() < SAMPLES_PER_BATCH_MAX
            && let Some(record) = programs.next_sample()
        {
            batch.push(record);
        }
        // Read after the samples, so that the drops between them are included.
        for (index, one) in sampled.iter_mut() {
            one.counted = programs.counted(*index);
        }
        let mut room = Vec::new();
        for record in &*batch {
            let Some(taken) = SampledSegments::read(record) else { continue };
            let Some(source) = sampled.get_mut(&taken.index) else { continue };
            source.add(&taken, &mut room, out, now, notify);
        }
        batch.len() == SAMPLES_PER_BATCH_MAX
    }

    fn send_counters(&mut self, now: Instant, notify: &mut dyn FnMut(Notice)) {
        // Read before the devices' counters, so that packets in between do not count as segments.
        let seen: Vec<[Option<u64>; 2]> = self
            .sampled
            .keys()
            .map(|index| {
                [PacketDirection::Ingress, PacketDirection::Egress].map(|direction| {
                    self.programs.counted_in(*index, direction).map(|counted| counted.packets)
                })
            })
            .collect();
        let devices = match CountedDevice::all() {
            Ok(devices) => devices,
            Err(error) => return notify(Notice::Counters(error)),
        };
        for ((index, one), seen) in self.sampled.iter_mut().zip(seen) {
            let Some(device) = devices.iter().find(|device| device.index == *index) else {
                if !std::mem::replace(&mut one.gone, true) {
                    notify(Notice::Gone(one.name.clone()));
                }
                continue;
            };
            one.counter_sequence = one.counter_sequence.wrapping_add(1);
            let counted = [device.statistics.rx_packets, device.statistics.tx_packets];
            for ((uncounted, seen), counted) in one.uncounted.iter_mut().zip(seen).zip(counted) {
                if let Some(seen) = seen {
                    uncounted.update(seen, counted);
                }
            }
            let records = interface::records(device, one.speed, one.uncounted);
            self.out.counters(
                one.counter_sequence,
                Source::interface(*index),
                &records,
                now,
                notify,
            );
        }
        self.machine_sequence = self.machine_sequence.wrapping_add(1);
        let (mut macs, mut adapters) = (Vec::new(), Vec::new());
        let mut records: Vec<CounterRecord<'_>> =
            vec![self.identity.record(), host::adapters(&devices, &mut macs, &mut adapters)];
        records.extend(host::records(&devices));
        self.out.counters(self.machine_sequence, MACHINE, &records, now, notify);
    }
}

/// Polls the descriptors; returns true if the first one is readable.
fn stopped_within(
    wanted: &[(std::os::fd::BorrowedFd<'_>, Interest)],
    timeout: Duration,
) -> io::Result<bool> {
    Ok(poll(wanted, Some(timeout))?.first().is_some_and(|stop| stop.readable))
}

/// Returns the named devices, or all physical devices that are up.
fn devices(names: &[String]) -> Result<Vec<CountedDevice>, SamplerError> {
    let all = CountedDevice::all()?;
    if names.is_empty() {
        let physical: Vec<CountedDevice> =
            all.into_iter().filter(|device| device.physical && device.up).collect();
        return if physical.is_empty() { Err(SamplerError::NoInterface) } else { Ok(physical) };
    }
    let mut found: Vec<CountedDevice> = Vec::new();
    for name in names {
        let device = all.iter().find(|device| device.name == *name);
        let device = device.ok_or_else(|| SamplerError::Interface(name.clone()))?;
        if !found.iter().any(|one| one.index == device.index) {
            found.push(device.clone());
        }
    }
    Ok(found)
}

impl Sampled {
    /// Encodes one flow sample per sampled segment.
    fn add(
        &mut self,
        taken: &SampledSegments<'_>,
        room: &mut Vec<u8>,
        out: &mut Out,
        now: Instant,
        notify: &mut dyn FnMut(Notice),
    ) {
        let device = SflowInterface::Index(taken.index);
        let (input, output) = match taken.direction {
            PacketDirection::Ingress => (device, SflowInterface::Unknown),
            PacketDirection::Egress => (SflowInterface::Unknown, device),
        };
        if let Some(header_bytes) = taken.segment_header_bytes(self.ethernet) {
            self.uncounted[taken.direction as usize].sampled(header_bytes);
        }
        let frame = taken.frame(self.ethernet, room);
        let seen = self.seen.entry((taken.direction, taken.cpu)).or_default();
        let since = taken.packets.saturating_sub(*seen);
        *seen = taken.packets;
        let before = self.pool;
        self.pool += since;
        for number in 0..taken.count {
            // The pool increase is divided among the sampled segments of a packet.
            let share = since * u64::from(number + 1) / u64::from(taken.count);
            self.flow_sequence = self.flow_sequence.wrapping_add(1);
            let head = FlowHead {
                sequence: self.flow_sequence,
                source: Source::interface(taken.index),
                sampling_rate: self.rate,
                sample_pool: low(before + share),
                drops: low(self.counted.drops),
                input,
                output,
            };
            let is_last = number + 1 == taken.count && frame.last == 1;
            let frame_length = if is_last { frame.last_length } else { frame.length };
            let header = SampledHeader {
                protocol: frame.protocol,
                frame_length,
                stripped: frame.stripped,
                header: Opaque(frame.header_of(frame_length)),
            };
            let full = out.encoder.flow(out.uptime(now), &head, &[FlowRecord::Header(header)]);
            out.added(full, now, notify);
        }
    }
}

impl Out {
    fn uptime(&self, now: Instant) -> u32 {
        low(u64::try_from(now.duration_since(self.begun).as_millis()).unwrap_or(u64::MAX))
    }

    fn counters(
        &mut self,
        sequence: u32,
        source: Source,
        records: &[CounterRecord<'_>],
        now: Instant,
        notify: &mut dyn FnMut(Notice),
    ) {
        let full = self.encoder.counters(self.uptime(now), sequence, source, records);
        self.added(full, now, notify);
    }

    fn added(
        &mut self,
        full: Result<Option<Vec<u8>>, TooLong>,
        now: Instant,
        notify: &mut dyn FnMut(Notice),
    ) {
        match full {
            Ok(None) => {
                self.waiting.get_or_insert(now);
            }
            Ok(Some(datagram)) => {
                self.waiting = Some(now);
                self.send(&datagram, now, notify);
            }
            Err(TooLong { .. }) => self.too_long += 1,
        }
    }

    fn flush(&mut self, now: Instant, notify: &mut dyn FnMut(Notice)) {
        self.waiting = None;
        if let Some(datagram) = self.encoder.take(self.uptime(now)) {
            self.send(&datagram, now, notify);
        }
    }

    fn send(&mut self, datagram: &[u8], now: Instant, notify: &mut dyn FnMut(Notice)) {
        self.datagrams += 1;
        for collector in &mut self.collectors {
            if let SendResult::Failed(error) = collector.send(datagram, now) {
                let (address, failed) = (collector.address, collector.failed);
                notify(Notice::Collector { collector: address, failed, error });
            }
        }
    }
}
