//! Links emulated by NFQUEUE: packets wait in the kernel at the receiving end for a verdict at their arrival time.
//!
//! One thread per direction keeps packet ids and times; it reads only the first bytes of each packet.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use penstock_sys::event::{Interest, poll};
use penstock_sys::machine::{self, CpuLatencyRequest};
use penstock_sys::net::{CE_MARK, Diversion, PacketQueue};
use penstock_units::BitRate;
use std::os::fd::AsFd;

use super::arrival::ArrivalPrograms;
use super::tag::Tags;
use super::{EmulatedEnd, EmulatedLink, Lane};
use crate::direction::{DirectionCounters, DirectionState};
use crate::line::{ETHERNET_BYTES, EmulatedPacket, Impairment, Line, PacketOutcome};
use crate::node::RunningNode;
use crate::plan::PlannedPort;
use crate::timing_error::TimingErrorCounts;

/// Bytes copied of each packet: the headers up to TCP's data offset, with a jumbo payload option.
const HEAD_BYTES: u32 = 96;
/// Rates above this are not shaped: no machine reaches them.
const SHAPED_BPS_MAX: u64 = 200_000_000_000;
/// The kernel's own bound on segments of a super-packet.
const SEGMENTS_MAX: u32 = 65_535;
/// Burst of the token bucket, as time at its rate.
const TBF_BURST_TIME: Duration = Duration::from_millis(1);
const TBF_BURST_BYTES_MAX: u64 = 1 << 20;
/// Typical delay of timers on an idle machine: wake this much earlier and spin.
const TIMER_SLACK: Duration = Duration::from_micros(300);
/// Divisor: spinning takes at most this share of a CPU.
const SPIN_CPU_SHARE: u32 = 20;
/// Interval at which dense traffic is processed in batches: each wake-up takes CPU time from sender and receiver.
const VERDICT_INTERVAL: Duration = Duration::from_micros(100);
/// Divisor of the delay: bound on the delay added by batches.
const VERDICT_INTERVAL_DELAY_SHARE: u32 = 20;
/// Bytes of lost packets that wait in the queue for a batch drop; further ones are dropped singly.
const LOST_BYTES_MAX: u64 = 64 << 20;
/// Time without packets after which CPUs may sleep again.
const CPU_AWAKE_LINGER: Duration = Duration::from_secs(1);
/// Bound on a packet's age: the wall clock may be set between arrival and receipt.
const ARRIVAL_AGE_MAX: Duration = Duration::from_millis(20);
/// Ethernet header, which the shaper counts, and other framing, which it does not.
const COUNTED_BYTES: u64 = 14;
const UNCOUNTED_BYTES: u64 = 24;
/// First queue number of lanes, above those of ports; each lane has one per direction.
const LANE_QUEUES: u16 = 0x8000;

/// Sending end of a direction, where the kernel shapes.
#[derive(Debug)]
struct SendingEnd {
    node: Arc<RunningNode>,
    device: u32,
    mtu: u32,
    tag_bytes: u64,
}

/// Receiving end of a direction, where packets wait.
#[derive(Debug)]
struct ReceivingEnd {
    node: Arc<RunningNode>,
    device: u32,
    queue: u16,
    mtu: u32,
    tag_bytes: u64,
}

#[derive(Debug)]
struct NfqueueDirection {
    sender: SendingEnd,
    receiver: ReceivingEnd,
    /// Worker for packets outside lanes.
    rest: LaneWorker,
    /// True once packets go through the queue.
    waits: bool,
    seed: u64,
    wanted: Impairment,
    /// By queue number.
    lanes: BTreeMap<u16, (Lane, LaneWorker)>,
    /// Counters of released lanes.
    gone: DirectionCounters,
    /// Current IFLA_GSO_MAX_SEGS of the sending device.
    segments: u32,
}

/// A direction or a lane, with its thread if packets go through a queue.
#[derive(Debug)]
struct LaneWorker {
    direction: Arc<DirectionState>,
    thread: Option<JoinHandle<()>>,
}

/// A veth pair with two directions.
#[derive(Debug)]
pub(super) struct NfqueueLink {
    ways: [NfqueueDirection; 2],
    _tags: Tags,
    _arrivals: ArrivalPrograms,
}

