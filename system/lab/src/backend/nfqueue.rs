//! Links whose packets wait in the kernel at their far end, for verdicts that come when their time has.
//!
//! A thread per direction keeps numbers and times; packets it never sees but for their first bytes.

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

use super::arrival::Arrivals;
use super::tag::Tags;
use super::{Lane, Place, Wire};
use crate::direction::{Counters, Direction};
use crate::lateness::Counted;
use crate::line::{ETHERNET_BYTES, Fate, Impairment, Line, Packet};
use crate::node::Node;
use crate::plan::Port;

/// Of each packet this comes here: the headers up to TCP's data offset, with a jumbo option.
const HEAD_BYTES: u32 = 96;
/// What a machine does not reach anyhow is not shaped.
const SHAPED_BPS_MAX: u64 = 200_000_000_000;
/// The kernel's own bound on segments of a super-packet.
const SEGMENTS_MAX: u32 = 65_535;
/// A token bucket lets this time's bytes go at once.
const BURST: Duration = Duration::from_millis(1);
const BURST_BYTES_MAX: u64 = 1 << 20;
/// A timer of an idle machine goes off this much too late at times; a virtual one's more often.
const EARLY: Duration = Duration::from_micros(300);
/// Waiting awake instead is worth this share of a processor and no more.
const AWAKE_SHARE: u32 = 20;
/// Packets that come closer together than twice this are taken and let go together, this often: each wake-up of a line
/// takes the processor from sender and receiver.
const NAP: Duration = Duration::from_micros(100);
/// Of the delay: what naps may make packets late.
const NAP_SHARE: u32 = 20;
/// Of packets that are lost, so many bytes wait for their turn to be dropped; those beyond are dropped at once.
const LOST_BYTES_MAX: u64 = 64 << 20;
/// So long processors stay awake when no packet waits any more.
const WAKEFUL: Duration = Duration::from_secs(1);
/// A clock that was set between a packet's arrival and its news tells nonsense.
const AGE_MAX: Duration = Duration::from_millis(20);
/// Of an Ethernet header, which the shaper counts, and of the rest, which it does not.
const COUNTED_BYTES: u64 = 14;
const UNCOUNTED_BYTES: u64 = 24;
/// Queues of lanes come after those of ports: two numbers for each, one for each direction.
const LANE_QUEUES: u16 = 0x8000;

/// The sending end of a direction: what shapes it there.
#[derive(Debug)]
struct Sender {
    node: Arc<Node>,
    device: u32,
    mtu: u32,
    tag_bytes: u64,
}

/// The receiving end of a direction: where its packets wait.
#[derive(Debug)]
struct Receiver {
    node: Arc<Node>,
    device: u32,
    queue: u16,
    mtu: u32,
    tag_bytes: u64,
}

#[derive(Debug)]
struct Way {
    sender: Sender,
    receiver: Receiver,
    /// Of all packets but those of lanes.
    rest: Carrying,
    /// From the first time that packets have to wait.
    waits: bool,
    seed: u64,
    wanted: Impairment,
    /// By the number of the queue in which their packets wait.
    lanes: BTreeMap<u16, (Lane, Carrying)>,
    /// What lanes counted that are gone.
    gone: Counters,
    /// How the kernel segments super-packets now.
    segments: u32,
}

/// A direction, or a lane of it, with its thread where packets wait.
#[derive(Debug)]
struct Carrying {
    direction: Arc<Direction>,
    thread: Option<JoinHandle<()>>,
}

/// A pair of devices with two directions.
#[derive(Debug)]
pub(super) struct Link {
    ways: [Way; 2],
    _tags: Tags,
    _arrivals: Arrivals,
}

