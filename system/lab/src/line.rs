//! What one direction of a link does to packets: rate, queue, delay, jitter, loss, marks. Pure: it is told the time.
//!
//! A packet is lost or not as it arrives; then it waits for those before it to be put on the wire, at most as many
//! bytes as the queue has room for; then it takes its bytes' time at the rate of the link, with everything that
//! Ethernet adds to each segment; then the delay. Packets never overtake each other.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount, display_latency};

use crate::random::Random;

/// What Ethernet adds to each packet: header 14, check sequence 4, preamble 8, gap 12.
pub const ETHERNET_BYTES: u64 = 38;

/// What a direction of a link does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Impairment {
    /// Bits per second on the wire; none is as fast as the machine.
    pub rate: Option<BitRate>,
    /// From the end of a packet's transmission to its arrival.
    pub delay: Duration,
    /// Standard deviation of the delay, of a normal distribution; packets still do not overtake each other, which
    /// makes the mean longer where they are closer together than this.
    pub jitter: Duration,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Packets that are lost together, in the mean; 1 is each by itself.
    pub loss_burst: f64,
    /// Bytes that may wait; none is [`Self::usual_queue`].
    pub queue: Option<ByteCount>,
    /// Bytes waiting from which packets that can be are marked as having met congestion (RFC 3168).
    pub mark: Option<ByteCount>,
    /// Whether the fibre is cut: nothing arrives.
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
    /// What a link gets that does not say: the bytes of a round trip at its rate, at least of ten milliseconds and
    /// 256 KiB.
    #[must_use]
    pub fn usual_queue(&self) -> ByteCount {
        let time = (self.delay * 2).max(Duration::from_millis(10));
        let rate = self.rate.map_or(0, |rate| rate.0);
        ByteCount(((rate as f64 / 8.0 * time.as_secs_f64()) as u64).max(256 << 10))
    }

    /// The bytes that may wait.
    #[must_use]
    pub fn queue_bytes(&self) -> u64 {
        self.queue.unwrap_or_else(|| self.usual_queue()).0
    }

    /// Whether a line can do it all together; else why not.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), String> {
        // Two states: at least one packet arrives between two bursts.
        let loss_max = self.loss_burst / (self.loss_burst + 1.0);
        if self.loss_burst > 1.0 && self.loss > loss_max {
            return Err(format!(
                "so much is not lost in bursts of {}: at most {:.1} %, since a packet arrives between two of them",
                self.loss_burst,
                loss_max * 100.0
            ));
        }
        if self.jitter > self.delay {
            let delay = display_latency(self.delay);
            return Err(format!("a jitter is at most the delay, which is {delay}"));
        }
        if self.queue == Some(ByteCount(0)) {
            return Err("a queue has room for a packet at least: none is the usual".to_owned());
        }
        match self.mark {
            Some(ByteCount(0)) => Err("a mark is at least 1 byte: none marks nothing".to_owned()),
            Some(mark) => match self.queue.filter(|queue| mark > *queue) {
                Some(queue) => {
                    Err(format!("a mark is at most the queue ({queue}): nothing waits beyond that"))
                }
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Whether a shaper is all it needs: no packet is held or lost but for its rate.
    #[must_use]
    pub fn is_rate_alone(&self) -> bool {
        self.delay.is_zero()
            && self.jitter.is_zero()
            && self.loss == 0.0
            && self.mark.is_none()
            && !self.cut
    }
}

/// A packet as a line sees it; a super-packet, which stands for many, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Bytes on the wire, with all headers of all its segments.
    pub wire_bytes: u64,
    /// Whether its sender understands marks.
    pub markable: bool,
}

