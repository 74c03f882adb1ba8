//! The loop: samples out of the ring, counters when they are due, datagrams to every collector.
//!
//! One thread does it all: it sleeps until some samples wait (the program says when), or a tenth of a second has passed. A
//! datagram leaves when it is full or its first sample is a second old.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_flows::sflow::counters::CounterRecord;
use penstock_flows::sflow::encode::FlowHead;
use penstock_flows::sflow::record::SampledHeader;
use penstock_flows::sflow::xdr::Opaque;
use penstock_flows::sflow::{Encoder, FlowRecord, Interface, Source, TooLong};
use penstock_hooks::Attach;
use penstock_sys::event::{Event, Interest, poll};
use penstock_sys::net::{CountedDevice, speed_bps};

use crate::collectors::{Collector, SendResult};
use crate::error::SamplerError;
use crate::host::{self, HostIdentity};
use crate::interface::{self, RATE_MAX, Uncounted, default_rate, low};
use crate::program::{Attached, DeviceCounts, Direction, Programs};
use crate::record::{Record, Taken};

/// How long samples may lie in the ring.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long they may wait in a datagram.
const FLUSH_AFTER: Duration = Duration::from_millis(500);

/// How long samples that wait are sent after the end was asked for.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Samples between two looks at everything else: hundreds of datagrams.
const SAMPLES_PER_BATCH_MAX: usize = 1024;

/// sFlow's class of data sources that the machine itself is.
const MACHINE: Source = Source { class: 2, index: 1 };

/// Sampling configuration and collectors.
#[derive(Debug, Clone)]
pub struct Config {
    /// Names of devices; none for all that are hardware and up.
    pub interfaces: Vec<String>,
    /// Directions in which packets are sampled.
    pub directions: Vec<Direction>,
    /// One of how many packets; `None` by the speed of each device.
    pub rate: Option<u32>,
    /// Addresses of the collectors.
    pub collectors: Vec<SocketAddr>,
    /// The agent's address; `None` for the one that the first collector sees.
    pub agent: Option<IpAddr>,
    /// Tells the processes of one agent apart.
    pub sub_agent: u32,
    /// How often counters are sent.
    pub polling: Duration,
    /// Room for samples that wait, in bytes: a power of two.
    pub ring_bytes: u32,
    /// Longest datagram in bytes.
    pub datagram_bytes: usize,
    /// How programs get to devices.
    pub attach: Attach,
}

/// One device.
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
    /// The sample pool by what the samples say: collectors take it for the packets between one sample and the next.
    pool: u64,
    /// Segments missing in the device's counters, received and sent.
    uncounted: [Uncounted; 2],
    /// Packet count of each CPU at its last sample, per direction.
    seen: HashMap<(Direction, u32), u64>,
}

/// Something that an operator should know.
#[derive(Debug)]
pub enum Notice {
    /// Datagrams to a collector do not leave; told once a minute. Sampling goes on.
    Collector {
        /// Which one.
        collector: SocketAddr,
        /// How many did not leave so far.
        failed: u64,
        /// Why.
        error: io::Error,
    },
    /// A device is gone, and with it what was attached to it.
    Gone(String),
    /// Counters cannot be read now.
    Counters(io::Error),
    /// Counters were sent: how things are.
    Counted(Status),
}

/// Status of the sampler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Time since the start.
    pub uptime: Duration,
    /// Status of each sampled device.
    pub interfaces: Vec<InterfaceStatus>,
    /// Status of each collector.
    pub collectors: Vec<CollectorStatus>,
    /// Datagrams that the sampler encoded.
    pub datagrams: u64,
    /// Samples that fit no datagram.
    pub too_long: u64,
}

/// How things are with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// Name of the device.
    pub name: String,
    /// Interface index (ifIndex) of the device.
    pub index: u32,
    /// One of so many packets is sampled.
    pub rate: u32,
    /// Packets that the program counted.
    pub packets: u64,
    /// Samples that the program took.
    pub samples: u64,
    /// Samples lost because the ring was full.
    pub drops: u64,
}

/// How things are with a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectorStatus {
    /// Address of the collector.
    pub address: SocketAddr,
    /// Datagrams sent to the collector.
    pub datagrams: u64,
    /// Bytes of the sent datagrams.
    pub bytes: u64,
    /// Datagrams that did not leave, or that the other end refused.
    pub errors: u64,
}

