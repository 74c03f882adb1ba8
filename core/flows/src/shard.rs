//! Division of datagrams among intakes that run in parallel, one on each thread.
//!
//! Templates, sequence numbers, sampling rates and duplicates are those of an exporter, so all
//! datagrams of one address go to one intake, its shard. Keys of the sums name the exporter: the
//! tables of two shards have no key in common, and their union is what one intake would have summed
//! ([`Aggregates::merge`](crate::aggregate::Aggregates::merge)).
//!
//! A hash of the address chooses the shard. The kernel computes the same hash in a filter program,
//! so it uses only operations on 32 bits that classic BPF has.
//!
//! Limits on exporters, states and sums hold for all shards together ([`ShardLimits`]). Each shard
//! has its share of newcomers and of flow totals, its own counters of largest flows, and its own
//! copy of the fireflies.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::packet::MappedAddress;
use crate::sflow::SFLOW_VERSION;

/// Most shards, and so most receiving threads.
pub const SHARDS_MAX: usize = 64;

/// Multiplier of the hash: 2³² by the golden ratio (Knuth, The Art of Computer Programming, 6.4),
/// which spreads addresses in sequence evenly. Exporters are often few and numbered in sequence.
pub const HASH_MULTIPLIER: u32 = 2_654_435_761;

/// Bits of the hash below those that choose the shard.
pub const HASH_LOW_BITS: u32 = 16;

/// Offset of the type of the agent's address in a datagram of sFlow; the address follows.
pub const AGENT_TYPE_AT: usize = 4;

/// Intervals whose keys are counted at a time; must exceed the intervals that are open.
const INTERVALS_MAX: usize = 4096;

/// Protocol of a datagram, as far as its exporter's address depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteeringKind {
    /// sFlow: the address that the agent claims, if it does.
    Agent,
    /// IPFIX and NetFlow: the source address.
    Source,
}

/// Address of a datagram's exporter; `None` if the datagram is malformed.
#[must_use]
#[inline]
pub fn exporter_address(kind: SteeringKind, from: IpAddr, bytes: &[u8]) -> Option<MappedAddress> {
    if kind == SteeringKind::Source {
        return Some(from.into());
    }
    let (version, rest) = bytes.split_first_chunk::<4>()?;
    let (agent_type, rest) = rest.split_first_chunk::<4>()?;
    if u32::from_be_bytes(*version) != SFLOW_VERSION {
        return None;
    }
    match u32::from_be_bytes(*agent_type) {
        0 => Some(from.into()),
        1 => rest.first_chunk::<4>().map(|octets| IpAddr::from(*octets).into()),
        2 => rest.first_chunk::<16>().map(|octets| MappedAddress(u128::from_be_bytes(*octets))),
        _ => None,
    }
}

/// Shard, of `shards`, that processes the datagrams of an exporter with this address.
#[must_use]
#[inline]
pub fn shard_of(address: MappedAddress, shards: usize) -> usize {
    let word = |at: u32| (address.0 >> (96 - 32 * at)) as u32;
    let hash =
        (0..4).fold(0_u32, |hash, at| hash.wrapping_add(word(at)).wrapping_mul(HASH_MULTIPLIER));
    // The upper half as a fraction of 2¹⁶, scaled to the count of shards.
    ((hash >> HASH_LOW_BITS) as usize * shards) >> HASH_LOW_BITS
}

/// Use of the limits that hold for all shards together.
#[derive(Debug)]
pub struct ShardLimits {
    shards: usize,
    next_exporter: AtomicU32,
    established: AtomicUsize,
    /// True if a newcomer waits for the place of an established exporter.
    place_wanted: AtomicBool,
    states: AtomicUsize,
    pub(crate) keys: KeyLimits,
}

/// Keys in use of each table of sums.
#[derive(Debug, Default)]
pub(crate) struct KeyLimits {
    pub(crate) groups: IntervalCounts,
    pub(crate) hosts: IntervalCounts,
    pub(crate) as_pairs: IntervalCounts,
    pub(crate) prefixes: IntervalCounts,
}

impl ShardLimits {
    /// Starts with nothing in use by `shards` shards, 1 to [`SHARDS_MAX`].
    #[must_use]
    pub fn new(shards: usize) -> Self {
        Self {
            shards: shards.clamp(1, SHARDS_MAX),
            next_exporter: AtomicU32::new(0),
            established: AtomicUsize::new(0),
            place_wanted: AtomicBool::new(false),
            states: AtomicUsize::new(0),
            keys: KeyLimits::default(),
        }
    }

    /// Share of a limit that each shard has for itself.
    pub(crate) fn share(&self, limit: usize) -> usize {
        limit.div_ceil(self.shards)
    }