impl Packet {
    /// From the first bytes of an IP packet, its length, the longest packet of its link, and what Ethernet adds to each
    /// ([`ETHERNET_BYTES`], and a tag). What cannot be read counts as one packet.
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

/// The two bits of RFC 3168.
fn ecn(head: &[u8]) -> Option<u8> {
    match head.first()? >> 4 {
        4 => Some(head.get(1)? & 3),
        6 => Some((head.get(1)? >> 4) & 3),
        _ => None,
    }
}

/// Bytes of IP and TCP headers, which every segment of a super-packet repeats.
fn header_bytes(head: &[u8]) -> Option<u32> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const HOP_BY_HOP: u8 = 0;
    let (network, protocol) = match head.first()? >> 4 {
        4 => (usize::from(head[0] & 15) * 4, *head.get(9)?),
        // A jumbogram of the kernel (BIG TCP) has an option of eight bytes, which its segments have not.
        6 if *head.get(6)? == HOP_BY_HOP => (48, *head.get(40)?),
        6 => (40, *head.get(6)?),
        _ => return None,
    };
    let transport = match protocol {
        TCP => usize::from(head.get(network + 12)? >> 4) * 4,
        UDP => 8,
        _ => 0,
    };
    u32::try_from(network + transport).ok()
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Arrives {
        /// When, on the clock by which it was offered.
        at: Duration,
        /// Whether it met congestion.
        marked: bool,
    },
    /// It was lost on the way.
    Lost,
    /// It found no room in the queue.
    Overflow,
    /// The fibre is cut.
    Cut,
}

/// One direction of a link.
#[derive(Debug, Clone)]
pub struct Line {
    impairment: Impairment,
    random: Random,
    /// When the wire is free for the next packet.
    free_at: Duration,
    /// When the last packet arrives.
    last_at: Duration,
    /// Whether packets are being lost, in the model of Gilbert (1960).
    bad: bool,
}

impl Line {
    /// A line that loses the same packets for the same seed and name.
    #[must_use]
    pub fn new(impairment: Impairment, seed: u64, name: &str) -> Self {
        Self {
            impairment,
            random: Random::new(seed, name),
            free_at: Duration::ZERO,
            last_at: Duration::ZERO,
            bad: false,
        }
    }

    /// What it does.
    #[must_use]
    pub const fn impairment(&self) -> &Impairment {
        &self.impairment
    }

    /// Does something else from now on; packets on their way stay on it.
    pub fn set(&mut self, impairment: Impairment) {
        self.impairment = impairment;
    }

    /// What becomes of a packet that is offered now. Time never goes back.
    pub fn offer(&mut self, now: Duration, packet: Packet) -> Fate {
        if self.impairment.cut {
            return Fate::Cut;
        }
        if self.is_lost() {
            return Fate::Lost;
        }
        self.carry(now, packet)
    }

    /// What becomes of a packet that is not lost and meets no cut.
    pub(crate) fn carry(&mut self, now: Duration, packet: Packet) -> Fate {
        let mut marked = false;
        let mut leaves = now;
        if let Some(rate) = self.impairment.rate {
            let begins = self.free_at.max(now);
            let waiting = bytes_in(begins - now, rate);
            if waiting + packet.wire_bytes > self.impairment.queue_bytes().max(packet.wire_bytes) {
                return Fate::Overflow;
            }
            let mark = self.impairment.mark.filter(|_| packet.markable);
            marked = mark.is_some_and(|mark| waiting >= mark.0);
            leaves = begins + time_of(packet.wire_bytes, rate);
            self.free_at = leaves;
        }
        let at = (leaves + self.delay()).max(self.last_at);
        self.last_at = at;
        Fate::Arrives { at, marked }
    }

    fn delay(&mut self) -> Duration {
        let Impairment { delay, jitter, .. } = self.impairment;
        if jitter.is_zero() {
            return delay;
        }
        let seconds = delay.as_secs_f64() + jitter.as_secs_f64() * self.random.normal();
        Duration::from_secs_f64(seconds.max(0.0))
    }

    /// Whether the next packet is lost.
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

/// Probabilities to begin and to end losing, for a share of losses that come in bursts of this mean.
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
