//! Links whose packets wait in the kernel at their far end, for verdicts that come when their time has.
//!
//! A thread per direction keeps numbers and times; packets it never sees but for their first bytes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use penstock_sys::event::{Interest, poll};
use penstock_sys::machine::{self, Wakeful};
use penstock_sys::net::{CONGESTED, PacketQueue};
use std::os::fd::AsFd;

use super::{Place, Wire};
use crate::direction::{Counters, Direction};
use crate::lateness::Counted;
use crate::line::{Fate, Impairment, Line, Packet};
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

/// The sending end of a direction: what shapes it there.
#[derive(Debug)]
struct Sender {
    node: Arc<Node>,
    device: u32,
    mtu: u32,
}

/// The receiving end of a direction: where its packets wait.
#[derive(Debug)]
struct Receiver {
    node: Arc<Node>,
    device: u32,
    queue: u16,
    mtu: u32,
}

#[derive(Debug)]
struct Way {
    sender: Sender,
    receiver: Receiver,
    direction: Arc<Direction>,
    seed: u64,
    /// Runs from the first time that packets have to wait.
    thread: Option<JoinHandle<()>>,
    /// How the kernel segments super-packets now.
    segments: u32,
}

/// A pair of devices with two directions.
#[derive(Debug)]
pub(super) struct Link([Way; 2]);

impl Link {
    pub(super) fn join(name: &str, seed: u64, ends: [Place<'_>; 2]) -> io::Result<Self> {
        let devices = pair(ends)?;
        let way = |from: usize| -> io::Result<Way> {
            let (a, b) = (ends[from], ends[1 - from]);
            let sign = if from == 0 { '>' } else { '<' };
            Ok(Way {
                sender: Sender { node: Arc::clone(a.node), device: devices[from], mtu: a.port.mtu },
                receiver: Receiver {
                    node: Arc::clone(b.node),
                    device: devices[1 - from],
                    queue: u16::try_from(b.number).unwrap_or(u16::MAX),
                    mtu: b.port.mtu,
                },
                direction: Arc::new(Direction::new(
                    format!("{name}{sign}"),
                    Impairment::default(),
                )?),
                seed,
                thread: None,
                segments: SEGMENTS_MAX,
            })
        };
        Ok(Self([way(0)?, way(1)?]))
    }
}

/// Two devices joined, addressed and up; their indices.
pub(super) fn pair(ends: [Place<'_>; 2]) -> io::Result<[u32; 2]> {
    let [a, b] = ends;
    let (here, there) = (Node::new_device(a.port), Node::new_device(b.port));
    a.node.network.add_veth(&here, &there, &b.node.namespace)?;
    settle(ends)
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
        self.0.iter_mut().zip(wanted).try_for_each(|(way, wanted)| way.set(wanted))
    }

    fn counters(&self) -> io::Result<[Counters; 2]> {
        let [a, b] = &self.0;
        Ok([a.counters()?, b.counters()?])
    }

    fn lateness(&self) -> [Option<Counted>; 2] {
        self.0.each_ref().map(|way| way.thread.as_ref().map(|_| way.direction.lateness.counted()))
    }
}

impl Way {
    fn set(&mut self, wanted: Impairment) -> io::Result<()> {
        let segments = if wanted.loss > 0.0 { 1 } else { SEGMENTS_MAX };
        if segments != self.segments {
            self.sender.node.network.set_segments_max(self.sender.device, segments)?;
            self.segments = segments;
        }
        self.direction.set(wanted);
        if wanted.is_rate_alone() && self.thread.is_none() {
            return self.sender.shape(&wanted);
        }
        // Once packets wait here they go on doing so: a change of place could let one overtake another.
        if self.thread.is_none() {
            self.thread = Some(self.start()?);
            self.receiver.node.divert(self.receiver.device, Some(self.receiver.queue))?;
            self.sender.node.network.remove_qdisc(self.sender.device)?;
        }
        Ok(())
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let Receiver { node, queue, mtu, .. } = &self.receiver;
        let queue = node.namespace.inside(|| PacketQueue::open(*queue, HEAD_BYTES))??;
        let line = Line::new(self.direction.wanted(), self.seed, &self.direction.name);
        let keeper = Keeper {
            direction: Arc::clone(&self.direction),
            queue,
            line,
            mtu: *mtu,
            held: VecDeque::with_capacity(1 << 14),
            lost_bytes: 0,
            since: Instant::now(),
            awake: Duration::ZERO,
            wakeful: None,
            may_wake: true,
        };
        thread::Builder::new().name(self.direction.name.clone()).spawn(move || keeper.run())
    }

    /// What waited here, and what the kernel sent on before anything did.
    fn counters(&self) -> io::Result<Counters> {
        if self.thread.is_some() {
            return Ok(self.direction.counters());
        }
        let overflowed = self.sender.node.network.qdisc_drops(self.sender.device)?;
        let receiver = self.receiver.node.network.counters(self.receiver.device)?;
        Ok(Counters {
            packets: receiver.received_packets,
            wire_bytes: receiver.received_bytes + UNCOUNTED_BYTES * receiver.received_packets,
            overflowed,
            ..Counters::default()
        })
    }
}

impl Drop for Way {
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
            / u128::from(mtu + COUNTED_BYTES + UNCOUNTED_BYTES);
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
    held: VecDeque<Held>,
    /// Of packets held that are to be dropped.
    lost_bytes: u64,
    since: Instant,
    /// How long it waited without sleeping, less what it may.
    awake: Duration,
    /// While packets wait, and a little longer.
    wakeful: Option<Wakeful>,
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
            self.wakeful = Wakeful::begin().ok();
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
                    self.queue.accept_up_to(last, marked.then_some(CONGESTED))?;
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
        let Self { queue, line, held, direction, mtu, lost_bytes, .. } = self;
        let mut at_once = Vec::new();
        let count = queue.take(|waiting| {
            let (id, bytes) = (waiting.id, waiting.bytes);
            if is_housekeeping(waiting.head) {
                let verdict = Verdict::Go { marked: false };
                return held.push_back(Held { id, at: now, bytes, verdict });
            }
            let packet = Packet::of(waiting.head, waiting.bytes, *mtu);
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