impl NfqueueLink {
    pub(super) fn join(name: &str, seed: u64, ends: [EmulatedEnd<'_>; 2]) -> io::Result<Self> {
        let (devices, tags) = pair(ends)?;
        let tag_bytes = tags.bytes();
        let way = |from: usize| -> io::Result<NfqueueDirection> {
            let (a, b) = (ends[from], ends[1 - from]);
            let sign = if from == 0 { '>' } else { '<' };
            Ok(NfqueueDirection {
                sender: SendingEnd {
                    node: Arc::clone(a.node),
                    device: devices[from],
                    mtu: a.port.mtu,
                    tag_bytes,
                },
                receiver: ReceivingEnd {
                    node: Arc::clone(b.node),
                    device: devices[1 - from],
                    queue: u16::try_from(b.number).unwrap_or(u16::MAX),
                    mtu: b.port.mtu,
                    tag_bytes,
                },
                rest: LaneWorker::new(format!("{name}{sign}"), Impairment::default())?,
                waits: false,
                seed,
                wanted: Impairment::default(),
                lanes: BTreeMap::new(),
                gone: DirectionCounters::default(),
                segments: SEGMENTS_MAX,
            })
        };
        let arrivals = ArrivalPrograms::attach(ends);
        Ok(Self { ways: [way(0)?, way(1)?], _tags: tags, _arrivals: arrivals })
    }
}

/// Creates a veth pair with addresses, up, with VLAN tags where configured. Returns the interface indices.
pub(super) fn pair(ends: [EmulatedEnd<'_>; 2]) -> io::Result<([u32; 2], Tags)> {
    let [a, b] = ends;
    let (here, there) = (RunningNode::new_device(a.port), RunningNode::new_device(b.port));
    a.node.network.add_veth(&here, &there, &b.node.namespace)?;
    let tags = Tags::attach(a.port.vlan, ends);
    Ok((configure_ends(ends)?, tags))
}

/// Configures addresses and neighbours of two existing devices. Returns their indices.
pub(super) fn configure_ends(ends: [EmulatedEnd<'_>; 2]) -> io::Result<[u32; 2]> {
    let [a, b] = ends;
    a.node.configure_port(a.port, b.port)?;
    b.node.configure_port(b.port, a.port)?;
    let index = |place: EmulatedEnd<'_>, port: &PlannedPort| {
        place.node.await_running(port)?;
        place.node.device(port)
    };
    Ok([index(a, a.port)?, index(b, b.port)?])
}

impl EmulatedLink for NfqueueLink {
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()> {
        self.ways.iter_mut().zip(wanted).try_for_each(|(way, wanted)| way.set(wanted))
    }

    fn counters(&self) -> io::Result<[DirectionCounters; 2]> {
        let [a, b] = &self.ways;
        Ok([a.counters()?, b.counters()?])
    }

    fn timing_error(&self) -> [Option<TimingErrorCounts>; 2] {
        self.ways.each_ref().map(|way| way.waits.then(|| way.rest.direction.timing_error.counted()))
    }

    fn set_lanes(&mut self, number: u16, lanes: Option<[Lane; 2]>) -> io::Result<()> {
        let [one, other] = lanes.map_or([None, None], |lanes| lanes.map(Some));
        let [forward, back] = &mut self.ways;
        let queues = lane_queues(number);
        forward.set_lane(queues[0], one)?;
        back.set_lane(queues[1], other).inspect_err(|_| {
            // All or nothing.
            let _ = forward.set_lane(queues[0], None);
        })
    }

    fn lane_counters(&self, number: u16) -> Option<[DirectionCounters; 2]> {
        let [forward, back] = &self.ways;
        let counted =
            |way: &NfqueueDirection, queue| Some(way.lanes.get(&queue)?.1.direction.counters());
        let queues = lane_queues(number);
        Some([counted(forward, queues[0])?, counted(back, queues[1])?])
    }
}

/// Queue numbers of both directions, which may end at the same node.
fn lane_queues(number: u16) -> [u16; 2] {
    [0, 1].map(|side| LANE_QUEUES + 2 * (number % (LANE_QUEUES / 2)) + side)
}

impl NfqueueDirection {
    fn set(&mut self, wanted: Impairment) -> io::Result<()> {
        let left = self.left_of(&wanted)?;
        self.wanted = wanted;
        let segments = if wanted.loss > 0.0 { 1 } else { SEGMENTS_MAX };
        if segments != self.segments {
            self.sender.node.network.set_segments_max(self.sender.device, segments)?;
            self.segments = segments;
        }
        self.rest.direction.set(left);
        for (lane, worker) in self.lanes.values() {
            worker.direction.set(in_lane(&wanted, lane));
        }
        if left.is_rate_alone() && !self.waits && self.lanes.is_empty() {
            return self.sender.shape(&left);
        }
        // The direction stays on the queue from now on: switching back could reorder packets.
        if !self.waits {
            self.rest.start(&self.receiver, self.receiver.queue, self.seed)?;
            self.waits = true;
            self.divert()?;
            self.sender.node.network.remove_qdisc(self.sender.device)?;
        }
        Ok(())
    }

    /// Impairment of packets outside lanes: the rate that lanes leave.
    fn left_of(&self, wanted: &Impairment) -> io::Result<Impairment> {
        let taken: u64 = self.lanes.values().map(|(lane, _)| lane.rate.0).sum();
        match wanted.rate {
            Some(rate) if rate.0 <= taken => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("circuits reserve {} of its {rate}: release one first", BitRate(taken)),
            )),
            rate => Ok(Impairment { rate: rate.map(|rate| BitRate(rate.0 - taken)), ..*wanted }),
        }
    }

