//! Model of one direction of a link: rate, queue, delay, jitter, loss, ECN marks. Pure: `now` is an argument.
//!
//! In order: random loss on arrival; a drop-tail queue limited in bytes; serialisation at the rate of the link, with
//! Ethernet framing for each segment; propagation delay. Packets are never reordered.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount, display_latency};

use penstock_random::Random;

/// Ethernet framing per packet: header 14, frame check sequence 4, preamble 8, inter-frame gap 12.
pub const ETHERNET_BYTES: u64 = 38;

/// Parameters of one direction of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// Rate on the wire; `None` is unlimited.
    pub rate: Option<BitRate>,
    /// Propagation delay, from the end of transmission to arrival.
    pub delay: Duration,
    /// Standard deviation of the normally distributed delay. Packets keep their order, which increases the mean delay
    /// where they are closer together than this.
    pub jitter: Duration,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Mean length of a loss burst in packets; 1 is independent loss.
    pub loss_burst: f64,
    /// Queue limit; `None` is [`Self::default_queue`].
    pub queue: Option<ByteCount>,
    /// Queue length from which ECN-capable packets are marked CE (RFC 3168).
    pub mark: Option<ByteCount>,
    /// True if the link is cut: no packet arrives.
    pub cut: bool,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            loss_burst: 1.0,
            queue: None,
            mark: None,
            cut: false,
        }
    }
}

impl Impairment {
    /// Default queue: the bandwidth-delay product, for at least 10 ms, and at least 256 KiB.
    #[must_use]
    pub fn default_queue(&self) -> ByteCount {
        let time = (self.delay * 2).max(Duration::from_millis(10));
        let rate = self.rate.map_or(0, |rate| rate.0);
        ByteCount(((rate as f64 / 8.0 * time.as_secs_f64()) as u64).max(256 << 10))
    }

    /// Queue limit in bytes.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        self.queue.unwrap_or_else(|| self.default_queue()).0
    }

    /// Checks that the parameters are consistent.
    ///
    /// # Errors
    /// With the contradiction.
    pub fn check(&self) -> Result<(), ImpairmentError> {
        // Gilbert model: at least one packet arrives between two bursts.
        let loss_max = self.loss_burst / (self.loss_burst + 1.0);
        if self.loss_burst > 1.0 && self.loss > loss_max {
            return Err(ImpairmentError::Loss {
                burst: self.loss_burst,
                max_percent: loss_max * 100.0,
            });
        }
        if self.jitter > self.delay {
            return Err(ImpairmentError::Jitter(self.delay));
        }
        if self.queue == Some(ByteCount(0)) {
            return Err(ImpairmentError::Queue);
        }
        match self.mark {
            Some(ByteCount(0)) => Err(ImpairmentError::Mark),
            Some(mark) => match self.queue.filter(|queue| mark > *queue) {
                Some(queue) => Err(ImpairmentError::MarkAboveQueue(queue)),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// True if a rate limit is all it needs, which the kernel's shaper provides.
    #[must_use]
    pub fn is_rate_alone(&self) -> bool {
        self.delay.is_zero()
            && self.jitter.is_zero()
            && self.loss == 0.0
            && self.mark.is_none()
            && !self.cut
    }
}

/// Parameters of a link that contradict each other.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ImpairmentError {
    /// More loss than bursts of this length allow.
    #[error(
        "the loss is too high for bursts of {burst}: at most {max_percent:.1} %, since at least one packet arrives between two bursts"
    )]
    Loss {
        /// Mean number of packets lost together.
        burst: f64,
        /// Largest loss with these bursts.
        max_percent: f64,
    },
    /// Jitter above this delay.
    #[error("a jitter is at most the delay, which is {}", display_latency(*.0))]
    Jitter(Duration),
    /// A queue of 0 bytes.
    #[error("a queue has room for a packet at least: none is the usual")]
    Queue,
    /// A marking threshold of 0 bytes.
    #[error("a mark is at least 1 byte: none marks nothing")]
    Mark,
    /// A marking threshold above the size of the queue.
    #[error("a mark is at most the queue ({0}): nothing waits beyond that")]
    MarkAboveQueue(ByteCount),
}

/// Properties of a packet, or of a super-packet, for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmulatedPacket {
    /// Bytes on the wire, with all headers of all its segments.
    pub wire_bytes: u64,
    /// True if it is ECN-capable (ECT).
    pub markable: bool,
}

impl EmulatedPacket {
    /// Parses the first bytes of an IP packet of length `bytes`. `ethernet_bytes` is the framing per segment
    /// ([`ETHERNET_BYTES`], and a tag). An unreadable packet counts as one segment.
    #[must_use]
    pub fn of(head: &[u8], bytes: u32, mtu: u32, ethernet_bytes: u64) -> Self {
        let headers = header_bytes(head).unwrap_or(0).min(mtu / 2);
        let (room, payload) = (mtu - headers, bytes.saturating_sub(headers));
        let segments = if bytes <= mtu { 1 } else { u64::from(payload.div_ceil(room.max(1))) };
        Self {
            wire_bytes: u64::from(bytes)
                + (segments - 1) * u64::from(headers)
                + segments * ethernet_bytes,
            markable: ecn(head).is_some_and(|bits| bits != 0),
        }
    }
}