impl Link {
    pub(super) fn join(name: &str, seed: u64, ends: [Place<'_>; 2]) -> io::Result<Self> {
        let (devices, tags) = pair(ends)?;
        let tag_bytes = tags.bytes();
        let way = |from: usize| -> io::Result<Way> {
            let (a, b) = (ends[from], ends[1 - from]);
            let sign = if from == 0 { '>' } else { '<' };
            Ok(Way {
                sender: Sender {
                    node: Arc::clone(a.node),
                    device: devices[from],
                    mtu: a.port.mtu,
                    tag_bytes,
                },
                receiver: Receiver {
                    node: Arc::clone(b.node),
                    device: devices[1 - from],
                    queue: u16::try_from(b.number).unwrap_or(u16::MAX),
                    mtu: b.port.mtu,
                    tag_bytes,
                },
                rest: Carrying::new(format!("{name}{sign}"), Impairment::default())?,
                waits: false,
                seed,
                wanted: Impairment::default(),
                lanes: BTreeMap::new(),
                gone: Counters::default(),
                segments: SEGMENTS_MAX,
            })
        };
        let arrivals = Arrivals::attach(ends);
        Ok(Self { ways: [way(0)?, way(1)?], _tags: tags, _arrivals: arrivals })
    }
}

/// Two devices joined, addressed and up, with tags where the link has a VLAN; their indices.
pub(super) fn pair(ends: [Place<'_>; 2]) -> io::Result<([u32; 2], Tags)> {
    let [a, b] = ends;
    let (here, there) = (Node::new_device(a.port), Node::new_device(b.port));
    a.node.network.add_veth(&here, &there, &b.node.namespace)?;
    let tags = Tags::attach(a.port.vlan, ends);
    Ok((settle(ends)?, tags))
}

/// Addresses and neighbours of two devices that are there; their indices.
pub(super) fn settle(ends: [Place<'_>; 2]) -> io::Result<[u32; 2]> {
    let [a, b] = ends;
    a.node.settle(a.port, b.port)?;
    b.node.settle(b.port, a.port)?;
    let index = |place: Place<'_>, port: &Port| {
        place.node.await_running(port)?;
        place.node.device(port)
    };
    Ok([index(a, a.port)?, index(b, b.port)?])
}

impl Wire for Link {
    fn set(&mut self, wanted: [Impairment; 2]) -> io::Result<()> {
        self.ways.iter_mut().zip(wanted).try_for_each(|(way, wanted)| way.set(wanted))
    }

    fn counters(&self) -> io::Result<[Counters; 2]> {
        let [a, b] = &self.ways;
        Ok([a.counters()?, b.counters()?])
    }

    fn lateness(&self) -> [Option<Counted>; 2] {
        self.ways.each_ref().map(|way| way.waits.then(|| way.rest.direction.lateness.counted()))
    }

    fn set_lanes(&mut self, number: u16, lanes: Option<[Lane; 2]>) -> io::Result<()> {
        let [one, other] = lanes.map_or([None, None], |lanes| lanes.map(Some));
        let [forward, back] = &mut self.ways;
        let queues = lane_queues(number);
        forward.set_lane(queues[0], one)?;
        back.set_lane(queues[1], other).inspect_err(|_| {
            // Both or none.
            let _ = forward.set_lane(queues[0], None);
        })
    }

    fn lane_counters(&self, number: u16) -> Option<[Counters; 2]> {
        let [forward, back] = &self.ways;
        let counted = |way: &Way, queue| Some(way.lanes.get(&queue)?.1.direction.counters());
        let queues = lane_queues(number);
        Some([counted(forward, queues[0])?, counted(back, queues[1])?])
    }
}

/// Both directions of a lane may end at one node, on its way in and on its way back.
fn lane_queues(number: u16) -> [u16; 2] {
    [0, 1].map(|side| LANE_QUEUES + 2 * (number % (LANE_QUEUES / 2)) + side)
}

impl Way {
    fn set(&mut self, wanted: Impairment) -> io::Result<()> {
        let left = self.left_of(&wanted)?;
        self.wanted = wanted;
        let segments = if wanted.loss > 0.0 { 1 } else { SEGMENTS_MAX };
        if segments != self.segments {
            self.sender.node.network.set_segments_max(self.sender.device, segments)?;
            self.segments = segments;
        }
        self.rest.direction.set(left);
        for (lane, carrying) in self.lanes.values() {
            carrying.direction.set(in_lane(&wanted, lane));
        }
        if left.is_rate_alone() && !self.waits && self.lanes.is_empty() {
            return self.sender.shape(&left);
        }
        // Once packets wait here they go on doing so: a change of place could let one overtake another.
        if !self.waits {
            self.rest.start(&self.receiver, self.receiver.queue, self.seed)?;
            self.waits = true;
            self.divert()?;
            self.sender.node.network.remove_qdisc(self.sender.device)?;
        }
        Ok(())
    }

    /// What lanes leave to all others.
    fn left_of(&self, wanted: &Impairment) -> io::Result<Impairment> {
        let taken: u64 = self.lanes.values().map(|(lane, _)| lane.rate.0).sum();
        match wanted.rate {
            Some(rate) if rate.0 <= taken => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "circuits over it have {} of its {rate}: release one first",
                    BitRate(taken)
                ),
            )),
            rate => Ok(Impairment { rate: rate.map(|rate| BitRate(rate.0 - taken)), ..*wanted }),
        }
    }

    fn set_lane(&mut self, queue: u16, lane: Option<Lane>) -> io::Result<()> {
        // It lives until packets do not come to it any more.
        let before = self.lanes.remove(&queue);
        if let Some((_, carrying)) = &before {
            self.gone = self.gone.with(carrying.direction.counters());
        }
        if let Some(lane) = lane {
            let name = format!("{}{queue}", self.rest.direction.name);
            let mut carrying = Carrying::new(name, in_lane(&self.wanted, &lane))?;
            if before.is_some() {
                self.divert()?;
            }
            drop(before);
            carrying.start(&self.receiver, queue, self.seed)?;
            self.lanes.insert(queue, (lane, carrying));
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

    /// Tells the kernel which packets wait where.
    fn divert(&self) -> io::Result<()> {
        let Receiver { node, device, queue, .. } = &self.receiver;
        let lanes = self.lanes.iter().map(|(queue, (lane, _))| Diversion {
            device: *device,
            to: Some(lane.to),
            queue: *queue,
        });
        let rest = Diversion { device: *device, to: None, queue: *queue };
        node.divert(*device, lanes.chain([rest]).collect())
    }

    /// What waited here, and what the kernel sent on before anything did.
    fn counters(&self) -> io::Result<Counters> {
        if self.waits {
            let lanes = self.lanes.values().map(|(_, carrying)| carrying.direction.counters());
            return Ok(lanes.fold(self.rest.direction.counters().with(self.gone), Counters::with));
        }
        let overflowed = self.sender.node.network.qdisc_drops(self.sender.device)?;
        let receiver = self.receiver.node.network.counters(self.receiver.device)?;
        Ok(Counters {
            packets: receiver.received_packets,
            wire_bytes: receiver.received_bytes
                + (UNCOUNTED_BYTES + self.sender.tag_bytes) * receiver.received_packets,
            overflowed,
            ..Counters::default()
        })
    }
}

/// What a lane does to its packets: what the link does, at the lane's rate and with the queue that goes with it.
fn in_lane(wanted: &Impairment, lane: &Lane) -> Impairment {
    Impairment { rate: Some(lane.rate), queue: None, ..*wanted }
}

impl Carrying {
    fn new(name: String, wanted: Impairment) -> io::Result<Self> {
        Ok(Self { direction: Arc::new(Direction::new(name, wanted)?), thread: None })
    }

    /// Lets packets go that wait in this queue of a node, when their time has come.
    fn start(&mut self, at: &Receiver, queue: u16, seed: u64) -> io::Result<()> {
        let queue = at.node.namespace.inside(|| PacketQueue::open(queue, HEAD_BYTES))??;
        let direction = &self.direction;
        let keeper = Keeper {
            direction: Arc::clone(direction),
            queue,
            line: Line::new(direction.wanted(), seed, &direction.name),
            mtu: at.mtu,
            ethernet_bytes: ETHERNET_BYTES + at.tag_bytes,
            held: VecDeque::with_capacity(1 << 14),
            lost_bytes: 0,
            since: Instant::now(),
            awake: Duration::ZERO,
            wakeful: None,
            may_wake: true,
        };
        let thread = thread::Builder::new().name(direction.name.clone());
        self.thread = Some(thread.spawn(move || keeper.run())?);
        Ok(())
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        self.direction.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Sender {
    /// The kernel's token bucket. It counts a super-packet's payload with one header, so its rate is that of full
    /// packets: bulk data gets what the wire would give it, small packets a little more.
    fn shape(&self, wanted: &Impairment) -> io::Result<()> {
        let network = &self.node.network;
        let Some(rate) = wanted.rate.filter(|rate| rate.0 <= SHAPED_BPS_MAX) else {
            return network.remove_qdisc(self.device);
        };
        let mtu = u64::from(self.mtu);
        let counted = u128::from(rate.0) * u128::from(mtu + COUNTED_BYTES)
            / u128::from(mtu + COUNTED_BYTES + UNCOUNTED_BYTES + self.tag_bytes);
        let burst = (rate.0 as f64 / 8.0 * BURST.as_secs_f64()) as u64;
        let burst = burst.clamp(2 * (mtu + COUNTED_BYTES), BURST_BYTES_MAX);
        network.replace_tbf(
            self.device,
            u64::try_from(counted).unwrap_or(u64::MAX),
            u32::try_from(burst).unwrap_or(u32::MAX),
            u32::try_from(wanted.queue_bytes().max(burst)).unwrap_or(u32::MAX),
        )
    }
}

/// A packet whose time has not come.
#[derive(Debug, Clone, Copy)]
struct Held {
    id: u32,
    at: Duration,
    bytes: u32,
    verdict: Verdict,
}

/// What the kernel is told of a packet, when all before it are decided: it finds the first of its queue at once, and any
/// other by a walk past all that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Go { marked: bool },
    Drop,
}

/// The thread of a direction.
struct Keeper {
    direction: Arc<Direction>,
    queue: PacketQueue,
    line: Line,
    mtu: u32,
    /// What Ethernet adds to each segment.
    ethernet_bytes: u64,
    held: VecDeque<Held>,
    /// Of packets held that are to be dropped.
    lost_bytes: u64,
    since: Instant,
    /// How long it waited without sleeping, less what it may.
    awake: Duration,
    /// While packets wait, and a little longer.
    wakeful: Option<CpuLatencyRequest>,
    /// It is for root alone.
    may_wake: bool,
}

impl Keeper {
    fn run(mut self) {
        if let Err(error) = machine::become_realtime() {
            tracing::debug!("{}: no real-time priority: {error}", self.direction.name);
        }
        let mut last = Duration::ZERO;
        while !self.direction.is_stopped() {
            let begun = self.since.elapsed();
            match self.turn(begun) {
                Ok(0) => {}
                Ok(_) if begun - last < NAP * 2 => {
                    thread::sleep(NAP.min(self.line.impairment().delay / NAP_SHARE));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(
                        "link {}: {error}; it carries nothing any more",
                        self.direction.name
                    );
                    return;
                }
            }
            last = begun;
        }
    }

    /// Waits for what comes next and deals with it; how many packets were taken.
    fn turn(&mut self, before: Duration) -> io::Result<usize> {
        let mut next = self.release()?;
        if let Some(wait) = next
            && self.awake < EARLY * 10
        {
            if wait <= EARLY {
                let due = self.since.elapsed() + wait;
                while self.since.elapsed() < due {
                    std::hint::spin_loop();
                }
                self.awake += wait;
                next = Some(Duration::ZERO);
            } else {
                next = Some(wait - EARLY);
            }
        }
        let sources = [
            (self.queue.as_fd(), Interest::READ),
            (self.direction.changed.as_fd(), Interest::READ),
        ];
        let idle = next.is_none() && self.wakeful.is_some();
        let ready = poll(&sources, if idle { Some(WAKEFUL) } else { next })?;
        if idle && !ready.iter().any(|one| one.any()) {
            self.wakeful = None;
        }
        if ready.get(1).is_some_and(|changed| changed.any()) {
            self.direction.changed.drain()?;
            self.line.set(self.direction.wanted());
        }
        // What is due goes before more is taken.
        let mut taken = 0;
        loop {
            match self.take()? {
                0 => break,
                count => taken += count,
            }
            self.release()?;
        }
        if self.wakeful.is_none() && self.may_wake && !self.held.is_empty() {
            self.wakeful = CpuLatencyRequest::zero().ok();
            self.may_wake = self.wakeful.is_some();
        }
        let slept = self.since.elapsed() - before;
        self.awake = self.awake.saturating_sub(slept / AWAKE_SHARE);
        Ok(taken)
    }

    /// Lets go what is due; gives the time until the next is.
    fn release(&mut self) -> io::Result<Option<Duration>> {
        loop {
            let now = self.since.elapsed();
            let Some(first) = self.held.front().copied() else { return Ok(None) };
            if first.at > now {
                return Ok(Some(first.at - now));
            }
            // One verdict for all that are due and fare alike.
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
                Verdict::Go { marked } => {
                    self.queue.accept_up_to(last, marked.then_some(CE_MARK))?;
                    self.direction.lateness.count(now - first.at, count);
                }
                Verdict::Drop => {
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
        let count = queue.take(|waiting| {
            let (id, bytes) = (waiting.id, waiting.bytes);
            if is_housekeeping(waiting.head) {
                let verdict = Verdict::Go { marked: false };
                return held.push_back(Held { id, at: now, bytes, verdict });
            }
            let packet = Packet::of(waiting.head, waiting.bytes, *mtu, *ethernet_bytes);
            // It arrived before this thread was told.
            let age = waiting.arrived.and_then(|then| clock.duration_since(then).ok());
            let age = age.unwrap_or_default().min(AGE_MAX);
            let fate = line.offer(now.saturating_sub(age), packet);
            direction.count(fate, packet);
            match fate {
                Fate::Arrives { at, marked } => {
                    held.push_back(Held { id, at, bytes, verdict: Verdict::Go { marked } });
                }
                _ if *lost_bytes > LOST_BYTES_MAX => at_once.push(id),
                Fate::Lost | Fate::Overflow | Fate::Cut => {
                    *lost_bytes += u64::from(bytes);
                    held.push_back(Held { id, at: now, bytes, verdict: Verdict::Drop });
                }
            }
        })?;
        at_once.into_iter().try_for_each(|id| queue.drop_one(id))?;
        Ok(count)
    }
}

/// Whether the kernel sent a packet for itself: to a multicast address of the link (RFC 4291 section 2.7), as reports
/// of group membership are. They come when they like, and must not change which packets of others are lost.
fn is_housekeeping(head: &[u8]) -> bool {
    head.first().is_some_and(|first| first >> 4 == 6) && head.get(24..26) == Some(&[0xFF, 0x02])
}