    fn set_lane(&mut self, queue: u16, lane: Option<Lane>) -> io::Result<()> {
        // The old worker serves its queue until the diversion is changed.
        let before = self.lanes.remove(&queue);
        if let Some((_, worker)) = &before {
            self.gone = self.gone.with(worker.direction.counters());
        }
        if let Some(lane) = lane {
            let name = format!("{}{queue}", self.rest.direction.name);
            let mut worker = LaneWorker::new(name, in_lane(&self.wanted, &lane))?;
            if before.is_some() {
                self.divert()?;
            }
            drop(before);
            worker.start(&self.receiver, queue, self.seed)?;
            self.lanes.insert(queue, (lane, worker));
        } else if before.is_none() {
            return Ok(());
        }
        let wanted = self.wanted;
        if let Err(error) = self.set(wanted) {
            self.lanes.remove(&queue);
            return Err(error);
        }
        self.divert()
    }

    /// Installs the diversions of this direction.
    fn divert(&self) -> io::Result<()> {
        let ReceivingEnd { node, device, queue, .. } = &self.receiver;
        let lanes = self.lanes.iter().map(|(queue, (lane, _))| Diversion {
            device: *device,
            to: Some(lane.to),
            queue: *queue,
        });
        let rest = Diversion { device: *device, to: None, queue: *queue };
        node.divert(*device, lanes.chain([rest]).collect())
    }

    /// Counters of the workers, or of the kernel while no packet goes through a queue.
    fn counters(&self) -> io::Result<DirectionCounters> {
        if self.waits {
            let lanes = self.lanes.values().map(|(_, worker)| worker.direction.counters());
            return Ok(
                lanes.fold(self.rest.direction.counters().with(self.gone), DirectionCounters::with)
            );
        }
        let overflowed = self.sender.node.network.qdisc_drops(self.sender.device)?;
        let receiver = self.receiver.node.network.counters(self.receiver.device)?;
        Ok(DirectionCounters {
            packets: receiver.received_packets,
            wire_bytes: receiver.received_bytes
                + (UNCOUNTED_BYTES + self.sender.tag_bytes) * receiver.received_packets,
            overflowed,
            ..DirectionCounters::default()
        })
    }
}

/// Impairment of a lane: that of the link, with the lane's rate and its default queue.
fn in_lane(wanted: &Impairment, lane: &Lane) -> Impairment {
    Impairment { rate: Some(lane.rate), queue: None, ..*wanted }
}

impl LaneWorker {
    fn new(name: String, wanted: Impairment) -> io::Result<Self> {
        Ok(Self { direction: Arc::new(DirectionState::new(name, wanted)?), thread: None })
    }