/// ECN field (RFC 3168).
fn ecn(head: &[u8]) -> Option<u8> {
    match head.first()? >> 4 {
        4 => Some(head.get(1)? & 3),
        6 => Some((head.get(1)? >> 4) & 3),
        _ => None,
    }
}

/// Bytes of IP and TCP headers, which every segment of a super-packet repeats.
fn header_bytes(head: &[u8]) -> Option<u32> {
    const IPPROTO_TCP: u8 = 6;
    const IPPROTO_UDP: u8 = 17;
    const IPPROTO_HOPOPTS: u8 = 0;
    let (network, protocol) = match head.first()? >> 4 {
        4 => (usize::from(head[0] & 15) * 4, *head.get(9)?),
        // A BIG TCP super-packet has a hop-by-hop option of eight bytes, which its segments do not have.
        6 if *head.get(6)? == IPPROTO_HOPOPTS => (48, *head.get(40)?),
        6 => (40, *head.get(6)?),
        _ => return None,
    };
    let transport = match protocol {
        IPPROTO_TCP => usize::from(head.get(network + 12)? >> 4) * 4,
        IPPROTO_UDP => 8,
        _ => 0,
    };
    u32::try_from(network + transport).ok()
}

/// Outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOutcome {
    /// The packet arrives.
    Arrives {
        /// Arrival time on the clock of `now`.
        at: Duration,
        /// True if it is marked CE.
        marked: bool,
    },
    /// Lost by the loss model.
    Lost,
    /// Dropped by the full queue.
    Overflow,
    /// Dropped because the link is cut.
    Cut,
}

/// Model state of one direction of a link.
#[derive(Debug, Clone)]
pub struct Line {
    impairment: Impairment,
    random: Random,
    /// End of the last transmission.
    free_at: Duration,
    /// Arrival of the last packet.
    last_at: Duration,
    /// Bad state of the Gilbert (1960) model, in which packets are lost.
    bad: bool,
}

impl Line {
    /// Creates a model; the same seed and name lose the same packets.
    #[must_use]
    pub fn new(impairment: Impairment, seed: u64, name: &str) -> Self {
        Self {
            impairment,
            random: Random::named(seed, name),
            free_at: Duration::ZERO,
            last_at: Duration::ZERO,
            bad: false,
        }
    }

    /// Parameters now in force.
    #[must_use]
    pub const fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// Changes the parameters for later packets.
    pub fn set(&mut self, impairment: Impairment) {
        self.impairment = impairment;
    }

    /// Decides the outcome of a packet sent at `now`, which must not decrease.
    pub fn offer(&mut self, now: Duration, packet: EmulatedPacket) -> PacketOutcome {
        if self.impairment.cut {
            return PacketOutcome::Cut;
        }
        if self.is_lost() {
            return PacketOutcome::Lost;
        }
        self.carry(now, packet)
    }

    /// Decides queueing and delay of a packet that passed cut and loss.
    pub(crate) fn carry(&mut self, now: Duration, packet: EmulatedPacket) -> PacketOutcome {
        let mut marked = false;
        let mut leaves = now;
        if let Some(rate) = self.impairment.rate {
            let begins = self.free_at.max(now);
            let waiting = bytes_in(begins - now, rate);
            if waiting + packet.wire_bytes > self.impairment.queue_bytes().max(packet.wire_bytes) {
                return PacketOutcome::Overflow;
            }
            let mark = self.impairment.mark.filter(|_| packet.markable);
            marked = mark.is_some_and(|mark| waiting >= mark.0);
            leaves = begins + time_of(packet.wire_bytes, rate);
            self.free_at = leaves;
        }
        let at = (leaves + self.delay()).max(self.last_at);
        self.last_at = at;
        PacketOutcome::Arrives { at, marked }
    }

    fn delay(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        if jitter.is_zero() {
            return delay;
        }
        let seconds = delay.as_secs_f64() + jitter.as_secs_f64() * self.random.normal();
        Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Draws whether the next packet is lost.
    pub(crate) fn is_lost(&mut self) -> bool {
        let Impairment { loss, loss_burst, .. } = self.impairment;
        if loss_burst <= 1.0 {
            return self.random.chance(loss);
        }
        let (into, out_of) = gilbert(loss, loss_burst);
        self.bad = if self.bad { !self.random.chance(out_of) } else { self.random.chance(into) };
        self.bad
    }
}

/// Transition probabilities of the Gilbert model, into and out of the bad state, for a loss ratio and a mean burst length.
#[must_use]
pub fn gilbert(loss: f64, burst: f64) -> (f64, f64) {
    let out_of = 1.0 / burst.max(1.0);
    ((out_of * loss / (1.0 - loss).max(f64::MIN_POSITIVE)).min(1.0), out_of)
}

fn time_of(bytes: u64, rate: BitRate) -> Duration {
    let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(rate.0.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

fn bytes_in(time: Duration, rate: BitRate) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(rate.0) / 8_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