    /// Number of a new exporter.
    pub(crate) fn draw_exporter(&self) -> u32 {
        self.next_exporter.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves the place of an established exporter.
    pub(crate) fn add_established(&self, limit: usize) -> bool {
        reserve(&self.established, 1, limit)
    }

    /// Asks all shards for the place of a silent exporter.
    pub(crate) fn want_place(&self) {
        if !self.is_place_wanted() {
            self.place_wanted.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_place_wanted(&self) -> bool {
        self.place_wanted.load(Ordering::Relaxed)
    }

    /// Returns the place of an evicted exporter, for a newcomer of any shard.
    pub(crate) fn return_place(&self) {
        self.established.fetch_sub(1, Ordering::Relaxed);
        self.place_wanted.store(false, Ordering::Relaxed);
    }

    pub(crate) fn add_states(&self, count: usize, limit: usize) -> bool {
        reserve(&self.states, count, limit)
    }

    pub(crate) fn remove_states(&self, count: usize) {
        self.states.fetch_sub(count, Ordering::Relaxed);
    }
}

fn reserve(used: &AtomicUsize, count: usize, limit: usize) -> bool {
    let more = |used: usize| used.checked_add(count).filter(|used| *used <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Count of keys by interval, without locks: the low halves of interval and count share a word.
#[derive(Debug)]
pub(crate) struct IntervalCounts(Box<[AtomicU64]>);

impl Default for IntervalCounts {
    fn default() -> Self {
        Self((0..INTERVALS_MAX).map(|_| AtomicU64::new(0)).collect())
    }
}

impl IntervalCounts {
    fn slot(&self, interval: u64) -> &AtomicU64 {
        &self.0[interval as usize % INTERVALS_MAX]
    }

    /// Counts a key of an interval; returns false at the limit. A newer interval with the same slot
    /// takes it over; the older one gets no more keys.
    #[inline]
    pub(crate) fn add(&self, interval: u64, limit: usize) -> bool {
        let limit = limit.min(u32::MAX as usize) as u32;
        let number = interval as u32;
        let more = |slot: u64| {
            let (of, count) = ((slot >> 32) as u32, slot as u32);
            match of == number {
                true if count < limit => Some(slot + 1),
                // The difference of numbers that may wrap.
                false if limit > 0 && (count == 0 || (number.wrapping_sub(of) as i32) > 0) => {
                    Some(u64::from(number) << 32 | 1)
                }
                _ => None,
            }
        };
        let slot = self.slot(interval);
        slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Returns keys of an interval.
    pub(crate) fn remove(&self, interval: u64, count: usize) {
        let less = |slot: u64| {
            let same = (slot >> 32) as u32 == interval as u32;
            same.then(|| slot - u64::from((slot as u32).min(count as u32)))
        };
        let _ = self.slot(interval).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_forms_have_one_shard() {
        let mapped: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
        let plain: IpAddr = "192.0.2.7".parse().unwrap();
        assert_eq!(shard_of(mapped.into(), 64), shard_of(plain.into(), 64));
        // The agent's address counts, not that of the sender.
        let agent = [&[0, 0, 0, 5, 0, 0, 0, 1, 192, 0, 2, 7][..], &[0; 16]].concat();
        let address = exporter_address(SteeringKind::Agent, [10, 0, 0, 1].into(), &agent);
        assert_eq!(address, Some(plain.into()));
        let of_source = exporter_address(SteeringKind::Source, plain, &agent);
        assert_eq!(of_source, Some(plain.into()));
        let unknown = [0, 0, 0, 5, 0, 0, 0, 0];
        assert_eq!(exporter_address(SteeringKind::Agent, plain, &unknown), Some(plain.into()));
        for broken in [&agent[..11], &[0, 0, 0, 4, 0, 0, 0, 1, 1, 2, 3, 4], &[0, 0, 0, 5]] {
            assert_eq!(exporter_address(SteeringKind::Agent, plain, broken), None);
        }
    }

    #[test]
    fn addresses_spread_over_shards() {
        let most = |shards, step: u32, count: u32| {
            let mut counts = vec![0; shards];
            for number in 0..count {
                let ip = IpAddr::from((0x0A00_0001 + number * step).to_be_bytes());
                counts[shard_of(ip.into(), shards)] += 1;
            }
            counts.into_iter().max().unwrap()
        };
        for shards in [2, 4, 8] {
            for step in [1, 2, 16, 256, 65_536] {
                let most = most(shards, step, 1_000);
                assert!(most <= 1_000 / shards + 5, "step {step}: {most} of 1000");
            }
        }
        // Few exporters, in sequence.
        assert_eq!((most(2, 1, 8), most(4, 1, 8), most(8, 1, 8)), (4, 2, 1));
    }

    #[test]
    fn key_limits_are_per_interval() {
        let counts = IntervalCounts::default();
        assert!((0..3).all(|_| counts.add(7, 3)) && !counts.add(7, 3));
        assert!(counts.add(8, 3));
        counts.remove(7, 2);
        assert!(counts.add(7, 3) && counts.add(7, 3) && !counts.add(7, 3));
        // A newer interval takes the slot; the older one has no room any more.
        let newer = 7 + INTERVALS_MAX as u64;
        assert!(counts.add(newer, 3) && !counts.add(7, 3));
        counts.remove(7, 3);
        assert!(counts.add(newer, 3) && counts.add(newer, 3) && !counts.add(newer, 3));
    }
}