    /// Starts the thread that serves this queue of a node.
    fn start(&mut self, at: &ReceivingEnd, queue: u16, seed: u64) -> io::Result<()> {
        let queue = at.node.namespace.inside(|| PacketQueue::open(queue, HEAD_BYTES))??;
        let direction = &self.direction;
        let worker = VerdictThread {
            direction: Arc::clone(direction),
            queue,
            line: Line::new(direction.wanted(), seed, &direction.name),
            mtu: at.mtu,
            ethernet_bytes: ETHERNET_BYTES + at.tag_bytes,
            held: VecDeque::with_capacity(1 << 14),
            lost_bytes: 0,
            since: Instant::now(),
            awake: Duration::ZERO,
            cpu_latency: None,
            may_wake: true,
        };
        let thread = thread::Builder::new().name(direction.name.clone());
        self.thread = Some(thread.spawn(move || worker.run())?);
        Ok(())
    }
}

impl Drop for LaneWorker {
    fn drop(&mut self) {
        self.direction.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SendingEnd {
    /// Sets the kernel's token bucket. It counts a super-packet with one header, so the rate is scaled for full packets:
    /// bulk data gets the exact rate, small packets a little more.
    fn shape(&self, wanted: &Impairment) -> io::Result<()> {
        let network = &self.node.network;
        let Some(rate) = wanted.rate.filter(|rate| rate.0 <= SHAPED_BPS_MAX) else {
            return network.remove_qdisc(self.device);
        };
        let mtu = u64::from(self.mtu);
        let counted = u128::from(rate.0) * u128::from(mtu + COUNTED_BYTES)
            / u128::from(mtu + COUNTED_BYTES + UNCOUNTED_BYTES + self.tag_bytes);
        let burst = (rate.0 as f64 / 8.0 * TBF_BURST_TIME.as_secs_f64()) as u64;
        let burst = burst.clamp(2 * (mtu + COUNTED_BYTES), TBF_BURST_BYTES_MAX);
        network.replace_tbf(
            self.device,
            u64::try_from(counted).unwrap_or(u64::MAX),
            u32::try_from(burst).unwrap_or(u32::MAX),
            u32::try_from(wanted.queue_bytes().max(burst)).unwrap_or(u32::MAX),
        )
    }
}

/// A packet that waits for its verdict.
#[derive(Debug, Clone, Copy)]
struct HeldPacket {
    id: u32,
    at: Duration,
    bytes: u32,
    verdict: PacketVerdict,
}

/// Verdict on a packet, sent in queue order: the kernel finds the head of its queue at once, and searches for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PacketVerdict {
    Go { marked: bool },
    Drop,
}

/// Thread of a direction or a lane.
struct VerdictThread {
    direction: Arc<DirectionState>,
    queue: PacketQueue,
    line: Line,
    mtu: u32,
    /// Framing bytes per segment.
    ethernet_bytes: u64,
    held: VecDeque<HeldPacket>,
    /// Bytes of held packets with verdict `Drop`.
    lost_bytes: u64,
    since: Instant,
    /// Time spent spinning, less the allowed share.
    awake: Duration,
    /// Held while packets wait, and for [`CPU_AWAKE_LINGER`].
    cpu_latency: Option<CpuLatencyRequest>,
    /// False where the kernel refuses the request.
    may_wake: bool,
}

impl VerdictThread {
    fn run(mut self) {
        if let Err(error) = machine::become_realtime() {
            tracing::debug!("{}: no real-time priority: {error}", self.direction.name);
        }
        let mut last = Duration::ZERO;
        while !self.direction.is_stopped() {
            let begun = self.since.elapsed();
            match self.turn(begun) {
                Ok(0) => {}
                Ok(_) if begun - last < VERDICT_INTERVAL * 2 => {
                    thread::sleep(
                        VERDICT_INTERVAL
                            .min(self.line.impairment().delay / VERDICT_INTERVAL_DELAY_SHARE),
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(
                        "link {}: {error}; the link drops all packets from now on",
                        self.direction.name
                    );
                    return;
                }
            }
            last = begun;
        }
    }

    /// Waits for the next event and processes it; returns the packets received.
    fn turn(&mut self, before: Duration) -> io::Result<usize> {
        let mut next = self.release()?;
        if let Some(wait) = next
            && self.awake < TIMER_SLACK * 10
        {
            if wait <= TIMER_SLACK {
                let due = self.since.elapsed() + wait;
                while self.since.elapsed() < due {
                    std::hint::spin_loop();
                }
                self.awake += wait;
                next = Some(Duration::ZERO);
            } else {
                next = Some(wait - TIMER_SLACK);
            }
        }
        let sources = [
            (self.queue.as_fd(), Interest::READ),
            (self.direction.changed.as_fd(), Interest::READ),
        ];
        let idle = next.is_none() && self.cpu_latency.is_some();
        let ready = poll(&sources, if idle { Some(CPU_AWAKE_LINGER) } else { next })?;
        if idle && !ready.iter().any(|one| one.any()) {
            self.cpu_latency = None;
        }
        if ready.get(1).is_some_and(|changed| changed.any()) {
            self.direction.changed.drain()?;
            self.line.set(self.direction.wanted());
        }
        // Due packets leave before more are received.
        let mut taken = 0;
        loop {
            match self.take()? {
                0 => break,
                count => taken += count,
            }
            self.release()?;
        }
        if self.cpu_latency.is_none() && self.may_wake && !self.held.is_empty() {
            self.cpu_latency = CpuLatencyRequest::zero().ok();
            self.may_wake = self.cpu_latency.is_some();
        }
        let slept = self.since.elapsed() - before;
        self.awake = self.awake.saturating_sub(slept / SPIN_CPU_SHARE);
        Ok(taken)
    }

    /// Sends verdicts for due packets; returns the time until the next one.
    fn release(&mut self) -> io::Result<Option<Duration>> {
        loop {
            let now = self.since.elapsed();
            let Some(first) = self.held.front().copied() else { return Ok(None) };
            if first.at > now {
                return Ok(Some(first.at - now));
            }
            // One batch verdict for consecutive due packets with the same verdict.
            let (mut last, mut count, mut bytes) = (first.id, 0, 0);
            while let Some(held) = self.held.front()
                && held.at <= now
                && held.verdict == first.verdict
            {
                last = held.id;
                count += 1;
                bytes += u64::from(held.bytes);
                self.held.pop_front();
            }
            match first.verdict {
                PacketVerdict::Go { marked } => {
                    self.queue.accept_up_to(last, marked.then_some(CE_MARK))?;
                    self.direction.timing_error.count(now - first.at, count);
                }
                PacketVerdict::Drop => {
                    self.queue.drop_up_to(last)?;
                    self.lost_bytes -= bytes;
                }
            }
        }
    }

    fn take(&mut self) -> io::Result<usize> {
        let (now, clock) = (self.since.elapsed(), SystemTime::now());
        let Self { queue, line, held, direction, mtu, ethernet_bytes, lost_bytes, .. } = self;
        let mut at_once = Vec::new();
        let count = queue.take(|queued| {
            let (id, bytes) = (queued.id, queued.bytes);
            if is_housekeeping(queued.head) {
                let verdict = PacketVerdict::Go { marked: false };
                return held.push_back(HeldPacket { id, at: now, bytes, verdict });
            }
            let packet = EmulatedPacket::of(queued.head, queued.bytes, *mtu, *ethernet_bytes);
            // Arrival precedes receipt by this thread.
            let age = queued.arrived.and_then(|then| clock.duration_since(then).ok());
            let age = age.unwrap_or_default().min(ARRIVAL_AGE_MAX);
            let fate = line.offer(now.saturating_sub(age), packet);
            direction.count(fate, packet);
            match fate {
                PacketOutcome::Arrives { at, marked } => {
                    held.push_back(HeldPacket {
                        id,
                        at,
                        bytes,
                        verdict: PacketVerdict::Go { marked },
                    });
                }
                _ if *lost_bytes > LOST_BYTES_MAX => at_once.push(id),
                PacketOutcome::Lost | PacketOutcome::Overflow | PacketOutcome::Cut => {
                    *lost_bytes += u64::from(bytes);
                    held.push_back(HeldPacket { id, at: now, bytes, verdict: PacketVerdict::Drop });
                }
            }
        })?;
        at_once.into_iter().try_for_each(|id| queue.drop_one(id))?;
        Ok(count)
    }
}

/// True for the kernel's own packets to link-local multicast (RFC 4291 section 2.7), as group membership reports. Their
/// timing is random, and they must not change which packets of programs are lost.
fn is_housekeeping(head: &[u8]) -> bool {
    head.first().is_some_and(|first| first >> 4 == 6) && head.get(24..26) == Some(&[0xFF, 0x02])
}