/// A sampler that is attached.
#[derive(Debug)]
pub struct Sampler {
    programs: Programs,
    attached: Vec<Attached>,
    sampled: BTreeMap<u32, Sampled>,
    out: Out,
    identity: HostIdentity,
    polling: Duration,
    machine_sequence: u32,
    batch: Vec<Record>,
}

/// Datagrams on their way.
#[derive(Debug)]
struct Out {
    begun: Instant,
    agent: IpAddr,
    encoder: Encoder,
    collectors: Vec<Collector>,
    datagrams: u64,
    too_long: u64,
    /// Since when samples wait in the encoder.
    waiting: Option<Instant>,
}

impl Sampler {
    /// Attaches to the devices.
    ///
    /// # Errors
    /// With one line; nothing stays attached then.
    pub fn start(config: &Config) -> Result<Self, SamplerError> {
        if config.rate.is_some_and(|rate| rate == 0 || rate > RATE_MAX) {
            return Err(SamplerError::Value(format!("sample 1 of 1 to {RATE_MAX} packets")));
        }
        let devices = devices(&config.interfaces)?;
        let collectors: Vec<Collector> =
            config.collectors.iter().map(|one| Collector::new(*one)).collect::<Result<_, _>>()?;
        let first = collectors
            .first()
            .ok_or_else(|| SamplerError::Value("no collector to send to".to_owned()))?;
        let agent = match config.agent {
            Some(agent) => agent,
            None => first.own_address()?,
        };
        let mut programs = Programs::load(config.ring_bytes)?;
        let (mut attached, mut sampled) = (Vec::new(), BTreeMap::new());
        for device in devices {
            // Many devices have none.
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

    /// Where the programs are.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Address of the sFlow agent, in each datagram.
    #[must_use]
    pub fn agent(&self) -> IpAddr {
        self.out.agent
    }

    /// How things are now.
    #[must_use]
    pub fn status(&self) -> Status {
        let interfaces = self.sampled.iter().map(|(index, one)| {
            let counted = self.programs.counted(*index);
            InterfaceStatus {
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
        Status {
            uptime: self.out.begun.elapsed(),
            interfaces: interfaces.collect(),
            collectors: collectors.collect(),
            datagrams: self.out.datagrams,
            too_long: self.out.too_long,
        }
    }

    /// Runs until `stop` is signalled, then sends what waits. Detaches when it is dropped.
    ///
    /// # Errors
    /// When waiting for samples fails.
    pub fn run(&mut self, stop: &Event, told: &mut dyn FnMut(Notice)) -> io::Result<()> {
        let mut counters_due = Instant::now();
        loop {
            let now = Instant::now();
            let more = self.take_samples(now, told);
            if now >= counters_due {
                self.send_counters(now, told);
                // After a pause of the whole machine they are not sent all at once.
                counters_due = now.max(counters_due + self.polling);
                told(Notice::Counted(self.status()));
            }
            if self.out.waiting.is_some_and(|since| now.duration_since(since) >= FLUSH_AFTER) {
                self.out.flush(now, told);
            }
            let due = counters_due.saturating_duration_since(now);
            let timeout = if more { Duration::ZERO } else { LOOK_EVERY.min(due) };
            let wanted =
                [(stop.as_fd(), Interest::READ), (self.programs.ring_fd(), Interest::READ)];
            let ready = stopped_within(&wanted, timeout)?;
            if ready {
                // All that waits, but not for ever what comes meanwhile.
                let now = Instant::now();
                while self.take_samples(now, told) && now.elapsed() < LAST_WORDS {}
                self.out.flush(now, told);
                return Ok(());
            }
        }
    }

    /// Encodes waiting samples up to a limit; true if more may wait.
    fn take_samples(&mut self, now: Instant, told: &mut dyn FnMut(Notice)) -> bool {
        let Self { programs, sampled, out, batch, .. } = self;
        batch.clear();
        while batch.len() < SAMPLES_PER_BATCH_MAX
            && let Some(record) = programs.next_sample()
        {
            batch.push(record);
        }
        // After the samples: what was lost between them is counted by now.
        for (index, one) in sampled.iter_mut() {
            one.counted = programs.counted(*index);
        }
        let mut room = Vec::new();
        for record in &*batch {
            let Some(taken) = Taken::read(record) else { continue };
            let Some(source) = sampled.get_mut(&taken.index) else { continue };
            source.add(&taken, &mut room, out, now, told);
        }
        batch.len() == SAMPLES_PER_BATCH_MAX
    }

    fn send_counters(&mut self, now: Instant, told: &mut dyn FnMut(Notice)) {
        // Before the devices' counters: a packet between both readings is not taken for a segment.
        let seen: Vec<[Option<u64>; 2]> = self
            .sampled
            .keys()
            .map(|index| {
                [Direction::Ingress, Direction::Egress].map(|direction| {
                    self.programs.counted_in(*index, direction).map(|counted| counted.packets)
                })
            })
            .collect();
        let devices = match CountedDevice::all() {
            Ok(devices) => devices,
            Err(error) => return told(Notice::Counters(error)),
        };
        for ((index, one), seen) in self.sampled.iter_mut().zip(seen) {
            let Some(device) = devices.iter().find(|device| device.index == *index) else {
                if !std::mem::replace(&mut one.gone, true) {
                    told(Notice::Gone(one.name.clone()));
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
            self.out.counters(one.counter_sequence, Source::interface(*index), &records, now, told);
        }
        self.machine_sequence = self.machine_sequence.wrapping_add(1);
        let (mut macs, mut adapters) = (Vec::new(), Vec::new());
        let mut records: Vec<CounterRecord<'_>> =
            vec![self.identity.record(), host::adapters(&devices, &mut macs, &mut adapters)];
        records.extend(host::records(&devices));
        self.out.counters(self.machine_sequence, MACHINE, &records, now, told);
    }
}

/// Waits; whether the first descriptor is ready.
fn stopped_within(
    wanted: &[(std::os::fd::BorrowedFd<'_>, Interest)],
    timeout: Duration,
) -> io::Result<bool> {
    Ok(poll(wanted, Some(timeout))?.first().is_some_and(|stop| stop.readable))
}

/// Those that are named, or all that are hardware and up.
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
    /// A sample for each segment that was taken.
    fn add(
        &mut self,
        taken: &Taken<'_>,
        room: &mut Vec<u8>,
        out: &mut Out,
        now: Instant,
        told: &mut dyn FnMut(Notice),
    ) {
        let device = Interface::Index(taken.index);
        let (input, output) = match taken.direction {
            Direction::Ingress => (device, Interface::Unknown),
            Direction::Egress => (Interface::Unknown, device),
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
            // Of several segments of one packet each has its share.
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
            let header = SampledHeader {
                protocol: frame.protocol,
                frame_length: if is_last { frame.last_length } else { frame.length },
                stripped: frame.stripped,
                header: Opaque(frame.header),
            };
            let full = out.encoder.flow(out.uptime(now), &head, &[FlowRecord::Header(header)]);
            out.added(full, now, told);
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
        told: &mut dyn FnMut(Notice),
    ) {
        let full = self.encoder.counters(self.uptime(now), sequence, source, records);
        self.added(full, now, told);
    }

    fn added(
        &mut self,
        full: Result<Option<Vec<u8>>, TooLong>,
        now: Instant,
        told: &mut dyn FnMut(Notice),
    ) {
        match full {
            Ok(None) => {
                self.waiting.get_or_insert(now);
            }
            Ok(Some(datagram)) => {
                self.waiting = Some(now);
                self.send(&datagram, now, told);
            }
            Err(TooLong { .. }) => self.too_long += 1,
        }
    }

    fn flush(&mut self, now: Instant, told: &mut dyn FnMut(Notice)) {
        self.waiting = None;
        if let Some(datagram) = self.encoder.take(self.uptime(now)) {
            self.send(&datagram, now, told);
        }
    }

    fn send(&mut self, datagram: &[u8], now: Instant, told: &mut dyn FnMut(Notice)) {
        self.datagrams += 1;
        for collector in &mut self.collectors {
            if let SendResult::Failed(error) = collector.send(datagram, now) {
                let (address, failed) = (collector.address, collector.failed);
                told(Notice::Collector { collector: address, failed, error });
            }
        }
    }
}
